"""Unequal shards: replicas with more free memory hold more of what ZeRO shards (wished for in arXiv:2408.12596).

What is learnt stays the same. The parts belong to device types; a search looks for them where it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd

from planner.capabilities import Capabilities
from planner.cluster.topology import DeviceType
from planner.dims.dimension import by_group, single_device_faults
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, groups_of

PARTS = (1, 2, 3, 4, 6, 8)
"""Parts that a search gives to one of two device types."""

FEWER_PARTS = (1, 2, 4)
"""The same with three or more."""

MOST_TYPES = 4
"""Device types that each have parts of their own; of more, only that with most memory and the others are told apart."""


def shard_faults(plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What unequal shards need: a runtime that has them, one stage, replicas of one device each, all of it trained."""
    if not plan.unequal_shards:
        return
    path, parts = next(((*path, "shard"), group.shard) for path, group in groups_of(plan) if group.shard != 1)
    if not target.unequal_shards:
        what = f"{target.name} deals equal shards to all replicas, expected 1 everywhere, got {parts}"
        yield Fault(path, what)
        return
    yield from single_device_faults(plan, "unequal shards are", "replicas with unequal shards")
    if plan.offload.anything:
        yield Fault(("offload",), "unequal shards are kept on the devices, expected none")
    if not plan.sync.exact:
        yield Fault(
            ("sync",), "replicas with unequal shards exchange whole gradients in every step, expected none"
        )
    if not trains_whole(model):
        what = f"only models that are trained whole have unequal shards, expected 1 everywhere, got {parts}"
        yield Fault(path, what)


def with_equal_shards(plan: Plan) -> Plan:
    """The plan whose replicas all hold equally much of what is sharded."""
    stages = tuple(
        replace(stage, replicas=tuple(replace(group, shard=1) for group in stage.replicas))
        for stage in plan.stages
    )
    return replace(plan, stages=stages) if plan.unequal_shards else plan


def trains_whole(model: ModelSpec) -> bool:
    """True when all of a model is trained, so that all of it is sharded alike, and nothing stands beside it."""
    return not model.frozen and not model.frozen_ahead and model.training.preference is None


def shards_text(plan: Plan) -> str:
    """``3+1`` for three parts on each replica of the first group and one on those of the second."""
    return "|".join(by_group(str(group.shard) for group in stage.replicas) for stage in plan.stages)


def parts_of(
    target: Capabilities, zero: int, model: ModelSpec, device_types: Sequence[DeviceType]
) -> tuple[tuple[int, ...], ...]:
    """Parts worth trying, [device type] each: whatever is not a multiple of others, and not equal for all."""
    if not target.unequal_shards or not zero or not trains_whole(model):
        return ()
    kinds = sorted({(item.memory_bytes, item.gpu) for item in device_types}, reverse=True)
    if len(kinds) < 2:
        return ()
    own = kinds if len(kinds) <= MOST_TYPES else kinds[:2]
    number = {kind: min(index, len(own) - 1) for index, kind in enumerate(kinds)}
    offered = PARTS if len(own) == 2 else FEWER_PARTS
    return tuple(
        tuple(parts[number[item.memory_bytes, item.gpu]] for item in device_types)
        for parts in product(offered, repeat=len(own))
        if gcd(*parts) == 1 and len({*parts}) > 1
    )
