"""Warm-up, medians and spreads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.logs.reading import WARM_UP_STEPS, Log, observed
from planner.runtimes.log import PartTime, Series, Timed


def series(numbers: list[int], averaged: bool) -> Series:
    """Records of one second."""
    made = Series(averaged=averaged)
    for number in numbers:
        made.add(number, 1.0)
    return made


@pytest.mark.parametrize(
    ("numbers", "averaged", "starts"),
    [
        ([0, 1, 2, 3], False, [0, 1, 2, 3]),
        ([50, 51], False, [0, 1]),
        ([10, 20, 30], True, [0, 10, 20]),
        ([1, 2, 3], True, [0, 1, 2]),
        (
            [1, 10, 20],
            True,
            [0, 1, 10],
        ),  # Megatron logs the first iteration without starting its average anew
        ([1010, 1020], True, [0, 10]),
        ([7], True, [0]),
    ],
)
def test_what_a_record_covers(numbers: list[int], averaged: bool, starts: list[int]) -> None:
    """Steps before its first one."""
    assert [entry.start for entry in series(numbers, averaged).timed()] == starts


def test_a_new_run_begins_where_numbers_fall_back() -> None:
    """Not where a rank repeats a number, nor where a run goes on from a checkpoint."""
    made = series([5, 6, 7], averaged=False)
    assert [made.restarts(number) for number in (5, 0, 6, 7, 8)] == [True, True, False, False, False]
    assert not series([5], averaged=False).restarts(5)


def test_of_several_ranks_the_longest_counts() -> None:
    """The step is over when the last rank is done."""
    made = series([1], averaged=False)
    made.add(1, 3.0)
    made.add(1, 2.0)
    assert made.timed() == (Timed(start=0, seconds=3.0),)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_the_warm_up_is_left_out(seconds: list[float]) -> None:
    """The median lies among what counts, and every record either counts or is left out."""
    steps = tuple(Timed(start=index, seconds=each) for index, each in enumerate(seconds))
    seen = observed(Log(source="test", steps=steps))
    assert seen.left_out + len(seen.seconds) == len(seconds)
    assert seen.only_warm_up == (len(seconds) <= WARM_UP_STEPS)
    assert seen.seconds == (tuple(seconds[WARM_UP_STEPS:]) or (seconds[-1],))
    assert min(seen.seconds) <= seen.step_seconds <= max(seen.seconds)
    assert (seen.spread is None) == (len(seen.seconds) < 4)


def test_spread_of_even_and_normal_steps() -> None:
    """Distance of the quartiles over 1.349 is the standard deviation of a normal distribution."""
    even = tuple(Timed(start=9, seconds=2.0) for _ in range(8))
    assert observed(Log(source="test", steps=even)).spread == 0
    five = tuple(Timed(start=9, seconds=each) for each in (0.8, 0.9, 1.0, 1.1, 1.2))
    assert observed(Log(source="test", steps=five)).spread == pytest.approx(0.2 / 1.349)


def test_parts_leave_out_the_warm_up_too() -> None:
    """Medians by part and rank."""
    parts = tuple(
        PartTime(part="forward", rank=rank, start=start, seconds=seconds)
        for rank in (0, 1)
        for start, seconds in ((0, 9.0), (3, 1.0 + rank), (4, 3.0 + rank), (5, 2.0 + rank))
    )
    log = Log(source="test", steps=(Timed(start=3, seconds=1.0),), parts=parts)
    assert observed(log).parts == {("forward", 0): 2.0, ("forward", 1): 3.0}
