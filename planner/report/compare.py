"""Plans side by side: speed, memory, where the time goes, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

from rich.console import Group

from planner.cluster.spec import ClusterSpec
from planner.cost.values import CAUSES, PAIR_SPREAD, Estimate
from planner.model.spec import ModelSpec
from planner.plan.file import Difference, cluster_differences, model_differences
from planner.report.layout import bullets, list_section, number, section, table, words
from planner.report.numbers import (
    MISSING,
    CountUnit,
    TimeUnit,
    count_unit,
    gib,
    or_missing,
    percent,
    significant,
    time_unit,
)
from planner.report.plan_table import differences, groups_of, in_short
from planner.search.values import Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One plan of a comparison, or the reason why there is none."""

    name: str
    scored: Scored | None
    cluster_devices: int
    """Devices of the cluster that it is made for."""
    note: str = ""
    """Why there is no plan, where it does not fit, or what makes the comparison uneven (cluster, batch)."""

    @property
    def idle_devices(self) -> int | None:
        """Devices that the plan leaves idle; None without a plan."""
        return self.cluster_devices - self.scored.plan.devices if self.scored else None


def uneven(cluster: ClusterSpec, model: ModelSpec, first_cluster: ClusterSpec, first_model: ModelSpec) -> str:
    """What besides the plan differs from the first: cluster and training settings; empty when nothing."""
    parts = [_listed(model_differences(first_model, model))]
    if cluster != first_cluster:
        changes = _listed(cluster_differences(first_cluster, cluster))
        parts.insert(0, f"made for another cluster ({cluster.name})" + (f": {changes}" if changes else ""))
    return "; ".join(filter(None, parts))


def of_one_model(model: ModelSpec, first: ModelSpec) -> bool:
    """False for plans whose seconds and tokens cannot be compared; names, training and numerics may differ."""
    one, other = (each.model_dump(exclude={"training", "name", "numerics"}) for each in (model, first))
    return one == other


CHANGES = 3
"""Changed fields of a cluster, or of a model, that are named."""


def _listed(changes: Sequence[Difference]) -> str:
    """``without pools[rtx]; safe 0.01; global_batch 64 instead of 256``; names are not told."""
    told = [change for change in changes if change.field != "name"]
    named = [_changed(change) for change in told[:CHANGES]]
    more = len(told) - len(named)
    return "; ".join([*named, *([f"and {more} more"] if more else [])])


def _changed(change: Difference) -> str:
    field = change.field.removeprefix("training.")
    if change.given is None:
        return f"without {field}"
    values = [value for value in (change.given, change.planned) if value is not None]
    if any(isinstance(value, dict | list) for value in values):
        return f"another {field}" if len(values) > 1 else f"with {field}"
    texts = (str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    return f"{field} {' instead of '.join(texts)}"


def compare_section(contenders: Sequence[Contender]) -> Group:
    """Speeds, running cost, times, and one line a plan on what it decides and how it differs from the first."""
    return Group(
        _speed(contenders),
        *_running_cost(contenders),
        _time(contenders),
        list_section("Why", _reasons(contenders)),
    )


def batch_section(contenders: Sequence[Contender]) -> Group:
    """Speeds, and one line a plan on what it decides."""
    lines = [f"{entry.name}: {in_short(entry.scored.plan)}" for entry in contenders if entry.scored]
    return Group(_speed(contenders), section("Decisions", bullets(lines)))


def _priced(contenders: Sequence[Contender]) -> list[tuple[str, Estimate]]:
    """Name and estimate of those that have a plan."""
    return [(entry.name, entry.scored.estimate) for entry in contenders if entry.scored]


def _speed(contenders: Sequence[Contender]) -> Group:
    estimates = [estimate for _, estimate in _priced(contenders)]
    unit = time_unit(estimate.step_seconds for estimate in estimates)
    speed = count_unit(estimate.tokens_per_second for estimate in estimates)
    columns = (
        words("plan", least=16),
        number(unit.heading("step")),
        number(speed.heading("tokens/s")),
        number("time\n(x first)"),
        number("idle"),
        number("peak\n(GiB)"),
        number("least free\n(GiB)"),
    )
    rows = [_speed_row(contender, estimates[0], unit, speed) for contender in contenders]
    notes = [f"{entry.name}: {entry.note}" for entry in contenders if entry.note]
    notes += close_calls(contenders)
    shown = table(columns, rows, fastest(contenders))
    return section("Plans", shown, *([bullets(notes, mark="!")] if notes else []))


def _running_cost(contenders: Sequence[Contender]) -> Iterator[Group]:
    """Price and energy side by side, as far as known."""
    priced = _priced(contenders)
    columns = {
        "price\n(/h)": [estimate.price_per_hour for _, estimate in priced],
        "price\n(/step)": [estimate.cost_per_step for _, estimate in priced],
        "price\n(/M tokens)": [estimate.cost_per_million_tokens for _, estimate in priced],
        "power\n(kW)": [None if estimate.watts is None else estimate.watts / 1000 for _, estimate in priced],
        "energy\n(J/token)": [estimate.joules_per_token for _, estimate in priced],
    }
    known = {title: values for title, values in columns.items() if any(value is not None for value in values)}
    rows = [
        [name, *(or_missing(values[index], significant) for values in known.values())]
        for index, (name, _) in enumerate(priced)
    ]
    if known:
        yield section("Running cost", table((words("plan", least=16), *map(number, known)), rows))


def close_calls(contenders: Sequence[Contender]) -> list[str]:
    """Plans of different speed whose seconds per token may be those of the first, of which more is known on the same
    devices."""
    first, *others = [(entry.name, entry.scored) for entry in contenders if entry.scored]
    close: dict[str, list[str]] = {}
    for name, other in others:
        bar, text = _bar(first[1], other)
        ratio = first[1].estimate.tokens_per_second / other.estimate.tokens_per_second
        if other.estimate.fits and 0.0005 < abs(log(ratio)) <= bar:
            close.setdefault(text, []).append(name)
    return [
        f"not distinguishable from the first plan, {text}: {', '.join(names)}"
        for text, names in close.items()
    ]


def _bar(first: Scored, other: Scored) -> tuple[float, str]:
    """How far apart two steps have to be, and why; on some of the devices most of a bar is in both as well."""
    ours, theirs = first.estimate.spread, other.estimate.spread
    one, two = _types(first), _types(other)
    if (one <= two or two <= one) and ours + theirs > PAIR_SPREAD:
        return PAIR_SPREAD, f"which is known to ±{percent(PAIR_SPREAD)} next to others on these devices"
    return ours + theirs, f"error bars of ±{percent(ours)} overlap"


def _types(scored: Scored) -> set[str]:
    return {group.gpu for stage in scored.plan.stages for group in stage.replicas}


def fastest(contenders: Sequence[Contender]) -> list[int]:
    """Index of the fastest plan that fits; empty when none does."""
    fitting = [
        (-entry.scored.estimate.tokens_per_second, index)
        for index, entry in enumerate(contenders)
        if entry.scored and entry.scored.estimate.fits
    ]
    return [min(fitting)[1]] if fitting else []


def _speed_row(contender: Contender, first: Estimate, unit: TimeUnit, speed: CountUnit) -> list[str]:
    if contender.scored is None:
        return [contender.name, *[MISSING] * 6]
    estimate = contender.scored.estimate
    times = f"{first.tokens_per_second / estimate.tokens_per_second:.2f}"
    least = min(group.memory.headroom_bytes for group in groups_of(estimate))
    return [
        contender.name,
        unit.show(estimate.step_seconds),
        speed.show(estimate.tokens_per_second),
        times if estimate.fits else "no fit",
        str(contender.idle_devices),
        gib(estimate.peak_memory_bytes),
        gib(least),
    ]


def _time(contenders: Sequence[Contender]) -> Group:
    priced = _priced(contenders)
    unit = time_unit(estimate.step_seconds for _, estimate in priced)
    shown = [name for name in CAUSES if any(getattr(estimate.breakdown, name) > 0 for _, estimate in priced)]
    columns = (words("plan", least=12), *(number(CAUSES[name].heading) for name in shown), number("step"))
    shortest = min(estimate.step_seconds for _, estimate in priced)
    rows = [[name, *_causes(estimate, shown, unit, shortest)] for name, estimate in priced]
    return section(f"Step time by cause ({unit.name})", table(columns, rows, gap=1))


def _causes(estimate: Estimate, names: Sequence[str], unit: TimeUnit, shortest: float) -> list[str]:
    """Seconds of some causes and of the step, all with the decimals of the shortest step."""
    causes = [float(getattr(estimate.breakdown, name)) for name in names]
    return [unit.part(seconds, shortest) for seconds in (*causes, estimate.step_seconds)]


def _reasons(contenders: Sequence[Contender]) -> Iterator[str]:
    """The first plan, and how each later one differs from it."""
    first, *others = contenders
    if first.scored is None:
        return
    if others:
        yield f"{first.name}: {in_short(first.scored.plan)}"
    for other in others:
        if other.scored is not None:
            yield f"{other.name}: {reason(other.scored, first.scored)}"


def reason(scored: Scored, first: Scored) -> str:
    """Speed against the first plan, its causes, and the decisions: what differs or all, whichever is shorter."""
    changed = "; ".join(differences(scored.plan, first.plan)) or "the same decisions"
    decided = min(changed, in_short(scored.plan), key=len)
    misfit = "" if scored.estimate.fits else "does not fit, otherwise "
    verdict = _verdict(scored.estimate, first.estimate)
    return f"{misfit}{verdict}{_by_cause(scored.estimate, first.estimate)}. {decided}"


def _verdict(estimate: Estimate, first: Estimate) -> str:
    """Time per token against the first plan."""
    ratio = first.tokens_per_second / estimate.tokens_per_second
    if abs(ratio - 1) < 0.0005:
        return "as fast"
    if 0.9 < ratio < 1.1:
        return f"{percent(ratio - 1)} slower" if ratio > 1 else f"{percent(1 - ratio)} faster"
    return f"takes {significant(ratio)} x the time"


def _by_cause(estimate: Estimate, first: Estimate) -> str:
    """Causes that change the time of a token by at least one percent of the first plan's, largest first."""
    scale = first.tokens_per_second / estimate.tokens_per_second / estimate.step_seconds
    changes = [
        (
            getattr(estimate.breakdown, name) * scale - getattr(first.breakdown, name) / first.step_seconds,
            label.text,
        )
        for name, label in CAUSES.items()
    ]
    shown = sorted((entry for entry in changes if abs(entry[0]) >= 0.01), key=lambda entry: -abs(entry[0]))
    texts = [f"{label} {'+' if change > 0 else '-'}{percent(abs(change))}" for change, label in shown]
    return f" ({', '.join(texts)} of the first plan's step)" if texts else ""
