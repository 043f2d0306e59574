"""Recomputation of activations in the backward (arXiv:2205.05198)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities, Recompute
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, by_stage
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, with_commas


class Recomputation(Dimension):
    """``Stage.recompute``."""

    fields = ("Stage.recompute",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """What each stage recomputes."""
        return {"recomputation": recompute_text(plan)}

    def words(self, plan: Plan) -> str:
        """Where there is any."""
        text = recompute_text(plan)
        return f"{text} recomputation" if text != "no" else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """What the runtime recomputes, and whether stages may differ in it."""
        first = plan.stages[0].recompute
        for number, stage in enumerate(plan.stages):
            path = ("stages", number, "recompute")
            if stage.recompute not in target.recomputes:
                what = f"{target.name} recomputes {with_commas(target.recomputes)}, got {stage.recompute}"
                yield Fault(path, what)
            elif stage.recompute == "selective" and not model.usual_layers:
                what = (
                    "recompute selective takes layers of attention and a feed-forward, expected none or full"
                )
                yield Fault(path, what)
            elif not target.recompute_per_stage and stage.recompute != first:
                what = f"{target.name} has one recomputation for all stages, expected {first}"
                yield Fault(path, f"{what}, got {stage.recompute}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Another recomputation on all stages."""
        for way in target.recomputes:
            if any(stage.recompute != way for stage in plan.stages):
                stages = tuple(replace(stage, recompute=way) for stage in plan.stages)
                what = "no recomputation" if way == "none" else f"{way} recomputation"
                yield Change(f"recompute {way}", what, replace(plan, stages=stages))


def recompute_text(plan: Plan) -> str:
    """The recomputation of all stages: ``no``, ``full``, or ``none|full (x 3)`` where they differ."""
    text = by_stage(stage.recompute for stage in plan.stages)
    return "no" if text == "none" else text


def worth_trying(
    target: Capabilities,
    limit: tuple[Recompute, ...] | None,
    model: ModelSpec,
    device_types: Sequence[DeviceType],
) -> tuple[Recompute, ...]:
    """Recomputations worth trying: with flash attention fused kernels' selective kind has nothing left to save.

    Where there are experts or latent attention it has: their modules whose outputs can be discarded.
    """
    kinds = tuple(item for item in target.recomputes if limit is None or item in limit)
    if model.frozen or not model.usual_layers:
        kinds = tuple(item for item in kinds if item != "selective")
    flash = model.training.attention == "flash" and all(
        target.fuses_attention(one.compute_capability) for one in device_types
    )
    modules = model.experts is not None or model.latent is not None
    if flash and "none" in kinds and not target.eager_layers and not modules:
        return tuple(item for item in kinds if item != "selective")
    return kinds
