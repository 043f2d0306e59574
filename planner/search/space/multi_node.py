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
from planner.search.space.choices import MAX_DEPTH, Family, offers, usable_device_types
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


def sharing(device_type: DeviceType, tp: int, replicas: int) -> int:
    """Stages of so many replicas, this one too, that share the nodes over which it is dealt; 1 where it is not."""
    return max(1, device_type.per_node // (replicas * tp)) if device_type.dealt > 1 else 1


def dealt_depths(family: Family, device_types: Iterable[DeviceType]) -> frozenset[int]:
    """Depths of pipelines whose stages fill the nodes over which they are dealt: none there could hold one more."""
    assert family.tp is not None, "stages that are dealt have the same degrees everywhere"
    assert family.dp is not None
    types = [each for each in device_types if each.holds(family.tp)]
    # Each type that is not dealt leaves a remainder over, of which two or more make a stage.
    depths = {*range(max(1, sum(each.dealt == 1 for each in types)))}
    for each in types:
        filled = range(min(each.replicas(family.tp) // family.dp, MAX_DEPTH) + 1)
        if each.dealt > 1:
            on_one = each.per_node // (family.dp * family.tp) if family.dp % each.dealt == 0 else 0
            filled = range(0, on_one * each.nodes + 1, on_one) if on_one else range(1)
        depths = {depth + stages for depth in depths for stages in filled if depth + stages <= MAX_DEPTH}
    return frozenset(depths)


def dealt_nodes(row: Capabilities, limits: Limits, model: ModelSpec, topology: Topology) -> tuple[int, ...]:
    """Numbers of nodes over which stages are dealt: those that divide the nodes of a pool, and all of the largest.

    What stages send stays in a node then, but their gradients leave it.
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
