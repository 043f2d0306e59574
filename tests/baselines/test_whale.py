"""Whale's algorithm 1."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.whale import shift_overflow

KIND = st.tuples(st.floats(0.1, 10), st.integers(1, 8), st.integers(1, 50))


def test_without_overflow_shares_follow_the_flops() -> None:
    """Twice the speed, twice the share."""
    assert shift_overflow([2.0, 1.0], [1, 1], [100, 100], 30) == [[(1, 20)], [(1, 10)]]


def test_what_overflows_a_memory_moves() -> None:
    """To the other device, as much as it holds."""
    assert shift_overflow([2.0, 1.0], [1, 1], [12, 100], 30) == [[(1, 12)], [(1, 18)]]
    assert shift_overflow([2.0, 1.0], [1, 1], [12, 12], 30) == []


def test_the_overflow_of_a_device_lands_on_one_valley() -> None:
    """The paper moves the largest load that the least loaded device holds; it does not spread it."""
    assert shift_overflow([4.0, 1.0], [1, 2], [10, 100], 30) == [[(1, 10)], [(1, 15), (1, 5)]]
    assert shift_overflow([4.0, 1.0], [1, 2], [10, 12], 30) == [[(1, 10)], [(1, 12), (1, 8)]]


@given(st.lists(KIND, min_size=1, max_size=4), st.integers(1, 200))
def test_shares_add_up_to_the_batch(device_types: list[tuple[float, int, int]], batch: int) -> None:
    """Nothing lost, no limit broken; empty exactly when the limits cannot hold the batch."""
    speeds, counts, limits = zip(*device_types, strict=True)
    batches = shift_overflow(speeds, counts, limits, batch)
    if not batches:
        assert sum(count * limit for count, limit in zip(counts, limits, strict=True)) < batch
        return
    assert sum(count * share for parts in batches for count, share in parts) == batch
    for parts, count, limit in zip(batches, counts, limits, strict=True):
        assert sum(number for number, _ in parts) == count
        assert all(share <= limit for _, share in parts)
