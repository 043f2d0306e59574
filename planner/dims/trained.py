"""Rules of plans for adapters and frozen parts, and for training on documents or pairs of answers.

Adapters and frozen parts (arXiv:2106.09685, arXiv:2305.14314), documents shorter than a sequence, packed or padded, and
pairs of answers stand in the model file; no field of a plan is about them. So does what only some devices can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.capabilities import Capabilities, FrozenKind
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Dimension
from planner.dims.expert import sends_once
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.values import Fault, Plan, groups_of


class FrozenParts(Dimension):
    """Rules alone."""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Whole layers on every device, whose checkpoints need no gradient of what is frozen.

        All layers have something that is trained, so that every stage has too, and its outputs have gradients.
        """
        if not model.frozen:
            return
        what = frozen_text(model)
        if plan.schedule != "1f1b":
            text = f"{what} have next to no gradients of weights to compute apart, expected 1f1b, got {plan.schedule}"
            yield Fault(("schedule",), text)
        for path, group in groups_of(plan):
            if group.tp > 1 and not splits_frozen(target, model):
                whole = undivided_text((target,), model)
                text = f"{target.name} trains {whole} without tensor parallelism, expected 1, got {group.tp}"
                yield Fault((*path, "tp"), text)
        for number, stage in enumerate(plan.stages):
            if stage.recompute == "selective":
                path = ("stages", number, "recompute")
                yield Fault(path, f"{what} go with recompute none or full, got selective")
        if plan.offload.activations != "none":
            path = ("offload", "activations")
            yield Fault(path, f"checkpoints stay on the devices with {what}, expected none")
        moved = plan.offload.optimizer != "none" or plan.offload.parameters != "none"
        if moved and not moves_frozen(target, model):
            text = f"{target.name} keeps a model in four bits on the devices, expected none"
            yield Fault(("offload",), text)


def lack(device_type: DeviceType, training: TrainingSpec) -> str | None:
    """What of a training devices of a type cannot do: ``bf16``, ``deepep``; None for nothing."""
    if training.precision not in device_type.peak_flops:
        return training.precision
    once = training.token_dispatcher != "alltoall"
    return training.token_dispatcher if once and not sends_once(device_type) else None


def splits_frozen(target: Capabilities, model: ModelSpec) -> bool:
    """True when tensor parallelism divides what a target trains of such a model, and what it does not train."""
    lora = model.training.lora
    if lora is not None and lora.base == "nf4-double":
        # Scales of scales would be torn.
        return False
    able = ("linear", "all") if not model.in_four_bits else ("all",)
    return not model.frozen or target.splits_frozen in able


def undivided_text(targets: Iterable[Capabilities], model: ModelSpec) -> str:
    """What of such a model targets do not divide: scales of scales alone, where one of them divides four bits."""
    double = model.training.lora is not None and model.training.lora.base == "nf4-double"
    codes = any(target.splits_frozen == "all" for target in targets)
    return "adapters on nf4-double" if double and codes else frozen_text(model)


def moves_frozen(target: Capabilities, model: ModelSpec) -> bool:
    """True when what a target does not train of such a model may leave the devices: codes do with their shards."""
    return not model.in_four_bits or target.shards_codes


def frozen_text(model: ModelSpec) -> FrozenKind:
    """What makes a model one that is not trained whole."""
    if model.in_four_bits:
        return "adapters on four bits"
    if model.quantised:
        return "adapters on fp8"
    return "adapters" if model.training.lora else "frozen parts"


class Documents(Dimension):
    """Rules alone."""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Sequences that count alike in every step; pairs on single devices."""
        training = model.training
        if not dealt_whole(model):
            return
        pairs = training.preference is not None
        what = "pairs of answers" if pairs else "documents"
        widest = max(group.tp for _, group in groups_of(plan))
        for key, needed, wrong in (
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
