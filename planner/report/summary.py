"""What a plan file keeps of the search that found its plan."""

from __future__ import annotations

from planner.plan.file import Summary
from planner.report.explain import advice_text, considered, ratio_text
from planner.report.goal import idle_text, tie_text
from planner.search.values import SearchResult


def summary_of(result: SearchResult) -> Summary | None:
    """What a plan file keeps of a search; None when it found no plan."""
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
        alternatives=considered(result.alternatives),
        advice=tuple(advice_text(entry) for entry in result.advice),
        ratios=tuple(ratio_text(entry) for entry in result.ratios),
        idle=tuple(idle_text(entry) for entry in result.idle_costs),
        hedge=result.hedge,
        tie=tie_text(result.tie, result.best.estimate.spread) if result.tie else None,
    )
