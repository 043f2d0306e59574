"""Seconds of collectives and sends: latency plus bytes over bandwidth of the path they take.

A ring moves (n-1)/n of the data per pass over its narrowest hop (Patarasuk and Yuan 2009); latency is paid
per level of a tree, as NCCL does for large groups. Rings that leave a node at the same time share its NICs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import ceil, log2

from planner.calibration import Calibration
from planner.placement import Slot
from planner.topology import Kind, Path, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What one ring of a group of devices sees."""

    size: int
    """Members."""
    bytes_per_second: float
    """Bandwidth of its narrowest hop."""
    latency_seconds: float
    crosses: str
    """``device`` for one member, ``node``, or the fabric of the narrowest hop; empty when unreachable."""

    @property
    def connected(self) -> bool:
        """False when two members cannot talk."""
        return bool(self.crosses)

    def gather_seconds(self, size_bytes: float) -> float:
        """An all-gather to, or a reduce-scatter from, ``size_bytes`` on every member."""
        if self.size == 1:
            return 0.0
        passes = (self.size - 1) / self.size
        return passes * size_bytes / self.bytes_per_second + self.latency_seconds * ceil(log2(self.size))

    def reduce_seconds(self, size_bytes: float) -> float:
        """An all-reduce of ``size_bytes``: a reduce-scatter and an all-gather."""
        return 2 * self.gather_seconds(size_bytes)


def inside_rate(kind: Kind) -> float:
    """Bytes per second between two devices of a node; on a shared bus all devices of the node talk at once."""
    return kind.intra_bytes_per_second / (kind.per_node if kind.intra_shared else 1)


def tensor_ring(kind: Kind, calibration: Calibration, *, tp: int) -> Ring:
    """The ring inside one replica."""
    return Ring(
        size=tp,
        bytes_per_second=inside_rate(kind) * calibration.link_efficiency,
        latency_seconds=kind.intra_latency_seconds,
        crosses="device" if tp == 1 else "node",
    )


NodeLoad = dict[tuple[str, int], int]
"""Rings that leave each node, by (pool, node)."""


def spans_nodes(slots: Sequence[Slot]) -> bool:
    """True when a stage's replicas stand on more than one node."""
    return len({(slot.pool, slot.first_node) for slot in slots}) > 1 or any(slot.nodes > 1 for slot in slots)


def crossing_rings(placement: Sequence[Sequence[Slot]]) -> NodeLoad:
    """How many data-parallel rings leave each partly used node; a node missing here serves one stage."""
    load: NodeLoad = {}
    for slots in placement:
        if not spans_nodes(slots):
            continue
        ways = {(slot.pool, slot.first_node): slot.tp for slot in slots if slot.nodes == 1}
        for node, tp in ways.items():
            load[node] = load.get(node, 0) + tp
    return load


def data_ring(slots: Sequence[Slot], load: NodeLoad, topology: Topology, calibration: Calibration) -> Ring:
    """One of the data-parallel rings of a stage: one member from each replica."""
    size = sum(slot.replicas for slot in slots)
    if size == 1:
        return Ring(size=1, bytes_per_second=float("inf"), latency_seconds=0.0, crosses="device")
    members: dict[tuple[str, int], int] = {}
    for slot in slots:
        node = (slot.pool, slot.first_node)
        members[node] = members.get(node, 0) + slot.replicas_per_node
    hops = [_inside(slot, topology) for slot in slots if members[slot.pool, slot.first_node] > 1]
    hops += _between(slots, load, topology) if spans_nodes(slots) else []
    rate, _, latency, crosses = min(hops, key=lambda hop: (hop[0], hop[1]))
    latency = max(hop[2] for hop in hops)
    return Ring(
        size=size,
        bytes_per_second=rate * calibration.link_efficiency,
        latency_seconds=latency,
        crosses=crosses,
    )


Hop = tuple[float, int, float, str]
"""Bytes per second, tie-break, latency in seconds, name."""


def _inside(slot: Slot, topology: Topology) -> Hop:
    kind = topology.kind(slot.pool, slot.gpu)
    return inside_rate(kind), 1, kind.intra_latency_seconds, "node"


def _between(slots: Sequence[Slot], load: NodeLoad, topology: Topology) -> Iterator[Hop]:
    """Hops between nodes, one for each two pools of the group."""
    rings: dict[str, int] = {}
    nodes: dict[str, set[tuple[int, int]]] = {}
    for slot in slots:
        sharing = load.get((slot.pool, slot.first_node), slot.tp) if slot.nodes == 1 else slot.tp
        rings[slot.pool] = max(rings.get(slot.pool, 1), sharing)
        nodes.setdefault(slot.pool, set()).add((slot.first_node, slot.nodes))
    ways = max(slot.tp for slot in slots)
    for first, last in combinations_with_replacement(sorted(rings), 2):
        if first == last and len(nodes[first]) == 1 and next(iter(nodes[first]))[1] == 1:
            continue
        path = topology.path(first, last)
        rate = min(
            path.first_bytes_per_second / rings[first],
            path.last_bytes_per_second / rings[last],
            path.shared_bytes_per_second / ways,
        )
        yield rate, 0, path.latency_seconds, path.fabric


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
) -> Send:
    """The slowest of the sends between replicas of two stages, all at the same time.

    ``replica_bytes`` is what one replica of ``first`` sends; a receiver of another size takes its part.
    """
    crossing = sum(segment.replicas for segment in _segments(first, last) if not segment.same_node)
    worst = Send(seconds=0.0, link="node")
    for segment in _segments(first, last):
        found = _segment_send(segment, replica_bytes, crossing, topology, calibration)
        if found.seconds > worst.seconds or not found.link:
            worst = found
    return worst


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
        seconds = (
            replica_bytes / (inside_rate(kind) * calibration.link_efficiency) + kind.intra_latency_seconds
        )
        return Send(seconds=seconds, link="node")
    path = topology.path(segment.first.pool, segment.last.pool)
    if not path.connected or path.fabric == "node":
        return _node_to_node(path, segment, replica_bytes, calibration)
    seconds = _fabric_seconds(path, segment, replica_bytes, crossing)
    return Send(seconds=seconds / calibration.link_efficiency + path.latency_seconds, link=path.fabric)


def _node_to_node(path: Path, segment: _Segment, replica_bytes: float, calibration: Calibration) -> Send:
    """A pool of one node whose slots were told apart: still inside the node."""
    if not path.connected:
        return Send(seconds=float("inf"), link="")
    seconds = replica_bytes / (path.bytes_per_second * calibration.link_efficiency) + path.latency_seconds
    return Send(seconds=seconds, link="node")


def _fabric_seconds(path: Path, segment: _Segment, replica_bytes: float, crossing: int) -> float:
    out = min(segment.first.replicas_per_node, segment.replicas)
    into = min(segment.last.replicas_per_node, segment.replicas)
    return replica_bytes * max(
        out / path.first_bytes_per_second,
        into / path.last_bytes_per_second,
        crossing / path.shared_bytes_per_second,
    )
