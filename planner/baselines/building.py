"""What baselines are built from beside ``search.heuristics.even``: shares and layers by speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cluster.topology import DeviceType
from planner.cost.communication import ALONE
from planner.cost.estimate import Estimator
from planner.cost.shape import whole_model
from planner.plan.placement import replicas_on
from planner.search.heuristics.even import LocalBatches
from planner.targets import UNIFORM


def by_speed(speeds: Sequence[float], counts: Sequence[int], batch: int) -> LocalBatches:
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
    counts = [1] * len(seconds)
    if len(counts) > layers or min(room) < 1:
        return []
    for _ in range(layers - len(counts)):
        free = [stage for stage in stages if counts[stage] < room[stage]]
        if not free:
            return []
        counts[min(free, key=lambda stage: extra[stage] + (counts[stage] + 1) * seconds[stage])] += 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Forward and backward of one micro-batch without recomputation, collectives of the replica included."""

    layer: float
    embedding: float
    head: float

    def ends(self, stage: int, depth: int) -> float:
        """Seconds of embedding and head on one stage of a pipeline."""
        return (self.embedding if stage == 0 else 0.0) + (self.head if stage == depth - 1 else 0.0)


def layer_seconds(estimator: Estimator, device_type: DeviceType, tp: int, sequences: int) -> LayerSeconds:
    """What a profile on one replica of Megatron would say."""
    pricer = estimator.pricer(UNIFORM.name)
    group = replicas_on(device_type, tp, 1, sequences, 1)
    shape = replace(whole_model(estimator.model, 0, "none"), chunks=(1,), depth=3)
    passes = [pricer.micro_batch(replace(shape, stage=stage), group, sequences, ALONE) for stage in range(3)]
    first, middle, last = (micro.forward_seconds + micro.backward_seconds for micro in passes)
    return LayerSeconds(layer=middle, embedding=first - middle, head=last - middle)
