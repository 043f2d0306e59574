"""The table of what each runtime can express, by name: a new one is a room of ``planner.runtimes`` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from planner.capabilities import Capabilities
from planner.errors import UsageError

NAMES = (
    "deepspeed",
    "megatron",
    "torch",
    "flagscale",
)
"""Rooms of ``planner.runtimes``."""

TARGETS: dict[str, Capabilities] = {
    name: import_module(f"planner.runtimes.{name}.capabilities").CAPABILITIES for name in NAMES
}
"""The capability table."""


def target(name: str) -> Capabilities:
    """The row of a target; raises UsageError with the known names."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UsageError(f"unknown target {name!r}, expected one of: {', '.join(TARGETS)}") from None


BY_REQUEST = tuple(name for name, row in TARGETS.items() if not row.by_default)
"""Runtimes that a search considers when asked for."""


def in_words(names: Sequence[str], word: str) -> str:
    """Names in a sentence: ``a, b or c``."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def first_target(fits: Callable[[Capabilities], bool]) -> Capabilities:
    """The first row of the table that fits."""
    return next(row for row in TARGETS.values() if fits(row))


UNIFORM = first_target(
    lambda row: row.tensor_parallel == "one-degree" and row.tensor_parallel_in_pipeline and row.by_default
)
"""Runs plans whose replicas are all alike, with tensor and pipeline parallelism."""
PER_DEVICE = first_target(lambda row: row.batch_without_pipeline == "per-device" and row.by_default)
"""Runs plans without pipeline in which devices have batches of their own."""
PER_STAGE = first_target(lambda row: row.tensor_parallel == "per-stage" and row.dp_per_stage)
"""Runs plans whose stages differ in tensor parallelism and replicas."""
REFERENCE = first_target(lambda row: row.is_reference)
"""Runs of which fits take host time and link utilisation as 1."""
PLAIN_TORCH = first_target(lambda row: row.runs_plain_torch)
"""What measurements on a device are of."""
