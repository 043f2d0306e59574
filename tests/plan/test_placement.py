"""Placement: every rank has a device of its own, and a replica stays on its node."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec, FabricSpec, NicSpec, PoolSpec
from planner.errors import PlanError
from planner.plan.placement import Rank, agents, place, place_stages, ranks, split_nodes
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests import worlds

KINDS = ("A", "B")


def cluster(*pools: tuple[str, int]) -> ClusterSpec:
    """Pools of (device letters of a node, nodes)."""
    return ClusterSpec(
        name="c",
        gpus={
            device_type: GpuSpec(name=device_type, memory_gib=1, memory_bandwidth_gBps=1, tflops={"fp16": 1})
            for device_type in KINDS
        },
        pools=tuple(
            PoolSpec(
                name=f"p{index}",
                devices=tuple(devices),
                hosts=tuple(f"p{index}-{node}" for node in range(nodes)),
                intra_node=IntraNodeSpec(bandwidth_gBps=1),
            )
            for index, (devices, nodes) in enumerate(pools)
        ),
    )


def group(pool: str, gpu: str, tp: int, count: int) -> ReplicaGroup:
    """Replicas that take one sequence each."""
    return ReplicaGroup(pool=pool, gpu=gpu, tp=tp, count=count, local_batch=1, accumulation_steps=1)


def plan(*stages: tuple[ReplicaGroup, ...]) -> Plan:
    """One layer a stage."""
    found = tuple(
        Stage(first_layer=index, end_layer=index + 1, replicas=groups) for index, groups in enumerate(stages)
    )
    return Plan(target="flagscale", zero=0, stages=found)


@st.composite
def pool_shapes(draw: st.DrawFn) -> tuple[str, int]:
    """A node of up to 8 devices of two device types, and how many of them."""
    return "".join(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8))), draw(st.integers(1, 4))


@st.composite
def problems(draw: st.DrawFn) -> tuple[ClusterSpec, Plan]:
    """A cluster and a plan that may be too large for it; replicas of 1, 2 or 4 devices."""
    shapes = draw(st.lists(pool_shapes(), min_size=1, max_size=3))
    width = draw(st.integers(1, 6))
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        counts = [width] if width == 1 or draw(st.booleans()) else [1, width - 1]
        pools = st.sampled_from([f"p{index}" for index in range(len(shapes))])
        parts = (
            group(draw(pools), draw(st.sampled_from(KINDS)), draw(st.sampled_from([1, 2, 4])), count)
            for count in counts
        )
        stages.append(tuple(parts))
    return cluster(*shapes), plan(*stages)


def placed(spec: ClusterSpec, wanted: Plan) -> tuple[Rank, ...]:
    """The ranks of a plan that can be placed; other plans do not count."""
    try:
        return ranks(wanted, spec)
    except PlanError:
        reject()


@given(problems())
def test_no_device_twice_and_replicas_in_a_node_or_filling_nodes(problem: tuple[ClusterSpec, Plan]) -> None:
    """Every rank runs on a device of its kind, in rank order."""
    spec, wanted = problem
    found = placed(spec, wanted)
    assert [rank.rank for rank in found] == list(range(wanted.devices))
    assert len({(rank.host, rank.device) for rank in found}) == len(found)
    pools = {pool.name: pool for pool in spec.pools}
    homes: dict[tuple[int, int], set[str]] = {}
    spans: dict[tuple[int, int], int] = {}
    for rank in found:
        assert pools[rank.pool].devices[rank.device] == rank.gpu
        assert rank.host in pools[rank.pool].hosts
        part = wanted.stages[rank.stage].replicas[rank.group]
        assert (part.pool, part.gpu) == (rank.pool, rank.gpu)
        homes.setdefault((rank.stage, rank.replica), set()).add(rank.host)
        spans[rank.stage, rank.replica] = max(1, part.tp // pools[rank.pool].devices.count(rank.gpu))
    assert all(len(hosts) == spans[key] for key, hosts in homes.items())
    for number, stage in enumerate(wanted.stages):
        sizes = Counter(rank.group for rank in found if rank.stage == number)
        assert sizes == {index: part.devices for index, part in enumerate(stage.replicas)}


@given(st.integers(1, 8), st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 45))
def test_one_group_is_placed_exactly_when_nodes_have_room(
    devices: int, nodes: int, tp: int, count: int
) -> None:
    """Whatever does not fill a node gets one of its own; what a node does not hold fills several."""
    spec, wanted = cluster(("A" * devices, nodes)), plan((group("p0", "A", tp, count),))
    room = nodes * (devices // tp) if tp <= devices or tp % devices else nodes // (tp // devices)
    if count <= room:
        assert sum(slot.replicas * slot.tp for slot in place(wanted, spec)[0]) == count * tp
    else:
        with pytest.raises(PlanError):
            place(wanted, spec)


@given(problems())
def test_agents_cover_the_ranks_in_order(problem: tuple[ClusterSpec, Plan]) -> None:
    """Each rank belongs to one launcher; neighbours on one node share it."""
    spec, wanted = problem
    found = placed(spec, wanted)
    launchers = agents(found)
    assert [agent.first_rank for agent in launchers] == [
        sum(len(other.devices) for other in launchers[:index]) for index in range(len(launchers))
    ]
    flat = [(agent.host, device) for agent in launchers for device in agent.devices]
    assert flat == [(rank.host, rank.device) for rank in found]
    assert all(one.host != other.host for one, other in itertools.pairwise(launchers))


@given(problems())
def test_split_nodes_are_those_with_several_launchers(problem: tuple[ClusterSpec, Plan]) -> None:
    """Each with the stage that comes back to it."""
    spec, wanted = problem
    found = placed(spec, wanted)
    stages: dict[str, list[int]] = {}
    for agent in agents(found):
        stages.setdefault(agent.host, []).append(found[agent.first_rank].stage)
    hosts = {pool.name: pool.hosts for pool in spec.pools}
    split = split_nodes(place(wanted, spec)).items()
    assert {hosts[pool][number]: stage for (pool, number), stage in split} == {
        host: begun[1] for host, begun in stages.items() if len(begun) > 1
    }


def test_the_order_of_pools_does_not_matter() -> None:
    """Hosts are found by name."""
    spec = cluster(("AAAA", 2), ("BB", 1))
    turned = spec.model_copy(update={"pools": spec.pools[::-1]})
    wanted = plan((group("p0", "A", 2, 2), group("p1", "B", 1, 2)), (group("p0", "A", 1, 4),))
    assert ranks(wanted, spec) == ranks(wanted, turned)


def test_the_only_node_is_not_given_twice() -> None:
    """A group that fills it leaves nothing for its remainder."""
    with pytest.raises(PlanError, match="no node is left"):
        place(plan((group("p0", "A", 1, 5),)), cluster(("AAAA", 1)))


def test_whole_nodes_stay_compact() -> None:
    """512 nodes are one slot."""
    spec = cluster(("AAAAAAAA", 512))
    (slots,) = place(plan((group("p0", "A", 8, 512),)), spec)
    assert [(slot.first_node, slot.nodes, slot.replicas) for slot in slots] == [(0, 512, 512)]


def test_a_small_stage_fills_the_gap_of_a_larger() -> None:
    """The fullest node that still holds it."""
    spec = cluster(("AAAA", 2))
    first, last = place(plan((group("p0", "A", 2, 1),), (group("p0", "A", 1, 1),)), spec)
    assert (first[0].first_node, last[0].first_node, last[0].first_device) == (0, 0, 2)


def test_mixed_nodes_keep_their_device_numbers() -> None:
    """The second kind starts where its devices are."""
    found = ranks(plan((group("p0", "B", 2, 1),)), cluster(("ABAB", 1)))
    assert [rank.device for rank in found] == [1, 3]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (group("p0", "A", 1, 9), "pool p0: no node is left for 1 devices A"),
        (group("p0", "A", 6, 1), "pool p0: a node has 4 A, tp 6 needs more and fills no whole nodes"),
        (group("p0", "B", 1, 1), "no B in a pool named p0"),
        (group("x", "A", 1, 1), "no A in a pool named x"),
    ],
)
def test_what_the_cluster_lacks(wanted: ReplicaGroup, message: str) -> None:
    """Two nodes of four cannot hold it."""
    with pytest.raises(PlanError, match=message):
        place(plan((wanted,)), cluster(("AAAA", 2)))


def test_a_pipeline_comes_back_to_a_node_with_room() -> None:
    """Once no node is untouched; before that every run of stages has a node of its own."""
    spec = cluster(("AAAA", 2), ("AAAA", 1))
    placed = place_stages([[group(name, "A", 1, 1)] for name in ("p0", "p1", "p0", "p1", "p0")], spec)
    nodes = [(slots[0].pool, slots[0].first_node, slots[0].first_device) for slots in placed]
    assert nodes == [("p0", 0, 0), ("p1", 0, 0), ("p0", 1, 0), ("p1", 0, 1), ("p0", 0, 1)]


WIDE, NARROW = {"eth": 100.0, "ib": 10.0}, {"eth": 10.0, "ib": 100.0}


@pytest.mark.parametrize(
    ("target", "count", "cards", "nodes"),
    [
        ("deepspeed", 1, WIDE, [0, 0, 0]),
        ("deepspeed", 2, WIDE, [0, 0, 0]),
        ("deepspeed", 3, WIDE, [0, 0, 1]),
        ("deepspeed", 1, NARROW, [0, 0, 1]),
        ("deepspeed", 1, {"eth": 10.0}, [0, 0, 1]),
        ("megatron", 1, WIDE, [0, 0, 1]),
        ("flagscale", 1, WIDE, [0, 0, 1]),
    ],
)
def test_a_second_node_that_would_cost_rdma_is_left_alone(
    target: str, count: int, cards: dict[str, float], nodes: list[int]
) -> None:
    """Where the first has room, one network serves all ranks, and a node may be started twice."""
    here, there = (
        worlds.pool(
            name,
            ("A100",) * 4,
            number,
            tuple(NicSpec(fabric=fabric, bandwidth_gbps=rate) for fabric, rate in own.items()),
        )
        for name, number, own in (("here", 1, {"eth": 1.0, "ib": 200.0}), ("there", 2, cards))
    )
    stages = [(worlds.group(name, "A100", count=count),) for name in ("there", "here", "there")]
    placed = place(worlds.plan(target, 0, [1, 1, 1], stages), worlds.cluster(here, there))
    assert [slots[0].first_node for slots in placed] == nodes


@pytest.mark.parametrize(("nodes", "rests"), [(4, [2, 3]), (3, [2, 2])])
def test_rests_take_untouched_nodes_until_these_are_too_few(nodes: int, rests: list[int]) -> None:
    """Then they share: two rests of three on one node of six."""
    placed = place_stages([[group("p0", "A", 1, 9)]] * 2, cluster(("AAAAAA", nodes)))
    assert [slots[1].first_node for slots in placed] == rests


def test_rests_fill_gaps_first_where_nodes_are_too_few() -> None:
    """The first rest leaves the untouched node to the second, which fits nowhere else."""
    stages = [[group("p0", "A", 1, 2)], [group("p0", "A", 1, 8)], [group("p0", "A", 1, 11)]]
    placed = place_stages(stages, cluster(("AAAAAA", 4)))
    assert [[slot.first_node for slot in slots] for slots in placed] == [[2], [0, 2], [1, 3]]


def test_what_no_node_has_room_for_is_divided() -> None:
    """Three stages of two on two nodes of three: the last stands on what the others leave, if that is wanted."""
    stages, spec = [[group("p0", "A", 1, 2)]] * 3, cluster(("AAA", 2))
    placed = place_stages(stages, spec)
    nodes = [[(slot.first_node, slot.first_device, slot.replicas) for slot in slots] for slots in placed]
    assert nodes == [[(0, 0, 2)], [(1, 0, 2)], [(0, 2, 1), (1, 2, 1)]]
    with pytest.raises(PlanError, match="no node is left for 2 devices"):
        place_stages(stages, spec, whole=True)


def test_rests_of_one_stage_stay_together() -> None:
    """Groups that differ only in their share of the batch."""
    (slots,) = place_stages([[group("p0", "A", 1, 2), group("p0", "A", 1, 1)]], cluster(("AAAA", 2)))
    assert [slot.first_node for slot in slots] == [0, 0]


@pytest.mark.parametrize("before", [("A", 1), ("B", 1), ("A", 2), ("B", 2)])
def test_rests_of_several_device_types_come_to_one_node(before: tuple[str, int]) -> None:
    """An untouched node has room for all of them, whichever type has begun another."""
    gpu, count = before
    mixed = [group("p0", "A", 1, 1), group("p0", "B", 1, 1)]
    _, slots = place_stages([[group("p0", gpu, 1, count)], mixed], cluster(("AABB", 3)))
    assert [slot.first_node for slot in slots] == [1, 1]


@pytest.mark.parametrize(
    ("target", "wide", "nodes"),
    [("deepspeed", 100, (0, 0, 0)), ("megatron", 100, (0, 0, 1)), ("deepspeed", 10, (0, 0, 1))],
)
def test_one_network_for_all_keeps_off_nodes_that_have_ethernet_between_them(
    target: str, wide: float, nodes: tuple[int, ...]
) -> None:
    """Where Ethernet carries more between its two nodes, one of them with the other pool has RDMA alone; a runtime with
    a network for each group, or with RDMA between them, has the next stage on the next node."""
    spec = cluster(("AA", 1), ("BB", 2))
    pools = tuple(
        pool.model_copy(
            update={
                "nics": tuple(
                    NicSpec(fabric=fabric, bandwidth_gbps=rate)
                    for fabric, rate in zip(("ib", "eth"), rates, strict=True)
                )
            }
        )
        for pool, rates in zip(spec.pools, ((200, 10), (15, wide)), strict=True)
    )
    fabrics = {"ib": FabricSpec(kind="infiniband"), "eth": FabricSpec(kind="ethernet")}
    on = spec.model_copy(update={"pools": pools, "fabrics": fabrics})
    stages = [(group(pool, gpu, 1, 1),) for pool, gpu in (("p1", "B"), ("p0", "A"), ("p1", "B"))]
    found = place(replace(plan(*stages), target=target), on)
    assert tuple(slot.first_node for (slot,) in found) == nodes
