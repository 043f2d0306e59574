"""Megatron-LM's arguments for a plan, by section."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from planner.cost.shape import chunk_layers
from planner.dims.gradients import gradients_of
from planner.errors import EmitError
from planner.job.files import rendered
from planner.job.job import Job
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.runtimes.megatron.capabilities import CAPABILITIES


def layout(plan: Plan) -> str:
    """The layout in Megatron's order: virtual stage k is chunk k // pp of pipeline rank k % pp."""
    chunks = [chunk_layers(stage.layers, plan.interleave) for stage in plan.stages]
    counts = [chunks[rank][chunk] for chunk in range(plan.interleave) for rank in range(plan.pp)]
    return "E" + "|".join(f"t*{layers}" if layers > 1 else "t" for layers in counts) + "L"


def model_words(model: ModelSpec) -> list[str]:
    """Arguments that give Megatron the shape, as near as it comes."""
    words = [
        *("--num-layers", str(model.layers)),
        *("--hidden-size", str(model.hidden)),
        *("--ffn-hidden-size", str(model.ffn)),
        *("--num-attention-heads", str(model.heads)),
        *("--kv-channels", str(model.head_dim)),
        *("--seq-length", str(model.training.sequence_length)),
        *("--max-position-embeddings", str(model.learned_positions or model.training.sequence_length)),
        *("--position-embedding-type", "learned_absolute" if model.learned_positions else "rope"),
    ]
    if model.kv_heads != model.heads:
        words += ["--group-query-attention", "--num-query-groups", str(model.kv_heads)]
    words += ["--swiglu"] if model.gated_mlp else []
    words += ["--normalization", "RMSNorm"] if model.norm == "rms" else []
    words += ["--qk-layernorm"] if model.qk_norm else []
    words += [] if model.mlp_bias else ["--disable-bias-linear"]
    words += ["--add-qkv-bias"] if model.qkv_bias and not model.mlp_bias else []
    words += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    words += ["--attention-backend", "unfused"] if model.training.attention == "unfused" else []
    if not model.drops:
        words += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    return words


def differences(model: ModelSpec) -> Iterator[str]:
    """Where Megatron's model will differ from the model file, each in a sentence without a full stop."""
    if model.layer_norms != 2:
        yield f"each layer has 2 norms instead of {model.layer_norms}"
    yield from _bias_differences(model)
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


def _bias_differences(model: ModelSpec) -> Iterator[str]:
    """Megatron has biases everywhere, nowhere, or on queries, keys and values alone."""
    if model.mlp_bias and not model.qkv_bias:
        yield "queries, keys and values have biases"
    if model.mlp_bias != model.output_bias:
        yield f"the attention output has {'a' if model.mlp_bias else 'no'} bias"


Sections = dict[str, list[str]]
"""Words of the command line by section, in order."""

TUNABLE = {"--train-iters": "TRAIN_ITERS", "--lr": "LR", "--clip-grad": "CLIP_GRAD"}
"""Arguments that the plan does not decide, and the variable that overrides each default."""


def arguments(job: Job) -> Sections:
    """Every argument of the plan: model, parallel, batch, memory, precision, training, data."""
    plan, model = job.plan, job.model
    return {
        "model": model_words(model),
        "parallel": _parallel(plan, job.stages_first, model.training.optimizer_states != "fp32"),
        "batch": _batch(plan, model),
        "recompute": _recompute(plan),
        "precision": [*_precision(plan, model), *_gradients(plan, model)],
        "training": ["--train-iters", "100", "--lr", "1e-4", "--clip-grad", "1.0", *_optimizer(model)],
        "offload": _offload(plan),
        "data": _data(model),
    }


def _parallel(plan: Plan, stages_first: bool, narrow: bool) -> list[str]:
    tp = plan.stages[0].replicas[0].tp
    words = ["--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(plan.pp)]
    if plan.pp > 1:
        words += ["--pipeline-model-parallel-layout", layout(plan)]
    words += ["--use-tp-pp-dp-mapping"] if stages_first else []
    if plan.sequence_parallel and tp > 1:
        words += ["--sequence-parallel"]
    if plan.stages[0].dp > 1:
        words += ["--overlap-grad-reduce"]
        if plan.zero:
            words += ["--use-distributed-optimizer", "--overlap-param-gather"]
    elif plan.offload.optimizer != "none" or narrow:
        words += ["--use-distributed-optimizer"]
    return words


def _offload(plan: Plan) -> list[str]:
    if plan.offload.optimizer == "none":
        return []
    return ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]


def _batch(plan: Plan, model: ModelSpec) -> list[str]:
    micro_batch = plan.stages[0].replicas[0].micro_batch
    return ["--micro-batch-size", str(micro_batch), "--global-batch-size", str(model.training.global_batch)]


def _recompute(plan: Plan) -> list[str]:
    policy = plan.stages[0].recompute
    if policy == "full":
        words = ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        return [*words, "--recompute-num-layers", "1"]
    return ["--recompute-granularity", "selective"] if policy == "selective" else []


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


def _optimizer(model: ModelSpec) -> list[str]:
    words = ["--optimizer", "sgd" if model.training.optimizer == "sgd" else "adam"]
    if model.training.optimizer_states == "bf16":
        words += ["--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]
    return words


def _data(model: ModelSpec) -> list[str]:
    if model.kind == "encoder":
        return ["--tokenizer-type", "BertWordPieceLowerCase", "--bert-no-binary-head"]
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


def check_positions(model: ModelSpec) -> None:
    """Raise EmitError for a model that has no positions for all tokens of a sequence."""
    if 0 < model.learned_positions < model.training.sequence_length:
        raise EmitError("--max-position-embeddings must be at least --seq-length")
