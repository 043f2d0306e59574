"""A lower bound in closed form: what stages can do in the time between the ramps of the pipeline.

Let a slot take l seconds for the forward and backward of one layer, f of them for the forward, and t for what ends the
step, with m micro-batches and v chunks. By the path that goes up to a stage, does its work there and comes back
(``schedules.and_back``), a stage behind k others can work at most (V - their first and last micro-batch) / m per
micro-batch in the time V. With the fastest slots first that is V / m (1 - 1/(m v))^k, so

    V >= L / sum_k (1 / m l_k) (1 - 1/(m v))^k    and T >= V + the least tail of a first stage

The path that goes up to a stage, does its work there and ends the step has all of its t, but the others' forwards only:

    T >= L / sum_k (1 / (m l_k + t_k)) (1 - c/v)^k    where c is the least f / (m l + t)

L counts what embedding and head are worth in layers. In the second bound that is the head alone, with what it adds to
the end of the step where the embedding is elsewhere: the forwards ahead of a stage are a part c of layers, not of an
embedding.

Where backwards are divided only the stage's own work is counted, which is the same with v without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.schedules import and_back
from planner.search.bounds.rates import ENDS, Speed
from planner.search.space.sends import Hops

Seconds = NDArray[np.float64]

_Reach = tuple[float, Seconds, Seconds]
"""A ratio, ratio^k, and sum_k w_k ratio^k, [slots - 1]."""


class RampBound:
    """The bound of one family for all depths up to ``most`` at once; at least one device type has a slot."""

    def __init__(self, speeds: Sequence[Speed], layers: int, micro_batches: int, most: int) -> None:
        self._steps = micro_batches
        work = [micro_batches * speed.layer_seconds for speed in speeds]
        whole = [seconds + speed.tail_seconds for seconds, speed in zip(work, speeds, strict=True)]
        ends = [[micro_batches * getattr(speed, name) for name in ENDS] for speed in speeds]
        head = [
            (0.0, micro_batches * speed.last_seconds + speed.last_tail_seconds + speed.tied_seconds)
            for speed in speeds
        ]
        self._back = _Ramp(speeds, work, micro_batches, most)
        self._back_layers = layers + _worth(ends, work)
        self._tail = min(speed.tail_seconds for speed in speeds)
        self._first_tail = min(
            speed.tail_seconds + speed.first_tail_seconds + speed.tied_seconds for speed in speeds
        )
        self._whole = _Ramp(speeds, whole, micro_batches, most)
        self._ahead_layers = layers + _worth(head, whole)
        # One stage with both ends may hide more.
        self._own_layers = layers + _worth(ends, whole)
        self._forward = min(
            speed.forward_seconds / seconds for speed, seconds in zip(speeds, whole, strict=True)
        )

    def bounds(self, chunks: int, hops: Sequence[Hops] | None = None, *, divided: bool = False) -> Seconds:
        """No pipeline of at most so many stages ends sooner, [stages - 1].

        ``hops`` are the sends of each speed's stages; without them sends take no time. ``divided`` for schedules that
        divide backwards.
        """
        path = and_back(1, 2, self._steps)
        assert path is not None, "two stages have a second one"
        # V >= sum_{i<k} c_i / v + m c_k for every stage k: each leaves the next this part of what it has itself.
        back = path.before.forward / (path.own.forward * chunks)
        # T >= sum_{i<k} f_i / v + m c_k + t_k, likewise.
        ahead = self._forward / chunks
        send = None if hops is None else chunks * min(item.inner_seconds for item in hops)
        own = self._alone if send is None else self._by_own_work(send)
        if divided:
            return own
        several = np.maximum(
            self._back.ends(self._back_layers, 1.0 - back, send) + self._first_tail,
            self._whole.ends(self._ahead_layers, 1.0 - ahead, send),
        )
        together: Seconds = np.minimum(np.maximum(several, own), own[0])
        return together

    @cached_property
    def _alone(self) -> Seconds:
        """What stages do themselves where sends take no time."""
        return self._by_own_work(None)

    def _by_own_work(self, send: float | None) -> Seconds:
        """No pipeline ends sooner by what its stages do themselves, [stages - 1]."""
        ends: Seconds = np.maximum(
            self._back.ends(self._back_layers, 1.0, send) + self._tail,
            self._whole.ends(self._own_layers, 1.0, send),
        )
        return ends


def _worth(ends: Sequence[Sequence[float]], seconds: Sequence[float]) -> float:
    """What embedding and head are worth in layers at least: each on the type where that is least."""
    worth = [[one / own for one in both] for both, own in zip(ends, seconds, strict=True)]
    return sum(min(each[end] for each in worth) for end in range(len(ENDS)))


class _Ramp:
    """Slots one behind the other, each with a part ``ratio`` of the time of the one before."""

    def __init__(
        self, speeds: Sequence[Speed], seconds: Sequence[float], micro_batches: int, most: int
    ) -> None:
        """``seconds`` of a layer in the whole step, of each speed."""
        self._steps = micro_batches
        order = sorted(range(len(speeds)), key=lambda index: seconds[index])
        self._rates = by_position(
            [speeds[index].slots for index in order], [1 / seconds[index] for index in order], most
        )
        self._weight: Seconds = np.cumsum(self._rates)
        self._fastest = 1 / seconds[order[0]]
        # Most that are asked for in a row are of one ratio.
        self._level: _Reach = (1.0, np.ones(len(self._rates)), self._weight)
        self._last = self._level

    def ends(self, layers: float, ratio: float, send: float | None) -> Seconds:
        """Seconds of so many layers on at most so many slots, [slots - 1].

        Each micro-batch is sent on and back in ``send`` seconds.
        """
        _, left, reach = self._reach(ratio)
        # L <= V sum_k w_k ratio^k
        plain: Seconds = layers / reach
        if send is None:
            return plain
        # L <= sum_k w_k (V ratio^k - m send): all slots but the ends, which send to one side only, send twice.
        more = np.maximum(0.0, self._steps * send * (self._weight - 2 * self._fastest))
        # Trading a slow slot for a fast one pays only while its time exceeds the sends.
        pays = self._steps * send <= plain * left
        return np.where(pays, plain + more / reach, plain)

    def _reach(self, ratio: float) -> _Reach:
        if ratio == self._level[0]:
            return self._level
        if ratio != self._last[0]:
            left: Seconds = np.power(ratio, np.arange(len(self._rates)))
            self._last = ratio, left, np.cumsum(self._rates * left)
        return self._last


def by_position(slots: Sequence[float], values: Sequence[float], most: int) -> Seconds:
    """What each of the first positions has of the values of slots that stand one behind the other, [position].

    A part of a slot counts in proportion; behind the last slot there is nothing.
    """
    ends = np.cumsum([0.0, *slots])
    total = np.cumsum([0.0, *(count * value for count, value in zip(slots, values, strict=True))])
    return np.diff(np.interp(np.arange(most + 1.0), ends, total))
