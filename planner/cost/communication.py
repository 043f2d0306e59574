"""Seconds of collectives: latency plus bytes over bandwidth of the path they take.

A ring moves (n-1)/n of the data per pass over its narrowest hop (Patarasuk and Yuan 2009). Every message pays latency:
a gather or a scatter that of a hop for each member, since NCCL has nothing but rings for them, an all-reduce that of a
tree between nodes. Rings that leave a node at the same time share its NICs. Measured curves win over all of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from math import ceil, log2

import numpy as np

from planner.calibration.values import Calibration, in_node
from planner.cluster.topology import DeviceType, Path, Topology
from planner.cost.arrays import is_zero, larger
from planner.cost.measured_curves import LinkCurves, passes
from planner.frozen import dataclass
from planner.plan.placement import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What one ring of a group of devices sees."""

    size: int
    """Members."""
    bytes_per_second: float
    """Bandwidth of its narrowest hop."""
    latency_seconds: float
    """Latency of one pass of an all-reduce: a hop for each member of a node, and for each level of a tree of nodes."""
    crosses: str
    """``device`` for one member, ``node``, or the fabric of the narrowest hop; empty when unreachable."""
    curves: LinkCurves | None = None
    """Measured collectives; they win where they know this link and number of members, or those around it."""
    link: str = ""
    """What the curves call the link: ``node:<gpu>``, or the fabric."""
    sharing: int = 1
    """Rings that share the link's cards with this one."""
    around_seconds: float | None = None
    """Latency of one pass around all members, as gathers and scatters go; ``latency_seconds`` when absent."""
    copies: Ring | None = None
    """The ring between groups that hold a copy each of what this ring shards; None when there is one group."""
    near: Ring | None = None
    """The ring in each group of members that keep a second copy of the parameters; its ``copies`` join the groups."""
    experts: Ring | None = None
    """The ring over devices that have the same experts; None where it is this one."""
    parts: int = 0
    """Parts of what is sharded that its members hold together; 0 where all hold equally much."""
    largest: int = 0
    """Those of the member that holds most."""
    dropped: int = 0
    """Slowest members of a step whose gradients are dropped."""
    wider: tuple[tuple[str, int], ...] = ()
    """Its other links, which by measurement may be the slower ones, and the rings that share each."""

    @property
    def of_experts(self) -> Ring:
        """The ring over which experts are added up and sharded."""
        return self if self.experts is None else self.experts

    @property
    def alone(self) -> bool:
        """True for one member, which has nobody to talk to."""
        return self.size == 1

    @property
    def connected(self) -> bool:
        """False when two members, or two copies, cannot talk."""
        return bool(self.crosses) and (self.copies is None or self.copies.connected)

    @property
    def padding(self) -> float:
        """Bytes that travel over those that are sharded: a ring with unequal parts goes on at the pace of the largest.

        (Traff et al., EuroPVM/MPI 2008, section 2: (p - 1) times the largest; the emitted runtime pads all to it.)
        """
        return self.size * self.largest / self.parts if self.parts else 1.0

    def ways(self, shard: int) -> float:
        """Members that would hold equally much each if all held what one with ``shard`` parts does."""
        return self.parts / shard if self.parts else self.size

    def with_shards(self, shards: Sequence[int]) -> Ring:
        """The same ring of members that hold so many parts of what is sharded; none where all hold equally much."""
        return replace(self, parts=sum(shards), largest=max(shards)) if shards else self

    def gather_seconds(self, size_bytes: float, messages: float = 1) -> float:
        """An all-gather to ``size_bytes`` on every member, in so many equal messages."""
        return messages * self._pass_seconds(
            "all-gather", "reduce-scatter", self.padding * size_bytes / messages, self._around
        )

    def scatter_seconds(self, size_bytes: float, messages: float = 1) -> float:
        """A reduce-scatter from ``size_bytes`` on every member, in so many equal messages."""
        return messages * self._pass_seconds(
            "reduce-scatter", "all-gather", self.padding * size_bytes / messages, self._around
        )

    @property
    def _around(self) -> float:
        return self.latency_seconds if self.around_seconds is None else self.around_seconds

    def _pass_seconds(self, operation: str, like: str, size_bytes: float, latency_seconds: float) -> float:
        """One pass around the ring; where only the other operation was measured, it stands for both."""
        if self.alone:
            return 0.0
        seconds = self._measured(operation, size_bytes)
        if seconds is None:
            seconds = self._measured(like, size_bytes)
        if seconds is None:
            passes = (self.size - 1) / self.size
            formula = passes * size_bytes / self.bytes_per_second + latency_seconds
            least = self._least(operation, size_bytes)
            seconds = larger(formula, self._least(like, size_bytes) if is_zero(least) else least)
        return self._slowest(seconds, size_bytes, operation, like)

    def reduce_seconds(self, size_bytes: float, messages: float = 1) -> float:
        """An all-reduce of ``size_bytes`` in so many equal messages: a pass that reduces and a pass that gathers."""
        size = size_bytes / messages
        measured = self._measured("all-reduce", size)
        if measured is not None:
            return messages * self._slowest(measured, size, "all-reduce")
        pair = ("reduce-scatter", "all-gather")
        passes = sum(self._pass_seconds(*names, size, self.latency_seconds) for names in (pair, pair[::-1]))
        return messages * self._slowest(larger(passes, self._least("all-reduce", size)), size, "all-reduce")

    def broadcast_seconds(self, size_bytes: float, messages: float = 1) -> float:
        """All bytes from one member to all others, over each hop once, in so many equal messages.

        Where only gathers were measured, that of parts of this size from all others moves as many over each hop.
        """
        if self.alone:
            return 0.0
        size = size_bytes / messages
        measured = self._measured("broadcast", size)
        if measured is None:
            return self.gather_seconds(size_bytes * self.size / (self.size - 1), messages)
        return messages * self._slowest(measured, size, "broadcast")

    def sum_seconds(self, size_bytes: float) -> float:
        """The sum of all members' bytes on one of them: a broadcast the other way, where it was not measured."""
        measured = None if self.alone else self._measured("reduce", size_bytes)
        if measured is None:
            return self.broadcast_seconds(size_bytes)
        return self._slowest(measured, size_bytes, "reduce")

    def copies_seconds(self, size_bytes: float, messages: float = 1) -> float:
        """Adding up over the copies what each member has of ``size_bytes``, in so many equal messages."""
        return 0.0 if self.copies is None else self.copies.reduce_seconds(size_bytes / self.size, messages)

    def _measured(self, operation: str, size_bytes: float) -> float | None:
        """Seconds by measurement."""
        if self.curves is None or is_zero(size_bytes):
            return None
        per_byte = self._per_byte(operation)
        reading = self.curves.seconds(
            self.link, operation, self.size, size_bytes, per_byte, concurrent=self.sharing
        )
        return reading[0] if reading else None

    def _per_byte(self, operation: str) -> float:
        """Seconds by formula of each byte of the rings that share the cards; 0 where none can travel."""
        rate = self.bytes_per_second * self.sharing
        return passes(operation, self.size) / rate if rate else 0.0

    def _slowest(self, seconds: float, size_bytes: float, *operations: str) -> float:
        """``seconds``, or what the first of the operations that is known took over a link that was slower."""
        if self.curves is None:
            return seconds
        for link, sharing in self.wider:
            seconds = self.curves.longer(seconds, link, operations, self.size, size_bytes, sharing)
        return seconds

    def _least(self, operation: str, size_bytes: float) -> float:
        """What fewer members took by measurement: more must not look cheaper because nobody measured them."""
        if self.curves is None or is_zero(size_bytes) or self.size == 1:
            return 0.0
        per_byte = self._per_byte(operation)
        return self.curves.least(
            self.link, operation, self.size, size_bytes, per_byte, concurrent=self.sharing
        )


ALONE = Ring(size=1, bytes_per_second=float("inf"), latency_seconds=0.0, crosses="device")
"""The ring of a device without neighbours."""


class Rings(Ring):
    """Many rings at once: ``size`` and ``bytes_per_second`` are arrays, and so is all that is asked of them.

    A lone member among them has an infinite rate, and no latency.
    """

    __slots__ = ()

    @property
    def alone(self) -> bool:
        """Some have several members."""
        return False


def inside_rate(device_type: DeviceType, calibration: Calibration) -> float:
    """Bytes per second between two devices of a node; all that share a bus talk at once, of whatever types."""
    nominal = device_type.intra_bytes_per_second / device_type.sharing
    return nominal * calibration.family(device_type.family).link_efficiency


def tensor_ring(
    device_type: DeviceType,
    calibration: Calibration,
    *,
    tp: int,
    curves: LinkCurves | None = None,
    utilisation: float = 1.0,
) -> Ring:
    """The ring inside one replica, which lies in a node or fills nodes.

    ``utilisation``: share of a network between nodes that the runtime reaches.
    """
    if device_type.between is not None and tp == device_type.per_node:
        return _ring_over_nodes(device_type, device_type.between, calibration, curves, utilisation)
    return Ring(
        size=tp,
        bytes_per_second=inside_rate(device_type, calibration),
        latency_seconds=(tp - 1) * device_type.intra_latency_seconds,
        crosses="device" if tp == 1 else "node",
        curves=curves,
        link=f"node:{device_type.gpu}",
    )


def _ring_over_nodes(
    device_type: DeviceType,
    path: Path,
    calibration: Calibration,
    curves: LinkCurves | None,
    utilisation: float,
) -> Ring:
    """The ring inside a replica that fills several nodes, which has all cards of them to itself.

    It is as fast as a data-parallel ring over all of these devices.
    """
    nodes = device_type.nodes_each
    here = device_type.per_node // nodes
    rate = carried_rates(path, calibration, utilisation)[0] / nodes
    if here > 1:
        rate = min(rate, inside_rate(device_type, calibration))
    inside, between = device_type.intra_latency_seconds, path.latency_seconds
    return Ring(
        size=device_type.per_node,
        bytes_per_second=rate,
        latency_seconds=(here - 1) * inside + ceil(log2(nodes)) * between,
        around_seconds=nodes * (here - 1) * inside + (nodes - 1) * between,
        crosses=path.fabric,
        curves=curves,
        link=path.fabric,
    )


def all_to_all_seconds(
    device_type: DeviceType,
    topology: Topology,
    calibration: Calibration,
    size_bytes: float,
    *,
    ep: int,
    width: int = 1,
    curves: LinkCurves | None = None,
    once: tuple[float, float] | None = None,
) -> float:
    """Seconds in which each of ``ep`` members sends parts of ``size_bytes`` to all others, its own part it keeps.

    A member stands on ``width`` devices, each of which does so with its counterparts. Groups lie in a node or fill
    nodes. Between nodes all devices of a node share its cards; what stays in the node travels at the same time
    unless NVLink carries both.

    ``once``: the shares of these bytes that travel where each device gets what is for any of its experts once, and each
    node what is for any of its devices, which pass it on inside; measured all-to-alls are of others.
    """
    together = member_nodes(device_type, ep, width)[0]
    staying, crossing = once or (together / ep, 1.0)
    curves = curves if once is None else None
    inside = staying * (together - 1) / together * size_bytes / inside_rate(device_type, calibration)
    seconds = inside + (together - 1) * device_type.intra_latency_seconds
    link, sharing = f"node:{device_type.gpu}", 1
    moved = inside
    if ep > together:
        path = topology.path(device_type.pool, device_type.pool)
        rate = carried_rates(path, calibration)[0] / (together * width)
        leaving = crossing * (ep - together) / ep * size_bytes / rate if rate else float("inf")
        moved = inside + leaving if path.kind == "nvlink" else larger(inside, leaving)
        seconds = moved + (together - 1) * device_type.intra_latency_seconds
        seconds += (ep // together - 1) * path.latency_seconds
        link, sharing = path.fabric, width
    if curves is None or ep == 1:
        return seconds
    per_byte = 0.0 if is_zero(size_bytes) else float(np.max(moved / size_bytes)) / sharing
    asked = (link, "all-to-all", ep, size_bytes, per_byte, sharing)
    measured = curves.seconds(*asked)
    return measured[0] if measured else larger(seconds, curves.least(*asked))


def member_nodes(device_type: DeviceType, ways: int, width: int) -> tuple[int, int]:
    """(members of a node, nodes) of a group of ``ways`` members of ``width`` devices each."""
    together = min(ways, device_type.per_node // width)
    return together, ways // together


def pass_on_seconds(
    device_type: DeviceType,
    topology: Topology,
    calibration: Calibration,
    size_bytes: float,
    *,
    ways: int,
    width: int,
    curves: LinkCurves | None = None,
) -> float:
    """Seconds in which each of ``ways`` members of a ring sends ``size_bytes`` to the next one.

    A member stands on ``width`` devices, each of which does so. In a ring over several nodes all wait for those that
    send to another node, over cards that these devices share.
    """
    rate = inside_rate(device_type, calibration)
    seconds = size_bytes / rate + device_type.intra_latency_seconds
    seconds = _sent(curves, f"node:{device_type.gpu}", size_bytes, seconds, 1 / rate)
    if ways * width > device_type.per_node:
        path = topology.path(device_type.pool, device_type.pool)
        rate = carried_rates(path, calibration)[0] / width
        leaving = size_bytes / rate + path.latency_seconds if rate else float("inf")
        per_byte = 1 / (rate * width) if rate else 0.0
        seconds = larger(seconds, _sent(curves, path.fabric, size_bytes, leaving, per_byte, width))
    return seconds


def _sent(
    curves: LinkCurves | None,
    link: str,
    size_bytes: float,
    otherwise: float,
    per_byte: float,
    concurrent: int = 1,
) -> float:
    """A send by measurement, where it was measured."""
    measured = None if curves is None else curves.seconds(link, "send", 2, size_bytes, per_byte, concurrent)
    return measured[0] if measured else otherwise


NodeLoad = dict[tuple[str, int], int]
"""Rings that leave a node, by (pool, node): of every node on which a run of nodes of some stage begins."""


def spans_nodes(slots: Sequence[Slot]) -> bool:
    """True when a stage's replicas stand on more than one node."""
    return len({(slot.pool, slot.first_node) for slot in slots}) > 1 or any(slot.nodes > 1 for slot in slots)


def crossing_rings(placement: Sequence[Sequence[Slot]]) -> NodeLoad:
    """How many data-parallel rings leave the nodes of stages that stand on several."""
    spanning = [slots for slots in placement if spans_nodes(slots)]
    load = {(slot.pool, slot.first_node): 0 for slots in spanning for slot in slots}
    for slots in spanning:
        ways: NodeLoad = {}
        for slot in slots:
            for node in _known(slot, load):
                ways[node] = max(ways.get(node, 0), slot.tp)
        for node, tp in ways.items():
            load[node] += tp
    return load


def _known(slot: Slot, load: NodeLoad) -> list[tuple[str, int]]:
    """The nodes of a slot on which a run begins: the fullest is one of them."""
    if slot.nodes == 1:
        own = (slot.pool, slot.first_node)
        return [own] if own in load else []
    end = slot.first_node + slot.nodes
    return [node for node in load if node[0] == slot.pool and slot.first_node <= node[1] < end]


def data_ring(
    slots: Sequence[Slot],
    load: NodeLoad,
    topology: Topology,
    calibration: Calibration,
    kernels: str,
    curves: LinkCurves | None = None,
    *,
    ways: int | None = None,
) -> Ring:
    """One of the data-parallel rings of a stage: one member from each replica.

    ``ways`` rings cross a gateway at once; as many as the widest replica has devices where it is not given.
    """
    size = sum(slot.replicas for slot in slots)
    if size == 1:
        return ALONE
    fullest = [_most_together(slot, slots) for slot in slots]
    hops = [
        _inside(slot, topology, calibration) for slot, most in zip(slots, fullest, strict=True) if most > 1
    ]
    if spans_nodes(slots):
        utilisation = calibration.framework(kernels).link_utilisation
        hops += _between(slots, load, ways, topology, calibration, utilisation)
    # Names decide between equal hops, so that the order of the slots does not.
    rate, _, _, link = min(hops, key=lambda hop: (hop[0], hop[1], hop[3]))
    beside = max(_beside(slot, load, topology) for slot in slots)
    others = sorted({hop[3] for hop in hops} - {link}) if curves is not None else ()
    together = max(fullest)
    inside = max((hop[2] for hop in hops if in_node(hop[3])), default=0.0)
    between = max((hop[2] for hop in hops if not in_node(hop[3])), default=0.0)
    nodes = -(-size // together)
    return Ring(
        size=size,
        bytes_per_second=rate,
        latency_seconds=(together - 1) * inside + ceil(log2(nodes)) * between,
        around_seconds=(size - nodes) * inside + (nodes - 1) * between,
        crosses="node" if in_node(link) else link,
        curves=curves,
        link=link,
        sharing=1 if in_node(link) else beside,
        wider=tuple((other, 1 if in_node(other) else beside) for other in others),
    )


def _most_together(slot: Slot, slots: Sequence[Slot]) -> int:
    """Members of a ring on the fullest node of a slot, which is one on which some slot begins."""
    nodes = range(slot.first_node, slot.first_node + slot.nodes)
    here = [other for other in slots if other.pool == slot.pool]
    return max(
        sum(
            other.replicas_per_node
            for other in here
            if other.first_node <= node < other.first_node + other.nodes
        )
        for node in {slot.first_node, *(other.first_node for other in here)}
        if node in nodes
    )


Hop = tuple[float, int, float, str]
"""Bytes per second, tie-break, latency in seconds, and what curves call the link."""


def _inside(slot: Slot, topology: Topology, calibration: Calibration) -> Hop:
    device_type = topology.device_type(slot.pool, slot.gpu)
    return inside_rate(device_type, calibration), 1, device_type.intra_latency_seconds, f"node:{slot.gpu}"


def leaving(slot: Slot, load: NodeLoad) -> int:
    """Data-parallel rings that leave the fullest node of a slot."""
    return max((load[node] for node in _known(slot, load)), default=slot.tp)


def _beside(slot: Slot, load: NodeLoad, topology: Topology) -> int:
    """Rings that share the cards of the fullest node of a slot; of a wide node those of one of its nodes."""
    return leaving(slot, load) // topology.device_type(slot.pool, slot.gpu).nodes_each


def _between(
    slots: Sequence[Slot],
    load: NodeLoad,
    ways: int | None,
    topology: Topology,
    calibration: Calibration,
    utilisation: float,
) -> Iterator[Hop]:
    """Hops between nodes, one for each two pools of the group."""
    rings: dict[str, int] = {}
    nodes: dict[str, set[tuple[int, int]]] = {}
    for slot in slots:
        rings[slot.pool] = max(rings.get(slot.pool, 1), leaving(slot, load))
        nodes.setdefault(slot.pool, set()).add((slot.first_node, slot.nodes))
    ways = ways or max(slot.tp for slot in slots)
    for first, last in combinations_with_replacement(sorted(rings), 2):
        if first == last and len(nodes[first]) == 1 and next(iter(nodes[first]))[1] == 1:
            continue
        path = topology.path(first, last)
        carried = carried_rates(path, calibration, utilisation)
        rate = min(carried[0] / rings[first], carried[1] / rings[last], carried[2] / ways)
        yield rate, 0, path.latency_seconds, path.fabric


def carried_rates(
    path: Path, calibration: Calibration, utilisation: float = 1.0
) -> tuple[float, float, float]:
    """Bytes per second that the first end, the last end and the gateways of a path between nodes really carry.

    ``utilisation``: share of a network that the runtime's rings reach; NVLink is no other between nodes than inside.
    """
    ends = (
        (path.first_bytes_per_second, path.first_cards),
        (path.last_bytes_per_second, path.last_cards),
    )
    reached = 1.0 if path.kind == "nvlink" else utilisation
    most = calibration.link(path.kind).host_bytes_per_second
    first, last = (
        reached * min(rate * fabric_share(path.kind, cards, calibration), nodes * most)
        for (rate, cards), nodes in zip(ends, (path.first_nodes, path.last_nodes), strict=True)
    )
    gateways = path.shared_bytes_per_second
    if gateways < float("inf"):
        gateways *= reached * fabric_share(path.kind, 1, calibration)
    return first, last, gateways


def fabric_share(kind: str, cards: int, calibration: Calibration) -> float:
    """Share of the nominal rate of ``cards`` cards a node that traffic on a kind of fabric carries."""
    link = calibration.link(kind)
    share: float = link.efficiency * link.rail ** log2(max(1, cards))
    return share
