"""Other plans: the families that were considered, and plans that differ in one decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.described import told
from planner.dims import DIMENSIONS
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import target_faults
from planner.plan.values import Plan
from planner.report.layout import Paragraph, bullets, number, section, table, words
from planner.report.numbers import count_unit, percent, time_unit
from planner.runtimes.registry import target
from planner.search.values import Advice, Alternative, Scored


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
        for change in dimension.neighbours(plan, target(plan.target), estimator.topology.device_types)
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
        if known is None or _worth(entry) < _worth(known):
            best[entry.decision] = entry
    return sorted(best.values(), key=_worth)


def _worth(entry: Neighbour) -> tuple[bool, float, str]:
    priced = entry.scored.estimate
    return (not priced.fits, priced.step_seconds, entry.change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """One family of plans with its best, as a search or a plan file remembers it."""

    family: str
    """A family of plans that was considered."""
    step_seconds: float | None
    """Step of its best plan; None when the family has no plan."""
    tokens_per_second: float | None
    """Throughput of its best plan."""
    reason: str
    """Why it lost."""
    chosen: bool
    """Whether the answer is of this family."""


def considered(alternatives: Iterable[Alternative]) -> tuple[Considered, ...]:
    """The families of a search, the chosen one first, then the fastest, impossible ones last."""
    found = (
        Considered(
            family=entry.family,
            step_seconds=entry.scored.estimate.step_seconds if entry.scored else None,
            tokens_per_second=entry.scored.estimate.tokens_per_second if entry.scored else None,
            reason=entry.reason,
            chosen=entry.chosen,
        )
        for entry in alternatives
    )
    return tuple(sorted(found, key=_rank))


def _rank(entry: Considered) -> tuple[bool, float, str]:
    return (not entry.chosen, entry.step_seconds or float("inf"), entry.family)


def alternatives_section(entries: Sequence[Considered], top: int | None = None) -> Group:
    """One row per family with the reason it lost."""
    shown = entries if top is None else entries[:top]
    unit = time_unit(entry.step_seconds for entry in shown)
    speed = count_unit(entry.tokens_per_second for entry in shown)
    columns = (
        words("family", least=18),
        number(f"step\n({unit.name})"),
        number(speed.heading("tokens/s")),
        words("why not", least=24),
    )
    rows = [
        [entry.family, unit.show(entry.step_seconds), speed.show(entry.tokens_per_second), entry.reason]
        for entry in shown
    ]
    strong = [index for index, entry in enumerate(shown) if entry.chosen]
    left = [Paragraph(f"{len(shown)} of {len(entries)} families shown")] if len(shown) < len(entries) else []
    note = Paragraph(
        "a good plan of each family, not proven optimal; percentages refer to the chosen plan's step"
    )
    return section("Plan families", table(columns, rows, strong), *left, note)


def advice_section(lines: Sequence[str]) -> Group:
    """Faster plans that need another runtime."""
    return section("Faster with another runtime", bullets(lines))


def advice_text(entry: Advice) -> str:
    """``4.1 % faster with tp 4 on the a100 stage only: needs flagscale``."""
    return f"{percent(entry.faster)} faster with {entry.change}: needs {entry.target}"
