"""What changes results and neither time nor memory: read from configurations, handed on, computed by the example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.spec import ModelSpec, NumericsSpec, RouterSpec

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 8192,
}
DEEPSEEK = {
    **{"model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    **{"moe_intermediate_size": 32, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 4, "topk_group": 2},
    **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "hidden_act": "silu", "rope_theta": 10000},
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        **{"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32},
        **{"beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
GPT_OSS = {
    **{"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2, "hidden_act": "silu"},
    **{"rms_norm_eps": 1e-5, "rope_theta": 150000, "head_dim": 16, "sliding_window": 128},
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    },
}
GEMMA3 = {
    **{"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16},
    **{"sliding_window": 1024, "sliding_window_pattern": 2, "rms_norm_eps": 1e-6},
}
BASES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA3_SAYS = {
    **{"activation": "gelu-tanh", "norm_epsilon": 1e-6, "rope_base": 1e6, "rope_window_base": 1e4},
    "rope_scaling": {"kind": "linear", "factor": 8.0},
}
QWEN_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
}

SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "older keys": (
        {
            "model_type": "llama",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3,
        },
        {
            **{"activation": "silu", "norm_epsilon": 1e-5, "rope_base": 5e5},
            "rope_scaling": {
                "kind": "llama3",
                "factor": 8.0,
                "original_length": 8192,
                "low": 1.0,
                "high": 4.0,
            },
        },
    ),
    "newer keys": (
        {
            "model_type": "llama",
            "hidden_act": "swish",
            "rms_norm_eps": 1e-6,
            "rope_parameters": {**LLAMA3, "rope_theta": 1e4},
        },
        {
            **{"activation": "silu", "norm_epsilon": 1e-6, "rope_base": 1e4},
            "rope_scaling": {"kind": "llama3", "factor": 8.0, "original_length": 8192},
        },
    ),
    "from the longest sequence": (
        {
            "model_type": "qwen2",
            "max_position_embeddings": 2048,
            "rope_scaling": {"type": "yarn", "factor": 2.0},
        },
        {"rope_scaling": {"kind": "yarn", "factor": 2.0, "original_length": 2048}},
    ),
    "two bases": ({**GEMMA3, "rope_parameters": BASES}, GEMMA3_SAYS),
    "two bases, older keys": (
        {
            **GEMMA3,
            **{"rope_theta": 1e6, "rope_local_base_freq": 1e4},
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        GEMMA3_SAYS,
    ),
    "two bases, as transformers writes what differs from its defaults": (
        {
            **{"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 1024},
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        GEMMA3_SAYS,
    ),
    "defaults of its type": (
        {"model_type": "stablelm"},
        {"activation": "silu", "norm_epsilon": 1e-5, "rope_base": 1e4, "rope_share": 0.25},
    ),
    "a scaling that is the default of its type": (
        {"model_type": "cwm", "rope_theta": 5e5},
        {
            **{"activation": "silu", "norm_epsilon": 1e-5, "rope_base": 5e5},
            "rope_scaling": {"kind": "llama3", "factor": 16.0, "original_length": 8192},
        },
    ),
    "weights that add up by default": (
        {**QWEN_MOE, **LINEAR, "model_type": "qwen3_next"},
        {"rope_share": 0.25, "router": {"normalised": True}},
    ),
    "latent attention": (
        DEEPSEEK,
        {
            **{"activation": "silu", "norm_epsilon": 1e-6, "rope_base": 1e4},
            "rope_scaling": {"kind": "yarn", "factor": 40.0, "original_length": 4096, "mscale_all_dim": 1.0},
            "router": {"score": "sigmoid", "bias": True, "scale": 2.5, "groups": 4, "top_groups": 2},
        },
    ),
    "whatever its activation is called": (
        GPT_OSS,
        {
            **{"activation": "clamped-quick-gelu", "norm_epsilon": 1e-5, "rope_base": 150000.0, "router": {}},
            "rope_scaling": {"kind": "yarn", "factor": 32.0, "original_length": 4096, "rounded": False},
        },
    ),
    "weights that do not add up": (
        {"model_type": "qwen3_moe", **QWEN_MOE, "norm_topk_prob": False, "hidden_act": "xielu"},
        {"activation": "other", "router": {"normalised": False}},
    ),
    "a part is rotated": (
        {
            "model_type": "gpt_neox",
            "hidden_act": "gelu",
            "rotary_pct": 0.25,
            "rotary_emb_base": 10000,
            "layer_norm_eps": 1e-5,
        },
        {"activation": "gelu", "norm_epsilon": 1e-5, "rope_base": 1e4, "rope_share": 0.25},
    ),
    "no positions": (
        {
            "model_type": "llama4_text",
            "interleave_moe_layer_step": 1,
            "num_local_experts": 8,
            "no_rope_layers": [1, 0] * 2,
        },
        {"rope_skips": 2, "router": {"score": "sigmoid", "normalised": False}},
    ),
    "some elements of a head are rotated": (
        {"model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 64},
        {"rope_share": 0.5, "rope_base": 5e6, "router": {"score": "sigmoid", "bias": True}},
    ),
    "the same, of an older type": (
        {"model_type": "gptj", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 64, "rotary_dim": 8},
        {"rope_share": 0.5, "activation": "gelu-tanh"},
    ),
    "ALiBi": (
        {"model_type": "falcon", "alibi": True, "rope_theta": 1e4, "layer_norm_epsilon": 1e-5},
        {"rope_share": 0, "activation": "gelu"},
    ),
    "ALiBi always": ({"model_type": "bloom"}, {"rope_share": 0}),
    "ALiBi of the larger ones": (
        {"model_type": "baichuan", "max_position_embeddings": None, "model_max_length": 4096},
        {"rope_share": 0},
    ),
    "layers without a window have no positions": (
        {
            **{"model_type": "cohere2", "sliding_window": 64, "rope_theta": 5e4, "layer_norm_eps": 1e-5},
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
        {"rope_skips": 4, "rope_base": 5e4},
    ),
    "the same by a pattern": (
        {"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": 2},
        {"rope_skips": 2},
    ),
    "no window, no layer without positions": (
        {"model_type": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 4},
        {"rope_skips": None},
    ),
    "no positions by default in every fourth layer": (
        {
            **{"model_type": "llama4_text", "interleave_moe_layer_step": 1, "num_local_experts": 8},
            "no_rope_layers": [],
        },
        {"rope_skips": 4, "router": {"score": "sigmoid", "normalised": False}},
    ),
    "a base of layers with a window": (
        {
            **{"model_type": "mimo_v2_flash", "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1},
            **{"moe_intermediate_size": 32, "rope_theta": 1e6, "swa_rope_theta": 2e4, "sliding_window": 64},
            **{"topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": None, "v_head_dim": 16},
            "hybrid_layer_pattern": [0, 1, 1, 1],
        },
        {
            **{"rope_base": 1e6, "rope_window_base": 2e4, "rope_share": 0.334},
            "router": {"score": "sigmoid", "bias": True},
        },
    ),
    "an epsilon that its type ignores": (
        {"model_type": "biogpt", "layer_norm_eps": 1e-12},
        {"norm_epsilon": 1e-5, "activation": "gelu"},
    ),
    "a router of DeepSeek's under another name": (
        {**DEEPSEEK, "model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827},
        {
            "rope_scaling": {"kind": "yarn", "factor": 40.0, "original_length": 4096, "mscale_all_dim": 1.0},
            "router": {"score": "sigmoid", "bias": True, "scale": 2.827},
        },
    ),
    "attention apart": (
        {
            **{"model_type": "dbrx", "d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 64},
            "attn_config": {"rope_theta": 5e5, "kv_n_heads": 2, "clip_qkv": 8, "model_type": ""},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
        {"rope_base": 5e5, "activation": "silu", "router": {}, "others": ("clip_qkv 8",)},
    ),
    "the gates of T5 1.1": (
        {
            **{"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2},
            **{"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6},
        },
        {"activation": "gelu-tanh", "norm_epsilon": 1e-6},
    ),
    "the first T5": (
        {
            **{"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2},
            "is_encoder_decoder": True,
        },
        {"activation": "relu"},
    ),
    "groups of softmax scores": (
        {
            **{**DEEPSEEK, "model_type": "deepseek_v2", "topk_method": "group_limited_greedy"},
            **{"norm_topk_prob": False, "routed_scaling_factor": 16.0, "rope_scaling": None},
        },
        {"router": {"normalised": False, "scale": 16.0, "groups": 4, "top_groups": 2}},
    ),
    "weights that add up whatever they say": (
        {"model_type": "qwen3_vl_moe_text", **QWEN_MOE, "norm_topk_prob": False},
        {"router": {}},
    ),
    "a bias beside softmax scores": (
        {"model_type": "ernie4_5_moe", **QWEN_MOE, "moe_num_shared_experts": 1, "moe_layer_start_index": 0},
        {"router": {"bias": True}},
    ),
    "gates of gpt-oss": (
        {
            **{"model_type": "minimax_m3_vl_text", "num_local_experts": 8, "num_experts_per_tok": 2},
            **{"hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "head_dim": 16},
            **{"rotary_dim": 8, "dense_intermediate_size": 64, "shared_intermediate_size": 32},
        },
        {
            **{"activation": "clamped-quick-gelu", "rope_share": 0.5},
            "router": {"score": "sigmoid", "bias": True, "scale": 2.0},
        },
    ),
    "learned positions": (
        {"model_type": "opt", "activation_function": "relu", "ffn_dim": 128, "rope_theta": 1e4},
        {"activation": "relu"},
    ),
}


def imported(tmp_path: Path, config: dict[str, Any]) -> ModelSpec:
    """The model of a configuration."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, **config}), encoding="utf-8")
    return load_model(path)


@pytest.mark.parametrize("name", SAID)
def test_configurations_say_them(tmp_path: Path, name: str) -> None:
    """Read of the keys of either version of transformers."""
    config, expected = SAID[name]
    found = imported(tmp_path, config).numerics
    assert found is not None
    wanted = NumericsSpec.model_validate(expected)
    named = {*expected}
    assert found.model_dump(include=named) == wanted.model_dump(include=named)
    said = found.model_dump(exclude_none=True)
    assert {*said} - named <= {"norm_epsilon", "activation", "rope_base", "others"}


OTHERS: dict[str, tuple[dict[str, Any], tuple[str, ...] | None]] = {
    "factors": (
        {
            **{"model_type": "granite", "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
            **{"logits_scaling": 8.0, "attention_multiplier": 0.015625},
        },
        (
            *("embedding_multiplier 12", "residual_multiplier 0.22", "logits_scaling 8"),
            "attention_multiplier 0.015625",
        ),
    ),
    "factors that change nothing": (
        {"model_type": "granite", "embedding_multiplier": 1.0, "attention_multiplier": 0.25},
        None,
    ),
    "caps": (
        {
            **{"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 8},
            **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": None},
        },
        (
            *("attn_logit_softcapping 50", "query_pre_attn_scalar 8"),
            "embeddings times the root of hidden_size",
        ),
    ),
    "a default": ({"model_type": "cohere"}, ("logit_scale 0.0625",)),
    "attention beside feed-forwards": ({"model_type": "gpt_neox"}, ("use_parallel_residual",)),
    "the same of Falcon": (
        {"model_type": "falcon", "new_decoder_architecture": True, "parallel_attn": True, "num_kv_heads": 2},
        ("parallel_attn",),
    ),
    "norms without a scale": (
        {"model_type": "llama4_text", "interleave_moe_layer_step": 1, "num_local_experts": 8},
        ("use_qk_norm",),
    ),
    "none of them": (
        {"model_type": "llama4_text", "num_local_experts": 8, "use_qk_norm": False},
        None,
    ),
    "norms behind": ({"model_type": "olmo2"}, ("norms behind attention and feed-forwards alone",)),
    "one after the other": ({"model_type": "gpt_neox", "use_parallel_residual": False}, None),
    "biases by distance": ({"model_type": "falcon", "alibi": True}, ("ALiBi",)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_runtime_has_is_named(tmp_path: Path, name: str) -> None:
    """Factors, caps and positions, where they are not what they are without a key."""
    config, expected = OTHERS[name]
    found = imported(tmp_path, config).numerics
    assert found is not None
    assert found.others == expected


def test_shares_of_layers_that_differ_are_not_one(tmp_path: Path) -> None:
    """A quarter of heads in some layers is no share of all."""
    full = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    both = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    found = imported(tmp_path, {**GEMMA3, "rope_parameters": both}).numerics
    assert found is not None
    assert found.rope_share is None


HYBRID = {
    **{"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2, "rope_theta": 1e4},
    **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2},
    **{"shared_intermediate_size": 64, "num_local_experts": 0, "num_experts_per_tok": 0},
}


@pytest.mark.parametrize("kind", [None, "nope", "rope"])
def test_attention_beside_states_has_positions_where_they_say_so(tmp_path: Path, kind: str | None) -> None:
    """A base alone says nothing: Granite 4 names one and has none."""
    found = imported(tmp_path, {**HYBRID, "position_embedding_type": kind}).numerics
    assert found is None or found.rope_base == (1e4 if kind == "rope" else None)
    assert kind != "rope" or found is not None


STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "a base that is no number": ({"rope_theta": "many"}, r'rope_theta: expected a number .*, got "many"'),
    "a negative one": (
        {"rope_parameters": {"rope_theta": -1}},
        r"rope_parameters\.rope_theta: expected a number .*, got -1",
    ),
    "an epsilon": ({"rms_norm_eps": "1e-5"}, r'rms_norm_eps: expected a number .*, got "1e-5"'),
    "a scaling by less than 1": (
        {"rope_scaling": {"type": "linear", "factor": 0}},
        r"rope_scaling\.factor: expected a number .*, got 0",
    ),
    "a scaling that is a word": (
        {"rope_scaling": "linear"},
        'rope_scaling: expected a mapping, got "linear"',
    ),
    "a scaling that is a list": (
        {"rope_parameters": [1]},
        "rope_parameters: expected a mapping, got a list of 1",
    ),
    "bases of layers": (
        {"rope_parameters": {"full_attention": {"rope_theta": 0}, "sliding_attention": 7}},
        "rope_parameters: expected a number .*, got a mapping",
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_value_is_named(tmp_path: Path, name: str) -> None:
    """An error at the key that has it, not a guess."""
    given, message = STRANGE[name]
    with pytest.raises(SpecError, match=message):
        imported(tmp_path, {"model_type": "llama", **given})


def test_they_cost_nothing(tmp_path: Path) -> None:
    """The same model without them has as many parameters."""
    model = imported(tmp_path, DEEPSEEK)
    assert model.numerics is not None
    assert model.numerics.router == RouterSpec(score="sigmoid", bias=True, scale=2.5, groups=4, top_groups=2)
    assert model.model_copy(update={"numerics": None}).parameters == model.parameters
