"""The data-parallel ring of a stage that no placement beats: alone, beside another stage, or on parts of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import inf

from planner.cost.communication import Ring, data_ring
from planner.cost.estimate import Estimator
from planner.cost.sharding import stage_rings
from planner.errors import PlanError
from planner.plan.placement import Slot, one_replica, place_stages
from planner.plan.values import ReplicaGroup
from planner.search.space.choices import Composition
from planner.search.space.derived import derived
from planner.search.space.sends import unbatched


def ring_alone(
    groups: Composition,
    estimator: Estimator,
    kernels: str,
    shard_size: int | None = None,
    *,
    expert_ways: int = 1,
    secondary: int | None = None,
) -> Ring:
    """The data-parallel ring of a stage that has its nodes to itself."""
    # It is the same whatever their batch.
    return _ring_alone(estimator, unbatched(groups), kernels, shard_size, expert_ways, secondary)


def rings_beside(
    groups: Composition,
    others: Sequence[Composition],
    estimator: Estimator,
    kernels: str,
    shard_size: int | None,
) -> Ring:
    """The ring of a stage that shares a node with a stage of one of ``others``; no placement beats it.

    All nodes of a pool have to be alike in what a stage does there, so that it does not matter which is shared.
    """
    rings = (least_ring(groups, estimator, kernels, shard_size, beside=unbatched(other)) for other in others)
    return reduce(lambda one, two: _better(one, two) or one, rings)


@derived
def _ring_alone(
    estimator: Estimator,
    groups: Composition,
    kernels: str,
    shard_size: int | None,
    expert_ways: int,
    secondary: int | None,
) -> Ring:
    try:
        placement = place_stages([groups], estimator.cluster)
    except PlanError:
        return Ring(size=1, bytes_per_second=0.0, latency_seconds=0.0, crosses="")
    (ring,) = stage_rings(
        placement,
        shard_size,
        estimator.topology,
        estimator.calibration,
        kernels,
        estimator.curves,
        expert_ways,
        secondary,
    )
    return ring


def least_ring(
    groups: Composition,
    estimator: Estimator,
    kernels: str,
    shard_size: int | None = None,
    *,
    expert_ways: int = 1,
    beside: Composition = (),
) -> Ring:
    """The ring of a stage among others that no placement beats; with a stage ``beside`` it, whose nodes are its own.

    Device types of one pool may share nodes, or stand on different ones, which is faster where the network is.
    """
    return _least_ring(estimator, unbatched(groups), kernels, shard_size, expert_ways, beside)


@derived
def _least_ring(
    estimator: Estimator,
    groups: Composition,
    kernels: str,
    shard_size: int | None,
    expert_ways: int,
    beside: Composition,
) -> Ring:
    ring = ring_alone(groups, estimator, kernels, shard_size, expert_ways=expert_ways)
    mixed = len({group.pool for group in groups}) < len(groups)
    if not ring.connected or not (mixed or beside):
        return ring
    (slots,) = place_stages([groups], estimator.cluster)
    around = place_stages([beside], estimator.cluster) if beside else []

    def among(own: Sequence[Slot]) -> Ring:
        return stage_rings(
            [own, *around],
            shard_size,
            estimator.topology,
            estimator.calibration,
            kernels,
            estimator.curves,
            expert_ways,
        )[0]

    ring = among(slots)
    return (_better(ring, among(_apart(slots))) or ring) if mixed else ring


def _apart(slots: Sequence[Slot]) -> list[Slot]:
    """Device types of one pool on nodes of their own."""
    ends: dict[str, dict[str, int]] = {}
    apart = []
    for slot in slots:
        others = ends.setdefault(slot.pool, {})
        first = slot.first_node + sum(end for gpu, end in others.items() if gpu != slot.gpu)
        others[slot.gpu] = max(others.get(slot.gpu, 0), slot.first_node + slot.nodes)
        apart.append(slot._replace(first_node=first))
    return apart


def _better(ring: Ring | None, other: Ring | None) -> Ring | None:
    """What is best of both; in between is nothing better. Nothing is known of it where collectives were measured."""
    if ring is None or other is None or ring == other:
        return ring
    fastest = max(ring, other, key=lambda item: item.bytes_per_second)
    around = (
        item.latency_seconds if item.around_seconds is None else item.around_seconds for item in (ring, other)
    )
    measured = ring.curves is not None
    return replace(
        fastest,
        bytes_per_second=inf if measured else fastest.bytes_per_second,
        latency_seconds=0.0 if measured else min(ring.latency_seconds, other.latency_seconds),
        around_seconds=0.0 if measured else min(around),
        curves=None,
        copies=_better(ring.copies, other.copies),
        near=_better(ring.near, other.near),
        experts=_better(ring.experts, other.experts),
    )


def divided_ring(group: ReplicaGroup, estimator: Estimator, kernels: str) -> Ring:
    """The ring of a stage on parts of several nodes that none beats, however its replicas are divided over them.

    Nothing is known of it where collectives were measured.
    """
    bare = one_replica(group)
    rings = []
    for together in range(1, group.count):
        full, rest = divmod(group.count, together)
        slots = [bare._replace(nodes=full, replicas_per_node=together)]
        slots += [bare._replace(first_node=full, replicas_per_node=rest)] if rest else []
        rings.append(data_ring(slots, {}, estimator.topology, estimator.calibration, kernels))
    if estimator.curves is not None:
        return replace(rings[0], bytes_per_second=inf, latency_seconds=0.0, around_seconds=0.0)
    # What its fullest node holds decides the links; each is at its best in one of these.
    return replace(
        rings[0],
        bytes_per_second=max(ring.bytes_per_second for ring in rings),
        latency_seconds=min(ring.latency_seconds for ring in rings),
        around_seconds=min(ring.around_seconds or 0.0 for ring in rings),
    )
