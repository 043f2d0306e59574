"""Plan files, priced anew by this version, and the proof they carry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.plan_file import PlanFile, Summary
    from planner.report.alternatives import Considered
    from planner.report.proof import Proof
    from planner.search.values import Scored, SearchResult

CHOSEN = "chosen"
"""Reason of the family that the plan belongs to, in the plan file."""


def read_priced(path: Path) -> tuple[PlanFile, Scored]:
    """A plan file and its plan with its estimate."""
    from planner.cost.estimate import estimate
    from planner.plan_file import read
    from planner.search.values import Scored

    saved = read(path)
    return saved, Scored(plan=saved.plan, estimate=estimate(saved.plan, saved.cluster, saved.model))


def proof_in(saved: PlanFile) -> Proof | None:
    """What the search that wrote the file had proven; None for a plan by hand."""
    from planner.report.proof import Proof

    summary = saved.summary
    if summary is None:
        return None
    return Proof(status=summary.status, bound_seconds=summary.bound_seconds, gap=summary.gap)


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
    from planner.plan_file import Alternative, Summary
    from planner.report.alternatives import advice_text, considered

    if result.best is None:
        return None
    return Summary(
        status=result.status,
        step_seconds=result.best.estimate.step_seconds,
        bound_seconds=result.bound_seconds,
        gap=result.gap,
        tokens_per_second=result.best.estimate.tokens_per_second,
        alternatives=tuple(
            Alternative(family=entry.family, step_seconds=entry.step_seconds, reason=_reason(entry))
            for entry in considered(result.alternatives)
        ),
        advice=tuple(advice_text(entry) for entry in result.advice),
    )


def _reason(entry: Considered) -> str:
    return CHOSEN if entry.chosen else entry.reason
