"""Plans one decision away from a plan, as each dimension proposes them."""

from __future__ import annotations

from collections.abc import Iterable

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.dims import DIMENSIONS
from planner.errors import PlanError
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.checks import target_faults
from planner.plan.values import Plan
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.values import Scored
from planner.targets import target


@json_fields(
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
    return best_of_each(all_neighbours(plan, Estimator(cluster, model, calibration)))


def all_neighbours(plan: Plan, estimator: Estimator, deadline: Deadline = NO_LIMIT) -> tuple[Neighbour, ...]:
    """Every plan one decision away that the target can run, or those until the deadline."""
    entries: list[Neighbour] = []
    changes = (
        change
        for dimension in DIMENSIONS
        for change in dimension.neighbours(plan, target(plan.target), estimator.topology.device_types)
    )
    for change in changes:
        if deadline.struck:
            break
        if target_faults(change.plan, estimator.model):
            continue
        try:
            scored = Scored(plan=change.plan, estimate=estimator.estimate(change.plan))
        except PlanError:
            continue
        entries.append(Neighbour(decision=change.decision, change=change.what, scored=scored))
    return tuple(entries)


def best_of_each(entries: Iterable[Neighbour]) -> tuple[Neighbour, ...]:
    """The fastest of every decision that fits, or the fastest when none does."""
    best: dict[str, Neighbour] = {}
    for entry in entries:
        known = best.get(entry.decision)
        if known is None or _worth(entry) < _worth(known):
            best[entry.decision] = entry
    return tuple(sorted(best.values(), key=_worth))


def _worth(entry: Neighbour) -> tuple[bool, float, str]:
    priced = entry.scored.estimate
    return (not priced.fits, priced.step_seconds, entry.change)
