"""Doubling, then bisection."""

from __future__ import annotations

import pytest

from planner.measure.samples import Limit, grow


@pytest.mark.parametrize(
    ("holds", "largest", "asked", "limit"),
    [
        (13, 64, [1, 2, 4, 8, 16, 12, 14, 13], Limit(13, 14)),
        (0, 64, [1], Limit(0, 1)),
        (1, 64, [1, 2], Limit(1, 2)),
        (99, 24, [1, 2, 4, 8, 16, 24], Limit(24, None)),
        (20, 24, [1, 2, 4, 8, 16, 24, 20, 22, 21], Limit(20, 21)),
        (99, 1, [1], Limit(1, None)),
    ],
)
def test_the_exact_limit_is_found(holds: int, largest: int, asked: list[int], limit: Limit) -> None:
    """In this order of micro-batches."""
    sizes: list[int] = []

    def fits(size: int) -> bool:
        sizes.append(size)
        return size <= holds

    assert grow(fits, largest) == limit
    assert sizes == asked
