"""``hetplan show`` and ``hetplan explain``: a plan in full, and why it is so; or what a calibration file holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from rich.console import RenderableType

from planner.calibration.file import load_calibration, shipped
from planner.calibration.merge import sourced
from planner.calibration.values import Calibration
from planner.cli.inputs import check_same_inputs, read_given, read_plan, with_calibration
from planner.cli.options import AsJson, CalibrationFile, ClusterNow, ModelNow, SavedPlan, argument, option
from planner.cli.output import show, show_document, typed
from planner.cli.process import warn
from planner.cluster.spec import ClusterSpec
from planner.cost.binding import Binding, binding
from planner.cost.estimate import Estimator
from planner.errors import SpecError, UsageError
from planner.files.document import read_bytes
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile
from planner.report.calibration import calibration_document, calibration_sections, coverage, coverage_section
from planner.report.document import explain_document, plan_document
from planner.report.explain import (
    advice_section,
    alternatives_section,
    balance_section,
    binding_section,
    memory_section,
    neighbours_section,
    ratios_section,
    time_section,
)
from planner.report.inputs import understood
from planner.report.plan_table import plan_section, warnings_of
from planner.report.ranks import idle_section, ranks_section
from planner.search.explain.neighbours import Neighbour, neighbours
from planner.search.values import Scored


def show_plan(
    plan: Annotated[Path, argument("FILE", "Plan file written by search -o, or calibration file.")],
    calibration: CalibrationFile = None,
    cluster: Annotated[
        Path | None, option("--cluster", "FILE", "Show how much of this cluster the calibration covers.")
    ] = None,
    model: Annotated[
        Path | None, option("--model", "FILE", "Likewise for this model; needs --cluster.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a plan in full, or the contents of a calibration file.

    For a plan: stages, time, memory by component, and where each rank runs. For a calibration: constants and
    curves and, with --cluster, what is measured, assumed or missing for a cluster and a model.
    """
    if _is_calibration(plan):
        _show_calibration(plan, cluster, model, as_json)
        return
    if cluster is not None or model is not None:
        raise UsageError(
            f"--cluster and --model: expected a calibration file, {plan} is not one",
            hint="a plan file has its own cluster and model",
        )
    constants, saved, scored = read_plan(plan, calibration)
    if as_json:
        show_document(plan_document("show", scored, saved.cluster, saved.model, saved.summary))
    else:
        show(
            *_report(saved, scored, constants),
            then=with_calibration(typed("hetplan", "explain", plan), calibration),
        )


_FORMAT = re.compile(
    rb"""(?m)(?:^(?:\xef\xbb\xbf)?['"]?format['"]?|[{,]\s*"format")\s*:\s*['"]?hetplan-calibration/"""
)
"""The format of a calibration, in YAML or in JSON."""


def _is_calibration(path: Path) -> bool:
    """True for a file whose format is that of calibrations, whatever its version."""
    try:
        return _FORMAT.search(read_bytes(path)) is not None
    except SpecError:
        return False  # reading it as a plan says what is wrong


def _show_calibration(path: Path, cluster: Path | None, model: Path | None, as_json: bool) -> None:
    calibration = sourced(load_calibration(path, warn))
    known_cluster, known_model = _what_for(cluster, model)
    rows = coverage(calibration, shipped(), known_cluster, known_model) if known_cluster else None
    if as_json:
        show_document(calibration_document(calibration, path, rows))
        return
    show(
        *calibration_sections(calibration, path),
        coverage_section(rows, known_cluster, known_model) if rows and known_cluster else None,
        then=typed("hetplan", "search", cluster or "CLUSTER", model or "MODEL", "--calibration", path),
    )


def _what_for(cluster: Path | None, model: Path | None) -> tuple[ClusterSpec | None, ModelSpec | None]:
    """The files of --cluster and --model."""
    if cluster is None:
        if model is not None:
            raise UsageError("--model: expected --cluster FILE with it")
        return None, None
    return read_given(cluster, model)


def _report(saved: PlanFile, scored: Scored, calibration: Calibration) -> list[RenderableType]:
    return [
        understood(saved.cluster, saved.model, calibration),
        plan_section(scored, saved.cluster, saved.summary, few=saved.plan.pp, unit=saved.model.unit),
        time_section(scored.estimate),
        balance_section(scored.estimate, saved.model.unit),
        memory_section(scored.estimate),
        ranks_section(saved.plan, saved.cluster),
        idle_section(saved.plan, saved.cluster),
        warnings_of(scored.estimate),
    ]


def explain(
    plan: SavedPlan,
    cluster: ClusterNow = None,
    model: ModelNow = None,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a plan looks the way it does.

    Prints time by cause, the devices and links that limit the plan, the plans that lost and why, and what each
    decision is worth.
    """
    constants, saved, scored = read_plan(plan, calibration)
    check_same_inputs(plan, saved, cluster, model)
    around = neighbours(saved.plan, saved.cluster, saved.model, constants)
    binds = binding(saved.plan, Estimator(saved.cluster, saved.model, constants))
    if as_json:
        show_document(explain_document(scored, saved, around, binds))
    else:
        show(
            *_reasons(saved, scored, constants, around, binds),
            then=typed("hetplan", "emit", plan, "-o", "run/"),
        )


def _reasons(
    saved: PlanFile,
    scored: Scored,
    calibration: Calibration,
    around: tuple[Neighbour, ...],
    binds: Binding,
) -> list[RenderableType]:
    return [
        understood(saved.cluster, saved.model, calibration),
        plan_section(scored, saved.cluster, saved.summary, unit=saved.model.unit),
        time_section(scored.estimate),
        balance_section(scored.estimate, saved.model.unit),
        binding_section(binds),
        idle_section(saved.plan, saved.cluster),
        alternatives_section(saved.considered),
        neighbours_section(around, scored),
        advice_section(saved.summary.advice if saved.summary else ()),
        ratios_section(saved.summary.ratios if saved.summary else ()),
        warnings_of(scored.estimate),
    ]
