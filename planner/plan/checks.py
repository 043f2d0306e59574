"""Checks of a plan against its inputs and its target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.dims import DIMENSIONS
from planner.dims.sharding import gradient_faults
from planner.dims.tensor import FP8_COLUMNS, head_faults, odd_in_fp8
from planner.dims.trained import frozen_text
from planner.errors import KeyPath, PlanError, UsageError, dotted
from planner.files.document import Document
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.placement import place, split_nodes, widths
from planner.plan.values import Fault, Plan, ReplicaGroup, groups_of
from planner.targets import target


def check_plan(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Raise PlanError with every rule that the plan breaks for these inputs."""
    plan_faults = faults(plan, cluster, model)
    if plan_faults:
        raise PlanError(*(f"{_where(fault.path)}{fault.what}" for fault in plan_faults))


def faults(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> tuple[Fault, ...]:
    """Every rule that the plan breaks; it is placed only when nothing else is wrong, its paths tried only then."""
    if first_faults := (*_devices(plan, cluster, model), *target_faults(plan, model)):
        return first_faults
    placement_faults = _placement(plan, cluster)
    paths = () if placement_faults else _paths(plan, cluster)
    return (*placement_faults, *paths, *_hosts(plan, cluster))


def target_faults(plan: Plan, model: ModelSpec) -> tuple[Fault, ...]:
    """Every rule of its model and its target that the plan breaks, on whatever devices."""
    size_faults = [*_sizes(plan, model)]
    try:
        row = target(plan.target)
    except UsageError as error:
        return (*size_faults, Fault(("target",), error.message))
    broken = (fault for dimension in DIMENSIONS for fault in dimension.rules(plan, row, model))
    return (*size_faults, *model_faults(row, model), *broken)


def listed(plan_faults: Iterable[Fault]) -> str:
    """A line for each fault: where, and what was expected."""
    return "\n".join(f"{_where(fault.path)}{fault.what}" for fault in plan_faults)


def fail_on_faults(document: Document, plan_faults: tuple[Fault, ...]) -> None:
    """Raise PlanError with the line of every fault in the plan's file."""
    if plan_faults:
        raise PlanError(*(str(document.problem(fault.path, fault.what)) for fault in plan_faults))


def _where(path: KeyPath) -> str:
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
    yield from head_faults(plan, model)


def _precision(path: KeyPath, group: ReplicaGroup, cluster: ClusterSpec, model: ModelSpec) -> Iterator[Fault]:
    formats = cluster.gpus[group.gpu].tflops
    wanted = model.training.precision
    if wanted not in formats:
        yield Fault(
            (*path, "gpu"), f"{group.gpu} cannot compute in {wanted}, it can in: {', '.join(formats)}"
        )


def model_faults(row: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What of the model the target does not train, whatever the plan."""
    training, path = model.training, ("target",)
    for key, wanted, able, _ in _choices(row, training):
        if wanted not in able:
            yield Fault(path, f"{row.name} does not train {key} {wanted}, it can: {', '.join(able)}")
    if training.optimizer_states != "fp32" and training.optimizer != "adamw":
        what = f"{training.optimizer_states} moments of adamw only, expected fp32 with {training.optimizer}"
        yield Fault(path, f"{row.name} keeps {what}")
    stages = tuple(sorted({*row.zero_without_pipeline, *row.zero_with_pipeline}))
    for what in gradient_faults(row, training, stages):
        yield Fault(path, what)
    if model.kind == "encoder" and row.encoders == "none":
        yield Fault(path, f"{row.name} trains no encoders, expected a decoder")
    if training.documents is not None and "documents" not in row.documents:
        yield Fault(path, f"hetplan does not train on documents with {row.name}, expected no documents")
    if training.preference is not None and "pairs of answers" not in row.documents:
        yield Fault(
            path, f"hetplan does not train on pairs of answers with {row.name}, expected no preference"
        )
    if model.frozen and frozen_text(model) not in row.frozen_parts:
        unwanted = "lora" if training.lora else "freeze"
        if training.lora and "adapters" in row.frozen_parts:
            unwanted = f"base {training.lora.base}"
        yield Fault(path, f"hetplan has no {frozen_text(model)} with {row.name}, expected no {unwanted}")
    yield from _layer_faults(row, model)
    usual = model.learned_positions > 0 and model.kv_heads == model.heads
    if model.kind == "encoder" and row.encoders == "bert" and not usual:
        what = "encoders with learned positions and without grouped-query attention only"
        yield Fault(path, f"{row.name} trains {what}")


def _layer_faults(row: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """Kinds of layers that the target does not have."""
    path = ("target",)
    if model.experts is not None and row.experts == "none":
        yield Fault(path, f"hetplan trains no experts with {row.name} yet, expected a dense model")
    capacity = None if model.experts is None else model.experts.capacity_factor
    if capacity is not None and row.experts in ("whole", "replicas"):
        what = "drops no tokens of experts, expected no capacity_factor"
        yield Fault(path, f"{row.name} {what}, got {capacity:g}")
    if model.sinks and not row.sinks:
        yield Fault(path, f"hetplan trains no attention with sinks with {row.name} yet, expected none")
    strange = [kind for kind in model.states if row.states and kind not in row.states]
    if strange:
        able = f"it can: {', '.join(row.states)}"
        yield Fault(
            path, f"hetplan trains no layers with a state of kind {strange[0]} with {row.name}, {able}"
        )
    runs = bool(model.block or model.ahead or model.behind)
    apart = not model.usual_layers
    unlike = (runs and row.unlike_layers == "none") or (apart and row.unlike_layers not in ("mixers", "any"))
    # Layers of an encoder-decoder differ from each other wherever one is trained.
    if unlike and (model.encoder is None or model.states):
        what = (
            "blocks of unlike layers"
            if model.usual_layers
            else "layers other than attention and a feed-forward"
        )
        yield Fault(path, f"hetplan trains no {what} with {row.name} yet, expected none")
    for unusual in (
        _unusual(row, model),
        _unstacked(row, model) if apart and row.unlike_layers == "mixers" else "",
    ):
        if unusual:
            yield Fault(path, f"hetplan trains no {unusual} with {row.name} yet, expected none")
    if model.training.expert_overlap and row.overlaps_experts:
        yield from _overlap_faults(row, model)
    if model.beside and not row.beside:
        yield Fault(path, f"hetplan trains no matrices beside the layers with {row.name} yet, expected none")
    if model.tower is not None and not row.towers:
        yield Fault(
            path, f"hetplan trains no towers beside a text decoder with {row.name} yet, expected none"
        )
    if (model.front or model.labels is not None) and not row.own_ends:
        what = "images or sound" if model.front else "a head of labels"
        yield Fault(path, f"hetplan trains no models of {what} with {row.name} yet, expected tokens")
    if model.shares:
        yield Fault(path, f"hetplan trains no layers of the same weights with {row.name} yet, expected none")
    if model.training.mtp_layers and not row.further_tokens:
        yield Fault(path, f"hetplan predicts no further tokens with {row.name} yet, expected mtp_layers 0")
    elif model.training.mtp_layers and model.learned_positions:
        yield Fault(path, f"{row.name} predicts further tokens with rotary positions, expected mtp_layers 0")
    if model.encoder is not None and row.encoder_decoders == "none":
        yield Fault(path, f"hetplan trains no encoder-decoders with {row.name} yet, expected a decoder alone")
    if model.output_gate and not row.output_gate:
        yield Fault(path, f"hetplan trains no gated attention with {row.name} yet, expected none")
    if model.latent is not None and not row.latent_attention:
        yield Fault(path, f"hetplan trains no latent attention with {row.name} yet, expected none")


def _unusual(row: Capabilities, model: ModelSpec) -> str:
    """What of the layers hetplan prices and the target does not have; empty for nothing."""
    runs = (*(model.ahead or ()), *(model.block or ()), *(model.behind or ()))
    reasons = {
        "attention by other matrices than of queries, keys, values and output (projections)": any(
            kind.projections is not None for kind in model.kinds
        ),
        "layers of several sizes": any(run.own for run in runs) and row.unlike_layers != "any",
        "values of another width than keys": not row.eager_layers
        and any(kind.value_dim is not None for kind in model.kinds),
        "gates of low rank": any(
            kind.carried is not None and kind.carried.kind == "delta" and kind.carried.rank is not None
            for kind in model.kinds
        ),
        "experts of another width": model.expert_width != model.hidden and not row.latent_experts,
    }
    return next((name for name, there in reasons.items() if there), "")


def _overlap_faults(row: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """Models whose all-to-alls Megatron-Core runs beside no other computation."""
    reasons = {
        f"in {model.training.precision}": model.training.precision in ("fp32", "tf32"),
        f"with mtp_layers {model.training.mtp_layers}": model.training.mtp_layers > 1,
        "beside layers of other kinds": model.stacked,
    }
    for what in (name for name, there in reasons.items() if there):
        yield Fault(("target",), f"{row.name} overlaps no experts {what}, expected expert_overlap false")


def _unstacked(row: Capabilities, model: ModelSpec) -> str:
    """What layers of attention lack beside others, and more of it where these stand on their own; empty for nothing."""
    others, alone = "beside layers of other kinds", model.stacked
    reasons = {
        "attention and a state side by side in a layer": any(kind.mixer == "both" for kind in model.kinds),
        "gated delta rules without feed-forwards": alone and "delta" in model.states,
        f"norms of queries and keys {others}": alone and bool(model.qk_norm),
        f"sinks {others}": alone and model.sinks,
        f"kernels of {model.training.kernels} {others}": alone
        and model.training.kernels not in (None, row.kernels[0]),
        f"sliding windows {others}": model.window is not None,
        f"latent attention {others}": model.latent is not None,
        f"states whose first projection is not a multiple of {FP8_COLUMNS} wide in fp8": bool(
            odd_in_fp8(model, 1)
        ),
    }
    return next((name for name, there in reasons.items() if there), "")


def unwritten(row: Capabilities, model: ModelSpec) -> str | None:
    """What launch files for the target do not hold of a model that it trains; None where they hold all."""
    for key, wanted, _, unemitted in _choices(row, model.training):
        if wanted in unemitted:
            return f"training {key} {wanted} with {row.name} is priced, but hetplan writes no launch files for it"
    if model.frozen and frozen_text(model) in row.unemitted_frozen_parts:
        return f"training {frozen_text(model)} with {row.name} is priced, but hetplan writes no launch files for it"
    if model.training.documents is not None and "documents" in row.unemitted_documents:
        return f"training on documents with {row.name} is priced, but hetplan writes no launch files for it"
    if model.training.precision == "fp8" and row.eager_layers:
        # The examples' own products in fp8 are of matrices that rest in the format of training.
        whole = {"experts": model.experts is not None, "four bits": model.in_four_bits}
        for what, there in whole.items():
            if there:
                return f"training {what} in fp8 with {row.name} is priced, but hetplan writes no launch files for it"
    if model.training.master_weights == "split" and model.training.precision != "bf16":
        return f"training splits bf16 weights, hetplan writes no launch files for it in {model.training.precision}"
    return None


def unchosen(row: Capabilities, training: TrainingSpec) -> str | None:
    """``not with norms unfused``: what a training chooses that no plan for the target has; None for nothing."""
    for key, wanted, able, unemitted in _choices(row, training):
        if wanted not in able or wanted in unemitted:
            return f"not {key} {wanted}"
    return None


def _choices(
    row: Capabilities, training: TrainingSpec
) -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """(in words, what is asked for, what the target has, what of it is only priced) of what a training chooses."""
    yield "in", training.precision, row.precisions, ()
    yield "by", training.optimizer, row.optimizers, row.unemitted_optimizers
    yield "with optimizer_states", training.optimizer_states, row.moments, row.unemitted_moments
    if training.master_weights is not None:
        masters = training.master_weights
        yield "with master_weights", masters, row.master_weights, row.unemitted_master_weights
    if training.cross_entropy is not None:
        asked = training.cross_entropy
        yield "with cross_entropy", asked, row.cross_entropies, row.unemitted_cross_entropies
    yield "with norms", training.norms, row.norms, ()
    yield "with cuda_graphs", training.cuda_graphs, row.cuda_graphs, row.unemitted_cuda_graphs
    yield "with token_dispatcher", training.token_dispatcher, row.token_dispatchers, ()
    if training.expert_overlap:
        yield "with expert_overlap", "true", ("true",) if row.overlaps_experts else ("false",), ()


def _hosts(plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
    return (fault for dimension in DIMENSIONS for fault in dimension.host_rules(plan, cluster))


def _placement(plan: Plan, cluster: ClusterSpec) -> tuple[Fault, ...]:
    try:
        return node_faults(plan, cluster)
    except PlanError as error:
        if error.path:
            return (Fault(error.path, error.what),)
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
    for pool in widths(plan, cluster):
        if not topology.path(pool, pool).connected:
            stage = next(
                at for at, each in enumerate(plan.stages) if pool in {one.pool for one in each.replicas}
            )
            what = (
                f"replicas on several nodes of {pool}, which no fabric joins, expected a tp that a node holds"
            )
            yield Fault(("stages", stage), what)
    pools = [sorted({group.pool for group in stage.replicas}) for stage in plan.stages]
    for number, here in enumerate(pools):
        before = pools[number - 1] if number else []
        pairs = [*combinations(here, 2), *product(before, here)]
        for first, last in pairs:
            if not plan.sync.exact and plan.sync.island_of(first, 0) != plan.sync.island_of(last, 0):
                continue
            if first != last and not topology.path(first, last).connected:
                why = topology.strangers(first, last) or "no common fabric and no chain of links"
                yield Fault(("stages", number), f"the pools {first} and {last} cannot talk: {why}")
