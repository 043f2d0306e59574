"""Sharding of states over replicas: the ZeRO stage, groups of replicas that share one copy (HSDP), and unequal shards;
and the number formats of the gradients that it reduces.

With unequal shards replicas with more free memory hold more of what ZeRO shards (wished for in arXiv:2408.12596); what
is learnt stays the same. The parts belong to device types; a search looks for them where it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd

from planner.capabilities import Capabilities, Gradients
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, allowed, by_group, single_device_faults
from planner.model.spec import HALVES, MasterWeights, ModelSpec, TrainingSpec
from planner.plan.values import PLAIN_ZERO, Fault, Plan, groups_of, with_commas
from planner.units import divisors


def gradients_at(target: Capabilities, training: TrainingSpec, zero: int) -> Gradients | None:
    """The formats of a training with a ZeRO stage; None where the runtime does not have those asked for.

    fp16 training keeps its gradients in fp16 in every runtime, fp32 training in fp32.
    """
    return next((each for each in _fitting(target, training) if zero in each.zero), None)


def gradients_of(target: Capabilities, training: TrainingSpec, zero: int) -> Gradients:
    """The same of a plan that may break a rule: then the formats asked for, whatever the stage."""
    return gradients_at(target, training, zero) or next(_fitting(target, training), target.gradients[0])


def master_weights_of(target: Capabilities, training: TrainingSpec) -> MasterWeights:
    """What the optimizer updates: what the training says, else what the runtime has for such moments."""
    if training.master_weights is not None:
        return training.master_weights
    splits = "split" in target.master_weights and training.precision == "bf16"
    return "split" if splits and training.optimizer_states != "fp32" else "fp32"


def _fitting(target: Capabilities, training: TrainingSpec) -> Iterator[Gradients]:
    kept, reduced = training.gradient_dtype, training.reduce_dtype
    masters = master_weights_of(target, training)
    own = {"fp16": (HALF,), "fp32": (FULL,), "tf32": (FULL,)}
    for each in own.get(training.precision, target.gradients):
        if masters in each.master_weights and kept in (None, each.kept) and reduced in (None, each.reduced):
            yield each


FULL = Gradients("fp32", "fp32", master_weights=("fp32",))
HALF = Gradients("fp16", "fp16", master_weights=("fp32",))


def gradient_faults(target: Capabilities, training: TrainingSpec, zeros: tuple[int, ...]) -> Iterator[str]:
    """What is wrong where none of these ZeRO stages has the formats asked for."""
    if any(gradients_at(target, training, zero) for zero in zeros):
        return
    names = ("gradient_dtype", "reduce_dtype", "master_weights")
    given = {name: getattr(training, name) for name in names}
    asked = " and ".join(f"{key} {value}" for key, value in given.items() if value)
    if training.precision not in HALVES:
        yield f"{training.precision} training has number formats of its own, expected no {asked}"
        return
    masters = master_weights_of(target, training)
    offered = [each for each in target.gradients if masters in each.master_weights]
    able = [f"{each.kept} added up in {each.reduced}" for each in offered if {*zeros} & {*each.zero}]
    if not offered:
        return
    if not able:
        stages = with_commas(sorted({zero for each in offered for zero in each.zero}))
        yield f"{target.name} updates {masters} weights with ZeRO {stages}, got {with_commas(zeros)}"
        return
    stages = f" with ZeRO {', '.join(map(str, zeros))}" if len(zeros) == 1 else ""
    yield f"{target.name} keeps gradients{stages} in {' or '.join(dict.fromkeys(able))}, got {asked}"


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
    return not model.frozen and not model.tower_frozen and model.training.preference is None


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


MAX_SHARD_NODES = 16
"""Nodes that may share a copy in HSDP; more where so many divide a device type evenly."""


class Sharding(Dimension):
    """``Plan.zero``, ``Plan.shard_size`` and ``ReplicaGroup.shard``."""

    fields = ("Plan.zero", "Plan.shard_size", "ReplicaGroup.shard")

    def traits(self, plan: Plan) -> dict[str, str]:
        """The stage, and over what it shards."""
        over = f"groups of {plan.shard_size}" if plan.shard_size else "all replicas"
        unequal = f", in {shards_text(plan)} parts" if plan.unequal_shards else ""
        return {"ZeRO": str(plan.zero), "sharded over": over + unequal}

    def words(self, plan: Plan) -> str:
        """Unequal shards; the stage is named elsewhere."""
        return f"shards of {shards_text(plan)} parts" if plan.unequal_shards else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Stages that the runtime has with and without a pipeline, in groups, and for this optimizer."""
        offered = zeros_at(target, plan.pp)
        if plan.zero not in offered:
            pipeline = "without a pipeline" if plan.pp == 1 else "in a pipeline"
            yield Fault(
                ("zero",), f"{target.name} runs ZeRO {with_commas(offered)} {pipeline}, got {plan.zero}"
            )
        if plan.shard_size is not None and plan.zero not in target.hybrid_zero:
            what = f"{target.name} shards over all replicas of a stage, expected none, got {plan.shard_size}"
            yield Fault(("shard_size",), what)
        yield from shard_faults(plan, target, model)
        optimizer = model.training.optimizer
        # What the target has with no stage at all is refused as such.
        if plan.zero and optimizer in target.optimizers and optimizer not in target.sharding_optimizers:
            able = with_commas(target.sharding_optimizers)
            what = f"{target.name} shards the states of {able} only, expected ZeRO 0 with {optimizer}"
            yield Fault(("zero",), f"{what}, got {plan.zero}")
        for what in gradient_faults(target, model.training, (plan.zero,)):
            yield Fault(("zero",), what)
        kept = model.training.optimizer_states in target.moments
        if kept and plan.zero not in target.narrow_moments_zero and (what := _narrow(model.training)):
            able = with_commas(target.narrow_moments_zero)
            yield Fault(("zero",), f"{target.name} keeps {what} with ZeRO {able}, got {plan.zero}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Other stages; one copy of what is sharded, or one in each group that fills a node or a pool."""
        for zero in zeros_at(target, plan.pp):
            if zero != plan.zero:
                size = plan.shard_size if zero in target.hybrid_zero else None
                base = plan if zero else with_equal_shards(plan)
                changed = replace(base, zero=zero, shard_size=size, zero_plus=PLAIN_ZERO)
                yield Change(f"ZeRO {zero}", f"ZeRO {zero} instead of {plan.zero}", changed)
        if plan.unequal_shards:
            yield Change("sharding", "equal shards", with_equal_shards(plan))
        if plan.shard_size is not None:
            yield Change("sharding", "sharded over all replicas", replace(plan, shard_size=None))
        tp = max(group.tp for _, group in groups_of(plan))
        for size in shard_sizes(target, plan.zero, device_types, tp):
            if size != plan.shard_size and all(
                stage.dp % size == 0 and size < stage.dp for stage in plan.stages
            ):
                changed = replace(with_equal_shards(plan), shard_size=size)
                yield Change("sharding", f"sharded over groups of {size} replicas", changed)


def group_text(plan: Plan) -> str:
    """``sharded in groups of 8``; empty where all replicas share one copy."""
    return f"sharded in groups of {plan.shard_size}" if plan.shard_size else ""


def zeros_at(target: Capabilities, depth: int) -> tuple[int, ...]:
    """ZeRO stages that a target runs at a pipeline depth."""
    return target.zero_without_pipeline if depth == 1 else target.zero_with_pipeline


def zeros(
    target: Capabilities, model: ModelSpec, replicas: int | None, limit: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Stages worth trying; ``replicas`` None where each pipeline stage has its own number.

    A replica alone shards nothing, but ZeRO 3 holds no whole fp32 copy of gradients.
    """
    offered = allowed(tuple(sorted({*target.zero_without_pipeline, *target.zero_with_pipeline})), limit)
    offered = tuple(zero for zero in offered if trains_at(target, model, zero))
    if replicas == 1 and offered:
        offered = tuple(zero for zero in offered if zero in (offered[0], 3))
    return offered


def trains_at(target: Capabilities, model: ModelSpec, zero: int) -> bool:
    """True when the runtime has the model's optimizer, its states and its gradients with a ZeRO stage."""
    training = model.training
    if zero and training.optimizer not in target.sharding_optimizers:
        return False
    if zero not in target.narrow_moments_zero and _narrow(training):
        return False
    return gradients_at(target, training, zero) is not None


def _narrow(training: TrainingSpec) -> str:
    """What the optimizer keeps in a form that not every ZeRO stage has; empty where nothing is."""
    if training.optimizer_states != "fp32":
        return f"{training.optimizer_states} moments"
    return "split weights" if training.master_weights == "split" else ""


def shard_sizes(
    target: Capabilities, zero: int, device_types: Sequence[DeviceType], tp: int = 1
) -> tuple[int, ...]:
    """Replicas that may share a copy of what ZeRO shards, short of all: those of a node, of a part of it or of several.

    Each group is of one type whose nodes it fills, or fill it, so that at least two must be found in such device types.
    Whatever else the cluster has, a type has the same groups.
    """
    if zero not in target.hybrid_zero:
        return ()
    sizes = {
        device_type.per_node // tp * nodes
        for device_type in device_types
        for nodes in {*range(1, min(device_type.nodes, MAX_SHARD_NODES) + 1), *divisors(device_type.nodes)}
    }
    sizes |= {part for each in device_types if each.per_node >= tp for part in divisors(each.per_node // tp)}
    return tuple(
        size
        for size in sorted(sizes - {0, 1})
        if sum(each.replicas(tp) // size for each in device_types if holds_groups(each, size, tp)) > 1
    )


def node_sizes(
    target: Capabilities, zero: int, device_types: Sequence[DeviceType], tp: int
) -> tuple[int, ...]:
    """Those of ``shard_sizes`` that are the replicas of a node of some type."""
    nodes = {device_type.per_node // tp for device_type in device_types}
    return tuple(size for size in shard_sizes(target, zero, device_types, tp) if size in nodes)


def holds_groups(device_type: DeviceType, size: int, tp: int = 1) -> bool:
    """True when groups of ``size`` replicas fill nodes, or nodes such groups: none lies across two that others use."""
    replicas = device_type.per_node // tp
    return replicas > 0 and (replicas % size == 0 or size % replicas == 0)


def fills_node(device_type: DeviceType, size: int, tp: int) -> bool:
    """True when ``size`` replicas of ``tp`` devices are those of one node."""
    return device_type.per_node // tp == size


def states_zero(target: Capabilities, training: TrainingSpec, zero: int, depth: int) -> int:
    """The ZeRO stage as which the optimizer's states are kept and updated in a pipeline of so many stages."""
    whole = depth == 1 or training.precision not in target.divides_states_in_pipeline
    return zero if whole else max(zero, 1)


def optimizer_ways(zero: int, replicas: float) -> float:
    """Replicas over which the optimizer's states are divided (arXiv:1910.02054, section 5)."""
    return replicas if zero >= 1 else 1


def gradient_ways(zero: int, replicas: float) -> float:
    """Replicas over which gradients are divided."""
    return replicas if zero >= 2 else 1


def parameter_ways(zero: int, replicas: float) -> float:
    """Replicas over which parameters are divided."""
    return replicas if zero >= 3 else 1
