"""What the page is made of: predictions of the published runs, each source left out; and how numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from textwrap import fill

from planner.calibration.file import shipped
from planner.calibration.values import Calibration, LayerPoint
from planner.measured.fit import Fit, fit
from planner.measured.peaks import fit_memory, profiles
from planner.measured.predictions import Prediction, Truth, predict, truth
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Table
from planner.report.numbers import MISSING, percent

ROOT = Path(__file__).parents[2]
DIGITS = 2
"""Significant digits of a share: more would differ between machines."""
WIDTH = 110
"""Characters of a line of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The published runs, and what constants fitted with and without a run's own source say of it."""

    table: Table
    calibration: Calibration
    """As it ships: fitted to all runs."""
    fit: Fit
    fitted: tuple[Prediction, ...]
    """Of every run with the shipped constants."""
    left_out: tuple[Prediction, ...]
    """Of every run with constants fitted to all other sources."""
    beside_profile: tuple[Prediction, ...]
    """The same of runs whose layers have a published profile, beside it: as after ``hetplan calibrate device``."""
    fitted_truth: Truth
    left_out_truth: Truth

    def of(self, source: str, *, beside_profile: bool = False) -> list[Prediction]:
        """Predictions of a source that was left out."""
        found = self.beside_profile if beside_profile else self.left_out
        return [entry for entry in found if entry.run.source == source]


@cache
def material() -> Material:
    """Everything, computed once."""
    table, calibration = load_table(PUBLISHED), shipped()
    found = fit(table.runs)
    fitted = predict(table.runs, calibration)
    left_out = [
        entry
        for source in sorted({run.source for run in table.runs})
        for entry in _left_out(source, table, found)
    ]
    named = {point.model for point in profiles()}
    profiled = sorted({run.source for run in table.runs if run.model.name in named})
    return Material(
        table=table,
        calibration=calibration,
        fit=found,
        fitted=fitted,
        left_out=tuple(left_out),
        beside_profile=tuple(
            entry for source in profiled for entry in _left_out(source, table, found, profiles())
        ),
        fitted_truth=truth(fitted),
        left_out_truth=truth(left_out),
    )


def _left_out(
    source: str, table: Table, found: Fit, layers: tuple[LayerPoint, ...] = ()
) -> Iterator[Prediction]:
    """Predictions of a source's runs by what all others say, of memory too where it has measured peaks.

    ``layers`` are measured ones, to which those of their model are anchored.
    """
    own = [run for run in table.runs if run.source == source]
    constants = found.foreign(lambda run: run.source == source)
    if any(run.peak_memory_bytes or not run.fits for run in own):
        constants = fit_memory([run for run in table.runs if run.source != source], constants)
    yield from predict(own, replace(constants, layers=layers))


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns whose heading ends in a blank are texts, the others numbers."""
    rules = [":---" if heading.endswith(" ") else "---:" for heading in headings]
    lines = [[heading.strip() for heading in headings], rules, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def share(value: float | None) -> str:
    """A share in percent."""
    return MISSING if value is None else percent(value, DIGITS)


def signed(value: float) -> str:
    """A share in percent with its sign."""
    return f"{'+' if value >= 0 else '-'}{percent(abs(value), DIGITS)}".replace("+< ", "< ").replace(
        "-< ", "> -"
    )


def correlation(value: float | None) -> str:
    """A rank correlation."""
    return MISSING if value is None else f"{value:.2f}"


def paragraph(*sentences: str) -> str:
    """Sentences as one paragraph."""
    return _wrapped(" ".join(sentences))


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return "".join(_wrapped(f"- {item}", "  ") for item in items)


def _wrapped(text: str, indent: str = "") -> str:
    """Lines as long as in the other pages."""
    lines = fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return f"{lines}\n"
