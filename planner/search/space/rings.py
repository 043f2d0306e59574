"""The data-parallel ring of a stage that no placement beats: alone, beside another stage, or on parts of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations_with_replacement
from math import ceil, inf
from typing import NamedTuple

from planner.cost.communication import Ring, data_ring, inside_rate
from planner.cost.estimate import Estimator
from planner.cost.sharding import stage_rings
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.plan.placement import Placement, Slot, one_replica, place_stages
from planner.plan.values import ReplicaGroup
from planner.search.space.choices import Composition
from planner.search.space.derived import derived


@dataclass(frozen=True, slots=True)
class RingSetup:
    """What the rings of all stages of a choice have in common."""

    kernels: str
    shard_size: int | None = None
    """As in ``Plan``."""
    expert_ways: int = 1
    """Devices that hold all experts of a layer together."""
    secondary: int | None = None
    """Replicas of a group that keeps a second copy of the parameters."""

    def ring(self, estimator: Estimator, placement: Placement) -> Ring:
        """Of the first of these stages."""
        return stage_rings(
            placement,
            self.shard_size,
            estimator.topology,
            estimator.calibration,
            self.kernels,
            estimator.curves,
            self.expert_ways,
            self.secondary,
        )[0]


@derived
def ring_alone(estimator: Estimator, groups: Composition, setup: RingSetup, stages: int = 1) -> Ring:
    """The data-parallel ring of a stage that has its nodes to itself, or to so many of its kind; the same whatever the
    batches of its groups."""
    try:
        return setup.ring(estimator, place_stages([groups] * stages, estimator.cluster))
    except PlanError:
        return Ring(size=1, bytes_per_second=0.0, latency_seconds=0.0, crosses="")


@derived
def least_ring(estimator: Estimator, groups: Composition, setup: RingSetup, beside: Composition = ()) -> Ring:
    """The ring of a stage among others that no placement beats; with a stage ``beside`` it, whose nodes are its own.

    Device types of one pool may share nodes, or stand on different ones, which is faster where the network is.
    """
    ring = ring_alone(estimator, groups, setup)
    mixed = len({group.pool for group in groups}) < len(groups)
    if not ring.connected or not (mixed or beside):
        return ring
    (slots,) = place_stages([groups], estimator.cluster)
    around = place_stages([beside], estimator.cluster) if beside else ()
    ring = setup.ring(estimator, (slots, *around))
    if not mixed:
        return ring
    return _better(estimator, ring, setup.ring(estimator, (_apart(slots), *around))) or ring


def ring_beside(
    estimator: Estimator, groups: Composition, setup: RingSetup, others: Sequence[Composition]
) -> Ring:
    """The ring of a stage that shares a node with a stage of one of ``others``; no placement beats it.

    All nodes of a pool have to be alike in what a stage does there, so that it does not matter which is shared.
    """
    rings = (least_ring(estimator, groups, setup, other) for other in others)
    return reduce(lambda one, two: _better(estimator, one, two) or one, rings)


def _apart(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Device types of one pool on nodes of their own."""
    ends: dict[str, dict[str, int]] = {}
    apart = []
    for slot in slots:
        others = ends.setdefault(slot.pool, {})
        first = slot.first_node + sum(end for gpu, end in others.items() if gpu != slot.gpu)
        others[slot.gpu] = max(others.get(slot.gpu, 0), slot.first_node + slot.nodes)
        apart.append(slot._replace(first_node=first))
    return tuple(apart)


def _better(estimator: Estimator, ring: Ring | None, other: Ring | None) -> Ring | None:
    """What is best of both; in between is nothing better."""
    if ring is None or other is None or ring == other:
        return ring
    ring, other = without_curves(estimator, ring), without_curves(estimator, other)
    return replace(
        max(ring, other, key=lambda item: item.bytes_per_second),
        latency_seconds=min(ring.latency_seconds, other.latency_seconds),
        around_seconds=min(
            item.latency_seconds if item.around_seconds is None else item.around_seconds
            for item in (ring, other)
        ),
        copies=_better(estimator, ring.copies, other.copies),
        near=_better(estimator, ring.near, other.near),
        experts=_better(estimator, ring.experts, other.experts),
    )


def without_curves(estimator: Estimator, ring: Ring) -> Ring:
    """A ring by formula that takes no longer than one with the measurements of its link."""
    if ring.curves is None:
        return ring
    measured = measured_rate(estimator, ring.link, ring.size, ceil(ring.sharing * ring.padding))
    return replace(
        ring,
        bytes_per_second=max(
            min(measured.alone, measured.together / ring.sharing),
            0.0 if measured.covers else ring.bytes_per_second,
        ),
        latency_seconds=0.0,
        around_seconds=0.0,
        curves=None,
        wider=(),
        copies=ring.copies and without_curves(estimator, ring.copies),
        near=ring.near and without_curves(estimator, ring.near),
        experts=ring.experts and without_curves(estimator, ring.experts),
    )


class MeasuredRate(NamedTuple):
    """What measurements say of rings of some number of members or more."""

    together: float
    """Bytes per second that those do not exceed that were measured, of all rings together that share a card."""
    alone: float
    """Of each ring."""
    covers: bool
    """True when no others are faster: none goes by formula alone."""


@derived
def measured_rate(estimator: Estimator, link: str, members: int, sharing: int) -> MeasuredRate:
    """Of rings over a link, of which so many share a card at most; none moves more than all gradients in fp32."""
    if estimator.curves is None:
        return MeasuredRate(0.0, 0.0, covers=False)
    most_bytes = 4.0 * estimator.model.parameters * sharing
    return MeasuredRate(
        *estimator.curves.fastest(link, most_bytes, members), estimator.curves.covers(link, members)
    )


@derived
def measured_between(estimator: Estimator, members: int, sharing: int) -> MeasuredRate:
    """The same of rings that leave a node, whichever fabric is their narrowest hop."""
    pools = [pool.name for pool in estimator.cluster.pools]
    fabrics = {estimator.topology.path(*pair).fabric for pair in combinations_with_replacement(pools, 2)}
    rates = [measured_rate(estimator, fabric, members, sharing) for fabric in fabrics - {"", "node"}]
    return MeasuredRate(
        max((rate.together for rate in rates), default=0.0),
        max((rate.alone for rate in rates), default=0.0),
        all(rate.covers for rate in rates),
    )


@derived
def inside_at_most(estimator: Estimator, members: int, narrower: float = inf, sharing: int = 1) -> float:
    """Bytes per second of such rings inside a node, or where a network that carries no more than ``narrower`` is the
    narrowest hop: by measurement, else by formula."""
    rates = []
    for device_type in estimator.topology.device_types:
        formula = inside_rate(device_type, estimator.calibration)
        if formula <= narrower:
            measured = measured_rate(estimator, f"node:{device_type.gpu}", members, sharing)
            rates.append(max(measured.alone, 0.0 if measured.covers else formula))
    return max(rates, default=0.0)


def divided_ring(group: ReplicaGroup, estimator: Estimator, kernels: str) -> Ring:
    """The ring of a stage on parts of several nodes that none beats, however its replicas are divided over them."""
    bare = one_replica(group)
    rings = []
    for together in range(1, group.count):
        full, rest = divmod(group.count, together)
        slots = [bare._replace(nodes=full, replicas_per_node=together)]
        slots += [bare._replace(first_node=full, replicas_per_node=rest)] if rest else []
        ring = data_ring(slots, {}, estimator.topology, estimator.calibration, kernels, estimator.curves)
        rings.append(without_curves(estimator, ring))
    # What its fullest node holds decides the links; each is at its best in one of these.
    return replace(
        rings[0],
        bytes_per_second=max(ring.bytes_per_second for ring in rings),
        latency_seconds=min(ring.latency_seconds for ring in rings),
        around_seconds=min(ring.around_seconds or 0.0 for ring in rings),
    )
