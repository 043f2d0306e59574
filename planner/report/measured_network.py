"""What a calibration of networks found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from rich.console import RenderableType

from planner.calibration.values import Calibration, CurveError, LinkPoint
from planner.measure.curve_error import link_errors
from planner.measure.fit_link import LinkFit, fit_links
from planner.report.document import Head
from planner.report.layout import section, warnings_section
from planner.report.measured_device import busy, error_table
from planner.report.numbers import MISSING, count, percent, significant
from planner.report.table import FittedTable, number, table, words


def network_sections(
    points: tuple[LinkPoint, ...], new: int, calibration: Calibration, path: Path
) -> list[RenderableType]:
    """A line through each curve, and how well its points predict each other; ``new`` of them are of this run."""
    errors = _own_errors(points, calibration)
    parts: list[RenderableType] = [section(_title(len(points), new, path), _fits(points))]
    return [
        *parts,
        *([section("Each size predicted from the others", error_table(errors))] if errors else []),
        *([warnings_section(notes)] if (notes := [*_busy(points)]) else []),
    ]


def _busy(points: tuple[LinkPoint, ...]) -> Iterator[str]:
    """Sizes whose repeats differ too much."""
    return busy(
        (f"{point.operation} of {point.members} over {point.link}, {point.size_bytes:g} bytes", point.spread)
        for point in points
        if point.spread is not None
    )


def _title(points: int, new: int, path: Path) -> str:
    old = f", {points - new} were there" if new < points else ""
    return f"Measured {count(new, 'point')} of links{old}, wrote {path}" if new else f"{path} has all points"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDocument(Head):
    """The answer of ``calibrate network``."""

    file: str
    """Calibration file that was written."""
    link_points: int
    """Points of these links and numbers of devices in the file."""
    new_link_points: int
    """Those that this run measured or read."""
    fits: tuple[LinkFit, ...]
    """A line through each curve."""
    curve_errors: tuple[CurveError, ...]
    """How well the points predict each other."""
    warnings: tuple[str, ...]
    """What to know before trusting the points."""


def network_document(
    points: tuple[LinkPoint, ...], new: int, calibration: Calibration, path: Path
) -> NetworkDocument:
    """The same for ``--json``."""
    return NetworkDocument(
        command="calibrate network",
        file=str(path),
        link_points=len(points),
        new_link_points=new,
        fits=tuple(fit_links(points)),
        curve_errors=_own_errors(points, calibration),
        warnings=tuple(_busy(points)),
    )


def _own_errors(points: tuple[LinkPoint, ...], calibration: Calibration) -> tuple[CurveError, ...]:
    """Errors of the curves that the points belong to, other points of theirs included."""
    own = {error.curve for error in link_errors(points)}
    return tuple(error for error in calibration.curve_errors if error.curve in own)


def _fits(points: tuple[LinkPoint, ...]) -> FittedTable:
    columns = [words("link"), words("operation"), number("devices"), number("latency\n(µs)")]
    columns += [number("rate\n(GB/s)"), number("mean error\nof the line")]
    rows = [
        (
            fit.link,
            fit.operation,
            str(fit.members),
            significant(fit.latency_seconds * 1e6),
            significant(fit.bytes_per_second / 1e9) if isfinite(fit.bytes_per_second) else MISSING,
            percent(fit.error),
        )
        for fit in fit_links(points)
    ]
    return table(columns, rows)
