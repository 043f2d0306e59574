"""Seconds of a micro-batch from a pipeline stage to the next: latency, and bytes over bandwidth of its path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.calibration import Calibration
from planner.cost.communication import carried_rates, inside_rate
from planner.cost.measured_curves import LinkCurves
from planner.placement import Slot
from planner.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Sending one micro-batch from a stage to the next."""

    seconds: float
    link: str
    """``node``, or the fabric of the slowest pair; empty when there is no path."""


def send(
    first: Sequence[Slot],
    last: Sequence[Slot],
    replica_bytes: float,
    topology: Topology,
    calibration: Calibration,
    curves: LinkCurves | None = None,
) -> Send:
    """The slowest of the sends between replicas of two stages, all at the same time.

    ``replica_bytes`` is what one replica of ``first`` sends; a receiver of another size takes its part.
    """
    crossing = sum(segment.replicas for segment in _segments(first, last) if not segment.same_node)
    worst = Send(seconds=0.0, link="node")
    for segment in _segments(first, last):
        found = _segment_send(segment, replica_bytes, crossing, topology, calibration)
        if curves is not None:
            found = _measured_send(found, segment, replica_bytes, curves)
        if found.seconds > worst.seconds or not found.link:
            worst = found
    return worst


def least_send(
    first: Sequence[Slot],
    last: Sequence[Slot],
    replica_bytes: float,
    topology: Topology,
    calibration: Calibration,
    curves: LinkCurves | None = None,
) -> float:
    """Seconds that ``send`` is never below, wherever stages with such slots stand; infinite where they cannot talk.

    Parts of both may find themselves on one node, or on different ones.
    """

    def seconds(segment: _Segment) -> float:
        found = _segment_send(segment, replica_bytes, crossing, topology, calibration)
        if curves is not None:
            found = _measured_send(found, segment, replica_bytes, curves)
        return found.seconds if found.link else float("inf")

    segments = _segments(first, last)
    near = [_fit_one_node(segment, topology) for segment in segments]
    crossing = sum(segment.replicas for segment, able in zip(segments, near, strict=True) if not able)
    worst = 0.0
    for segment, able in zip(segments, near, strict=True):
        ways = [True] if able else []
        ways += (
            [False] if not (able and topology.kind(segment.first.pool, segment.first.gpu).nodes == 1) else []
        )
        worst = max(worst, min(seconds(replace(segment, same_node=way)) for way in ways))
    return worst


def _fit_one_node(segment: _Segment, topology: Topology) -> bool:
    """True when both ends may stand on one node."""
    first, last = segment.first, segment.last
    if first.pool != last.pool or first.nodes > 1 or last.nodes > 1:
        return False
    devices = first.replicas_per_node * first.tp + last.replicas_per_node * last.tp
    return first.gpu != last.gpu or devices <= topology.kind(first.pool, first.gpu).per_node


@dataclass(frozen=True, slots=True)
class _Segment:
    """Replicas of one slot that send to replicas of another."""

    first: Slot
    last: Slot
    replicas: int
    same_node: bool


def _segments(first: Sequence[Slot], last: Sequence[Slot]) -> list[_Segment]:
    """Replicas paired in order; stages of different widths are paired by their share of the batch."""
    wide = sum(slot.replicas for slot in first)
    ratio = wide / sum(slot.replicas for slot in last)
    found, done, ends = [], 0.0, []
    for slot in last:
        done += slot.replicas * ratio
        ends.append((done, slot))
    position = 0.0
    index = 0
    for slot in first:
        end = position + slot.replicas
        while position < end - 1e-9:
            stop = min(end, ends[index][0])
            other = ends[index][1]
            same = (
                slot.pool == other.pool
                and slot.nodes == other.nodes == 1
                and slot.first_node == other.first_node
            )
            found.append(_Segment(slot, other, max(1, round(stop - position)), same))
            position = stop
            if position >= ends[index][0] - 1e-9 and index + 1 < len(ends):
                index += 1
    return found


def _segment_send(
    segment: _Segment, replica_bytes: float, crossing: int, topology: Topology, calibration: Calibration
) -> Send:
    if segment.same_node:
        kind = topology.kind(segment.first.pool, segment.first.gpu)
        seconds = replica_bytes / inside_rate(kind, calibration) + kind.intra_latency_seconds
        return Send(seconds=seconds, link="node")
    path = topology.path(segment.first.pool, segment.last.pool)
    if not path.connected:
        return Send(seconds=float("inf"), link="")
    seconds = _fabric_seconds(carried_rates(path, calibration), segment, replica_bytes, crossing)
    return Send(seconds=seconds + path.latency_seconds, link=path.fabric)


def _measured_send(found: Send, segment: _Segment, replica_bytes: float, curves: LinkCurves) -> Send:
    """The measured time of all that a node sends at once, where somebody has measured this link."""
    at_once = 1 if segment.same_node else min(segment.first.replicas_per_node, segment.replicas)
    link = f"node:{segment.first.gpu}" if found.link == "node" else found.link
    known = curves.seconds(link, "send", 2, replica_bytes * at_once) if found.link else None
    return Send(seconds=known[0], link=found.link) if known else found


def _fabric_seconds(
    carried: tuple[float, float, float], segment: _Segment, replica_bytes: float, crossing: int
) -> float:
    out = min(segment.first.replicas_per_node, segment.replicas)
    into = min(segment.last.replicas_per_node, segment.replicas)
    return replica_bytes * max(out / carried[0], into / carried[1], crossing / carried[2])
