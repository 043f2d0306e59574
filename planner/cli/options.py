"""Arguments and options that several commands share, and how their texts become numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.errors import UsageError

ClusterFile = Annotated[Path, typer.Argument(metavar="CLUSTER", help="Cluster file (YAML).")]
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model file (YAML, or a Hugging Face config.json).")
]
PlanFiles = Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plan files written by search -o.")]
SavedPlan = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file written by search -o.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision", metavar="NAME", help="bf16, fp16, fp32, tf32 or fp8 in place of the model file's."
    ),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch", metavar="N", min=1, help="Sequences per step in place of the model file's."
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        "--sequence-length", metavar="N", min=1, help="Tokens per sequence in place of the model file's."
    ),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="Measured constants and curves, which win over the shipped ones.",
    ),
]

LONGEST_RANGE = 10_000
"""Numbers that a range like ``1..64`` may stand for."""


def integers(
    option: str, text: str | None, least: int = 1, most: int | None = None
) -> tuple[int, ...] | None:
    """``1,2,4`` or ``1..4`` or a mixture, sorted, each once; None stays None."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        found.update(_range(option, part.strip(), least))
    if most is not None and max(found) > most:
        raise UsageError(f"{option}: expected numbers from {least} to {most}, got {max(found)}")
    return tuple(sorted(found))


def _range(option: str, part: str, least: int) -> range:
    first, dots, last = part.partition("..")
    ends = [first, last] if dots else [first, first]
    if not all(end.strip().isdecimal() for end in ends):
        raise UsageError(f"{option}: expected whole numbers such as 1,2,4 or 1..4, got {part!r}")
    low, high = int(ends[0]), int(ends[1])
    if low < least or high < low or high - low >= LONGEST_RANGE:
        raise UsageError(f"{option}: expected numbers from {least} upwards, in rising order, got {part!r}")
    return range(low, high + 1)


def choices(option: str, text: str | None, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
    """A comma-separated choice of words in the order of ``allowed``; None stays None."""
    if text is None:
        return None
    found = {part.strip() for part in text.split(",")}
    unknown = sorted(found - set(allowed))
    if unknown:
        raise UsageError(f"{option}: expected some of {', '.join(allowed)}, got {unknown[0]!r}")
    return tuple(word for word in allowed if word in found)
