"""What a launcher needs to know of a job, whatever the target."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.plan.placement import Agent, Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A plan's processes on their nodes."""

    model: str
    target: str
    agents: tuple[Agent, ...]
    """Launchers in rank order; a host may come more than once."""
    ranks: tuple[Rank, ...]
    cluster: ClusterSpec

    @property
    def name(self) -> str:
        """The model's name as Slurm and Kubernetes take it: small letters, digits and dashes."""
        return label(self.model, "job")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host once, in order of its first rank."""
        return tuple(dict.fromkeys(agent.host for agent in self.agents))

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """Used pools, in order of their first rank."""
        known = {pool.name: pool for pool in self.cluster.pools}
        return tuple(known[name] for name in dict.fromkeys(agent.pool for agent in self.agents))

    def hosts_of(self, pool: PoolSpec) -> tuple[str, ...]:
        """Used hosts of a pool, in order of their first rank."""
        return tuple(dict.fromkeys(agent.host for agent in self.agents if agent.pool == pool.name))


def label(text: str, fallback: str, longest: int = 20) -> str:
    """A text as part of a DNS label: a small letter first, then small letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"{fallback}-{plain}".rstrip("-")
    return plain[:longest].rstrip("-")
