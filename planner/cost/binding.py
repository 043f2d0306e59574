"""What limits a plan: the device with the least free memory, and the links and hosts that the step waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from planner.cost.estimate import Estimator, Priced, pipeline_ends, with_sends
from planner.cost.shape import Shape, chunk_layers, shape_of
from planner.cost.stage_price import StagePrice
from planner.cost.values import Memory
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.plan.equal_pools import Joined
from planner.plan.values import Plan, ReplicaGroup
from planner.targets import target

Traffic = Literal[
    "gradients",
    "tied embedding",
    "exchange of islands",
    "sends",
    "tensor-parallel collectives",
    "all-to-alls of experts",
    "context-parallel traffic",
    "ZeRO gathers",
    "copies to and from the host",
    "updates on the host",
]

SMALLEST = 1e-3
"""Share of a step below which a link does not bind."""


@json_fields("memory.headroom_bytes", without=("memory",))
@dataclass(frozen=True, slots=True, kw_only=True)
class TightDevice:
    """The device with least free memory, and what more work on it would need."""

    stage: int
    """Stage of the device."""
    pool: str
    """Its pool."""
    gpu: str
    """Its type."""
    memory: Memory
    next_micro_batch: int | None
    """The next larger micro-batch that its target can run; None without one."""
    next_micro_batch_bytes: float | None
    """How much more it needs."""
    layer_bytes: float | None
    """Memory of one more layer on its stage; None without a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """Traffic of one type over one path, and what the step would save if it took no time."""

    traffic: Traffic
    """gradients, tied embedding, exchange of islands, sends, tensor-parallel collectives, all-to-alls of experts,
    context-parallel traffic, ZeRO gathers, copies to and from the host or updates on it."""
    path: str
    """``node``, ``host``, or a fabric or gateway."""
    stage: int
    """The stage that spends most on it; sends go from it to the next."""
    seconds: float
    """How much shorter the step would be if it took no time."""
    share: float
    """``seconds`` of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What keeps a plan from being faster."""

    device: TightDevice
    links: tuple[BusyLink, ...]
    """The one that costs most first; empty when no step waits for a link."""


def binding(plan: Plan, estimator: Estimator) -> Binding:
    """Memory and links that bind; raises PlanError for a plan that cannot run."""
    priced = estimator.price(plan)
    links = sorted(_links(plan, priced, estimator), key=lambda link: -link.seconds)
    return Binding(device=_tightest(plan, priced, estimator), links=tuple(links))


def _tightest(plan: Plan, priced: Priced, estimator: Estimator) -> TightDevice:
    memories = estimator.memories(plan, priced)
    stage, index = min(
        ((stage, index) for stage, groups in enumerate(memories) for index in range(len(groups))),
        key=lambda place: memories[place[0]][place[1]].headroom_bytes,
    )
    group, memory = plan.stages[stage].replicas[index], memories[stage][index]
    shape = shape_of(plan, stage)

    ring = priced.rings[stage]

    def more(shape: Shape, group: ReplicaGroup) -> float:
        own = plan.copies_of(group)
        changed = estimator.pricer_of(plan).memory(shape, own, ring.ways(own.shard), ring.padding)
        return changed.used_bytes - memory.used_bytes

    larger = _larger(plan, group)
    longer = plan.stages[stage].layers + 1
    deeper = replace(shape, chunks=chunk_layers(longer, plan.interleave, plan.schedule))
    return TightDevice(
        stage=stage,
        pool=group.pool,
        gpu=group.gpu,
        memory=memory,
        next_micro_batch=larger.micro_batch if larger else None,
        next_micro_batch_bytes=more(shape, larger) if larger else None,
        layer_bytes=more(deeper, group) if plan.pp > 1 else None,
    )


def _larger(plan: Plan, group: ReplicaGroup) -> ReplicaGroup | None:
    """The group with the same share in fewer, larger micro-batches; None when it has one."""
    row = target(plan.target)
    rule = row.batch_without_pipeline if plan.pp == 1 else row.batch_with_pipeline
    for steps in range(group.accumulation_steps - 1, 0, -1):
        changed = replace(group, accumulation_steps=steps)
        even = not group.local_batch % steps
        if plan.grid is not None and (not even or changed.micro_batch % plan.grid.lines):
            continue
        if changed.micro_batch > group.micro_batch and (rule == "per-device" or even):
            return changed
    return None


def _links(plan: Plan, priced: Priced, estimator: Estimator) -> Iterator[BusyLink]:
    step = _step(plan, priced)

    def link(traffic: Traffic, path: str, cost: Callable[[int], float], seconds: float) -> Iterator[BusyLink]:
        if seconds > SMALLEST * step:
            stage = max(range(plan.pp), key=cost)
            yield BusyLink(traffic=traffic, path=path, stage=stage, seconds=seconds, share=seconds / step)

    tied = [_tied(plan, stage, estimator) for stage in range(plan.pp)]
    reduced = [
        (max(0.0, price.sync_seconds - seconds), (ring if priced.inside else ring.copies or ring).crosses)
        for price, ring, (seconds, _) in zip(priced.stages, priced.rings, tied, strict=True)
    ]
    held = [(seconds, where) for seconds, (_, where) in zip(priced.held, reduced, strict=True)]
    ends: tuple[tuple[Traffic, list[tuple[float, str]], list[tuple[float, str]]], ...] = (
        ("gradients", reduced, held),
        ("tied embedding", tied, []),
    )
    for traffic, times, waited in ends:
        for path in dict.fromkeys(where for _, where in times):
            spared = [seconds * (where == path) for seconds, where in times]
            freed = tuple(seconds * (where != path) for seconds, where in waited) or priced.held
            free = _step(plan, replace(priced, held=freed), spared)
            yield from link(traffic, path, spared.__getitem__, step - free)
    if priced.inside and priced.rings[0].copies:
        spared = [price.exchange_seconds for price in priced.stages]
        yield from link("exchange of islands", priced.rings[0].copies.crosses, spared.__getitem__, spared[0])
    for path in dict.fromkeys(sent.link for sent in priced.sends):
        sends = [sent.seconds * (sent.link == path) for sent in priced.sends]
        kept = [sent.seconds - free for sent, free in zip(priced.sends, sends, strict=True)]
        forward, backward = with_sends(
            priced.stages, kept, target(plan.target), priced.forwards, plan.schedule
        )
        free = _step(plan, replace(priced, forward=forward, backward=backward))
        yield from link("sends", path, sends.__getitem__, step - free)
    causes = estimator.estimate(plan).breakdown
    inside = [_waits(price, "tensor_parallel_seconds") for price in priced.stages]
    groups = plan.stages[inside.index(max(inside))].replicas
    joined = estimator.joined_for(plan)
    where = _routed_over(groups[0].tp, groups, joined)
    yield from link("tensor-parallel collectives", where, inside.__getitem__, causes.tensor_parallel_seconds)
    routed = [_waits(price, "routing_seconds") for price in priced.stages]
    where = _routed_over(plan.folding.ways, plan.stages[routed.index(max(routed))].replicas, joined)
    yield from link("all-to-alls of experts", where, routed.__getitem__, causes.expert_parallel_seconds)
    shared = [_waits(price, "context_seconds") for price in priced.stages]
    groups = plan.stages[shared.index(max(shared))].replicas
    where = _routed_over(plan.cp * groups[0].tp, groups, joined)
    yield from link("context-parallel traffic", where, shared.__getitem__, causes.context_parallel_seconds)
    gathers = [_waits(price, "zero_seconds") for price in priced.stages]
    crosses = priced.rings[gathers.index(max(gathers))].crosses
    yield from link("ZeRO gathers", crosses, gathers.__getitem__, causes.zero_seconds)
    if plan.offload.anything:
        copied = [_waits(price, "offload_seconds") + price.copy_seconds for price in priced.stages]
        yield from link("copies to and from the host", "host", copied.__getitem__, causes.offload_seconds)
    if plan.offload.optimizer != "none":
        updated = [price.optimizer_seconds for price in priced.stages]
        seconds = step - _step(plan, priced, updated)
        yield from link("updates on the host", "host", updated.__getitem__, seconds)


def _routed_over(devices: int, groups: tuple[ReplicaGroup, ...], joined: Joined) -> str:
    """``node``, or the fabric that joins the nodes of a group of so many devices."""
    kinds = [joined.device_type(group.pool, group.gpu) for group in groups]
    wide = [kind for kind in kinds if devices > kind.per_node // kind.nodes_each]
    return joined.topology.path(wide[0].pool, wide[0].pool).fabric if wide else "node"


def _tied(plan: Plan, stage: int, estimator: Estimator) -> tuple[float, str]:
    """Seconds in which a stage adds up the two gradients of a tied embedding, and over what."""
    pricer = estimator.pricer_of(plan, sockets=estimator.uses_sockets(plan))
    shape = shape_of(plan, stage)
    return max(
        (pricer.tied_seconds(shape, group), pricer.topology.best_fabric(group.pool) or "node")
        for group in plan.stages[stage].replicas
    )


def _step(plan: Plan, priced: Priced, less: list[float] | None = None) -> float:
    """Seconds of a step, ``less`` of the end of each stage left out."""
    spared = less or [0.0] * plan.pp
    ends = pipeline_ends(plan, priced)
    tails = (
        end + price.tail_seconds - free for end, price, free in zip(ends, priced.stages, spared, strict=True)
    )
    return max(*tails, priced.fed.seconds)


def _waits(price: StagePrice, cause: str) -> float:
    """Exposed seconds of a micro-batch on the slowest replica of a stage, by cause."""
    return float(getattr(price.micro_batches[price.slowest], cause))
