"""Megatron-LM's arguments for a plan, by section."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from planner.capabilities import TokenDispatcher
from planner.cluster.multi_node import widened
from planner.cluster.topology import DeviceType, Topology
from planner.cost.shape import chunk_spans
from planner.cost.tensor import has_user_buffers, hidden_by
from planner.dims.expert import overlaps
from planner.dims.sharding import gradients_of, master_weights_of
from planner.job.files import rendered
from planner.job.job import Job
from planner.model.spec import ExpertsSpec, LatentSpec, ModelSpec, StateSpec
from planner.plan.placement import widths
from planner.plan.values import Plan
from planner.runtimes.megatron.capabilities import CAPABILITIES
from planner.runtimes.megatron.numerics import (
    activation,
    fuses_activation,
    norms,
    numeric_differences,
    positions,
    router_words,
)

SYMBOLS = {"attention": "*", "state": "M", "dense": "-", "experts": "E", "none": ""}
"""Megatron's layers of one mixer or feed-forward."""


CONVOLVED = 4
"""Tokens that the convolution of Megatron's layers of Mamba 2 sees."""
MULTICAST_FROM = 9.0
"""Compute capability; TransformerEngine's ``initialize_ub`` refuses devices without it unless told."""
CHUNK = {"mamba2": 128, "delta": 64}
"""Tokens that they work on at once."""


def _counts(plan: Plan, model: ModelSpec) -> list[int]:
    """Layers of each chunk in Megatron's order: virtual stage k is chunk k // pp of pipeline rank k % pp.

    Those that stand with the embedding and with the head are among them.
    """
    counts = [(end - first) * model.layers_each for _, first, end in chunk_spans(plan)]
    counts[0] += sum(run.layers for run in model.first_runs)
    counts[-1] += sum(run.layers for run in model.last_runs) - model.training.mtp_layers
    return counts


def layout(plan: Plan, model: ModelSpec) -> str:
    """The layers of each chunk: their number, or a symbol for each mixer and feed-forward where they differ."""
    counts, further = _counts(plan, model), model.training.mtp_layers
    if model.stacked:
        symbols = [SYMBOLS[mixer] + SYMBOLS[feeds] for mixer, feeds in model.ordered]
        rest = iter(symbols)
        return "|".join("".join(islice(rest, count)) for count in counts) + f"/{symbols[-1]}" * further
    return "E" + "|".join(f"t*{layers}" if layers > 1 else "t" for layers in counts) + "m" * further + "L"


def model_words(model: ModelSpec, dispatcher: TokenDispatcher = "alltoall") -> list[str]:
    """Arguments that give Megatron the shape, as near as it comes, and how tokens travel to experts."""
    words = [
        *(_stack(model.state) if model.stacked else ("--num-layers", str(model.all_layers))),
        *("--hidden-size", str(model.hidden)),
        *("--ffn-hidden-size", str(_feed_forward(model))),
        *("--num-attention-heads", str(model.heads)),
        *(("--kv-channels", str(model.head_dim)) if model.latent is None else _latent(model, model.latent)),
        *("--seq-length", str(model.training.sequence_length)),
        *("--max-position-embeddings", str(model.learned_positions or model.training.sequence_length)),
        *positions(model),
    ]
    if model.kv_heads != model.heads:
        words += ["--group-query-attention", "--num-query-groups", str(model.kv_heads)]
    words += activation(model)
    words += ["--normalization", "RMSNorm"] if model.norm == "rms" else []
    # Latent attention has norms of its low ranks, which Megatron leaves out unless told.
    words += ["--qk-layernorm"] if model.qk_norm or model.latent else []
    words += [] if _biased(model) else ["--disable-bias-linear"]
    words += ["--add-qkv-bias"] if model.qkv_bias and not _biased(model) else []
    if model.experts and _biased(model):
        # Its grouped experts refuse biases with the fusions that are its default.
        words += ["--no-bias-dropout-fusion"]
    words += ["--no-bias-gelu-fusion"] if _biased(model) and not fuses_activation(model) else []
    words += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    words += ["--bert-no-binary-head"] if model.kind == "encoder" else []
    words += ["--mtp-num-layers", str(model.training.mtp_layers)] if model.training.mtp_layers else []
    words += _windows(model)
    words += ["--softmax-type", "learnable"] if model.sinks else []
    words += _experts(model, model.experts, dispatcher) if model.experts else []
    words += ["--attention-output-gate"] if model.output_gate else []
    words += _replaced(model, model.state) if model.states and model.state and not model.stacked else []
    routed = [feeds == "experts" for _, feeds in model.ordered]
    words += (
        ["--moe-layer-freq", _by_layer(routed)] if 0 < sum(routed) < len(routed) and not model.stacked else []
    )
    words += ["--attention-backend", "unfused"] if model.training.attention == "unfused" else []
    if not model.drops:
        words += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    return [*words, *norms(model)]


def _by_layer(chosen: Iterable[bool]) -> str:
    """An expression for a list of a 1 for each layer that is chosen, and a 0 for each other: ``([0]*1+[1]*47)``."""
    runs = (f"[{int(value)}]*{len(list(layers))}" for value, layers in groupby(chosen))
    return f"({'+'.join(runs)})"


def _replaced(model: ModelSpec, state: StateSpec) -> list[str]:
    """Layers with a gated delta rule in place of attention, which the others keep: every n-th, or where a list says."""
    replaced = [mixer == "state" for mixer, _ in model.ordered]
    every = replaced.index(False) + 1 if False in replaced else 0
    regular = every and all(each == bool((index + 1) % every) for index, each in enumerate(replaced))
    return [
        *("--experimental-attention-variant", "gdn"),
        *("--linear-attention-freq", str(every) if regular else _by_layer(replaced)),
        *("--linear-conv-kernel-dim", str(state.conv)),
        *("--linear-num-key-heads", str(state.groups), "--linear-key-head-dim", str(state.size)),
        *("--linear-num-value-heads", str(state.heads), "--linear-value-head-dim", str(state.head_dim)),
    ]


def _stack(state: StateSpec | None) -> list[str]:
    """Layers of one mixer or feed-forward each, in the order that the plan's layout gives."""
    words = ["--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
    if state is None:
        return words
    words += ["--mamba-num-heads", str(state.heads), "--mamba-head-dim", str(state.head_dim)]
    return [*words, "--mamba-state-dim", str(state.size), "--mamba-num-groups", str(state.groups)]


def _biased(model: ModelSpec) -> bool:
    """True where all of Megatron's matrices have biases, those of experts too; its shared experts refuse them."""
    if model.experts is None:
        return model.mlp_bias
    if model.experts.shared_ffn:
        return False
    return model.mlp_bias if model.unlike else model.experts.bias


def _feed_forward(model: ModelSpec) -> int:
    """Width of dense layers; where there are none, that of the experts, since Megatron wants one."""
    return model.ffn if model.experts is None or model.unlike else model.experts.ffn


def _latent(model: ModelSpec, latent: LatentSpec) -> list[str]:
    words = ["--multi-latent-attention", "--kv-lora-rank", str(latent.kv_rank)]
    words += ["--q-lora-rank", str(latent.q_rank)] if latent.q_rank else []
    words += ["--qk-head-dim", str(model.head_dim - latent.rope_dim)]
    return [*words, "--qk-pos-emb-head-dim", str(latent.rope_dim), "--v-head-dim", str(latent.value_dim)]


def _windows(model: ModelSpec) -> list[str]:
    """Sliding windows: a token, and those before it; full attention in every n-th layer, or where a list says so."""
    if model.window is None:
        return []
    words = ["--window-size", f"{model.window - 1},0"]
    layers, narrow = model.all_layers, model.window_layers or model.all_layers
    if narrow == layers:
        return words
    every = layers // (layers - narrow)
    if layers - layers // every == narrow:
        return [*words, "--window-attn-skip-freq", str(every)]
    # As evenly as it goes.
    pattern = [(index + 1) * narrow // layers - index * narrow // layers for index in range(layers)]
    return [*words, "--window-attn-skip-freq", str(pattern).replace(" ", "")]


BALANCE = "1e-3"
"""Coefficient of the balancing loss, as in the configurations of Mixtral, Qwen 3 and gpt-oss."""


def _experts(model: ModelSpec, experts: ExpertsSpec, dispatcher: TokenDispatcher) -> list[str]:
    """Experts that are whole on a device, with as much balancing as their authors trained with."""
    words = ["--num-experts", str(experts.number), "--moe-router-topk", str(experts.top_k)]
    words += ["--moe-ffn-hidden-size", str(experts.ffn), "--moe-grouped-gemm", "--moe-permute-fusion"]
    if dispatcher == "alltoall":
        words += ["--moe-token-dispatcher-type", "alltoall"]
    else:
        # Both take probabilities in fp32 alone.
        words += ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", dispatcher]
        words += ["--moe-router-dtype", "fp32"]
    words += ["--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", BALANCE]
    words += router_words(model, experts.top_k)
    words += ["--moe-latent-size", str(experts.hidden)] if experts.hidden else []
    if experts.shared_ffn:
        words += ["--moe-shared-expert-intermediate-size", str(experts.shared_ffn)]
    words += ["--moe-shared-expert-gate"] if experts.shared_gate else []
    if experts.capacity_factor is not None:
        words += ["--moe-expert-capacity-factor", f"{experts.capacity_factor:g}"]
    return words


def differences(model: ModelSpec) -> Iterator[str]:
    """Where Megatron's model will differ from the model file, each in a sentence without a full stop."""
    if model.layer_norms != 2:
        yield f"each layer has 2 norms instead of {model.layer_norms}"
    yield from _bias_differences(model)
    if model.norm == "plain":
        yield "norms have a scale"
    if model.qk_norm == "whole":
        yield "queries and keys are normalised per head"
    if model.experts is not None:
        yield from _expert_differences(model, model.experts)
    if model.states and model.state is not None:
        yield from _state_differences(model.state)
    yield from numeric_differences(model)
    if model.embedding_width != model.hidden:
        yield f"the token embedding is {model.hidden} wide instead of {model.embedding_width}"
    if model.token_types:
        yield "there is no token-type embedding"
    if model.embedding_norm:
        yield "there is no norm after the embedding"
    if not model.final_norm:
        yield "there is a norm after the last layer"
    if model.kind == "decoder" and model.head_transform:
        yield "there is no dense layer ahead of the output layer"
    if model.kind == "decoder" and model.head_bias:
        yield "the output layer has no bias"


def _expert_differences(model: ModelSpec, experts: ExpertsSpec) -> Iterator[str]:
    """Megatron's router and experts have biases where its other matrices have."""
    biased = _biased(model)
    if model.unlike and model.mlp_bias != biased:
        yield "the feed-forwards of dense layers have no biases"
    for what, has in (("the router", experts.router_bias), ("experts", experts.bias)):
        if has != biased:
            yield f"{what} {'have' if what == 'experts' else 'has'} {'biases' if biased else 'no biases'}"


def _state_differences(state: StateSpec) -> Iterator[str]:
    """Megatron's mixers have what those of Nemotron-H and Qwen3-Next have (``MambaMixer``, ``GatedDeltaNet``)."""
    delta = state.kind == "delta"
    if state.bias:
        yield "projections of layers with a state have no biases"
    if state.conv_bias == delta:
        yield f"convolutions of layers with a state have {'no' if delta else 'a'} bias"
    if state.conv != CONVOLVED and not delta:
        yield f"convolutions of layers with a state see {CONVOLVED} tokens instead of {state.conv}"
    if not state.norm:
        yield "what layers with a state make is normalised"
    chunk = CHUNK["delta" if delta else "mamba2"]
    if state.chunk != chunk:
        yield f"layers with a state work on {chunk} tokens at once instead of {state.chunk}"


def _bias_differences(model: ModelSpec) -> Iterator[str]:
    """Megatron has biases everywhere, nowhere, or on queries, keys and values alone."""
    biased = _biased(model)
    if biased and not model.qkv_bias:
        yield "queries, keys and values have biases"
    if biased != model.output_bias:
        yield f"the attention output has {'a' if biased else 'no'} bias"


Sections = dict[str, list[str]]
"""Words of the command line by section, in order."""

TUNABLE = {"--train-iters": "TRAIN_ITERS", "--lr": "LR", "--clip-grad": "CLIP_GRAD"}
"""Arguments that the plan does not decide, and the variable that overrides each default."""


def dispatcher_of(job: Job) -> TokenDispatcher:
    """How tokens travel to experts: the flexible dispatcher refuses to start where a device has all of them."""
    return job.model.training.token_dispatcher if job.plan.folding.ways > 1 else "alltoall"


def arguments(job: Job) -> Sections:
    """Every argument of the plan: model, parallel, batch, memory, precision, training, logging, data."""
    plan, model = job.plan, job.model
    return {
        "model": model_words(model, dispatcher_of(job)),
        "parallel": [
            *_parallel(plan, model, job.stages_first),
            *(["--tp-comm-overlap"] if _overlaps_collectives(job) else []),
            *(_expert_parallel(plan, model) if model.experts else []),
        ],
        "batch": _batch(plan, model),
        "recompute": _recompute(plan, model),
        "precision": [*_precision(plan, model), *_gradients(plan, model)],
        "training": ["--train-iters", "100", "--lr", "1e-4", "--clip-grad", "1.0", *_optimizer(model)],
        "offload": _offload(plan),
        # Megatron has no interval of its own since 2026 and fails where there is none.
        "logging": ["--log-interval", "1", "--eval-interval", "1000"],
        "data": _data(model),
    }


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Settings of arguments: ``--num-layers 8 --swiglu`` is num_layers: 8, swiglu: true; several values are a list."""
    values: dict[str, list[int | str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            values[name] = []
        else:
            values[name].append(int(word) if word.isdigit() else word)
    return {name: each if len(each) > 1 else next(iter(each), True) for name, each in values.items()}


CONTEXT = {"ring": "p2p", "ulysses": "a2a"}
"""What Megatron calls the ways to divide sequences."""


def _parallel(plan: Plan, model: ModelSpec, stages_first: bool) -> list[str]:
    tp = plan.stages[0].replicas[0].tp
    words = ["--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(plan.pp)]
    if model.stacked:
        words += ["--hybrid-layer-pattern", layout(plan, model)]
    elif plan.pp > 1:
        words += ["--pipeline-model-parallel-layout", layout(plan, model)]
    words += ["--use-tp-pp-dp-mapping"] if stages_first else []
    if plan.sequence_parallel and tp > 1:
        words += ["--sequence-parallel"]
    if plan.cp > 1:
        words += ["--context-parallel-size", str(plan.cp), "--cp-comm-type", CONTEXT[plan.cp_kind]]
    if plan.stages[0].dp > 1:
        words += ["--overlap-grad-reduce"]
        if plan.zero:
            words += ["--use-distributed-optimizer", "--overlap-param-gather"]
    elif plan.offload.optimizer != "none" or _splits(model):
        words += ["--use-distributed-optimizer"]
    return words


def _overlaps_collectives(job: Job) -> bool:
    """True where products hide tensor-parallel traffic by user buffers, which all devices of the job must reach."""
    plan, model = job.plan, job.model
    if not plan.sequence_parallel or plan.stages[0].replicas[0].tp == 1:
        return False
    kernels = CAPABILITIES.kernels_of(model.training.kernels, model.training.attention)
    devices = _devices(job)
    found = [hidden_by(CAPABILITIES, kernels, each, has_user_buffers(model)) for each in devices]
    return "all" in found and all(each.reaches_memory for each in devices)


def _devices(job: Job) -> list[DeviceType]:
    """Each type of device of each used pool."""
    topology = Topology(widened(job.cluster, widths(job.plan, job.cluster)))
    used = {(group.pool, group.gpu) for stage in job.plan.stages for group in stage.replicas}
    return [topology.device_type(*each) for each in sorted(used)]


def without_multicast(job: Job) -> tuple[str, ...]:
    """Pools in which user buffers have to do without CUDA's multicast, which began with Hopper."""
    if not _overlaps_collectives(job):
        return ()
    older = (each for each in _devices(job) if (each.compute_capability or 0) < MULTICAST_FROM)
    return tuple(dict.fromkeys(each.pool for each in older))


def _expert_parallel(plan: Plan, model: ModelSpec) -> list[str]:
    """Unasked, Megatron divides experts as tensor parallelism divides everything else."""
    words = ["--expert-model-parallel-size", str(plan.ep), "--expert-tensor-parallel-size", str(plan.etp)]
    return [*words, "--overlap-moe-expert-parallel-comm"] if overlaps(model, plan.folding) else words


def _offload(plan: Plan) -> list[str]:
    """The share is always told: without it Megatron's parser takes 1, and its configuration, as in Bridge, 0."""
    if plan.offload.optimizer == "none":
        return []
    words = ["--optimizer-cpu-offload", "--optimizer-offload-fraction", f"{plan.offload.ratio:g}"]
    return [*words, "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"]


def _batch(plan: Plan, model: ModelSpec) -> list[str]:
    micro_batch = plan.stages[0].replicas[0].micro_batch
    return ["--micro-batch-size", str(micro_batch), "--global-batch-size", str(model.training.global_batch)]


def _recompute(plan: Plan, model: ModelSpec) -> list[str]:
    """Selective recomputation is of scores, and of what experts and latent attention can discard."""
    policy = plan.stages[0].recompute
    if policy == "none":
        return []
    if policy == "full":
        words = ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        # A mixer and its feed-forward are two layers of a stack, and one that is recomputed whole; with further tokens
        # Megatron takes 1 alone.
        pairs = model.stacked and all(kind.sublayers == 2 for kind in model.kinds)
        return [*words, "--recompute-num-layers", "2" if pairs and not model.training.mtp_layers else "1"]
    words, modules = ["--recompute-granularity", "selective"], ["layernorm"]
    modules += ["moe_act"] if model.experts else []
    modules += ["mla_up_proj"] if model.latent else []
    if len(modules) == 1:
        return words
    modules += ["core_attn"] if model.training.attention == "unfused" else []
    words += ["--recompute-modules", *modules]
    # Outputs that are discarded are scaled anew, which the default recipe, of scales from steps before, forbids.
    return [*words, "--fp8-recipe", "tensorwise"] if model.training.precision == "fp8" else words


def _precision(plan: Plan, model: ModelSpec) -> list[str]:
    words = {
        "bf16": ["--bf16"],
        "fp16": ["--fp16"],
        "fp32": [],
        "tf32": [],
        "fp8": ["--bf16", "--fp8-format", "hybrid"],
    }
    made = words[model.training.precision]
    # Kept in fp8 alone, not in bf16 with an fp8 copy beside it; Megatron can with its distributed optimizer.
    sharded = plan.zero and plan.stages[0].dp > 1
    return [*made, "--fp8-param-gather"] if sharded and model.training.precision == "fp8" else made


def _gradients(plan: Plan, model: ModelSpec) -> list[str]:
    """Megatron keeps and adds up the gradients of bf16 training in fp32 unless told otherwise."""
    chosen = gradients_of(CAPABILITIES, model.training, plan.zero)
    return ["--grad-reduce-in-bf16"] if chosen.reduced == "bf16" else []


def _splits(model: ModelSpec) -> bool:
    """True when weights or moments are not all in fp32."""
    training = model.training
    return training.optimizer_states != "fp32" or master_weights_of(CAPABILITIES, training) != "fp32"


def _optimizer(model: ModelSpec) -> list[str]:
    """The precision-aware optimizer splits the weights of bf16 training unasked (``store_param_remainders``)."""
    words = ["--optimizer", "sgd" if model.training.optimizer == "sgd" else "adam"]
    if _splits(model):
        words += ["--use-precision-aware-optimizer"]
    if model.training.optimizer_states == "bf16":
        words += ["--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]
    return words


def _data(model: ModelSpec) -> list[str]:
    if model.kind == "encoder":
        return ["--tokenizer-type", "BertWordPieceLowerCase"]
    return ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(model.vocab)]


def arguments_script(sections: Sections, model: ModelSpec) -> str:
    """``args.sh``: the arguments as one shell array, with variables for what the plan does not decide."""
    return rendered(
        "runtimes/megatron/args.sh.j2",
        model=model,
        differences=tuple(differences(model)),
        sections={name: _lines(words) for name, words in sections.items() if name != "data"},
        data=shlex.join(sections["data"]),
    )


def _lines(words: list[str]) -> list[str]:
    """One shell line for each argument with its values."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--"):
            lines.append(word)
        else:
            flag = lines[-1]
            variable = TUNABLE.get(flag)
            lines[-1] += f' "${{{variable}:-{word}}}"' if variable else f" {shlex.quote(word)}"
    return lines
