"""The data-parallel rings of every stage: one over all replicas or, with HSDP, two kinds of them.

HSDP (MiCS, arXiv:2205.00119; FSDP, arXiv:2304.11277, section 3.2.2): groups of consecutive replicas share
one copy of the states each. A ring in each group shards; rings between the groups add up what counterparts have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from planner.calibration.values import Calibration
from planner.cluster.topology import Topology
from planner.cost.communication import NodeLoad, Ring, crossing_rings, data_ring, leaving
from planner.cost.measured_curves import LinkCurves
from planner.frozen import dataclass
from planner.plan.placement import Slot

Node = tuple[str, int]
"""(pool, node)."""


def stage_rings(
    placement: Sequence[Sequence[Slot]],
    shard_size: int | None,
    topology: Topology,
    calibration: Calibration,
    kernels: str,
    curves: LinkCurves | None = None,
    expert_ways: int = 1,
    secondary: int | None = None,
) -> tuple[Ring, ...]:
    """The ring over which each stage shards, [stage]; between several groups it has a ring of copies.

    ``secondary``: replicas of a group that keeps a second copy of the parameters; each such group has a ring too.
    With experts divided over the devices of several replicas, these are such a group: rings between the groups add up
    the experts.
    """

    def ring(slots: Sequence[Slot], load: NodeLoad, ways: int | None = None) -> Ring:
        return data_ring(slots, load, topology, calibration, kernels, curves, ways=ways)

    if secondary is not None:
        whole, near = (
            stage_rings(placement, size, topology, calibration, kernels, curves) for size in (None, secondary)
        )
        return tuple(replace(one, near=each) for one, each in zip(whole, near, strict=True))
    if shard_size is None:
        load = crossing_rings(placement)
        stands = [_stands(slots, load) for slots in placement]
        unlike = dict(zip(stands, placement, strict=True))
        each = {where: ring(slots, load) for where, slots in unlike.items()}
        rings = tuple(each[where] for where in stands)
        if expert_ways in (1, placement[0][0].tp):
            return rings
        between = [_across(_groups(slots, expert_ways // slots[0].tp)) for slots in placement]
        return tuple(
            replace(one, experts=experts) for one, experts in zip(rings, _slowest(between, ring), strict=True)
        )
    inside = [_groups(slots, shard_size) for slots in placement]
    between = [_across(groups) for groups in inside]
    rings = tuple(
        replace(shards, copies=copies)
        for shards, copies in zip(_slowest(inside, ring), _slowest(between, ring), strict=True)
    )
    if expert_ways in (1, placement[0][0].tp):
        return rings
    # Of the members of a copy those that have the same experts.
    alike = [
        [
            bundle
            for group in groups
            for bundle in _across(_divided(group.members, expert_ways // slots[0].tp))
        ]
        for slots, groups in zip(placement, inside, strict=True)
    ]
    return tuple(
        replace(one, experts=replace(experts, copies=one.copies))
        for one, experts in zip(rings, _slowest(alike, ring), strict=True)
    )


def _stands(slots: Sequence[Slot], load: NodeLoad) -> object:
    """Equal for stages whose rings are equally fast: those of one slot each, wherever it is, and otherwise the same."""
    if len(slots) > 1:
        return tuple(slots)
    slot = slots[0]
    return slot.pool, slot.gpu, slot.tp, slot.nodes, slot.replicas_per_node, leaving(slot, load)


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Equal rings through the same nodes."""

    members: tuple[tuple[Slot, Node, int], ...]
    """Replicas of one ring on each node, in their order."""
    rings: int

    @property
    def spans(self) -> bool:
        """True when its rings leave a node."""
        return len({node for _, node, _ in self.members}) > 1

    @property
    def joins_pools(self) -> bool:
        """True when its rings may use a gateway."""
        return len({slot.pool for slot, _, _ in self.members}) > 1

    def holders(self, numbers: Iterable[int]) -> Iterator[tuple[Slot, Node]]:
        """Where the members of these growing numbers stand."""
        members = iter(self.members)
        end = 0
        for number in numbers:
            while number >= end:
                slot, node, count = next(members)
                end += count
            yield slot, node


def _groups(slots: Sequence[Slot], size: int) -> list[_Bundle]:
    """Groups of ``size`` consecutive replicas, each with a ring of its own."""
    replicas = (
        (slot, (slot.pool, node), slot.replicas_per_node)
        for slot in slots
        for node in range(slot.first_node, slot.first_node + slot.nodes)
    )
    return _divided(replicas, size)


def _divided(replicas: Iterable[tuple[Slot, Node, int]], size: int) -> list[_Bundle]:
    """The same of replicas on each node."""
    bundles: list[_Bundle] = []
    members: list[tuple[Slot, Node, int]] = []
    room = size
    for slot, node, left in replicas:
        while left:
            taken = min(left, room)
            members.append((slot, node, taken))
            left, room = left - taken, room - taken
            if not room:
                bundles.append(_Bundle(tuple(members), 1))
                members, room = [], size
    return bundles


def _across(groups: Sequence[_Bundle]) -> list[_Bundle]:
    """Rings that join the members of one number in all groups, those on the same nodes together."""
    ends = {end for group in groups for end in accumulate(count for _, _, count in group.members)}
    parts = [*pairwise((0, *sorted(ends)))]
    each = zip(*(group.holders(first for first, _ in parts) for group in groups), strict=True)
    return [
        _Bundle(tuple((slot, node, 1) for slot, node in holders), end - first)
        for holders, (first, end) in zip(each, parts, strict=True)
    ]


def _slowest(stages: Sequence[Sequence[_Bundle]], ring: Callable[..., Ring]) -> list[Ring]:
    """The slowest ring of each stage while all of them run, [stage]."""
    load = _leaving(bundle for bundles in stages for bundle in bundles)
    slowest_rings = []
    for bundles in stages:
        # The rings of a replica's devices run side by side.
        ways = sum(bundle.rings * bundle.members[0][0].tp for bundle in bundles if bundle.joins_pools)
        distinct = {_likeness(bundle, load): bundle for bundle in bundles}.values()
        rings = [ring(_as_slots(bundle, load), {}, ways or None) for bundle in distinct]
        slowest_rings.append(
            min(rings, key=lambda item: (item.bytes_per_second, -item.latency_seconds, item.link))
        )
    return slowest_rings


def _leaving(bundles: Iterable[_Bundle]) -> Counter[Node]:
    """Rings that leave each node."""
    load: Counter[Node] = Counter()
    for bundle in bundles:
        if bundle.spans:
            for node, tp in {node: slot.tp for slot, node, _ in bundle.members}.items():
                load[node] += bundle.rings * tp
    return load


def _likeness(bundle: _Bundle, load: Counter[Node]) -> tuple[object, ...]:
    """Equal for bundles whose rings are equally fast."""
    nodes = len({node for _, node, _ in bundle.members})
    return nodes, tuple((slot, count, load[node]) for slot, node, count in bundle.members)


def _as_slots(bundle: _Bundle, load: Counter[Node]) -> list[Slot]:
    """One ring as slots as wide as the number of rings that leave their nodes; nodes that are alike make one slot."""
    on_node: dict[Node, list[tuple[Slot, int]]] = {}
    for slot, node, count in bundle.members:
        on_node.setdefault(node, []).append((slot, count))
    alike: dict[tuple[object, ...], list[Node]] = {}
    for node, parts in on_node.items():
        alike.setdefault((load[node], *parts), []).append(node)
    return [
        slot._replace(
            tp=max(1, load[nodes[0]]),
            first_node=nodes[0][1],
            nodes=len(nodes),
            replicas_per_node=count,
        )
        for nodes in alike.values()
        for slot, count in on_node[nodes[0]]
    ]
