"""Which parts of a cluster are considered."""

from __future__ import annotations

import pytest

from planner.calibration.values import ASSUMED
from planner.catalog import IntraNodeSpec
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.communication import inside_rate
from planner.search.objectives.candidates import sub_cluster_candidates
from tests.worlds import cluster, gpt, pool

MODEL = gpt()


def counts(spec: ClusterSpec, *limits: tuple[str, int], most: int = 100) -> list[dict[str, int]]:
    """Devices by pool and kind of every sub-cluster."""
    return [
        {f"{name} {gpu}": devices for (name, gpu), devices in sub.devices.items()}
        for sub in sub_cluster_candidates(spec, MODEL, limits, most)
    ]


def test_all_counts_of_small_pools() -> None:
    """Devices inside one node, whole nodes beyond; smallest first, the whole cluster last."""
    spec = cluster(pool("a", nodes=3, per_node=2))
    assert [entry["a A100"] for entry in counts(spec)] == [1, 2, 4, 6]
    assert sub_cluster_candidates(spec, MODEL)[-1].cluster is spec
    both = counts(cluster(pool("a", per_node=1), pool("b", "V100", per_node=1)))
    assert both == [{"a A100": 1}, {"b V100": 1}, {"a A100": 1, "b V100": 1}]


def test_sub_clusters_are_clusters() -> None:
    """The first hosts with the first devices of each device type, on the same fabrics."""
    mixed = pool("m", nodes=2, per_node=2).model_copy(update={"devices": ("A100", "V100", "V100")})
    spec = cluster(mixed)
    found = {
        tuple(sorted(sub.devices.items())): sub.cluster.pools[0]
        for sub in sub_cluster_candidates(spec, MODEL)
    }
    part = found[(("m", "A100"), 1), (("m", "V100"), 1)]
    assert (part.devices, part.hosts) == (("A100", "V100"), ("m-0",))
    only = found[((("m", "V100"), 4),)]
    assert (only.devices, only.hosts) == (("V100", "V100"), ("m-0", "m-1"))
    for sub in sub_cluster_candidates(spec, MODEL):
        taken = sum(len(item.devices) * len(item.hosts) for item in sub.cluster.pools)
        assert taken == sub.total


def test_limits_on_devices() -> None:
    """Per pool, in all, none of a pool; the most that is allowed is always there."""
    spec = cluster(pool("a", nodes=4, per_node=4), pool("b", "V100", nodes=2, per_node=8))
    found = counts(spec, ("a", 9), ("", 12))
    assert max(entry.get("a A100", 0) for entry in found) == 8
    assert max(sum(entry.values()) for entry in found) == 12
    assert all("a A100" not in entry for entry in counts(spec, ("a", 0)))
    assert counts(spec, ("", 0)) == []


@pytest.mark.parametrize("pools", [1, 2, 3, 5, 7, 12])
def test_large_clusters_are_offered_in_round_numbers(pools: int) -> None:
    """Never more than asked for; all devices, and every pool alone, are among them."""
    spec = cluster(*(pool(f"p{index}", nodes=64) for index in range(pools)))
    for most in (40, 100):
        found = counts(spec, most=most)
        assert 0 < len(found) <= most
        assert found[-1] == {f"p{index} A100": 512 for index in range(pools)}
        assert {f"p{pools - 1} A100": 512} in found


def test_parts_of_nodes_alone_are_offered_beside_whole_pools() -> None:
    """In round numbers, where there are too many sets of them: one device may be the cheapest."""
    spec = cluster(*(pool(f"p{index}", nodes=2, per_node=4) for index in range(3)))
    found = counts(spec, most=32)
    assert len(found) <= 32
    assert all({"p1 A100": number} in found for number in (1, 2, 4, 8))
    assert {"p0 A100": 4, "p2 A100": 8} in found


def test_every_number_of_nodes_of_a_pool_alone_where_there_is_room() -> None:
    """Three of four nodes may be the cheapest that are fast enough; where not all numbers fit none is added."""
    spec = cluster(*(pool(f"p{index}", nodes=4, per_node=8) for index in range(3)))
    found = counts(spec)
    assert len(found) == 63 + 9 + 3
    assert all({f"p{index} A100": 24} in found for index in range(3))
    many = counts(cluster(*(pool(f"p{index}", nodes=30, per_node=8) for index in range(3))))
    assert len(many) <= 100
    assert {"p0 A100": 8 * 29} not in many


def test_devices_without_the_number_format_are_left_out() -> None:
    """V100 have no bf16."""
    spec = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
    found = sub_cluster_candidates(spec, gpt(precision="bf16"))
    assert [dict(sub.devices) for sub in found] == [{("a", "A100"): 1}, {("a", "A100"): 2}]
    assert sub_cluster_candidates(cluster(pool("b", "V100")), gpt(precision="bf16")) == ()


def test_a_part_of_a_node_has_its_share_of_a_shared_bus() -> None:
    """The bus is priced as if all devices of the node talked; four of eight see what they see on the whole node."""
    bus = IntraNodeSpec(bandwidth_gBps=16, shared=True)
    spec = cluster(pool("a").model_copy(update={"intra_node": bus}))
    half = next(sub for sub in sub_cluster_candidates(spec, MODEL) if sub.total == 4)
    assert half.cluster.pools[0].intra_node.bandwidth_gBps == 8


def test_a_part_of_a_node_has_its_share_of_what_four_devices_share() -> None:
    """Six of eight are behind the same bridges as all, and two have half of one."""
    bus = IntraNodeSpec(bandwidth_gBps=16, shared=True, shared_by=4)
    spec = cluster(pool("a").model_copy(update={"intra_node": bus}))
    rates = {
        sub.total: inside_rate(Topology(sub.cluster).device_types[0], ASSUMED)
        for sub in sub_cluster_candidates(spec, MODEL)
    }
    assert rates[8] == rates[4] == rates[2] == 4e9 * ASSUMED.family("ampere").link_efficiency


def test_a_part_of_a_node_with_two_types_has_its_share_of_a_shared_bus() -> None:
    """Devices of both types are on the bus: three of six are as fast as they are on the whole node."""
    bus = IntraNodeSpec(bandwidth_gBps=18, shared=True)
    mixed = pool("a").model_copy(update={"intra_node": bus, "devices": ("A100",) * 2 + ("V100",) * 4})
    spec = cluster(mixed)
    half = next(
        sub for sub in sub_cluster_candidates(spec, MODEL) if len(sub.devices) == 2 and sub.total == 3
    )
    for where in (spec, half.cluster):
        rates = {inside_rate(each, ASSUMED) for each in Topology(where).device_types}
        assert rates == {3e9 * ASSUMED.family("ampere").link_efficiency}
