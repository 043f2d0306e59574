"""A run next to its prediction, in words and tables and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from rich.console import Group

from planner.field_metadata import JsonDocument, json_fields
from planner.logs.comparison import Comparison, Deviation, MemoryDeviation, PartDeviation
from planner.logs.findings import Finding
from planner.logs.reading import Observed
from planner.report.layout import Command, Indented, bullets, number, pairs, section, table, words
from planner.report.numbers import MISSING, count, duration, gib, percent, rate, significant, time_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """A run of a plan next to its prediction."""

    seen: Observed
    comparison: Comparison
    findings: tuple[Finding, ...]


def observed_sections(run: ObservedRun) -> Group:
    """What the log says, step and parts, memory, and what to do."""
    comparison = run.comparison
    parts = [_log(run.seen), _step(comparison)]
    if comparison.parts:
        parts.append(_parts(comparison))
    if comparison.memory:
        parts.append(_memory(comparison))
    return Group(*parts, section("Findings", *map(_finding, run.findings)))


def _log(seen: Observed) -> Group:
    steps = f"{count(len(seen.seconds), 'step time')}, {count(seen.left_out, 'warm-up record')} left out"
    spread = "unknown, fewer than four step times" if seen.spread is None else percent(seen.spread)
    rows = [("source", seen.source), ("step times", steps), ("spread", spread)]
    shown = pairs(rows)
    return section("Log", shown, *([bullets(seen.notes, mark="!")] if seen.notes else []))


def _step(comparison: Comparison) -> Group:
    step, tokens = comparison.step, comparison.tokens
    rows = [
        ["step time", duration(step.predicted, comparison.spread), duration(step.observed), _error(step)],
        ["tokens/s", rate(tokens.predicted), rate(tokens.observed), _error(tokens)],
    ]
    columns = (words("", least=10), number("predicted"), number("observed"), number("error"))
    verdict = "within" if comparison.within else "beyond"
    line = f"the step is {verdict} the estimate's ±{percent(comparison.spread)} (one standard error)"
    return section("Predicted and observed", table(columns, rows), bullets([line]))


def _parts(comparison: Comparison) -> Group:
    unit = time_unit(entry.seconds.observed for entry in comparison.parts)
    columns = (
        words("part", least=17),
        words("of", least=14),
        number(unit.heading("predicted")),
        number(unit.heading("observed")),
        number("error"),
        words("", least=6),
    )
    parts: list[tuple[str, str, Deviation]] = [
        (entry.part, _whose(entry), entry.seconds) for entry in comparison.parts
    ]
    if comparison.rest is not None:
        parts.append(("everything else", parts[0][1], comparison.rest))
    rows = [
        [
            name,
            of,
            unit.show(entry.predicted),
            unit.show(entry.observed),
            _error(entry),
            _verdict(entry, comparison),
        ]
        for name, of, entry in parts
    ]
    return section("Parts of the step", table(columns, rows))


def _memory(comparison: Comparison) -> Group:
    columns = (
        words("rank", least=8),
        number("stage"),
        words("device", least=10),
        words("of", least=11),
        number("predicted\n(GiB)"),
        number("observed\n(GiB)"),
        number("error"),
    )
    rows = [row for entry in _fullest(comparison.memory) for row in _memory_rows(entry)]
    known = sum(entry.rank is not None for entry in comparison.memory)
    lines = ["tensors: peak of the framework's allocator, without device context and libraries"]
    if known < comparison.ranks:
        lines.append(
            f"peaks of {known} of {comparison.ranks} ranks; add the logs of the other nodes for the rest"
        )
    return section("Peak memory of the fullest rank of each stage", table(columns, rows), bullets(lines))


def _fullest(memory: Sequence[MemoryDeviation]) -> list[MemoryDeviation]:
    """Of each stage and device type the rank with the highest peak."""
    fullest: dict[tuple[int, str], MemoryDeviation] = {}
    for entry in memory:
        key = (entry.stage, entry.gpu)
        fullest[key] = max(fullest.get(key, entry), entry, key=lambda each: each.peak.observed)
    return [fullest[key] for key in sorted(fullest)]


def _memory_rows(entry: MemoryDeviation) -> Iterator[list[str]]:
    name = "unknown" if entry.rank is None else str(entry.rank)
    kinds = (
        ("tensors", entry.peak),
        ("states", entry.states),
        ("activations", entry.activations),
        ("fixed", entry.fixed),
    )
    for what, difference in kinds:
        if difference is not None:
            shown = (gib(difference.predicted), gib(difference.observed), _error(difference))
            yield [name, str(entry.stage), entry.gpu, what, *shown]


def _finding(finding: Finding) -> Group:
    """What the numbers say, and under it each command on a line of its own."""
    return Group(bullets([finding.text]), *(Indented(Command(command)) for command in finding.commands))


def _whose(entry: PartDeviation) -> str:
    return f"slowest rank (stage {entry.stage})" if entry.rank is None else f"rank {entry.rank}, {entry.gpu}"


def _error(difference: Deviation) -> str:
    """Predicted over observed, less 1, with its sign."""
    error = difference.error
    if not isfinite(error):
        return MISSING
    return f"{100 * error:+.1f} %" if abs(error) < 10 else f"x {significant(1 + error)}"


def _verdict(difference: Deviation, comparison: Comparison) -> str:
    return "within" if difference.within(comparison.spread) else "beyond"


@json_fields(inline=("difference",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ToldStep:
    """The step time and whether the estimate admits to its error."""

    difference: Deviation
    """Seconds of a step."""
    spread: float
    """Relative standard error that the estimate admits to."""
    within: bool
    """Whether the error is within it."""


@json_fields(inline=("part",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPart:
    """A part of the step and whether the estimate admits to its error."""

    part: PartDeviation
    """The part."""
    within: bool
    """Whether its error is within the spread of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDocument(JsonDocument):
    """The answer of ``compare --log``."""

    log: Observed
    """What the log says."""
    step_seconds: ToldStep
    """Seconds of a step."""
    tokens_per_second: Deviation
    """Tokens of all devices together."""
    parts: tuple[ToldPart, ...]
    """Parts of the step that the runtime timed."""
    rest_seconds: Deviation | None
    """Seconds of the step outside all parts; null without parts of one rank."""
    memory: tuple[MemoryDeviation, ...]
    """Peaks by rank."""
    findings: tuple[Finding, ...]
    """What follows."""
    warnings: tuple[str, ...]
    """What to know of the log."""


def observed_document(run: ObservedRun) -> ObservedDocument:
    """The answer of ``compare --log``."""
    comparison, spread = run.comparison, run.comparison.spread
    return ObservedDocument(
        command="compare --log",
        log=run.seen,
        step_seconds=ToldStep(difference=comparison.step, spread=spread, within=comparison.within),
        tokens_per_second=comparison.tokens,
        parts=tuple(ToldPart(part=part, within=part.seconds.within(spread)) for part in comparison.parts),
        rest_seconds=comparison.rest,
        memory=comparison.memory,
        findings=run.findings,
        warnings=run.seen.notes,
    )
