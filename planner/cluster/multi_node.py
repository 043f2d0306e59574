"""Clusters in which several nodes count as one, as replicas that span nodes see them.

A replica of ``n`` nodes stands on a wide node as one of a node stands on that node. Its cards, devices and host memory
are those of all ``n`` nodes; what is said of one card, device or host stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.cluster.spec import ClusterSpec, PoolSpec, WidePool


def widened(cluster: ClusterSpec, widths: Mapping[str, int]) -> ClusterSpec:
    """The cluster with so many nodes of each of these pools as one; nodes that are left over are out of it."""
    pools = tuple(_wide(pool, widths[pool.name]) if pool.name in widths else pool for pool in cluster.pools)
    return cluster.model_copy(update={"pools": pools})


def _wide(pool: PoolSpec, width: int) -> WidePool:
    values = {name: getattr(pool, name) for name in type(pool).model_fields}
    values["devices"] = width * pool.devices
    values["hosts"] = pool.hosts[: len(pool.hosts) // width * width : width]
    return WidePool.model_construct(**values, nodes_each=width)
