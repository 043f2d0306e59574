"""Conversions between the units of files and SI, and numbers for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import units


def test_memory_is_binary_and_rates_are_decimal() -> None:
    """As vendors count them."""
    assert units.bytes_from_gib(80) == 80 * 1024**3
    assert units.bytes_per_second_from_gbps(200) == 25e9
    assert units.bytes_per_second_from_gigabytes(300) == 3e11
    assert units.seconds_from_us(3) == pytest.approx(3e-6)
    assert units.flops_from_tflops(312) == 3.12e14


@given(st.floats(0, 1e6))
def test_gib_and_back(gib: float) -> None:
    """To the byte."""
    assert units.gib_from_bytes(units.bytes_from_gib(gib)) == pytest.approx(gib, abs=2**-30)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5e-6, "5 µs"),
        (0.412, "412 ms"),
        (0.99999, "1 s"),
        (1, "1 s"),
        (999.9, "1000 s"),
        (55.93, "55.9 s"),
        (1234.5, "1230 s"),
        (5400, "1.5 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Three significant digits."""
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (18_800, "18.8 k"),
        (999_900, "1 M"),
        (6_738_415_616, "6.74 B"),
        (3.5e6, "3.5 M"),
        (2e12, "2 T"),
    ],
)
def test_counts(count: float, text: str) -> None:
    """With a metric suffix."""
    assert units.format_count(count) == text
