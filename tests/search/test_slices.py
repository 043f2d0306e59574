"""The scheduler of many searches without their searches: the order, the shares of time, and the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.capabilities import OFFLOAD_PARTS
from planner.cost.convergence import Convergence
from planner.cost.estimate import Estimator
from planner.cost.failures import NEVER, Interruptions
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explorer import Explorer
from planner.search.objectives.candidates import SubCluster, sub_cluster_candidates
from planner.search.objectives.choose import _loss, without_excluded
from planner.search.objectives.loss import BatchCandidate, LossSearch, batches_around
from planner.search.objectives.objectives import (
    BestSearch,
    Candidate,
    GoalRates,
    Slices,
    _promise,
    seconds_at,
    with_host_memory,
)
from planner.search.values import Goal, Limits, Scored, Silent
from tests.report import examples
from tests.search.test_objectives import rated
from tests.worlds import cluster, gpt, pool

SPEC, MODEL = rated(cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), 1), gpt(global_batch=16)
WHOLE = SubCluster(cluster=SPEC, devices={("a", "A100"): 2, ("b", "V100"): 2})


def candidate(bound: float, **more: Any) -> Candidate:
    """A sub-cluster of which so much is known."""
    return Candidate(sub=WHOLE, weight=1.0, bound=bound, **more)


@dataclass
class Log(Silent):
    """A reporter that keeps what it hears."""

    heard: list[tuple[int, int]] = field(default_factory=list)

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """How far it is."""
        self.heard.append((done, total))


class Few(Slices[Candidate]):
    """Candidates whose searches are looked up; a value below is the best of all."""

    def __init__(
        self, bounds: list[float], searches: Callable[[Few, Candidate], object] = lambda *_: None
    ) -> None:
        self.log = Log()
        super().__init__(Limits(), self.log, NO_LIMIT)
        self.sub_clusters = [candidate(bound) for bound in bounds]
        self.searches, self.value = searches, inf
        self.asked: list[tuple[float, float]] = []

    best_step = None

    def may_win(self, candidate: Candidate) -> bool:
        """Below the best."""
        return candidate.bound < self.value

    def search(self, candidate: Candidate, share: float) -> None:
        """Remember it."""
        self.asked.append((candidate.bound, share))
        candidate.unfinished, candidate.searched = None, True
        self.searches(self, candidate)

    def on(self, candidate: Candidate) -> Estimator:
        """The whole cluster."""
        return Estimator(SPEC, MODEL)


def test_each_candidate_has_a_slice_and_hard_ones_go_on() -> None:
    """In their order at first, then by their bounds; what the best rules out is left."""
    left = {2.0: 2, 3.0: 1, 1.0: 1}
    explorer = cast("Explorer", object())

    def searches(own: Few, each: Candidate) -> None:
        if left.get(each.bound, 0):
            left[each.bound] -= 1
            each.unfinished = explorer
        if each.bound == 9.0:
            own.value = 5.0

    found = Few([3.0, 9.0, 7.0, 2.0, 1.0], searches)
    found.run()
    first = [(3.0, 4 / 5), (9.0, 4 / 4), (2.0, 4 / 2), (1.0, 4 / 1)]
    assert found.asked == [*first, (1.0, 1 / 3), (2.0, 1 / 2), (2.0, 1 / 2), (3.0, 1.0)]
    assert found.log.heard == [*((done, 5) for done in range(1, 6)), *[(5, 5)] * 4]
    assert (found.seen, found.interrupted) == (5, False)


def test_the_end_of_the_time() -> None:
    """The first candidate is searched whatever the time, unless nothing is wanted; others are not begun."""
    over = Few([1.0, 2.0])
    over.deadline = Deadline.after(0.0)
    over.run()
    assert [bound for bound, _ in over.asked] == [1.0]
    over = Few([1.0, 2.0])
    over.deadline, over.one_whatever = Deadline.after(0.0), False
    over.run()
    assert over.asked == []

    def stop(own: Few, _: Candidate) -> None:
        raise KeyboardInterrupt

    stopped = Few([1.0, 2.0], stop)
    stopped.run()
    assert (len(stopped.asked), stopped.interrupted, stopped.ended) == (1, True, True)
    stopped.run()
    assert len(stopped.asked) == 1
    part = Few([1.0])
    part.deadline = Deadline(at=1050.0)
    with patch("planner.search.deadline.monotonic", return_value=50.0):
        assert part._slice(0.25).at == pytest.approx(300.0)
        assert part._slice(0.0).at == pytest.approx(50.5)


def test_when_nothing_fits() -> None:
    """All that may have a plan was searched to its end, and none was met."""
    found = Few([1.0, 2.0])
    assert not found.nothing_fits
    found.run()
    assert found.nothing_fits
    found.sub_clusters[1].unfinished = cast("Explorer", object())
    assert not found.nothing_fits
    found.value = 2.0
    assert found.nothing_fits
    found.interrupted = True
    assert not found.nothing_fits
    found.interrupted = False
    found.sub_clusters[0].met.take(examples.scored())
    assert not found.nothing_fits


@pytest.mark.parametrize(
    ("offload", "fits", "tried"), [(None, False, 2), (None, True, 1), (("none",), False, 1)]
)
def test_host_memory_is_the_last_resort(offload: tuple[Any, ...] | None, fits: bool, tried: int) -> None:
    """And only where nobody has said what may be kept there."""
    asked: list[Limits] = []

    def search(limits: Limits) -> Few:
        asked.append(limits)
        return Few([1.0], lambda _, each: each.met.take(examples.scored()) if fits else None)

    found = with_host_memory(Limits(offload=offload), search)
    assert [each.offload for each in asked] == [offload, OFFLOAD_PARTS][:tried]
    assert found.asked


def test_what_a_second_is_worth() -> None:
    """The price of a million tokens, or the joules of one; and how long a step may be within limits."""
    estimator = Estimator(SPEC, MODEL)
    prices, powers = (
        sum(getattr(item, name) * len(item.devices) for item in SPEC.pools)
        for name in ("price_per_gpu_hour", "watts_per_gpu")
    )
    tokens = 16 * 1024
    goal = Goal(
        objective="cost",
        max_cost_per_million_tokens=3.0,
        min_tokens_per_second=1000.0,
        tokens=1e9,
        deadline_seconds=1e6,
        budget=500.0,
    )
    rates = GoalRates(estimator, Limits(target="megatron"), goal)
    cost = prices / 3600 / tokens * 1e6
    assert rates.weight(WHOLE.devices) == pytest.approx(cost)
    assert rates.weight(WHOLE.devices, "energy") == pytest.approx(powers / tokens)
    assert rates.weight(WHOLE.devices, "time") == 1.0
    each = {
        "min_tokens_per_second": tokens / 1000.0,
        "max_cost_per_million_tokens": 3.0 / cost,
        "deadline_seconds": 1e6 * tokens / 1e9,
        "budget": 500.0 / 1e9 * 1e6 / cost,
    }
    assert rates.most_seconds(WHOLE.devices) == pytest.approx(min(each.values()))
    for name, seconds in each.items():
        rates.goal = replace(Goal(tokens=1e9), **{name: getattr(goal, name)})
        assert rates.most_seconds(WHOLE.devices) == pytest.approx(seconds)
    stops = Interruptions(per_gpu_month=30.0, restart_seconds=3600.0)
    share = stops.goodput(4)
    assert 0 < share < 1 == NEVER.goodput(4)
    for name in ("deadline_seconds", "budget"):
        rates.goal = replace(Goal(tokens=1e9, interruptions=stops), **{name: getattr(goal, name)})
        assert rates.most_seconds(WHOLE.devices) == pytest.approx(share * each[name])
    rates.goal = Goal()
    assert rates.most_seconds(WHOLE.devices) == inf
    assert (seconds_at(6.0, 2.0), seconds_at(6.0, 0.0)) == (3.0, inf)


def test_goals_that_need_prices_and_those_that_do_not() -> None:
    """And the one that wants the fastest of all plans, whatever else is asked about it."""
    assert [goal.priced for goal in (Goal(), Goal(objective="energy"), Goal(min_tokens_per_second=1.0))] == [
        False
    ] * 3
    limits: tuple[dict[str, Any], ...] = (
        {"objective": "cost"},
        {"max_cost_per_million_tokens": 1.0},
        {"budget": 1.0},
    )
    assert all(Goal(**changes).priced and not Goal(**changes).fastest for changes in limits)
    assert Goal(robust=True, tokens=1e9).fastest
    assert not Goal(use_at_most=(("a", 1),)).fastest


def test_the_most_promising_sub_cluster_is_first() -> None:
    """By its bound, of equal ones that with fewer devices; only the whole cluster where time alone counts."""
    few = SubCluster(cluster=SPEC, devices={("a", "A100"): 1})
    one, two, three = candidate(2.0), Candidate(sub=few, weight=1.0, bound=2.0), candidate(1.0)
    assert sorted((one, two, three), key=_promise) == [three, two, one]
    every = sub_cluster_candidates(SPEC, MODEL)

    def considered(**goal: Any) -> int:
        search = BestSearch(
            Estimator(SPEC, MODEL), Limits(target="megatron"), Goal(**goal), Silent(), NO_LIMIT
        )
        bounds = [each.bound for each in search.sub_clusters]
        assert bounds == sorted(bounds)
        return len(bounds)

    assert considered() == considered(min_tokens_per_second=1.0) == 1
    run: dict[str, Any] = {"tokens": 1e9, "deadline_seconds": 1e9}
    assert considered(**run) == 1
    assert considered(**run, interruptions=Interruptions(per_gpu_month=1.0, restart_seconds=60.0)) == len(
        every
    )
    for goal in (
        {"objective": "energy"},
        {"max_cost_per_million_tokens": 9.0},
        {"tokens": 1e9, "budget": 9.0},
    ):
        assert considered(**goal) == len(every) == 8
    assert considered(use_at_most=(("a", 1),)) == 5


def test_what_a_plan_loses_by_another_objective() -> None:
    """As a share of the winner's; where that is free no share can be told."""
    winner, loser = (
        Scored(
            plan=examples.plan(), estimate=replace(examples.estimate(examples.plan()), price_per_hour=price)
        )
        for price in (10.0, 15.0)
    )
    free = Scored(plan=winner.plan, estimate=replace(winner.estimate, price_per_hour=0.0))
    assert _loss("cost", loser, winner) == "cost of a token +50 %"
    assert _loss("cost", loser, free) == "cost of a token: not free"
    slower = replace(examples.scored(step_seconds=27.2).estimate, price_per_hour=0.0)
    assert _loss("cost", Scored(plan=winner.plan, estimate=slower), free) == "as fast"
    assert _loss("time", examples.scored(step_seconds=27.2), winner) == "as fast"


def test_pools_of_which_nothing_may_be_used() -> None:
    """They are left out, with what was said of them; limits on all pools together, and on others, stay."""
    goal = Goal(use_at_most=(("", 0), ("a", 0), ("b", 1)))
    spec, left = without_excluded(SPEC, goal)
    assert [item.name for item in spec.pools] == ["b"]
    assert left.use_at_most == (("", 0), ("b", 1))
    kept, same = without_excluded(SPEC, Goal(use_at_most=(("b", 1),)))
    assert kept is SPEC
    assert same.use_at_most == (("b", 1),)


def losses(batches: list[int], steps: dict[int, float]) -> LossSearch:
    """A search among batches that take so many steps."""
    length = MODEL.training.sequence_tokens
    curve = cast(
        "Convergence", type("Curve", (), {"steps": lambda _, tokens: steps[round(tokens / length)]})()
    )
    calibration = Estimator(SPEC, MODEL).calibration
    limits = Limits(target="megatron", gap=0.1)
    return LossSearch((WHOLE,), SPEC, MODEL, calibration, limits, Goal(), curve, batches, NO_LIMIT)


def test_batches_near_the_files_own_are_first() -> None:
    """By their ratio to it; then the least bounds. What is known of a batch is its steps times its least step."""
    found = losses([4, 8, 24, 64], {4: 900.0, 8: 500.0, 24: 300.0, 64: 10.0})
    assert abs(log(24 / 16)) < abs(log(8 / 16))
    assert found.sub_clusters[0].batch == 24
    bounds = [each.bound for each in found.sub_clusters[1:]]
    assert bounds == sorted(bounds)
    by_batch = {each.batch: each for each in found.sub_clusters}
    assert {batch: each.weight for batch, each in by_batch.items()} == {
        4: 900.0,
        8: 500.0,
        24: 300.0,
        64: 10.0,
    }
    assert all(0 < each.bound < inf for each in found.sub_clusters)
    assert (found.best, found.value, found.best_step, found.best_bound) == (None, inf, None, 0.0)
    assert found.bound == min(each.bound for each in found.sub_clusters)


def test_the_batch_that_reaches_the_loss_first() -> None:
    """Steps times seconds; a batch may win below that by more than the gap."""
    found = losses([8, 16], {8: 500.0, 16: 300.0})
    by_batch: dict[int, BatchCandidate] = {each.batch: each for each in found.sub_clusters}
    told: list[int] = []
    found._better = lambda _, batch: told.append(batch)
    for batch, seconds in ((8, 2.0), (8, 3.0), (16, 3.0), (16, 4.0), (8, 1.9)):
        found.take(by_batch[batch], examples.scored(step_seconds=seconds))
    found.take(by_batch[8], None)
    assert told == [8, 16]
    assert found.best is by_batch[16]
    assert (found.value, found.best_step) == (900.0, 3.0)
    assert by_batch[8].value == 950.0
    for each, bound in ((by_batch[8], 809.0), (by_batch[16], 811.0)):
        each.bound = bound
    assert [found.may_win(by_batch[batch]) for batch in (8, 16)] == [True, False]
    assert found.bound == 809.0
    assert found.best_bound == pytest.approx(809.0 / 300.0)


def test_batches_around_the_files_own() -> None:
    """Doubled and halved six times, where it divides evenly and is in the range."""
    assert batches_around(12) == (3, 6, 12, 24, 48, 96, 192, 384, 768)
    assert batches_around(1) == (1, 2, 4, 8, 16, 32, 64)
    assert batches_around(128) == (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
