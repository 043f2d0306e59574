"""Documents shorter than a sequence, packed or padded, and pairs of answers: what plans they need.

No field of a plan is about them.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.dims.dimension import Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, groups_of
from planner.runtimes.capabilities import Capabilities


class Documents(Dimension):
    """Rules alone."""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Whole sequences, all of which count alike in every step, in one stage where others know of no documents;
        pairs on single devices."""
        training = model.training
        if not dealt_whole(model):
            return
        pairs = training.preference is not None
        what = "pairs of answers" if pairs else "documents"
        widest = max(group.tp for _, group in groups_of(plan))
        for key, needed, wrong in (
            (
                "stages",
                f"one stage with {target.name}, got {plan.pp}",
                plan.pp > 1 and one_stage(target, model),
            ),
            ("cp", f"whole sequences, got {plan.cp} parts of each", plan.cp > 1),
            ("sync", "whole gradients in every step, got islands", not plan.sync.exact),
            ("stages", f"replicas of one device, got tp {widest}", pairs and widest > 1),
            ("stages", "equal shards, got unequal ones", pairs and plan.unequal_shards),
            ("offload", "everything on the devices, expected none", pairs and plan.offload.anything),
        ):
            if wrong:
                yield Fault((key,), f"training on {what} needs {needed}")


def one_stage(target: Capabilities, model: ModelSpec) -> bool:
    """True when the target trains such a model in plans of one stage alone.

    In a pipeline every stage must know where documents end, and the reference of pairs of answers would need forwards
    through all stages ahead of the others.
    """
    pairs = model.training.preference is not None
    return dealt_whole(model) and (pairs or not target.documents_in_pipeline)


def dealt_whole(model: ModelSpec) -> bool:
    """True when sequences have documents or pairs, which some dimensions would take apart."""
    return model.training.documents is not None or model.training.preference is not None
