"""AMP: homogeneous degrees by a cost model that knows slow links and unequal layers (Li et al., NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.baselines.building import LayerSeconds, balanced_layers, layer_seconds
from planner.cluster.topology import DeviceType
from planner.cost.estimate import Estimator
from planner.cost.memory import parameters_of
from planner.dims.sharding import gradients_of
from planner.dims.tensor import splits
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.search.heuristics.even import fastest_first, filled, pipeline
from planner.targets import target
from planner.units import divisors


def amp(estimator: Estimator) -> Iterator[Plan]:
    """The one plan of least AMP cost: no ZeRO, no recomputation, no look at memory.

    As in the published code all devices are used, ranks follow the nodes (the fastest pool first here), layer times
    are averaged over the devices and grow with the micro-batch. Its dynamic program over layers comes down to the
    least slowest stage, since our layers are equal; seconds of links are those of our estimate. Trials of the best
    few are left out. Raises PlanError when no degrees use all devices.
    """
    device_types = fastest_first(estimator)
    room = [(device_type, device_type.devices) for device_type in device_types]
    best: tuple[float, Plan] | None = None
    for tp, dp, depth, micro_batch in degrees(device_types, estimator.model):
        one = _average(estimator, device_types, tp)
        ends = [one.ends(stage, depth) for stage in range(depth)]
        share = estimator.model.training.global_batch // dp
        layers = balanced_layers([one.layer] * depth, ends, estimator.model.layers)
        plan = pipeline(filled(room, [(tp, dp, share)] * depth, share // micro_batch), layers, zero=0)
        try:
            seconds = cost(estimator, plan, one)
        except PlanError:
            continue
        if best is None or seconds < best[0]:
            best = seconds, plan
    if best is None:
        devices = sum(device_type.devices for device_type in device_types)
        batch = estimator.model.training.global_batch
        raise PlanError(
            f"no tp x dp x pp uses all {devices} devices with a dp that divides the batch of {batch}"
        )
    yield best[1]


def degrees(device_types: Sequence[DeviceType], model: ModelSpec) -> Iterator[tuple[int, int, int, int]]:
    """Every (tp, dp, stages, micro-batch) that uses all devices and divides nodes and batch."""
    devices = sum(device_type.devices for device_type in device_types)
    for tp in divisors(min(device_type.per_node for device_type in device_types)):
        if any(device_type.per_node % tp for device_type in device_types) or not splits(model, tp):
            continue
        for dp in divisors(devices // tp):
            depth = devices // tp // dp
            if model.training.global_batch % dp or depth > model.layers:
                continue
            for micro_batch in divisors(model.training.global_batch // dp):
                yield tp, dp, depth, micro_batch


def cost(estimator: Estimator, plan: Plan, one: LayerSeconds) -> float:
    """Seconds of a step by AMP's cost model: ``(m - 1) max t + sum t + sends + slowest all-reduce``.

    ``one`` are average seconds of one sequence. Raises PlanError when members of a group cannot talk.
    """
    priced, first = estimator.price(plan), plan.stages[0].replicas[0]
    element = gradients_of(target(plan.target), estimator.model.training, plan.zero).reduced_bytes
    stages = [
        first.micro_batch * (stage.layers * one.layer + one.ends(index, plan.pp))
        for index, stage in enumerate(plan.stages)
    ]
    reductions = [
        ring.reduce_seconds(
            element
            * parameters_of(
                estimator.model,
                layers=stage.layers,
                first=index == 0,
                last=index == plan.pp - 1,
                tp=first.tp,
            )
        )
        for index, (stage, ring) in enumerate(zip(plan.stages, priced.rings, strict=True))
    ]
    sends = sum(send.seconds for send in priced.sends)
    return (first.accumulation_steps - 1) * max(stages) + sum(stages) + sends + max(reductions)


def _average(estimator: Estimator, device_types: Sequence[DeviceType], tp: int) -> LayerSeconds:
    """Seconds of one sequence, averaged over all devices."""
    devices = sum(device_type.devices for device_type in device_types)
    parts = [
        (device_type.devices / devices, layer_seconds(estimator, device_type, tp, 1))
        for device_type in device_types
    ]
    return LayerSeconds(
        layer=sum(part * one.layer for part, one in parts),
        embedding=sum(part * one.embedding for part, one in parts),
        head=sum(part * one.head for part, one in parts),
    )
