"""What each speed that is not known exactly does to the step, and whether it would change the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.described import told
from planner.model.spec import ModelSpec
from planner.records import dataclass
from planner.search.explain.bars import device_bars, network_bars, scaled, with_families
from planner.search.objectives.choose import choose
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult

SAME = 0.01
"""A plan that is better by less is no other answer."""


@told("scored.estimate.step_seconds", without=("scored",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One speed at one end of its error bar, and the searches' answer there."""

    members: tuple[str, ...]
    """Device types, or fabrics, whose speed it is."""
    spread: float
    """Relative standard error of the speed."""
    factor: float
    """How many times as fast as assumed it is here."""
    kept_seconds: float
    """Step of the plan of today at that speed."""
    loses: float
    """That step over the best one found at that speed, less 1."""
    changes: bool
    """Whether another plan is better there, by more than 1 %."""
    plan: str | None
    """That plan's main decisions in one line; null where the plan stays."""
    scored: Scored
    """The best plan found at that speed."""


def swings(
    result: SearchResult,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    reporter: Reporter | None = None,
) -> Iterator[Swing]:
    """Each speed at both ends of its bar, searched anew; nothing without a plan."""
    best = result.best
    if best is None:
        return
    own = with_families(cluster)
    estimator = Estimator(ranked(own), model, calibration)
    plans = [best, *(entry.scored for entry in result.alternatives if entry.scored)]
    for bar in (*device_bars(plans, estimator), *network_bars(estimator)):
        for factor in bar.ends:
            world = scaled(calibration, ((bar, factor),))
            kept = replace(best, estimate=estimator.with_calibration(world).estimate(best.plan))
            answer = choose(own, model, world, limits, Goal(), reporter, explain=False)
            there = min(
                (each for each in (kept, answer.best) if each is not None),
                key=lambda scored: scored.estimate.step_seconds,
            )
            loses = kept.estimate.step_seconds / there.estimate.step_seconds - 1
            yield Swing(
                members=bar.members,
                spread=bar.spread,
                factor=factor,
                kept_seconds=kept.estimate.step_seconds,
                loses=loses,
                changes=loses > SAME,
                plan=None,
                scored=there,
            )
            if answer.interrupted:
                return
