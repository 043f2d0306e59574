"""Seconds of a micro-batch from a pipeline stage to the next: latency, and bytes over bandwidth of its path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.calibration.values import Calibration
from planner.cluster.topology import Topology
from planner.cost.communication import carried_rates, inside_rate
from planner.cost.measured_curves import LinkCurves
from planner.frozen import dataclass
from planner.plan.placement import Slot


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
    segments = _segments(first, last)
    flows = [segment for segment in segments if not segment.same_node]
    crossing = sum(flow.replicas for flow in flows)
    worst = Send(seconds=0.0, link="node")
    for segment in segments:
        out = _busiest(segment.first, [(flow.first, flow.replicas) for flow in flows])
        into = _busiest(segment.last, [(flow.last, flow.replicas) for flow in flows])
        load = _Load(out, into, crossing)
        segment_send = _segment_send(segment, replica_bytes, load, topology, calibration, curves)
        if segment_send.seconds > worst.seconds or not segment_send.link:
            worst = segment_send
    return worst


def likeness(first: Sequence[Slot], last: Sequence[Slot]) -> object:
    """Equal for pairs of stages between which sends take equally long: those of one slot each, near or apart."""
    if len(first) > 1 or len(last) > 1:
        return tuple(first), tuple(last)
    one, other = first[0], last[0]
    ends = ((each.pool, each.gpu, each.nodes, each.replicas_per_node) for each in (one, other))
    return *ends, _on_same_nodes(one, other)


def _on_same_nodes(one: Slot, other: Slot) -> bool:
    """True where replicas of one that send to replicas of the other, all to all of them in order, share their nodes."""
    return (one.pool, one.nodes, one.first_node) == (other.pool, other.nodes, other.first_node)


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

    segments = _segments(first, last)
    near = [_fit_same_nodes(segment, topology) for segment in segments]
    flows = [segment for segment, able in zip(segments, near, strict=True) if not able]
    crossing = sum(flow.replicas for flow in flows)
    worst = 0.0
    for segment, able in zip(segments, near, strict=True):
        # Which slots share a node is not known here, so that each counts alone: no more than with company.
        out = sum(flow.replicas for flow in flows if flow.first == segment.first)
        into = sum(flow.replicas for flow in flows if flow.last == segment.last)
        load = _Load(
            min(segment.first.replicas_per_node, max(out, segment.replicas)),
            min(segment.last.replicas_per_node * segment.ratio, max(into, segment.replicas)),
            crossing,
        )
        ways = [True] if able else []
        ways += (
            [False]
            if not (able and topology.device_type(segment.first.pool, segment.first.gpu).nodes == 1)
            else []
        )
        sends = (
            _segment_send(replace(segment, same_node=way), replica_bytes, load, topology, calibration, curves)
            for way in ways
        )
        worst = max(worst, min(one.seconds if one.link else float("inf") for one in sends))
    return worst


def _fit_same_nodes(segment: _Segment, topology: Topology) -> bool:
    """True when both ends may stand on the same nodes."""
    first, last = segment.first, segment.last
    if first.pool != last.pool or first.nodes != last.nodes or not (segment.whole or first.nodes == 1):
        return False
    devices = first.replicas_per_node * first.tp + last.replicas_per_node * last.tp
    return first.gpu != last.gpu or devices <= topology.device_type(first.pool, first.gpu).per_node


@dataclass(frozen=True, slots=True)
class _Segment:
    """Replicas of one slot that send to replicas of another."""

    first: Slot
    last: Slot
    replicas: float
    """Those that send; a replica that sends to several counts for each in part."""
    ratio: float
    """Replicas that send to one that receives."""
    whole: bool
    """True when they are all of both slots: nodes of one and the same number in both hold the same part of them."""
    same_node: bool


@dataclass(frozen=True, slots=True)
class _Load:
    """What a node sends, what one receives and what crosses at the same time, in replicas that send."""

    out: float
    into: float
    crossing: float


def _busiest(slot: Slot, ends: Sequence[tuple[Slot, float]]) -> float:
    """The most that any node of ``slot`` sends, or receives; ``ends``: slots with the replicas that cross there."""
    moved: dict[Slot, float] = {}
    for other, replicas in ends:
        if other.pool == slot.pool:
            moved[other] = moved.get(other, 0.0) + replicas
    end = slot.first_node + slot.nodes
    starts = {other.first_node for other in moved if slot.first_node <= other.first_node < end}
    return max(
        (
            sum(
                replicas / other.nodes
                for other, replicas in moved.items()
                if other.first_node <= node < other.first_node + other.nodes
            )
            for node in (slot.first_node, *sorted(starts))
        ),
        default=0.0,
    )


def _segments(first: Sequence[Slot], last: Sequence[Slot]) -> list[_Segment]:
    """Replicas paired in order; stages of different widths are paired by their share of the batch."""
    wide = sum(slot.replicas for slot in first)
    ratio = wide / sum(slot.replicas for slot in last)
    segments, done, ends = [], 0.0, []
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
            whole = abs(stop - position - max(slot.replicas, other.replicas * ratio)) < 1e-9
            near = (whole or slot.nodes == 1) and _on_same_nodes(slot, other)
            segments.append(_Segment(slot, other, stop - position, ratio, whole, near))
            position = stop
            if position >= ends[index][0] - 1e-9 and index + 1 < len(ends):
                index += 1
    return segments


def _segment_send(
    segment: _Segment,
    replica_bytes: float,
    load: _Load,
    topology: Topology,
    calibration: Calibration,
    curves: LinkCurves | None,
) -> Send:
    """The formula's time; where somebody has measured the link, that of all that a node sends at once."""
    device_type = topology.device_type(segment.first.pool, segment.first.gpu)
    if segment.same_node:
        rate = inside_rate(device_type, calibration)
        seconds, per_byte = replica_bytes / rate + device_type.intra_latency_seconds, 1 / rate
        at_once, link, curve = 1.0, "node", f"node:{segment.first.gpu}"
    else:
        path = topology.path(segment.first.pool, segment.last.pool)
        if not path.connected:
            return Send(seconds=float("inf"), link="")
        out, into, crossing = carried_rates(path, calibration)
        slowest = max(load.out / out, load.into / into, load.crossing / crossing)
        seconds = replica_bytes * slowest + path.latency_seconds
        at_once, link, curve = load.out / path.first_nodes, path.fabric, path.fabric
        per_byte = slowest / at_once
    known = None
    if curves is not None:
        # A wide node sends the replica's bytes from several of its nodes.
        sent, concurrent = replica_bytes * min(1.0, at_once), max(1.0, at_once)
        known = curves.seconds(curve, "send", 2, sent, per_byte, concurrent)
    return Send(seconds=known[0] if known else seconds, link=link)
