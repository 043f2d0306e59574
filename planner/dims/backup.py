"""Backup replicas: the slowest b of N + b are not waited for, and their gradients dropped (arXiv:1604.00981).

Which sequences a step is made of then depends on who is slow, so that a search has none of them unless it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.capabilities import Capabilities
from planner.dims.dimension import single_device_faults
from planner.dims.documents import dealt_whole
from planner.dims.shards import trains_whole
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, groups_of, in_words


def backup_faults(plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What backup replicas need: a runtime that has them, one stage, and replicas that are all alike."""
    if not plan.backup:
        return
    path = ("backup",)
    if plan.zero not in target.backup_zero:
        able = in_words(target.backup_zero)
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
        able = in_words(target.sharding_optimizers)
        yield Fault(path, f"expected {able} with backup replicas, got {model.training.optimizer}")
