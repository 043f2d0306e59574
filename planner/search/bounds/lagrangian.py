"""A second bound on pipelines with per-stage degrees: in whole layers, with sends, epilogues and depths.

Can p stages end within T? With the number of micro-batches m, a stage holds no more layers than it finishes with its
sends and its epilogue, ``m busy + epilogue <= T``, and than it finishes after the first micro-batch has been through
all stages (``schedules.round_trip``):

    once + (m - p) busy + (p - 1) backward <= T    and for m > p    2 once + (m - p - 1) busy <= T

Devices and stages then get prices, the multipliers of a Lagrangian relaxation. For any prices the p dearest stages and
all devices together bound the layers that are held from above; with a price for layers too, the p cheapest bound
``once`` from below. What ``once`` leaves of T shrinks the stages again. Where they do not hold all layers, nothing ends
within T.

A pipeline leaves every node but the last. A stage takes the part of a node that its devices are of one, and at least
one where it stands on several: so the stages of which the next one stands on another node are at least the sum of these
parts minus 1, and so are those of which the one before does. This limit has a price as well.

Several depths may be looked at together: with the paths of the deepest pipelines, which are the shortest, and stages
that not all of them have, where these are worth more than they pay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.schedules import behind_twice, busiest_path, each_alive, round_trip
from planner.frozen import dataclass
from planner.plan.values import ReplicaGroup
from planner.search.bounds.node_runs import Depths, NodeRuns, Nodes
from planner.search.bounds.rates import Room
from planner.search.space.sends import Sides

_DEVICE_PRICES = np.linspace(0.0, 2.0, 25)[:, None]
"""Prices of a device, as a part of the layers that it holds at best."""

_LAYER_PRICES = np.geomspace(1.0, 48.0, 9)[:, None, None]
"""Prices of a layer, as a multiple of the seconds that it takes at least."""

_SHARES = np.linspace(0.0, 1.4, 8)[None, :, None]
"""Prices of a device, as a part of those of the layers that it holds at best."""

_BORDER_LAYERS = np.array([0.0, 0.125, 0.25, 0.5, 1.0])[:, None, None]
"""Prices of a border in layers, as a part of those that a stage holds at most."""

_BORDER_SECONDS = np.array([0.0, 0.5, 1.0])[:, None, None, None]
"""Prices of a border in seconds, as a part of what it adds to a stage's sends."""

_PRECISION = 0.0005
"""Of the load of the busiest stage."""

_MOST_LOOKS = 64
"""Ranges of loads that are looked at, at most."""

_LOOKS_AT_SEVERAL = 8
"""The same where pipelines of several depths are looked at together."""

_ROUNDING = 1e-9

_NEVER = 1e30
"""Seconds of what cannot be, in arithmetic that knows no infinity."""

_SIDES = ((0, 1, 1, 2), (0, 1), (0, 1))
"""Neighbours on other nodes in each role of a stage in the middle, of the first and of the last one."""

_ALIVE = (1, 2, 3, 5, 9, 17, 33)
"""Micro-batches alive, at least, in stages in the middle that are looked at together: further ahead more are."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Stages that hold alike, in one of several roles each."""

    kind: int
    """Of ``_SIDES``: in the middle, the first stage or the last one."""
    number: int
    """Stages, at most."""
    sure: int
    """Those of them that every pipeline has."""
    sides: tuple[int, ...]
    """Neighbours on other nodes, [role]."""
    more: NDArray[np.float64]
    """Seconds beside the layers, [role][part]."""
    most: NDArray[np.float64]
    """Layers that memory holds, [part]."""

    def most_of(self, each: NDArray[np.float64]) -> NDArray[np.float64]:
        """What all its stages are worth, at most, where each is worth so much."""
        further = (self.number - self.sure) * np.maximum(each, 0.0)
        return further + self.sure * each if self.sure else further


@dataclass(frozen=True, slots=True)
class _Ends:
    """What stands at the ends of pipelines, and what it does after the last backward of the first stage at least."""

    tail_seconds: float
    without: tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]
    """[kind of place][part]: what does not stand there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """What a stage on certain devices does, at best."""

    device_type: int
    devices: int
    layer_seconds: float
    """Forward and backward of one layer for one micro-batch."""
    backward_seconds: float
    """The backward of one layer, at least."""
    inner_seconds: tuple[float, float, float, float]
    """Besides its layers, for one micro-batch, in the middle: beside others of its node or at borders of nodes."""
    first_seconds: tuple[float, float]
    """The same as the first stage: with the next one near, or on another node."""
    last_seconds: tuple[float, float]
    nodes: float
    """The part of a node that it takes at least; 1 for stages of several nodes."""
    tail_seconds: float
    """Least end of the step per layer held."""
    room: Room
    """Memory of a device."""
    sides: Sides | None = None
    """Its sends by where its neighbours are; None where nodes are not known to hold runs of stages."""
    ends: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds beside layers and sends, for one micro-batch, in the middle, as the first stage and as the last."""
    group: ReplicaGroup | None = None
    """Its devices in a plan; None in a problem without plans."""


class LagrangianBound:
    """The bound of one family for any depth of at least two stages."""

    def __init__(
        self,
        parts: Sequence[StagePart],
        devices: Sequence[int],
        layers: int,
        micro_batches: int,
        nodes: Sequence[Nodes] = (),
        ends_wait: bool = False,
    ) -> None:
        """``devices`` and ``nodes`` of each device type; the latter for parts whose sides are known.

        ``ends_wait``: the first and the last stage wait for each other before they reduce gradients.
        """
        self.layers, self.micro_batches = layers, micro_batches
        self._device_type = np.array([part.device_type for part in parts], dtype=np.intp)
        self._devices = np.array([float(part.devices) for part in parts])
        self._seconds = np.array([part.layer_seconds for part in parts])
        self._backward = np.array([part.backward_seconds for part in parts])
        self._nodes = np.array([part.nodes for part in parts])
        self._more = [
            np.minimum(np.array(roles).reshape(len(parts), len(sides)).T, _NEVER)
            for roles, sides in zip(
                (
                    [part.inner_seconds for part in parts],
                    [part.first_seconds for part in parts],
                    [part.last_seconds for part in parts],
                ),
                _SIDES,
                strict=True,
            )
        ]
        # What the border before or behind adds to a stage's sends.
        added = self._more[0][3] - self._more[0][0]
        self._border = float(added[added < _NEVER / 2].max(initial=0.0)) / 2
        self._tail = np.array([part.tail_seconds for part in parts])
        self._rooms = [part.room for part in parts]
        self._room = np.array(devices, dtype=float)
        self._known_places: dict[Depths, tuple[_Place, ...]] = {}
        self._runs = _runs_of(parts, nodes)
        spread = np.array([part.sides is not None and part.sides.spread for part in parts], dtype=bool)
        none = np.zeros_like(spread)
        # A stage on several nodes reduces its gradients between them: at an end of the pipeline after all else.
        self._ends = [_Ends(0.0, (none, spread, spread & ends_wait))]
        if spread.any():
            self._ends.append(_Ends(float(self._tail[spread].min()), (none, none, none)))

    def _places(self, depths: Depths) -> tuple[_Place, ...]:
        """Where the stages of pipelines of these depths stand."""
        if depths not in self._known_places:
            fewest, depth = depths
            # With as many stages behind it, one has as many micro-batches alive at any depth.
            alive = each_alive(np.arange(depth), np.array(depth), self.micro_batches, 1)
            # [stages behind]: the last one, those in the middle by what is alive in them, the first one.
            least = np.array(_ALIVE)[np.searchsorted(_ALIVE, alive[1:-1], side="right") - 1]
            places = [(1, 1, 2, int(alive[0])), (1, 1, 1, int(alive[fewest - 1]))]
            places += [
                (int((least == each).sum()), int((least[: fewest - 2] == each).sum()), 0, int(each))
                for each in np.unique(least)
            ]
            self._known_places[depths] = tuple(
                _Place(kind, number, sure, _SIDES[kind], self._more[kind], self._most(each))
                for number, sure, kind, each in places
            )
        return self._known_places[depths]

    def _run_places(self, depths: Depths) -> tuple[_Place, ...]:
        """The same of the stages of runs, by what is beside them: in the middle, the first one and the last one."""
        if self._runs is None:
            return ()
        last, first, *middle = (place.most for place in self._places(depths))
        most = np.maximum.reduce(middle) if middle else np.zeros_like(first)
        return tuple(
            _Place(kind, 0, 0, (), np.minimum(more, _NEVER), each)
            for kind, (more, each) in enumerate(zip(self._runs.more, (most, first, last), strict=True))
        )

    def _most(self, alive: int) -> NDArray[np.float64]:
        most = [min(self.layers, room.layers(alive)) for room in self._rooms]
        return np.array(most, dtype=float)

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
        """No pipeline of ``depth`` stages ends sooner, where none ends before ``known``.

        From ``cutoff`` on it need not be the best such number.
        """
        if cutoff < inf:
            return known if known >= cutoff else max(known, self._bound_below(depth, cutoff))
        if not len(self._device_type):
            return inf
        limit = 2 * max(known, self.micro_batches * float(self._seconds.min()))
        for _ in range(60):
            found = self._bound_below(depth, limit)
            if found < limit:
                return max(known, found)
            limit *= 2
        return inf

    def none_within(self, depths: Depths, seconds: float) -> bool:
        """True when no pipeline of any of these depths is known to end within ``seconds``, at a quick look."""
        return self._least(depths, seconds, lambda item: item.seconds, _LOOKS_AT_SEVERAL) is None

    def _bound_below(self, depth: int, cutoff: float) -> float:
        least = self._least((depth, depth), cutoff, lambda item: item.seconds)
        return least.seconds if least else cutoff

    def once(self, depth: int, seconds: float) -> float:
        """No pipeline that ends within ``seconds`` takes less for one micro-batch; infinite where there is none."""
        least = self._least((depth, depth), seconds, lambda item: item.once)
        return least.once if least else inf

    def _least(
        self, depths: Depths, cutoff: float, key: Callable[[_Between], float], most_looks: int = _MOST_LOOKS
    ) -> _Between | None:
        """The least by this key of what pipelines need that may end by the cutoff; None without any."""
        if not len(self._device_type):
            return None
        # Of two alike, the one that is looked at more closely.
        order = count(step=-1)
        heap: list[tuple[float, int, _Between]] = []
        for ends in self._ends:
            loads = _Loads(self, depths, cutoff, ends)
            for item in loads.at_most(cutoff / self.micro_batches):
                heappush(heap, (key(item), next(order), item))
        looks = 0
        while heap:
            _, _, item = heappop(heap)
            looks += 1
            if item.seen - item.low <= _PRECISION * item.high or looks == most_looks:
                return item
            for part in item.parts():
                heappush(heap, (key(part), next(order), part))
        return None

    def _holding(
        self, places: Sequence[_Place], caps: Sequence[NDArray[np.float64]], depths: Depths
    ) -> Iterator[float]:
        """Seconds of one micro-batch through all stages, at least, as ever more is looked at; infinite where these
        cannot hold all layers."""
        enough, (of_stages, of_runs) = self.layers - _ROUNDING, (caps[: len(places)], caps[len(places) :])
        if self._held(places, of_stages) < enough:
            yield inf
        once = self._once(places, of_stages)
        yield once
        if self._runs is None:
            return
        if self._runs.held(of_runs, depths, enough) < enough:
            yield inf
        prices = _LAYER_PRICES[:, 0, 0] * float(self._seconds.min())
        yield self._runs.once(of_runs, depths, self.layers, self._seconds, prices, once)

    def _rates(self, caps: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Layers that a device of each device type holds at best, [device type]."""
        rates = np.zeros(len(self._room))
        best = np.maximum.reduce([cap.max(axis=0) for cap in caps])
        np.maximum.at(rates, self._device_type, np.maximum(best, 0.0) / self._devices)
        return rates

    def _held(self, places: Sequence[_Place], caps: Sequence[NDArray[np.float64]]) -> float:
        """Layers that the stages hold together, at most."""
        rates = self._rates(caps)
        border = _BORDER_LAYERS * max(0.0, *(float(cap.max()) for cap in caps))
        paid = _DEVICE_PRICES * (rates[self._device_type] * self._devices) + 2 * border * self._nodes
        # Held layers <= the p dearest stages less what they pay + the price of all devices + that of the last node's
        # borders, for any prices.
        total = _DEVICE_PRICES[:, 0] * float(rates @ self._room) + 2 * border[:, :, 0]
        for place, cap in zip(places, caps, strict=True):
            # [price of a border][price of a device][part]
            dearest = np.maximum.reduce(
                [held + side * border for held, side in zip(cap, place.sides, strict=True)]
            )
            total = total + place.most_of((dearest - paid).max(axis=2))
        return float(total.min())

    def _once(self, places: Sequence[_Place], caps: Sequence[NDArray[np.float64]]) -> float:
        """Seconds of one micro-batch through all stages, at least."""
        rates = self._rates(caps)
        layer = _LAYER_PRICES * float(self._seconds.min())
        device = layer * _SHARES
        border = _BORDER_SECONDS * self._border
        paid = device * (rates[self._device_type] * self._devices) + 2 * border * self._nodes
        line = self._seconds - layer
        # once >= the p cheapest stages + the price of all layers - those of all devices and of the last node's
        # borders, for any three prices.
        total = (
            layer[:, :, 0] * self.layers
            - device[:, :, 0] * float(rates @ self._room)
            - 2 * border[:, :, :, 0]
        )
        for place, cap in zip(places, caps, strict=True):
            # Linear in layers, so cheapest with one or with all. [border][layer][device][part]
            each = [
                np.where(held > 0, more - side * border + np.minimum(line, line * np.maximum(held, 0.0)), inf)
                for held, more, side in zip(cap, place.more, place.sides, strict=True)
            ]
            total = total - place.most_of(-(np.minimum.reduce(each) + paid).min(axis=3))
        return max(0.0, float(total.max()))


class _Loads:
    """What pipelines need that may end by a time, by the load of their busiest stage.

    The load is that part of its seconds for one micro-batch which it has to repeat: all of them, or with fewer
    micro-batches than stages more of the backward. Paths are those of the deepest pipelines: others visit no stage
    less often.
    """

    def __init__(self, bound: LagrangianBound, depths: Depths, cutoff: float, ends: _Ends) -> None:
        self._bound, self._depths, self._cutoff, self._tail = bound, depths, cutoff, ends.tail_seconds
        self._end = cutoff - ends.tail_seconds
        """When the last backward of the first stage has to end; so do the paths below."""
        steps, places = bound.micro_batches, bound._places(depths)
        self._places, self._every = places, (*places, *bound._run_places(depths))
        trip, twice = (busiest_path(row, depths[1], steps) for row in (round_trip, behind_twice))
        assert trip is not None, "any pipeline has this path"
        self._trip = trip
        # Pairs (a, b): a once + b load <= T.
        self._forward, self._backward = 1.0, 0.0
        self._paths = [(trip.once, trip.forward), (0, steps)]
        if twice is not None:
            self._paths.append((twice.once, twice.busy))
        if steps > 1 and (twice is None or not twice.busy):
            self._forward = trip.forward / trip.backward
            self._backward = 1.0 - self._forward
            self._paths = [(a, 0) for a, b in self._paths]
            self._paths.append((trip.once, trip.backward))
        # m busy + tail <= T
        full = steps * bound._seconds + bound._tail
        self._caps = [_whole((cutoff - steps * place.more) / full, place.most) for place in self._every]
        for place, cap in zip(self._every, self._caps, strict=True):
            cap[:, ends.without[place.kind]] = -inf

    def at_most(self, load: float, low: float = 0.0, once: float = 0.0) -> Iterator[_Between]:
        """With loads from ``low`` on, where one micro-batch is known to take ``once``; nothing without any."""
        bound, spare, backwards = self._bound, self._trip.forward, self._trip.backward
        caps = self._caps
        if bound.micro_batches > 1:
            # once + (m - p) busy + (p - 1) backward <= T
            each = spare * bound._seconds + (backwards - spare) * bound._backward
            left = self._end - once
            caps = [
                _whole((left - spare * place.more) / each, cap)
                for place, cap in zip(self._every, caps, strict=True)
            ]
        each = self._forward * bound._seconds + self._backward * bound._backward
        caps = [
            _whole((load - self._forward * place.more) / each, cap)
            for place, cap in zip(self._every, caps, strict=True)
        ]
        found: _Between | None = None
        for least in bound._holding(self._places, caps, self._depths):
            once = max(once, least)
            found = next(self.between(low, load, load, once), None)
            if found is None:
                return
        if found is not None:
            yield found

    def between(self, low: float, high: float, seen: float, once: float) -> Iterator[_Between]:
        """The same where ``once`` is known for loads up to ``seen``."""
        low = max(low, self._forward * once / self._depths[1])
        seconds = self._tail + max(a * once + b * low for a, b in self._paths)
        high = min(high, *((self._end - a * once) / b for a, b in self._paths if b))
        if low <= high and seconds <= self._cutoff:
            yield _Between(self, low, high, seen, once, seconds)


class _Between(NamedTuple):
    """Pipelines with loads of the busiest stage between two numbers."""

    loads: _Loads
    low: float
    high: float
    seen: float
    """The load for which ``once`` was found."""
    once: float
    """Seconds of one micro-batch, at least."""
    seconds: float
    """Of a step, at least."""

    def parts(self) -> Iterator[_Between]:
        """Both halves; the same with what is known of its own loads, where that is of far larger ones."""
        middle = (self.low + self.high) / 2
        if self.seen - self.high > self.high - middle:
            yield from self.loads.at_most(self.high, self.low, self.once)
        else:
            yield from self.loads.at_most(middle, self.low, self.once)
            yield from self.loads.between(middle, self.high, self.seen, self.once)


def _runs_of(parts: Sequence[StagePart], nodes: Sequence[Nodes]) -> NodeRuns | None:
    sides = [part.sides for part in parts if part.sides is not None]
    if not parts or len(sides) < len(parts):
        return None
    kinds, devices = [part.device_type for part in parts], [part.devices for part in parts]
    return NodeRuns(kinds, devices, sides, [part.ends for part in parts], nodes)


def _whole(layers: NDArray[np.float64], most: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole layers, at most so many, [role][part]; none where not one is held."""
    caps: NDArray[np.float64] = np.minimum(np.floor(layers + _ROUNDING), most)
    return np.where(caps >= 1, caps, -inf)
