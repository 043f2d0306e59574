"""What the ILP may choose for each stage: a composition of devices and a number of layers, with its price.

Prices here never exceed those of the estimate: a stage is priced as if it stood alone on its nodes. The
estimate then adds what neighbours on the same node cost, and the difference comes back as a cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise

import numpy as np

from planner.capabilities import Recompute
from planner.cluster.topology import Topology
from planner.cost.arrays import Numbers
from planner.cost.communication import ALONE, Ring
from planner.cost.estimate import Estimator, exposed_bytes, outer_stages_wait, whole_copies
from planner.cost.schedules import divides, round_trip, wraps
from planner.cost.shape import Shape, Whole, chunk_layers
from planner.cost.stage import Pricer
from planner.cost.stage_price import EachLength, stacked
from planner.dims.tensor import splits_sequence
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.plan.placement import ends_fault, joins_ends, nodes_once
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.search.space.choices import (
    Choice,
    Composition,
    Islands,
    compositions,
    leaves_over,
    most_mixed,
    recomputes_of,
    stands,
    usable_device_types,
)
from planner.search.space.multi_node import sharing
from planner.search.space.rings import RingSetup, divided_ring, least_ring, ring_alone
from planner.search.space.sends import (
    Hops,
    Sends,
    Sides,
    least_sends,
    least_sides,
    send_alone,
    send_divided,
    unbatched,
)
from planner.search.values import Limits

MOST_PAIRS = 5_000
"""Pairs of compositions whose sends are priced for a bound: each takes a tenth of a millisecond, in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to fill one stage."""

    composition: int
    """Index into ``StageOptions.compositions``."""
    layers: int
    recompute: Recompute
    forward: tuple[float, ...]
    """Seconds of a micro-batch without sends, [chunk]."""
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    """The part for the gradients of weights where it is apart from the backward, [chunk]; else empty."""
    tail_seconds: float
    held_seconds: float
    """The part of the tail for which it holds back its last gradient."""

    @property
    def busy_seconds(self) -> float:
        """Seconds of one micro-batch, forward and backward."""
        return sum(self.forward) + sum(self.backward) + sum(self.weight)


class _Lengths:
    """Options of one composition and recomputation, one for each number of layers from ``least`` on."""

    def __init__(self, composition: int, recompute: Recompute, least: int, seconds: EachLength) -> None:
        self.composition, self.recompute, self.least, self.seconds = composition, recompute, least, seconds
        self._forward, self._backward = seconds.forward.tolist(), seconds.backward.tolist()
        self._weight = seconds.weight.tolist()
        self._tail, self._held = seconds.tail_seconds.tolist(), seconds.held_seconds.tolist()
        self._options: dict[int, Option] = {}

    def option(self, layers: int) -> Option:
        """That with so many layers."""
        if layers not in self._options:
            case = layers - self.least
            self._options[layers] = Option(
                composition=self.composition,
                layers=layers,
                recompute=self.recompute,
                forward=tuple(self._forward[case]),
                backward=tuple(self._backward[case]),
                weight=tuple(self._weight[case]),
                tail_seconds=self._tail[case],
                held_seconds=self._held[case],
            )
        return self._options[layers]


class StageOptions:
    """Options of every stage of one outer choice."""

    def __init__(
        self,
        choice: Choice,
        estimator: Estimator,
        limits: Limits,
        islands: Islands = (),
        once_seconds: float = 0.0,
    ) -> None:
        self.choice = choice
        self.islands = islands
        """The plan must use at least two of them, if there are any."""
        self.once_seconds = once_seconds
        """One micro-batch alone takes at least so long in the plans that are looked for."""
        self.estimator = estimator
        self.pricer: Pricer = estimator.pricer(choice.family.target, context=choice.family.context)
        self.topology: Topology = estimator.topology
        device_types = usable_device_types(self.topology, estimator.model)
        candidates = compositions(choice.family, device_types, estimator.model, limits)
        self.most_mixed = most_mixed(device_types) if any(len(item) > 1 for item in candidates) else 0
        """Stages of several device types that a plan may have."""
        family = choice.family
        self.ring_setup = RingSetup(self.pricer.kernels, family.shard_size, family.folding.ways)
        rings = [
            ring_alone(estimator, unbatched(item), self.ring_setup, together)
            if (together := self._together(item)) > 1
            else least_ring(estimator, unbatched(item), self.ring_setup)
            for item in candidates
        ]
        kept = [(item, ring) for item, ring in zip(candidates, rings, strict=True) if ring.connected]
        if islands and choice.depth == 1:
            kept = [(item, ring) for item, ring in kept if len(self.used_islands(item)) > 1]
        self.divided: dict[int, int] = {}
        """Compositions of stages on what others leave of several nodes, each with how many stand whole before them."""
        for groups, _ in kept.copy():
            most = self._held_whole(groups)
            ring = divided_ring(groups[0], estimator, self.pricer.kernels) if most else None
            if most and ring and ring.connected:
                self.divided[len(kept)] = most
                kept.append((groups, ring))
        self.compositions: tuple[Composition, ...] = tuple(item for item, _ in kept)
        self.rings: tuple[Ring, ...] = tuple(ring for _, ring in kept)
        own = choice.family.recompute
        self.recomputes = (
            recomputes_of(self.pricer.target, limits, estimator.model, device_types)
            if own is None
            else (own,)
        )
        if divides(choice.schedule):
            self.recomputes = tuple(item for item in self.recomputes if item == "none")
        """What a stage may recompute, from least on: more takes longer and is only worth its memory."""
        self._lengths = np.arange(choice.interleave, estimator.model.layers + 2)
        self._prices: dict[tuple[int, bool, bool, Recompute], _Lengths] = {}
        self._by_layers: dict[tuple[int, int], EachLength] = {}
        self._sends: dict[tuple[int, int], Sends] = {}
        self._most: dict[tuple[int, int], tuple[int, ...]] = {}
        self._most_of: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._slow_ends: dict[tuple[int, int, Recompute, bool, bool], list[float]] = {}

    def _together(self, groups: Composition) -> int:
        """Stages, this one too, that share the nodes over which they are dealt."""
        kinds = ((self.topology.device_type(group.pool, group.gpu), group) for group in groups)
        return max(sharing(device_type, group.tp, group.count) for device_type, group in kinds)

    def _held_whole(self, groups: Composition) -> int:
        """Stages smaller than a node that nodes hold whole, where the pipeline may have more; else 0."""
        family, group = self.choice.family, groups[0]
        together = family.context.ways > 1 or family.folding.ways > group.tp
        together = together or family.shard_size is not None or family.stage_nodes > 1
        if family.dp is None or len(groups) > 1 or together or self.pricer.target.hosts_once:
            return 0
        device_type = self.topology.device_type(group.pool, group.gpu)
        most = device_type.nodes * (device_type.per_node // group.tp // group.count)
        room = min(device_type.replicas(group.tp) // group.count, self.choice.depth)
        return most if most < room and leaves_over(device_type, group.tp) else 0

    def used_islands(self, *compositions: Composition) -> frozenset[int]:
        """Indices of the islands that stages of these compositions stand on."""
        pools = {group.pool for groups in compositions for group in groups}
        return frozenset(index for index, island in enumerate(self.islands) if pools & set(island))

    def shape(self, stage: int, layers: int | Whole, recompute: Recompute) -> Shape:
        """The shape of a stage of this choice; with an array of layers, of many at once."""
        family, schedule = self.choice.family, self.choice.schedule
        model, chunks = self.estimator.model, chunk_layers(layers, self.choice.interleave, schedule)
        shape = family.shape(chunks, stage, self.choice.depth, model, recompute, family.tp)
        return replace(shape, schedule=schedule)

    @property
    def outer_wait(self) -> bool:
        """True when the first and the last stage wait for each other before their tails."""
        return outer_stages_wait(self.estimator.model, self.pricer.target, self.choice.depth)

    def most_layers(self, stage: int, composition: int) -> int:
        """The largest number of layers whose memory fits on every device of the composition; 0 for none."""
        rest = self.estimator.model.layers - (self.choice.depth - 1) * self.choice.interleave
        most = max(self._fitting(stage, composition), default=0)
        return min(rest, max(most, self.choice.interleave - 1))

    def _fitting(self, stage: int, composition: int) -> tuple[int, ...]:
        """The largest number of layers that fits, with each recomputation."""
        key = (stage, composition)
        if key not in self._most:
            dp, groups = self.rings[composition].size, self.compositions[composition]
            each = (self._fitting_on(stage, group, dp) for group in groups)
            self._most[key] = tuple(map(min, zip(*each, strict=True)))
        return self._most[key]

    def _fitting_on(self, stage: int, group: ReplicaGroup, dp: int) -> tuple[int, ...]:
        """The same of one group: many compositions have devices in common."""
        key = stage, group.pool, group.gpu, group.tp, group.micro_batch, dp
        if key not in self._most_of:
            shapes = (self.shape(stage, self.choice.interleave, recompute) for recompute in self.recomputes)
            self._most_of[key] = tuple(self.pricer.most_layers(shape, group, dp) for shape in shapes)
        return self._most_of[key]

    def fastest_first(
        self, stage: int, compositions: Iterable[int], wanted: Callable[[int], object]
    ) -> Iterator[int]:
        """Those of these that are ``wanted`` then, by the seconds of a stage of one layer a chunk.

        Each is priced when its turn may have come.
        """
        least = self.without_traffic(stage, self.choice.interleave)
        waiting = [(least(index), False, index) for index in compositions]
        heapify(waiting)
        while waiting:
            _, priced, index = heappop(waiting)
            if not wanted(index):
                continue
            if priced:
                yield index
            else:
                seconds = self.option(stage, index, self.choice.interleave).busy_seconds
                heappush(waiting, (seconds, True, index))

    def without_traffic(self, stage: int, layers: int) -> Callable[[int], float]:
        """What tells the seconds of a micro-batch on each composition without traffic and what is computed again.

        Where nothing is offloaded a stage is no faster.
        """
        shape = self.shape(stage, layers, self.recomputes[0])
        known: dict[tuple[object, ...], float] = {}

        def seconds(group: ReplicaGroup) -> float:
            key = group.pool, group.gpu, group.tp, group.micro_batch
            if key not in known:
                known[key] = self.pricer.micro_batch(shape, group, group.micro_batch, ALONE).seconds
            return known[key]

        return lambda composition: max(map(seconds, self.compositions[composition]))

    def _least_recompute(self, stage: int, composition: int, layers: int) -> Recompute | None:
        """The least recomputation with which so many layers fit; None when none does."""
        if layers < self.choice.interleave:
            return self.recomputes[0]
        fitting = zip(self.recomputes, self._fitting(stage, composition), strict=True)
        return next((recompute for recompute, most in fitting if layers <= most), None)

    def option(self, stage: int, composition: int, layers: int) -> Option:
        """The price of one option, with the most recomputation where it does not fit at all."""
        recompute = self._recompute(stage, composition, layers)
        return self._priced(stage, composition, recompute).option(layers)

    def _recompute(self, stage: int, composition: int, layers: int) -> Recompute:
        if len(self.recomputes) == 1:
            return self.recomputes[0]
        return self._least_recompute(stage, composition, layers) or self.recomputes[-1]

    def by_layers(self, stage: int, composition: int) -> EachLength:
        """Seconds of the options of a stage, from one layer a chunk to one more than the model has, [length].

        True of as many layers as fit: with more of them a stage may have to recompute more.
        """
        key = (stage, composition)
        if key not in self._by_layers:
            most = self.most_layers(stage, composition)
            fitting = list(accumulate(self._fitting(stage, composition), max))
            last = min(bisect_left(fitting, most), len(fitting) - 1)
            needed = np.minimum(np.searchsorted(fitting, self._lengths), last)
            used, rows = np.unique(needed, return_inverse=True)
            priced = [self._priced(stage, composition, self.recomputes[index]).seconds for index in used]
            self._by_layers[key] = (
                priced[0] if len(priced) == 1 else stacked(priced).at(rows, np.arange(len(rows)))
            )
        return self._by_layers[key]

    def _priced(self, stage: int, composition: int, recompute: Recompute) -> _Lengths:
        """Options from one layer a chunk to one layer more than the model has."""
        first, last = stage == 0, stage == self.choice.depth - 1
        key = (composition, first, last, recompute)
        if key not in self._prices:
            priced = self.lengths(stage, composition, recompute, self.rings[composition])
            self._prices[key] = _Lengths(composition, recompute, self.choice.interleave, priced)
        return self._prices[key]

    def lengths(self, stage: int, composition: int, recompute: Recompute, ring: Ring) -> EachLength:
        """Seconds of a stage with from one layer a chunk to one layer more than the model has, over a ring."""
        shape = self.shape(stage, self._lengths, recompute)
        return self.pricer.each_length(shape, self.compositions[composition], ring)

    def options(self, stage: int, cutoff_seconds: float) -> Iterator[Option]:
        """Options of a stage that fit and that no plan faster than ``cutoff_seconds`` can contain."""
        chunks = self.choice.interleave
        for composition in range(len(self.compositions)):
            if stage < self.divided.get(composition, 0):
                continue
            late: dict[Recompute, list[bool]] = {}
            for layers in range(chunks, self.most_layers(stage, composition) + 1):
                recompute = self._recompute(stage, composition, layers)
                priced = self._priced(stage, composition, recompute)
                if recompute not in late:
                    ends = self._least_ends(stage, composition, priced.seconds)
                    late[recompute] = (ends > cutoff_seconds).tolist()
                if late[recompute][layers - chunks]:
                    break
                yield priced.option(layers)

    def end_at_slow_link(self, stage: int, option: Option, *, slow_next: bool, slow_before: bool) -> float:
        """The end of any plan with this option whose neighbours on these sides stand on other islands."""
        key = (stage, option.composition, option.recompute, slow_next, slow_before)
        if key not in self._slow_ends:
            priced = self._priced(stage, option.composition, option.recompute).seconds
            sent = self.least_sent(stage, option.composition, slow_next=slow_next, slow_before=slow_before)
            self._slow_ends[key] = self._least_ends(stage, option.composition, priced, sent).tolist()
        return self._slow_ends[key][option.layers - self.choice.interleave]

    def _least_ends(
        self,
        stage: int,
        composition: int,
        priced: EachLength,
        sends: tuple[float, float] | None = None,
    ) -> Numbers:
        """The end of any plan with such an option: its own work, and in 1F1B also what comes before it.

        The first micro-batch goes through all layers and back; then the stage has still to do what it could
        not do meanwhile (``schedules.round_trip``). ``sends`` are those of the forward and of the backward where
        more is known of them than that they are the least of any neighbours.
        """
        steps, depth = self.choice.family.micro_batches, self.choice.depth
        sent = self._sent(stage, composition)
        up, down = (sent, 0.0) if sends is None else sends
        sent = up + down
        forward: Numbers = priced.forward.sum(axis=1)
        backward: Numbers = priced.backward.sum(axis=1)
        busy = forward + backward + priced.weight.sum(axis=1)
        # T >= m busy + tail
        own: Numbers = steps * (busy + sent) + priced.tail_seconds
        if not self.choice.plain or sent == float("inf"):
            return own
        rest = (self.estimator.model.layers - self._lengths) * self.least_layer_seconds
        trip = round_trip(stage, depth, steps)
        forwards = trip.own.forward - trip.behind.forward
        backwards = trip.own.backward - trip.behind.backward
        work = forwards * (forward + up) + backwards * (backward + down)
        # T >= once + what the stage could not do meanwhile
        before: Numbers = np.maximum(self.once_seconds, busy + sent + rest)
        return np.maximum(own, before + work)

    def least_sent(
        self, stage: int, composition: int, *, slow_next: bool, slow_before: bool
    ) -> tuple[float, float]:
        """Least sends in forward and backward of a micro-batch, to stages of any island or of others only."""
        times = self.pricer.sent_at_least(stage, self.choice.depth, self.choice.interleave)
        to_next, before = self._sides[composition]
        behind, ahead = (
            self.choice.interleave * to_next[slow_next],
            self.choice.interleave * before[slow_before],
        )
        # A side where nothing is sent must not bring in an infinite send.
        forward = times.forward_to_next * behind if times.forward_to_next else 0.0
        forward += times.forward_from_before * ahead if times.forward_from_before else 0.0
        return forward, ahead if times.backward_to_before else 0.0

    @cached_property
    def _sides(self) -> tuple[tuple[tuple[float, float], tuple[float, float]], ...]:
        """Least seconds of a send to and from a stage of each composition: of all stages, of those of other islands."""
        everyone = range(len(self.compositions))
        islands = [self.used_islands(groups) for groups in self.compositions]

        def least(own: int, *, back: bool) -> tuple[float, float]:
            sends = {other: self.sends(other, own) if back else self.sends(own, other) for other in everyone}
            seconds = {other: min(item.near_seconds, item.far_seconds) for other, item in sends.items()}
            slow = (value for other, value in seconds.items() if islands[other] != islands[own])
            return min(seconds.values()), min(slow, default=float("inf"))

        return tuple((least(own, back=False), least(own, back=True)) for own in everyone)

    def _sent(self, stage: int, composition: int) -> float:
        """Least seconds of the sends of a stage for one micro-batch."""
        if self.choice.depth == 1:
            return 0.0
        hops = self.hops[composition]
        outer = stage in (0, self.choice.depth - 1)
        return self.choice.interleave * (hops.outer_seconds if outer else hops.inner_seconds)

    @property
    def few_pairs(self) -> bool:
        """True when there is time for the sends between any two compositions."""
        return len(self.compositions) ** 2 <= MOST_PAIRS

    @cached_property
    def hops(self) -> tuple[Hops, ...]:
        """Least sends of a stage of each composition; nothing at all where there are too many pairs to price."""
        if not self.few_pairs:
            return (Hops(inner_seconds=0.0, outer_seconds=0.0),) * len(self.compositions)
        times = self.pricer.sent_at_least(1, 3, self.choice.interleave)
        return least_sends(self.compositions, self.sends, self.topology, times, self.most_mixed)

    def node_sides(self) -> Iterator[tuple[ReplicaGroup, Sides]]:
        """Sends of a stage of each composition by where its neighbours are, at least; all of one device type."""
        times = self.pricer.sent_at_least(1, 3, self.choice.interleave)
        every = least_sides(self.compositions, self.sends, self.topology, times)
        for (group,), sides in zip(self.compositions, every, strict=True):
            yield group, sides

    @cached_property
    def least_layer_seconds(self) -> float:
        """Forward and backward of one layer for one micro-batch on the fastest devices, without ZeRO's traffic."""
        inner = replace(self.shape(0, 1, self.recomputes[0]), chunks=(1,), stage=1, depth=3, schedule="1f1b")
        micro = [
            self.pricer.micro_batch(inner, group, group.micro_batch, ALONE)
            for groups in self.compositions
            for group in groups
        ]
        return min(item.seconds - item.host_seconds for item in micro)

    @cached_property
    def _senders(self) -> tuple[tuple[Composition, float], ...]:
        """The devices of each composition, whatever their batch, and the bytes that a replica sends."""
        target, choice, senders = self.pricer.target, self.choice, []
        for groups in self.compositions:
            tp = groups[0].tp
            size = exposed_bytes(self.pricer, groups[0].micro_batch, choice.interleave, choice.schedule)
            copies = whole_copies(target, tp, split=splits_sequence(target, self.pricer.model, tp))
            senders.append((unbatched(groups), size * copies))
        return tuple(senders)

    @cached_property
    def _one_kind(self) -> bool:
        """True where all stages are on devices of one type of one pool."""
        return len({(group.pool, group.gpu) for groups in self.compositions for group in groups}) == 1

    def sends(self, first: int, last: int) -> Sends:
        """Least seconds of a send between two compositions."""
        key = (first, last)
        if key not in self._sends:
            (groups, size), (others, _) = self._senders[first], self._senders[last]
            divided = first in self.divided, last in self.divided
            if any(divided):
                self._sends[key] = send_divided(
                    self.estimator, groups, others, size, divided, one_kind=self._one_kind
                )
            else:
                self._sends[key] = send_alone(self.estimator, groups, others, size)
        return self._sends[key]

    def talks(self, slots: Sequence[int]) -> bool:
        """True when every stage of these compositions can send to the next one, [stage]."""
        around = wraps(self.choice.interleave, self.choice.schedule)
        pairs = {*pairwise(slots), *([(slots[-1], slots[0])] if around else [])}
        sends = (self.sends(*pair) for pair in pairs)
        return all(min(item.near_seconds, item.far_seconds) < float("inf") for item in sends)

    @property
    def joins_ends(self) -> bool:
        """True when the first and last stage must be able to hold one tied embedding."""
        return self.choice.depth > 1 and joins_ends(self.pricer.target, self.estimator.model)

    def joined(self, first: int, last: int) -> bool:
        """True when stages of these compositions can hold a tied embedding as the first and the last."""
        groups = self.compositions
        return not ends_fault(self.choice.family.zero, groups[first], groups[last])

    def obeys(self, slots: Sequence[int]) -> bool:
        """True when the target starts stages of these compositions, [stage]."""
        joined = not self.joins_ends or self.joined(slots[0], slots[-1])
        mixed = sum(self.is_mixed(slot) for slot in slots)
        return joined and mixed <= self.most_mixed and self.nodes_once(slots)

    def stand(self, slots: Sequence[int]) -> bool:
        """True where there is room for stages of these compositions, [stage], as the space has them."""
        whole = self.choice.family.shard_size is not None or self.choice.family.stage_nodes > 1
        return stands([self.compositions[index] for index in slots], self.topology, whole=whole)

    def is_mixed(self, composition: int) -> bool:
        """True for stages of several device types."""
        return len(self.compositions[composition]) > 1

    def nodes_once(self, slots: Sequence[int]) -> bool:
        """True when the stages can be placed so that the target starts all their nodes."""
        chosen = [self.compositions[index] for index in slots]
        try:
            return nodes_once(self.pricer.target, chosen, self.estimator.cluster)
        except PlanError:
            return False

    @cached_property
    def lone_pools(self) -> frozenset[str]:
        """Pools of one node, where the target starts a node once."""
        pools = self.estimator.cluster.pools if self.pricer.target.hosts_once else ()
        return frozenset(pool.name for pool in pools if len(pool.hosts) == 1)

    def most_stages(self, composition: int) -> int:
        """How many stages of a composition the cluster holds, at most."""
        counts = []
        for group in self.compositions[composition]:
            device_type = self.topology.device_type(group.pool, group.gpu)
            if composition in self.divided:
                return device_type.replicas(group.tp) // group.count - self.divided[composition]
            whole, rest = divmod(group.count, device_type.per_node // group.tp)
            on_node = device_type.per_node // (rest * group.tp) if rest else 0
            counts.append(
                device_type.nodes * on_node // (whole * on_node + 1) if rest else device_type.nodes // whole
            )
        return min(counts)

    def footprint(self, composition: int) -> tuple[tuple[str, str, int, int, int], ...]:
        """All that decides where a stage stands: whole nodes, devices of a part of one, and devices, by kind."""
        parts = []
        for group in self.compositions[composition]:
            per_node = self.topology.device_type(group.pool, group.gpu).per_node // group.tp
            whole, rest = divmod(group.count, per_node)
            parts.append((group.pool, group.gpu, whole, rest * group.tp, group.devices))
        return tuple(parts)

    def plan(self, chosen: list[Option]) -> Plan:
        """The plan of one option per stage, in stage order."""
        end = 0
        stages = []
        for option in chosen:
            stages.append(
                Stage(
                    first_layer=end,
                    end_layer=end + option.layers,
                    replicas=self.compositions[option.composition],
                    recompute=option.recompute,
                )
            )
            end += option.layers
        plan = self.choice.plan(stages, self.estimator.model)
        keys = {(group.pool, group.gpu) for stage in stages for group in stage.replicas}
        if plan.stage_nodes > 1 and all(self.topology.device_type(*key).dealt == 1 for key in keys):
            return replace(plan, stage_nodes=1)
        return plan
