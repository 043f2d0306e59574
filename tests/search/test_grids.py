"""Which tensor grids are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.estimate import Estimator
from planner.dims.sharding import zeros
from planner.plan.checks import faults
from planner.search.deadline import NO_LIMIT
from planner.search.grids import best_grid, grid_choices, grid_plans, least_of
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.search.exhaustive import plans
from tests.worlds import with_grids

TORCH = TARGETS["torch"]
LIMITS = Limits(target="torch", grids=True, tp=(4, 9), pp=(1,))


@pytest.mark.parametrize("seed", [0, 2])
def test_all_plans_on_grids(seed: int) -> None:
    """Those of the oracle without a depth that break no rule, and the best of each choice is the best of them."""
    spec, model, calibration = with_grids(seed)
    estimator = Estimator(spec, model, calibration)
    every = [
        plan
        for plan in plans(estimator, LIMITS)
        if plan.grid is not None
        and plan.grid.depth == 1
        and not faults(plan, spec, model)
        # One replica shards nothing, but for what ZeRO-3 spares.
        and plan.zero in zeros(TORCH, model, plan.stages[0].dp, None)
    ]
    found = 0
    for choice in grid_choices(TORCH, LIMITS, estimator):
        own = set(grid_plans(choice, estimator, LIMITS))
        mine = [
            plan
            for plan in every
            if plan.zero == choice.zero
            and plan.grid is not None
            and plan.grid.rows == choice.side
            and (plan.stages[0].replicas[0].pool, plan.stages[0].replicas[0].gpu) == (choice.pool, choice.gpu)
        ]
        assert own == {plan for plan in mine if plan.stages[0].recompute == "none"}
        found += len(mine)
        fitting = [estimate.step_seconds for estimate in map(estimator.estimate, mine) if estimate.fits]
        best = best_grid(choice, estimator, LIMITS, float("inf"), NO_LIMIT, estimator)
        assert (best is not None) == bool(fitting)
        if best is not None:
            assert best.estimate.step_seconds == pytest.approx(min(fitting))
            assert least_of(choice, estimator) <= min(fitting)
            early = best_grid(choice, estimator, LIMITS, least_of(choice, estimator), NO_LIMIT, estimator)
            assert early is None
    assert found == len(every) > 0


@pytest.mark.parametrize("limits", [{"pp": (2,)}, {"cp": (2,)}, {"offload": ("optimizer",)}, {"tp": (2,)}])
def test_limits_that_leave_no_grid(limits: dict[str, tuple[int | str, ...]]) -> None:
    """Grids train whole models on devices alone, and are as large as a limit on tensor parallelism says."""
    spec, model, calibration = with_grids(0)
    estimator = Estimator(spec, model, calibration)
    assert list(grid_choices(TORCH, LIMITS, estimator))
    assert not list(grid_choices(TORCH, replace(LIMITS, **limits), estimator))  # type: ignore[arg-type]
