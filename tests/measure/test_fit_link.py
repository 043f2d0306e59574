"""Lines through collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.calibration.values import LinkPoint
from planner.measure.fits import fit_links, line


@given(st.floats(1e-6, 1e-3), st.floats(1e-12, 1e-8))
def test_a_line_comes_back(latency: float, slope: float) -> None:
    """Whatever its latency and rate."""
    sizes = [1e3, 1e5, 1e7, 1e9]
    found = line(sizes, [latency + slope * size for size in sizes])
    assert found[0] == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert found[1] == pytest.approx(slope, rel=1e-3)


def test_neither_is_negative() -> None:
    """Times that fall with the size, and times whose line would start below zero."""
    assert line([1.0, 2.0], [2.0, 1.0])[1] == 0
    latency, slope = line([1e3, 1e4, 1e5], [1e-6, 2e-5, 4e-4])
    assert latency == 0
    assert slope > 0


def test_each_curve_has_its_own_line() -> None:
    """A single size has none."""
    points = [
        LinkPoint(link="ib", operation="send", members=2, size_bytes=size, seconds=1e-5 + size / 1e9)
        for size in (1e3, 1e6)
    ]
    alone = LinkPoint(link="ib", operation="all-reduce", members=2, size_bytes=1e3, seconds=1.0)
    (fit,) = fit_links([*points, alone])
    assert (fit.latency_seconds, fit.bytes_per_second) == pytest.approx((1e-5, 1e9))
    assert fit.error == pytest.approx(0, abs=1e-9)
