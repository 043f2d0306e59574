"""``hetplan calibrate merge``: several calibration files as one."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from planner.calibration.file import load_calibration
from planner.calibration.merge import Clash, clashes, combined, sourced
from planner.calibration.values import Calibration
from planner.cli.calibrate import EXAMPLE, Force, Output, save_readable
from planner.cli.options import AsJson
from planner.cli.output import require_new, show, show_document, typed
from planner.cli.process import warn
from planner.errors import Problem, SpecError, UsageError
from planner.measure.fits import with_errors
from planner.measure.resume import run_facts
from planner.report.calibrated import calibrate_document, calibrated_section

Inputs = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Calibration files.")]


def merge_files(inputs: Inputs, output: Output, force: Force = False, as_json: AsJson = False) -> None:
    """Merge calibration files, for example one per node type.

    If two files measure the same thing, the newer value is used, with a warning if the two are far apart. Each
    point keeps its source. Contradicting values of the same age are an error.
    """
    if len(inputs) < 2:
        raise UsageError("calibrate merge: expected two calibration files at least")
    require_new(output, force, EXAMPLE)
    calibration = _merged(inputs, _read(inputs))
    save_readable(calibration, output)
    if as_json:
        show_document(calibrate_document(calibration, output, "calibrate merge"))
        return

    show(
        calibrated_section(calibration, output),
        then=typed("hetplan", "show", output, "--cluster", "CLUSTER", "--model", "MODEL"),
    )


def _read(paths: list[Path]) -> list[Calibration]:
    """All files; every problem of all is reported at once."""
    problems: list[Problem] = []
    calibrations = []
    for path in paths:
        try:
            calibrations.append(sourced(load_calibration(path, warn)))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(tuple(problems))
    return calibrations


def _merged(paths: list[Path], files: list[Calibration]) -> Calibration:
    """One calibration; raises UsageError for the first contradiction, warns of those that dates decide."""
    for (one, first), (other, last) in combinations(zip(paths, files, strict=True), 2):
        conflicts = [*clashes(first, last)]
        _refuse(one, other, [clash for clash in conflicts if clash.newer == "unknown"])
        _warn(one, other, [clash for clash in conflicts if clash.newer != "unknown"])
    facts = run_facts(" ".join(["hetplan", *sys.argv[1:]]))
    return replace(with_errors(reduce(combined, files)), provenance=facts)


def _refuse(one: Path, other: Path, conflicts: list[Clash]) -> None:
    if conflicts:
        clash = conflicts[0]
        raise UsageError(
            f"{one} and {other} contradict each other: {clash.what}: {clash.first} and {clash.last}{_more(conflicts)}",
            hint="measure again with --force where the wrong one is from, or leave its file out",
        )


def _warn(one: Path, other: Path, conflicts: list[Clash]) -> None:
    if conflicts:
        clash = conflicts[0]
        warn(
            f"{one} and {other} are far apart: {clash.what}: {clash.first} and {clash.last}{_more(conflicts)}; "
            "the newer is kept"
        )


def _more(conflicts: list[Clash]) -> str:
    return f", and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
