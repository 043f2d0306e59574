"""Partitions of a cluster that are searched separately: by network, and by slow links.

A plan of a part with ``islands`` uses at least two of them, so its pipeline or one of its stages crosses a slow
link at least once: plans inside one island belong to that island's own partition. In a partition equal pools are one
(planner.plan.equal_pools); ``Scored`` plans are on the pools of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.capabilities import Capabilities
from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import dealt, widened
from planner.cluster.spec import ClusterSpec, dealt_over, nodes_each
from planner.cluster.topology import Topology, sockets_only
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.search.bounds.best import FamilyBounds
from planner.search.space.choices import Family, Islands, depths, usable_device_types
from planner.search.space.derived import derived
from planner.search.space.multi_node import dealt_depths, wide_pools
from planner.search.values import Limits


class NetworkPartition:
    """What a job of one runtime sees of the cluster."""

    def __init__(self, estimator: Estimator, islands: Islands, *, whole: bool) -> None:
        self.estimator = estimator
        self.islands = islands
        self.whole = whole
        """False for a part of another partition."""
        self.bounds = FamilyBounds(estimator, islands)
        self.device_types = usable_device_types(estimator.topology, estimator.model)
        self._depths: dict[tuple[Family, tuple[int, ...] | None], tuple[int, ...]] = {}

    def depths(self, family: Family, limits: Limits) -> tuple[int, ...]:
        """Pipeline depths of a family that the limits allow."""
        key = family, limits.pp
        if key not in self._depths:
            possible = depths(family, limits, self.estimator.model, self.device_types)
            if family.stage_nodes > 1:
                filled = dealt_depths(family, self.device_types)
                possible = tuple(depth for depth in possible if depth in filled)
            self._depths[key] = possible
        return self._depths[key]


def network_partitions(
    estimator: Estimator, row: Capabilities, *, apart: bool = False
) -> dict[str, NetworkPartition]:
    """Partitions of a runtime by name; bounds are shared by all searches with one estimator.

    A plan of the runtime lies in exactly one partition, or in one for each network that its pools share. With ``apart``
    equal pools stay apart, for plans on some of them only.
    """
    seen = networks(row, estimator.topology).values() if apart else ()
    return _partitions(estimator, row, any(joined(cluster) is not cluster for cluster in seen))


@derived
def _partitions(estimator: Estimator, row: Capabilities, apart: bool) -> dict[str, NetworkPartition]:
    partitions: dict[str, NetworkPartition] = {}
    for network, cluster in networks(row, estimator.topology).items():
        seen = cluster if apart else joined(cluster)
        for number, (pools, islands) in enumerate(parts(row, seen, estimator.model)):
            name = f"{network}:{'+'.join(pools)}" if number else network
            partitions[name] = NetworkPartition(
                _restricted(estimator, seen, pools), islands, whole=number == 0
            )
    return partitions


@derived
def wide_partitions(estimator: Estimator, row: Capabilities, tp: int) -> dict[str, NetworkPartition]:
    """Partitions, by name, in which replicas of so many devices fill several nodes where one is smaller.

    Their plans take several nodes for one (planner.cluster.multi_node); pools whose nodes hold a replica stay as they
    are. Equal pools are joined after that, as a replica lies in one pool of the file.
    """
    partitions: dict[str, NetworkPartition] = {}
    for network, cluster in networks(row, estimator.topology).items():
        pools = wide_pools(Topology(cluster), tp)
        if not pools:
            continue
        seen = joined(widened(cluster, pools))
        for number, (names, islands) in enumerate(parts(row, seen, estimator.model)):
            if number and not any(nodes_each(pool) > 1 for pool in seen.pools if pool.name in names):
                continue
            name = f"{network}:{'+'.join(names)}" if number else network
            part = _restricted(estimator, seen, names)
            partitions[f"{name} over nodes, tp {tp}"] = NetworkPartition(part, islands, whole=number == 0)
    return partitions


@derived
def dealt_partitions(estimator: Estimator, row: Capabilities, nodes: int) -> dict[str, NetworkPartition]:
    """Partitions, by name, in which each stage is dealt over so many nodes of a pool, or all that it has."""
    partitions: dict[str, NetworkPartition] = {}
    for network, cluster in networks(row, estimator.topology).items():
        seen = dealt(joined(cluster), nodes)
        for number, (names, islands) in enumerate(parts(row, seen, estimator.model)):
            if any(dealt_over(pool) > 1 for pool in seen.pools if pool.name in names):
                name = f"{network}:{'+'.join(names)}" if number else network
                part = _restricted(estimator, seen, names)
                partitions[dealt_name(name, nodes)] = NetworkPartition(part, islands, whole=number == 0)
    return partitions


def dealt_name(name: str, nodes: int) -> str:
    """What a partition is called with its stages dealt over so many nodes."""
    return f"{name} dealt over {nodes}"


def whole_name(name: str) -> str:
    """What the whole network is called of which a partition is some pools."""
    return name.partition(":")[0]


@derived
def whole_partition(estimator: Estimator) -> NetworkPartition:
    """The whole cluster with all its networks, for plans whose groups of ranks have each its own."""
    cluster = joined(estimator.cluster)
    names = tuple(pool.name for pool in cluster.pools)
    return NetworkPartition(_restricted(estimator, cluster, names), (), whole=True)


def _restricted(estimator: Estimator, cluster: ClusterSpec, pools: tuple[str, ...]) -> Estimator:
    kept = tuple(pool for pool in cluster.pools if pool.name in pools)
    if cluster is estimator.cluster and len(kept) == len(cluster.pools):
        return estimator
    return estimator.part(cluster.model_copy(update={"pools": kept}))


def networks(row: Capabilities, topology: Topology) -> dict[str, ClusterSpec]:
    """What a job of this runtime may see of the cluster, by name.

    A runtime with one network per job runs inside a set of pools that share RDMA, or over sockets. Of a pool whose
    nodes reach others by RDMA but each other by Ethernet only, the set has one node.
    """
    cluster = topology.cluster
    names = [pool.name for pool in cluster.pools]
    islands = topology.islands()
    if row.network_per_group or not islands or not topology.needs_sockets(names):
        return {"": cluster}
    clusters = {"sockets": sockets_only(cluster)}
    for island in islands:
        pools = tuple(
            pool
            if topology.on_rdma(pool.name, pool.name)
            else pool.model_copy(update={"hosts": pool.hosts[:1]})
            for pool in cluster.pools
            if pool.name in island
        )
        clusters["+".join(island)] = cluster.model_copy(update={"pools": pools})
    return clusters


def parts(
    row: Capabilities, cluster: ClusterSpec, model: ModelSpec
) -> Iterator[tuple[tuple[str, ...], Islands]]:
    """All pools that can train the model first, then their islands, theirs and so on, as (pools, islands)."""
    topology = Topology(cluster)
    usable = {device_type.pool for device_type in usable_device_types(topology, model)}
    whole = tuple(pool.name for pool in cluster.pools if pool.name in usable)
    if row.dp_per_stage or not whole:
        yield whole, ()
        return
    waiting = [whole]
    while waiting:
        pools = waiting.pop()
        islands = topology.joined_slowly(pools)
        yield pools, islands
        waiting += islands
