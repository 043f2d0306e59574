"""``hetplan calibrate fit``: constants of the cost model from measured runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.calibration.file import save_calibration, shipped
from planner.calibration.values import Calibration
from planner.cli.calibrate import EXAMPLE
from planner.cli.options import AsJson, Force
from planner.cli.output import require_new, show, show_document, typed
from planner.cli.process import colours, warn
from planner.cli.validate import Half, MeasuredFile, Sources, asked_runs
from planner.measured.fit import Fit, Progress, fit
from planner.measured.peaks import fit_memory, memory_spread
from planner.report.calibrated import fitted_document, fitted_sections
from planner.report.layout import PlainConsole

MaybeOutput = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Calibration file to write.")
]


def fit_constants(
    measured: MeasuredFile = None,
    source: Sources = None,
    half: Half = None,
    output: MaybeOutput = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit the constants of the cost model to measured runs.

    Prints each constant with its spread, and the errors of the fitted runs with and without their own
    source in the fit. Fits to your own runs start from the built-in constants; fits to the published runs start
    from microbenchmarks.
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
        then = typed("hetplan", "validate", "--calibration", output)
    show(*fitted_sections(fitted, calibration, output), then=then)


def _fitted(measured: Path | None, source: list[str] | None, half: str | None) -> tuple[Fit, Calibration]:
    runs = asked_runs(measured, source, half)
    with _progress() as progress:
        fitted = fit(runs, shipped() if measured else None, progress)
    words = ["hetplan calibrate fit", *([f"--measured {measured}"] if measured else [])]
    words += [f"--source {name}" for name in source or ()] + ([f"--half {half}"] if half else [])
    told = {"command": " ".join(words), "runs": str(len(fitted.runs))}
    spread = memory_spread(runs, fitted.calibration)
    constants = fit_memory(runs, replace(fitted.calibration, memory_spread=spread))
    return fitted, replace(constants, provenance=told)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Rounds and error so far on stderr while it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    with PlainConsole(stderr=True, color_system=colours()).status("fitting") as status:
        yield lambda rounds, error: status.update(f"fitting: round {rounds}, mean error {error:.1%}")
