"""Collectives and sends: ring formulas, shared NICs, gateways, the slow link that everything waits for."""

from __future__ import annotations

import pytest

from planner.calibration import DEFAULT
from planner.cost.communication import Ring, Send, crossing_rings, data_ring, send, tensor_ring
from planner.placement import Placement, place_stages
from planner.plan import ReplicaGroup
from planner.spec.cluster import ClusterSpec, FabricLinkSpec
from planner.topology import Topology
from tests.clusters import cluster, pool

EFFICIENCY = DEFAULT.link_efficiency


def group(name: str, count: int, tp: int = 1, gpu: str = "A100") -> ReplicaGroup:
    """Replicas with one micro-batch each."""
    return ReplicaGroup(pool=name, gpu=gpu, tp=tp, count=count, share=1, steps=1)


def ring_of(spec: ClusterSpec, *groups: ReplicaGroup) -> Ring:
    """The ring of a stage alone on a cluster."""
    (slots,) = place_stages([groups], spec)
    return data_ring(slots, {}, Topology(spec), DEFAULT)


def test_a_ring_moves_its_share_over_the_narrowest_hop() -> None:
    """2 (n-1)/n of the data plus a latency per level of a tree, twice."""
    ring = Ring(size=8, bytes_per_second=1e9, latency_seconds=1e-5, crosses="node")
    assert ring.reduce_seconds(8e9) == pytest.approx(2 * (7 / 8 * 8 + 3e-5))
    assert ring.gather_seconds(8e9) == pytest.approx(7 / 8 * 8 + 3e-5)
    assert Ring(size=1, bytes_per_second=1.0, latency_seconds=1.0, crosses="device").reduce_seconds(1e9) == 0


def test_a_stage_inside_a_node_does_not_use_the_nics() -> None:
    """Eight devices of one node talk over NVLink, sixteen over the fabric."""
    spec = cluster(pool("p", nodes=4, nics=1))
    assert ring_of(spec, group("p", 8)).crosses == "node"
    wide = ring_of(spec, group("p", 16))
    assert wide.crosses == "ib"
    assert wide.bytes_per_second == pytest.approx(25e9 * EFFICIENCY)


def test_tensor_parallel_ranks_share_the_nics_of_their_node() -> None:
    """Eight rings that leave a node together have an eighth of its NICs each."""
    spec = cluster(pool("p", nodes=4, nics=1))
    assert ring_of(spec, group("p", 2, tp=8)).bytes_per_second == pytest.approx(25e9 / 8 * EFFICIENCY)


def test_stages_on_one_node_share_its_nics() -> None:
    """Two mixed stages whose rings leave the same node halve what each has."""
    spec = cluster(pool("a", nodes=1), pool("b", nodes=2, per_node=4))
    placed = place_stages([[group("a", 4), group("b", 4)], [group("a", 4), group("b", 4)]], spec)
    load = crossing_rings(placed)
    assert load["a", 0] == 2
    shared = data_ring(placed[0], load, Topology(spec), DEFAULT)
    alone = data_ring(placed[0], {}, Topology(spec), DEFAULT)
    assert shared.bytes_per_second == pytest.approx(alone.bytes_per_second / 2)


def test_a_group_is_as_fast_as_its_slowest_member_link() -> None:
    """Two pools on unequal NICs of one fabric."""
    spec = cluster(pool("fast", nics=8), pool("slow", nics=1, gbps=10))
    assert ring_of(spec, group("fast", 8), group("slow", 8)).bytes_per_second == pytest.approx(
        1.25e9 * EFFICIENCY
    )


def test_pools_without_a_common_fabric_cannot_form_a_group() -> None:
    """The ring says so; the estimate refuses."""
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"))
    assert not ring_of(spec, group("a", 8), group("b", 8)).connected


def test_a_gateway_is_shared_by_all_rings_that_cross_it() -> None:
    """Eight tensor-parallel rings share the gateway's capacity."""
    link = FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=80, latency_us=1000)
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"), links=(link,))
    ring = ring_of(spec, group("a", 1, tp=8), group("b", 1, tp=8))
    assert ring.bytes_per_second == pytest.approx(10e9 / 8 * EFFICIENCY)
    assert ring.crosses == "ib+roce"
    assert ring.latency_seconds > 1e-3


def test_a_slower_nic_changes_what_crosses_it_and_nothing_else() -> None:
    """Metis' defect: the bandwidth between nodes never mattered."""
    fast, slow = cluster(pool("p", nodes=2, gbps=200)), cluster(pool("p", nodes=2, gbps=10))
    assert ring_of(slow, group("p", 16)).reduce_seconds(1e9) > 10 * ring_of(
        fast, group("p", 16)
    ).reduce_seconds(1e9)
    assert ring_of(slow, group("p", 8)) == ring_of(fast, group("p", 8))


def sends(spec: ClusterSpec, first: ReplicaGroup, last: ReplicaGroup) -> Send:
    """A send between two stages."""
    placed: Placement = place_stages([[first], [last]], spec)
    return send(placed[0], placed[1], 1e9, Topology(spec), DEFAULT)


def test_stages_on_one_node_send_inside_it() -> None:
    """Two stages of four fit a node of eight; two of eight do not."""
    spec = cluster(pool("p", nodes=2, nics=1))
    near, far = sends(spec, group("p", 4), group("p", 4)), sends(spec, group("p", 8), group("p", 8))
    assert near.link == "node"
    assert far.link == "ib"
    assert near.seconds == pytest.approx(1 / (300 * EFFICIENCY), rel=0.01)


def test_replicas_of_a_node_send_at_the_same_time() -> None:
    """Eight senders share one NIC."""
    spec = cluster(pool("p", nodes=2, nics=1))
    assert sends(spec, group("p", 8), group("p", 8)).seconds == pytest.approx(8 / (25 * EFFICIENCY), rel=0.01)


def test_a_shared_bus_divides_its_bandwidth() -> None:
    """PCIe under one host bridge."""
    spec = cluster(pool("p"))
    bus = spec.pools[0].intra_node.model_copy(update={"shared": True})
    shared = spec.model_copy(update={"pools": (spec.pools[0].model_copy(update={"intra_node": bus}),)})
    fast = tensor_ring(Topology(spec).kinds[0], DEFAULT, tp=4)
    slow = tensor_ring(Topology(shared).kinds[0], DEFAULT, tp=4)
    assert slow.bytes_per_second == pytest.approx(fast.bytes_per_second / 8)
