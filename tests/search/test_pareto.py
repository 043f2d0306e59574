"""Time against cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.spec import HostSpec
from planner.cost.training import devices_of
from planner.plan.file import PlanFile, Summary
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.objectives.choose import choose
from planner.search.objectives.pareto import Front, front, front_around
from planner.search.values import Goal, Limits, Objective
from tests.search.test_objectives import problem, rated
from tests.worlds import cluster, gpt, pool

COST = Goal(objective="cost")
LIMITS = Limits(target="deepspeed")


@pytest.fixture(scope="module")
def found() -> Front:
    """The front of ``problem``."""
    return front(*problem(), ASSUMED, LIMITS, COST)


def test_points_of_the_front_beat_each_other_in_one(found: Front) -> None:
    """Faster and dearer from one to the next; other points lose in both."""
    best = [point for point in found.points if point.front]
    assert len(best) >= 3
    for slow, fast in pairwise(best):
        assert fast.seconds < slow.seconds
        assert fast.value > slow.value
    for point in found.points:
        if not point.front:
            assert any(other.seconds <= point.seconds and other.value <= point.value for other in best)


def test_every_sub_cluster_is_accounted_for(found: Front) -> None:
    """Nothing is lost; no two points use the same devices."""
    rest = found.beaten + found.without_plan + found.unfinished
    assert found.subclusters == rest + len(found.points)
    assert (found.without_plan, found.unfinished) == (0, 0)
    used = [frozenset(devices_of(point.scored.plan).items()) for point in found.points]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_the_ends_are_the_best_plans(found: Front, objective: Objective) -> None:
    """The fastest plan and the cheapest, each within the gap."""
    best = choose(*problem(), ASSUMED, LIMITS, Goal(objective=objective), explain=False).best
    assert best is not None
    if objective == "time":
        assert found.points[-1].seconds == pytest.approx(best.estimate.step_seconds, rel=0.01)
    else:
        least = min(point.value for point in found.points)
        assert least == pytest.approx(best.estimate.cost_per_million_tokens, rel=0.01)


def test_what_is_worth_it(found: Front) -> None:
    """From there to any other point cost rises by more than speed, or speed falls by more than cost."""
    assert found.worth is not None
    worth = found.points[found.worth]
    assert worth.front
    for point in found.points:
        assert point.value / worth.value >= worth.seconds / point.seconds


def test_limits_hold_for_every_point() -> None:
    """On devices and on speed; energy stands against time as well."""
    goal = Goal(objective="energy", use_at_most=(("a", 2),), min_tokens_per_second=20_000)
    found = front(*problem(), ASSUMED, Limits(target="deepspeed"), goal)
    assert found.points
    for point in found.points:
        assert devices_of(point.scored.plan)["a", "A100"] <= 2
        assert point.scored.estimate.tokens_per_second >= 20_000
        assert point.value == point.scored.estimate.joules_per_token
    assert found.without_plan > 0


def test_nothing_fits() -> None:
    """No points, and all sub-clusters are without a plan."""
    found = front(problem()[0], gpt(96, 12288, 96, global_batch=8), ASSUMED, Limits(), COST)
    assert (found.points, found.worth, found.without_plan) == ((), None, found.subclusters)


def test_no_time_and_interrupts_leave_the_rest_unfinished() -> None:
    """What was found stays."""
    nothing = front(*problem(), ASSUMED, Limits(time_limit_seconds=0.0), COST)
    assert (nothing.points, nothing.unfinished) == ((), nothing.subclusters)
    original, left = Explorer._open, iter(range(2))

    def cut(self: Explorer) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        original(self)

    with patch.object(Explorer, "_open", cut):
        some = front(*problem(), ASSUMED, Limits(), COST)
    assert some.interrupted
    assert len(some.points) == 2
    assert some.unfinished == some.subclusters - 2


def test_a_plan_that_is_there_is_a_point_unless_a_faster_one_takes_its_place(found: Front) -> None:
    """A report's front never shows a slower plan on the devices of the plan that it is about."""
    best = found.points[0]
    alone = front(*problem(), ASSUMED, Limits(time_limit_seconds=0.0), COST, known=(best.scored, 0.25))
    assert [(point.scored, point.gap) for point in alone.points] == [(best.scored, 0.25)]
    assert (alone.beaten, alone.unfinished) == (0, alone.subclusters)
    slower = replace(best.scored, estimate=replace(best.scored.estimate, step_seconds=2 * best.seconds))
    again = front(*problem(), ASSUMED, LIMITS, COST, known=(slower, 0.0))
    assert [point.seconds for point in again.points] == [point.seconds for point in found.points]


@pytest.mark.parametrize(
    ("said", "gap"),
    [({}, 0.25), ({"objective": "cost"}, 1.0), ({"subclusters": 5}, 1.0), ({"step_seconds": 1e-6}, 1.0)],
)
def test_what_is_proven_of_a_saved_plan(found: Front, said: dict[str, Any], gap: float) -> None:
    """The gap of a search for the fastest of all plans; none of another objective, within limits, or priced anew."""
    scored, (spec, model) = found.points[0].scored, problem()
    summary = Summary(
        status="feasible",
        step_seconds=scored.estimate.step_seconds,
        bound_seconds=0.75 * scored.estimate.step_seconds,
        gap=0.25,
        tokens_per_second=scored.estimate.tokens_per_second,
    )
    saved = PlanFile(plan=scored.plan, cluster=spec, model=model, summary=replace(summary, **said))
    (point,) = front_around(saved, scored, ASSUMED, "cost", deadline=Deadline.after(0.0)).points
    assert point.gap == gap


def test_host_memory_where_nothing_fits_without() -> None:
    """In the front as in the search for one plan, which says so; what the user forbids is not used."""
    roomy = pool("a", per_node=2).model_copy(update={"host": HostSpec(link_gBps=24, memory_gib=2000)})
    spec, large = rated(cluster(roomy), 0), gpt(60, 4096, 32, global_batch=8)
    limits = Limits(gap=0.2, target="deepspeed")
    points = front(spec, large, ASSUMED, limits, COST).points
    assert points
    assert all(point.scored.plan.offload.anything for point in points)
    best = choose(spec, large, ASSUMED, limits, COST, explain=False)
    assert best.best is not None
    assert best.best.plan.offload.anything
    assert any("nothing fits on the devices alone" in warning for warning in best.warnings)
    assert front(spec, large, ASSUMED, replace(limits, offload=("none",)), COST).points == ()
