"""Kinds and paths of a cluster."""

from __future__ import annotations

import pytest

from planner.catalog import IntraNodeSpec
from planner.cluster.multi_node import widened
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, FabricSpec, HostSpec, NicSpec
from planner.cluster.topology import Topology, sockets_only
from tests.worlds import cluster, pool


def test_kinds_are_devices_of_one_pool() -> None:
    """A node that mixes devices has two device types; sizes are SI."""
    mixed = pool("m").model_copy(update={"devices": ("A100", "A100", "V100")})
    device_types = Topology(cluster(mixed, pool("b", "V100", nodes=3))).device_types
    assert [(device_type.key, device_type.per_node, device_type.devices) for device_type in device_types] == [
        (("m", "A100"), 2, 2),
        (("m", "V100"), 1, 1),
        (("b", "V100"), 8, 24),
    ]
    assert device_types[0].memory_bytes == 80 * 2**30
    assert device_types[0].replicas(2) == 1
    assert device_types[2].replicas(3) == 6


def two_fabrics(*links: FabricLinkSpec) -> ClusterSpec:
    """Pools on different fabrics, both also on Ethernet of which one card is slow."""
    first, second = pool("a", fabric="ib"), pool("b", fabric="roce")
    slow = NicSpec(fabric="eth", bandwidth_gbps=10)
    both = tuple(item.model_copy(update={"nics": (*item.nics, slow)}) for item in (first, second))
    return cluster(*both, links=links)


def test_nodes_talk_over_the_widest_path() -> None:
    """The common Ethernet without a link; the link between the fast fabrics when it is wider."""
    assert Topology(two_fabrics()).path("a", "b").fabric == "eth"
    wide = FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=400, latency_us=500)
    path = Topology(two_fabrics(wide)).path("a", "b")
    assert path.fabric == "ib+roce"
    assert path.bytes_per_second == 50e9
    assert path.latency_seconds == pytest.approx(510e-6)


def test_inside_a_pool() -> None:
    """One node talks inside, several over their fabric; without NICs not at all."""
    assert Topology(cluster(pool("a"))).path("a", "a").fabric == "node"
    assert Topology(cluster(pool("a", nodes=2))).path("a", "a").fabric == "ib"
    lonely = pool("a", nodes=2).model_copy(update={"nics": ()})
    assert not Topology(cluster(lonely)).path("a", "a").connected


def test_oversubscription_divides_what_a_fabric_carries() -> None:
    """A fabric at 2:1 carries half of the cards' sum."""
    spec = cluster(pool("a", nodes=2, cards=1))
    crowded = spec.model_copy(
        update={"fabrics": {"ib": FabricSpec(kind="infiniband", latency_us=5, oversubscription=2)}}
    )
    full, half = (Topology(item).path("a", "a").bytes_per_second for item in (spec, crowded))
    assert half == full / 2


def test_links_chain() -> None:
    """Through two gateways: the narrowest counts, latencies add up."""
    links = (
        FabricLinkSpec(between=("ib", "wan"), bandwidth_gbps=100, latency_us=1000),
        FabricLinkSpec(between=("wan", "roce"), bandwidth_gbps=50, latency_us=2000),
    )
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"), links=links)
    spec = spec.model_copy(
        update={"fabrics": {**spec.fabrics, "wan": FabricSpec(kind="ethernet", latency_us=0)}}
    )
    path = Topology(spec).path("a", "b")
    assert path.fabric == "ib+wan+roce"
    assert path.shared_bytes_per_second == 6.25e9
    assert path.latency_seconds == pytest.approx(3.01e-3)


def test_hosts_are_shared_by_their_devices() -> None:
    """Links, NVMe, memory and processors of a node, over all its devices of any kind."""
    host = HostSpec(link_gBps=12, all_links_gBps=48, memory_gib=1600, nvme_gBps=24, adam_billion_per_s=4)
    mixed = pool("m").model_copy(update={"devices": ("A100",) * 4 + ("V100",) * 12, "host": host})
    for device_type in Topology(cluster(mixed)).device_types:
        found = device_type.host
        assert (found.devices, found.bytes_per_second, found.nvme_bytes_per_second) == (16, 3e9, 1.5e9)
        assert (found.memory_bytes, found.parameters_per_second) == (100 * 2**30, 0.25e9)
    (unknown,) = Topology(cluster(pool("a"))).device_types
    assert unknown.host.bytes_per_second is None
    assert unknown.host.nvme_bytes_per_second is None
    assert unknown.host.memory_bytes == float("inf")
    assert unknown.host.parameters_per_second is None


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_of_equal_networks_the_one_that_loses_less(names: tuple[str, str]) -> None:
    """InfiniBand before Ethernet of the same rate and latency, whatever their names."""
    fast, slow = names
    nics = tuple(NicSpec(fabric=name, bandwidth_gbps=200) for name in ("a", "b"))
    device_types = {
        fast: FabricSpec(kind="infiniband", latency_us=5),
        slow: FabricSpec(kind="ethernet", latency_us=5),
    }
    spec = cluster(pool("p", nodes=2)).model_copy(
        update={"pools": (pool("p", nodes=2).model_copy(update={"nics": nics}),), "fabrics": device_types}
    )
    assert Topology(spec).path("p", "p").fabric == fast


def test_cards_add_up() -> None:
    """The widest fabric is that whose cards carry most together, less what its switches lose."""
    nics = (
        NicSpec(fabric="ib", bandwidth_gbps=100, count=4),
        NicSpec(fabric="roce", bandwidth_gbps=200, count=1),
        NicSpec(fabric="roce", bandwidth_gbps=100, count=1),
    )
    spec = cluster(pool("p", nodes=2).model_copy(update={"nics": nics}))
    found = Topology(spec)
    path = found.path("p", "p")
    assert (path.fabric, path.bytes_per_second, path.first_cards, path.last_cards) == ("ib", 50e9, 4, 4)
    assert found.best_fabric("p") == "ib"
    assert found.node_bytes_per_second("p") == 50e9
    assert (found.cards("p", "roce"), found.cards("p", "eth")) == (2, 0)
    slow = FabricSpec(kind="infiniband", latency_us=5, oversubscription=2)
    crowded = Topology(spec.model_copy(update={"fabrics": {**spec.fabrics, "ib": slow}}))
    assert crowded.best_fabric("p") == "roce"
    assert crowded.node_bytes_per_second("p") == 37.5e9
    assert crowded.path("p", "p").fabric == "roce"


def test_sockets_carry_little_of_a_wide_ethernet() -> None:
    """About 2.5 GB/s a node: RDMA that has less of a wire is taken, and left where it is narrower than that."""
    for gbps, fabric in ((25, "ib"), (15, "eth")):
        nics = (NicSpec(fabric="ib", bandwidth_gbps=gbps), NicSpec(fabric="eth", bandwidth_gbps=400))
        found = Topology(cluster(pool("p", nodes=2).model_copy(update={"nics": nics})))
        assert (found.path("p", "p").fabric, found.best_fabric("p")) == (fabric, fabric)


def test_each_end_has_its_own_cards() -> None:
    """Eight cards of 200 Gbit/s here, one of 100 there: the narrower end decides."""
    ends = cluster(pool("a"), pool("b", gbps=100, cards=1))
    path = Topology(ends).path("a", "b")
    assert (path.first_bytes_per_second, path.last_bytes_per_second) == (200e9, 12.5e9)
    assert (path.first_cards, path.last_cards) == (8, 1)
    assert path.bytes_per_second == 12.5e9
    assert path.shared_bytes_per_second == float("inf")
    assert path.latency_seconds == pytest.approx(5e-6)


def test_of_two_links_the_wider() -> None:
    """In either order of the file, with its own latency."""
    links = (
        FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=400, latency_us=500),
        FabricLinkSpec(between=("roce", "ib"), bandwidth_gbps=100, latency_us=1),
    )
    for order in (links, links[::-1]):
        path = Topology(two_fabrics(*order)).path("a", "b")
        assert path.bytes_per_second == 50e9
        assert path.latency_seconds == pytest.approx(510e-6)


def test_nvlink_between_nodes() -> None:
    """Nodes of a rack need no sockets, and keep their NVLink in a job whose other nodes do."""
    nics = (NicSpec(fabric="rack", bandwidth_gbps=7200, count=4), NicSpec(fabric="eth", bandwidth_gbps=100))
    rack = pool("a", nodes=2).model_copy(update={"nics": nics})
    lan = pool("c", fabric="eth", nodes=2)
    found = Topology(cluster(rack, lan))
    inside, across = found.path("a", "a"), found.path("a", "c")
    assert (inside.fabric, inside.kind, inside.bytes_per_second) == ("rack", "nvlink", 3.6e12)
    assert (across.fabric, across.kind) == ("eth", "ethernet")
    assert not found.needs_sockets(["a"])
    assert found.needs_sockets(["a", "c"])
    assert found.islands() == (("a",),)
    only = Topology(sockets_only(found.cluster))
    assert (only.path("a", "a"), only.path("a", "c")) == (inside, across)
    wide = widened(found.cluster, {"a": 2})
    assert Topology(wide).device_type("a", "A100").reaches_memory
    slow = widened(found.cluster, {"c": 2})
    assert not Topology(slow).device_type("c", "A100").reaches_memory


def test_rdma_and_sockets() -> None:
    """Pools on one RDMA fabric need no sockets; a pool of Ethernet, or a link over it, does."""
    on_ib, too, lan = pool("a", nodes=2), pool("b"), pool("c", fabric="eth", nodes=2)
    found = Topology(cluster(on_ib, too, lan))
    assert not found.needs_sockets(["a", "b"])
    assert not found.needs_sockets(["b"])
    assert found.needs_sockets(["c"])
    assert found.needs_sockets(["a", "c"])
    assert found.islands() == (("a", "b"),)
    both = pool("d", fabric="eth", nodes=2)
    both = both.model_copy(update={"nics": (*both.nics, *pool("x", gbps=10, cards=1).nics)})
    mixed = Topology(cluster(on_ib, both))
    assert mixed.path("d", "d").kind == "ethernet"
    assert mixed.needs_sockets(["a", "d"])
    assert not mixed.needs_sockets(["a", "d"], {"d"})
    assert mixed.islands() == (("a", "d"),)
    only = sockets_only(two_fabrics(FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=400, latency_us=5)))
    assert set(only.fabrics) == {"eth"}
    assert [[nic.fabric for nic in item.nics] for item in only.pools] == [["eth"], ["eth"]]
    assert only.links == ()


def test_slow_links_cut_the_cluster() -> None:
    """A link below half of the widest network inside a pool; at half it is not slow."""
    inside = {"nodes": 2, "gbps": 100, "cards": 1}
    for gbps, parts in ((49, (("a", "b"), ("c",))), (50, ())):
        link = FabricLinkSpec(between=("ib", "roce"), bandwidth_gbps=gbps, latency_us=5)
        pools = (pool("a", **inside), pool("b", **inside), pool("c", fabric="roce", **inside))  # type: ignore[arg-type]
        found = Topology(cluster(*pools, links=(link,)))
        assert found.joined_slowly(("a", "b", "c")) == parts


def test_what_a_kind_says() -> None:
    """Numbers of the file in SI units, of the pool and of the device."""
    spec = pool("m", nodes=3).model_copy(
        update={
            "intra_node": IntraNodeSpec(bandwidth_gBps=31.5, latency_us=5.7, shared=True),
            "reserve_gib": 3,
        }
    )
    (device_type,) = Topology(cluster(spec)).device_types
    assert (device_type.nodes, device_type.per_node, device_type.devices, device_type.replicas(3)) == (
        3,
        8,
        24,
        6,
    )
    assert (device_type.memory_bytes, device_type.reserve_bytes) == (80 * 2**30, 3 * 2**30)
    assert (device_type.memory_bytes_per_second, device_type.peak_flops["fp16"]) == (2039e9, 312e12)
    assert device_type.intra_bytes_per_second == 31.5e9
    assert device_type.intra_latency_seconds == pytest.approx(5.7e-6)
    assert device_type.intra_shared


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_networks_the_quicker_and_the_one_of_fewer_cards(order: int) -> None:
    """Whatever their names: first less latency, then fewer cards that share the traffic."""
    names = ("x", "y")[::order]
    for cards, latencies, best in (((1, 1), (9, 2), 1), ((1, 1), (2, 9), 0), ((4, 1), (5, 5), 1)):
        nics = tuple(
            NicSpec(fabric=name, bandwidth_gbps=400 / count, count=count)
            for name, count in zip(names, cards, strict=True)
        )
        fabrics = {
            name: FabricSpec(kind="infiniband", latency_us=latency)
            for name, latency in zip(names, latencies, strict=True)
        }
        home = pool("p", nodes=2).model_copy(update={"nics": nics})
        spec = cluster(home).model_copy(update={"fabrics": fabrics})
        assert Topology(spec).path("p", "p").fabric == names[best]
