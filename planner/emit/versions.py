"""Versions of the runtimes that the launch files were tried with."""

from __future__ import annotations

from planner.targets import TARGETS


def tried_versions(target: str) -> dict[str, str]:
    """Version by name of the package, for what a job of the target imports."""
    found = {"torch": TARGETS["torch"].version}
    if target == "deepspeed":
        found["deepspeed"] = TARGETS[target].version
    if target == "megatron":
        found["megatron"] = TARGETS[target].version.removeprefix("core ")
    return found


def is_tried(version: str, tried: str) -> bool:
    """True when a version such as 2.13.0+cpu is the tried one, which may be shorter."""
    return f"{version.split('+')[0]}.".startswith(f"{tried}.")
