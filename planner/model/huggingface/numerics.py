"""What changes a model's results and neither its time nor its memory, from a Hugging Face ``config.json``."""

from __future__ import annotations

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
_EPSILON = (
    *("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    *("layernorm_epsilon", "rms_norm_epsilon"),
)
_BASE, _SHARE = ("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct", "rope_pct")
SYNONYMS = (_ACTIVATION, _EPSILON, _BASE, _SHARE, ("rope_parameters", "rope_scaling"))
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
_SOFTMAX = ("flex_olmo", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_next")
"""Types whose weights are softmax scores, which ``norm_topk_prob`` normalises."""
_BIASED = ("deepseek_v3", "dots1", "glm4_moe", "nemotron_h")
"""Those of sigmoids, with a bias that balances the load and groups of experts."""


def numerics_of(config: Config, shape: dict[str, Any]) -> dict[str, Any] | None:
    """Fields of a NumericsSpec that a configuration says; None where it says nothing of them."""
    kind = str(config.get("model_type"))
    found: dict[str, Any] = {"norm_epsilon": first_of(config, _EPSILON)}
    activation = first_of(config, _ACTIVATION)
    if isinstance(activation, str):
        found["activation"] = ACTIVATIONS.get(activation, "other")
    if kind == "gpt_oss":
        # Whatever hidden_act says.
        found["activation"] = "clamped-quick-gelu"
    if not shape.get("learned_positions") and _rotates(config, kind):
        found |= _rope(config, shape)
    if shape.get("experts"):
        found["router"] = _router(config, kind)
    said = {key: value for key, value in found.items() if value is not None}
    return said or None


def _rotates(config: Config, kind: str) -> bool:
    """False where attention has no positions, whatever base a configuration names: layers with a state tell them."""
    if kind == "granitemoehybrid":
        return config.get("position_embedding_type") == "rope"
    return (
        bool(config.get("use_mem_rope")) if kind == "zamba2" else kind not in ("jamba", "nemotron_h", "zamba")
    )


def _rope(config: Config, shape: dict[str, Any]) -> dict[str, Any]:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    narrow: Config = {}
    if isinstance(whole := given.get("full_attention"), dict):
        given, narrow = whole, given.get("sliding_attention") or {}
    both = {**config, **{key: each for key, each in given.items() if each is not None}}
    base, own = first_of(both, _BASE), narrow.get("rope_theta") or config.get("rope_local_base_freq")
    found = {
        "rope_base": base,
        "rope_window_base": own if shape.get("window") and own != base else None,
        "rope_share": None if shape.get("latent") else first_of(both, _SHARE),
        "rope_skips": _skips(config),
    }
    named = given.get("rope_type", given.get("type"))
    if named not in _UNSCALED:
        kind = _SCALINGS.get(str(named), "other")
        keys = {ours: given[key] for key, ours in _SCALED.items() if given.get(key) is not None}
        found["rope_scaling"] = {
            "kind": kind,
            **{k: v for k, v in keys.items() if k in _OWN_KEYS.get(kind, ())},
        }
    return found


def _skips(config: Config) -> int | None:
    """n where every n-th layer has no positions; a list says of each layer whether it has them."""
    listed = config.get("no_rope_layers")
    if not isinstance(listed, list) or 0 not in listed:
        every = config.get("no_rope_layer_interval")
        return every if isinstance(every, int) and not listed and every > 1 else None
    every = listed.index(0) + 1
    regular = all(bool(has) == bool((index + 1) % every) for index, has in enumerate(listed))
    return every if regular else None


def _router(config: Config, kind: str) -> dict[str, Any] | None:
    """Of types whose router is known."""
    if kind in ("mixtral", "gpt_oss", "granitemoe"):
        return {}
    if kind in ("jamba", *_SOFTMAX):
        return {"normalised": bool(config.get("norm_topk_prob", False))}
    if kind == "minimax_m2":
        return {"score": "sigmoid", "bias": True}
    if kind == "llama4_text":
        return {"score": "sigmoid", "normalised": False}
    if kind not in _BIASED:
        return None
    groups, chosen = config.get("n_group"), config.get("topk_group")
    grouped = {"groups": groups, "top_groups": chosen} if groups and groups != 1 and chosen else {}
    normalised, scale = bool(config.get("norm_topk_prob", True)), config.get("routed_scaling_factor") or 1.0
    return {"score": "sigmoid", "bias": True, "normalised": normalised, "scale": scale, **grouped}
