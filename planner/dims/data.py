"""Data parallelism: replicas of a stage, the batch of each, and backup replicas.

Of N + b replicas the slowest b are not waited for, and their gradients dropped (arXiv:1604.00981). Which sequences a
step is made of then depends on who is slow, so that a search has no backup replicas unless it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import BatchRule, Capabilities
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, by_group, by_stage, single_device_faults
from planner.dims.sharding import trains_whole
from planner.dims.trained import dealt_whole
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, ReplicaGroup, Stage, groups_of, with_commas


class Data(Dimension):
    """``ReplicaGroup.count``, ``share`` and ``steps``; ``Plan.backup`` and ``Plan.fewer_steps``."""

    fields = (
        "Plan.backup",
        "Plan.fewer_steps",
        "Stage.replicas",
        "ReplicaGroup.count",
        "ReplicaGroup.local_batch",
        "ReplicaGroup.accumulation_steps",
    )

    def traits(self, plan: Plan) -> dict[str, str]:
        """Replicas, and the size and number of their micro-batches."""
        sizes = (by_group(str(group.micro_batch) for group in stage.replicas) for stage in plan.stages)
        numbers = (
            by_group(str(group.accumulation_steps) for group in stage.replicas) for stage in plan.stages
        )
        return {
            "replicas": by_stage(str(stage.dp) for stage in plan.stages),
            "micro-batch": by_stage(sizes),
            "micro-batches": by_stage(numbers),
            **({"backup replicas": str(plan.backup)} if plan.backup else {}),
            **({"replicas with one micro-batch fewer": str(plan.fewer_steps)} if plan.fewer_steps else {}),
        }

    def words(self, plan: Plan) -> str:
        """Replicas that are not waited for, and those that have less to do."""
        if plan.fewer_steps:
            return f"{plan.fewer_steps} of {plan.stages[0].dp} replicas run one micro-batch fewer"
        return f"{plan.backup} of {plan.stages[0].dp} replicas are backups" if plan.backup else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Which replicas may differ in number and in batch."""
        width, rule = plan.stages[0].dp, batch_rule(target, plan.pp)
        for number, stage in enumerate(plan.stages):
            path = ("stages", number, "replicas")
            if not target.dp_per_stage and stage.dp != width:
                what = (
                    f"{target.name} needs as many replicas in every stage, expected {width}, got {stage.dp}"
                )
                yield Fault(path, what)
            if rule == "follows-dp" and len({group.local_batch for group in stage.replicas}) > 1:
                yield Fault(path, f"{target.name} needs the same share on every replica of a stage")
        yield from self._batches(plan, target, rule)
        yield from backup_faults(plan, target, model)
        yield from _fewer_steps_faults(plan, target)

    def _batches(self, plan: Plan, target: Capabilities, rule: BatchRule) -> Iterator[Fault]:
        first = plan.stages[0].replicas[0]
        for path, group in groups_of(plan):
            if rule != "per-device" and group.local_batch % group.accumulation_steps:
                what = f"{target.name} needs equal micro-batches"
                yield Fault(
                    (*path, "steps"),
                    f"{what}, {group.accumulation_steps} steps do not divide {group.local_batch}",
                )
            own, wanted = ((one.local_batch, one.accumulation_steps) for one in (group, first))
            if rule == "equal" and own != wanted:
                what = f"{target.name} needs the same share and steps on every replica"
                yield Fault(path, f"{what}, expected {wanted[0]} and {wanted[1]}, got {own[0]} and {own[1]}")
            elif group.accumulation_steps != first.accumulation_steps and plan.pp > 1:
                what = f"a pipeline runs in lock-step, expected {first.accumulation_steps} steps on every replica"
                yield Fault((*path, "steps"), f"{what}, got {group.accumulation_steps}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Micro-batches twice as large, and half as large; no backups, with their devices and without."""
        equal = batch_rule(target, plan.pp) != "per-device"
        for name, top, bottom in (("twice", 1, 2), ("half", 2, 1)):
            fewer = plan.fewer_steps * top // bottom
            try:
                stages = tuple(_resized(stage, top, bottom, equal) for stage in plan.stages)
                changed = replace(plan, stages=stages, fewer_steps=fewer)
            except PlanError:
                continue
            if changed.global_batch == plan.global_batch:
                yield Change(f"micro-batch {name}", f"micro-batches {name} as large", changed)
        if plan.backup:
            for what, number in (("all replicas waited for", 0), ("no backup replicas", plan.backup)):
                try:
                    yield Change("backups", what, _without_backups(plan, number))
                except PlanError:
                    continue


def _fewer_steps_faults(plan: Plan, target: Capabilities) -> Iterator[Fault]:
    """What replicas with one micro-batch fewer need: a runtime in which they meet others at the end of a step alone."""
    path = ("fewer_steps",)
    if not plan.fewer_steps:
        return
    if plan.zero not in target.fewer_steps_zero:
        able = with_commas(target.fewer_steps_zero)
        what = f"with ZeRO {able} only" if able else "with no ZeRO stage"
        what = f"{target.name} runs replicas with unequal numbers of micro-batches {what}"
        yield Fault(path, f"{what}, expected 0, got {plan.fewer_steps}")
    others = {"cp": plan.cp > 1, "ep": plan.folding.ways > 1, "backup": plan.backup > 0}
    others |= {"grid": plan.grid is not None, "sync": not plan.sync.exact}
    for name in (name for name, used in others.items() if used):
        yield Fault(path, f"replicas have equally many micro-batches with {name}, expected 0")


def batch_rule(target: Capabilities, depth: int) -> BatchRule:
    """How the batches of replicas may differ at a pipeline depth."""
    return target.batch_without_pipeline if depth == 1 else target.batch_with_pipeline


def _without_backups(plan: Plan, fewer: int) -> Plan:
    """All of a step's sequences dealt to all replicas but some of the last; PlanError where some have none."""
    left = plan.stages[0].dp - fewer
    share, more = divmod(plan.global_batch, left)
    groups = []
    for group in plan.stages[0].replicas:
        count = min(left, group.count)
        larger = min(more, count)
        for number, sequences in ((larger, share + 1), (count - larger, share)):
            if number:
                steps = -(-sequences // group.micro_batch)
                groups.append(replace(group, count=number, local_batch=sequences, accumulation_steps=steps))
        left, more = left - count, more - larger
    return replace(plan, backup=0, stages=(replace(plan.stages[0], replicas=tuple(groups)),))


def _resized(stage: Stage, top: int, bottom: int, equal: bool) -> Stage:
    return replace(stage, replicas=tuple(_stepped(group, top, bottom, equal) for group in stage.replicas))


def _stepped(group: ReplicaGroup, top: int, bottom: int, equal: bool) -> ReplicaGroup:
    """The same share in ``top / bottom`` times as many steps; PlanError when it does not divide."""
    steps, rest = divmod(group.accumulation_steps * top, bottom)
    if rest or (equal and group.local_batch % steps):
        raise PlanError("the micro-batches do not divide")
    return replace(group, accumulation_steps=steps)


def backup_faults(plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What backup replicas need: a runtime that has them, one stage, and replicas that are all alike."""
    if not plan.backup:
        return
    path = ("backup",)
    if plan.zero not in target.backup_zero:
        able = with_commas(target.backup_zero)
        what = (
            f"{target.name} drops gradients with ZeRO {able} only"
            if able
            else f"{target.name} drops no gradients"
        )
        yield Fault(path, f"{what}, expected 0, got {plan.backup}")
        return
    yield from single_device_faults(plan, "backup replicas are", "backup replicas")
    if plan.shard_size is not None:
        yield Fault(("shard_size",), f"backup replicas shard over all, expected none, got {plan.shard_size}")
    if plan.unequal_shards:
        yield Fault(
            path, f"backup replicas hold equal shards, expected 0 with unequal ones, got {plan.backup}"
        )
    if plan.offload.anything:
        yield Fault(("offload",), "backup replicas keep everything on the devices, expected none")
    if not plan.sync.exact:
        yield Fault(("sync",), "replicas of islands are waited for, expected none with backup replicas")
    alike = {(group.gpu, group.local_batch, group.accumulation_steps) for _, group in groups_of(plan)}
    if len(alike) > 1:
        what = "a step has as many sequences whoever is dropped"
        yield Fault(path, f"{what}: expected one device type, share and number of steps in all replicas")
    if not trains_whole(model):
        yield Fault(
            path, f"models of which a part is trained drop no gradients, expected 0, got {plan.backup}"
        )
    if dealt_whole(model):
        yield Fault(path, f"training on documents or pairs drops no gradients, expected 0, got {plan.backup}")
    if model.training.optimizer not in target.sharding_optimizers:
        able = with_commas(target.sharding_optimizers)
        yield Fault(path, f"expected {able} with backup replicas, got {model.training.optimizer}")
