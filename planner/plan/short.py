"""Short plans: the few lines that a user writes to have a plan priced, and how the rest is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from planner.capabilities import Recompute
from planner.cluster.equal_pools import joined
from planner.cluster.spec import ClusterSpec
from planner.errors import KeyPath, PlanError
from planner.files.document import Document
from planner.files.fields import (
    Batch,
    Devices,
    Frozen,
    Layers,
    Name,
    NodeDevices,
    ShardParts,
    Stages,
    strict,
)
from planner.frozen import record
from planner.model.spec import ModelSpec
from planner.plan.checks import fail_on_faults, faults
from planner.plan.equal_pools import on_own_pools
from planner.plan.values import (
    Decisions,
    Fault,
    Grid,
    Plan,
    ReplicaGroup,
    Stage,
)
from planner.ranges import STAGES
from planner.targets import PER_DEVICE, UNIFORM


def _written(tp: Any) -> str:
    return "<grid>" if isinstance(tp, dict | Grid) else "<number>"


_LISTED = Field(min_length=1, max_length=int(STAGES.most), strict=False)
"""One for each stage."""


class ShortStage(Frozen):
    """Where a pipeline stage runs, and what differs from the plan's own values."""

    pool: Name | None = None
    """Pool of the stage; filled in file order when absent."""
    gpu: Name | None = None
    """Kind of device, for pools that mix device types; the pool's first when absent."""
    layers: Layers | None = None
    """Layers of the stage."""
    tp: NodeDevices | None = None
    """Devices of one replica."""
    dp: Devices | None = None
    """Replicas of the stage."""
    micro_batch: Batch | None = None
    """Sequences of one micro-batch of one replica."""
    recompute: Recompute | None = None
    """none, selective or full."""
    count: Stages = 1
    """Stages that this entry stands for."""


class ShortReplicas(Frozen):
    """Replicas of a plan without pipeline, with their own batch."""

    pool: Name
    """Pool of the replicas."""
    gpu: Name | None = None
    """Kind of device, for pools that mix device types; the pool's first when absent."""
    tp: NodeDevices | None = None
    """Devices of one replica; the plan's when absent."""
    count: Devices
    """How many equal ones."""
    micro_batch: Batch
    """Sequences of the largest micro-batch of one replica."""
    steps: Batch | None = None
    """Micro-batches of one replica in a step; as many as fill the global batch when absent."""
    share: Batch | None = None
    """Sequences of one replica in a step; micro_batch x steps when absent."""
    shard: ShardParts = 1
    """Parts of what ZeRO shards that one replica holds."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class ShortPlan(Decisions):
    """A plan by its main choices."""

    target: str | None = None
    """Runtime; megatron when absent, deepspeed for plans with ``replicas``."""
    tp: Annotated[
        Annotated[NodeDevices, Tag("<number>")] | Annotated[Grid, Tag("<grid>")], Discriminator(_written)
    ] = 1
    """Devices of one replica: their number, or the rows, columns and depth of the grid that they are."""
    pp: Stages | None = None
    """Pipeline stages; as many as ``stages`` or ``layers`` name, else 1."""
    dp: Devices | None = None
    """Replicas of each stage, those that share sequences (``cp``) counted once; as many as the cluster holds when
    absent."""
    micro_batch: Batch = 1
    """Sequences of one micro-batch of one replica."""
    recompute: Recompute = "none"
    """none, selective or full."""
    layers: Annotated[tuple[Layers, ...], _LISTED] | None = None
    """Layers of each stage; as even as possible when absent, earlier stages one more."""
    stages: Annotated[tuple[ShortStage, ...], _LISTED] | None = None
    """Stages in pipeline order, when they differ."""
    replicas: Annotated[tuple[ShortReplicas, ...], Field(min_length=1, strict=False)] | None = None
    """Replicas with a batch of their own, for plans without pipeline."""

    @property
    def grid(self) -> Grid | None:
        """The grid that the devices of a replica are."""
        return self.tp if isinstance(self.tp, Grid) else None

    @property
    def degree(self) -> int:
        """Devices of one replica."""
        return self.tp.devices if isinstance(self.tp, Grid) else self.tp


def short_plan(document: Document, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    """The whole plan, checked; raises SpecError or PlanError with lines."""
    short = document.to(ShortPlan)
    # Stages that are dealt over nodes take no notice of how many pools these are written in.
    unnamed = short.stage_nodes > 1 and not any(entry.pool for entry in short.stages or ())
    seen = joined(cluster) if unnamed else cluster
    try:
        plan = _from_replicas(short, seen, model) if short.replicas else _from_stages(short, seen, model)
        if seen is not cluster:
            plan = on_own_pools(plan, seen, cluster)
    except PlanError as error:
        raise PlanError(str(document.problem(error.path, error.what))) from None
    # What several stages or groups have in common stands in one place.
    found = dict.fromkeys(_in_short(fault, short, model) for fault in faults(plan, cluster, model))
    fail_on_faults(document, tuple(found))
    return plan


@record(slots=True)
class _Room:
    """Devices of one type in one pool that no stage has taken, node by node."""

    pool: str
    gpu: str
    free: list[int]
    per_node: int
    spans: bool
    """True where a replica may fill several nodes."""

    def replicas(self, tp: int) -> int:
        nodes = self._nodes(tp)
        if nodes > 1:
            spans = self.spans and tp % self.per_node == 0
            return self.free.count(self.per_node) // nodes if spans else 0
        return sum(devices // tp for devices in self.free)

    def _nodes(self, tp: int) -> int:
        return -(-tp // self.per_node)

    def take(self, count: int, tp: int) -> None:
        """Fullest nodes first, as placement does."""
        nodes = self._nodes(tp)
        if nodes > 1:
            count, tp = count * nodes, self.per_node
        for node, devices in enumerate(self.free):
            taken = min(count, devices // tp)
            self.free[node] -= taken * tp
            count -= taken


def _from_stages(short: ShortPlan, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    entries = _entries(short, model)
    layers = _layers(short, entries, model)
    room = _room(cluster, grid=short.grid is not None)
    for index, entry in entries:
        _check_place(entry, ("stages", index), room)
    dp = short.dp or max(1, _most_replicas(short, entries, room) // short.cp)
    stages, first = [], 0
    for number, (index, entry) in enumerate(entries):
        groups = _groups(short, entry, ("stages", index) if short.stages else (), dp, room, model)
        recompute = entry.recompute or short.recompute
        stages.append(
            Stage(first_layer=first, end_layer=first + layers[number], replicas=groups, recompute=recompute)
        )
        first += layers[number]
    return _whole(short, tuple(stages), UNIFORM.name)


def _whole(short: ShortPlan, stages: tuple[Stage, ...], target: str) -> Plan:
    try:
        shared = {field.name: getattr(short, field.name) for field in fields(Decisions)}
        return Plan(**shared | {"target": short.target or target, "grid": short.grid, "stages": stages})
    except PlanError as error:
        raise PlanError(error.what, path=error.path[:1] or ("stages",)) from None


def _entries(short: ShortPlan, model: ModelSpec) -> list[tuple[int, ShortStage]]:
    """(index in the file, entry) of every pipeline stage."""
    if short.stages:
        _check_depth(sum(entry.count for entry in short.stages), "stages", model)
        entries = [(index, entry) for index, entry in enumerate(short.stages) for _ in range(entry.count)]
    else:
        pp = short.pp or len(short.layers or (0,))
        _check_depth(pp, "pp" if short.pp else "layers", model)
        entries = [(index, ShortStage()) for index in range(pp)]
    if short.pp and short.pp != len(entries):
        raise PlanError(f"expected {len(entries)}, the number of stages, got {short.pp}", path=("pp",))
    return entries


def _check_depth(stages: int, key: str, model: ModelSpec) -> None:
    if stages > model.layers:
        what = (
            f"{stages} stages for {model.layers} {model.unit}, expected at most one stage a {model.unit[:-1]}"
        )
        raise PlanError(what, path=(key,))
    if stages > STAGES.most:
        raise PlanError(f"{stages} stages, expected at most {STAGES.most}", path=(key,))


def _layers(short: ShortPlan, entries: list[tuple[int, ShortStage]], model: ModelSpec) -> list[int]:
    given = [entry.layers for _, entry in entries]
    if short.layers is not None:
        return _checked(list(short.layers), len(entries), model)
    if any(number is not None for number in given):
        if None in given:
            raise PlanError(
                "layers are given for some stages only", path=("stages", entries[given.index(None)][0])
            )
        return _checked([number for number in given if number is not None], len(entries), model)
    small, larger = divmod(model.layers, len(entries))
    return [small + 1] * larger + [small] * (len(entries) - larger)


def _checked(layers: list[int], stages: int, model: ModelSpec) -> list[int]:
    if len(layers) != stages:
        what = f"expected {stages} numbers, one for each stage, got {len(layers)}"
        raise PlanError(what, path=("layers",))
    if sum(layers) != model.layers:
        raise PlanError(
            f"expected a sum of {model.layers}, the {model.unit} of {model.name}, got {sum(layers)}",
            path=("layers",),
        )
    return layers


def _room(cluster: ClusterSpec, *, grid: bool) -> list[_Room]:
    """Kinds of devices in file order; replicas fill nodes of one type, grids any."""
    rooms = []
    for pool in cluster.pools:
        types = dict.fromkeys(pool.devices)
        for gpu in types:
            per_node = pool.devices.count(gpu)
            free = [per_node] * len(pool.hosts)
            rooms.append(_Room(pool.name, gpu, free, per_node, spans=grid or len(types) == 1))
    return rooms


def _fitting(entry: ShortStage, room: Iterable[_Room]) -> list[_Room]:
    """Where a stage may run; a pool without a device type means its first."""
    rooms = [
        device_type
        for device_type in room
        if entry.pool in (None, device_type.pool) and entry.gpu in (None, device_type.gpu)
    ]
    return rooms[:1] if entry.pool and not entry.gpu else rooms


def _check_place(entry: ShortStage, path: KeyPath, room: Sequence[_Room]) -> None:
    """Raise PlanError for a pool, or a kind of device, that the cluster does not have."""
    pools = dict.fromkeys(each.pool for each in room)
    if entry.pool is not None and entry.pool not in pools:
        what = f'the cluster has no pool "{entry.pool}", it has: {", ".join(pools)}'
        raise PlanError(what, path=(*path, "pool"))
    if entry.gpu is not None and not _fitting(entry, room):
        where = f"the pool {entry.pool}" if entry.pool else "the cluster"
        own = dict.fromkeys(each.gpu for each in room if entry.pool in (None, each.pool))
        what = f'{where} has no device "{entry.gpu}", it has: {", ".join(own)}'
        raise PlanError(what, path=(*path, "gpu"))


def _most_replicas(short: ShortPlan, entries: list[tuple[int, ShortStage]], room: list[_Room]) -> int:
    """As many replicas for each stage as fit when all stages have the same number."""
    if short.stages and any(entry.pool for _, entry in entries):
        shared: dict[str, int] = {}
        for _, entry in entries:
            shared[str(entry.pool)] = shared.get(str(entry.pool), 0) + 1
        fits = [
            sum(device_type.replicas(entry.tp or short.degree) for device_type in _fitting(entry, room))
            // shared[str(entry.pool)]
            for _, entry in entries
        ]
        return max(1, min(fits))
    return max(1, sum(device_type.replicas(short.degree) for device_type in room) // len(entries))


def _groups(
    short: ShortPlan, entry: ShortStage, path: KeyPath, dp: int, room: list[_Room], model: ModelSpec
) -> tuple[ReplicaGroup, ...]:
    tp, replicas = entry.tp or short.degree, entry.dp or dp
    micro_batch = entry.micro_batch or short.micro_batch
    share, steps = _batch(short, path, replicas, micro_batch, model)
    replicas *= short.cp
    groups, left = [], replicas
    for device_type in _fitting(entry, room):
        count = min(left, device_type.replicas(tp))
        if count:
            device_type.take(count, tp)
            groups.append(
                ReplicaGroup(
                    pool=device_type.pool,
                    gpu=device_type.gpu,
                    tp=tp,
                    count=count,
                    local_batch=share,
                    accumulation_steps=steps,
                )
            )
            left -= count
    if left:
        where = f"the pool {entry.pool}" if entry.pool else "the cluster"
        what = f"{replicas} replica{'s' if replicas > 1 else ''} of {tp} device{'s' if tp > 1 else ''}, "
        what += f"{where} has room for {replicas - left} more"
        raise PlanError(what, path=path or ("dp",))
    return tuple(groups)


def _batch(short: ShortPlan, path: KeyPath, dp: int, micro_batch: int, model: ModelSpec) -> tuple[int, int]:
    """(share, steps) of each replica of a stage; backups have as much as those that count."""
    batch, kept = model.training.global_batch, max(1, dp - short.backup)
    # As many sequences as if all replicas ran the same number of micro-batches.
    batch += short.fewer_steps * micro_batch
    if batch % (kept * micro_batch):
        width = f"(dp {dp} - backup {short.backup})" if short.backup else f"dp {dp}"
        whole = f"{batch} = the global batch + {short.fewer_steps} x {micro_batch}"
        what = whole if short.fewer_steps else f"the global batch {batch}"
        what += f" does not divide by {width} x micro_batch {micro_batch}"
        near = _nearest_divisor(batch, kept, micro_batch, short.fewer_steps + 1)
        would = "no dp would do" if near is None else f"dp {near + short.backup} would do"
        raise PlanError(f"{what}, {would}", path=path or (("dp",) if short.dp else ("micro_batch",)))
    return batch // kept, batch // (kept * micro_batch)


def _nearest_divisor(batch: int, dp: int, micro_batch: int, least: int) -> int | None:
    return next((width for width in range(dp, least - 1, -1) if batch % (width * micro_batch) == 0), None)


def _from_replicas(short: ShortPlan, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    replicas = short.replicas or ()
    if short.stages or short.layers or (short.pp or 1) > 1:
        raise PlanError(
            "replicas are for plans without pipeline, expected no pp, layers or stages", path=("replicas",)
        )
    if short.dp or short.micro_batch > 1:
        name = "dp" if short.dp else "micro_batch"
        own = "count" if short.dp else "micro_batch"
        raise PlanError(
            f"each of the replicas has its own {own}, expected no {name} beside them", path=(name,)
        )
    # As many sequences as if all replicas ran the same number of micro-batches.
    batch = model.training.global_batch + short.fewer_steps * replicas[0].micro_batch
    width = sum(entry.count for entry in replicas)
    together = sum(entry.count * entry.micro_batch for entry in replicas) // short.cp
    # Backups, which are like all others, do not count.
    together = max(1, together * (width - short.backup) // width)
    device_types = {pool.name: pool.devices[0] for pool in cluster.pools}
    groups = []
    for index, entry in enumerate(replicas):
        if entry.steps is None and entry.share is None and batch % together:
            whole = f"the global batch + {short.fewer_steps} micro-batches = " if short.fewer_steps else ""
            what = f"the micro-batches add up to {together}, which does not divide "
            what += f"{whole or 'the global batch '}{batch}"
            raise PlanError(f"{what}, expected steps and share", path=("replicas", index))
        groups.append(
            _own_batch(entry, index, short.degree, batch // together, device_types.get(entry.pool, ""))
        )
    stage = Stage(first_layer=0, end_layer=model.layers, replicas=tuple(groups), recompute=short.recompute)
    return _whole(short, (stage,), PER_DEVICE.name)


def _own_batch(entry: ShortReplicas, index: int, tp: int, steps: int, gpu: str) -> ReplicaGroup:
    if entry.share is not None:
        steps = entry.steps or -(-entry.share // entry.micro_batch)
    else:
        steps = entry.steps or steps
    share = entry.share or entry.micro_batch * steps
    if not steps <= share <= entry.micro_batch * steps:
        most = entry.micro_batch
        what = (
            f"{share} sequences in {steps} steps of at most {most}, expected from {steps} to {most * steps}"
        )
        raise PlanError(what, path=("replicas", index, "share"))
    return ReplicaGroup(
        pool=entry.pool,
        gpu=entry.gpu or gpu,
        tp=entry.tp or tp,
        count=entry.count,
        local_batch=share,
        accumulation_steps=steps,
        shard=entry.shard,
    )


def _in_short(fault: Fault, short: ShortPlan, model: ModelSpec) -> Fault:
    """The fault at the place of the short file that caused it."""
    path = fault.path
    if path[:1] == ("grid",):
        return Fault(("tp", *path[1:]), fault.what)
    if path[:1] != ("stages",):
        return fault
    if short.replicas:
        return Fault(("replicas", *path[3:]), fault.what)
    if short.stages and len(path) > 1:
        index = _entries(short, model)[int(path[1])][0]
        return Fault(("stages", index), f"stage {path[1]}: {fault.what}")
    depth = "stages" if short.stages else "pp" if short.pp else "layers"
    key = {"stages": depth, "count": "dp"}.get(str(path[-1]), path[-1])
    known = key in (depth, "dp", "tp", "layers", "recompute", "micro_batch")
    return Fault((key,) if known else (), fault.what)
