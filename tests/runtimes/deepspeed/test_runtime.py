"""DeepSpeed's own parsers take what is emitted for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from planner.cluster.spec import ClusterSpec, HostSpec
from planner.cost.estimate import estimate
from planner.cost.memory import BUCKET_ELEMENTS
from planner.emit.interface import emit, write_folder
from planner.model.spec import DocumentsSpec, ExpertsSpec, LoraSpec, PreferenceSpec, RunSpec
from planner.plan.checks import faults
from planner.plan.placement import ranks
from planner.plan.values import Offload, Plan, ZeroPlus
from planner.runtimes.deepspeed.capabilities import CAPABILITIES
from planner.runtimes.deepspeed.runtime import common_config, zero_section
from planner.training import hetplan_runtime as batches
from planner.training.example_model import Transformer, load_shape
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("A100",) * 4, 2), pool("b", ("T4",) * 2, 1))


pytestmark = pytest.mark.usefixtures("no_third_party_warnings")


def data_parallel(zero: int) -> Plan:
    """Eight devices with 5 sequences and two with 1."""
    replicas = (group("a", "A100", count=8, share=5, steps=2), group("b", "T4", count=2, share=1))
    return plan("deepspeed", zero, [4], [replicas])


def pipeline(zero: int) -> Plan:
    """Three layers on one pool and one on the other."""
    return plan(
        "deepspeed",
        zero,
        [3, 1],
        [(group("a", "A100", count=2, share=4, steps=2),), (group("b", "T4", count=2, share=4, steps=2),)],
    )


def test_trainer_gets_grouped_experts() -> None:
    """A model whose classes loop over experts is not the one that was priced."""
    for experts in (None, ExpertsSpec(number=4, top_k=2, ffn=64)):
        spec = model(42).model_copy(update={"experts": experts})
        readme = next(file.text for file in emit(data_parallel(2), CLUSTER, spec) if file.path == "README.md")
        assert ('experts_implementation="grouped_mm"' in readme) == (experts is not None)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "tf32"])
@pytest.mark.parametrize("chosen", [*map(data_parallel, range(4)), *map(pipeline, range(2))])
def test_deepspeed_accepts_the_configuration(tmp_path: Path, chosen: Plan, precision: str) -> None:
    """Every rank's configuration passes DeepSpeed's validation and says what the plan says."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    spec = model(chosen.global_batch, precision=precision)
    write_folder(emit(chosen, CLUSTER, spec), tmp_path / "run")
    for rank in ranks(chosen, CLUSTER):
        mine = batches.load(tmp_path / "run" / "batches.json", rank=rank.rank)
        parsed = config_module.DeepSpeedConfig(mine.deepspeed_config(tmp_path / "run" / "ds_config.json"))
        replicas = chosen.stages[rank.stage].replicas[rank.group]
        assert parsed.train_micro_batch_size_per_gpu == replicas.micro_batch
        assert parsed.gradient_accumulation_steps == (
            chosen.micro_batches if chosen.zero >= 2 else replicas.accumulation_steps
        )
        assert parsed.zero_config.stage == chosen.zero
        assert parsed.bfloat16_config.enabled == (precision == "bf16")
        assert parsed.float16_config.enabled == (precision == "fp16")


def section(chosen: Plan, **changes: Any) -> dict[str, Any]:
    """The common configuration for a plan."""
    config: dict[str, Any] = json.loads(
        json.dumps(common_config(chosen, model(chosen.global_batch, **changes)))
    )
    return config


def test_options_of_each_zero_stage() -> None:
    """Stages reduce in buckets of the size that the memory model counts; a pipeline overlaps nothing."""
    parameters = model(1).parameters
    assert section(data_parallel(0))["zero_optimization"] == {"stage": 0}
    second = section(data_parallel(2))["zero_optimization"]
    assert second["overlap_comm"] is True
    assert second["reduce_bucket_size"] == second["allgather_bucket_size"] == parameters
    assert section(pipeline(1))["zero_optimization"]["overlap_comm"] is False
    assert section(pipeline(1))["zero_optimization"]["reduce_bucket_size"] == model(1).layer_parameters
    large = common_config(data_parallel(1), model(42, hidden=8192, ffn=32768))["zero_optimization"]
    assert isinstance(large, dict)
    assert CAPABILITIES.buckets is not None
    assert large["reduce_bucket_size"] == BUCKET_ELEMENTS == CAPABILITIES.buckets.elements
    third = section(data_parallel(3))["zero_optimization"]
    assert third["stage3_max_live_parameters"] == 2 * model(1).layer_parameters
    assert "allgather_bucket_size" not in third


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_formats_of_gradients(precision: str) -> None:
    """Those that are not DeepSpeed's own, of half-precision training alone."""
    half = precision == "bf16"
    for asked, wanted in (
        ({}, {}),
        ({"gradient_dtype": "bf16", "reduce_dtype": "bf16"}, {}),
        ({"reduce_dtype": "fp32"}, {"communication_data_type": "fp32"}),
        ({"gradient_dtype": "fp32"}, {"data_types": {"grad_accum_dtype": "fp32"}}),
    ):
        config = section(data_parallel(2), precision=precision, **(asked if half else {}))
        keys = ("communication_data_type", "data_types")
        assert {key: config[key] for key in keys if key in config} == (wanted if half else {})


def test_buckets_of_adapters() -> None:
    """They hold what is reduced, as the plan's memory counts; parameters are fetched ahead as if all were trained."""
    lora = LoraSpec(rank=4)
    spec = model(42)
    training = spec.training.model_copy(update={"lora": lora})
    adapted = spec.model_copy(update={"training": training})
    found = common_config(data_parallel(3), adapted)["zero_optimization"]
    assert isinstance(found, dict)
    assert found["reduce_bucket_size"] == adapted.trained_parameters < adapted.layer_parameters
    assert found["stage3_prefetch_bucket_size"] == adapted.layer_parameters


@pytest.mark.parametrize("zero", [1, 3])
def test_buckets_of_divided_experts(zero: int) -> None:
    """Are as large as what a device has of them, and no larger."""
    spec = model(8, layers=4, experts=ExpertsSpec(number=4, top_k=2, ffn=24))
    before, after = (
        zero_section(plan("deepspeed", zero, [4], [(group("a", "A100", count=4, share=2),)], ep=ep), spec)
        for ep in (1, 4)
    )

    def less(key: str) -> Any:
        return cast("int", before[key]) - cast("int", after[key])

    sent = 3 * spec.expert_parameters // 4
    assert less("reduce_bucket_size") == pytest.approx(4 * sent, abs=1)
    if zero == 3:
        assert less("stage3_max_reuse_distance") == sent


def test_clipping() -> None:
    """Gradients are clipped except where DeepSpeed takes the norm of one stage for the whole."""
    assert section(pipeline(0), precision="fp32")["gradient_clipping"] == 0.0
    assert section(pipeline(0), precision="tf32")["gradient_clipping"] == 0.0
    assert section(pipeline(1), precision="fp32")["gradient_clipping"] == 1.0
    assert section(pipeline(0), precision="bf16")["gradient_clipping"] == 1.0
    made = {file.path: file.text for file in emit(pipeline(0), CLUSTER, model(8, precision="fp32"))}
    assert "not clipped" in made["README.md"]


@pytest.mark.parametrize(
    ("zero", "training", "expected"),
    [
        (0, {"precision": "fp16"}, True),
        (0, {"precision": "bf16"}, True),
        (0, {"precision": "fp32"}, False),
        (0, {"precision": "fp16", "optimizer": "sgd"}, False),
        (1, {"precision": "fp16"}, False),
    ],
)
def test_the_step_that_deepspeed_counts_is_told(zero: int, training: dict[str, Any], expected: bool) -> None:
    """Its optimizers of ZeRO 0 in half precision set up AdamW's states by a step on zero gradients."""
    made = {file.path: file.text for file in emit(data_parallel(zero), CLUSTER, model(42, **training))}
    assert ("first steps are shorter" in made["README.md"]) is expected


def test_tf32_is_a_plain_configuration() -> None:
    """DeepSpeed stores it as fp32; no section switches it on."""
    config = section(data_parallel(1), precision="tf32")
    assert config == section(data_parallel(1), precision="fp32")
    assert not {"bf16", "fp16", "fp8", "tf32"} & set(config)


@pytest.mark.parametrize("chosen", [data_parallel(1), pipeline(1)], ids=["data", "pipeline"])
def test_fp8_is_refused(chosen: Plan) -> None:
    """By the plan check, before anything is emitted."""
    found = faults(chosen, CLUSTER, model(chosen.global_batch, precision="fp8"))
    assert [fault.path for fault in found if "does not train in fp8" in fault.what] == [("target",)]


def test_runtime_is_copied() -> None:
    """The training side stands on its own: no import of the planner is left."""
    made = {file.path: file.text for file in emit(data_parallel(1), CLUSTER, model(42))}
    own = Path(batches.__file__).read_text(encoding="utf-8")
    assert made["hetplan_runtime.py"] == own.replace("from planner.training.", "from ")
    for path in (name for name in made if name.endswith(".py")):
        assert "planner" not in made[path]
        compile(made[path], path, "exec")


def offloading(offload: Offload, zero: int) -> Plan:
    """Eight devices with five sequences, full recomputation."""
    replicas = (group("a", "A100", count=8, share=5, steps=5),)
    return plan("deepspeed", zero, [4], [replicas], recompute="full", offload=offload)


def test_offload_is_configured(tmp_path: Path) -> None:
    """DeepSpeed takes it, and reads from it what the plan says."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    chosen = offloading(Offload(optimizer="cpu", parameters="cpu", activations="cpu"), 3)
    config = section(chosen)
    zero = config["zero_optimization"]
    assert zero["offload_optimizer"] == zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert config["zero_force_ds_cpu_optimizer"] is True
    assert section(chosen, optimizer="sgd")["zero_force_ds_cpu_optimizer"] is False
    read = config_module.DeepSpeedConfig({**config, "train_micro_batch_size_per_gpu": 1})
    assert read.activation_checkpointing_config.cpu_checkpointing
    assert str(read.zero_config.offload_param.device) == "cpu"
    made = {file.path: file.text for file in emit(chosen, CLUSTER, model(40))}
    for word in ("DeepSpeedCPUAdam", "zero.Init", "checkpoint_in_cpu=True"):
        assert word in made["README.md"]


def test_stages_of_blocks() -> None:
    """The README says which modules a stage has, and ZeRO 3 has two layers alive, not two blocks."""
    unlike: dict[str, Any] = {"block": (RunSpec(layers=2), RunSpec(ffn=256)), "ahead": (RunSpec(ffn=64),)}
    made = {file.path: file.text for file in emit(pipeline(1), CLUSTER, model(8, **unlike))}
    assert "before=2, after=2, each=3)" in made["README.md"]
    plain = {file.path: file.text for file in emit(pipeline(1), CLUSTER, model(8))}
    assert "before=1, after=2)" in plain["README.md"]
    whole = model(42, **unlike)
    live = section(data_parallel(3), **unlike)["zero_optimization"]["stage3_max_live_parameters"]
    assert live == 2 * max(kind.layer_parameters for kind in whole.kinds) < 2 * whole.layer_parameters


def test_offload_of_the_optimizer_alone() -> None:
    """Nothing else leaves; a plan without offload has none of its keys."""
    config = section(offloading(Offload(optimizer="cpu"), 2))
    assert "offload_param" not in config["zero_optimization"]
    assert "activation_checkpointing" not in config
    plain = section(data_parallel(2))
    assert not {"zero_force_ds_cpu_optimizer", "activation_checkpointing"} & set(plain)
    assert "offload_optimizer" not in plain["zero_optimization"]
    assert (
        "Offload"
        not in {file.path: file.text for file in emit(data_parallel(2), CLUSTER, model(42))}["README.md"]
    )


def sub_groups(sizes: list[int], least: int) -> list[int]:
    """Elements of each of DeepSpeed's groups of tensors of such sizes, which are full once they have passed theirs."""
    found = [0]
    for size in sizes:
        if found[-1] >= least:
            found.append(0)
        found[-1] += size
    return found


@pytest.mark.parametrize("ratio", [0.1, 0.35, 0.6, 0.9])
def test_a_share_of_the_optimizer_is_configured(tmp_path: Path, ratio: float) -> None:
    """DeepSpeed reads it; as it deals groups of tensors, the device holds no more than the plan counts for it."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    chosen = offloading(Offload(optimizer="cpu", ratio=ratio), 3)
    config, spec = section(chosen), model(40)
    zero = config["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": ratio}
    read = config_module.DeepSpeedConfig({**config, "train_micro_batch_size_per_gpu": 1})
    assert read.zero_config.offload_optimizer.ratio == ratio
    assert config["zero_force_ds_cpu_optimizer"] is True
    assert config["gradient_clipping"] == 1.0
    made = {file.path: file.text for file in emit(chosen, with_hosts(CLUSTER), spec)}
    (tmp_path / "model.json").write_text(made["model.json"])
    with torch.device("meta"):
        tensors = list(Transformer(load_shape(tmp_path / "model.json")).parameters())
    groups = sub_groups([-(-each.numel() // 8) for each in tensors], zero["sub_group_size"])
    kept = sum(groups[: int((1 - ratio) * len(groups))])
    joined = with_hosts(cluster(pool("a", nodes=2, per_node=4)))
    memory = [
        estimate(each, joined, spec).stages[0].groups[0].memory.optimizer_bytes
        for each in (chosen, replace(chosen, offload=Offload(optimizer="cpu")))
    ]
    assert memory[1] == 0.0
    assert 16 * kept <= memory[0]
    assert f"update {100 * ratio:.3g} % of the parameters (`ratio`)" in made["README.md"]


def test_superoffload_is_configured() -> None:
    """Updates during the backward, which DeepSpeed has without clipping alone; with a share of the optimizer too."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    chosen = offloading(Offload(optimizer="cpu", ratio=0.9, super_offload=True), 3)
    config = section(chosen)
    read = config_module.DeepSpeedConfig({**config, "train_micro_batch_size_per_gpu": 1})
    found = read.zero_config.offload_optimizer
    assert (found.super_offload, found.cpuadam_cores_perc, found.ratio) == (True, 0.8, 0.9)
    assert read.gradient_clipping == 0.0
    assert read.zero_config.sub_group_size == config["zero_optimization"]["sub_group_size"] < 1e6
    spec = model(40, precision="bf16")
    readme = next(
        file.text for file in emit(chosen, with_hosts(CLUSTER, 300), spec) if file.path == "README.md"
    )
    assert '`"gradient_clipping": 0`' in readme
    assert "Gradients are not clipped, see [Offload](#offload)" in readme
    plain = section(offloading(Offload(optimizer="cpu"), 3))
    assert plain["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert "sub_group_size" not in plain["zero_optimization"]


def with_hosts(cluster: ClusterSpec, link: float = 10) -> ClusterSpec:
    """The cluster with links of so many gigabyte/s to its hosts."""
    host = HostSpec(link_gBps=link)
    pools = tuple(each.model_copy(update={"host": host}) for each in cluster.pools)
    return cluster.model_copy(update={"pools": pools})


def test_numbers_of_the_configuration() -> None:
    """What Hugging Face's ``auto`` gives (10 h for what stays whole), two layers alive, dynamic scaling from 2^16."""
    spec = model(data_parallel(3).global_batch, precision="fp16")
    config = common_config(data_parallel(3), spec)
    assert config["fp16"] == {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}
    assert config["zero_allow_untested_optimizer"] is True
    assert (config["steps_per_print"], config["gradient_clipping"]) == (100, 1.0)
    found = section(data_parallel(3))["zero_optimization"]
    layer = spec.layer_parameters
    assert found["stage3_param_persistence_threshold"] == 10 * spec.hidden
    assert found["stage3_prefetch_bucket_size"] == min(layer, found["reduce_bucket_size"])
    assert found["stage3_max_live_parameters"] == max(2 * layer, spec.embedding_parameters)
    assert found["stage3_max_reuse_distance"] == layer
    for key in ("contiguous_gradients", "reduce_scatter", "stage3_gather_16bit_weights_on_model_save"):
        assert found[key] is True
    for zero in (1, 2):
        part = section(data_parallel(zero))["zero_optimization"]
        assert part["allgather_bucket_size"] == part["reduce_bucket_size"]
        assert part["contiguous_gradients"] is True
        assert part["reduce_scatter"] is True


def widened(**changes: Any) -> Plan:
    """ZeRO 3 on eight devices."""
    tp = changes.pop("tp", 1)
    replicas = (group("a", "A100", tp=tp, count=8 // tp, share=2),)
    return plan("deepspeed", 3, [4], [replicas], **changes)


@pytest.mark.parametrize(
    ("chosen", "key", "wanted"),
    [
        (widened(tp=2), "tensor_parallel", {"autotp_size": 2}),
        (widened(zero_plus=ZeroPlus(secondary=4)), "zero_hpz_partition_size", 4),
        (widened(zero_plus=ZeroPlus(int8_weights=True)), "zero_quantized_weights", True),
        (widened(zero_plus=ZeroPlus(secondary=4, int4_gradients=True)), "zero_quantized_gradients", True),
    ],
)
def test_what_deepspeed_calls_them(tmp_path: Path, chosen: Plan, key: str, wanted: object) -> None:
    """AutoTP and ZeRO++, by keys that its validation takes; without them there are no such keys."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    spec = model(chosen.global_batch, precision="bf16")
    write_folder(emit(chosen, CLUSTER, spec), tmp_path / "run")
    mine = batches.load(tmp_path / "run" / "batches.json", rank=1)
    config = mine.deepspeed_config(tmp_path / "run" / "ds_config.json")
    assert {**config, **config["zero_optimization"]}[key] == wanted
    config_module.DeepSpeedConfig(config)
    plain = section(widened(), precision="bf16")
    assert key not in {**plain, **plain["zero_optimization"]}


def test_nvme_takes_the_folder_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVME_PATH names is in each rank's configuration; without it, or where it cannot be written, one error."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    chosen = widened(offload=Offload(optimizer="nvme", parameters="nvme"))
    spec = model(chosen.global_batch, precision="bf16")
    write_folder(emit(chosen, CLUSTER, spec), tmp_path / "run")
    mine, file = (
        batches.load(tmp_path / "run" / "batches.json", rank=1),
        tmp_path / "run" / "ds_config.json",
    )
    monkeypatch.delenv("NVME_PATH", raising=False)
    with pytest.raises(ValueError, match="NVME_PATH is not set: expected a writable folder on NVMe"):
        mine.deepspeed_config(file)
    monkeypatch.setenv("NVME_PATH", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="absent: expected a writable folder on NVMe"):
        mine.deepspeed_config(file)
    monkeypatch.setenv("NVME_PATH", str(tmp_path))
    parsed = config_module.DeepSpeedConfig(mine.deepspeed_config(file))
    zero = parsed.zero_config
    assert {str(each.nvme_path) for each in (zero.offload_optimizer, zero.offload_param)} == {str(tmp_path)}
    assert zero.offload_optimizer.pipeline
    assert parsed.aio_config["queue_depth"] == 16
    assert "export NVME_PATH" in (tmp_path / "run" / "env" / "a.sh").read_text()
    largest = max(spec.embedding_parameters, spec.hidden * spec.ffn)
    assert zero.offload_param.buffer_size * chosen.stages[0].dp >= largest


def test_gradients_in_four_bits_need_equal_nodes() -> None:
    """DeepSpeed adds them up node by node."""
    plus = ZeroPlus(secondary=2, int4_gradients=True)
    (fault,) = faults(widened(zero_plus=plus), CLUSTER, model(16, precision="bf16"))
    assert fault.what == "needs 2 replicas on every node, as many as keep a second copy, got 4"
    assert not faults(widened(zero_plus=replace(plus, secondary=4)), CLUSTER, model(16, precision="bf16"))


def test_what_the_trainer_needs_for_documents_and_cannot_do_for_pairs() -> None:
    """Packed documents are packed ahead of it; the loss of pairs is none of Trainer's."""

    def readme(**training: Any) -> str:
        files = emit(data_parallel(1), CLUSTER, model(42, **training))
        return next(file.text for file in files if file.path == "README.md")

    pairs, texts = readme(preference=PreferenceSpec()), readme(documents=DocumentsSpec(mean_length=4))
    padded = readme(documents=DocumentsSpec(mean_length=4, packing=False))
    assert "TrainingArguments" not in pairs
    assert "is not for this plan" in pairs
    assert "data = packed(tokenised, length=16)" in texts
    for text in (padded, readme()):
        assert "TrainingArguments" in text
        assert "packed(" not in text
