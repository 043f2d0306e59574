"""Whale: shares by FLOP/s, shifted where they overflow a memory (Jia et al., USENIX ATC 2022)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from planner.baselines.building import by_speed
from planner.cost.estimate import Estimator
from planner.plan.values import Plan
from planner.search.heuristics.even import LocalBatches, batch_groups, data_parallel, most_sequences
from planner.search.space.choices import usable_device_types


def flops_proportional(estimator: Estimator) -> Iterator[Plan]:
    """A share of the batch for each device by algorithm 1; ZeRO stage, recomputation and steps are set by hand.

    The paper counts single-precision FLOP/s; here it is the peak of the training's number format, which is kinder.
    """
    device_types = usable_device_types(estimator.topology, estimator.model)
    counts = [device_type.devices for device_type in device_types]
    batch = estimator.model.training.global_batch
    speeds = [device_type.peak_flops[estimator.model.training.precision] for device_type in device_types]
    for zero in (0, 1, 2, 3):
        for recompute in ("none", "full"):
            most = [
                most_sequences(estimator, device_type, zero, recompute, sum(counts))
                for device_type in device_types
            ]
            fewest = -(-batch // sum(limit * count for limit, count in zip(most, counts, strict=True)))
            for steps in range(fewest, 2 * fewest + 2):
                batches = shift_overflow(speeds, counts, [limit * steps for limit in most], batch)
                groups = batch_groups(device_types, batches, steps)
                if groups and (zero < 2 or all(group.accumulation_steps == steps for group in groups)):
                    yield data_parallel(estimator, groups, zero, recompute)


def shift_overflow(
    speeds: Sequence[float], counts: Sequence[int], limits: Sequence[int], batch: int
) -> LocalBatches:
    """Whale's algorithm 1 in whole sequences; empty when the devices together cannot hold the batch.

    Shares begin proportional to speed. The device that overflows most sheds its overflow on the one with least work
    for its speed, as much as that one holds, until none overflows.
    """
    device_types = [
        device_type
        for device_type, parts in enumerate(by_speed(speeds, counts, batch))
        for n, _ in parts
        for _ in range(n)
    ]
    shares = [share for parts in by_speed(speeds, counts, batch) for n, share in parts for _ in range(n)]

    def filled(device: int) -> float:
        return shares[device] / limits[device_types[device]]

    peaks = [(-filled(device), device) for device in range(len(shares)) if filled(device) > 1]
    valleys = [
        (shares[device] / speeds[device_types[device]], filled(device), device)
        for device in range(len(shares))
        if filled(device) < 1
    ]
    heapify(peaks)
    heapify(valleys)
    while peaks and valleys:
        (_, peak), (_, _, valley) = heappop(peaks), heappop(valleys)
        moved = min(shares[peak] - limits[device_types[peak]], limits[device_types[valley]] - shares[valley])
        shares[peak] -= moved
        shares[valley] += moved
        if filled(peak) > 1:
            heappush(peaks, (-filled(peak), peak))
        if filled(valley) < 1:
            heappush(valleys, (shares[valley] / speeds[device_types[valley]], filled(valley), valley))
    if peaks:
        return []
    batches = Counter(zip(device_types, shares, strict=True))
    return [
        sorted(
            ((n, share) for (device_type, share), n in batches.items() if device_type == index),
            key=lambda part: -part[1],
        )
        for index in range(len(counts))
    ]
