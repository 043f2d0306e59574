"""What to rent: the machines, the plan on them, and time against money."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from planner.escaping import visible
from planner.field_metadata import JsonDocument, json_fields
from planner.model.spec import ModelSpec
from planner.report.layout import Indented, Paragraph, bullets, number, table, words
from planner.report.numbers import (
    at_most,
    count,
    count_unit,
    duration,
    limit_money,
    limit_time,
    long_text,
    money,
    percent,
    proof,
    significant,
    time_unit,
)
from planner.report.plan_table import in_short
from planner.search.objectives.renting import Rent, Rental, RentGoal
from planner.units import format_count

WORDS = {"time": "least time", "money": "least money"}


@json_fields(inline=("rent",))
@dataclass(frozen=True, slots=True, kw_only=True)
class RentDocument(JsonDocument):
    """The answer of ``rent``."""

    tokens: float
    """Tokens to train on."""
    rent: Rent
    """The answer."""
    plan: str | None
    """The best plan found on the rented machines, in short; null without one."""


def rent_document(answer: Rent, goal: RentGoal) -> RentDocument:
    """The answer of ``rent``."""
    plan = None if answer.best is None else in_short(answer.best.scored.plan)
    return RentDocument(command="rent", tokens=goal.tokens, rent=answer, plan=plan)


def machines_text(rental: Rental) -> str:
    """``16 h100 + 2 a100``."""
    return " + ".join(f"{each.machines} {each.offer}" for each in rental.machines)


def place_text(rental: Rental) -> str:
    """`` at alpha east``; empty where the offers name no place."""
    place = " ".join(part for part in (rental.provider, rental.region) if part)
    return f" at {place}" if place else ""


def rent_report(answer: Rent, goal: RentGoal, model: ModelSpec) -> list[RenderableType]:
    """What was asked, what to rent, the front, and what to know."""
    training = model.training
    batch = f"{training.global_batch} x {training.sequence_length} tokens a step, {training.precision}"
    what = f"{format_count(goal.tokens)} tokens, from {count(answer.offers, 'offer')}"
    parts: list[RenderableType] = [
        Paragraph(f"{model.name} ({batch}): {what}"),
        Paragraph(f"goal: {goal_line(goal)}"),
    ]
    best = answer.best
    if best is not None:
        parts.append(Text(visible(f"Rent: {machines_text(best)}{place_text(best)}"), style="bold"))
        parts += [Indented(Paragraph(line)) for line in _lines(best)]
    if answer.front:
        parts.append(Indented(_front(answer)))
    return [*parts, bullets(_notes(answer), mark="!")]


def goal_line(goal: RentGoal) -> str:
    """``the least time; in at most 30 days; for at most 90,000``."""
    parts = [f"the {WORDS[goal.wanted]}"]
    parts += [f"in at most {long_text(goal.deadline_seconds)}"] if goal.deadline_seconds is not None else []
    parts += [f"for at most {money(goal.budget)}"] if goal.budget is not None else []
    parts += [f"at most {count(goal.most, 'machine')}"] if goal.most is not None else []
    return "; ".join(parts)


def _lines(best: Rental) -> Iterator[str]:
    estimate = best.scored.estimate
    hours = f"{significant(best.price_per_hour)} an hour"
    yield (
        f"{long_text(best.seconds)} ±{percent(estimate.spread)}, cost {money(best.price)} ({hours}), "
        + count(estimate.devices, "device")
    )
    if best.goodput < 1:
        yield f"{percent(best.goodput, 3)} of the time is useful work: the rest is checkpoints, restarts and lost work"
    yield f"plan: {in_short(best.scored.plan)}; {duration(estimate.step_seconds, estimate.spread)} a step"


def _front(answer: Rent) -> RenderableType:
    """Machines that no others beat in time and money."""
    unit = time_unit(each.scored.estimate.step_seconds for each in answer.front)
    speed = count_unit(each.scored.estimate.tokens_per_second for each in answer.front)
    columns = (
        words("time against money", least=20),
        words("where", least=8),
        number("takes"),
        number("cost"),
        number(unit.heading("step")),
        number(speed.heading("tokens/s")),
        number("gap"),
    )
    rows = [
        [
            machines_text(each),
            place_text(each).removeprefix(" at "),
            long_text(each.seconds),
            money(each.price),
            unit.show(each.scored.estimate.step_seconds),
            speed.show(each.scored.estimate.tokens_per_second),
            at_most(each.gap),
        ]
        for each in answer.front
    ]
    chosen = [
        index
        for index, each in enumerate(answer.front)
        if answer.best and each.numbers == answer.best.numbers
    ]
    return table(columns, rows, chosen, ruled=False)


def _notes(answer: Rent) -> Iterator[str]:
    if answer.front:
        yield "gap: how much faster machines at no higher cost could be, as far as is proven"
    if answer.without_plan:
        alike: dict[str, list[str]] = {}
        for unable in answer.without_plan:
            alike.setdefault(unable.why, []).append(unable.offer)
        named = "; ".join(f"{', '.join(offers)} ({why})" for why, offers in alike.items())
        yield f"cannot train the model: {named}"
    if answer.best is not None and answer.status != "optimal":
        more = "allow more time with --time-limit"
        yield f"the gap is not closed: {more}, or narrow the search with --provider, --region or --machines"
    for each in answer.nearest:
        kept = f"{limit_time(each.seconds, up=True)}, cost {limit_money(each.price, up=True)}"
        yield f"nearest: {machines_text(each)}{place_text(each)}: {kept}"
    if answer.best is not None:
        yield from answer.best.scored.estimate.warnings


def rent_line(answer: Rent, goal: RentGoal, model: ModelSpec) -> str:
    """The answer in one line that stands alone."""
    what = f"{model.name}, {format_count(goal.tokens)} tokens"
    best = answer.best
    if best is None:
        if answer.status == "unknown":
            return f"{what}: no plan found in time, nothing proven"
        return f"{what}: proven: no machines of these offers {_failing(goal)}"
    stopped = "stopped early, " if answer.interrupted else ""
    return (
        f"{what}: rent {machines_text(best)}{place_text(best)}: {long_text(best.seconds)} for {money(best.price)}, "
        f"{stopped}{WORDS[answer.wanted]} {proof(answer.gap, answer.status)}"
    )


def _failing(goal: RentGoal) -> str:
    late, budget = goal.deadline_seconds, goal.budget
    limits = [] if late is None else [f"in {limit_time(late, up=False)}"]
    limits += [] if budget is None else [f"for {limit_money(budget, up=False)}"]
    return f"train them {' '.join(limits)}" if limits else "can train the model"
