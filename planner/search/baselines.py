"""What people do today, as plans: priced by the same estimate, marked when they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil, log2

from planner.calibration import ASSUMED, Calibration
from planner.cost.communication import Ring, carried_rates
from planner.cost.estimate import Estimator
from planner.cost.stage import Shape
from planner.errors import PlanError
from planner.plan import Plan, ReplicaGroup, Stage
from planner.search.explorer import Explorer
from planner.search.space import divisors, splits, usable_kinds
from planner.search.values import Alternative, Limits, Scored, Silent
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.targets import RECOMPUTES, Recompute
from planner.topology import Kind


def baselines(
    cluster: ClusterSpec, model: ModelSpec, calibration: Calibration = ASSUMED, limits: Limits | None = None
) -> tuple[Alternative, ...]:
    """Each practice with its best plan, or the one that lacks least memory when none fits."""
    estimator = Estimator(cluster, model, calibration)
    if not usable_kinds(estimator.topology, model):
        return ()
    practices: tuple[tuple[str, Callable[[Estimator], Iterable[Plan]]], ...] = (
        ("equal batches (DeepSpeed)", equal_batches),
        ("even pipeline (Megatron-LM)", even_pipelines),
        ("FLOPs-proportional (Whale)", flops_proportional),
        ("a stage per network (Holmes)", holmes),
    )
    found = [_best(name, plans(estimator), estimator) for name, plans in practices]
    if len(cluster.pools) > 1:
        found.append(fastest_pool_only(estimator, limits or Limits()))
    return tuple(found)


def _best(name: str, plans: Iterable[Plan], estimator: Estimator) -> Alternative:
    """The fastest plan that fits, else the one that lacks least memory."""
    fitting: Scored | None = None
    nearest: Scored | None = None
    for plan in plans:
        try:
            scored = Scored(plan=plan, estimate=estimator.estimate(plan))
        except PlanError:
            continue
        if scored.estimate.fits:
            if fitting is None or scored.estimate.step_seconds < fitting.estimate.step_seconds:
                fitting = scored
        elif nearest is None or missing_bytes(scored) < missing_bytes(nearest):
            nearest = scored
    if fitting is not None:
        return Alternative(family=name, scored=fitting, chosen=False, reason="")
    if nearest is not None:
        reason = f"does not fit: {_shortage(nearest)}"
        return Alternative(family=name, scored=nearest, chosen=False, reason=reason)
    return Alternative(family=name, scored=None, chosen=False, reason="cannot be formed on this cluster")


def missing_bytes(scored: Scored) -> float:
    """Bytes that the fullest device lacks."""
    return -min(group.memory.headroom_bytes for stage in scored.estimate.stages for group in stage.groups)


def _shortage(scored: Scored) -> str:
    groups = [group for stage in scored.estimate.stages for group in stage.groups]
    worst = min(groups, key=lambda group: group.memory.headroom_bytes)
    need = worst.memory.used_bytes / 2**30
    have = (worst.memory.capacity_bytes - worst.memory.reserve_bytes) / 2**30
    return f"{worst.pool}/{worst.gpu} needs {need:.1f} GiB, has {have:.1f}"


def equal_batches(estimator: Estimator) -> Iterator[Plan]:
    """DeepSpeed by hand: every device the same micro-batch, each ZeRO stage, the fewest steps that fit."""
    kinds = usable_kinds(estimator.topology, estimator.model)
    devices = sum(kind.devices for kind in kinds)
    batch = estimator.model.training.global_batch
    if batch < devices:
        return
    share, extra = divmod(batch, devices)
    for zero in (0, 1, 2, 3):
        for recompute in ("none", "full"):
            most = min(_most_sequences(estimator, kind, zero, recompute, devices) for kind in kinds)
            steps = -(-(share + bool(extra)) // most) if most else share
            if steps <= share:
                yield _data_parallel(kinds, _spread(kinds, share, extra), steps, zero, recompute, estimator)


def _spread(kinds: Sequence[Kind], share: int, extra: int) -> list[list[tuple[int, int]]]:
    """(count, share) per kind: ``extra`` devices, from the first kind on, get one sequence more."""
    found = []
    for kind in kinds:
        more = min(kind.devices, extra)
        extra -= more
        found.append(
            [(count, size) for count, size in ((more, share + 1), (kind.devices - more, share)) if count]
        )
    return found


def _most_sequences(estimator: Estimator, kind: Kind, zero: int, recompute: Recompute, devices: int) -> int:
    """Largest micro-batch that fits; 0 for none."""
    pricer = estimator.pricer("deepspeed")
    shape = _whole_model(estimator, zero, recompute)
    low, high = 0, min(512, estimator.model.training.global_batch)
    while low < high:
        middle = (low + high + 1) // 2
        group = ReplicaGroup(pool=kind.pool, gpu=kind.gpu, tp=1, count=1, share=middle, steps=1)
        low, high = (middle, high) if pricer.memory(shape, group, devices).fits else (low, middle - 1)
    return low


def _whole_model(estimator: Estimator, zero: int, recompute: Recompute) -> Shape:
    return Shape(
        chunks=(estimator.model.layers,),
        stage=0,
        depth=1,
        micro_batches=1,
        zero=zero,
        recompute=recompute,
        sequence_parallel=False,
    )


def _data_parallel(
    kinds: Sequence[Kind],
    dealt: Sequence[Sequence[tuple[int, int]]],
    steps: int,
    zero: int,
    recompute: Recompute,
    estimator: Estimator,
) -> Plan:
    groups = tuple(
        ReplicaGroup(pool=kind.pool, gpu=kind.gpu, tp=1, count=count, share=share, steps=min(steps, share))
        for kind, parts in zip(kinds, dealt, strict=True)
        for count, share in parts
    )
    stage = Stage(first_layer=0, end_layer=estimator.model.layers, replicas=groups, recompute=recompute)
    return Plan(target="deepspeed", zero=zero, stages=(stage,))


def even_pipelines(estimator: Estimator) -> Iterator[Plan]:
    """Megatron-LM by hand: layers cut evenly, one tp, pools one after the other in the order of the file."""
    model, kinds = estimator.model, usable_kinds(estimator.topology, estimator.model)
    order = {pool.name: index for index, pool in enumerate(estimator.cluster.pools)}
    kinds = tuple(sorted(kinds, key=lambda kind: (order[kind.pool], kind.gpu)))
    for tp in divisors(min(kind.per_node for kind in kinds)):
        replicas = sum(kind.replicas(tp) for kind in kinds)
        if not splits(model, tp):
            continue
        for dp in divisors(replicas):
            depth = replicas // dp
            if model.layers % depth or model.training.global_batch % dp:
                continue
            per_replica = model.training.global_batch // dp
            for micro_batch in (size for size in divisors(per_replica) if size <= 8):
                for recompute in RECOMPUTES:
                    layers = [model.layers // depth] * depth
                    yield _pipeline(kinds, tp, dp, per_replica, per_replica // micro_batch, layers, recompute)


def _pipeline(
    kinds: Sequence[Kind],
    tp: int,
    dp: int,
    share: int,
    steps: int,
    layers: Sequence[int],
    recompute: Recompute,
) -> Plan:
    """Stages of ``dp`` replicas filled from the kinds in order."""
    queue = [(kind, kind.replicas(tp)) for kind in kinds]
    stages = []
    for _ in layers:
        groups: list[ReplicaGroup] = []
        while (need := dp - sum(group.count for group in groups)) > 0:
            kind, left = queue[0]
            taken = min(left, need)
            queue = queue[1:] if taken == left else [(kind, left - taken), *queue[1:]]
            groups += [_replicas(kind, tp, taken, share, steps)] if taken else []
        stages.append(tuple(groups))
    return _megatron(stages, layers, recompute)


def _replicas(kind: Kind, tp: int, count: int, share: int, steps: int) -> ReplicaGroup:
    return ReplicaGroup(pool=kind.pool, gpu=kind.gpu, tp=tp, count=count, share=share, steps=steps)


def _megatron(
    stages: Sequence[tuple[ReplicaGroup, ...]], layers: Sequence[int], recompute: Recompute
) -> Plan:
    """A Megatron plan of given replicas and layers, [stage]."""
    ends = list(accumulate(layers))
    tp, dp = stages[0][0].tp, sum(group.count for group in stages[0])
    return Plan(
        target="megatron",
        zero=1 if dp > 1 else 0,
        stages=tuple(
            Stage(first_layer=end - count, end_layer=end, replicas=groups, recompute=recompute)
            for groups, count, end in zip(stages, layers, ends, strict=True)
        ),
        sequence_parallel=tp > 1,
    )


def flops_proportional(estimator: Estimator) -> Iterator[Plan]:
    """Whale (ATC 2022, algorithm 1): shares by peak FLOP/s, what overflows a memory moves to the least loaded."""
    kinds = usable_kinds(estimator.topology, estimator.model)
    devices = sum(kind.devices for kind in kinds)
    batch = estimator.model.training.global_batch
    speeds = [kind.peak_flops[estimator.model.training.precision] for kind in kinds]
    if batch < devices:
        return
    for zero in (0, 1, 2, 3):
        for recompute in ("none", "full"):
            most = [_most_sequences(estimator, kind, zero, recompute, devices) for kind in kinds]
            if not all(most):
                continue
            fewest = -(-batch // sum(limit * kind.devices for limit, kind in zip(most, kinds, strict=True)))
            for steps in range(fewest, 2 * fewest + 2):
                limits = [limit * steps for limit in most]
                dealt = proportional_shares(speeds, [kind.devices for kind in kinds], limits, batch)
                if dealt and min(share for parts in dealt for _, share in parts) >= steps:
                    yield _data_parallel(kinds, dealt, steps, zero, recompute, estimator)


def proportional_shares(
    speeds: Sequence[float], counts: Sequence[int], limits: Sequence[int], batch: int
) -> list[list[tuple[int, int]]]:
    """(count, share) per kind: shares proportional to speed, cut at ``limits``, the rest to the least utilised.

    Empty when the devices cannot hold the batch. Shares of equal devices differ by at most one.
    """
    total = sum(speed * count for speed, count in zip(speeds, counts, strict=True))
    shares = [min(limit, int(batch * speed / total)) for speed, limit in zip(speeds, limits, strict=True)]
    extra = [0] * len(shares)
    left = batch - sum(share * count for share, count in zip(shares, counts, strict=True))
    while left > 0:
        free = [index for index in range(len(shares)) if shares[index] < limits[index]]
        if not free:
            return []
        valley = min(free, key=lambda index: ((shares[index] + 1) / speeds[index], index))
        taken = min(left, counts[valley] - extra[valley])
        extra[valley] += taken
        left -= taken
        if extra[valley] == counts[valley]:
            shares[valley], extra[valley] = shares[valley] + 1, 0
    return [
        [(number, size) for number, size in ((more, share + 1), (count - more, share)) if number and size]
        for share, more, count in zip(shares, extra, counts, strict=True)
    ]


def holmes(estimator: Estimator) -> Iterator[Plan]:
    """Holmes (arXiv:2312.03549): a stage for each pool, data parallel inside it, layers by the pool's speed."""
    model, kinds = estimator.model, usable_kinds(estimator.topology, estimator.model)
    if len({kind.pool for kind in kinds}) != len(kinds) or len(kinds) < 2 or len(kinds) > model.layers:
        return
    for tp in divisors(min(kind.per_node for kind in kinds)):
        dp = min(kind.replicas(tp) for kind in kinds)
        while dp and model.training.global_batch % dp:
            dp -= 1
        if not dp or not splits(model, tp):
            continue
        share = model.training.global_batch // dp
        used = tuple(replace(kind, nodes=-(-dp * tp // kind.per_node)) for kind in kinds)
        for micro_batch in (size for size in divisors(share) if size <= 8):
            speeds = [_stage_speed(estimator, kind, tp, dp, micro_batch) for kind in used]
            layers = holmes_partition(speeds, model.layers)
            for recompute in RECOMPUTES:
                stages = [(_replicas(kind, tp, dp, share, share // micro_batch),) for kind in used]
                yield _megatron(stages, layers, recompute)


def holmes_partition(speeds: Sequence[float], layers: int, alpha: float = 1.0) -> list[int]:
    """Layers of each stage: ``floor(alpha S_i / sum S N)`` for all but the last, which takes the rest.

    With speeds 197 and 160 this gives the 26/22 of 48 and 16/14 of 30 layers of the authors' scripts.
    """
    total = sum(speeds)
    found = [max(1, int(alpha * speed / total * layers)) for speed in speeds[:-1]]
    return [*found, max(1, layers - sum(found))]


def _stage_speed(estimator: Estimator, kind: Kind, tp: int, dp: int, micro_batch: int) -> float:
    """Layers per second of a stage on one pool, its synchronisation included, at an even split."""
    pools = len({item.pool for item in estimator.topology.kinds})
    layers = max(1, estimator.model.layers // pools)
    steps = estimator.model.training.global_batch // dp // micro_batch
    shape = replace(
        _whole_model(estimator, 1, "none"), chunks=(layers,), stage=1, depth=3, micro_batches=steps
    )
    group = ReplicaGroup(
        pool=kind.pool, gpu=kind.gpu, tp=tp, count=dp, share=steps * micro_batch, steps=steps
    )
    path = estimator.topology.path(kind.pool, kind.pool)
    ring = Ring(
        size=dp,
        bytes_per_second=min(carried_rates(path, estimator.calibration)) / tp,
        latency_seconds=path.latency_seconds * ceil(log2(dp)),
        crosses=path.fabric or "node",
    )
    price = estimator.pricer("megatron").price(shape, (group,), ring)
    return layers / (price.work_seconds + price.tail_seconds)


def fastest_pool_only(estimator: Estimator, limits: Limits) -> Alternative:
    """The best plan on one pool alone, for the pool where it is fastest."""
    found = [only_pool(estimator, pool.name, limits) for pool in estimator.cluster.pools]
    fitting = [item for item in found if item.scored is not None]
    if not fitting:
        return Alternative(
            family="fastest pool only", scored=None, chosen=False, reason="the model fits on no pool alone"
        )
    return min(fitting, key=lambda item: item.scored.estimate.step_seconds if item.scored else 0.0)


def only_pool(estimator: Estimator, pool: str, limits: Limits) -> Alternative:
    """A good plan on one pool alone."""
    cluster = estimator.cluster
    kept = tuple(item for item in cluster.pools if item.name == pool)
    alone = Estimator(cluster.model_copy(update={"pools": kept}), estimator.model, estimator.calibration)
    scored = Explorer(alone, replace(limits, gap=max(limits.gap, 0.02)), Silent()).quick()
    return Alternative(
        family=f"only {pool}",
        scored=scored,
        chosen=False,
        reason="" if scored else "the model does not fit on it",
    )
