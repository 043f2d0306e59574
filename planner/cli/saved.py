"""Plan files, priced anew by this version, and the proof they carry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.inputs import concerning, used_calibration
from planner.cli.output import warn

if TYPE_CHECKING:
    from planner.calibration.values import Calibration
    from planner.plan.file import PlanFile, Summary
    from planner.report.alternatives import Considered
    from planner.report.proof import Proof
    from planner.search.values import Scored, SearchResult

CHOSEN = "chosen"
"""Reason of the family that the plan belongs to, in the plan file."""


def read_priced(path: Path, calibration: Calibration) -> tuple[PlanFile, Scored]:
    """A plan file and its plan with its estimate."""
    from planner.cost.estimate import estimate
    from planner.plan.file import read
    from planner.search.values import Scored

    saved = read(path)
    with concerning(path):
        found = estimate(saved.plan, saved.cluster, saved.model, calibration)
    return saved, Scored(plan=saved.plan, estimate=found)


def check_same_inputs(path: Path, saved: PlanFile, cluster: Path | None, model: Path | None) -> None:
    """Raise PlanError when a plan was made for another cluster or model than the files given, naming what differs."""
    from planner.cluster.file import load_cluster
    from planner.errors import PlanError
    from planner.model.file import load_model
    from planner.plan.difference import cluster_differences, model_differences, told

    parts = []
    if cluster is not None:
        parts.append(("cluster", cluster, cluster_differences(saved.cluster, load_cluster(cluster))))
    if model is not None:
        parts.append(("model", model, model_differences(saved.model, load_model(model))))
    lines = [
        f"{path}: made for another {part} than {file}: {told(found, str(file))}"
        for part, file, found in parts
        if found
    ]
    if lines:
        raise PlanError(
            *lines,
            hint="search again with these files; settings given to search by options belong into the model file",
        )


def warn_of_other_calibration(path: Path, saved: PlanFile, calibration: Path | None) -> None:
    """Say on stderr when a plan was found with a calibration file and is priced without it."""
    found = saved.calibration
    if found is None:
        return
    now = used_calibration(calibration)
    if now is not None and now.digest == found.digest:
        return
    without = f"without it: add --calibration {found.name}"
    instead = f"with another {now.name} ({now.digest})" if now else without
    warn(f"{path}: found with the calibration {found.name} ({found.digest}), priced here {instead}")


def proof_in(saved: PlanFile) -> Proof | None:
    """What the search that wrote the file had proven; None for a plan by hand."""
    from planner.report.proof import Proof

    summary = saved.summary
    if summary is None:
        return None
    return Proof(
        status=summary.status,
        bound_seconds=summary.bound_seconds,
        gap=summary.gap,
        objective=summary.objective or "time",
        subclusters=summary.subclusters,
        outside=summary.outside,
    )


def considered_in(saved: PlanFile) -> tuple[Considered, ...]:
    """The families that the search had considered; none for a plan by hand."""
    from planner.report.alternatives import Considered

    if saved.summary is None:
        return ()
    tokens = saved.plan.global_batch * saved.model.training.sequence_length
    return tuple(
        Considered(
            family=entry.family,
            step_seconds=entry.step_seconds,
            tokens_per_second=tokens / entry.step_seconds if entry.step_seconds else None,
            reason=entry.reason,
            chosen=entry.reason == CHOSEN,
        )
        for entry in saved.summary.alternatives
    )


def summary_of(result: SearchResult) -> Summary | None:
    """What a plan file keeps of a search; None when it found no plan."""
    from planner.plan.file import Alternative, Summary
    from planner.report.alternatives import advice_text, considered

    if result.best is None:
        return None
    return Summary(
        status=result.status,
        step_seconds=result.best.estimate.step_seconds,
        bound_seconds=result.bound_seconds,
        gap=result.gap,
        tokens_per_second=result.best.estimate.tokens_per_second,
        objective=None if result.goal.objective == "time" else result.goal.objective,
        subclusters=result.subclusters,
        outside=result.outside,
        alternatives=tuple(
            Alternative(family=entry.family, step_seconds=entry.step_seconds, reason=_reason(entry))
            for entry in considered(result.alternatives)
        ),
        advice=tuple(advice_text(entry) for entry in result.advice),
    )


def _reason(entry: Considered) -> str:
    return CHOSEN if entry.chosen else entry.reason
