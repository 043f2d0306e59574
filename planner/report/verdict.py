"""What to know before trusting a priced plan."""

from __future__ import annotations

from rich.console import RenderableType

from planner.cost.values import Estimate
from planner.report.layout import warnings_section
from planner.report.numbers import gib


def misfits(estimate: Estimate) -> list[str]:
    """Where the plan does not fit: stage, device, missing GiB."""
    return [
        f"stage {index}: {group.gpu} in {group.pool} lacks {gib(-group.memory.headroom_bytes)} GiB"
        for index, stage in enumerate(estimate.stages)
        for group in stage.groups
        if not group.memory.fits
    ]


def warnings_of(estimate: Estimate) -> list[RenderableType]:
    """A section with where the plan does not fit and what the estimate warns of; nothing when all is well."""
    lines = [f"does not fit: {line}" for line in misfits(estimate)] + list(estimate.warnings)
    return [warnings_section(lines)] if lines else []
