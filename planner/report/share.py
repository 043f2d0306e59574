"""What each job gets: the partition and its proof, as text, as a document and as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from planner.cluster.spec import ClusterSpec
from planner.field_metadata import JsonDocument, json_fields
from planner.files.short_lists import compress_hosts
from planner.files.writing import dump
from planner.job.files import EmittedFile
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile, UsedCalibration, cluster_part, to_text
from planner.report.brief import summary_of
from planner.report.layout import Indented, Paragraph, bullets, number, table, words
from planner.report.numbers import (
    at_most,
    count,
    count_unit,
    long_text,
    names,
    or_missing,
    percent,
    proof,
    rate,
    runs,
    significant,
    time_unit,
)
from planner.report.plan_table import in_short
from planner.search.values import SearchResult
from planner.share.crossover import CrossoverPair
from planner.share.search import Need, Portion, Share, ShareObjective

GOALS: dict[ShareObjective, str] = {
    "makespan": "the last job ends soonest",
    "throughput": "the most tokens a second, each times the weight of its job",
    "fairness": "the least favoured job is as well off as can be",
}


@json_fields(inline=("share",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDocument(JsonDocument):
    """The answer of ``share``."""

    share: Share
    """The answer."""
    plans: tuple[str, ...]
    """The plan of each job, in short."""
    crossover: tuple[CrossoverPair, ...] | None
    """Pairs of jobs on the same devices; null where nobody asked."""


def share_document(answer: Share, pairs: Sequence[CrossoverPair] | None) -> ShareDocument:
    """The answer of ``share``."""
    plans = tuple(in_short(each.scored.plan) for each in answer.portions)
    crossover = None if pairs is None else tuple(pairs)
    return ShareDocument(command="share", share=answer, plans=plans, crossover=crossover)


def share_files(
    answer: Share, pairs: Sequence[CrossoverPair], used: UsedCalibration | None
) -> tuple[EmittedFile, ...]:
    """A cluster file and a plan file for each job; those of pairs on the same devices in a folder of their own."""
    found = [
        file
        for each in answer.portions
        for file in _files(each.job, each.cluster, each.model, each.result, used)
    ]
    for pair in pairs:
        for side in pair.plans:
            name = f"{pair.first}+{pair.second}/{side.job.job.name}"
            found += _files(name, side.cluster, side.job.model, side.result, used)
    return tuple(found)


def _files(
    name: str,
    cluster: ClusterSpec,
    model: ModelSpec,
    result: SearchResult,
    used: UsedCalibration | None,
) -> Iterator[EmittedFile]:
    assert result.best is not None
    data = {key: value for key, value in cluster_part(cluster).items() if value}
    yield EmittedFile(f"{name}.cluster.yaml", dump(data))
    plan_file = PlanFile(
        plan=result.best.plan, cluster=cluster, model=model, summary=summary_of(result), calibration=used
    )
    yield EmittedFile(f"{name}.plan.yaml", to_text(plan_file))


def share_report(
    answer: Share, cluster: str, pairs: Sequence[CrossoverPair] | None = None
) -> list[RenderableType]:
    """What was asked, what each job gets, and what to know."""
    parts: list[RenderableType] = [
        Paragraph(f"{count(answer.jobs, 'job')} on {cluster}: {GOALS[answer.objective]}")
    ]
    if answer.portions:
        parts.append(Indented(_table(answer)))
        plans = [f"{each.job}: {in_short(each.scored.plan)}" for each in answer.portions]
        parts.append(Indented(bullets(plans)))
    if pairs is not None:
        parts.append(Text("On the same devices, all of the cluster", style="bold"))
        parts.append(
            Indented(bullets([line for pair in pairs for line in crossing_lines(pair)] or [NO_PAIR]))
        )
    return [*parts, bullets(notes(answer), mark="!")]


NO_PAIR = "plans were not found for two jobs at least"


def crossing_lines(pair: CrossoverPair) -> Iterator[str]:
    """What there is to say of a pair on the same devices."""
    waits = f"{pair.first} waits for the network {percent(pair.network_share)} of its step"
    if pair.fits is None:
        yield f"{waits}; no plan of {pair.second} was found in time that fits beside it"
        return
    if pair.gain is None or pair.first_seconds is None or pair.second_seconds is None:
        yield f"{waits}; {pair.second} does not fit beside it in any of three ways to divide the memory"
        return
    unit = time_unit([pair.first_seconds, pair.second_seconds])
    steps = f"{unit.show(pair.first_seconds)} and {unit.show(pair.second_seconds)} {unit.name} a step"
    alone = f"{unit.show(pair.first_alone_seconds)} and {unit.show(pair.second_alone_seconds)} alone"
    lasting = ""
    if pair.both_seconds is not None and pair.in_turn_seconds is not None:
        lasting = f"; both end after {long_text(pair.both_seconds)}, in turn after {long_text(pair.in_turn_seconds)}"
    yield (
        f"{waits}; {pair.second} fits in memory beside it: {steps} ({alone}), {pair.gain:.2f} times the work of taking "
        f"turns{lasting}"
    )


def _table(answer: Share) -> RenderableType:
    estimates = [each.scored.estimate for each in answer.portions]
    unit = time_unit(each.step_seconds for each in estimates)
    speed = count_unit(each.tokens_per_second for each in estimates)
    columns = (
        words("job", least=8),
        words("gets", least=14),
        number("GPUs"),
        number(unit.heading("step")),
        number(speed.heading("tokens/s")),
        number("takes"),
        number("share"),
        number("gap"),
    )
    rows = [
        [
            each.job,
            where(each),
            str(each.gpus),
            unit.show(each.scored.estimate.step_seconds),
            speed.show(each.scored.estimate.tokens_per_second),
            or_missing(each.seconds, long_text),
            or_missing(each.of_equal_share, "{:.2f}".format),
            at_most(each.gap),
        ]
        for each in answer.portions
    ]
    return table(columns, rows, ruled=False)


def where(portion: Portion) -> str:
    """``v100-[0-2] + t4-0``, or ``lab-01: 2-3``."""
    whole = compress_hosts(host for host in portion.hosts if host not in portion.parts)
    return " + ".join((*whole, *(f"{host}: {runs(numbers)}" for host, numbers in portion.parts.items())))


def notes(answer: Share) -> Iterator[str]:
    """What the reader of the table must know, a line each."""
    if answer.portions:
        yield (
            "share: tokens/s over those of an equal share of time on the whole cluster; gap: of the plan alone"
        )
        yield f"the proof is over {_space(answer)}, which stay until all jobs have ended"
    if answer.idle:
        yield f"no job gets {', '.join(_idle(answer.idle))}"
    if answer.portions and answer.status != "optimal":
        yield "the gap is not closed: allow more time with --time-limit"
    for need in answer.conflict:
        yield from _need(need)
    if answer.jobs > 1 and any(each.cluster.storage_gBps for each in answer.portions):
        yield f"each job is priced with 1/{answer.jobs} of the storage that all nodes read from"
    for each in answer.portions:
        for host, devices in each.parts.items():
            yield (
                f"{each.job} has device{'s' * (len(devices) > 1)} {runs(devices)} of {host}: start it there with "
                f"HETPLAN_DEVICES={','.join(map(str, devices))}"
            )
    if answer.rough:
        yield (
            f"the time did not suffice to prove what {names(answer.rough)} would do on the whole cluster, which "
            "fairness is measured by: --time-limit gives it more"
        )


def _space(answer: Share) -> str:
    return (
        "sub-clusters of whole nodes, or of some devices of one node"
        if answer.divided
        else "sub-clusters of whole nodes"
    )


def _idle(entries: tuple[str, ...]) -> tuple[str, ...]:
    devices = tuple(entry for entry in entries if ":" in entry)
    return (*compress_hosts(entry for entry in entries if ":" not in entry), *devices)


def _need(need: Need) -> Iterator[str]:
    if need.gpus is not None:
        yield f"{need.job} needs {count(need.gpus, 'GPU')} at least"
    for reason in need.reasons:
        yield f"{need.job}: {reason}"
    for hint in need.hints:
        yield f"{need.job}: hint: {hint}"


def share_line(answer: Share) -> str:
    """The answer in one line that stands alone."""
    what = count(answer.jobs, "job")
    if answer.conflict:
        who = [need.job for need in answer.conflict]
        if len(who) == 1:
            return f"{what}: proven: {who[0]} fits nowhere"
        return f"{what}: proven: {names(who)} fit nowhere together"
    if answer.value is None:
        until = "before it was stopped" if answer.interrupted else "in time"
        return f"{what}: no partition found {until}, nothing proven"
    known = answer.status == "optimal" or answer.bound is not None
    claim = proof(answer.gap, answer.status) if known else "nothing proven"
    stopped = "stopped early, " if answer.interrupted else ""
    return f"{what}: {value_text(answer.objective, answer.value)}, {stopped}{claim}"


def value_text(objective: ShareObjective, value: float) -> str:
    """What is least or greatest, in words."""
    if objective == "makespan":
        return f"the last ends after {long_text(value)}"
    if objective == "throughput":
        return f"{rate(value)} weighted tokens/s"
    return f"the least favoured job has {significant(value)} times its weighted equal share"
