"""Megatron's pipeline layout string: which layers stand on which pipeline rank and chunk."""

from __future__ import annotations

from planner.plan import Plan


def chunk_layers(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk of each pipeline rank, [rank][chunk]: as even as each rank's layers allow.

    Spare layers go to early chunks, but on the first rank to late ones, away from the embedding.
    """
    chunks = []
    for rank, stage in enumerate(plan.stages):
        small, larger = divmod(stage.layers, plan.interleave)
        sizes = [small + 1] * larger + [small] * (plan.interleave - larger)
        chunks.append(tuple(sizes[::-1] if rank == 0 else sizes))
    return tuple(chunks)


def layout(plan: Plan) -> str:
    """The layout in Megatron's order: virtual stage k is chunk k // pp of pipeline rank k % pp."""
    chunks = chunk_layers(plan)
    stages = [chunks[rank][chunk] for chunk in range(plan.interleave) for rank in range(plan.pp)]
    return "E" + "|".join(f"t*{layers}" if layers > 1 else "t" for layers in stages) + "L"
