"""The answer of a search on one screen, and the summary of it in a plan file.

The screen has stages as bars, the families that came nearest, and last the answer itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from planner.cluster.spec import ClusterSpec
from planner.cost.values import Estimate
from planner.escaping import visible
from planner.model.spec import ModelSpec
from planner.plan.file import Considered, Summary
from planner.report.explain import advice_text, considered, families_table, ratio_text
from planner.report.goal import (
    BEST,
    format_text,
    goal_text,
    idle_text,
    limit_text,
    nearest_text,
    simpler_texts,
    tie_text,
    training_text,
    untrained,
)
from planner.report.layout import Indented, Paragraph, bullets, number, table, words
from planner.report.numbers import (
    count,
    duration,
    gib,
    long_text,
    money,
    percent,
    proof,
    rate,
    significant,
)
from planner.report.plan_table import (
    StageRun,
    group_text,
    groups_of,
    headline,
    left_idle,
    memory_text,
    micro_batches_text,
    stage_runs,
)
from planner.search.values import Limits, Ratio, Scored, SearchResult
from planner.units import format_count

FAMILIES = 6
"""Families that are shown."""
ROWS = 8
"""Rows of stages that are shown."""
LIKELY = 0.1
"""Chance of running out of memory from which on it is said unasked."""
CELLS = 10
"""Length of a full bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float) -> str:
    """A bar of blocks for a share of at most 1, in eighths of a cell."""
    eighths = round(max(0.0, min(share, 1.0)) * CELLS * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(CELLS)


def brief(
    result: SearchResult, best: Scored, cluster: ClusterSpec, model: ModelSpec, top: int | None
) -> list[RenderableType]:
    """What was asked, the plan, the families, and what to know, in as few lines as they need."""
    goal = goal_text(result.goal)
    parts: list[RenderableType] = [
        Paragraph(asked(cluster, model)),
        *([Paragraph(f"goal: {goal}")] if goal else []),
        Text(visible(f"Plan: {headline(best.plan)}"), style="bold"),
        *map(Indented, _stages(best.estimate, model.unit)),
    ]
    if result.alternatives:
        parts.append(_families(considered(result.alternatives), top or FAMILIES))
    run = result.goal.run_of(best.estimate)
    if run is not None:
        parts.append(Paragraph(training_text(run, best.estimate.spread)))
    return [*parts, bullets(_notes(result, best, cluster), mark="!")]


def asked(cluster: ClusterSpec, model: ModelSpec) -> str:
    """``gpt2_345m (355 M parameters, 512 x 1024 tokens, fp16) on lab (6 devices)``."""
    training = model.training
    batch = f"{training.global_batch} x {training.sequence_length} tokens"
    what = f"{format_count(model.parameters)} parameters, {batch}, {training.precision}"
    return f"{model.name} ({what}) on {cluster.name} ({count(cluster.devices, 'device')})"


def _stages(estimate: Estimate, unit: str) -> Iterator[RenderableType]:
    """A row for each group of each run of like stages, with its work relative to the busiest."""
    slowest = max(group.work_seconds for group in groups_of(estimate))
    columns = (
        number("stage"),
        words(unit, least=6),
        words("devices", least=18),
        number("batch"),
        number("memory (GiB)"),
        words("load", least=CELLS + 6),
    )
    rows = [row for run in stage_runs(estimate.stages) for row in _rows(run, slowest)]
    yield table(columns, rows[:ROWS], ruled=False)
    if len(rows) > ROWS:
        yield Paragraph(f"and {count(len(rows) - ROWS, 'more row')}: -v shows them")


def _rows(run: StageRun, slowest: float) -> Iterator[list[str]]:
    for position, members in enumerate(run.groups):
        group = max(members, key=lambda each: each.work_seconds)
        memory = max((each.memory for each in members), key=lambda each: each.used_bytes)
        share = group.work_seconds / slowest
        yield [
            *((run.indices, run.layers) if position == 0 else ("", "")),
            group_text(group, len(run.stages)) + (f" by tp {group.tp}" if group.tp > 1 else ""),
            micro_batches_text(group),
            f"{gib(memory.used_bytes)} of {gib(memory.capacity_bytes)}",
            f"{bar(share)} {percent(share):>5}",
        ]


def _families(entries: Sequence[Considered], top: int) -> RenderableType:
    """The first ones with why they lost."""
    shown = entries[:top]
    left = f" ({len(shown)} of {len(entries)}, -v: all)" if len(shown) < len(entries) else ""
    return Indented(families_table(shown, words(f"family{left}", least=28), brief=True))


def _notes(result: SearchResult, best: Scored, cluster: ClusterSpec) -> Iterator[str]:
    """What to know before trusting the answer, and what would be faster; one line each where it fits."""
    if result.outside and result.gap < 1:
        yield f"the proof leaves out {count(len(result.outside), 'kind')} of plans: -v lists them"
    if cluster.safe is None and best.estimate.out_of_memory > LIKELY:
        yield f"{memory_text(best.estimate)}: see --safe"
    yield from result.warnings
    yield from best.estimate.warnings
    yield from map(idle_text, result.idle_costs)
    if not result.goal.use_at_most:
        yield from _untold(result, best.estimate, cluster)
    yield from (limit_text(entry, best.estimate.step_seconds) for entry in result.limit_costs)
    yield from map(advice_text, result.advice)
    if result.other_format is not None:
        yield format_text(result.other_format)
    if result.tie is not None:
        yield tie_text(result.tie, best.estimate.spread)
    yield from simpler_texts(result.simpler, best.estimate.spread)
    if result.ratios:
        yield _splits(result.ratios)


def _untold(result: SearchResult, estimate: Estimate, cluster: ClusterSpec) -> Iterator[str]:
    """Idle devices of which nobody asked, or had the time to ask, what using them costs."""
    rest = left_idle(estimate, cluster, {(entry.pool, entry.gpu) for entry in result.idle_costs})
    if rest:
        yield f"idle: {rest}"


def _splits(entries: Sequence[Ratio]) -> str:
    """Splits that depend on uncertain speeds, and what they may cost."""
    bar, worst = max(entry.bar for entry in entries), max(entry.regret for entry in entries)
    if len(entries) > 1:
        what = f"{len(entries)} splits of work depend on speeds"
        return f"{what} known to ±{percent(bar)}: at worst {percent(worst)} slower"
    gpus, against = " and ".join(entries[0].gpus), " and ".join(entries[0].against)
    return f"{gpus} against {against} is known to ±{percent(bar)}: at worst {percent(worst)} slower"


def answer_line(result: SearchResult, model: ModelSpec, cluster: ClusterSpec, limits: Limits) -> str:
    """The answer in one line that stands alone; also where there is no plan."""
    what = f"{model.name} on {cluster.name}"
    best = result.best
    if best is None:
        return f"{what}: {_nothing(result, model, cluster, limits)}"
    estimate = best.estimate
    parts = [f"{duration(estimate.step_seconds, estimate.spread)} a step"]
    parts += [f"{rate(estimate.tokens_per_second)} tokens/s"]
    if result.objective == "cost" and estimate.cost_per_million_tokens is not None:
        parts += [f"{significant(estimate.cost_per_million_tokens)} per million tokens"]
    if result.objective == "energy" and estimate.joules_per_token is not None:
        parts += [f"{significant(estimate.joules_per_token)} J per token"]
    run = result.goal.run_of(estimate)
    if run is not None:
        price = "" if run.price is None else f" for {money(run.price)}"
        parts += [f"{format_count(run.tokens)} tokens in {long_text(run.seconds)}{price}"]
    return f"{what}: {', '.join([*parts, _claim(result)])}"


def _claim(result: SearchResult) -> str:
    part = "" if result.subclusters is None else f" of {count(result.subclusters, 'sub-cluster')}"
    best = f" of the {BEST[result.objective]}{part}" if part or result.objective != "time" else ""
    if result.hedge is not None:
        return f"robust, at worst {percent(result.hedge.regret)} slower than the best"
    stopped = "stopped early, " if result.interrupted else ""
    if result.gap >= 1:
        return f"{stopped}nothing proven"
    if result.status != "optimal":
        return f"{stopped}{proof(result.gap, result.status)}"
    return f"{stopped}proven optimal" if result.gap <= 0 else f"{proof(result.gap, result.status)}{best}"


def _nothing(result: SearchResult, model: ModelSpec, cluster: ClusterSpec, limits: Limits) -> str:
    if result.nearest:
        first = result.nearest[0]
        return nearest_text(first, result.goal.run_of(first.scored.estimate), cluster)
    if result.status == "infeasible":
        lacking = untrained(model, limits)
        return "proven: no plan fits" if lacking is None else ": ".join(lacking)
    return "no plan found in time, nothing proven"


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
