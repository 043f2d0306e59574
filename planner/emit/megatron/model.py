"""A model's shape in Megatron-LM's arguments, and what Megatron cannot build of it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.model.spec import ModelSpec


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
