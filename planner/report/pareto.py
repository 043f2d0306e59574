"""Time against cost for growing parts of a cluster, and how many devices are worth it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType

from planner.cluster.spec import ClusterSpec
from planner.cost.training import Devices, devices_of
from planner.field_metadata import JsonDocument, json_fields
from planner.model.spec import ModelSpec
from planner.report.document import Understood, understood_inputs
from planner.report.goal import cost_text, devices_text
from planner.report.layout import Paragraph, number, section, table, words
from planner.report.numbers import (
    MISSING,
    at_most,
    count,
    count_unit,
    duration,
    significant,
    time_unit,
)
from planner.search.objectives.pareto import Front, Point

ESTIMATED = (
    *("devices", "step_seconds", "tokens_per_second", "price_per_hour", "watts"),
    *("cost_per_million_tokens", "joules_per_token"),
)
"""What documents tell of the estimate of a point."""
FRONT = "*"
"""Marks points of the Pareto front."""


def front_section(front: Front, cluster: ClusterSpec) -> Group:
    """One row per sub-cluster that is worth a look, slowest first, and the sentence that draws the conclusion."""
    if not front.points:
        return section(f"No plan to set time against {front.objective}", *_left_out(front))
    unit = time_unit(point.seconds for point in front.points)
    speed = count_unit(point.scored.estimate.tokens_per_second for point in front.points)
    rates = (
        ("price\n(/h)", "price\n(/Mtok)") if front.objective == "cost" else ("power\n(kW)", "energy\n(J/tok)")
    )
    columns = (
        words("", least=1),
        words("devices", least=12),
        words("plan", least=18),
        number(unit.heading("step")),
        number(speed.heading("tokens/s")),
        number(rates[0]),
        number(rates[1]),
        number("speed\nup"),
    )
    rows = [
        [
            FRONT if point.front else "",
            devices_text(devices_of(point.scored.plan), cluster),
            short(point),
            unit.show(point.seconds),
            speed.show(point.scored.estimate.tokens_per_second),
            significant(_rate(point, front)),
            significant(point.value),
            gain,
        ]
        for point, gain in zip(front.points, _gains(front.points), strict=True)
    ]
    strong = [] if front.worth is None else [front.worth]
    lines: list[RenderableType] = [table(columns, rows, strong)]
    return section(f"Time against {front.objective}", *lines, *_conclusion(front, cluster), *_left_out(front))


def short(point: Point) -> str:
    """A plan in two words: ``megatron pp 4 tp 2``."""
    plan = point.scored.plan
    widest = max(group.tp for stage in plan.stages for group in stage.replicas)
    parts = [f"{plan.target} {plan.zero_text}" if plan.pp == 1 else f"{plan.target} pp {plan.pp}"]
    parts += [f"tp {widest}"] if widest > 1 else []
    return " ".join(parts)


def _rate(point: Point, front: Front) -> float:
    """Price per hour, or kilowatt."""
    estimate = point.scored.estimate
    rate = estimate.price_per_hour if front.objective == "cost" else estimate.watts
    assert rate is not None, "prices and powers are checked before the search"
    return rate if front.objective == "cost" else rate / 1000


def _gains(points: tuple[Point, ...]) -> Iterator[str]:
    """Speed of each point of the front over the point of the front before it."""
    before: Point | None = None
    for point in points:
        yield f"{before.seconds / point.seconds:.2f}" if before and point.front else MISSING
        before = point if point.front else before


def _conclusion(front: Front, cluster: ClusterSpec) -> Iterator[Paragraph]:
    what = "cheap" if front.objective == "cost" else "energy-efficient"
    yield Paragraph(
        f"{FRONT} Pareto front: no other plan is both as fast and as {what}; speed-up: over the previous {FRONT} row"
    )
    if front.worth is None:
        return
    yield Paragraph(worth_text(front, cluster))


def worth_text(front: Front, cluster: ClusterSpec) -> str:
    """How many devices are worth it, and what all further speed costs."""
    assert front.worth is not None
    best, fastest = front.points[front.worth], front.points[-1]
    what = front.objective
    parts = [
        f"worth using: {best.scored.plan.devices} of {count(cluster.devices, 'device')}, "
        f"{devices_text(devices_of(best.scored.plan), cluster)}, where time x {what} is lowest"
    ]
    if front.worth > 0:
        parts.append(f"with fewer, speed drops by more than {what} does")
    if fastest is not best:
        more = devices_text(devices_of(fastest.scored.plan), cluster)
        speed = f"{more} give {best.seconds / fastest.seconds:.2f} x the speed"
        parts.append(
            f"with more, {what} per token rises by more than speed: {speed} at "
            f"{fastest.value / best.value:.2f} x the {what}"
            if best.value
            else f"more devices are not free: {speed} for {cost_text(fastest.value)}"
        )
    return "; ".join(parts)


def _left_out(front: Front) -> Iterator[Paragraph]:
    yield Paragraph(f"{searched_text(front)}; {duration(front.seconds)}")


def searched_text(front: Front) -> str:
    """What became of the sub-clusters that are not shown."""
    parts = [f"{count(front.subclusters, 'sub-cluster')} considered"]
    parts += [f"{front.beaten} dominated or with idle devices"] if front.beaten else []
    parts += (
        [f"{front.without_plan} without a plan that fits and meets the goal"] if front.without_plan else []
    )
    parts += [f"{front.unfinished} not searched"] if front.unfinished else []
    if front.points:
        widest = max(point.gap for point in front.points)
        parts.append(f"steps within {at_most(widest)} of their bounds")
    return f"{'interrupted: ' if front.interrupted else ''}{'; '.join(parts)}"


def use_at_most(devices: Devices, cluster: ClusterSpec) -> str:
    """The options that ask for these devices."""
    per_pool = {
        pool.name: sum(number for (name, _), number in devices.items() if name == pool.name)
        for pool in cluster.pools
    }
    return " ".join(f"--use-at-most {number}:{name}" for name, number in per_pool.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedDevices:
    """Devices of a point."""

    pool: str
    """A pool of the sub-cluster; points come slowest first."""
    gpu: str
    """A device type in it."""
    devices: int
    """How many are used."""


@json_fields(
    *(f"point.scored.estimate.{name}" for name in ESTIMATED), "point.gap", "point.front", without=("point",)
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point as documents tell it."""

    point: Point
    """The point."""
    used: tuple[UsedDevices, ...]
    """Its devices."""
    plan: str
    """The fastest plan found on them, in short."""


@json_fields(inline=("front",))
@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDocument(JsonDocument):
    """The answer of ``search --pareto``."""

    front: Front
    """What was found."""
    points: tuple[FrontPoint, ...]
    """Slowest first."""
    understood: Understood
    """The inputs."""


def front_document(front: Front, cluster: ClusterSpec, model: ModelSpec) -> FrontDocument:
    """The answer of ``search --pareto``."""
    return FrontDocument(
        command="search --pareto",
        front=front,
        points=tuple(
            FrontPoint(point=point, used=used(point.devices), plan=short(point)) for point in front.points
        ),
        understood=understood_inputs(cluster, model),
    )


def used(devices: Devices) -> tuple[UsedDevices, ...]:
    """Devices as documents tell them."""
    return tuple(
        UsedDevices(pool=pool, gpu=gpu, devices=number) for (pool, gpu), number in sorted(devices.items())
    )
