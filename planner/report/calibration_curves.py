"""A calibration file as a reader wants it: constants, and every curve as a small plot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from planner.calibration.values import Calibration, Constant, CurveError
from planner.report.calibration_coverage import Covered
from planner.report.document import Head
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
    sources = [(key, _facts(facts)) for key, facts in calibration.sources.items()]
    return [
        section(f"Calibration {path}", pairs(told or [("provenance", "not said")])),
        *([section("Sources", pairs(sources))] if len(sources) > 1 else []),
        *(
            [section("Constants; all others are the shipped or the assumed ones", constants)]
            if calibration.constants
            else []
        ),
        *(
            [section("Curves, as rates from the smallest to the largest size", _plots(curves))]
            if curves
            else []
        ),
        *([section("Each point predicted from the others", error_table(errors))] if errors else []),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """One point of a curve."""

    size: float
    """Micro-batch, or bytes of the tensor."""
    rate: float
    """Rate at it, in rate_unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCurve:
    """A measured curve as rates."""

    curve: str
    """Measured layers or collectives, in words."""
    rate_unit: str
    """seq/s of sequences through one layer, GB/s of the whole tensor."""
    points: tuple[RatePoint, ...]
    """Smallest size first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationDocument(Head):
    """The answer of ``show`` for a calibration."""

    file: str
    """The calibration file."""
    provenance: dict[str, str]
    """What the last measurements were made with, free text by name."""
    sources: dict[str, dict[str, str]]
    """The same for each source that points and constants name."""
    constants: tuple[Constant, ...]
    """Constants of the file."""
    curves: tuple[RateCurve, ...]
    """Measured curves."""
    curve_errors: tuple[CurveError, ...]
    """How well the points predict each other."""
    coverage: tuple[Covered, ...] | None
    """What plans are priced with; null without --cluster."""


def calibration_document(
    calibration: Calibration, path: Path, rows: tuple[Covered, ...] | None = None
) -> CalibrationDocument:
    """The same for ``--json``."""
    curves = tuple(
        RateCurve(
            curve=name,
            rate_unit=unit,
            points=tuple(RatePoint(size=size, rate=rate) for size, rate in points),
        )
        for name, unit, points in (*_layers(calibration), *_links(calibration))
    )
    return CalibrationDocument(
        command="show calibration",
        file=str(path),
        provenance=calibration.provenance,
        sources=calibration.sources,
        constants=calibration.constants,
        curves=curves,
        curve_errors=calibration.curve_errors,
        coverage=rows,
    )


def _facts(facts: dict[str, str]) -> str:
    """One source in a line: what it was measured on, with, and when."""
    first = [facts[key] for key in ("device", "date") if key in facts]
    rest = [f"{key} {value}" for key, value in facts.items() if key not in ("device", "date", "command")]
    return ", ".join([*first, *rest, *([facts["command"]] if "command" in facts else [])])


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
