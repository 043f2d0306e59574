"""Medians and spreads."""

from __future__ import annotations

import pytest

from planner.measure.samples import sample


def test_one_slow_repeat_changes_nothing() -> None:
    """Neither the median nor the spread follow it."""
    found = sample([1.0, 1.01, 0.99, 1.0, 9.0])
    assert found.seconds == 1.0
    assert found.spread < 0.02


def test_the_spread_is_a_standard_deviation() -> None:
    """Of evenly spread repeats: the distance of the quartiles over 1.349."""
    found = sample([8.0, 9.0, 10.0, 11.0, 12.0])
    assert found.spread == pytest.approx(2 / 1.349 / 10)


def test_single_and_no_repeats() -> None:
    """A single one has no spread; none is an error."""
    assert sample([2.0]).spread == 0
    with pytest.raises(ValueError, match="no repeats"):
        sample([])
