"""A lower bound of pipelines of whole layers: stages are counted by kind of device, never enumerated.

Let b be the busiest stage's seconds of one micro-batch, ``once`` the sum over all p stages and m the number of
micro-batches. Whichever stage is the busiest, the pipeline ends no sooner than the paths of the table say
(``schedules.busiest_path``), for m > p

    m b    and    2 once + (m - p - 1) b

A small b needs slow devices too, a large one lets the fastest hold more: both terms are steps in b, and the least
over all steps is the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.cost.many import Numbers
from planner.cost.schedules import alive, behind_twice, busiest_path, own_work, round_trip
from planner.search.bounds.rates import Crossing, Speed
from planner.search.space.sends import Hops

_ROUNDING = 1e-9

_STEPS = 64
"""Steps that are looked at together."""

_ROUNDS = 3
"""How often ``once`` and the layers of a stage sharpen each other."""


class LayerCountBound:
    """The bound of one family for any depth."""

    def __init__(
        self,
        speeds: Sequence[Speed],
        hops: Sequence[Hops],
        layers: int,
        micro_batches: int,
        chunks: int,
        crossing: Crossing | None = None,
        crossings: int = 1,
    ) -> None:
        """``crossing`` is a send that the pipeline must do at least ``crossings`` times, if there is one."""
        self.speeds, self.layers, self.micro_batches, self.chunks = speeds, layers, micro_batches, chunks
        self.crossing, self.crossings = crossing, crossings
        self._slots = np.array([speed.slots for speed in speeds])
        self._seconds = np.array([speed.layer_seconds for speed in speeds])
        self._most = np.array([float(speed.most_layers) for speed in speeds])
        self._free = np.array([speed.room.free_bytes for speed in speeds])
        self._layer_bytes = np.array([speed.room.layer_bytes for speed in speeds])
        self._activation_bytes = np.array([speed.room.activation_bytes for speed in speeds])
        self._tail = min(speed.tail_seconds for speed in speeds)
        self._ends = min(s.first_seconds for s in speeds) + min(s.last_seconds for s in speeds)
        inner = chunks * np.array([item.inner_seconds for item in hops])
        outer = chunks * np.array([item.outer_seconds for item in hops])
        self._inner, self._outer = float(inner.min()), float(outer.min())
        # What a stage does beside its layers: in the middle, as the first and as the last one, and at a crossing.
        self._beside = [
            inner,
            outer + np.array([speed.first_seconds for speed in speeds]),
            outer + np.array([speed.last_seconds for speed in speeds]),
        ]
        if crossing is not None:
            # A stage between two crossings is at both.
            for number in (1, 2)[:crossings]:
                self._beside.append(np.full(len(speeds), number * chunks * crossing.seconds))
        counts = np.arange(1.0, layers + 1)[:, None]
        steps = [(counts * self._seconds + each)[counts <= self._most] for each in self._beside]
        self._all_steps = np.unique(np.concatenate(steps))
        """Busy seconds at which some slot holds one layer more."""

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
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
        least = fixed + (self.layers - depth * self.chunks) * self.speeds[0].layer_seconds
        best = inf
        for begin in range(0, len(steps), _STEPS):
            busy = steps[begin : begin + _STEPS]
            # Every longer ``busy`` ends later than ``reach``.
            reach = _ends(paths, busy, np.full(len(busy), least))
            ends = self._ends_at(busy, depth, fixed, paths, rooms)
            before = np.minimum.accumulate(np.concatenate([[best], ends[:-1]]))
            late = reach >= np.minimum(before, cutoff)
            if late.any():
                index = int(late.argmax())
                return float(min(before[index], reach[index]))
            best = min(best, float(ends.min()))
        return best

    def _ends_at(
        self, busy: Numbers, depth: int, fixed: float, paths: Sequence[tuple[int, int]], rooms: Numbers
    ) -> Numbers:
        """The least end with each of these seconds of the busiest stage; infinite where not all layers are held."""
        caps = [self._whole(busy[:, None] - beside) for beside in self._beside]
        middle, first, last, *across = caps
        most = np.maximum(middle, np.maximum(first, last))
        held = _best_slots(middle, self._slots, depth - 2) + first.max(axis=1) + last.max(axis=1)
        if self.crossing is not None:
            held -= self._lost(across, np.minimum(middle, np.minimum(first, last)))
        # Layers of the p best slots, less what those at crossings cannot hold, >= L
        holds = held >= self.layers - _ROUNDING
        # The best types at each position have the memory for them.
        short = holds & (most > rooms[:, 0]).any(axis=1)
        if short.any():
            fitting = np.minimum(most[short][:, :, None], rooms)
            holds[short] = self._most_by_position(fitting) >= self.layers - _ROUNDING
        once = fixed + self._rest(most, depth)
        least = np.maximum(self.chunks, self.layers - _best_slots(most, self._slots, depth - 1))
        # The stages end after the longest path; then the tail of the layers that each has at least.
        return np.where(holds, _ends(paths, busy, once) + self._tail * least, inf)

    def once(self, depth: int, seconds: float) -> float:
        """No pipeline that ends within ``seconds`` takes less for one micro-batch; infinite where there is none."""
        if self.crossing is not None and self.crossing.seconds == inf:
            return inf
        fixed = self._fixed(depth)
        once, paths = fixed, self._paths(depth)
        for _ in range(_ROUNDS):
            if once == inf:
                return inf
            # times once + visits busy <= T
            ends = [(seconds - times * once) / visits for times, visits in paths if visits]
            if min(ends) <= 0:
                return inf
            busy = np.array([min(ends) * (1 + _ROUNDING)])
            caps = [self._whole(busy[:, None] - beside) for beside in self._beside[:3]]
            once = max(once, fixed + float(self._rest(np.maximum.reduce(caps), depth)[0]))
        return once

    def _whole(self, seconds: Numbers) -> Numbers:
        """Layers that a slot of each device type does in so many seconds, [step][device type]."""
        layers = np.floor(seconds / self._seconds + _ROUNDING)
        held: Numbers = np.minimum(np.maximum(layers, 0.0), self._most)
        return held

    def _rooms(self, depth: int) -> Numbers:
        """Layers that memory holds at each position, [device type][stage]."""
        flights = [
            alive(stage, depth, self.micro_batches, self.chunks) / self.chunks for stage in range(depth)
        ]
        each = self._layer_bytes[:, None] + np.array(flights) * self._activation_bytes[:, None]
        held: Numbers = np.floor(np.minimum(1e9, self._free[:, None] / each) + 1e-6)
        return held

    def _one_stage(self) -> float:
        return min(
            (
                self.micro_batches
                * (self.layers * speed.layer_seconds + speed.first_seconds + speed.last_seconds)
                + self.layers * speed.tail_seconds
                for speed in self.speeds
                if speed.most_layers >= self.layers
            ),
            default=inf,
        )

    def _start(self, depth: int) -> float:
        """Busy seconds below which not even parts of layers fit on the fastest slots."""
        taken = _taken(self._slots, depth)
        if depth - taken.sum() >= _ROUNDING:
            return inf
        return float(self.layers / (taken / self._seconds).sum() * (1 - _ROUNDING))

    def _most_by_position(self, fitting: Numbers) -> Numbers:
        """Layers of any order of the device types, at most: the commonest kind everywhere, and what others gain on it.

        ``fitting`` is [step][device type][stage].
        """
        common = int(self._slots.argmax())
        total: Numbers = fitting[:, common].sum(axis=1)
        depth = fitting.shape[2]
        for index, slots in enumerate(self._slots):
            if index != common:
                gains = -np.sort(-np.maximum(0.0, fitting[:, index] - fitting[:, common]), axis=1)
                total = total + gains @ _taken(np.ones(depth), slots)
        return total

    def _lost(self, across: Sequence[Numbers], least: Numbers) -> Numbers:
        """Layers that the stages at crossings cannot hold, at least, [step]; infinite where no two can be at one.

        ``across`` is what a stage at one crossing holds, and at two. Each crossing has two sides, on different parts.
        """
        assert self.crossing is not None
        side = np.full(least.shape, inf)
        for number, held in enumerate(across, 1):
            # A stage between two crossings is at both with one loss.
            lost = np.maximum(0.0, least - held) / number
            side = np.minimum(side, np.where(held >= self.chunks, lost, inf))
        parts = np.array(self.crossing.parts)
        each = np.array([side[:, parts == part].min(axis=1) for part in np.unique(parts)])
        if len(each) < 2:
            return np.full(len(least), inf)
        # lost >= c (the least loss of a side on one part + that on another), and the layers lost are whole
        whole: Numbers = np.ceil(self.crossings * np.sort(each, axis=0)[:2].sum(axis=0) - _ROUNDING)
        return whole

    def _fixed(self, depth: int) -> float:
        """Seconds of one micro-batch through sends, ends, and the layers that every stage has, on the fastest slots."""
        sends = (depth - 2) * self._inner + 2 * self._outer
        if self.crossing is not None:
            # At most 2 c stages are at a crossing, and those at one of them only send to another side too.
            number = self.crossings
            outer = 4 if number == 1 else 2
            kept = max(0.0, (depth - 2 - 2 * number) * self._inner + outer * self._outer)
            sends = max(sends, kept + 2 * number * self.chunks * self.crossing.seconds)
        work = float((_taken(self._slots, depth) * self._seconds).sum())
        return sends + self._ends + self.chunks * work

    def _rest(self, most: Numbers, depth: int) -> Numbers:
        """Seconds of one micro-batch through all other layers: on the fastest slots, as many as these hold."""
        rest = float(self.layers - depth * self.chunks)
        held = np.cumsum(self._slots * np.maximum(0.0, most - self.chunks), axis=1)
        taken = _parts(np.minimum(held, rest))
        return np.where(rest - held[:, -1] < _ROUNDING, taken @ self._seconds, inf)

    def _paths(self, depth: int) -> list[tuple[int, int]]:
        """Paths as (times ``once``, times the busiest stage)."""
        # m b; in 1F1B also once + max(0, m - p) b and, for m > p, 2 once + (m - p - 1) b
        rows = (own_work, round_trip, behind_twice) if self.chunks == 1 else (own_work,)
        found = (busiest_path(row, depth, self.micro_batches) for row in rows)
        return [(path.once, path.busy) for path in found if path is not None]


def _ends(paths: Sequence[tuple[int, int]], busy: Numbers, once: Numbers) -> Numbers:
    """The end of the longest of these paths."""
    # A path that does not run through all stages says nothing of ``once``, which may be infinite.
    found = [times * once + visits * busy if times else visits * busy for times, visits in paths]
    longest: Numbers = np.maximum.reduce(found)
    return longest


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
    ends = np.minimum(np.cumsum(slots[order], axis=1), depth)
    held: Numbers = (_parts(ends) * np.take_along_axis(counts, order, axis=1)).sum(axis=1)
    return held
