"""The runtimes by name: a new one is a room beside the others and a line here."""

from __future__ import annotations

from importlib import import_module

from planner.errors import UsageError
from planner.runtimes.capabilities import Target

NAMES = (
    "deepspeed",
    "megatron",
    "torch",
    "flagscale",
)
"""Rooms of this package."""

TARGETS: dict[str, Target] = {
    name: import_module(f"planner.runtimes.{name}.capabilities").CAPABILITIES for name in NAMES
}
"""The capability table."""


def target(name: str) -> Target:
    """The row of a target; raises UsageError with the known names."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UsageError(f"unknown target {name!r}, expected one of: {', '.join(TARGETS)}") from None
