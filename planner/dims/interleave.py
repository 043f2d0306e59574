"""Interleaving: several chunks of layers on each device of a pipeline (arXiv:2104.04473, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator

from planner.dims.dimension import Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan
from planner.runtimes.capabilities import Capabilities

MAX_INTERLEAVE = 4
"""Most chunks that are offered."""


class Interleave(Dimension):
    """``Plan.interleave``."""

    fields = ("Plan.interleave",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """Chunks a device."""
        return {"interleaved chunks": str(plan.interleave)}

    def words(self, plan: Plan) -> str:
        """Where there are several."""
        return f"{plan.interleave} interleaved chunks" if plan.interleave > 1 else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Several need a runtime that has them, a pipeline, and micro-batches that fill it."""
        path, chunks = ("interleave",), plan.interleave
        if chunks == 1:
            return
        if not target.interleave:
            yield Fault(path, f"{target.name} cannot interleave, expected 1, got {chunks}")
        elif plan.pp == 1:
            what = "interleaving needs a pipeline of at least 2 stages"
            yield Fault(path, f"{what}, expected 1, got {chunks}")
        elif plan.micro_batches % plan.pp:
            what = f"interleaving needs a multiple of {plan.pp} micro-batches (one for each stage)"
            yield Fault(path, f"{what}, the plan has {plan.micro_batches}")


def interleavings(target: Capabilities, depth: int, micro_batches: int, model: ModelSpec) -> tuple[int, ...]:
    """Chunks worth trying: several only where every group of micro-batches fills the pipeline."""
    if not target.interleave or depth == 1 or micro_batches % depth:
        return (1,)
    return tuple(chunks for chunks in range(1, MAX_INTERLEAVE + 1) if chunks * depth <= model.layers)
