"""``hetplan validate`` and ``hetplan calibrate fit``: the cost model against measured runs, and fitted to them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.progress import Progress as Bar

from planner.calibration.file import save_calibration, shipped
from planner.calibration.values import Calibration
from planner.cli.calibrate import EXAMPLE
from planner.cli.inputs import read_calibration
from planner.cli.options import AsJson, CalibrationFile, Force, flag, option
from planner.cli.output import require_new, require_writable, show, show_document, typed
from planner.cli.process import colours, warn
from planner.errors import UsageError
from planner.measured.fit import Fit, fit
from planner.measured.fit import Progress as Rounds
from planner.measured.peaks import far_peaks, fit_memory, memory_spread, require_possible_peaks
from planner.measured.predictions import Progress, predict, truth
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Run, Table, fitted_half
from planner.ranges import COUNT, Range
from planner.report.calibrated import fitted_document, fitted_sections
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
    option(
        "--measured",
        "FILE",
        "Table of measured runs (CSV). Default: the published runs that ship with hetplan.",
    ),
]
Sources = Annotated[list[str] | None, option("--source", "NAME", "Only runs from this source; repeatable.")]
Half = Annotated[
    str | None,
    option(
        "--half", "NAME", "Only one half of the train/test split by model: fitted (train) or held-out (test)."
    ),
]


def validate(
    measured: MeasuredFile = None,
    calibration: CalibrationFile = None,
    source: Sources = None,
    half: Half = None,
    groups: Annotated[
        bool, flag("--groups", "Show every group of runs that differ only in their plan.")
    ] = False,
    worst: Annotated[
        int, option("--worst", "N", "Number of worst-predicted runs to show.", allowed=Range(0, COUNT.most))
    ] = 5,
    plot: Annotated[
        Path | None, option("--plot", "FILE.png", "Plot predicted against measured step times.")
    ] = None,
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
    _check_half(half)
    if plot is None:
        return
    if plot.suffix.lower() != ".png":
        raise UsageError(f"--plot: expected a file that ends in .png, got {str(plot)!r}")
    require_writable(plot, "errors.png")

    require_matplotlib()


def _check_half(half: str | None) -> None:
    if half is not None and half not in HALVES:
        raise UsageError(f"--half: expected {' or '.join(HALVES)}, got {half!r}")


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


def fit_constants(
    measured: MeasuredFile = None,
    source: Sources = None,
    half: Half = None,
    output: Annotated[Path | None, option("--output -o", "FILE", "Calibration file to write.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit the constants of the cost model to measured runs.

    Prints each constant with its spread, and the errors of the fitted runs with and without their own
    source in the fit. Fits to your own runs start from the built-in constants, and only those that the runs change are
    printed; fits to the published runs start from microbenchmarks.
    """
    if output is not None:
        require_new(output, force, EXAMPLE)
    fitted, calibration = _fitted(measured, source, half)
    if output is not None:
        save_calibration(calibration, output)
    for line in fitted.warnings:
        warn(line)

    if as_json:
        show_document(fitted_document(fitted, calibration, output))
        return
    then = "add -o calibration.yaml to keep them"
    if output:
        own = ("--measured", measured) if measured else ()
        then = typed("hetplan", "validate", *own, "--calibration", output)
    show(*fitted_sections(fitted, calibration, output, shipped() if measured else None), then=then)


def _fitted(measured: Path | None, source: list[str] | None, half: str | None) -> tuple[Fit, Calibration]:
    _check_half(half)
    runs = _read(measured, source, half).runs
    if measured:
        require_possible_peaks(runs, shipped())
    with _rounds() as progress:
        fitted = fit(runs, shipped() if measured else None, progress)
    words = ["hetplan calibrate fit", *([f"--measured {measured}"] if measured else [])]
    words += [f"--source {name}" for name in source or ()] + ([f"--half {half}"] if half else [])
    told = {"command": " ".join(words), "runs": str(len(fitted.runs))}
    spread = memory_spread(runs, fitted.calibration)
    constants = fit_memory(runs, replace(fitted.calibration, memory_spread=spread))
    warnings = (*fitted.warnings, *far_peaks(runs, constants, fitted.calibration.memory_spread))
    return replace(fitted, warnings=warnings), replace(constants, provenance=told)


@contextmanager
def _rounds() -> Iterator[Rounds | None]:
    """Rounds and error so far on stderr while it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    with PlainConsole(stderr=True, color_system=colours()).status("fitting") as status:
        yield lambda rounds, error: status.update(f"fitting: round {rounds}, mean error {error:.1%}")
