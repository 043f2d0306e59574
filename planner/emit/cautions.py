"""What a user should know of a launch folder although nothing is wrong with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from planner.runtimes.interface import runtime


def is_tried(version: str, tried: str) -> bool:
    """True when a version such as 2.13.0+cpu is the tried one, which may be shorter."""
    return f"{version.split('+')[0]}.".startswith(f"{tried}.")


def installed_versions(target: str) -> dict[str, str]:
    """Versions of a target's packages in this Python; absent ones are left out."""
    own = runtime(target)
    distributions = {own.checkout.package: own.checkout.distribution} if own.checkout else {}
    found = {}
    for name in own.tried:
        try:
            found[name] = metadata.version(distributions.get(name, name))
        except metadata.PackageNotFoundError:
            continue
    return found


def cautions(target: str, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that were not tried."""
    tried = runtime(target).tried
    return tuple(
        f"{name} {version} is installed here, the launch files were tried with {tried[name]}"
        for name, version in installed.items()
        if not is_tried(version, tried[name])
    )
