"""Process groups inside one RDMA fabric use it, all others sockets, and all ranks of a group agree."""

from __future__ import annotations

from collections import defaultdict

import yaml

from planner.cluster.spec import ClusterSpec
from planner.job.job import job_network
from planner.plan.placement import agents, ranks
from planner.plan.values import Plan
from planner.runtimes.megatron.runtime import group_networks
from tests.worlds import cluster, group, nic, plan, pool

EAST = pool("east", ("A100",) * 4, 2, (nic("ib"), nic("eth")))
WEST = pool("west", ("A100",) * 4, 2, (nic("roce"), nic("eth")))
PLAIN = pool("plain", ("A100",) * 4, 2, (nic("eth"),))


def networks(chosen: Plan, where: ClusterSpec) -> dict[str, dict[str, str]]:
    """Network of each kind of group by pool."""
    everyone = ranks(chosen, where)
    texts = group_networks(everyone, job_network(where, agents(everyone)))
    return {
        name: {each: value["net_name"] for each, value in yaml.safe_load(text).items()}
        for name, text in texts.items()
    }


def split(first: str, last: str, count: int = 4) -> Plan:
    """A stage on each of two pools, over both of its nodes."""
    return plan(
        "megatron",
        1,
        [2, 2],
        [
            (group(first, "A100", tp=2, count=count, share=2),),
            (group(last, "A100", tp=2, count=count, share=2),),
        ],
    )


def test_one_fabric_needs_no_file() -> None:
    """Nothing is written when one network serves all."""
    assert networks(split("east", "east", count=2), cluster(EAST)) == {}
    assert networks(split("plain", "plain", count=2), cluster(PLAIN)) == {}


def test_stages_on_two_fabrics() -> None:
    """Replicas stay on their fabric, the pipeline crosses."""
    found = networks(split("east", "west"), cluster(EAST, WEST))
    assert found["east"] == found["west"]
    assert {found["east"][name] for name in ("dp", "dp_cp", "tp_dp")} == {"IB"}
    assert {found["east"][name] for name in ("pp", "mp", "embd", "intra_dist_opt_instance")} == {"Socket"}


def test_fabrics_that_nccl_reaches_by_a_plugin() -> None:
    """Megatron takes ``IB`` and ``Socket`` alone: a plugin has another name, and is found where the file has none."""
    where = cluster(EAST, WEST)
    fabric = where.fabrics["roce"].model_copy(update={"provider": "efa"})
    where = where.model_copy(update={"fabrics": {**where.fabrics, "roce": fabric}})
    found = networks(split("east", "west"), where)
    assert {found["east"][name] for name in ("dp", "dp_cp", "tp_dp")} == {"IB"}
    assert set(found["west"].values()) == {"Socket"}
    assert set(found["east"]) - set(found["west"]) == {
        name for name, net in found["east"].items() if net == "IB"
    }


def test_replicas_on_several_nodes() -> None:
    """Groups inside replicas have a network too where these fill nodes."""
    stages = [(group(name, "A100", tp=8, share=2),) for name in ("east", "west")]
    found = networks(plan("megatron", 1, [2, 2], stages), cluster(EAST, WEST))
    assert {found["east"][name] for name in ("tp", "tp_cp", "ep_tp")} == {"IB"}
    assert "tp" not in networks(split("east", "west"), cluster(EAST, WEST))["east"]


def test_pool_without_rdma() -> None:
    """Replicas on a pool without RDMA use sockets while those with it use RDMA."""
    found = networks(split("east", "plain"), cluster(EAST, PLAIN))
    assert found["east"]["dp"] == "IB"
    assert found["plain"]["dp"] == "Socket"


def test_no_group_inside_a_fabric() -> None:
    """Where every group of several nodes crosses, the whole job uses sockets and no file is written."""
    replicas = (group("east", "A100", tp=2, count=4, share=1), group("west", "A100", tp=2, count=4, share=1))
    assert networks(plan("megatron", 1, [4], [replicas]), cluster(EAST, WEST)) == {}


def test_members_agree() -> None:
    """Three stages, one of them across both fabrics: sockets spread to all pools that meet there."""
    stages = [
        (group("east", "A100", tp=2, count=2, share=2),),
        (group("east", "A100", tp=2, count=1, share=2), group("west", "A100", tp=2, count=1, share=2)),
        (group("west", "A100", tp=2, count=2, share=2),),
    ]
    chosen = plan("megatron", 1, [2, 1, 1], stages)
    where = cluster(EAST, WEST)
    found = networks(chosen, where)
    members: dict[tuple[int, int], set[str]] = defaultdict(set)
    for rank in ranks(chosen, where):
        members[rank.stage, rank.tp_rank].add(rank.pool)
    for pools in members.values():
        assert len({found.get(name, {}).get("dp") for name in pools}) == 1
