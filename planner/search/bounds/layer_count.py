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
from math import ceil, floor, inf

from planner.cost.schedules import behind_twice, busiest_path, layers_in_flight, own_work, round_trip
from planner.search.bounds.rates import Crossing, Speed
from planner.search.space.sends import Hops

_ROUNDING = 1e-9

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
        self.speeds, self.hops, self.crossings = speeds, hops, crossings
        self.layers, self.micro_batches, self.chunks = layers, micro_batches, chunks
        self.crossing = crossing
        self._tail = min(speed.tail_seconds for speed in speeds)
        self._ends = min(s.first_seconds for s in speeds) + min(s.last_seconds for s in speeds)
        self._inner = chunks * min(item.inner_seconds for item in hops)
        self._outer = chunks * min(item.outer_seconds for item in hops)

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
        """No pipeline of ``depth`` stages ends sooner; infinite when its stages cannot hold all layers.

        At ``cutoff`` or above any value may be given that is no larger than the bound.
        """
        if depth == 1:
            return self._one_stage()
        crossing = self.crossing
        if crossing is not None and crossing.seconds == inf:
            return inf
        rooms = self._rooms(depth)
        paths = self._paths(depth)
        fixed = self._fixed(depth, crossing)
        least = fixed + (self.layers - depth * self.chunks) * self.speeds[0].layer_seconds
        best = inf
        busy = self._start(depth)
        while busy < inf:
            reach = _end(paths, busy, least)
            # Every longer ``busy`` ends later than ``reach``.
            if reach >= min(best, cutoff):
                return min(best, reach)
            caps = self._capacities(busy)
            if self._holds(caps, rooms, busy, depth, crossing):
                once = fixed + self._rest(caps, depth)
                # The stages end after the longest path; then the tail of the layers that each has at least.
                best = min(best, _end(paths, busy, once) + self._tail * self._least_layers(caps, depth))
            busy = self._next(busy, caps, crossing)
        return best

    def once(self, depth: int, seconds: float) -> float:
        """No pipeline that ends within ``seconds`` takes less for one micro-batch; infinite where there is none."""
        if self.crossing is not None and self.crossing.seconds == inf:
            return inf
        fixed = self._fixed(depth, self.crossing)
        once, paths = fixed, self._paths(depth)
        for _ in range(_ROUNDS):
            if once == inf:
                return inf
            # times once + visits busy <= T
            ends = [(seconds - times * once) / visits for times, visits in paths if visits]
            if min(ends) <= 0:
                return inf
            rest = self._rest(self._capacities(min(ends) * (1 + _ROUNDING)), depth)
            once = max(once, fixed + rest)
        return once

    def _rooms(self, depth: int) -> list[list[int]]:
        """Layers that memory holds at each position, [device type][stage]."""
        flights = [
            layers_in_flight(
                layers=1,
                stage=stage,
                depth=depth,
                micro_batches=self.micro_batches,
                interleave=self.chunks,
            )
            for stage in range(depth)
        ]
        return [[speed.room.layers(flight) for flight in flights] for speed in self.speeds]

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
        rate, left = 0.0, float(depth)
        for speed in self.speeds:
            count = min(speed.slots, left)
            rate += count / speed.layer_seconds
            left -= count
        return self.layers / rate * (1 - _ROUNDING) if rate and left < _ROUNDING else inf

    def _capacities(self, busy: float) -> list[tuple[int, int, int]]:
        """Layers that a slot of each device type holds within ``busy``: in the middle, first, last."""
        found = []
        for speed, hops in zip(self.speeds, self.hops, strict=True):
            inner = busy - self.chunks * hops.inner_seconds
            outer = busy - self.chunks * hops.outer_seconds
            found.append(
                (
                    _whole(inner, speed),
                    _whole(outer - speed.first_seconds, speed),
                    _whole(outer - speed.last_seconds, speed),
                )
            )
        return found

    def _next(self, busy: float, caps: Sequence[tuple[int, int, int]], crossing: Crossing | None) -> float:
        """The next busy seconds at which some slot, or one at a crossing, holds one layer more."""
        found = inf
        for speed, hops, (middle, first, last) in zip(self.speeds, self.hops, caps, strict=True):
            inner, outer = self.chunks * hops.inner_seconds, self.chunks * hops.outer_seconds
            steps = [
                (middle, inner),
                (first, outer + speed.first_seconds),
                (last, outer + speed.last_seconds),
            ]
            if crossing is not None:
                for number in (1, 2)[: self.crossings]:
                    across = number * self.chunks * crossing.seconds
                    steps.append((_whole(busy - across, speed), across))
            for count, extra in steps:
                if count < speed.most_layers:
                    found = min(found, (count + 1) * speed.layer_seconds + extra)
        return max(found, busy * (1 + _ROUNDING))

    def _holds(
        self,
        caps: Sequence[tuple[int, int, int]],
        rooms: Sequence[Sequence[int]],
        busy: float,
        depth: int,
        crossing: Crossing | None,
    ) -> bool:
        """True when the best slots hold all layers, and the best types at each position have the memory for them."""
        inner = [(middle, speed.slots) for (middle, _, _), speed in zip(caps, self.speeds, strict=True)]
        held = _best_slots(inner, depth - 2)
        held += max(first for _, first, _ in caps) + max(last for _, _, last in caps)
        # Layers of the p best slots, less what the two at a crossing cannot hold, >= L
        if held - self._lost(caps, busy, crossing) < self.layers - _ROUNDING:
            return False
        if all(max(cap) <= row[0] for cap, row in zip(caps, rooms, strict=True)):
            return True
        fitting = [[min(max(cap), room) for room in row] for cap, row in zip(caps, rooms, strict=True)]
        return self._most_by_position(fitting) >= self.layers - _ROUNDING

    def _most_by_position(self, fitting: Sequence[Sequence[int]]) -> float:
        """Layers of any order of the device types, at most: the commonest kind everywhere, and what others gain on it.

        ``fitting`` is [device type][stage].
        """
        common = max(range(len(fitting)), key=lambda index: self.speeds[index].slots)
        total = float(sum(fitting[common]))
        for index, row in enumerate(fitting):
            if index != common:
                gains = [
                    (gain, 1.0) for a, b in zip(row, fitting[common], strict=True) if (gain := a - b) > 0
                ]
                total += _best_slots(gains, self.speeds[index].slots)
        return total

    def _lost(self, caps: Sequence[tuple[int, int, int]], busy: float, crossing: Crossing | None) -> float:
        """Layers that the stages at crossings cannot hold, at least: each crossing has two, on different parts."""
        if crossing is None:
            return 0.0
        least: dict[int, float] = {}
        for speed, part, room in zip(self.speeds, crossing.parts, caps, strict=True):
            held = min(room)
            once, twice = (_whole(busy - number * self.chunks * crossing.seconds, speed) for number in (1, 2))
            # What a side of a crossing costs; a stage between two crossings is at both with one loss.
            sides = []
            if once >= self.chunks:
                sides.append(float(max(0, held - once)))
            if self.crossings > 1 and twice >= self.chunks:
                sides.append(max(0, held - twice) / 2)
            if sides:
                least[part] = min(least.get(part, inf), *sides)
        both = sorted(least.values())[:2]
        # lost >= c (the least loss of a side on one part + that on another), and the layers lost are whole
        return ceil(self.crossings * sum(both) - _ROUNDING) if len(both) == 2 else inf

    def _fixed(self, depth: int, crossing: Crossing | None) -> float:
        """Seconds of one micro-batch through sends, ends, and the layers that every stage has, on the fastest slots."""
        sends = (depth - 2) * self._inner + 2 * self._outer
        if crossing is not None:
            # At most 2 c stages are at a crossing, and those at one of them only send to another side too.
            number = self.crossings
            outer = 4 if number == 1 else 2
            kept = max(0.0, (depth - 2 - 2 * number) * self._inner + outer * self._outer)
            sends = max(sends, kept + 2 * number * self.chunks * crossing.seconds)
        found, left = sends + self._ends, float(depth)
        for speed in self.speeds:
            count = min(speed.slots, left)
            found += count * self.chunks * speed.layer_seconds
            left -= count
        return found

    def _rest(self, caps: Sequence[tuple[int, int, int]], depth: int) -> float:
        """Seconds of one micro-batch through all other layers: on the fastest slots, as many as these hold."""
        found, rest = 0.0, float(self.layers - depth * self.chunks)
        for speed, room in zip(self.speeds, caps, strict=True):
            taken = min(rest, speed.slots * max(0, max(room) - self.chunks))
            found += taken * speed.layer_seconds
            rest -= taken
        return found if rest < _ROUNDING else inf

    def _paths(self, depth: int) -> list[tuple[int, int]]:
        """Paths as (times ``once``, times the busiest stage)."""
        # m b; in 1F1B also once + max(0, m - p) b and, for m > p, 2 once + (m - p - 1) b
        rows = (own_work, round_trip, behind_twice) if self.chunks == 1 else (own_work,)
        found = (busiest_path(row, depth, self.micro_batches) for row in rows)
        return [(path.once, path.busy) for path in found if path is not None]

    def _least_layers(self, caps: Sequence[tuple[int, int, int]], depth: int) -> float:
        """Layers that every stage holds, since the others cannot hold more."""
        slots = [(max(room), speed.slots) for room, speed in zip(caps, self.speeds, strict=True)]
        return max(self.chunks, self.layers - _best_slots(slots, depth - 1))


def _end(paths: Sequence[tuple[int, int]], busy: float, once: float) -> float:
    """The end of the longest of these paths."""
    # A path that does not run through all stages says nothing of ``once``, which may be infinite.
    return max([times * once + visits * busy if times else visits * busy for times, visits in paths])


def _whole(seconds: float, speed: Speed) -> int:
    return max(0, min(speed.most_layers, floor(seconds / speed.layer_seconds + _ROUNDING)))


def _best_slots(slots: list[tuple[int, float]], depth: float) -> float:
    """Layers that the ``depth`` best slots hold, of (layers, slots)."""
    total, left = 0.0, depth
    for count, number in sorted(slots, reverse=True):
        used = min(number, left)
        total += used * count
        left -= used
    return total
