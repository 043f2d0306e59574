"""``hetplan show``: a plan in full."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.inputs import read_calibration, with_calibration
from planner.cli.options import AsJson, CalibrationFile, SavedPlan
from planner.cli.output import show, show_document
from planner.cli.saved import proof_in, read_priced, warn_of_other_calibration
from planner.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.calibration import Calibration
    from planner.plan_file import PlanFile
    from planner.search.values import Scored


def show_plan(plan: SavedPlan, calibration: CalibrationFile = None, as_json: AsJson = False) -> None:
    """Show a plan in full, or a calibration file.

    Prints a plan's stages, time, memory by component, and which ranks run where; a calibration's constants and
    curves.
    """
    if _is_calibration(plan):
        _show_calibration(plan, as_json)
        return
    constants = read_calibration(calibration)
    saved, scored = read_priced(plan, constants)
    warn_of_other_calibration(plan, saved, calibration)
    if as_json:
        from planner.report.document import plan_document

        show_document(plan_document("show", scored, saved.cluster, saved.model, proof_in(saved)))
    else:
        show(
            *_report(saved, scored, constants), then=with_calibration(f"hetplan explain {plan}", calibration)
        )


def _is_calibration(path: Path) -> bool:
    """True for a file whose format is that of calibrations, whatever its version."""
    try:
        with path.open("rb") as file:
            return re.search(rb"(?m)^format:\s*['\"]?hetplan-calibration/", file.read(4096)) is not None
    except (OSError, ValueError):
        return False  # reading it as a plan says what is wrong


def _show_calibration(path: Path, as_json: bool) -> None:
    from planner.calibration_file import load_calibration
    from planner.report.calibration_curves import calibration_sections

    if as_json:
        raise UsageError(
            f"show --json: expected a plan file, {path} is a calibration", hint="leave out --json"
        )
    show(
        *calibration_sections(load_calibration(path), path),
        then=f"hetplan search CLUSTER MODEL --calibration {path}",
    )


def _report(saved: PlanFile, scored: Scored, calibration: Calibration) -> list[RenderableType | None]:
    from planner.report.explain import balance_section, time_section
    from planner.report.memory import memory_section
    from planner.report.plan_table import plan_section
    from planner.report.ranks import idle_section, ranks_section
    from planner.report.understood import understood
    from planner.report.verdict import warnings_of

    return [
        understood(saved.cluster, saved.model, calibration),
        plan_section(scored, saved.cluster, proof_in(saved), few=saved.plan.pp),
        time_section(scored.estimate),
        balance_section(scored.estimate),
        memory_section(scored.estimate),
        ranks_section(saved.plan, saved.cluster),
        idle_section(saved.plan, saved.cluster),
        *warnings_of(scored.estimate),
    ]
