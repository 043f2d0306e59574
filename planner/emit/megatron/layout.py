"""Megatron's pipeline layout string: which layers stand on which pipeline rank and chunk."""

from __future__ import annotations

from planner.cost.shape import chunk_layers
from planner.plan.values import Plan


def layout(plan: Plan) -> str:
    """The layout in Megatron's order: virtual stage k is chunk k // pp of pipeline rank k % pp."""
    chunks = [chunk_layers(stage.layers, plan.interleave) for stage in plan.stages]
    counts = [chunks[rank][chunk] for chunk in range(plan.interleave) for rank in range(plan.pp)]
    return "E" + "|".join(f"t*{layers}" if layers > 1 else "t" for layers in counts) + "L"
