"""Repeated measurements as one number, and whether to believe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

BUSY = 0.10
"""Relative spread of repeats from which a device is called busy."""

_QUARTILES_PER_DEVIATION = 1.349
"""Distance of the quartiles of a normal distribution over its standard deviation."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Median seconds of repeats."""

    seconds: float
    spread: float
    """Robust relative standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One point that was measured or could not be, or one curve that begins."""

    what: str
    done: int
    total: int
    """Points or curves that are certain; micro-batches beyond them come as they fit."""


def sample(seconds: Sequence[float]) -> Sample:
    """Median, and the distance of the quartiles as a standard deviation; raises ValueError for no repeats."""
    if not seconds:
        raise ValueError("no repeats")
    middle = median(seconds)
    if len(seconds) == 1:
        return Sample(middle, 0.0)
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return Sample(middle, (high - low) / _QUARTILES_PER_DEVIATION / middle if middle else 0.0)
