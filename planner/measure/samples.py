"""Repeated measurements as one number, and whether to believe it; which micro-batches to measure.

Doubling, then bisection to the largest that fits, in the order of Poplar's Algorithm 1 (arXiv:2408.12596): few points
where little happens, the exact limit at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Limit:
    """What the growth found."""

    fits: int
    """Largest micro-batch that ran; 0 for none."""
    fails: int | None
    """Smallest micro-batch that ran out of memory; None when the growth ended before."""


def grow(fits: Callable[[int], bool], largest: int) -> Limit:
    """Ask micro-batches 1, 2, 4 ... up to ``largest``, then halve the gap between what fits and what does not.

    ``fits`` measures one micro-batch and is False when it ran out of memory.
    """
    good, bad, size = 0, None, 1
    while bad is None and good < largest:
        if fits(size):
            good, size = size, min(2 * size, largest)
        else:
            bad = size
    while bad is not None and bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return Limit(good, bad)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One micro-batch of the whole model."""

    micro_batch: int
    """Sequences."""
    seconds: float
    """Forward and backward of all layers and both ends, without collectives."""
    spread: float
    """Robust relative standard deviation of the repeats."""
    used_bytes: float
    """Peak memory of the device during it, states included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """What algorithm 1 finds for a ZeRO stage."""

    zero: int
    """The ZeRO stage."""
    states_bytes: float
    """Parameters, gradients and optimizer states that the device keeps."""
    estimated: int | None
    """Largest micro-batch by the line through the first one; null where not even one fits."""
    micro_batch: int
    """Largest micro-batch that ran; 0 where the stage does not fit."""
    out_of_memory: int | None
    """Smallest micro-batch that ran out of memory; null if none did."""
    fastest: int | None
    """Micro-batch with the highest throughput, by a cubic spline through the points; null without points."""
    points: tuple[ProfilePoint, ...]
    """What was timed, by micro-batch."""
