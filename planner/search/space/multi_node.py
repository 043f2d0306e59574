"""Tensor-parallel replicas that span several nodes: their degrees, and the pools that can hold them; and the numbers
of nodes over which stages are dealt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import dealable
from planner.cluster.spec import PoolSpec
from planner.cluster.topology import DeviceType, Topology
from planner.dims.sharding import zeros_at
from planner.dims.tensor import tp_degrees
from planner.model.spec import ModelSpec
from planner.plan.values import WHOLE, WHOLE_EXPERTS
from planner.search.space.choices import Family, offers, usable_device_types
from planner.search.values import Limits
from planner.units import divisors

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


MOST_DEALT = 16
"""Most nodes over which stages are dealt."""


def sharing(
    own: DeviceType, others: Iterable[DeviceType], tp: int, count: int, depth: int, mixed: int
) -> int:
    """Stages, one of ``count`` replicas too, that share the nodes over which it is dealt, at least.

    So it is in pipelines of ``depth`` stages, of which at most ``mixed`` stand on several of these device types.
    """
    if own.dealt == 1:
        return 1
    most = own.per_node // (count * tp)
    elsewhere = [each.replicas(tp) // count for each in others]
    if not elsewhere:
        # Stages take one place after the other, and only the last has fewer.
        return max(1, min(most, depth % most or most))
    # Of the stages that there is room for so many are missing, and no more at any place.
    missing = own.nodes * most - (depth - mixed - sum(elsewhere))
    return max(1, min(most, most - missing))


def dealt_nodes(row: Capabilities, limits: Limits, model: ModelSpec, topology: Topology) -> tuple[int, ...]:
    """Numbers of nodes over which stages are dealt: those that divide the nodes of a pool, and all of the largest.

    Only where parts of the model are frozen: then gradients are smaller than what stages send, which stays in a node.
    """
    if row.hosts_once or not offers(row, model) or not zeros_at(row, 2):
        return ()
    if limits.pp is not None and max(limits.pp) < 2:
        return ()
    sizes = [len(pool.hosts) for pool in joined(topology.cluster).pools if dealable(pool)]
    if not sizes:
        return ()
    numbers = {number for size in sizes for number in divisors(size)} | {max(sizes)}
    return tuple(sorted(number for number in numbers if 1 < number <= MOST_DEALT))


def dealt_families(
    found: Iterable[Family], nodes: int, device_types: Sequence[DeviceType]
) -> Iterator[Family]:
    """Those of these families whose stages can be dealt over so many nodes, so dealt."""
    for family in found:
        alone = family.shard_size is None and family.context == WHOLE and family.folding == WHOLE_EXPERTS
        if family.tp is None or family.dp is None or not alone:
            continue
        able = (each for each in device_types if each.holds(family.tp) and each.dealt > 1)
        if any(family.dp % each.dealt == 0 and family.dp * family.tp < each.per_node for each in able):
            yield family._replace(stage_nodes=nodes)
