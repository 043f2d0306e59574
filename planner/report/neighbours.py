"""Plans that differ in one decision, priced: what each decision is worth."""

from __future__ import annotations

from dataclasses import dataclass

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.described import told
from planner.dims import DIMENSIONS
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import target_faults
from planner.plan.values import Plan
from planner.runtimes.registry import target
from planner.search.values import Scored


@told(
    "scored.estimate.fits",
    "scored.estimate.step_seconds",
    "scored.estimate.tokens_per_second",
    without=("decision", "scored"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A plan with one decision changed."""

    decision: str
    """Which decision: ``ZeRO``, ``recomputation``, ``layers``, ``micro-batch``, ``sequence parallel``."""
    change: str
    """What differs, e.g. ``ZeRO 1 instead of 0``."""
    scored: Scored
    """The plan."""


def neighbours(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration
) -> tuple[Neighbour, ...]:
    """Every plan one decision away that the target can run, fastest of each change."""
    estimator = Estimator(cluster, model, calibration)
    found = []
    changes = (
        change
        for dimension in DIMENSIONS
        for change in dimension.neighbours(plan, target(plan.target), estimator.topology.kinds)
    )
    for change in changes:
        if target_faults(change.plan, model):
            continue
        try:
            scored = Scored(plan=change.plan, estimate=estimator.estimate(change.plan))
        except PlanError:
            continue
        found.append(Neighbour(decision=change.decision, change=change.what, scored=scored))
    return tuple(_best_of_each(found))


def _best_of_each(found: list[Neighbour]) -> list[Neighbour]:
    """The fastest of every decision that fits, or the fastest when none does."""
    best: dict[str, Neighbour] = {}
    for entry in found:
        known = best.get(entry.decision)
        if known is None or _rank(entry) < _rank(known):
            best[entry.decision] = entry
    return sorted(best.values(), key=_rank)


def _rank(entry: Neighbour) -> tuple[bool, float, str]:
    priced = entry.scored.estimate
    return (not priced.fits, priced.step_seconds, entry.change)
