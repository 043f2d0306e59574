"""The best of the bounds that hold for the pipelines of a family; the search is ordered by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.capabilities import Schedule
from planner.cluster.topology import DeviceType
from planner.cost.estimate import Estimator, outer_stages_wait
from planner.cost.schedules import divides, is_v_shaped
from planner.dims.pipeline import MAX_INTERLEAVE, MOST_ZERO
from planner.search.bounds.lagrangian import LagrangianBound, StagePart
from planner.search.bounds.layer_count import Held, LayerCountBound, held_by, late
from planner.search.bounds.per_stage_degrees import PerStageDegreesBound
from planner.search.bounds.ramp import RampBound, by_position
from planner.search.bounds.rates import Rates, Speed
from planner.search.space.choices import MAX_DEPTH, Choice, Family, Islands
from planner.search.space.sends import Hops
from planner.targets import TARGETS

AT_ONCE = 256
"""Families that are looked at together."""

DEPTHS_AT_ONCE = 8
"""Depths of a family with per-stage degrees that are looked at together."""

HALVINGS = 3
"""Of the seconds up to the cutoff, for a quick look at such depths."""

FREE = Hops(inner_seconds=0.0, outer_seconds=0.0)
"""Sends that take no time."""


def _may_be_v_shaped(family: Family) -> bool:
    """True when pipelines of a family may have both ends of the model on their first stage."""
    schedules = TARGETS[family.target].schedules
    return family.zero <= MOST_ZERO and any(is_v_shaped(schedule) for schedule in schedules)


class UniformBounds:
    """The bounds of one family whose stages all have the same degrees, for all depths up to ``most``."""

    def __init__(self, family: Family, rates: Rates, most: int) -> None:
        self._family, self._rates, self._most = family, rates, most
        self._sent: dict[tuple[int, Schedule], list[Hops]] = {}
        self._layers = rates.estimator.model.layers
        roomiest = sorted(rates.rooms(family), key=lambda item: -item[1])
        held = by_position([slots for slots, _ in roomiest], [float(layers) for _, layers in roomiest], most)
        self._holds = np.cumsum(held) >= self._layers * (1 - 1e-9)
        """True where the memory of the roomiest slots holds all layers, [stages - 1]."""

    @cached_property
    def speeds(self) -> tuple[Speed, ...]:
        """What each device type does."""
        return self._rates.speeds(self._family)

    @cached_property
    def _ramp(self) -> RampBound:
        return RampBound(self.speeds, self._layers, self._family.micro_batches, self._most)

    def holds(self, depth: int) -> bool:
        """True when the memory of so many stages holds all layers."""
        return bool(self._holds[depth - 1])

    def least(self, depth: int) -> float:
        """No plan with at most ``depth`` stages is faster; infinite when it fits in no memory."""
        if not self.holds(depth):
            return inf
        # Further stages and free sends only shorten this one.
        plain = self._ramp.bounds(1)[depth - 1]
        # So do more chunks and divided backwards, which pipelines have that are no deeper than there are micro-batches.
        divided = any(divides(each) for each in TARGETS[self._family.target].schedules)
        full = min(depth, self._family.micro_batches)
        return float(min(plain, self._ramp.bounds(MAX_INTERLEAVE, divided=divided)[full - 1]))

    def bounds(
        self, depths: Sequence[int], chunks: int, cutoff: float = inf, schedule: Schedule = "1f1b"
    ) -> Iterator[float]:
        """No plan of these depths is faster: the best of all bounds, in seconds; above ``cutoff``, any of them."""
        stages = np.array(depths)
        holds = self._holds[stages - 1]
        if not holds.any():
            yield from (inf for _ in depths)
            return
        divided = divides(schedule)
        free = self._ramp.bounds(chunks, divided=divided)[stages - 1]
        bounds = np.where(holds, free, inf)
        if free.min() >= cutoff:
            yield from bounds.tolist()
            return
        several = stages > 1

        def open_ones() -> NDArray[np.intp]:
            return np.flatnonzero(several & (bounds < cutoff))

        if len(left := open_ones()):
            sent = self._ramp.bounds(chunks, self._hops(chunks, schedule), divided=divided)
            bounds[left] = sent[stages[left] - 1]
        counted = self._counted(chunks, schedule) if (bounds < cutoff).any() else None
        if counted is not None and cutoff < inf and len(left := open_ones()):
            bounds[left] = np.maximum(bounds[left], counted.beyond(stages[left], cutoff))
        for depth, least in zip(depths, bounds.tolist(), strict=True):
            yield max(least, counted.bound(depth, cutoff)) if counted and least < cutoff else least

    def once(self, depth: int, seconds: float) -> float:
        """No plan that ends within ``seconds`` takes less for one micro-batch; one chunk a stage."""
        return self._counted(1).once(depth, seconds) if self.holds(depth) else inf

    def _hops(self, chunks: int, schedule: Schedule) -> list[Hops]:
        key = chunks, schedule
        if key not in self._sent:
            known = self._rates.hops(self._family, chunks, schedule)
            self._sent[key] = [known.get(speed.device_type, FREE) for speed in self.speeds]
        return self._sent[key]

    @cached_property
    def _nodes(self) -> dict[str, tuple[int, int]]:
        return self._rates.nodes(self._family)

    @cached_property
    def _held(self) -> Held:
        return held_by(self.speeds, self._layers)

    def _counted(self, chunks: int, schedule: Schedule = "1f1b") -> LayerCountBound:
        steps = self._family.micro_batches
        crossing = self._rates.crossing(self._family, chunks, schedule)
        return LayerCountBound(
            self.speeds,
            self._hops(chunks, schedule),
            self._layers,
            steps,
            chunks,
            crossing,
            self._nodes,
            self._rates.mixed(self._family),
            schedule,
            self._held,
        )


class FamilyBounds:
    """The bounds of all families of one search."""

    def __init__(self, estimator: Estimator, islands: Islands = ()) -> None:
        self.estimator = estimator
        self.rates = Rates(estimator, islands)
        self._most = min(estimator.model.layers, MAX_DEPTH)
        self._uniform: dict[Family, UniformBounds] = {}
        self._lagrangians: dict[Family, LagrangianBound] = {}
        self._parts: dict[Family, list[StagePart]] = {}

    def family_bound(self, family: Family, depth: int) -> float:
        """No plan of the family with at most ``depth`` stages is faster; infinite when it fits in no memory."""
        if family.dp is None:
            return self._per_stage_degrees(family).least(depth)
        return self.uniform(family).least(depth)

    def late(self, families: Sequence[Family], depths: Sequence[int], cutoff: float) -> list[float]:
        """Seconds above the cutoff before which no plan of each family with at most so many stages ends; 0 for none."""
        seconds: list[float] = []
        for begin in range(0, len(families), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            steps = [family.micro_batches for family in families[part]]
            work = self.rates.work(families[part])
            v_shaped = [_may_be_v_shaped(family) for family in families[part]]
            seconds += late(work, self.estimator.model.layers, steps, depths[part], cutoff, v_shaped).tolist()
        return seconds

    def bound(
        self,
        family: Family,
        depth: int,
        interleave: int,
        cutoff: float = inf,
        schedule: Schedule = "1f1b",
    ) -> float:
        """No plan of this choice is faster: the best of all bounds, in seconds; above ``cutoff``, any of them."""
        return next(self.bounds(family, (depth,), interleave, cutoff, schedule))

    def bounds(
        self,
        family: Family,
        depths: Sequence[int],
        interleave: int,
        cutoff: float = inf,
        schedule: Schedule = "1f1b",
    ) -> Iterator[float]:
        """The same of choices that differ in depth only."""
        if family.dp is not None:
            yield from self.uniform(family).bounds(depths, interleave, cutoff, schedule)
            return
        assert not divides(schedule), "where each stage has its own degrees backwards are whole"
        free = self._per_stage_degrees(family)
        known = [(depth, free.bound(depth)) for depth in depths]
        for begin in range(0, len(known), DEPTHS_AT_ONCE):
            yield from self._halved(family, known[begin : begin + DEPTHS_AT_ONCE], cutoff)

    def of_ranges(
        self, family: Family, depths: Sequence[int], known: float, cutoff: float
    ) -> Iterator[tuple[float, Sequence[int]]]:
        """Depths of a family with per-stage degrees, a few at a time, with the seconds before which none of these ends.

        They come of quick looks; none ends before ``known``. From ``cutoff`` on they need not be the most.
        """
        free = self._per_stage_degrees(family)
        for begin in range(0, len(depths), DEPTHS_AT_ONCE):
            part = depths[begin : begin + DEPTHS_AT_ONCE]
            bounds = {depth: max(known, free.bound(depth)) for depth in part}
            if several := [depth for depth in part if depth > 1]:
                least = self._looked_at(family, several, min(bounds[depth] for depth in several), cutoff)
                bounds.update((depth, max(bounds[depth], least)) for depth in several)
            yield min(bounds.values()), part

    def _looked_at(self, family: Family, depths: Sequence[int], low: float, cutoff: float) -> float:
        """Seconds before which no pipeline of any of these depths ends, where none ends before ``low``."""
        if not low < cutoff < inf:
            return low
        ends, bound, high = (depths[0], depths[-1]), self._lagrangian(family), cutoff
        if bound.none_within(ends, cutoff):
            return cutoff
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if bound.none_within(ends, middle) else (low, middle)
        return low

    def _halved(self, family: Family, known: Sequence[tuple[int, float]], cutoff: float) -> Iterator[float]:
        """The same where a bound of each depth is known: no more of each where none of all ends before the cutoff."""
        open_ones = [depth for depth, bound in known if depth > 1 and bound < cutoff]
        if not open_ones:
            yield from (bound for _, bound in known)
        elif len(known) == 1:
            yield self._lagrangian(family).bound(*known[0], cutoff)
        elif cutoff < inf and self._lagrangian(family).none_within((open_ones[0], open_ones[-1]), cutoff):
            yield from (bound if depth == 1 else max(bound, cutoff) for depth, bound in known)
        else:
            middle = len(known) // 2
            yield from self._halved(family, known[:middle], cutoff)
            yield from self._halved(family, known[middle:], cutoff)

    def uniform(self, family: Family) -> UniformBounds:
        """The bounds of a family whose stages all have the same degrees."""
        if family not in self._uniform:
            self._uniform[family] = UniformBounds(family, self.rates, self._most)
        return self._uniform[family]

    def once(self, choice: Choice, cutoff: float) -> float:
        """Seconds of one micro-batch through all stages of plans faster than this, at least, where that is known."""
        family, depth = choice.family, choice.depth
        if depth == 1 or cutoff == inf:
            return 0.0
        if family.dp is None:
            return self._lagrangian(family).once(depth, cutoff)
        return self.uniform(family).once(depth, cutoff) if choice.plain else 0.0

    def _per_stage_degrees(self, family: Family) -> PerStageDegreesBound:
        layers = self.estimator.model.layers
        return PerStageDegreesBound(self.rates.speeds(family), layers, family.micro_batches)

    def _lagrangian(self, family: Family) -> LagrangianBound:
        if family not in self._lagrangians:
            device_types = self.rates.device_types
            self._lagrangians[family] = LagrangianBound(
                self.parts(family),
                [device_type.devices for device_type in device_types],
                self.estimator.model.layers,
                family.micro_batches,
                self.rates.node_counts,
                outer_stages_wait(self.estimator.model, self.rates.pricer(family).target, depth=2),
            )
        return self._lagrangians[family]

    def parts(self, family: Family) -> list[StagePart]:
        """What stages may stand on where each has its own degrees, with every recomputation."""
        if family not in self._parts:
            kinds = self.rates.device_types
            self._parts[family] = [part for kind in kinds for part in self._parts_of(family, kind)]
        return self._parts[family]

    def _parts_of(self, family: Family, device_type: DeviceType) -> Iterator[StagePart]:
        """Stages with devices of one type; those whose sends are not known cannot be built, or not talk."""
        rates = self.rates
        least, sides, host = (
            rates.sends(family)[2],
            rates.sides(family),
            rates.pricer(family).host_seconds(device_type),
        )
        for group, speed in rates.free_speeds(family, device_type):
            hops = least.get((group.pool, group.gpu, group.tp, group.count))
            if hops is None or hops.outer_seconds == inf:
                continue
            first, last, apart = host + speed.first_seconds, host + speed.last_seconds, hops.borders
            for policy in speed.policies:
                yield StagePart(
                    device_type=rates.device_types.index(device_type),
                    devices=group.devices,
                    sides=sides.get((group.pool, group.gpu, group.tp, group.count)),
                    ends=(host, first, last),
                    nodes=rates.nodes_of(group),
                    layer_seconds=policy.layer_seconds,
                    backward_seconds=speed.backward_seconds,
                    inner_seconds=(
                        host + hops.inner_seconds,
                        host + apart.next_seconds,
                        host + apart.before_seconds,
                        host + apart.both_seconds,
                    ),
                    first_seconds=(first + hops.outer_seconds, first + apart.first_seconds),
                    last_seconds=(last + hops.outer_seconds, last + apart.last_seconds),
                    tail_seconds=policy.tail_seconds,
                    room=policy.room,
                    group=group,
                )
