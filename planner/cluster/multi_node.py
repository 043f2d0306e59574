"""Clusters in which several nodes count as one, as replicas that span nodes see them, and stages that share nodes.

A replica of ``n`` nodes stands on a wide node as one of a node stands on that node. Its cards, devices and host memory
are those of all ``n`` nodes; what is said of one card, device or host stays as it is.

A stage that is dealt over ``n`` nodes stands on a wide node as one smaller than a node stands on that node, on the same
part of each. There only devices are those of all ``n`` nodes: replicas lie in one, and cards are those of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.cluster.spec import ClusterSpec, PoolSpec, WidePool, nodes_each


def widened(cluster: ClusterSpec, widths: Mapping[str, int]) -> ClusterSpec:
    """The cluster with so many nodes of each of these pools as one; nodes that are left over are out of it."""
    pools = tuple(_wide(pool, widths[pool.name]) if pool.name in widths else pool for pool in cluster.pools)
    return cluster.model_copy(update={"pools": pools})


def dealt(cluster: ClusterSpec, nodes: int) -> ClusterSpec:
    """The cluster with so many nodes of each pool of one device type as one, or all that there are, for stages that
    are dealt over them; nodes that are left over are out of it."""
    pools = (
        _wide(pool, min(nodes, len(pool.hosts)), dealt=pool) if dealable(pool) else pool
        for pool in cluster.pools
    )
    return cluster.model_copy(update={"pools": tuple(pools)})


def undealt(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster that was dealt."""
    pools = (pool.dealt or pool if isinstance(pool, WidePool) else pool for pool in cluster.pools)
    return cluster.model_copy(update={"pools": tuple(pools)})


def dealable(pool: PoolSpec) -> bool:
    """True for pools over whose nodes stages can be dealt: several of one device type, as the cluster file has them."""
    return len(pool.hosts) > 1 and len({*pool.devices}) == 1 and nodes_each(pool) == 1


def _wide(pool: PoolSpec, width: int, *, dealt: PoolSpec | None = None) -> WidePool:
    values = {name: getattr(pool, name) for name in PoolSpec.model_fields}
    values["devices"] = width * pool.devices
    values["hosts"] = pool.hosts[: len(pool.hosts) // width * width : width]
    return WidePool.model_construct(**values, nodes_each=width, dealt=dealt)
