"""Fronts of time against money by hand: points, their order, and which searches may still add one."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.cost.estimate import Estimator
from planner.search.deadline import NO_LIMIT
from planner.search.objectives import pareto
from planner.search.objectives.candidates import sub_cluster_candidates
from planner.search.objectives.pareto import FrontSearch, Point, front_objective, front_of
from planner.search.values import Goal, Limits, Silent
from tests.report import examples
from tests.search.test_slices import MODEL, SPEC


def point(seconds: float, value: float, gap: float = 0.0) -> Point:
    """Of a plan that takes so long."""
    return Point(scored=examples.scored(step_seconds=seconds), gap=gap, value=value)


def test_points_by_hand() -> None:
    """Slowest first; those that no other is as fast and as cheap as are marked, and the least product is worth it."""
    points, worth = front_of(
        [point(1.0, 9.0), point(4.0, 1.0), point(2.0, 3.0), point(3.0, 3.0), point(2.0, 4.0)]
    )
    assert [(each.seconds, each.value, each.front) for each in points] == [
        (4.0, 1.0, True),
        (3.0, 3.0, False),
        (2.0, 4.0, False),
        (2.0, 3.0, True),
        (1.0, 9.0, True),
    ]
    assert worth == 0
    assert front_of([point(1.0, 9.0), point(4.0, 3.0), point(2.0, 3.0)])[1] == 1
    assert front_of([point(4.0, 0.0), point(2.0, 0.0), point(1.0, 3.0)])[1] == 1
    assert front_of([]) == ((), None)


def test_what_stands_against_time() -> None:
    """Money where all have a price, else energy where all powers are known."""
    first, second = SPEC.pools
    free = SPEC.model_copy(update={"pools": (first, second.model_copy(update={"price_per_gpu_hour": None}))})
    blind = tuple(item.model_copy(update={"watts_per_gpu": None}) for item in free.pools)
    unknown = {
        name: gpu.model_copy(update={"watts": None}) if hasattr(gpu, "watts") else gpu
        for name, gpu in free.gpus.items()
    }
    nothing = free.model_copy(update={"pools": blind, "gpus": unknown})
    assert (front_objective(SPEC), front_objective(free)) == ("cost", "energy")
    assert front_objective(nothing) is None


def search(**goal: Any) -> FrontSearch:
    """Over parts of two pools."""
    asked = Goal(**{"objective": "cost", **goal})
    return FrontSearch(Estimator(SPEC, MODEL), Limits(target="megatron", gap=0.01), asked, Silent(), NO_LIMIT)


def test_the_order_of_the_parts() -> None:
    """All devices first, then single pools, the smallest first; at most 32 are asked for."""
    with patch.object(pareto, "sub_cluster_candidates", wraps=sub_cluster_candidates) as asked:
        found = search()
    assert asked.call_args.args[3] == 32
    order = [(each.sub.total, len(each.sub.cluster.pools)) for each in found.sub_clusters]
    assert order == [(4, 2), (1, 1), (1, 1), (2, 1), (2, 1), (2, 2), (3, 2), (3, 2)]


def test_parts_that_may_have_a_point() -> None:
    """Those that may be faster than every point that is as cheap there, and keep the goal."""
    found = search()
    candidate = found.sub_clusters[0]
    candidate.bound, candidate.weight, candidate.most_seconds = 1.0, 2.0, inf
    assert found._cutoff(candidate) == inf
    # What costs 12 is reached after 6 s there.
    found.points = {frozenset({(("a", "A100"), 1)}): point(5.0, 12.0), frozenset(): point(9.0, 2.0)}
    assert found._cutoff(candidate) == 6.0
    assert found.best_step == 5.0
    candidate.most_seconds = 4.0
    assert found._cutoff(candidate) == 4.0
    for least, bound, may in ((3.9, 1.0, True), (4.0, 1.0, False), (3.9, inf, False)):
        candidate.bound = bound
        with patch.object(found.rates, "least_seconds", return_value=least):
            assert found.may_win(candidate) == may


def test_what_is_kept_of_the_parts() -> None:
    """The faster of two on the same devices, or that with the smaller gap; none that breaks the goal."""
    found = search(max_cost_per_million_tokens=1e9, min_tokens_per_second=256 * 2048 / 30.0)
    with patch.object(found, "on_the_whole", lambda scored: scored):
        kept = [
            found._keep(examples.scored(step_seconds=seconds), gap)
            for seconds, gap in ((31.0, 0.0), (20.0, 0.5), (20.0, 0.4), (25.0, 0.0), (20.0, 0.45))
        ]
    assert kept == [False, True, True, True, True]
    (only,) = found.points.values()
    assert (only.seconds, only.gap) == (20.0, 0.4)
    assert only.value == pytest.approx(10.0 / 3600 / (256 * 2048 / 20.0) * 1e6)
    with patch.object(found, "on_the_whole", lambda scored: None):
        assert not found._keep(examples.scored(), 0.0)


def test_parts_that_are_open_and_those_without_a_plan() -> None:
    """Of those it came to, what has neither a plan nor an end is open, as are all others."""
    found = search()
    found.seen = 5
    found.sub_clusters[0].unfinished = cast("Any", object())
    found.sub_clusters[1].unfinished, found.sub_clusters[1].kept = cast("Any", object()), True
    found.sub_clusters[2].bound = inf
    found.sub_clusters[7].bound = inf
    assert (found.open, found.without_plan) == (3 + 1, 1)
    for finished, kept, best, cutoff, without in (
        (True, False, None, inf, True),
        (False, False, None, inf, False),
        (True, False, None, 5.0, False),
        (True, True, None, inf, False),
        (True, False, examples.scored(), inf, False),
    ):
        candidate = replace(found.sub_clusters[3], bound=1.0, kept=kept, most_seconds=inf)
        explorer = SimpleNamespace(best=best, gap=0.0, finished=finished)
        with (
            patch.object(found, "explore", return_value=explorer),
            patch.object(found, "_cutoff", return_value=cutoff),
            patch.object(found, "_keep", return_value=True),
        ):
            found.search(candidate, 1.0)
        assert (candidate.bound == inf) == without
        assert candidate.kept == (kept or best is not None)
