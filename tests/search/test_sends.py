"""What a stage sends at least."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from planner.calibration.values import Calibration, LinkPoint
from planner.cluster.spec import PoolSpec
from planner.cost.communication import Ring, data_ring
from planner.cost.estimate import Estimator
from planner.plan.placement import Slot, one_replica
from planner.search.space.choices import Choice, Family
from planner.search.space.rings import divided_ring
from planner.search.space.sends import Hops
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from tests.worlds import cluster, gpt, group, pool


def options(estimator: Estimator) -> StageOptions:
    """All stages of one FlagScale choice."""
    family = Family(target="flagscale", zero=1, recompute=None, tp=None, dp=None, batch=8, micro_batches=8)
    return StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits())


def of(stages: StageOptions, devices: int) -> Hops:
    """Least sends of the stage of so many replicas of one device."""
    for groups, hops in zip(stages.compositions, stages.hops, strict=True):
        if (groups[0].tp, groups[0].count) == (1, devices):
            return hops
    raise AssertionError(devices)


def test_a_stage_that_fills_its_node_sends_to_other_nodes() -> None:
    """Both ways in the middle; a smaller one has neighbours on its node, one or two of them."""
    stages = options(
        Estimator(cluster(pool("p", nodes=4, per_node=4, cards=1, gbps=10)), gpt(global_batch=64))
    )
    full, part, single = (of(stages, devices) for devices in (4, 2, 1))
    assert full.inner_seconds >= 2 * full.outer_seconds
    assert part.outer_seconds < full.outer_seconds / 10
    assert part.inner_seconds < full.inner_seconds / 10
    assert single.inner_seconds < full.inner_seconds / 10


def test_half_a_node_leaves_room_for_one_neighbour() -> None:
    """Where all stages are that large, the other one is on another node, so that one send is dear."""
    estimator = Estimator(cluster(pool("p", nodes=4, cards=1, gbps=10)), gpt(global_batch=64))
    family = Family(target="megatron", zero=1, recompute="none", tp=1, dp=4, batch=4, micro_batches=16)
    (half,) = StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits()).hops
    assert half.inner_seconds > 10 * half.outer_seconds


def test_many_compositions_send_nothing() -> None:
    """Twelve device types mix in more ways than there is time for: the bound of their sends is nothing at all."""
    pools = [pool(f"p{index}", nodes=2, per_node=index + 1) for index in range(12)]
    estimator = Estimator(cluster(*pools), gpt(global_batch=64))
    family = Family(target="megatron", zero=1, recompute="none", tp=1, dp=8, batch=8, micro_batches=8)
    stages = StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits())
    assert not stages.few_pairs
    assert set(stages.hops) == {Hops(inner_seconds=0.0, outer_seconds=0.0)}


def test_no_pair_of_stages_sends_less() -> None:
    """The least of the first and the last stage is that of some pair."""
    stages = options(Estimator(cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt()))
    everyone = range(len(stages.compositions))
    for own in everyone:
        pairs = [stages.sends(*pair) for other in everyone for pair in ((own, other), (other, own))]
        least = min(min(item.near_seconds, item.far_seconds) for item in pairs)
        assert stages.hops[own].outer_seconds == pytest.approx(least)


@pytest.mark.parametrize(
    "pools",
    [
        (pool("a", nodes=3, per_node=4, cards=1, gbps=10),),
        (pool("a", nodes=2, per_node=2, gbps=25), pool("b", "V100", nodes=1, per_node=4, cards=1)),
        (pool("a", nodes=2, per_node=3, cards=1, gbps=40), pool("b", "V100", nodes=2, per_node=1, gbps=5)),
    ],
    ids=["one type", "a node of its own", "odd nodes"],
)
def test_the_least_of_all_neighbours_that_there_is_room_for(pools: tuple[PoolSpec, ...]) -> None:
    """Every neighbour on either side, on the same node and on another: one of the same type needs room on the node."""
    estimator = Estimator(cluster(*pools), gpt(global_batch=16))
    stages = options(estimator)
    times = stages.pricer.sent_at_least(1, 3, 1)
    down, up = times.forward_to_next, times.before
    kinds = [{(group.pool, group.gpu) for group in groups} for groups in stages.compositions]
    everyone, compared = range(len(kinds)), 0
    for own, groups in enumerate(stages.compositions):
        device_type = estimator.topology.device_type(groups[0].pool, groups[0].gpu)
        alike = [kinds[other] == kinds[own] for other in everyone]
        smallest = min(stages.compositions[other][0].devices for other in everyone if alike[other])
        spare = max(0, device_type.per_node - groups[0].devices)
        room = spare // smallest if device_type.nodes > 1 else 2
        to_next = [stages.sends(own, other) for other in everyone]
        from_before = [stages.sends(other, own) for other in everyone]
        # (seconds, whether it stands in the node's room)
        after, before = (
            [
                (seconds, same and near)
                for same, pair in zip(alike, pairs, strict=True)
                for near, seconds in ((True, pair.near_seconds), (False, pair.far_seconds))
            ]
            for pairs in (to_next, from_before)
        )
        far_after, far_before = (min(pair.far_seconds for pair in pairs) for pairs in (to_next, from_before))
        least_after, least_before = min(after)[0], min(before)[0]
        both = [down * x + up * y for x, one in after for y, two in before if one + two <= room]
        ends = [down * x for x, one in after if one <= room] + [up * y for y, two in before if two <= room]
        hops = stages.hops[own]
        assert hops.inner_seconds == pytest.approx(min(both))
        assert hops.outer_seconds == pytest.approx(min(ends))
        # Borders are of stages on other nodes, whatever the room.
        assert hops.borders.each == pytest.approx(
            (
                down * far_after + up * least_before,
                down * least_after + up * far_before,
                down * far_after + up * far_before,
                down * far_after,
                up * far_before,
            )
        )
        compared += 1
    assert compared > 3


def test_the_ring_of_stages_on_what_others_leave() -> None:
    """Two replicas on two nodes have one ring; three are apart, or two of them together."""
    estimator = Estimator(cluster(pool("p", nodes=3, per_node=3, cards=1, gbps=10)), gpt())
    kernels = estimator.pricer("megatron").kernels
    bare = one_replica(group("p", "A100"))

    def ring(*slots: Slot, seen: Estimator = estimator) -> Ring:
        return data_ring(list(slots), {}, seen.topology, seen.calibration, kernels)

    apart = ring(bare._replace(nodes=2))
    assert divided_ring(group("p", "A100", count=2), estimator, kernels) == apart
    each = (
        ring(bare._replace(nodes=3)),
        ring(bare._replace(replicas_per_node=2), bare._replace(first_node=1, replicas_per_node=1)),
    )
    found = divided_ring(group("p", "A100", count=3), estimator, kernels)
    assert found.bytes_per_second == max(one.bytes_per_second for one in each) < float("inf")
    assert found.latency_seconds == min(one.latency_seconds for one in each) > 0
    assert found.around_seconds == min(one.around_seconds or 0.0 for one in each)
    points = tuple(
        LinkPoint(link=link, operation="all-gather", members=2, size_bytes=1e6, seconds=seconds)
        for link, seconds in (("ib", 0.25), ("node:A100", 1e-4))
    )
    measured = Estimator(estimator.cluster, gpt(), Calibration(link_points=points))
    slow = divided_ring(group("p", "A100", count=2), measured, kernels)
    assert slow.bytes_per_second == pytest.approx(2e6)
    assert slow.latency_seconds == 0.0


def megatron(estimator: Estimator, dp: int, depth: int) -> StageOptions:
    """All stages of so many replicas of one device."""
    family = Family(target="megatron", zero=1, recompute="none", tp=1, dp=dp, batch=dp, micro_batches=8)
    return StageOptions(Choice(family=family, depth=depth, interleave=1), estimator, Limits())


def test_replicas_that_leave_a_node_share_its_card() -> None:
    """Of four on a node two at least, where six devices are one; all to another pool; one among stages so divided."""
    pools = (
        pool("p", nodes=5, per_node=6, cards=1, gbps=10),
        pool("q", "V100", nodes=2, per_node=4, gbps=10, cards=1),
    )
    stages = megatron(Estimator(cluster(*pools), gpt(16, 2048, 16, global_batch=64)), 4, 9)
    names = [tuple(each.pool for each in groups) for groups in stages.compositions]
    whole, other = names.index(("p",)), names.index(("q",))
    (divided,) = stages.divided
    assert (stages.divided[divided], stages.most_stages(divided)) == (5, 2)
    pairs = [
        (whole, whole),
        (whole, divided),
        (divided, whole),
        (other, divided),
        (divided, other),
        (divided, divided),
    ]
    seconds = [stages.sends(*pair) for pair in pairs]
    assert {each.near_seconds for each in seconds} == {inf}
    assert [each.far_seconds / seconds[0].far_seconds for each in seconds] == pytest.approx(
        [1, 1 / 2, 1 / 2, 1, 1, 1 / 4], rel=0.02
    )


@pytest.mark.parametrize(
    ("nodes", "per_node", "dp", "behind"),
    [
        # The stages on one device of each node: the first of them does not reach the last node, on which the last of
        # those on one node stands, but where there are two nodes.
        (4, 5, 2, 1.0),
        (2, 5, 2, 0.5),
        (3, 7, 3, 0.67),
        (4, 7, 3, 1.0),
        (5, 6, 4, 1.0),
        # One such stage, the last, which sends to the first on one of its nodes where these have two chunks each.
        (5, 5, 4, 1.0),
    ],
)
@pytest.mark.parametrize("interleave", [1, 2])
def test_sends_to_what_is_left_of_nodes_of_one_kind(
    nodes: int, per_node: int, dp: int, behind: float, interleave: int
) -> None:
    """No less than the plan's own, and all replicas send over one card where they stand on other nodes."""
    estimator = Estimator(
        cluster(pool("p", nodes=nodes, per_node=per_node, cards=1, gbps=10)),
        gpt(64, 2048, 16, global_batch=96),
    )
    depth = nodes * per_node // dp
    family = Family(
        target="megatron", zero=1, recompute="none", tp=1, dp=dp, batch=dp, micro_batches=96 // dp
    )
    stages = StageOptions(Choice(family=family, depth=depth, interleave=interleave), estimator, Limits())
    ((divided, whole),) = stages.divided.items()
    slots = [0] * whole + [divided] * (depth - whole)
    plan = stages.plan([stages.option(stage, slot, 2) for stage, slot in enumerate(slots)])
    sent = [each.seconds for each in estimator.price(plan).sends]
    for stage, pair in enumerate(pairwise(slots)):
        assert stages.sends(*pair).least_seconds <= sent[stage] * (1 + 1e-9)
    # From the last stage to the first, which may have a node in common.
    if interleave > 1:
        assert stages.sends(divided, 0).least_seconds <= sent[-1] * (1 + 1e-9)
    far = stages.sends(0, 0).far_seconds
    assert stages.sends(0, divided).least_seconds / far == pytest.approx(behind, rel=0.05)


@pytest.mark.parametrize("pools", [2, 3, 4])
def test_mixed_stages_are_few(pools: int) -> None:
    """Of two device types one is mixed, which has no such neighbour; of three types one of two, of four both."""
    kinds = [pool(name, nodes=3, per_node=3, cards=1, gbps=10) for name in "abcd"[:pools]]
    stages = megatron(Estimator(cluster(*kinds), gpt(16, 2048, 16, global_batch=64)), 2, 8)
    assert stages.most_mixed == pools - 1
    mixed = [number for number in range(len(stages.compositions)) if stages.is_mixed(number)]
    assert mixed
    times = stages.pricer.sent_at_least(1, 3, 1)
    for own in mixed:
        least = [
            min(stages.sends(*pair).least_seconds for pair in pairs)
            for others in (mixed, sorted({*range(len(stages.compositions))} - {*mixed}))
            for pairs in ([(own, other) for other in others], [(other, own) for other in others])
        ]
        (near_after, near_before), (after, before) = least[:2], least[2:]
        ways = [(after, before), (min(after, near_after), before), (after, min(before, near_before))]
        ways.append((min(after, near_after), min(before, near_before)))
        allowed = [
            times.forward_to_next * one + times.before * two for one, two in ways[: (1, 3, 4)[pools - 2]]
        ]
        assert stages.hops[own].inner_seconds == pytest.approx(min(allowed))
        assert min(near_after, near_before) < after / 4
