"""Figures of docs/coverage.md that docs/accuracy.md tells: written from its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Formatter

CLAIMS = {
    "DeepSpeed ZeRO": "step time {zero-paper.mean} % off on {zero-paper.runs} runs",
    "Holmes (": "step time {holmes.mean} % off on {holmes.runs} runs",
    "Megatron-LM 3-D": "step time {megatron-sc21.mean} % off on its {megatron-sc21.runs} rows, "
    "{megatron-sc21-figures.mean} % on {megatron-sc21-figures.runs} of the figures",
    "Sequence parallelism": "{megatron-2022.mean} % off on {megatron-2022.runs} runs",
    "Megatron-DeepSpeed": "{mt-nlg.mean} % too fast on its {mt-nlg.runs} runs",
    "Interleaved 1F1B": "{zero-bubble.mean} % off on {zero-bubble.runs} runs of 1F1B",
    "PyTorch FSDP": "{mpt-fsdp.mean} % off on {mpt-fsdp.runs} runs of MPT, {internevo.mean} % on {internevo.runs} of "
    "InternEvo",
    "ZeRO-Offload": "step time {zero-offload.mean} and {zero-infinity.mean} % off on {zero-offload.runs} and "
    "{zero-infinity.runs} runs",
    "Switch Transformers": "{experts.mean} % off on {experts.runs} runs with experts, rank correlation "
    "{experts.spearman}",
    "AMP": "on the same {amp-t4.runs} runs {amp-t4.mean} %, {amp-t4.spearman} and {amp-t4.regret} %",
    "BMTrain": "{bmtrain.mean} % and {colossal-ai.mean} % off on {bmtrain.runs} and {colossal-ai.runs} runs",
}
"""What the row of a system says; in braces a source, or ``experts`` for all runs with experts, and what of it."""

NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True, slots=True)
class Figures:
    """What accuracy.md says of a source that is left out, without percent signs."""

    runs: str
    mean: str
    spearman: str
    regret: str


def figures(accuracy: str) -> dict[str, Figures]:
    """Of every source, and of the runs with experts."""
    found = {}
    part = accuracy.partition("### Step time, the source left out")[2].partition("\n### ")[0]
    for cells in _rows(part):
        source, runs, mean, _, _, _, spearman, regret, _ = cells
        found[source] = Figures(runs, _number(mean), spearman, _number(regret))
    goals = {
        what: (runs, value)
        for title, what, runs, value, *_ in _rows(accuracy.partition("## Goals")[2].partition("\n## ")[0])
        if title == "Experts (`experts`)"
    }
    runs, mean = goals["step time"]
    return {**found, "experts": Figures(runs, _number(mean), goals["Spearman over all"][1], "-")}


def _rows(text: str) -> Iterator[list[str]]:
    """Cells of the rows of the first table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def _number(text: str) -> str:
    return text.removesuffix(" %")


def written(page: str, found: Mapping[str, Figures]) -> str:
    """The page with these figures; raises ValueError for a claim that the row of its system does not make once."""
    lines = page.splitlines(keepends=True)
    for system, claim in CLAIMS.items():
        (number,) = [index for index, line in enumerate(lines) if line.startswith(f"| {system}")]
        parts = Formatter().parse(claim)
        pattern = "".join(re.escape(text) + (NUMBER if name else "") for text, name, _, _ in parts)
        lines[number], count = re.subn(pattern, claim.format_map(found), lines[number])
        if count != 1:
            raise ValueError(f"docs/coverage.md, {system}: {count} times, expected once: {claim}")
    return "".join(lines)
