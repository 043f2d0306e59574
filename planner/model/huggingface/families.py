"""Shapes of decoders and of BERT from their Hugging Face configurations, by ``model_type``; what all families share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from planner.files.messages import shown
from planner.ranges import LAYERS

Config = dict[str, Any]
Shape = dict[str, Any]

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERT_PICKS = ("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token")
SHARED_COUNTS = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts")
COMMON = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelType:
    """One value of ``model_type``."""

    build: Callable[[Config], Shape]
    """Fields of a ModelSpec without its name and training."""
    needed: tuple[str, ...] = COMMON
    """Keys that must be whole numbers of their range."""
    unlike: Callable[[Config], Iterator[tuple[str, str]]] | None = None
    """(key, what it is) of what a model by its shape cannot hold yet; dots lead to keys of a configuration inside."""
    experts: bool = False
    """True when its feed-forwards are experts."""
    any_experts: bool = False
    """True when they may be."""
    parts: tuple[tuple[str, str], ...] = ()
    """(key, ``model_type``) of configurations inside it."""
    listed: tuple[str, ...] = ()
    """Keys that have a number for every layer."""
    contrary: Callable[[Config], Iterator[tuple[str, str]]] | None = None
    """(key, what was expected of it) of what contradicts other keys, so that transformers builds no such model; dots
    as above."""


def first_of(config: Config, keys: tuple[str, ...]) -> Any:
    """The value of the first of several keys that has one."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def llama(
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


def sparse_llama(config: Config, *, experts: Callable[[Config], Shape] = _experts, **more: Any) -> Shape:
    """A Llama whose feed-forwards are experts."""
    return llama(config, experts=experts(config), **more)


def shared_experts(config: Config, **fields: Any) -> Shape:
    """Experts with shared ones of the same width, counted."""
    one = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    return _experts(config, shared_ffn=one * int(first_of(config, SHARED_COUNTS) or 0), **fields)


def latent_shape(config: Config, **more: Any) -> Shape:
    """Multi-head latent attention."""
    rope, heads = config["qk_rope_head_dim"], config["num_attention_heads"]
    latent = {
        "q_rank": config.get("q_lora_rank"),
        "kv_rank": config["kv_lora_rank"],
        "rope_dim": rope,
        "value_dim": config.get("v_head_dim") or config["hidden_size"] // heads,
    }
    plain = {"kv_heads": heads, "head_dim": config["qk_nope_head_dim"] + rope, "latent": latent}
    return llama(config, **plain, **more)


LATENT = (*COMMON, "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


def deepseek(config: Config) -> Shape:
    """Multi-head latent attention, and experts with shared ones."""
    return latent_shape(config, experts=shared_experts(config))


def _glm_moe(config: Config) -> Shape:
    return llama(
        config, out_bias=None, experts=shared_experts(config), qk_norm=bool(config.get("use_qk_norm"))
    )


def _ernie_moe(config: Config) -> Shape:
    """The router has a correction for each expert, which counts like a bias."""
    bias = bool(config.get("use_bias", False))
    experts = {**shared_experts(config), "router_bias": True}
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bias, "head_bias": bias}
    return {**llama(config, tied=True, experts=experts), **biases}


def _qwen2_moe(config: Config) -> Shape:
    shared = config.get("shared_expert_intermediate_size") or 0
    experts = _experts(config, shared_ffn=shared, shared_gate=shared > 0)
    return llama(config, qkv_bias=bool(config.get("qkv_bias", True)), out_bias=None, experts=experts)


def _gpt_oss(config: Config) -> Shape:
    experts = _experts(config, router_bias=True, bias=True)
    bias = bool(config.get("attention_bias", True))
    shape = llama(config, width=64, window=2, experts=experts, sinks=True, qkv_bias=bias)
    return {**shape, "output_bias": bias}


def _granite_shared(config: Config) -> Shape:
    shared = config.get("shared_intermediate_size") or 0
    return llama(config, experts=_experts(config, shared_ffn=shared))


def _phimoe(config: Config) -> Shape:
    return sparse_llama(config, norm="layer", head_bias=bool(config.get("lm_head_bias", False)))


def mixed_dense(config: Config) -> Iterator[tuple[str, str]]:
    """Layers without experts among those that have, where it is not clear which they are."""
    given = config.get("moe_layer_freq")
    if given is not None and given != 1 and not (isinstance(given, list) and {*given} == {1}):
        yield "moe_layer_freq", "layers without experts between those with experts by frequency"


_DENSE_AHEAD = {
    **dict.fromkeys(("axk1", "glm4_moe_lite", "hy_v3", "laguna", "unlimited_ocr_text"), 1),
    "flint": 2,
    "beam": 3,
}
"""Layers without experts ahead of the others, of types whose configurations need not say so."""


def _dense_layers(config: Config) -> Iterator[tuple[str, list[int]]]:
    """(key, layers without experts) of every key that names some; what says it of each layer goes ahead of all."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        yield "mlp_layer_types", [index for index, kind in enumerate(kinds) if kind == "dense"]
        return
    count = config.get("num_hidden_layers")
    layers = range(count if isinstance(count, int) and LAYERS.holds(count) else 0)
    step = config.get("decoder_sparse_step", 1)
    if isinstance(step, int) and step > 1:
        yield "decoder_sparse_step", [index for index in layers if (index + 1) % step]
    step = config.get("moe_layer_interval")
    if isinstance(step, int) and step > 1:
        yield "moe_layer_interval", [index for index in layers if (index + 1) % step]
    end = config.get("moe_layer_end_index")
    if isinstance(end, int) and end >= 0:
        yield "moe_layer_end_index", [index for index in layers if index > end]
    for key in ("first_k_dense_replace", "moe_layer_start_index"):
        first = config.get(key)
        if isinstance(first, int):
            yield key, [index for index in layers if index < first]
    ahead = _DENSE_AHEAD.get(str(config.get("model_type")), 0)
    if config.get("first_k_dense_replace") is None and config.get("mlp_only_layers") is None:
        yield "model_type", [index for index in layers if index < ahead]
    first = config.get("num_dense_layers")
    if isinstance(first, int) and config.get("model_type") == "afmoe":
        yield "num_dense_layers", [index for index in layers if index < first]
    listed = config.get("mlp_only_layers")
    if isinstance(listed, list):
        yield "mlp_only_layers", [index for index in layers if index in listed]


Sizes = tuple[tuple[str, Any], ...]
Kind = tuple[str, str] | tuple[str, str, Sizes]
"""(mixer, feed-forward, sizes that are not those of the model) of a layer."""


def with_runs(shape: Shape, config: Config, mixers: Sequence[str] | None = None) -> Shape:
    """The shape with runs of unlike layers: those without experts among those that have, and what ``mixers`` names."""
    dense = {index for _, indices in _dense_layers(config) for index in indices}
    experts = bool(shape.get("experts"))
    if mixers is None and (not experts or not dense):
        return shape
    given = mixers or ["attention"] * int(shape["layers"])
    feeds = ["experts" if experts and index not in dense else "dense" for index in range(len(given))]
    return in_blocks(shape, list(zip(given, feeds, strict=True)))


def in_blocks(shape: Shape, kinds: Sequence[Kind]) -> Shape:
    """The shape of these layers in order: the shortest blocks that repeat, and what is left over at either end.

    A stage holds whole blocks, the first and the last one the ends besides: the least of what any stage must hold.
    """
    total = len(kinds)
    best: tuple[int, int, int, int] | None = None
    for length in range(1, total + 1):
        if best is not None and length > best[0]:
            break
        for start in range(min(total - length, total // 2) + 1):
            alike = next(
                (end for end in range(start + length, total) if kinds[end] != kinds[end - length]), total
            )
            blocks = (alike - start) // length
            rest = total - start - blocks * length
            largest = length + (start + rest if blocks == 1 else max(start, rest))
            if best is None or (largest, length, start) < best[:3]:
                best = (largest, length, start, blocks)
    if best is None:
        raise ValueError("layers")
    _, length, start, blocks = best
    end = start + blocks * length
    # What no layer has is not of the model.
    mixers, routed = {mixer for mixer, *_ in kinds}, "experts" in {feeds for _, feeds, *_ in kinds}
    idle = {*(() if mixers & {"state", "both"} else ("state",)), *(() if routed else ("experts",))}
    shape = {key: each for key, each in shape.items() if key not in idle}
    if len(set(kinds)) == 1:
        mixer, feeds, *sizes = kinds[0]
        own: Shape = {} if mixer == "attention" else {"mixer": mixer}
        own |= dict(sizes[0]) if sizes else {}
        if own.get("window") == 0:
            own["window"] = None
        if feeds == "none":
            own["feed_forward"] = feeds
        return {**shape, **own, "layers": total}
    ahead, others = set(kinds[:start]), set(kinds[start:])
    if ahead == {("attention", "dense")} and others == {("attention", "experts")}:
        return {**shape, "layers": blocks, "dense_layers": start}
    runs = {"ahead": kinds[:start], "block": kinds[start : start + length], "behind": kinds[end:]}
    parts = {name: tuple(_runs(part)) for name, part in runs.items() if part}
    return {**shape, "layers": blocks, **parts}


def _runs(kinds: Sequence[Kind]) -> Iterator[Shape]:
    for (mixer, feeds, *sizes), same in groupby(kinds):
        yield {
            "layers": len(list(same)),
            "mixer": mixer,
            "feed_forward": feeds,
            **dict(sizes[0] if sizes else ()),
        }


_MIXERS = {
    **dict.fromkeys(("linear_attention", "mamba", "conv", "recurrent"), "state"),
    **dict.fromkeys(("full_attention", "sliding_attention", "attention"), "attention"),
}
"""Mixer by the name of a layer's type."""


def mixers_of(config: Config, *, every: int = 0) -> list[str]:
    """What mixes tokens in each layer; unsaid, all but every n-th carry a state."""
    types = first_of(config, ("layer_types", "layers_block_type"))
    if isinstance(types, list):
        return [_MIXERS[str(each)] for each in types]
    layers = range(config["num_hidden_layers"])
    listed = first_of(config, ("attn_layer_indices", "full_attn_idxs"))
    if isinstance(listed, list):
        return ["attention" if index in listed else "state" for index in layers]
    period = first_of(config, ("attn_layer_period", "full_attention_interval")) or every
    offset = config.get("attn_layer_offset", period - 1)
    return ["attention" if period and index % period == offset else "state" for index in layers]


def _unknown_types(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("layer_types", "layers_block_type"):
        types = config.get(key)
        strange = sorted({str(each) for each in types} - {*_MIXERS}) if isinstance(types, list) else []
        if strange:
            yield key, f'layers of type "{strange[0]}"'
        elif isinstance(types, list) and len(types) != config.get("num_hidden_layers"):
            yield key, "other numbers of types than of layers"


def mamba2_state(config: Config) -> Shape:
    """The state of Mamba 2, as its many configurations name it."""
    inner = config.get("mamba_d_ssm") or int(config.get("mamba_expand", 2) * config["hidden_size"])
    heads = config["mamba_n_heads"]
    head_dim = config.get("mamba_d_head")
    return {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": head_dim if isinstance(head_dim, int) else inner // heads,
        "size": config["mamba_d_state"],
        "groups": config.get("mamba_n_groups", 1),
        "conv": config.get("mamba_d_conv", 4),
        "conv_bias": bool(config.get("mamba_conv_bias", True)),
        "bias": bool(config.get("mamba_proj_bias", False)),
        "chunk": config.get("mamba_chunk_size", 256),
    }


def _delta(config: Config) -> Shape:
    """Gated delta rule."""
    return {
        "kind": "delta",
        "heads": config["linear_num_value_heads"],
        "head_dim": config["linear_value_head_dim"],
        "groups": config["linear_num_key_heads"],
        "size": config["linear_key_head_dim"],
        "conv": config["linear_conv_kernel_dim"],
        "conv_bias": False,
        "chunk": 64,
    }


def _qwen_next(config: Config, *, sparse: bool) -> Shape:
    more: dict[str, Any] = {}
    if sparse:
        shared = config.get("shared_expert_intermediate_size") or 0
        more["experts"] = _experts(config, shared_ffn=shared, shared_gate=shared > 0)
    shape = llama(config, width=256, qk_norm=True, output_gate=True, out_bias="attention_bias", **more)
    return with_runs({**shape, "state": _delta(config)}, config, mixers_of(config, every=4))


def _lara(config: Config) -> Shape:
    """Gated delta rule, windows and full attention in turn; a shared expert beside the others."""
    shared = config.get("shared_expert_intermediate_size") or 0
    named = config.get("layer_types") or [_LARA[index % 5] for index in range(config["num_hidden_layers"])]
    filled = {**config, "layer_types": named}
    shape = llama(filled, tied=True, qk_norm=True, mlp_bias=None, experts=_experts(config, shared_ffn=shared))
    return with_runs({**shape, "state": _delta(config)}, filled, mixers_of(filled))


_LARA = (
    *("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"),
)
"""Its layers, five by five, where nobody says."""


def _olmo_hybrid(config: Config) -> Shape:
    shape = llama(config, qk_norm="whole", state=_delta(config))
    return with_runs(shape, config, mixers_of(config, every=4))


def _bamba(config: Config) -> Shape:
    shape = llama(config, state=mamba2_state(config))
    return with_runs(shape, config, mixers_of(config))


def _falcon_h1(config: Config) -> Shape:
    """Attention and a state side by side in every layer."""
    state = {**mamba2_state(config), "norm": bool(config.get("mamba_rms_norm", False))}
    shape = llama(config, state=state, out_bias="attention_bias")
    return {**shape, "mixer": "both"}


def _biased_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if bool(config.get("mamba_proj_bias")) != bool(config.get("projectors_bias")):
        yield "projectors_bias", "biases at one end of a state's projections"


def _granite_hybrid(config: Config) -> Shape:
    shared = config.get("shared_intermediate_size") or 0
    number = config.get("num_local_experts") or 0
    shape = llama(config, state=mamba2_state(config), mlp_bias=None)
    shape |= {"experts": _experts(config, shared_ffn=shared)} if number else {"ffn": shared}
    return with_runs(shape, config, mixers_of(config))


def mamba_state(config: Config, prefix: str = "", *, norm: bool) -> Shape:
    """The state of Mamba."""
    names = (
        ("mamba_d_state", "mamba_d_conv", "mamba_dt_rank")
        if prefix
        else (
            "state_size",
            "conv_kernel",
            "time_step_rank",
        )
    )
    size, conv, rank = (config.get(name) for name in names)
    hidden = config["hidden_size"]
    inner = int((config.get("mamba_expand" if prefix else "expand") or 2) * hidden)
    if not prefix:
        # Falcon Mamba's files have a factor of 16 beside the width, which is what counts.
        inner = config.get("intermediate_size") or inner
    biases = ("mamba_conv_bias", "mamba_proj_bias") if prefix else ("use_conv_bias", "use_bias")
    return {
        "kind": "mamba",
        "head_dim": inner,
        "size": size or 16,
        "rank": rank if isinstance(rank, int) else -(-hidden // 16),
        "conv": conv or 4,
        "conv_bias": bool(config.get(biases[0], True)),
        "bias": bool(config.get(biases[1], False)),
        "norm": norm,
        "chunk": 64,
    }


def _jamba(config: Config) -> Shape:
    experts: dict[str, Any] = {"experts": _experts(config)} if (config.get("num_experts") or 1) > 1 else {}
    shape = llama(
        config, state=mamba_state(config, "mamba", norm=True), mlp_bias=None, out_bias=None, **experts
    )
    period, offset = config.get("expert_layer_period", 2), config.get("expert_layer_offset", 1)
    mixers = mixers_of({"attn_layer_period": 8, "attn_layer_offset": 4, **config})
    routed = [bool(experts) and index % period == offset for index in range(len(mixers))]
    feeds = ["experts" if each else "dense" for each in routed]
    return in_blocks(shape, list(zip(mixers, feeds, strict=True)))


def _states_alone(config: Config, state: Shape) -> Shape:
    """Layers of a state and nothing else."""
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": state.get("heads", 1),
        "head_dim": state["head_dim"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "norm": "rms",
        "layer_norms": 1,
        "mixer": "state",
        "feed_forward": "none",
        "state": state,
    }


def _mamba(config: Config) -> Shape:
    return _states_alone(config, mamba_state(config, norm=False))


def _mamba2(config: Config) -> Shape:
    state = {
        "kind": "mamba2",
        "heads": config["num_heads"],
        "head_dim": config["head_dim"],
        "size": config["state_size"],
        "groups": config.get("n_groups", 1),
        "conv": config.get("conv_kernel", 4),
        "conv_bias": bool(config.get("use_conv_bias", True)),
        "bias": bool(config.get("use_bias", False)),
        "chunk": config.get("chunk_size", 256),
    }
    shape = _states_alone(config, state)
    return {**shape, "tied_embeddings": bool(config.get("tie_word_embeddings", False))}


_NEMOTRON: dict[str, Kind] = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), ("state", "none")),
    **dict.fromkeys(("*", "attention", "full_attention"), ("attention", "none")),
    **dict.fromkeys(("-", "mlp"), ("none", "dense")),
    **dict.fromkeys(("E", "moe"), ("none", "experts")),
}
"""Layers of Nemotron-H by their letter or name: a mixer or a feed-forward each."""


def _nemotron_kinds(config: Config) -> list[str]:
    kinds = first_of(config, ("hybrid_override_pattern", "layers_block_type", "layer_types"))
    return [str(each) for each in kinds] if isinstance(kinds, str | list) else []


def _nemotron_h(config: Config) -> Shape:
    kinds = [_NEMOTRON[each] for each in _nemotron_kinds(config)]
    bias = bool(config.get("use_bias", False))
    state = {
        "kind": "mamba2",
        "heads": config["mamba_num_heads"],
        "head_dim": config["mamba_head_dim"],
        "size": config["ssm_state_size"],
        "groups": config.get("n_groups", 8),
        "conv": config.get("conv_kernel", 4),
        "conv_bias": bool(config.get("use_conv_bias", True)),
        "bias": bias,
        "chunk": config.get("chunk_size", 128),
    }
    more: Shape = {}
    if any("experts" in kind for kind in kinds):
        # One shared expert, however many the configuration names.
        shared = config.get("moe_shared_expert_intermediate_size") or 0
        more["experts"] = _experts(config, hidden=config.get("moe_latent_size"), shared_ffn=shared)
    layers = {**config, "num_hidden_layers": len(kinds)}
    biases: dict[str, Any] = {"qkv_bias": False, "out_bias": None}
    shape = llama(layers, width=128, gated_mlp=False, norm="rms", state=state, **biases, **more)
    # Its output layer is never tied, whatever the configuration says.
    return in_blocks({**shape, "tied_embeddings": False}, kinds)


def _nemotron_unlike(config: Config) -> Iterator[tuple[str, str]]:
    kinds = _nemotron_kinds(config)
    strange = sorted({str(each) for each in kinds} - {*_NEMOTRON})
    if strange or not kinds:
        yield "hybrid_override_pattern", f'layers of type "{strange[0]}"' if strange else "layers of no type"
    if config.get("moe_latent_size") and config.get("mlp_bias"):
        yield "moe_latent_size", "experts of a latent width with biases"


def _lfm2(config: Config) -> Shape:
    """Short convolutions beside attention; the feed-forward is two thirds of what is given, rounded up."""
    ffn = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim", True):
        ffn = int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * ffn / 3))
        step = config.get("block_multiple_of", 256)
        ffn = -(-ffn // step) * step
    return _with_convolutions({**config, "intermediate_size": ffn})


def _with_convolutions(config: Config, **more: Any) -> Shape:
    state = {
        "kind": "conv",
        "head_dim": config["hidden_size"],
        "conv": config.get("conv_L_cache", 3),
        "conv_bias": bool(config.get("conv_bias", False)),
        "bias": bool(config.get("conv_bias", False)),
        "norm": False,
    }
    shape = llama(config, tied=True, qk_norm=True, state=state, out_bias=None, mlp_bias=None, **more)
    return with_runs(shape, config, mixers_of(config))


def _lfm2_moe(config: Config) -> Shape:
    """The same with experts behind the first layers."""
    experts = _experts(config)
    dense = range(int(config.get("num_dense_layers", 2)))
    listed = {"mlp_only_layers": list(dense), **config}
    return _with_convolutions(listed, experts=experts)


def _llama4(config: Config) -> Shape:
    """Every n-th layer has experts; chunked attention is taken for full, which it is up to its 8,192 tokens."""
    layers, step = range(config["num_hidden_layers"]), config.get("interleave_moe_layer_step", 1)
    routed = config.get("moe_layers") or [index for index in layers if (index + 1) % step == 0]
    ffn = config["intermediate_size"]
    experts = {**_experts(config), "ffn": ffn, "shared_ffn": ffn}
    wide = {**config, "intermediate_size": config.get("intermediate_size_mlp") or ffn}
    shape = llama(wide, mlp_bias=None, experts=experts)
    return in_blocks(shape, [("attention", "experts" if index in routed else "dense") for index in layers])


def _mpt(config: Config) -> Shape:
    """Positions by a bias of the scores; norms have no shift."""
    hidden = config["d_model"]
    return {
        "layers": config["n_layers"],
        "hidden": hidden,
        "heads": config["n_heads"],
        "ffn": int(config.get("expansion_ratio", 4) * hidden),
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "norm": "rms",
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), False),
    }


def _mpt_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("no_bias") is False:
        yield "no_bias", "biases of this type"
    attention = config.get("attn_config")
    if isinstance(attention, dict) and attention.get("kv_n_heads") not in (None, config.get("n_heads")):
        yield "attn_config", "grouped queries of this type"


def _hybrid(*needed: str) -> tuple[str, ...]:
    return (*COMMON, *needed)


_DUALITY = ("mamba_n_heads", "mamba_d_state")
_DELTA = (
    *("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads"),
    *("linear_key_head_dim", "linear_conv_kernel_dim"),
)


def _internlm3(config: Config) -> Shape:
    return llama(config, qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias")


def _cohere(config: Config, *, window: int = 0) -> Shape:
    norm: Shape = {"norm": "rms", "layer_norms": 1}
    if config.get("use_qk_norm"):
        norm["qk_norm"] = "whole"
    return llama(config, tied=True, mlp_bias=None, window=window, **norm)


def stablelm(config: Config) -> Shape:
    """Norms of queries and keys are one for each head."""
    norms = 1 if config.get("use_parallel_residual") else 2
    more: Shape = {"qk_norm": "whole"} if config.get("qk_layernorm") else {}
    return llama(
        config, qkv_bias="use_qkv_bias", out_bias=None, mlp_bias=None, layer_norms=norms, norm="layer", **more
    )


def _query_norms(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("qk_layernorm"):
        yield "qk_layernorm", "norms of queries and keys with shifts"


def _hyperclovax(config: Config) -> Shape:
    return llama(config, layer_norms=4 if config.get("use_post_norm") else 2)


def _plain(config: Config, **more: Any) -> Shape:
    return llama(config, gated_mlp=False, **more)


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
        # SantaCoder, by a class of its own.
        **({"kv_heads": 1} if config.get("attention_head_type") == "multiquery" else {}),
    }


def _imagegpt(config: Config) -> Shape:
    """Colours of an image in place of words, of which the one that begins it is never predicted; no norm shifts."""
    ends = {"tied_embeddings": False, "labels": config["vocab_size"] - 1}
    return {**_gpt2(config), **ends, "norm": "rms"}


def _molmo2(config: Config) -> Shape:
    """Qwen 3, with further rows of its table for what no text has, which are never predicted."""
    whole: Shape = {"qk_norm": True if config.get("qk_norm_type", "qwen3") == "qwen3" else "whole"}
    rows = int(config.get("additional_vocab_size") or 0)
    shape = llama(config, width=128, out_bias=None, mlp_bias=None, **whole)
    return {**shape, "tied_embeddings": False, "other_parameters": rows * shape["hidden"]}


def _voxtral_text(config: Config) -> Shape:
    """Two thin matrices in each layer make a scale of how late it may hear."""
    return llama(config, tied=True, out_bias=None, window=1, attention_other=64 * config["hidden_size"])


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
        "final_norm": bool(config.get("do_layer_norm_before", True))
        and not config.get("_remove_final_layer_norm", False),
        "norm": "layer" if config.get("layer_norm_elementwise_affine", True) else "plain",
        "qkv_bias": biased,
        "output_bias": biased,
        "mlp_bias": biased,
    }


def _opt_unlike(config: Config) -> Iterator[tuple[str, str]]:
    names = config.get("architectures")
    whole = isinstance(names, list) and not all(str(name).endswith("ForCausalLM") for name in names)
    if config.get("word_embed_proj_dim") not in (None, config.get("hidden_size")):
        if config.get("tie_word_embeddings") is False:
            yield "word_embed_proj_dim", "embeddings of another width, with an output layer of its own,"
        if whole:
            yield "word_embed_proj_dim", "embeddings of another width without an output layer"


_POSITION_OFFSET = 2
"""The tables of OPT and BioGPT start with two rows that no position uses."""


def _biogpt(config: Config) -> Shape:
    positions = config["max_position_embeddings"] + _POSITION_OFFSET
    tied = bool(config.get("tie_word_embeddings", True))
    own = {"learned_positions": positions, "embedding_norm": False, "tied_embeddings": tied}
    return {**bert(config, 0), **_DECODER, **own}


def _bloom(config: Config) -> Shape:
    return {
        "layers": config["n_layer"],
        "hidden": config["hidden_size"],
        "heads": config["n_head"],
        "vocab": config["vocab_size"],
        "embedding_norm": True,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def falcon(config: Config) -> Shape:
    """Attention and feed-forward one behind the other, or side by side behind one norm or two."""
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


def bert(config: Config, token_types: int) -> Shape:
    """BERT, with so many types of tokens where its configuration does not say how many."""
    tasks = int(config.get("task_type_vocab_size", 3)) if config.get("use_task_id") else 0
    return {
        "kind": "encoder",
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "learned_positions": config["max_position_embeddings"],
        "token_types": config.get("type_vocab_size", token_types) + tasks,
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
    return bert({**config, **{name: config[key] for name, key in names.items()}}, 0)


def _encoder_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("is_decoder"):
        yield "is_decoder", "encoders as decoders"
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "encoders with an output layer of their own"


def _afmoe(config: Config) -> Shape:
    experts = shared_experts(config, router_bias=True)
    return llama(config, qk_norm=True, output_gate=True, layer_norms=4, window=4, experts=experts)


def _apertus(config: Config) -> Shape:
    """The nonlinearity of each layer has two parameters."""
    return _plain(config, norm="rms", qk_norm=True, attention_other=2)


def pruned(shape: Shape, outputs: int | None) -> Shape:
    """A model whose output layer has only the first rows of its table, unless both are one; absent, it has all."""
    if not outputs or shape["tied_embeddings"]:
        return shape
    others = shape.get("other_parameters", 0) + (shape["vocab"] - outputs) * shape["hidden"]
    return {**shape, "vocab": outputs, "other_parameters": others}


def _apertus_seen(config: Config) -> Shape:
    """The same with rows of its table for codes of images and sound, which need not be predicted."""
    return pruned(_apertus(config), config.get("output_vocab_size"))


def _apertus_contrary(config: Config) -> Iterator[tuple[str, str]]:
    outputs, rows = config.get("output_vocab_size"), config.get("vocab_size")
    if outputs is not None and not (type(outputs) is int and type(rows) is int and 1 <= outputs <= rows):
        yield (
            "output_vocab_size",
            f"expected a whole number from 1 to vocab_size {shown(rows)}, got {shown(outputs)}",
        )


def _bitnet(config: Config) -> Shape:
    """Norms ahead of the last product of attention and of the feed-forward."""
    return llama(config, attention_other=config["hidden_size"] + config["intermediate_size"])


def _cohere2_moe(config: Config) -> Shape:
    return llama(
        config, tied=True, mlp_bias=None, window=4, norm="rms", layer_norms=1, experts=shared_experts(config)
    )


def _prefix(config: Config) -> Iterator[tuple[str, str]]:
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and "dense" in kinds:
        yield "mlp_layer_types", "dense layers among those with experts of this type"
    yield from mixed_dense(config)


def _diffllama(config: Config) -> Shape:
    """Differential attention: four vectors a layer weigh two halves of the heads."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return llama(config, mlp_bias=None, attention_other=4 * width)


def _beam(config: Config) -> Shape:
    """Gates with biases behind attention."""
    more = {"attention_other": config["num_attention_heads"]}
    return llama(config, qk_norm=True, output_gate=True, layer_norms=4, experts=_experts(config), **more)


def _unlimited(config: Config) -> Shape:
    """Windows that see all of a prompt and its images too, which are taken for full attention."""
    plain = {**config, "head_dim": None, "sliding_window": None}
    return llama(plain, experts=shared_experts(config))


def _muse_glimmer(config: Config) -> Shape:
    """A gate behind attention; every fourth layer, from the last one back, attends to all."""
    count = config["num_hidden_layers"]
    usual = ["sliding_attention" if (count - 1 - index) % 4 else "full_attention" for index in range(count)]
    filled = {**config, "layer_types": config.get("layer_types") or usual}
    return llama(filled, output_gate=True, layer_norms=4, mlp_bias=None)


def _gated_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of attention beside a gate"
    yield from mixed_dense(config)


def _laguna(config: Config) -> Shape:
    """A gate for each head, or for each of its channels; layers may have heads of their own."""
    shared = config.get("shared_expert_intermediate_size") or 0
    shape = llama(
        config, width=128, qk_norm=True, experts=_experts(config, router_bias=True, shared_ffn=shared)
    )
    channels = 1 if config.get("gating", True) in (True, "per-head") else shape["head_dim"]
    gates, heads = channels * config["hidden_size"], config.get("num_attention_heads_per_layer")
    if not isinstance(heads, list) or len({*heads}) == 1:
        own = heads[0] if isinstance(heads, list) else shape["heads"]
        return {**shape, "heads": own, "attention_other": own * gates}
    dense = {index for _, layers in _dense_layers(config) for index in layers}
    near = ["sliding" in str(kind) for kind in config.get("layer_types") or []]
    window = shape.pop("window", 0)
    shape.pop("window_layers", None)
    kinds: list[Kind] = []
    for index, each in enumerate(heads):
        sizes = (("heads", each), ("attention_other", each * gates))
        narrow = (("window", window),) if window and near and near[index] else ()
        kinds.append(("attention", "dense" if index in dense else "experts", (*sizes, *narrow)))
    return in_blocks(shape, kinds)


def _laguna_unlike(config: Config) -> Iterator[tuple[str, str]]:
    heads = config.get("num_attention_heads_per_layer")
    pairs, layers = config.get("num_key_value_heads"), config.get("num_hidden_layers")
    if isinstance(heads, list):
        if not all(type(each) is int and each > 0 for each in heads):
            yield "num_attention_heads_per_layer", "other than whole numbers of heads"
        elif isinstance(pairs, int) and pairs > 0 and any(each % pairs for each in heads):
            yield "num_attention_heads_per_layer", "numbers of heads that num_key_value_heads does not divide"
        if len(heads) != layers:
            yield "num_attention_heads_per_layer", "heads of more or fewer layers than num_hidden_layers"
    yield from mixed_dense(config)


def _flint(config: Config) -> Shape:
    shared = config.get("shared_expert_intermediate_size") or 0
    return llama(config, qk_norm=True, sinks=True, experts=_experts(config, shared_ffn=shared))


def _kolibri(config: Config) -> Shape:
    shared = config.get("shared_expert_intermediate_size") or 0
    return llama(config, qk_norm=True, layer_norms=4, experts=_experts(config, shared_ffn=shared))


def _indexed(config: Config) -> Shape:
    """Latent attention to the tokens that an index picks, priced as if it picked all."""
    heads, width = config["index_n_heads"], config["index_head_dim"]
    products = (config.get("q_lora_rank") or 0) * heads * width + config["hidden_size"] * (heads + width)
    index, kinds = products + 2 * width, config.get("indexer_types")
    if isinstance(kinds, list) and "shared" in kinds:
        # The others take what the last layer with an index picked.
        return {**deepseek(config), "other_parameters": kinds.count("full") * index}
    return {**deepseek(config), "attention_other": index}


def _indexed_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("mlp_bias"):
        yield "mlp_bias", "biases of this type"
    if config.get("indexer_types") is None and (config.get("index_topk_freq") or 1) > 1:
        yield "index_topk_freq", "layers that share an index, unless indexer_types says which,"
    yield from mixed_dense(config)


def _persimmon(config: Config) -> Shape:
    """Norms of queries and keys have shifts."""
    width = config["hidden_size"] // config["num_attention_heads"]
    norms: Shape = {"qk_norm": True, "attention_other": 2 * width} if config.get("qk_layernorm", True) else {}
    biases = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), True)
    return {**_plain(config, norm="layer"), **biases, **norms}


def _gpt_neox_japanese(config: Config) -> Shape:
    """A bias behind the attention of the last layer alone."""
    ffn = int(config["hidden_size"] * config.get("intermediate_multiple_size", 4))
    more = {"norm": "layer", "other_parameters": config["hidden_size"]}
    return _plain({**config, "intermediate_size": ffn}, tied=True, out_bias=None, **more)


def _openai_gpt(config: Config) -> Shape:
    return {**_gpt2(config), "final_norm": False}


def _xglm(config: Config) -> Shape:
    return {
        "layers": config["num_layers"],
        "hidden": config["d_model"],
        "heads": config["attention_heads"],
        "ffn": config["ffn_dim"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _lfm3(config: Config) -> Shape:
    """Gates of heads, and norms on both sides."""
    gates = (
        config["num_attention_heads"] * config["hidden_size"] if config.get("use_attention_gate", True) else 0
    )
    norms = 4 if config.get("use_sandwich_norm", True) else 2
    if config.get("layer_types") is None:
        attend = (index % 2 == 0 and index > 0 for index in range(config["num_hidden_layers"]))
        config = {**config, "layer_types": ["attention" if each else "conv" for each in attend]}
    shape = _with_convolutions(config, attention_other=gates, layer_norms=norms)
    return {**shape, "output_bias": bool(config.get("attention_bias", False))}


def _eurobert(config: Config) -> Shape:
    return {**llama(config), "kind": "encoder", "head_bias": bool(config.get("mlp_bias", False))}


def _prenorm(config: Config) -> Shape:
    """Norms ahead of attention and feed-forward, and behind the last layer."""
    return {**bert(config, 2), "final_norm": True}


def _late_norm(config: Config) -> Shape:
    """The same without one behind the embedding."""
    return {**_prenorm(config), "embedding_norm": False}


def _layoutlm(config: Config) -> Shape:
    """Four tables of places on a page, and a pooler that the loss does not need."""
    hidden = config["hidden_size"]
    tables = 4 * config.get("max_2d_position_embeddings", 1024) * hidden
    return {**bert(config, 2), "other_parameters": tables + hidden * (hidden + 1)}


def _mpnet(config: Config) -> Shape:
    return {**bert(config, 0), "relative_positions": config.get("relative_attention_num_buckets", 32)}


def _electra(config: Config) -> Shape:
    """The generator: its embedding is narrower, with tables and norms of that width."""
    shape, narrow = bert(config, 2), int(config.get("embedding_size") or config["hidden_size"])
    if narrow == config["hidden_size"]:
        return shape
    tables = (config["max_position_embeddings"] + config.get("type_vocab_size", 2)) * narrow
    # Biases of both projections, and a norm on either side.
    rest = config["hidden_size"] + narrow + 2 * 2 * narrow
    gone = {"learned_positions": 0, "token_types": 0, "embedding_norm": False, "head_transform": False}
    return {**shape, **gone, "embedding_width": narrow, "other_parameters": tables + rest}


def _roformer(config: Config) -> Shape:
    """Rotary positions, as a table."""
    width = config["hidden_size"] // config["num_attention_heads"]
    rows = config["max_position_embeddings"]
    return {**bert(config, 2), "learned_positions": 0, "other_parameters": rows * width}


def other_width(config: Config) -> Iterator[tuple[str, str]]:
    """Embeddings that are not as wide as the layers."""
    if config.get("embedding_size") not in (None, config.get("hidden_size")):
        yield "embedding_size", "embeddings of another width of this type"


def _narrow_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from other_width(config)
    yield from _encoder_unlike(config)


def _modernbert(config: Config, *, head: bool = True) -> Shape:
    """Norms without shift, the first of which is that of the embedding, and a head without biases but of the tokens."""
    hidden = config["hidden_size"]
    narrow = {**config, "sliding_window": config.get("local_attention")}
    biases: dict[str, Any] = {"out_bias": "attention_bias", "tied": True}
    shape = llama(narrow, window=int(config.get("global_attn_every_n_layers") or 3), **biases)
    ends = {"head_bias": bool(config.get("decoder_bias", True)), "other_parameters": hidden * (hidden + 1)}
    return {**shape, **ends, "kind": "encoder" if head else "decoder"}


def _ultrabert(config: Config) -> Shape:
    """Windows to both sides, and two matrices ahead of the tokens."""
    count, near = config["num_hidden_layers"], config.get("attention_windows")
    given = config.get("layer_types")
    radius = config.get("sliding_window") or 0
    if isinstance(near, list):
        radius = next((each for each in near if each), radius)
        given = given or ["sliding_attention" if each else "full_attention" for each in near]
    usual = ["sliding_attention" if (index + 1) % 3 else "full_attention" for index in range(count)]
    shape = llama({**config, "layer_types": given or usual, "sliding_window": 2 * radius + 1})
    ends = 2 * config["hidden_size"] * config.get("prediction_head_size", 768)
    return {**shape, "kind": "encoder", "other_parameters": ends}


def _modern_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("norm_bias", "classifier_bias", "attention_bias", "mlp_bias"):
        if config.get(key):
            yield key, "biases of this type"


def _nomic(config: Config) -> Shape:
    """Rotary positions; a gated feed-forward and no biases, or a plain one with them; every n-th layer may have
    experts, with one bias for all of a layer."""
    own = {
        **dict.fromkeys(("qkv_bias", "output_bias"), bool(config.get("qkv_proj_bias", False))),
        "mlp_bias": bool(config.get("mlp_fc1_bias", False)),
        "gated_mlp": str(config.get("activation_function", "swiglu")).endswith("glu"),
    }
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    shape = {**bert(config, 2), "learned_positions": 0, "norm": "layer", "head_dim": head, **own}
    every, layers = config.get("moe_every_n_layers") or 0, range(config["num_hidden_layers"])
    if not every or (first_of(config, EXPERT_COUNTS) or 0) < 2:
        return shape
    kinds = [("attention", "experts" if index % every == 1 else "dense") for index in layers]
    several = sum(feeds == "experts" for _, feeds in kinds)
    shape |= {"experts": _experts(config), "other_parameters": several * shape["hidden"]}
    return in_blocks(shape, kinds)


def _nomic_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _encoder_unlike(config)
    if config.get("mlp_fc2_bias", False) != config.get("mlp_fc1_bias", False):
        yield "mlp_fc2_bias", "biases of one of both matrices of a feed-forward"
    for key in ("prenorm", "parallel_block", "use_rms_norm", "expert_choice_router"):
        if config.get(key):
            yield key, "other norms, blocks or routers of this type"
    shared = config.get("num_shared_experts")
    if shared:
        yield "num_shared_experts", "shared experts of this type"


def gte(config: Config) -> Shape:
    """Rotary positions and a gated feed-forward with a bias behind it alone."""
    biases = {"qkv_bias": True, "output_bias": True, "mlp_bias": False}
    more = {
        "learned_positions": 0,
        "gated_mlp": True,
        "norm": "layer",
        "attention_other": config["hidden_size"],
    }
    return {**bert(config, 1), **more, **biases}


def _esmc(config: Config) -> Shape:
    """The last norm has no shift."""
    hidden = config["hidden_size"]
    ends = {"head_transform": True, "head_bias": True, "final_norm": False, "other_parameters": hidden}
    ends["tied_embeddings"] = False
    return {**llama(config, norm="layer", qk_norm="whole"), **ends, "kind": "encoder"}


def _doge(config: Config) -> Shape:
    """Masks that a head computes of its values, and scales of both residual sums."""
    pairs = config.get("num_key_value_heads") or config["num_attention_heads"]
    width = config["hidden_size"] // config["num_attention_heads"]
    masks = pairs * (pairs * width + 1 + bool(config.get("attention_bias")))
    return llama(config, qk_norm=True, attention_other=masks + 2 * config["hidden_size"])


def _doge_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("is_moe"):
        yield "is_moe", "experts that are single vectors"


def _bert_generation(config: Config) -> Shape:
    """BERT as a decoder, without types and transform."""
    return {**bert(config, 0), **_DECODER, "head_bias": True, "final_norm": False, "token_types": 0}


def _untied_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "two biases of an output layer of its own"


def _big_bird(config: Config) -> Shape:
    """Attention to blocks beside a token, a few others and two global ones; a pooler that the loss does not need."""
    hidden, blocks = config["hidden_size"], 3 + int(config.get("num_random_blocks", 3)) + 2
    sparse = config.get("attention_type", "block_sparse") == "block_sparse"
    window = {"window": blocks * int(config.get("block_size", 64))} if sparse else {}
    pooler = {"qkv_bias": bool(config.get("use_bias", True)), "other_parameters": hidden * (hidden + 1)}
    return {**bert(config, 2), **window, **pooler}


def _longformer(config: Config) -> Shape:
    """Windows, and projections of a few global tokens beside those of all."""
    hidden, windows = config["hidden_size"], config.get("attention_window", 512)
    window = max(windows) if isinstance(windows, list) else windows
    return {**bert(config, 2), "window": window, "attention_other": 3 * hidden * (hidden + 1)}


def _tapas(config: Config) -> Shape:
    """Seven tables of types."""
    sizes = config.get("type_vocab_sizes") or [3, 256, 256, 2, 256, 256, 10]
    return bert({**config, "type_vocab_size": sum(map(int, sizes))}, 0)


def _ctrl(config: Config) -> Shape:
    return {**_gpt2({**config, "n_inner": config["dff"], "n_positions": 0}), "head_bias": True}


def _cpmant(config: Config) -> Shape:
    """Prompts behind the tokens of its table, biases of scores by segments and distance; nothing is tied."""
    hidden, segments = config["hidden_size"], config.get("segment_types", 32)
    prompts = config.get("prompt_types", 32) * config.get("prompt_length", 32)
    shape = llama({**config, "intermediate_size": config["dim_ff"]}, width=config.get("dim_head"))
    return {
        **shape,
        "tied_embeddings": False,
        "relative_positions": segments**2 + config.get("position_bias_num_buckets", 512),
        "other_parameters": (prompts + segments) * hidden,
    }


def _dbrx(config: Config) -> Shape:
    """Norms without shift; attention and experts have configurations of their own."""
    attention, feeds = config["attn_config"], config["ffn_config"]
    return {
        **{"layers": config["n_layers"], "hidden": config["d_model"], "heads": config["n_heads"]},
        **{"kv_heads": attention.get("kv_n_heads", 1), "vocab": config["vocab_size"], "gated_mlp": True},
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "experts": {
            **{"number": feeds.get("moe_num_experts", 4), "top_k": feeds.get("moe_top_k", 1)},
            "ffn": feeds.get("ffn_hidden_size", 3584),
        },
    }


def _fuyu(config: Config) -> Shape:
    """Persimmon, and a matrix that makes tokens of patches."""
    inputs = int(config.get("num_channels", 3)) * int(config.get("patch_size", 30)) ** 2
    return {**_persimmon(config), "other_parameters": (inputs + 1) * config["hidden_size"]}


def _kosmos2(config: Config) -> Shape:
    """Norms ahead of the last product of attention and of the feed-forward; positions are computed."""
    width, ffn = config["embed_dim"], config["ffn_dim"]
    return {
        **{"layers": config["layers"], "hidden": width, "heads": config["attention_heads"], "ffn": ffn},
        **{"vocab": config["vocab_size"], "attention_other": 2 * (width + ffn)},
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _kosmos25(config: Config) -> Shape:
    """The same without that of attention, and a table of whether a token is of an image."""
    shape, width = _kosmos2(config), config["embed_dim"]
    return {**shape, "attention_other": 2 * config["ffn_dim"], "other_parameters": 2 * width}


def _chameleon(config: Config) -> Shape:
    """Norms with shifts of the queries and keys of each head."""
    pairs = config.get("num_key_value_heads") or config["num_attention_heads"]
    head = config["hidden_size"] // config["num_attention_heads"]
    return llama(config, attention_other=2 * (config["num_attention_heads"] + pairs) * head)


def _git(config: Config) -> Shape:
    """BERT as a decoder behind the tokens of an image."""
    ends = {"head_bias": True, "token_types": 0, "final_norm": False}
    tied = bool(config.get("tie_word_embeddings", False))
    return {**bert(config, 0), **_DECODER, **ends, "tied_embeddings": tied}


def _rwkv(config: Config) -> Shape:
    """Tokens are mixed by a state (arXiv:2305.13048): receptance, keys and values, and the receptance of the
    feed-forward, in front of it, the output behind it; five vectors of the mixing and two of the feed-forward."""
    hidden = config["hidden_size"]
    if (config.get("attention_hidden_size") or hidden) != hidden:
        raise ValueError("a state of another width")
    state = {"kind": "conv", "head_dim": hidden, "conv": 7, "conv_bias": False, "gates": 3}
    return {
        **{"layers": config["num_hidden_layers"], "hidden": hidden, "heads": 1, "head_dim": hidden},
        **{"ffn": config.get("intermediate_size") or 4 * hidden, "vocab": config["vocab_size"]},
        **{"mixer": "state", "mlp_bias": False, "embedding_norm": True, "state": state},
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "sequence_length": config.get("context_length", 1024),
    }


def _recurrent_gemma(config: Config) -> Shape:
    """Gated linear recurrences (arXiv:2402.19427), whose gates are products of each head's own, beside attention."""
    width = config.get("lru_width") or config["hidden_size"]
    state = {"kind": "conv", "head_dim": width, "conv": config.get("conv1d_width", 4), "gates": 1}
    kinds = config.get("block_types") or ["recurrent", "recurrent", "attention"]
    layers = config["num_hidden_layers"]
    named = [str(kinds[index % len(kinds)]) for index in range(layers)]
    halved = {**config, "intermediate_size": config["intermediate_size"] // 2}
    shape = llama(halved, tied=True, state={**state, "bias": True})
    gates = 2 * width * width // config["num_attention_heads"] + 3 * width
    shape |= {"output_bias": True, "mlp_bias": True, "window": config.get("attention_window_size", 2048)}
    shape["other_parameters"] = named.count("recurrent") * gates
    return with_runs(shape, config, [_MIXERS[each] for each in named])


def phi(config: Config) -> Shape:
    """One norm for attention and feed-forward, and an output layer with a bias."""
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


def clip_tower(config: Config) -> Shape:
    """CLIP's vision tower."""
    patches = (config["image_size"] // config["patch_size"]) ** 2
    return {
        **_tower(config),
        "tokens": patches + 1,
        "outputs": patches,
        "positions": patches + 1,
        "class_token": True,
        "norm_first": True,
        "norm_last": True,
    }


def siglip_tower(config: Config) -> Shape:
    """SigLIP's; its pooling head meets no token of the text."""
    hidden, patches = config["hidden_size"], (config["image_size"] // config["patch_size"]) ** 2
    ffn = config["intermediate_size"]
    # A probe, attention, a norm and a feed-forward.
    head = 4 * hidden * (hidden + 1) + hidden + 2 * hidden + 2 * hidden * ffn + hidden + ffn
    return {
        **_tower(config),
        "patch_bias": True,
        "tokens": patches,
        "outputs": patches,
        "positions": patches,
        "norm_last": True,
        "other_parameters": head if config.get("vision_use_head", True) else 0,
    }


def _tower(config: Config) -> Shape:
    side = config["patch_size"]
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "patch": config.get("num_channels", 3) * side * side,
    }


QWEN_IMAGE = 1024
"""Patches of an image of any size, where a tower takes all: 448 x 448."""


def qwen_tower(config: Config, *, gated: bool) -> Shape:
    """That of Qwen 2 and 2.5 VL: rotary positions, four patches to a token of the text."""
    hidden = config["hidden_size"] if gated else config["embed_dim"]
    ffn = config["intermediate_size"] if gated else int(config["mlp_ratio"] * hidden)
    merged, side = int(config.get("spatial_merge_size", 2)) ** 2, config["patch_size"]
    out = config.get("out_hidden_size") if gated else config["hidden_size"]
    windows: Shape = {}
    whole = config.get("fullatt_block_indexes")
    if gated and isinstance(whole, list) and len(whole) < config["depth"]:
        window = (int(config.get("window_size", 112)) // side) ** 2
        windows = {"window": window, "window_layers": config["depth"] - len(whole)}
    return {
        "layers": config["depth"],
        "hidden": hidden,
        "heads": config["num_heads"],
        "ffn": ffn,
        "gated_mlp": gated,
        "norm": "rms" if gated else "layer",
        "patch": config.get("in_channels", 3) * int(config.get("temporal_patch_size", 2)) * side * side,
        "tokens": QWEN_IMAGE,
        "outputs": QWEN_IMAGE // merged,
        "merged": merged,
        "projector": (merged * hidden, out),
        "projector_norm": True,
        **windows,
    }


def two_matrices(config: Config, text: int) -> Shape:
    """A projector of two matrices."""
    return {"projector": (text, text), "projector_bias": bool(config.get("multimodal_projector_bias", True))}


def _onevision(config: Config, text: int) -> Shape:
    """SigLIP without its pooling head, and a token at the end of a line of an image."""
    vision = {"vision_use_head": False, **config["vision_config"]}
    tower = siglip_tower(vision)
    return {**tower, **two_matrices(config, text), "other_parameters": tower["other_parameters"] + text}


def _smol(config: Config, text: int) -> Shape:
    """SigLIP without its pooling head, tokens of a square side by side, one matrix."""
    tower = siglip_tower({**config["vision_config"], "vision_use_head": False})
    merged = int(config.get("scale_factor", 2)) ** 2
    made = {"merged": merged, "outputs": max(1, tower["tokens"] // merged)}
    return {**tower, **made, "projector": (text,), "projector_bias": False}


def pixtral_tower(config: Config, text: int) -> Shape:
    """Rotary positions and gates in a tower for images of any size, four patches to a token of the text."""
    vision = config["vision_config"]
    merged, width = int(config.get("spatial_merge_size", 2)) ** 2, vision["hidden_size"]
    return {
        **_tower(vision),
        **{"gated_mlp": True, "norm": "rms", "bias": False, "norm_first": True},
        **{"tokens": QWEN_IMAGE, "outputs": QWEN_IMAGE // merged, "merged": merged},
        **{"projector": (width, text, text), "projector_norm": True, "projector_bias": False},
        # The first of them, which joins tokens, has none.
        "other_parameters": 2 * text * bool(config.get("multimodal_projector_bias", False)),
    }


def qwen3_tower(config: Config, text: int) -> Shape:
    """A table of positions that is resampled; what further mergers make of some layers is added to the text's."""
    vision = config["vision_config"]
    width, side, out = vision["hidden_size"], vision["patch_size"], vision["out_hidden_size"]
    merged = int(vision.get("spatial_merge_size", 2)) ** 2
    wide = merged * width
    further = len(vision.get("deepstack_visual_indexes") or ())
    return {
        **{"layers": vision["depth"], "hidden": width, "heads": vision["num_heads"]},
        "ffn": vision["intermediate_size"],
        "patch": vision.get("in_channels", 3) * int(vision.get("temporal_patch_size", 2)) * side * side,
        **{"patch_bias": True, "positions": vision.get("num_position_embeddings", 2304)},
        **{"tokens": QWEN_IMAGE, "outputs": QWEN_IMAGE // merged, "merged": merged},
        **{"projector": (wide, out), "projector_norm": True},
        "other_parameters": further * (2 * wide + wide * (wide + 1) + out * (wide + 1)),
    }


def _paligemma(config: Config, text: int) -> Shape:
    vision = {"vision_use_head": False, **config["vision_config"]}
    out = config.get("projection_dim") or vision.get("projection_dim") or text
    return {**siglip_tower(vision), "projector": (out,)}


def _gemma3(config: Config, text: int) -> Shape:
    tower = siglip_tower(config["vision_config"])
    made = {"outputs": config["mm_tokens_per_image"], "projector": (text,), "projector_bias": False}
    # The norm behind the tower is one without shift.
    norm = config["vision_config"]["hidden_size"]
    return {**tower, **made, "other_parameters": tower["other_parameters"] + norm}


def _qwen_vl(config: Config, text: int, *, gated: bool) -> Shape:
    return qwen_tower(config["vision_config"], gated=gated)


CLIP = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "patch_size")


@dataclass(frozen=True, slots=True)
class Seeing:
    """One value of ``model_type`` with a tower beside its text decoder."""

    build: Callable[[Config, int], Shape]
    """Fields of a TowerSpec by the whole configuration and the width of the text."""
    tower: str
    """The tower's own ``model_type``."""
    needed: tuple[str, ...]
    """Keys of ``vision_config`` that must be whole numbers of their range."""


_QWEN_VISION = ("depth", "num_heads", "patch_size", "hidden_size")
QWEN3_VISION = (*_QWEN_VISION, "intermediate_size", "out_hidden_size")
SEEING: dict[str, Seeing] = {
    "idefics3": Seeing(_smol, "idefics3_vision", (*CLIP, "image_size")),
    "lighton_ocr": Seeing(pixtral_tower, "pixtral", CLIP),
    "llava_onevision": Seeing(_onevision, "siglip_vision_model", (*CLIP, "image_size")),
    "mistral3": Seeing(pixtral_tower, "pixtral", CLIP),
    "qwen3_5": Seeing(qwen3_tower, "qwen3_5_vision", QWEN3_VISION),
    "qwen3_5_moe": Seeing(qwen3_tower, "qwen3_5_moe_vision", QWEN3_VISION),
    "qwen3_vl": Seeing(qwen3_tower, "qwen3_vl_vision", QWEN3_VISION),
    "qwen3_vl_moe": Seeing(qwen3_tower, "qwen3_vl_moe_vision", QWEN3_VISION),
    "shieldgemma2": Seeing(_gemma3, "siglip_vision_model", (*CLIP, "image_size")),
    "smolvlm": Seeing(_smol, "smolvlm_vision", (*CLIP, "image_size")),
    "gemma3": Seeing(_gemma3, "siglip_vision_model", (*CLIP, "image_size")),
    "paligemma": Seeing(_paligemma, "siglip_vision_model", (*CLIP, "image_size")),
    "qwen2_5_vl": Seeing(
        partial(_qwen_vl, gated=True),
        "qwen2_5_vl_vision",
        (*_QWEN_VISION, "intermediate_size", "out_hidden_size"),
    ),
    "qwen2_vl": Seeing(
        partial(_qwen_vl, gated=False),
        "qwen2_vl_vision",
        (*_QWEN_VISION, "embed_dim", "mlp_ratio"),
    ),
}
"""Models that see, by ``model_type``."""

_BERT = ModelType(partial(bert, token_types=2), (*COMMON, "max_position_embeddings"), _encoder_unlike)
_SPARSE = partial(ModelType, unlike=mixed_dense, experts=True)
_GPT2 = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")

_PLACED = (*COMMON, "max_position_embeddings")

MODEL_TYPES: dict[str, ModelType] = {
    "bert-generation": ModelType(_bert_generation, _PLACED, _untied_unlike),
    "big_bird": ModelType(_big_bird, _PLACED, _encoder_unlike),
    "cpmant": ModelType(
        _cpmant, ("num_hidden_layers", "hidden_size", "num_attention_heads", "dim_ff", "vocab_size")
    ),
    "ctrl": ModelType(_ctrl, (*_GPT2[:3], "vocab_size", "dff")),
    "longformer": ModelType(_longformer, _PLACED, _encoder_unlike),
    "tapas": ModelType(_tapas, _PLACED, _encoder_unlike),
    "afmoe": _SPARSE(_afmoe, unlike=_gated_unlike),
    "apertus": ModelType(_apertus),
    "apertus1p5_text": ModelType(_apertus_seen, contrary=_apertus_contrary),
    "beam": _SPARSE(_beam, unlike=_gated_unlike),
    "bitnet": ModelType(_bitnet),
    "cosmos3_edge_text": ModelType(partial(_plain, norm="rms")),
    "granite_docling_text": ModelType(llama),
    "muse_glimmer_text": ModelType(_muse_glimmer, unlike=_gated_unlike),
    "unlimited_ocr_text": _SPARSE(_unlimited),
    "cohere2_moe": _SPARSE(_cohere2_moe, unlike=_prefix),
    "data2vec-text": _BERT,
    "deepseek_v32": _SPARSE(_indexed, (*LATENT, "index_n_heads", "index_head_dim"), unlike=_indexed_unlike),
    "diffllama": ModelType(_diffllama),
    "doge": ModelType(_doge, COMMON, _doge_unlike, any_experts=True),
    "esmc": ModelType(_esmc),
    "gte": ModelType(gte, COMMON, _encoder_unlike),
    "electra": ModelType(_electra, _PLACED, _encoder_unlike),
    "eurobert": ModelType(_eurobert),
    "exaone_moe": _SPARSE(partial(sparse_llama, experts=shared_experts, qk_norm=True, window=4)),
    "flint": _SPARSE(_flint),
    "glm_moe_dsa": _SPARSE(_indexed, (*LATENT, "index_n_heads", "index_head_dim"), unlike=_indexed_unlike),
    "gpt_neox_japanese": ModelType(_gpt_neox_japanese, (*COMMON[:3], "vocab_size")),
    "granitemoe_swa": _SPARSE(lambda config: {**_granite_shared(config), "sinks": True}),
    "hy_v3": _SPARSE(partial(sparse_llama, experts=shared_experts, qk_norm=True)),
    "ibert": _BERT,
    "kolibri1": _SPARSE(_kolibri, (*COMMON[:3], "moe_intermediate_size", "vocab_size")),
    "laguna": _SPARSE(_laguna, unlike=_laguna_unlike),
    "layoutlm": ModelType(_layoutlm, _PLACED, _encoder_unlike),
    "lfm3": ModelType(_lfm3, COMMON, _unknown_types),
    "megatron-bert": ModelType(_late_norm, _PLACED, _encoder_unlike),
    "mistral4": _SPARSE(deepseek, LATENT),
    "molmo2_text": ModelType(_molmo2),
    "modernbert": ModelType(_modernbert, COMMON, _modern_unlike),
    "ultrabert": ModelType(_ultrabert),
    "modernbert-decoder": ModelType(partial(_modernbert, head=False), COMMON, _modern_unlike),
    "mpnet": ModelType(_mpnet, _PLACED, _encoder_unlike),
    "nomic_bert": ModelType(_nomic, COMMON, _nomic_unlike, any_experts=True),
    "openai-gpt": ModelType(_openai_gpt, _GPT2),
    "persimmon": ModelType(_persimmon),
    "roberta-prelayernorm": ModelType(_prenorm, _PLACED, _encoder_unlike),
    "roformer": ModelType(_roformer, _PLACED, _narrow_unlike),
    "xglm": ModelType(_xglm, ("num_layers", "d_model", "attention_heads", "ffn_dim", "vocab_size")),
    "xlm-roberta-xl": ModelType(_late_norm, _PLACED, _encoder_unlike),
    "arcee": ModelType(partial(_plain, norm="rms")),
    "aria_text": _SPARSE(partial(sparse_llama, experts=shared_experts)),
    "bamba": ModelType(_bamba, _hybrid(*_DUALITY), _unknown_types),
    "bert": _BERT,
    "biogpt": ModelType(_biogpt, (*COMMON, "max_position_embeddings")),
    "bloom": ModelType(_bloom, ("n_layer", "hidden_size", "n_head", "vocab_size")),
    "camembert": _BERT,
    "cohere": ModelType(_cohere),
    "cohere2": ModelType(partial(_cohere, window=4)),
    "cwm": ModelType(partial(llama, window=4)),
    "deepseek_v2": _SPARSE(deepseek, LATENT),
    "deepseek_v3": _SPARSE(deepseek, LATENT),
    "distilbert": ModelType(
        _distilbert,
        ("n_layers", "dim", "n_heads", "hidden_dim", "max_position_embeddings", "vocab_size"),
        _encoder_unlike,
    ),
    "ernie": _BERT,
    "dots1": _SPARSE(partial(sparse_llama, experts=shared_experts, qk_norm=True)),
    "ernie4_5_moe": _SPARSE(_ernie_moe),
    **dict.fromkeys(
        ("ernie4_5", "paddleocr_vl_text"),
        ModelType(
            partial(
                llama, tied=True, width=128, qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"
            )
        ),
    ),
    "exaone": ModelType(llama),
    "exaone4": ModelType(partial(llama, qk_norm=True, window=4)),
    "falcon_h1": ModelType(_falcon_h1, _hybrid(*_DUALITY), _biased_unlike),
    "falcon_mamba": ModelType(_mamba, (*COMMON[:2], "vocab_size")),
    "falcon": ModelType(falcon, ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")),
    "flex_olmo": _SPARSE(partial(sparse_llama, qk_norm="whole")),
    "gemma": ModelType(partial(llama, tied=True, width=256)),
    "gemma2": ModelType(partial(llama, tied=True, width=256, layer_norms=4, window=2)),
    "gemma3_text": ModelType(partial(llama, tied=True, width=256, layer_norms=4, qk_norm=True, window=6)),
    "glm": ModelType(partial(llama, width=128, out_bias=None)),
    "glm4": ModelType(partial(llama, width=128, out_bias=None, layer_norms=4)),
    "glm4_moe": _SPARSE(_glm_moe),
    "glm4_moe_lite": _SPARSE(deepseek, LATENT),
    "gpt_bigcode": ModelType(_gpt_bigcode, _GPT2),
    "gpt_neo": ModelType(
        _gpt_neo, ("num_layers", "hidden_size", "num_heads", "max_position_embeddings", "vocab_size")
    ),
    "gpt_neox": ModelType(_gpt_neox),
    "gpt_oss": _SPARSE(_gpt_oss),
    "gpt2": ModelType(_gpt2, _GPT2),
    "imagegpt": ModelType(_imagegpt, _GPT2),
    "gptj": ModelType(_gptj, _GPT2),
    "codegen": ModelType(_gptj, _GPT2),
    "granite": ModelType(llama),
    "kosmos_2_text_model": ModelType(
        _kosmos2, ("layers", "embed_dim", "attention_heads", "ffn_dim", "vocab_size")
    ),
    "kosmos_2_5_text_model": ModelType(
        _kosmos25, ("layers", "embed_dim", "attention_heads", "ffn_dim", "vocab_size")
    ),
    "chameleon": ModelType(_chameleon),
    "idefics": ModelType(partial(llama, out_bias=None, qkv_bias=False, mlp_bias=None)),
    "phi4_multimodal": ModelType(partial(llama, window=1, out_bias=None, qkv_bias=False, mlp_bias=None)),
    "mllama_text_model": ModelType(partial(llama, out_bias=None)),
    "glm_ocr_text": ModelType(partial(llama, qkv_bias=False, out_bias=None, mlp_bias=None, layer_norms=4)),
    # The first configurations have the text's keys beside the tower's.
    **dict.fromkeys(
        ("glm4v", "glm4v_text"),
        ModelType(partial(llama, qkv_bias=True, out_bias=None, mlp_bias=None, layer_norms=4)),
    ),
    "granite_swa": ModelType(partial(llama, sinks=True, window=2)),
    "granitemoe": _SPARSE(sparse_llama),
    "granitemoehybrid": ModelType(_granite_hybrid, _hybrid(*_DUALITY), _unknown_types, any_experts=True),
    "granitemoeshared": _SPARSE(_granite_shared),
    "helium": ModelType(partial(llama, width=128, out_bias=None)),
    "hunyuan_v1_dense": ModelType(partial(llama, qk_norm=True)),
    "hyperclovax": ModelType(_hyperclovax),
    "internlm3": ModelType(_internlm3),
    "iquestcoder": ModelType(llama),
    "jamba": ModelType(_jamba, COMMON, any_experts=True),
    "jais2": ModelType(partial(_plain, norm="layer")),
    "lara_mini": ModelType(
        _lara, (*COMMON[:3], "moe_intermediate_size", "vocab_size", *_DELTA), _unknown_types, experts=True
    ),
    "lfm2": ModelType(_lfm2, COMMON, _unknown_types),
    "lfm2_moe": ModelType(_lfm2_moe, (*COMMON, "moe_intermediate_size"), _unknown_types, experts=True),
    "llama": ModelType(llama),
    "llama4_text": ModelType(_llama4, experts=True),
    "mamba": ModelType(_mamba, (*COMMON[:2], "vocab_size")),
    "mamba2": ModelType(_mamba2, (*COMMON[:2], "vocab_size", "num_heads", "head_dim", "state_size")),
    "mellum": _SPARSE(partial(sparse_llama, qk_norm=True)),
    "minicpm3": ModelType(partial(latent_shape, tied=True), LATENT[:-1]),
    "minimax_m2": _SPARSE(partial(sparse_llama, qk_norm="whole")),
    "ministral": ModelType(partial(llama, window=1)),
    "ministral3": ModelType(partial(llama, window=1)),
    "mistral": ModelType(partial(llama, window=1)),
    "mixtral": _SPARSE(partial(sparse_llama, window=1)),
    "dbrx": ModelType(_dbrx, ("n_layers", "d_model", "n_heads", "vocab_size"), any_experts=True),
    "fuyu": ModelType(_fuyu, parts=(("text_config", "persimmon"),)),
    "git": ModelType(_git, _PLACED),
    "rwkv": ModelType(_rwkv, (*COMMON[:2], "vocab_size")),
    "recurrent_gemma": ModelType(_recurrent_gemma),
    "mpt": ModelType(_mpt, ("n_layers", "d_model", "n_heads", "vocab_size"), _mpt_unlike),
    "nanochat": ModelType(partial(_plain, norm="plain")),
    "nemotron_h": ModelType(
        _nemotron_h,
        (*COMMON[1:], "mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
        _nemotron_unlike,
        any_experts=True,
    ),
    "nemotron": ModelType(partial(_plain, norm="layer")),
    "olmo_hybrid": ModelType(_olmo_hybrid, _hybrid(*_DELTA), _unknown_types),
    "olmo": ModelType(partial(llama, norm="plain")),
    "olmo2": ModelType(partial(llama, qk_norm="whole")),
    "olmo3": ModelType(partial(llama, qk_norm="whole", window=4)),
    "olmoe": _SPARSE(partial(sparse_llama, qk_norm="whole")),
    "opt": ModelType(
        _opt,
        (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "ffn_dim",
            "max_position_embeddings",
            "vocab_size",
        ),
        _opt_unlike,
    ),
    "phi": ModelType(phi, COMMON, _query_norms),
    "phi3": ModelType(partial(llama, window=1)),
    "phimoe": _SPARSE(_phimoe),
    "qwen2": ModelType(partial(llama, qkv_bias=True, out_bias=None)),
    "qwen2_5_omni_text": ModelType(partial(llama, qkv_bias=True, out_bias=None)),
    # Older configurations have the text's keys beside the tower's.
    **dict.fromkeys(
        ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text"),
        ModelType(partial(llama, qkv_bias=True, out_bias=None)),
    ),
    "glm4v_moe_text": _SPARSE(_glm_moe),
    "qwen2_moe": _SPARSE(_qwen2_moe),
    "qwen3": ModelType(partial(llama, width=128, qk_norm=True)),
    "qwen3_5_moe_text": ModelType(
        partial(_qwen_next, sparse=True),
        (*COMMON[:3], "moe_intermediate_size", "vocab_size", *_DELTA),
        _unknown_types,
        experts=True,
    ),
    "qwen3_5_text": ModelType(partial(_qwen_next, sparse=False), _hybrid(*_DELTA), _unknown_types),
    "qwen3_next": ModelType(partial(_qwen_next, sparse=True), _hybrid(*_DELTA), _unknown_types, experts=True),
    "qwen3_vl_text": ModelType(partial(llama, width=128, qk_norm=True)),
    **dict.fromkeys(
        ("qwen3_omni_moe_text", "qwen3_vl_moe_text"), _SPARSE(partial(sparse_llama, qk_norm=True))
    ),
    "qwen3_moe": _SPARSE(partial(sparse_llama, qk_norm=True)),
    "roberta": _BERT,
    "sarvam_mla": _SPARSE(deepseek, LATENT),
    "sarvam_moe": _SPARSE(_glm_moe, (*COMMON, "moe_intermediate_size")),
    "seed_oss": ModelType(partial(llama, width=128, out_bias="attention_out_bias")),
    "smollm3": ModelType(partial(llama, tied=True)),
    "solar_open": _SPARSE(
        partial(sparse_llama, experts=shared_experts, out_bias=None),
        (*COMMON[:3], "moe_intermediate_size", "vocab_size"),
    ),
    "stablelm": ModelType(stablelm),
    "starcoder2": ModelType(
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
    "vaultgemma": ModelType(partial(llama, tied=True, width=256, window=2)),
    "xlm-roberta": _BERT,
    "voxtral_realtime_text": ModelType(_voxtral_text),
    "youtu": ModelType(partial(latent_shape, tied=True), LATENT),
}
"""What is read, by ``model_type``."""
