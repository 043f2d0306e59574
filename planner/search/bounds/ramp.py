"""A lower bound in closed form: what stages can do in the time between the ramps of the pipeline.

Let w be layers per second of a stage slot, m micro-batches and v chunks. By the path that goes up to a stage, does its
work there and comes back (``schedules.and_back``), a stage behind k others can work at most (V - their first and last
micro-batch) / m per micro-batch in the time V. With the fastest slots first that is V / m (1 - 1/(m v))^k, so

    V >= L / sum_k w_k (1 - 1/(m v))^k * m

Where backwards are divided only the stage's own work is counted, which is the same with v without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.schedules import and_back
from planner.search.bounds.rates import Speed
from planner.search.space.sends import Hops

Seconds = NDArray[np.float64]


class RampBound:
    """The bound of one family for all depths up to ``most`` at once; at least one device type has a slot."""

    def __init__(self, speeds: Sequence[Speed], layers: int, micro_batches: int, most: int) -> None:
        self._steps = micro_batches
        self._last: tuple[float, NDArray[np.floating[Any]], Seconds] | None = None
        self._rates = by_position(
            [speed.slots for speed in speeds], [1 / speed.layer_seconds for speed in speeds], most
        )
        self._weight = np.cumsum(self._rates)
        self._first_seconds = speeds[0].layer_seconds
        self._tail = min(speed.tail_seconds for speed in speeds)
        # Layers, and what embedding and head are worth in layers at least: each on the type where that is least.
        first = min(item.first_seconds / item.layer_seconds for item in speeds)
        self._layers = layers + first + min(item.last_seconds / item.layer_seconds for item in speeds)

    def bounds(self, chunks: int, hops: Sequence[Hops] | None = None, *, divided: bool = False) -> Seconds:
        """No pipeline of at most so many stages ends sooner, [stages - 1].

        ``hops`` are the sends of each speed's stages; without them sends take no time. ``divided`` for schedules that
        divide backwards.
        """
        path = and_back(1, 2, self._steps)
        assert path is not None, "two stages have a second one"
        # V >= sum_{i<k} c_i / v + m c_k for every stage k: each leaves the next this part of what it has itself.
        ratio = 1.0 if divided else 1.0 - path.before.forward / (path.own.forward * chunks)
        left, reach = self._reach(ratio)
        # L <= V sum_k w_k ratio^k / m
        plain = self._layers / reach
        if hops is None:
            without_sends: Seconds = plain + self._tail
            return without_sends
        send = chunks * min(item.inner_seconds for item in hops)
        # L <= sum_k w_k (V ratio^k / m - send): all slots but the ends, which send to one side only, send twice.
        more = np.maximum(0.0, send * (self._weight - 2 / self._first_seconds))
        # Trading a slow slot for a fast one pays only while its time exceeds the sends.
        pays = send <= plain * left / self._steps
        return np.where(pays, plain + more / reach, plain) + self._tail

    def _reach(self, ratio: float) -> tuple[NDArray[np.floating[Any]], Seconds]:
        """ratio^k, and sum_k w_k ratio^k / m, [stages - 1]; most are asked for twice in a row."""
        last = self._last
        if last is None or last[0] != ratio:
            left = ratio ** np.arange(len(self._rates))
            last = self._last = ratio, left, np.cumsum(self._rates * left) / self._steps
        return last[1], last[2]


def by_position(slots: Sequence[float], values: Sequence[float], most: int) -> Seconds:
    """What each of the first positions has of the values of slots that stand one behind the other, [position].

    A part of a slot counts in proportion; behind the last slot there is nothing.
    """
    ends = np.cumsum([0.0, *slots])
    total = np.cumsum([0.0, *(count * value for count, value in zip(slots, values, strict=True))])
    return np.diff(np.interp(np.arange(most + 1.0), ends, total))
