"""Metis: groups of one type of GPU with tp and dp of their own, layers by speed (Um et al., USENIX ATC 2024).

The search of the published code, with what it gets wrong: a memory check that loosens as groups grow, and no look
at the network between nodes. Left out: pipelines with stages of several types of GPU, which no runtime we describe
runs, orders of types other than by speed and its reverse, group sizes that differ beyond what a type leaves over, and
the measured times of the optimizer and of forward-backward synchronisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.baselines.building import balanced_layers, by_speed, layer_seconds
from planner.cluster.topology import DeviceType
from planner.cost.communication import inside_rate
from planner.cost.estimate import Estimator, boundary_bytes
from planner.cost.memory import parameters_of
from planner.cost.shape import whole_model
from planner.cost.values import Memory
from planner.dims.sharding import gradients_of
from planner.dims.tensor import splits
from planner.errors import PlanError
from planner.plan.placement import place, replicas_on
from planner.plan.values import Plan, ReplicaGroup
from planner.search.heuristics.even import (
    batch_groups,
    data_parallel,
    fastest_first,
    filled,
    pipeline,
)
from planner.targets import PER_DEVICE, UNIFORM
from planner.units import divisors

MEMORY_FACTOR = 5.0
"""Bytes of one device of a group, times this, are held against the memory of the whole group."""
MAX_MICRO_BATCH = 16
"""Largest micro-batch that is profiled."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuType:
    """All devices of one name, whatever their pool; profiled on the first."""

    device_types: tuple[DeviceType, ...]

    @property
    def devices(self) -> int:
        """Devices of all pools."""
        return sum(device_type.devices for device_type in self.device_types)


@dataclass(frozen=True, slots=True)
class StageGroup:
    """The devices of one stage and how they share its work."""

    type: GpuType
    tp: int
    dp: int


def metis(estimator: Estimator) -> Iterator[Plan]:
    """The one plan of least Metis cost; FlagScale's where the stages differ in tp or dp.

    Raises PlanError when none divides the batch, lies on the nodes and passes its memory check.
    """
    types = gpu_types(estimator)
    batches = divisors(estimator.model.training.global_batch)
    candidates = [
        _intra_stage(estimator, sizes, steps)
        for order in dict.fromkeys((types, types[::-1]))
        for sizes in group_sizes(order, estimator.model.layers)
        for steps in batches
    ]
    if len(types) > 1:
        candidates += [_one_mixed_stage(estimator, types, steps) for steps in batches]
    best = min((entry for entry in candidates if entry is not None), key=lambda entry: entry[0], default=None)
    if best is None:
        raise PlanError("no split of its groups divides the batch and passes its memory check")
    yield best[1]


def gpu_types(estimator: Estimator) -> tuple[GpuType, ...]:
    """Types of GPU, fastest first."""
    device_types = fastest_first(estimator)
    names = dict.fromkeys(device_type.gpu for device_type in device_types)
    types = [
        GpuType(tuple(device_type for device_type in device_types if device_type.gpu == name))
        for name in names
    ]
    return tuple(sorted(types, key=lambda item: layer_seconds(estimator, item.device_types[0], 1, 1).layer))


def group_sizes(order: Sequence[GpuType], layers: int) -> Iterator[list[tuple[GpuType, int]]]:
    """(type, devices) of each stage: every type cut into groups of a power of two, what is left over in one more."""
    size = 1
    while True:
        groups = [
            (item, min(size, item.devices - first))
            for item in order
            for first in range(0, item.devices, size)
        ]
        if len(groups) <= layers:
            yield groups
        if size >= max(item.devices for item in order):
            return
        size *= 2


def _intra_stage(
    estimator: Estimator, sizes: Sequence[tuple[GpuType, int]], steps: int
) -> tuple[float, Plan] | None:
    """tp and dp of each group, layers, and the cost: tp 1 everywhere, then dp is halved on the widest group."""
    groups = [StageGroup(item, 1, devices) for item, devices in sizes]
    while True:
        if _runs(estimator, groups, steps):
            layers = _balanced(estimator, groups, steps)
            if layers:
                return _priced(estimator, groups, layers, steps)
        even = [index for index, group in enumerate(groups) if group.dp % 2 == 0]
        if not even:
            return None
        widest = max(even, key=lambda index: groups[index].dp)
        group = groups[widest]
        groups[widest] = replace(group, tp=2 * group.tp, dp=group.dp // 2)


def _runs(estimator: Estimator, groups: Sequence[StageGroup], steps: int) -> bool:
    """True when replicas lie in nodes and micro-batches are whole and were profiled."""
    batch, model = estimator.model.training.global_batch // steps, estimator.model
    return all(
        batch % group.dp == 0
        and batch // group.dp <= MAX_MICRO_BATCH
        and splits(model, group.tp)
        and all(device_type.per_node % group.tp == 0 for device_type in group.type.device_types)
        for group in groups
    )


def _micro_batch(estimator: Estimator, group: StageGroup, steps: int) -> int:
    return estimator.model.training.global_batch // steps // group.dp


def _balanced(estimator: Estimator, groups: Sequence[StageGroup], steps: int) -> list[int]:
    """Layers by compute performance, as many as the memory check lets each group have; empty when too few."""
    depth = len(groups)
    profiles = [
        layer_seconds(estimator, group.type.device_types[0], group.tp, _micro_batch(estimator, group, steps))
        for group in groups
    ]
    most = [_most_layers(estimator, group, stage, depth, steps) for stage, group in enumerate(groups)]
    ends = [one.ends(stage, depth) for stage, one in enumerate(profiles)]
    return balanced_layers([one.layer for one in profiles], ends, estimator.model.layers, most)


def _most_layers(estimator: Estimator, group: StageGroup, stage: int, depth: int, steps: int) -> int:
    """Most layers that pass the memory check; 0 for none."""
    device_type = group.type.device_types[0]
    one = replicas_on(device_type, group.tp, 1, _micro_batch(estimator, group, steps), 1)
    room = group.tp * group.dp * device_type.memory_bytes
    low, high = 0, estimator.model.layers
    while low < high:
        middle = (low + high + 1) // 2
        shape = replace(whole_model(estimator.model, 0, "none"), chunks=(middle,), stage=stage, depth=depth)
        need = MEMORY_FACTOR * _profiled_bytes(estimator.pricer(UNIFORM.name).memory(shape, one, group.dp))
        low, high = (middle, high) if need <= room else (low, middle - 1)
    return low


def _profiled_bytes(memory: Memory) -> float:
    """What its profiles have of memory: states and activations of layers, without the runtime around them."""
    return memory.used_bytes - memory.runtime_bytes


def _priced(
    estimator: Estimator, groups: Sequence[StageGroup], layers: Sequence[int], steps: int
) -> tuple[float, Plan] | None:
    """Cost by Metis and the plan; None where the groups do not lie on the nodes."""
    batch = estimator.model.training.global_batch
    types = dict.fromkeys(group.type for group in groups)
    room = [(device_type, device_type.devices) for item in types for device_type in item.device_types]
    try:
        stages = filled(room, [(group.tp, group.dp, batch // group.dp) for group in groups], steps)
        plan = pipeline(stages, layers, zero=0)
        place(plan, estimator.cluster)
    except PlanError:
        return None
    return cost(estimator, groups, layers, steps), plan


def cost(estimator: Estimator, groups: Sequence[StageGroup], layers: Sequence[int], steps: int) -> float:
    """Seconds of a step: ``(m - 1) max t + sum t + sends + slowest all-reduce``, all at the speed inside a node."""
    depth, stages, reductions, sends = len(groups), [], [], 0.0
    for stage, (group, count) in enumerate(zip(groups, layers, strict=True)):
        device_type, micro_batch = group.type.device_types[0], _micro_batch(estimator, group, steps)
        one = layer_seconds(estimator, device_type, group.tp, micro_batch)
        stages.append(count * one.layer + one.ends(stage, depth))
        reductions.append(_reduction(estimator, device_type, group.tp, group.dp, count, stage, depth))
        if stage < depth - 1:
            sends += boundary_bytes(estimator.model, micro_batch) / inside_rate(
                device_type, estimator.calibration
            )
    return (steps - 1) * max(stages) + sum(stages) + sends + max(reductions)


def _reduction(
    estimator: Estimator, device_type: DeviceType, tp: int, dp: int, layers: int, stage: int, depth: int
) -> float:
    """Seconds of a ring all-reduce of the gradients inside a node."""
    count = parameters_of(estimator.model, layers=layers, first=stage == 0, last=stage == depth - 1, tp=tp)
    size = count * gradients_of(UNIFORM, estimator.model.training, 0).reduced_bytes
    return 2 * (dp - 1) / dp * size / inside_rate(device_type, estimator.calibration)


def _one_mixed_stage(estimator: Estimator, types: Sequence[GpuType], steps: int) -> tuple[float, Plan] | None:
    """Data parallelism over all types with the micro-batch divided by compute performance.

    None where some device gets nothing or more than was profiled, or the memory check fails; for a mixed group
    it holds the factor times the bytes of all devices against the memory of all.
    """
    model = estimator.model
    device_types = [device_type for item in types for device_type in item.device_types]
    profiled = [item.device_types[0] for item in types for _ in item.device_types]
    counts = [device_type.devices for device_type in device_types]
    speeds = [1 / _replica_seconds(estimator, device_type, 1) for device_type in profiled]
    batches = by_speed(speeds, counts, model.training.global_batch // steps)
    groups = batch_groups(device_types, batches, 1)
    sizes = [size for parts in batches for _, size in parts]
    if min(sizes) < 1 or max(sizes) > MAX_MICRO_BATCH or not _holds(estimator, device_types, groups):
        return None
    slowest = max(
        _replica_seconds(estimator, device_type, max(size for _, size in parts))
        for device_type, parts in zip(profiled, batches, strict=True)
    )
    reduction = max(
        _reduction(estimator, device_type, 1, sum(counts), model.layers, 0, 1) for device_type in device_types
    )
    shares = [[(count, size * steps) for count, size in parts] for parts in batches]
    plan = data_parallel(estimator, batch_groups(device_types, shares, steps), 0, "none")
    return steps * slowest + reduction, plan


def _holds(estimator: Estimator, device_types: Sequence[DeviceType], groups: Sequence[ReplicaGroup]) -> bool:
    """True when a mixed group passes the memory check."""
    pricer, shape = estimator.pricer(PER_DEVICE.name), whole_model(estimator.model, 0, "none")
    devices = sum(device_type.devices for device_type in device_types)
    need = sum(group.count * _profiled_bytes(pricer.memory(shape, group, devices)) for group in groups)
    return MEMORY_FACTOR * need <= sum(
        device_type.devices * device_type.memory_bytes for device_type in device_types
    )


def _replica_seconds(estimator: Estimator, device_type: DeviceType, sequences: int) -> float:
    """Seconds of a micro-batch of the whole model on one device."""
    one = layer_seconds(estimator, device_type, 1, sequences)
    return estimator.model.layers * one.layer + one.embedding + one.head
