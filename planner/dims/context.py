"""Context parallelism: the tokens of a sequence divided over consecutive replicas, which attend to each other's.

A ring passes keys and values around under attention (arXiv:2310.01889), with two pieces of a sequence on a device, one
from either end, so that a causal mask leaves all as much to do (arXiv:2311.09431). Ulysses turns parts of the sequence
into parts of the heads by all-to-alls, and back (arXiv:2309.14509). Replicas that share a sequence hold the same
parameters, so that they are among those over which gradients are reduced and states sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities, ContextKind
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, allowed, node_devices, runs_of
from planner.dims.expert import holds_experts
from planner.dims.trained import dealt_whole
from planner.errors import PlanError
from planner.model.spec import ModelSpec, StateSpec
from planner.plan.values import Context, Fault, Plan, ReplicaGroup, Stage, groups_of, with_commas
from planner.targets import TARGETS

LEAST_TOKENS = 8_192
"""Tokens of a sequence that a device has at least where nobody asks for a degree: fewer hide no ring."""


class ContextParallelism(Dimension):
    """``Plan.cp`` and ``Plan.cp_kind``."""

    fields = ("Plan.cp", "Plan.cp_kind")

    def traits(self, plan: Plan) -> dict[str, str]:
        """Degree and kind, where sequences are divided."""
        return {"cp": f"{plan.cp} ({plan.cp_kind})"} if plan.cp > 1 else {}

    def words(self, plan: Plan) -> str:
        """How sequences are divided."""
        return f"cp {plan.cp} ({plan.cp_kind})" if plan.cp > 1 else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """A runtime that has it, a sequence and heads that it divides, replicas that make whole groups."""
        if plan.cp == 1:
            if plan.cp_kind != "ring":
                yield Fault(("cp_kind",), f"nothing is divided at cp 1, expected none, got {plan.cp_kind}")
            return
        path = ("cp",)
        if not target.context:
            yield Fault(path, f"{target.name} keeps sequences whole, expected 1, got {plan.cp}")
            return
        if plan.cp_kind not in target.context:
            able = with_commas(target.context)
            yield Fault(("cp_kind",), f"{target.name} divides sequences by {able}, got {plan.cp_kind}")
            return
        if plan.pp > 1 and not target.context_in_pipeline:
            what = f"{target.name} keeps sequences whole in a pipeline, expected 1, got {plan.cp}"
            yield Fault(path, what)
        if plan.shard_size is not None:
            yield Fault(
                ("shard_size",), f"sequences divided over {plan.cp} replicas need one copy, expected none"
            )
        degrees = sorted({group.tp for _, group in groups_of(plan)})
        yield from (
            Fault(path, what) for tp in degrees for what in context_faults(plan.context, target, model, tp)
        )
        for where, group in runs_of(plan):
            if group.count % plan.cp:
                what = f"cp {plan.cp} does not divide these {group.count} replicas"
                yield Fault((*where, "count"), f"{what}: a sequence stays on one device type")

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Groups that lie in a node or fill nodes, of devices with a fused attention kernel."""
        if plan.cp == 1:
            return
        per_node = node_devices(cluster)
        for where, group in runs_of(plan, cluster):
            here, together = per_node[group.pool, group.gpu], group.tp * plan.cp
            if not holds_experts(group, together, here):
                what = f"expected groups of tp {group.tp} x cp {plan.cp} devices that lie in a node or fill nodes of"
                yield Fault((*where, "count"), f"{what} {here}")
            if not TARGETS[plan.target].fuses_attention(cluster.gpus[group.gpu].compute_capability):
                what = f"{plan.target} has no fused attention on {group.gpu}, which divided sequences need"
                yield Fault((*where, "gpu"), what)

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Sequences over twice and half as many replicas, and in the other way."""
        if plan.cp == 1:
            return
        for kind in target.context:
            if kind != plan.cp_kind:
                yield Change(f"cp {kind}", f"{kind} instead of {plan.cp_kind}", replace(plan, cp_kind=kind))
        for cp in (2 * plan.cp, plan.cp // 2):
            try:
                changed = _divided(plan, cp)
            except PlanError:
                continue
            yield Change(f"cp {cp}", f"cp {cp} instead of {plan.cp}", changed)


def _divided(plan: Plan, cp: int) -> Plan:
    """The same replicas with ``cp`` of them for a sequence; PlanError where local batches do not divide."""

    def dealt(group: ReplicaGroup) -> ReplicaGroup:
        share, rest = divmod(group.local_batch * cp, plan.cp)
        steps = group.accumulation_steps * cp // plan.cp
        if rest or not steps or share % steps:
            raise PlanError("the local batch does not divide")
        return replace(group, local_batch=share, accumulation_steps=steps)

    def divided(stage: Stage) -> Stage:
        return replace(stage, replicas=tuple(dealt(group) for group in stage.replicas))

    kind: ContextKind = plan.cp_kind if cp > 1 else "ring"
    return replace(plan, cp=cp, cp_kind=kind, stages=tuple(divided(stage) for stage in plan.stages))


def context_faults(context: Context, target: Capabilities, model: ModelSpec, tp: int) -> Iterator[str]:
    """What keeps a target from dividing the model's sequences so, on replicas of ``tp`` devices."""
    length, cp = model.training.sequence_length, context.ways
    pieces = cp * (2 if context.kind == "ring" else target.context_pieces)
    if length % pieces:
        yield f"{pieces} pieces for cp {cp} do not divide the sequence length {length}"
    elif target.sequence_parallel and tp > 1 and length % tp == 0 and length // cp % tp:
        yield f"tp {tp} does not divide the {length // cp} tokens that cp {cp} leaves of a sequence"
    yield from _whole_because(context.kind, model, target)
    states = dict.fromkeys(kind.carried for kind in model.kinds if kind.carried is not None)
    for state in (each for each in states if each.kind in target.context_states):
        parts, what = (state.heads, "heads") if state.heads > 1 else (state.inner, "channels")
        if parts % (cp * tp):
            yield f"cp {cp} x tp {tp} does not divide the {parts} {what} of a state, expected a divisor"
        elif state.heads > 1 and not _shares_groups(state, target, cp, tp):
            groups = f"{state.groups} group{'s' * (state.groups > 1)}"
            yield f"cp {cp} x tp {tp} does not divide the {groups} of a state, expected a divisor"
    if context.kind == "ring":
        return
    expected = "cp_kind ring" if "ring" in target.context else "a divisor"
    counts = ((what, number) for kind in model.kinds if kind.attends for what, number in _heads(kind))
    for what, heads in dict.fromkeys(counts):
        if heads % (cp * tp):
            yield f"cp {cp} x tp {tp} does not divide the {heads} {what} heads, expected {expected}"


def _shares_groups(state: StateSpec, target: Capabilities, cp: int, tp: int) -> bool:
    """True when replicas have whole groups each, or a part of one with its keys."""
    groups = state.groups // tp
    return groups % cp == 0 or (target.copies_keys and state.kind == "mamba2" and cp % max(1, groups) == 0)


def _whole_because(kind: ContextKind, model: ModelSpec, target: Capabilities) -> Iterator[str]:
    """What of a model keeps its sequences whole, whatever their length and the degree, with kinds to expect."""
    if model.training.attention != "flash":
        yield "divided sequences need fused attention, expected attention flash in the model's training"
    if model.kind != "decoder":
        yield "divided sequences need a causal mask, expected a decoder"
    if model.front or model.labels is not None:
        yield "images, sound and heads of labels need whole sequences, expected cp 1"
    if model.beside:
        yield "matrices beside the layers work on whole sequences, expected cp 1"
    if model.tower is not None:
        yield "towers make tokens of whole sequences, expected cp 1"
    if dealt_whole(model) and not model.training.packs_documents:
        yield "padded documents and pairs of answers stay whole, expected cp 1"
    elif model.training.packed and not target.documents_in_parts:
        yield f"{target.name} keeps sequences of documents whole, expected cp 1"
    elif model.training.packed and kind == "ring":
        yield "packed documents are not passed around a ring, expected cp_kind ulysses"
    if model.encoder is not None:
        yield "layers attend to the whole output of an encoder, expected cp 1"
    for state in model.states:
        if state not in target.context_states:
            able = with_commas(target.context_states) or "none"
            yield f"{target.name} divides no sequences with a state of kind {state}, it can: {able}"
    if kind == "ring":
        if model.window is not None:
            yield "sliding windows are not passed around a ring, expected cp_kind ulysses"
        if model.sinks:
            yield "sinks are not passed around a ring, expected cp_kind ulysses"
    elif model.latent is not None:
        expected = "cp_kind ring" if "ring" in target.context else "cp 1"
        yield f"ulysses divides no latent attention, expected {expected}"


def _heads(model: ModelSpec) -> tuple[tuple[str, int], ...]:
    return ("attention", model.heads), ("key/value", model.kv_heads)


def offers_context(target: Capabilities, model: ModelSpec) -> bool:
    """True when a target divides sequences of such a model in some way, if they and the heads have divisors."""
    return any(not any(_whole_because(kind, model, target)) for kind in target.context)


def contexts(
    target: Capabilities, model: ModelSpec, tp: int | None, limit: tuple[int, ...] | None
) -> tuple[Context, ...]:
    """Ways to divide sequences worth trying on replicas of ``tp`` devices, whole ones first."""
    whole = tuple(Context() for _ in allowed((1,), limit))
    length = model.training.sequence_length
    if not target.context or tp is None or (limit is None and length < 2 * LEAST_TOKENS):
        return whole
    most = max(limit) if limit else length // LEAST_TOKENS
    degrees = tuple(2**power for power in range(1, most.bit_length()) if 2**power <= most)
    asked = allowed(degrees, limit) if limit is None else tuple(sorted({*limit} - {1}))
    tried = (Context(ways=cp, kind=kind) for cp in asked for kind in target.context)
    return whole + tuple(one for one in tried if not any(context_faults(one, target, model, tp)))
