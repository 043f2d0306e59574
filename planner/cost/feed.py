"""Training data on its way to the devices: what storage, caches and processors of a node can feed.

A loader reads ahead, so a step waits for data only where reading, or making ready, takes longer than the step: then it
takes as long as that. Of a data set that is read again and again the caches of a node hold a part from the second pass
on; sequences come in random order from all of it, so that part of the reads is theirs (three tiers as in
arXiv:2010.10458: network storage, local disk, memory). Tiers, and processors, work at the same time.

Each replica of the first stage reads its sequences, and each of the last reads them again for its labels; in V-shaped
pipelines the first stage has both.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cost.schedules import is_v_shaped
from planner.frozen import dataclass
from planner.model.spec import DataSpec, ModelSpec
from planner.plan.placement import Placement, replica_parts
from planner.plan.values import Plan
from planner.units import bytes_per_second_from_gigabytes

CACHES = {"memory": "cache in memory", "nvme": "cache on NVMe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What the data of a step takes."""

    seconds: float
    """Seconds until the last node has its data."""
    limit: str
    """What it waits for: ``the storage of all nodes``, ``the processors of a node of a100``."""


NOTHING = Fed(seconds=0.0, limit="")


class Feed:
    """What each sequence costs each node, and the storage of all."""

    def __init__(self, cluster: ClusterSpec, model: ModelSpec) -> None:
        self.cluster, self.model = cluster, model
        self.data = model.training.data or DataSpec()
        length = model.training.sequence_length
        self.bytes = self.data.bytes_per_sequence or self.data.bytes_per_token * length
        rate = cluster.storage_gBps
        self.shared = None if rate is None else bytes_per_second_from_gigabytes(rate)
        self.costs = {
            first: {pool.name: self._costs(pool, first) for pool in cluster.pools} for first in (True, False)
        }
        self.missed = {
            first: {pool.name: self._missed(pool, first) for pool in cluster.pools} for first in (True, False)
        }

    def _kept(self, pool: PoolSpec, first: bool) -> list[tuple[str, float, float]]:
        """(name, share of the data, byte/s) of each cache of a node; nothing in the first pass."""
        feed = pool.host.feed if pool.host else None
        if feed is None or first or self.data.dataset_gib is None:
            return []
        left, kept = 1.0, []
        for cache in feed.caches:
            share = min(left, cache.gib / self.data.dataset_gib)
            kept.append((CACHES[cache.kind], share, bytes_per_second_from_gigabytes(cache.gBps)))
            left -= share
        return kept

    def _missed(self, pool: PoolSpec, first: bool) -> float:
        """Share of the data that a node reads from storage."""
        return max(0.0, 1.0 - sum(share for _, share, _ in self._kept(pool, first)))

    def _costs(self, pool: PoolSpec, first: bool) -> dict[str, float]:
        """Seconds of one sequence on a node, by what it waits for."""
        feed = pool.host.feed if pool.host else None
        if feed is None:
            return {}
        costs = {name: share * self.bytes / rate for name, share, rate in self._kept(pool, first)}
        if feed.storage_gBps is not None:
            rate = bytes_per_second_from_gigabytes(feed.storage_gBps)
            costs["reads from storage"] = self._missed(pool, first) * self.bytes / rate
        rates = []
        if not self.data.prepared and feed.core_tokens_per_s is not None:
            rates.append(feed.core_tokens_per_s / self.model.training.sequence_length)
        if not self.data.prepared and feed.core_sequences_per_s is not None:
            rates.append(feed.core_sequences_per_s)
        if rates:
            costs["processors"] = 1.0 / (feed.cores * min(rates))
        return costs

    def of(self, plan: Plan, placement: Placement, *, first_pass: bool = False) -> Fed:
        """What the data of a step takes with a plan."""
        nodes: dict[tuple[str, int], float] = {}
        for number in dict.fromkeys((0, 0 if is_v_shaped(plan.schedule) else plan.pp - 1)):
            stage = plan.stages[number]
            for part in replica_parts(stage, placement[number]):
                group, key = stage.replicas[part.group], (part.slot.pool, part.node)
                # A replica on several nodes, a grid, has rows of sequences on each.
                nodes[key] = nodes.get(key, 0.0) + group.local_batch * part.slot.tp / group.tp / plan.cp
        slowest = NOTHING
        for (pool, _), sequences in nodes.items():
            for name, cost in self.costs[first_pass][pool].items():
                if sequences * cost > slowest.seconds:
                    slowest = Fed(seconds=sequences * cost, limit=f"the {name} of a node of {pool}")
        if self.shared is not None:
            missed = sum(sequences * self.missed[first_pass][pool] for (pool, _), sequences in nodes.items())
            seconds = missed * self.bytes / self.shared
            if seconds > slowest.seconds:
                slowest = Fed(seconds=seconds, limit="the storage of all nodes")
        return slowest

    def least_seconds(self, devices: Mapping[tuple[str, str], int]) -> float:
        """No plan on these devices, numbers by (pool, gpu), has the data of a step sooner."""
        sequences = self.model.training.global_batch
        rate, least_missed = 0.0, 1.0
        for pool in self.cluster.pools:
            number = sum(count for (name, _), count in devices.items() if name == pool.name)
            cost = max(self.costs[False][pool.name].values(), default=0.0)
            if number:
                least_missed = min(least_missed, self.missed[False][pool.name])
                rate += min(number, len(pool.hosts)) / cost if cost else float("inf")
        shared = least_missed * sequences * self.bytes / self.shared if self.shared is not None else 0.0
        # T >= sequences / sum of what the nodes are fed in a second, however they are dealt
        return max(shared, sequences / rate if rate else 0.0)


def feed_of(cluster: ClusterSpec, model: ModelSpec) -> Feed | None:
    """The feed of a cluster; None where nothing is said of it, so that data is always there."""
    said = cluster.storage_gBps is not None or any(
        pool.host is not None and pool.host.feed is not None for pool in cluster.pools
    )
    return Feed(cluster, model) if said else None
