"""Sets of replicas as boxes: from a least to a most number of those of each device type.

Replicas of a type are alike, single devices without tensor parallelism, so a set is a number of each type. A box stands
for all sets between its corners; it is halved until it is one set, but only where its bound says that something in it
may be better than what is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster.topology import DeviceType
from planner.dims.sharding import holds_groups
from planner.frozen import dataclass

Counts = tuple[int, ...]
"""Replicas of each device type, [device type]."""


@dataclass(frozen=True, slots=True)
class Box:
    """All sets with at least ``low`` and at most ``high`` replicas of each device type."""

    low: Counts
    high: Counts

    @property
    def single(self) -> bool:
        """True for one set."""
        return self.low == self.high

    def halves(self, weights: Sequence[float], unit: int = 1) -> tuple[Box, Box]:
        """Two boxes with the same sets, divided where most is undecided: replicas times the ``weights`` of a type.

        Numbers of replicas are multiples of ``unit``.
        """
        free = [(high - low) * weight for low, high, weight in zip(self.low, self.high, weights, strict=True)]
        spread = [high - low for low, high in zip(self.low, self.high, strict=True)]
        device_type = max(range(len(free)), key=lambda index: (bool(spread[index]), free[index], -index))
        middle = self.low[device_type] + spread[device_type] // (2 * unit) * unit
        return (
            Box(self.low, _with(self.high, device_type, middle)),
            Box(_with(self.low, device_type, middle + unit), self.high),
        )

    def within(self, least: Counts, most: Counts, unit: int = 1) -> Box | None:
        """The part with at least and at most so many replicas; None where there is none."""
        low = tuple(max(a, -(-b // unit) * unit) for a, b in zip(self.low, least, strict=True))
        high = tuple(min(a, b // unit * unit) for a, b in zip(self.high, most, strict=True))
        return Box(low, high) if all(a <= b for a, b in zip(low, high, strict=True)) else None

    def fullest(self, most: int, unit: int = 1) -> Counts:
        """The set of the box with most replicas, first types first, but at most ``most`` where the box has such."""
        counts, room = list(self.low), most - sum(self.low)
        for device_type, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            taken = min(high - low, max(0, room) // unit * unit)
            counts[device_type] += taken
            room -= taken
        return tuple(counts)


def all_sets(device_types: Sequence[DeviceType], most: int, unit: int = 1, tp: int = 1) -> Box:
    """Every set of at most ``most`` replicas of ``tp`` devices of a type.

    In multiples of ``unit`` where nodes hold such groups.
    """
    usable = (
        device_type.replicas(tp) if holds_groups(device_type, unit, tp) else 0 for device_type in device_types
    )
    return Box(
        tuple(0 for _ in device_types),
        tuple(min(replicas, max(most, unit)) // unit * unit for replicas in usable),
    )


def _with(counts: Counts, device_type: int, number: int) -> Counts:
    return (*counts[:device_type], number, *counts[device_type + 1 :])
