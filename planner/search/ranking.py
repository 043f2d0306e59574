"""One order of pools for every search, so that neither the order of the file nor names decide between equal plans."""

from __future__ import annotations

from json import dumps

from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cluster.topology import Path, Topology
from planner.files.fields import Frozen

Key = tuple[object, ...]


def ranked(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with its pools, and the devices of their nodes, in order of what they are: fastest first.

    Names decide only between pools that have the same devices, cards and paths to the same others.
    """
    topology = Topology(cluster)
    own = {pool.name: _pool(pool, cluster) for pool in cluster.pools}

    def key(pool: PoolSpec) -> Key:
        others = (
            (_path(topology.path(pool.name, other.name)), own[other.name])
            for other in cluster.pools
            if other.name != pool.name
        )
        return own[pool.name], _path(topology.path(pool.name, pool.name)), sorted(others), pool.name

    pools = (_sorted_devices(pool, cluster) for pool in sorted(cluster.pools, key=key))
    return cluster.model_copy(update={"pools": tuple(pools)})


def _sorted_devices(pool: PoolSpec, cluster: ClusterSpec) -> PoolSpec:
    devices = sorted(pool.devices, key=lambda name: (_gpu(cluster.gpus[name]), name))
    return pool.model_copy(update={"devices": tuple(devices)})


def _gpu(gpu: GpuSpec) -> Key:
    return -max(gpu.tflops.values()), -gpu.memory_gib, _text(gpu, "name")


def _pool(pool: PoolSpec, cluster: ClusterSpec) -> Key:
    """Everything about a pool but names."""
    cards = (
        (_text(cluster.fabrics[nic.fabric]), _text(nic, "fabric", "interface", "hca")) for nic in pool.nics
    )
    return (
        sorted(_gpu(cluster.gpus[name]) for name in pool.devices),
        -len(pool.hosts),
        _text(pool, "name", "devices", "hosts", "nics"),
        sorted(cards),
    )


def _path(path: Path) -> Key:
    """Everything about a path but the name of its fabric."""
    return (
        path.kind,
        path.first_bytes_per_second,
        path.last_bytes_per_second,
        path.shared_bytes_per_second,
        path.latency_seconds,
        path.first_cards,
        path.last_cards,
    )


def _text(spec: Frozen, *names: str) -> str:
    """The fields of a spec but these, in one comparable form."""
    return dumps(spec.model_dump(exclude=set(names)), sort_keys=True)
