"""How the shape of a model follows from a Hugging Face configuration, by its ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

Config = dict[str, Any]
Shape = dict[str, Any]

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERT_PICKS = ("num_experts_per_tok", "moe_topk", "moe_k")
COMMON = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, slots=True)
class Family:
    """One value of ``model_type``."""

    build: Callable[[Config], Shape]
    """Fields of a ModelSpec without its name and training."""
    needed: tuple[str, ...] = COMMON
    """Keys that must be whole numbers of their range."""
    unlike: Callable[[Config], Iterator[tuple[str, str]]] | None = None
    """(key, what it is) of what a model by its shape cannot hold yet."""
    experts: bool = False
    """True when its feed-forwards are experts."""


def first_of(config: Config, keys: tuple[str, ...]) -> Any:
    """The value of the first of several keys that has one."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _llama(
    config: Config,
    *,
    tied: bool = False,
    out_bias: str | None = "attention_bias",
    qkv_bias: str | bool = "attention_bias",
    mlp_bias: str | None = "mlp_bias",
    width: int | None = None,
    window: int = 0,
    **fields: Any,
) -> Shape:
    """Separate projections, two norms, a gated feed-forward; ``fields`` replace what the keys say.

    Biases are named by the key that switches them. ``window`` is n where all but every n-th layer have a sliding
    window, 1 for all, 0 for none.
    """
    heads = config["num_attention_heads"]
    shape = {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or width or config["hidden_size"] // heads,
        # Where all feed-forwards are experts, some have no other width.
        "ffn": config.get("intermediate_size") or config.get("moe_intermediate_size"),
        "gated_mlp": True,
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "qkv_bias": qkv_bias if isinstance(qkv_bias, bool) else bool(config.get(qkv_bias, False)),
        "output_bias": bool(out_bias and config.get(out_bias, False)),
        "mlp_bias": bool(mlp_bias and config.get(mlp_bias, False)),
    }
    return {**shape, **_windows(config, window), **fields}


def _windows(config: Config, every: int) -> Shape:
    """Sliding windows, where some of the layers have one that is switched on."""
    window, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if not isinstance(window, int) or window < 1 or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        narrow = sum(kind == "sliding_attention" for kind in kinds)
    elif config.get("use_sliding_window") and isinstance(config.get("max_window_layers"), int):
        narrow = max(0, layers - int(config["max_window_layers"]))
    else:
        every = config.get("sliding_window_pattern") or every
        narrow = (
            0
            if not isinstance(every, int) or every < 1
            else layers
            if every == 1
            else layers - layers // every
        )
    if not narrow:
        return {}
    return {"window": window, **({"window_layers": narrow} if narrow < layers else {})}


def _experts(config: Config, **fields: Any) -> Shape:
    return {
        "number": first_of(config, EXPERT_COUNTS),
        "top_k": first_of(config, EXPERT_PICKS),
        "ffn": config.get("moe_intermediate_size") or config["intermediate_size"],
        **fields,
    }


def _sparse(config: Config, *, experts: Callable[[Config], Shape] = _experts, **more: Any) -> Shape:
    """A Llama whose feed-forwards are experts."""
    return _llama(config, experts=experts(config), **more)


def _shared(config: Config) -> Shape:
    """Experts with shared ones of the same width, counted."""
    one = config.get("moe_intermediate_size") or config["intermediate_size"]
    return _experts(
        config, shared_ffn=one * int(first_of(config, ("n_shared_experts", "moe_num_shared_experts")) or 0)
    )


def _latent(config: Config, **more: Any) -> Shape:
    """Multi-head latent attention."""
    rope = config["qk_rope_head_dim"]
    latent = {
        "q_rank": config.get("q_lora_rank"),
        "kv_rank": config["kv_lora_rank"],
        "rope_dim": rope,
        "value_dim": config["v_head_dim"],
    }
    heads = config["num_attention_heads"]
    plain = {"kv_heads": heads, "head_dim": config["qk_nope_head_dim"] + rope, "latent": latent}
    return _llama(config, **plain, **more)


LATENT = (*COMMON, "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


def _deepseek(config: Config) -> Shape:
    return _latent(config, experts=_shared(config))


def _glm_moe(config: Config) -> Shape:
    return _llama(config, out_bias=None, experts=_shared(config), qk_norm=bool(config.get("use_qk_norm")))


def _ernie_moe(config: Config) -> Shape:
    """The router has a correction for each expert, which counts like a bias."""
    bias = bool(config.get("use_bias", False))
    experts = {**_shared(config), "router_bias": True}
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bias, "head_bias": bias}
    return {**_llama(config, tied=True, experts=experts), **biases}


def _qwen2_moe(config: Config) -> Shape:
    shared = config.get("shared_expert_intermediate_size") or 0
    experts = _experts(config, shared_ffn=shared, shared_gate=shared > 0)
    return _llama(config, qkv_bias=bool(config.get("qkv_bias", True)), out_bias=None, experts=experts)


def _gpt_oss(config: Config) -> Shape:
    experts = _experts(config, router_bias=True, bias=True)
    bias = bool(config.get("attention_bias", True))
    shape = _llama(config, width=64, window=2, experts=experts, sinks=True, qkv_bias=bias)
    return {**shape, "output_bias": bias}


def _granite_shared(config: Config) -> Shape:
    shared = config.get("shared_intermediate_size") or 0
    return _llama(config, experts=_experts(config, shared_ffn=shared))


def _phimoe(config: Config) -> Shape:
    return _sparse(config, norm="layer", head_bias=bool(config.get("lm_head_bias", False)))


def mixed_dense(config: Config) -> Iterator[tuple[str, str]]:
    """Layers that have no experts, behind or between those that have."""
    if config.get("decoder_sparse_step", 1) != 1:
        yield "decoder_sparse_step", "layers without experts between those with experts"
    for key in ("moe_layer_freq", "moe_layer_interval"):
        if isinstance(config.get(key), int) and config[key] != 1:
            yield key, "layers without experts between those with experts"
    end = config.get("moe_layer_end_index")
    if isinstance(end, int) and 0 <= end < int(config.get("num_hidden_layers") or 0) - 1:
        yield "moe_layer_end_index", "dense layers other than ahead of those with experts"
    for key, dense in _dense_layers(config):
        if dense != list(range(len(dense))) or len(dense) >= int(config.get("num_hidden_layers") or 0):
            yield key, "dense layers other than ahead of those with experts"
        elif dense and config.get("sliding_window") and config.get("use_sliding_window") is not False:
            yield key, "dense layers ahead of those with experts, with sliding windows"


def _dense_layers(config: Config) -> Iterator[tuple[str, list[int]]]:
    """(key, layers without experts) of every key that names some."""
    for key in ("first_k_dense_replace", "moe_layer_start_index"):
        first = config.get(key)
        if isinstance(first, int):
            yield key, list(range(first))
    listed = config.get("mlp_only_layers")
    if isinstance(listed, list):
        yield "mlp_only_layers", sorted(listed)
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        yield "mlp_layer_types", [index for index, kind in enumerate(kinds) if kind == "dense"]


def with_dense_layers(shape: Shape, config: Config) -> Shape:
    """The shape with the dense layers ahead of its experts, which are not among its ``layers``."""
    ahead = max((len(dense) for _, dense in _dense_layers(config)), default=0)
    if not shape.get("experts") or not ahead:
        return shape
    return {**shape, "layers": shape["layers"] - ahead, "dense_layers": ahead}


def _internlm3(config: Config) -> Shape:
    return _llama(config, qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias")


def _cohere(config: Config, *, window: int = 0) -> Shape:
    norm: Shape = {"norm": "rms", "layer_norms": 1}
    if config.get("use_qk_norm"):
        norm["qk_norm"] = "whole"
    return _llama(config, tied=True, mlp_bias=None, window=window, **norm)


def _stablelm(config: Config) -> Shape:
    norms = 1 if config.get("use_parallel_residual") else 2
    return _llama(
        config, qkv_bias="use_qkv_bias", out_bias=None, mlp_bias=None, norm="layer", layer_norms=norms
    )


def _query_norms(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("qk_layernorm"):
        yield "qk_layernorm", "norms of queries and keys with shifts"


def _hyperclovax(config: Config) -> Shape:
    return _llama(config, layer_norms=4 if config.get("use_post_norm") else 2)


def _plain(config: Config, **more: Any) -> Shape:
    return _llama(config, gated_mlp=False, **more)


def _gpt2(config: Config) -> Shape:
    hidden = config["n_embd"]
    return {
        "layers": config["n_layer"],
        "hidden": hidden,
        "heads": config["n_head"],
        "ffn": config.get("n_inner") or 4 * hidden,
        "vocab": config["vocab_size"],
        "learned_positions": config["n_positions"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _gpt_bigcode(config: Config) -> Shape:
    return {**_gpt2(config), "kv_heads": 1 if config.get("multi_query", True) else config["n_head"]}


def _gptj(config: Config) -> Shape:
    more = {
        "layer_norms": 1,
        "qkv_bias": False,
        "output_bias": False,
        "head_bias": True,
        "learned_positions": 0,
    }
    return {**_gpt2(config), **more, "tied_embeddings": bool(config.get("tie_word_embeddings", False))}


def _gpt_neo(config: Config) -> Shape:
    hidden, kinds = config["hidden_size"], config.get("attention_layers")
    local = kinds.count("local") if isinstance(kinds, list) else config["num_layers"] // 2
    window = config.get("window_size", 256)
    return {
        "layers": config["num_layers"],
        "hidden": hidden,
        "heads": config["num_heads"],
        "ffn": config.get("intermediate_size") or 4 * hidden,
        "vocab": config["vocab_size"],
        "learned_positions": config["max_position_embeddings"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "qkv_bias": False,
        **({"window": window, "window_layers": local} if local and window else {}),
    }


def _gpt_neox(config: Config) -> Shape:
    bias = bool(config.get("attention_bias", True))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": bias,
        "output_bias": bias,
    }


def _opt(config: Config) -> Shape:
    hidden = config["hidden_size"]
    biased = bool(config.get("enable_bias", True))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": hidden,
        "heads": config["num_attention_heads"],
        "ffn": config["ffn_dim"],
        "vocab": config["vocab_size"],
        "embedding_width": config.get("word_embed_proj_dim") or hidden,
        "learned_positions": config["max_position_embeddings"] + _POSITION_OFFSET,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "final_norm": bool(config.get("do_layer_norm_before", True)),
        "qkv_bias": biased,
        "output_bias": biased,
        "mlp_bias": biased,
    }


_POSITION_OFFSET = 2
"""The tables of OPT and BioGPT start with two rows that no position uses."""


def _biogpt(config: Config) -> Shape:
    positions = config["max_position_embeddings"] + _POSITION_OFFSET
    tied = bool(config.get("tie_word_embeddings", True))
    own = {"learned_positions": positions, "embedding_norm": False, "tied_embeddings": tied}
    return {**_encoder(config, 0), **_DECODER, **own}


def _bloom(config: Config) -> Shape:
    return {
        "layers": config["n_layer"],
        "hidden": config["hidden_size"],
        "heads": config["n_head"],
        "vocab": config["vocab_size"],
        "embedding_norm": True,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _falcon(config: Config) -> Shape:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    new, parallel = config.get("new_decoder_architecture"), config.get("parallel_attn", True)
    pairs = config.get("num_kv_heads") or heads if new else 1 if config.get("multi_query", True) else heads
    two = not parallel or (new and config.get("num_ln_in_parallel_attn") in (None, 2))
    bias = bool(config.get("bias", False))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": pairs,
        "ffn": config.get("ffn_hidden_size") or 4 * hidden,
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "layer_norms": 2 if two else 1,
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
    }


def _encoder(config: Config, token_types: int) -> Shape:
    return {
        "kind": "encoder",
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "learned_positions": config["max_position_embeddings"],
        "token_types": config.get("type_vocab_size", token_types),
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
    }


_DECODER = {"kind": "decoder", "final_norm": True, "head_transform": False, "head_bias": False}


def _distilbert(config: Config) -> Shape:
    names = {
        "num_hidden_layers": "n_layers",
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
    }
    return _encoder({**config, **{name: config[key] for name, key in names.items()}}, 0)


def _encoder_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("is_decoder"):
        yield "is_decoder", "encoders as decoders"
    if config.get("use_task_id"):
        yield "use_task_id", "embeddings of task types"
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "encoders with an output layer of their own"


def _phi(config: Config) -> Shape:
    heads = config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "layer_norms": 1,
        "head_bias": True,
    }


_BERT = Family(partial(_encoder, token_types=2), (*COMMON, "max_position_embeddings"), _encoder_unlike)
_SPARSE = partial(Family, unlike=mixed_dense, experts=True)
_GPT2 = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")

FAMILIES: dict[str, Family] = {
    "arcee": Family(partial(_plain, norm="rms")),
    "aria_text": _SPARSE(partial(_sparse, experts=_shared)),
    "bert": _BERT,
    "biogpt": Family(_biogpt, (*COMMON, "max_position_embeddings")),
    "bloom": Family(_bloom, ("n_layer", "hidden_size", "n_head", "vocab_size")),
    "camembert": _BERT,
    "cohere": Family(_cohere),
    "cohere2": Family(partial(_cohere, window=4)),
    "cwm": Family(partial(_llama, window=4)),
    "deepseek_v2": _SPARSE(_deepseek, LATENT),
    "deepseek_v3": _SPARSE(_deepseek, LATENT),
    "distilbert": Family(
        _distilbert,
        ("n_layers", "dim", "n_heads", "hidden_dim", "max_position_embeddings", "vocab_size"),
        _encoder_unlike,
    ),
    "ernie": _BERT,
    "dots1": _SPARSE(partial(_sparse, experts=_shared, qk_norm=True)),
    "ernie4_5_moe": _SPARSE(_ernie_moe),
    "ernie4_5": Family(
        partial(_llama, tied=True, width=128, qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias")
    ),
    "exaone4": Family(partial(_llama, qk_norm=True, window=4)),
    "falcon": Family(_falcon, ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")),
    "flex_olmo": _SPARSE(partial(_sparse, qk_norm="whole")),
    "gemma": Family(partial(_llama, tied=True, width=256)),
    "gemma2": Family(partial(_llama, tied=True, width=256, layer_norms=4, window=2)),
    "gemma3_text": Family(partial(_llama, tied=True, width=256, layer_norms=4, qk_norm=True, window=6)),
    "glm": Family(partial(_llama, width=128, out_bias=None)),
    "glm4": Family(partial(_llama, width=128, out_bias=None, layer_norms=4)),
    "glm4_moe": _SPARSE(_glm_moe),
    "glm4_moe_lite": _SPARSE(_deepseek, LATENT),
    "gpt_bigcode": Family(_gpt_bigcode, _GPT2),
    "gpt_neo": Family(
        _gpt_neo, ("num_layers", "hidden_size", "num_heads", "max_position_embeddings", "vocab_size")
    ),
    "gpt_neox": Family(_gpt_neox),
    "gpt_oss": _SPARSE(_gpt_oss),
    "gpt2": Family(_gpt2, _GPT2),
    "gptj": Family(_gptj, _GPT2),
    "codegen": Family(_gptj, _GPT2),
    "granite": Family(_llama),
    "granite_swa": Family(partial(_llama, sinks=True, window=2)),
    "granitemoe": _SPARSE(_sparse),
    "granitemoeshared": _SPARSE(_granite_shared),
    "helium": Family(partial(_llama, width=128, out_bias=None)),
    "hunyuan_v1_dense": Family(partial(_llama, qk_norm=True)),
    "hyperclovax": Family(_hyperclovax),
    "internlm3": Family(_internlm3),
    "iquestcoder": Family(_llama),
    "jais2": Family(partial(_plain, norm="layer")),
    "llama": Family(_llama),
    "mellum": _SPARSE(partial(_sparse, qk_norm=True)),
    "minicpm3": Family(partial(_latent, tied=True), LATENT),
    "minimax_m2": _SPARSE(partial(_sparse, qk_norm="whole")),
    "ministral": Family(partial(_llama, window=1)),
    "ministral3": Family(partial(_llama, window=1)),
    "mistral": Family(partial(_llama, window=1)),
    "mixtral": _SPARSE(partial(_sparse, window=1)),
    "nanochat": Family(partial(_plain, norm="plain")),
    "nemotron": Family(partial(_plain, norm="layer")),
    "olmo": Family(partial(_llama, norm="plain")),
    "olmo2": Family(partial(_llama, qk_norm="whole")),
    "olmo3": Family(partial(_llama, qk_norm="whole", window=4)),
    "olmoe": _SPARSE(partial(_sparse, qk_norm="whole")),
    "opt": Family(
        _opt,
        (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "ffn_dim",
            "max_position_embeddings",
            "vocab_size",
        ),
    ),
    "phi": Family(_phi, COMMON, _query_norms),
    "phi3": Family(partial(_llama, window=1)),
    "phimoe": _SPARSE(_phimoe),
    "qwen2": Family(partial(_llama, qkv_bias=True, out_bias=None)),
    "qwen2_moe": _SPARSE(_qwen2_moe),
    "qwen3": Family(partial(_llama, width=128, qk_norm=True)),
    "qwen3_moe": _SPARSE(partial(_sparse, qk_norm=True)),
    "roberta": _BERT,
    "seed_oss": Family(partial(_llama, width=128, out_bias="attention_out_bias")),
    "smollm3": Family(partial(_llama, tied=True)),
    "solar_open": _SPARSE(
        partial(_sparse, experts=_shared), (*COMMON[:3], "moe_intermediate_size", "vocab_size")
    ),
    "stablelm": Family(_stablelm, COMMON, _query_norms),
    "starcoder2": Family(
        partial(
            _plain,
            tied=True,
            qkv_bias="use_bias",
            out_bias="use_bias",
            mlp_bias="use_bias",
            norm="layer",
            window=1,
        )
    ),
    "vaultgemma": Family(partial(_llama, tied=True, width=256, window=2)),
    "xlm-roberta": _BERT,
    "youtu": Family(partial(_latent, tied=True), LATENT),
}
"""What is read, by ``model_type``."""
