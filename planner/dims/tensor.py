"""Tensor parallelism: the devices of one replica; and sequence parallelism, which splits activations outside the
divided matrices by tokens (arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, allowed, by_group, by_stage, node_devices
from planner.dims.trained import splits_frozen
from planner.errors import KeyPath
from planner.model.spec import NF4_BLOCK, ROW_TARGETS, ModelSpec, StateSpec
from planner.plan.values import Fault, Plan, ReplicaGroup, groups_of, with_commas
from planner.targets import TARGETS


class SequenceParallelism(Dimension):
    """``Plan.sequence_parallel``."""

    fields = ("Plan.sequence_parallel",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """On or off."""
        return {"sequence parallel": "yes" if plan.sequence_parallel else "no"}

    def words(self, plan: Plan) -> str:
        """Where it is on."""
        return "sequence parallel" if plan.sequence_parallel else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """It needs a runtime that has it, and tensor-parallel degrees that divide the sequence."""
        if not plan.sequence_parallel:
            return
        path, length = ("sequence_parallel",), model.training.sequence_length
        degrees = sorted({group.tp for _, group in groups_of(plan)})
        if not target.sequence_parallel:
            yield Fault(path, f"{target.name} has no sequence parallelism, expected false")
        elif degrees == [1]:
            yield Fault(path, "sequence parallelism needs tp of at least 2, expected false")
        elif any(length % tp for tp in degrees):
            yield Fault(
                path, f"tp {with_commas(degrees)} must divide the sequence length {length}, expected false"
            )

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Off where it is on, and on where it is off."""
        wide = plan.grid is None and any(group.tp > 1 for _, group in groups_of(plan))
        if target.sequence_parallel and wide:
            word = "without" if plan.sequence_parallel else "with"
            changed = replace(plan, sequence_parallel=not plan.sequence_parallel)
            yield Change("sequence parallel", f"{word} sequence parallelism", changed)


def splits_sequence(target: Capabilities, model: ModelSpec, tp: int | None) -> bool:
    """Sequence parallelism is on wherever it can be: same traffic, less memory. None: each stage has its own degree."""
    even = tp is None or (tp > 1 and model.training.sequence_length % tp == 0)
    return target.sequence_parallel and even


def norm_ways(tp: int, sequence_parallel: bool) -> int:
    """Devices of a replica that share what tensor parallelism alone leaves whole."""
    return tp if sequence_parallel else 1


class TensorParallelism(Dimension):
    """``ReplicaGroup.tp``."""

    fields = ("ReplicaGroup.tp",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """The degree of each stage."""
        return {"tp": by_stage(by_group(str(group.tp) for group in stage.replicas) for stage in plan.stages)}

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """One degree for all, or one a stage, and key/value heads that it divides."""
        if plan.grid is not None and target.grids:
            return  # they have rules of their own
        first = plan.stages[0].replicas[0].tp
        for path, group in groups_of(plan):
            tp, where = group.tp, (*path, "tp")
            if target.tensor_parallel == "none" and tp > 1:
                yield Fault(where, f"{target.name} runs without tensor parallelism, expected 1, got {tp}")
            if target.tensor_parallel == "one-degree" and tp != first:
                yield Fault(where, f"{target.name} has one tp for all, expected {first}, got {tp}")
            own = plan.stages[int(path[1])].replicas[0].tp
            if target.tensor_parallel == "per-stage" and tp != own:
                yield Fault(where, f"{target.name} has one tp in a stage, expected {own}, got {tp}")
            if tp > 1 and plan.pp > 1 and not target.tensor_parallel_in_pipeline:
                what = f"{target.name} divides layers over groups that know no stages, expected 1 in {plan.pp} stages"
                yield Fault(where, f"{what}, got {tp}")
            for what in undivided_because(target, model) if tp > 1 else ():
                yield Fault(where, f"{target.name} {what}, expected 1, got {tp}")
            for pairs in () if target.copies_kv_heads else _pairs(model):
                if pairs % tp:
                    what = f"{target.name} needs a tp that divides the {pairs} key/value heads"
                    yield Fault(where, f"{what}, got {tp}")

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Replicas on several nodes need a runtime that has them, and whole experts on none."""
        if plan.grid is not None:
            return
        row, per_node = TARGETS[plan.target], node_devices(cluster)
        for path, group in groups_of(plan):
            here, where = per_node[group.pool, group.gpu], (*path, "tp")
            if group.tp <= here:
                continue
            if not row.tensor_parallel_over_nodes:
                what = f"{row.name} starts replicas on one node, expected at most {here} {group.gpu}"
                yield Fault(where, f"{what}, got {group.tp}")
            elif plan.folding.ways > 1:
                what = f"experts are divided over replicas that lie in a node, expected at most {here} {group.gpu}"
                yield Fault(where, f"{what}, got {group.tp}")


def head_faults(plan: Plan, model: ModelSpec) -> Iterator[Fault]:
    """Heads, or a feed-forward layer, that the devices of a replica cannot share, whatever the target; grids have rules
    of their own."""
    for path, group in groups_of(plan) if plan.grid is None else ():
        yield from _of_group(path, group, model)


def _of_group(path: KeyPath, group: ReplicaGroup, model: ModelSpec) -> Iterator[Fault]:
    for what in indivisible(model, group.tp):
        yield Fault((*path, "tp"), what)


def indivisible(model: ModelSpec, tp: int) -> Iterator[str]:
    """What of a model ``tp`` devices cannot share evenly: ``tp 3 does not divide the 16 attention heads``."""
    if model.heads % tp:
        yield f"tp {tp} does not divide the {model.heads} attention heads"
    elif model.kv_heads % tp and tp % model.kv_heads:
        yield f"tp {tp} and the {model.kv_heads} key/value heads do not divide each other"
    for kind in model.kinds if model.unlike else ():
        if (
            model.heads % tp == 0
            and kind.attends
            and (kind.heads % tp or (kind.kv_heads % tp and tp % kind.kv_heads))
        ):
            yield f"tp {tp} does not divide the heads of {kind.name}"
    for state in (kind.carried for kind in model.kinds):
        if state is not None and (state.inner % tp or (state.heads > 1 and state.heads % tp)):
            yield f"tp {tp} does not divide the {state.heads} heads of a state"
        elif state is not None and state.groups % tp:
            yield f"tp {tp} does not divide the {state.groups} group{'s' * (state.groups > 1)} of a state"
    for columns in odd_in_fp8(model, tp) if tp > 1 else ():
        what = f"tp {tp} would give devices {columns} columns of the first projection of a state"
        yield f"{what}, expected a multiple of {FP8_COLUMNS} in fp8"
    for width in _widths(model):
        if model.heads % tp == 0 and width % tp:
            yield f"tp {tp} does not divide the feed-forward width {width}"
    for name in _torn(model, tp) if model.in_four_bits and splits(model.trained_with(lora=None), tp) else ():
        what = f"tp {tp} would give devices parts of the blocks of {NF4_BLOCK} elements that share a scale"
        yield f"{what} in {name}, expected whole ones with base nf4"


def tp_degrees(
    target: Capabilities, limit: tuple[int, ...] | None, model: ModelSpec, device_types: Sequence[DeviceType]
) -> tuple[int, ...]:
    """Degrees that divide the heads and stay inside a node of at least one device type.

    Where each stage has its own, those that do not divide the sequence would cost all others sequence parallelism.
    """
    largest = (
        1
        if target.tensor_parallel == "none"
        else max((device_type.per_node for device_type in device_types), default=1)
    )
    if any(undivided_because(target, model)) or model.training.preference:
        largest = 1
    if not splits_frozen(target, model):
        largest = 1
    if model.experts is not None and target.experts != "parallel":
        largest = 1
    degrees = tuple(tp for tp in range(1, largest + 1) if splits(model, tp))
    if model.experts is not None:
        # Megatron trains experts with tensor parallelism only where tokens are split too.
        degrees = tuple(tp for tp in degrees if tp == 1 or splits_sequence(target, model, tp))
    if not target.copies_kv_heads:
        degrees = tuple(tp for tp in degrees if all(pairs % tp == 0 for pairs in _pairs(model)))
    if target.tensor_parallel == "per-stage":
        degrees = tuple(tp for tp in degrees if tp == 1 or splits_sequence(target, model, tp))
    return allowed(degrees, limit)


def undivided_because(target: Capabilities, model: ModelSpec) -> Iterator[str]:
    """What keeps a target from dividing the layers of a model over the devices of a replica, whatever the degree."""
    optimizer = model.training.optimizer
    if optimizer in target.whole_optimizers:
        yield f"updates whole matrices with {optimizer}"
    if model.qk_norm == "whole" and not target.splits_whole_norms:
        yield "normalises queries over all heads of a replica's devices"
    if target.eager_layers and model.qkv_bias and not model.key_bias:
        # The example adds the biases of values on their own, whole on every device.
        yield "divides no biases of values without those of keys"
    if model.sinks and target.eager_layers:
        yield "divides no sinks of heads"
    if model.latent is not None and target.eager_layers:
        yield "divides no latent attention"
    if model.tower is not None:
        yield "divides no towers"
    if model.beside:
        yield "divides no matrices beside the layers"
    if model.encoder is not None:
        yield "divides no encoder-decoders"
    if model.front or model.labels is not None:
        yield "divides no models of images, sound or heads of labels"
    if model.states and not target.splits_states:
        yield "divides no layers with a state"


def splits(model: ModelSpec, tp: int) -> bool:
    """True when ``tp`` devices can share the heads and the feed-forward width evenly."""
    grouped = model.kv_heads % tp == 0 or tp % model.kv_heads == 0
    plain = model.heads % tp == 0 and all(width % tp == 0 for width in _widths(model)) and grouped
    plain = plain and all(
        kind.heads % tp == 0 and (kind.kv_heads % tp == 0 or tp % kind.kv_heads == 0)
        for kind in model.kinds
        if kind.attends
    )
    plain = plain and not any(_torn(model, tp)) and (tp == 1 or not odd_in_fp8(model, tp))
    return plain and (tp == 1 or all(_splits_state(kind.carried, tp) for kind in model.kinds))


def _torn(model: ModelSpec, tp: int) -> Iterator[str]:
    """Products in four bits whose blocks are not whole on ``tp`` devices, which would have scales of their own.

    Blocks run along the rows of [outputs][inputs] (arXiv:2305.14314, section 3).
    """
    for kind in model.kinds if model.in_four_bits and tp > 1 else ():
        for name, (inputs, outputs) in kind.linears.items() if kind.in_four_bits else ():
            part = inputs // tp if name in ROW_TARGETS else inputs * (outputs // tp)
            if part % NF4_BLOCK:
                yield name


FP8_COLUMNS = 16
"""Products in fp8 have so many columns, or a multiple of them."""


def odd_in_fp8(model: ModelSpec, tp: int) -> tuple[int, ...]:
    """Columns that each of ``tp`` devices has of a state's first projection where products in fp8 do not take them."""
    if model.training.precision != "fp8":
        return ()
    states = (kind.carried for kind in model.kinds if kind.carried is not None)
    parts = (state.matrices(model.hidden)[0][1] // tp for state in states)
    return tuple(dict.fromkeys(part for part in parts if part % FP8_COLUMNS))


def _splits_state(state: StateSpec | None, tp: int) -> bool:
    """True when ``tp`` devices can share the channels and heads of a state evenly."""
    if state is None:
        return True
    heads = state.heads == 1 or state.heads % tp == 0
    return state.inner % tp == 0 and heads and state.groups % tp == 0


def _pairs(model: ModelSpec) -> tuple[int, ...]:
    """Numbers of key/value heads of the layers that attend."""
    return tuple(dict.fromkeys(kind.kv_heads for kind in model.kinds if kind.attends))


def _widths(model: ModelSpec) -> tuple[int, ...]:
    """Widths of the feed-forwards that tensor parallelism divides."""
    return (
        tuple(dict.fromkeys(kind.common_ffn for kind in model.kinds)) if model.unlike else (model.common_ffn,)
    )
