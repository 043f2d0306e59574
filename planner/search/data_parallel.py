"""Data parallelism with a local batch per replica: the best batches for given replicas, and the best replicas.

A replica is a device, or as many of a type as tensor parallelism divides the layers over. Between two synchronisations
of ZeRO 0 and 1 every replica works on its own, so it gets as many sequences as it finishes in the common time; ZeRO 2
and 3 communicate in every micro-batch, so all take the same number of micro-batches (Poplar, arXiv:2408.12596,
algorithm 2). Both are threshold problems: the least time T for which the replicas together finish the global batch.

All sets of replicas are searched, as boxes that are halved where something better may be in them. No set of a box is
faster than all replicas of its upper corner with the traffic of its lower one: more replicas finish no fewer sequences,
and no ring gets faster by further members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from heapq import heappop, heappush
from itertools import combinations_with_replacement, product
from operator import itemgetter
from typing import cast

import numpy as np

from planner.capabilities import Capabilities, Recompute
from planner.cluster.topology import DeviceType
from planner.cost.arrays import as_array, as_number, larger, smaller
from planner.cost.communication import ALONE, Ring
from planner.cost.estimate import Estimator
from planner.cost.offload import beside_backward
from planner.cost.shape import whole_model
from planner.cost.stage import Pricer
from planner.dims.dimension import allowed
from planner.dims.offloading import offloads
from planner.dims.sharding import parts_of, shard_sizes, trains_at
from planner.dims.tensor import splits_sequence, tp_degrees
from planner.dims.zero_plus import holds_copies, zero_pluses
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.placement import replicas_on
from planner.plan.values import (
    EXACT,
    ON_DEVICE,
    PLAIN_ZERO,
    Offload,
    Plan,
    ReplicaGroup,
    Stage,
    Sync,
    ZeroPlus,
)
from planner.search.batch_partition import (
    NO_WAYS,
    Added,
    BatchPartition,
    Seconds,
    Team,
    least_at_once,
    least_in_lock_step,
    least_in_step,
)
from planner.search.space.choices import batch_per_replica, recomputes_of, usable_device_types
from planner.search.space.derived import derived
from planner.search.space.device_sets import Box, Counts, all_sets
from planner.search.space.rings import RingSetup, inside_at_most, measured_between, ring_alone
from planner.search.space.sends import unbatched
from planner.search.values import Limits
from planner.targets import target

MAX_MICRO_BATCH, MAX_TOKENS, MAX_SIZES = 512, 2**17, 4096
"""Largest micro-batch of a device that is offered, in sequences; more, up to ``MAX_SIZES``, where that many have fewer
tokens than ``MAX_TOKENS``."""

BOX_EXACT = 1e-7
"""Relative width at which the bisection of a box ends; its bound is below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """An outer choice: one stage, every replica with a batch of its own."""

    target: str
    zero: int
    recompute: Recompute
    tp: int = 1
    """Devices of a replica."""
    shard_size: int | None = None
    """As in ``Plan``; devices of each device type then come in such groups."""
    zero_plus: ZeroPlus = PLAIN_ZERO
    """As in ``Plan``; devices of each type then come in the groups that keep a second copy, if any."""
    network: str = ""
    """As in ``Family``."""
    offload: Offload = ON_DEVICE
    sync: Sync = EXACT
    """With all islands of the partition, of which a plan uses two at least."""
    shards: tuple[int, ...] = ()
    """Parts of what is sharded that a device of each type holds, [device type]; none: all hold equally much."""

    backup: int = 0
    """Replicas that are not waited for, at most; a plan of a choice with any has one at least."""

    @property
    def one_copy(self) -> bool:
        """True when all devices share one copy of the states, and keep no other."""
        return self.group_size is None

    @property
    def plain(self) -> bool:
        """True for single devices of one copy that compute nothing again and keep nothing elsewhere."""
        whole = self.one_copy and not (self.shards or self.offload.anything or self.backup)
        return whole and self.tp == 1 and self.recompute == "none"

    @property
    def group_size(self) -> int | None:
        """Devices of a group, in which they come; there are several groups."""
        return self.shard_size or self.zero_plus.secondary

    @property
    def unit(self) -> int:
        """Devices of a type come in multiples of it."""
        return self.group_size or 1


def data_parallel_of(plan: Plan, device_types: Sequence[DeviceType]) -> DataParallel:
    """The choice that a plan of one stage, none of whose replicas are dropped, is of."""
    parts = {(group.pool, group.gpu): group.shard for group in plan.stages[0].replicas}
    return DataParallel(
        target=plan.target,
        zero=plan.zero,
        recompute=plan.stages[0].recompute,
        tp=plan.stages[0].replicas[0].tp,
        shard_size=plan.shard_size,
        zero_plus=plan.zero_plus,
        offload=plan.offload,
        sync=plan.sync,
        shards=tuple(parts.get(item.key, 1) for item in device_types) if plan.unequal_shards else (),
    )


def choices(row: Capabilities, limits: Limits, estimator: Estimator) -> Iterator[DataParallel]:
    """Outer choices of a target whose replicas have batches of their own, those of most devices a replica last."""
    whole = all(given is None or 1 in given for given in (limits.pp, limits.cp, limits.ep, limits.etp))
    if row.batch_without_pipeline != "per-device" or not whole:
        return
    if limits.tp is None or 1 in limits.tp:
        yield from _of_devices(row, limits, estimator)
    device_types = usable_device_types(estimator.topology, estimator.model)
    for tp in tp_degrees(row, limits.tp, estimator.model, device_types):
        if tp == 1 or not batch_per_replica(row, estimator.model, tp):
            continue
        for zero in allowed(row.zero_without_pipeline, limits.zero):
            if not trains_at(row, estimator.model, zero):
                continue
            for recompute in recomputes_of(row, limits, estimator.model, device_types):
                places = offloads(row, zero, recompute, limits.offload, estimator.model, device_types)
                for offload in places:
                    yield DataParallel(
                        target=row.name, zero=zero, recompute=recompute, tp=tp, offload=offload
                    )
                for size in shard_sizes(row, zero, device_types, tp) if ON_DEVICE in places else ():
                    yield DataParallel(
                        target=row.name, zero=zero, recompute=recompute, tp=tp, shard_size=size
                    )


def _of_devices(row: Capabilities, limits: Limits, estimator: Estimator) -> Iterator[DataParallel]:
    """Those whose replicas are devices."""
    device_types = usable_device_types(estimator.topology, estimator.model)
    for zero in allowed(row.zero_without_pipeline, limits.zero):
        if not trains_at(row, estimator.model, zero):
            continue
        for recompute in recomputes_of(row, limits, estimator.model, device_types):
            places = offloads(row, zero, recompute, limits.offload, estimator.model, device_types)
            for size, offload in product((None, *shard_sizes(row, zero, device_types)), places):
                yield DataParallel(
                    target=row.name, zero=zero, recompute=recompute, shard_size=size, offload=offload
                )
            for plus in zero_pluses(row, zero, estimator.model, device_types, limits.quantised):
                if plus.anything and ON_DEVICE in places:
                    yield DataParallel(target=row.name, zero=zero, recompute=recompute, zero_plus=plus)
            if limits.unequal_shards and ON_DEVICE in places:
                for parts in parts_of(row, zero, estimator.model, device_types):
                    yield DataParallel(target=row.name, zero=zero, recompute=recompute, shards=parts)


def shares_of(choice: DataParallel, estimator: Estimator, limits: Limits) -> Shares:
    """The shares of a choice, with what is already known of them to any search of this estimator."""
    return _shares(estimator, replace(choice, network=""), limits.micro_batch)


@derived
def _shares(estimator: Estimator, choice: DataParallel, micro_batch: tuple[int, ...] | None) -> Shares:
    return Shares(choice, estimator, Limits(micro_batch=micro_batch))


class Shares:
    """Best shares for one outer choice; remembers what it has worked out."""

    def __init__(self, choice: DataParallel, estimator: Estimator, limits: Limits) -> None:
        self.choice = choice
        self.estimator = estimator
        self.pricer = estimator.pricer(choice.target)
        self.limits = limits
        self.batch = estimator.model.training.global_batch
        self.device_types = usable_device_types(estimator.topology, estimator.model)
        self.unit = choice.unit
        self._parts_each = dict(zip((item.key for item in self.device_types), choice.shards, strict=False))
        self._shape = replace(
            whole_model(
                estimator.model, choice.zero, choice.recompute, choice.offload, choice.sync, choice.zero_plus
            ),
            sequence_parallel=self._sequence_parallel,
        )
        self._rings: dict[Counts, Ring] = {}
        self._most: dict[tuple[object, ...], int] = {}
        self._updates: dict[tuple[object, ...], float] = {}
        self._bounds: dict[Box, float] = {}
        self._best: dict[Counts, tuple[float, Plan | None]] = {}

    @property
    def sets(self) -> Box:
        """All sets of replicas."""
        found = all_sets(self.device_types, self.batch, self.unit, self.choice.tp)
        if self.choice.zero_plus.secondary is None:
            return found
        held = (holds_copies(item, self.choice.zero_plus) for item in self.device_types)
        return replace(found, high=tuple(most * able for most, able in zip(found.high, held, strict=True)))

    @property
    def _sequence_parallel(self) -> bool:
        """On wherever replicas can divide the sequence."""
        return splits_sequence(target(self.choice.target), self.estimator.model, self.choice.tp)

    def replicas(self, devices: Mapping[tuple[str, str], int]) -> Counts:
        """Replicas of each type that such numbers of devices, by (pool, gpu), have."""
        return tuple(devices.get(item.key, 0) // self.choice.tp for item in self.device_types)

    def halves(self, box: Box) -> Iterator[Box]:
        """Parts of a box in which there is a plan of this choice at all."""
        weights = [
            self._rate(device_type, self._sharing(box.high, device_type)) for device_type in self.device_types
        ]
        for part in box.halves(weights, self.unit):
            enough = self.choice.group_size is None or sum(part.high) > self.choice.group_size
            if enough and sum(part.high) > 0 and sum(part.low) <= self.batch:
                yield part

    def least(self, box: Box) -> float:
        """No shares of devices in the box are faster, whatever fits and whatever they send."""
        return least_seconds(self.choice, self.estimator, zip(self.device_types, box.high, strict=True))

    def bound(self, box: Box) -> float:
        """No shares of devices in the box are faster; infinite where there are none."""
        if box not in self._bounds:
            self._bounds[box] = self._bound(box)
        return self._bounds[box]

    def _bound(self, box: Box) -> float:
        if sum(box.low) > self.batch or not sum(box.high):
            return float("inf")
        modes = self._modes(box)
        if not modes or not self._connected(box):
            return float("inf")
        ring = self._fastest_ring(box)
        return min(self._bound_with(self._in_ring(used, ring), ring, box) for used in modes)

    def _bound_with(self, used: Participants, ring: Ring, box: Box) -> float:
        partition = (
            self._lock_step(used, ring, box) if self.choice.zero >= 2 else self._alone(used, ring, box)
        )
        # T >= the most devices' least time to finish the batch on the fastest ring + the slowest that must update
        return partition.seconds + self._least_end(used, box)

    def plan(self, counts: Counts) -> Plan | None:
        """The fastest shares of these devices; None when some device cannot hold its part."""
        return self.best(counts)[1]

    def best(self, counts: Counts, cutoff_seconds: float = float("inf")) -> tuple[float, Plan | None]:
        """A bound of all shares of these devices, and the fastest; None when there are none, or none is faster."""
        known = self._best.get(counts)
        if known is None or (known[1] is None and known[0] < cutoff_seconds):
            known = self._best[counts] = self._found(counts, cutoff_seconds)
        bound, plan = known
        return bound, plan if bound < cutoff_seconds else None

    def _found(self, counts: Counts, cutoff_seconds: float) -> tuple[float, Plan | None]:
        if not 0 < sum(counts) <= self.batch:
            return float("inf"), None
        if self.choice.group_size is not None and sum(counts) <= self.choice.group_size:
            return float("inf"), None
        box = Box(counts, counts)
        modes = self._modes(box)
        if not modes or not self._connected(box):
            return float("inf"), None
        ring = self._fastest_ring(box)
        found: tuple[float, Plan | None] = float("inf"), None
        for used in modes:
            one = self._found_with(self._in_ring(used, ring), ring, box, min(cutoff_seconds, found[0]))
            found = min(found, one, key=itemgetter(0))
        return found

    def _found_with(
        self, used: Participants, ring: Ring, box: Box, cutoff_seconds: float
    ) -> tuple[float, Plan | None]:
        end = self._least_end(used, box)
        if self.choice.zero >= 2:
            partition = self._lock_step(used, ring, box, exact_below=cutoff_seconds - end)
        elif self.pricer.traffic.keeps_step(self._shape, ring):
            alone, in_step = self._parts_in_step(used, ring)
            partition = least_in_step(self._team(used), alone, in_step, used.must, cutoff_seconds - end)
        else:
            partition = self._alone(used, ring, box)
        bound = partition.seconds + end
        if not partition.shares or bound >= cutoff_seconds:
            return bound, None
        return bound, self._plan(used, partition)

    def ways(self, counts: Counts, *, once: bool) -> Ways:
        """What each of these devices may do, and how long it takes; they must be able to hold their part.

        ``once``: in one micro-batch, where larger ones fit then.
        """
        box, once = Box(counts, counts), once and self._relieves
        used = self._used(box, once=once)
        assert used is not None, "a plan of these devices is known"
        ring = self._fastest_ring(box)
        used = self._in_ring(used, ring)
        end = self._least_end(used, box)
        if self.choice.zero >= 2:
            micro, left = self._parts_in_lock_step(used, ring, box)
            return Ways(used.device_types, used.counts, tuple(micro), end, once, left=tuple(left))
        if self.pricer.traffic.keeps_step(self._shape, ring):
            alone, in_step = self._parts_in_step(used, ring)
        else:
            used, alone = self._ends_alone(used, ring, box)
            in_step = Added(np.zeros_like(alone.equal), np.zeros_like(alone.mixed))
        micro = [one.seconds for one in used.micro]
        return Ways(used.device_types, used.counts, tuple(micro), end, once, alone=alone, in_step=in_step)

    def _plan(self, used: Participants, partition: BatchPartition) -> Plan:
        groups = self._groups(used, partition)
        if len({group.shard for group in groups}) == 1:
            groups = tuple(replace(group, shard=1) for group in groups)
        stage = Stage(
            first_layer=0,
            end_layer=self.estimator.model.layers,
            replicas=groups,
            recompute=self.choice.recompute,
        )
        return Plan(
            target=self.choice.target,
            zero=self.choice.zero,
            shard_size=self.choice.shard_size,
            zero_plus=self.choice.zero_plus,
            offload=self.choice.offload,
            sequence_parallel=self._sequence_parallel,
            stages=(stage,),
        )

    def _sharing(self, counts: Counts, device_type: DeviceType) -> float:
        """Devices that share a copy of the states; with unequal shards, if each held as much as one of this type."""
        if self.choice.shards:
            return self._held(counts) / self._parts_each[device_type.key]
        return self.choice.shard_size or sum(counts)

    def _held(self, counts: Counts) -> int:
        """Parts that devices with unequal shards hold together; 0 with equal ones."""
        pairs = zip(counts, self.choice.shards, strict=True) if self.choice.shards else ()
        return sum(count * parts for count, parts in pairs)

    def _padding(self, counts: Counts) -> float:
        """Bytes that travel between these devices over those that are sharded."""
        if not self.choice.shards:
            return 1.0
        pairs = zip(counts, self.choice.shards, strict=True)
        return sum(counts) * max(parts for count, parts in pairs if count) / self._held(counts)

    def most_sequences(
        self, device_type: DeviceType, devices: float, padding: float = 1.0, *, once: bool = False
    ) -> int:
        """Largest micro-batch that fits on a device of this type when ``devices`` share the states; 0 for none.

        ``once``: the only one of the step.
        """
        once = once and self._relieves
        key = (device_type.key, devices if self.choice.zero else min(devices, 2), padding, once)
        if key not in self._most:
            most = min(self.batch, most_offered(self.estimator.model))
            if self.limits.micro_batch is not None:
                most = min(most, max(self.limits.micro_batch))
            one = self._group(device_type)
            self._most[key] = (
                self.pricer.most_sequences(replace(self._shape, lone=once), one, devices, most, padding)
                if self._may_fit(device_type)
                else 0
            )
        return self._most[key]

    def _may_fit(self, device_type: DeviceType) -> bool:
        """False where a device has no room even if all share one copy: no group of them needs less."""
        if self.choice.shard_size is None:
            return True
        whole = shares_of(replace(self.choice, shard_size=None), self.estimator, self.limits)
        return whole.most_sequences(device_type, sum(whole.sets.high), once=True) > 0

    def missing_bytes(self, device_type: DeviceType) -> float:
        """What a device lacks for one sequence when all devices share the states; not positive when it fits."""
        counts = tuple(item.replicas(self.choice.tp) for item in self.device_types)
        ways = self._sharing(counts, device_type)
        memory = self.pricer.memory(self._shape, self._group(device_type), ways)
        return -memory.headroom_bytes

    @property
    def _relieves(self) -> bool:
        """True where larger micro-batches fit when a step has one."""
        return self.pricer.relieves(self.choice.offload)

    def _most_in(self, device_type: DeviceType, box: Box, *, once: bool) -> int:
        """Largest micro-batch in any set of the box: with most devices, or with one, which needs no buffers."""
        padding = self._padding(box.high) if box.single else 1.0
        most = self.most_sequences(device_type, self._sharing(box.high, device_type), padding, once=once)
        alone = self.choice.group_size is None and sum(box.low) <= 1 < sum(box.high)
        return max(most, self.most_sequences(device_type, 1, once=once)) if alone else most

    def _modes(self, box: Box) -> list[Participants]:
        """Kinds that may take part: in any number of micro-batches, and in one where larger ones fit then."""
        several = self._used(box)
        modes = [] if several is None else [several]
        once = self._used(box, once=True) if self._relieves else None
        if once is not None and (several is None or once.sizes != several.sizes):
            enough = sum(count * most for count, most in zip(once.counts, once.sizes, strict=True))
            modes += [once] if enough >= self.batch else []
        return modes

    def _used(self, box: Box, *, once: bool = False) -> Participants | None:
        """Kinds that may take part, with what they do; None where one that must cannot, or none can."""
        device_types, counts, must, micro = [], [], [], []
        for device_type, low, high in zip(self.device_types, box.low, box.high, strict=True):
            most = self._most_in(device_type, box, once=once) if high else 0
            if low and not most:
                return None
            if most:
                device_types.append(device_type)
                counts.append(high)
                must.append(low > 0)
                micro.append(self._passes_of(device_type).first(most))
        return (
            Participants(tuple(device_types), tuple(counts), tuple(must), tuple(micro), once)
            if device_types
            else None
        )

    def _in_ring(self, used: Participants, ring: Ring) -> Participants:
        """Micro-batches of those that share in this ring, each as long as the slowest of its devices takes.

        Of few members they are no longer than of many.
        """
        micro = [
            self._shared(one, device_type, ring)
            for device_type, one in zip(used.device_types, used.micro, strict=True)
        ]
        if self.pricer.varies:
            factors = [self.pricer.stretch(each, ring, self.choice.tp) for each in used.device_types]
            micro = [one.stretched(factor) for one, factor in zip(micro, factors, strict=True)]
        return replace(used, micro=tuple(micro))

    def _shared(self, one: _Passes, device_type: DeviceType, ring: Ring) -> _Passes:
        """Micro-batches with what a replica copies to share in a ring."""
        return one.longer(*self.pricer.shared_seconds(self._shape, ring, device_type, self.choice.tp))

    def _one_each(self, counts: Counts) -> tuple[ReplicaGroup, ...]:
        """Replicas of these devices with a sequence each."""
        return tuple(
            self._group(device_type, count, count, 1)
            for device_type, count in zip(self.device_types, counts, strict=True)
            if count
        )

    def _ring(self, counts: Counts) -> Ring:
        """The data-parallel ring of these devices."""
        if counts not in self._rings:
            groups = self._one_each(counts)
            setup = RingSetup(
                self.estimator.pricer(self.choice.target).kernels,
                self.choice.shard_size,
                secondary=self.choice.zero_plus.secondary,
            )
            self._rings[counts] = ring_alone(self.estimator, unbatched(groups), setup)
            if self.choice.shards and len({group.shard for group in groups}) > 1:
                parts = tuple(group.shard for group in groups for _ in range(group.count))
                self._rings[counts] = self._rings[counts].with_shards(parts)
        return self._rings[counts]

    def _only_size(self, counts: Counts) -> Ring:
        """A ring of these devices for questions that traffic has no part in."""
        ring = Ring(
            size=max(1, self.choice.shard_size or sum(counts)),
            bytes_per_second=1.0,
            latency_seconds=0.0,
            crosses="",
        )
        return replace(ring, parts=self._held(counts), largest=0) if self.choice.shards else ring

    def _connected(self, box: Box) -> bool:
        """True when the devices that take part in all sets can talk."""
        return sum(box.low) <= 1 or self._ring(box.low).connected

    def _fastest_ring(self, box: Box) -> Ring:
        """A ring that no ring of devices in the box beats.

        Further members bring hops and bytes and take away none, so that of the lower corner is no slower; nor do they
        make messages fewer, as buckets that grow with replicas come with equal batches alone. Its latency counts only
        where a node cannot have more members, nor fewer as devices of a type with unequal shares may stand on other
        nodes: a tree over fuller nodes is lower, a chain over emptier ones shorter.
        """
        if box.single and self.estimator.curves is not None:
            # Measured collectives follow the link of the narrowest hop, which is known for one set only.
            return self._ring(box.low)
        if sum(box.low) <= 1:
            return ALONE
        ring = self._ring(box.low)
        if self.estimator.curves is not None:
            return self._on_any_link(ring)
        if not box.single:
            # Further devices may even out the parts.
            ring = replace(ring, parts=0, largest=0)
        if ring.near is not None and not box.single:
            # Second copies of further device types may have links that are slower and yet answer sooner.
            between = ring.near.copies and replace(ring.near.copies, latency_seconds=0.0, around_seconds=0.0)
            near = replace(ring.near, latency_seconds=0.0, around_seconds=0.0, copies=between)
            ring = replace(ring, near=near)
        if box.single and self.choice.group_size is not None:
            # Parts of a type with unequal shares fill its nodes one after the other (``_parts``), as equal ones do.
            return ring
        if self.choice.shard_size is None and self._settled(box):
            return ring
        if self.choice.shard_size is None and box.single:
            return self._wherever(ring, box.low)
        copies = ring.copies and replace(ring.copies, latency_seconds=0.0, around_seconds=0.0)
        return replace(ring, latency_seconds=0.0, around_seconds=0.0, copies=copies)

    def _on_any_link(self, ring: Ring) -> Ring:
        """A ring that none with further members beats, whichever link is its narrowest hop."""
        copies, near = (part and self._on_any_link(part) for part in (ring.copies, ring.near))
        # With unequal shards more bytes travel than are sharded.
        parts = max(self.choice.shards, default=1)
        measured = measured_between(self.estimator, ring.size, parts)
        inside = inside_at_most(self.estimator, ring.size, ring.bytes_per_second, parts)
        return replace(
            ring,
            bytes_per_second=max(measured.alone, inside, 0.0 if measured.covers else ring.bytes_per_second),
            latency_seconds=0.0,
            around_seconds=0.0,
            curves=None,
            copies=copies,
            near=near,
            parts=0,
            largest=0,
        )

    def _wherever(self, ring: Ring, counts: Counts) -> Ring:
        """The ring of a set with the latency that it has at least, however devices with unequal shares stand.

        Those of a type have two shares at most, so the fullest node has half of a type at least, or is full. No node
        has more members than with equal shares; with fewer, a chain passes more nodes, and a tree fewer members of one.
        """
        used = [(item, count) for item, count in zip(self.device_types, counts, strict=True) if count]
        inside = max(item.intra_latency_seconds for item, _ in used)
        pairs = combinations_with_replacement({item.pool for item, _ in used}, 2)
        between = min(self.estimator.topology.path(*pair).latency_seconds for pair in pairs)
        fullest, least = (
            self._on_a_node(counts),
            max(
                count if count <= self._per_node(item) else min(self._per_node(item), -(-count // 2))
                for item, count in used
            ),
        )
        nodes = -(-ring.size // least) - -(-ring.size // fullest)
        tree = ring.latency_seconds - (fullest - least) * inside
        chain = (ring.around_seconds or 0.0) - nodes * max(0.0, inside - between)
        return replace(ring, latency_seconds=max(0.0, tree), around_seconds=max(0.0, chain))

    def _settled(self, box: Box) -> bool:
        """True when the most devices on a node are the same for all sets, however they stand."""
        return self._on_a_node(box.low) == self._on_a_node(box.high) and all(
            high <= self._per_node(device_type) or low >= 2 * self._per_node(device_type)
            for device_type, low, high in zip(self.device_types, box.low, box.high, strict=True)
        )

    def _on_a_node(self, counts: Counts) -> int:
        """Most replicas of one node that take part."""
        replicas: dict[str, int] = {}
        for device_type, count in zip(self.device_types, counts, strict=True):
            here = min(count, self._per_node(device_type))
            replicas[device_type.pool] = replicas.get(device_type.pool, 0) + here
        return max(replicas.values())

    def _per_node(self, device_type: DeviceType) -> int:
        """Replicas that a node has room for."""
        return device_type.per_node // self.choice.tp

    def _least_end(self, used: Participants, box: Box) -> float:
        """Least seconds after the last backward: copies once a step, and the update unless it runs beside the backward.

        An update beside the last backward is part of the lock step, whose micro-batches decide how long that is.
        """
        update = 0.0 if self.choice.offload.super_offload else self._least_update(used, box)
        if not self.choice.offload.anything:
            return update
        ring = self._only_size(box.high)
        copied = [
            self.pricer.step_copy_seconds(self._shape, self._group(device_type), ring.size)
            for device_type in used.device_types
        ]
        return update + _slowest(copied, used.must)

    def _least_update(self, used: Participants, box: Box, beside_seconds: float = 0.0) -> float:
        """Seconds of the optimizer alone, without what hosts do beside the backward."""
        ring = self._only_size(box.high)
        if self.choice.offload.super_offload:
            updates = [self._update(device_type, ring, beside_seconds) for device_type in used.device_types]
            return _slowest(updates, used.must)
        for device_type in used.device_types:
            key = device_type.key, ring.size, ring.parts
            if key not in self._updates:
                self._updates[key] = self._update(device_type, ring)
        known = [self._updates[device_type.key, ring.size, ring.parts] for device_type in used.device_types]
        return _slowest(known, used.must)

    def _update(self, device_type: DeviceType, ring: Ring, beside_seconds: float = 0.0) -> float:
        """The same of one device, whose states all of the ring share."""
        alone = self._group(device_type)
        return self.pricer.update_seconds(self._shape, alone, ring, beside_seconds)

    def _follows(self, used: Participants, box: Box, back: Seconds) -> Seconds:
        """The part of the update that is left after a last backward of so many seconds.

        T = n (f + b) + max(own, host - w b) with w <= 1 <= n: no longer with a shorter backward.
        """
        beside = beside_backward(self.choice.offload, as_number(back))
        return as_array(self._least_update(used, box, beside))

    def _with_copies(self, used: Participants, box: Box) -> tuple[list[_Passes], list[Seconds]]:
        """Micro-batches with what they wait for their hosts, and what the first of a step waits less, at best."""
        ways, passes, saved = self._only_size(box.high).size, [], []
        for device_type, one in zip(used.device_types, used.micro, strict=True):
            alone = self._group(device_type)
            forward, back, saves = self.pricer.each_copied(self._shape, alone, ways, one.forward, one.back)
            passes.append(_Passes(forward, back))
            saved.append(saves)
        return passes, saved

    def _alone(self, used: Participants, ring: Ring, box: Box) -> BatchPartition:
        """ZeRO 0 and 1: each device splits its share as suits it."""
        return self._each_its_own(*self._ends_alone(used, ring, box), box)

    def _each_its_own(self, used: Participants, added: Added, box: Box) -> BatchPartition:
        """Each device splits its share as suits it; a box only needs a bound."""
        return self._team(used).least(added, used.must, *(() if box.single else (BOX_EXACT,)))

    def _ends_alone(self, used: Participants, ring: Ring, box: Box) -> tuple[Participants, Added]:
        """Micro-batches with what they wait for their hosts, and what a device exchanges at the end."""
        if self.choice.offload.anything:
            used = replace(used, micro=tuple(self._with_copies(used, box)[0]))
        return used, added_by([self._sync_seconds(ring, one) for one in used.micro])

    def _parts_in_step(self, used: Participants, ring: Ring) -> tuple[Added, Added]:
        """The same where replicas keep step while they reduce gradients: on its own, and in step."""
        gathers = self.choice.zero == 1 and ring.copies is None
        alone: list[list[Seconds]] = [[], []]
        in_step: list[list[Seconds]] = [[], []]
        for one in used.micro:
            for way, first in enumerate((one.forward, np.append(one.forward[1:], one.forward[-1]))):
                own = one.back + (first if gathers else 0.0)
                alone[way].append(-own)
                end = self._sync_seconds(ring, replace(one, forward=first))
                in_step[way].append(end + own)
            in_step[1][-1][-1] = np.inf
        return Added(*map(np.concatenate, alone)), Added(*map(np.concatenate, in_step))

    def _lock_step(
        self, used: Participants, ring: Ring, box: Box, *, exact_below: float = 0.0
    ) -> BatchPartition:
        """ZeRO 2 and 3: the same number of micro-batches everywhere."""
        seconds, left = self._parts_in_lock_step(used, ring, box)
        if used.once:
            return least_at_once(seconds, left, used.counts, self.batch, used.must)
        return least_in_lock_step(
            seconds, left, used.counts, self.batch, used.must, sum(box.low), exact_below=exact_below
        )

    def _parts_in_lock_step(
        self, used: Participants, ring: Ring, box: Box
    ) -> tuple[list[Seconds], list[Seconds]]:
        """Seconds of a micro-batch, and of what follows the last, both [device type][sequences - 1]."""
        moved = tuple(
            _Passes(
                *self.pricer.each_micro_batch(
                    self._shape, ring, device_type, one.forward, one.back, self.choice.tp, one.inside
                )
            )
            for device_type, one in zip(used.device_types, used.micro, strict=True)
        )
        if not self.choice.offload.anything:
            return [one.seconds for one in moved], [self._sync_seconds(ring, one) for one in moved]
        micro, saved = self._with_copies(replace(used, micro=moved), box)
        left = [self._sync_seconds(ring, one) for one in micro]
        left = [one - saves for one, saves in zip(left, saved, strict=True)]
        if self.choice.offload.super_offload:
            left = [
                one + self._follows(used, box, passes.back - saves)
                for one, passes, saves in zip(left, micro, saved, strict=True)
            ]
        return [one.seconds for one in micro], left

    def _sync_seconds(self, ring: Ring, one: _Passes) -> Seconds:
        """What a replica exchanges at the end of a step, less what its passes hide, [sequences - 1]."""
        return self.pricer.each_sync_seconds(self._shape, ring, one.forward, one.back, self.choice.tp)

    def _passes_of(self, device_type: DeviceType) -> _Growing:
        # Of ZeRO it is the hooks alone that a replica without traffic has.
        zero = self.choice.zero if self.pricer.hooked(self.choice.zero) else 0
        return _passes(self.pricer, *device_type.key, self.choice.recompute, self.choice.tp, zero)

    def _team(self, used: Participants) -> Team:
        return Team([one.seconds for one in used.micro], used.counts, self.batch, once=used.once)

    def _rate(self, device_type: DeviceType, devices: float) -> float:
        """Sequences per second of a replica that computes all the time; 0 when nothing fits."""
        most = self.most_sequences(device_type, devices, once=True)
        if not most:
            return 0.0
        one = self._passes_of(device_type).first(most).seconds
        return float((np.arange(1, most + 1) / one).max())

    def _groups(self, used: Participants, partition: BatchPartition) -> tuple[ReplicaGroup, ...]:
        """Groups whose shares add up to the batch: what is too much is taken back one sequence a device."""
        team = self._team(used)
        least = max(1, partition.steps)
        excess = sum(share * count for share, count in zip(partition.shares, used.counts, strict=True))
        excess -= self.batch
        groups: list[ReplicaGroup] = []
        for index, (device_type, count, share) in enumerate(
            zip(used.device_types, used.counts, partition.shares, strict=True)
        ):
            whole = min(excess // count, share - least)
            extra = min(excess - whole * count, count) if share - whole > least else 0
            excess -= whole * count + extra
            for number, part in self._parts(device_type, count, extra, share - whole):
                steps = partition.steps or team.steps(index, part, partition.added)
                groups.append(self._group(device_type, number, part, steps))
        assert not excess, "shares within the least time are at least one sequence a device"
        return tuple(groups)

    def _parts(
        self, device_type: DeviceType, count: int, extra: int, share: int
    ) -> Iterator[tuple[int, int]]:
        """(devices, share): ``extra`` of ``count`` devices get one sequence less."""
        parts = [(count - extra, share), (extra, share - 1)]
        if self.choice.group_size is not None:
            # The first of them fill the node that the others leave, so that replicas stay in the order of the nodes.
            fill = min(extra, (extra - count) % self._per_node(device_type))
            parts[1:] = [(fill, share - 1), (extra - fill, share - 1)]
        return ((number, part) for number, part in parts if number)

    def _group(self, device_type: DeviceType, count: int = 1, share: int = 1, steps: int = 1) -> ReplicaGroup:
        shard = self._parts_each.get(device_type.key, 1)
        return replicas_on(device_type, self.choice.tp, count, share, steps, shard)


def _slowest(seconds: Sequence[float], must: Sequence[bool]) -> float:
    """The most of the device types that must take part; where none must, the least of all."""
    required = [value for value, needed in zip(seconds, must, strict=True) if needed]
    return reduce(larger, required) if required else reduce(smaller, seconds)


@dataclass(frozen=True, slots=True)
class _Passes:
    """Micro-batches of 1, 2, ... sequences through the whole model without traffic between replicas.

    Each [sequences - 1].
    """

    forward: Seconds
    back: Seconds
    inside: tuple[Seconds, Seconds] | None = None
    """What of the forward and of the backward is traffic inside a replica; none of single devices."""

    def stretched(self, factor: float) -> _Passes:
        """All of it so many times as long."""
        inside = self.inside and (self.inside[0] * factor, self.inside[1] * factor)
        return _Passes(self.forward * factor, self.back * factor, inside)

    def longer(self, forward: float, back: float) -> _Passes:
        """By so much each."""
        return _Passes(self.forward + forward, self.back + back, self.inside)

    @property
    def seconds(self) -> Seconds:
        """Forward and backward."""
        return self.forward + self.back


@dataclass(frozen=True, slots=True)
class Participants:
    """Kinds of devices that may take part, each [device type]."""

    device_types: tuple[DeviceType, ...]
    counts: tuple[int, ...]
    """Devices, at most."""
    must: tuple[bool, ...]
    """True where some do."""
    micro: tuple[_Passes, ...]
    once: bool = False
    """True where each has one micro-batch."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sequences of the largest micro-batches."""
        return tuple(len(one.forward) for one in self.micro)


@dataclass(frozen=True, slots=True)
class Ways:
    """What some replicas may do in a step, by device type."""

    device_types: tuple[DeviceType, ...]
    counts: tuple[int, ...]
    """Replicas."""
    micro: tuple[Seconds, ...]
    """Seconds of micro-batches of 1, 2, ... sequences, [device type]."""
    end: float
    """Seconds behind all else."""
    once: bool
    """True where each has one micro-batch."""
    left: tuple[Seconds, ...] = ()
    """Seconds behind the last of micro-batches that all do in step, [device type][sequences - 1]; none where replicas
    have as many as suits them."""
    alone: Added = NO_WAYS
    """Of each way to split a share, what it takes on its own beside its micro-batches."""
    in_step: Added = NO_WAYS
    """And what it takes in step with the others."""


class _Growing:
    """Passes of replicas of one device type on devices that do not vary, priced as far as they are asked for."""

    def __init__(
        self, pricer: Pricer, device_type: DeviceType, recompute: Recompute, tp: int, zero: int
    ) -> None:
        self.pricer = pricer
        self.group = replicas_on(device_type, tp)
        self.ring = ALONE
        self._alone = pricer.stretch(device_type, ALONE, tp)
        split = splits_sequence(pricer.target, pricer.model, tp)
        self.shape = replace(whole_model(pricer.model, zero, recompute), sequence_parallel=split)
        self._known = _Passes(np.empty(0), np.empty(0))

    def first(self, most: int) -> _Passes:
        """Micro-batches of up to ``most`` sequences."""
        known = self._known
        if most > len(known.forward):
            sequences = np.arange(1, max(most, 2 * len(known.forward)) + 1)
            times = self.pricer.micro_batch(self.shape, self.group, cast("int", sequences), self.ring)
            known = _Passes(as_array(times.forward_seconds), as_array(times.backward_seconds))
            if self.group.tp > 1:
                # What a lone replica waits for its slowest device is part of what all wait for.
                known = known.stretched(1.0 / self._alone)
                back = as_array(times.tensor_backward_seconds)
                ahead = as_array(times.tensor_parallel_seconds) - back
                # Measured layers may have all of it in their times, whatever their size.
                ahead, back = np.broadcast_arrays(ahead, back, known.forward)[:2]
                known = replace(known, inside=(ahead, back))
            self._known = known
        inside = known.inside and (known.inside[0][:most], known.inside[1][:most])
        return _Passes(known.forward[:most], known.back[:most], inside)


@lru_cache(maxsize=256)
def _passes(pricer: Pricer, pool: str, gpu: str, recompute: Recompute, tp: int, zero: int = 0) -> _Growing:
    return _Growing(pricer, pricer.topology.device_type(pool, gpu), recompute, tp, zero)


@derived
def most_sequences_per_second(
    estimator: Estimator, target_name: str, of: tuple[str, str], recompute: Recompute, tp: int
) -> float:
    """What a replica of these devices, by (pool, gpu), that has the whole model does at best.

    Whatever fits, and without traffic between replicas.
    """
    device_type, known = estimator.topology.device_type(*of), estimator.of_devices
    key = "whole replicas", target_name, device_type.kind, recompute, tp
    if key not in known:
        most = min(estimator.model.training.global_batch, most_offered(estimator.model))
        passes = _passes(estimator.pricer(target_name), *of, recompute, tp).first(most)
        known[key] = float((np.arange(1, most + 1) / passes.seconds).max())
    return cast("float", known[key])


def least_seconds(
    choice: DataParallel, estimator: Estimator, replicas: Iterable[tuple[DeviceType, int]]
) -> float:
    """No shares of so many replicas of each type are faster, whatever fits and whatever they send."""
    rate = sum(
        count
        * most_sequences_per_second(estimator, choice.target, device_type.key, choice.recompute, choice.tp)
        for device_type, count in replicas
        if count
    )
    # T >= sequences / sum of what the replicas do of them a second
    return estimator.model.training.global_batch / rate if rate else float("inf")


def added_by(ends: Sequence[Seconds]) -> Added:
    """What follows the last micro-batch, by its size, [device type][sequences - 1]; none is larger than the largest."""
    return Added(np.concatenate(ends), np.concatenate([np.append(end[1:], np.inf) for end in ends]))


def most_offered(model: ModelSpec) -> int:
    """Sequences of the largest micro-batch that is offered for one device."""
    return max(MAX_MICRO_BATCH, min(MAX_SIZES, MAX_TOKENS // model.training.sequence_length))


def best_of(shares: Shares, box: Box, rounds: int, cutoff_seconds: float) -> Iterator[Plan]:
    """Plans of sets in the box, each thought faster than those before, after at most so many sets were tried."""
    heap = [(shares.bound(box), box.low, box.high)]
    tried: set[Counts] = set()
    while heap and len(tried) < rounds:
        bound, low, high = heappop(heap)
        if bound >= cutoff_seconds:
            return
        now = Box(low, high)
        counts = now.fullest(shares.batch, shares.unit)
        if counts not in tried:
            tried.add(counts)
            seconds, plan = shares.best(counts, cutoff_seconds)
            if plan is not None:
                cutoff_seconds = min(cutoff_seconds, seconds)
                yield plan
        for part in shares.halves(now) if not now.single else ():
            heappush(heap, (max(bound, shares.bound(part)), part.low, part.high))
