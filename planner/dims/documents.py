"""Documents shorter than a sequence, packed or padded: what plans they need. No field of a plan is about them."""

from __future__ import annotations

from collections.abc import Iterator

from planner.dims.dimension import Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan
from planner.runtimes.capabilities import Capabilities


class Documents(Dimension):
    """Rules alone."""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Whole sequences in plans of one stage, all of whose tokens count alike in every step."""
        if model.training.documents is None:
            return
        for path, what, wrong in (
            ("stages", f"one stage, got {plan.pp}", plan.pp > 1),
            ("cp", f"whole sequences, got {plan.cp} parts of each", plan.cp > 1),
            ("sync", "whole gradients in every step, got islands", not plan.sync.exact),
        ):
            if wrong:
                yield Fault((path,), f"training on documents needs {what}")
