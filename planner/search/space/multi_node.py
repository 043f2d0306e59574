"""Tensor-parallel replicas that span several nodes: their degrees, and the pools that can hold them."""

from __future__ import annotations

from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.spec import PoolSpec
from planner.cluster.topology import Topology
from planner.dims.tensor import tp_degrees
from planner.model.spec import ModelSpec
from planner.search.space.choices import offers, usable_device_types
from planner.search.values import Limits

MOST_WIDE = 64
"""Largest degree of replicas on several nodes."""


def wide_degrees(row: Capabilities, limits: Limits, model: ModelSpec, topology: Topology) -> tuple[int, ...]:
    """Tensor-parallel degrees whose replicas fill several nodes of some pool."""
    if not row.tensor_parallel_over_nodes or model.experts is not None or not offers(row, model):
        return ()
    most = max((_most_devices(pool, topology) for pool in topology.cluster.pools), default=0)
    if most < 2 or (limits.tp is not None and max(limits.tp) < 2):
        return ()
    large = tuple(replace(each, per_node=most) for each in usable_device_types(topology, model)[:1])
    degrees = tp_degrees(row, limits.tp, model, large)
    return tuple(tp for tp in degrees if wide_pools(topology, tp))


def _most_devices(pool: PoolSpec, topology: Topology) -> int:
    """The largest degree of a replica on several nodes of a pool."""
    joined_nodes = len(pool.hosts) > 1 and topology.path(pool.name, pool.name).connected
    return min(MOST_WIDE, len(pool.devices) * len(pool.hosts)) if joined_nodes else 0


def wide_pools(topology: Topology, tp: int) -> dict[str, int]:
    """Nodes that such a replica fills, by pool: of pools of one device type whose nodes are smaller and talk."""
    return {
        pool.name: tp // len(pool.devices)
        for pool in topology.cluster.pools
        if len({*pool.devices}) == 1
        and len(pool.devices) < tp
        and tp % len(pool.devices) == 0
        and tp <= _most_devices(pool, topology)
    }
