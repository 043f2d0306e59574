"""A second bound of pipelines whose stages choose their own degrees: in whole layers, with sends, tails and depths.

Can p stages end within T? With the number of micro-batches m, a stage holds no more layers than it finishes with its
sends and its tail, ``m busy + tail <= T``, and than it finishes after the first micro-batch has been through all stages
(``schedules.round_trip``):

    once + (m - p) busy + (p - 1) backward <= T    and for m > p    2 once + (m - p - 1) busy <= T

Devices and stages then get prices, the multipliers of a Lagrangian relaxation. For any prices the p dearest stages and
all devices together bound the layers that are held from above; with a price for layers too, the p cheapest bound
``once`` from below. What ``once`` leaves of T shrinks the stages again. Where they do not hold all layers, nothing ends
within T.

A pipeline leaves every node but the last. A stage takes the part of a node that its devices are of one, and at least
one where it stands on several: so the stages of which the next one stands on another node are at least the sum of these
parts less 1, and so are those of which the one before does. This limit has a price as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.cost.schedules import behind_twice, busiest_path, round_trip

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

_KINDS = (range(4), range(4, 6), range(6, 8))
"""Roles of stages in the middle, of the first and of the last stage, in the order of ``StagePart``."""

_SIDES = (0, 1, 1, 2, 0, 1, 0, 1)
"""Neighbours on other nodes in each role."""


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
    most_layers: int


class LagrangianBound:
    """The bound of one family for any depth of at least two stages."""

    def __init__(
        self, parts: Sequence[StagePart], devices: Sequence[int], layers: int, micro_batches: int
    ) -> None:
        self.layers, self.micro_batches = layers, micro_batches
        self._device_type = np.array([part.device_type for part in parts], dtype=np.intp)
        self._devices = np.array([float(part.devices) for part in parts])
        self._seconds = np.array([part.layer_seconds for part in parts])
        self._backward = np.array([part.backward_seconds for part in parts])
        self._nodes = np.array([part.nodes for part in parts])
        more = [[*part.inner_seconds, *part.first_seconds, *part.last_seconds] for part in parts]
        self._more = np.minimum(np.array(more).reshape(len(parts), len(_SIDES)).T, _NEVER)
        # What the border before or behind adds to a stage's sends.
        added = self._more[3] - self._more[0]
        self._border = float(added[added < _NEVER / 2].min(initial=0.0)) / 2
        self._tail = np.array([part.tail_seconds for part in parts])
        self._most = np.array([float(part.most_layers) for part in parts])
        self._room = np.array(devices, dtype=float)

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
        steps, once = self.micro_batches, 0.0
        # m busy + tail <= T
        caps = self._whole((seconds - steps * self._more) / (steps * self._seconds + self._tail))
        trip, twice = (busiest_path(row, depth, steps) for row in (round_trip, behind_twice))
        assert trip is not None, "any pipeline has this path"
        spare = trip.forward
        each = spare * self._seconds + (trip.backward - spare) * self._backward
        # once <= T or 2 once + (m - p - 1) b <= T: the busiest stage takes its part of a micro-batch at least.
        times = twice.once + twice.busy / depth if twice else float(trip.once)
        for _ in range(_ROUNDS):
            if self._held(caps, depth) < self.layers - _ROUNDING:
                return inf
            once = max(once, self._once(caps, depth))
            if times * once > seconds:
                return inf
            if steps > 1:
                # once + (m - p) busy + (p - 1) backward <= T
                fewer = self._whole((seconds - once - spare * self._more) / each)
                caps = np.minimum(caps, fewer)
            if twice and twice.busy:
                # 2 once + (m - p - 1) busy <= T
                busy = (seconds - twice.once * once) / twice.busy
                caps = np.minimum(caps, self._whole((busy - self._more) / self._seconds))
        return once if self._held(caps, depth) >= self.layers - _ROUNDING else inf

    def _whole(self, layers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Whole layers that memory holds, [role][part]; none where not one is held."""
        caps: NDArray[np.float64] = np.minimum(np.floor(layers + _ROUNDING), self._most)
        return np.where(caps >= 1, caps, -inf)

    def _rates(self, caps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Layers that a device of each device type holds at best, [device type]."""
        rates = np.zeros(len(self._room))
        np.maximum.at(rates, self._device_type, np.maximum(caps.max(axis=0), 0.0) / self._devices)
        return rates

    def _held(self, caps: NDArray[np.float64], depth: int) -> float:
        """Layers that ``depth`` stages hold together, at most."""
        rates = self._rates(caps)
        border = _BORDER_LAYERS * max(0.0, float(caps.max()))
        paid = _DEVICE_PRICES * (rates[self._device_type] * self._devices) + 2 * border * self._nodes
        best = []
        for roles in _KINDS:
            # [price of a border][price of a device][part]
            dearest = np.maximum.reduce([caps[role] + _SIDES[role] * border for role in roles])
            best.append((dearest - paid).max(axis=2))
        inner = (depth - 2) * best[0] if depth > 2 else 0.0
        # Held layers <= the p dearest stages less what they pay + the price of all devices + that of the last node's
        # borders, for any prices.
        total = (
            inner + best[1] + best[2] + _DEVICE_PRICES[:, 0] * float(rates @ self._room) + 2 * border[:, :, 0]
        )
        return float(total.min())

    def _once(self, caps: NDArray[np.float64], depth: int) -> float:
        """Seconds of one micro-batch through all stages, at least."""
        rates = self._rates(caps)
        layer = _LAYER_PRICES * float(self._seconds.min())
        device = layer * _SHARES
        border = _BORDER_SECONDS * self._border
        paid = device * (rates[self._device_type] * self._devices) + 2 * border * self._nodes
        line = self._seconds - layer
        costs = []
        for roles in _KINDS:
            # Linear in layers, so cheapest with one or with all. [border][layer][device][part]
            each = [
                np.where(
                    caps[role] > 0,
                    self._more[role]
                    - _SIDES[role] * border
                    + np.minimum(line, line * np.maximum(caps[role], 0.0)),
                    inf,
                )
                for role in roles
            ]
            costs.append((np.minimum.reduce(each) + paid).min(axis=3))
        inner = (depth - 2) * costs[0] if depth > 2 else 0.0
        total = inner + costs[1] + costs[2]
        # once >= the p cheapest stages + the price of all layers - those of all devices and of the last node's
        # borders, for any three prices.
        total = total + layer[:, :, 0] * self.layers - device[:, :, 0] * float(rates @ self._room)
        return max(0.0, float((total - 2 * border[:, :, :, 0]).max()))
