"""The plan space: which outer choices a target offers, and how a stage may be composed of devices.

An outer choice fixes everything that all stages share. What is left, layers and devices of each stage, is
the ILP's. The exhaustive oracle walks the same space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, combinations, product
from math import comb
from typing import NamedTuple

from planner.capabilities import Capabilities, Recompute, Schedule
from planner.cluster.topology import DeviceType, Topology
from planner.cost.schedules import is_v_shaped
from planner.cost.shape import Shape
from planner.dims.context import contexts
from planner.dims.dimension import allowed
from planner.dims.expert import OVERLAP_CHUNKS, divides_at, foldings, holds_experts, overlaps
from planner.dims.offloading import offloads
from planner.dims.pipeline import divided_orders, interleavings
from planner.dims.recompute import worth_trying
from planner.dims.sharding import fills_node, node_sizes, zeros, zeros_at
from planner.dims.tensor import splits_sequence, tp_degrees
from planner.dims.trained import lack
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.checks import model_faults, unwritten
from planner.plan.placement import place_stages
from planner.plan.values import (
    ON_DEVICE,
    WHOLE,
    WHOLE_EXPERTS,
    Context,
    Folding,
    Offload,
    Plan,
    ReplicaGroup,
    Stage,
)
from planner.search.values import Limits
from planner.targets import TARGETS, target
from planner.units import divisors

MAX_DEPTH = 64
"""Deepest pipeline that is offered; published runs end there."""

MOST_MIXES = 10_000
"""Sets of device types that share a stage, at most: of many types only small sets are looked at."""

MOST_ODD = 7
"""Largest odd part of numbers of replicas that do not divide the batch; times any power of two."""

MOST_WAITING = 0.1
"""Largest part of a step for which these replicas wait for those that have a micro-batch more, on average."""


class Family(NamedTuple):
    """Outer choices that differ only in depth and interleaving; a tuple, since families are keys everywhere."""

    target: str
    zero: int
    recompute: Recompute | None
    """None: each stage recomputes as little as its memory allows."""
    tp: int | None
    """None: each stage has its own degree."""
    dp: int | None
    """None: each stage has its own."""
    batch: int
    """Sequences of one micro-batch over all replicas of a stage, shared ones once."""
    micro_batches: int
    network: str = ""
    """The partition of the cluster it belongs to (partitions.py)."""
    folding: Folding = WHOLE_EXPERTS
    """How the experts of a layer are divided."""
    context: Context = WHOLE
    """How sequences are divided over the ``dp`` replicas."""
    offload: Offload = ON_DEVICE
    shard_size: int | None = None
    """As in ``Plan``; each stage is of one device type then, and each of its groups a node."""
    stage_nodes: int = 1
    """As in ``Plan``; its partition is of a cluster with so many nodes as one."""

    @property
    def equal_work(self) -> tuple[object, ...]:
        """What those have in common that do the same with each micro-batch, whatever they share and keep where."""
        return self.recompute, self.tp, self.micro_batch, self.folding, self.context

    @property
    def micro_batch(self) -> int | None:
        """Sequences of one micro-batch of one replica, when all stages have the same dp."""
        return None if self.dp is None else self.batch * self.context.ways // self.dp

    def fewer_steps(self, model: ModelSpec) -> int:
        """Replicas that run one micro-batch fewer than the others, so that all together have the global batch."""
        lacking = self.batch * self.micro_batches - model.training.global_batch
        return lacking // self.micro_batch if lacking and self.micro_batch else 0

    def least_chunks(self, depth: int, model: ModelSpec) -> int:
        """Chunks of layers that each of so many stages has at least."""
        return OVERLAP_CHUNKS if depth > 1 and overlaps(model, self.folding) else 1

    def shape(
        self,
        layers: Sequence[int],
        stage: int,
        depth: int,
        model: ModelSpec,
        recompute: Recompute,
        tp: int | None,
    ) -> Shape:
        """A stage of this family with so many layers in each chunk; ``tp`` None for per-stage degrees."""
        return Shape(
            chunks=tuple(layers),
            stage=stage,
            depth=depth,
            micro_batches=self.micro_batches,
            zero=self.zero,
            recompute=recompute,
            sequence_parallel=splits_sequence(TARGETS[self.target], model, tp),
            folding=self.folding,
            offload=self.offload,
            lone=depth == self.micro_batches == 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One outer choice."""

    family: Family
    depth: int
    interleave: int
    schedule: Schedule = "1f1b"

    @classmethod
    def plainest(cls, family: Family, depth: int, model: ModelSpec) -> Choice:
        """1F1B with as few chunks a stage as there may be."""
        return cls(family=family, depth=depth, interleave=family.least_chunks(depth, model))

    @property
    def plain(self) -> bool:
        """True for 1F1B with one chunk a stage, of whose paths most is known."""
        return self.interleave == 1 and self.schedule == "1f1b"

    def plan(self, stages: Sequence[Stage], model: ModelSpec) -> Plan:
        """The plan with these stages; sequence parallelism is on wherever a group can split the sequence."""
        wide = any(group.tp > 1 for stage in stages for group in stage.replicas)
        return Plan(
            target=self.family.target,
            zero=self.family.zero,
            stages=tuple(stages),
            interleave=self.interleave,
            ep=self.family.folding.ep,
            etp=self.family.folding.etp,
            schedule=self.schedule,
            cp=self.family.context.ways,
            cp_kind=self.family.context.kind,
            fewer_steps=self.family.fewer_steps(model),
            stage_nodes=self.family.stage_nodes,
            offload=self.family.offload,
            shard_size=self.family.shard_size,
            sequence_parallel=wide and splits_sequence(TARGETS[self.family.target], model, self.family.tp),
        )


def choice_of(plan: Plan, recompute: Recompute | None) -> Choice:
    """The outer choice that a pipeline is of, with the recomputation of its family."""
    first, own_degrees = plan.stages[0].replicas, TARGETS[plan.target].dp_per_stage
    family = Family(
        target=plan.target,
        zero=plan.zero,
        recompute=recompute,
        tp=None if own_degrees else first[0].tp,
        dp=None if own_degrees else plan.stages[0].dp,
        batch=sum(group.count * group.micro_batch for group in first) // plan.cp,
        micro_batches=plan.micro_batches,
        folding=plan.folding,
        context=plan.context,
        offload=plan.offload,
        shard_size=plan.shard_size,
        stage_nodes=plan.stage_nodes,
    )
    return Choice(family=family, depth=plan.pp, interleave=plan.interleave, schedule=plan.schedule)


Composition = tuple[ReplicaGroup, ...]
"""Devices of one stage, in the order of the device types."""

Islands = tuple[tuple[str, ...], ...]
"""Names of pools that reach each other without a slow link, one tuple an island; empty where nothing is slow."""


def targets_of(limits: Limits) -> tuple[Capabilities, ...]:
    """Targets that the search may propose: the one asked for, or all that are searched by default."""
    if limits.target is not None:
        return (target(limits.target),)
    return tuple(row for row in TARGETS.values() if row.by_default)


def usable_device_types(topology: Topology, model: ModelSpec) -> tuple[DeviceType, ...]:
    """Kinds that can do what the training asks for, with a known link to their host where moments are paged."""
    return tuple(
        device_type
        for device_type in topology.device_types
        if lack(device_type, model.training) is None
        and not (model.training.paged and device_type.host.bytes_per_second is None)
    )


def offers(row: Capabilities, model: ModelSpec) -> bool:
    """True when the target trains the model and launch files for it can be written."""
    return unwritten(row, model) is None and not any(model_faults(row, model))


def recomputes_of(
    row: Capabilities, limits: Limits, model: ModelSpec, device_types: tuple[DeviceType, ...]
) -> tuple[Recompute, ...]:
    """Recomputations worth trying, none where the target does not train the model."""
    if not offers(row, model):
        return ()
    return worth_trying(row, limits.recompute, model, device_types)


def family_recomputes(
    row: Capabilities, limits: Limits, model: ModelSpec, device_types: tuple[DeviceType, ...]
) -> tuple[Recompute | None, ...]:
    """Recomputations of a family: one for all stages, or None where each stage has its own."""
    recomputes = recomputes_of(row, limits, model, device_types)
    return (None,) if row.recompute_per_stage and len(recomputes) > 1 else recomputes


def families(
    row: Capabilities,
    limits: Limits,
    model: ModelSpec,
    device_types: tuple[DeviceType, ...],
    network: str = "",
    holds: Callable[[int, Offload, int, int, Folding], bool] | None = None,
    wanted: Callable[[Recompute | None, int, int], bool] | None = None,
) -> Iterator[Family]:
    """Outer choices of a target whose replicas all process equal micro-batches.

    ``holds`` is False for what has no room whatever the stages: (ZeRO, offload, tp, dp, folding) of families with one.
    ``wanted`` is False for what nobody asks for: (recomputation, tp, sequences of a micro-batch), again with one.
    """

    @cache
    def kept(
        recompute: Recompute | None, tp: int | None, dp: int | None, shares: bool
    ) -> tuple[tuple[int, Offload, Folding], ...]:
        # One replica shards nothing, but what is kept on hosts may still need ZeRO.
        stages = alone if dp == 1 else several
        # Where offload excludes pipelines, the data-parallel search has the replicas of whole sequences.
        hosts = shares or row.offloading.in_pipeline
        places = [
            (zero, offload)
            for zero in several
            for offload in offered[recompute, zero]
            if (hosts if offload.anything else zero in stages)
        ]
        return tuple(
            (zero, offload, folding)
            for (zero, offload), folding in product(
                places, foldings(row, model, tp, dp, limits.ep, limits.etp)
            )
            if (folding == WHOLE_EXPERTS or divides_at(row, zero, offload))
            and not (recompute == "full" and overlaps(model, folding))
            and (not (holds and tp and dp) or holds(zero, offload, tp, dp, folding))
        )

    def each(
        recompute: Recompute | None,
        tp: int | None,
        dp: int | None,
        batch: int,
        context: Context = WHOLE,
    ) -> Iterator[Family]:
        for zero, offload, folding in kept(recompute, tp, dp, context != WHOLE):
            family = Family(
                target=row.name,
                zero=zero,
                recompute=recompute if offload.activations == "none" else "full",
                tp=tp,
                dp=dp,
                batch=batch,
                micro_batches=-(-model.training.global_batch // batch),
                network=network,
                folding=folding,
                context=context,
                offload=offload,
            )
            yield family
            if tp and dp and context == WHOLE and not offload.anything:
                for size in sizes.get((zero, tp), ()):
                    if size < dp and dp % size == 0 and size * tp % folding.ways == 0:
                        yield family._replace(shard_size=size)

    alone, several = (zeros(row, model, replicas, limits.zero) for replicas in (1, None))
    degrees = tp_degrees(row, limits.tp, model, device_types)
    sizes = {
        (zero, tp): node_sizes(row, zero, device_types, tp) for zero in row.hybrid_zero for tp in degrees
    }
    offered = {
        (recompute, zero): _offered(row, zero, recompute, limits, model, device_types)
        for recompute in family_recomputes(row, limits, model, device_types)
        for zero in several
    }
    for recompute in family_recomputes(row, limits, model, device_types):
        if row.dp_per_stage:
            if not allowed((1,), limits.cp):
                continue
            for batch in divisors(model.training.global_batch):
                yield from each(recompute, None, None, batch)
            continue
        for tp in degrees:
            replicas = sum(device_type.replicas(tp) for device_type in device_types)
            for dp, batch, context in equal_steps(row, model, tp, replicas, limits):
                if wanted is None or wanted(recompute, tp, batch * context.ways // dp):
                    yield from each(recompute, tp, dp, batch, context)
            if row.fewer_steps_zero and allowed((1,), limits.cp):
                for dp, batch in unequal_steps(model, replicas, limits):
                    if wanted is not None and not wanted(recompute, tp, batch // dp):
                        continue
                    for family in each(recompute, tp, dp, batch):
                        if family.zero in row.fewer_steps_zero and family.folding == WHOLE_EXPERTS:
                            yield family


def equal_steps(
    row: Capabilities, model: ModelSpec, tp: int, replicas: int, limits: Limits
) -> Iterator[tuple[int, int, Context]]:
    """Replicas, at most so many, sequences of a micro-batch over all of them, and how they share these."""
    divided = contexts(row, model, tp, limits.cp)
    for batch in divisors(model.training.global_batch):
        for together in divisors(batch):
            if limits.micro_batch and batch // together not in limits.micro_batch:
                continue
            for context in divided:
                if together * context.ways <= replicas:
                    yield together * context.ways, batch, context


def unequal_steps(model: ModelSpec, replicas: int, limits: Limits) -> Iterator[tuple[int, int]]:
    """Replicas, and sequences of a micro-batch over all of them, where some replicas run one micro-batch fewer.

    Numbers of replicas that nodes often add up to, the same whatever the cluster has; and of the micro-batches that
    need the same number of steps the smallest: larger ones only take longer.
    """
    total = model.training.global_batch
    sizes = [size for size in divisors(total) if limits.micro_batch is None or size in limits.micro_batch]
    for dp in range(2, min(replicas, total) + 1):
        if dp // (dp & -dp) > MOST_ODD:
            continue
        known: set[int] = set()
        for size in sizes:
            steps, left = divmod(total // size, dp)
            if steps + bool(left) in known:
                continue
            known.add(steps + bool(left))
            # Of (steps + 1) dp micro-batches dp - left are none.
            if steps and left and dp - left <= MOST_WAITING * (steps + 1) * dp:
                yield dp, dp * size


def uniform(
    family: Family, limits: Limits, model: ModelSpec, device_types: tuple[DeviceType, ...]
) -> Iterator[Family]:
    """The family itself; of one whose stages have degrees of their own, the part in which all have the same."""
    if family.dp is not None:
        yield family
        return
    for tp in tp_degrees(TARGETS[family.target], limits.tp, model, device_types):
        replicas = sum(device_type.replicas(tp) for device_type in device_types)
        for dp in divisors(family.batch):
            if dp <= replicas and (limits.micro_batch is None or family.batch // dp in limits.micro_batch):
                yield family._replace(tp=tp, dp=dp)


def orders_of(family: Family, depth: int, model: ModelSpec, limits: Limits) -> Iterator[tuple[int, Schedule]]:
    """Chunks a stage and schedules worth trying for pipelines of so many stages."""
    row, steps = TARGETS[family.target], family.micro_batches
    if family.fewer_steps(model):
        yield 1, "1f1b"
        return
    for chunks in interleavings(row, depth, steps, model):
        if chunks >= family.least_chunks(depth, model):
            yield chunks, "1f1b"
    recomputes = limits.recompute or row.recomputes if family.recompute is None else (family.recompute,)
    if "none" in recomputes and not family.offload.anything:
        yield from divided_orders(row, depth, steps, family.zero, model)


def has_order(row: Capabilities, chunks: int, schedule: Schedule) -> bool:
    """True where a target runs pipelines of so many chunks a stage in a schedule."""
    return schedule in row.schedules and (chunks == 1 or row.interleave or is_v_shaped(schedule))


def _offered(
    row: Capabilities,
    zero: int,
    recompute: Recompute | None,
    limits: Limits,
    model: ModelSpec,
    device_types: tuple[DeviceType, ...],
) -> tuple[Offload, ...]:
    """What families may keep on hosts: also the checkpoints of full recomputation where each stage has its own.

    Updates during the backward are for replicas with batches of their own.
    """
    able = recomputes_of(row, limits, model, device_types) if recompute is None else (recompute,)
    found = (offloads(row, zero, each, limits.offload, model, device_types) for each in able)
    return tuple(each for each in dict.fromkeys(chain.from_iterable(found)) if not each.super_offload)


def stays_whole(family: Family, model: ModelSpec) -> bool:
    """True when plans of a family have one stage alone, whatever their target does with others."""
    row = TARGETS[family.target]
    divided = family.context.ways > 1 and not row.context_in_pipeline
    crosses = model.encoder is not None and row.encoder_decoders == "whole"
    split = family.tp != 1 and not row.tensor_parallel_in_pipeline
    apart = family.folding != WHOLE_EXPERTS and not row.experts_in_pipeline
    hosts = family.offload.anything and not row.offloading.in_pipeline
    return divided or crosses or split or apart or hosts


def depths(
    family: Family, limits: Limits, model: ModelSpec, device_types: tuple[DeviceType, ...]
) -> tuple[int, ...]:
    """Pipeline depths for which there are layers and devices enough."""
    row = TARGETS[family.target]
    if family.dp is None or family.tp is None:
        slots = sum(device_type.devices for device_type in device_types)
    else:
        slots = sum(device_type.replicas(family.tp) for device_type in device_types) // family.dp
    most = min(model.layers, slots, MAX_DEPTH)
    # A batch per replica contains equal batches: with one stage the data-parallel search covers this family.
    shares = family.context.ways > 1 or family.folding != WHOLE_EXPERTS
    covered = family.tp is not None and not shares and batch_per_replica(row, model, family.tp)
    possible_depths: tuple[int, ...] = (
        (1,) if most and not covered and family.stage_nodes == 1 and family.zero in zeros_at(row, 1) else ()
    )
    if family.zero in zeros_at(row, 2) and not stays_whole(family, model):
        deeper = range(2, most + 1)
        if overlaps(model, family.folding):
            possible_depths += tuple(depth for depth in deeper if has_chunks(family, depth, model))
        else:
            possible_depths += tuple(deeper)
    return allowed(possible_depths, limits.pp)


def has_chunks(family: Family, depth: int, model: ModelSpec) -> bool:
    """True where so many stages can have as many chunks of layers as they need."""
    least = family.least_chunks(depth, model)
    return least == 1 or least in interleavings(TARGETS[family.target], depth, family.micro_batches, model)


def batch_per_replica(row: Capabilities, model: ModelSpec, tp: int) -> bool:
    """True where replicas of ``tp`` devices may have batches of their own without a pipeline."""
    alike = model.experts is not None or bool(model.frozen)
    return row.batch_without_pipeline == "per-device" and (tp == 1 or not alike)


def compositions(
    family: Family, device_types: tuple[DeviceType, ...], model: ModelSpec, limits: Limits
) -> tuple[Composition, ...]:
    """Every way to build one stage of a family, without its layers."""
    row = TARGETS[family.target]
    if family.tp is not None and family.dp is not None:
        pure = row.dp_per_stage or family.shard_size is not None
        widest = 1 if pure else most_types(len(device_types))
        ways = family.context.ways
        if ways > 1:
            # Those that keep the scores of whole sequences cannot divide these.
            device_types = tuple(
                device_type
                for device_type in device_types
                if row.fuses_attention(device_type.compute_capability)
            )
        mixes = _mixes(device_types, family.tp, family.dp, family, widest)
        if family.shard_size is not None:
            able = {each.key for each in device_types if fills_node(each, family.shard_size, family.tp)}
            return tuple(mix for mix in mixes if (mix[0].pool, mix[0].gpu) in able)
        per_node = {device_type.key: device_type.per_node for device_type in device_types}
        dealt = {each.key: each for each in device_types if each.dealt > 1}
        return tuple(
            mix
            for mix in mixes
            if all(_is_dealt(group, dealt.get((group.pool, group.gpu))) for group in mix)
            and (len(mix) == 1 or not any((group.pool, group.gpu) in dealt for group in mix))
            and all(
                together == 1 or holds_experts(group, together, per_node[group.pool, group.gpu])
                for group in mix
                for together in (family.folding.ways, family.tp * ways if ways > 1 else 1)
            )
        )
    single_mixes: list[Composition] = []
    for tp in tp_degrees(row, limits.tp, model, device_types):
        for dp in divisors(family.batch):
            if limits.micro_batch is None or family.batch // dp in limits.micro_batch:
                single_mixes += _mixes(device_types, tp, dp, family, 1)
    return tuple(single_mixes)


def _is_dealt(group: ReplicaGroup, device_type: DeviceType | None) -> bool:
    """True where replicas can be dealt evenly over the nodes that are one, where there are such."""
    if device_type is None:
        return True
    return group.count % device_type.dealt == 0 and group.devices <= device_type.per_node


def most_types(types: int) -> int:
    """Device types that share one stage, at most, of so many types: ``MOST_MIXES`` sets of them in all."""
    sets = 0
    for together in range(2, types + 1):
        sets += comb(types, together)
        if sets > MOST_MIXES:
            return together - 1
    return types


def _mixes(
    device_types: tuple[DeviceType, ...], tp: int, dp: int, family: Family, widest: int
) -> Iterator[Composition]:
    """Stages of ``dp`` replicas: of one type, or of at most ``widest`` to use up what whole stages leave over.

    A mixed stage is as slow as its slowest device type, so two of them lose to two pure ones wherever those exist.
    Two device types are mixed when one gives its remainder modulo ``dp``; more only when fewer have not enough.
    Replicas that share sequences stay together.
    """
    ways = family.context.ways
    dp //= ways
    room = {
        device_type.key: device_type.replicas(tp) // ways
        for device_type in device_types
        if device_type.holds(tp) and device_type.replicas(tp) >= ways
    }

    def group(key: tuple[str, str], count: int) -> ReplicaGroup:
        steps = family.micro_batches
        share = steps * family.batch // dp
        return ReplicaGroup(
            pool=key[0], gpu=key[1], tp=tp, count=count * ways, local_batch=share, accumulation_steps=steps
        )

    for key, capacity in room.items():
        if capacity >= dp:
            yield (group(key, dp),)
    for first, second in combinations(room, 2) if widest > 1 else ():
        for count in sorted({room[first] % dp, dp - room[second] % dp} - {0, dp}):
            if count <= room[first] and dp - count <= room[second]:
                yield group(first, count), group(second, dp - count)
    for width in range(3, min(widest, len(room)) + 1):
        for keys in combinations(room, width):
            if sum(sorted(room[key] for key in keys)[1:]) < dp <= sum(room[key] for key in keys):
                counts = _fill([room[key] for key in keys], dp)
                yield tuple(group(key, count) for key, count in zip(keys, counts, strict=True))


def leaves_over(device_type: DeviceType, tp: int) -> bool:
    """True where stages may stand on what others leave of several nodes: numbers of replicas that fill nodes are rare.

    On nodes of 2, 4, 8 or more replicas powers of two fill all nodes, and no other number uses more devices.
    """
    replicas = device_type.per_node // tp
    return device_type.nodes > 1 and replicas & (replicas - 1) > 0


def stands(chosen: Sequence[Composition], topology: Topology, *, whole: bool = False) -> bool:
    """True where stages of these compositions stand as the space has it: a part of a node on one node.

    Where no node has room for it, what others leave of several does, if no stage is of several device types and none
    has to stay ``whole``.
    """
    try:
        place_stages(chosen, topology.cluster, whole=True)
    except PlanError:
        pass
    else:
        return True
    if whole:
        return False
    try:
        placed = place_stages(chosen, topology.cluster)
    except PlanError:
        return False
    return all(len(groups) == 1 for groups in chosen) and all(
        _alone_or_left_over(group, len(slots), topology)
        for (group,), slots in zip(chosen, placed, strict=True)
    )


def _alone_or_left_over(group: ReplicaGroup, slots: int, topology: Topology) -> bool:
    device_type = topology.device_type(group.pool, group.gpu)
    small = group.count < device_type.per_node // group.tp
    return slots <= 2 - small or (small and leaves_over(device_type, group.tp))


def most_mixed(device_types: Sequence[DeviceType]) -> int:
    """Stages of several device types in one pipeline, at most: each device type leaves one remainder over."""
    return len(device_types) - 1


def _fill(room: list[int], dp: int) -> list[int]:
    """``dp`` replicas over all of several device types, in proportion to what there is; at least one of each."""
    total = sum(room)
    counts = [max(1, dp * capacity // total) for capacity in room]
    while sum(counts) > dp:
        counts[counts.index(max(counts))] -= 1
    for index in range(len(room)):
        counts[index] += min(room[index] - counts[index], dp - sum(counts))
    return counts
