"""The capability table."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from planner.calibration.file import shipped
from planner.capabilities import V_SHAPED, Capabilities
from planner.dims.sharding import gradients_at
from planner.errors import UsageError
from planner.measured.priors import KERNEL_SETS
from planner.model.spec import Kernels
from planner.targets import TARGETS, target
from tests.worlds import model


def test_deepspeed_has_no_pipeline_with_gradients_or_parameters_sharded() -> None:
    """Its engine asserts that ZeRO 2 and 3 do not go with pipelines."""
    assert target("deepspeed").zero_with_pipeline == (0, 1)
    assert target("deepspeed").zero_without_pipeline == (0, 1, 2, 3)


def test_megatron_has_one_micro_batch() -> None:
    """No batch per rank, one tensor-parallel degree, interleaving."""
    row = target("megatron")
    assert (row.batch_with_pipeline, row.tensor_parallel, row.interleave) == ("equal", "one-degree", True)


def test_torch_runs_every_zero_stage_everywhere() -> None:
    """FSDP2 is put inside pipeline stages and beside DTensor; what is split are whole key/value heads."""
    row = target("torch")
    assert row.zero_with_pipeline == row.zero_without_pipeline == (0, 1, 2, 3)
    assert (row.batch_without_pipeline, row.batch_with_pipeline) == ("per-device", "equal")
    assert not row.copies_kv_heads


@pytest.mark.parametrize(
    ("name", "flash", "unfused", "own"),
    [
        ("megatron", "megatron", "megatron-2021", ("megatron", "megatron-2021", "torch", "torch-2023")),
        ("flagscale", "megatron", "megatron-2021", ("megatron", "megatron-2021", "torch", "torch-2023")),
        ("deepspeed", "deepspeed", "deepspeed-2021", ("deepspeed", "deepspeed-2021")),
        ("torch", "torch", "torch", ("torch", "torch-compiled", "torch-2023")),
    ],
)
def test_kernel_sets_of_a_runtime(name: str, flash: str, unfused: str, own: tuple[str, ...]) -> None:
    """The usual one by attention; what the training names wins where the runtime has it, and only there."""
    row = target(name)
    assert row.kernels == own
    assert (row.kernels_of(None, "flash"), row.kernels_of(None, "unfused")) == (flash, unfused)
    for wanted in get_args(Kernels):
        for attention, usual in (("flash", flash), ("unfused", unfused)):
            assert row.kernels_of(wanted, attention) == (wanted if wanted in own else usual)


def test_every_kernel_set_is_known_everywhere() -> None:
    """To model files, to the priors, and to some runtime."""
    known = set(get_args(Kernels))
    assert known == set(KERNEL_SETS) == {kernels for row in TARGETS.values() for kernels in row.kernels}
    assert known == set(shipped().frameworks)


def test_unknown_targets_are_named_with_the_known() -> None:
    """A usage error lists the choices."""
    with pytest.raises(UsageError, match=", ".join(TARGETS)):
        target("horovod")


def formats(row: Capabilities, zero: int = 0, **training: Any) -> tuple[int, int] | None:
    """Bytes of a gradient kept and reduced, None where the target has no such formats."""
    found = gradients_at(row, model(8, **training).training, zero)
    return None if found is None else (found.kept_bytes, found.reduced_bytes)


@pytest.mark.parametrize("row", TARGETS.values(), ids=TARGETS)
def test_gradients_have_the_size_of_their_format(row: Capabilities) -> None:
    """fp16 keeps two bytes and formats stored in four bytes four everywhere; bf16 is the target's own choice."""
    assert formats(row, precision="fp16") == (2, 2)
    assert formats(row, precision="fp32") == formats(row, precision="tf32") == (4, 4)
    assert formats(row, precision="bf16") == formats(row, precision="fp8")
    assert formats(row, precision="fp16", reduce_dtype="fp32") is None


def test_megatron_keeps_fp32_gradients_beside_bf16_weights() -> None:
    """DeepSpeed keeps bf16 ones; both do otherwise when asked, Megatron in one buffer for both."""
    megatron, deepspeed = target("megatron"), target("deepspeed")
    assert formats(megatron) == (4, 4)
    assert formats(megatron, reduce_dtype="bf16") == formats(megatron, gradient_dtype="bf16") == (2, 2)
    assert formats(megatron, gradient_dtype="fp32", reduce_dtype="bf16") is None
    assert formats(deepspeed) == (2, 2)
    assert formats(deepspeed, reduce_dtype="fp32") == (2, 4)
    assert [formats(deepspeed, zero, gradient_dtype="fp32") for zero in range(4)] == [
        None,
        None,
        (4, 2),
        (4, 2),
    ]


def test_torch_accumulates_whole_gradients_in_the_format_it_reduces_them_in() -> None:
    """FSDP2's shards have the format of their fp32 parameters."""
    row = target("torch")
    assert [formats(row, zero, reduce_dtype="bf16") for zero in range(4)] == [(4, 2), (2, 2), (4, 2), (4, 2)]
    assert formats(row, 3, gradient_dtype="bf16") is None


def test_deepspeed_has_no_fp8() -> None:
    """Every other number format is everybody's."""
    assert "fp8" not in target("deepspeed").precisions
    assert "fp8" in target("megatron").precisions
    for row in TARGETS.values():
        assert {"bf16", "fp16", "fp32", "tf32"} <= set(row.precisions)


def test_only_known_offload_is_offered() -> None:
    """ZeRO shards what is offloaded, and NVMe holds what host memory could."""
    for row in TARGETS.values():
        can = row.offloading
        assert 0 not in can.optimizer_zero
        assert set(can.nvme_zero) <= set(can.optimizer_zero)
        assert set(can.parameters_zero) <= set(can.optimizer_zero) <= set(row.zero_without_pipeline)
        assert can.in_pipeline <= bool(row.zero_with_pipeline)
        assert {*can.ratio_zero, *can.super_zero} <= set(can.optimizer_zero)
    assert target("deepspeed").offloading.nvme_zero == (3,)
    assert not target("flagscale").offloading.optimizer_zero


ROWS = {name: target(name) for name in ("deepspeed", "megatron", "torch", "flagscale")}
"""The runtimes that the following tests know."""


def test_who_hides_what_under_computation() -> None:
    """Megatron's overlap options and FSDP2 reduce under the backward and gather under the forward; DeepSpeed gathers
    ZeRO-1's parameters in its step, and reduces under the backward only with ZeRO."""
    for row in ROWS.values():
        overlaps = row.name != "deepspeed"
        assert (row.overlaps_reduction_always, row.overlaps_parameter_gather) == (overlaps, overlaps), (
            row.name
        )


def test_who_waits_for_whom() -> None:
    """DeepSpeed's pipeline passes gradients up, then activations down, and adds tied gradients up before the others;
    FSDP2 reduces inside the backward; the rest does neither."""
    traits = {
        name: (row.exchanges_in_turn, row.reduces_tied_first, row.reduces_in_backward)
        for name, row in ROWS.items()
    }
    assert traits == {
        "deepspeed": (True, True, False),
        "megatron": (False, False, False),
        "torch": (False, False, True),
        "flagscale": (False, False, False),
    }


def test_only_megatron_chooses_a_network_for_each_group() -> None:
    """Its groups take a ``net_name``; in the other jobs NCCL has one network."""
    assert [name for name, row in ROWS.items() if row.network_per_group] == ["megatron"]


def test_what_scatters_gradients() -> None:
    """A distributed optimizer and FSDP scatter with every ZeRO stage; DeepSpeed sums on every rank but with ZeRO-3."""
    scattered = {name: row.scatters_gradients for name, row in ROWS.items()}
    assert scattered.pop("deepspeed") == (3,)
    assert set(scattered.values()) == {(1, 2, 3)}


def test_pipelines_of_the_runtimes() -> None:
    """Virtual stages are Megatron's, replicas by stage FlagScale's; only FlagScale waits to be asked for."""
    assert [name for name, row in ROWS.items() if row.interleave] == ["megatron", "torch"]
    for schedule in ("zero-bubble", *V_SHAPED):
        assert [name for name, row in ROWS.items() if schedule in row.schedules] == ["torch"]
    assert [name for name, row in ROWS.items() if row.dp_per_stage] == ["flagscale"]
    assert [name for name, row in ROWS.items() if not row.by_default] == ["flagscale"]
    assert [name for name, row in ROWS.items() if row.hosts_once or row.joins_tied_ends] == ["flagscale"]
    for name in ("megatron", "flagscale"):
        assert target(name).zero_with_pipeline == target(name).zero_without_pipeline == (0, 1)
        assert target(name).sequence_parallel
    assert [row.batch_without_pipeline for row in ROWS.values()] == [
        "per-device",
        "equal",
        "per-device",
        "equal",
    ]


def test_recomputation_of_the_runtimes() -> None:
    """Megatron's policy holds for all stages; the examples of DeepSpeed and FlagScale checkpoint whole layers."""
    assert [name for name, row in ROWS.items() if not row.recompute_per_stage] == ["megatron"]
    whole = [name for name, row in ROWS.items() if "selective" not in row.recomputes]
    assert whole == ["deepspeed", "flagscale"]
    for row in ROWS.values():
        assert {"none", "full"} <= set(row.recomputes)


def test_optimizers_that_zero_one_shards() -> None:
    """Megatron's distributed optimizer knows Adam alone; Muon needs whole matrices, in torch as elsewhere."""
    sharded = {name: row.sharding_optimizers for name, row in ROWS.items()}
    assert sharded["megatron"] == sharded["flagscale"] == ("adamw",)
    assert sharded["deepspeed"] == sharded["torch"] == ("adamw", "sgd", "lion")
    for row in ROWS.values():
        assert {*row.sharding_optimizers} <= {*row.optimizers}
