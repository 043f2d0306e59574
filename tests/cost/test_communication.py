"""Collectives and sends: ring formulas, shared NICs, gateways, the slow link that everything waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import pytest

from planner.calibration.file import shipped
from planner.calibration.values import (
    ASSUMED,
    ASSUMED_FAMILY,
    ASSUMED_LINK,
    Calibration,
    Framework,
    GpuFamily,
    Link,
    LinkPoint,
)
from planner.catalog import IntraNodeSpec, link
from planner.cluster.multi_node import widened
from planner.cluster.spec import ClusterSpec, FabricLinkSpec
from planner.cluster.topology import Topology
from planner.cost import communication
from planner.cost.communication import (
    Ring,
    all_to_all_seconds,
    carried_rates,
    crossing_rings,
    data_ring,
    inside_rate,
    tensor_ring,
)
from planner.cost.measured_curves import LinkCurves
from planner.cost.sends import Send, least_send, send
from planner.plan.placement import Placement, Slot, place_stages
from planner.plan.values import ReplicaGroup
from tests.worlds import cluster, nic, pool

WIRE = ASSUMED_LINK.efficiency
INSIDE = ASSUMED_FAMILY.link_efficiency


def group(name: str, count: int, tp: int = 1, gpu: str = "A100") -> ReplicaGroup:
    """Replicas with one micro-batch each."""
    return ReplicaGroup(pool=name, gpu=gpu, tp=tp, count=count, local_batch=1, accumulation_steps=1)


def ring_of(
    spec: ClusterSpec,
    *groups: ReplicaGroup,
    calibration: Calibration = ASSUMED,
    curves: LinkCurves | None = None,
) -> Ring:
    """The ring of a stage alone on a cluster."""
    (slots,) = place_stages([groups], spec)
    return data_ring(slots, {}, Topology(spec), calibration, "megatron", curves)


def test_a_ring_moves_its_share_over_the_narrowest_hop() -> None:
    """(n-1)/n of the data plus the latency of a pass; both twice for an all-reduce."""
    ring = Ring(size=8, bytes_per_second=1e9, latency_seconds=1e-5, crosses="node")
    assert ring.reduce_seconds(8e9) == pytest.approx(2 * (7 / 8 * 8 + 1e-5))
    assert ring.gather_seconds(8e9) == pytest.approx(7 / 8 * 8 + 1e-5)
    assert Ring(size=1, bytes_per_second=1.0, latency_seconds=1.0, crosses="device").reduce_seconds(1e9) == 0


def test_a_stage_inside_a_node_does_not_use_the_nics() -> None:
    """Eight devices of one node talk over NVLink, sixteen over the fabric."""
    spec = cluster(pool("p", nodes=4, cards=1))
    assert ring_of(spec, group("p", 8)).crosses == "node"
    wide = ring_of(spec, group("p", 16))
    assert wide.crosses == "ib"
    assert wide.bytes_per_second == pytest.approx(25e9 * WIRE)


def test_tensor_parallel_ranks_share_the_nics_of_their_node() -> None:
    """Eight rings that leave a node together have an eighth of its NICs each."""
    spec = cluster(pool("p", nodes=4, cards=1))
    assert ring_of(spec, group("p", 2, tp=8)).bytes_per_second == pytest.approx(25e9 / 8 * WIRE)


def test_stages_on_one_node_share_its_nics() -> None:
    """Two mixed stages whose rings leave the same node halve what each has."""
    spec = cluster(pool("a", nodes=1), pool("b", nodes=2, per_node=4))
    placed = place_stages([[group("a", 4), group("b", 4)], [group("a", 4), group("b", 4)]], spec)
    load = crossing_rings(placed)
    assert load["a", 0] == 2
    shared = data_ring(placed[0], load, Topology(spec), ASSUMED, "megatron")
    alone = data_ring(placed[0], {}, Topology(spec), ASSUMED, "megatron")
    assert shared.bytes_per_second == pytest.approx(alone.bytes_per_second / 2)


def test_a_ring_is_the_same_however_its_nodes_are_told() -> None:
    """A device of another type on the fourth of six nodes meets one of the first type there, in one run or in two."""
    spec = cluster(pool("a", ("A100", "T4"), nodes=6, nics=(nic("ib"),)))

    def ring(*runs: tuple[str, int, int]) -> Ring:
        slots = [Slot("a", gpu, 1, first, nodes, 0, 1) for gpu, first, nodes in runs]
        return data_ring(slots, {}, Topology(spec), ASSUMED, "megatron")

    cut = ring(("A100", 0, 3), ("A100", 3, 3), ("T4", 3, 1))
    assert ring(("A100", 0, 6), ("T4", 3, 1)) == cut


def test_a_group_is_as_fast_as_its_slowest_member_link() -> None:
    """Two pools on unequal NICs of one fabric."""
    spec = cluster(pool("fast", cards=8), pool("slow", cards=1, gbps=10))
    assert ring_of(spec, group("fast", 8), group("slow", 8)).bytes_per_second == pytest.approx(1.25e9 * WIRE)


def test_pools_without_a_common_fabric_cannot_form_a_group() -> None:
    """The ring says so; the estimate refuses."""
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"))
    assert not ring_of(spec, group("a", 8), group("b", 8)).connected


def test_a_gateway_is_shared_by_all_rings_that_cross_it() -> None:
    """Eight tensor-parallel rings share the gateway's capacity."""
    link = FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=80, latency_us=1000)
    spec = cluster(pool("a", fabric="ib", cards=1), pool("b", fabric="roce", cards=1), links=(link,))
    ring = ring_of(spec, group("a", 1, tp=8), group("b", 1, tp=8))
    assert ring.bytes_per_second == pytest.approx(10e9 / 8 * WIRE)
    assert ring.crosses == "ib+roce"
    assert ring.latency_seconds > 1e-3


def test_a_slower_nic_changes_what_crosses_it_and_nothing_else() -> None:
    """Metis' defect: the bandwidth between nodes never mattered."""
    fast, slow = cluster(pool("p", nodes=2, gbps=200)), cluster(pool("p", nodes=2, gbps=10))
    assert ring_of(slow, group("p", 16)).reduce_seconds(1e9) > 10 * ring_of(
        fast, group("p", 16)
    ).reduce_seconds(1e9)
    assert ring_of(slow, group("p", 8)) == ring_of(fast, group("p", 8))


def sends(
    spec: ClusterSpec,
    first: ReplicaGroup,
    last: ReplicaGroup,
    calibration: Calibration = ASSUMED,
    curves: LinkCurves | None = None,
) -> Send:
    """A send of a gigabyte between two stages."""
    placed: Placement = place_stages([[first], [last]], spec)
    return send(placed[0], placed[1], 1e9, Topology(spec), calibration, curves)


def test_stages_on_one_node_send_inside_it() -> None:
    """Two stages of four fit a node of eight; two of eight do not."""
    spec = cluster(pool("p", nodes=2, cards=1))
    near, far = sends(spec, group("p", 4), group("p", 4)), sends(spec, group("p", 8), group("p", 8))
    assert near.link == "node"
    assert far.link == "ib"
    assert near.seconds == pytest.approx(1 / (300 * INSIDE), rel=0.01)


def test_stages_that_fill_the_same_nodes_send_inside_them() -> None:
    """Two of one type and two of another, on two of three nodes: replica by replica on one node, or on none."""
    mixed = pool("p", ("A100", "A100", "V100", "V100"), nodes=3, nics=pool("x", cards=1).nics)
    other = group("p", 4, gpu="V100")
    spec = cluster(mixed)
    near = sends(spec, group("p", 4), other)
    assert near.link == "node"
    assert near.seconds == pytest.approx(sends(spec, group("p", 2), group("p", 2, gpu="V100")).seconds)
    # Of three stages the first and the last stand apart, and so do stages of which one spreads over more nodes.
    first, _, last = place_stages([[group("p", 2)], [group("p", 4)], [other]], spec)
    assert send(first, last, 1e9, Topology(spec), ASSUMED).link == "ib"
    assert sends(spec, group("p", 4), group("p", 3, gpu="V100")).link == "ib"
    # So do the parts of a stage on several pools, which meet those of the other in their order.
    both = cluster(mixed, mixed.model_copy(update={"name": "q", "hosts": ("q-0", "q-1")}))
    ends = [[group("q", 2, gpu=gpu), group("p", 4, gpu=gpu)] for gpu in ("A100", "V100")]
    for first, last in (place_stages(ends, both), place_stages([end[::-1] for end in ends], both)):
        assert send(first, last, 1e9, Topology(both), ASSUMED) == near
    first, last = place_stages([ends[0], ends[1][::-1]], both)
    assert send(first, last, 1e9, Topology(both), ASSUMED).link == "ib"


def test_replicas_of_a_node_send_at_the_same_time() -> None:
    """Eight senders share one NIC."""
    spec = cluster(pool("p", nodes=2, cards=1))
    assert sends(spec, group("p", 8), group("p", 8)).seconds == pytest.approx(8 / (25 * WIRE), rel=0.01)


def test_a_shared_bus_divides_its_bandwidth() -> None:
    """PCIe under one host bridge."""
    spec = cluster(pool("p"))
    bus = spec.pools[0].intra_node.model_copy(update={"shared": True})
    shared = spec.model_copy(update={"pools": (spec.pools[0].model_copy(update={"intra_node": bus}),)})
    fast = tensor_ring(Topology(spec).device_types[0], ASSUMED, tp=4)
    slow = tensor_ring(Topology(shared).device_types[0], ASSUMED, tp=4)
    assert slow.bytes_per_second == pytest.approx(fast.bytes_per_second / 8)


@pytest.mark.parametrize("moved", [2.5e9, 1e10])
def test_sockets_are_as_fast_as_the_hosts(moved: float) -> None:
    """A wide Ethernet card carries what its host can move, a narrow one its wire; RDMA does not pass the host."""
    calibration = Calibration(links={"ethernet": Link(host_bytes_per_second=moved)})

    def rate(fabric: str, gbps: float) -> float:
        spec = cluster(pool("p", nodes=2, cards=1, fabric=fabric, gbps=gbps))
        return ring_of(spec, group("p", 16), calibration=calibration).bytes_per_second

    assert rate("eth", 400) == pytest.approx(moved)
    assert rate("ib", 400) == rate("roce", 400) == pytest.approx(50e9 * WIRE)
    assert rate("eth", 10) == pytest.approx(1.25e9 * WIRE)
    # Tensor-parallel ranks share what the host moves.
    spec = cluster(pool("p", nodes=2, cards=1, fabric="eth", gbps=400))
    assert ring_of(spec, group("p", 2, tp=8), calibration=calibration).bytes_per_second == pytest.approx(
        moved / 8
    )


def test_a_rack_is_as_fast_as_a_node_of_its_devices() -> None:
    """NVLink between nodes is that inside them: rings, replicas on several nodes and all-to-alls, latencies apart.

    What a runtime does not reach of other networks is no part of it.
    """
    calibration = Calibration(
        frameworks={"megatron": Framework(link_utilisation=0.5)},
        links={"nvlink": Link(efficiency=INSIDE, rail=1.0)},
    )
    one = cluster(pool("p", ("A100",) * 16))
    links = nic("rack", gbps=one.pools[0].intra_node.bandwidth_gBps * 8).model_copy(update={"count": 4})
    rack = cluster(pool("p", ("A100",) * 4, 4, (links,)))
    for tp in (1, 2, 4):
        rings = [ring_of(spec, group("p", 16 // tp, tp), calibration=calibration) for spec in (one, rack)]
        assert rings[0].bytes_per_second == pytest.approx(rings[1].bytes_per_second)
    tensor = [
        tensor_ring(Topology(spec).device_types[0], calibration, tp=16, utilisation=0.5)
        for spec in (one, widened(rack, {"p": 4}))
    ]
    assert tensor[0].bytes_per_second == pytest.approx(tensor[1].bytes_per_second)
    assert tensor[1].crosses == "rack"
    seconds = [
        all_to_all_seconds(topology.device_types[0], topology, calibration, 1e12, ep=16)
        for topology in map(Topology, (one, rack))
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-4)
    ib = Topology(cluster(pool("p", ("A100",) * 4, 4, (links.model_copy(update={"fabric": "ib"}),))))
    equal = replace(calibration, links={"infiniband": calibration.link("nvlink")})
    beside = all_to_all_seconds(ib.device_types[0], ib, equal, 1e12, ep=16)
    assert beside == pytest.approx(12 / 15 * seconds[0], rel=1e-4)


FABRICS = {"ib": "infiniband", "roce": "roce", "eth": "ethernet", "rack": "nvlink"}


@pytest.mark.parametrize(("fabric", "kind"), FABRICS.items())
def test_every_kind_of_fabric_has_its_share_of_the_wire(fabric: str, kind: str) -> None:
    """Rings and sends across it; those inside a node take the share of the family."""
    spec = cluster(pool("p", nodes=2, cards=1, fabric=fabric, gbps=25))
    half = Calibration(links={kind: Link(efficiency=WIRE / 2)})
    across, inside = group("p", 16), group("p", 8)
    plain, slow = ring_of(spec, across), ring_of(spec, across, calibration=half)
    assert slow.bytes_per_second == pytest.approx(plain.bytes_per_second / 2)
    assert ring_of(spec, inside, calibration=half) == ring_of(spec, inside)
    twice = sends(spec, inside, inside, half).seconds / sends(spec, inside, inside).seconds
    assert twice == pytest.approx(2, rel=1e-3)
    others = Calibration(links={name: Link(efficiency=0.01) for name in FABRICS.values() if name != kind})
    assert ring_of(spec, across, calibration=others) == plain


def test_a_path_over_a_gateway_is_as_good_as_its_slowest_fabric() -> None:
    """InfiniBand and Ethernet together carry Ethernet's share."""
    link = FabricLinkSpec(between=("ib", "eth"), bandwidth_gbps=80, latency_us=1000)
    spec = cluster(pool("a", fabric="ib", cards=1), pool("b", fabric="eth", cards=1), links=(link,))
    sockets = 3e9
    calibration = Calibration(
        links={
            "infiniband": Link(efficiency=0.9),
            "ethernet": Link(efficiency=0.3, host_bytes_per_second=sockets),
        }
    )
    path = Topology(spec).path("a", "b")
    first, last, shared = carried_rates(path, calibration)
    assert first == pytest.approx(min(sockets, 0.3 * path.first_bytes_per_second))
    assert last == pytest.approx(min(sockets, 0.3 * path.last_bytes_per_second))
    assert shared == pytest.approx(0.3 * path.shared_bytes_per_second)


def test_every_doubling_of_the_cards_leaves_a_part_of_the_share() -> None:
    """Eight cards carry less than eight times what one carries, and more than four."""
    calibration = Calibration(links={"infiniband": Link(efficiency=0.8, rail=0.9)})
    one, four, eight = (
        ring_of(cluster(pool("p", nodes=2, cards=nics, gbps=8)), group("p", 16), calibration=calibration)
        for nics in (1, 4, 8)
    )
    assert one.bytes_per_second == pytest.approx(0.8 * 1e9)
    assert eight.bytes_per_second == pytest.approx(8 * 0.8 * 0.9**3 * 1e9)
    assert one.bytes_per_second < four.bytes_per_second < eight.bytes_per_second


def test_more_cards_at_one_end_never_slow_the_other() -> None:
    """A node with one card sends as fast to a node with eight as to a node with one."""
    rates = [
        ring_of(
            cluster(pool("many", cards=nics), pool("one", cards=1)), group("many", 8), group("one", 8)
        ).bytes_per_second
        for nics in (1, 2, 8)
    ]
    assert rates == sorted(rates)


def family_cluster() -> ClusterSpec:
    """One node of eight A100 whose family is known."""
    spec = cluster(pool("p", nodes=2, cards=1))
    known = spec.gpus["A100"].model_copy(update={"family": "A100"})
    return spec.model_copy(update={"gpus": {"A100": known}})


def test_links_inside_a_node_have_the_share_of_their_family() -> None:
    """Rings of tensor and data parallelism, and sends."""
    spec = family_cluster()
    half = Calibration(families={"A100": GpuFamily(link_efficiency=INSIDE / 2)})
    device_type = Topology(spec).device_types[0]
    plain, slow = (tensor_ring(device_type, item, tp=4).bytes_per_second for item in (ASSUMED, half))
    assert slow == pytest.approx(plain / 2)
    inside = ring_of(spec, group("p", 8), calibration=half)
    assert inside.bytes_per_second == pytest.approx(ring_of(spec, group("p", 8)).bytes_per_second / 2)
    four = group("p", 4)
    assert sends(spec, four, four, half).seconds > 1.9 * sends(spec, four, four).seconds
    assert ring_of(spec, group("p", 16), calibration=half) == ring_of(spec, group("p", 16))


def test_the_framework_takes_its_share_of_the_wire_between_nodes() -> None:
    """Collectives of another framework and those inside a node keep theirs."""
    spec = cluster(pool("p", nodes=2, cards=1))
    narrow = Calibration(frameworks={"megatron": Framework(link_utilisation=0.5)})
    across = group("p", 16)
    plain, slow = ring_of(spec, across), ring_of(spec, across, calibration=narrow)
    assert slow.bytes_per_second == pytest.approx(plain.bytes_per_second / 2)
    assert ring_of(spec, group("p", 8), calibration=narrow) == ring_of(spec, group("p", 8))
    other = Calibration(frameworks={"deepspeed": Framework(link_utilisation=0.5)})
    assert ring_of(spec, across, calibration=other) == plain


def test_latency_is_paid_per_member_inside_and_per_level_between_nodes() -> None:
    """Seven neighbours in a node of eight; one more level with each doubling of the nodes, and for gathers and
    scatters, which have no tree, one more hop with each node."""
    spec = cluster(pool("p", nodes=16, cards=1))
    inside = spec.pools[0].intra_node.latency_us * 1e-6
    between = spec.fabrics["ib"].latency_us * 1e-6
    device_type = Topology(spec).device_types[0]
    for tp in (1, 2, 8):
        assert tensor_ring(device_type, ASSUMED, tp=tp).latency_seconds == pytest.approx((tp - 1) * inside)
    for nodes, levels in ((1, 0), (2, 1), (4, 2), (16, 4)):
        found = ring_of(spec, group("p", 8 * nodes))
        assert found.latency_seconds == pytest.approx(7 * inside + levels * between)
        assert found.around_seconds == pytest.approx(7 * nodes * inside + (nodes - 1) * between)
    wide = ring_of(spec, group("p", 16, tp=8))
    assert (wide.latency_seconds, wide.around_seconds) == pytest.approx((4 * between, 15 * between))


def test_every_message_pays_latency() -> None:
    """Gathers and scatters that of every member, all-reduces twice that of their tree; bytes are paid once."""
    ring = Ring(size=16, bytes_per_second=1e9, latency_seconds=1e-5, around_seconds=1e-3, crosses="ib")
    wire = 15 / 16 * 2.0
    for messages in (1, 7, 100):
        assert ring.gather_seconds(2e9, messages) == pytest.approx(wire + messages * 1e-3)
        assert ring.scatter_seconds(2e9, messages) == pytest.approx(wire + messages * 1e-3)
        assert ring.reduce_seconds(2e9, messages) == pytest.approx(2 * (wire + messages * 1e-5))
    alone = Ring(size=1, bytes_per_second=1e9, latency_seconds=1.0, around_seconds=1.0, crosses="device")
    assert alone.gather_seconds(2e9, 7) == alone.reduce_seconds(2e9, 7) == 0


def test_measured_messages_are_paid_one_by_one() -> None:
    """A curve knows the seconds of one message of its size."""
    points = tuple(
        LinkPoint(link="node:A100", operation=operation, members=4, size_bytes=size, seconds=seconds)
        for operation in ("all-reduce", "all-gather")
        for size, seconds in ((1e6, 1e-3), (1e9, 1.0))
    )
    device_type = Topology(cluster(pool("p"))).device_types[0]
    found = tensor_ring(device_type, ASSUMED, tp=4, curves=LinkCurves(Calibration(link_points=points)))
    for seconds in (found.gather_seconds, found.scatter_seconds, found.reduce_seconds):
        assert seconds(1e9) == pytest.approx(1.0)
        assert seconds(1e9, 1000) == pytest.approx(1000 * seconds(1e6)) == pytest.approx(1.0)
        assert seconds(1e6, 1000) == pytest.approx(1000 * seconds(1e3))


FABRIC_ORDER = ("ib", "roce", "eth")
"""From the one that is never slower to the one that is never faster."""


@pytest.mark.parametrize("calibration", [ASSUMED, shipped()], ids=["assumed", "shipped"])
@pytest.mark.parametrize("gbps", [10.0, 25.0, 100.0, 400.0])
@pytest.mark.parametrize("cards", [1, 8])
def test_no_fabric_beats_a_better_one_at_equal_wire(
    calibration: Calibration, gbps: float, cards: int
) -> None:
    """Neither sockets RDMA nor RoCE InfiniBand, in rings and in sends, unless somebody has measured it himself."""
    eight = group("p", 8)
    rates, seconds = [], []
    for fabric in FABRIC_ORDER:
        spec = cluster(pool("p", nodes=4, cards=cards, fabric=fabric, gbps=gbps))
        ring = ring_of(spec, group("p", 32), calibration=calibration)
        rates.append(ring.bytes_per_second)
        seconds.append((ring.reduce_seconds(1e9, 24), sends(spec, eight, eight, calibration).seconds))
    assert rates == sorted(rates, reverse=True)
    for name, found in zip(("reductions", "sends"), zip(*seconds, strict=True), strict=True):
        assert list(found) == sorted(found), name


def curve(link: str, operation: Any, members: int, seconds: float = 1.0) -> LinkCurves:
    """A measured operation that takes as long per gigabyte."""
    return LinkCurves(Calibration(link_points=curve_points(link, operation, members, seconds)))


def curve_points(link: str, operation: Any, members: int, seconds: float) -> tuple[LinkPoint, ...]:
    """Two points of such a curve."""
    return tuple(
        LinkPoint(
            link=link, operation=operation, members=members, size_bytes=size, seconds=seconds * size / 1e9
        )
        for size in (1e6, 1e9)
    )


@pytest.mark.parametrize(("link", "members"), [("node:A100", 8), ("ib", 16)])
def test_curves_of_small_messages_make_large_ones_no_faster_than_the_formula(link: str, members: int) -> None:
    """A gigabyte beside a kibibyte: rings, all-to-alls and sends."""
    spec = cluster(pool("p", nodes=2))
    topology = Topology(spec)
    device_type = topology.device_types[0]
    operations: tuple[Any, ...] = ("all-reduce", "all-gather", "all-to-all", "send")
    points = tuple(
        LinkPoint(link=link, operation=operation, members=number, size_bytes=size, seconds=1e-6)
        for operation in operations
        for number in ([2] if operation == "send" else [members])
        for size in (512.0, 1024.0)
    )
    curves = LinkCurves(Calibration(link_points=points))
    plain, found = (ring_of(spec, group("p", members), curves=each) for each in (None, curves))
    stage = group("p", 8 if link == "ib" else 4)

    def exchanged(curves: LinkCurves | None) -> float:
        return all_to_all_seconds(device_type, topology, ASSUMED, 1e9, ep=members, curves=curves)

    for formula, measured in (
        (plain.reduce_seconds(1e9), found.reduce_seconds(1e9)),
        (plain.gather_seconds(1e9), found.gather_seconds(1e9)),
        (exchanged(None), exchanged(curves)),
        (sends(spec, stage, stage).seconds, sends(spec, stage, stage, curves=curves).seconds),
    ):
        assert measured == pytest.approx(formula, rel=0.01)


def test_measured_collectives_win() -> None:
    """Of this device, operation and number of members; all others keep the formula."""
    device_type = Topology(cluster(pool("p"))).device_types[0]
    plain = tensor_ring(device_type, ASSUMED, tp=4)
    found = tensor_ring(device_type, ASSUMED, tp=4, curves=curve("node:A100", "all-reduce", 4))
    assert found.reduce_seconds(1e9) == pytest.approx(1.0)
    assert found.reduce_seconds(3e8) == pytest.approx(0.3)
    assert found.gather_seconds(1e9) == plain.gather_seconds(1e9)
    for other in (curve("node:A100", "all-reduce", 8), curve("node:V100", "all-reduce", 4)):
        assert tensor_ring(device_type, ASSUMED, tp=4, curves=other).reduce_seconds(
            1e9
        ) == plain.reduce_seconds(1e9)


def test_groups_that_nobody_measured_are_no_faster_than_smaller_ones() -> None:
    """A search would choose them: between two measured groups a line, above them the formula or what they took."""
    device_type = Topology(cluster(pool("p"))).device_types[0]
    plain = tensor_ring(device_type, ASSUMED, tp=4).reduce_seconds(1e9)
    for operation, times in (("all-reduce", 1), ("all-gather", 2), ("reduce-scatter", 2)):
        slow, fast = (curve("node:A100", operation, 2, seconds) for seconds in (5.0, plain / 100))
        assert tensor_ring(device_type, ASSUMED, tp=4, curves=slow).reduce_seconds(1e9) == pytest.approx(
            7.5 * times
        )
        assert tensor_ring(device_type, ASSUMED, tp=4, curves=fast).reduce_seconds(1e9) == plain


def test_measured_halves_make_an_all_reduce() -> None:
    """A gather that was measured counts for the scatter too, and twice for the all-reduce."""
    device_type = Topology(cluster(pool("p"))).device_types[0]
    for operation in ("all-gather", "reduce-scatter"):
        found = tensor_ring(device_type, ASSUMED, tp=4, curves=curve("node:A100", operation, 4))
        assert found.gather_seconds(1e9) == pytest.approx(1.0)
        assert found.reduce_seconds(1e9) == pytest.approx(2.0)


def test_each_measured_half_counts_for_itself() -> None:
    """A scatter that takes twice as long as a gather, as gloo's does; an all-reduce is one of each."""
    device_type = Topology(cluster(pool("p"))).device_types[0]
    measured: tuple[tuple[Any, float], ...] = (("all-gather", 1.0), ("reduce-scatter", 2.0))
    points = [
        LinkPoint(
            link="node:A100", operation=operation, members=4, size_bytes=size, seconds=factor * size / 1e9
        )
        for operation, factor in measured
        for size in (1e6, 1e9)
    ]
    found = tensor_ring(device_type, ASSUMED, tp=4, curves=LinkCurves(Calibration(link_points=tuple(points))))
    assert found.gather_seconds(1e9) == pytest.approx(1.0)
    assert found.scatter_seconds(1e9) == pytest.approx(2.0)
    assert found.reduce_seconds(1e9) == pytest.approx(3.0)


def test_the_order_of_the_kinds_in_a_ring_changes_nothing() -> None:
    """Of two device types in a node, the one with the narrower hop names the curve, or else its name decides."""
    mixed = pool("p").model_copy(update={"devices": ("A100",) * 4 + ("V100",) * 4})
    first, last = group("p", 2), group("p", 2, gpu="V100")
    for name in ("A100", "V100"):
        curves = curve(f"node:{name}", "all-reduce", 4)
        rings = [ring_of(cluster(mixed), *order, curves=curves) for order in ((first, last), (last, first))]
        assert rings[0] == rings[1]


def test_measured_fabrics_win_for_data_parallel_rings() -> None:
    """By the name of the fabric; a ring inside a node takes the node's curve."""
    spec = cluster(pool("p", nodes=2, cards=1))
    fabric, node = curve("ib", "all-gather", 16), curve("node:A100", "all-gather", 8)
    assert ring_of(spec, group("p", 16), curves=fabric).gather_seconds(1e9) == pytest.approx(1.0)
    assert ring_of(spec, group("p", 8), curves=node).gather_seconds(1e9) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        ("all-gather", Ring.gather_seconds),
        ("reduce-scatter", Ring.scatter_seconds),
        ("all-reduce", Ring.reduce_seconds),
        ("all-gather", Ring.reduce_seconds),
    ],
)
def test_the_slowest_link_by_measurement_counts(operation: str, asked: Any) -> None:
    """Whatever the wires say, of fewer members where nobody measured as many; a fast one changes and warns nothing."""
    spec = cluster(pool("p", nodes=2, cards=1))
    plain = asked(ring_of(spec, group("p", 16)), 1e9)
    passes = 2 if (operation, asked) == ("all-gather", Ring.reduce_seconds) else 1
    slow = curve("node:A100", operation, 8)
    assert asked(ring_of(spec, group("p", 16), curves=slow), 1e9) == pytest.approx(passes * 15 / 16 * 8 / 7)
    assert [*slow.guesses()] == [f"{operation} of 16 over node:A100: measured of 8 at most"]
    fast = curve("node:A100", operation, 8, 1e-3)
    assert asked(ring_of(spec, group("p", 16), curves=fast), 1e9) == plain
    assert not [*fast.guesses()]


@pytest.mark.parametrize(
    ("operation", "asked"), [("broadcast", Ring.broadcast_seconds), ("reduce", Ring.sum_seconds)]
)
def test_the_slowest_link_counts_from_one_member_too(operation: str, asked: Any) -> None:
    """Where the narrowest link was measured and another was slower."""
    spec = cluster(pool("p", nodes=2, cards=1))
    points = [
        point
        for link, seconds in (("ib", 0.5), ("node:A100", 2.0))
        for point in curve_points(link, operation, 16, seconds)
    ]
    both = LinkCurves(Calibration(link_points=tuple(points)))
    assert asked(ring_of(spec, group("p", 16), curves=both), 1e9) == pytest.approx(2.0)


def test_rings_that_share_the_cards_take_as_long_as_all_their_bytes() -> None:
    """Eight tensor-parallel ranks of a node have one curve together, inside the node each its own."""
    spec = cluster(pool("p", nodes=2, cards=1))
    shared = ring_of(spec, group("p", 2, tp=8), curves=curve("ib", "all-gather", 2))
    assert shared.sharing == 8
    assert shared.gather_seconds(1e8) == pytest.approx(0.8)
    inside = ring_of(spec, group("p", 2, tp=4), curves=curve("node:A100", "all-gather", 2))
    assert inside.gather_seconds(1e8) == pytest.approx(0.1)


def test_measured_sends_win() -> None:
    """Between nodes with all that a node sends at once, inside one by the device."""
    spec = cluster(pool("p", nodes=2, cards=1))
    eight, four = group("p", 8), group("p", 4)
    far = sends(spec, eight, eight, curves=curve("ib", "send", 2))
    assert far.link == "ib"
    assert far.seconds == pytest.approx(8.0)
    near = sends(spec, four, four, curves=curve("node:A100", "send", 2))
    assert near.link == "node"
    assert near.seconds == pytest.approx(1.0)
    assert sends(spec, four, four, curves=curve("ib", "send", 2)) == sends(spec, four, four)


def test_a_stage_sends_to_replicas_on_several_pools() -> None:
    """Replicas are paired in order; the slowest pair counts, and a receiver alone on its node has all of its cards."""
    spec = cluster(pool("a"), pool("b", cards=4), pool("c", cards=1))
    placed = place_stages([[group("a", 8)], [group("b", 4), group("c", 4)]], spec)
    found = send(placed[0], placed[1], 1e9, Topology(spec), ASSUMED)
    rail = ASSUMED_LINK.rail
    assert found.link == "ib"
    assert found.seconds == pytest.approx(4 * 1e9 / (25e9 * WIRE) + 5e-6)
    wide = place_stages([[group("a", 8)], [group("b", 4), group("b", 4)]], spec)
    assert send(wide[0], wide[1], 1e9, Topology(spec), ASSUMED).seconds == pytest.approx(
        8 * 1e9 / (100e9 * WIRE * rail**2) + 5e-6
    )


@pytest.mark.parametrize("sizes", [(6,), (1, 5), (2, 2, 2), (1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("others", [(6,), (3, 3), (1, 4, 1), (3,), (1, 2), (1,)])
def test_how_a_stage_is_written_does_not_change_its_sends(
    sizes: tuple[int, ...], others: tuple[int, ...]
) -> None:
    """The same replicas on the same node take as long as one group as in parts, on both sides."""
    spec = cluster(pool("a", cards=1), pool("b", cards=4))

    def seconds(first: tuple[int, ...], last: tuple[int, ...]) -> float:
        placed = place_stages([[group("a", one) for one in first], [group("b", one) for one in last]], spec)
        return send(placed[0], placed[1], 1e9, Topology(spec), ASSUMED).seconds

    assert seconds(sizes, others) == pytest.approx(seconds((sum(sizes),), (sum(others),)))


@pytest.mark.parametrize(("senders", "receivers"), [(8, 2), (2, 8), (4, 4)])
def test_all_that_is_sent_is_received(senders: int, receivers: int) -> None:
    """Whichever end has the slow card, it carries what all replicas of the first stage send."""
    slow, fast = pool("a", cards=1), pool("b", cards=8)
    for spec, first, last in ((cluster(slow, fast), "a", "b"), (cluster(slow, fast), "b", "a")):
        placed = place_stages([[group(first, senders)], [group(last, receivers)]], spec)
        found = send(placed[0], placed[1], 1e9, Topology(spec), ASSUMED)
        assert found.seconds == pytest.approx(senders * 1e9 / (25e9 * WIRE) + 5e-6)


def test_a_wider_stage_sends_parts_at_the_same_time() -> None:
    """Eight replicas to two: what all eight send leaves one node."""
    spec = cluster(pool("a", cards=1), pool("b", cards=8))
    placed = place_stages([[group("a", 8)], [group("b", 2)]], spec)
    found = send(placed[0], placed[1], 1e9, Topology(spec), ASSUMED)
    assert found.seconds == pytest.approx(8 * 1e9 / (25e9 * WIRE) + 5e-6)


def test_all_that_crosses_a_gateway_shares_it() -> None:
    """Eight sends through 10 Gbit/s, whatever the cards."""
    link = FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=10, latency_us=1000)
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"), links=(link,))
    found = sends(spec, group("a", 8), group("b", 8))
    assert found.link == "ib+roce"
    assert found.seconds == pytest.approx(8 * 1e9 / (1.25e9 * WIRE) + 1.01e-3)


def test_stages_on_one_node_and_on_two_are_not_on_the_same() -> None:
    """Whichever sends: half of the replicas are on the second node."""
    topology = Topology(cluster(pool("both", (*["A100"] * 4, *["V100"] * 2), 2)))
    one, two = (
        Slot(
            pool="both",
            gpu=gpu,
            tp=1,
            first_node=0,
            nodes=nodes,
            first_device=0,
            replicas_per_node=4 // nodes,
        )
        for gpu, nodes in (("A100", 1), ("V100", 2))
    )
    for first, last in ((one, two), (two, one)):
        found = send([first], [last], 1e8, topology, ASSUMED)
        assert found.link != "node"
        assert found.seconds >= least_send([first], [last], 1e8, topology, ASSUMED)


def test_devices_of_all_types_of_a_node_share_its_bus() -> None:
    """Two and two are as many as four: each has a quarter."""
    bus = IntraNodeSpec(bandwidth_gBps=16, shared=True)
    rates = {}
    for devices in (("A100",) * 4, ("A100", "A100", "V100", "V100"), ("A100", "V100", "V100", "V100")):
        node = pool("a").model_copy(update={"intra_node": bus, "devices": devices})
        rates[devices] = [inside_rate(each, ASSUMED) for each in Topology(cluster(node)).device_types]
    assert {rate / 4e9 for each in rates.values() for rate in each} == {
        ASSUMED.family("ampere").link_efficiency
    }


@pytest.mark.parametrize(("devices", "sharing"), [(1, 1), (2, 2), (4, 4), (6, 4), (8, 4), (16, 4)])
def test_four_devices_share_a_pcie_link_of_the_catalogue_at_most(devices: int, sharing: int) -> None:
    """Nodes of more have several host bridges."""
    node = pool("a", per_node=devices).model_copy(update={"intra_node": link("pcie4")})
    (found,) = Topology(cluster(node)).device_types
    assert found.sharing == link("pcie4").sharing(devices) == sharing
    assert inside_rate(found, ASSUMED) == 31.5e9 / sharing * ASSUMED.family("ampere").link_efficiency


def test_of_equally_slow_hops_the_one_between_nodes_counts() -> None:
    """Whatever their names: curves measured on networks are for rings that leave nodes."""
    rates = {"inside_rate": 1e9, "_between": [(1e9, 0, 1e-5, "wire")]}
    with patch.multiple(communication, **{name: Mock(return_value=value) for name, value in rates.items()}):
        ring = ring_of(cluster(pool("a", nodes=2, per_node=2)), group("a", 4))
    assert (ring.bytes_per_second, ring.crosses, ring.link) == (1e9, "wire", "wire")
