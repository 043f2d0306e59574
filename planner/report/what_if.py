"""What plans become when something about the cluster or the training changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Group

from planner.cluster.spec import ClusterSpec
from planner.field_metadata import JsonDocument, json_fields
from planner.report.layout import Paragraph, number, section, table, words
from planner.report.numbers import MISSING, count, count_unit, or_missing, percent, significant, time_unit
from planner.report.plan_table import in_short
from planner.search.values import Scored, SearchResult, Status
from planner.search.what_if import Swing, World


@json_fields(
    "scored.estimate.step_seconds",
    "scored.estimate.tokens_per_second",
    "scored.estimate.cost_per_million_tokens",
    "scored.estimate.devices",
    without=("scored",),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The cluster and the training as they are, or with one change."""

    change: str
    """As it was typed; empty for no change."""
    status: Status
    """optimal, feasible, infeasible or unknown, as of a search."""
    gap: float
    """(step - bound) / step."""
    faster: float | None
    """Tokens per second over those without the change, minus 1; null if either has no plan."""
    plan: str | None
    """Its main decisions in one line; null without a plan."""
    assumed: str | None = None
    """What is assumed about nodes added in a new pool; null for other changes."""
    scored: Scored | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfDocument(JsonDocument):
    """The answer of ``what-if``."""

    cases: tuple[Variant, ...]
    """Without a change, then the changes as they were given."""
    sensitivity: tuple[Swing, ...] = ()
    """Each speed at both ends of its error bar; empty without --sensitivity."""


def cases(variants: Sequence[World], results: Sequence[SearchResult]) -> tuple[Variant, ...]:
    """Each change with its search; the first one is that without a change."""
    (_, cluster, _), first = variants[0], results[0].best
    return tuple(
        _case(change, result, first, _assumed(cluster, changed))
        for (change, changed, _), result in zip(variants, results, strict=False)
    )


def _assumed(cluster: ClusterSpec, changed: ClusterSpec) -> str | None:
    """Nodes, inner link and cards of a pool that the cluster did not have."""
    known = {pool.name for pool in cluster.pools}
    for pool in changed.pools:
        if pool.name not in known:
            fast = f", {pool.intra_node.bandwidth_gBps:g} GB/s inside" if len(pool.devices) > 1 else ""
            cards = ", ".join(
                f"{nic.count} x {nic.bandwidth_gbps:g} Gbit/s {nic.fabric}" for nic in pool.nics
            )
            return f"{count(len(pool.hosts), 'node')} of {len(pool.devices)} {pool.devices[0]}{fast}, {cards}"
    return None


def _case(change: str, result: SearchResult, first: Scored | None, assumed: str | None) -> Variant:
    best = result.best
    faster = None
    if best is not None and first is not None:
        faster = best.estimate.tokens_per_second / first.estimate.tokens_per_second - 1
    return Variant(
        change=change,
        status=result.status,
        gap=result.gap,
        faster=faster,
        plan=None if best is None else in_short(best.plan),
        assumed=assumed,
        scored=best,
    )


def what_if_section(entries: Sequence[Variant]) -> Group:
    """A row for each; then what the plans are."""
    estimates = [entry.scored.estimate for entry in entries if entry.scored]
    unit = time_unit(each.step_seconds for each in estimates)
    speed = count_unit(each.tokens_per_second for each in estimates)
    priced = any(each.cost_per_million_tokens is not None for each in estimates)
    columns = (
        words("change", least=24),
        number(unit.heading("step")),
        number(speed.heading("tokens/s")),
        number("faster\nby"),
        *([number("per million\ntokens")] if priced else []),
        number("gap"),
        words("devices", least=7),
    )
    rows = [
        [
            entry.change or "as it is",
            unit.show(entry.scored.estimate.step_seconds if entry.scored else None),
            speed.show(entry.scored.estimate.tokens_per_second if entry.scored else None),
            MISSING if entry.faster is None or not entry.change else percent(entry.faster),
            *([or_missing(_cost(entry), significant)] if priced else []),
            percent(entry.gap) if entry.scored else MISSING,
            str(entry.scored.plan.devices) if entry.scored else _nothing(entry),
        ]
        for entry in entries
    ]
    named: dict[str, list[str]] = {}
    for entry in entries:
        if entry.plan:
            named.setdefault(entry.plan, []).append(entry.change or "as it is")
    plans = [Paragraph(f"{', '.join(changes)}: {plan}") for plan, changes in named.items()]
    notes = [
        Paragraph("gap: how much faster the best possible step could be; a smaller gain may be none"),
        *(Paragraph(f"{entry.change}: assumes {entry.assumed}") for entry in entries if entry.assumed),
    ]
    return Group(section("What if", table(columns, rows), *notes), section("Plans", *plans))


def named(swing: Swing) -> Swing:
    """With the plan in words where it changes."""
    return replace(swing, plan=in_short(swing.scored.plan) if swing.changes else None)


def swings_section(entries: Sequence[Swing], step_seconds: float, *, complete: bool = True) -> Group:
    """The speeds by how far they move the step, and what the plan becomes; ``complete``: these are all."""
    ordered = sorted(entries, key=lambda entry: -abs(entry.kept_seconds / step_seconds - 1))
    unit = time_unit(entry.kept_seconds for entry in entries)
    columns = (
        words("speed of", least=18),
        number("times\nas fast"),
        number(unit.heading("step")),
        number("longer\nby"),
        number("best there\n(x shorter)"),
        words("then the plan", least=20),
    )
    rows = [
        [
            ", ".join(entry.members),
            f"{entry.factor:.2f}",
            unit.show(entry.kept_seconds),
            percent(entry.kept_seconds / step_seconds - 1),
            f"{1 + entry.loses:.2f}",
            entry.plan or "stays",
        ]
        for entry in ordered
    ]
    changing = sum(entry.changes for entry in entries)
    notes = []
    if changing:
        notes.append(
            "measure first what changes the plan: hetplan calibrate device, hetplan calibrate network"
        )
    elif complete:
        notes.append("no speed within its error bar changes the plan by more than 1 %")
    title = f"What the answer depends on ({unit.show(step_seconds)} {unit.name} as it is)"
    return section(title, table(columns, rows), *map(Paragraph, notes))


def _cost(entry: Variant) -> float | None:
    return entry.scored.estimate.cost_per_million_tokens if entry.scored else None


def _nothing(entry: Variant) -> str:
    return "no plan fits" if entry.status == "infeasible" else "no plan found in time"
