"""Even splits, as people tune them by hand, and what such plans are built from: few numbers, no search.

The search looks here for the plan that comes nearest when none fits; the baselines of other planners are built alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product

from planner.capabilities import RECOMPUTES, Recompute
from planner.cluster.topology import DeviceType
from planner.cost.estimate import Estimator
from planner.cost.shape import whole_model
from planner.dims.expert import foldings
from planner.dims.tensor import splits
from planner.errors import PlanError
from planner.plan.checks import check_plan
from planner.plan.placement import replicas_on
from planner.plan.values import WHOLE_EXPERTS, Folding, Plan, ReplicaGroup, Stage
from planner.search.space.choices import usable_device_types
from planner.search.values import Alternative, Scored
from planner.targets import PER_DEVICE, PER_STAGE, UNIFORM, target
from planner.units import divisors

MAX_MICRO_BATCH = 512
"""Largest micro-batch of a device that is tried."""

MICRO_BATCHES = 8
"""Largest micro-batch of the grid of pipelines."""


LocalBatches = list[list[tuple[int, int]]]
"""(devices, share of each) of every device type, [device type][part]; shares add up to the batch, a share may be 0."""


def equal_batches(estimator: Estimator) -> Iterator[Plan]:
    """Every device the same micro-batch; each ZeRO stage, with and without recomputation, fewest steps.

    Where the batch is no multiple of the devices, the fastest get one sequence more.
    """
    device_types = fastest_first(estimator)
    batch = estimator.model.training.global_batch
    devices = min(batch, sum(device_type.devices for device_type in device_types))
    share, extra = divmod(batch, devices)
    for zero in (0, 1, 2, 3):
        for recompute in ("none", "full"):
            most = min(
                most_sequences(estimator, device_type, zero, recompute, devices)
                for device_type in device_types
            )
            steps = min(share, -(-(share + bool(extra)) // most))
            groups = batch_groups(device_types, _spread(device_types, devices, share, extra), steps)
            yield data_parallel(estimator, groups, zero, recompute)


def _spread(device_types: Sequence[DeviceType], devices: int, share: int, extra: int) -> LocalBatches:
    """``share`` for each of the first ``devices``, one more for the first ``extra``."""
    batches = []
    for device_type in device_types:
        used = min(device_type.devices, devices)
        more = min(used, extra)
        devices, extra = devices - used, extra - more
        batches.append([(count, size) for count, size in ((more, share + 1), (used - more, share)) if count])
    return batches


def even_pipelines(estimator: Estimator) -> Iterator[Plan]:
    """Layers and batch divide evenly, one tp, pools one after the other.

    A grid over tp, depth, micro-batch, recomputation and whether the fastest or the slowest pool comes first, with as
    many replicas as divide the batch; devices left over stay idle.
    """
    model, device_types = estimator.model, fastest_first(estimator)
    smallest = min(device_type.per_node for device_type in device_types)
    for tp in sorted(
        {tp for device_type in device_types for tp in divisors(device_type.per_node) if tp <= smallest}
    ):
        rooms = [
            [(device_type, device_type.replicas(tp) * tp) for device_type in order]
            for order in (device_types, device_types[::-1])
        ]
        total = sum(device_type.replicas(tp) for device_type in device_types)
        for depth in (depth for depth in divisors(model.layers) if depth <= total):
            if splits(model, tp):
                for room in rooms:
                    yield from _even(estimator, room, tp, depth, widest(estimator, total // depth))


def _even(
    estimator: Estimator, room: Sequence[tuple[DeviceType, int]], tp: int, depth: int, dp: int
) -> Iterator[Plan]:
    model = estimator.model
    split = tp > 1 and model.training.sequence_length % tp == 0
    share = model.training.global_batch // dp
    for micro_batch in (size for size in divisors(share) if size <= MICRO_BATCHES):
        stages = filled(room, [(tp, dp, share)] * depth, share // micro_batch)
        for recompute, folding in product(RECOMPUTES, foldings(UNIFORM, model, tp, dp, None, None)):
            layers = [model.layers // depth] * depth
            yield pipeline(stages, layers, recompute, sequence_parallel=split, folding=folding)


def widest(estimator: Estimator, most: int) -> int:
    """Most replicas, up to ``most``, that divide the global batch."""
    return max(dp for dp in divisors(estimator.model.training.global_batch) if dp <= most)


def best_of(name: str, plans: Iterable[Plan], estimator: Estimator) -> Alternative:
    """The fastest plan that fits, else the one that lacks least memory, else why there is none.

    A method with a criterion of its own yields one plan. A PlanError that it raises says why it has none.
    """
    fitting: Scored | None = None
    nearest: Scored | None = None
    refused = ""
    try:
        for plan in plans:
            try:
                check_plan(plan, estimator.cluster, estimator.model)
                scored = Scored(plan=plan, estimate=estimator.estimate(plan))
            except PlanError as error:
                refused = refused or error.message.splitlines()[0]
                continue
            if scored.estimate.fits:
                if fitting is None or scored.estimate.step_seconds < fitting.estimate.step_seconds:
                    fitting = scored
            elif nearest is None or missing_bytes(scored) < missing_bytes(nearest):
                nearest = scored
    except PlanError as error:
        refused = error.message
    best = fitting or nearest
    if best is None:
        reason = f"not applicable: {refused or 'nothing to choose from'}"
        return Alternative(family=name, scored=None, chosen=False, reason=reason)
    return Alternative(family=name, scored=best, chosen=False, reason="; ".join(_remarks(best)))


def missing_bytes(scored: Scored) -> float:
    """Bytes that the fullest device or host lacks; negative when all have room."""
    return max(group.memory.missing_bytes for stage in scored.estimate.stages for group in stage.groups)


def _remarks(scored: Scored) -> list[str]:
    """What keeps a plan from running: memory of the fullest device, a runtime of its own."""
    groups = [(index, group) for index, stage in enumerate(scored.estimate.stages) for group in stage.groups]
    index, worst = min(groups, key=lambda entry: entry[1].memory.headroom_bytes)
    missing = -worst.memory.headroom_bytes / 2**30
    remarks = []
    if missing > 0:
        remarks.append(f"does not fit: stage {index}: {worst.gpu} in {worst.pool} lacks {missing:.1f} GiB")
    if not target(scored.plan.target).by_default:
        remarks.append(f"only {scored.plan.target} can run it")
    return remarks


def fastest_first(estimator: Estimator) -> tuple[DeviceType, ...]:
    """Kinds that have the number format, pool by pool, the one with the fastest device first; PlanError for none.

    The order of the cluster file does not count: plan files do not keep it.
    """
    precision = estimator.model.training.precision
    device_types = usable_device_types(estimator.topology, estimator.model)
    if not device_types:
        raise PlanError(f"no device has {precision}")
    peak = {device_type.key: device_type.peak_flops[precision] for device_type in device_types}
    best = {
        device_type.pool: max(peak[key] for key in peak if key[0] == device_type.pool)
        for device_type in device_types
    }
    return tuple(
        sorted(
            device_types,
            key=lambda device_type: (
                -best[device_type.pool],
                device_type.pool,
                -peak[device_type.key],
                device_type.gpu,
            ),
        )
    )


def most_sequences(
    estimator: Estimator, device_type: DeviceType, zero: int, recompute: Recompute, devices: int
) -> int:
    """Largest micro-batch that fits with a batch per device when ``devices`` share the states; 1 even where none fits.

    The plan made of it is then marked with what it lacks.
    """
    pricer, shape = estimator.pricer(PER_DEVICE.name), whole_model(estimator.model, zero, recompute)
    most = min(MAX_MICRO_BATCH, estimator.model.training.global_batch)
    return max(1, pricer.most_sequences(shape, replicas_on(device_type, 1), devices, most))


def batch_groups(device_types: Sequence[DeviceType], batches: LocalBatches, steps: int) -> list[ReplicaGroup]:
    """Single devices with their shares, in at most ``steps`` micro-batches; devices without a share stay idle."""
    return [
        replicas_on(device_type, 1, count, share, min(steps, share))
        for device_type, parts in zip(device_types, batches, strict=True)
        for count, share in parts
        if share
    ]


def data_parallel(
    estimator: Estimator, groups: Sequence[ReplicaGroup], zero: int, recompute: Recompute
) -> Plan:
    """A plan without pipeline."""
    layers = estimator.model.layers
    stage = Stage(first_layer=0, end_layer=layers, replicas=tuple(groups), recompute=recompute)
    return Plan(target=PER_DEVICE.name, zero=zero, stages=(stage,))


def filled(
    room: Iterable[tuple[DeviceType, int]], stages: Iterable[tuple[int, int, int]], steps: int
) -> list[tuple[ReplicaGroup, ...]]:
    """Replicas of each stage, taken from (device type, devices) in order.

    ``stages`` holds (tp, replicas, share of each). Raises PlanError when the devices run out.
    """
    queue = list(room)
    stage_groups = []
    for tp, dp, share in stages:
        groups: list[ReplicaGroup] = []
        while (need := dp - sum(group.count for group in groups)) > 0:
            if not queue:
                raise PlanError(f"fewer devices than {dp} replicas of {tp} on every stage take")
            device_type, left = queue[0]
            taken = min(left // tp, need)
            if taken:
                groups.append(replicas_on(device_type, tp, taken, share, steps))
            queue[:1] = [(device_type, left - taken * tp)] if left - taken * tp >= tp else []
        stage_groups.append(tuple(groups))
    return stage_groups


def pipeline(
    stages: Sequence[tuple[ReplicaGroup, ...]],
    layers: Sequence[int],
    recompute: Recompute = "none",
    zero: int | None = None,
    sequence_parallel: bool = False,
    folding: Folding = WHOLE_EXPERTS,
) -> Plan:
    """A plan of given replicas and layers, [stage]: of another target where the stages differ in tp or dp.

    ``zero`` is 1 when absent and there is something to shard over.
    """
    ends = list(accumulate(layers))
    widths = {(groups[0].tp, sum(group.count for group in groups)) for groups in stages}
    wide = any(dp > 1 for _, dp in widths)
    return Plan(
        target=UNIFORM.name if len(widths) == 1 else PER_STAGE.name,
        zero=int(wide) if zero is None else zero,
        stages=tuple(
            Stage(first_layer=end - count, end_layer=end, replicas=groups, recompute=recompute)
            for groups, count, end in zip(stages, layers, ends, strict=True)
        ),
        sequence_parallel=sequence_parallel,
        ep=folding.ep,
        etp=folding.etp,
    )
