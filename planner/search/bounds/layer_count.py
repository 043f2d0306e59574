"""A lower bound on pipelines of whole layers: stages are counted by device type, never enumerated.

Let b be the busiest stage's seconds of one micro-batch, ``once`` the sum over all p stages and m the number of
micro-batches. Whichever stage is the busiest, the pipeline ends no sooner than the paths of the table say
(``schedules.busiest_path``), for m > p

    m b    and    2 once + (m - p - 1) b

A small b needs slow devices too, a large one lets the fastest hold more: both terms are steps in b, and the least
over all steps is the bound.

A stage holds what it does within b and what memory has room for at its position, both with the same recomputation. A
pipeline that one node cannot hold continues on others: the stages at such borders send further and hold fewer layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from planner.capabilities import Schedule
from planner.cost.arrays import Numbers
from planner.cost.schedules import (
    alive,
    behind_twice,
    busiest_path,
    divides,
    each_alive,
    is_v_shaped,
    own_work,
    round_trip,
)
from planner.frozen import dataclass
from planner.search.bounds.rates import END_TAILS, ENDS, RequiredSend, Speed, Work
from planner.search.space.sends import Hops

_ROUNDING = 1e-9

_NEVER = 1e30
"""Seconds of what cannot be, in arithmetic that knows no infinity."""

_STEPS = 64
"""Steps that are looked at together."""

_NEXT, _BEFORE, _BOTH, _FIRST, _LAST = range(3, 8)
"""Stages at the border of a node: the next one, the one before, or both stand on others; and the pipeline's ends."""

_CROSSING, _BACK, _BACK_TWICE = range(8, 11)
"""Stages at a crossing of islands, those at one send from the last stage to the first, and those at two."""

_ROUNDS = 3
"""How often ``once`` and the layers of a stage sharpen each other."""

BEYOND = 1.02
"""What ends later than the cutoff by this factor is known to without a look at shorter busy stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What slots do and hold, whatever they send; fields with two axes are [recomputation][device type]."""

    slots: Numbers
    """[device type]."""
    pools: NDArray[np.str_]
    """Of each device type."""
    seconds: Numbers
    """Of a layer for one micro-batch, [device type]."""
    backward: Numbers
    """The part of it for the backward, [device type]."""
    ends: Numbers
    """Seconds of embedding and head, [end][device type]."""
    end_tails: Numbers
    """What both add to the end of the step, [end][device type]."""
    tied: Numbers
    """What each of their two stages takes to add up the gradients of a tied embedding, [device type]."""
    each_seconds: Numbers
    tails: Numbers
    """Least end of the step per layer."""
    most: Numbers
    """Layers that fit, at most."""
    free_bytes: Numbers
    layer_bytes: Numbers
    activation_bytes: Numbers
    tail_seconds: float
    ends_seconds: float
    """Of embedding and head, at least."""


def held_by(speeds: Sequence[Speed], layers: int) -> Held:
    """What slots of these speeds do and hold of so many layers."""
    policies = list(zip(*(speed.policies for speed in speeds), strict=True))
    rooms = [[policy.room for policy in row] for row in policies]
    ends, end_tails = (
        np.array([[getattr(speed, name) for speed in speeds] for name in names])
        for names in (ENDS, END_TAILS)
    )
    return Held(
        slots=np.array([speed.slots for speed in speeds]),
        pools=np.array([speed.device_type[0] for speed in speeds]),
        seconds=np.array([speed.layer_seconds for speed in speeds]),
        backward=np.array([speed.backward_seconds for speed in speeds]),
        ends=ends,
        end_tails=end_tails,
        tied=np.array([speed.tied_seconds for speed in speeds]),
        each_seconds=np.array([[policy.layer_seconds for policy in row] for row in policies]),
        tails=np.array([[policy.tail_seconds for policy in row] for row in policies]),
        most=np.array([[float(min(layers, room.layers(1))) for room in row] for row in rooms]),
        free_bytes=np.array([[max(0.0, room.free_bytes) for room in row] for row in rooms]),
        layer_bytes=np.array([[room.layer_bytes for room in row] for row in rooms]),
        activation_bytes=np.array([[room.activation_bytes for room in row] for row in rooms]),
        tail_seconds=min(speed.tail_seconds for speed in speeds),
        ends_seconds=min(s.first_seconds for s in speeds) + min(s.last_seconds for s in speeds),
    )


class LayerCountBound:
    """The bound of one family for any depth."""

    def __init__(
        self,
        speeds: Sequence[Speed],
        hops: Sequence[Hops],
        layers: int,
        micro_batches: int,
        chunks: int,
        crossing: RequiredSend | None = None,
        nodes: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        mixed: int = 0,
        schedule: Schedule = "1f1b",
        held: Held | None = None,
    ) -> None:
        """``crossing`` is a send that the pipeline must do at least once, if there is one.

        ``nodes`` are those of each pool and how many stages one holds at most; up to ``mixed`` stages are of several
        device types, and nothing is known of their sends. ``held`` is what ``held_by`` finds, where that is known.
        """
        self.speeds, self.layers, self.micro_batches, self.chunks = speeds, layers, micro_batches, chunks
        self.crossing, self.schedule = crossing, schedule
        self._nodes, self._mixed = sorted(nodes.values(), key=lambda item: -item[1]), mixed
        # Of each pool its device types, and the most neighbours in the pipeline that a node holds: a run.
        held = held or held_by(speeds, layers)
        runs = [(np.flatnonzero(held.pools == pool), most) for pool, (_, most) in nodes.items()]
        self._runs = [(types, most) for types, most in runs if types.size]
        self._slots, self._seconds, self._each_seconds = held.slots, held.seconds, held.each_seconds
        self._most, self._free = held.most, held.free_bytes
        self._layer_bytes, self._activation_bytes = held.layer_bytes, held.activation_bytes
        self._tail, self._ends = held.tail_seconds, held.ends_seconds
        self._tails = held.tails
        self._backward = held.backward
        inner = chunks * np.array([item.inner_seconds for item in hops])
        outer = chunks * np.array([item.outer_seconds for item in hops])
        self._inner, self._outer = float(inner.min()), float(outer.min())
        # What a stage does beside its layers: in the middle, as the first and as the last one, and at a crossing.
        (first, last), (first_tail, last_tail), tied = held.ends, held.end_tails, held.tied
        if is_v_shaped(schedule):
            # Nothing hides behind backwards that are divided, but a tied embedding is there once.
            first, last = first + last, np.zeros_like(last)
            first_tail, last_tail = np.maximum(first_tail, last_tail), np.zeros_like(last)
            tied = np.zeros_like(tied)
        borders = chunks * np.array([item.borders.each for item in hops]).T
        beside = [inner, outer + first, outer + last, *borders[:3], borders[3] + first, borders[4] + last]
        # Of each device type, and of all: sends of a stage, in the middle and at an end, and what a border adds.
        alike = np.full_like(inner, self._inner), np.full_like(outer, self._outer)
        self._sends = [(*sent, self._border_seconds(borders, *sent)) for sent in ((inner, outer), alike)]
        self._in_turn = chunks > 1 and schedule == "1f1b"
        """True where chunks take turns, so that the last stage sends to the first one."""
        if crossing is not None:
            back = (chunks - 1) * crossing.seconds
            beside += [np.full(len(speeds), each) for each in (chunks * crossing.seconds, back, 2 * back)]
        self._beside = np.array(beside)
        self._end_tails = np.zeros_like(self._beside)
        """What a stage ends the step with beside the tails of its layers, [role][device type]."""
        self._end_tails[[1, _FIRST]] = first_tail + tied
        self._end_tails[[2, _LAST]] = last_tail + tied
        self._first_tail = float((first_tail + tied).min())

    @cached_property
    def _all_steps(self) -> Numbers:
        """Busy seconds at which some slot holds one layer more."""
        # [layers][recomputation][role][device type]
        counts = np.arange(1.0, self.layers + 1)[:, None, None, None]
        steps = counts * self._each_seconds[:, None] + self._beside
        seconds: Numbers = np.unique(steps[np.broadcast_to(counts <= self._most[:, None], steps.shape)])
        return seconds[seconds < inf]

    def beyond(self, depths: Sequence[int] | NDArray[np.int64], cutoff: float) -> Numbers:
        """Seconds above the cutoff before which no stages of these depths can do their own work; 0 where they may.

        A quick look at all depths, of two stages or more, at once; nothing is lost at borders and crossings.
        """
        late, each_depth = BEYOND * cutoff, np.array(depths)
        stages = each_depth[:, None]
        each = self._within(late)[:, :3]
        middle, first, last = each.max(axis=0)
        order = np.argsort(-middle)
        taken = _parts(np.minimum(np.cumsum(self._slots[order]), stages - 2))
        most = taken @ middle[order] + first.max() + last.max()
        # What memory has room for too, [device type][depth][stages behind].
        behind = np.arange(stages.max())[None]
        flights = each_alive(behind, stages, self.micro_batches, self.chunks, self.schedule) / self.chunks
        rooms = self._room(flights)
        held = np.minimum(each[:, 0, :, None, None], rooms).max(axis=0)
        rows = np.arange(len(each_depth))
        foremost = rooms[:, :, rows, each_depth - 1]
        held[:, rows, each_depth - 1] = np.minimum(each[:, 1, :, None], foremost).max(axis=0)
        held[:, :, 0] = np.minimum(each[:, 2, :, None], rooms[..., 0]).max(axis=0)
        held[:, behind >= stages] = 0.0
        common = int(self._slots.argmax())
        total = held[common].sum(axis=1)
        for index, slots in enumerate(self._slots):
            if index != common:
                gains = -np.sort(-np.maximum(0.0, held[index] - held[common]), axis=1)
                total += gains @ _taken(np.ones(behind.size), slots)
        return np.where(np.minimum(most, total) >= self.layers - _ROUNDING, 0.0, late)

    def bound(self, depth: int, cutoff: float = inf) -> float:
        """No pipeline of ``depth`` stages ends sooner; infinite when its stages cannot hold all layers.

        At ``cutoff`` or above any value may be given that is no larger than the bound.
        """
        if depth == 1:
            return self._one_stage()
        if self.crossing is not None and self.crossing.seconds == inf:
            return inf
        start = self._start(depth)
        if start == inf:
            return inf
        first = int(np.searchsorted(self._all_steps, start, side="right"))
        steps = np.concatenate([[start], self._all_steps[first:]])
        fixed, paths, rooms = self._fixed(depth), self._paths(depth), self._rooms(depth)
        trips = self._trips(depth) if cutoff < inf else None
        if fixed == inf:
            return inf
        least = fixed + (self.layers - depth * self.chunks) * self.speeds[0].layer_seconds
        # Every longer ``busy`` ends later than ``reach``.
        reach = self._ends_at(paths, steps, np.full(len(steps), least))
        wanted = int(np.searchsorted(reach, cutoff))
        if not wanted:
            return float(reach[0])
        best = inf
        for begin in range(0, wanted, _STEPS):
            chosen = slice(begin, min(wanted, begin + _STEPS))
            busy = steps[chosen]
            once = self._once_at(busy, depth, fixed, rooms, cutoff, trips)
            ends = self._ends_at(paths, busy, once) + self._tail * self._least_layers(busy, depth)
            ends[once == inf] = inf
            before = np.minimum.accumulate(np.concatenate([[best], ends[:-1]]))
            late = reach[chosen] >= before
            if late.any():
                # What does not end by the cutoff may have been left out.
                return float(min(before[late.argmax()], cutoff))
            best = min(best, float(ends.min()))
        return float(min(best, reach[wanted] if wanted < len(steps) else inf, cutoff))

    def _once_at(
        self,
        busy: Numbers,
        depth: int,
        fixed: float,
        rooms: Numbers,
        cutoff: float,
        trips: Numbers | None,
    ) -> Numbers:
        """Least seconds of one micro-batch with each of these of the busiest stage; infinite where not all is held.

        Also where not all is done by the cutoff. ``trips``, where known, are what stages have to do after the first
        micro-batch is back, [stage][direction].
        """
        each = np.minimum(self._whole(busy, self._beside), self._within(cutoff)[:, :, None])
        caps = each.max(axis=0)
        middle, first, last = caps[:3]
        most = caps[:3].max(axis=0)
        slots = self._usable_slots(caps, depth)
        held = _best_slots(middle, slots, depth - 2) + first.max(axis=1) + last.max(axis=1)
        if self.crossing is not None:
            least = caps[:3].min(axis=0)
            lost = self._lost(caps[_CROSSING], least)
            if self._in_turn:
                lost = np.maximum(lost, self._lost_around(caps[_BACK], caps[_BACK_TWICE], least))
            held -= lost
        once: Numbers = fixed + self._rest(most, slots, depth)
        # Layers of the p best slots, less what those at crossings cannot hold, >= L
        holds = (held >= self.layers - _ROUNDING) & (slots.sum(axis=1) >= depth - _ROUNDING) & (once < inf)
        # The best types at each position have the memory for them, and the time.
        in_time = trips is not None or (cutoff < inf and self._in_turn)
        if (in_time or (rooms[:, :, 0] < self._most).any()) and holds.any():
            left = cutoff - once[holds]
            layers = self._held_by_position(each[:, :8, holds], slots[holds], rooms, left, trips, cutoff)
            holds[holds] = layers >= self.layers - _ROUNDING
        return np.where(holds, once, inf)

    def _trips(self, depth: int) -> Numbers | None:
        """Forwards and backwards that a stage has to do once the first micro-batch is back, [stage][direction]."""
        if self.chunks > 1 or self.schedule != "1f1b" or self.micro_batches == 1:
            return None
        own = [round_trip(stage, depth, self.micro_batches).own for stage in range(depth)]
        return np.array([(visits.forward - 1.0, visits.backward - 1.0) for visits in own])

    def _whole(self, busy: Numbers, beside: Numbers) -> Numbers:
        """Layers that a slot does in so many seconds, [recomputation][role][step][device type]."""
        spare = busy[:, None] - beside[:, None, :]
        layers = np.floor(spare / self._each_seconds[:, None, None] + _ROUNDING)
        held: Numbers = np.minimum(np.maximum(layers, 0.0), self._most[:, None, None])
        return held

    def _within(self, seconds: float) -> Numbers:
        """Layers of which a slot does all micro-batches, and ends the step, in so many seconds: as ``_whole``."""
        # m b + tail <= T
        work = self.micro_batches * self._each_seconds + self._tails
        beside = self.micro_batches * np.minimum(self._beside, _NEVER) + self._end_tails
        spare = seconds * (1 + _ROUNDING) - beside
        layers = np.floor(spare / work[:, None] + _ROUNDING)
        held: Numbers = np.minimum(np.maximum(layers, 0.0), self._most[:, None])
        return held

    def _least_layers(self, busy: Numbers, depth: int) -> Numbers:
        """Layers that each stage has at least, as the others hold no more."""
        most = self._caps(busy)
        return np.maximum(self.chunks, self.layers - _best_slots(most, self._slots, depth - 1))

    def _caps(self, busy: Numbers) -> Numbers:
        """Layers that a slot does in so many seconds wherever it is in the pipeline, at most, [step][device type]."""
        most: Numbers = self._whole(busy, self._beside[:3]).max(axis=(0, 1))
        return most

    def once(self, depth: int, seconds: float) -> float:
        """No pipeline that ends within ``seconds`` takes less for one micro-batch; infinite where there is none."""
        if self.crossing is not None and self.crossing.seconds == inf:
            return inf
        fixed = self._fixed(depth)
        once, paths = fixed, self._paths(depth)
        for _ in range(_ROUNDS):
            if once == inf:
                return inf
            # times once + visits busy + tail of the first stage <= T
            ends = [
                (seconds - times * once - (self._first_tail if times else 0.0)) / visits
                for times, visits in paths
                if visits
            ]
            if min(ends) <= 0:
                return inf
            busy = np.array([min(ends) * (1 + _ROUNDING)])
            once = max(once, fixed + float(self._rest(self._caps(busy), self._slots, depth)[0]))
        return once

    def _rooms(self, depth: int) -> Numbers:
        """Layers that memory holds at each position, [recomputation][device type][stage]."""
        alike = depth, self.micro_batches, self.chunks, self.schedule
        flights = np.array([alive(stage, *alike) / self.chunks for stage in range(depth)])
        return self._room(flights)

    def _room(self, flights: Numbers) -> Numbers:
        """Layers that memory holds beside so many micro-batches alive, [recomputation][device type][...]."""
        free, layer, activation = (
            values.reshape(*values.shape, *(1 for _ in flights.shape))
            for values in (self._free, self._layer_bytes, self._activation_bytes)
        )
        held: Numbers = np.floor(np.minimum(1e9, free / (layer + flights * activation)) + 1e-6)
        return held

    def _one_stage(self) -> float:
        return min(
            (
                self.micro_batches
                * (self.layers * policy.layer_seconds + speed.first_seconds + speed.last_seconds)
                + self.layers * policy.tail_seconds
                for speed in self.speeds
                for policy in speed.policies
                if policy.room.layers(1) >= self.layers
            ),
            default=inf,
        )

    def _start(self, depth: int) -> float:
        """Busy seconds below which not even parts of layers fit on the fastest slots."""
        taken = _taken(self._slots, depth)
        if depth - taken.sum() >= _ROUNDING:
            return inf
        return float(self.layers / (taken / self._seconds).sum() * (1 - _ROUNDING))

    def _held_by_position(
        self,
        each: Numbers,
        slots: Numbers,
        rooms: Numbers,
        left: Numbers,
        trips: Numbers | None,
        cutoff: float,
    ) -> Numbers:
        """Layers of any order of the device types, at most: the commonest kind everywhere, and what others gain on it.

        ``each`` is what slots do with each recomputation in each role, [step][device type]; ``left`` are the seconds
        after the first micro-batch is back, [step], and ``trips`` what is to be done in them, where that is known.
        """
        back: Numbers | None = None

        def in_time(role: int, trips: Numbers, *, tail: bool = False) -> Numbers:
            """Layers with which a stage ends in time, [recomputation][step][device type][stage]."""
            forwards, backwards = trips.T
            # once + forwards (f + b) + (backwards - forwards) b + tail <= T
            work = forwards * self._each_seconds[..., None] + (backwards - forwards) * self._backward[:, None]
            beside = forwards * np.minimum(self._beside[role], _NEVER)[:, None]
            if tail:
                work, beside = work + self._tails[..., None], beside + self._end_tails[role][:, None]
            else:
                beside = beside + self._first_tail
            spare = left[:, None, None] - beside
            layers: Numbers = np.floor(spare / np.maximum(work, 1 / _NEVER)[:, None] + _ROUNDING)
            return np.maximum(layers, 0.0)

        def between(role: int, back: Numbers) -> Numbers:
            """Layers of which a stage does all between the way of a chunk to it and back, as ``in_time``."""
            # once of a chunk on the stages before + m b + tail of the first <= T
            beside = self.micro_batches * np.minimum(self._beside[role], _NEVER)
            spare = (cutoff - self._first_tail - back)[:, None] - beside[:, None]
            layers: Numbers = np.floor(
                spare / (self.micro_batches * self._each_seconds)[:, None, :, None] + _ROUNDING
            )
            return np.maximum(layers, 0.0)

        def fitting(role: int, first: int, last: int) -> Numbers:
            """In a role at each position: the first and the last stage stand at certain ones."""
            able = np.minimum(each[:, role, ..., None], rooms[:, None])
            for place, own_role in ((0, first), (-1, last)):
                able[..., place] = np.minimum(each[:, own_role], rooms[:, None, :, place])
            if trips is not None:
                times = in_time(role, trips)
                # The others end their tails while the last micro-batch comes back to the first stage, which has one.
                times[..., :1] = in_time(first, trips[:1], tail=True)
                times[..., -1:] = in_time(last, trips[-1:])
                able = np.minimum(able, times)
            if back is not None:
                times = between(role, back)
                times[..., :1], times[..., -1:] = between(first, back[:, :1]), between(last, back[:, -1:])
                able = np.minimum(able, times)
            held: Numbers = able.max(axis=0)
            return held

        own = fitting(0, 1, 2)
        if cutoff < inf and self._in_turn:
            back = self._back(own.max(axis=1))
            back[:, 0] = 0.0
            own = fitting(0, 1, 2)
        total, depth = _anywhere(own, slots), own.shape[2]
        run = self._nodes[0][1] if self._nodes else depth
        windows = (depth - 1) // run
        if windows:
            ahead, behind, both = (
                fitting(_NEXT, _FIRST, _LAST),
                fitting(_BEFORE, _FIRST, _LAST),
                fitting(_BOTH, _BOTH, _BOTH),
            )
            # Of so many sends in a row one leaves the node.
            sends = windows * run
            each_side = []
            for held, side in ((ahead, slice(0, sends)), (behind, slice(1, sends + 1))):
                lost = np.minimum(_loss(own, held, self.chunks), _loss(own, both, self.chunks) / 2)
                each_side.append(lost.min(axis=1)[:, side])
            least = np.sort(
                (each_side[0] + each_side[1]).reshape(len(total), windows, run).min(axis=2), axis=1
            )
            total = total - np.ceil(least[:, : max(0, windows - 2 * self._mixed)].sum(axis=1) - _ROUNDING)
            if self._runs:
                total = np.minimum(total, self._in_runs(own, ahead, behind, both, slots))
        return total

    def _back(self, most: Numbers) -> Numbers:
        """Forward and backward of a first chunk on all stages before each, at least, [step][stage].

        ``most`` are the layers that a stage holds wherever its devices are.
        """
        depth = most.shape[1]
        ahead = np.arange(depth)
        # Those before a stage hold what it and those behind it do not, and a first chunk is none of the smaller ones.
        behind = np.cumsum(most[:, ::-1], axis=1)[:, ::-1]
        layers = np.maximum(ahead, np.maximum(0.0, self.layers - behind) / self.chunks)
        sends = ahead * min(self._inner, self._outer) / self.chunks
        seconds: Numbers = layers * float(self._seconds.min()) + sends
        return seconds

    def _usable_slots(self, caps: Numbers, depth: int) -> Numbers:
        """Slots that a pipeline may have, [step][device type]; ``caps`` is what one holds in each role.

        Where no stage of a pool holds a layer beside a send to another node, its runs of neighbours on one node begin
        or end the pipeline, if they do not stand there alone.
        """
        slots = np.tile(self._slots, (caps.shape[1], 1))
        for types, most in self._runs:
            if depth > most:
                ahead, behind, both, first, last = (
                    caps[_NEXT : _LAST + 1, :, types].max(axis=2) >= self.chunks
                )
                several = most > 1
                ends = np.where(ahead & several, most, first) + np.where(behind & several, most, last)
                ends = ends + self._around_mixed(most)
                limits = np.where(both | (ahead & behind & several), inf, ends)
                slots[:, types] = np.minimum(slots[:, types], limits[:, None])
        return slots

    def _around_mixed(self, most: int) -> int:
        """Slots of the mixed stages, and of the runs beside them, which send less: of a pool's, at most."""
        return self._mixed * (2 * most + 1)

    def _in_runs(
        self, own: Numbers, ahead: Numbers, behind: Numbers, both: Numbers, slots: Numbers
    ) -> Numbers:
        """Layers of all stages, at most, where each bears its part of what its run on a node loses; [step].

        A stage holds so many in a run, where one ends, where one begins, and alone, [step][device type][stage].
        """
        own, slots = own.copy(), slots.copy()
        begins, ends, mixed, beside = (np.zeros(len(own)) for _ in range(4))
        for types, most in self._runs:
            after, before, alone = (
                _loss(own[:, types], held[:, types], self.chunks).min(axis=(1, 2))
                for held in (ahead, behind, both)
            )
            # A run of j stages loses >= before + after, and j <= most; one alone loses >= alone.
            each = np.minimum(alone, (before + after) / most) if most > 1 else alone
            useless = each == inf
            left = np.where(useless, 2 * most + self._around_mixed(most), inf)
            slots[:, types] = np.minimum(slots[:, types], left[:, None])
            each[useless] = before[useless] = after[useless] = 0.0
            own[:, types] -= each[:, None, None]
            # The first run of j stages loses >= after where j > 1, the last one >= before.
            begins = np.maximum(begins, np.maximum(each, most * each - after))
            ends = np.maximum(ends, np.maximum(each, most * each - before))
            # A mixed stage bears each, and a run beside one most each: they lose nothing, perhaps.
            mixed, beside = np.maximum(mixed, each), np.maximum(beside, most * each)
        given_back = begins + ends + self._mixed * (mixed + 2 * beside)
        total = np.floor(_anywhere(own, slots) + given_back + _ROUNDING)
        return np.where(slots.sum(axis=1) >= own.shape[2] - _ROUNDING, total, -inf)

    def _borders(self, depth: int) -> int:
        """Sends of one device type's stage to another's that leave their node, at least."""
        left, nodes = depth, 0
        for count, most in self._nodes:
            taken = min(left, count * most)
            nodes += -(-taken // most)
            left -= taken
        return max(0, nodes - 1 - 2 * self._mixed)

    def _border_seconds(self, borders: Numbers, inner: Numbers, outer: Numbers) -> float:
        """What a border adds to the sends of one micro-batch, at least; [field of ``Borders``][device type]."""
        ahead, behind, both = borders[:3] - inner
        first, last = borders[3:] - outer
        sender, receiver = (
            float(np.minimum.reduce([np.minimum(one, end), both / 2]).min())
            for one, end in ((ahead, first), (behind, last))
        )
        return max(0.0, sender) + max(0.0, receiver)

    def _lost(self, held: Numbers, least: Numbers) -> Numbers:
        """Layers that the stages at a crossing cannot hold, at least, [step]; infinite where no two can be at one.

        ``held`` is what a stage there holds. A crossing has two sides, on different parts.
        """
        # lost >= the least loss of a side on one part + that on another
        return self._lost_on_two(_loss(least, held, self.chunks))

    def _lost_around(self, once: Numbers, twice: Numbers, least: Numbers) -> Numbers:
        """The same where the last stage sends to the first one: a ring that comes to a part leaves it too.

        ``once`` and ``twice`` are what a stage holds beside one such send of each chunk that comes back, and two.
        """
        # lost on each of two parts >= two sides on two stages, or both on one
        sides = np.minimum(2 * _loss(least, once, self.chunks), _loss(least, twice, self.chunks))
        return self._lost_on_two(sides)

    def _lost_on_two(self, lost: Numbers) -> Numbers:
        """Of layers that each device type loses those on the two parts that lose least, whole ones; [step]."""
        assert self.crossing is not None
        parts = np.array(self.crossing.parts)
        each = np.array([lost[:, parts == part].min(axis=1) for part in np.unique(parts)])
        if len(each) < 2:
            return np.full(len(lost), inf)
        whole: Numbers = np.ceil(np.sort(each, axis=0)[:2].sum(axis=0) - _ROUNDING)
        return whole

    def _fixed(self, depth: int) -> float:
        """Seconds of one micro-batch through sends, ends, and the layers that every stage has, on the best slots."""
        borders = self._borders(depth)
        work = self.chunks * float((_taken(self._slots, depth) * self._seconds).sum())
        least = work
        for inner, outer, border in self._sends:
            each = self.chunks * self._seconds + inner
            order = np.argsort(each)
            every = float((_taken(self._slots[order], depth) * each[order]).sum())
            # The first and the last stage send to one side.
            one_side = float(np.maximum(0.0, inner - outer).max())
            least = max(least, every - 2 * one_side + (borders * border if borders else 0.0))
            if self.crossing is not None:
                # Two stages are at the crossing, and send to another side too.
                kept, more = max(work, every - 4 * one_side), max(0, borders - 2)
                kept += more * border if more else 0.0
                least = max(least, kept + 2 * self.chunks * self.crossing.seconds)
        return least + self._ends

    def _rest(self, most: Numbers, slots: Numbers, depth: int) -> Numbers:
        """Seconds of one micro-batch through all other layers: on the fastest slots, as many as these hold."""
        rest = float(self.layers - depth * self.chunks)
        held = np.cumsum(slots * np.maximum(0.0, most - self.chunks), axis=1)
        taken = _parts(np.minimum(held, rest))
        return np.where(rest - held[:, -1] < _ROUNDING, taken @ self._seconds, inf)

    def _paths(self, depth: int) -> list[tuple[int, int]]:
        """Paths as (times ``once``, times the busiest stage)."""
        # m b; in 1F1B also once + max(0, m - p) b and, for m > p, 2 once + (m - p - 1) b
        plain = self.chunks == 1 and not divides(self.schedule)
        rows = (own_work, round_trip, behind_twice) if plain else (own_work,)
        paths = (busiest_path(row, depth, self.micro_batches) for row in rows)
        return [(path.once, path.busy) for path in paths if path is not None]

    def _ends_at(self, paths: Sequence[tuple[int, int]], busy: Numbers, once: Numbers) -> Numbers:
        """The end of the longest of these paths; those through all stages come back to the first one."""
        # A path that does not run through all stages says nothing of ``once``, which may be infinite.
        ends = [
            times * once + visits * busy + self._first_tail if times else visits * busy
            for times, visits in paths
        ]
        longest: Numbers = np.maximum.reduce(ends)
        return longest


def late(
    work: Work,
    layers: int,
    steps: Sequence[int],
    depths: Sequence[int],
    cutoff: float,
    v_shaped: Sequence[bool],
) -> Numbers:
    """Seconds above the cutoff before which no pipeline of each family ends by its stages' own work; 0 where one may.

    Of at most so many stages: further ones hold no less. Nothing is sent, and each stage is where most fits.
    ``v_shaped`` are families with pipelines whose first stage may have both ends of the model.
    """
    seconds = BEYOND * cutoff
    each, tails, free, layer, activation = np.moveaxis(work.policies, 3, 0)
    times = np.array(steps, dtype=np.float64)[:, None, None]
    # All micro-batches of what stands beside the layers, and the end of the step.
    begin, end = np.moveaxis(times * work.ends + work.end_tails, 2, 0)
    both = np.sum(times * work.ends, axis=2)
    ends = np.stack([np.zeros_like(work.slots), begin, end, both])
    # [role][family][device type][recomputation][stages behind]
    # m b + tail <= T
    spare = seconds * (1 + _ROUNDING) - ends[..., None]
    done = np.maximum(0.0, np.floor(spare / (times * each + tails) + _ROUNDING))[..., None]
    stages, behind = np.array(depths)[:, None], np.arange(max(depths))
    flights = np.minimum(behind + 1, np.array(steps)[:, None])[:, None, None]
    bytes_each = layer[..., None] + flights * activation[..., None]
    rooms = np.floor(np.minimum(1e9, np.maximum(0.0, free)[..., None] / bytes_each) + 1e-6)
    own, first, last, both = np.minimum(done, rooms).max(axis=3)
    total = _wherever(work.slots, stages, own, first, last)
    # A stage on its own hides what one of two would not.
    total = np.maximum(total, np.where(work.slots > 0, both[:, :, 0], 0.0).max(axis=1))
    if any(v_shaped):
        total = np.where(v_shaped, np.maximum(total, _wherever(work.slots, stages, own, both, own)), total)
    # The best slots, wherever they stand.
    most = own[:, :, 0]
    order = np.argsort(-most, axis=1)
    taken = _parts(np.minimum(np.cumsum(np.take_along_axis(work.slots, order, axis=1), axis=1), stages))
    total = np.minimum(total, (taken * np.take_along_axis(most, order, axis=1)).sum(axis=1))
    return np.where(total >= layers - _ROUNDING, 0.0, seconds)


def _wherever(slots: Numbers, stages: Numbers, own: Numbers, first: Numbers, last: Numbers) -> Numbers:
    """Layers of all stages of each family, at most: the commonest device type everywhere, and what others gain on it.

    A stage in the middle, the first and the last one hold so many at each position, [family][device type][stages
    behind].
    """
    behind = np.arange(own.shape[2])
    held = np.where((behind == stages - 1)[:, None] & (behind > 0), first, own)
    held[:, :, 0] = last[:, :, 0]
    held *= (behind < stages)[:, None]
    return _anywhere(held, slots)


def _anywhere(held: Numbers, slots: Numbers) -> Numbers:
    """The most that slots [...][device type] hold in any order, ``held`` [...][device type][stage]; [...].

    The commonest device type everywhere, and what others gain on it.
    """
    common = np.argmax(slots, axis=1)[:, None]
    usual = np.take_along_axis(held, common[..., None], axis=1)
    gains = -np.sort(-np.maximum(0.0, held - usual), axis=2)
    share = np.clip(slots[..., None] - np.arange(held.shape[2]), 0.0, 1.0)
    total: Numbers = usual[:, 0].sum(axis=1) + (gains * share).sum(axis=(1, 2))
    return total


def _loss(held: Numbers, left: Numbers, least: int) -> Numbers:
    """How much less is left; infinite where that is not enough for a stage."""
    lost: Numbers = np.where(left >= least, np.maximum(0.0, held - left), inf)
    return lost


def _taken(slots: Numbers, depth: float) -> Numbers:
    """How much of each of these slots, in their order, so many stages take."""
    return _parts(np.minimum(np.cumsum(slots), depth))


def _parts(ends: Numbers) -> Numbers:
    """What cumulative sums along the last axis consist of."""
    parts = ends.copy()
    parts[..., 1:] -= ends[..., :-1]
    return parts


def _best_slots(counts: Numbers, slots: Numbers, depth: float) -> Numbers:
    """Layers that the ``depth`` best slots hold, of ``counts`` [step][device type]."""
    order: NDArray[np.intp] = np.argsort(-counts, axis=1)
    each = np.take_along_axis(np.broadcast_to(slots, counts.shape), order, axis=1)
    ends = np.minimum(np.cumsum(each, axis=1), depth)
    held: Numbers = (_parts(ends) * np.take_along_axis(counts, order, axis=1)).sum(axis=1)
    return held
