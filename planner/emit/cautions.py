"""What a user should know of a launch folder although nothing is wrong with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from planner.runtimes.registry import TARGETS


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


def installed_versions(target: str) -> dict[str, str]:
    """Versions of a target's packages in this Python; absent ones are left out."""
    found = {}
    for name in tried_versions(target):
        try:
            found[name] = metadata.version("megatron-core" if name == "megatron" else name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cautions(target: str, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that were not tried."""
    tried = tried_versions(target)
    return tuple(
        f"{name} {version} is installed here, the launch files were tried with {tried[name]}"
        for name, version in installed.items()
        if not is_tried(version, tried[name])
    )
