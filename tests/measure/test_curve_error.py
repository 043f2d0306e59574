"""Leaving points out one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import Calibration, CurveError, LayerPoint, LinkPoint
from planner.measure.fits import with_errors, without_lonely

LAYERS = tuple(
    LayerPoint(
        gpu="A100", model="gpt", tp=1, micro_batch=size, forward_seconds=1.0 + size, backward_seconds=2.0
    )
    for size in (1, 2, 4)
)
LINKS = tuple(
    LinkPoint(link="ib", operation="send", members=2, size_bytes=size, seconds=size * 1e-9)
    for size in (1e3, 1e5, 1e7)
)


def test_points_on_a_line_have_no_error() -> None:
    """Layers straight in the micro-batch, sends proportional to their size."""
    found = with_errors(Calibration(layers=LAYERS, link_points=LINKS)).curve_errors
    assert [(item.curve, item.points) for item in found] == [
        ("layers of gpt on A100, tp 1", 3),
        ("send of 2 over ib", 3),
    ]
    assert all(item.largest == pytest.approx(0, abs=1e-9) for item in found)


def test_a_point_off_the_line_has_one() -> None:
    """Twice the seconds in the middle: half of it is predicted."""
    points = (LINKS[0], replace(LINKS[1], seconds=2 * LINKS[1].seconds), LINKS[2])
    (error,) = with_errors(Calibration(link_points=points)).curve_errors
    assert error.largest >= 0.5
    assert error.mean < error.largest


def test_two_points_tell_nothing_and_old_errors_are_replaced() -> None:
    """Errors of other curves stay."""
    assert with_errors(Calibration(layers=LAYERS[:2])).curve_errors == ()
    old = (
        CurveError(curve="layers of gpt on A100, tp 1", points=9, mean=1.0, largest=1.0),
        CurveError(curve="else", points=9, mean=1.0, largest=1.0),
    )
    found = with_errors(Calibration(layers=LAYERS, curve_errors=old)).curve_errors
    assert [item.points for item in found] == [3, 9]


def test_a_single_size_is_no_curve() -> None:
    """An interrupted curve is dropped, others stay."""
    alone = replace(LINKS[0], link="roce")
    assert without_lonely(Calibration(link_points=(*LINKS, alone))).link_points == LINKS
