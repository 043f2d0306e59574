"""Hybrid sharding: a ring in each group of replicas, rings between the groups, and what a plan gains and pays."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED, Calibration, LinkPoint
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, PoolSpec
from planner.cluster.topology import Topology
from planner.cost.binding import binding
from planner.cost.communication import Ring, crossing_rings, data_ring
from planner.cost.estimate import Estimator
from planner.cost.measured_curves import LinkCurves
from planner.cost.sends import Send, likeness, send
from planner.cost.sharding import stage_rings
from planner.cost.values import Estimate
from planner.model.spec import ExpertsSpec
from planner.plan.placement import place_stages
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.worlds import cluster, gpt, pool

SIZE = 1e9


def group(name: str, count: int, tp: int = 1, *, share: int = 8, steps: int = 2) -> ReplicaGroup:
    """Replicas of A100."""
    return ReplicaGroup(
        pool=name, gpu="A100", tp=tp, count=count, local_batch=share, accumulation_steps=steps
    )


def rings_of(
    spec: ClusterSpec,
    *stages: tuple[ReplicaGroup, ...],
    shard_size: int | None,
    calibration: Calibration = ASSUMED,
    curves: LinkCurves | None = None,
) -> tuple[Ring, ...]:
    """The rings of stages that are placed together."""
    placed = place_stages(list(stages), spec)
    return stage_rings(placed, shard_size, Topology(spec), calibration, "torch", curves)


def hybrid(spec: ClusterSpec, *groups: ReplicaGroup, shard_size: int) -> tuple[Ring, Ring]:
    """The ring of a group and that between the groups, of one stage."""
    (ring,) = rings_of(spec, groups, shard_size=shard_size)
    assert ring.copies is not None
    return ring, ring.copies


def plan(
    zero: int, shard_size: int | None, *groups: ReplicaGroup, layers: int = 24, target: str = "torch"
) -> Plan:
    """A plan without a pipeline."""
    stage = Stage(first_layer=0, end_layer=layers, replicas=groups)
    return Plan(target=target, zero=zero, shard_size=shard_size, stages=(stage,))


def four_nodes(**changes: float) -> ClusterSpec:
    """Four nodes of eight on slow Ethernet."""
    return cluster(pool("a", nodes=4, fabric="eth", gbps=changes.get("gbps", 25), cards=1))


def test_groups_that_fill_nodes_shard_inside_them() -> None:
    """Their copies are added up by a ring for each device of a node, which all share its card."""
    spec = four_nodes()
    inside, between = hybrid(spec, group("a", 32), shard_size=8)
    (whole,) = rings_of(spec, (group("a", 32),), shard_size=None)
    assert (inside.size, inside.crosses, between.size, between.crosses) == (8, "node", 4, "eth")
    assert between.sharing == 8
    assert between.bytes_per_second == pytest.approx(whole.bytes_per_second / 8)


def test_adding_up_copies_moves_every_gradient_between_the_nodes_once() -> None:
    """Eight rings with an eighth each take as long as one with everything."""
    spec = four_nodes()
    inside, between = hybrid(spec, group("a", 32), shard_size=8)
    alone = replace(between, bytes_per_second=8 * between.bytes_per_second)
    latency = 2 * between.latency_seconds
    assert inside.copies_seconds(SIZE) - latency == pytest.approx(alone.reduce_seconds(SIZE) - latency)
    assert inside.copies_seconds(SIZE, 12) - 12 * latency == pytest.approx(
        inside.copies_seconds(SIZE) - latency
    )
    assert replace(inside, copies=None).copies_seconds(SIZE) == 0.0


@pytest.mark.parametrize(("ep", "alike"), [(2, 4), (4, 2), (8, 1)])
def test_members_of_a_copy_that_have_the_same_experts_shard_them(ep: int, alike: int) -> None:
    """Within a copy; copies of theirs are added up as all others are."""
    spec = four_nodes()
    (ring,) = stage_rings(
        place_stages([(group("a", 32),)], spec), 8, Topology(spec), ASSUMED, "torch", expert_ways=ep
    )
    (dense,) = rings_of(spec, (group("a", 32),), shard_size=8)
    assert ring.experts is not None
    assert replace(ring, experts=None) == dense
    assert (ring.experts.size, ring.experts.copies) == (alike, dense.copies)
    assert ring.experts.crosses == ("node" if alike > 1 else "device")


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_divided_experts_with_copies(zero: int) -> None:
    """States are sharded over those of a copy that have the same experts, and no traffic but the sums leaves a node."""
    experts = ExpertsSpec(number=8, top_k=2, ffn=1024)
    model = gpt(global_batch=512).model_copy(update={"experts": experts})
    estimator = Estimator(four_nodes(), model)
    whole, halved = (
        estimator.estimate(replace(plan(zero, 8, group("a", 32, share=16)), ep=ep)) for ep in (1, 8)
    )
    one, other = (each.stages[0].groups[0].memory for each in (whole, halved))
    assert one.optimizer_bytes == pytest.approx(other.optimizer_bytes)
    # Whole experts are sharded by eight as well with ZeRO 3; without, each device has an eighth of them now.
    routed = 24 * model.expert_parameters
    gone = 0.0 if zero == 3 else 2 * routed * 7 / 8
    assert one.parameters_bytes - other.parameters_bytes == pytest.approx(gone)
    added = [each.breakdown.gradient_sync_seconds + each.breakdown.hidden_seconds for each in (whole, halved)]
    assert added[1] > 0.0
    if zero == 3:
        # Gathers of experts are gone, sums over the copies are not.
        assert halved.breakdown.zero_seconds < 0.7 * whole.breakdown.zero_seconds


@pytest.mark.parametrize(("shard_size", "leave"), [(2, 2), (4, 4), (8, 8), (16, 8)])
def test_rings_that_leave_a_node_share_its_card(shard_size: int, leave: int) -> None:
    """One for each number that a member on the node has in its group."""
    _, between = hybrid(four_nodes(), group("a", 32), shard_size=shard_size)
    assert between.sharing == leave
    assert between.size == 32 // shard_size


def test_groups_of_several_nodes_have_a_ring_each_over_their_cards() -> None:
    """As fast as a ring over all nodes, with fewer members."""
    spec = four_nodes()
    inside, _ = hybrid(spec, group("a", 32), shard_size=16)
    (whole,) = rings_of(spec, (group("a", 32),), shard_size=None)
    assert (inside.size, inside.crosses) == (16, "eth")
    assert inside.bytes_per_second == pytest.approx(whole.bytes_per_second)


def test_groups_that_straddle_nodes_pay_for_it() -> None:
    """Groups of six on nodes of eight: nodes in the middle serve two groups at once."""
    inside, _ = hybrid(four_nodes(), group("a", 24), shard_size=6)
    assert inside.crosses == "eth"
    assert inside.sharing == 2


def test_the_slowest_group_counts() -> None:
    """One pool has slower links in its nodes, and its place in the order changes nothing."""
    fast, slow = pool("a", nodes=2, fabric="eth"), pool("b", nodes=2, fabric="eth")
    slow = slow.model_copy(update={"intra_node": slow.intra_node.model_copy(update={"bandwidth_gBps": 20.0})})
    spec = cluster(fast, slow)
    alone, _ = hybrid(spec, group("b", 16), shard_size=8)
    for groups in ((group("a", 16), group("b", 16)), (group("b", 16), group("a", 16))):
        inside, between = hybrid(spec, *groups, shard_size=8)
        assert inside.bytes_per_second == alone.bytes_per_second
        assert between.size == 4


def test_pools_that_cannot_talk_have_no_copies() -> None:
    """Each group alone could."""
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"))
    inside, between = hybrid(spec, group("a", 8), group("b", 8), shard_size=8)
    assert not between.connected
    assert not inside.connected


def test_all_rings_between_pools_share_a_gateway() -> None:
    """Eight of them, each with an eighth of what the gateway carries."""
    link = FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=8, latency_us=100)
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"), links=(link,))
    _, between = hybrid(spec, group("a", 8), group("b", 8), shard_size=8)
    (whole,) = rings_of(spec, (group("a", 8), group("b", 8)), shard_size=None)
    assert between.bytes_per_second == pytest.approx(whole.bytes_per_second / 8)


def test_stages_on_the_same_nodes_share_their_cards() -> None:
    """Two stages with a group of four on each of two nodes: eight rings leave each node."""
    spec = cluster(pool("a", fabric="eth", cards=1), pool("b", fabric="eth", cards=1))
    stage = group("a", 4), group("b", 4)
    rings = rings_of(spec, stage, stage, shard_size=4)
    assert [ring.copies and ring.copies.sharing for ring in rings] == [8, 8]


def test_tensor_parallel_replicas_have_a_ring_for_each_device() -> None:
    """Two replicas of four devices a node, groups of two: still eight rings leave it."""
    inside, between = hybrid(four_nodes(), group("a", 8, tp=4), shard_size=2)
    assert (inside.crosses, between.sharing) == ("node", 8)


def test_measured_curves_win_between_copies() -> None:
    """For all the bytes that leave a node at once."""
    points = tuple(
        LinkPoint(link="eth", operation="all-reduce", members=4, size_bytes=size, seconds=size / 1e8)
        for size in (1e6, 1e10)
    )
    calibration = Calibration(link_points=points)
    (ring,) = rings_of(
        four_nodes(),
        (group("a", 32),),
        shard_size=8,
        calibration=calibration,
        curves=LinkCurves(calibration),
    )
    assert ring.copies_seconds(SIZE) == pytest.approx(SIZE / 1e8, rel=1e-3)


@given(
    nodes=st.integers(1, 4),
    per_node=st.sampled_from([1, 2, 4, 8]),
    second=st.booleans(),
    tp=st.sampled_from([1, 2]),
)
@settings(max_examples=60, deadline=None)
def test_one_group_of_all_replicas_is_plain_sharding(
    nodes: int, per_node: int, second: bool, tp: int
) -> None:
    """The same ring, and nothing between copies."""
    tp = min(tp, per_node)
    pools: list[PoolSpec] = [pool("a", nodes=nodes, per_node=per_node, fabric="eth", gbps=100, cards=2)]
    groups = [group("a", nodes * per_node // tp, tp)]
    if second:
        pools.append(pool("b", nodes=2, per_node=2, fabric="eth", gbps=10, cards=1))
        groups.append(group("b", 4 // tp, tp))
    spec, stage = cluster(*pools), tuple(groups)
    (plain,) = rings_of(spec, stage, shard_size=None)
    (one,) = rings_of(spec, stage, shard_size=sum(item.count for item in groups))
    assert replace(one, copies=None) == plain
    assert one.copies is not None
    assert one.copies_seconds(SIZE) == 0.0


def estimates(zero: int, sizes: tuple[int | None, ...], spec: ClusterSpec) -> list[Estimate]:
    """One plan on four nodes by the size of its groups."""
    estimator = Estimator(spec, gpt(hidden=4096, heads=32, global_batch=256))
    return [estimator.estimate(plan(zero, size, group("a", 32))) for size in sizes]


@given(
    zero=st.sampled_from([1, 2, 3]),
    hidden=st.sampled_from([512, 2048]),
    layers=st.integers(1, 12),
    precision=st.sampled_from(["fp16", "fp32"]),
    optimizer=st.sampled_from(["adamw", "sgd"]),
)
@settings(max_examples=40, deadline=None)
def test_smaller_groups_need_more_memory(
    zero: int, hidden: int, layers: int, precision: str, optimizer: str
) -> None:
    """The states of a copy over fewer devices; what is not sharded stays."""
    model = gpt(layers, hidden, 8, global_batch=256, precision=precision, optimizer=optimizer)
    estimator = Estimator(four_nodes(), model)
    found = [
        estimator.estimate(plan(zero, size, group("a", 32), layers=layers)).stages[0].groups[0].memory
        for size in (None, 16, 8, 4, 2)
    ]
    used = [memory.used_bytes for memory in found]
    assert used == sorted(used)
    sizes = (32, 16, 8, 4, 2)
    states = [memory.optimizer_bytes * size for memory, size in zip(found, sizes, strict=True)]
    assert states == pytest.approx([states[0]] * len(sizes))
    assert len({memory.activations_bytes for memory in found}) == 1


@pytest.mark.parametrize("zero", [2, 3])
def test_groups_in_nodes_save_what_travels_in_every_micro_batch(zero: int) -> None:
    """On a slow network nearly all of it, at the price of one all-reduce a step."""
    plain, grouped = estimates(zero, (None, 8), four_nodes())
    assert grouped.breakdown.zero_seconds < 0.02 * plain.breakdown.zero_seconds
    assert grouped.breakdown.gradient_sync_seconds > plain.breakdown.gradient_sync_seconds
    assert grouped.step_seconds < plain.step_seconds
    assert (grouped.stages[0].crosses, grouped.stages[0].copies_cross) == ("node", "eth")
    assert (plain.stages[0].crosses, plain.stages[0].copies_cross) == ("eth", "")


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_causes_add_up_to_the_step(zero: int) -> None:
    """Adding up copies is gradient synchronisation; a faster network shortens it alone."""
    slow, fast = (estimates(zero, (8,), four_nodes(gbps=gbps))[0] for gbps in (25, 100))
    for found in (slow, fast):
        causes = found.breakdown
        exposed = causes.compute_seconds + causes.zero_seconds + causes.gradient_sync_seconds
        assert exposed + causes.optimizer_seconds == pytest.approx(found.step_seconds)
    gained = slow.breakdown.gradient_sync_seconds - fast.breakdown.gradient_sync_seconds
    assert slow.step_seconds - fast.step_seconds == pytest.approx(gained)
    assert gained > 0


def test_a_pipeline_in_groups() -> None:
    """Each stage has its own groups and copies; its devices hold more, and nothing travels in a micro-batch."""
    spec, model = four_nodes(), gpt(hidden=4096, heads=32, global_batch=64)
    halves = (
        Stage(first_layer=0, end_layer=12, replicas=(group("a", 16, share=4, steps=4),)),
        Stage(first_layer=12, end_layer=24, replicas=(group("a", 16, share=4, steps=4),)),
    )
    plain = Plan(target="torch", zero=3, stages=halves)
    estimator = Estimator(spec, model)
    whole, grouped = (estimator.estimate(replace(plain, shard_size=size)) for size in (None, 8))
    assert grouped.step_seconds < whole.step_seconds
    assert [stage.copies_cross for stage in grouped.stages] == ["eth", "eth"]
    for before, after in zip(whole.stages, grouped.stages, strict=True):
        assert after.groups[0].memory.used_bytes > before.groups[0].memory.used_bytes


def test_the_links_that_bind_are_those_of_the_copies() -> None:
    """Gradients wait for the network between groups, gathers for the links inside them."""
    model = gpt(hidden=4096, heads=32, global_batch=256)
    links = binding(plan(3, 8, group("a", 32)), Estimator(four_nodes(), model)).links
    assert [(link.traffic, link.path) for link in links] == [("gradients", "eth"), ("ZeRO gathers", "node")]


def test_the_optimizer_updates_a_part_of_the_group() -> None:
    """Half the group, twice the elements."""
    large, small = (found.breakdown.optimizer_seconds for found in estimates(1, (16, 4), four_nodes()))
    assert small > 3 * large


def test_the_replica_that_ends_last_counts() -> None:
    """More work never makes a step shorter, though it hides more of what adds up the copies."""
    estimator = Estimator(four_nodes(gbps=5), gpt(hidden=1024, heads=16, global_batch=512))
    before = 0.0
    for more in range(0, 120, 8):
        groups = group("a", 16, share=16 + more, steps=1), group("a", 16, share=16, steps=1)
        step = estimator.estimate(plan(3, 8, *groups)).step_seconds
        assert step >= before
        before = step


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, 4, 8]), st.integers(1, 12)),
        min_size=2,
        max_size=6,
    )
)
@settings(deadline=None)
def test_stages_that_stand_alike_have_equal_rings_and_sends(wanted: list[tuple[str, int, int]]) -> None:
    """Each is priced once for all of them."""
    spec = cluster(pool("a", nodes=80, cards=2), pool("b", nodes=80))
    topology, stages = Topology(spec), [(group(name, count, tp),) for name, tp, count in wanted]
    placed = place_stages(stages, spec)
    load = crossing_rings(placed)
    for slots, ring in zip(placed, stage_rings(placed, None, topology, ASSUMED, "torch"), strict=True):
        assert ring == data_ring(slots, load, topology, ASSUMED, "torch")
    found: dict[object, Send] = {}
    for first, last in pairwise(placed):
        sent = send(first, last, SIZE, topology, ASSUMED)
        assert found.setdefault(likeness(first, last), sent) == sent
