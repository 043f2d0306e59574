"""The report of measured networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Group

from planner.calibration.values import Calibration, CurveError, LinkPoint
from planner.report.measured import network_sections
from tests.report.drawing import drawn

LINKS = tuple(
    LinkPoint(link="ib", operation="send", members=2, size_bytes=size, seconds=1e-5 + size / 1e9)
    for size in (1e3, 1e5, 1e7)
)
ERRORS = (CurveError(curve="send of 2 over ib", points=3, mean=0.1, largest=0.2),)


def test_latency_and_rate_of_each_curve() -> None:
    """And the errors of these curves only."""
    others = CurveError(curve="send of 2 over roce", points=3, mean=0.1, largest=0.2)
    calibration = Calibration(curve_errors=(*ERRORS, others))
    text = drawn(Group(*network_sections(LINKS, 3, calibration, Path("c.yaml"))))
    row = next(line for line in text.splitlines() if "ib" in line and "send" in line)
    assert row.split()[:6] == ["ib", "send", "2", "1", "10.0", "1.00"]
    assert "send of 2 over ib" in text
    assert "roce" not in text


def test_a_busy_network_is_told() -> None:
    """With the sizes whose repeats differ."""
    noisy = (replace(LINKS[0], spread=0.3), *LINKS[1:])
    text = drawn(Group(*network_sections(noisy, 3, Calibration(), Path("c.yaml"))), width=160)
    assert "busy device: send of 2 over ib, 1000 bytes ±30 %; --force measures again" in text
    assert "Warnings" not in drawn(Group(*network_sections(LINKS, 3, Calibration(), Path("c.yaml"))))


def test_what_was_there_is_told() -> None:
    """Measured now, measured before."""
    found = [network_sections(LINKS, new, Calibration(), Path("c.yaml")) for new in (1, 0)]
    assert drawn(Group(*found[0])).startswith("Measured 1 link point, 2 already present, wrote c.yaml\n")
    assert drawn(Group(*found[1])).startswith("c.yaml already has all points\n")
