"""Plans that a target cannot run are refused with the rule."""

from __future__ import annotations

from typing import Any

import pytest

from planner.emit.interface import cautions, check_inputs, emit, is_tried
from planner.errors import EmitError
from planner.model.spec import ExpertsSpec, LoraSpec
from planner.plan.checks import faults, target_faults
from planner.plan.values import Offload, Plan
from tests.worlds import GPUS, cluster, group, model, plan, pool

A = ("a", "A100")
CLUSTER = cluster(pool("a", ("A100",) * 8, 1))


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            plan("deepspeed", 1, [2, 2], [(group(*A, tp=2, share=8, steps=2),)] * 2),
            r"stages\[0\].replicas\[0\].tp: deepspeed divides layers over groups that know no stages",
        ),
        (
            plan("megatron", 3, [4], [(group(*A, share=8),)]),
            "zero: megatron runs ZeRO 0, 1 without a pipeline",
        ),
        (plan("deepspeed", 0, [4], [(group(*A, share=8),)], interleave=2), "interleave: deepspeed cannot"),
    ],
)
def test_rules_of_the_target(refused: Plan, message: str) -> None:
    """A plan that breaks one is refused with the field and the rule; all rules are in test_plan_check."""
    with pytest.raises(EmitError, match=message):
        check_inputs(refused, CLUSTER, model(8))


@pytest.mark.parametrize(
    ("vendor", "refused"),
    [("intel", True), ("huawei", True), ("amd", False), ("nvidia", False), (None, False)],
)
def test_devices_that_launch_files_do_not_start(vendor: str | None, refused: bool) -> None:
    """Their plans can be compared; CUDA's variables and nvidia-smi would start nothing there."""
    gpu = GPUS["A100"].model_copy(update={"vendor": vendor, "compute_capability": None})
    where = cluster(pool("a", ("A100",) * 8, 1), gpus={"A100": gpu})
    chosen = plan("torch", 1, [4], [(group(*A, count=8),)])
    if refused:
        with pytest.raises(
            EmitError, match=rf"A100 \(vendor: {vendor}\): launch files are for devices of nvidia and"
        ):
            emit(chosen, where, model(8))
    else:
        assert emit(chosen, where, model(8))


def test_torch_does_not_copy_heads() -> None:
    """A replica of four ranks for two key/value heads is Megatron's alone."""
    grouped = model(8, kv_heads=2)
    replicas = [(group(*A, tp=4, count=2, share=4),)]
    check_inputs(plan("megatron", 1, [4], replicas), CLUSTER, grouped)
    with pytest.raises(EmitError, match="divides the 2 key/value heads, got 4"):
        check_inputs(plan("torch", 1, [4], replicas), CLUSTER, grouped)
    found = faults(plan("torch", 1, [4], replicas), CLUSTER, grouped)
    assert [fault.path for fault in found] == [("stages", 0, "replicas", 0, "tp")]


def test_widths_that_tensor_parallelism_cannot_cut() -> None:
    """Heads and the feed-forward width by the plan's rule, positions by Megatron's, and FlagScale's of its meshes."""
    three = [(group(*A, tp=3, count=2, share=4),)]
    for target in ("megatron", "flagscale", "torch"):
        with pytest.raises(EmitError, match="tp 3 does not divide the 4 attention heads"):
            emit(plan(target, 0, [4], three), CLUSTER, model(8))
    two = [(group(*A, tp=2, count=4, share=2),)]
    for target in ("megatron", "flagscale", "torch"):
        with pytest.raises(EmitError, match="tp 2 does not divide the feed-forward width 65"):
            emit(plan(target, 0, [4], two), CLUSTER, model(8, ffn=65))
    with pytest.raises(EmitError, match="--max-position-embeddings must be at least --seq-length"):
        emit(plan("megatron", 0, [4], two), CLUSTER, model(8, learned_positions=8))
    stages = [(group(*A, count=4, share=2, steps=2),), (group(*A, tp=4, share=8, steps=2),)]
    unlike = plan("flagscale", 0, [2, 2], stages)
    with pytest.raises(EmitError, match="tp 1, 4 need sequence_parallel"):
        emit(unlike, CLUSTER, model(8, tied_embeddings=False))


def test_uneven_batches_where_allowed() -> None:
    """DeepSpeed without a pipeline takes any batch on any device."""
    uneven = (group(*A, share=5, steps=2), group(*A, share=3))
    for zero in range(4):
        check_inputs(plan("deepspeed", zero, [4], [uneven]), CLUSTER, model(8))


def test_other_model() -> None:
    """Layers and global batch must be those of the model file."""
    chosen = plan("deepspeed", 0, [4], [(group(*A, share=8),)])
    with pytest.raises(EmitError, match="the stages hold 4 layers, the model tiny has 5"):
        check_inputs(chosen, CLUSTER, model(8, layers=5))
    with pytest.raises(EmitError, match="the shares add up to 8 sequences, the global batch is 9"):
        check_inputs(chosen, CLUSTER, model(9))


def test_number_formats() -> None:
    """DeepSpeed has no fp8 products; Megatron trains in every format."""
    chosen = plan("deepspeed", 0, [4], [(group(*A, share=8),)])
    with pytest.raises(EmitError, match="deepspeed does not train in fp8, it can: bf16, fp16, fp32, tf32"):
        emit(chosen, CLUSTER, model(8, precision="fp8"))
    for precision in ("bf16", "fp16", "fp32", "tf32"):
        assert emit(chosen, CLUSTER, model(8, precision=precision))
    chosen = plan("megatron", 0, [4], [(group(*A, share=8),)])
    for precision in ("bf16", "fp16", "fp32", "tf32", "fp8"):
        assert emit(chosen, CLUSTER, model(8, precision=precision))


def test_host_names() -> None:
    """A host name that a shell or a hostfile would misread is refused, in used pools only."""
    odd = pool("a", ("A100",), 1).model_copy(update={"hosts": ("a b",)})
    chosen = plan("deepspeed", 0, [4], [(group(*A, share=8),)])
    with pytest.raises(EmitError, match="'a b' cannot be a host name"):
        check_inputs(chosen, cluster(odd), model(8))
    unused = odd.model_copy(update={"name": "b"})
    check_inputs(chosen, cluster(pool("a", ("A100",), 1), unused), model(8))


def test_offload() -> None:
    """What a target cannot keep off its devices is refused, and states on NVMe that it does not swap."""

    def chosen(target: str, zero: int, **offload: str) -> Plan:
        one = (group(*A, share=8),)
        return plan(target, zero, [4], [one], recompute="full", offload=Offload(**offload))  # type: ignore[arg-type]

    check_inputs(
        chosen("deepspeed", 3, optimizer="cpu", parameters="cpu", activations="cpu"), CLUSTER, model(8)
    )
    with pytest.raises(
        EmitError, match=r"offload.optimizer: deepspeed offloads optimizer to cpu with ZeRO 1, 2, 3"
    ):
        check_inputs(chosen("deepspeed", 0, optimizer="cpu"), CLUSTER, model(8))
    with pytest.raises(EmitError, match="megatron keeps activations on the device"):
        check_inputs(chosen("megatron", 1, activations="cpu"), CLUSTER, model(8))
    with pytest.raises(EmitError, match=r"offload.optimizer: states of adamw alone are swapped to NVMe"):
        check_inputs(chosen("deepspeed", 3, optimizer="nvme"), CLUSTER, model(8, optimizer="sgd"))


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("experts", {"experts": ExpertsSpec(number=4, top_k=2, ffn=24)}),
        ("four bits", {"hidden": 64, "lora": LoraSpec(rank=4, base="nf4")}),
    ],
)
def test_fp8_with_torch_is_of_matrices_that_rest_whole(what: str, changes: dict[str, Any]) -> None:
    """The example has linear layers in fp8, published runs more."""
    chosen = plan("torch", 3, [4], [(group(*A, count=8, share=1),)])
    check_inputs(chosen, CLUSTER, model(8, precision="fp8"))
    spec = model(8, precision="fp8", **changes)
    assert not target_faults(chosen, spec)
    with pytest.raises(EmitError, match=rf"^target: training {what} in fp8 with torch is priced"):
        check_inputs(chosen, CLUSTER, spec)


def test_nothing_to_say() -> None:
    """Tried versions, with a build's name behind or a patch number."""
    assert cautions("deepspeed", {"torch": "2.13.1+cu130", "deepspeed": "0.19.8"}) == ()
    assert cautions("deepspeed", {}) == ()


def test_versions_that_were_not_tried() -> None:
    """Each is named with the one that was."""
    found = cautions("deepspeed", {"torch": "2.1.0", "deepspeed": "0.19.80"})
    assert found == (
        "torch 2.1.0 is installed here, the launch files were tested with 2.13",
        "deepspeed 0.19.80 is installed here, the launch files were tested with 0.19.8",
    )


def test_is_tried() -> None:
    """A prefix of whole numbers."""
    assert is_tried("2.13.0+cpu", "2.13")
    assert not is_tried("2.130.0", "2.13")


@pytest.mark.parametrize(
    ("name", "zero", "training", "what"),
    [
        ("megatron", 1, {"optimizer_states": "int8"}, "megatron does not train with optimizer_states int8"),
        ("torch", 3, {"cross_entropy": "fused"}, "training with cross_entropy fused with torch is priced"),
        ("megatron", 0, {"optimizer": "muon"}, "training by muon with megatron is priced"),
        ("megatron", 1, {"cuda_graphs": "step"}, "training with cuda_graphs step with megatron is priced"),
        ("torch", 3, {"cuda_graphs": "layers"}, "torch does not train with cuda_graphs layers, it can: none"),
        ("deepspeed", 0, {"optimizer": "muon"}, "deepspeed does not train by muon, it can: adamw, sgd, lion"),
        ("torch", 3, {"optimizer": "muon"}, "torch shards the states of adamw, sgd, lion only"),
        ("torch", 3, {"optimizer": "lion", "optimizer_states": "bf16"}, "bf16 moments of adamw only"),
        ("megatron", 0, {"optimizer_states": "bf16"}, "megatron keeps bf16 moments with ZeRO 1, got 0"),
        ("megatron", 0, {"master_weights": "split"}, "megatron keeps split weights with ZeRO 1, got 0"),
        ("megatron", 1, {"master_weights": "bf16"}, "master_weights bf16 with megatron is priced"),
        (
            "megatron",
            1,
            {"master_weights": "split", "precision": "fp8"},
            "splits bf16 weights, hetplan writes no",
        ),
        ("megatron", 1, {"master_weights": "split", "precision": "fp16"}, "expected no master_weights split"),
        ("torch", 3, {"master_weights": "split"}, "torch does not train with master_weights split, it can"),
        ("torch", 2, {"master_weights": "bf16"}, "torch updates bf16 weights with ZeRO 3, got 2"),
        (
            "torch",
            3,
            {"master_weights": "bf16", "precision": "fp16"},
            "fp16 training has number formats of its own, expected no master_weights bf16",
        ),
        ("deepspeed", 1, {"master_weights": "bf16"}, "deepspeed updates bf16 weights with ZeRO 3, got 1"),
        (
            "torch",
            3,
            {"master_weights": "bf16", "gradient_dtype": "fp32"},
            "torch keeps gradients with ZeRO 3 in bf16 added up in fp32 or bf16 added up in bf16, got",
        ),
        (
            "torch",
            3,
            {"gradient_dtype": "bf16"},
            "torch keeps gradients with ZeRO 3 in fp32 added up in fp32 or",
        ),
        (
            "deepspeed",
            0,
            {"gradient_dtype": "fp32"},
            "deepspeed keeps gradients with ZeRO 0 in bf16 added up in",
        ),
        ("megatron", 0, {"gradient_dtype": "fp32", "reduce_dtype": "bf16"}, "megatron keeps gradients"),
        (
            "torch",
            0,
            {"precision": "fp16", "reduce_dtype": "fp32"},
            "fp16 training has number formats of its own",
        ),
    ],
)
def test_what_no_runtime_or_no_folder_has(name: str, zero: int, training: dict[str, Any], what: str) -> None:
    """Optimizers, formats of moments and gradients, and kinds of loss."""
    chosen = plan(name, zero, [4], [(group(*A, count=2, share=4),)])
    with pytest.raises(EmitError, match=what):
        emit(chosen, CLUSTER, model(8, **training))


def test_muon_needs_whole_matrices() -> None:
    """torch's updates them so."""
    chosen = plan("torch", 0, [4], [(group(*A, tp=2, count=2, share=4),)])
    with pytest.raises(EmitError, match="torch updates whole matrices with muon, expected 1, got 2"):
        emit(chosen, CLUSTER, model(8, optimizer="muon"))
