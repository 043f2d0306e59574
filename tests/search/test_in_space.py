"""Plans on some of several equal pools as they stand on all of them together."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.search import pipeline
from planner.search.pipeline import in_space, priced_on, score
from planner.search.values import Scored
from tests import worlds
from tests.worlds import cluster, gpt, group, pool


def scored(*names: str) -> tuple[Scored, Estimator]:
    """Two stages of two devices each, on pools with one node of four; those whose names begin alike are equal."""
    gpus = {"a": "A100", "b": "V100"}
    estimator = Estimator(
        cluster(*(pool(name, gpus[name[0]], per_node=4) for name in ("a1", "a2", "b"))), gpt(4)
    )
    stages = [(group(name, gpus[name[0]], count=2, share=8, steps=8),) for name in names]
    plan = worlds.plan("megatron", 1, [2, 2], stages)
    return Scored(plan=plan, estimate=estimator.estimate(plan)), estimator


def test_stages_apart_stand_together_on_one_pool() -> None:
    """That is faster, so that the plan stays as it is written; on one of the pools nothing changes."""
    apart, estimator = scored("a1", "a2")
    assert in_space(apart, estimator) is apart
    together, _ = scored("a1", "a1")
    assert together.estimate.step_seconds < apart.estimate.step_seconds
    alone = Estimator(cluster(pool("a1", per_node=4), pool("b", "V100", per_node=4)), gpt(4))
    assert in_space(together, alone) is together


@pytest.mark.parametrize(
    ("factor", "fits", "changed"),
    [
        (1.1, True, True),
        (1.0 + 1e-10, True, False),
        (1.0, True, False),
        (0.5, True, False),
        (0.5, False, True),
    ],
)
def test_what_is_slower_on_joined_pools_is_told_so(factor: float, fits: bool, changed: bool) -> None:
    """Or does not fit there."""
    apart, estimator = scored("a1", "a2")
    there = replace(apart.estimate, step_seconds=factor * apart.estimate.step_seconds)

    memory = there.stages[0].groups[0].memory
    if not fits:
        full = replace(memory, capacity_bytes=1.0)
        one = replace(there.stages[0], groups=(replace(there.stages[0].groups[0], memory=full),))
        there = replace(there, stages=(one, *there.stages[1:]))
    assert there.fits == fits
    with patch.object(Estimator, "estimate", return_value=there):
        found = in_space(apart, estimator)
    assert found is not None
    assert (found is not apart) == changed
    assert found.estimate is (there if changed else apart.estimate)


def test_what_cannot_stand_on_joined_pools() -> None:
    """Has no place in the space."""
    apart, estimator = scored("a1", "a2")
    with patch.object(pipeline, "stands", return_value=False):
        assert in_space(apart, estimator) is None
    with patch.object(Estimator, "estimate", side_effect=PlanError("apart")):
        assert in_space(apart, estimator) is None


def test_prices_on_the_whole_cluster() -> None:
    """None for what cannot be run there, or does not fit."""
    found, estimator = scored("a1", "b")

    def priced(**changes: Any) -> Scored | None:
        with patch.object(Estimator, "estimate", **changes):
            return priced_on(estimator, found.plan, estimator)

    assert priced_on(estimator, found.plan, estimator) == found
    assert priced(side_effect=PlanError("apart")) is None
    assert priced(return_value=found.estimate) == found


def test_choices_that_are_priced() -> None:
    """Those that the target starts, and that stand as the space has them."""
    found, estimator = scored("a1", "b")
    for obeys, stands in product((True, False), repeat=2):
        stages = SimpleNamespace(
            obeys=lambda slots, obeys=obeys: obeys and slots == [3, 4],
            stand=lambda slots, stands=stands: stands and slots == [3, 4],
            plan=lambda chosen: found.plan,
            estimator=estimator,
        )
        chosen = [SimpleNamespace(composition=composition) for composition in (3, 4)]
        priced = score(estimator, cast("Any", stages), cast("Any", chosen))
        assert (priced == found) == (priced is not None) == (obeys and stands)
