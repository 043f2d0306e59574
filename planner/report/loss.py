"""Which batch reaches a loss first, how sure that is, and which size of cluster is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from planner.cluster.spec import ClusterSpec
from planner.cost.convergence import Convergence
from planner.cost.training import TrainingRun
from planner.field_metadata import JsonDocument, json_fields
from planner.model.spec import ModelSpec
from planner.plan.file import Considered
from planner.report.brief import brief
from planner.report.document import Understood, understood_inputs
from planner.report.explain import considered
from planner.report.goal import devices_text
from planner.report.layout import Paragraph, bullets, number, section, table, words
from planner.report.numbers import (
    MISSING,
    at_most,
    count,
    duration,
    long_text,
    money,
    or_missing,
    percent,
    plus_minus,
    proof,
    significant,
    time_unit,
)
from planner.report.pareto import UsedDevices, used
from planner.report.plan_table import misfits
from planner.search.objectives.loss import BatchPoint, LossResult, Size, Sizes
from planner.search.values import SearchResult
from planner.units import format_count

BEST, INSIDE = "*", "~"
"""Marks of the best batch, and of those inside its bar."""


def goal_text(convergence: Convergence, batches: Sequence[int], model: ModelSpec) -> str:
    """``least time to a loss of 2.5, with 13 batches from 8 to 32768 sequences``."""
    tokens, length = convergence.steps_known * convergence.batch_tokens, model.training.sequence_tokens
    where = (
        f"a loss of {convergence.loss:g}"
        if convergence.loss is not None
        else f"the loss that {format_count(tokens)} tokens reach with {convergence.batch_tokens / length:.0f} "
        "sequences a step"
    )
    spans = f"from {min(batches)} to {max(batches)} sequences" if len(batches) > 1 else f"of {batches[0]}"
    return f"the least time to {where}, with {count(len(batches), 'batch', 'batches')} {spans}"


def loss_report(result: LossResult, goal: str, cluster: ClusterSpec, top: int | None) -> list[RenderableType]:
    """The plan on one screen, and below it the batches."""
    best = result.search.best
    assert best is not None, "there is a plan"
    return [
        Paragraph(f"goal: {goal}"),
        *brief(result.search, best, cluster, result.model, top),
        batches_section(result),
    ]


def batches_section(result: LossResult) -> Group:
    """A row for each batch, and how sure the best one is."""
    priced = any(point.run is not None and point.run.price is not None for point in result.points)
    step = time_unit(point.scored.estimate.step_seconds for point in result.points if point.scored)
    columns = (
        words("", least=1),
        number("batch\n(sequences)"),
        number("steps"),
        number("tokens"),
        number(step.heading("step")),
        number("time"),
        number("error"),
        *((number("price"),) if priced else ()),
    )
    rows = [
        [
            BEST if point is result.best else INSIDE if point.inside else "",
            str(point.batch),
            format_count(point.steps),
            format_count(point.tokens),
            step.show(point.scored.estimate.step_seconds) if point.scored else MISSING,
            long_text(point.seconds) if point.seconds else f"> {long_text(point.bound_seconds)}",
            plus_minus(point.spread),
            *((_price(point),) if priced else ()),
        ]
        for point in result.points
    ]
    strong = [index for index, point in enumerate(result.points) if point is result.best]
    return section("Time to the loss", table(columns, rows, strong), bullets(_sure(result)))


def _price(point: BatchPoint) -> str:
    return or_missing(point.run.price if point.run else None, money)


def _sure(result: LossResult) -> Iterator[str]:
    """How sure the batch is."""
    yield critical_text(result.convergence)
    best = result.best
    if best is None or best.spread is None or best.scored is None:
        return
    inside = [point.batch for point in result.points if point.inside]
    yield (
        f"±{percent(best.spread)}: the step ±{percent(best.scored.estimate.spread)}, the steps "
        f"±{percent(best.steps_spread)}; {BEST} {INSIDE} within that error bar: {', '.join(map(str, inside))}"
    )
    low, high = result.best_if_low, result.best_if_high
    if sum(point.scored is not None for point in result.points) < 2:
        yield "no other batch has a plan yet that could be compared at other critical batches"
    elif low == high == best.batch:
        yield "the best batch is the same at both ends of the critical batch's error bar"
    else:
        yield f"at either end of the critical batch's error bar, {low} and {high} would be the best"
    if result.convergence.extrapolated:
        yield "the loss is below all that the curve was fitted to: the steps are extrapolated"


def critical_text(convergence: Convergence) -> str:
    """``critical batch 3.09 M tokens (1.55 M to 6.19 M), between ...; no batch takes fewer than 2,764 steps``."""
    critical = convergence.critical
    span = f"{format_count(critical.low)} to {format_count(critical.high)}"
    return (
        f"critical batch {format_count(critical.tokens)} tokens ({span}), {critical.source}; no batch takes fewer "
        f"than {format_count(convergence.least_steps)} steps"
    )


def loss_line(result: LossResult, cluster: ClusterSpec) -> str:
    """The answer in one line that stands alone."""
    best = result.best
    assert best is not None, "there is a plan"
    assert best.scored is not None, "there is a plan"
    assert best.run is not None, "there is a plan"
    step = duration(best.scored.estimate.step_seconds)
    price = "" if best.run.price is None else f" for {money(best.run.price)}"
    batches = count(len(result.points), "batch", "batches")
    claim = f"{proof(result.gap, result.status)} over {batches}"
    stopped = "stopped early, " if result.interrupted else ""
    return (
        f"{result.model.name} on {cluster.name}: {best.batch} sequences a step, {format_count(best.steps)} steps of "
        f"{step}, {long_text(best.run.seconds)} ±{percent(best.spread or 0.0)} to the loss{price}, {stopped}{claim}"
    )


def sizes_section(table_: Sizes, cluster: ClusterSpec) -> Group:
    """A row for each size, slowest first, and which is worth it."""
    if not table_.points:
        return section("No size of the cluster has a plan", *_left_out(table_))
    columns = (
        words("", least=1),
        words("devices", least=12),
        number("batch"),
        number("steps"),
        number("time"),
        number("error"),
        number("price" if table_.priced else "device\nhours"),
    )
    rows = [
        [
            BEST if size.front else "",
            devices_text(size.devices, cluster),
            str(size.point.batch),
            format_count(size.point.steps),
            long_text(size.point.run.seconds) if size.point.run else MISSING,
            f"±{percent(size.point.spread or 0.0)}",
            money(size.value),
        ]
        for size in table_.points
    ]
    strong = [] if table_.worth is None else [table_.worth]
    what = "money" if table_.priced else "device-hours"
    return section(
        f"Time and {what} to the loss",
        table(columns, rows, strong),
        Paragraph(f"{BEST} no other size is both as soon there and as cheap"),
        *_worth(table_, cluster, what),
        Paragraph(critical_text(table_.convergence)),
        *_left_out(table_),
    )


def _worth(sizes: Sizes, cluster: ClusterSpec, what: str) -> Iterator[Paragraph]:
    if sizes.worth is None:
        return
    best, fastest = sizes.points[sizes.worth], sizes.points[-1]
    text = (
        f"worth using: {best.total} of {count(cluster.devices, 'device')}, {devices_text(best.devices, cluster)}, with "
        f"{best.point.batch} sequences a step, where time x {what} is least"
    )
    if fastest is not best and fastest.point.seconds and best.point.seconds:
        sooner = significant(best.point.seconds / fastest.point.seconds)
        dearer = (
            f"for {significant(fastest.value / best.value)} x the {what}"
            if best.value
            else f"and not free: {money(fastest.value)}"
        )
        text += f"; {devices_text(fastest.devices, cluster)} are {sooner} x as soon there {dearer}"
    yield Paragraph(text)


def _left_out(sizes: Sizes) -> Iterator[Paragraph]:
    parts = [f"{count(sizes.subclusters, 'sub-cluster')} x {count(len(sizes.batches), 'batch', 'batches')}"]
    parts += [f"{sizes.unfinished} not searched"] if sizes.unfinished else []
    if sizes.points:
        parts.append(f"each within {at_most(max(size.gap for size in sizes.points))} of its bound")
    stopped = "interrupted: " if sizes.interrupted else ""
    yield Paragraph(f"{stopped}{'; '.join([*parts, duration(sizes.seconds)])}")


@json_fields(inline=("search",))
@dataclass(frozen=True, slots=True, kw_only=True)
class LossDocument(JsonDocument):
    """The answer of ``search --objective time-to-loss``."""

    search: SearchResult
    """The plan of the best batch."""
    loss: LossResult
    """The batches."""
    misfits: tuple[str, ...]
    """Where the plan does not fit, in words."""
    alternatives: tuple[Considered, ...]
    """Families of plans that were considered with the best batch."""
    training: TrainingRun | None
    """The whole training run; null without a plan."""
    warnings: tuple[str, ...]
    """What to know before trusting the answer, in words."""
    understood: Understood
    """The inputs, with the best batch."""


def loss_document(result: LossResult, cluster: ClusterSpec) -> LossDocument:
    """The answer of ``search --objective time-to-loss``."""
    best = result.search.best
    return LossDocument(
        command="search --objective time-to-loss",
        search=result.search,
        loss=result,
        misfits=tuple(misfits(best.estimate)) if best else (),
        alternatives=considered(result.search.alternatives),
        training=None if result.best is None else result.best.run,
        warnings=(*result.search.warnings, *(best.estimate.warnings if best else ())),
        understood=understood_inputs(cluster, result.model),
    )


@json_fields(inline=("size",))
@dataclass(frozen=True, slots=True, kw_only=True)
class SizePoint:
    """A size as documents tell it."""

    size: Size
    """The size."""
    used: tuple[UsedDevices, ...]
    """Its devices."""


@json_fields(inline=("sizes",))
@dataclass(frozen=True, slots=True, kw_only=True)
class SizesDocument(JsonDocument):
    """The answer of ``search --objective time-to-loss --pareto``."""

    sizes: Sizes
    """What was found."""
    points: tuple[SizePoint, ...]
    """Slowest first."""
    understood: Understood
    """The inputs."""


def sizes_document(sizes: Sizes, cluster: ClusterSpec, model: ModelSpec) -> SizesDocument:
    """The answer of ``search --objective time-to-loss --pareto``."""
    return SizesDocument(
        command="search --objective time-to-loss --pareto",
        sizes=sizes,
        points=tuple(
            SizePoint(
                size=size,
                used=used(size.devices),
            )
            for size in sizes.points
        ),
        understood=understood_inputs(cluster, model),
    )
