"""Documents shorter than a sequence, packed or padded, and pairs of answers: what plans they need.

No field of a plan is about them.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.capabilities import Capabilities
from planner.dims.dimension import Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, groups_of


class Documents(Dimension):
    """Rules alone."""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Whole sequences, all of which count alike in every step; pairs on single devices."""
        training = model.training
        if not dealt_whole(model):
            return
        pairs = training.preference is not None
        what = "pairs of answers" if pairs else "documents"
        widest = max(group.tp for _, group in groups_of(plan))
        for key, needed, wrong in (
            ("cp", f"whole sequences, got {plan.cp} parts of each", plan.cp > 1),
            ("sync", "whole gradients in every step, got islands", not plan.sync.exact),
            ("stages", f"replicas of one device, got tp {widest}", pairs and widest > 1),
            ("stages", "equal shards, got unequal ones", pairs and plan.unequal_shards),
            ("offload", "everything on the devices, expected none", pairs and plan.offload.anything),
        ):
            if wrong:
                yield Fault((key,), f"training on {what} needs {needed}")


def dealt_whole(model: ModelSpec) -> bool:
    """True when sequences have documents or pairs, which some dimensions would take apart."""
    return model.training.documents is not None or model.training.preference is not None
