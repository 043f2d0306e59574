"""``hetplan calibrate``: measured constants and curves in place of assumed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from planner.calibration.file import save_calibration, too_large
from planner.calibration.tables import import_layers_csv, import_links_csv
from planner.calibration.values import Calibration
from planner.cli.options import AsJson
from planner.cli.output import require_new, show, show_document, typed
from planner.cli.process import warn
from planner.errors import Problem, SpecError, UsageError
from planner.report.calibrated import calibrate_document, calibrated_section

T = TypeVar("T")

EXAMPLE = "calibration.yaml"
"""Name of an output, for hints."""

LayerTable = Annotated[
    Path | None, typer.Option("--layers", metavar="FILE", help="Measured transformer layers (CSV).")
]
LinkTable = Annotated[
    Path | None, typer.Option("--links", metavar="FILE", help="Measured collectives and sends (CSV).")
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Calibration file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")]


def import_tables(
    output: Output,
    layers: LayerTable = None,
    links: LinkTable = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Convert tables of measurements into a calibration file.

    Measured layers anchor the formulas of the cost model; measured collectives replace them.
    """
    if layers is None and links is None:
        raise UsageError("calibrate import: expected --layers FILE, --links FILE, or both")
    require_new(output, force, EXAMPLE)
    imported = _imported(layers, links)
    save_readable(imported, output)
    _tell(imported, output, as_json)


def save_readable(calibration: Calibration, output: Path) -> None:
    """Write the calibration file, and warn when it is larger than what other commands read."""
    save_calibration(calibration, output)
    problem = too_large(calibration, output)
    if problem is not None:
        warn(f"{output}: {problem}: leave out what you do not plan with")


def _imported(layers: Path | None, links: Path | None) -> Calibration:
    """Both tables; every problem of both is reported at once."""
    problems: list[Problem] = []
    layer_points = _table(import_layers_csv, layers, problems)
    link_points = _table(import_links_csv, links, problems)
    if problems:
        raise SpecError(tuple(problems))
    tables = {key: str(path) for key, path in (("layers", layers), ("links", links)) if path}
    return Calibration(
        layers=layer_points,
        link_points=link_points,
        provenance={"command": "hetplan calibrate import", **tables},
    )


def _table(
    read: Callable[[Path], tuple[T, ...]], path: Path | None, problems: list[Problem]
) -> tuple[T, ...]:
    """The points of a table; what is wrong with it joins the problems."""
    try:
        return () if path is None else read(path)
    except SpecError as error:
        problems += error.problems
        return ()


def _tell(calibration: Calibration, output: Path, as_json: bool) -> None:
    """What was written, a line for each curve."""
    if as_json:
        show_document(calibrate_document(calibration, output))
        return

    show(
        calibrated_section(calibration, output),
        then=typed("hetplan", "search", "CLUSTER", "MODEL", "--calibration", output),
    )
