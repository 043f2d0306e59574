"""What points were measured with, and two calibrations that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.merge import clashes, combined, merged, sourced
from planner.calibration.values import Calibration, Constant, GpuFamily, LinkPoint
from tests.calibration.any_calibration import calibrations

FACTS = {"torch": "2.7.0", "date": "2026-03-02"}


def link(seconds: float, spread: float | None = None) -> LinkPoint:
    """A measured send."""
    return LinkPoint(link="ib", operation="send", members=2, size_bytes=10.0, seconds=seconds, spread=spread)


def dated(date: str, seconds: float, share: float = 0.5, spread: float | None = None) -> Calibration:
    """A calibration of a point and a constant, measured on a day."""
    name = "families.A100.matmul_efficiency"
    found = Calibration(
        families={"A100": GpuFamily(matmul_efficiency=share)},
        constants=(Constant(name=name, value=share, provenance="measured"),),
        link_points=(link(seconds, spread),),
    )
    return sourced(found, {"date": date})


def test_points_without_a_source_get_one() -> None:
    """The same facts have the same key; what has a source keeps it; without facts nothing changes."""
    first = sourced(Calibration(link_points=(link(1.0),)), FACTS)
    (key,) = first.sources
    assert first.sources == {key: FACTS}
    assert first.link_points[0].source == key
    assert sourced(first, {"torch": "3"}) == first
    assert list(sourced(Calibration(link_points=(link(2.0),), provenance=FACTS)).sources) == [key]
    assert sourced(Calibration(link_points=(link(1.0),))).sources == {}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calibrations())
def test_nothing_contradicts_itself(any_calibration: Calibration) -> None:
    """And with itself it stays what it is."""
    own = sourced(any_calibration, FACTS)
    assert list(clashes(own, own)) == []
    assert combined(own, own) == merged(own, own) == own


@given(st.dates(), st.dates(), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_the_newer_wins_in_any_order(one: object, other: object, first: float, last: float) -> None:
    """Points and constants; of the same day the last."""
    before, after = sorted((str(one), str(other)))
    old, new = dated(before, first, 0.4), dated(after, last, 0.6)
    assert combined(old, new).link_points[0].seconds == last
    found = combined(new, old)
    newest = (last, 0.6) if before != after else (first, 0.4)
    assert (found.link_points[0].seconds, found.families["A100"].matmul_efficiency) == newest
    assert found.constants[0].value == newest[1]


@pytest.mark.parametrize(
    ("seconds", "spread", "told"),
    [(1.3, None, 0), (1.5, None, 1), (0.7, None, 1), (1.5, 0.1, 0), (2.1, 0.1, 1)],
)
def test_far_apart_is_by_the_spreads(seconds: float, spread: float | None, told: int) -> None:
    """At least 5 % each."""
    found = list(
        clashes(dated("2026-01-01", 1.0, spread=spread), dated("2026-01-01", seconds, spread=spread))
    )
    assert [clash.newer for clash in found] == ["unknown"] * told


@pytest.mark.parametrize("date", ["", "2 March 2026"])
def test_a_date_that_nobody_can_order(date: str) -> None:
    """Decides nothing."""
    (clash,) = clashes(dated("2026-01-01", 1.0), dated(date, 9.0))
    assert clash.newer == "unknown"


def test_constants_are_compared_too() -> None:
    """Those that have a provenance."""
    (clash,) = clashes(dated("2026-01-01", 1.0, 0.8), dated("2026-01-02", 1.0, 0.3))
    assert (clash.what, clash.newer) == ("families.A100.matmul_efficiency", "last")
    assert (clash.first, clash.last) == ("0.8 (2026-01-01)", "0.3 (2026-01-02)")
    bare = replace(dated("2026-01-02", 1.0, 0.3), constants=())
    assert list(clashes(dated("2026-01-01", 1.0, 0.8), bare)) == []
