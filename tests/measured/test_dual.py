"""Derivatives that a fit takes through the cost model."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.pipeline_end import stage_ends
from planner.measured.dual import Dual


@pytest.mark.parametrize(("depth", "micro_batches"), [(2, 4), (4, 3), (8, 24)])
def test_the_end_of_a_pipeline_keeps_its_slopes(depth: int, micro_batches: int) -> None:
    """By the seconds of all stages together: an end of so many times as much has its own value as the slope."""
    forward = [(Dual(1.0 + 0.1 * stage, np.array([1.0 + 0.1 * stage])),) for stage in range(depth)]
    backward = [(Dual(2.0 + 0.3 * stage, np.array([2.0 + 0.3 * stage])),) for stage in range(depth)]
    for end in stage_ends(forward, backward, micro_batches):
        assert isinstance(end, Dual)
        assert end.slopes[0] == pytest.approx(float(end))
