"""Data parallelism with a batch per device: the best shares for given devices, and the best devices.

Between two synchronisations of ZeRO 0 and 1 every device works on its own, so it gets as many sequences as it
finishes in the common time; ZeRO 2 and 3 communicate in every micro-batch, so all take the same number of
micro-batches (Poplar, arXiv:2408.12596, algorithm 2). Both are threshold problems: the least time T for which
the devices together finish the global batch. Work of a share never falls when the share grows, so the
threshold is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate

from planner.cost.communication import Ring
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape
from planner.cost.stage import Pricer
from planner.cost.stage_price import MicroBatch
from planner.plan import Plan, ReplicaGroup, Stage
from planner.search.dealing import Splits, best_split, dealt_in_step, splits, threshold
from planner.search.device_counts import device_counts
from planner.search.options import ring_alone
from planner.search.space import allowed, recomputes_of, shard_sizes, usable_kinds
from planner.search.values import Limits
from planner.targets import Recompute, Target
from planner.topology import Kind

MAX_MICRO_BATCH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """An outer choice: one stage, every device a replica of its own."""

    target: str
    zero: int
    recompute: Recompute
    shard_size: int | None = None
    """As in ``Plan``; devices of each kind then come in such groups."""
    network: str = ""
    """As in ``Family``."""


def choices(row: Target, limits: Limits, estimator: Estimator) -> Iterator[DataParallel]:
    """Outer choices of a target that deals a batch per device."""
    one_stage = limits.pp is None or 1 in limits.pp
    one_device = limits.tp is None or 1 in limits.tp
    if row.batch_without_pipeline != "per-device" or not one_stage or not one_device:
        return
    kinds = usable_kinds(estimator.topology, estimator.model)
    for zero in allowed(row.zero_without_pipeline, limits.zero):
        for recompute in recomputes_of(row, limits, estimator.model):
            for size in (None, *shard_sizes(row, zero, kinds)):
                yield DataParallel(target=row.name, zero=zero, recompute=recompute, shard_size=size)


class Shares:
    """Best shares for one outer choice."""

    def __init__(self, choice: DataParallel, estimator: Estimator, limits: Limits) -> None:
        self.choice = choice
        self.estimator = estimator
        self.pricer = estimator.pricer(choice.target)
        self.limits = limits
        self.batch = estimator.model.training.global_batch
        self.kinds = usable_kinds(estimator.topology, estimator.model)
        self._rates: dict[tuple[str, str], list[float]] = {}
        self._alone_work: dict[tuple[object, ...], tuple[list[float], list[int]]] = {}
        self._stepping: dict[tuple[object, ...], tuple[Splits, list[float]]] = {}
        self._splits_of: dict[tuple[object, ...], Splits] = {}
        self._in_groups: dict[tuple[object, ...], list[MicroBatch]] = {}
        self._most: dict[tuple[tuple[str, str], int], int] = {}

    def ways(self) -> list[tuple[int, ...]]:
        """Device counts to try, [way][kind]."""
        return device_counts(self.kinds, self.batch, self.choice.shard_size)

    def bound(self, way: tuple[int, ...]) -> float:
        """No shares of these devices are faster than all of them computing at their best rate."""
        rates = [
            self._best_rate(kind, self._sharing(way)) * count
            for kind, count in zip(self.kinds, way, strict=True)
            if count
        ]
        return self.batch / sum(rates) if all(rates) else float("inf")

    def plan(self, way: tuple[int, ...], cutoff_seconds: float = float("inf")) -> Plan | None:
        """The fastest shares of these devices; None when some device cannot hold its part or none beats the cutoff."""
        used = [(kind, count) for kind, count in zip(self.kinds, way, strict=True) if count]
        most = [self.most_sequences(kind, self._sharing(way)) for kind, _ in used]
        if not all(most):
            return None
        groups = tuple(self._group(kind, count, 1, 1) for kind, count in used)
        ring = ring_alone(groups, self.estimator, self.choice.target, self.choice.shard_size)
        if not ring.connected or self.bound(way) + self._least_tail(used, most, ring) >= cutoff_seconds:
            return None
        dealt = self._lock_step(used, most, ring) if self.choice.zero >= 2 else self._alone(used, most, ring)
        if dealt is None:
            return None
        stage = Stage(
            first_layer=0,
            end_layer=self.estimator.model.layers,
            replicas=dealt,
            recompute=self.choice.recompute,
        )
        return Plan(
            target=self.choice.target,
            zero=self.choice.zero,
            shard_size=self.choice.shard_size,
            stages=(stage,),
        )

    def _least_tail(self, used: list[tuple[Kind, int]], most: list[int], ring: Ring) -> float:
        """Seconds that follow the last backward at least: the largest micro-batch hides most of them."""
        return min(
            self.pricer.tail_seconds(self._shape(1), self._group(kind, 1, limit, 1), ring)
            for (kind, _), limit in zip(used, most, strict=True)
        )

    def _sharing(self, way: tuple[int, ...]) -> int:
        """Devices that share a copy of the states."""
        return self.choice.shard_size or sum(way)

    def most_sequences(self, kind: Kind, devices: int) -> int:
        """Largest micro-batch that fits on a device of this kind when ``devices`` share the states; 0 for none."""
        key = (kind.key, devices if self.choice.zero else min(devices, 2))
        if key not in self._most:
            low, high = 0, min(self.batch, MAX_MICRO_BATCH)
            if self.limits.micro_batch is not None:
                high = min(high, max(self.limits.micro_batch))
            while low < high:
                middle = (low + high + 1) // 2
                group = self._group(kind, 1, middle, 1)
                fits = self.pricer.memory(self._shape(1), group, devices).fits
                low, high = (middle, high) if fits else (low, middle - 1)
            self._most[key] = low
        return self._most[key]

    def missing_bytes(self, kind: Kind) -> float:
        """What a device lacks for one sequence when all devices share the states; not positive when it fits."""
        devices = sum(item.devices for item in self.kinds)
        memory = self.pricer.memory(self._shape(1), self._group(kind, 1, 1, 1), devices)
        return -memory.headroom_bytes

    def _alone(
        self, used: list[tuple[Kind, int]], most: list[int], ring: Ring
    ) -> tuple[ReplicaGroup, ...] | None:
        """ZeRO 0 and 1: shares by threshold; each device splits its share over the micro-batches that suit it."""
        if self.pricer.traffic.keeps_step(self._shape(1), ring):
            return self._in_step(used, most, ring)
        work = [self._work(kind, limit, ring) for (kind, _), limit in zip(used, most, strict=True)]
        shares = threshold([seconds for seconds, _ in work], [count for _, count in used], self.batch)
        return self._deal(used, shares, [steps for _, steps in work])

    def _in_step(
        self, used: list[tuple[Kind, int]], most: list[int], ring: Ring
    ) -> tuple[ReplicaGroup, ...] | None:
        """The same where replicas keep step while they reduce gradients."""
        ways = [self._splits(kind, limit, ring) for (kind, _), limit in zip(used, most, strict=True)]
        counts = [count for _, count in used]
        dealt = dealt_in_step([way for way, _ in ways], [common for _, common in ways], counts, self.batch)
        return self._deal(used, dealt.shares, dealt.steps) if dealt else None

    def _splits(self, kind: Kind, limit: int, ring: Ring) -> tuple[Splits, list[float]]:
        """Splits of all shares of a device, and the seconds that each takes in step with the others, [way]."""
        key = (kind.key, limit, ring)
        if key not in self._stepping:
            shape, group = self._shape(1), self._group(kind, 1, 1, 1)
            micro = _alone(self.pricer, *kind.key, self.choice.recompute, self._longest())[:limit]
            whole = [item.seconds for item in micro]

            def common(ring: Ring, first: int, last: int) -> float:
                return self.pricer.in_step_seconds(shape, group, ring, micro[first - 1], micro[last - 1])

            bare = partial(common, replace(ring, size=1))
            same = (kind.key, limit, ring.copies is None)
            if same not in self._splits_of:
                self._splits_of[same] = splits(whole, bare, self.batch)
            found = self._splits_of[same]
            self._stepping[key] = found, [common(ring, *sizes) for sizes in found.sizes]
        return self._stepping[key]

    def _work(self, kind: Kind, limit: int, ring: Ring) -> tuple[list[float], list[int]]:
        """Least seconds of 1, 2, ... sequences alone on a device, and the micro-batches they take, [share - 1].

        Few micro-batches are best but for the tiles of matrix products, so some more are tried.
        """
        key = (kind.key, limit, ring)
        if key not in self._alone_work:
            one, left = self._micro_seconds(kind, ring, limit)
            found = [best_split(one, left, share, limit) for share in range(1, self.batch + 1)]
            never_less = list(accumulate((seconds for seconds, _ in found), max))
            self._alone_work[key] = never_less, [steps for _, steps in found]
        return self._alone_work[key]

    def _lock_step(
        self, used: list[tuple[Kind, int]], most: list[int], ring: Ring
    ) -> tuple[ReplicaGroup, ...] | None:
        """ZeRO 2 and 3: for each number of micro-batches the least common micro-batch time; the best of all."""
        counts = [count for _, count in used]
        fewest = -(-self.batch // sum(count * limit for count, limit in zip(counts, most, strict=True)))
        best: tuple[float, int, list[int]] | None = None
        micro = [self._micro_seconds(kind, ring, limit) for (kind, _), limit in zip(used, most, strict=True)]
        for steps in range(fewest, min(self.batch // max(1, sum(counts)), max(2 * fewest, fewest + 16)) + 1):
            work = [_spread(seconds, left, steps) for seconds, left in micro]
            shares = threshold(work, counts, self.batch, steps)
            if not shares or min(shares) < steps:
                continue
            seconds = steps * max(
                values[-(-share // steps) - 1] for values, share in zip(work, shares, strict=True)
            )
            if best is None or seconds < best[0]:
                best = seconds, steps, shares
        return None if best is None else self._deal(used, best[2], [[best[1]]] * len(used))

    def _micro_seconds(self, kind: Kind, ring: Ring, limit: int) -> tuple[list[float], list[float]]:
        """Seconds of a micro-batch of 1, 2, ... ``limit`` sequences, and of the reduction that it would not hide.

        The latter is empty where all gradients are reduced by then: what ends the step is the same for all shares.
        """
        if self.choice.zero >= 2 and ring.copies is None:
            return [
                item.seconds for item in _micro_batches(self.pricer, kind, self._shape(1), ring, limit)
            ], []
        if self.choice.zero >= 2:
            micro = self._of_groups(kind, ring, limit)
        else:  # nothing travels before the end of the step
            micro = _alone(self.pricer, *kind.key, self.choice.recompute, self._longest())[:limit]
        shape, group = self._shape(1), self._group(kind, 1, 1, 1)
        left = [self.pricer.sync_seconds(shape, group, ring, item) for item in micro]
        return [item.seconds for item in micro], left

    def _of_groups(self, kind: Kind, ring: Ring, limit: int) -> list[MicroBatch]:
        """Micro-batches of 1, 2, ... sequences: whatever adds up the copies does not change them."""
        inside = replace(ring, copies=None)
        key = (kind.key, limit, inside)
        if key not in self._in_groups:
            self._in_groups[key] = _micro_batches(self.pricer, kind, self._shape(1), inside, limit)
        return self._in_groups[key]

    def _longest(self) -> int:
        """The largest micro-batch that may be asked for."""
        return min(self.batch, MAX_MICRO_BATCH)

    def _best_rate(self, kind: Kind, devices: int) -> float:
        """Sequences per second of a device that computes all the time; 0 when nothing fits."""
        most = self.most_sequences(kind, devices)
        if not most:
            return 0.0
        if kind.key not in self._rates:
            alone = _alone(self.pricer, *kind.key, self.choice.recompute, self._longest())
            rates = ((index + 1) / micro.seconds for index, micro in enumerate(alone))
            self._rates[kind.key] = list(accumulate(rates, max))
        return self._rates[kind.key][most - 1]

    def _deal(
        self, used: list[tuple[Kind, int]], shares: list[int], steps: list[list[int]]
    ) -> tuple[ReplicaGroup, ...] | None:
        """Groups whose shares add up to the batch: what is too much is taken back one sequence a device.

        ``steps`` are micro-batches, [kind][share - 1], or the one number that all shares of a kind take.
        """
        if not shares:
            return None
        excess = sum(share * count for share, (_, count) in zip(shares, used, strict=True)) - self.batch
        found = []
        for (kind, count), share, fixed in zip(used, shares, steps, strict=True):
            floor = fixed[0] if self.choice.zero >= 2 else 1
            whole, extra = divmod(excess, count)
            whole = min(whole, share - floor)
            extra = min(extra, count) if share - whole > floor else 0
            excess -= whole * count + extra
            found += self._split(kind, count, extra, share - whole, fixed)
        return None if excess else tuple(found)

    def _split(self, kind: Kind, count: int, extra: int, share: int, steps: list[int]) -> list[ReplicaGroup]:
        """``extra`` of ``count`` devices get one sequence less."""
        parts = [(count - extra, share), (extra, share - 1)]
        if self.choice.shard_size is not None:
            # The first of them fill the node that the others leave, so that replicas stay in the order of the nodes.
            fill = min(extra, (extra - count) % kind.per_node)
            parts[1:] = [(fill, share - 1), (extra - fill, share - 1)]
        lock = self.choice.zero >= 2
        return [
            self._group(kind, number, part, steps[0] if lock else steps[part - 1])
            for number, part in parts
            if number
        ]

    def _group(self, kind: Kind, count: int, share: int, steps: int) -> ReplicaGroup:
        return ReplicaGroup(pool=kind.pool, gpu=kind.gpu, tp=1, count=count, share=share, steps=steps)

    def _shape(self, steps: int) -> Shape:
        return Shape(
            chunks=(self.estimator.model.layers,),
            stage=0,
            depth=1,
            micro_batches=steps,
            zero=self.choice.zero,
            recompute=self.choice.recompute,
            sequence_parallel=False,
        )


@lru_cache(maxsize=256)
def _alone(pricer: Pricer, pool: str, gpu: str, recompute: Recompute, limit: int) -> list[MicroBatch]:
    """Micro-batches of 1, 2, ... ``limit`` sequences through the whole model without any traffic."""
    shape = Shape(
        chunks=(pricer.model.layers,),
        stage=0,
        depth=1,
        micro_batches=1,
        zero=0,
        recompute=recompute,
        sequence_parallel=False,
    )
    alone = Ring(size=1, bytes_per_second=float("inf"), latency_seconds=0.0, crosses="device")
    kind = pricer.topology.kind(pool, gpu)
    return _micro_batches(pricer, kind, shape, alone, limit)


def _micro_batches(pricer: Pricer, kind: Kind, shape: Shape, ring: Ring, limit: int) -> list[MicroBatch]:
    group = ReplicaGroup(pool=kind.pool, gpu=kind.gpu, tp=1, count=1, share=1, steps=1)
    return [pricer.micro_batch(shape, group, sequences, ring) for sequences in range(1, limit + 1)]


def _spread(seconds: list[float], left: list[float], steps: int) -> list[float]:
    """Seconds of one of ``steps`` equal micro-batches with its part of what is left after the last."""
    return [one + rest / steps for one, rest in zip(seconds, left, strict=True)] if left else seconds
