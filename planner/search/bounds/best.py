"""What a bound of pipelines is, and the best of those that hold of a family: what the search orders and cuts by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Protocol

from planner.cluster.topology import DeviceType
from planner.cost.estimate import Estimator
from planner.dims.interleave import MAX_INTERLEAVE
from planner.search.bounds.lagrangian import LagrangianBound, StagePart
from planner.search.bounds.layer_count import LayerCountBound
from planner.search.bounds.per_stage_degrees import PerStageDegreesBound
from planner.search.bounds.ramp import RampBound
from planner.search.bounds.rates import Rates, fastest_slots
from planner.search.space.choices import Choice, Family, Islands
from planner.search.space.sends import Hops


class Bound(Protocol):
    """A lower bound of the pipelines of one family."""

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
        """Seconds: no pipeline of ``depth`` stages ends sooner, given that none ends before ``known``.

        Infinite where there is none. From ``cutoff`` on it need not be the best such number.
        """


def best_bound(bounds: Iterable[Bound], depth: int, cutoff: float = inf) -> float:
    """The best of several bounds, in seconds; those after one that reaches the cutoff are not asked."""
    known = 0.0
    for bound in bounds:
        if known >= cutoff:
            break
        # No pipeline ends before any of them.
        known = max(known, bound.bound(depth, known, cutoff))
    return known


class FamilyBounds:
    """The bounds of all families of one search."""

    def __init__(self, estimator: Estimator, islands: Islands = ()) -> None:
        self.estimator = estimator
        self.rates = Rates(estimator, islands)
        self._lagrangians: dict[Family, LagrangianBound] = {}

    def family_bound(self, family: Family, depth: int) -> float:
        """No plan of the family with at most ``depth`` stages is faster; infinite when it fits in no memory."""
        if family.dp is None:
            return self._per_stage_degrees(family).least(depth)
        # Further stages, more chunks and free sends only shorten this one.
        return self._ramp(family, MAX_INTERLEAVE).bound(depth) if self.holds(family, depth) else inf

    def bound(
        self, family: Family, depth: int, interleave: int, cutoff: float = inf, crossings: int = 1
    ) -> float:
        """No plan of this choice is faster: the best of all bounds, in seconds; above ``cutoff``, any of them.

        ``crossings`` is how often its pipelines cross a slow link at least, where no stage stands on both its sides.
        """
        return best_bound(self._bounds(family, depth, interleave, crossings), depth, cutoff)

    def _bounds(self, family: Family, depth: int, interleave: int, crossings: int) -> Iterator[Bound]:
        """The bounds that hold of a choice, cheapest first."""
        if family.dp is None:
            yield self._per_stage_degrees(family)
            if depth > 1:
                yield self._lagrangian(family)
            return
        if not self.holds(family, depth):
            yield _Nothing()
            return
        yield self._ramp(family, interleave)
        sends = self._sends(family, depth)
        yield self._layer_count(family, sends, interleave, depth, crossings)
        yield self._ramp(family, interleave, sends)

    def _sends(self, family: Family, depth: int) -> list[Hops]:
        """Least sends of the stages of each speed."""
        free = self._free(family)
        if depth == 1:
            return free
        known = self.rates.hops(family)
        speeds = self.rates.speeds(family)
        return [known.get(speed.device_type, none) for speed, none in zip(speeds, free, strict=True)]

    def _layer_count(
        self, family: Family, sends: list[Hops], interleave: int, depth: int, crossings: int = 1
    ) -> LayerCountBound:
        return LayerCountBound(
            self.rates.speeds(family),
            sends,
            self.estimator.model.layers,
            family.micro_batches,
            interleave,
            self.rates.crossing(family) if depth > 1 else None,
            crossings,
        )

    def once(self, choice: Choice, cutoff: float) -> float:
        """Seconds of one micro-batch through all stages of plans faster than this, at least, where that is known."""
        family, depth = choice.family, choice.depth
        if depth == 1 or cutoff == inf:
            return 0.0
        if family.dp is None:
            return self._lagrangian(family).once(depth, cutoff)
        if choice.interleave > 1 or not self.holds(family, depth):
            return 0.0
        return self._layer_count(family, self._sends(family, depth), 1, depth).once(depth, cutoff)

    def holds(self, family: Family, depth: int) -> bool:
        """True when the memory of the roomiest slots holds all layers."""
        roomiest = tuple(sorted(self.rates.speeds(family), key=lambda speed: -speed.most_layers))
        held = sum(count * speed.most_layers for count, speed in fastest_slots(roomiest, depth))
        return held >= self.estimator.model.layers * (1 - 1e-9)

    def _free(self, family: Family) -> list[Hops]:
        """Sends that take no time."""
        return [Hops(inner_seconds=0.0, outer_seconds=0.0)] * len(self.rates.speeds(family))

    def _ramp(self, family: Family, interleave: int, hops: list[Hops] | None = None) -> RampBound:
        speeds, layers = self.rates.speeds(family), self.estimator.model.layers
        sends = self._free(family) if hops is None else hops
        return RampBound(speeds, sends, layers, family.micro_batches, interleave)

    def _per_stage_degrees(self, family: Family) -> PerStageDegreesBound:
        layers = self.estimator.model.layers
        return PerStageDegreesBound(self.rates.speeds(family), layers, family.micro_batches)

    def _lagrangian(self, family: Family) -> LagrangianBound:
        if family not in self._lagrangians:
            device_types = self.rates.device_types
            self._lagrangians[family] = LagrangianBound(
                [part for device_type in device_types for part in self._parts_of(family, device_type)],
                [device_type.devices for device_type in device_types],
                self.estimator.model.layers,
                family.micro_batches,
            )
        return self._lagrangians[family]

    def _parts_of(self, family: Family, device_type: DeviceType) -> Iterator[StagePart]:
        """Stages with devices of one type; those whose sends are not known cannot be built, or not talk."""
        rates = self.rates
        least, host = rates.sends(family)[2], self.estimator.pricer(family.target).host_seconds(device_type)
        for group, speed in rates.free_speeds(family, device_type):
            hops = least.get((group.pool, group.gpu, group.tp, group.count))
            if hops is None or hops.outer_seconds == inf:
                continue
            outer = host + hops.outer_seconds
            yield StagePart(
                device_type=rates.device_types.index(device_type),
                devices=group.devices,
                layer_seconds=speed.layer_seconds,
                backward_seconds=speed.backward_seconds,
                more_seconds=(
                    host + hops.inner_seconds,
                    outer + speed.first_seconds,
                    outer + speed.last_seconds,
                ),
                tail_seconds=speed.tail_seconds,
                most_layers=min(self.estimator.model.layers, rates.room(family, group).layers(1)),
            )


class _Nothing:
    """The bound of a family whose layers no devices hold."""

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
        """There is no pipeline."""
        return inf
