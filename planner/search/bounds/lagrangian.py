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
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.cost.schedules import behind_twice, busiest_path, each_alive, round_trip
from planner.frozen import dataclass
from planner.plan.values import ReplicaGroup
from planner.search.bounds.node_runs import NodeRuns, Nodes
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

_ROUNDS = 2
"""How often ``once`` and the layers of a stage sharpen each other."""

_HALVINGS = 5
"""Steps of the bisection for the largest T that no pipeline keeps."""

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

    number: int
    sides: tuple[int, ...]
    """Neighbours on other nodes, [role]."""
    more: NDArray[np.float64]
    """Seconds beside the layers, [role][part]."""
    most: NDArray[np.float64]
    """Layers that memory holds, [part]."""


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
    ) -> None:
        """``devices`` and ``nodes`` of each device type; the latter for parts whose sides are known."""
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
        self._known_places: dict[int, tuple[_Place, ...]] = {}
        self._runs = _runs_of(parts, nodes)

    def _places(self, depth: int) -> tuple[_Place, ...]:
        """Where the stages of a pipeline stand."""
        if depth not in self._known_places:
            alive = each_alive(np.arange(depth), np.array(depth), self.micro_batches, 1)
            # [stages behind]: the last one, those in the middle by what is alive in them, the first one.
            least = np.array(_ALIVE)[np.searchsorted(_ALIVE, alive[1:-1], side="right") - 1]
            places = [(1, 2, int(alive[0])), (1, 1, int(alive[-1]))]
            places += [
                (int(count), 0, int(each))
                for each, count in zip(*np.unique(least, return_counts=True), strict=True)
            ]
            self._known_places[depth] = tuple(
                _Place(number, _SIDES[kind], self._more[kind], self._most(each))
                for number, kind, each in places
            )
        return self._known_places[depth]

    def _run_places(self, depth: int) -> tuple[_Place, ...]:
        """The same of the stages of runs, by what is beside them: in the middle, the first one and the last one."""
        if self._runs is None:
            return ()
        first, last, *middle = (place.most for place in self._places(depth))
        most = np.maximum.reduce(middle) if middle else np.zeros_like(first)
        return tuple(
            _Place(0, (), np.minimum(more, _NEVER), each)
            for more, each in zip(self._runs.more, (most, first, last), strict=True)
        )

    def _most(self, alive: int) -> NDArray[np.float64]:
        most = [min(self.layers, room.layers(alive)) for room in self._rooms]
        return np.array(most, dtype=float)

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
        """No pipeline of ``depth`` stages ends sooner, where none ends before ``known``.

        From ``cutoff`` on it need not be the best such number.
        """
        low, high = known, cutoff
        if high == inf:
            low, high = self._doubled(depth, known)
        elif low >= high or self.later(depth, high):
            return max(low, high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.later(depth, middle) else (low, middle)
        return low

    def _doubled(self, depth: int, least: float) -> tuple[float, float]:
        low = least
        for _ in range(60):
            if not self.later(depth, 2 * low):
                return low, 2 * low
            low *= 2
        return inf, inf

    def later(self, depth: int, seconds: float) -> bool:
        """True when no pipeline of ``depth`` stages ends within ``seconds``."""
        return self.once(depth, seconds) == inf

    def once(self, depth: int, seconds: float) -> float:
        """No pipeline that ends within ``seconds`` takes less for one micro-batch; infinite where there is none."""
        if not len(self._device_type):
            return inf
        steps, once, places = self.micro_batches, 0.0, self._places(depth)
        every = (*places, *self._run_places(depth))
        # m busy + tail <= T
        full = steps * self._seconds + self._tail
        caps = [_whole((seconds - steps * place.more) / full, place.most) for place in every]
        trip, twice = (busiest_path(row, depth, steps) for row in (round_trip, behind_twice))
        assert trip is not None, "any pipeline has this path"
        spare = trip.forward
        each = spare * self._seconds + (trip.backward - spare) * self._backward
        # once <= T or 2 once + (m - p - 1) b <= T: the busiest stage takes its part of a micro-batch at least.
        times = twice.once + twice.busy / depth if twice else float(trip.once)
        for _ in range(_ROUNDS):
            if not self._hold(places, caps, depth):
                return inf
            once = max(once, self._least_once(places, caps, depth))
            if times * once > seconds:
                return inf
            if steps > 1:
                # once + (m - p) busy + (p - 1) backward <= T
                left = seconds - once
                caps = [
                    _whole((left - spare * place.more) / each, cap)
                    for place, cap in zip(every, caps, strict=True)
                ]
            if twice and twice.busy:
                # 2 once + (m - p - 1) busy <= T
                busy = (seconds - twice.once * once) / twice.busy
                caps = [
                    _whole((busy - place.more) / self._seconds, cap)
                    for place, cap in zip(every, caps, strict=True)
                ]
        return once if self._hold(places, caps, depth) else inf

    def _hold(self, places: Sequence[_Place], caps: Sequence[NDArray[np.float64]], depth: int) -> bool:
        """False when the stages cannot hold all layers."""
        enough, of_runs = self.layers - _ROUNDING, caps[len(places) :]
        if self._held(places, caps[: len(places)]) < enough:
            return False
        return self._runs is None or self._runs.held(of_runs, depth) >= enough

    def _least_once(self, places: Sequence[_Place], caps: Sequence[NDArray[np.float64]], depth: int) -> float:
        """Seconds of one micro-batch through all stages, at least: the better of both bounds."""
        once, of_runs = self._once(places, caps[: len(places)]), caps[len(places) :]
        if self._runs is None:
            return once
        prices = _LAYER_PRICES[:, 0, 0] * float(self._seconds.min())
        return max(once, self._runs.once(of_runs, depth, self.layers, self._seconds, prices))

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
            total = total + place.number * (dearest - paid).max(axis=2)
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
            total = total + place.number * (np.minimum.reduce(each) + paid).min(axis=3)
        return max(0.0, float(total.max()))


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
