"""A plan that takes over when nodes fail: what moves for it, both plans side by side, and what failures take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from planner.cost.failures import Interruptions, checkpoint_bytes
from planner.cost.state import Move
from planner.field_metadata import JsonDocument, json_fields
from planner.files.short_lists import compress_hosts
from planner.model.spec import ModelSpec
from planner.report.compare import Contender, compare_section
from planner.report.layout import Paragraph, bullets, number, section, table, words
from planner.report.numbers import (
    MISSING,
    at_most,
    count,
    duration,
    gib,
    long_text,
    names,
    percent,
    significant,
    time_unit,
)
from planner.report.plan_table import in_short
from planner.search.replan import Replan
from planner.units import gib_from_bytes


@json_fields("move_seconds", without=("answer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What becomes of the plan without some nodes."""

    without: tuple[str, ...]
    """Hosts that have failed."""
    before: str
    """The plan as it was, in short."""
    before_step_seconds: float
    """Its step."""
    plan: str
    """The plan that takes over, in short."""
    step_seconds: float
    """Its step."""
    slower: float
    """Its step time over that of the plan before, minus 1."""
    gap: float
    """(step - bound) / step, over the plans of the search's space on the remaining nodes."""
    status: str
    """optimal or feasible, as of a search."""
    move: Move
    """What has to move."""
    fastest: str
    """The fastest plan that was found, in short; the same unless it moves too much."""
    fastest_step_seconds: float
    """Its step."""
    fastest_move_seconds: float
    """How long its state takes to move."""
    answer: Replan
    """The answer."""

    @property
    def move_seconds(self) -> float:
        """How long the state takes to move, over all links side by side."""
        return self.move.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCost:
    """What failures take of a run."""

    checkpoint_bytes: float
    """Weights and optimizer states of the whole model."""
    checkpoint_seconds: float
    """Time for which a checkpoint stops the devices."""
    restart_seconds: float
    """From a stop to work again."""
    mean_seconds: float
    """Mean time between two failures."""
    checkpoint_interval_seconds: float
    """Work between two checkpoints, at the best interval."""
    goodput: float
    """Share of the time that is useful work."""
    spares: int
    """Spare nodes that replace all failed ones 99 % of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanDocument(JsonDocument):
    """The answer of ``replan``."""

    losses: tuple[Loss, ...]
    """The nodes that were named; with --prepare each node by itself."""
    unprepared: tuple[str, ...]
    """With --prepare: nodes without which no plan was found, and why."""
    failures: FailureCost | None
    """What failures take of the run of the plan as it was; null without --failures."""


SENT_AND_LOST = "sent: by other nodes; lost: on no remaining node, read from the checkpoint"


def loss_of(answer: Replan) -> Loss:
    """The answer in words and numbers."""
    before, after = answer.before, answer.chosen.scored
    return Loss(
        without=answer.without,
        before=in_short(before.plan),
        before_step_seconds=before.estimate.step_seconds,
        plan=in_short(after.plan),
        step_seconds=after.estimate.step_seconds,
        slower=after.estimate.step_seconds / before.estimate.step_seconds - 1,
        gap=answer.result.gap,
        status=answer.result.status,
        move=answer.chosen.move,
        fastest=in_short(answer.fastest.scored.plan),
        fastest_step_seconds=answer.fastest.scored.estimate.step_seconds,
        fastest_move_seconds=answer.fastest.move.seconds,
        answer=answer,
    )


def failure_cost(stops: Interruptions, devices: int, model: ModelSpec) -> FailureCost | None:
    """What failures take of a run on so many devices; None without any."""
    rate, interval, spares = stops.per_second(devices), stops.interval(devices), stops.spares(devices)
    if interval is None or spares is None:
        return None
    return FailureCost(
        checkpoint_bytes=checkpoint_bytes(model),
        checkpoint_seconds=stops.checkpoint_seconds,
        restart_seconds=stops.restart_seconds,
        mean_seconds=1 / rate,
        checkpoint_interval_seconds=interval,
        goodput=stops.goodput(devices),
        spares=spares,
    )


def replan_report(loss: Loss, failures: FailureCost | None) -> list[RenderableType]:
    """Both plans, what moves, and what failures take."""
    answer = loss.answer
    name = f"without {names(loss.without)}"
    contenders = (
        Contender(name="before", scored=answer.before, cluster_devices=answer.cluster_devices),
        Contender(name=name, scored=answer.chosen.scored, cluster_devices=answer.chosen.cluster.devices),
    )
    return [compare_section(contenders), _move_section(loss), *failures_section(failures)]


def _move_section(loss: Loss) -> Group:
    answer, moved = loss.answer, loss.move
    columns = (
        words("each of", least=10),
        words("pool", least=6),
        number("state\n(GiB)"),
        number("kept\n(GiB)"),
        number("sent\n(GiB)"),
        number("lost\n(GiB)"),
    )
    rows = [[names(compress_hosts(hosts)), *numbers] for numbers, hosts in _alike(moved).items()]
    lines = [
        f"{entry.link}: {gib(entry.moved_bytes)} GiB"
        + (f" in {duration(entry.seconds)}" if entry.seconds is not None else ", --storage says how long")
        for entry in moved.links
    ]
    if not lines:
        lines = ["nothing moves"]
    if answer.fastest.scored.plan != answer.chosen.scored.plan:
        quicker = 1 - loss.fastest_step_seconds / loss.step_seconds
        lines.append(
            f"{at_most(quicker)} faster, but {duration(loss.fastest_move_seconds)} to move: {loss.fastest}"
        )
    if answer.result.status == "optimal" or answer.result.bound_seconds > 0:
        lines.append(f"no plan of the space is more than {at_most(loss.gap)} faster")
    return section("What moves", table(columns, rows), Paragraph(SENT_AND_LOST), bullets(lines))


def _alike(moved: Move) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Hosts by what they keep and get, as it is shown."""
    hosts: dict[tuple[str, ...], tuple[str, ...]] = {}
    for entry in moved.hosts:
        sizes = (entry.needed_bytes, entry.kept_bytes, entry.moved_bytes, entry.lost_bytes)
        numbers = (entry.pool, *map(gib, sizes))
        hosts[numbers] = (*hosts.get(numbers, ()), entry.host)
    return hosts


def failures_section(cost: FailureCost | None) -> Iterator[Group]:
    """What failures take, where somebody asked."""
    if cost is not None:
        yield section("Failures", Paragraph(failure_text(cost)))


def failure_text(cost: FailureCost) -> str:
    """``a failure every 12 days; a checkpoint of 84 GiB takes 42 s, a restart 900 s: ...``."""
    return (
        f"a failure every {long_text(cost.mean_seconds)}; a checkpoint of "
        f"{significant(gib_from_bytes(cost.checkpoint_bytes))} GiB takes {duration(cost.checkpoint_seconds)}, a "
        f"restart {duration(cost.restart_seconds)}: with one every {duration(cost.checkpoint_interval_seconds)} "
        f"{percent(cost.goodput, 3)} of the time is useful work; {count(cost.spares, 'spare node')} suffice 99 % of "
        "the time"
    )


def prepared_section(losses: Sequence[Loss]) -> Group:
    """A row for each node, those that are alike together."""
    unit = time_unit(entry.step_seconds for entry in losses)
    columns = (
        words("without", least=12),
        number(unit.heading("step")),
        number("slower\nby"),
        number("gap"),
        number("sent\n(GiB)"),
        number("lost\n(GiB)"),
        words("plan", least=24),
    )
    rows: dict[tuple[str, ...], tuple[str, ...]] = {}
    for entry in losses:
        shown = (
            unit.show(entry.step_seconds),
            percent(entry.slower) if entry.slower else MISSING,
            percent(entry.gap),
            gib(entry.move.moved_bytes),
            gib(entry.move.lost_bytes),
            entry.plan,
        )
        rows[shown] = (*rows.get(shown, ()), *entry.without)
    shown_rows = [[names(compress_hosts(hosts)), *shown] for shown, hosts in rows.items()]
    return section("Prepared", table(columns, shown_rows), Paragraph(SENT_AND_LOST))
