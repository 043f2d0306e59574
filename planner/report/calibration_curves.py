"""A calibration file as a reader wants it: constants, and every curve as a small plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType

from planner.calibration import Calibration
from planner.report.layout import pairs, section
from planner.report.measured_device import error_table
from planner.report.numbers import MISSING, percent, significant
from planner.report.table import FittedTable, number, table, words

BARS = "▁▂▃▄▅▆▇█"
Curve = tuple[str, str, list[tuple[float, float]]]
"""Name, unit of its rate, and rates by abscissa."""


def calibration_sections(calibration: Calibration, path: Path) -> list[RenderableType]:
    """Where it is from, its constants, its curves, how well their points predict each other."""
    curves = [*_layers(calibration), *_links(calibration)]
    constants, errors = _constants(calibration), calibration.curve_errors
    told = [*calibration.provenance.items(), *([("notes", calibration.notes)] if calibration.notes else [])]
    return [
        section(f"Calibration {path}", pairs(told or [("provenance", "not said")])),
        section("Constants; all others are the shipped or the assumed ones", constants),
        *(
            [section("Curves, as rates from the smallest to the largest size", _plots(curves))]
            if curves
            else []
        ),
        *([section("Each point predicted from the others", error_table(errors))] if errors else []),
    ]


def plot(values: list[float]) -> str:
    """A bar for each value, the largest as high as it gets."""
    top = max(values)
    return "".join(BARS[max(0, round(value / top * len(BARS)) - 1)] for value in values)


def _constants(calibration: Calibration) -> FittedTable:
    rows = [
        (
            item.name,
            f"{item.value:.3g}",
            MISSING if item.spread is None else f"±{percent(item.spread)}",
            item.provenance,
        )
        for item in calibration.constants
    ]
    return table([words("constant", least=34), number("value"), number("spread"), words("from")], rows)


def _layers(calibration: Calibration) -> Iterator[Curve]:
    """Sequences a second through forward and backward of one layer."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in calibration.layers:
        rate = point.micro_batch / (point.forward_seconds + point.backward_seconds)
        found.setdefault(f"layers of {point.model} on {point.gpu}, tp {point.tp}", []).append(
            (point.micro_batch, rate)
        )
    yield from ((name, "seq/s", sorted(points)) for name, points in found.items())


def _links(calibration: Calibration) -> Iterator[Curve]:
    """Gigabytes of the whole tensor a second."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in calibration.link_points:
        name = f"{point.operation} of {point.members} over {point.link}"
        found.setdefault(name, []).append((point.size_bytes, point.size_bytes / point.seconds / 1e9))
    yield from ((name, "GB/s", sorted(points)) for name, points in found.items())


def _plots(curves: list[Curve]) -> FittedTable:
    rows = [
        (
            name,
            f"{points[0][0]:.3g} to {points[-1][0]:.3g}",
            plot([rate for _, rate in points]),
            f"{significant(max(rate for _, rate in points))} {unit}",
        )
        for name, unit, points in curves
    ]
    return table([words("curve", least=30), words("sizes"), words("rate"), number("best")], rows)
