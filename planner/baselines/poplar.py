"""Poplar: batches by measured speed, one allocation for ZeRO 0 and 1, one for 2 and 3 (arXiv:2408.12596, algorithm 2).

The ZeRO stage and recomputation are what the user asks Poplar for, so the best of them is shown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from planner.baselines.building import by_speed
from planner.capabilities import Recompute
from planner.cluster.topology import DeviceType
from planner.cost.communication import ALONE
from planner.cost.estimate import Estimator
from planner.cost.shape import whole_model
from planner.errors import PlanError
from planner.plan.placement import replicas_on
from planner.plan.values import Plan
from planner.search.heuristics.even import LocalBatches, batch_groups, data_parallel, most_sequences
from planner.search.space.choices import usable_device_types
from planner.targets import PER_DEVICE

WAYS: tuple[tuple[int, Recompute], ...] = ((2, "none"), (2, "full"), (3, "none"), (3, "full"))
"""ZeRO stages that keep step, without and with recomputation."""


def without_lock_step(estimator: Estimator) -> Iterator[Plan]:
    """ZeRO 0 and 1: shares by best measured speed, the rest to the device that finishes first.

    Each device runs the micro-batch at which it is fastest, as often as its share takes. Poplar makes the last
    micro-batch smaller; here all are as even as possible.
    """
    device_types = usable_device_types(estimator.topology, estimator.model)
    counts = [device_type.devices for device_type in device_types]
    for zero in (0, 1):
        for recompute in ("none", "full"):
            curves = [
                measured(estimator, device_type, zero, recompute, sum(counts)) for device_type in device_types
            ]
            sizes = [best_size(curve) for curve in curves]
            speeds = [size / curve[size - 1] for size, curve in zip(sizes, curves, strict=True)]
            batches = by_speed(speeds, counts, estimator.model.training.global_batch)
            groups = [
                replicas_on(device_type, 1, count, share, -(-share // size))
                for device_type, size, parts in zip(device_types, sizes, batches, strict=True)
                for count, share in parts
                if share
            ]
            yield data_parallel(estimator, groups, zero, recompute)


def in_lock_step(estimator: Estimator) -> Iterator[Plan]:
    """ZeRO 2 and 3: the time of a micro-batch is swept, each device takes the most that it finishes in that time.

    Least ``steps (time + traffic)`` wins; the last micro-batch takes what is left. Raises PlanError when some device
    would get nothing with each ZeRO stage, with and without recomputation.
    """
    device_types = usable_device_types(estimator.topology, estimator.model)
    counts = [device_type.devices for device_type in device_types]
    batch = estimator.model.training.global_batch
    if batch < sum(counts):
        raise PlanError(f"ZeRO 2 and 3 give each of {sum(counts)} devices a sequence, the batch has {batch}")
    refused: list[PlanError] = []
    for zero, recompute in WAYS:
        curves = [
            measured(estimator, device_type, zero, recompute, sum(counts)) for device_type in device_types
        ]
        traffic = _traffic_seconds(estimator, device_types, zero, recompute)
        try:
            batches, steps = sweep(curves, counts, batch, traffic)
        except PlanError as error:
            refused.append(error)
            continue
        yield data_parallel(estimator, batch_groups(device_types, batches, steps), zero, recompute)
    if len(refused) == len(WAYS):
        raise refused[0]


def best_size(curve: Sequence[float]) -> int:
    """Sequences of the micro-batch with most sequences per second; ``curve`` is seconds, [sequences - 1]."""
    return max(range(1, len(curve) + 1), key=lambda size: size / curve[size - 1])


def sweep(
    curves: Sequence[Sequence[float]], counts: Sequence[int], batch: int, traffic: float
) -> tuple[LocalBatches, int]:
    """Shares and number of steps of algorithm 2 for ZeRO 2 and 3.

    ``curves`` are seconds of a micro-batch of 1, 2, ... sequences, [type][sequences - 1]; ``traffic`` is seconds of
    collectives in every micro-batch. The batch must hold a sequence for each device.
    """
    rising = [list(accumulate(curve, max)) for curve in curves]
    best: tuple[float, LocalBatches, int] | None = None
    for limit in sorted({seconds for curve in rising for seconds in curve}):
        sizes = [bisect_right(curve, limit) for curve in rising]
        if not all(sizes):
            continue
        steps = -(-batch // sum(size * count for size, count in zip(sizes, counts, strict=True)))
        slowest = max(curve[size - 1] for size, curve in zip(sizes, rising, strict=True))
        batches = _shares(sizes, counts, batch, steps)
        if min(share for parts in batches for _, share in parts) < steps:
            continue
        if best is None or steps * (slowest + traffic) < best[0]:
            best = steps * (slowest + traffic), batches, steps
    if best is None:
        raise PlanError("no limit on the time of a micro-batch leaves every device a sequence in each")
    return best[1], best[2]


def _shares(sizes: Sequence[int], counts: Sequence[int], batch: int, steps: int) -> LocalBatches:
    """All but the last micro-batch are full; the last one is divided in proportion."""
    full = sum(size * count for size, count in zip(sizes, counts, strict=True))
    last = by_speed(sizes, counts, batch - (steps - 1) * full)
    return [
        [(count, (steps - 1) * size + rest) for count, rest in parts]
        for size, parts in zip(sizes, last, strict=True)
    ]


def measured(
    estimator: Estimator, device_type: DeviceType, zero: int, recompute: Recompute, devices: int
) -> list[float]:
    """Seconds of a micro-batch of 1, 2, ... sequences up to the most that fit, without collectives (algorithm 1)."""
    pricer, shape = estimator.pricer(PER_DEVICE.name), whole_model(estimator.model, zero, recompute)
    group = replicas_on(device_type, 1)
    most = most_sequences(estimator, device_type, zero, recompute, devices)
    micro_batches = (pricer.micro_batch(shape, group, size, ALONE) for size in range(1, most + 1))
    return [micro.forward_seconds + micro.backward_seconds for micro in micro_batches]


def _traffic_seconds(
    estimator: Estimator, device_types: Sequence[DeviceType], zero: int, recompute: Recompute
) -> float:
    """Seconds of the collectives in a micro-batch, whether hidden or not."""
    groups = [replicas_on(device_type, 1, device_type.devices, 1, 1) for device_type in device_types]
    ring = estimator.price(data_parallel(estimator, groups, zero, recompute)).rings[0]
    shape = whole_model(estimator.model, zero, recompute)
    micro = estimator.pricer(PER_DEVICE.name).micro_batch(shape, groups[0], 1, ring)
    return micro.zero_seconds + micro.hidden_seconds
