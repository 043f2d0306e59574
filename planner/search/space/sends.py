"""Sends between stages that have their nodes to themselves, and the least that a stage must send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil, inf

from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.cost.schedules import SentWith
from planner.cost.sends import least_send, send
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.plan.placement import Placement, Slot, one_replica, place_stages
from planner.search.space.choices import Composition
from planner.search.space.derived import derived


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """Seconds of a send between two compositions, at least."""

    near_seconds: float
    """When both stand on one node; infinite when they cannot."""
    far_seconds: float
    """When they stand on different nodes; infinite when they cannot talk or there is one node only."""

    @property
    def least_seconds(self) -> float:
        """Wherever they stand."""
        return min(self.near_seconds, self.far_seconds)


@dataclass(frozen=True, slots=True)
class Borders:
    """The same where neighbours stand on other nodes; infinite where they cannot."""

    next_seconds: float
    """A stage in the middle, of which the one behind does."""
    before_seconds: float
    """A stage in the middle, of which the one before does."""
    both_seconds: float
    """A stage in the middle, of which both do."""
    first_seconds: float
    """The first stage, and the one behind."""
    last_seconds: float
    """The last stage, and the one before."""

    @property
    def each(self) -> tuple[float, float, float, float, float]:
        """All of them, in this order."""
        return (
            self.next_seconds,
            self.before_seconds,
            self.both_seconds,
            self.first_seconds,
            self.last_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Seconds of the sends of a stage for one micro-batch, by its neighbours: on its node, on another, on several."""

    next_seconds: tuple[float, float, float]
    before_seconds: tuple[float, float, float]
    spread: bool
    """True when it stands on several nodes itself: the first two are the least to any neighbour on one node."""


NO_BORDERS = Borders(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Hops:
    """What a stage must do for one micro-batch beside its layers, at least: sends, and work of its host."""

    inner_seconds: float
    """A stage with a neighbour on both sides."""
    outer_seconds: float
    """The first or the last stage."""
    borders: Borders = NO_BORDERS
    """Of a stage of one device type beside others of one."""


def least_sides(
    compositions: Sequence[Composition],
    sends: Callable[[int, int], Sends],
    topology: Topology,
    times: SentWith,
) -> Iterator[Sides]:
    """Least sends of a stage of each composition, all of one device type, by where its neighbours are."""
    on_one = [
        groups[0].devices <= topology.device_type(groups[0].pool, groups[0].gpu).per_node
        for groups in compositions
    ]

    def least(own: int, pairs: Sequence[Sends], often: int) -> tuple[float, float, float]:
        whole = [item for item, one in zip(pairs, on_one, strict=True) if one]
        several = (item.least_seconds for item, one in zip(pairs, on_one, strict=True) if not one)
        near = (item.near_seconds if on_one[own] else item.least_seconds for item in whole)
        far = (item.far_seconds if on_one[own] else item.least_seconds for item in whole)
        return (
            often * min(near, default=inf),
            often * min(far, default=inf),
            often * min(several, default=inf),
        )

    everyone = range(len(compositions))
    for own in everyone:
        yield Sides(
            next_seconds=least(own, [sends(own, other) for other in everyone], times.forward_to_next),
            before_seconds=least(own, [sends(other, own) for other in everyone], times.before),
            spread=not on_one[own],
        )


def least_sends(
    compositions: Sequence[Composition],
    sends: Callable[[int, int], Sends],
    topology: Topology,
    times: SentWith,
    mixed: int,
) -> tuple[Hops, ...]:
    """Least sends of a stage of each composition, whatever its neighbours are; ``times`` of one in the middle.

    Up to ``mixed`` stages are of several device types.
    """
    everyone = range(len(compositions))
    hops = []
    for own in everyone:
        after = _Side(compositions, own, [sends(own, other) for other in everyone])
        before = _Side(compositions, own, [sends(other, own) for other in everyone])
        hops.append(_least(after, before, _neighbours(compositions, own, topology, mixed), times))
    return tuple(hops)


class _Side:
    """Least seconds of a send to, or from, the stages on one side."""

    def __init__(self, compositions: Sequence[Composition], own: int, sends: Sequence[Sends]) -> None:
        device_types = [_device_types(groups) for groups in compositions]
        several = [len(device_type) > 1 and len(device_types[own]) > 1 for device_type in device_types]
        alike = [device_type == device_types[own] and len(device_type) == 1 for device_type in device_types]
        self.apart = min(
            (
                item.far_seconds if same else item.least_seconds
                for item, same, both in zip(sends, alike, several, strict=True)
                if not both
            ),
            default=inf,
        )
        """Where no room on the own node is needed: another node, or other devices, if not several like the own."""
        near = (
            item.near_seconds if same else item.least_seconds
            for item, same, both in zip(sends, alike, several, strict=True)
            if same or both
        )
        self.best = min(self.apart, min(near, default=inf))
        self.far = min(
            (item.far_seconds for item, groups in zip(sends, compositions, strict=True) if len(groups) == 1),
            default=inf,
        )
        """On other nodes, if it is of one device type."""


def _least(after: _Side, before: _Side, near: int, times: SentWith) -> Hops:
    """With at most ``near`` neighbours of the same kind on the node."""
    down, up = times.forward_to_next, times.before
    both = [down * after.apart + up * before.apart]
    if near >= 1:
        both += [down * after.best + up * before.apart, down * after.apart + up * before.best]
    if near >= 2:
        both.append(down * after.best + up * before.best)
    # The first stage has the sends to the next, the last one those from the one before it.
    one = min(down * after.best, up * before.best) if near else min(down * after.apart, up * before.apart)
    borders = Borders(
        next_seconds=down * after.far + up * before.best,
        before_seconds=down * after.best + up * before.far,
        both_seconds=down * after.far + up * before.far,
        first_seconds=down * after.far,
        last_seconds=up * before.far,
    )
    return Hops(inner_seconds=min(both), outer_seconds=one, borders=borders)


def _device_types(groups: Composition) -> frozenset[tuple[str, str]]:
    return frozenset((group.pool, group.gpu) for group in groups)


def _neighbours(compositions: Sequence[Composition], own: int, topology: Topology, mixed: int) -> int:
    """How many neighbours of the same kind find room on the node of a stage, or may be mixed as it is; at most two."""
    groups = compositions[own]
    device_type = topology.device_type(groups[0].pool, groups[0].gpu)
    if len(_device_types(groups)) > 1:
        return max(0, min(2, mixed - 1))
    if len(groups) > 1 or device_type.nodes == 1:
        return 2
    sizes = (
        sum(group.devices for group in other)
        for other in compositions
        if _device_types(other) == _device_types(groups)
    )
    return min(2, max(0, device_type.per_node - groups[0].devices) // min(sizes))


@derived
def send_alone(estimator: Estimator, first: Composition, last: Composition, replica_bytes: float) -> Sends:
    """Seconds between two stages, at least; on one node and on different ones where each stands on a part of one.

    Infinite where it cannot be. Stages that fill equally many nodes stand on the same ones or not; else there is no
    telling which parts of stages on several nodes share one: what is least wherever they stand is far.
    """
    never = float("inf")
    try:
        placed = _placed(estimator, first, last)
    except PlanError:
        return Sends(near_seconds=never, far_seconds=never)
    topology = estimator.topology
    (one, *more), (other, *others) = placed
    if more or others or one.nodes != other.nodes or one.pool != other.pool:
        least = least_send(
            placed[0], placed[1], replica_bytes, topology, estimator.calibration, estimator.curves
        )
        return Sends(near_seconds=never, far_seconds=least)

    def seconds(node: int) -> float:
        last_slot = other._replace(first_node=node)
        hop = send([one], [last_slot], replica_bytes, topology, estimator.calibration, estimator.curves)
        return hop.seconds if hop.link else never

    device_type = topology.device_type(one.pool, one.gpu)
    devices = one.replicas * one.tp + other.replicas * other.tp
    near = one.gpu != other.gpu or devices <= device_type.per_node
    all_nodes = device_type.dealt * device_type.nodes
    return Sends(
        near_seconds=seconds(one.first_node) if near else never,
        far_seconds=seconds(one.first_node + one.nodes) if all_nodes > one.nodes else never,
    )


@derived
def _placed(estimator: Estimator, first: Composition, last: Composition) -> Placement:
    return place_stages([first, last], estimator.cluster)


def unbatched(groups: Composition) -> Composition:
    """Equal for groups that differ in their batch only."""
    return tuple(replace(group, local_batch=1, accumulation_steps=1) for group in groups)


def send_divided(
    estimator: Estimator,
    first: Composition,
    last: Composition,
    replica_bytes: float,
    divided: tuple[bool, bool],
    *,
    one_kind: bool,
) -> Sends:
    """Seconds between two stages, at least, of which one or both stand on what others leave of several nodes.

    These nodes hold all the stages that they can hold whole, so that no more of its replicas are on one of them than
    such stages leave over, and some are on other nodes than a stage of their pool that stands on one: all where it is
    the one before in a pipeline on devices of ``one_kind``, as this stands on the last node. Infinite where one is of
    several device types: no plan has both.
    """
    never = float("inf")
    if len(first) > 1 or len(last) > 1:
        return Sends(near_seconds=never, far_seconds=never)
    topology = estimator.topology

    def seconds(here: Sequence[Slot], there: Sequence[Slot]) -> float:
        hop = send(here, there, replica_bytes, topology, estimator.calibration, estimator.curves)
        return hop.seconds if hop.link else never

    (group,), (other,) = first, last
    one, two = one_replica(group), one_replica(other)
    if (group.pool, group.gpu) == (other.pool, other.gpu):
        away = 1
        if not all(divided):
            device_type = topology.device_type(group.pool, group.gpu)
            left = device_type.per_node // group.tp % group.count
            ends_before = ceil(group.count / left) < device_type.nodes
            goes_on = one_kind and divided == (False, True)
            away = group.count if goes_on and ends_before else group.count - left
        # On one node, or each alone; the second stage on other nodes.
        here, there = (
            slot._replace(nodes=away) if apart else slot._replace(replicas_per_node=away)
            for slot, apart in zip((one, two._replace(first_node=1)), divided, strict=True)
        )
        far = seconds([here], [there])
    elif group.pool == other.pool:
        far = min(seconds([one], [two]), seconds([one], [two._replace(first_node=1)]))
    else:
        try:
            ends = [
                [slot._replace(nodes=groups[0].count)]
                if apart
                else [*place_stages([groups], estimator.cluster)[0]]
                for slot, groups, apart in zip((one, two), (first, last), divided, strict=True)
            ]
        except PlanError:
            return Sends(near_seconds=never, far_seconds=never)
        far = seconds(*ends)
    return Sends(near_seconds=never, far_seconds=far)
