"""What baselines are built from: shares and layers by speed, plans from few numbers, and their price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from planner.cluster.topology import Kind
from planner.cost.communication import Ring
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape
from planner.errors import PlanError
from planner.plan.checks import check_plan
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.runtimes.capabilities import Recompute
from planner.runtimes.registry import PER_DEVICE, PER_STAGE, UNIFORM, target
from planner.search.space.choices import usable_kinds
from planner.search.values import Alternative, Scored

ALONE = Ring(size=1, bytes_per_second=float("inf"), latency_seconds=0.0, crosses="device")
"""The ring of a device without neighbours."""
MAX_MICRO_BATCH = 512


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
    found = fitting or nearest
    if found is None:
        reason = f"cannot be formed: {refused or 'nothing to choose from'}"
        return Alternative(family=name, scored=None, chosen=False, reason=reason)
    return Alternative(family=name, scored=found, chosen=False, reason="; ".join(_remarks(found)))


def missing_bytes(scored: Scored) -> float:
    """Bytes that the fullest device lacks; negative when all have room."""
    return -min(group.memory.headroom_bytes for stage in scored.estimate.stages for group in stage.groups)


def _remarks(scored: Scored) -> list[str]:
    """What keeps a plan from running: memory of the fullest device, a runtime of its own."""
    groups = [(index, group) for index, stage in enumerate(scored.estimate.stages) for group in stage.groups]
    index, worst = min(groups, key=lambda entry: entry[1].memory.headroom_bytes)
    missing = -worst.memory.headroom_bytes / 2**30
    found = []
    if missing > 0:
        found.append(f"does not fit: stage {index}: {worst.gpu} in {worst.pool} lacks {missing:.1f} GiB")
    if not target(scored.plan.target).by_default:
        found.append(f"only {scored.plan.target} can run it")
    return found


def fastest_first(estimator: Estimator) -> tuple[Kind, ...]:
    """Kinds that have the number format, pool by pool, the one with the fastest device first; PlanError for none.

    The order of the cluster file does not count: plan files do not keep it.
    """
    precision = estimator.model.training.precision
    kinds = usable_kinds(estimator.topology, estimator.model)
    if not kinds:
        raise PlanError(f"no device has {precision}")
    peak = {kind.key: kind.peak_flops[precision] for kind in kinds}
    best = {kind.pool: max(peak[key] for key in peak if key[0] == kind.pool) for kind in kinds}
    return tuple(sorted(kinds, key=lambda kind: (-best[kind.pool], kind.pool, -peak[kind.key], kind.gpu)))


Dealt = list[list[tuple[int, int]]]
"""(devices, share of each) of every kind, [kind][part]; shares add up to the batch, a share may be 0."""


def by_speed(speeds: Sequence[float], counts: Sequence[int], batch: int) -> Dealt:
    """Whole shares proportional to speed; what rounding leaves goes to the devices that would finish it first."""
    total = sum(speed * count for speed, count in zip(speeds, counts, strict=True))
    shares = [int(batch * speed / total) for speed in speeds]
    extra = [0] * len(shares)
    left = batch - sum(share * count for share, count in zip(shares, counts, strict=True))
    while left > 0:
        first = min(range(len(shares)), key=lambda index: ((shares[index] + 1) / speeds[index], index))
        taken = min(left, counts[first] - extra[first])
        extra[first] += taken
        left -= taken
        if extra[first] == counts[first]:
            shares[first], extra[first] = shares[first] + 1, 0
    return [
        [(number, size) for number, size in ((more, share + 1), (count - more, share)) if number]
        for share, more, count in zip(shares, extra, counts, strict=True)
    ]


def balanced_layers(
    seconds: Sequence[float], extra: Sequence[float], layers: int, most: Sequence[int] | None = None
) -> list[int]:
    """Layers of each stage that make the slowest stage as fast as possible; empty when they do not go in.

    ``seconds`` of one layer and ``extra`` seconds (embedding, head) on each stage; ``most`` layers of each. Every
    next layer goes where it is finished first, which is exact for equal layers.
    """
    stages = range(len(seconds))
    room = most or [layers] * len(seconds)
    found = [1] * len(seconds)
    if len(found) > layers or min(room) < 1:
        return []
    for _ in range(layers - len(found)):
        free = [stage for stage in stages if found[stage] < room[stage]]
        if not free:
            return []
        found[min(free, key=lambda stage: extra[stage] + (found[stage] + 1) * seconds[stage])] += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Forward and backward of one micro-batch without recomputation, collectives of the replica included."""

    layer: float
    embedding: float
    head: float

    def ends(self, stage: int, depth: int) -> float:
        """Seconds of embedding and head on one stage of a pipeline."""
        return (self.embedding if stage == 0 else 0.0) + (self.head if stage == depth - 1 else 0.0)


def layer_seconds(estimator: Estimator, kind: Kind, tp: int, sequences: int) -> LayerSeconds:
    """What a profile on one replica of Megatron would say."""
    pricer = estimator.pricer(UNIFORM.name)
    group = replicas(kind, tp, 1, sequences, 1)
    shape = replace(whole_model(estimator, 0, "none"), chunks=(1,), depth=3)
    found = [pricer.micro_batch(replace(shape, stage=stage), group, sequences, ALONE) for stage in range(3)]
    first, middle, last = (micro.forward_seconds + micro.backward_seconds for micro in found)
    return LayerSeconds(layer=middle, embedding=first - middle, head=last - middle)


def most_sequences(estimator: Estimator, kind: Kind, zero: int, recompute: Recompute, devices: int) -> int:
    """Largest micro-batch of DeepSpeed that fits when ``devices`` share the states; 1 even where none fits.

    The plan made of it is then marked with what it lacks.
    """
    pricer, shape = estimator.pricer(PER_DEVICE.name), whole_model(estimator, zero, recompute)
    low, high = 1, min(MAX_MICRO_BATCH, estimator.model.training.global_batch)
    while low < high:
        middle = (low + high + 1) // 2
        fits = pricer.memory(shape, replicas(kind, 1, 1, middle, 1), devices).fits
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def whole_model(estimator: Estimator, zero: int, recompute: Recompute) -> Shape:
    """The only stage of a plan without pipeline."""
    return Shape(
        chunks=(estimator.model.layers,),
        stage=0,
        depth=1,
        micro_batches=1,
        zero=zero,
        recompute=recompute,
        sequence_parallel=False,
    )


def replicas(kind: Kind, tp: int, count: int, share: int, steps: int) -> ReplicaGroup:
    """Replicas on devices of one kind."""
    return ReplicaGroup(pool=kind.pool, gpu=kind.gpu, tp=tp, count=count, share=share, steps=steps)


def dealt_groups(kinds: Sequence[Kind], dealt: Dealt, steps: int) -> list[ReplicaGroup]:
    """Single devices with their shares, in at most ``steps`` micro-batches; devices without a share stay idle."""
    return [
        replicas(kind, 1, count, share, min(steps, share))
        for kind, parts in zip(kinds, dealt, strict=True)
        for count, share in parts
        if share
    ]


def data_parallel(
    estimator: Estimator, groups: Sequence[ReplicaGroup], zero: int, recompute: Recompute
) -> Plan:
    """A DeepSpeed plan without pipeline."""
    layers = estimator.model.layers
    stage = Stage(first_layer=0, end_layer=layers, replicas=tuple(groups), recompute=recompute)
    return Plan(target=PER_DEVICE.name, zero=zero, stages=(stage,))


def filled(
    room: Iterable[tuple[Kind, int]], stages: Iterable[tuple[int, int, int]], steps: int
) -> list[tuple[ReplicaGroup, ...]]:
    """Replicas of each stage, taken from (kind, devices) in order.

    ``stages`` holds (tp, replicas, share of each). Raises PlanError when the devices run out.
    """
    queue = list(room)
    found = []
    for tp, dp, share in stages:
        groups: list[ReplicaGroup] = []
        while (need := dp - sum(group.count for group in groups)) > 0:
            if not queue:
                raise PlanError(f"fewer devices than {dp} replicas of {tp} on every stage take")
            kind, left = queue[0]
            taken = min(left // tp, need)
            if taken:
                groups.append(replicas(kind, tp, taken, share, steps))
            queue[:1] = [(kind, left - taken * tp)] if left - taken * tp >= tp else []
        found.append(tuple(groups))
    return found


def pipeline(
    stages: Sequence[tuple[ReplicaGroup, ...]],
    layers: Sequence[int],
    recompute: Recompute = "none",
    zero: int | None = None,
    sequence_parallel: bool = False,
) -> Plan:
    """A plan of given replicas and layers, [stage]: Megatron's, or FlagScale's where the stages differ in tp or dp.

    ``zero`` is 1 when absent and there is something to shard over.
    """
    ends = list(accumulate(layers))
    widths = {(groups[0].tp, sum(group.count for group in groups)) for groups in stages}
    wide = any(dp > 1 for _, dp in widths)
    return Plan(
        target=(UNIFORM if len(widths) == 1 else PER_STAGE).name,
        zero=int(wide) if zero is None else zero,
        stages=tuple(
            Stage(first_layer=end - count, end_layer=end, replicas=groups, recompute=recompute)
            for groups, count, end in zip(stages, layers, ends, strict=True)
        ),
        sequence_parallel=sequence_parallel,
    )
