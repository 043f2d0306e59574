"""The capability table."""

from __future__ import annotations

import pytest

from planner.errors import UsageError
from planner.targets import TARGETS, Target, target


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


def test_unknown_targets_are_named_with_the_known() -> None:
    """A usage error lists the choices."""
    with pytest.raises(UsageError, match=", ".join(TARGETS)):
        target("horovod")


@pytest.mark.parametrize("row", TARGETS.values(), ids=TARGETS)
def test_gradients_have_the_size_of_their_format(row: Target) -> None:
    """fp16 keeps two bytes and formats stored in four bytes four everywhere; bf16 is the target's own choice."""
    assert row.gradient_size("fp16") == 2
    assert row.gradient_size("fp32") == row.gradient_size("tf32") == 4
    assert row.gradient_size("bf16") == row.gradient_size("fp8") == row.gradient_bytes


def test_megatron_keeps_fp32_gradients_beside_bf16_weights() -> None:
    """DeepSpeed keeps bf16 ones."""
    assert target("megatron").gradient_size("bf16") == 4
    assert target("deepspeed").gradient_size("bf16") == 2


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
    assert target("deepspeed").offloading.nvme_zero == (3,)
    assert not target("flagscale").offloading.optimizer_zero
