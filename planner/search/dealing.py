"""How many sequences each kind of device gets: least common times, also where part of the work is done in step.

Replicas that keep step in some of their work end after the longest of what they do on their own, and the longest of
what they do in step: with a limit on the latter given, the former is a threshold problem over the splits that obey it.
Sizes of the first and the last micro-batch decide what is done in step; between two numbers of micro-batches with
the same sizes the work is linear, so the fewest and the most are tried. Least times fall as the limit grows: limits
between two that are known are left out where the smaller limit and the lesser time are no better than the best sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

MORE_STEPS = 8
"""Micro-batches beyond the fewest that a device working alone may split its share into."""

_CLOSE = 1e-9
"""Sums that differ by less than this part are equal."""


@dataclass(frozen=True, slots=True)
class Splits:
    """All ways worth trying to split shares of one kind of device into micro-batches, as even as possible."""

    sizes: list[tuple[int, int]]
    """Sequences of the first micro-batch and of the last, [way]."""
    alone: Seconds
    """Seconds on its own of a share, [way][share - 1]; infinite where it cannot be split so."""
    steps: NDArray[np.int64]
    """Micro-batches, [way][share - 1]."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """Shares of all kinds of device."""

    shares: list[int]
    """Sequences of a device, [kind]."""
    steps: list[list[int]]
    """Micro-batches of each smaller share too, [kind][share - 1]."""


def splits(whole: Sequence[float], common: Callable[[int, int], float], batch: int) -> Splits:
    """Splits of 1 to ``batch`` sequences: ``whole`` are seconds of a micro-batch, [sequences - 1].

    ``common`` says how much of that a device does in step, by the sizes of its first and last micro-batch.
    """
    shares = np.arange(1, batch + 1)
    sizes: list[tuple[int, int]] = []
    alone: list[Seconds] = []
    steps: list[NDArray[np.int64]] = []

    def add(first: int, last: int, count: NDArray[np.int64], possible: NDArray[np.bool_]) -> None:
        larger = shares - count * last
        seconds = (count - larger) * whole[last - 1] + larger * whole[first - 1] - common(first, last)
        sizes.append((first, last))
        alone.append(np.where(possible, seconds, np.inf))
        steps.append(count)

    for size in range(1, min(len(whole), batch) + 1):
        add(size, size, shares // size, shares % size == 0)
        if size < len(whole):
            fewest, most = shares // (size + 1) + 1, (shares - 1) // size
            add(size + 1, size, fewest, fewest <= most)
            add(size + 1, size, most, fewest < most)
    return Splits(sizes, np.array(alone), np.array(steps))


def dealt_in_step(
    kinds: Sequence[Splits], in_step: Sequence[Sequence[float]], counts: Sequence[int], batch: int
) -> Dealt | None:
    """Shares that end first; None when the devices cannot do the batch.

    ``in_step`` are seconds that a device spends in step with the others, [kind][way]; ``counts`` devices, [kind].
    """
    common = [np.array(row) for row in in_step]
    limits = np.unique(np.concatenate(common))
    limits = limits[limits >= max(row.min() for row in common)]

    def at(index: int) -> tuple[float, Dealt | None]:
        return _within(kinds, [row <= limits[index] for row in common], counts, batch)

    last = len(limits) - 1
    times = {index: at(index) for index in (0, last)}
    sums = {index: limits[index] + found[0] for index, found in times.items()}
    open_ranges = [(0, last)]
    while open_ranges:
        low, high = open_ranges.pop()
        if high - low < 2 or limits[low + 1] + times[high][0] >= min(sums.values()) * (1 - _CLOSE):
            continue
        middle = (low + high) // 2
        times[middle] = at(middle)
        sums[middle] = limits[middle] + times[middle][0]
        open_ranges += [(low, middle), (middle, high)]
    return times[min(sums, key=lambda index: sums[index])][1]


def _within(
    kinds: Sequence[Splits], allowed: Sequence[NDArray[np.bool_]], counts: Sequence[int], batch: int
) -> tuple[float, Dealt | None]:
    """Least seconds outside of what is done in step, with the splits that are allowed, [kind][way]."""
    work, steps = [], []
    for ways, mine in zip(kinds, allowed, strict=True):
        rows = ways.alone[mine]
        best = rows.argmin(axis=0)
        seconds = np.maximum.accumulate(rows.min(axis=0))
        work.append(seconds[np.isfinite(seconds)].tolist())
        steps.append(ways.steps[mine][best, np.arange(len(best))].tolist())
    shares = threshold(work, counts, batch) if all(work) else []
    if not shares:
        return float("inf"), None
    seconds_of_all = max(values[share - 1] for values, share in zip(work, shares, strict=True))
    return seconds_of_all, Dealt(shares, steps)


def best_split(one: Sequence[float], left: Sequence[float], share: int, limit: int) -> tuple[float, int]:
    """Least seconds of a share, and in how many micro-batches of at most ``limit`` sequences, as even as possible.

    ``left`` follows the last micro-batch, whose largest is of this size; empty for nothing.
    """
    fewest = -(-share // limit)
    return min(
        (_split_seconds(one, share, steps) + (left[-(-share // steps) - 1] if left else 0.0), steps)
        for steps in range(fewest, min(share, fewest + MORE_STEPS) + 1)
    )


def _split_seconds(one: Sequence[float], share: int, steps: int) -> float:
    small, larger = divmod(share, steps)
    return (steps - larger) * one[small - 1] + (larger * one[small] if larger else 0.0)


def threshold(
    work: Sequence[Sequence[float]], counts: Sequence[int], batch: int, steps: int = 1
) -> list[int]:
    """Largest shares within the least common time, [kind]; empty when the devices cannot do the batch.

    ``work`` is seconds, never falling, of one of ``steps`` equal parts of a share: [kind][sequences - 1].
    """

    def shares(limit: float) -> list[int]:
        return [steps * bisect_right(values, limit) for values in work]

    def enough(found: list[int]) -> bool:
        return all(found) and sum(share * count for share, count in zip(found, counts, strict=True)) >= batch

    low, high = 0.0, max(values[-1] for values in work)
    if not enough(shares(high)):
        return []
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return shares(high)
        if enough(shares(middle)):
            high = middle
        else:
            low = middle
