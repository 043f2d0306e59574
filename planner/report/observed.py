"""A run next to its prediction, in words and tables and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from rich.console import Group

from planner.described import Json
from planner.logs.comparison import Comparison, Difference, MemoryDifference, PartDifference
from planner.logs.findings import Finding
from planner.logs.values import Observed
from planner.report.document import Document, head
from planner.report.layout import Command, Indented, bullets, number, pairs, section, table, words
from planner.report.numbers import MISSING, count, duration, gib, percent, rate, significant, time_unit


def observed_sections(seen: Observed, comparison: Comparison, found: Sequence[Finding]) -> Group:
    """What the log says, step and parts, memory, and what to do."""
    parts = [_log(seen), _step(comparison)]
    if comparison.parts:
        parts.append(_parts(comparison))
    if comparison.memory:
        parts.append(_memory(comparison))
    return Group(*parts, section("What follows", *(_finding(finding) for finding in found)))


def _log(seen: Observed) -> Group:
    steps = f"{count(len(seen.seconds), 'step time')}, {seen.left_out} of the warm-up left out"
    spread = "unknown, fewer than four step times" if seen.spread is None else percent(seen.spread)
    rows = [("printed by", seen.source), ("used", steps), ("spread", spread)]
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
        number(f"predicted\n({unit.name})"),
        number(f"observed\n({unit.name})"),
        number("error"),
        words("", least=6),
    )
    found: list[tuple[str, str, Difference]] = [
        (entry.part, _whose(entry), entry.seconds) for entry in comparison.parts
    ]
    if comparison.rest is not None:
        found.append(("everything else", found[0][1], comparison.rest))
    rows = [
        [
            name,
            of,
            unit.show(entry.predicted),
            unit.show(entry.observed),
            _error(entry),
            _verdict(entry, comparison),
        ]
        for name, of, entry in found
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
    lines = ["tensors: what the framework's allocator holds at most, without context and libraries"]
    if known < comparison.ranks:
        lines.append(
            f"peaks of {known} of {comparison.ranks} ranks; add the logs of the other nodes for theirs"
        )
    return section("Peak memory of the fullest rank of each stage", table(columns, rows), bullets(lines))


def _fullest(memory: Sequence[MemoryDifference]) -> list[MemoryDifference]:
    """Of each stage and kind of device the rank with the highest peak."""
    found: dict[tuple[int, str], MemoryDifference] = {}
    for entry in memory:
        key = (entry.stage, entry.gpu)
        found[key] = max(found.get(key, entry), entry, key=lambda each: each.peak.observed)
    return [found[key] for key in sorted(found)]


def _memory_rows(entry: MemoryDifference) -> Iterator[list[str]]:
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


def _whose(entry: PartDifference) -> str:
    return f"slowest rank (stage {entry.stage})" if entry.rank is None else f"rank {entry.rank}, {entry.gpu}"


def _error(difference: Difference) -> str:
    """Predicted over observed, less 1, with its sign."""
    error = difference.error
    if not isfinite(error):
        return MISSING
    return f"{100 * error:+.1f} %" if abs(error) < 10 else f"x {significant(1 + error)}"


def _verdict(difference: Difference, comparison: Comparison) -> str:
    return "within" if difference.within(comparison.spread) else "beyond"


def observed_document(seen: Observed, comparison: Comparison, found: Sequence[Finding]) -> Document:
    """The answer of ``compare --log``."""
    return {
        **head("compare"),
        "log": {
            "source": seen.source,
            "step_times": len(seen.seconds),
            "warm_up_left_out": seen.left_out,
            "only_warm_up": seen.only_warm_up,
            "spread": seen.spread,
        },
        "step_seconds": {**_keys(comparison.step), "spread": comparison.spread, "within": comparison.within},
        "tokens_per_second": _keys(comparison.tokens),
        "parts": [_part_keys(entry, comparison) for entry in comparison.parts],
        "rest_seconds": None if comparison.rest is None else _keys(comparison.rest),
        "memory": [_memory_keys(entry) for entry in comparison.memory],
        "findings": [
            {"cause": entry.cause, "text": entry.text, "commands": list(entry.commands)} for entry in found
        ],
        "warnings": list(seen.notes),
    }


def _keys(difference: Difference) -> Document:
    return {"predicted": difference.predicted, "observed": difference.observed, "error": difference.error}


def _part_keys(entry: PartDifference, comparison: Comparison) -> Json:
    return {
        "part": entry.part,
        "rank": entry.rank,
        "stage": entry.stage,
        "gpu": entry.gpu,
        "seconds": _keys(entry.seconds),
        "within": entry.seconds.within(comparison.spread),
    }


def _memory_keys(entry: MemoryDifference) -> Json:
    return {
        "rank": entry.rank,
        "stage": entry.stage,
        "gpu": entry.gpu,
        "peak_bytes": _keys(entry.peak),
        "states_bytes": None if entry.states is None else _keys(entry.states),
        "activations_bytes": None if entry.activations is None else _keys(entry.activations),
        "fixed_bytes": None if entry.fixed is None else _keys(entry.fixed),
    }
