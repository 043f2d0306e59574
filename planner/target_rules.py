"""What a target demands of a plan, whatever its model and its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.plan import Plan, ReplicaGroup
from planner.targets import Target

Path = tuple[str | int, ...]


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
