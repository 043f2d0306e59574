"""``hetplan calibrate import`` and ``hetplan calibrate merge``; and what all that measure have in common."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Annotated

from planner.calibration.file import load_calibration, save_calibration, too_large
from planner.calibration.merge import Clash, clashes, combined, sourced
from planner.calibration.tables import import_layers_csv, import_links_csv
from planner.calibration.values import ASSUMED, Calibration, LayerPoint, LinkPoint
from planner.cli.inputs import with_calibration
from planner.cli.options import AsJson, Force, argument, option
from planner.cli.output import require_new, show, show_document, typed
from planner.cli.process import as_typed, warn
from planner.errors import Problem, SpecError, UsageError, collecting
from planner.escaping import visible
from planner.measure.fits import with_errors
from planner.measure.resume import run_facts
from planner.ranges import TIME_LIMIT
from planner.report.calibrated import calibrate_document, calibrated_section

EXAMPLE = "calibration.yaml"
"""Name of an output, for hints."""

Output = Annotated[Path, option("--output -o", "FILE", "Calibration file to write.")]


Minutes = Annotated[float | None, option("--minutes", "M", "Stop after this many minutes.")]


def budget_seconds(minutes: float | None) -> float:
    """The time budget, infinite without one; raises UsageError for one that is not above 0."""
    if minutes is not None and not 0 < minutes <= TIME_LIMIT.most:
        most = f"{TIME_LIMIT.most:.0f}"
        raise UsageError(f"--minutes: expected a number above 0 and at most {most}, got {minutes:g}")
    return float("inf") if minutes is None else 60 * minutes


def require_torch() -> None:
    """Raise UsageError where torch is not installed."""
    if find_spec("torch") is None:
        raise UsageError("torch is not installed", hint="pip install 'hetplan[torch]'")


def before(output: Path, force: bool) -> Calibration:
    """What the output holds already, each point with its source."""
    return ASSUMED if force or not output.is_file() else sourced(load_calibration(output, warn))


def import_tables(
    output: Output,
    layers: Annotated[Path | None, option("--layers", "FILE", "Measured transformer layers (CSV).")] = None,
    links: Annotated[Path | None, option("--links", "FILE", "Measured collectives and sends (CSV).")] = None,
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
    if as_json:
        show_document(calibrate_document(imported, output))
    else:
        show(
            calibrated_section(imported, output),
            then=with_calibration("hetplan search CLUSTER MODEL", output),
        )


def save_readable(calibration: Calibration, output: Path) -> None:
    """Write the calibration file, and warn when it is larger than what other commands read."""
    save_calibration(calibration, output)
    problem = too_large(calibration, output)
    if problem is not None:
        warn(f"{output}: {problem}: leave out what you do not plan with")


def _imported(layers: Path | None, links: Path | None) -> Calibration:
    """Both tables; every problem of both is reported at once."""
    problems: list[Problem] = []
    layer_points: tuple[LayerPoint, ...] = ()
    link_points: tuple[LinkPoint, ...] = ()
    with collecting(problems):
        layer_points = import_layers_csv(layers) if layers else ()
    with collecting(problems):
        link_points = import_links_csv(links) if links else ()
    if problems:
        raise SpecError(tuple(problems))
    tables = {key: visible(str(path)) for key, path in (("layers", layers), ("links", links)) if path}
    return Calibration(
        layers=layer_points,
        link_points=link_points,
        provenance={"command": "hetplan calibrate import", **tables},
    )


def merge_files(
    inputs: Annotated[list[Path], argument("FILE...", "Calibration files.")],
    output: Output,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
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
    else:
        then = typed("hetplan", "show", output, "--cluster", "CLUSTER", "--model", "MODEL")
        show(calibrated_section(calibration, output), then=then)


def _read(paths: list[Path]) -> list[Calibration]:
    """All files; every problem of all is reported at once."""
    problems: list[Problem] = []
    calibrations = []
    for path in paths:
        with collecting(problems):
            calibrations.append(sourced(load_calibration(path, warn)))
    if problems:
        raise SpecError(tuple(problems))
    return calibrations


def _merged(paths: list[Path], files: list[Calibration]) -> Calibration:
    """One calibration; raises UsageError for the first contradiction, warns of those that dates decide."""
    for (one, first), (other, last) in combinations(zip(paths, files, strict=True), 2):
        conflicts = [*clashes(first, last)]
        undecided = [clash for clash in conflicts if clash.newer == "unknown"]
        if undecided:
            raise UsageError(
                f"{one} and {other} contradict each other: {clashes_told(undecided)}",
                hint="measure again with --force where the wrong one is from, or leave its file out",
            )
        if conflicts:
            warn(f"{one} and {other} are far apart: {clashes_told(conflicts)}; the newer is kept")
    facts = run_facts(as_typed())
    return replace(with_errors(reduce(combined, files)), provenance=facts)


def clashes_told(conflicts: list[Clash]) -> str:
    """The first one, and how many more there are."""
    clash, *others = conflicts
    more = f", and {len(others)} more" if others else ""
    return f"{clash.what}: {clash.first} and {clash.last}{more}"
