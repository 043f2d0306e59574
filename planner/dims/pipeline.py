"""Pipeline parallelism: the layers and the devices of each stage, chunks of layers on a device, divided backwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import V_SHAPED, Capabilities, Schedule
from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import dealable
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, by_stage
from planner.model.spec import ModelSpec
from planner.plan.placement import ends_fault, joins_ends
from planner.plan.values import Fault, Plan, Stage, groups_of


class PipelineParallelism(Dimension):
    """``Plan.stages``: their number and their layers."""

    fields = ("Plan.stages", "Stage.first_layer", "Stage.end_layer")

    def traits(self, plan: Plan) -> dict[str, str]:
        """Stages, with their layers and devices."""
        return {
            "stages": str(plan.pp),
            "layers": by_stage(str(stage.layers) for stage in plan.stages),
            "devices": by_stage(_devices(stage) for stage in plan.stages),
        }

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Ends of the pipeline that can hold one tied embedding."""
        last = plan.pp - 1
        if model.encoder is not None and target.encoder_decoders == "whole" and last:
            what = f"hetplan trains encoder-decoders with {target.name} without a pipeline, expected 1 stage"
            yield Fault(("stages",), f"{what}, got {plan.pp}")
        if joins_ends(target, model):
            wanted = ends_fault(plan.zero, plan.stages[0].replicas, plan.stages[last].replicas)
            if wanted:
                what = f"{target.name} with tied embeddings needs {wanted}"
                yield Fault(("stages", last, "replicas"), what)

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """One layer moved over each border between stages."""
        if plan.interleave > 1:
            return
        for left in range(plan.pp - 1):
            for step, source, sink in ((-1, left, left + 1), (1, left + 1, left)):
                if plan.stages[source].layers > 1:
                    what = f"one layer from stage {source} to {sink}"
                    yield Change("layers", what, _moved(plan, left, step))


class StageNodes(Dimension):
    """``Plan.stage_nodes``: a pipeline in each node, or in a few, whose replicas are on others."""

    fields = ("Plan.stage_nodes",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """Nodes that a stage is dealt over."""
        return {"stages dealt over": f"{plan.stage_nodes} nodes"} if plan.stage_nodes > 1 else {}

    def words(self, plan: Plan) -> str:
        """The same."""
        return f"stages dealt over {plan.stage_nodes} nodes" if plan.stage_nodes > 1 else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """A pipeline of replicas that need no neighbours on their node, and a runtime that starts any rank anywhere."""
        path = ("stage_nodes",)
        if plan.stage_nodes == 1:
            return
        if target.hosts_once:
            what = f"{target.name} starts all ranks of a node together, expected 1"
            yield Fault(path, f"{what}, got {plan.stage_nodes}")
        if plan.pp == 1:
            yield Fault(
                path, f"a single stage is dealt over nodes as it is, expected 1, got {plan.stage_nodes}"
            )
        beside = {
            "tensor grids": plan.grid is not None,
            "divided sequences": plan.cp > 1,
            "experts divided over replicas": plan.folding.ways > plan.stages[0].replicas[0].tp,
            "HSDP": plan.shard_size is not None,
            "islands": not plan.sync.exact,
            "backup replicas": plan.backup > 0,
        }
        for what in (name for name, there in beside.items() if there):
            yield Fault(
                path, f"stages are not dealt over nodes beside {what}, expected 1, got {plan.stage_nodes}"
            )

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """A pool of several nodes to deal stages over."""
        if plan.stage_nodes == 1:
            return
        used = {group.pool for _, group in groups_of(plan)}
        hosts = {host for pool in cluster.pools if pool.name in used for host in pool.hosts}
        if not any(dealable(pool) for pool in joined(cluster).pools if not hosts.isdisjoint(pool.hosts)):
            what = "no pool of the plan has several nodes of one device type, expected 1"
            yield Fault(("stage_nodes",), f"{what}, got {plan.stage_nodes}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Stages on one node after the other."""
        if plan.stage_nodes > 1:
            what = f"stages on one node after the other instead of dealt over {plan.stage_nodes}"
            yield Change("stages not dealt", what, replace(plan, stage_nodes=1))


def _moved(plan: Plan, left: int, step: int) -> Plan:
    """The border after stage ``left`` moved by ``step`` layers."""
    border = plan.stages[left].end_layer + step
    stages = list(plan.stages)
    stages[left] = replace(stages[left], end_layer=border)
    stages[left + 1] = replace(stages[left + 1], first_layer=border)
    return replace(plan, stages=tuple(stages))


def _devices(stage: Stage) -> str:
    """Devices by pool: ``4 mixed + 2 titan``."""
    pools: Counter[str] = Counter()
    for group in stage.replicas:
        pools[group.pool] += group.devices
    return " + ".join(f"{devices} {pool}" for pool, devices in pools.items())


MAX_INTERLEAVE = 4
"""Most chunks that are offered."""

V_CHUNKS = 2
"""Chunks of layers on each device of a V-shaped pipeline."""

MOST_ZERO = 1
"""Largest ZeRO stage with divided backwards: gradients of weights come apart from those that reduce them."""


class Interleave(Dimension):
    """``Plan.interleave`` (arXiv:2104.04473, section 2.2)."""

    fields = ("Plan.interleave",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """Chunks a device."""
        return {"interleaved chunks": str(plan.interleave)}

    def words(self, plan: Plan) -> str:
        """Where there are several."""
        interleaved = plan.interleave > 1 and plan.schedule not in V_SHAPED
        return f"{plan.interleave} interleaved chunks" if interleaved else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Several need a runtime that has them, a pipeline, and micro-batches that fill it."""
        path, chunks = ("interleave",), plan.interleave
        if chunks == 1 or plan.schedule in V_SHAPED:
            return
        if not target.interleave:
            yield Fault(path, f"{target.name} cannot interleave, expected 1, got {chunks}")
        elif plan.pp == 1:
            what = "interleaving needs a pipeline of at least 2 stages"
            yield Fault(path, f"{what}, expected 1, got {chunks}")
        else:
            yield from _full(plan, path, "interleaving")


class ZeroBubble(Dimension):
    """``Plan.schedule`` (arXiv:2401.10241; DualPipeV: arXiv:2412.19437)."""

    fields = ("Plan.schedule",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """The schedule of a pipeline."""
        return {"schedule": plan.schedule}

    def words(self, plan: Plan) -> str:
        """Where it is not the usual one."""
        return plan.schedule if plan.schedule != "1f1b" else ""

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """The usual one."""
        if plan.schedule != "1f1b":
            chunks = 1 if plan.schedule in V_SHAPED else plan.interleave
            usual = replace(plan, schedule="1f1b", interleave=chunks)
            yield Change("schedule", f"1f1b instead of {plan.schedule}", usual)

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Whole gradients and activations on the device, and micro-batches that fill the pipeline.

        Of a V-shaped one the first device has both ends of the model.
        """
        path, schedule = ("schedule",), plan.schedule
        if schedule == "1f1b":
            return
        if schedule not in target.schedules:
            yield Fault(path, f"{target.name} has {', '.join(target.schedules)}, got {schedule}")
            return
        if plan.pp == 1:
            yield Fault(path, f"{schedule} needs a pipeline of at least 2 stages, expected 1f1b")
            return
        if schedule in V_SHAPED:
            yield from _v_shaped(plan, model)
        else:
            yield from _full(plan, path, schedule)
        if plan.zero > MOST_ZERO:
            what = f"{schedule} with {target.name} keeps whole gradients until the end of a step"
            yield Fault(("zero",), f"{what}, expected 0 or 1, got {plan.zero}")
        for index, stage in enumerate(plan.stages):
            if stage.recompute != "none":
                what = f"{schedule} runs backward in two parts, each of which would recompute"
                yield Fault(("stages", index, "recompute"), f"{what}, expected none, got {stage.recompute}")
        if plan.offload.anything:
            yield Fault(("offload",), f"{schedule} keeps all on the device, expected nothing to be offloaded")


def _full(plan: Plan, path: tuple[str, ...], what: str) -> Iterator[Fault]:
    """Micro-batches that fill the pipeline again and again, in all replicas."""
    if plan.micro_batches % plan.pp:
        needs = f"{what} needs a multiple of {plan.pp} micro-batches (one for each stage)"
        yield Fault(path, f"{needs}, the plan has {plan.micro_batches}")
    else:
        yield from _as_many(plan, path, what)


def _as_many(plan: Plan, path: tuple[str, ...], what: str) -> Iterator[Fault]:
    if plan.fewer_steps:
        yield Fault(
            path, f"{what} needs as many micro-batches in all replicas, {plan.fewer_steps} have one fewer"
        )


def _v_shaped(plan: Plan, model: ModelSpec) -> Iterator[Fault]:
    """Two chunks on each device, as many micro-batches as chunks, and no modules for further tokens."""
    path, schedule, chunks = ("schedule",), plan.schedule, V_CHUNKS * plan.pp
    if plan.interleave != V_CHUNKS:
        what = f"{schedule} has two chunks of layers on each device"
        yield Fault(("interleave",), f"{what}, expected {V_CHUNKS}, got {plan.interleave}")
    if plan.micro_batches < chunks:
        needs = f"{schedule} needs at least {chunks} micro-batches (two for each stage)"
        yield Fault(path, f"{needs}, the plan has {plan.micro_batches}")
    else:
        yield from _as_many(plan, path, schedule)
    if model.training.mtp_layers:
        what = f"{schedule} is not for models that predict further tokens"
        yield Fault(path, f"{what}, expected 1f1b or zero-bubble")


def interleavings(target: Capabilities, depth: int, micro_batches: int, model: ModelSpec) -> tuple[int, ...]:
    """Chunks worth trying: several only where every group of micro-batches fills the pipeline."""
    if not target.interleave or depth == 1 or micro_batches % depth:
        return (1,)
    return tuple(chunks for chunks in range(1, MAX_INTERLEAVE + 1) if chunks * depth <= model.layers)


def divided_orders(
    target: Capabilities, depth: int, micro_batches: int, zero: int, model: ModelSpec
) -> Iterator[tuple[int, Schedule]]:
    """Chunks a device and schedules with divided backwards that are worth trying: one chunk, or two in a V."""
    if depth == 1 or zero > MOST_ZERO or model.frozen:
        return
    chunks = V_CHUNKS * depth
    for schedule in target.schedules:
        if schedule in V_SHAPED:
            if chunks <= min(micro_batches, model.layers) and not model.training.mtp_layers:
                yield V_CHUNKS, schedule
        elif schedule != "1f1b" and micro_batches % depth == 0:
            yield 1, schedule
