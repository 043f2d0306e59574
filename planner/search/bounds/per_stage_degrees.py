"""A lower bound on pipelines with per-stage degrees, in which any devices may hold any layers.

Of the rate R of all devices (layers of a micro-batch a second) let stage i have R_i for its L_i layers: it is busy for
L_i / R_i seconds. With the busiest stage at b and ``once`` the sum over all p stages, 1F1B of m micro-batches ends no
sooner than

    m b,    once + (m - 1) B + max(0, m - p) F,    and for m > p    2 once + (m - p - 1) b

where F and B are the forward and the backward of the busiest stage (``schedules.busiest_path``). Layers and rate in
proportion may be moved to the busiest stage without making it, or ``once``, longer, until the others hold one layer
each. They share what rate it leaves, best evenly:

    once >= b + (p - 1)^2 / (R - (L - p + 1) / b)

And no stage is faster than all devices of the fastest kind, since a stage is of one kind: once >= L / max R_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from planner.cost.schedules import behind_twice, busiest_path, round_trip
from planner.search.bounds.rates import Speed


class PerStageDegreesBound:
    """The bound of one family; slots of its speeds are devices, and seconds device-seconds."""

    def __init__(self, speeds: Sequence[Speed], layers: int, micro_batches: int) -> None:
        self.layers, self.micro_batches = layers, micro_batches
        rates = [speed.slots / speed.layer_seconds for speed in speeds]
        self.rate, self.fastest = sum(rates), max(rates, default=0.0)
        self.ends = min(
            ((speed.first_seconds + speed.last_seconds) / speed.layer_seconds for speed in speeds),
            default=0.0,
        )
        self.forward = min((speed.forward_seconds / speed.layer_seconds for speed in speeds), default=0.0)
        self.backward = min((speed.backward_seconds / speed.layer_seconds for speed in speeds), default=0.0)

    def least(self, depth: int) -> float:
        """No pipeline of at most ``depth`` stages ends sooner; infinite without devices."""
        return min(self.bound(number) for number in range(1, depth + 1))

    def bound(self, depth: int) -> float:
        """No pipeline of ``depth`` stages ends sooner; infinite without devices."""
        steps, work = self.micro_batches, self.layers + self.ends
        if not self.rate or depth > self.layers:
            return inf
        if depth == 1:
            return steps * work / self.fastest
        # m b, and b >= L / R: the busiest stage takes no less than all layers on all devices.
        bounds = [steps * work / self.rate]
        trip = busiest_path(round_trip, depth, steps)
        if trip is not None:
            # once + (m - 1) B + max(0, m - p) F; how the ends divide into both is not known: they count once.
            busy = trip.backward * self.backward + trip.forward * self.forward
            bounds.append(self._path(trip.once, busy, self.layers, depth) + self.ends / self.rate)
        twice = busiest_path(behind_twice, depth, steps)
        if twice is not None:
            # 2 once + (m - p - 1) b
            bounds.append(self._path(twice.once, twice.busy, work, depth))
        return max(bounds)

    def _path(self, once: float, busy: float, work: float, depth: int) -> float:
        """The least of ``once`` times the sum over all stages and ``busy`` times the busiest one."""
        alone, most = depth - 1, work - depth + 1
        # With b = (most + y) / R the sum is a line in y and a part in 1 / y; the stages of one layer need y >= alone.
        spare = max(alone, sqrt(once * alone * alone * most / (once + busy)))
        shared = once * alone * alone * (1 + most / spare)
        # once >= b + (p - 1)^2 / (R - (L - p + 1) / b)
        even = ((once + busy) * (most + spare) + shared) / self.rate
        # once >= L / max R_k and b >= L / R
        return max(even, once * work / self.fastest + busy * work / self.rate)
