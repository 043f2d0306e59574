"""The capability table."""

from __future__ import annotations

import pytest

from planner.errors import UsageError
from planner.targets import TARGETS, target


def test_deepspeed_has_no_pipeline_with_gradients_or_parameters_sharded() -> None:
    """Its engine asserts that ZeRO 2 and 3 do not go with pipelines."""
    assert target("deepspeed").zero_with_pipeline == (0, 1)
    assert target("deepspeed").zero_without_pipeline == (0, 1, 2, 3)


def test_megatron_has_one_micro_batch() -> None:
    """No batch per rank, one tensor-parallel degree, interleaving."""
    row = target("megatron")
    assert (row.batch_with_pipeline, row.tensor_parallel, row.interleave) == ("equal", "one-degree", True)


def test_unknown_targets_are_named_with_the_known() -> None:
    """A usage error lists the choices."""
    with pytest.raises(UsageError, match=", ".join(TARGETS)):
        target("horovod")
