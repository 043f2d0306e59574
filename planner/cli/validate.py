"""``hetplan validate``: how true the cost model is, on measured runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress as Bar

from planner.cli.inputs import read_calibration
from planner.cli.options import AsJson, CalibrationFile
from planner.cli.output import require_writable, show, show_document
from planner.cli.process import colours
from planner.errors import UsageError
from planner.measured.predictions import Progress, predict, truth
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Run, Table, fitted_half
from planner.ranges import COUNT
from planner.report.layout import PlainConsole
from planner.report.validation import (
    Validation,
    require_matplotlib,
    shows_groups,
    validation_document,
    validation_sections,
    write_plot,
)

HALVES = ("fitted", "held-out")

MeasuredFile = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="Table of measured runs (CSV). Default: the published runs that ship with hetplan.",
    ),
]
Sources = Annotated[
    list[str] | None, typer.Option("--source", metavar="NAME", help="Only runs from this source; repeatable.")
]
Half = Annotated[
    str | None,
    typer.Option(
        "--half",
        metavar="NAME",
        help="Only one half of the train/test split by model: fitted (train) or held-out (test).",
    ),
]
Groups = Annotated[
    bool, typer.Option("--groups", help="Show every group of runs that differ only in their plan.")
]
Worst = Annotated[
    int,
    typer.Option(
        "--worst",
        metavar="N",
        min=0,
        max=int(COUNT.most),
        help="Number of worst-predicted runs to show.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png", help="Plot predicted against measured step times."),
]


def validate(
    measured: MeasuredFile = None,
    calibration: CalibrationFile = None,
    source: Sources = None,
    half: Half = None,
    groups: Groups = False,
    worst: Worst = 5,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Predict measured runs and report how accurate the cost model is.

    Prints the errors in step time and memory by source, how well the predictions rank plans, the regret of
    following them, the worst-predicted runs, and the rows that could not be predicted.
    """
    _check(half, plot)
    validation = _validation(_read(measured, source, half), calibration, measured, half)
    if plot is not None:
        write_plot(validation.predictions, plot)
    if as_json:
        show_document(validation_document(validation, worst))
        return

    show(*validation_sections(validation, worst, groups), then=_next(validation, groups))


def _check(half: str | None, plot: Path | None) -> None:
    """Refuse before the work what could not be answered after it."""
    if half is not None and half not in HALVES:
        raise UsageError(f"--half: expected {' or '.join(HALVES)}, got {half!r}")
    if plot is None:
        return
    if plot.suffix.lower() != ".png":
        raise UsageError(f"--plot: expected a file that ends in .png, got {str(plot)!r}")
    require_writable(plot, "errors.png")

    require_matplotlib()


def _read(path: Path | None, sources: list[str] | None, half: str | None) -> Table:
    """The rows that were asked for."""
    table = load_table(path or PUBLISHED)
    if sources:
        _require_known(sources, table)
        table = Table(
            runs=tuple(run for run in table.runs if run.source in sources),
            skipped=tuple(row for row in table.skipped if row.source in sources),
        )
    return Table(runs=_half(table.runs, half), skipped=table.skipped)


def asked_runs(path: Path | None, sources: list[str] | None, half: str | None) -> tuple[Run, ...]:
    """The measured runs that the options ask for."""
    if half is not None and half not in HALVES:
        raise UsageError(f"--half: expected {' or '.join(HALVES)}, got {half!r}")
    return _read(path, sources, half).runs


def _require_known(sources: list[str], table: Table) -> None:
    known = {run.source for run in table.runs} | {row.source for row in table.skipped}
    unknown = [source for source in sources if source not in known]
    if unknown:
        raise UsageError(
            f"--source: the measured runs have no source {unknown[0]!r}",
            hint=f"they have {', '.join(sorted(known)) or 'none'}",
        )


def _half(runs: tuple[Run, ...], half: str | None) -> tuple[Run, ...]:
    return runs if half is None else fitted_half(runs)[HALVES.index(half)]


def _validation(
    table: Table, calibration: Path | None, measured: Path | None, half: str | None
) -> Validation:
    constants = read_calibration(calibration)
    with _progress() as progress:
        predictions = predict(table.runs, constants, progress)
    return Validation(
        measured="published runs" if measured is None else str(measured),
        calibration="shipped calibration"
        if calibration is None
        else f"{calibration}, then the shipped calibration",
        half=half,
        predictions=predictions,
        skipped=table.skipped,
        truth=truth(predictions),
    )


def _next(validation: Validation, groups: bool) -> str | None:
    """How to see the groups of the source whose plans are chosen worst, when they are not shown."""
    if groups or shows_groups(validation.truth):
        return None
    far = max(
        validation.truth.sources, key=lambda entry: -1.0 if entry.worst_regret is None else entry.worst_regret
    )
    return f"the same with --source {far.source} for its groups"


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on a terminal, else silence."""
    if not sys.stderr.isatty():
        yield None
        return

    with Bar(console=PlainConsole(stderr=True, color_system=colours()), transient=True) as bar:
        task = bar.add_task("predicting", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
