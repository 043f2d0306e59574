"""Groups of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.errors import UsageError
from planner.measure.process_groups import MeasuringTeam, cluster_teams, teams

TWO_SITES = """\
name: two-sites
pools:
  - {name: a, gpu: A100-SXM-80GB, hosts: ["a[0-1].site"], gpus_per_node: 2, intra_node: nvlink3,
     nics: [{fabric: ib, bandwidth_gbps: 200}]}
  - {name: v, gpu: V100-SXM-16GB, hosts: ["v[0-1]"], gpus_per_node: 2, intra_node: nvlink2,
     nics: [{fabric: ib, bandwidth_gbps: 100}, {fabric: eth, bandwidth_gbps: 10}]}
  - {name: t, gpu: T4, hosts: [t0], gpus_per_node: 2, intra_node: pcie3,
     nics: [{fabric: wan, bandwidth_gbps: 10}]}
fabrics:
  ib: {kind: infiniband}
  eth: {kind: ethernet}
  wan: {kind: ethernet}
links:
  - {between: [eth, wan], bandwidth_gbps: 1, latency_us: 5000}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterSpec:
    """Two pools on InfiniBand, one of them with Ethernet to a third behind a gateway."""
    (tmp_path / "c.yaml").write_text(TWO_SITES)
    return load_cluster(tmp_path / "c.yaml")


def test_groups_inside_a_node_double() -> None:
    """Up to all of it; so many at the same time as there are devices for."""
    assert teams(("n0",) * 6, ("A100",) * 6, None) == (
        MeasuringTeam("node:A100", ((0, 1), (2, 3), (4, 5))),
        MeasuringTeam("node:A100", ((0, 1, 2, 3),)),
        MeasuringTeam("node:A100", (tuple(range(6)),)),
    )


def test_nodes_of_the_same_kind_are_measured_once() -> None:
    """Then one process of each node, then all, then groups that share their nodes."""
    hosts, gpus = ("n0", "n0", "n1", "n1", "n2", "n2"), ("A100",) * 4 + ("V100",) * 2
    assert teams(hosts, gpus, "ib") == (
        MeasuringTeam("node:A100", ((0, 1),)),
        MeasuringTeam("node:V100", ((4, 5),)),
        MeasuringTeam("ib", ((0, 2),)),
        MeasuringTeam("ib", ((0, 2, 4),)),
        MeasuringTeam("ib", ((0, 1, 2, 3, 4, 5),)),
        MeasuringTeam("ib", ((0, 2), (1, 3)), concurrent=2),
        MeasuringTeam("ib", ((0, 2, 4), (1, 3, 5)), concurrent=2),
    )
    assert teams(("n0", "n1"), ("A100", "A100"), "ib") == (MeasuringTeam("ib", ((0, 1),)),)


def test_a_node_of_two_kinds_has_no_curve_of_its_own() -> None:
    """Its time would be nobody's."""
    assert teams(("n0", "n0"), ("A100", "V100"), None) == ()


def test_the_network_between_nodes_needs_its_name() -> None:
    """That of the cluster file."""
    with pytest.raises(UsageError, match="processes on 2 nodes: expected --cluster FILE, or --fabric"):
        teams(("n0", "n1"), ("A100", "A100"), None)


def test_groups_of_pools_are_named_as_the_cost_model_looks_them_up(cluster: ClusterSpec) -> None:
    """Inside each kind of node, between nodes, across pools; the narrower pair stands for a shared fabric."""
    hosts = ("a0", "a0", "a1", "a1", "v0", "v0", "v1", "v1")
    found, notes = cluster_teams(cluster, hosts, ("A100-SXM-80GB",) * 4 + ("V100-SXM-16GB",) * 4)
    assert notes == ()
    assert set(found) == {
        MeasuringTeam("node:A100-SXM-80GB", ((0, 1),)),
        MeasuringTeam("node:V100-SXM-16GB", ((4, 5),)),
        # Not (0, 2): the path between the pools is as narrow as the V100 nodes' cards.
        MeasuringTeam("ib", ((0, 4), (2, 6))),
        MeasuringTeam("ib", ((0, 2, 4, 6),)),
        MeasuringTeam("ib", (tuple(range(8)),)),
        MeasuringTeam("ib", ((0, 4), (2, 6), (1, 5), (3, 7)), concurrent=2),
        MeasuringTeam("ib", ((0, 2, 4, 6), (1, 3, 5, 7)), concurrent=2),
    }


def test_as_many_groups_as_devices_share_the_nodes() -> None:
    """First all that a node has devices for, then fewer: what is between lies between them."""
    found = teams(("n0",) * 8 + ("n1",) * 8, ("A100",) * 16, "ib")
    between = [team for team in found if team.link == "ib" and team.members == 2]
    assert [(team.concurrent, len(team.groups)) for team in between] == [(1, 1), (8, 8), (4, 4), (2, 2)]
    assert between[1].groups == tuple((rank, rank + 8) for rank in range(8))
    assert all(team.ranks == tuple(sorted({*team.ranks})) for team in found)


def test_groups_beside_the_first_are_on_the_same_path(cluster: ClusterSpec) -> None:
    """What is left of the larger pool is joined by a network of its own."""
    hosts, gpus = ("a0", "a1", "v0"), ("A100-SXM-80GB",) * 2 + ("V100-SXM-16GB",)
    large = cluster.pools[0].model_copy(update={"hosts": ("a0", "a1", "a2", "a3", "a4")})
    wide = cluster.model_copy(update={"pools": (large, *cluster.pools[1:])})
    found, _ = cluster_teams(wide, (*hosts, "a2", "a3", "a4"), (*gpus, *(gpus[0],) * 3), "ib")
    assert MeasuringTeam("ib", ((0, 2),)) in found
    assert MeasuringTeam("ib", ((0, 1, 2, 3),)) in found


def test_pools_behind_a_gateway_have_the_names_of_both_fabrics(cluster: ClusterSpec) -> None:
    """One from each pool, then all; pools without a path are told."""
    found, notes = cluster_teams(cluster, ("v0", "v1", "t0"), ("V100-SXM-16GB", "V100-SXM-16GB", "T4"))
    assert {(team.link, team.ranks) for team in found} == {
        ("ib", (0, 1)),
        ("eth+wan", (0, 2)),
        ("eth+wan", (0, 1, 2)),
    }
    assert notes == ()
    _, notes = cluster_teams(cluster, ("a0", "t0"), ("A100-SXM-80GB", "T4"))
    assert notes == ("pools a and t: no path in the cluster file, not measured",)


def test_one_fabric_alone(cluster: ClusterSpec) -> None:
    """For networks that need their own environment; a fabric that joins nothing here is refused."""
    hosts, gpus = ("v0", "v1", "t0"), ("V100-SXM-16GB", "V100-SXM-16GB", "T4")
    found, _ = cluster_teams(cluster, hosts, gpus, "wan+eth")
    assert {team.link for team in found} == {"eth+wan"}
    with pytest.raises(UsageError, match="--fabric eth: joins none of the nodes at hand") as error:
        cluster_teams(cluster, hosts, gpus, "eth")
    assert error.value.hint == "between them: eth+wan, ib"


def test_hosts_that_no_pool_has_are_named(cluster: ClusterSpec) -> None:
    """With what the pools have."""
    with pytest.raises(UsageError, match="no pool of two-sites has the hosts x0, x1") as error:
        cluster_teams(cluster, ("a0", "x0", "x1"), ("A100-SXM-80GB",) * 3)
    assert "a0.site" in str(error.value.hint)


def test_devices_have_the_names_of_the_cluster_file(cluster: ClusterSpec) -> None:
    """Curves are found by them; what torch calls another way is told, or refused in a pool of several kinds."""
    found, notes = cluster_teams(cluster, ("a0", "a0"), ("A100-SXM-40GB",) * 2)
    assert [team.link for team in found] == ["node:A100-SXM-80GB"]
    assert notes[0].startswith("pool a: A100-SXM-80GB in the cluster file is A100-SXM-40GB here")
    mixed = cluster.pools[0].model_copy(update={"devices": ("A100-SXM-80GB", "V100-SXM-16GB")})
    other = cluster.model_copy(update={"pools": (mixed, *cluster.pools[1:])})
    found, _ = cluster_teams(other, ("a0",) * 4, ("a100-sxm-80gb",) * 2 + ("V100-SXM-16GB",) * 2)
    assert [team.ranks for team in found] == [(0, 1), (2, 3)]
    with pytest.raises(
        UsageError, match="pool a: its devices are A100-SXM-80GB, V100-SXM-16GB, host a0 has T4"
    ):
        cluster_teams(other, ("a0",), ("T4",))
