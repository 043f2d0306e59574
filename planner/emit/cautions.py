"""What a user should know of a launch folder although nothing is wrong with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from planner.emit.versions import is_tried, tried_versions


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
