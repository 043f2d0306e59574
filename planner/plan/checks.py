"""What must hold between a plan, its inputs and its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.errors import Path, PlanError, UsageError, dotted
from planner.files.document import Document
from planner.model.spec import ModelSpec
from planner.plan.placement import place, split_nodes
from planner.plan.stage_rules import ends_fault, joins_ends
from planner.plan.values import Plan, ReplicaGroup
from planner.runtimes.capabilities import Target
from planner.runtimes.registry import target


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule and where in the plan it shows."""

    path: Path
    """Keys of the plan file, e.g. ``("stages", 1, "replicas", 0, "tp")``."""
    what: str
    """What is wrong and what was expected."""


def groups_of(plan: Plan) -> Iterator[tuple[Path, ReplicaGroup]]:
    """Every group of replicas with its place in the plan file."""
    for number, stage in enumerate(plan.stages):
        for index, group in enumerate(stage.replicas):
            yield ("stages", number, "replicas", index), group


def _degrees(plan: Plan, row: Target) -> Iterator[Fault]:
    first = plan.stages[0].replicas[0].tp
    for path, group in groups_of(plan):
        if row.tensor_parallel == "none" and group.tp > 1:
            yield Fault(
                (*path, "tp"), f"{row.name} runs without tensor parallelism, expected 1, got {group.tp}"
            )
        if row.tensor_parallel == "one-degree" and group.tp != first:
            yield Fault((*path, "tp"), f"{row.name} has one tp for all, expected {first}, got {group.tp}")
        own = plan.stages[int(path[1])].replicas[0].tp
        if row.tensor_parallel == "per-stage" and group.tp != own:
            yield Fault((*path, "tp"), f"{row.name} has one tp in a stage, expected {own}, got {group.tp}")


def _zero(plan: Plan, row: Target) -> Iterator[Fault]:
    allowed = row.zero_without_pipeline if plan.pp == 1 else row.zero_with_pipeline
    if plan.zero not in allowed:
        pipeline = "without a pipeline" if plan.pp == 1 else "in a pipeline"
        yield Fault(("zero",), f"{row.name} runs ZeRO {in_words(allowed)} {pipeline}, got {plan.zero}")


def _shard_size(plan: Plan, row: Target) -> Iterator[Fault]:
    if plan.shard_size is not None and plan.zero not in row.hybrid_zero:
        yield Fault(
            ("shard_size",),
            f"{row.name} shards over all replicas of a stage, expected none, got {plan.shard_size}",
        )


def _widths(plan: Plan, row: Target) -> Iterator[Fault]:
    first = plan.stages[0].dp
    for number, stage in enumerate(plan.stages):
        if not row.dp_per_stage and stage.dp != first:
            what = f"{row.name} needs as many replicas in every stage, expected {first}, got {stage.dp}"
            yield Fault(("stages", number, "replicas"), what)


def _batches(plan: Plan, row: Target) -> Iterator[Fault]:
    rule = row.batch_without_pipeline if plan.pp == 1 else row.batch_with_pipeline
    first = plan.stages[0].replicas[0]
    for path, group in groups_of(plan):
        if rule != "per-device" and group.share % group.steps:
            what = f"{row.name} needs equal micro-batches, {group.steps} steps do not divide {group.share}"
            yield Fault((*path, "steps"), what)
        if rule == "equal" and (group.share, group.steps) != (first.share, first.steps):
            what = f"{row.name} needs the same share and steps on every replica"
            wanted = f"expected {first.share} and {first.steps}, got {group.share} and {group.steps}"
            yield Fault(path, f"{what}, {wanted}")
        elif group.steps != first.steps and plan.pp > 1:
            what = f"a pipeline runs in lock-step, expected {first.steps} steps on every replica"
            yield Fault((*path, "steps"), f"{what}, got {group.steps}")


def _follows_width(plan: Plan, row: Target) -> Iterator[Fault]:
    rule = row.batch_without_pipeline if plan.pp == 1 else row.batch_with_pipeline
    for number, stage in enumerate(plan.stages):
        if rule == "follows-dp" and len({group.share for group in stage.replicas}) > 1:
            what = f"{row.name} needs the same share on every replica of a stage"
            yield Fault(("stages", number, "replicas"), what)


def _interleave(plan: Plan, row: Target) -> Iterator[Fault]:
    if plan.interleave == 1:
        return
    path = ("interleave",)
    if not row.interleave:
        yield Fault(path, f"{row.name} cannot interleave, expected 1, got {plan.interleave}")
    elif plan.pp == 1:
        yield Fault(
            path, f"interleaving needs a pipeline of at least 2 stages, expected 1, got {plan.interleave}"
        )
    elif plan.micro_batches % plan.pp:
        what = f"interleaving needs a multiple of {plan.pp} micro-batches (one for each stage)"
        yield Fault(path, f"{what}, the plan has {plan.micro_batches}")


def _recompute(plan: Plan, row: Target) -> Iterator[Fault]:
    for number, stage in enumerate(plan.stages):
        if stage.recompute not in row.recomputes:
            what = f"{row.name} recomputes {in_words(row.recomputes)}, got {stage.recompute}"
            yield Fault(("stages", number, "recompute"), what)
        elif not row.recompute_per_stage and stage.recompute != plan.stages[0].recompute:
            what = f"{row.name} has one recomputation for all stages, expected {plan.stages[0].recompute}"
            yield Fault(("stages", number, "recompute"), f"{what}, got {stage.recompute}")


def offload_faults(plan: Plan, row: Target) -> Iterator[Fault]:
    """What the target cannot keep off the devices, or not in this plan."""
    offload, can = plan.offload, row.offloading
    if not offload.anything:
        return
    if not (can.optimizer_zero or can.activations):
        yield Fault(("offload",), f"hetplan knows no offload of {row.name}, expected none")
        return
    if plan.pp > 1 and not can.in_pipeline:
        yield Fault(
            ("offload",), f"{row.name} offloads without a pipeline only, the plan has {plan.pp} stages"
        )
    for name, where, stages in (
        ("optimizer", offload.optimizer, can.optimizer_zero),
        ("parameters", offload.parameters, can.parameters_zero),
    ):
        allowed = can.nvme_zero if where == "nvme" else stages
        if where == "none" or plan.zero in allowed:
            continue
        if allowed:
            what = (
                f"{row.name} offloads {name} to {where} with ZeRO {in_words(allowed)}, got ZeRO {plan.zero}"
            )
        else:
            what = f"{row.name} does not offload {name} to {where}, expected none"
        yield Fault(("offload", name), what)
    if can.together and (offload.optimizer == "none") != (offload.parameters == "none"):
        what = f"{row.name} offloads parameters and optimizer states together, expected both"
        yield Fault(("offload",), what)
    if offload.activations != "none":
        yield from _checkpoints(plan, row)


def _checkpoints(plan: Plan, row: Target) -> Iterator[Fault]:
    path = ("offload", "activations")
    if not row.offloading.activations:
        yield Fault(path, f"{row.name} keeps activations on the device, expected none")
    elif any(stage.recompute != "full" for stage in plan.stages):
        yield Fault(
            path, "only the checkpoints of full recomputation can be offloaded, expected recompute full"
        )


def in_words(values: tuple[object, ...] | list[int]) -> str:
    """Values with commas between them."""
    return ", ".join(str(value) for value in values)


TARGET_RULES: tuple[Callable[[Plan, Target], Iterator[Fault]], ...] = (
    _degrees,
    _zero,
    _shard_size,
    _widths,
    _batches,
    _follows_width,
    _interleave,
    _recompute,
    offload_faults,
)


def check_plan(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Raise PlanError with every rule that the plan breaks for these inputs."""
    found = faults(plan, cluster, model)
    if found:
        raise PlanError(*(f"{_where(fault.path)}{fault.what}" for fault in found))


def faults(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> tuple[Fault, ...]:
    """Every rule that the plan breaks; placement and paths are tried only when nothing else is wrong."""
    found = (*_devices(plan, cluster, model), *target_faults(plan, model))
    return found or (*_placement(plan, cluster), *_paths(plan, cluster), *_hosts(plan, cluster))


def target_faults(plan: Plan, model: ModelSpec) -> tuple[Fault, ...]:
    """Every rule of its model and its target that the plan breaks, on whatever devices."""
    found = [*_sizes(plan, model)]
    try:
        row = target(plan.target)
    except UsageError as error:
        return (*found, Fault(("target",), error.message))
    for rule in TARGET_RULES:
        found += rule(plan, row)
    return (
        *found,
        *model_faults(row, model),
        *_sharded_optimizer(plan, row, model),
        *_kv_heads(plan, row, model),
        *_tied_ends(plan, row, model),
        *_sequence_parallel(plan, row, model),
    )


def listed(found: Iterable[Fault]) -> str:
    """A line for each fault: where, and what was expected."""
    return "\n".join(f"{_where(fault.path)}{fault.what}" for fault in found)


def fail_on_faults(document: Document, found: tuple[Fault, ...]) -> None:
    """Raise PlanError with the line of every fault in the plan's file."""
    if found:
        raise PlanError(*(str(document.problem(fault.path, fault.what)) for fault in found))


def _where(path: Path) -> str:
    return f"{dotted(path)}: " if path else ""


def _sizes(plan: Plan, model: ModelSpec) -> Iterator[Fault]:
    if plan.layers != model.layers:
        path = ("stages", plan.pp - 1, "layers")
        yield Fault(path, f"the stages hold {plan.layers} layers, the model {model.name} has {model.layers}")
    if plan.global_batch != model.training.global_batch:
        wanted = model.training.global_batch
        what = f"the shares add up to {plan.global_batch} sequences, the global batch is {wanted}"
        yield Fault(("stages", 0), what)


def _devices(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> Iterator[Fault]:
    pools = {pool.name: pool for pool in cluster.pools}
    for path, group in groups_of(plan):
        if group.pool not in pools:
            yield Fault(
                (*path, "pool"), f'the cluster has no pool "{group.pool}", it has: {", ".join(pools)}'
            )
        elif group.gpu not in pools[group.pool].devices:
            kinds = ", ".join(dict.fromkeys(pools[group.pool].devices))
            yield Fault((*path, "gpu"), f'the pool {group.pool} has no "{group.gpu}", it has: {kinds}')
        else:
            yield from _precision(path, group, cluster, model)
        yield from _tensor_parallel_shape(path, group, model)


def _precision(path: Path, group: ReplicaGroup, cluster: ClusterSpec, model: ModelSpec) -> Iterator[Fault]:
    formats = cluster.gpus[group.gpu].tflops
    wanted = model.training.precision
    if wanted not in formats:
        yield Fault(
            (*path, "gpu"), f"{group.gpu} cannot compute in {wanted}, it can in: {', '.join(formats)}"
        )


def model_faults(row: Target, model: ModelSpec) -> Iterator[Fault]:
    """What of the model the target does not train, whatever the plan."""
    wanted, path = model.training.precision, ("target",)
    if wanted not in row.precisions:
        yield Fault(path, f"{row.name} does not train in {wanted}, it can: {', '.join(row.precisions)}")
    if model.kind == "encoder" and row.encoders == "none":
        yield Fault(path, f"{row.name} trains no encoders, expected a decoder")
    usual = model.learned_positions > 0 and model.kv_heads == model.heads
    if model.kind == "encoder" and row.encoders == "bert" and not usual:
        what = "encoders with learned positions and without grouped-query attention only"
        yield Fault(path, f"{row.name} trains {what}")


def unwritten(row: Target, model: ModelSpec) -> str | None:
    """What launch files for the target do not hold of a model that it trains; None where they hold all."""
    wanted = model.training.precision
    if wanted in row.offered_precisions:
        return None
    return f"training in {wanted} with {row.name} is priced, but hetplan writes no launch files for it"


def _sharded_optimizer(plan: Plan, row: Target, model: ModelSpec) -> Iterator[Fault]:
    optimizer = model.training.optimizer
    if plan.zero and optimizer not in row.sharding_optimizers:
        able = ", ".join(row.sharding_optimizers)
        what = (
            f"{row.name} shards the states of {able} only, expected ZeRO 0 with {optimizer}, got {plan.zero}"
        )
        yield Fault(("zero",), what)


def _tensor_parallel_shape(path: Path, group: ReplicaGroup, model: ModelSpec) -> Iterator[Fault]:
    tp = group.tp
    if model.heads % tp:
        yield Fault((*path, "tp"), f"tp {tp} does not divide the {model.heads} attention heads")
    elif model.kv_heads % tp and tp % model.kv_heads:
        yield Fault(
            (*path, "tp"), f"tp {tp} and the {model.kv_heads} key/value heads do not divide each other"
        )


def _kv_heads(plan: Plan, row: Target, model: ModelSpec) -> Iterator[Fault]:
    for path, group in groups_of(plan):
        if not row.copies_kv_heads and model.kv_heads % group.tp:
            what = f"{row.name} needs a tp that divides the {model.kv_heads} key/value heads, got {group.tp}"
            yield Fault((*path, "tp"), what)


def _tied_ends(plan: Plan, row: Target, model: ModelSpec) -> Iterator[Fault]:
    last = plan.pp - 1
    if joins_ends(row, model):
        wanted = ends_fault(plan.zero, plan.stages[0].replicas, plan.stages[last].replicas)
        if wanted:
            yield Fault(("stages", last, "replicas"), f"{row.name} with tied embeddings needs {wanted}")


def _hosts(plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
    """What the file must say of the hosts that hold what the devices do not."""
    pools = {pool.name: pool for pool in cluster.pools}
    for name, gpu in sorted({(group.pool, group.gpu) for _, group in groups_of(plan)}):
        pool = pools[name]
        if plan.offload.anything and cluster.host_link_of(pool, gpu) is None:
            what = f"it is not known how fast {gpu} reaches host memory, expected host: {{link_gBps: ...}}"
            yield Fault(("offload",), f"{what} in the pool {name}")
        if plan.offload.uses_nvme and (pool.host is None or pool.host.nvme_gBps is None):
            what = f"the pool {name} has no NVMe, expected host: {{nvme_gBps: ...}} in it"
            yield Fault(("offload",), what)


def _sequence_parallel(plan: Plan, row: Target, model: ModelSpec) -> Iterator[Fault]:
    if not plan.sequence_parallel:
        return
    path, length = ("sequence_parallel",), model.training.sequence_length
    degrees = sorted({group.tp for _, group in groups_of(plan)})
    if not row.sequence_parallel:
        yield Fault(path, f"{row.name} has no sequence parallelism, expected false")
    elif degrees == [1]:
        yield Fault(path, "sequence parallelism needs tp of at least 2, expected false")
    elif any(length % tp for tp in degrees):
        yield Fault(path, f"tp {in_words(degrees)} must divide the sequence length {length}, expected false")


def _placement(plan: Plan, cluster: ClusterSpec) -> tuple[Fault, ...]:
    try:
        return node_faults(plan, cluster)
    except PlanError as error:
        return (Fault(("stages",), f"more devices than the cluster has: {error.message}"),)


def node_faults(plan: Plan, cluster: ClusterSpec) -> tuple[Fault, ...]:
    """Nodes that the target cannot start; raises PlanError when the cluster has too few devices."""
    placed = place(plan, cluster)
    if not target(plan.target).hosts_once:
        return ()
    hosts = {pool.name: pool.hosts for pool in cluster.pools}
    what = f"{plan.target} starts each node once, expected the stages on {{}} in a row"
    split = split_nodes(placed).items()
    return tuple(
        Fault(("stages", stage), what.format(hosts[pool][number])) for (pool, number), stage in split
    )


def _paths(plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
    """Replicas of a stage exchange gradients, neighbouring stages activations."""
    topology = Topology(cluster)
    pools = [sorted({group.pool for group in stage.replicas}) for stage in plan.stages]
    for number, here in enumerate(pools):
        before = pools[number - 1] if number else []
        pairs = [*combinations(here, 2), *product(before, here)]
        for first, last in pairs:
            if first != last and not topology.path(first, last).connected:
                what = f"the pools {first} and {last} cannot talk: no common fabric and no chain of links"
                yield Fault(("stages", number), what)
