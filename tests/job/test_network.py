"""Each pool's nodes get the network that the job can use."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.job.job import NEEDS_IMEX, job_network, pool_environment
from planner.plan.placement import Agent
from tests.worlds import cluster, nic, pool

IB = nic("ib", "ib0", "mlx5_0,mlx5_1", gbps=200.0)
ETH = nic("eth", "ens1", gbps=25.0)
ROCE = nic("roce", "ens2", "mlx5_2")


def start(*names: str) -> list[Agent]:
    """A launcher of one device on the first node of each named pool; a name twice takes the next node."""
    return [
        Agent(host=f"{name}-{names[:index].count(name)}", pool=name, first_rank=index, devices=(0,))
        for index, name in enumerate(names)
    ]


def environment(where: ClusterSpec, launchers: list[Agent], name: str, sockets: bool = False) -> list[str]:
    """Lines of a pool's environment."""
    chosen = next(each for each in where.pools if each.name == name)
    return pool_environment(where, chosen, job_network(where, launchers), sockets).splitlines()


def test_one_node_needs_no_network() -> None:
    """Nothing is exported for a job on one node."""
    where = cluster(pool("a", ("A100",), 2, (IB, ETH)))
    assert not [line for line in environment(where, start("a"), "a") if "export" in line]


def test_shared_infiniband() -> None:
    """All nodes on one RDMA fabric: its devices for data, Ethernet for the start."""
    where = cluster(pool("a", ("A100",), 1, (IB, ETH)), pool("b", ("T4",), 1, (IB, ETH)))
    launchers = start("a", "b")
    assert not job_network(where, launchers).crosses
    assert environment(where, launchers, "a")[2:] == [
        "# Sockets: fabric eth.",
        "export NCCL_SOCKET_IFNAME='=ens1'",
        "export GLOO_SOCKET_IFNAME=ens1",
        "# RDMA: fabric ib (infiniband).",
        "export NCCL_IB_HCA='=mlx5_0,mlx5_1'",
    ]


def test_names_that_devices_begin_with() -> None:
    """NCCL would find no device that is called mlx5 exactly; as many names as cards are whole ones."""
    for names, count, expected in (
        ("mlx5", 8, "mlx5"),
        ("mlx5_0,mlx5_1", 2, "'=mlx5_0,mlx5_1'"),
        ("mlx5_0,mlx5_1", 8, "mlx5_0,mlx5_1"),
        ("mlx5_0, mlx5_1", 2, "'=mlx5_0,mlx5_1'"),
    ):
        cards = nic("ib", "ens2", names).model_copy(update={"count": count})
        where = cluster(pool("a", ("A100",), 2, (cards,)))
        assert f"export NCCL_IB_HCA={expected}" in environment(where, start("a", "a"), "a")


def test_roce_names_its_address() -> None:
    """RoCE needs the index of its address."""
    where = cluster(pool("a", ("A100",), 2, (ROCE,)))
    lines = environment(where, start("a", "a"), "a")
    assert "export NCCL_IB_GID_INDEX=3" in lines
    assert "export NCCL_SOCKET_IFNAME='=ens2'" in lines


def test_interfaces_with_blanks_between() -> None:
    """NCCL would look for one that begins with a blank."""
    where = cluster(pool("a", ("A100",), 2, (nic("eth", "ens1, ens2"),)))
    lines = environment(where, start("a", "a"), "a")
    assert "export NCCL_SOCKET_IFNAME='=ens1,ens2'" in lines
    assert "export GLOO_SOCKET_IFNAME=ens1" in lines


def test_different_fabrics_cross() -> None:
    """InfiniBand here and RoCE there share no RDMA: with one network for all, it is sockets."""
    where = cluster(pool("a", ("A100",), 1, (IB, ETH)), pool("b", ("A100",), 1, (ROCE, ETH)))
    launchers = start("a", "b")
    assert job_network(where, launchers).crosses
    lines = environment(where, launchers, "b", sockets=True)
    assert "export NCCL_NET=Socket" in lines
    assert "export NCCL_SOCKET_IFNAME='=ens1'" in lines
    assert not [line for line in lines if "NCCL_IB_HCA" in line]


def test_nvlink_between_nodes_is_found_by_nccl() -> None:
    """It has no address and no device to name: the cards of the other fabrics are named as without it."""
    rack = nic("rack", gbps=7200.0)
    where = cluster(pool("a", ("A100",), 2, (rack, IB, ETH)), pool("b", ("A100",), 1, (IB, ETH)))
    without = cluster(pool("a", ("A100",), 2, (IB, ETH)), pool("b", ("A100",), 1, (IB, ETH)))
    launchers = start("a", "a", "b")
    assert job_network(where, launchers) == job_network(without, launchers)
    more = set(environment(where, launchers, "a")) - set(environment(without, launchers, "a"))
    assert more == {f"# NVLink: fabric rack. {NEEDS_IMEX}"}
    assert environment(where, launchers, "b") == environment(without, launchers, "b")
    alone = cluster(pool("a", ("A100",), 2, (rack,)))
    assert job_network(alone, start("a", "a")).sockets == {"a": None}


def test_fabric_that_most_pools_share_wins() -> None:
    """A pool on two RDMA fabrics takes the one its neighbours have, though slower."""
    both = pool("a", ("A100",), 1, (IB, ROCE, ETH))
    where = cluster(both, pool("b", ("A100",), 1, (ROCE, ETH)))
    assert job_network(where, start("a", "b")).rdma == {"a": "roce", "b": "roce"}
    assert job_network(where, start("a")).rdma == {"a": "ib"}


def test_the_widest_cards_together_win() -> None:
    """Four cards of 100 Gbit/s carry more than one of 200, and one of 400 more than three of 100."""
    for count, expected in ((1, "roce"), (3, "ib"), (4, "ib")):
        many = nic("ib", gbps=100.0).model_copy(update={"count": count})
        where = cluster(pool("a", ("A100",), 2, (nic("roce", gbps=200.0), many)))
        assert job_network(where, start("a", "a")).rdma == {"a": expected}
    wide = nic("eth", "ens1", gbps=25.0).model_copy(update={"count": 4})
    two = cluster(pool("a", ("A100",), 2, (nic("lan", "ens9", gbps=40.0), wide)))
    found = job_network(two, start("a", "a")).sockets["a"]
    assert found is not None
    assert found.fabric == "eth"


def test_unknown_names_are_left_to_fill_in() -> None:
    """Without names in the cluster file nothing is guessed."""
    where = cluster(pool("a", ("A100",), 2, (nic("ib"), nic("eth"))))
    lines = environment(where, start("a", "a"), "a")
    assert not [line for line in lines if line.startswith("export")]
    assert sum(line.startswith("# EDIT:") for line in lines) == 2


def test_shell_characters_are_quoted() -> None:
    """Names from a file cannot run commands."""
    where = cluster(pool("a", ("A100",), 2, (nic("eth", "x; rm -rf $HOME"),)))
    assert "export NCCL_SOCKET_IFNAME='=x; rm -rf $HOME'" in environment(where, start("a", "a"), "a")


def test_no_cards() -> None:
    """A pool without cards is said to have none."""
    where = cluster(pool("a", ("A100",), 2))
    assert "# The cluster file gives this pool no network cards." in environment(where, start("a", "a"), "a")


def test_never_ignores_a_mismatch() -> None:
    """NCCL is never told to go on when nodes chose different networks."""
    where = cluster(pool("a", ("A100",), 1, (IB,)), pool("b", ("T4",), 1, (ETH,)))
    for name in ("a", "b"):
        assert "MISMATCH" not in "".join(environment(where, start("a", "b"), name, sockets=True))


def of_provider(provider: str, kind: str = "roce") -> list[str]:
    """Environment of two nodes on a provider's fabric."""
    where = cluster(
        pool("a", ("A100",), 2, (nic("net", "eth1,eth2"), nic("eth", "eth0"))), fabrics={"net": kind}
    )
    fabric = where.fabrics["net"].model_copy(update={"provider": provider})
    where = where.model_copy(update={"fabrics": {**where.fabrics, "net": fabric}})
    return environment(where, start("a", "a"), "a")


def test_networks_of_providers() -> None:
    """Plugins have their own variables, and none of InfiniBand's; Azure has both."""
    assert "export FI_PROVIDER=efa" in of_provider("efa")
    assert "export FI_CXI_DISABLE_HOST_REGISTER=1" in of_provider("slingshot")
    tcpx = of_provider("tcpx")
    assert "export NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth2" in tcpx
    assert "export NCCL_GPUDIRECTTCPX_CTRL_DEV=eth0" in tcpx
    tcpxo = of_provider("tcpxo")
    assert "export NCCL_FASTRAK_IFNAME=eth1,eth2" in tcpxo
    assert "export NCCL_FASTRAK_CTRL_DEV=eth0" in tcpxo
    for lines in (of_provider("efa"), tcpx, tcpxo):
        assert not any("NCCL_IB" in line or "NCCL_NET=Socket" in line for line in lines)
    azure = of_provider("azure", "infiniband")
    assert "export NCCL_IB_PCI_RELAXED_ORDERING=1" in azure
    assert any("NCCL_IB_HCA" in line for line in azure)


def test_groups_of_their_own_networks_beside_a_plugin() -> None:
    """NCCL_NET would be that of all groups, those on sockets among them."""
    where = cluster(
        pool("a", ("A100",), 2, (nic("net", "eth1"), nic("eth", "eth0"))),
        pool("b", ("A100",), 2, (nic("ib", "ib0"), nic("eth", "eth0"))),
        fabrics={"net": "roce"},
    )
    fabric = where.fabrics["net"].model_copy(update={"provider": "tcpx"})
    where = where.model_copy(update={"fabrics": {**where.fabrics, "net": fabric}})
    assert "export NCCL_NET=GPUDirectTCPX_v7" in environment(where, start("a", "a"), "a")
    assert not any("NCCL_NET=" in line for line in environment(where, start("a", "b"), "a"))
