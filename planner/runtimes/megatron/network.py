"""The network of each Megatron process group, for jobs whose nodes share no RDMA fabric.

Megatron reads a file that names, for each kind of process group, ``IB`` or ``Socket`` (NCCL calls RoCE
``IB`` too). Every rank of one group must name the same, so pools that meet in a group share its network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from planner.job.network import JobNetwork
from planner.plan.placement import Rank

REPLICAS = ("dp", "dp_cp", "intra_dp_cp", "gtp_remat_dp", "gtp_remat_dp_cp", "ep_dp", "intra_ep_dp")
"""Groups over the replicas of one stage."""
STAGES = ("pp", "embd")
"""Groups over the stages of one pipeline."""
STAGE_DEVICES = ("tp_dp_cp", "tp_dp")
"""Groups over all devices of one stage."""
PIPELINE_DEVICES = ("mp", "tp_ep_mp", "tp_ep_pp", "tp_ep_gtp_remat_pp")
"""Groups over all devices of one pipeline."""
ALL_DEVICES = ("intra_dist_opt_instance",)
"""Groups over all devices of the job."""

Members = frozenset[str]
"""Pools that have members in one process group spanning several nodes."""


def group_networks(ranks: Sequence[Rank], network: JobNetwork) -> dict[str, str]:
    """Text of each pool's network file; empty when one network has to serve all groups of the job.

    That is so when all nodes share an RDMA fabric, when none has one, and when no group could use it.
    """
    if not network.crosses:
        return {}
    kinds = (
        (REPLICAS, _instances(ranks, lambda rank: (rank.stage, rank.tp_rank))),
        (STAGES, _instances(ranks, lambda rank: (rank.replica, rank.tp_rank))),
        (STAGE_DEVICES, _instances(ranks, lambda rank: rank.stage)),
        (PIPELINE_DEVICES, _instances(ranks, lambda rank: rank.replica)),
        (ALL_DEVICES, _instances(ranks, lambda rank: None)),
    )
    choices = [(names, _choose(instances, network)) for names, instances in kinds]
    if not any("IB" in choice.values() for _, choice in choices):
        return {}
    return {
        pool: _text({name: choice[pool] for names, choice in choices if pool in choice for name in names})
        for pool in network.rdma
    }


def _instances(ranks: Iterable[Rank], key: Callable[[Rank], Hashable]) -> set[Members]:
    """The groups of one type that span several nodes, by the pools in them."""
    hosts: dict[Hashable, set[str]] = defaultdict(set)
    pools: dict[Hashable, set[str]] = defaultdict(set)
    for rank in ranks:
        hosts[key(rank)].add(rank.host)
        pools[key(rank)].add(rank.pool)
    return {frozenset(pools[group]) for group in pools if len(hosts[group]) > 1}


def _choose(instances: set[Members], network: JobNetwork) -> dict[str, str]:
    """``IB`` or ``Socket`` for each pool in a group: sockets spread to all pools that meet in groups."""
    sockets = {pool for members in instances for pool in members if not _share_rdma(members, network)}
    while True:
        spread = {pool for members in instances if members & sockets for pool in members}
        if spread <= sockets:
            break
        sockets |= spread
    met = {pool for members in instances for pool in members}
    return {pool: "Socket" if pool in sockets else "IB" for pool in sorted(met)}


def _share_rdma(members: Members, network: JobNetwork) -> bool:
    fabrics = {network.rdma[pool] for pool in members}
    return len(fabrics) == 1 and None not in fabrics


def _text(networks: dict[str, str]) -> str:
    return "".join(f"{name}:\n  net_name: {net}\n" for name, net in networks.items())
