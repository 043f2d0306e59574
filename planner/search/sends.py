"""Sends between stages that have their nodes to themselves, and the least that a stage must send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from planner.cost.communication import send
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.placement import Slot, place_stages
from planner.search.space import Composition
from planner.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """Seconds of a send between two compositions, at least."""

    near_seconds: float
    """When both stand on one node; infinite when they cannot."""
    far_seconds: float
    """When they stand on different nodes; infinite when they cannot talk or there is one node only."""


@dataclass(frozen=True, slots=True)
class Hops:
    """What a stage must do for one micro-batch beside its layers, at least: sends, and work of its host."""

    inner_seconds: float
    """A stage with a neighbour on both sides."""
    outer_seconds: float
    """The first or the last stage."""


def least_sends(
    compositions: Sequence[Composition],
    sends: Callable[[int, int], Sends],
    topology: Topology,
    *,
    in_turn: bool,
) -> tuple[Hops, ...]:
    """Least sends of a stage of each composition, whatever its neighbours are."""
    everyone = range(len(compositions))
    found = []
    for own in everyone:
        after = _Side(compositions, own, [sends(own, other) for other in everyone])
        before = _Side(compositions, own, [sends(other, own) for other in everyone])
        found.append(_least(after, before, _neighbours(compositions, own, topology), 1 + in_turn))
    return tuple(found)


class _Side:
    """Least seconds of a send to, or from, the stages on one side."""

    def __init__(self, compositions: Sequence[Composition], own: int, sends: Sequence[Sends]) -> None:
        kinds = [_kinds(groups) for groups in compositions]
        alike = [kind == kinds[own] and len(kind) == 1 for kind in kinds]
        self.apart = min(
            (
                item.far_seconds if same else min(item.near_seconds, item.far_seconds)
                for item, same in zip(sends, alike, strict=True)
            ),
            default=inf,
        )
        """Where no room on the own node is needed: another node, or other devices."""
        near = (item.near_seconds for item, same in zip(sends, alike, strict=True) if same)
        self.best = min(self.apart, min(near, default=inf))


def _least(after: _Side, before: _Side, near: int, times: int) -> Hops:
    """With at most ``near`` neighbours of the same kind on the node; what comes is sent ``times``."""
    both = [after.apart + times * before.apart]
    if near >= 1:
        both += [after.best + times * before.apart, after.apart + times * before.best]
    if near >= 2:
        both.append(after.best + times * before.best)
    one = min(after.best, before.best) if near >= 1 else min(after.apart, before.apart)
    return Hops(inner_seconds=min(both), outer_seconds=one)


def _kinds(groups: Composition) -> frozenset[tuple[str, str]]:
    return frozenset((group.pool, group.gpu) for group in groups)


def _neighbours(compositions: Sequence[Composition], own: int, topology: Topology) -> int:
    """How many neighbours of the same kind find room on the node of a stage, at most two."""
    groups = compositions[own]
    kind = topology.kind(groups[0].pool, groups[0].gpu)
    if len(groups) > 1 or kind.nodes == 1:
        return 2
    sizes = (
        sum(group.devices for group in other) for other in compositions if _kinds(other) == _kinds(groups)
    )
    return min(2, max(0, kind.per_node - groups[0].devices) // min(sizes))


@lru_cache(maxsize=1 << 16)
def send_alone(first: Composition, last: Composition, replica_bytes: float, estimator: Estimator) -> Sends:
    """Seconds between two stages on one node and on different nodes, each infinite where it cannot be."""
    never = float("inf")
    try:
        placed = place_stages([first, last], estimator.cluster)
    except PlanError:
        return Sends(near_seconds=never, far_seconds=never)

    def seconds(following: tuple[Slot, ...]) -> float:
        found = send(
            placed[0], following, replica_bytes, estimator.topology, estimator.calibration, estimator.curves
        )
        return found.seconds if found.link else never

    nodes = {(slot.pool, slot.first_node, slot.nodes) for slots in placed for slot in slots}
    if len(nodes) > 1 or any(count > 1 for _, _, count in nodes):
        return Sends(near_seconds=never, far_seconds=seconds(placed[1]))
    several = estimator.topology.kind(first[0].pool, first[0].gpu).nodes > 1
    apart = tuple(replace(slot, first_node=slot.first_node + 1) for slot in placed[1])
    return Sends(near_seconds=seconds(placed[1]), far_seconds=seconds(apart) if several else never)
