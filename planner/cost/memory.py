"""Peak bytes on one device, by component.

Model states follow ZeRO (arXiv:1910.02054, section 3), activations Korthikanti et al. (arXiv:2205.05198,
section 4) written for any feed-forward width and grouped-query attention.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log2
from statistics import NormalDist

from planner.calibration.values import Framework
from planner.capabilities import Recompute
from planner.cluster.topology import DeviceType
from planner.cost.arrays import larger, smaller
from planner.cost.compute import (
    ELEMENT_BYTES,
    MIXED,
    eager_width,
    kept_rows,
    normed_widths,
    predicted_tokens,
    trains_norms,
)
from planner.cost.values import Memory
from planner.dims.sharding import gradient_ways, optimizer_ways, parameter_ways
from planner.dims.tensor import norm_ways
from planner.frozen import record
from planner.model.spec import (
    MASTER_BYTES,
    ROW_TARGETS,
    Adapters,
    AdapterTarget,
    LatentSpec,
    LayerRun,
    MasterWeights,
    ModelSpec,
    Part,
    StateSpec,
    TrainingSpec,
)
from planner.plan.values import ON_DEVICE, WHOLE, WHOLE_EXPERTS, Context, Folding, Offload

BUCKET_ELEMENTS = 2e8
"""Elements of a reduction or gather bucket; the emitted DeepSpeed configuration sets the same."""

MOST_CONTEXT = 0.08
"""Largest share of a device that context and libraries take: small devices run with less."""

CHUNK = 2**24
"""Logits that the loss of the examples has in fp32 at a time (``planner/training/hetplan_loss.py``)."""
PLAIN_LOGIT_BYTES = 12.0
"""Bytes of an element of the logits in the backward of torch's own loss: fp32 log-probabilities and two gradients."""

FRAGMENTS = 0.03
"""Part of its tensors' bytes that an allocator cannot use between them, and that a driver keeps of the device."""

SWAPPED_ELEMENTS = 5e7
"""Elements of which the optimizer's states travel between NVMe and host memory together; the emitted DeepSpeed
configuration sets the same."""

SUB_GROUPS = 64
"""Sub-groups of a device's optimizer where a part of it is on the host, or is updated during the backward: fewer where
tensors are large, more of many elements. The emitted DeepSpeed configuration sets their size by it."""

SWAP_BUFFERS = 12
"""Buffers for them, in fp32: weights, gradients and two moments of those that are read, updated and written. Also so in
the emitted configuration."""

SWAPPED_TENSORS = 23
"""Buffers for parameters on their way from NVMe: seven matrices each of three layers, and both embeddings. Also so."""

DIVIDED_BYTES = 8.0
"""Bytes beside its moments of an element that the device updates while the host updates others: its weight and its
gradient in fp32, which DeepSpeed keeps from step to step; a host has the same of what it updates tensor by tensor."""

BUILT_BYTES = 6.0
"""Bytes in host memory of an element, whole on every device, while Megatron builds the optimizer that it then builds
anew for shards: pinned copies in 16 bits, if it trains in them, and in fp32 (NVIDIA/Megatron-LM issue 7232)."""

LIVE_ELEMENTS = 1e9
"""Most parameters that a runtime that gathers matrix by matrix has whole at a time; the emitted DeepSpeed
configuration sets the same."""


@record(slots=True, kw_only=True)
class Load:
    """What one device holds and does, as far as memory is concerned; not frozen, as that is made thrice as fast."""

    first: bool
    """True on the stage with the embedding."""
    last: bool
    """True on the stage with the head."""
    tp: int
    dp: float
    """Replicas over which ZeRO shards, or with unequal shards those that would hold as much each as this one; may be
    an array of such numbers."""
    micro_batch: int
    """Sequences; may be an array too."""
    recompute: Recompute
    sequence_parallel: bool
    zero: int
    gradient_bytes: int
    gathered: bool = False
    """True when what comes together for a product, with sequence parallelism, is kept so."""
    master_weights: MasterWeights = "fp32"
    """Weights that the optimizer updates."""
    offload: Offload = ON_DEVICE
    activation_ratio: float = 1.0
    """Measured activations that one layer keeps without recomputation over those of the formula."""
    parameter_ratio: float = 1.0
    """Measured parameters of one layer on one device over those of the formula."""
    allocator_slack: float | None = None
    """As measured; None for the framework's."""
    cross_entropy: str = "fused"
    """How the loss is computed: ``chunked``, ``plain``, ``fused`` or ``masked``."""
    eager: bool = False
    """True for eager layers of plain torch, as the examples have; else for fused kernels of Megatron and the like."""
    by_units: bool = False
    """True when replicas share parameters by units, a layer or the embedding or the head, that rest in fp32 alone where
    they are sharded, and get their working format when they are gathered."""
    reduced_bytes: int = 4
    """Bytes of an element of a gradient while it is added up over replicas."""
    gathers_matrices: bool = False
    """True when ZeRO-3 gathers matrix by matrix and not layer by layer."""
    flat_copies: bool = False
    """True when ZeRO updates flat copies of its own: of weights in fp32 training too, on hosts by gradients in fp32."""
    shards_codes: bool = False
    """True when ZeRO-3 shards and gathers what rests in four bits too."""
    tensor_by_tensor: bool = False
    """True when hosts update tensor by tensor, the first ones until they have passed their share."""
    folding: Folding = WHOLE_EXPERTS
    """How the experts of a layer are divided."""
    context: Context = WHOLE
    """How sequences are divided; those of the model are parts of them."""
    beside_bytes: float = 0.0
    """Of an element of a gradient, beside it: what of it has not been sent to other islands, or a sum of it."""
    padding: float = 1.0
    """Bytes of buffers over those with equal shards."""
    secondary: int | None = None
    """Devices that keep a second copy of the parameters between them."""
    block_bytes: float = 0.0
    """Blocks of weights and activations on their way through a grid."""
    passed: int = 0
    """Hidden states of a micro-batch alive that come and go beside its own: those of a pipeline's reference."""
    relieved: bool = False
    """True where gradients come, and are reduced, as activations go."""

    @property
    def expert_dp(self) -> float:
        """Devices that have the same experts, over which ZeRO shards these."""
        return replicas_with_experts(self.dp, self.tp, self.folding.ways)


def replicas_with_experts(dp: float, tp: int, expert_ways: int) -> float:
    """Devices that have the same experts, of ``dp`` replicas or an array of such numbers."""
    return dp if expert_ways == tp else larger(1, dp * tp // expert_ways)


def experts_of(
    model: ModelSpec, *, layers: int, expert_ways: int, first: bool = False, last: bool = False
) -> float:
    """Elements of the experts on one device, of which ``expert_ways`` hold all, whatever divides everything else."""
    ends = (model.ahead_experts if first else 0) + (model.behind_experts if last else 0)
    return (layers * model.expert_parameters + ends) / expert_ways


def layer_elements(model: ModelSpec, *, tp: int, expert_ways: int = 1) -> float:
    """Elements of one layer on one device."""
    return (model.layer_parameters - model.expert_parameters) / tp + experts_of(
        model, layers=1, expert_ways=expert_ways
    )


def parameters_of(
    model: ModelSpec, *, layers: int, first: bool, last: bool, tp: int, expert_ways: int = 1
) -> float:
    """Elements of the parameters on one device; a tied head is a second copy on a last stage of its own."""
    total = layers * (model.layer_parameters - model.expert_parameters)
    total += model.embedding_parameters + model.ahead_parameters - model.ahead_experts if first else 0
    if last:
        total += model.head_parameters + model.behind_parameters - model.behind_experts
        total += model.vocab * model.embedding_width if model.embeds_twice and not first else 0
    return total / tp + experts_of(model, layers=layers, expert_ways=expert_ways, first=first, last=last)


def trained_of(
    model: ModelSpec, *, layers: int, first: bool, last: bool, tp: int, expert_ways: int = 1
) -> float:
    """Those that are trained: they have gradients, optimizer states and traffic of both."""
    if not model.frozen:
        whole = parameters_of(model, layers=layers, first=first, last=last, tp=tp, expert_ways=expert_ways)
        return whole - (model.ahead_parameters - model.trained_ahead) / tp if first else whole
    experts, own = (
        trained_experts_of(model, layers=layers, first=first, last=last, expert_ways=ways)
        for ways in (1, expert_ways)
    )
    total = layers * model.trained_layer_parameters - experts
    total += model.trained_embedding_parameters + model.trained_ahead if first else 0
    if last:
        total += model.trained_head_parameters + model.trained_behind
        if model.tied_embeddings and not first and "embedding" not in model.frozen:
            total += model.vocab * model.embedding_width
    return (total + (tp - 1) * adapters_of(model, layers=layers, first=first, last=last).whole) / tp + own


def trained_experts_of(model: ModelSpec, *, layers: int, expert_ways: int, first: bool, last: bool) -> float:
    """Those of them in experts: adapters of theirs where experts are frozen."""
    if "mlp" in model.frozen:
        return adapters_of(model, layers=layers, first=first, last=last).experts / expert_ways
    return experts_of(model, layers=layers, expert_ways=expert_ways, first=first, last=last)


def gathered_of(
    model: ModelSpec,
    *,
    layers: int,
    first: bool,
    last: bool,
    tp: int,
    expert_ways: int = 1,
    shards_codes: bool,
) -> float:
    """Those that ZeRO 3 shards and gathers, of the working format; quantised ones count by their bytes, if at all."""
    parameters = parameters_of(model, layers=layers, first=first, last=last, tp=tp, expert_ways=expert_ways)
    adapters = adapters_of(model, layers=layers, first=first, last=last)
    apart = 1.0 - gathered_of_code(model, shards_codes)
    quantised = apart * quantised_of(model, layers=layers, first=first, last=last)
    parameters += adapters.experts / expert_ways
    parameters -= apart * quantised_experts_of(
        model, layers=layers, expert_ways=expert_ways, first=first, last=last
    )
    return parameters + (adapters.parameters + (tp - 1) * adapters.whole - quantised) / tp


def gathered_experts_of(
    model: ModelSpec, *, layers: int, expert_ways: int, first: bool, last: bool, shards_codes: bool
) -> float:
    """Those of them in experts."""
    held, packed = (
        count(model, layers=layers, expert_ways=expert_ways, first=first, last=last)
        for count in (experts_of, quantised_experts_of)
    )
    held -= (1.0 - gathered_of_code(model, shards_codes)) * packed
    return held + adapters_of(model, layers=layers, first=first, last=last).experts / expert_ways


def gathered_of_code(model: ModelSpec, shards_codes: bool) -> float:
    """What ZeRO 3 gathers of a quantised element, over one of the working format."""
    return model.quantised_bytes / ELEMENT_BYTES[model.training.precision] if shards_codes else 0.0


def adapters_of(model: ModelSpec, *, layers: int, first: bool, last: bool) -> Adapters:
    """Parameters of the adapters of a stage."""
    return Adapters.of(
        ((layers, model.layer_adapters), (first, model.first_adapters), (last, model.last_adapters))
    )


def quantised_of(model: ModelSpec, *, layers: int, first: bool, last: bool) -> int:
    """Those of a stage that are quantised, beside experts."""
    ends = first * model.quantised_ahead + last * model.quantised_behind
    return layers * model.quantised_layer_parameters + ends


def quantised_experts_of(
    model: ModelSpec, *, layers: int, expert_ways: int, first: bool, last: bool
) -> float:
    """Those in experts, on one device."""
    ends = first * model.quantised_experts_ahead + last * model.quantised_experts_behind
    return (layers * model.quantised_expert_parameters + ends) / expert_ways


def optimizer_bytes(training: TrainingSpec, master_weights: MasterWeights, *, copied: bool = False) -> float:
    """Bytes of the optimizer's states of one element of a layer: moments and, in 16-bit training, its own weights.

    ``copied``: it has weights of its own in fp32 training too.
    """
    own = MASTER_BYTES[master_weights] if copied or training.precision in MIXED else 0.0
    return training.moment_bytes + own


def activation_bytes_per_layer(
    model: ModelSpec,
    *,
    tp: int,
    micro_batch: int,
    recompute: Recompute,
    sequence_parallel: bool,
    gathered: bool = False,
    eager: bool = False,
    folding: Folding = WHOLE_EXPERTS,
    sharing: int = 1,
) -> float:
    """Bytes one layer keeps for the backward of one micro-batch (arXiv:2205.05198, table 2).

    ``gathered``: with sequence parallelism, what comes together for a product is kept so, and not gathered again. Of
    ``sharing`` replicas each has a part of the sequences, which is what the model has.

    Layers of plain torch keep the nonlinearity of a gated MLP beside both factors, and a copy of each key and value for
    every head; with selective recomputation they keep every second matrix product, and attention. Kernels of
    Transformer Engine keep inputs of fp8 products in fp8.
    """
    tokens = micro_batch * model.training.sequence_length
    ways = norm_ways(tp, sequence_parallel)
    taking = 1 if gathered else ways
    """Devices that share the inputs of products."""
    scale = ELEMENT_BYTES[model.training.precision] / 2
    if recompute == "full":
        return scale * 2.0 * model.hidden * tokens / ways
    plain, carried = eager, model.carried
    width, value, heads = model.head_dim, model.value_width, model.heads
    queries = 2.0 * width * heads
    discards = recompute == "selective" and not plain
    narrow = not eager and model.training.precision == "fp8"
    if recompute == "selective" and plain:
        latent = model.latent
        if latent is not None and latent.q_rank is None:
            return scale * tokens * _odd_products(model, latent)
        # Layer input, query, attention and its output product; then of both or three of the MLP the second. Products
        # that are split by rows are kept ahead of their sum.
        kept = 2.0 * model.hidden / ways + (4.0 if not model.gated_mlp else 2.0) * model.hidden / taking
        if latent is not None:
            queries = 2.0 * ((latent.q_rank or 0) + latent.kv_rank + latent.rope_dim)
        kept += (queries + 2.0 * eager_width(model) * heads) / tp
        if model.experts is not None:
            # The router's product comes before those of shared experts, whose gate and factor are one matrix.
            return scale * tokens * (kept + 2.0 * (model.mlp_matrices - 1) * model.common_ffn / tp)
        return scale * tokens * (kept + (2.0 * model.common_ffn / tp if model.gated_mlp else 0.0))
    routed = 0.0
    if model.experts is not None:
        rows = kept_rows(model, tp=tp, tokens=tokens, ep=folding.ep)
        routed = scale * rows * _expert_row_bytes(model, plain, narrow, discards, folding.etp)
        routed += 8.0 * tokens / tp * model.experts.number
    pairs = (heads if plain else model.kv_heads) * model.pairs_per_token
    # Inputs of the norms, and their outputs; the router takes those of the second in two bytes.
    normed = 0.0
    if model.mixer != "none":
        normed += 0.0 if discards and model.latent else 2.0 - narrow
    if model.feed_forward_kind != "none":
        normed += 2.0 * (not discards) if model.experts else 2.0 - narrow
    whole = model.sublayers * (2.0 + model.drops) * model.hidden / ways + normed * model.hidden / taking
    whole += norm_inputs(model, tp, ways)
    attention = 0.0
    if model.attends:
        outputs = (3.0 if narrow else 2.0) * value * heads
        attention = (queries + outputs + 2.0 * (width + value) * pairs) / tp
    if model.output_gate:
        # The gate and its sigmoid beside what it scales.
        attention += 6.0 * width * heads / tp
    attention += state_activations(carried.on(tp * sharing), eager) / tp if carried is not None else 0.0
    if model.latent is not None and model.attends:
        # Queries and keys, values and attention's output; the low ranks and their norms are whole.
        wide = 0.0 if discards else 4.0 * width + 2.0 * model.latent.value_dim
        attention = heads * (wide + 2.0 * model.latent.value_dim) / tp
        attention += 4.0 * (model.latent.kv_rank + (model.latent.q_rank or 0)) / ways
    if eager and model.attends:
        # Channels that make queries, keys, values and attention's output equally wide, and what is cut of the latter.
        most = eager_width(model)
        attention += 2.0 * (4 * most - 2 * width - 2 * value + value * (most > value)) * heads / tp
    mlp = (6.0 if model.gated_mlp else 4.0) + (2.0 if plain and model.gated_mlp else 0.0) - narrow
    scores = 0.0
    if model.training.attention == "unfused" and recompute == "none" and model.attends:
        scores = (5.0 if model.drops else 2.0) * heads * model.seen / tp
    if model.projections is not None and model.attends:
        made = (
            sum(outputs for _, outputs, _ in model.projections)
            - width * (heads + 2 * model.kv_heads)
            - model.hidden
        )
        attention += 2.0 * max(0, made)
    kept = whole + attention + mlp * model.common_ffn / tp + scores
    return (
        scale * tokens * (kept - unneeded_inputs(model, tp, taking) + adapter_inputs(model, tp, taking))
        + routed
    )


def norm_inputs(model: ModelSpec, tp: int, ways: int) -> float:
    """Bytes a token that norms keep in two-byte formats beside inputs and outputs of the hidden width.

    Those of queries and keys keep their inputs; unfused ones, in place of an input, a copy in fp32, and what their
    weights multiply.
    """
    whole, divided = normed_widths(model)
    kept = 2.0 * divided / tp
    if model.training.norms == "fused":
        return kept
    size = ELEMENT_BYTES[model.training.precision]
    more = (4.0 - size + size * trains_norms(model)) * 2.0 / size
    return kept + more * (whole / ways + divided / tp)


def _odd_products(model: ModelSpec, latent: LatentSpec) -> float:
    """Bytes of a token that a layer keeps of every second product where queries have no low rank: layer input, queries,
    keys and values, attention; the router, or the gate or factor, and what comes back to the hidden width."""
    heads, plain = model.heads, model.head_dim - latent.rope_dim
    kept = 2.0 * model.hidden
    kept += 2.0 * heads * (model.head_dim + plain + latent.value_dim + eager_width(model))
    if model.experts is not None:
        return kept + 2.0 * model.experts.number + 2.0 * model.hidden * (model.common_ffn > 0)
    return kept + 2.0 * model.common_ffn + (2.0 * model.hidden if model.gated_mlp else 0.0)


def state_activations(state: StateSpec, eager: bool) -> float:
    """Bytes of a token that a layer with a state keeps in two-byte formats, beside its norm.

    Kernels written for it keep the first product, what their backward cannot make again, and the last product's input
    (``ssd_combined`` and ``selective_scan_interface`` of mamba_ssm 2.2, ``chunk_gated_delta_rule`` of
    flash-linear-attention). The example's backward runs all between the first product and the last again.
    """
    kept = 2.0 * (state.matrices(1)[0][1] + state.inner)
    if eager:
        return kept
    if state.kind == "mamba":
        kept += 2.0 * (2 * state.inner + (state.rank or 1) + 2 * state.size)
    if state.kind == "delta":
        kept += 2.0 * (state.convolved + state.inner + state.heads * (2 * state.size + state.chunk))
    if state.kind == "conv":
        kept += 4.0 * state.inner
    return kept


def scan_bytes(state: StateSpec, length: int) -> float:
    """Bytes of a token that the example has at the peak of a state's backward, in sequences of ``length``.

    Multiples of its sizes by all storages alive on 20 shapes of a layer, within a tenth (``tests/training``): chunk by
    chunk for each head, states between chunks, channels and keys; a selective scan has all of one chunk at a time.
    """
    inner, keys, chunk = float(state.inner), float(state.groups * state.size), float(state.chunk)
    if state.kind == "mamba2":
        return 7.0 * state.heads * chunk + 14.0 * inner * state.size / chunk + 38.0 * inner + 20.0 * keys
    if state.kind == "linear":
        return 8.5 * state.heads * chunk + 9.5 * inner * state.size / chunk + 60.0 * inner
    if state.kind == "delta":
        return state.heads * (14.0 * chunk + 74.0 * state.size) + 38.0 * inner
    if state.kind == "mamba":
        one = min(chunk, length)
        rounds = 11.0 * log2(max(2.0, one))
        return 72.0 * inner + inner * state.size * (8.0 / one + rounds * one / length)
    return 24.0 * inner


def meeting_gradients(
    model: ModelSpec,
    *,
    tp: int,
    micro_batch: int,
    sequence_parallel: bool,
    gathered: bool = False,
    eager: bool,
    folding: Folding,
) -> float:
    """Bytes of gradients that are there at once in a layer's backward, beside all that it has kept.

    The most meet where the nonlinearity of the feed-forward begins: that of the layer's output, that of what the
    nonlinearity gave and those of what it took, while the last product has let its input go. Shared experts and those
    that tokens choose are there one after the other. In a layer of mixers alone, the first of these.
    """
    tokens = micro_batch * model.training.sequence_length
    inputs = model.mlp_matrices - 1
    output = 2.0 * model.hidden / norm_ways(tp, sequence_parallel and not gathered)
    lora = model.training.lora
    stays = lora is not None and lora.keeps_inputs
    kept = not stays and ("mlp" not in model.frozen or "down_proj" in model.adapted)
    met = tokens * 2.0 * (inputs + (not kept)) * model.common_ffn / tp
    if model.experts is not None:
        kept = not stays and ("mlp" not in model.frozen or "experts.down_proj" in model.adapted_experts)
        row = 2.0 * (inputs + (not kept)) * model.experts.ffn
        # Eager layers have let the experts' outputs go.
        row += 0.0 if eager else 2.0 * folding.etp * model.expert_width
        met = larger(met, kept_rows(model, tp=tp, tokens=tokens, ep=folding.ep) * row)
    return ELEMENT_BYTES[model.training.precision] / 2 * (tokens * output + met)


def unneeded_inputs(model: ModelSpec, tp: int, ways: int) -> float:
    """Bytes a token that layers in two-byte formats do not keep: inputs of products whose weights are not trained.

    ``ways`` devices of a replica share the inputs of products. Attention keeps what its output product takes, where
    no gate is between, and norms keep their inputs.
    """
    lora = model.training.lora
    if not model.frozen or (lora is not None and lora.keeps_inputs):
        return 0.0
    # One that drops elements keeps those that are left.
    taking = {*model.adapted} if lora is not None and not lora.dropout else set[AdapterTarget]()

    def idle(part: Part, *names: AdapterTarget) -> bool:
        return part in model.frozen and not {*names} & taking

    whole = divided = 0.0
    if model.mixer != "none":
        first = idle("attention", "q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa", "in_proj")
        whole += first * model.hidden
    if model.latent is not None and model.attends:
        whole += idle("attention", "q_b_proj") * (model.latent.q_rank or 0)
        whole += idle("attention", "kv_b_proj") * model.latent.kv_rank
    if model.output_gate and model.attends:
        divided += idle("attention", "o_proj") * model.output_width
    if model.carried is not None:
        divided += idle("attention", "out_proj") * model.carried.inner
    if model.feed_forward_kind != "none":
        whole += idle("mlp", "gate_proj", "up_proj") * model.hidden
        divided += idle("mlp", "down_proj") * model.common_ffn
    return 2.0 * (whole / ways + divided / tp)


def adapter_inputs(model: ModelSpec, tp: int, ways: int) -> float:
    """Bytes a token that adapters keep: what lies between their two products, whole on every device of a replica, and
    of inputs that they drop elements of what is left, and a byte of a mask."""
    lora = model.training.lora
    if lora is None:
        return 0.0
    kept = 2.0 * lora.rank * len(model.adapted)
    if lora.dropout:
        mask = 2.0 / ELEMENT_BYTES[model.training.precision]
        for name, (inputs, _) in model.adapted.items():
            kept += (2.0 + mask) * inputs / (tp if name in ROW_TARGETS else ways)
    return kept


def _expert_row_bytes(model: ModelSpec, plain: bool, narrow: bool, discards: bool, etp: int) -> float:
    """Bytes that experts keep of one row: their input, on each of ``etp`` devices, and what is between their products.

    Plain torch weights the experts' outputs, and keeps them; fused kernels weight what is ahead of the last product.
    ``narrow`` inputs of products are kept in fp8; Megatron ``discards`` the nonlinearity to compute it again.
    """
    experts = model.experts
    assert experts is not None
    mlp = (6.0 if model.gated_mlp else 4.0) + (2.0 if plain and model.gated_mlp else 0.0)
    mlp -= 2.0 if discards else narrow
    inputs = 4.0 if plain else 2.0 - narrow
    between = 0.0
    if "mlp" in model.frozen:
        # Products whose weights are not trained keep no inputs; adapters do, and keep what is between theirs.
        adapted = {*model.adapted_experts}
        inputs -= 2.0 * adapted.isdisjoint(("experts.gate_proj", "experts.up_proj"))
        mlp -= 2.0 * ("experts.down_proj" not in adapted)
        between = 2.0 * len(adapted) * (model.training.lora.rank if model.training.lora else 0)
    return inputs * etp * model.expert_width + mlp * experts.ffn + between


def largest_tensor(model: ModelSpec) -> int:
    """Elements of the largest tensor of the example: experts of a layer are one."""
    return max(model.embedding_parameters, model.head_parameters, *map(_largest_of_layer, model.kinds))


def _largest_of_layer(kind: ModelSpec) -> int:
    feeds = kind.hidden * max(kind.ffn, 1)
    if kind.carried is not None:
        feeds = max(feeds, *(inputs * outputs for inputs, outputs, _ in kind.carried.matrices(kind.hidden)))
    if kind.experts is None:
        return feeds
    halves = 2 if kind.gated_mlp else 1
    return max(feeds, kind.experts.number * kind.expert_width * kind.experts.ffn * halves)


def kept_free(device_type: DeviceType, spread: float) -> float:
    """Bytes of a device that no plan may fill: the reserve, or more where the chance to run out of memory is limited.

    What a plan needs over what is predicted is log-normal with ``spread``: so are the published peaks over those
    predicted, to their 99th percentile (docs/cost_model.md).
    """
    if device_type.safe is None:
        return device_type.reserve_bytes
    margin = 1.0 - exp(-NormalDist().inv_cdf(1.0 - device_type.safe) * spread)
    return max(device_type.reserve_bytes, margin * device_type.memory_bytes)


@record(slots=True, kw_only=True)
class LayerStates:
    """What one device keeps of a layer from step to step, but for what experts share beyond all else."""

    dense_elements: float
    """Trained parameters."""
    expert_elements: float
    """The same of experts."""
    weights_bytes: float
    """Of each of them, as the other two."""
    gradients_bytes: float
    states_bytes: float
    """Of the optimizer."""
    frozen_bytes: float
    """Of all that is not trained."""
    host_bytes: float
    """In the memory of the host, of each trained parameter."""
    host_frozen_bytes: float


class Footprint:
    """Bytes on one device that carries ``load`` with any number of layers and of micro-batches alive.

    All is so much an element, a layer alive and once; only buckets and the optimizer's copy stop growing. Nothing
    shrinks as layers grow.
    """

    def __init__(
        self, model: ModelSpec, device_type: DeviceType, framework: Framework, load: Load, spread: float = 0.0
    ) -> None:
        self._spread = spread
        self._reserve = kept_free(device_type, spread)
        offload, ways = load.offload, optimizer_ways(load.zero, load.dp)
        kept = 1.0 - offload.ratio
        # Bytes of one layer that count for the dense part are a factor more or less for experts.
        self._expert_states = ways / optimizer_ways(load.zero, load.expert_dp) if model.experts else 1.0
        updated_on_host = offload.optimizer != "none"
        self._device_type, self._tp, self._zero = device_type, load.tp, load.zero
        self._layer_elements: float = model.layer_parameters - model.expert_parameters
        self._expert_elements = experts_of(model, layers=1, expert_ways=load.folding.ways)
        here = {"first": load.first, "last": load.last}
        self._end_experts = experts_of(model, layers=0, expert_ways=load.folding.ways, **here)
        self._end_elements = (
            parameters_of(model, layers=0, tp=1, expert_ways=load.folding.ways, **here) - self._end_experts
        )
        self._frozen_layer, self._frozen_ends = self._freeze(model, load)
        one = layer_elements(model, tp=load.tp, expert_ways=load.folding.ways)
        self._measured_elements = (load.parameter_ratio - 1.0) * one
        if model.training.keeps_reference:
            copied = ELEMENT_BYTES[model.training.precision] / parameter_ways(load.zero, load.dp)
            self._frozen_layer += one * copied
            self._frozen_ends += (
                parameters_of(model, layers=0, tp=load.tp, expert_ways=load.folding.ways, **here) * copied
            )
        size, more = (
            ELEMENT_BYTES[model.training.precision],
            model.training.end_moment_bytes - model.training.moment_bytes,
        )
        copied = load.flat_copies and load.zero > 0
        own = optimizer_bytes(model.training, load.master_weights, copied=copied)
        if load.by_units and load.zero < 3 and (size == 4 or load.master_weights == "bf16"):
            # Shards are apart from what is gathered, in the same format.
            own += size
        states = own / ways
        ends = self._end_elements / load.tp * more / ways
        weights = size * _copies(model, load) / parameter_ways(load.zero, load.dp)
        weights += size / load.secondary if load.secondary else 0.0
        gradients = load.gradient_bytes / gradient_ways(load.zero, load.dp)
        self._relieved = load.relieved
        # What is left of them in the end is in the format of the parameters.
        self._last_gradients = smaller(gradients, (2.0 if load.master_weights == "bf16" else 4.0) / ways)
        self._beside = load.beside_bytes
        self._layer = _layer_activations(model, load, load.recompute)
        self._in_host = self._ends_in_host = self._built = 0.0
        self._frozen_in_host = 0.0, 0.0
        if offload.optimizer == "cpu":
            self._in_host, self._ends_in_host = offload.ratio * states, offload.ratio * ends
        elif offload.optimizer == "nvme":
            # A group of tensors is full once it has passed its size.
            most = smaller(SWAPPED_ELEMENTS + largest_tensor(model) / ways, model.trained_parameters / ways)
            self._ends_in_host = 4.0 * SWAP_BUFFERS * most
        elif model.training.paged:
            # As if none of them stayed on a device, which drives out what it has no room for.
            self._in_host = model.training.moment_bytes / ways
            states -= self._in_host
        each = DIVIDED_BYTES + model.training.moment_bytes
        if updated_on_host and load.tensor_by_tensor:
            self._in_host = offload.ratio * each / ways
            self._ends_in_host += each * _updated_beyond(model, load, ways)
            self._built = offload.ratio * (BUILT_BYTES if size < 4 else 4.0)
        elif updated_on_host:
            self._in_host += _gradients_on_host(load, size) / ways
        if offload.parameters == "cpu":
            self._in_host += weights
            self._frozen_in_host = self._frozen_layer, self._frozen_ends
        if offload.parameters == "nvme":
            self._ends_in_host += size * SWAPPED_TENSORS * largest_tensor(model) / ways
        if offload.parameters != "none":
            self._frozen_layer = self._frozen_ends = 0.0
        self._layer_in_host = self._ends_alive_in_host = 0.0
        if offload.activations == "cpu":
            self._layer_in_host, self._ends_alive_in_host = self._layer, _ends_alive(model, load)
        self._states, self._end_states = states, ends
        if updated_on_host and load.tensor_by_tensor:
            # The gradient of what the device updates is in fp32 too; where it is kept so, it is the same.
            copied = 4.0 / ways if load.gradient_bytes < 4 else 0.0
            self._states, self._end_states = kept * (states + copied), kept * ends
        elif updated_on_host:
            self._states = kept * each / ways
            self._end_states = kept * ends + each * _kept_beyond(model, load, ways)
        self._weights = 0.0 if offload.parameters != "none" else weights
        # With ZeRO 2 and 3 a gradient leaves as soon as it is reduced; its bucket is in the buffers.
        self._gradients = 0.0 if updated_on_host and load.zero >= 2 else gradients
        # One checkpoint is in use and one on its way while the others are in host memory.
        self._most_alive = float("inf") if offload.activations == "none" else 2.0
        self._working, self._embedding = working_bytes(model, load), _embedding(model, load)
        self._copy = _gradient_copy(model, load) / ways
        units = _unit_buffers(model, load) if load.by_units else UnitBuffers()
        self._bucket, self._buffers = (load.padding * each for each in _buffers(model, load, units))
        self._logits = _logits(model, load, self._working, units)
        self._embedding_buffers = load.padding * (units.embedding - units.layers)
        self._context = min(framework.runtime_bytes, MOST_CONTEXT * device_type.memory_bytes)
        slack = framework.unit_slack if load.by_units else framework.allocator_slack
        self._slack = slack if load.allocator_slack is None else load.allocator_slack

    def _freeze(self, model: ModelSpec, load: Load) -> tuple[float, float]:
        """Bytes of what is not trained, of a layer and of the ends; from here on elements are those that are."""
        element, tp = ELEMENT_BYTES[model.training.precision], load.tp
        size = element / parameter_ways(load.zero, load.dp)
        if not model.frozen:
            untrained = model.ahead_parameters - model.trained_ahead if load.first else 0
            self._end_elements -= untrained
            return 0.0, untrained * size / tp

        code = model.quantised_bytes

        def shards(replicas: float) -> float:
            """Parts of what is in four bits."""
            return parameter_ways(load.zero, replicas) if load.shards_codes else 1.0

        def parted(held: float, layers: int, first: bool, last: bool) -> tuple[float, float]:
            """Of elements beside experts those that are trained, and the bytes of the others."""
            adapters = adapters_of(model, layers=layers, first=first, last=last)
            base = quantised_of(model, layers=layers, first=first, last=last)
            trained = trained_of(model, layers=layers, first=first, last=last, tp=1)
            trained -= trained_experts_of(model, layers=layers, first=first, last=last, expert_ways=1)
            others = (held + adapters.parameters - trained - base) * size + base * code / shards(load.dp)
            return trained + (tp - 1) * adapters.whole, others / tp

        self._layer_elements, layer = parted(self._layer_elements, 1, False, False)
        self._end_elements, ends = parted(self._end_elements, 0, load.first, load.last)
        if "mlp" in model.frozen:
            of_experts = element / parameter_ways(load.zero, load.expert_dp)

            def kept(held: float, layers: int, first: bool, last: bool) -> float:
                """Bytes of experts."""
                ways = load.folding.ways
                packed = quantised_experts_of(model, layers=layers, expert_ways=ways, first=first, last=last)
                return (held - packed) * of_experts + packed * code / shards(load.expert_dp)

            layer += kept(self._expert_elements, 1, False, False)
            ends += kept(self._end_experts, 0, load.first, load.last)
            self._expert_elements, self._end_experts = (
                trained_experts_of(
                    model, layers=layers, first=first, last=last, expert_ways=load.folding.ways
                )
                for layers, first, last in ((1, False, False), (0, load.first, load.last))
            )
        return layer, ends

    def _elements(self, layers: int) -> float:
        """Parameters on the device that are trained."""
        elements = (layers * self._layer_elements + self._end_elements) / self._tp + self._end_experts
        return elements + layers * (self._expert_elements + self._measured_elements)

    def _updated(self, layers: int, elements: float) -> float:
        """As many as the optimizer would have of them if experts were shared by as many as all else."""
        experts = layers * self._expert_elements + self._end_experts
        return elements + experts * (self._expert_states - 1.0)

    def _tensors(self, layers: int, in_flight: float) -> tuple[float, float, float, float, float, float]:
        """Bytes of weights, gradients, states, activations, buffers, and those that come when activations are gone."""
        elements = self._elements(layers)
        activations = (
            min(in_flight, self._most_alive) * self._layer
            + self._working
            + self._embedding * in_flight / layers
        )
        updated = self._updated(layers, elements)
        # What else ZeRO divides, it divides as the optimizer's states.
        weights, summed, last = (updated if self._zero >= stage else elements for stage in (3, 2, 1))
        parameters, gradients = weights * self._weights, summed * self._gradients
        # A copy, or buffers of the embedding, take the place of activations.
        needed, gone = larger(updated * self._copy, self._embedding_buffers), activations + self._logits
        late = larger(0.0, needed - gone)
        if self._relieved:
            # So do gradients then, and of gathered parameters too.
            gone, last = gone + parameters, last * self._last_gradients
            gradients = larger(0.0, last - gone)
            late = larger(0.0, needed - larger(0.0, gone - last))
        return (
            parameters + layers * self._frozen_layer + self._frozen_ends,
            gradients + summed * self._beside,
            updated * self._states + self._end_states,
            activations,
            self._bucket * smaller(elements, BUCKET_ELEMENTS) + self._buffers,
            late,
        )

    def _host_bytes(self, layers: int, in_flight: float) -> float:
        """What is kept in the memory of the host."""
        elements = self._elements(layers)
        kept = self._updated(layers, elements) * self._in_host + self._ends_in_host
        # Megatron builds the optimizer for whole parameters before it builds it for shards.
        kept = larger(kept, self._built * elements)
        kept += layers * self._frozen_in_host[0] + self._frozen_in_host[1]
        return kept + in_flight * (self._layer_in_host + self._ends_alive_in_host / layers)

    def _room(self, tensors: float) -> float:
        """Bytes that the reserve, tensors and context leave; negative when they do not fit."""
        free = self._device_type.memory_bytes - self._reserve - tensors
        return free - (self._context + FRAGMENTS * tensors)

    def least_room(self, layers: int, in_flight: float) -> float:
        """The smaller of ``room`` and ``host_room``."""
        return smaller(self.room(layers, in_flight), self.host_room(layers, in_flight))

    def room(self, layers: int, in_flight: float) -> float:
        """Bytes that are left once the allocator has given back all but its tensors; negative when they do not fit."""
        return self._room(sum(self._tensors(layers, in_flight)) + self._logits)

    def most_room(self, layers: int, in_flight: float) -> float:
        """``room`` without what comes late: bytes are concave in layers, and linear in what is alive."""
        *parts, _ = self._tensors(layers, in_flight)
        return self._room(sum(parts) + self._logits)

    def headroom(self, layers: int, in_flight: float) -> float:
        """Bytes that are left; negative when they do not fit."""
        tensors = sum(self._tensors(layers, in_flight)) + self._logits
        room = self._room(tensors)
        return room - larger(0.0, smaller(self._slack * tensors, room))

    def host_room(self, layers: int, in_flight: float) -> float:
        """Bytes that are left in the device's part of its host's memory."""
        return self._device_type.host.memory_bytes - self._host_bytes(layers, in_flight)

    @property
    def free_bytes(self) -> float:
        """Bytes of tensors for which there is room, beside reserve and context; never negative."""
        return max(0.0, self._room(0.0)) / (1 + FRAGMENTS)

    def layer_states(self) -> LayerStates:
        """What a layer keeps from step to step, and of gradients in the end."""
        return LayerStates(
            dense_elements=self._layer_elements / self._tp + self._measured_elements,
            expert_elements=self._expert_elements,
            weights_bytes=self._weights,
            gradients_bytes=(self._last_gradients if self._relieved else self._gradients) + self._beside,
            states_bytes=self._states,
            frozen_bytes=self._frozen_layer,
            host_bytes=self._in_host,
            host_frozen_bytes=self._frozen_in_host[0],
        )

    def activation_bytes(self) -> float:
        """Bytes of one more micro-batch of one layer, without what a stage keeps beside layers."""
        return self._layer

    def memory(self, layers: int, in_flight: float) -> Memory:
        """The same by component."""
        weights, gradients, states, activations, buffers, late = parts = self._tensors(layers, in_flight)
        tensors = sum(parts) + self._logits
        # What the allocator holds beyond its tensors it gives back before it runs out.
        slack = max(0.0, min(self._slack * tensors, self._room(tensors)))
        return Memory(
            parameters_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=states,
            activations_bytes=activations,
            logits_bytes=self._logits,
            buffers_bytes=buffers + late,
            runtime_bytes=self._context + FRAGMENTS * tensors + slack,
            slack_bytes=slack,
            reserve_bytes=self._reserve,
            capacity_bytes=self._device_type.memory_bytes,
            host_bytes=self._host_bytes(layers, in_flight),
            host_capacity_bytes=self._device_type.host.memory_bytes,
            spread=self._spread,
        )


def sub_group_elements(shard: float) -> float:
    """Elements of a device's shard that are updated together, and then leave or stay together."""
    return smaller(SWAPPED_ELEMENTS, shard / SUB_GROUPS)


def _kept_beyond(model: ModelSpec, load: Load, ways: float) -> float:
    """Elements whose states may be on the device beyond its share: the first sub-groups of whole tensors are there.

    Each is full once it has passed its size, and the first may be the embedding.
    """
    if load.offload.ratio == 1:
        return 0.0
    shard = model.trained_parameters / ways / load.tp
    return smaller(
        sub_group_elements(shard) + largest_tensor(model) / ways / load.tp, load.offload.ratio * shard
    )


def _updated_beyond(model: ModelSpec, load: Load, ways: float) -> float:
    """Elements that the host may update beyond its share: those of the tensor with which it passes it."""
    shard = model.trained_parameters / ways / load.tp
    return smaller(largest_tensor(model) / ways / load.tp, (1.0 - load.offload.ratio) * shard)


def _gradients_on_host(load: Load, size: int) -> float:
    """Bytes an element of a shard of gradients in host memory, and of new weights of ``size`` on their way from there.

    Those that the optimizer takes are in fp32. Beside them ZeRO 3 has sums as they are kept, and ZeRO 1 and 2 new
    weights (``param_buffer_of_bit16_for_cpu_offload_groups`` in DeepSpeed's ``stage_1_and_2.py``); ZeRO 2 has sums of
    several micro-batches too, which are counted for one as well.
    """
    if not load.flat_copies:
        return load.gradient_bytes
    taken = 4.0 * load.offload.ratio * (load.offload.optimizer == "cpu")
    return taken + (load.gradient_bytes if load.zero == 3 else size * load.zero)


def _copies(model: ModelSpec, load: Load) -> float:
    """Working copies of each parameter: none beside the optimizer's, one, or with fp8 matrices of bf16 weights two."""
    rests_in_fp32 = load.by_units and load.master_weights == "fp32"
    if rests_in_fp32 and load.zero == 3 and model.training.precision in MIXED:
        return 0.0
    doubled = model.training.precision == "fp8" and not load.eager
    return 1.0 + doubled * ((load.zero == 0) | (load.dp == 1))


def _embedding(model: ModelSpec, load: Load) -> float:
    """Output of the embedding and of an encoder for one micro-batch, and what layers at either end keep."""
    ends = _ends_alive(model, load) if load.offload.activations == "none" else 0.0
    # What layers of this stage attend to, and what comes and goes beside their inputs and outputs.
    beside = model.encoded + load.passed * model.training.sequence_length * model.hidden
    ends += load.micro_batch * ELEMENT_BYTES[model.training.precision] * beside
    if load.last and model.training.mtp_layers:
        # Embeddings and hidden states, both once more normalised and side by side.
        wide = 4.0 * model.hidden * model.training.mtp_layers / norm_ways(load.tp, load.sequence_parallel)
        length = model.training.sequence_length
        ends += load.micro_batch * length * ELEMENT_BYTES[model.training.precision] * wide
    if not load.first:
        return ends
    ways = norm_ways(load.tp, load.sequence_parallel)
    tokens = load.micro_batch * model.training.sequence_length
    # Of matrices beside the layers what they make, and what is made of that.
    made = load.micro_batch * sum(
        2.0 * each.times * each.tokens * each.outputs for each in model.beside if each.weights
    )
    if model.tower is not None:
        # Inputs and outputs of what embeds patches and of the projector.
        widths = [(each, inputs + outputs) for each, inputs, outputs in model.tower.matrices]
        made += load.micro_batch * model.tower.images * sum(each * width for each, width in widths)
    if model.encoder is not None:
        # Its embedded tokens, and inputs and outputs of its convolutions.
        widths = [(each.tokens, each.inputs + each.outputs) for each in model.encoder.front]
        made += load.micro_batch * (model.encoded + sum(each * width for each, width in widths))
    return ELEMENT_BYTES[model.training.precision] * (tokens * model.hidden / ways + made) + ends


def _end_runs(model: ModelSpec, load: Load) -> tuple[LayerRun, ...]:
    """Layers that stand with the embedding or with the head."""
    return (*(model.first_runs if load.first else ()), *(model.last_runs if load.last else ()))


def _ends_alive(model: ModelSpec, load: Load) -> float:
    """What they keep for the backward of one micro-batch."""
    return sum(
        run.layers * _layer_activations(run.kind, _inputs(load, run), load.recompute)
        for run in _end_runs(model, load)
        if not run.frozen
    )


def _inputs(load: Load, run: LayerRun) -> Load:
    """With as many sequences as those layers have inputs."""
    return load if run.inputs == 1 else replace(load, micro_batch=load.micro_batch * run.inputs)


def working_bytes(model: ModelSpec, load: Load) -> float:
    """What a layer has in its backward beyond what it has kept, of unlike ones that which has most.

    Recomputed layers have all again, and gradients meet there. Of what Megatron's selective recomputation has again
    nothing is there before the backward of the feed-forward is over, so the larger of both counts. Eager scans have
    what lies between their operations, and attention to divided sequences what it receives.
    """
    layer = attending = 0.0
    for run in (LayerRun(1, model),) if not model.unlike else _held_runs(model, load):
        kind, inputs = run.kind, _inputs(load, run)
        own = _again(kind, inputs)
        met = meeting_gradients(
            kind,
            tp=load.tp,
            micro_batch=inputs.micro_batch,
            sequence_parallel=load.sequence_parallel,
            gathered=load.gathered,
            eager=load.eager,
            folding=load.folding if kind.experts else WHOLE_EXPERTS,
        )
        own = larger(own, met) if load.recompute == "selective" and not load.eager else own + met
        if kind.carried is not None and load.eager:
            length = model.training.sequence_length
            own += load.micro_batch * length * scan_bytes(kind.carried, length) / load.tp
        layer = larger(layer, own)
        attending = larger(attending, _attending(kind, inputs, met))
    return layer + attending


def _again(kind: ModelSpec, load: Load) -> float:
    """Bytes of what a layer computes again beside what it has kept; an unfused norm keeps a copy of a layer's input."""
    if load.recompute == "none":
        return 0.0
    again = _layer_activations(kind, load, "none") - _layer_activations(kind, load, load.recompute)
    return again + (_layer_activations(kind, load, "full") if kind.training.norms == "unfused" else 0.0)


def _held_runs(model: ModelSpec, load: Load) -> tuple[LayerRun, ...]:
    """Every kind of layer on the device."""
    ends = (run for run in _end_runs(model, load) if not run.frozen)
    return (*(model.runs or (LayerRun(1, model),)), *ends)


def _attending(kind: ModelSpec, load: Load, met: float) -> float:
    """Bytes of a layer while it attends to the parts of sequences that other replicas have.

    Transformer Engine keeps the keys and values and the outputs of all turns of a ring until it adds these up
    (``AttnFuncWithCPAndKVP2P``). All-to-alls receive what they send: queries, keys, values, outputs. A ring of plain
    torch has, in its backward, sums of gradients of queries in fp32, the keys, values and gradients of a turn for every
    head, and two of each that come and go. In plain torch, what the feed-forward had where ``met`` gradients met is
    gone by then.
    """
    ways = load.context.ways
    if ways == 1 or not kind.attends:
        return 0.0
    outputs, pairs = kind.output_width, kind.pair_width
    queries = kind.heads * kind.head_dim
    token_bytes = _token_bytes(kind, load)
    received = queries + outputs + pairs
    if not load.eager:
        return token_bytes * (ways * (outputs + pairs) if load.context.kind == "ring" else received)
    there = 7 * queries + 4 * pairs if load.context.kind == "ring" else received
    gone = met + token_bytes * (4 if kind.gated_mlp else 2) * kind.common_ffn
    return larger(0.0, token_bytes * there - gone)


def _token_bytes(kind: ModelSpec, load: Load) -> float:
    """Bytes of one element for every token of a micro-batch, on a device of a replica that divides its elements."""
    return ELEMENT_BYTES[kind.training.precision] * load.micro_batch * kind.training.sequence_length / load.tp


def _layer_activations(model: ModelSpec, load: Load, recompute: Recompute) -> float:
    if model.runs:
        return sum(run.layers * _layer_activations(run.kind, load, recompute) for run in model.runs)
    measured = load.activation_ratio if recompute == "none" else 1.0
    kept = _divided_attention(model, load) if recompute == "none" else 0.0
    return kept + measured * activation_bytes_per_layer(
        model,
        tp=load.tp,
        micro_batch=load.micro_batch,
        recompute=recompute,
        sequence_parallel=load.sequence_parallel,
        gathered=load.gathered,
        eager=load.eager,
        folding=load.folding if model.experts else WHOLE_EXPERTS,
        sharing=load.context.ways,
    )


def _divided_attention(kind: ModelSpec, load: Load) -> float:
    """Bytes that attention of plain torch to divided sequences keeps more than to whole ones, or less.

    All-to-alls keep outputs as they were made and as they came back; a ring has no copies of keys and values for every
    head.
    """
    if load.context.ways == 1 or not load.eager or not kind.attends:
        return 0.0
    token_bytes = _token_bytes(kind, load)
    if load.context.kind == "ulysses":
        return token_bytes * kind.output_width
    return -token_bytes * kind.pair_width * (kind.heads / kind.kv_heads - 1)


def _logits(model: ModelSpec, load: Load, working: float, units: UnitBuffers) -> float:
    """Logits and their gradients, or what the head has behind them, beyond what a layer has when they are gone."""
    if not load.last:
        return 0.0
    tokens = predicted_tokens(model, load.micro_batch * model.training.sequence_length)
    size = ELEMENT_BYTES[model.training.precision]
    # Fused, Megatron's has an fp32 copy that becomes the gradient; torch's libraries have the working format for both.
    fused = size + (size if load.eager else 4.0)
    chunked = load.cross_entropy == "chunked"
    element = size if chunked else fused if load.cross_entropy == "fused" else PLAIN_LOGIT_BYTES
    # Those of the reference of pairs wait beside them.
    element += size * (model.training.forwards - 1)
    # Those of every token that is predicted wait for the same backward.
    tokens *= 1 + model.training.mtp_layers
    logits = tokens * model.outputs / load.tp
    # Those of one chunk are in fp32, too.
    kept = element * logits + (4.0 * smaller(CHUNK, logits) if chunked else 0.0)
    kept = larger(kept + load.padding * units.loss, size * logits + load.padding * units.logits)
    # A pipeline keeps logits until the backward of its last stage is over.
    outlasting = 0.0 if load.first else size * logits
    kept = larger(kept + _final_norm(model, load), load.padding * units.head + outlasting)
    return larger(0.0, kept - working - load.padding * units.layers)


def _final_norm(model: ModelSpec, load: Load) -> float:
    """What the final norm and the output layer keep beside logits: the input of each, and copies of an unfused norm."""
    size = ELEMENT_BYTES[model.training.precision]
    head = "embedding" if model.tied_embeddings else "head"
    ways = norm_ways(load.tp, load.sequence_parallel)
    kept = size * (head not in model.frozen) / (1 if load.gathered else ways)
    if model.final_norm:
        unfused = model.training.norms == "unfused"
        kept += (4.0 + size * trains_norms(model) if unfused else size) / ways
    tokens = load.micro_batch * model.training.sequence_length
    return kept * tokens * model.hidden


def _gradient_copy(model: ModelSpec, load: Load) -> float:
    """Bytes an element of the fp32 copy of half-precision gradients that an optimizer step works on.

    ZeRO-3 makes it piece by piece; what updates split weights or those in bf16 reads them as they are.
    """
    if load.master_weights != "fp32":
        return 0.0
    half = model.training.precision in MIXED and load.gradient_bytes <= 2 and load.zero != 3
    return 4.0 if half and load.offload.optimizer == "none" else 0.0


@record(frozen=True, slots=True)
class UnitBuffers:
    """Bytes of what is gathered, of gradients and of what is reduced, where replicas share parameters by units."""

    layers: float = 0.0
    """In the backward of layers."""
    loss: float = 0.0
    """Beside logits and what their loss makes of them."""
    logits: float = 0.0
    """Beside logits alone, when the forward ends or the head gets its gradients."""
    head: float = 0.0
    """When these are reduced."""
    embedding: float = 0.0
    """Once the embedding has its."""


def _unit_buffers(model: ModelSpec, load: Load) -> UnitBuffers:
    """What FSDP2 holds (``FSDPParamGroup`` of torch).

    A unit that is gathered lies in a buffer and then in its parameters, the next one's buffer beside it. Its gradients
    are copied to a buffer for their reduction, which is there until the next unit's is made. With ZeRO 0 and 1 sums of
    all units over micro-batches are there before. A tied embedding of one device stays from the forward to the end of
    the backward, and so do its gradients.
    """
    size, reduced = ELEMENT_BYTES[model.training.precision], load.reduced_bytes
    kinds = [run.kind for run in model.runs] or [model]
    trained = max(_trained(kind, load) for kind in kinds) / load.tp
    embedding, head = _end_units(model, load, trained=True)
    tied = model.embeds_twice and load.first and load.last
    stays = size * embedding if tied else 0.0
    # Its gradients of either end, and their sum.
    twice = 2 * stays
    if load.zero < 2:
        # The buffer takes the place of a sum, which is gone once it is copied.
        widest = max(size, reduced)
        layers = (size if load.last else widest) * trained
        return UnitBuffers(
            layers=layers + stays,
            logits=stays + size * head,
            head=stays + reduced * head,
            embedding=twice + widest * embedding,
        )
    layer = opened = 0.0
    if load.zero == 3:
        layer = size * max(_gathered_at_once(kind, load) for kind in kinds) / load.tp
        opened = size * _end_units(model, load, trained=False)[0 if tied else 1]
    # A shard of the sum comes beside what is summed, and another one in the format in which it is kept.
    shard = reduced + load.gradient_bytes * (load.gradient_bytes != reduced)
    summed = reduced + shard / gradient_ways(load.zero, load.dp)
    layers = 2 * layer + size * trained + reduced * max(trained, head)
    if tied:
        stays += opened
        return UnitBuffers(
            layers=layers + stays,
            loss=opened,
            logits=layer + stays,
            head=layer + stays,
            embedding=twice + stays + reduced * trained,
        )
    return UnitBuffers(
        layers=layers,
        loss=opened,
        logits=opened + max(opened, layer + size * head),
        head=layer + (size + summed) * head,
        embedding=larger((size + summed) * embedding, size * embedding + reduced * trained),
    )


def _end_units(model: ModelSpec, load: Load, *, trained: bool) -> tuple[float, float]:
    """Elements on one device of the embedding and of the head, or those of them that are ``trained``."""
    table, output = (not trained or part not in model.frozen for part in ("embedding", "head"))
    copied = model.embeds_twice and load.last and not load.first
    embedding = model.embedding_parameters * table * load.first
    head = model.head_parameters * output * load.last + model.table_parameters * table * copied
    return embedding / load.tp, head / load.tp


def _trained(kind: ModelSpec, load: Load) -> float:
    """Elements of a layer that are trained, times the devices of a replica: of divided experts a device's own."""
    if not kind.frozen:
        return _gathered_at_once(kind, load)
    return kind.trained_layer_parameters + (load.tp - 1) * kind.layer_adapters.whole


def _buffers(model: ModelSpec, load: Load, units: UnitBuffers) -> tuple[float, float]:
    """Bytes an element of reduction buckets, two where one fills while the other travels, and of all else.

    ZeRO-3 also holds layers gathered ahead.
    """
    bucket, others = _reduction_buffers(model, load, units)
    return bucket, others + load.block_bytes


def _reduction_buffers(model: ModelSpec, load: Load, units: UnitBuffers) -> tuple[float, float]:
    # A device's part of a matrix in four bits is in the working format while it is multiplied by.
    whole = ELEMENT_BYTES[model.training.precision] * _largest_in_four_bits(model, load) / load.tp
    if load.by_units:
        return 0.0, units.layers + whole
    # A lone replica reduces nothing.
    size = ELEMENT_BYTES[model.training.precision] * ((load.dp > 1) | load.offload.anything)
    if load.zero in (1, 2):
        return 2.0 * size, whole
    if load.zero != 3:
        return size, whole
    layer = max(_gathered_at_once(kind, load) for kind in [run.kind for run in model.runs] or [model])
    ends = model.embedding_parameters if load.first or load.last else 0
    if load.gathers_matrices:
        # The matrices that are whole, and the gradient of the last one.
        matrix = max(ends, _largest_matrix(model, load))
        live = max(min(2.0 * layer, LIVE_ELEMENTS), matrix)
        return size, size * (live + matrix) / load.tp + whole
    return size, 2.0 * size * max(2 * layer, ends) / load.tp + whole


def _gathered_at_once(kind: ModelSpec, load: Load) -> float:
    """Elements of a layer that ZeRO 3 gathers, times the devices of a replica: of divided experts a device's own."""
    adapters = kind.layer_adapters
    apart = 1.0 - gathered_of_code(kind, load.shards_codes)
    others = kind.layer_parameters - kind.expert_parameters - apart * kind.quantised_layer_parameters
    others += adapters.parameters + (load.tp - 1) * adapters.whole
    experts = kind.expert_parameters - apart * kind.quantised_expert_parameters + adapters.experts
    return others + experts * _own_experts(load)


def _own_experts(load: Load) -> float:
    """Part of a layer's experts that a device has, times the devices of a replica."""
    return load.tp / load.folding.ways if load.folding.ways > 1 else 1.0


def _largest_in_four_bits(model: ModelSpec, load: Load) -> float:
    """Elements of the largest matrix in four bits."""
    if not model.in_four_bits:
        return 0
    kinds = [run.kind for run in _held_runs(model, load)]
    sizes: list[float] = []
    for kind in kinds:
        each = {name: inputs * outputs for name, (inputs, outputs) in kind.linears.items()}
        for pair in _joined(kind):
            each[pair[0]] = sum(each.pop(name, 0) for name in pair)
        sizes += each.values()
    # Gates and factors of all experts that a device has are one matrix.
    sizes += [
        kind.quantised_expert_parameters * (kind.mlp_matrices - 1) / kind.mlp_matrices / load.folding.ways
        for kind in kinds
        if kind.experts is not None
    ]
    return max(sizes, default=0)


def _joined(kind: ModelSpec) -> list[tuple[AdapterTarget, AdapterTarget]]:
    """Linear layers that are one with another in the example: keys and values, gate and factor of shared experts."""
    pairs: list[tuple[AdapterTarget, AdapterTarget]] = [("k_proj", "v_proj")]
    return [*pairs, ("gate_proj", "up_proj")] if kind.experts and kind.gated_mlp else pairs


def _largest_matrix(model: ModelSpec, load: Load) -> float:
    """Elements of the largest matrix that is gathered, of divided experts as ``_gathered_at_once`` counts them."""
    if model.runs:
        return max(_largest_matrix(run.kind, load) for run in model.runs)
    widest = max(model.common_ffn, model.heads * model.head_dim)
    if model.carried is not None:
        widest = max(widest, *(outputs for _, outputs, _ in model.carried.matrices(model.hidden)[:1]))
    largest: float = model.hidden * widest
    if model.experts is not None:
        # The experts of a layer that a device has are one matrix beside another.
        one = (model.mlp_matrices - 1) * model.expert_width * model.experts.ffn
        largest = max(largest, model.experts.number * one * _own_experts(load))
    return largest
