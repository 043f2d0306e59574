"""Arguments and options that several commands share, and how their texts become numbers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.errors import UsageError
from planner.files.messages import within
from planner.ranges import RUN_SECONDS, SEQUENCE, TIME_LIMIT, TOKENS, Range
from planner.targets import BY_REQUEST, NAMES, in_words, target

MOST_PROCESSES = 8
"""Of a search, unless it is said: each may need half a gigabyte."""


def argument(metavar: str, text: str, **more: Any) -> Any:
    """A word of the command line, and its line of the help."""
    return typer.Argument(metavar=metavar, help=text, **more)


def option(names: str, metavar: str, text: str, *, allowed: Range | None = None, **more: Any) -> Any:
    """An option with a value, by its names such as ``--output -o``, and its line of the help.

    ``allowed`` is what its number may be.
    """
    words = names.split()
    if allowed is not None:
        more["callback"] = lambda value: within(words[0], value, allowed)
    return typer.Option(*words, metavar=metavar, help=text, **more)


def flag(names: str, text: str, **more: Any) -> Any:
    """An option without a value, and its line of the help."""
    return typer.Option(*names.split(), help=text, **more)


ClusterFile = Annotated[Path, argument("CLUSTER", "Cluster file (YAML).")]
ModelFile = Annotated[Path, argument("MODEL", "Model file (YAML, or a Hugging Face config.json).")]
SavedPlan = Annotated[Path, argument("PLAN", "Plan file written by search -o.")]
AsJson = Annotated[bool, flag("--json", "Print a single JSON document instead of tables.")]
Precision = Annotated[
    str | None,
    option(
        "--precision", "NAME", "Training precision, overriding the model file: bf16, fp16, fp32, tf32 or fp8."
    ),
]
SequenceLength = Annotated[
    int | None,
    option("--sequence-length", "N", "Tokens per sequence, overriding the model file.", allowed=SEQUENCE),
]
CalibrationFile = Annotated[
    Path | None, option("--calibration", "FILE", "Calibration file; overrides the built-in constants.")
]


def _known_target(name: str | None) -> str | None:
    return None if name is None else target(name).name


TargetName = Annotated[
    str | None,
    option(
        "--target",
        "NAME",
        f"Only plans for this runtime: {in_words(NAMES, 'or')}. Default: all but "
        f"{in_words(BY_REQUEST, 'and')}, whose larger space takes several times as long.",
        callback=_known_target,
    ),
]
NeededTokens = Annotated[str, option("--tokens", "N", "Tokens of the whole training, e.g. 300B, 1T or 5e9.")]
Force = Annotated[bool, flag("--force", "Overwrite the output file if it exists.")]
ForceFiles = Annotated[bool, flag("--force", "Replace existing files.")]
ClusterNow = Annotated[
    Path | None, option("--cluster", "FILE", "Check that the plan was made for this cluster file.")
]
ModelNow = Annotated[
    Path | None, option("--model", "FILE", "Check that the plan was made for this model file.")
]

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?(?:e\d{1,2})?)([kmbt]?)", re.IGNORECASE)
_SPAN = re.compile(r"(\d{1,10}(?:\.\d{1,10})?)\s*([smhdw])", re.IGNORECASE)
_SPANS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def tokens_of(text: str) -> float:
    """``300B``, ``1T`` or ``5e9``; raises UsageError."""
    match = _NUMBER.fullmatch(text.strip())
    number = float(match[1]) * _SUFFIXES[match[2].lower()] if match else 0.0
    if not TOKENS.holds(number):
        raise UsageError(f"--tokens: expected a number such as 300B, 1T or 5e9, up to 1e18, got {text!r}")
    return number


def seconds_of(option: str, text: str | None, least: float = RUN_SECONDS.least) -> float | None:
    """``30d``, ``12h``, ``90m`` or ``45s`` in seconds; None stays None; raises UsageError."""
    if text is None:
        return None
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * _SPANS[match[2].lower()] if match else -1.0
    if not least <= seconds <= RUN_SECONDS.most:
        raise UsageError(f"{option}: expected a time such as 30d, 12h, 90m or 45s, got {text!r}")
    return seconds


def require_name(name: str | None) -> str | None:
    """The value of ``--name``; raises UsageError for one that a cluster file could not hold."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(f"--name: expected letters, digits, dots, dashes and underscores, got {name!r}")
    return name


LONGEST_RANGE = 10_000
"""Numbers that a range like ``1..64`` may stand for."""


_MOST_DIGITS = 18
"""Longer numbers are in no range; Python refuses to read very long ones."""


def integers(option: str, text: str | None, allowed: Range) -> tuple[int, ...] | None:
    """``1,2,4`` or ``1..4`` or a mixture, sorted, each once; None stays None."""
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        numbers.update(_range(option, part.strip(), allowed))
    return tuple(sorted(numbers))


def _range(option: str, part: str, allowed: Range) -> range:
    first, dots, last = part.partition("..")
    ends = [end.strip() for end in ([first, last] if dots else [first, first])]
    if not all(end.isdecimal() for end in ends):
        raise UsageError(f"{option}: expected whole numbers such as 1,2,4 or 1..4, got {part!r}")
    low, high = (int(end) if len(end) <= _MOST_DIGITS else -1 for end in ends)
    if not allowed.holds(low) or not allowed.holds(high):
        limits = f"from {allowed.least:.0f} to {allowed.most:.0f}"
        raise UsageError(f"{option}: expected numbers {limits}, got {part!r}")
    if high < low:
        raise UsageError(f"{option}: expected a range from the smaller number to the larger, got {part!r}")
    if high - low >= LONGEST_RANGE:
        raise UsageError(f"{option}: expected a range of at most {LONGEST_RANGE} numbers, got {part!r}")
    return range(low, high + 1)


def time_limit(text: str) -> Any:
    """``--time-limit`` with the help of its command."""
    return option("--time-limit", "SECONDS", text, allowed=TIME_LIMIT)


def proven_gap(text: str, least: float = 0.0) -> Any:
    """``--gap``, at least ``least``, with the help of its command."""
    return option("--gap", "FRACTION", text, allowed=Range(least, 1))


def cores() -> int:
    """Processes that a search may have unless it is said: one for each core of this process, at most 8."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(able, MOST_PROCESSES)


def choices(option: str, text: str | None, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
    """A comma-separated choice of words in the order of ``allowed``; None stays None."""
    if text is None:
        return None
    words = {part.strip() for part in text.split(",")}
    unknown = sorted(words - set(allowed))
    if unknown:
        raise UsageError(f"{option}: expected some of {', '.join(allowed)}, got {unknown[0]!r}")
    return tuple(word for word in allowed if word in words)
