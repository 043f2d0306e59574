"""The first plans of a search: which families are looked at, at what depths, and what is kept."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import islice
from math import inf
from typing import Any
from unittest.mock import patch

import pytest

from planner.cost.estimate import Estimator
from planner.cost.schedules import uniform_seconds
from planner.cost.training import devices_of
from planner.model.spec import ModelSpec
from planner.plan.values import Context, Folding
from planner.search.bounds.best import FamilyBounds
from planner.search.bounds.groups import Group, group_rates, grouped, searched
from planner.search.data_parallel import choices
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.explorer import Explorer
from planner.search.heuristics.greedy import QUICK, Effort, layered
from planner.search.heuristics.quick import (
    ALL_ORDERS,
    FirstPlans,
    Wanted,
    _both_ways,
    _near,
    _promised_seconds,
    _rank,
    _sample,
    _seconds_with_traffic,
    _slots,
    _thrift,
    _waiting,
    cheap_plan,
    everywhere,
    quick_plan,
)
from planner.search.milp import model as models
from planner.search.pipeline import OpenChoice
from planner.search.solve import search
from planner.search.space.choices import Choice, Family, targets_of
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored, Silent
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool

MEGATRON = Limits(target="megatron", tp=(1,), recompute=("none",))
SMALL = gpt(12, 1024, 8, global_batch=8)


def opened(model: ModelSpec = SMALL, limits: Limits = MEGATRON) -> tuple[Explorer, list[Family]]:
    """A search of two fast and four slow devices that has begun nothing, and its families."""
    estimator = Estimator(cluster(pool("a", per_node=2), pool("b", "V100", per_node=4)), model)
    found, every = Explorer(estimator, limits, Silent()), []
    for row, name, partition, families in searched(targets_of(limits), estimator, limits, one_degree=False):
        found._partitions[row.name, name] = partition
        every += families
    return found, every


@cache
def usual() -> tuple[Explorer, list[Family], NetworkPartition]:
    """One that nothing is offered to."""
    explorer, families = opened()
    return explorer, families, explorer.partition(families[0])


def of(families: list[Family], dp: int, batch: int) -> Family:
    """The one with so many replicas and sequences at once."""
    return next(family for family in families if (family.dp, family.batch) == (dp, batch))


def test_a_pipeline_and_its_reverse() -> None:
    """Where there is one, and they differ."""
    assert _both_ways([0, 1, 1]) == [[0, 1, 1], [1, 1, 0]]
    assert _both_ways([0, 1, 0]) == [[0, 1, 0]]
    assert _both_ways([]) == []


def test_wanted_devices() -> None:
    """No others, and not fewer."""
    wanted = Wanted(pools=frozenset("a"), least={("a", "A100"): 2})
    assert wanted.met_by({("a", "A100"): 2, ("b", "V100"): 0})
    assert wanted.met_by({("a", "A100"): 3})
    assert not wanted.met_by({("a", "A100"): 1})
    assert not wanted.met_by({("a", "A100"): 2, ("b", "V100"): 1})
    assert not wanted.met_by({})


def test_families_that_need_little_memory_are_first() -> None:
    """Small micro-batches, much recomputation, wide replicas, many of them, and much sharded."""
    first = Family(target="megatron", zero=3, recompute="full", tp=2, dp=4, batch=4, micro_batches=2)
    first = first._replace(context=Context(ways=2, kind="ring"), folding=Folding(ep=4), batch=2)
    order = [
        first,
        first._replace(zero=1),
        first._replace(dp=2, batch=1),
        first._replace(tp=1),
        first._replace(folding=Folding(ep=2)),
        first._replace(context=Context(ways=1), batch=4),
        first._replace(recompute="selective"),
        first._replace(recompute="none"),
        first._replace(batch=4),
    ]
    mixed = random.Random(1).sample(order, len(order))
    assert sorted(mixed, key=_thrift) == order
    # Where each stage has its own, it may be none.
    assert _thrift(first._replace(recompute=None)) == _thrift(first._replace(recompute="none"))


def test_depths_that_are_tried() -> None:
    """Where the fast devices are used up, and halves of the deepest; of those that are possible."""
    _, families, partition = usual()
    family, rates = of(families, 1, 1), partition.bounds.rates
    possible = partition.depths(family, MEGATRON)
    assert possible == (1, 2, 3, 4, 5, 6)
    assert _sample(rates.speeds(family), possible) == {6, 3, 2, 1}
    assert _sample(rates.speeds(family), possible[3:]) == {6}
    assert _sample(rates.speeds(of(families, 2, 2)), (1, 2, 3)) == {3, 1}
    assert not _sample(rates.speeds(family), ())


def test_the_shallowest_pipeline_that_holds_the_model() -> None:
    """Of a power of two of stages, or all of them."""
    explorer, families = opened(gpt(48, 4096, 32, global_batch=8))
    first, found = FirstPlans(explorer), {}
    for family in families:
        partition = explorer.partition(family)
        holds = partition.bounds.uniform(family).holds
        possible = partition.depths(family, MEGATRON)
        found[family] = first._shallowest(partition, family)
        if found[family]:
            assert holds(found[family])
        less = [
            depth for depth in (1, 2, 4, possible[-1]) if depth in possible and depth < (found[family] or 99)
        ]
        assert not any(map(holds, less))
    assert {0, 4} <= {*found.values()}
    assert first._shallowest(partition, families[0]._replace(dp=None)) == 0


def of_group(group: Group, partition: NetworkPartition) -> tuple[float, float, int]:
    """Layers a second of all devices, of the fastest one, and the steps of one replica."""
    rates = group_rates(group, partition.bounds)
    rate = sum(each.replicas * each.layers for each in rates)
    return (
        rate,
        max(each.layers for each in rates),
        SMALL.training.global_batch // (group.first.micro_batch or 1),
    )


def test_what_a_group_promises() -> None:
    """All devices at their rate: with as many replicas as devices no time is lost, with one a pipeline fills."""
    _, families, partition = usual()
    for group in grouped(families):
        rate, _, steps = of_group(group, partition)
        most = max(family.dp or 1 for family in group.families)
        one = Group((of(families, 1, group.first.micro_batch or 1),))
        assert _promised_seconds(one, partition) == pytest.approx(uniform_seconds(12 / rate, 6, steps))
        each = -(-steps // most)
        assert _promised_seconds(group, partition) == pytest.approx(
            12 * most / rate * (each + max(0.0, min(12, 6 / most) - 1))
        )


def test_no_family_is_looked_at_too_late() -> None:
    """What is known of one before its depths are ranked is below all of them, and close for equal devices."""
    _, families, partition = usual()
    wanted = everywhere(partition.estimator)
    closest = 0.0
    for group in grouped(families):
        for item in _waiting(group, partition, MEGATRON):
            ranked = list(_rank(item.family, partition, MEGATRON, wanted))
            assert all(item.least_seconds <= choice.seconds for choice in ranked)
            closest = max(closest, *(item.least_seconds / choice.seconds for choice in ranked), 0.0)
    assert 0.7 < closest < 1


def test_depths_are_ranked_by_what_their_devices_do() -> None:
    """The fast ones first, or those that are wanted; a depth without room for all layers is left out."""
    _, families, partition = usual()
    family = of(families, 1, 1)
    speeds = {speed.device_type[0]: speed for speed in partition.bounds.rates.speeds(family)}
    fast, slow = (speeds[name] for name in "ab")

    def ranked(wanted: Wanted) -> dict[int, float]:
        return {item.choice.depth: item.seconds for item in _rank(family, partition, MEGATRON, wanted)}

    def seconds(fast_ones: int, slow_ones: int) -> float:
        depth = fast_ones + slow_ones
        rate = fast_ones / fast.layer_seconds + slow_ones / slow.layer_seconds
        used = [speed for speed, count in ((fast, fast_ones), (slow, slow_ones)) if count]
        tail = 12 / depth * max(speed.tail_seconds for speed in used)
        return uniform_seconds(12 / rate, depth, 8) + tail

    everyone = everywhere(partition.estimator)
    found = ranked(everyone)
    assert found == pytest.approx({1: seconds(1, 0), 2: seconds(2, 0), 3: seconds(2, 1), 6: seconds(2, 4)})
    must = ranked(replace(everyone, least={("b", "V100"): 2}))
    assert must[2] == pytest.approx(seconds(0, 2))
    assert must[3] == pytest.approx(seconds(1, 2))
    assert ranked(Wanted(pools=frozenset("b"))) == pytest.approx(
        {1: seconds(0, 1), 2: seconds(0, 2), 4: seconds(0, 4)}
    )


def test_stages_on_wanted_devices() -> None:
    """First those that must work, then the fastest; none where there are too few."""
    _, families, partition = usual()

    def pools(depth: int, wanted: Wanted) -> str:
        choice = Choice(family=of(families, 1, 1), depth=depth, interleave=1)
        stages = StageOptions(choice, partition.estimator, MEGATRON)
        return "".join(stages.compositions[index][0].pool for index in _slots(stages, wanted))

    everyone = everywhere(partition.estimator)
    assert pools(3, everyone) == "aab"
    assert pools(6, everyone) == "aabbbb"
    assert pools(3, replace(everyone, least={("b", "V100"): 2})) == "abb"
    assert pools(2, replace(everyone, least={("b", "V100"): 3})) == "bb"
    assert pools(3, Wanted(pools=frozenset("b"))) == "bbb"
    assert pools(3, Wanted(pools=frozenset("a"))) == ""


@pytest.mark.parametrize("better", [False, True])
def test_fewer_replicas_follow_as_long_as_they_are_faster(better: bool) -> None:
    """Of the groups that promise most, the most replicas first, then what else has the best number of them.

    Groups that differ from these in recomputation only, and groups that promise too little, are left.
    """
    explorer, families = opened()
    first, asked = FirstPlans(explorer), list[tuple[int, int, int]]()

    def looked(family: Family) -> float:
        number = family.dp or 1
        asked.append((family.batch // number, number, family.zero))
        return float(number if better else -number)

    partition = explorer.partition(families[0])

    def promised(group: Group) -> float:
        return max(_promised_seconds(group, partition), _seconds_with_traffic(group, partition))

    groups = sorted(grouped(families), key=promised)
    sizes = list(dict.fromkeys((group.first.batch // (group.first.dp or 1)) for group in groups))[:2]
    with patch.object(first, "of_family", looked):
        first.promising((group, partition) for group in groups[::-1])
    expected = list[tuple[int, int, int]]()
    for size in sizes:
        group = next(group for group in groups if group.first.micro_batch == size)
        stages = {(family.dp or 1, family.zero) for family in group.families}
        numbers = sorted({number for number, _ in stages}, reverse=True)
        tried = numbers if better else numbers[:2]
        best = tried[-1] if better else tried[0]
        most = {number: max(zero for other, zero in stages if other == number) for number in tried}
        expected += [(size, number, most[number]) for number in tried]
        expected += [(size, best, zero) for zero in reversed(range(most[best])) if (best, zero) in stages]
    assert asked == expected
    explorer.cutoff_seconds = promised(groups[1])
    asked.clear()
    with patch.object(first, "of_family", looked):
        first.promising((group, partition) for group in groups)
    assert {size for size, *_ in asked} == {groups[0].first.micro_batch}


def test_a_number_of_replicas_is_left_only_when_none_of_its_families_has_a_plan() -> None:
    """Where the one that takes least memory has none, the next one is asked, and fewer replicas after them."""
    explorer, families = opened()
    first, asked = FirstPlans(explorer), list[tuple[int, int]]()
    most = max(family.dp or 1 for family in families)
    group = next(
        group for group in grouped(families) if {0, 1} <= {f.zero for f in group.families if f.dp == most}
    )

    def looked(family: Family) -> float:
        asked.append((family.dp or 1, family.zero))
        return inf if family.dp == most else 1.0

    with patch.object(first, "of_family", looked):
        assert first._most_replicas(group)
    assert asked[:3] == [(most, 1), (most, 0), (max(f.dp or 1 for f in group.families if f.dp != most), 1)]


def test_families_without_room_take_time_too() -> None:
    """The deadline is asked before each of a group, also where no depth holds the layers."""
    explorer, families = opened()
    first, asked = FirstPlans(explorer), list[int]()
    group = grouped(families)[0]
    with (
        patch.object(first, "_shallowest", return_value=0),
        patch.object(first, "check_later", lambda: asked.append(1)),
    ):
        assert not first._most_replicas(group)
    assert len(asked) == len(group.families)


def test_first_plans_by_one_means_alone() -> None:
    """Each finds a plan that fits, of the kind that it is for."""
    explorer, families = opened()
    partition = explorer.partition(families[0])
    FirstPlans(explorer).any(partition, families)
    assert explorer.best is not None
    assert {group.micro_batch for stage in explorer.best.plan.stages for group in stage.replicas} == {1}
    explorer, _ = opened(limits=Limits(target="torch"))
    every = tuple(choices(TARGETS["torch"], Limits(), explorer.estimator))
    FirstPlans(explorer).evenly(every, partition)
    assert explorer.best is not None
    assert devices_of(explorer.best.plan) == {("a", "A100"): 2, ("b", "V100"): 4}
    assert explorer.best.plan.pp == 1
    explorer, families = opened()
    whole = explorer.partition(families[0])
    first = FirstPlans(explorer)
    first.promising((group, whole) for group in grouped(families))
    assert explorer.best is not None
    before = explorer.incumbent
    first.refine()
    first.polish()
    assert explorer.incumbent <= before
    choice = first._promising
    assert choice is not None
    exact = explorer.open_choice(0.0, choice)
    while not exact.closed:
        exact.step(explorer.incumbent, NO_LIMIT)
    assert exact.bound >= explorer.incumbent * (1 - 2 * MEGATRON.gap)


def test_types_that_hold_too_little_are_left_out() -> None:
    """Data parallelism over all devices, else over those with most memory."""
    estimator = Estimator(
        cluster(pool("t", "T4", per_node=4), pool("a", per_node=2)),
        gpt(24, 2048, 16, global_batch=16, sequence_length=65536),
    )
    limits = Limits(target="deepspeed", pp=(1,), tp=(1,))
    (partition,) = network_partitions(estimator, TARGETS["deepspeed"]).values()
    explorer = Explorer(estimator, limits, Silent())
    FirstPlans(explorer).evenly(tuple(choices(TARGETS["deepspeed"], limits, estimator)), partition)
    assert explorer.best is not None
    assert [(each.gpu, each.count) for each in explorer.best.plan.stages[0].replicas] == [("A100", 2)]


def test_before_an_ilp_comes_a_quick_plan_in_every_order() -> None:
    """Once for each choice: what it finds makes the ILP smaller."""
    explorer, _ = opened(limits=replace(MEGATRON, gap=0.0))
    events: list[tuple[str, Choice]] = []
    solve, plan = OpenChoice._solve, FirstPlans._plan

    def solved(opened: OpenChoice, *parts: Any) -> None:
        events.append(("ILP", opened.choice))
        solve(opened, *parts)

    def planned(first: FirstPlans, choice: Choice, partition: Any, effort: Effort = QUICK) -> float:
        if effort.orders == ALL_ORDERS:
            events.append(("plan", choice))
        return plan(first, choice, partition, effort)

    explorer._open()
    with (
        patch.object(models, "MOST_PATHS", 1),
        patch.object(OpenChoice, "_solve", solved),
        patch.object(FirstPlans, "_plan", planned),
    ):
        explorer._best_first(None)
    choices = {choice for event, choice in events if event == "ILP"}
    assert len(choices) > 1
    for choice in choices:
        own = [event for event, other in events if other == choice]
        assert own[0] == "plan"
        assert own.count("plan") == 1


def test_the_best_pipeline_is_tried_in_other_schedules() -> None:
    """Interleaved, at the best depth and at the deepest that can be; not where a faster plan is known."""
    explorer, families = opened()
    first, asked = FirstPlans(explorer), list[Choice]()
    family = max((item for item in families if item.dp == 2), key=lambda item: item.micro_batches)

    def planned(choice: Choice, partition: NetworkPartition, **options: int) -> float:
        asked.append(choice)
        return 1.0 + choice.depth

    for known, expected in ((1e9, {1, 2, 3}), (1.0, {1})):
        explorer.cutoff_seconds = known
        asked.clear()
        with (
            patch.object(first, "_plan", planned),
            patch.object(FamilyBounds, "bound", return_value=0.0),
            patch.object(explorer, "orders", return_value=[(1, "1f1b"), (2, "1f1b"), (3, "1f1b")]),
        ):
            assert first._of_family(family) == 1.0 + min(choice.depth for choice in asked)
        plain = [choice for choice in asked if choice.interleave == 1]
        assert len(set(plain)) == len(plain)
        assert {choice.interleave for choice in asked} == expected
        depths = {choice.depth for choice in plain}
        assert {choice.depth for choice in asked if choice not in plain} <= {min(depths), max(depths)}


def test_pipelines_are_tried_both_ways() -> None:
    """Where time is short the first that fits is enough, and few degrees are tried; the best again."""
    explorer, _ = opened()
    tried: list[tuple[object, list[int]]] = []

    def looked(stages: StageOptions, slots: list[int], scorer: Estimator) -> Scored | None:
        tried.append((stages.choice, slots))
        return layered(stages, slots, scorer)

    with patch("planner.search.heuristics.quick.layered", looked):
        quick_plan(explorer.estimator, MEGATRON, everywhere(explorer.estimator))
        every = tried.copy()
        tried.clear()
        cheap_plan(explorer.estimator, MEGATRON, everywhere(explorer.estimator), NO_LIMIT)
    assert any(len(slots) > 1 for _, slots in every)
    assert all((choice, slots[::-1]) in every for choice, slots in every)
    *once, (again, _) = tried
    assert len({id(choice) for choice, _ in once}) == len(once) == 3
    assert any(choice is again for choice, _ in once)


def test_quick_plans_are_close_to_the_best() -> None:
    """Of the wanted devices alone; one that is known and faster stays."""
    explorer, _ = opened()
    estimator, limits = explorer.estimator, Limits()
    whole = Explorer(estimator, limits, Silent())
    whole.run()
    quick = quick_plan(estimator, limits, everywhere(estimator))
    cheap = cheap_plan(estimator, limits, everywhere(estimator), NO_LIMIT)
    assert quick is not None
    assert cheap is not None
    assert whole.incumbent * (1 - 1e-9) <= quick.estimate.step_seconds <= 1.02 * whole.incumbent
    assert whole.incumbent * (1 - 1e-9) <= cheap.estimate.step_seconds <= 1.1 * whole.incumbent
    assert cheap_plan(estimator, limits, everywhere(estimator), NO_LIMIT, whole.best) is whole.best
    slow = quick_plan(estimator, limits, Wanted(pools=frozenset("b")))
    assert slow is not None
    assert {pool for pool, _ in devices_of(slow.plan)} == {"b"}
    must = quick_plan(estimator, limits, Wanted(pools=frozenset("ab"), least={("b", "V100"): 3}))
    assert must is not None
    assert devices_of(must.plan)["b", "V100"] >= 3


EIGHT = [
    pool(f"p{number}", ("A100", "V100", "T4")[number % 3], per_node=1 + number % 2, gbps=10, cards=1)
    for number in range(8)
]
"""Each of them is a device type."""


@pytest.mark.slow
def test_of_many_types_the_batch_is_shared_ahead_of_pipelines() -> None:
    """Whose quick plans take long there: what is known before them is about as good as all of data parallelism."""
    where, model = cluster(*EIGHT), gpt(12, 1024, 16, global_batch=256)
    known: list[Scored | None] = []
    first = Explorer(Estimator(where, model), Limits(target="torch"), Silent())
    with patch.object(FirstPlans, "promising", lambda self, groups: known.append(self.explorer.best)):
        first._open()
    assert known[0] is not None
    shared = search(where, model, limits=Limits(target="torch", pp=(1,), tp=(1,)), explain=False).best
    assert shared is not None
    assert known[0].estimate.step_seconds <= 1.1 * shared.estimate.step_seconds


def test_compositions_are_priced_when_their_turn_comes() -> None:
    """In the order of all their prices, without those that are no longer wanted."""
    estimator = Estimator(cluster(*EIGHT), SMALL)
    family = next(family for family in opened()[1] if family.dp == 2)
    stages = StageOptions(Choice(family=family, depth=2, interleave=1), estimator, MEGATRON)
    every = range(len(stages.compositions))
    wanted = sorted(every, key=lambda index: stages.option(1, index, 1).busy_seconds)
    assert list(stages.fastest_first(1, every, lambda index: True)) == wanted
    fresh = StageOptions(Choice(family=family, depth=2, interleave=1), estimator, MEGATRON)
    assert list(islice(fresh.fastest_first(1, every, lambda index: True), 2)) == wanted[:2]
    assert len(fresh._prices) < len(every) / 2
    assert list(stages.fastest_first(1, every, {*wanted[3:5]}.__contains__)) == wanted[3:5]


def test_families_near_another() -> None:
    """Degrees and micro-batch by a factor of two at most, or one thing else, not both."""
    one = Family(target="megatron", zero=1, recompute="full", tp=2, dp=4, batch=8, micro_batches=2)
    near = [
        one._replace(tp=4),
        one._replace(tp=4, dp=2, batch=4),
        one._replace(batch=4),
        one._replace(zero=0),
        one._replace(recompute=None),
        one._replace(shard_size=2),
    ]
    assert all(_near(one, other) and _near(other, one) for other in near)
    far = [
        one._replace(tp=8),
        one._replace(dp=1, batch=2),
        one._replace(batch=2)._replace(dp=4, batch=32),
        one._replace(zero=0, recompute="none"),
        one._replace(zero=0, tp=1),
    ]
    assert not any(_near(one, other) or _near(other, one) for other in far)


def test_a_climb_leads_from_a_poor_family_to_the_best_one_nearby() -> None:
    """Families without a quick plan alone are looked at, and none whose bound is no better than the best plan."""
    explorer, families = opened()
    first = FirstPlans(explorer)
    every = {(families[0].target, families[0].network): families}
    start = of(families, 1, 8)
    before = first.of_family(start)
    assert before < inf
    looked: list[int] = []
    while len(first._seconds) not in looked:
        looked.append(len(first._seconds))
        first.climb(every, NO_LIMIT)
    assert len(looked) > 1
    assert (least := explorer.incumbent) < before
    best = min(first._seconds, key=first._seconds.__getitem__)
    assert first._seconds[best] == least
    # Where climbs end, nothing that is nearby and has no plan may be better.
    assert all(bound >= least for bound, _ in first._nearby(best, families))
    # A plan that the search has found since then is a start as well.
    other = next(family for family in families if family not in first._seconds)
    assert explorer.best is not None
    first.know(other, explorer.best)
    assert first._seconds[other] == least


def test_a_climb_looks_at_other_depths() -> None:
    """From eight depths further down to the next ones, of each family and order once; of what is near the best plan
    more orders.
    """
    explorer, families = opened()
    family, asked, thorough = of(families, 1, 8), list[int](), list[int]()

    def below(choice: Choice, partition: NetworkPartition) -> float:
        asked.append(choice.depth)
        return 1.0 + abs(choice.depth - 23)

    for known, expected in ((1.0, [23]), (0.5, [])):
        explorer.cutoff_seconds = known
        first = FirstPlans(explorer)
        first._quick = [(19.0, 0, Choice(family=family, depth=5, interleave=1))]
        asked.clear()
        thorough.clear()
        with (
            patch.object(NetworkPartition, "depths", return_value=tuple(range(1, 41))),
            patch.object(explorer, "orders", return_value=[(1, "1f1b")]),
            patch.object(first, "_below", below),
            patch.object(first, "of_choice", lambda choice: thorough.append(choice.depth)),
        ):
            first.climb({}, NO_LIMIT)
            once = len(asked)
            first.climb({}, NO_LIMIT)
        assert asked[:3] == [13, 5, 21]
        assert 23 in asked
        assert len(asked) == once < 20
        assert thorough == expected


def test_divided_backwards_are_tried_at_the_deepest_pipeline_that_has_them() -> None:
    """Whatever depths a family is planned at: they hide what makes other pipelines slow."""
    explorer, families = opened()
    family, asked = of(families, 1, 8), list[tuple[int, str]]()

    def planned(choice: Choice, partition: NetworkPartition) -> float:
        asked.append((choice.depth, choice.schedule))
        return 5.0 if choice.schedule == "1f1b" else 0.5

    first = FirstPlans(explorer)
    explorer.cutoff_seconds = 1.0
    with (
        patch.object(first, "_plan", planned),
        patch.object(FamilyBounds, "bound", return_value=0.0),
        patch.object(
            explorer,
            "orders",
            side_effect=lambda _, depth: [(1, "1f1b"), (1, "zero-bubble")][: 1 + (depth == 5)],
        ),
    ):
        assert first._of_family(family) == 0.5
    assert asked[-2:] == [(5, "zero-bubble"), (5, "1f1b")]
    assert 4 not in dict(asked)


def test_a_slow_family_leaves_tries_to_others_of_its_degrees() -> None:
    """Half of them; one near the best plan leaves none, one without a plan all but one."""
    explorer, _ = opened()
    explorer.cutoff_seconds = 2.0
    assert [explorer._tries_of(seconds) for seconds in (1.9, 2.2, 2.3, inf)] == [6, 6, 3, 1]
    explorer.cutoff_seconds = inf
    assert [explorer._tries_of(seconds) for seconds in (1.9, inf)] == [6, 1]


def test_what_is_best_on_some_pools_is_dealt_over_nodes_on_all() -> None:
    """And on its own."""
    pools = pool("a", nodes=2, per_node=4, gbps=100), pool("b", "V100", nodes=4, per_node=2, gbps=10)
    estimator = Estimator(cluster(*pools), SMALL)
    explorer = Explorer(estimator, MEGATRON, Silent())
    every = [
        family
        for _, _, _, families in searched(targets_of(MEGATRON), estimator, MEGATRON, one_degree=False)
        for family in families
        if (family.tp, family.dp) == (1, 2) and family.micro_batches > 1
    ]
    alone = next(family for family in every if family.network.endswith(":a"))
    whole = alone.network.removesuffix(":a")
    found = {family.network for family in explorer.dealt(alone)}
    assert found == {f"{name} dealt over {nodes}" for name in (whole, f"{whole}:a") for nodes in (2, 4)}
    on_all = explorer.dealt(alone._replace(network=whole))
    assert {family.network for family in on_all} == {f"{whole} dealt over {nodes}" for nodes in (2, 4)}


def test_a_choice_that_stays_open_gets_a_quick_plan_once() -> None:
    """Families are planned at a few depths only; a round may leave another depth open."""
    explorer, families = opened()
    choice = Choice(family=of(families, 1, 1), depth=4, interleave=1)
    asked: list[Choice] = []
    with patch.object(FirstPlans, "_plan", lambda _, planned, *parts: asked.append(planned)):
        first = FirstPlans(explorer)
        first.of_open(choice)
        first.of_open(choice)
    assert asked == [choice]


def test_no_quick_plan_of_an_open_choice_after_the_limit() -> None:
    """Many choices may be open at once, and their plans take time; what the round has left is kept."""
    explorer, families = opened()
    choice = explorer.open_choice(0.0, Choice(family=of(families, 1, 1), depth=4, interleave=1))
    explorer.deadline = Deadline(at=0.0)
    with (
        patch("planner.search.explorer.step_all"),
        patch.object(FirstPlans, "of_open") as asked,
        pytest.raises(Struck),
    ):
        explorer._solve([choice])
    asked.assert_not_called()
    assert [item for _, _, item in explorer._heap] == [choice]
