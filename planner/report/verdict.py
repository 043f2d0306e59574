"""What to know before trusting a priced plan."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from planner.cost.values import Estimate, GroupEstimate
from planner.report.layout import warnings_section
from planner.report.numbers import gib


def misfits(estimate: Estimate) -> list[str]:
    """Where the plan does not fit: stage, device or its host, missing GiB."""
    return [
        f"stage {index}: {lacks}"
        for index, stage in enumerate(estimate.stages)
        for group in stage.groups
        for lacks in _lacks(group)
    ]


def _lacks(group: GroupEstimate) -> Iterator[str]:
    memory, missing = group.memory, group.memory.host_bytes - group.memory.host_capacity_bytes
    if memory.headroom_bytes < 0:
        yield f"{group.gpu} in {group.pool} lacks {gib(-memory.headroom_bytes)} GiB"
    if missing > 0:
        yield f"hosts in {group.pool} lack {gib(missing)} GiB for each {group.gpu}"


def warnings_of(estimate: Estimate) -> list[RenderableType]:
    """A section with where the plan does not fit and what the estimate warns of; nothing when all is well."""
    lines = [f"does not fit: {line}" for line in misfits(estimate)] + list(estimate.warnings)
    return [warnings_section(lines)] if lines else []
