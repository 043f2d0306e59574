"""One run of a plan: its processes on their nodes, and all that follows from where they are."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from functools import cached_property

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.files.short_lists import compress_hosts, numbered_hosts
from planner.job.network import JobNetwork, job_network
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent, Rank, agents
from planner.plan.values import Plan

MASTER_PORT = 29500
LOOPBACK = "127.0.0.1"
"""Where the processes of a job on one node meet, whatever the node is called."""

NVME_FOLDER = "/local_nvme"
"""Stands for the folder of each node that NVME_PATH names, and where pods see theirs."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What runtimes, launchers and READMEs are written from."""

    plan: Plan
    cluster: ClusterSpec
    model: ModelSpec
    ranks: tuple[Rank, ...]
    """Every process, in the runtime's rank order."""
    script: tuple[str, ...] = ()
    """A training script of the user's and its arguments; empty for what the runtime starts by itself."""
    library: tuple[str, ...] = ()
    """A library that trains over the runtime and arguments for it; empty for the runtime by itself."""

    def program(self, usual: str, *between: str) -> str:
        """Shell words of what each rank runs: the user's script, or what is usual; then words, then its arguments."""
        own = '"$script"' if self.script else usual
        return " ".join([own, *between, *map(shlex.quote, (self.script or self.library)[1:])])

    @property
    def name(self) -> str:
        """The model's name as Slurm and Kubernetes take it: small letters, digits and dashes."""
        return label(self.model.name, "job")

    @cached_property
    def agents(self) -> tuple[Agent, ...]:
        """Runs of consecutive ranks on one node, in rank order; a host may come more than once."""
        return agents(self.ranks)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every host once, in order of its first rank."""
        return tuple(dict.fromkeys(agent.host for agent in self.agents))

    @cached_property
    def pools(self) -> tuple[PoolSpec, ...]:
        """Used pools, in order of their first rank."""
        known = {pool.name: pool for pool in self.cluster.pools}
        return tuple(known[name] for name in dict.fromkeys(agent.pool for agent in self.agents))

    @cached_property
    def libraries(self) -> dict[str, list[str]]:
        """Used pools whose devices need RCCL, and the others: more than one kind with islands alone."""
        pools: dict[str, list[str]] = {"rccl_pools": [], "nccl_pools": []}
        for pool in self.pools:
            rccl = any(self.cluster.gpus[gpu].library == "RCCL" for gpu in pool.devices)
            pools["rccl_pools" if rccl else "nccl_pools"].append(pool.name)
        return pools

    def hosts_of(self, pool: PoolSpec) -> tuple[str, ...]:
        """Used hosts of a pool, in order of their first rank."""
        return tuple(dict.fromkeys(agent.host for agent in self.agents if agent.pool == pool.name))

    @cached_property
    def network(self) -> JobNetwork:
        """Which network each pool's nodes use."""
        return job_network(self.cluster, self.agents)

    @cached_property
    def islands(self) -> tuple[tuple[Rank, ...], ...]:
        """Ranks that are exact among themselves, in the order of their first ones; one island where all are."""
        if self.plan.sync.exact:
            return (self.ranks,)
        islands: dict[object, list[Rank]] = {}
        for rank in self.ranks:
            nodes = next(pool.hosts for pool in self.cluster.pools if pool.name == rank.pool)
            islands.setdefault(self.plan.sync.island_of(rank.pool, nodes.index(rank.host)), []).append(rank)
        return tuple(tuple(island) for island in islands.values())

    def network_of(self, pool: PoolSpec) -> JobNetwork:
        """What communicators of a used pool see: with islands that of its own, whose RDMA others need not share."""
        if self.plan.sync.exact:
            return self.network
        island = next(ranks for ranks in self.islands if any(rank.pool == pool.name for rank in ranks))
        own = job_network(self.cluster, agents(island))
        return replace(own, nodes=self.network.nodes, sockets=self.network.sockets, alone=own.nodes == 1)

    @property
    def is_on_one_node(self) -> bool:
        """True for a job whose processes meet without a network."""
        return len(self.hosts) == 1

    @property
    def is_on_any_node(self) -> bool:
        """True for a job on one node of an unnamed pool: it runs where it is started."""
        return self.is_on_one_node and is_unnamed(self.pools[0])

    @property
    def stages_first(self) -> bool:
        """True when ranks are numbered stage before replica."""
        stages = [rank.stage for rank in self.ranks]
        return stages != sorted(stages)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names that stand for nodes which the cluster file does not name, in short form: ``fast-[0-3]``."""
        used = {pool.name for pool in self.pools}
        unnamed = (pool for pool in self.cluster.pools if pool.name in used and is_unnamed(pool))
        return tuple(name for pool in unnamed for name in compress_hosts(pool.hosts))


def is_unnamed(pool: PoolSpec) -> bool:
    """True where hosts are called as hetplan calls them itself, after their pool."""
    return pool.hosts == numbered_hosts(pool.name, len(pool.hosts))


def label(text: str, fallback: str) -> str:
    """A text as part of a DNS label of at most 20 characters: a small letter first, then letters, digits, dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"{fallback}-{plain}".rstrip("-")
    return plain[:20].rstrip("-")
