"""Families bounded together, before any of them is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.capabilities import Capabilities
from planner.cost.estimate import Estimator
from planner.search import data_parallel
from planner.search.bounds.groups import (
    Group,
    families_below,
    families_of,
    group_bound,
    grouped,
    late,
    members,
    of_one_degree,
    searched,
)
from planner.search.bounds.peak import floor_seconds, least_seconds
from planner.search.bounds.rates import FreeRate
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.objectives.candidates import sub_cluster_candidates
from planner.search.space.choices import Family, families, targets_of
from planner.search.space.multi_node import dealt_nodes
from planner.search.space.partitions import dealt_partitions, network_partitions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests import worlds
from tests.quick import first
from tests.search.variants import three_pools
from tests.worlds import cluster, gpt, pool


@pytest.mark.parametrize("seed", first(2, range(6)))
@pytest.mark.parametrize("target", ["deepspeed", "megatron", "torch", "flagscale"])
def test_a_group_is_never_slower_than_its_families(seed: int, target: str) -> None:
    """Nor is the floor slower than any of them; each family is in one group."""
    estimator, limits = Estimator(*three_pools(seed)), Limits(target=target)
    floor, compared = floor_seconds(estimator), 0
    for _, _, partition, found in searched(targets_of(limits), estimator, limits, one_degree=False):
        groups = grouped(found)
        assert sorted(map(repr, found)) == sorted(
            repr(family) for group in groups for family in group.families
        )
        for group in groups:
            bound = group_bound(group, partition.bounds)
            for own, family in members(group, partition, limits, NO_LIMIT):
                # The ends of those that shard gradients may hide what layers send, and count less.
                assert family.zero >= 2 or bound <= own * (1 + 1e-9)
                assert floor <= own
                compared += bound > 0
    assert compared or target == "flagscale"


@pytest.mark.parametrize("target", ["deepspeed", "megatron", "torch", "flagscale"])
def test_families_below_a_cutoff_are_those_of_groups_below_it(target: str) -> None:
    """In the same order; the others have no lower bound than is said, and none is listed that is above."""
    estimator, limits, row = Estimator(*three_pools(2)), Limits(), TARGETS[target]
    for name, partition in network_partitions(estimator, row).items():
        every = families_of(row, name, partition, limits)
        bound = {
            family: group_bound(group, partition.bounds)
            for group in grouped(every)
            for family in group.families
        }
        values = sorted(value for value in bound.values() if value < inf) or [1.0]
        for cutoff in (0.0, values[len(values) // 2], values[-1], inf):
            below = families_below(row, name, partition, limits, cutoff)
            wanted = [family for family in every if row.dp_per_stage or bound[family] < cutoff]
            assert below.families == (every if cutoff == inf else wanted)
            left = [value for family, value in bound.items() if family not in {*below.families}]
            assert below.least <= min(left, default=inf)
            assert below.least >= cutoff or row.dp_per_stage


@pytest.mark.parametrize(
    "problem", [worlds.with_experts, worlds.with_all_at_once, worlds.with_measurements, worlds.with_odd_nodes]
)
@pytest.mark.parametrize("seed", first(1, range(4)))
def test_parts_of_a_cluster_have_the_bounds_of_clusters_of_their_own(
    problem: Callable[[int], worlds.Problem], seed: int
) -> None:
    """What is known of devices of another part, of other numbers or on other nodes, is never taken for theirs."""
    spec, model, calibration = problem(seed)
    estimator = Estimator(spec, model, calibration)
    for sub in sub_cluster_candidates(spec, model, most=8):
        for row in targets_of(Limits()):
            part, own = (
                tuple(bounds_of(row, each))
                for each in (estimator.part(sub.cluster), Estimator(sub.cluster, model, calibration))
            )
            assert part == own


def bounds_of(row: Capabilities, estimator: Estimator) -> Iterator[tuple[str, float]]:
    """Of the groups of a target and of its data parallelism, those on whole nodes and dealt ones."""
    partitions = {**network_partitions(estimator, row)}
    for nodes in dealt_nodes(row, Limits(), estimator.model, estimator.topology):
        partitions |= dealt_partitions(estimator, row, nodes)
    for name, partition in partitions.items():
        for group in grouped(families_of(row, name, partition, Limits())):
            yield name, group_bound(group, partition.bounds)
        for choice in data_parallel.choices(row, Limits(), partition.estimator):
            replicas = ((each, each.replicas(choice.tp)) for each in partition.device_types)
            yield name, data_parallel.least_seconds(choice, partition.estimator, replicas)


def test_families_of_per_stage_degrees_have_parts_with_the_same() -> None:
    """Each with a bound."""
    estimator = Estimator(cluster(pool("a"), pool("b", "V100")), gpt(global_batch=16))
    limits = Limits(target="flagscale")
    (partition,) = network_partitions(estimator, TARGETS["flagscale"]).values()
    for family in families(TARGETS["flagscale"], limits, estimator.model, partition.device_types):
        parts = of_one_degree(family, partition, limits, NO_LIMIT)
        assert all(part.dp is not None for _, part in parts)
        assert all(0 < own < float("inf") for own, _ in parts)


def test_without_devices_there_is_no_step() -> None:
    """And measured layers may beat any datasheet."""
    estimator = Estimator(cluster(pool("b", "V100")), gpt(precision="bf16"))
    assert floor_seconds(estimator) == float("inf")
    able = Estimator(cluster(pool("a")), gpt())
    assert least_seconds(able, {("a", "A100"): 8}) == pytest.approx(floor_seconds(able))


FAMILY = Family(target="megatron", zero=1, recompute="none", tp=1, dp=2, batch=2, micro_batches=8)


def partition_of(
    depths: dict[int, int], seconds: dict[int, float], own: dict[int, float]
) -> tuple[Any, list[tuple[list[int], list[int], float]]]:
    """A part of a cluster on which families with this ZeRO stage are so deep, as late, and bounded so."""
    asked: list[tuple[list[int], list[int], float]] = []

    def told(families: list[Family], most: list[int], cutoff: float) -> list[float]:
        asked.append(([family.zero for family in families], most, cutoff))
        return [seconds[family.zero] for family in families]

    bounds = SimpleNamespace(late=told, family_bound=lambda family, depth: own[family.zero] + depth)
    made = SimpleNamespace(depths=lambda family, _: tuple(range(1, depths[family.zero] + 1)), bounds=bounds)
    return made, asked


def test_families_that_are_too_late() -> None:
    """Those below the cutoff are looked at, with others of their degrees; none without a cutoff."""
    families = [FAMILY._replace(zero=zero) for zero in range(4)]
    others = [FAMILY._replace(zero=4, tp=2), FAMILY._replace(zero=5, tp=None, dp=None)]
    pairs = [(float(number), family) for number, family in enumerate((*families, *others))]
    part, asked = partition_of(
        dict.fromkeys(range(6), 3), {0: 9.0, 1: 0.0, 2: 7.0, 3: 1.0, 4: 8.0, 5: 99.0}, {}
    )
    assert late(pairs, part, Limits(), inf) == pairs
    assert asked == []
    found = late(pairs, part, Limits(), 3.5)
    assert [bound for bound, _ in found] == [9.0, 1.0, 7.0, 3.0, 4.0, 5.0]
    assert asked == [([0, 1, 2, 3], [3] * 4, 3.5)]
    assert [bound for bound, _ in late(pairs, part, Limits(), 3.0)] == [9.0, 1.0, 7.0, 3.0, 4.0, 5.0]
    assert [bound for bound, _ in late(pairs, part, Limits(), 4.5)][4] == 8.0
    assert asked[-2:] == [([0, 1, 2, 3], [3] * 4, 4.5), ([4], [3], 4.5)]


def test_families_of_a_group_that_may_have_plans() -> None:
    """With a depth, and a bound that is not infinite: the closed form where the quick look knows nothing."""
    group = Group(tuple(FAMILY._replace(zero=zero) for zero in range(4)))
    part, _ = partition_of(
        {0: 3, 1: 2, 2: 0, 3: 1}, {0: 0.0, 1: 6.0, 3: 0.0}, {0: 10.0, 1: 20.0, 2: 30.0, 3: inf}
    )
    found = members(group, part, Limits(), NO_LIMIT, 5.0)
    assert [(bound, family.zero) for bound, family in found] == [(13.0, 0), (6.0, 1)]
    assert [bound for bound, _ in members(group, part, Limits(), NO_LIMIT)] == [13.0, 22.0]
    with pytest.raises(Struck):
        members(group, part, Limits(), Deadline(at=0.0), 5.0)


def test_the_bound_of_a_group_by_hand() -> None:
    """Sixteen sequences, four at once on two replicas: 8 steps of a micro-batch of two, 6 layers each."""
    rates = SimpleNamespace(
        free_rates=lambda family: (
            [FreeRate(3, 2.0, 0.5, 2.0), FreeRate(1, 4.0, 1.0, 1.0)] if family.zero else []
        )
    )
    model = SimpleNamespace(layers=6, training=SimpleNamespace(global_batch=16))
    bounds = cast("Any", SimpleNamespace(rates=rates, estimator=SimpleNamespace(model=model)))
    one = FAMILY._replace(batch=4)
    assert group_bound(Group((one,)), bounds) == pytest.approx((6 + 0.5 + 1) * (16 * 2 // 4) / 10.0)
    # Where there are more devices than that keeps busy, one micro-batch on the fastest.
    assert group_bound(Group((one._replace(batch=16),)), bounds) == pytest.approx(
        max(7.5 * 2 / 10.0, 6 / 4.0)
    )
    assert group_bound(Group((one._replace(zero=0),)), bounds) == inf
    assert group_bound(Group((one._replace(tp=None, dp=None),)), bounds) == 0.0
    assert group_bound(Group((one._replace(dp=None),)), bounds) == 0.0
    alike = [
        one,
        one._replace(zero=3),
        one._replace(dp=4, batch=8),
        one._replace(tp=2),
        one._replace(dp=None),
    ]
    assert [len(group.families) for group in grouped([*alike, one._replace(dp=None, zero=0)])] == [3, 1, 1, 1]
