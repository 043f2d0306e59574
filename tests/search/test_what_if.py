"""Answers to several questions about one cluster, next to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import ASSUMED
from planner.search.objectives.choose import choose
from planner.search.values import Goal, Limits
from planner.search.what_if import searched, shared, worlds
from tests.worlds import cluster, gpt, pool

LIMITS = Limits(target="deepspeed", tp=(1,), pp=(1,))


@pytest.mark.slow
def test_more_devices_have_at_least_the_plan_of_fewer() -> None:
    """A search that ended early, or found nothing, takes the plan of another one that its cluster can run."""
    where, model = (
        cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)),
        gpt(12, 1024, 16, global_batch=64),
    )
    variants = worlds(where, model, ["pools.b.nodes=2", "training.global_batch=32"])
    whole, more, other = (result for _, result in searched(variants, ASSUMED, LIMITS))
    assert whole.best is not None
    assert more.best is not None
    alone = choose(cluster(pool("a", per_node=2)), model, ASSUMED, LIMITS, Goal(), explain=False).best
    assert alone is not None
    assert alone.estimate.step_seconds > more.best.estimate.step_seconds

    assert shared(variants, [whole, more, other], ASSUMED, LIMITS) == [whole, more, other]
    poor = replace(
        more, best=alone, gap=1 - more.bound_seconds / alone.estimate.step_seconds, status="feasible"
    )
    none = replace(more, best=None, gap=1.0, status="unknown")
    for known in (poor, none):
        first, second, third = shared(variants, [whole, known, other], ASSUMED, LIMITS)
        assert (first, third) == (whole, other)
        assert second.best is not None
        assert second.best.plan == whole.best.plan
        assert second.best.estimate.step_seconds == pytest.approx(whole.best.estimate.step_seconds)
        assert second.gap == pytest.approx(1 - more.bound_seconds / second.best.estimate.step_seconds)
    # Another batch is another plan, and what the limits exclude is none.
    short = replace(LIMITS, zero=tuple({0, 1, 2, 3} - {whole.best.plan.zero}))
    assert shared(variants, [whole, poor, other], ASSUMED, short)[1] is poor
