"""Holmes: stages inside one network each, layers by its speed (Yang et al., arXiv:2312.03549)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, log2

from planner.capabilities import RECOMPUTES
from planner.cluster.topology import DeviceType
from planner.cost.communication import Ring, carried_rates
from planner.cost.estimate import Estimator
from planner.cost.shape import whole_model
from planner.dims.expert import foldings
from planner.dims.tensor import splits
from planner.errors import PlanError
from planner.plan.placement import replicas_on
from planner.plan.values import Plan
from planner.search.heuristics.even import MICRO_BATCHES, fastest_first, filled, pipeline, widest
from planner.targets import UNIFORM
from planner.units import divisors


def holmes(estimator: Estimator) -> Iterator[Plan]:
    """Data parallelism inside a pool, the pipeline across pools, layers by the speed of the pool.

    The smallest pool is one stage, larger ones are one or as many as they hold. tp, micro-batch, recomputation, how
    experts are divided and which pool comes first are set by hand, so the best of a grid.
    """
    model, device_types = estimator.model, fastest_first(estimator)
    if len(device_types) < 2:
        raise PlanError("needs at least two pools")
    if len({device_type.pool for device_type in device_types}) != len(device_types):
        raise PlanError("needs one device type per pool")
    if len(device_types) > model.layers:
        raise PlanError(f"{len(device_types)} pools, but only {model.layers} layers")
    for tp in divisors(min(device_type.per_node for device_type in device_types)):
        dp = widest(estimator, min(device_type.replicas(tp) for device_type in device_types))
        most = tuple(device_type.replicas(tp) // dp for device_type in device_types)
        for stages in dict.fromkeys((most, (1,) * len(device_types))):
            if splits(model, tp) and sum(stages) <= model.layers:
                yield from _pipelines(estimator, device_types, stages, tp, dp)
                yield from _pipelines(estimator, device_types[::-1], stages[::-1], tp, dp)


def _pipelines(
    estimator: Estimator, device_types: Sequence[DeviceType], stages: Sequence[int], tp: int, dp: int
) -> Iterator[Plan]:
    share = estimator.model.training.global_batch // dp
    room = [(device_type, count * dp * tp) for device_type, count in zip(device_types, stages, strict=True)]
    for micro_batch in (size for size in divisors(share) if size <= MICRO_BATCHES):
        speeds = [
            count * _stage_speed(estimator, device_type, tp, dp, micro_batch, sum(stages))
            for device_type, count in zip(device_types, stages, strict=True)
        ]
        layers = holmes_partition(speeds, estimator.model.layers, stages)
        groups = filled(room, [(tp, dp, share)] * sum(stages), share // micro_batch)
        for recompute, folding in product(RECOMPUTES, foldings(UNIFORM, estimator.model, tp, dp, None, None)):
            yield pipeline(
                groups,
                layers,
                recompute,
                sequence_parallel=_splits_sequence(estimator, tp),
                folding=folding,
            )


def _splits_sequence(estimator: Estimator, tp: int) -> bool:
    return tp > 1 and estimator.model.training.sequence_length % tp == 0


def holmes_partition(speeds: Sequence[float], layers: int, stages: Sequence[int]) -> list[int]:
    """Layers of each stage: a pool gets ``floor(S_i / sum S N)``, the last one the rest, evenly on its stages.

    With speeds 197 and 160 this gives the 26/22 of 48 and 16/14 of 30 layers of the
    authors' scripts. Every stage gets at least one layer. Raises PlanError for more stages than layers.
    """
    if sum(stages) > layers:
        raise PlanError(f"{sum(stages)} stages for {layers} layers")
    total = sum(speeds)
    shares = [int(speed / total * layers) for speed in speeds[:-1]]
    shares = [max(count, share) for count, share in zip(stages[:-1], shares, strict=True)]
    while sum(shares) > layers - stages[-1]:
        shares[max(range(len(shares)), key=lambda pool: shares[pool] - stages[pool])] -= 1
    shares.append(layers - sum(shares))
    return [
        share // count + (stage < share % count)
        for share, count in zip(shares, stages, strict=True)
        for stage in range(count)
    ]


def _stage_speed(
    estimator: Estimator, device_type: DeviceType, tp: int, dp: int, micro_batch: int, depth: int
) -> float:
    """Layers per second of a stage on one pool, its synchronisation included, at an even split."""
    layers = max(1, estimator.model.layers // depth)
    steps = estimator.model.training.global_batch // dp // micro_batch
    shape = replace(
        whole_model(estimator.model, 1, "none"), chunks=(layers,), stage=1, depth=3, micro_batches=steps
    )
    path = estimator.topology.path(device_type.pool, device_type.pool)
    if not path.connected:
        raise PlanError(f"the nodes of pool {device_type.pool} cannot communicate")
    ring = Ring(
        size=dp,
        bytes_per_second=min(carried_rates(path, estimator.calibration)) / tp,
        latency_seconds=path.latency_seconds * ceil(log2(dp)),
        crosses=path.fabric or "node",
    )
    group = replicas_on(device_type, tp, dp, steps * micro_batch, steps)
    price = estimator.pricer(UNIFORM.name).price(shape, (group,), ring)
    return layers / (price.work_seconds + price.tail_seconds)
