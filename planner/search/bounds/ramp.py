"""A lower bound in closed form: what the stages behind others can still do in the time.

Let w be layers per second of a stage slot, m micro-batches and v chunks. By the path that goes up to a stage, does its
work there and comes back (``schedules.and_back``), a stage behind k others can work at most (V - their first and last
micro-batch) / m per micro-batch in the time V. With the fastest slots first that is V / m (1 - 1/(m v))^k, so

    V >= L / sum_k w_k (1 - 1/(m v))^k * m
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, inf

from planner.cost.schedules import and_back
from planner.search.bounds.rates import Speed, fastest_slots
from planner.search.space.sends import Hops


class RampBound:
    """The bound of one family; ``hops`` are the sends of each speed's stages."""

    def __init__(
        self, speeds: Sequence[Speed], hops: Sequence[Hops], layers: int, micro_batches: int, chunks: int
    ) -> None:
        self.speeds, self.hops, self.layers = speeds, hops, layers
        self.micro_batches, self.chunks = micro_batches, chunks

    def bound(self, depth: int, known: float = 0.0, cutoff: float = inf) -> float:
        """No pipeline of at most ``depth`` stages ends sooner; infinite without devices."""
        speeds, steps = self.speeds, self.micro_batches
        if not speeds:
            return inf
        path = and_back(1, 2, steps)
        assert path is not None, "two stages have a second one"
        # V >= sum_{i<k} c_i / v + m c_k for every stage k: each leaves the next this part of what it has itself.
        ratio = 1.0 - path.before.forward / (path.own.forward * self.chunks)
        reach, done, weight = 0.0, 0.0, 0.0
        for count, speed in fastest_slots(speeds, depth):
            reach += parts(done, count, lambda slot: ratio**slot) / (speed.layer_seconds * steps)
            weight += count / speed.layer_seconds
            done += count
        if not reach:
            return inf
        layers = self._work_layers()
        # L <= V sum_k w_k ratio^k / m
        plain = layers / reach
        send = self.chunks * min(item.inner_seconds for item in self.hops)
        tail = min(speed.tail_seconds for speed in speeds)
        # Trading a slow slot for a fast one pays only while its time exceeds the sends.
        if send > plain * ratio ** (depth - 1) / steps:
            return plain + tail
        # L <= sum_k w_k (V ratio^k / m - send): all slots but the ends, which send to one side only, send twice.
        return (layers + max(0.0, send * (weight - 2 / speeds[0].layer_seconds))) / reach + tail

    def _work_layers(self) -> float:
        """Layers, and what embedding and head are worth in layers at least."""
        ends = ((item.first_seconds + item.last_seconds) / item.layer_seconds for item in self.speeds)
        return self.layers + min(ends, default=0.0)


def parts(start: float, count: float, weight: Callable[[int], float]) -> float:
    """Sum of the weights of ``count`` slots from ``start`` on; a part of a slot weighs in proportion."""
    total, position, left = 0.0, start, count
    while left > 1e-12:
        slot = floor(position + 1e-12)
        part = min(left, slot + 1 - position)
        total += part * weight(slot)
        position += part
        left -= part
    return total
