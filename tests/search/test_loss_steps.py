"""The way to a loss step by step, by hand: nothing is searched here."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, inf
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.cost.convergence import Convergence
from planner.cost.estimate import Estimator
from planner.cost.training import price_per_hour
from planner.search.deadline import NO_LIMIT
from planner.search.objectives import loss
from planner.search.objectives.candidates import SubCluster
from planner.search.objectives.loss import LossSearch, SizesSearch, _at_least, _best_at, to_loss
from planner.search.values import Goal, Limits
from tests.report import examples
from tests.search.test_slices import MODEL, SPEC, WHOLE

near: Any = pytest.approx
"""Inside tuples and lists too."""


LENGTH = MODEL.training.sequence_tokens
STEPS = {8: 500.0, 16: 300.0, 32: 200.0}


def curve(steps: dict[int, float] = STEPS, spread: float = 0.3) -> Convergence:
    """Batches that take so many steps, each off by as much."""
    made = SimpleNamespace(
        steps=lambda tokens, critical=None: steps[round(tokens / LENGTH)] * (critical or 1.0),
        steps_spread=lambda tokens: spread,
        critical=SimpleNamespace(low=1.0, high=1.0),
    )
    return cast("Convergence", made)


def search(kind: type[LossSearch] = LossSearch, *subs: SubCluster, **seconds: float) -> Any:
    """A search among three batches, of which these have plans of so many seconds a step."""
    calibration = Estimator(SPEC, MODEL).calibration
    limits = Limits(target="megatron", gap=0.1)
    found = kind(subs or (WHOLE,), SPEC, MODEL, calibration, limits, Goal(), curve(), sorted(STEPS), NO_LIMIT)
    for each in found.sub_clusters:
        if f"b{each.batch}" in seconds:
            each.best = examples.scored(step_seconds=seconds[f"b{each.batch}"])
        each.bound = 100.0
    return found


def test_points_of_a_search() -> None:
    """Each batch with its time, its bound, and whether it is inside the bar of the best: of its step and its steps."""
    found = search(b8=2.0, b16=3.0)
    points = found.points(None)
    assert [(each.batch, each.steps, each.seconds) for each in points] == [
        (8, 500.0, 1000.0),
        (16, 300.0, 900.0),
        (32, 200.0, None),
    ]
    assert [each.inside for each in points] == [True, True, False]
    assert [each.bound_seconds for each in points] == [100.0] * 3
    assert points[0].tokens == 500 * 8 * LENGTH
    assert points[0].spread == pytest.approx(hypot(0.15, 0.3))
    # 900 s and a third of them
    assert [each.inside for each in search(b8=2.4, b16=3.0).points(None)] == [True, True, False]
    assert [each.inside for each in search(b8=2.41, b16=3.0).points(None)] == [False, True, False]
    chosen = examples.scored(step_seconds=1.0)
    assert found.points(chosen)[1].scored is chosen
    assert found.points(chosen)[0].scored is not chosen


def test_the_answer_of_a_way_to_a_loss() -> None:
    """Its gap is that of the least of all batches; without a plan nothing is known but the status of the search."""
    for seconds, result, gap, status in (
        ({"b8": 2.0, "b16": 3.0}, examples.scored(step_seconds=2.0), 1 - 100 / 600, "feasible"),
        ({"b8": 2.0, "b16": 3.0}, None, 1 - 100 / 900, "feasible"),
        ({}, None, 1.0, "infeasible"),
    ):
        finder = search(LossSearch, **seconds)
        said = replace(examples.infeasible(), best=result, bound_seconds=0.0)
        with (
            patch.object(loss, "with_host_memory", return_value=finder),
            patch.object(finder, "look"),
            patch.object(loss, "choose", return_value=said) as choose,
        ):
            limits = Limits(target="megatron", gap=0.1)
            answer = to_loss(
                SPEC, MODEL, finder.calibration, limits, Goal(), curve(), sorted(STEPS), deadline=NO_LIMIT
            )
        assert (answer.gap, answer.status) == (near(gap), status)
        assert answer.bound_seconds == 100.0
        assert (answer.best is None) == (not seconds)
        tokens = choose.call_args.args[4].tokens
        assert tokens == (300 * 16 * LENGTH if seconds else None)
        if answer.best is not None:
            assert answer.best.batch == answer.model.training.global_batch == 16
            assert (answer.best_if_low, answer.best_if_high) == ((16, 16))


def test_the_faster_plan_of_two_searches() -> None:
    """With its own gap; a tie that was settled stays."""
    found = examples.found()
    assert found.best is not None
    step = found.best.estimate.step_seconds
    slow, quick = (
        examples.scored(step_seconds=2 * step),
        examples.scored(step_seconds=0.9 * found.bound_seconds),
    )
    assert _at_least(found, slow, 0.01) is found
    assert _at_least(found, found.best, 0.01) is found
    better = _at_least(found, quick, 0.01)
    assert (better.best, better.bound_seconds, better.gap, better.status) == (
        quick,
        quick.estimate.step_seconds,
        0.0,
        "optimal",
    )
    none = _at_least(replace(found, best=None, bound_seconds=1.0), slow, 0.01)
    assert (none.best, none.bound_seconds, none.gap) == (slow, 1.0, near(1 - 0.5 / step))
    assert none.status == "feasible"
    tied = replace(found, tie=cast("Any", object()))
    assert _at_least(tied, quick, 0.01) is tied


def test_the_best_batch_if_the_critical_one_is_another() -> None:
    """Of those with a plan."""
    points = search(b8=2.0, b16=3.0).points(None)
    turned = cast(
        "Any", SimpleNamespace(steps=lambda tokens, critical: critical * (1 if tokens > 10 * LENGTH else 0.5))
    )
    assert _best_at(points, cast("Any", turned), 1.0, MODEL, Goal()) == 8
    assert _best_at(points, curve(), 1.0, MODEL, Goal()) == 16
    assert _best_at(search().points(None), curve(), 1.0, MODEL, Goal()) is None


def test_what_sizes_must_beat() -> None:
    """Their own best, and known sizes that are as soon and as cheap: half of the devices may take twice as long."""
    half = SubCluster(cluster=SPEC, devices={("a", "A100"): 2})
    found = search(SizesSearch, WHOLE, half, b8=2.0)
    assert [each.sub is WHOLE for each in found.sub_clusters] == [True] * 3 + [False] * 3
    assert [found.sub_clusters[0].batch, found.sub_clusters[3].batch] == [16, 16]
    own, others = found.parts[id(WHOLE)], found.parts[id(half)]
    for each in others:
        each.best = None
    assert {found.wanted(each) for each in own} == {1000.0}
    size = found.size(own)
    assert size is not None
    assert (size.seconds, size.gap) == (1000.0, near(0.9))
    assert found.size(others) is None
    hourly = price_per_hour(half.devices, SPEC)
    assert hourly is not None
    assert size.point.run is not None
    # The whole costs for its run what half of it costs in 4000 s.
    price = 4000.0 * hourly / size.point.run.seconds
    for each in own:
        if each.best is not None:
            each.best = replace(each.best, estimate=replace(each.best.estimate, price_per_hour=price))
    assert found.wanted(others[0]) == pytest.approx(4000.0)
    assert found.unfinished == 2
    own[0].bound = own[1].bound = own[2].bound = inf
    assert found.unfinished == 1
