"""What the page is made of: predictions of both halves of the published runs; and how its numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill

from planner.calibration.file import shipped
from planner.calibration.values import Calibration
from planner.measured.predictions import Prediction, Truth, predict, truth
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Table, fitted_half
from planner.report.numbers import MISSING, percent

ROOT = Path(__file__).parents[2]
DIGITS = 2
"""Significant digits of a share: more would differ between machines."""
WIDTH = 110
"""Characters of a line of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The published runs, and what the shipped constants say of them."""

    table: Table
    calibration: Calibration
    fitted: tuple[Prediction, ...]
    """The half that the constants were fitted to."""
    held_out: tuple[Prediction, ...]
    fitted_truth: Truth
    held_out_truth: Truth

    def of(self, source: str) -> list[Prediction]:
        """Held-out predictions of a source."""
        return [entry for entry in self.held_out if entry.run.source == source]


@cache
def material() -> Material:
    """Everything, computed once."""
    table, calibration = load_table(PUBLISHED), shipped()
    fitted, held_out = (predict(half, calibration) for half in fitted_half(table.runs))
    return Material(
        table=table,
        calibration=calibration,
        fitted=fitted,
        held_out=held_out,
        fitted_truth=truth(fitted),
        held_out_truth=truth(held_out),
    )


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
