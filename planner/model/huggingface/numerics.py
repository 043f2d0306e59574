"""What changes a model's results and neither its time nor its memory, from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.model.huggingface.families import Config, first_of
from planner.model.spec import Activation, RopeScaling

ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"), "gelu-tanh"),
    "quick_gelu": "quick-gelu",
    "relu": "relu",
    **dict.fromkeys(("relu2", "relu_squared"), "squared-relu"),
}
"""Our names of those that transformers has."""
_ACTIVATION = (
    *("hidden_activation", "mlp_hidden_act", "hidden_act", "activation_function"),
    *("dense_act_fn", "ffn_act_fn", "activation"),
)
_OWN: dict[str, Activation] = {
    **{"bloom": "gelu-tanh", "ctrl": "relu", "dbrx": "silu", "grok-1": "gelu", "mpt": "gelu"},
    "openai-gpt": "gelu-tanh",
}
"""That of types whose keys do not say it."""
_EPSILON = (
    *("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    *("layernorm_epsilon", "rms_norm_epsilon"),
)
_BASE, _SHARE = (
    ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    ("partial_rotary_factor", "rotary_pct", "rope_pct"),
)
_WINDOW_BASE = ("rope_local_base_freq", "swa_rope_theta", "local_rope_theta")
ROTARY = ("rope_parameters", "rope_scaling")
SYNONYMS = (_ACTIVATION, _EPSILON, _BASE, _WINDOW_BASE, _SHARE, ROTARY)
"""Keys of which a configuration says one, each with those that say the same."""
_SCALINGS: dict[str, RopeScaling] = {"linear": "linear", "llama3": "llama3", "yarn": "yarn"}
_SCALED = {
    "factor": "factor",
    "original_max_position_embeddings": "original_length",
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "beta_fast": "fast",
    "beta_slow": "slow",
    "truncate": "rounded",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}
"""Our names of the keys of a scaling."""
_OWN_KEYS = {
    "linear": {"factor"},
    "llama3": {"factor", "original_length", "low", "high"},
    "yarn": {"factor", "original_length", "fast", "slow", "rounded", "mscale", "mscale_all_dim"},
}
_UNSCALED = ("default", "mrope", None)
"""Types of scaling that change nothing for text."""
_NORMALISED = (
    *("dbrx", "mixtral", "gpt_oss", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"),
    *("minimax", "qwen3_5_moe_text", "qwen3_vl_moe_text"),
)
"""Types whose weights are softmax scores that add up to one, whatever their keys say."""
_SOFTMAX = (
    *("bailing_moe", "deepseek", "flex_olmo", "jamba", "mellum", "olmoe"),
    *("qwen2_moe", "qwen3_moe", "qwen3_next"),
)
"""Those of softmax scores that ``norm_topk_prob`` normalises."""
_BIASED = (
    *("axk1", "bailing_moe_v2", "deepseek_v3", "deepseek_v32", "dots1", "exaone_moe", "glm4_moe"),
    *("glm4_moe_lite", "glm4v_moe_text", "glm_moe_dsa", "kimi_k2", "kimi_linear", "mimo_v2_flash"),
    *("nemotron_h", "sarvam_mla", "sarvam_moe", "solar_open"),
)
"""Those of sigmoids, with a bias that balances the load and groups of experts."""
_SCALED_SIGMOIDS = {
    **{"afmoe": "route_scale", "hy_v3": "router_scaling_factor", "minimax_m2": ""},
    "laguna": "moe_routed_scaling_factor",
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl_text"), "routed_scaling_factor"),
}
"""Those of sigmoids with such a bias that always add up to one, and the key of their factor."""
_ALIBI = ("bloom", "jina_bert", "mpt")
_UNROTATED = (*_ALIBI, "cpmant", "ctrl", "jamba", "kimi_linear", "nemotron_h", "xglm", "zamba")
"""Types whose attention rotates nothing, whatever base they name."""
_ROTATED_WINDOWS = {
    **{"afmoe": "global_attn_every_n_layers", "cohere2": "sliding_window_pattern"},
    **{"exaone4": "sliding_window_pattern", "exaone_moe": "sliding_window_pattern"},
}
"""Types in which layers without a window have no positions, and the key of how often they stand."""


_GEMMAS = ("gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "recurrent_gemma", "vaultgemma")
"""Types whose embeddings are scaled by the root of the width."""
_NORMED_BEHIND = ("exaone4", "flex_olmo", "olmo2", "olmo3")
"""Types that norm what attention and feed-forwards make, not what they take."""
_OTHERS: dict[str, float] = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "clip_qkv"), 0),
    **dict.fromkeys(("scale_depth", "dim_model_base", "swiglu_limit", "max_attn_value"), 0),
    **dict.fromkeys(("embedding_multiplier_scale", "output_multiplier_scale", "attn_output_multiplier"), 1),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"), 1),
    **dict.fromkeys(("scale_emb", "lm_head_multiplier", "key_multiplier", "attention_value_scale"), 1),
    **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier"), 1),
    **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier", "qk_scale_factor", "output_multiplier"), 1),
}
"""Keys of numbers that no runtime here has, and those that change nothing."""


def numerics_of(config: Config, shape: dict[str, Any]) -> dict[str, Any] | None:
    """Fields of a NumericsSpec that a configuration says; None where it says nothing of them."""
    kind = str(config.get("model_type"))
    if isinstance(inside := config.get("attn_config"), dict):
        # DBRX and MPT say of attention there.
        config = {**config, **inside, "model_type": kind}
    found: dict[str, Any] = {"norm_epsilon": first_of(config, _EPSILON)}
    activation = first_of(config, _ACTIVATION)
    if isinstance(activation, str):
        found["activation"] = ACTIVATIONS.get(activation, "other")
    if kind == "gpt_oss" or _clamped(config):
        # Whatever hidden_act says.
        found["activation"] = "clamped-quick-gelu"
    if kind in _OWN:
        found["activation"] = _OWN[kind]
    if isinstance(feeds := config.get("feed_forward_proj"), str):
        # As T5's configuration, which has the name of one for another.
        own = "gelu_new" if feeds == "gated-gelu" else feeds.removeprefix("gated-")
        found["activation"] = ACTIVATIONS.get(own, "other")
    if kind == "biogpt":
        # Whatever layer_norm_eps says.
        found["norm_epsilon"] = 1e-5
    if not shape.get("learned_positions"):
        found |= _rope(config, shape) if _rotates(config, kind) else {"rope_share": 0}
    if shape.get("experts"):
        found["router"] = _router(config, kind)
    found["others"] = tuple(_others(config, shape, kind)) or None
    said = {key: value for key, value in found.items() if value is not None}
    return said or None


def _others(config: Config, shape: dict[str, Any], kind: str) -> Iterator[str]:
    """What else a type computes that no runtime here has, as its keys say it."""
    for key, idle in _OTHERS.items():
        value = config.get(key)
        known = key == "swiglu_limit" and (kind == "gpt_oss" or _clamped(config))
        if isinstance(value, int | float) and value not in (0, idle) and not known:
            yield f"{key} {value:g}"
    # Scores are usually scaled by the root of a head's width.
    width = shape.get("head_dim")
    factor, divisor = config.get("attention_multiplier"), config.get("query_pre_attn_scalar")
    if isinstance(factor, int | float) and width and abs(factor * width**0.5 - 1) > 1e-3:
        yield f"attention_multiplier {factor:g}"
    if isinstance(divisor, int | float) and divisor != width:
        yield f"query_pre_attn_scalar {divisor:g}"
    if kind in _GEMMAS:
        yield "embeddings times the root of hidden_size"
    # One norm of both is told by the number of norms.
    beside = ("use_parallel_residual", "parallel_attn") if shape.get("layer_norms", 2) == 2 else ()
    yield from (key for key in beside if config.get(key))
    if kind == "llama4_text" and config.get("use_qk_norm", True):
        yield "use_qk_norm"
    if kind in _NORMED_BEHIND:
        yield "norms behind attention and feed-forwards alone"
    if kind in _ALIBI or config.get("alibi") or (kind == "baichuan" and not _rotates(config, kind)):
        yield "ALiBi"


def place_of(config: Config, loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """Where a configuration says a field of a NumericsSpec; its type where it leaves that to it."""
    scaled = {ours: key for key, ours in _SCALED.items()}
    keys = {
        **{"norm_epsilon": _EPSILON, "rope_base": _BASE, "rope_window_base": _WINDOW_BASE},
        **{"rope_share": ("rotary_dim", *_SHARE), "groups": ("n_group",), "top_groups": ("topk_group",)},
        "scale": ("routed_scaling_factor", *_SCALED_SIGMOIDS.values()),
    }
    field = str(loc[-1])
    named = keys.get(field, (scaled.get(field, ""),))
    inside = next((key for key in ROTARY if config.get(key)), "")
    said = config[inside] if inside else {}
    if (key := next((key for key in named if key in said), None)) is not None:
        return inside, key
    nested = "full_attention" in said and str(loc[0]).startswith("rope_")
    found = None if nested else next((key for key in named if config.get(key) is not None), None)
    return (found or inside or "model_type",)


def _clamped(config: Config) -> bool:
    """True where gates are those of gpt-oss, with the same numbers."""
    clamped = config.get("hidden_act") == "swigluoai" or config["model_type"] == "minimax_m3_vl_text"
    return clamped and (config.get("swiglu_alpha"), config.get("swiglu_limit")) == (1.702, 7)


def _rotates(config: Config, kind: str) -> bool:
    """False where attention has no rotary positions, whatever base a configuration names."""
    if kind == "granitemoehybrid":
        return config.get("position_embedding_type") == "rope"
    if kind == "zamba2":
        return bool(config.get("use_mem_rope"))
    if kind == "baichuan":
        # The larger ones have ALiBi, and no such key.
        return config.get("max_position_embeddings") is not None
    return kind not in _UNROTATED and not config.get("alibi")


def _rope(config: Config, shape: dict[str, Any]) -> dict[str, Any]:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    narrow: Config = {}
    if isinstance(whole := given.get("full_attention"), dict):
        given, narrow = whole, given.get("sliding_attention") or {}
        narrow = narrow if isinstance(narrow, dict) else {}
    both = {**config, **{key: each for key, each in given.items() if each is not None}}
    base, own = first_of(both, _BASE), narrow.get("rope_theta") or first_of(config, _WINDOW_BASE)
    shares = {first_of(each, _SHARE) or 1 for each in (given, narrow) if narrow}
    differ = bool(shape.get("window")) and len(shares) > 1
    found = {
        "rope_base": base,
        "rope_window_base": own if shape.get("window") and own != base else None,
        # That of some layers is none of all.
        "rope_share": None if shape.get("latent") or differ else _share(both, shape),
        "rope_skips": _skips(config, shape),
    }
    named = given.get("rope_type", given.get("type"))
    if named not in _UNSCALED:
        kind = _SCALINGS.get(str(named), "other")
        keys = {ours: given[key] for key, ours in _SCALED.items() if given.get(key) is not None}
        if kind == "yarn" and (pretrained := config.get("max_position_embeddings")):
            keys.setdefault("original_length", pretrained)
        found["rope_scaling"] = {
            "kind": kind,
            **{k: v for k, v in keys.items() if k in _OWN_KEYS.get(kind, ())},
        }
    return found


def _share(config: Config, shape: dict[str, Any]) -> Any:
    """Share of a head that is rotated; some types say how many of its elements are."""
    width = first_of(config, ("rotary_dim", "qk_rope_head_dim"))
    head = shape.get("head_dim")
    if config["model_type"] == "chatglm":
        return None if config.get("inner_hidden_size") else 0.5
    return width / head if isinstance(width, int) and head else first_of(config, _SHARE)


def _skips(config: Config, shape: dict[str, Any]) -> int | None:
    """n where every n-th layer has no positions; a list says of each layer whether it has them."""
    kinds, listed = config.get("layer_types"), config.get("no_rope_layers")
    every = config.get("no_rope_layer_interval")
    if (key := _ROTATED_WINDOWS.get(str(config["model_type"]))) is not None:
        listed = [each == "sliding_attention" for each in kinds] if isinstance(kinds, list) else None
        every = config.get(key) if shape.get("window") else None
    if not isinstance(listed, list) or 0 not in listed:
        return every if isinstance(every, int) and not listed and every > 1 else None
    if not shape.get("window") and key is not None:
        return None
    every = listed.index(0) + 1
    regular = all(bool(has) == bool((index + 1) % every) for index, has in enumerate(listed))
    return every if regular else None


def _router(config: Config, kind: str) -> dict[str, Any] | None:
    """Of types whose router is known."""
    scale = config.get("routed_scaling_factor") or 1.0
    groups, chosen = config.get("n_group"), config.get("topk_group")
    grouped = {"groups": groups, "top_groups": chosen} if groups and groups != 1 and chosen else {}
    if kind in _NORMALISED:
        return {}
    if kind in _SOFTMAX:
        return {"normalised": bool(config.get("norm_topk_prob", False))}
    if kind == "deepseek_v2":
        grouped = grouped if config.get("topk_method") == "group_limited_greedy" else {}
        return {"normalised": False, "scale": scale, **grouped}
    if kind == "ernie4_5_moe":
        return {"bias": True}
    if kind == "llama4_text":
        return {"score": "sigmoid", "normalised": False}
    if kind in _SCALED_SIGMOIDS:
        return {"score": "sigmoid", "bias": True, "scale": config.get(_SCALED_SIGMOIDS[kind]) or 1.0}
    if kind not in _BIASED:
        return None
    normalised = bool(first_of(config, ("norm_topk_prob", "moe_renormalize")) is not False)
    return {"score": "sigmoid", "bias": True, "normalised": normalised, "scale": scale, **grouped}
