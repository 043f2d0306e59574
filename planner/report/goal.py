"""What was asked of the plan, in words; what its limits cost; and why nothing fits, where no plan can give it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group

from planner.cluster.spec import ClusterSpec
from planner.cost.training import Devices, TrainingRun, devices_of
from planner.model.spec import ModelSpec
from planner.plan.checks import model_faults, unwritten
from planner.report.layout import Paragraph, list_section, pairs, paragraphs, section
from planner.report.numbers import (
    count,
    duration,
    limit_money,
    limit_time,
    long_text,
    money,
    percent,
    rate,
    rounded,
    significant,
)
from planner.search.explain.sensitivity import option_text
from planner.search.incumbent import misses
from planner.search.space.choices import offers, targets_of
from planner.search.values import (
    Diagnosis,
    Goal,
    IdleCost,
    LimitCost,
    Limits,
    Nearest,
    Objective,
    OtherFormat,
    SearchResult,
    Simpler,
)
from planner.targets import TARGETS, in_words
from planner.units import format_count


def idle_text(entry: IdleCost) -> str:
    """``idle: 4 T4 (t4): using them costs +7 % (bubble and sends)``."""
    head = f"idle: {entry.idle} {entry.gpu} ({entry.pool})"
    if entry.slower is None:
        return f"{head}: {entry.reason}"
    which = "it" if entry.idle == 1 else "them" if entry.taken == entry.idle else f"{entry.taken} of them"
    if not entry.reason:
        return f"{head}: using {which} costs nothing"
    return f"{head}: using {which} costs +{percent(entry.slower)} ({entry.reason})"


def simpler_texts(entries: Sequence[Simpler], spread: float) -> Iterator[str]:
    """``simpler and 3 % slower, within the error bar of ±33 %: torch: pipeline, 4 devices less; --simple chooses it``.

    The option chooses the first entry, so that only its text ends with it.
    """
    for number, entry in enumerate(entries):
        yield _simpler_text(entry, spread) + ("" if number else "; --simple chooses it")


def _simpler_text(entry: Simpler, spread: float) -> str:
    slower = f"{percent(entry.slower)} slower" if entry.slower > 0 else "as fast"
    less = _simpler_by(entry, "less", "RDMA stays on")
    return f"simpler and {slower}, within the error bar of ±{percent(spread)}: {less}"


def tie_text(entry: Simpler, spread: float) -> str:
    """``3.1 % faster, within the error bar of ±33 %: torch: pipeline, 4 devices more``."""
    faster = f"{percent(1 - 1 / (1 + entry.slower))} faster" if entry.slower > 0 else "as fast"
    return f"{faster}, within the error bar of ±{percent(spread)}: {_simpler_by(entry, 'more', 'RDMA off')}"


def _simpler_by(entry: Simpler, word: str, rdma: str) -> str:
    """A family, and what one plan has less, or the other more."""
    parts = [f"{count(entry.fewer_devices, 'device')} {word}"] if entry.fewer_devices else []
    parts += [f"{count(entry.fewer_stages, 'stage')} {word}"] if entry.fewer_stages else []
    parts += [f"{significant(entry.less_per_hour)} {word} an hour"] if entry.less_per_hour else []
    parts += [rdma] if entry.keeps_rdma else []
    return f"{entry.family}, {', '.join(parts)}"


def format_text(entry: OtherFormat) -> str:
    """``--precision fp16 lets 32 idle devices work: at least 20 % faster``."""
    work = f"--precision {entry.precision} lets {count(entry.idle, 'device')} without {entry.lacking} work"
    if entry.faster <= 0:
        return f"{work}: no faster plan was found at a quick look"
    return f"{work}: at least {percent(entry.faster)} faster, {rate(entry.scored.estimate.tokens_per_second)} tokens/s"


def limits_section(entries: Sequence[LimitCost], step_seconds: float) -> Group:
    """A line for each limit that costs much, and what to allow instead."""
    return list_section("Cost of the limits", (limit_text(entry, step_seconds) for entry in entries))


def limit_text(entry: LimitCost, step_seconds: float) -> str:
    """``--tp 1 costs at least 12 %: with --tp 2 the step is 3.1 s instead of 3.5 s``.

    Of offload that nobody has asked for, what it would save.
    """
    given, instead = option_text(entry.limit, entry.given), option_text(entry.limit, entry.instead)
    faster, slower = duration(entry.scored.estimate.step_seconds), duration(step_seconds)
    if not entry.given:
        saved = percent(1 - 1 / (1 + entry.costs))
        return f"{instead} makes the step at least {saved} faster: {faster} instead of {slower}"
    return f"{given} costs at least {percent(entry.costs)}: with {instead} the step is {faster} instead of {slower}"


def untrained(model: ModelSpec, limits: Limits) -> tuple[str, str] | None:
    """That no target of the search trains the model, and what the nearest one lacks; None where one trains it."""
    rows = targets_of(limits)
    if any(offers(row, model) for row in rows):
        return None
    lacks = [
        [fault.what for fault in model_faults(row, model)] or [unwritten(row, model) or ""] for row in rows
    ]
    nearest = min(lacks, key=len)
    why = "; ".join(nearest)
    if not any(offers(row, model) for row in TARGETS.values()):
        return "no target trains this model", why
    names = in_words([row.name for row in rows], "and")
    return f"{names} {'do' if len(rows) > 1 else 'does'} not train this model", why


def infeasible_section(result: SearchResult, model: ModelSpec, limits: Limits) -> Group:
    """The proof that no plan fits, or that no target trains the model: because, so; nearest miss; hints."""
    lacking, diagnosis = untrained(model, limits), result.diagnosis
    if lacking is None:
        effort = f"proven, {count(result.candidates, 'candidate')}, {duration(result.seconds)}"
        title, claim = f"No plan fits ({effort})", "no plan of this space fits"
    else:
        title, claim = f"{lacking[0][0].upper()}{lacking[0][1:]}", lacking[0]
    if diagnosis is None:
        return section(title)
    return section(title, paragraphs(_argument(diagnosis, claim)), pairs(_remedies(diagnosis)))


def _argument(diagnosis: Diagnosis, claim: str) -> list[str]:
    """Causes of the claim as one sentence over several lines."""
    if not diagnosis.causes:
        return []
    first, *rest = diagnosis.causes
    return [f"Because {first},", *(f"and because {cause}," for cause in rest), f"{claim}."]


def _remedies(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    rows = [("nearest miss", diagnosis.nearest_miss)] if diagnosis.nearest_miss else []
    return [*rows, *(("hint", hint) for hint in diagnosis.hints)]


def unknown_section(result: SearchResult) -> Group:
    """The time limit struck before any plan was found."""
    how = "interrupted" if result.interrupted else "time limit"
    effort = f"{count(result.candidates, 'candidate')}, {duration(result.seconds)}"
    line = "nothing is proven: a plan may exist; allow more time or narrow the search with --zero, --tp, --pp"
    return section(f"No plan found yet ({how}; {effort})", Paragraph(line))


WANTED: dict[Objective, str] = {
    "time": "the fastest plan",
    "cost": "the lowest cost per token",
    "energy": "the lowest energy per token",
}
LEAST_REGRET = "the least regret at worst, whatever the devices' and networks' speeds are within their bars"
BEST: dict[Objective, str] = {"time": "fastest", "cost": "cheapest", "energy": "most energy-efficient"}
"""The best plan, as a word."""
BETTER: dict[Objective, str] = {"time": "is faster", "cost": "is cheaper", "energy": "uses less energy"}


def goal_text(goal: Goal, *, pareto: bool = False) -> str:
    """The goal in a line, ``pareto`` with time on the other axis; empty for the fastest plan without limits."""
    if goal.fastest and not goal.robust:
        return ""
    parts = [
        f"time against {goal.objective}"
        if pareto
        else LEAST_REGRET
        if goal.robust
        else WANTED[goal.objective]
    ]
    if goal.max_cost_per_million_tokens is not None:
        parts.append(f"at most {cost_text(goal.max_cost_per_million_tokens)}")
    if goal.min_tokens_per_second is not None:
        parts.append(f"at least {speed_text(goal.min_tokens_per_second)}")
    if goal.tokens is not None and goal.deadline_seconds is not None:
        parts.append(f"{format_count(goal.tokens)} tokens in at most {long_text(goal.deadline_seconds)}")
    if goal.tokens is not None and goal.budget is not None:
        parts.append(f"{format_count(goal.tokens)} tokens for at most {money(goal.budget)}")
    parts += [
        f"at most {most} {pool}" if pool else f"at most {count(most, 'device')} in all"
        for pool, most in goal.use_at_most
    ]
    return "; ".join(parts)


def run_text(run: TrainingRun) -> str:
    """``144 days and 12,300``: limits that the run keeps."""
    price = "" if run.price is None else f" and {limit_money(run.price, up=True)}"
    return limit_time(run.seconds, up=True) + price


def training_text(run: TrainingRun, spread: float) -> str:
    """``1 T tokens: 144 days ±33 %, 6.1 MWh, cost 12,300; 97 % of the time is useful work: ...``."""
    error = f" ±{percent(spread)}" if spread and math.isfinite(run.seconds) else ""
    parts = [f"{format_count(run.tokens)} tokens: {long_text(run.seconds)}{error}"]
    if run.joules is not None and math.isfinite(run.joules):
        parts.append(f"{format_count(run.joules / 3600)}Wh at board power")
    if run.price is not None:
        parts.append(f"cost {money(run.price)}")
    text = ", ".join(parts)
    if run.checkpoint_interval_seconds is None:
        return text
    work = f"{percent(run.goodput, 3)} of the time is work: {significant(run.stops)} failures expected"
    return f"{text}; {work}, a checkpoint every {duration(run.checkpoint_interval_seconds)}"


def training_lines(run: TrainingRun, goal: Goal, spread: float) -> list[str]:
    """The run, and the limits of the goal that it breaks."""
    lines = [training_text(run, spread)]
    broken = misses(run, goal)
    if "deadline_seconds" in broken and goal.deadline_seconds is not None:
        late = run.seconds - goal.deadline_seconds
        lines.append(f"misses the deadline of {long_text(goal.deadline_seconds)} by {long_text(late)}")
    if "budget" in broken and goal.budget is not None:
        price = "has no price to set against" if run.price is None else f"costs {money(run.price)}, above"
        lines.append(f"{price} the budget of {money(goal.budget)}")
    return lines


def cost_text(per_million_tokens: float) -> str:
    """``0.432 per million tokens``."""
    return f"{significant(per_million_tokens)} per million tokens"


def speed_text(tokens_per_second: float) -> str:
    """``12.3 k tokens/s``."""
    return f"{rate(tokens_per_second)} tokens/s"


def devices_text(used: Devices, cluster: ClusterSpec) -> str:
    """``8 a100 + 4 V100 (lab)``: the device type is named where a pool of the cluster has several."""
    mixed = {pool.name for pool in cluster.pools if len(set(pool.devices)) > 1}
    return " + ".join(
        f"{devices} {gpu} ({pool})" if pool in mixed else f"{devices} {pool}"
        for (pool, gpu), devices in sorted(used.items())
    )


def nearest_section(result: SearchResult, cluster: ClusterSpec) -> Group:
    """Which limits no plan keeps, and how near plans come."""
    over = "" if result.subclusters is None else f" over {count(result.subclusters, 'sub-cluster')}"
    effort = f"proven{over}, {duration(result.seconds)}"
    lines = [
        nearest_text(entry, result.goal.run_of(entry.scored.estimate), cluster) for entry in result.nearest
    ]
    return section(f"No plan meets the goal ({effort})", paragraphs(lines))


def nearest_text(entry: Nearest, run: TrainingRun | None, cluster: ClusterSpec) -> str:
    """``no plan reaches 20.0 k tokens/s; the fastest reaches 12.3 k tokens/s, on 8 a100``.

    What is reached is rounded so that a limit of just that is kept, and what was asked for the other way.
    """
    others = " within the other limits" if entry.kept else ", without the other limits,"
    others = others if entry.proven else f" that was found in time{others}"
    where = devices_text(devices_of(entry.scored.plan), cluster)
    if entry.limit == "min_tokens_per_second":
        return (
            f"no plan reaches {speed_text(rounded(entry.asked, up=True))}; the fastest{others} reaches "
            f"{speed_text(rounded(entry.scored.estimate.tokens_per_second, up=False))}, on {where}"
        )
    if run is not None and entry.limit == "deadline_seconds":
        what = f"no plan trains {format_count(run.tokens)} tokens in {limit_time(entry.asked, up=False)}"
        return f"{what}; the fastest{others} takes {run_text(run)}, on {where}"
    if run is not None and entry.limit == "budget":
        what = f"no plan trains {format_count(run.tokens)} tokens for {limit_money(entry.asked, up=False)}"
        return f"{what}; the cheapest{others} takes {run_text(run)}, on {where}"
    cost = entry.scored.estimate.cost_per_million_tokens
    assert cost is not None
    most, least = cost_text(rounded(entry.asked, up=False)), significant(rounded(cost, up=True))
    return f"no plan takes at most {most}; the cheapest{others} takes {least}, on {where}"
