"""A canonical order of pools, so that neither their order in the file nor their names decide between equal plans."""

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
    kinds: list[tuple[Key, list[str]]] = []
    for part in topology.alike(own):
        groups: dict[Key, list[str]] = {}
        for name in part:
            groups.setdefault(own[name], []).append(name)
        kinds += groups.items()
    keys: dict[str, Key] = {}
    for kind, names in kinds:
        others: list[tuple[Key, Key]] = []
        for other, members in kinds:
            rest = members[1:] if members is names else members
            others += [(_path(topology.path(names[0], rest[0])), other)] * len(rest) if rest else []
        key = kind, _path(topology.path(names[0], names[0])), sorted(others)
        keys |= dict.fromkeys(names, key)
    pools = sorted(cluster.pools, key=lambda pool: (keys[pool.name], pool.name))
    return cluster.model_copy(update={"pools": tuple(_sorted_devices(pool, cluster) for pool in pools)})


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
        tuple(sorted(_gpu(cluster.gpus[name]) for name in pool.devices)),
        -len(pool.hosts),
        _text(pool, "name", "devices", "hosts", "nics"),
        tuple(sorted(cards)),
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
