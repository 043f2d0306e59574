"""``hetplan explain``: why this plan, and why not another."""

from __future__ import annotations

from rich.console import RenderableType

from planner.calibration.values import Calibration
from planner.cli.inputs import read_plan
from planner.cli.options import AsJson, CalibrationFile, SavedPlan
from planner.cli.output import show, show_document, typed
from planner.cost.binding import Binding, binding
from planner.cost.estimate import Estimator
from planner.plan.file import PlanFile
from planner.report.document import explain_document
from planner.report.explain import (
    advice_section,
    alternatives_section,
    balance_section,
    binding_section,
    neighbours_section,
    ratios_section,
    time_section,
)
from planner.report.plan_table import plan_section, warnings_of
from planner.report.ranks import idle_section
from planner.report.understood import understood
from planner.search.explain.neighbours import Neighbour, neighbours
from planner.search.values import Scored


def explain(plan: SavedPlan, calibration: CalibrationFile = None, as_json: AsJson = False) -> None:
    """Explain why a plan looks the way it does.

    Prints time by cause, the devices and links that limit the plan, the plans that lost and why, and what each
    decision is worth.
    """
    constants, saved, scored = read_plan(plan, calibration)
    around = neighbours(saved.plan, saved.cluster, saved.model, constants)
    binds = binding(saved.plan, Estimator(saved.cluster, saved.model, constants))
    if as_json:
        show_document(explain_document(scored, saved, around, binds))
    else:
        show(
            *_report(saved, scored, constants, around, binds),
            then=typed("hetplan", "emit", plan, "-o", "run/"),
        )


def _report(
    saved: PlanFile,
    scored: Scored,
    calibration: Calibration,
    around: tuple[Neighbour, ...],
    binds: Binding,
) -> list[RenderableType | None]:
    return [
        understood(saved.cluster, saved.model, calibration),
        plan_section(scored, saved.cluster, saved.summary),
        time_section(scored.estimate),
        balance_section(scored.estimate),
        binding_section(binds),
        idle_section(saved.plan, saved.cluster),
        alternatives_section(saved.considered) if saved.considered else None,
        neighbours_section(around, scored) if around else None,
        advice_section(saved.summary.advice) if saved.summary and saved.summary.advice else None,
        ratios_section(saved.summary.ratios) if saved.summary and saved.summary.ratios else None,
        *warnings_of(scored.estimate),
    ]
