"""Why a plan is what it is: where time goes, which memory and links bind, what each decision is worth."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group

from planner.cost.values import CAUSES, Breakdown, Estimate, GroupEstimate, StageEstimate
from planner.described import meanings, sentence
from planner.report.layout import section
from planner.report.memory import device_text
from planner.report.neighbours import Neighbour
from planner.report.numbers import TimeUnit, duration, percent, time_unit
from planner.report.paragraph import Paragraph
from planner.report.stage_table import stage_runs
from planner.report.table import number, table, words
from planner.report.verdict import misfits
from planner.search.values import Scored

SMALLEST = 0.0005
"""Share of a step below which a cause is left out."""


def time_section(estimate: Estimate) -> Group:
    """Seconds and share of the step by cause, on the stage that decides; then what is hidden."""
    unit = time_unit([estimate.step_seconds])
    columns = (words("cause", least=16), number(unit.name), number("share"), words("what", least=20))
    found = [(name, float(getattr(estimate.breakdown, name))) for name in CAUSES]
    rows = [
        [
            CAUSES[name].text,
            unit.part(seconds, estimate.step_seconds),
            percent(seconds / estimate.step_seconds),
            sentence(meanings(Breakdown)[name]),
        ]
        for name, seconds in found
        if seconds >= SMALLEST * estimate.step_seconds
    ]
    hidden = f"{duration(estimate.breakdown.hidden_seconds)} of communication runs hidden under computation"
    return section("Where a step's time goes", table(columns, rows), Paragraph(hidden))


def balance_section(estimate: Estimate) -> Group:
    """Every group against the slowest: who decides the pace and who waits."""
    groups = [group for stage in estimate.stages for group in stage.groups]
    unit = time_unit(_round(group) for group in groups)
    slowest = max(_work(group) for group in groups)
    columns = (
        number("stage"),
        words("layers", least=6),
        words("devices", least=16),
        number(f"fwd+bwd\n({unit.name})"),
        number("steps"),
        number("load"),
        words("communicates", least=14),
    )
    rows = [
        [run.indices, run.layers, *_balance(members, len(run.stages), unit, slowest), _links(run.stages[0])]
        for run in stage_runs(estimate.stages)
        for members in zip(*(stage.groups for stage in run.stages), strict=True)
    ]
    note = Paragraph("load: work of a step against the busiest group; the others wait")
    return section("Balance", table(columns, rows), note)


def _balance(groups: Sequence[GroupEstimate], stages: int, unit: TimeUnit, slowest: float) -> list[str]:
    """Devices, time and load of the slowest of some groups that share a row."""
    group = max(groups, key=_work)
    many = f"{stages} x " if stages > 1 else ""
    devices = f"{many}{group.tp * group.count} {device_text(group)}"
    return [devices, unit.show(_round(group)), str(group.steps), percent(_work(group) / slowest)]


def _round(group: GroupEstimate) -> float:
    """Seconds of one micro-batch."""
    return group.forward_seconds + group.backward_seconds


def _work(group: GroupEstimate) -> float:
    """Seconds of all micro-batches of a step; the smaller ones of an uneven share counted in proportion."""
    return _round(group) * group.share / group.micro_batch


def _links(stage: StageEstimate) -> str:
    """Where a stage's gradients travel and by which path it sends to the next."""
    replicas = sum(group.count for group in stage.groups)
    parts = [f"gradients: {stage.crosses}"] if replicas > 1 else []
    parts += [f"copies: {stage.copies_cross}"] if stage.copies_cross else []
    parts += [f"next: {stage.link}"] if stage.link else []
    return ", ".join(parts) or "with no other stage"


def neighbours_section(found: Sequence[Neighbour], first: Scored) -> Group:
    """What a step takes with one decision changed."""
    unit = time_unit([first.estimate.step_seconds])
    columns = (
        words("change", least=24),
        number(f"step\n({unit.name})"),
        number("slower by"),
        words("memory", least=20),
    )
    rows = [
        [
            entry.change,
            unit.show(entry.scored.estimate.step_seconds),
            percent(entry.scored.estimate.step_seconds / first.estimate.step_seconds - 1),
            _memory_verdict(entry.scored.estimate),
        ]
        for entry in found
    ]
    return section("One decision changed", table(columns, rows))


def _memory_verdict(estimate: Estimate) -> str:
    missing = misfits(estimate)
    return f"does not fit: {missing[0]}" if missing else "fits"
