"""Batch partitioning: the local batch of each device type, by the least time within which all finish.

A share is split into micro-batches as even as possible, so they have one size or two neighbouring ones. The largest
share that ends within a time is known in closed form for every pair of sizes, whatever the batch; nothing here is as
long as the batch. The least time in which all devices together finish the batch is then found by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from planner.frozen import dataclass

Seconds = NDArray[np.float64]

EXACT = 1e-13
"""Relative width at which the bisection ends where the shares themselves are wanted."""

MOST_LIMITS, AT_ONCE = 255, 512
"""Limits that are tried at the same time: as many, or as many as make arrays of this size with all ways."""

_CLOSE = 1e-9
"""Sums that differ by less than this part are equal."""


@dataclass(frozen=True, slots=True)
class Added:
    """What each way to split a share takes beside its micro-batches; infinite forbids the way.

    Both are [way] with a way for each size of each device type: of ``equal`` ways all micro-batches have the size, of
    ``mixed`` ways some have one sequence more.
    """

    equal: Seconds
    mixed: Seconds

    def within(self, limit: float, values: Added) -> Added:
        """Only ways of which ``values`` are within the limit."""
        return Added(
            np.where(values.equal <= limit, self.equal, np.inf),
            np.where(values.mixed <= limit, self.mixed, np.inf),
        )


NO_WAYS = Added(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class BatchPartition:
    """What ends first: no shares take less than ``seconds``."""

    seconds: float
    shares: tuple[int, ...] = ()
    """Largest shares within it, [type]; together they may be more than the batch. None where nothing is possible."""
    steps: int = 0
    """Micro-batches of every share; 0 where each share has its own number."""
    added: Added = NO_WAYS
    """What the ways that were allowed add, where each share has its own number of micro-batches."""


NOTHING = BatchPartition(float("inf"))

MOST_KNOWN = 4096
"""Answers that are remembered."""

_KNOWN: dict[tuple[object, ...], BatchPartition] = {}


class Team:
    """Devices of several device types that finish a batch together, each on its own."""

    def __init__(
        self, micro: Sequence[Seconds], counts: Sequence[int], batch: int, *, once: bool = False
    ) -> None:
        """``micro`` are seconds of micro-batches of 1, 2, ... sequences, [type]; ``counts`` are devices, [type].

        ``once``: every share is one micro-batch.
        """
        self.counts = np.array(counts, dtype=np.float64)
        self.batch = batch
        self.once = once
        self.ends = list(accumulate(map(len, micro)))
        self.starts = [0, *self.ends[:-1]]
        self.size = np.concatenate([np.arange(1.0, len(one) + 1) for one in micro])
        self.small = np.concatenate(micro)
        larger = [np.append(one[1:], np.inf) for one in micro]
        self.large = np.concatenate(larger)
        last = np.isinf(self.large)
        self._last = np.flatnonzero(last)
        finite_large = np.where(last, 1.0, self.large)
        more = finite_large - self.small
        rising = more > 0
        self._flat = np.flatnonzero(~rising)
        self._parts = np.array([self.small, finite_large, np.where(rising, more, 1.0), self.size])[:, :, None]
        self._repeated = self._parts
        """The parts once for each limit of the last ones tried."""
        self._key = self.small.tobytes(), tuple(self.ends), tuple(counts), batch, once

    def within(self, limits: Seconds, added: Added) -> Seconds:
        """The largest share of a device that ends within each limit, [limit][device type]; 0 for none.

        No way is mixed whose size is the largest of its device type: what those add must be infinite.
        """
        if self._repeated.shape[2] != len(limits):
            # Arrays of one shape are much quicker together than arrays and columns.
            self._repeated = np.repeat(self._parts, len(limits), axis=2)
        small, large, more, size = self._repeated
        best = limits - added.equal[:, None]
        np.maximum(best, 0.0, out=best)
        best /= small
        np.floor(best, out=best)
        np.minimum(best, 1 if self.once else self.batch, out=best)
        best *= size
        left = limits - added.mixed[:, None]
        np.maximum(left, 0.0, out=left)
        np.maximum(best, self._all_but_one(left, small, large, size), out=best)
        for some in self._some(left, small, large, more, size):
            np.maximum(best, some, out=best)
        shares = np.maximum.reduceat(best, self.starts, axis=0)
        return np.minimum(shares, float(self.batch)).T

    def _all_but_one(self, left: Seconds, small: Seconds, large: Seconds, size: Seconds) -> Seconds:
        """Sequences of micro-batches of which all but one have the larger size, [way][limit]."""
        count = left - small
        np.maximum(count, 0.0, out=count)
        count /= large
        np.floor(count, out=count)
        np.minimum(count, self.batch, out=count)
        # count (size + 1), and the smaller one where there are larger ones
        sequences = np.minimum(count, 1.0)
        sequences += count
        sequences *= size
        sequences += count
        return sequences

    def _some(self, left: Seconds, small: Seconds, large: Seconds, more: Seconds, size: Seconds) -> Seconds:
        """Sequences with the fewest and with the most micro-batches of which some, but not all, are larger.

        m micro-batches, r of them larger, take m small + r (large - small). With as many larger ones as the time
        allows the sequences rise with m, or fall with it, throughout: one of the two ends is best.
        """
        count = np.empty((2, *left.shape))
        np.divide(left, large, out=count[0])
        np.subtract(left, more, out=count[1])
        count[1] /= small
        np.floor(count, out=count)
        count[0] += 1
        np.minimum(count, self.batch, out=count)
        larger = count * small
        np.subtract(left, larger, out=larger)
        larger /= more
        np.floor(larger, out=larger)
        sequences = count * size
        count -= 1
        np.minimum(larger, count, out=larger)
        sequences += larger
        np.putmask(sequences, larger < 1, 0.0)
        if len(self._flat):
            sequences[:, self._flat] = 0.0
        return sequences

    def least(self, added: Added, must: Sequence[bool], exact: float = EXACT) -> BatchPartition:
        """The least time within which the devices finish the batch, each type that ``must`` with at least a sequence.

        The time given is one within which they do not, by less than the part ``exact``; the shares end just above.
        """
        # Many sets of devices, and choices that differ in what costs them nothing, ask the same.
        key = self._key, added.equal.tobytes(), added.mixed.tobytes(), tuple(must), exact
        known = _KNOWN.get(key)
        if known is None:
            if len(_KNOWN) == MOST_KNOWN:
                _KNOWN.clear()
            known = _KNOWN[key] = self._least(added, must, exact)
        return known

    def _least(self, added: Added, must: Sequence[bool], exact: float) -> BatchPartition:
        required = np.array(must, dtype=bool)
        none_required = not required.any()

        def enough(shares: Seconds) -> NDArray[np.bool_]:
            whole: NDArray[np.bool_] = shares @ self.counts >= self.batch
            return whole if none_required else whole & (shares[:, required] >= 1).all(axis=1)

        mixed = added.mixed.copy()
        mixed[... if self.once else self._last] = np.inf
        added = Added(added.equal, mixed)
        finite = np.minimum(added.equal, mixed)
        if not self._can(finite, required):
            return NOTHING
        rates = np.maximum.reduceat(self.size / self.small, self.starts)
        alone, possible = float(self.batch / (rates @ self.counts)), finite[np.isfinite(finite)]
        high = alone + float(np.abs(possible).max())
        # Nobody is faster than at the best rate without all that any way adds.
        low = max(0.0, alone * (1 - _CLOSE) + float(possible.min()))
        while not (able := enough(shares := self.within(np.array([low, high]), added)))[1]:
            high *= 2
        if able[0] and not low:
            # Ways that take nothing but what is done in step: halving would only end at the smallest of all numbers.
            return self._partition(0.0, shares[0], added)
        largest = shares[1]
        between = max(1, min(MOST_LIMITS, AT_ONCE // len(self.size)))
        parts = np.arange(1, between + 1) / (between + 1)
        while high - low > exact * high:
            limits = low + (high - low) * parts
            if not low < limits[0] or not limits[-1] < high:
                break
            limit_shares = self.within(limits, added)
            able = enough(limit_shares)
            first = int(able.argmax())
            if able[first]:
                largest = limit_shares[first]
            else:
                first = between
            low, high = (
                float(limits[first - 1]) if first else low,
                float(limits[first]) if first < between else high,
            )
        return self._partition(low, largest, added)

    def _partition(self, seconds: float, shares: Seconds, added: Added) -> BatchPartition:
        return BatchPartition(seconds, tuple(int(share) for share in shares), int(self.once), added)

    def _can(self, finite: Seconds, required: NDArray[np.bool_]) -> bool:
        """True when device types that must take part have a way to, and any kind has, or enough where each has one."""
        possible = np.logical_or.reduceat(np.isfinite(finite), self.starts)
        if self.once:
            largest = np.maximum.reduceat(np.where(np.isfinite(finite), self.size, 0.0), self.starts)
            if largest @ self.counts < self.batch:
                return False
        return bool(possible[required].all() and (possible & (self.counts > 0)).any())

    def steps(self, device_type: int, share: int, added: Added) -> int:
        """Micro-batches in which a share of a device takes least."""
        part = slice(self.starts[device_type], self.ends[device_type])
        size, small, large = self.size[part], self.small[part], self.large[part]
        count = share / size
        equal = np.where(share % size == 0, count * small + added.equal[part], np.inf)
        best, steps = float(equal.min()), int(count[equal.argmin()])
        # In between the seconds are linear in the number of micro-batches.
        for count in (np.floor(share / (size + 1)) + 1, np.floor((share - 1) / size)):
            larger = share - count * size
            possible = (larger >= 1) & (larger < count) & np.isfinite(large)
            with np.errstate(invalid="ignore"):
                seconds = (count - larger) * small + larger * large + added.mixed[part]
            seconds = np.where(possible, seconds, np.inf)
            if float(seconds.min()) < best:
                best, steps = float(seconds.min()), int(count[seconds.argmin()])
        return steps if best < np.inf else -(-share // int(size[-1]))


def least_in_step(
    team: Team, alone: Added, in_step: Added, must: Sequence[bool], cutoff: float = float("inf")
) -> BatchPartition:
    """Least sum of the longest that a device does on its own and the longest that it does in step with the others.

    ``alone`` is what a way takes on its own beside its micro-batches (what these do in step is taken off), ``in_step``
    what it does in step. A limit on the latter leaves a threshold problem. Its time falls as the limit grows: between
    two limits nothing is better than the next limit above the smaller with the time of the larger. Nothing is looked
    for that is no better than ``cutoff``.
    """
    values = np.concatenate([in_step.equal, in_step.mixed])
    limits = np.array(sorted({*values[np.isfinite(values)].tolist()}))
    if not len(limits):
        return NOTHING
    partitions: dict[int, BatchPartition] = {}

    def total(index: int) -> float:
        if index not in partitions:
            # Ways that take as long but for rounding are within it.
            close = float(limits[index]) * (1 + _CLOSE)
            partitions[index] = team.least(alone.within(close, in_step), must)
        return float(limits[index]) + partitions[index].seconds

    last = len(limits) - 1
    best = min((0, last), key=total)
    least = min(total(best), cutoff)
    skipped = float("inf")
    ranges = [(0, last)]
    while ranges:
        low, high = ranges.pop()
        reach = float(limits[min(low + 1, high)]) + partitions[high].seconds
        # T >= the next limit above the smaller one + the time alone with the larger one, for all limits between
        if high - low < 2 or reach >= least * (1 - _CLOSE):
            skipped = min(skipped, reach if high - low >= 2 else float("inf"))
            continue
        middle = (low + high) // 2
        if total(middle) < total(best):
            best = middle
        least = min(least, total(best))
        ranges += [(low, middle), (middle, high)]
    return replace(partitions[best], seconds=min(total(best), skipped))


def least_in_lock_step(
    micro: Sequence[Seconds],
    left: Sequence[Seconds],
    counts: Sequence[int],
    batch: int,
    must: Sequence[bool],
    fewest: int,
    *,
    exact_below: float = 0.0,
) -> BatchPartition:
    """Least step in which all devices do the same number of micro-batches; a bound of it from ``exact_below`` on.

    ``micro`` are seconds of micro-batches of 1, 2, ... sequences, ``left`` what follows the last of them on a device
    whose largest has the size, both [device type][sequences - 1]. At least ``fewest`` devices take part. The longest
    micro-batch is that of one of the sizes of one of the device types: all are tried at once, in the bound with what
    follows on this one alone.
    """
    together = _Together(counts, batch, must)
    longest, follows = np.concatenate(micro), np.concatenate(left)
    sizes, devices = together.within(micro, longest)
    with np.errstate(divide="ignore"):
        steps = np.ceil(batch / devices)
    able = (steps * max(1, fewest) <= batch) & (sizes[np.array(must, dtype=bool)] >= 1).all(axis=0)
    seconds = np.where(able, steps * longest + follows, np.inf)
    best = int(seconds.argmin())
    if not np.isfinite(seconds[best]):
        return NOTHING
    found = together.partition(float(seconds[best]), sizes[:, best], int(steps[best]))
    if found.seconds >= exact_below:
        return found
    found = together.least(micro, left, found.steps)
    for number in range(int(steps[able].min()), batch // max(1, fewest) + 1):
        if number * longest.min() >= found.seconds:
            break
        # T >= n m + what follows, of the device with the longest micro-batch m, which n of them must be enough for
        if (number * longest + follows)[able & (steps <= number)].min() < found.seconds * (1 - _CLOSE):
            found = min(found, together.least(micro, left, number), key=lambda one: one.seconds)
    return found


def least_at_once(
    micro: Sequence[Seconds], left: Sequence[Seconds], counts: Sequence[int], batch: int, must: Sequence[bool]
) -> BatchPartition:
    """The same with one micro-batch everywhere."""
    return _Together(counts, batch, must).least(micro, left, 1)


@dataclass(frozen=True, slots=True)
class _Together:
    """Devices that do the same number of micro-batches."""

    counts: Sequence[int]
    """Of each type."""
    batch: int
    must: Sequence[bool]

    def within(
        self, times: Sequence[Seconds], limits: Seconds
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The largest sizes of each type that take no longer than each limit, and sequences of all devices together."""
        # A larger micro-batch that takes no longer counts for the smaller one.
        rising = [np.minimum.accumulate(one[::-1])[::-1] for one in times]
        sizes = np.array([np.searchsorted(one, limits, side="right") for one in rising])
        return sizes, np.array(self.counts) @ sizes

    def least(self, micro: Sequence[Seconds], left: Sequence[Seconds], steps: int) -> BatchPartition:
        """The least step of so many micro-batches."""
        ends = [steps * one + follows for one, follows in zip(micro, left, strict=True)]
        limits = np.concatenate(ends)
        sizes, devices = self.within(ends, limits)
        able = (steps * devices >= self.batch) & (sizes[np.array(self.must, dtype=bool)] >= 1).all(axis=0)
        seconds = np.where(able, limits, np.inf)
        best = int(seconds.argmin())
        if not np.isfinite(seconds[best]):
            return NOTHING
        return self.partition(float(seconds[best]), sizes[:, best], steps)

    def partition(self, seconds: float, sizes: NDArray[np.int64], steps: int) -> BatchPartition:
        """Micro-batches of such sizes."""
        return BatchPartition(seconds, tuple(min(self.batch, int(size) * steps) for size in sizes), steps)
