"""What is emitted for PyTorch itself; tests/training runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.emit.interface import emit
from planner.errors import EmitError
from planner.model.spec import LoraSpec
from planner.plan.values import Offload, Plan
from tests.training.ranks import run
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("A100",) * 4, 2), pool("b", ("T4",) * 2, 1))


def made(chosen: Plan, **changes: Any) -> dict[str, str]:
    """The folder as texts by path."""
    spec = model(chosen.global_batch, **changes)
    return {file.path: file.text for file in emit(chosen, CLUSTER, spec)}


def wide(zero: int = 3) -> Plan:
    """Two stages of two replicas of two ranks."""
    first, last = (
        group(*key, tp=2, count=count, share=4) for key, count in ((("a", "A100"), 2), (("a", "A100"), 2))
    )
    return plan("torch", zero, [3, 1], [(first,), (last,)])


def test_the_folder_stands_on_its_own() -> None:
    """No import of the planner is left, and every neighbour that is imported is there."""
    files = made(wide())
    scripts = {path: text for path, text in files.items() if path.endswith(".py")}
    assert "train.py" in scripts
    for path, text in scripts.items():
        assert "planner" not in text
        compile(text, path, "exec")
        for word in ("hetplan_", "example_", "step_log"):
            lines = [line.split()[1] for line in text.splitlines() if line.startswith(f"from {word}")]
            assert {f"{name}.py" for name in lines} <= set(scripts)


def test_ranks_of_a_replica_share_its_sequences() -> None:
    """The table has a row for each rank with its place in the replica."""
    table = json.loads(made(wide())["batches.json"])
    assert (table["tensor_parallel"], table["data_parallel"]) == (2, 2)
    rows = [
        (row["stage"], row["replica"], row["tensor_rank"], row["first_sequence"]) for row in table["ranks"]
    ]
    assert rows[:4] == [(0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 4), (0, 1, 1, 4)]
    assert [row[3] for row in rows[4:]] == [0, 0, 4, 4]


def test_configuration() -> None:
    """The number format is the model's, and parameters rest where the plan says."""
    assert json.loads(made(wide())["torch_config.json"]) == {
        "precision": "bf16",
        "reduce_dtype": "fp32",
        "clip": 1.0,
        "on_host": False,
        "checkpoints_on_host": False,
    }
    away = Offload(optimizer="cpu", parameters="cpu")
    chosen = plan("torch", 3, [4], [(group("a", "A100", count=4, share=2),)], offload=away)
    assert json.loads(made(chosen, precision="fp16")["torch_config.json"])["on_host"] is True
    kept = plan(
        "torch", 2, [4], [chosen.stages[0].replicas], recompute="full", offload=Offload(activations="cpu")
    )
    files = made(kept)
    assert json.loads(files["torch_config.json"])["checkpoints_on_host"] is True
    assert "`torch.autograd.graph.save_on_cpu`" in files["README.md"]
    assert "Parameters are kept in host memory" not in files["README.md"]


def test_hybrid_sharding() -> None:
    """In the table that the ranks read, and in words; without it neither says anything."""
    chosen = plan("torch", 2, [4], [(group("a", "A100", count=8, share=2),)], shard_size=4)
    files = made(chosen)
    assert json.loads(files["batches.json"])["shard_size"] == 4
    assert "ZeRO 2 in groups of 4" in files["README.md"]
    assert "4 consecutive replicas share one copy of the optimizer states and gradients" in files["README.md"]
    plain = made(replace(chosen, shard_size=None))
    assert "shard_size" not in json.loads(plain["batches.json"])
    assert "copies" not in plain["README.md"]


def test_other_targets_refuse_hybrid_sharding() -> None:
    """Naming the rule."""
    for target in ("deepspeed", "megatron", "flagscale"):
        chosen = plan(target, 1, [4], [(group("a", "A100", count=8, share=2),)], shard_size=4)
        with pytest.raises(EmitError, match=f"{target} shards over all replicas of a stage"):
            made(chosen)


def test_tf32_is_switched_on() -> None:
    """PyTorch multiplies fp32 in full unless it is told otherwise."""
    files = made(wide(), precision="tf32")
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1" in files["launch.sh"]
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1" in files["README.md"]


@pytest.mark.parametrize(("zero", "precision"), [(2, "bf16"), (3, "bf16"), (3, "fp16")])
def test_peft_stores_codes_as_the_working_format_where_fsdp_shards_them(zero: int, precision: Any) -> None:
    """FSDP gathers a module in one format; whole codes need none."""
    chosen = plan("torch", zero, [4], [(group("a", "A100", count=4),)])
    text = made(chosen, precision=precision, lora=LoraSpec(rank=2, base="nf4"))["README.md"]
    name = {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert f"bnb_4bit_compute_dtype=torch.{name}" in text
    assert (f"bnb_4bit_quant_storage=torch.{name}" in text) == (zero == 3)


@pytest.mark.parametrize("dropout", [True, False])
def test_that_the_example_does_not_drop_what_the_plan_counts(dropout: bool) -> None:
    """Adapters with a dropout are priced; the README says that the example has none."""
    chosen = plan("torch", 1, [4], [(group("a", "A100", count=4),)])
    text = made(chosen, lora=LoraSpec(rank=2, dropout=dropout))["README.md"]
    assert ("The example drops nothing of their input" in text) == dropout


@pytest.mark.parametrize(("micro_batches", "told"), [(1, False), (2, True), (3, False)])
def test_more_activations_than_the_plan_counts(micro_batches: int, told: bool) -> None:
    """Where all forwards run first, and there are several: of one, each stage keeps one in either order."""
    groups = [(group("a", "A100", share=micro_batches, steps=micro_batches),) for _ in range(3)]
    text = made(plan("torch", 0, [2, 1, 1], groups))["README.md"]
    assert ("all forwards run first" in text) == told


@pytest.mark.parametrize("zero", [0, 2])
def test_copies_in_fp32_are_counted(zero: int) -> None:
    """Beside the shards: nothing is said to be missing."""
    chosen = plan("torch", zero, [4], [(group("a", "A100", count=4),)])
    assert "does not count" not in made(chosen, precision="fp32")["README.md"]


@pytest.mark.parametrize(("window", "told"), [(8, True), (16, False), (None, False)])
def test_windows_that_the_example_has_not(window: int | None, told: bool) -> None:
    """A window as long as the sequences is none."""
    chosen = plan("torch", 1, [4], [(group("a", "A100", count=4),)])
    text = made(chosen, window=window)["README.md"]
    assert ("The example has no sliding windows" in text) == told


def test_what_the_example_leaves_out() -> None:
    """Factors of the model file, and a router of softmax scores with another scale."""
    chosen = plan("torch", 1, [4], [(group("a", "A100", count=4),)])
    experts = {"number": 4, "top_k": 2, "ffn": 48}
    said = {"others": ("logits_scaling 8", "ALiBi"), "router": {"scale": 16.0}}
    text = made(chosen, gated_mlp=True, experts=experts, numerics=said)["README.md"]
    assert "The example leaves out what the model file says of logits_scaling 8, ALiBi.\n" in text
    assert "The example's router weighs the experts of a token by a softmax" in text
    text = made(chosen, gated_mlp=True, experts=experts, numerics={"router": {}})["README.md"]
    assert "The example leaves out" not in text
    assert "router weighs" not in text


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("bf16", 'Layout(plan, "cuda", torch.bfloat16)'),
        ("fp16", 'Layout(plan, "cuda", torch.float16, torch.float16)'),
        ("fp32", 'Layout(plan, "cuda", torch.float32)'),
        ("tf32", 'Layout(plan, "cuda", torch.float32)'),
    ],
)
@pytest.mark.parametrize("stages", [1, 2])
def test_that_own_scripts_are_shown_the_format_of_the_plan(precision: Any, said: str, stages: int) -> None:
    """What the folder's README has users write, which a device without bf16 could not run otherwise."""
    replicas = (group("a", "A100", count=2, share=4, steps=4),)
    layers = {1: [4], 2: [3, 1]}[stages]
    text = made(plan("torch", 1, layers, [replicas] * stages), precision=precision)["README.md"]
    assert said in text
    scaled = precision == "fp16"
    assert ("LossScale(2.0**16)" in text) == ("scale.accepts(norm)" in text) == scaled
    if stages == 2:
        assert f"dtype={said.rstrip(')').split(', ')[2]}, device" in text


def test_that_own_scripts_are_shown_host_memory_and_unequal_shards() -> None:
    """Where the plan has them."""
    replicas = (group("a", "A100", count=4, share=2, steps=2),)
    chosen = plan("torch", 3, [4], [replicas])
    hosted = replace(chosen, offload=Offload(optimizer="cpu", parameters="cpu"))
    assert "torch.bfloat16, on_host=True)" in made(hosted)["README.md"]
    parts = (replace(replicas[0], shard=3), group("b", "T4", count=2, share=2, steps=2))
    unequal = replace(chosen, stages=(replace(chosen.stages[0], replicas=parts),))
    text = made(unequal)["README.md"]
    assert "from hetplan_shards import UnequalShards" in text
    assert 'UnequalShards(plan, "cuda", torch.bfloat16)' in text


def shown(section: str) -> str:
    """The first code of a README's section."""
    return section.split("```python\n")[1].split("```")[0]


@pytest.mark.slow
def test_own_layers_are_divided_as_shown(tmp_path: Path) -> None:
    """By what the README has users write, hidden states whole or by tokens, and in fp8: as in one process."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    files = []
    for by_tokens, precision in ((False, "bf16"), (True, "bf16"), (True, "fp8")):
        chosen = plan("torch", 0, [4], [(group("a", "A100", tp=2, count=2, share=4),)])
        text = made(replace(chosen, sequence_parallel=by_tokens), precision=precision)["README.md"]
        section = text.split("## Tensor parallelism")[1].split("\n## ")[0]
        assert ("SequenceParallel" in section) == by_tokens
        code = shown(section)
        if precision == "fp8":
            each = "".join(
                f"    {line}\n" for line in shown(text.split("## Products in fp8")[1]).splitlines()
            )
            code += "for layer in model.model.layers:\n" + each
        files.append(tmp_path / f"{by_tokens}-{precision}.py")
        files[-1].write_text(code)
    run(2, Path(__file__).with_name("readme_program.py"), *files, log=tmp_path / "log")


@pytest.mark.parametrize(("frozen", "kinds"), [("layers", ["AdamW"]), ("rest", ["OnLocals"])])
def test_muon_has_no_part_where_all_of_its_is_frozen(frozen: str, kinds: list[str]) -> None:
    """Torch's optimizers refuse empty lists."""
    torch = pytest.importorskip("torch")
    train = pytest.importorskip("planner.runtimes.torch.train")
    part = torch.nn.Module()
    part.layers, part.encoder, part.head = torch.nn.Linear(4, 4, bias=False), None, torch.nn.Linear(4, 8)
    part.layers.requires_grad_(frozen != "layers")
    part.head.requires_grad_(frozen != "rest")
    part.layers = torch.nn.ModuleList([part.layers])
    optimizer = train.muon(part, [each for each in part.parameters() if each.requires_grad], 0.1)
    assert [type(each).__name__ for each in optimizer.optimizers] == kinds
