"""Which micro-batches to measure: doubling, then bisection to the largest that fits.

The order of Poplar's Algorithm 1 (arXiv:2408.12596): few points where little happens, the exact limit at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
