"""Equal pools as one: what a plan costs must not depend on how many pools the file writes its nodes in.

Two pools are equal when they differ in names and hosts only.
"""

from __future__ import annotations

from json import dumps

from planner.cluster.spec import ClusterSpec, PoolSpec


def joined(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with each set of equal pools as one, named and placed as the first of them."""
    sets = alike(cluster)
    if len(sets) == len(cluster.pools):
        return cluster
    pools = (
        pools[0].model_copy(update={"hosts": tuple(host for pool in pools for host in pool.hosts)})
        for pools in sets
    )
    return cluster.model_copy(update={"pools": tuple(pools)})


def alike(cluster: ClusterSpec) -> list[list[PoolSpec]]:
    """Sets of equal pools, in the order of the first of each."""
    if len(cluster.pools) == 1:
        return [list(cluster.pools)]
    sets: dict[str, list[PoolSpec]] = {}
    for pool in cluster.pools:
        sets.setdefault(likeness(pool), []).append(pool)
    return list(sets.values())


def likeness(pool: PoolSpec) -> str:
    """Everything about a pool but its name, its hosts and the order of its cards and devices."""
    values = pool.model_dump(exclude={"name", "hosts", "nics", "devices"})
    cards = sorted(dumps(nic.model_dump(), sort_keys=True) for nic in pool.nics)
    return dumps([values, cards, sorted(pool.devices)], sort_keys=True)
