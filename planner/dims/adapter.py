"""Adapters and frozen parts (arXiv:2106.09685, arXiv:2305.14314): plans for models that are not trained whole.

What is trained stands in the model file; no field of a plan is about it.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.capabilities import Capabilities
from planner.dims.dimension import Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, groups_of


class FrozenParts(Dimension):
    """Rules alone."""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Whole layers on every device, whose checkpoints need no gradient of what is frozen.

        All layers have something that is trained, so that every stage has too, and its outputs have gradients.
        """
        if not model.frozen:
            return
        what = "adapters" if model.training.lora else "frozen parts"
        if plan.schedule != "1f1b":
            text = f"{what} have next to no gradients of weights to compute apart, expected 1f1b, got {plan.schedule}"
            yield Fault(("schedule",), text)
        for path, group in groups_of(plan):
            if group.tp > 1:
                text = f"hetplan trains {what} without tensor parallelism, expected 1, got {group.tp}"
                yield Fault((*path, "tp"), text)
        for number, stage in enumerate(plan.stages):
            if stage.recompute == "selective":
                path = ("stages", number, "recompute")
                yield Fault(path, f"{what} go with recompute none or full, got selective")
        if plan.offload.activations != "none":
            path = ("offload", "activations")
            yield Fault(path, f"checkpoints stay on the devices with {what}, expected none")
        if model.quantised and (plan.offload.optimizer != "none" or plan.offload.parameters != "none"):
            yield Fault(("offload",), "a model in four bits stays on the devices, expected none")
