"""Pipeline parallelism: the layers and the devices of each stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, by_stage
from planner.model.spec import ModelSpec
from planner.plan.placement import ends_fault, joins_ends
from planner.plan.values import Fault, Plan, Stage


class PipelineParallelism(Dimension):
    """``Plan.stages``: their number and their layers."""

    fields = ("Plan.stages", "Stage.first_layer", "Stage.end_layer")

    def traits(self, plan: Plan) -> dict[str, str]:
        """Stages, with their layers and devices."""
        return {
            "stages": str(plan.pp),
            "layers": by_stage(str(stage.layers) for stage in plan.stages),
            "devices": by_stage(_devices(stage) for stage in plan.stages),
        }

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Ends of the pipeline that can hold one tied embedding."""
        last = plan.pp - 1
        if model.encoder is not None and target.encoder_decoders == "whole" and last:
            what = f"hetplan trains encoder-decoders with {target.name} without a pipeline, expected 1 stage"
            yield Fault(("stages",), f"{what}, got {plan.pp}")
        if joins_ends(target, model):
            wanted = ends_fault(plan.zero, plan.stages[0].replicas, plan.stages[last].replicas)
            if wanted:
                what = f"{target.name} with tied embeddings needs {wanted}"
                yield Fault(("stages", last, "replicas"), what)

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """One layer moved over each border between stages."""
        if plan.interleave > 1:
            return
        for left in range(plan.pp - 1):
            for step, source, sink in ((-1, left, left + 1), (1, left + 1, left)):
                if plan.stages[source].layers > 1:
                    what = f"one layer from stage {source} to {sink}"
                    yield Change("layers", what, _moved(plan, left, step))


def _moved(plan: Plan, left: int, step: int) -> Plan:
    """The border after stage ``left`` moved by ``step`` layers."""
    border = plan.stages[left].end_layer + step
    stages = list(plan.stages)
    stages[left] = replace(stages[left], end_layer=border)
    stages[left + 1] = replace(stages[left + 1], first_layer=border)
    return replace(plan, stages=tuple(stages))


def _devices(stage: Stage) -> str:
    """Devices by pool: ``4 mixed + 2 titan``."""
    pools: Counter[str] = Counter()
    for group in stage.replicas:
        pools[group.pool] += group.devices
    return " + ".join(f"{devices} {pool}" for pool, devices in pools.items())
