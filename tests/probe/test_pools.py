"""Nodes become pools."""

from __future__ import annotations

from planner.probe.devices import SeenGpu
from planner.probe.draft import pools_of
from planner.probe.hosts import ListedHost
from planner.probe.node import ProbedNode


def node(host: str | None, product: str = "Tesla T4", count: int = 1) -> ProbedNode:
    """A node of equal devices."""
    return ProbedNode(host=host, gpus=tuple(SeenGpu(index=index, name=product) for index in range(count)))


def shapes(nodes: list[ProbedNode], hosts: list[ListedHost]) -> list[tuple[str, list[str], int]]:
    """(name, hosts, how many of them nobody looked at) of each pool."""
    return [(pool.name, pool.hosts, pool.assumed) for pool in pools_of(nodes, hosts).pools]


def test_equal_nodes_are_one_pool() -> None:
    """Others are pools of their own, each with a name of its own."""
    nodes = [node("a"), node("b"), node("c", count=2), node("d", "NVIDIA L4")]
    assert shapes(nodes, []) == [("t4", ["a", "b"], 0), ("t4-2", ["c"], 0), ("l4", ["d"], 0)]


def test_listed_hosts_join_the_pool_that_they_match() -> None:
    """By the number of devices and the word that Slurm has for them."""
    hosts = [
        ListedHost(name="a"),
        ListedHost(name="b", gpus=2),
        ListedHost(name="c", gpus=1, gpu_type="t4"),
        ListedHost(name="d", gpu_type="l4"),
    ]
    assert shapes([node("a", count=2), node("x"), node("y", "NVIDIA L4")], hosts) == [
        ("t4", ["a", "b"], 1),
        ("t4-2", ["x", "c"], 1),
        ("l4", ["y", "d"], 1),
    ]


def test_the_words_of_slurm_are_whole_ones() -> None:
    """With underscores for blanks where Slurm finds the type by itself; an a10 is no A100."""
    hosts = [
        ListedHost(name="a", gpus=1, gpu_type="nvidia_a100-sxm4-80gb"),
        ListedHost(name="b", gpus=1, gpu_type="a100"),
        ListedHost(name="c", gpus=1, gpu_type="a10"),
    ]
    assert shapes([node("x", "NVIDIA A100-SXM4-80GB")], hosts) == [
        ("a100-sxm-80gb", ["x", "a", "b"], 2),
        ("unseen", ["c"], 0),
    ]


def test_a_list_may_have_the_domains_of_nodes() -> None:
    """Or lack them: a node counts once, by its name in the list. Addresses are no names with domains."""
    both = [ListedHost(name="a.site"), ListedHost(name="b")]
    assert shapes([node("a"), node("b.site")], both) == [("t4", ["a.site", "b"], 0)]
    two = [ListedHost(name="a.east"), ListedHost(name="a.west")]
    assert shapes([node("a")], two) == [("t4", ["a", "a.east", "a.west"], 2)]
    assert shapes([node("10.0.0.1")], [ListedHost(name="10.0.0.2")]) == [("t4", ["10.0.0.1", "10.0.0.2"], 1)]


def test_outputs_that_contradict_the_list_are_told() -> None:
    """A job step without GPUs of its own sees none, or a few, of those that the node has."""
    hosts = [ListedHost(name=name, gpus=8) for name in ("a1", "a2", "b", "c")]
    nodes = [node("a1", count=2), node("a2", count=2), node("b", count=8), ProbedNode(host="c", gpus=())]
    assert [entry.line() for entry in pools_of(nodes, hosts).remarks] == [
        "# left out: c, it has no GPU",
        "# a[1-2]: 2 devices in the outputs, 8 in the list of hosts",
        "# c: 0 devices in the outputs, 8 in the list of hosts",
    ]


def test_nodes_that_are_not_up_are_left_out() -> None:
    """Those that were looked at too."""
    hosts = [ListedHost(name="a", away=True), ListedHost(name="b"), ListedHost(name="c", away=True)]
    found = pools_of([node("a"), node("b")], hosts)
    assert [(pool.hosts, pool.assumed) for pool in found.pools] == [(["b"], 0)]
    assert [entry.line() for entry in found.remarks] == ["# left out: a, c, not up by the list of hosts"]


def test_hosts_that_match_nothing_or_two_pools_are_unseen() -> None:
    """Their devices are never guessed."""
    hosts = [ListedHost(name="b", gpus=8), ListedHost(name="c")]
    found = pools_of([node("a"), node("x", "NVIDIA L4")], hosts).pools
    assert [(pool.name, pool.hosts) for pool in found][2:] == [("unseen", ["b"]), ("unseen-2", ["c"])]
    lines = [entry.line() for entry in found[2].lines()]
    assert lines[0] == "hosts: [b]"
    assert lines[1] == "# not seen: gpu: type of the devices"
    assert lines[2] == "gpus_per_node: 8  # as the list of hosts says"


def test_listed_hosts_without_devices_are_left_out() -> None:
    """As Slurm lists nodes of processors."""
    found = pools_of(
        [node("a")], [ListedHost(name="c1", gpus=0), ListedHost(name="c2", gpus=0), ListedHost(name="b")]
    )
    assert [pool.hosts for pool in found.pools] == [["a", "b"]]
    assert [entry.line() for entry in found.remarks] == ["# left out: c[1-2], no GPU by the list of hosts"]


def test_a_node_without_a_name_stands_for_the_listed_hosts() -> None:
    """The note says that nobody looked at them."""
    (pool,) = pools_of([node(None)], [ListedHost(name="n1"), ListedHost(name="n2")]).pools
    assert pool.lines()[2].line() == (
        "hosts: ['n[1-2]']  # assumed: 2 not looked at are taken to be like the node that was seen"
    )


def test_a_node_without_a_name_and_a_list_is_one_node() -> None:
    """Marked as assumed."""
    (pool,) = pools_of([node(None)], []).pools
    assert pool.lines()[2].line() == "nodes: 1  # assumed: no list of hosts was given"


def test_nodes_without_devices_are_left_out_beside_others() -> None:
    """A login node is no part of the cluster; alone it is a draft to fill in."""
    login = ProbedNode(host="login", gpus=())
    found = pools_of([login, node("a")], [])
    assert [pool.hosts for pool in found.pools] == [["a"]]
    assert [entry.line() for entry in found.remarks] == ["# left out: login, it has no GPU"]
    alone = pools_of([login], [])
    assert [(pool.name, pool.hosts) for pool in alone.pools] == [("unseen", ["login"])]
    assert alone.remarks == ()
