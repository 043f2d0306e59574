"""Shares of devices and the least time in which they finish a batch, against all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.values import ReplicaGroup
from planner.search.batch_partition import (
    Added,
    Seconds,
    Team,
    least_at_once,
    least_in_lock_step,
    least_in_step,
)

INFINITE = float("inf")


def sizes(share: int, steps: int) -> tuple[int, ...]:
    """Sequences of each micro-batch."""
    return ReplicaGroup(
        pool="a", gpu="A100", tp=1, count=1, local_batch=share, accumulation_steps=steps
    ).micro_batch_sizes


def rising(draw: random.Random, length: int) -> Seconds:
    """Seconds that grow with the micro-batch, now and then in steps, as tiles of matrix products do."""
    base, rate, tile = draw.choice([0.0, 1.0, 3.0]), draw.uniform(0.5, 4.0), draw.choice([1, 1, 2, 4])
    values = [base + rate * -(-size // tile) * tile + 0.01 * size for size in range(1, length + 1)]
    return np.array(values)


def work(one: Seconds, added: Added, share: int, steps: int) -> float:
    """Seconds of a share in so many micro-batches, with what its way adds."""
    each = sizes(share, steps)
    table = added.equal if each[0] == each[-1] else added.mixed
    return sum(float(one[size - 1]) for size in each) + float(table[each[-1] - 1])


def possible(share: int, most: int) -> range:
    """Numbers of micro-batches of at most ``most`` sequences."""
    return range(-(-share // most), share + 1)


def falling(draw: random.Random, one: Seconds) -> Added:
    """What follows the last micro-batch: the less the longer that is, as it hides half of what it takes."""
    left = np.maximum(draw.uniform(0, 6) - one / 2, 0.0)
    return Added(left, np.append(left[1:], INFINITE))


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_the_largest_share_within_a_time(seed: int) -> None:
    """Closed forms against every share in every number of micro-batches."""
    draw = random.Random(seed)
    most, batch = draw.randint(1, 6), draw.randint(1, 40)
    one = rising(draw, most)
    added = falling(draw, one)
    team = Team([one], [1], batch)
    for seconds in (draw.uniform(0, 12), draw.uniform(0, 150)):
        wanted = max(
            (
                share
                for share in range(1, batch + 1)
                if any(work(one, added, share, steps) <= seconds for steps in possible(share, most))
            ),
            default=0,
        )
        assert int(team.within(np.array([seconds]), added)[0, 0]) == wanted


def test_shares_that_take_no_time_are_found_at_once() -> None:
    """Where all that a way takes is done in step, no number of halvings comes to the nothing that is left."""
    one = np.array([1.0, 2.0])
    team, calls = Team([one], [2], 8), 0
    within = team.within

    def counted(limits: Seconds, added: Added) -> Seconds:
        nonlocal calls
        calls += 1
        return within(limits, added)

    with patch.object(team, "within", counted):
        found = team.least(Added(-4.0 * one, np.full(2, INFINITE)), [True])
    assert (found.seconds, found.shares) == (0.0, (8,))
    assert calls < 5


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_the_number_of_micro_batches_is_the_best(seed: int) -> None:
    """For one share."""
    draw = random.Random(seed)
    most, share = draw.randint(1, 6), draw.randint(1, 60)
    one = rising(draw, most)
    added = falling(draw, one)
    steps = Team([np.ones(2), one], [1, 1], 60).steps(1, share, joined(Added(np.ones(2), np.ones(2)), added))
    assert work(one, added, share, steps) == pytest.approx(
        min(work(one, added, share, other) for other in possible(share, most))
    )


def joined(*device_types: Added) -> Added:
    """The ways of several device types."""
    return Added(
        np.concatenate([device_type.equal for device_type in device_types]),
        np.concatenate([device_type.mixed for device_type in device_types]),
    )


@pytest.mark.parametrize("once", [False, True])
@given(seed=st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_the_least_time_is_the_least_of_all_shares(seed: int, once: bool) -> None:
    """Two device types; the shares that come back end just above it and are enough. Or ``once``: in one micro-batch."""
    draw = random.Random(seed)
    counts = [draw.randint(1, 2), draw.randint(1, 2)]
    batch = draw.randint(sum(counts), 12)
    micro = [rising(draw, draw.randint(1, 4)) for _ in counts]
    added = [falling(draw, one) for one in micro]
    best = INFINITE
    for shares in product(*(range(1, (len(one) if once else batch) + 1) for one in micro)):
        if sum(share * count for share, count in zip(shares, counts, strict=True)) >= batch:
            each = (
                min(work(one, own, share, steps) for steps in ([1] if once else possible(share, len(one))))
                for one, own, share in zip(micro, added, shares, strict=True)
            )
            best = min(best, max(each))
    partition = Team(micro, counts, batch, once=once).least(joined(*added), [True, True])
    if once:
        left = [own.equal for own in added]
        assert least_at_once(micro, left, counts, batch, [True, True]).seconds == pytest.approx(best)
    assert partition.seconds == pytest.approx(best, rel=1e-9)
    if best == INFINITE:
        assert once
        return
    assert partition.seconds <= best
    assert np.dot(partition.shares, counts) >= batch


def test_a_batch_of_any_size_takes_no_memory() -> None:
    """A million million sequences, and a device type that need not take part."""
    partition = Team([np.array([1.0, 1.5]), np.array([9.0])], [3, 1], 10**12).least(
        Added(np.zeros(3), np.zeros(3)), [True, False]
    )
    assert partition.seconds == pytest.approx(10**12 / (3 * 2 / 1.5 + 1 / 9.0), rel=1e-9)


def test_a_kind_that_must_take_part_gets_a_sequence() -> None:
    """However slow it is; where it has no way at all nothing is possible."""
    micro = [np.array([1.0]), np.array([50.0])]
    free = Added(np.zeros(2), np.zeros(2))
    assert Team(micro, [1, 1], 4).least(free, [True, False]).seconds == pytest.approx(4.0)
    assert Team(micro, [1, 1], 4).least(free, [True, True]).seconds == pytest.approx(50.0)
    never = Added(np.array([0.0, INFINITE]), np.zeros(2))
    assert Team(micro, [1, 1], 4).least(never, [True, True]).seconds == INFINITE


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_shares_in_step_are_the_best_of_all(seed: int) -> None:
    """One or two device types, any times that grow with the micro-batch, any limit on it."""
    draw = random.Random(seed)
    batch, device_types = draw.randint(2, 7), draw.randint(1, 2)
    counts = [draw.randint(1, 3 - device_types) for _ in range(device_types)]
    exchange = draw.choice([0.0, 5.0])
    forward, backward = [], []
    for _ in counts:
        most = draw.randint(1, batch)
        forward.append(rising(draw, most))
        backward.append(np.sort(2 * rising(draw, most)))
    gathers = [one * (seed % 2) for one in forward]
    in_step, alone = [], []
    for first, back in zip(gathers, backward, strict=True):
        own = Added(first + back, np.append(first[1:], INFINITE) + back)
        alone.append(Added(-own.equal, -np.where(np.isinf(own.mixed), -INFINITE, own.mixed)))
        in_step.append(Added(own.equal + exchange, own.mixed + exchange))
    team = Team([a + b for a, b in zip(forward, backward, strict=True)], counts, batch)
    found = least_in_step(team, joined(*alone), joined(*in_step), [True] * device_types)

    def parts(device_type: int, share: int, steps: int) -> tuple[float, float]:
        each = sizes(share, steps)
        together = float(gathers[device_type][each[0] - 1] + backward[device_type][each[-1] - 1])
        return sum(
            float(forward[device_type][s - 1] + backward[device_type][s - 1]) for s in each
        ) - together, together

    devices = [device_type for device_type, count in enumerate(counts) for _ in range(count)]
    best = INFINITE
    for shares in product(range(1, batch + 1), repeat=len(devices)):
        if sum(shares) >= batch:
            ways = [
                possible(share, len(forward[device_type]))
                for device_type, share in zip(devices, shares, strict=True)
            ]
            for steps in product(*ways):
                each = [parts(*item) for item in zip(devices, shares, steps, strict=True)]
                alone_seconds, together = (max(part) for part in zip(*each, strict=True))
                best = min(best, alone_seconds + together + exchange)
    assert found.seconds == pytest.approx(best, rel=1e-8)
    assert np.dot(found.shares, counts) >= batch
    chosen = [
        parts(device_type, share, team.steps(device_type, share, found.added))
        for device_type, share in enumerate(found.shares)
    ]
    alone_seconds, together = (max(part) for part in zip(*chosen, strict=True))
    assert alone_seconds + together + exchange == pytest.approx(best, rel=1e-8)


def least_of_all(micro: list[Seconds], left: list[Seconds], counts: list[int], batch: int) -> float:
    """The least step of all with the same number of micro-batches everywhere, at least a sequence a device."""
    best = INFINITE
    for steps in range(1, batch // sum(counts) + 1):
        for own in product(*(range(1, len(one) + 1) for one in micro)):
            if steps * np.dot(own, counts) >= batch:
                best = min(best, last_end(micro, left, own, steps))
    return best


def last_end(micro: list[Seconds], left: list[Seconds], own: Sequence[int], steps: int) -> float:
    """When the last device type ends, with micro-batches of its own size."""
    each = zip(micro, left, own, strict=True)
    return max(steps * float(one[size - 1]) + float(behind[size - 1]) for one, behind, size in each)


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_lock_step_is_the_best_of_all(seed: int) -> None:
    """Whose micro-batches are shorter may have more to do after the last of them, as they hide less of it.

    Without anything behind them the bound is the step: each micro-batch as long as the longest.
    """
    draw = random.Random(seed)
    counts = [draw.randint(1, 3), draw.randint(1, 3)]
    batch = draw.randint(1, 40)
    micro = [rising(draw, draw.randint(1, 6)) for _ in counts]
    none = [0 * one for one in micro]
    some = [np.maximum(0.0, draw.choice((2.0, 10.0, 50.0)) - draw.uniform(0, 1) * one) for one in micro]
    for left in (none, some):
        best = least_of_all(micro, left, counts, batch)
        asked = (micro, left, counts, batch, [True, True], sum(counts))
        found, bound = least_in_lock_step(*asked, exact_below=INFINITE), least_in_lock_step(*asked)
        assert found.seconds == pytest.approx(best)
        assert bound.seconds <= best * (1 + 1e-9)
        assert left is some or bound.seconds == pytest.approx(best)
        if best < INFINITE:
            assert np.dot(found.shares, counts) >= batch
            own = [-(-share // found.steps) for share in found.shares]
            assert last_end(micro, left, own, found.steps) <= best * (1 + 1e-9)


def test_what_is_done_in_step_as_long_but_for_rounding_counts() -> None:
    """Where traffic hides all of it, every size takes as long in step; three at once then wait for no other."""
    seconds = np.array([0.025, 0.044, 0.062, 0.082])
    same, hair = 0.116, float(np.nextafter(0.116, 1.0))
    team = Team([seconds], [2], 7)
    alone = Added(-seconds, np.append(-seconds[1:], -seconds[-1]))
    in_step = Added(np.array([same, same, hair, same]), np.array([same, same, same, np.inf]))
    found = least_in_step(team, alone, in_step, [True])
    assert found.shares == (4,)
    assert [team.steps(0, share, found.added) for share in (3, 4)] == [1, 1]
