"""Shapes of decoders whose layers differ in size or kind, from their Hugging Face configurations, by ``model_type``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from planner.files.fields import figure
from planner.files.messages import shown
from planner.model.huggingface.families import (
    COMMON,
    EXPERT_COUNTS,
    EXPERT_PICKS,
    LATENT,
    Config,
    Kind,
    ModelType,
    Shape,
    deepseek,
    first_of,
    in_blocks,
    latent_shape,
    llama,
    mamba2_state,
    mamba_state,
    mixed_dense,
    mixers_of,
    shared_experts,
    with_runs,
)
from planner.ranges import LAYERS

Matrix = tuple[int, int, str]


def _named(config: Config, key: str, usual: Any) -> list[str]:
    """Names of all layers: those that a key lists, or the usual ones by their number."""
    listed = config.get(key)
    if isinstance(listed, list):
        if len(listed) != config["num_hidden_layers"]:
            raise ValueError(key)
        return [str(each) for each in listed]
    return [str(usual(index)) for index in range(config["num_hidden_layers"])]


def _slides(every: int) -> Any:
    """Sliding attention in all but every n-th layer."""
    return lambda index: "sliding_attention" if (index + 1) % every else "full_attention"


def _reused(config: Config) -> int:
    """The first layer that takes the keys and values of an earlier one."""
    return int(config["num_hidden_layers"]) - int(config.get("num_kv_shared_layers") or 0)


def _per_layer(config: Config) -> tuple[tuple[Matrix, ...], int, int]:
    """Matrices of a layer by which an embedding of its own comes in, its table and norms, and those of a layer."""
    width, own = config["hidden_size"], config.get("hidden_size_per_layer_input") or 0
    if not own:
        return (), 0, 0
    # The projection of all layers is a part of each.
    matrices: tuple[Matrix, ...] = (
        (width, own, "nothing"),
        (width, own, "nothing"),
        (own, width, "nothing"),
    )
    table = config["vocab_size_per_layer_input"] * config["num_hidden_layers"] * own
    return matrices, table + own, width


def _gemma4(config: Config) -> Shape:
    """Full attention has wider heads, whose values may be its keys; the last layers take keys and values of others."""
    width, heads, window = config["hidden_size"], config["num_attention_heads"], config["sliding_window"]
    more, table, norm = _per_layer(config)
    usual = not more and _reused(config) == config["num_hidden_layers"]
    given = config.get("per_layer_config")
    listed = {int(index): each for index, each in given.items()} if isinstance(given, dict) else None
    alike = bool(config.get("attention_k_eq_v"))
    names = _named(config, "layer_types", _slides(6))
    names[-1] = "full_attention"
    kinds: list[Kind] = []
    for index, name in enumerate(names):
        full, reused = name == "full_attention", index >= _reused(config)
        head, pairs = config["head_dim"], config["num_key_value_heads"]
        if listed is not None:
            own = listed.get(index) or {}
            head, pairs = own.get("head_dim", head), own.get("num_key_value_heads", pairs)
        elif full:
            head = config.get("global_head_dim") or 512
            pairs = (config.get("num_global_key_value_heads") if alike else None) or pairs
        sizes: list[tuple[str, Any]] = [("kv_heads", pairs), ("head_dim", head)]
        if not usual:
            made = 0 if reused else pairs * (1 if alike and full else 2)
            inner = (width, (heads + made) * head, "columns")
            sizes.append(("projections", (*more, inner, (heads * head, width, "rows"))))
            # Norms of queries and keys.
            sizes.append(("attention_other", norm + head * (1 if reused else 2) + _routed_norms(config)))
        elif alike and full:
            sizes.append(("value_dim", 0))
        sizes.append(("window", 0 if full else window))
        if config.get("use_double_wide_mlp") and reused:
            sizes.append(("ffn", 2 * config["intermediate_size"]))
        kinds.append(("attention", "experts" if config.get("enable_moe_block") else "dense", tuple(sizes)))
    fields: dict[str, Any] = {"tied": True, "layer_norms": 4, "window": 0, "out_bias": None, "mlp_bias": None}
    shape = llama({**config, "layer_types": None}, width=256, qkv_bias=False, qk_norm=usual, **fields)
    shape = {**shape, "window": window, "other_parameters": table}
    if usual:
        shape["attention_other"] = _routed_norms(config)
    if config.get("enable_moe_block"):
        # The dense feed-forward beside the experts stands for shared ones.
        shape["experts"] = {
            **{"number": config["num_experts"], "top_k": config["top_k_experts"]},
            **{"ffn": config["moe_intermediate_size"], "shared_ffn": config["intermediate_size"]},
        }
    if config.get("use_bidirectional_attention") == "all":
        shape["kind"] = "encoder"
    return in_blocks(shape, kinds)


def _routed_norms(config: Config) -> int:
    """Further norms of a layer with experts, and scales of the router and of the experts."""
    return 4 * config["hidden_size"] + config["num_experts"] if config.get("enable_moe_block") else 0


def _gemma4_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of this type"
    if config.get("enable_moe_block") and config.get("use_double_wide_mlp"):
        yield "use_double_wide_mlp", "wider feed-forwards beside experts"
    yield from _own_keys(config)


def _own_keys(config: Config) -> Iterator[tuple[str, str]]:
    """Layers that share the keys of others need others."""
    shared, layers = config.get("num_kv_shared_layers") or 0, config.get("num_hidden_layers")
    if isinstance(layers, int) and not (isinstance(shared, int) and 0 <= shared < layers):
        yield "num_kv_shared_layers", "models without a layer that has keys of its own"


def _gemma3n(config: Config) -> Shape:
    """Four streams that predict and correct each other (arXiv:2301.13310), low-rank residuals, embeddings by layer."""
    width, heads, head = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    pairs, rank, ways = config["num_key_value_heads"], config["laurel_rank"], config["altup_num_inputs"]
    more, table, norm = _per_layer(config)
    more += ((width, rank, "nothing"), (rank, width, "nothing"), (width, ways, "nothing"))
    given = config["intermediate_size"]
    feeds = given if isinstance(given, list) else [given] * config["num_hidden_layers"]
    # Scale and norm of the router, coefficients, the norm behind the low rank, that of the layer's own embedding.
    own = 2 * width + ways**2 + ways**3 + width + norm
    kinds: list[Kind] = []
    for index, name in enumerate(_named(config, "layer_types", _slides(5))):
        reused = index >= _reused(config)
        inner = (heads + (0 if reused else 2 * pairs)) * head
        projections = (*more, (width, inner, "columns"), (heads * head, width, "rows"))
        sizes = (
            ("projections", projections),
            ("attention_other", own + head * (1 if reused else 2)),
            ("ffn", feeds[index]),
            ("window", config["sliding_window"] if name == "sliding_attention" else 0),
        )
        kinds.append(("attention", "dense", sizes))
    plain = {**config, "layer_types": None, "intermediate_size": feeds[0]}
    shape = llama(plain, tied=True, layer_norms=4, qkv_bias=False, out_bias=None, mlp_bias=None)
    streams = 2 * (ways - 1) * width**2
    return in_blocks(
        {**shape, "window": config["sliding_window"], "other_parameters": table + streams}, kinds
    )


def _gemma3n_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of this type"
    given = config.get("intermediate_size")
    listed = given if isinstance(given, list) else [given]
    if not all(type(each) is int and each > 0 for each in listed):
        yield "intermediate_size", "widths that are no whole numbers"
    if isinstance(given, list) and len(given) != config.get("num_hidden_layers"):
        yield "intermediate_size", "other numbers of widths than of layers"
    yield from _own_keys(config)


def _zamba(config: Config) -> Shape:
    """Mamba beside one layer of attention that is run again and again, on the embedding beside the hidden state."""
    width = config["hidden_size"]
    state = mamba_state(config, "mamba", norm=False)
    usual = ["mamba", "mamba", "hybrid"]
    usual += [
        "hybrid"
        if index % config.get("attn_layer_period", 6) == config.get("attn_layer_offset", 4)
        else "mamba"
        for index in range(config["num_hidden_layers"] - 3)
    ]
    names = _named(config, "layers_block_type", lambda index: usual[index])
    head = config.get("attention_head_dim") or 2 * width // config["num_attention_heads"]
    return _repeated(config, state, names, head, blocks=1)


def _repeated(config: Config, state: Shape, names: list[str], head: int, *, blocks: int) -> Shape:
    """Layers with a state, ahead of some of which stand attention and a feed-forward of weights that are shared."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    pairs = config.get("num_key_value_heads") or heads
    runs: list[Shape] = []
    hybrid = names.count("hybrid")
    for name in names:
        if name == "hybrid":
            runs.append({"layers": 1, "mixer": "attention", "feed_forward": "dense", "shared": True})
        runs.append({"layers": 1, "mixer": "state", "feed_forward": "none"})
    shape = llama({**config, "head_dim": head}, tied=True, qkv_bias=False, out_bias=None, mlp_bias=None)
    more = _adapters(config)
    projections: tuple[Matrix, ...] = (
        *((inputs, outputs, "nothing") for inputs, outputs in more),
        # What leads back into the layers, each time by a matrix of its own.
        (width, width, "nothing"),
        (2 * width, (heads + 2 * pairs) * head, "columns"),
        (heads * head, width, "rows"),
    )
    own = width**2 + sum(inputs * outputs for inputs, outputs in more)
    block = (
        2 * width * (heads + 2 * pairs) * head
        + heads * head * width
        + 3 * width * config["intermediate_size"]
    )
    block += 3 * width
    others = (hybrid - 1) * own + (blocks - 1) * block
    if not hybrid or others < 0 or hybrid < blocks:
        raise ValueError("layers_block_type")
    return {
        **shape,
        **{"layers": 1, "block": tuple(runs), "state": state, "projections": projections},
        # One of the norms is as wide as both.
        **{"attention_other": width, "other_parameters": others},
    }


def _adapters(config: Config) -> list[tuple[int, int]]:
    """Low-rank matrices that each use of a shared layer has of its own (Zamba 2)."""
    if config["model_type"] != "zamba2":
        return []
    width, rank, ffn = config["hidden_size"], config["adapter_rank"], config["intermediate_size"]
    pairs = [(width, rank), (rank, 2 * ffn)]
    if config.get("use_shared_attention_adapter"):
        pairs += 3 * [(2 * width, rank), (rank, 2 * width)]
    return pairs


def _zamba2(config: Config) -> Shape:
    """The same with Mamba 2, several layers that take turns, and adapters of each use."""
    width = config["hidden_size"]
    ffn = config.get("intermediate_size") or 4 * width
    names = {
        "mamba_d_ssm": int(config.get("mamba_expand", 2) * width),
        "mamba_n_heads": config["n_mamba_heads"],
    }
    names |= {
        "mamba_n_groups": config.get("mamba_ngroups", 1),
        "mamba_chunk_size": config.get("chunk_size", 256),
    }
    state = mamba2_state(
        {**config, **names, "mamba_d_head": None, "mamba_conv_bias": True, "mamba_proj_bias": False}
    )
    usual = (
        "m" + 7 * "mmmmmh" + "mmmmhmmmhmm"
        if config["num_hidden_layers"] == 54
        else "?" * config["num_hidden_layers"]
    )
    types = _named(config, "layers_block_type", lambda index: {"h": "hybrid", "m": "mamba"}[usual[index]])
    head = config.get("attention_head_dim") or 2 * width // config["num_attention_heads"]
    filled = {**config, "intermediate_size": ffn}
    return _repeated(filled, state, types, head, blocks=int(config.get("num_mem_blocks") or 1))


def _zamba_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "layers that share nothing, as transformers makes them of this,"
    for key in ("add_bias_linear", "mamba_proj_bias"):
        if config.get(key):
            yield key, "biases of this type"
    types = config.get("layers_block_type")
    known = {"mamba", "linear_attention", "hybrid", "mamba2"}
    strange = sorted({str(each) for each in types} - known) if isinstance(types, list) else []
    if strange:
        yield "layers_block_type", f'layers of type "{strange[0]}"'


_RATIOS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def _deepseek4(config: Config) -> Shape:
    """Keys that are the values too, of one head, in windows and compressed behind them; several residual streams."""
    width, heads, head = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    rank, groups, back = config["q_lora_rank"], config["o_groups"], config["o_groups"] * config["o_lora_rank"]
    ways, near = config["hc_mult"], config["sliding_window"]
    mixed = (2 + ways) * ways
    rates = config.get("compress_rates") or {}
    sparse = config.get("compress_rate_csa") or rates.get("compressed_sparse_attention", 4)
    heavy = config.get("compress_rate_hca") or rates.get("heavily_compressed_attention", 128)
    indexes, index = config["index_n_heads"], config["index_head_dim"]
    common: tuple[Matrix, ...] = (
        (ways * width, mixed, "nothing"),
        (ways * width, mixed, "nothing"),
        (width, rank, "nothing"),
        (rank, heads * head, "columns"),
        (width, head, "nothing"),
    )
    behind: tuple[Matrix, ...] = ((heads * head // groups, back, "rows"), (back, width, "rows"))
    more: dict[str, tuple[tuple[Matrix, ...], int, int]] = {
        "sliding_attention": ((), 0, near),
        "heavily_compressed_attention": (
            2 * ((width, head, "nothing"),),
            (heavy + 1) * head,
            near + LONG // heavy,
        ),
        "compressed_sparse_attention": (
            (
                *2 * ((width, 2 * head, "nothing"),),
                *2 * ((width, 2 * index, "nothing"),),
                (rank, indexes * index, "nothing"),
                (width, indexes, "nothing"),
            ),
            (2 * sparse + 1) * (head + index),
            near + config["index_topk"],
        ),
    }
    ratios, count = config.get("compress_ratios"), config["num_hidden_layers"]
    if isinstance(ratios, list) and config.get("layer_types") is None:
        types = [_RATIOS[int(each)] for each in ratios[:count]]
    else:
        usual = ["heavily_compressed_attention"] * 2
        usual += [[*more][1 + index % 2] for index in range(count)]
        types = [str(each) for each in config.get("layer_types") or usual][:count]
    if len(types) != count:
        raise ValueError("layer_types")
    norms = rank + head + 2 * (mixed + 3)
    kinds: list[Kind] = []
    for name in types:
        matrices, others, window = more[name]
        sizes = (
            ("projections", (*common, *matrices, *behind)),
            ("attention_other", norms + others),
            ("window", window),
        )
        kinds.append(("attention", "experts", sizes))
    ffn = config["moe_intermediate_size"]
    experts = {
        **{"number": config["n_routed_experts"], "top_k": config["num_experts_per_tok"]},
        **{"ffn": ffn, "shared_ffn": ffn},
    }
    plain = {**config, "intermediate_size": ffn, "num_key_value_heads": 1, "layer_types": None}
    shape = llama(plain, qkv_bias=False, out_bias=None, mlp_bias=None, sinks=True, experts=experts)
    # What joins the streams behind the last layer.
    ends = ways * ways * width + ways + 1
    return in_blocks({**shape, "window": near, "other_parameters": ends}, kinds)


LONG = 8192
"""Tokens of a sequence of which those are counted that a compressed attention sees."""


def _deepseek4_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            yield key, "biases of this type"
    if config.get("num_key_value_heads", 1) != 1:
        yield "num_key_value_heads", "several heads of keys"


def _blocks(config: Config) -> Shape:
    """Layers of which each has as many key/value heads and as wide a feed-forward as a search found, or none
    (DeciLM, Llama-Nemotron; ``modeling_decilm.py``)."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    kinds: list[Kind] = []
    for block in config["block_configs"]:
        mixer, feeds = block["attention"], block["ffn"]
        sizes: list[tuple[str, int]] = []
        if not mixer["no_op"]:
            sizes.append(("kv_heads", heads // mixer["n_heads_in_group"]))
        if not feeds["no_op"]:
            wanted = int(2 * feeds["ffn_mult"] * width / 3)
            sizes.append(("ffn", -(-wanted // 256) * 256))
        kind = ("none" if mixer["no_op"] else "attention", "none" if feeds["no_op"] else "dense")
        if kind != ("none", "none"):
            kinds.append((*kind, tuple(sizes)))
    return in_blocks(llama({**config, "intermediate_size": width}), kinds)


def _blocks_unlike(config: Config) -> Iterator[tuple[str, str]]:
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or not blocks:
        yield "block_configs", "layers without a list of their sizes"
        return
    if len(blocks) != config.get("num_hidden_layers"):
        yield "block_configs", "other numbers of blocks than of layers"
    for part in ("attention", "ffn"):
        for key in ("replace_with_linear", "mamba", "llama4", "moe", "window_length"):
            if any((block.get(part) or {}).get(key) for block in blocks):
                yield "block_configs", f"{key} of {part}"


def _deci(config: Config) -> Shape:
    """DeciLM 7B: key/value heads by layer."""
    pairs = config["num_key_value_heads_per_layer"]
    if len(pairs) != config["num_hidden_layers"]:
        raise ValueError("num_key_value_heads_per_layer")
    kinds: list[Kind] = [("attention", "dense", (("kv_heads", int(each)),)) for each in pairs]
    return in_blocks(llama({**config, "num_key_value_heads": None}), kinds)


def _openelm(config: Config) -> Shape:
    """Heads and feed-forwards that widen from layer to layer (arXiv:2404.14619; ``modeling_openelm.py``)."""
    width, head, step = config["model_dim"], config["head_dim"], config.get("ffn_dim_divisor", 256)
    kinds: list[Kind] = []
    sizes = zip(config["num_query_heads"], config["num_kv_heads"], config["ffn_multipliers"], strict=True)
    for heads, pairs, times in sizes:
        wanted = times * width
        ffn = max(step, int(wanted + step / 2) // step * step)
        ffn += step if ffn < 0.9 * wanted else 0
        kinds.append(
            ("attention", "dense", (("heads", int(heads)), ("kv_heads", int(pairs)), ("ffn", int(ffn))))
        )
    if len(kinds) != config["num_transformer_layers"]:
        raise ValueError("num_query_heads")
    shape: Shape = {
        **{"layers": len(kinds), "hidden": width, "heads": config["num_query_heads"][0], "head_dim": head},
        **{"ffn": width, "gated_mlp": bool(config.get("ffn_with_glu", True)), "vocab": config["vocab_size"]},
        "tied_embeddings": bool(config.get("share_input_output_layers", True)),
        "qk_norm": bool(config.get("normalize_qk_projections", True)),
        **{"norm": "rms", "qkv_bias": False, "output_bias": False, "mlp_bias": False},
        "sequence_length": config.get("max_context_length", 2048),
    }
    return in_blocks(shape, kinds)


def _kimi_linear(config: Config) -> Shape:
    """Delta attention with decays by channel (arXiv:2510.26692) beside latent attention."""
    given = config.get("linear_attn_config") or {}
    head = given.get("head_dim") or config["linear_head_dim"]
    heads = given.get("num_heads") or config["linear_num_heads"]
    state = {
        **{"kind": "delta", "heads": heads, "head_dim": head, "groups": heads, "size": head, "rank": head},
        "conv": given.get("short_conv_kernel_size") or config["linear_conv_kernel_dim"],
        **{"conv_bias": False, "chunk": 64},
    }
    if config.get("layer_types") is None and {"full_attn_layers", "kda_layers"} <= {*given}:
        # Counted from 1.
        full = given["full_attn_layers"]
        named = [
            "full_attention" if index + 1 in full else "linear_attention"
            for index in range(config["num_hidden_layers"])
        ]
    else:
        named = _named(
            config,
            "layer_types",
            lambda index: "full_attention" if index and index % 4 == 0 else "linear_attention",
        )
    dense = {} if isinstance(config.get("mlp_layer_types"), list) else {"first_k_dense_replace": 1}
    filled = {**dense, **config, "layer_types": named}
    # Its output layer is never tied, whatever the configuration says.
    shape = {**latent_shape(filled, experts=shared_experts(config)), "state": state, "tied_embeddings": False}
    return with_runs(shape, filled, mixers_of(filled))


def _kimi_linear_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of this type"
    # Kimi K3 has the same model_type.
    if config.get("routed_expert_hidden_size") not in (None, config["hidden_size"]):
        yield "routed_expert_hidden_size", "experts of another width than the model's"
    if config.get("mla_use_output_gate"):
        yield "mla_use_output_gate", "gates of latent attention"
    if config.get("attn_res_block_size"):
        yield "attn_res_block_size", "residuals that attend to earlier layers"
    yield from mixed_dense(config)


def _lightning(config: Config) -> Shape:
    """Lightning attention (arXiv:2501.08313) in most layers, whose keys have as many heads as its queries."""
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    state = {
        **{"kind": "linear", "heads": heads, "head_dim": head, "groups": heads, "size": head},
        **{"conv": 1, "conv_bias": False, "chunk": config.get("block_size", 256)},
    }
    listed = config.get("attn_type_list")
    if isinstance(listed, list):
        named = ["full_attention" if each else "linear_attention" for each in listed]
    else:
        named = _named(
            config,
            "layer_types",
            lambda index: "full_attention" if (index + 1) % 2 else "linear_attention",
        )
    experts = {
        **{"number": config["num_local_experts"], "top_k": config["num_experts_per_tok"]},
        "ffn": config["intermediate_size"],
    }
    fields: dict[str, Any] = {"qkv_bias": False, "out_bias": None, "mlp_bias": None, "window": 0}
    shape = llama({**config, "sliding_window": None}, state=state, experts=experts, **fields)
    filled = {**config, "layer_types": named}
    return with_runs(shape, filled, mixers_of(filled))


def _lightning_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("shared_intermediate_size"):
        yield "shared_intermediate_size", "shared experts of this type"
    listed = config.get("attn_type_list")
    if isinstance(listed, list) and len(listed) != config.get("num_hidden_layers"):
        yield "attn_type_list", "other numbers of types than of layers"


def _hunyuan(config: Config) -> Shape:
    """As many experts as are given, each as wide as the shared one."""
    picked = config.get("moe_topk", 1)
    listed = picked if isinstance(picked, list) else [picked]
    if len(set(listed)) != 1:
        raise ValueError("moe_topk")
    ffn = config["intermediate_size"]
    number = first_of(config, ("num_experts", "num_local_experts"))
    experts = {"number": number, "top_k": listed[0], "ffn": ffn, "shared_ffn": ffn}
    return llama(config, qk_norm=True, mlp_bias=None, experts=experts)


def _hunyuan_unlike(config: Config) -> Iterator[tuple[str, str]]:
    picked = config.get("moe_topk", 1)
    listed = picked if isinstance(picked, list) else [picked]
    if not listed or len({str(each) for each in listed}) != 1:
        yield "moe_topk", "layers that pick different numbers of experts"
    number = first_of(config, ("num_experts", "num_local_experts"))
    if isinstance(number, list):
        yield "num_experts", "layers with different numbers of experts"


def _mimo(config: Config) -> Shape:
    """Windows with sinks and twice as many heads of keys; values are narrower than keys."""
    heads, pairs = config["num_attention_heads"], config["num_key_value_heads"]
    pattern = config.get("hybrid_layer_pattern")
    # As transformers reads it: what the type says, whatever the pattern of the published file.
    names = _named(
        config,
        "layer_types",
        lambda index: "full_attention" if index == 0 or (index + 1) % 6 == 0 else "sliding_attention",
    )
    if (
        isinstance(pattern, list)
        and ["sliding_attention" if each else "full_attention" for each in pattern] != names
    ):
        raise ValueError("hybrid_layer_pattern")
    feeds = _named(config, "mlp_layer_types", lambda index: "sparse" if index else "dense")
    kinds: list[Kind] = []
    for name, feed in zip(names, feeds, strict=True):
        slides = name == "sliding_attention"
        window = config.get("sliding_window_size") or config["sliding_window"] - 1
        sizes = (
            ("kv_heads", pairs * (2 if slides else 1)),
            *(("attention_other", heads * slides), ("window", window if slides else 0)),
        )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    fields: dict[str, Any] = {"qkv_bias": False, "out_bias": None, "mlp_bias": None}
    plain = {**config, "layer_types": None, "sliding_window": None}
    shape = llama(plain, experts=shared_experts({**config, "n_shared_experts": None}), **fields)
    shape |= {"value_dim": config["v_head_dim"], "window": config["sliding_window"]}
    return in_blocks(shape, kinds)


def _mimo_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of this type"
    for key, like in (("swa_num_attention_heads", "num_attention_heads"), ("swa_head_dim", "head_dim")):
        if config.get(key) not in (None, config.get(like)):
            yield key, "windows with other heads than the rest"


def _longcat(config: Config) -> Shape:
    """Two layers of attention with a dense feed-forward each, and experts beside both, some of which do nothing."""
    layers, width, idle = config["num_layers"], config["hidden_size"], config.get("zero_expert_num") or 0
    number, inner = config["n_routed_experts"], config["expert_ffn_hidden_size"]
    ffn = config["ffn_hidden_size"]
    plain = {**config, "num_hidden_layers": 2 * layers, "intermediate_size": ffn, "num_key_value_heads": None}
    picked = max(1, round(config["moe_topk"] * number / (number + idle)))
    experts = {"number": number, "top_k": picked, "ffn": inner, "shared_ffn": ffn}
    shape = latent_shape(plain, experts=experts)
    # The router knows those that do nothing, and transformers makes gates of theirs.
    others = layers * idle * width * (1 + 2 * inner)
    kinds: list[Kind] = [("attention", "dense"), ("attention", "experts")]
    return in_blocks({**shape, "other_parameters": others}, kinds * layers)


def _longcat_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("attention_bias", "router_bias"):
        if config.get(key):
            yield key, "biases of this type"


def _minimax3(config: Config) -> Shape:
    """Attention to the blocks that an index picks; the first layers are dense and attend to all."""
    given = config.get("sparse_attention_config") or {}
    width, heads, pairs, head = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    count, size, picked, block = (
        given.get(old) or config.get(new) or usual
        for old, new, usual in (
            ("sparse_num_index_heads", "index_n_heads", 4),
            ("sparse_index_dim", "index_head_dim", 128),
            ("sparse_topk_blocks", "index_topk_blocks", 16),
            ("sparse_block_size", "index_block_size", 128),
        )
    )
    flags = given.get("sparse_attention_freq") or [0] * config["num_hidden_layers"]
    names = _named(
        config, "layer_types", lambda index: "minimax_m3_sparse" if flags[index] else "full_attention"
    )
    freq = config.get("moe_layer_freq")
    routed = freq if isinstance(freq, list) else [1] * config["num_hidden_layers"]
    feeds = _named(config, "mlp_layer_types", lambda index: "sparse" if routed[index] else "dense")
    plain: tuple[Matrix, ...] = (
        (width, (heads + 2 * pairs) * head, "columns"),
        (heads * head, width, "rows"),
    )
    index: tuple[Matrix, ...] = ((width, count * size, "nothing"), (width, size, "nothing"))
    kinds: list[Kind] = []
    for name, feed in zip(names, feeds, strict=True):
        sizes: tuple[tuple[str, Any], ...] = ()
        if name == "minimax_m3_sparse":
            sizes = (
                ("projections", (*index, *plain)),
                ("attention_other", 2 * size),
                ("window", picked * block),
            )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    experts = {
        **{"number": config["num_local_experts"], "top_k": config["num_experts_per_tok"]},
        **{"ffn": config["intermediate_size"], "shared_ffn": config["shared_intermediate_size"]},
    }
    fields: dict[str, Any] = {"qkv_bias": False, "out_bias": None, "mlp_bias": None, "qk_norm": True}
    dense = {**config, "intermediate_size": config["dense_intermediate_size"], "layer_types": None}
    return in_blocks(llama(dense, experts=experts, **fields), kinds)


def _xlstm(config: Config) -> Shape:
    """Matrix memories in place of attention (arXiv:2405.04517), whose gates are a product of the token's own."""
    width, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_heads"]
    ffn = _up(width * config.get("ffn_proj_factor", 2.667), config.get("ffn_round_up_to_multiple_of", 64))
    inner, keys = (
        int(width * config.get(f"{key}_dim_factor", usual)) for key, usual in (("v", 1.0), ("qk", 0.5))
    )
    if inner % heads or keys % heads:
        raise ValueError("num_heads")
    state = {
        **{
            "kind": "linear",
            "heads": heads,
            "head_dim": inner // heads,
            "groups": heads,
            "size": keys // heads,
        },
        **{"conv": 1, "conv_bias": False, "chunk": config.get("chunk_size", 64)},
    }
    return {
        **{
            "layers": layers,
            "hidden": width,
            "heads": heads,
            "ffn": ffn,
            "gated_mlp": True,
            "mixer": "state",
        },
        # Its output layer is never tied, whatever the configuration says.
        **{"vocab": config["vocab_size"], "tied_embeddings": False},
        "state": state,
        "other_parameters": layers * 2 * heads * (width + 1),
    }


def _up(value: float, step: int) -> int:
    """Rounded up to a multiple, as transformers does it: a fraction of one beyond a multiple rounds up no further."""
    return int((value + step - 1) // step * step)


def _xlstm_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("use_bias"):
        yield "use_bias", "biases of this type"
    if config.get("embedding_dim") not in (None, config.get("hidden_size")):
        yield "embedding_dim", "embeddings of another width of this type"
    if config.get("num_blocks") not in (None, config.get("num_hidden_layers")):
        yield "num_blocks", "other numbers of blocks than of layers"


def _jetmoe(config: Config) -> Shape:
    """Experts of queries and outputs too (arXiv:2404.07413), each with as many heads as there are of keys.

    A token has the heads of the experts that it picks; the others are parameters that take no part.
    """
    width, pairs, head = config["hidden_size"], config["num_key_value_heads"], config["kv_channels"]
    number, picked = config["num_local_experts"], config["num_experts_per_tok"]
    others = 2 * (number - picked) * width * pairs * head + number * width
    # A bias behind the experts of either kind.
    fields: dict[str, Any] = {
        "heads": picked * pairs,
        "head_dim": head,
        "attention_other": others + 2 * width,
    }
    experts = {"number": number, "top_k": picked, "ffn": config["intermediate_size"]}
    return llama({"num_attention_heads": pairs, **config}, tied=True, experts=experts, **fields)


def _ernie_vl(config: Config) -> Shape:
    """Experts of texts, and others as many and narrower of images, which take no part here; the first layers are
    dense."""
    width, count = config["hidden_size"], config["num_hidden_layers"]
    wide, narrow = config.get("moe_intermediate_size") or (1536, 512)
    number = first_of(config, ("moe_num_experts", "num_experts"))
    given = {**config, "moe_intermediate_size": wide}
    shape = llama(given, qkv_bias=False, experts={**shared_experts(given), "router_bias": True})
    own = (("attention_other", number * (3 * width * narrow + width + 1)),)
    feeds = _named(config, "mlp_layer_types", lambda index: "sparse" if index else "dense")
    kinds: list[Kind] = [
        ("attention", "experts", own) if each == "sparse" else ("attention", "dense") for each in feeds
    ]
    return in_blocks(shape, kinds[:count])


def _ernie_vl_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("use_bias"):
        yield "use_bias", "biases of this type"
    sizes = config.get("moe_intermediate_size")
    if sizes is not None and not (isinstance(sizes, list) and len(sizes) == 2):
        yield "moe_intermediate_size", "other than two widths of experts"


def _axk1(config: Config) -> Shape:
    """DeepSeek-V3 with a norm behind its experts."""
    shape = deepseek(config)
    kinds, dense = config.get("mlp_layer_types"), config.get("first_k_dense_replace", 1)
    routed = kinds.count("sparse") if isinstance(kinds, list) else shape["layers"] - dense
    return {**shape, "other_parameters": routed * config["hidden_size"]}


def _axk2(config: Config) -> Shape:
    """Latent attention with a gate, to the tokens that an index picks, priced as if it picked all; thin matrices scale
    what norms make, in layers with experts behind attention too."""
    width, heads, rank = (config[key] for key in ("hidden_size", "num_attention_heads", "q_lora_rank"))
    low, rope, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    value, indexes, index = config["v_head_dim"], config["index_n_heads"], config["index_head_dim"]
    thin, first = config.get("gated_norm_rank", 16), config.get("first_k_dense_replace", 1)
    feeds = _named(config, "mlp_layer_types", lambda number: "dense" if number < first else "sparse")
    scaled: tuple[Matrix, ...] = ((width, thin, "nothing"), (thin, width, "nothing"))
    matrices: tuple[Matrix, ...] = (
        (rank, indexes * index, "nothing"),
        (width, index, "nothing"),
        (width, indexes, "nothing"),
        (width, rank, "nothing"),
        # Queries beside the gate, of what the low rank is ahead of its norm and behind it.
        (2 * rank, heads * (plain + rope + value), "columns"),
        (width, low + rope, "nothing"),
        (low, heads * (plain + value), "columns"),
        (heads * value, width, "rows"),
    )
    kinds: list[Kind] = []
    for feed in feeds:
        times = 2 if feed == "sparse" else 1
        sizes = (("projections", (*times * scaled, *matrices)), ("attention_other", 2 * index))
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    plain_config = {**config, "layer_types": None}
    return in_blocks(latent_shape(plain_config, mlp_bias=None, experts=shared_experts(config)), kinds)


def _axk2_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("mlp_layer_types") is None:
        yield from mixed_dense(config)


def _bailing_hybrid(config: Config) -> Shape:
    """Delta attention with decays by channel beside latent attention with a gate for each head (Ling 3)."""
    width, count = config["hidden_size"], config["num_hidden_layers"]
    heads = config.get("linear_num_heads") or config["num_attention_heads"]
    head = config.get("linear_head_dim") or config["head_dim"]
    inner = heads * head
    # Gates and decays are made by whole matrices, for which those of a rank with as many parameters stand.
    rank = width * inner // (width + inner)
    state = {
        **{"kind": "delta", "heads": heads, "head_dim": head, "groups": heads, "size": head, "rank": rank},
        "conv": config.get("linear_conv_kernel_dim") or config["short_conv_kernel_size"],
        **{"conv_bias": False, "chunk": 64},
    }
    every = config.get("layer_group_size", 6)
    named = _named(
        config,
        "layer_types",
        lambda index: "linear_attention" if (index + 1) % every else "full_attention",
    )
    left = named.count("linear_attention") * 2 * (width * inner - rank * (width + inner))
    filled = {**config, "layer_types": named}
    gates = config["num_attention_heads"] * width
    shape = latent_shape(filled, mlp_bias=None, experts=shared_experts(config), attention_other=gates)
    # Its output layer is never tied, whatever the configuration says.
    shape |= {"state": state, "other_parameters": left, "tied_embeddings": False}
    feeds = _named(
        config,
        "mlp_layer_types",
        lambda index: "dense" if index < config.get("first_k_dense_replace", 2) else "sparse",
    )
    kinds = [
        (mixer, "experts" if feed == "sparse" else "dense")
        for mixer, feed in zip(mixers_of({**filled, "num_hidden_layers": count}), feeds, strict=True)
    ]
    return in_blocks(shape, kinds)


def _zaya(config: Config) -> Shape:
    """Queries and keys behind two convolutions (arXiv:2510.04476), a router with layers of its own, and an expert that
    does nothing; scales and shifts of both residual sums."""
    width, heads, pairs = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    head, count, inner = config["head_dim"], config["num_hidden_layers"], config["router_hidden_size"]
    number, (first, second) = config["num_experts"], (config["cca_time0"], config["cca_time1"])
    if inner <= number or pairs * head % 2:
        raise ValueError("router_hidden_size")
    channels = (heads + pairs) * head
    matrices: tuple[Matrix, ...] = (
        # What the router takes beyond one matrix to the experts.
        (width, inner - number, "nothing"),
        *2 * ((inner, inner, "nothing"),),
        (inner, number + 1, "nothing"),
        (width, (heads + 2 * pairs) * head, "columns"),
        (second * head, channels, "columns"),
        (heads * head, width, "rows"),
    )
    own = channels * (first + 1) + channels + pairs + 8 * width + 4 * inner
    names = config.get("layer_types") or ["hybrid"] * count
    near = names.count("hybrid_sliding")
    windows: Shape = {"window": config["sliding_window"]} if near else {}
    windows |= {"window_layers": near} if 0 < near < count else {}
    plain = {**config, "layer_types": None, "sliding_window": None}
    experts = {
        "number": number,
        "top_k": config["num_experts_per_tok"],
        "ffn": config["moe_intermediate_size"],
    }
    shape = llama(plain, tied=True, mlp_bias=None, experts=experts, projections=matrices, attention_other=own)
    return {
        **{**shape, **windows, "head_bias": bool(config.get("lm_head_bias", False))},
        # Of the embedding, and of what the router of the layer ahead made.
        "other_parameters": 2 * width + (count - 1) * inner,
    }


def _zaya_unlike(config: Config) -> Iterator[tuple[str, str]]:
    names = config.get("layer_types")
    known = ("hybrid", "hybrid_sliding")
    strange = [each for each in names if each not in known] if isinstance(names, list) else []
    if strange:
        yield "layer_types", f"layers of type {shown(strange[0])}"
    elif isinstance(names, list) and "hybrid_sliding" in names and not config.get("sliding_window"):
        yield "sliding_window", "windows of no size"


def _inkling(config: Config) -> Shape:
    """Windows with heads of their own; convolutions of each channel behind keys, values, attention and feed-forward;
    biases by distance that each token makes, and a router that weighs the shared experts too."""
    width, count, kernel = config["hidden_size"], config["num_hidden_layers"], config["conv_kernel_size"]
    window, near = config["sliding_window_size"], config.get("local_layer_ids")
    names = _named(
        config,
        "layer_types",
        lambda index: (
            "hybrid_sliding" if (index in near if near is not None else (index + 1) % 6) else "hybrid"
        ),
    )
    first = config.get("dense_mlp_idx", 0)
    feeds = _named(config, "mlp_layer_types", lambda index: "dense" if index < first else "sparse")
    ffn, routed = config["intermediate_size"], config["moe_intermediate_size"]
    if config.get("dense_intermediate_size") is not None:
        ffn, routed = config["dense_intermediate_size"], ffn
    shared, kinds = config["n_shared_experts"], []
    for name, feed in zip(names, feeds, strict=True):
        slides = name == "hybrid_sliding"
        heads, pairs, head = (
            config[f"swa_{key}" if slides else key]
            for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        reach, sparse = window if slides else config["rel_extent"], feed == "sparse"
        matrices: tuple[Matrix, ...] = (
            (width, (heads + 2 * pairs) * head, "columns"),
            (width, heads * config["d_rel"], "columns"),
            (heads * head, width, "rows"),
        )
        # The scale of the feed-forward, or of the router.
        own = config["d_rel"] * reach + 2 * kernel * (pairs * head + width) + 1 + shared * width * sparse
        sizes = (
            *(("heads", heads), ("kv_heads", pairs), ("head_dim", head), ("projections", matrices)),
            *(("attention_other", own), ("window", window if slides else 0)),
        )
        kinds.append(("attention", "experts" if sparse else "dense", sizes))
    experts = {
        **{"number": first_of(config, EXPERT_COUNTS), "top_k": first_of(config, EXPERT_PICKS)},
        **{"ffn": routed, "shared_ffn": shared * routed},
    }
    plain = {**config, "layer_types": None, "sliding_window": None, "intermediate_size": ffn}
    fields: dict[str, Any] = {"qkv_bias": False, "out_bias": None, "mlp_bias": None, "qk_norm": True}
    shape = llama(plain, experts=experts, **fields)
    return in_blocks({**shape, "embedding_norm": True, "tied_embeddings": False}, kinds[:count])


def _inkling_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key, known in (
        ("layer_types", ("hybrid", "hybrid_sliding")),
        ("mlp_layer_types", ("dense", "sparse")),
    ):
        given = config.get(key)
        strange = [each for each in given if each not in known] if isinstance(given, list) else []
        if strange:
            yield key, f"layers of type {shown(strange[0])}"


def _dots3_names(config: Config) -> list[str]:
    """What each layer attends to: files without sizes of single layers have an index wherever attention is full."""
    count, indexes = config["num_hidden_layers"], config.get("use_dsa", "per_layer_config" not in config)
    full = "full_attention" if config.get("use_dsa") is False else "indexed_attention"
    slides = config.get("use_sliding_window", True)
    names = _named(
        config,
        "layer_types",
        lambda index: "sliding_attention" if slides and index > 1 and index % 4 != 1 else full,
    )
    if config.get("use_dsa") is False:
        return ["full_attention" if name == "indexed_attention" else name for name in names[:count]]
    return ["indexed_attention" if indexes and name == "full_attention" else name for name in names[:count]]


_DOTS3_NEAR = {
    **{"num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "head_dim": 256},
    **{"qk_nope_head_dim": 192, "v_head_dim": 128},
}
"""Sizes of layers with windows where nobody says them."""


def _dots3(config: Config) -> Shape:
    """Latent attention with a gate for each head, in windows with sizes of their own or to the tokens that an index
    picks, priced as if it picked all."""
    width, indexes, index = (config[key] for key in ("hidden_size", "index_n_heads", "index_head_dim"))
    near = {key: config.get(f"swa_{key}", usual) for key, usual in _DOTS3_NEAR.items()}
    near["qk_rope_head_dim"] = config.get("swa_qk_rope_head_dim", near["head_dim"] - near["qk_nope_head_dim"])
    given, biased = config.get("per_layer_config"), bool(config.get("attention_bias"))
    listed = {int(key): each for key, each in given.items()} if isinstance(given, dict) else None
    first, freq = config.get("first_k_dense_replace", 1), config.get("moe_layer_freq", 1)
    routed = (
        freq
        if isinstance(freq, list)
        else [number % freq == 0 for number in range(config["num_hidden_layers"])]
    )
    feeds = _named(
        config,
        "mlp_layer_types",
        lambda number: "sparse" if number >= first and routed[number] else "dense",
    )
    window = config.get("sliding_window") or config.get("sliding_window_size") or 512
    kinds: list[Kind] = []
    for number, (name, feed) in enumerate(zip(_dots3_names(config), feeds, strict=True)):
        slides = name == "sliding_attention"
        sizes = {**config, **(listed.get(number, {}) if listed is not None else near if slides else {})}
        heads, rank, low = (sizes[key] for key in ("num_attention_heads", "q_lora_rank", "kv_lora_rank"))
        plain, rope, value = (sizes[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        picks: tuple[Matrix, ...] = (
            (rank, indexes * index, "nothing"),
            (width, index, "nothing"),
            (width, indexes, "nothing"),
        )
        picked = name == "indexed_attention"
        matrices: tuple[Matrix, ...] = (
            *(picks if picked else ()),
            (width, rank, "nothing"),
            (rank, heads * (plain + rope), "columns"),
            (width, low + rope, "nothing"),
            (low, heads * (plain + value), "columns"),
            (width, heads, "columns"),
            (heads * value, width, "rows"),
        )
        own = (rank + low + rope) * (1 + biased) + 2 * index * picked
        layer = (
            *(("heads", heads), ("kv_heads", heads), ("head_dim", plain + rope), ("value_dim", value)),
            *(("projections", matrices), ("attention_other", own), ("window", window if slides else 0)),
        )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", layer))
    shared = config.get("moe_shared_expert_intermediate_size") or config["shared_experts_intermediate_size"]
    experts = {**shared_experts(config), "shared_ffn": shared * config["n_shared_experts"]}
    plain_config = {**config, "layer_types": None, "sliding_window": None}
    return in_blocks(llama(plain_config, qkv_bias=False, mlp_bias=None, experts=experts), kinds)


def _dots3_unlike(config: Config) -> Iterator[tuple[str, str]]:
    feeds = config.get("mlp_layer_types")
    strange = [each for each in feeds if each not in ("dense", "sparse")] if isinstance(feeds, list) else []
    if strange:
        yield "mlp_layer_types", f"layers of type {shown(strange[0])}"
    given = config.get("per_layer_config")
    known = {*_DOTS3_NEAR, "qk_rope_head_dim", "num_key_value_heads"}
    others = {key for each in given.values() for key in each} - known if isinstance(given, dict) else set()
    if others:
        yield "per_layer_config", f"layers with {sorted(others)[0]} of their own"


def _muse_spark(config: Config) -> Shape:
    """A gate behind attention, gates of both residual sums, and experts of a narrower width behind a norm; every fourth
    layer, from the last one back, attends to all."""
    width, count, narrow = (config[key] for key in ("hidden_size", "num_hidden_layers", "moe_hidden_size"))
    names = _named(
        config,
        "layer_types",
        lambda index: "sliding_attention" if (count - 1 - index) % 4 else "full_attention",
    )
    feeds = _named(config, "mlp_layer_types", lambda index: "sparse")
    kinds: list[Kind] = []
    for name, feed in zip(names, feeds, strict=True):
        sizes = (
            ("attention_other", 2 * width + 2 * narrow * (feed == "sparse")),
            ("window", config.get("sliding_window") or 0 if name == "sliding_attention" else 0),
        )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    experts = {
        **{"number": first_of(config, EXPERT_COUNTS), "top_k": first_of(config, EXPERT_PICKS)},
        **{"ffn": config["moe_intermediate_size"], "hidden": narrow},
    }
    plain = {**config, "layer_types": None, "sliding_window": None}
    fields: dict[str, Any] = {"output_gate": True, "layer_norms": 3, "mlp_bias": None}
    return in_blocks(llama(plain, experts=experts, **fields), kinds)


def _muse_spark_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of attention beside a gate"
    feeds = config.get("mlp_layer_types")
    strange = [each for each in feeds if each not in ("dense", "sparse")] if isinstance(feeds, list) else []
    if strange:
        yield "mlp_layer_types", f"layers of type {shown(strange[0])}"


def _hy4(config: Config) -> Shape:
    """Latent attention with a gate and sinks to the tokens that an index picks, priced as if it picked all; some layers
    take what the last index picked (arXiv:2603.12201). Several residual streams."""
    width, heads, rank, ways = (
        config[key] for key in ("hidden_size", "num_attention_heads", "q_lora_rank", "hc_mult")
    )
    low, rope, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    value, indexes, index = config["v_head_dim"], config["index_n_heads"], config["index_head_dim"]
    picked = _named(
        config, "indexer_types", lambda number: "shared" if number and (number - 1) % 4 else "full"
    )
    feeds = _named(config, "mlp_layer_types", lambda number: "sparse" if number else "dense")
    matrices: tuple[Matrix, ...] = (
        *2 * ((ways * width, 2 * ways, "nothing"),),
        (width, rank, "nothing"),
        (rank, heads * (plain + rope), "columns"),
        (width, low + rope, "nothing"),
        (low, heads * (plain + value), "columns"),
        (width, heads * value, "columns"),
        (heads * value, width, "rows"),
    )
    picks: tuple[Matrix, ...] = (
        (rank, indexes * index, "nothing"),
        (width, index, "nothing"),
        (width, indexes, "nothing"),
    )
    streams, kinds = 2 * (2 * ways + 2), []
    for pick, feed in zip(picked, feeds, strict=True):
        own = pick == "full"
        sizes = (
            ("projections", (*(picks if own else ()), *matrices)),
            ("attention_other", streams + own * 2 * index),
        )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    # What joins the streams behind the last layer.
    ends = ways * ways * width + ways + 1
    shape = latent_shape(config, mlp_bias=None, sinks=True, experts=shared_experts(config))
    return in_blocks({**shape, "other_parameters": ends}, kinds)


def _hy4_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key, known in (("indexer_types", ("full", "shared")), ("mlp_layer_types", ("dense", "sparse"))):
        given = config.get(key)
        strange = [each for each in given if each not in known] if isinstance(given, list) else []
        if strange:
            yield key, f"layers of type {shown(strange[0])}"


def _glm5(config: Config) -> Shape:
    """Delta attention with decays by channel beside latent attention without positions to the tokens that an index
    picks of pools, priced as if it picked all; several residual streams (GLM 5.3 Flash)."""
    width, heads, count = (config[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    rank, low, plain = config["q_lora_rank"], config["kv_lora_rank"], config["qk_nope_head_dim"]
    value, indexes, index = config["v_head_dim"], config["index_n_heads"], config["index_head_dim"]
    ways, biased = config.get("hc_mult", 4), bool(config.get("attention_bias"))
    given = config.get("linear_attn_config") or {}
    head = given.get("head_dim") or config["linear_head_dim"]
    own_heads = given.get("num_heads") or config["linear_num_heads"]
    state = {
        **{"kind": "delta", "heads": own_heads, "head_dim": head, "groups": own_heads, "size": head},
        "conv": given.get("short_conv_kernel_size") or config["linear_conv_kernel_dim"],
        **{"rank": head, "conv_bias": False, "chunk": 64},
    }
    names = _named(config, "layer_types", lambda number: "" if number % 4 == 3 else "linear_attention")
    feeds = _named(config, "mlp_layer_types", lambda number: "dense" if number < 3 else "sparse")
    mixed = (2 + ways) * ways
    streams: tuple[Matrix, ...] = 2 * ((ways * width, mixed, "nothing"),)
    picks: tuple[Matrix, ...] = (
        (rank, indexes * index, "nothing"),
        *2 * ((width, index, "nothing"),),
        (width, indexes, "nothing"),
    )
    matrices: tuple[Matrix, ...] = (
        (width, rank, "nothing"),
        (rank, heads * plain, "columns"),
        (width, low, "nothing"),
        (low, heads * (plain + value), "columns"),
        (heads * value, width, "rows"),
    )
    kinds: list[Kind] = []
    for name, pick, feed in zip(names, _picks(config), feeds, strict=True):
        routed = "experts" if feed == "sparse" else "dense"
        if name == "linear_attention":
            kinds.append(("state", routed))
            continue
        own = 2 * (mixed + 3) + (rank + low) * (1 + biased)
        own += (2 + config.get("index_kpool", 16)) * index * (pick == "full")
        projections = (*streams, *(picks if pick == "full" else ()), *matrices)
        kinds.append(("attention", routed, (("projections", projections), ("attention_other", own))))
    fields: dict[str, Any] = {"qkv_bias": False, "mlp_bias": None, "kv_heads": heads, "head_dim": plain}
    shape = llama({**config, "layer_types": None}, experts=shared_experts(config), state=state, **fields)
    # Streams of the layers that carry a state.
    others = names[:count].count("linear_attention") * 2 * (mixed * (ways * width + 1) + 3)
    return in_blocks({**shape, "value_dim": value, "other_parameters": others}, kinds)


def _glm5_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _picks_unlike(config)
    if config.get("qk_rope_head_dim"):
        yield "qk_rope_head_dim", "rotary positions of this type"


def _picks(config: Config) -> list[str]:
    """Which layers have an index of their own: as a list says, a word of letters, or every so many."""
    count, given = (
        config["num_hidden_layers"],
        config.get("indexer_types") or config.get("index_topk_pattern"),
    )
    if isinstance(given, str):
        given = [{"F": "full", "S": "shared"}[letter] for letter in given]
    every, offset = max(config.get("index_topk_freq", 1), 1), config.get("index_skip_topk_offset", 2)
    usual = ["shared" if max(index - offset + 1, 0) % every else "full" for index in range(count)]
    return [str(each) for each in given or usual]


def _large4(config: Config) -> Shape:
    """Latent attention without low ranks of queries to the tokens that an index picks, priced as if it picked all; some
    layers have no positions, and some take the latents of earlier ones."""
    width, heads, count = (config[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    low, rope, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    value, indexes, index = config["v_head_dim"], config["index_n_heads"], config["index_head_dim"]
    every, biased = config.get("no_rope_layer_interval", 4), bool(config.get("attention_bias"))
    turned: list[Any] = config.get("no_rope_layers") or [(number + 1) % every for number in range(count)]
    sources = config.get("kv_source_layers") or [*range(count)]
    dense = min(config.get("first_k_dense_replace", 1), count)
    feeds = _named(config, "mlp_layer_types", lambda number: "dense" if number < dense else "sparse")
    picks: tuple[Matrix, ...] = (
        (width, indexes * index, "nothing"),
        (width, index, "nothing"),
        (width, indexes, "nothing"),
    )
    # Norms of the index, and scales of its scores by place.
    indexed = 2 * index + 2 * width + 2 * indexes
    kinds: list[Kind] = []
    for number, (pick, feed) in enumerate(zip(_picks(config), feeds, strict=True)):
        turns = rope if turned[number] else 0
        latents: tuple[Matrix, ...] = ((width, low + turns, "nothing"),) if sources[number] == number else ()
        matrices: tuple[Matrix, ...] = (
            (width, heads * (plain + rope), "columns"),
            *latents,
            (low, heads * (plain + rope - turns + value), "columns"),
            (heads * value, width, "rows"),
        )
        # Scales of the scores by place, and the norm of the latents.
        own = 2 * heads + (low + (low + turns) * biased) * bool(latents) + indexed * (pick == "full")
        sizes = (
            ("projections", (*(picks if pick == "full" else ()), *matrices)),
            ("attention_other", own),
        )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    fields: dict[str, Any] = {
        "qkv_bias": False,
        "mlp_bias": None,
        "kv_heads": heads,
        "head_dim": plain + rope,
    }
    shape = llama({**config, "layer_types": None}, experts=shared_experts(config), **fields)
    # A scale of each wavelength.
    return in_blocks({**shape, "value_dim": value, "other_parameters": -(-rope // 2)}, kinds)


def _picks_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key, known in (("indexer_types", ("full", "shared")), ("mlp_layer_types", ("dense", "sparse"))):
        given = config.get(key)
        strange = [each for each in given if each not in known] if isinstance(given, list) else []
        if strange:
            yield key, f"layers of type {shown(strange[0])}"
    pattern = config.get("index_topk_pattern")
    if isinstance(pattern, str) and not {*pattern} <= {"F", "S"}:
        yield "index_topk_pattern", "layers of other letters than F and S"


def _large4_contrary(config: Config) -> Iterator[tuple[str, str]]:
    count, sources = config.get("num_hidden_layers"), config.get("kv_source_layers")
    if not isinstance(count, int) or sources is None:
        return
    numbers = isinstance(sources, list) and all(type(each) is int for each in sources)
    if not numbers or len(sources) != count:
        yield "kv_source_layers", f"expected a number for each of num_hidden_layers {count}"
    elif any(not 0 <= each <= index or sources[each] != each for index, each in enumerate(sources)):
        yield "kv_source_layers", "expected numbers of earlier layers that have latents of their own"


def _step3_heads(config: Config) -> tuple[list[str], list[int]]:
    """Names of all layers, without those of modules for further tokens, and the heads of each."""
    count, heads = config["num_hidden_layers"], config["num_attention_heads"]
    names = [str(each) for each in config.get("layer_types") or ["full_attention"] * count][:count]
    older = config.get("attention_other_setting") or {}
    near: int = config.get("num_sliding_attention_heads") or older.get("num_attention_heads") or heads
    given = config.get("per_layer_config")
    listed = {int(index): each for index, each in given.items()} if isinstance(given, dict) else None
    if listed is None:
        return names, [near if name == "sliding_attention" else heads for name in names]
    return names, [int(listed.get(index, {}).get("num_attention_heads", heads)) for index in range(count)]


def _step3(config: Config) -> Shape:
    """Windows with heads of their own, a gate for each head, and a shared expert beside the others (Step 3.7)."""
    width, head, count = config["hidden_size"], config["head_dim"], config["num_hidden_layers"]
    names, heads = _step3_heads(config)
    feeds, routed = config.get("mlp_layer_types"), config.get("moe_layers_enum")
    if not isinstance(feeds, list):
        listed = routed.split(",") if isinstance(routed, str) else routed
        numbers = range(3, count) if listed is None else [int(each) for each in listed if str(each).strip()]
        feeds = ["sparse" if index in numbers else "dense" for index in range(count)]
    channels = 1 if config.get("gating", True) in (True, "per-head") else head
    kinds: list[Kind] = []
    for name, many, feed in zip(names, heads, feeds[:count], strict=True):
        sizes = (
            *(("heads", many), ("attention_other", many * channels * width)),
            ("window", config.get("sliding_window") or 0 if name == "sliding_attention" else 0),
        )
        kinds.append(("attention", "experts" if feed == "sparse" else "dense", sizes))
    experts = {
        "number": first_of(config, ("moe_num_experts", "n_routed_experts")),
        "top_k": first_of(config, ("moe_top_k", "num_experts_per_tok")),
        **{"ffn": config["moe_intermediate_size"], "shared_ffn": config["share_expert_dim"]},
    }
    plain = {**config, "layer_types": None, "sliding_window": None}
    return in_blocks(llama(plain, qk_norm=True, experts=experts), kinds)


def _step3_unlike(config: Config) -> Iterator[tuple[str, str]]:
    feeds = config.get("mlp_layer_types")
    strange = [each for each in feeds if each not in ("dense", "sparse")] if isinstance(feeds, list) else []
    if strange:
        yield "mlp_layer_types", f"layers of type {shown(strange[0])}"
    names = config.get("layer_types")
    known = ("full_attention", "sliding_attention")
    strange = [each for each in names if each not in known] if isinstance(names, list) else []
    if strange:
        yield "layer_types", f"layers of type {shown(strange[0])}"
    given = config.get("per_layer_config")
    others = {key for each in given.values() for key in each} if isinstance(given, dict) else set()
    if others - {"num_attention_heads"}:
        yield "per_layer_config", f"layers with {sorted(others - {'num_attention_heads'})[0]} of their own"
    # Of this type transformers goes by the other name alone.
    if config.get("num_local_experts") not in (None, config.get("n_routed_experts")):
        yield "num_local_experts", "other numbers than n_routed_experts"


def _dory_layers(config: Config) -> tuple[list[Any], list[int]]:
    """Names of all layers, and how many stand ahead of those that are run again, are run again, and stand behind.

    Files list a feed-forward behind each attention as a layer of its own.
    """
    given, sizes = config.get("layer_types"), ("num_hidden_layers", "n_input_layers", "n_output_layers")
    doubled = isinstance(given, list) and "mlp" in given
    count, ahead, behind = (config[key] // (2 if doubled else 1) for key in sizes)
    usual = ["full_attention" if (index + 1) % 4 == 0 else "sliding_attention" for index in range(count)]
    names = given[::2] if doubled and given is not None else given or usual
    again = config.get("n_recurrent_layers")
    again = count - ahead - behind if again is None else again // (2 if doubled else 1)
    return names, [ahead, again, behind]


def _dory(config: Config) -> Shape:
    """Hidden states of length one, with scales of each channel in place of norms (arXiv:2410.01131); the layers in the
    middle are run again and again."""
    width, loops = config["hidden_size"], config["n_recurrent_loops"]
    inner, ffn = config["num_attention_heads"] * config["head_dim"], config["intermediate_size"]
    names, (ahead, again, _) = _dory_layers(config)
    own = 2 * inner + 2 * ffn + 2 * width
    plain = {**config, "layer_types": None, "sliding_window": None, "num_hidden_layers": len(names)}
    fields: dict[str, Any] = {"norm": "plain", "layer_norms": 4, "output_gate": True, "attention_other": own}
    # A scale of each token of the output layer.
    shape = {**llama(plain, qkv_bias=False, out_bias=None, **fields), "head_bias": True}
    windows = [config["sliding_window"] if name == "sliding_attention" else 0 for name in names]
    if loops == 1 or not again:
        return in_blocks(shape, [("attention", "dense", (("window", window),)) for window in windows])
    middle = windows[ahead : ahead + again]
    order = [(window, False) for window in windows[:ahead]] + [(window, True) for window in middle] * loops
    order += [(window, False) for window in windows[ahead + again :]]
    runs = tuple(
        {"layers": len(list(alike)), "window": window, "shared": shared}
        for (window, shared), alike in groupby(order)
    )
    # Layers of one kind that are run again count as a single one.
    further = again - len({*middle})
    matrices = width * (3 * inner + 2 * config["num_key_value_heads"] * config["head_dim"] + 3 * ffn)
    biases = (2 * ffn + width) * shape["mlp_bias"]
    return {**shape, "layers": 1, "block": runs, "other_parameters": further * (matrices + biases + own)}


def _dory_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("attention_bias"):
        yield "attention_bias", "biases of attention beside a gate"


def _dory_contrary(config: Config) -> Iterator[tuple[str, str]]:
    keys = (
        "num_hidden_layers",
        "n_input_layers",
        "n_output_layers",
        "n_recurrent_layers",
        "n_recurrent_loops",
    )
    least = dict(zip(keys, (1, 0, 0, 0, 1), strict=True))
    wrong = [
        key
        for key in keys
        if not (type(config.get(key)) is int and least[key] <= config[key] <= LAYERS.most)
        and not (key == "n_recurrent_layers" and config.get(key) is None)
    ]
    for key in wrong:
        yield (
            key,
            f"expected a whole number from {least[key]} to {figure(LAYERS.most)}, got {shown(config.get(key))}",
        )
    given = config.get("layer_types")
    if wrong or not (given is None or isinstance(given, list)):
        return
    if given is not None and "mlp" in given and ({*given[1::2]} != {"mlp"} or "mlp" in given[::2]):
        yield "layer_types", "expected mlp behind every layer of attention, and nowhere else"
        return
    names, parts = _dory_layers(config)
    strange = [each for each in names if each not in ("full_attention", "sliding_attention")]
    if strange:
        yield "layer_types", f"expected full_attention or sliding_attention, got {shown(strange[0])}"
    if sum(parts) != len(names) or min(parts) < 0:
        whole = f"num_hidden_layers, {len(names)} of attention and as many of a feed-forward"
        yield "n_recurrent_layers", f"expected what makes up {whole}, with n_input_layers and n_output_layers"
    if parts[1] * config["n_recurrent_loops"] > LAYERS.most:
        yield (
            "n_recurrent_loops",
            f"expected at most {figure(LAYERS.most)} layers that are run again, with all repetitions",
        )


_GEMMA = (*COMMON, "head_dim", "num_key_value_heads", "sliding_window")
_HEADED = ("hidden_size", "num_attention_heads", "vocab_size")

MIXED_LAYERS: dict[str, ModelType] = {
    "axk1": ModelType(_axk1, LATENT, mixed_dense, experts=True),
    "axk2": ModelType(
        _axk2,
        (*LATENT, "q_lora_rank", "index_n_heads", "index_head_dim", "moe_intermediate_size"),
        _axk2_unlike,
        experts=True,
    ),
    "bailing_hybrid": ModelType(
        _bailing_hybrid,
        (*LATENT, "head_dim", "moe_intermediate_size"),
        experts=True,
    ),
    "dots3_note_text": ModelType(
        _dots3,
        (*LATENT, "q_lora_rank", "index_n_heads", "index_head_dim", "moe_intermediate_size"),
        _dots3_unlike,
        experts=True,
    ),
    "glm5_next_text": ModelType(
        _glm5,
        (
            *(*COMMON, "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "index_n_heads"),
            *("index_head_dim", "moe_intermediate_size", "hc_mult"),
        ),
        _glm5_unlike,
        experts=True,
        # Its width is that of what is rotated, which is nothing.
        listed=("head_dim",),
    ),
    "inkling_text": ModelType(
        _inkling,
        (*COMMON, "head_dim", "num_key_value_heads", "moe_intermediate_size"),
        _inkling_unlike,
        experts=True,
    ),
    "zaya": ModelType(
        _zaya,
        (*COMMON[:3], "vocab_size", "head_dim", "num_key_value_heads", "moe_intermediate_size"),
        _zaya_unlike,
        experts=True,
    ),
    "deci": ModelType(_deci),
    "deepseek_v4": ModelType(
        _deepseek4,
        (
            *(*COMMON[:3], "vocab_size", "moe_intermediate_size", "head_dim", "q_lora_rank"),
            *("index_n_heads", "index_head_dim", "sliding_window"),
        ),
        _deepseek4_unlike,
        experts=True,
    ),
    "dory": ModelType(_dory, (*COMMON, "head_dim", "sliding_window"), _dory_unlike, contrary=_dory_contrary),
    "ernie4_5_vl_moe_text": ModelType(
        _ernie_vl, COMMON, _ernie_vl_unlike, experts=True, listed=("moe_intermediate_size",)
    ),
    "gemma3n_text": ModelType(
        _gemma3n,
        (*COMMON[:3], "vocab_size", "head_dim", "num_key_value_heads", "sliding_window"),
        _gemma3n_unlike,
    ),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"), ModelType(_gemma4, _GEMMA, _gemma4_unlike, any_experts=True)
    ),
    **dict.fromkeys(
        ("hy_v4", "hy_v4_vl_text"),
        ModelType(
            _hy4,
            (*LATENT, "q_lora_rank", "index_n_heads", "index_head_dim", "moe_intermediate_size", "hc_mult"),
            _hy4_unlike,
            experts=True,
        ),
    ),
    "jetmoe": ModelType(
        _jetmoe,
        (
            "num_hidden_layers",
            "hidden_size",
            "num_key_value_heads",
            "kv_channels",
            "intermediate_size",
            "vocab_size",
        ),
        experts=True,
    ),
    "xlstm": ModelType(
        _xlstm, ("num_hidden_layers", "hidden_size", "num_heads", "vocab_size"), _xlstm_unlike
    ),
    "hunyuan_v1_moe": ModelType(_hunyuan, COMMON, _hunyuan_unlike, any_experts=True),
    "kimi_linear": ModelType(_kimi_linear, LATENT, _kimi_linear_unlike, experts=True),
    "longcat_flash": ModelType(
        _longcat,
        (*_HEADED, "num_layers", "ffn_hidden_size", *LATENT[len(COMMON) :]),
        _longcat_unlike,
        any_experts=True,
    ),
    "mimo_v2_flash": ModelType(
        _mimo,
        (*COMMON, "head_dim", "v_head_dim", "num_key_value_heads", "moe_intermediate_size"),
        _mimo_unlike,
        experts=True,
    ),
    **dict.fromkeys(
        ("minimax", "minimax_m1", "minimax_text_01"),
        ModelType(_lightning, COMMON, _lightning_unlike, experts=True),
    ),
    **dict.fromkeys(
        ("minimax_m3", "minimax_m3_vl_text"),
        ModelType(_minimax3, (*COMMON, "head_dim", "num_key_value_heads"), experts=True),
    ),
    "mistral_large4_text": ModelType(
        _large4,
        (*LATENT, "index_n_heads", "index_head_dim", "moe_intermediate_size"),
        _picks_unlike,
        experts=True,
        contrary=_large4_contrary,
    ),
    "step3p5": ModelType(
        _step3,
        (*COMMON, "head_dim", "num_key_value_heads", "moe_intermediate_size"),
        _step3_unlike,
        experts=True,
    ),
    "muse_spark_text": ModelType(
        _muse_spark,
        (*COMMON, "head_dim", "num_key_value_heads", "moe_intermediate_size", "moe_hidden_size"),
        _muse_spark_unlike,
        experts=True,
    ),
    "nemotron-nas": ModelType(_blocks, ("hidden_size", "num_attention_heads", "vocab_size"), _blocks_unlike),
    "openelm": ModelType(_openelm, ("vocab_size",), listed=("num_kv_heads",)),
    "zamba": ModelType(_zamba, COMMON, _zamba_unlike),
    "zamba2": ModelType(_zamba2, (*COMMON[:3], "vocab_size"), _zamba_unlike),
}
"""What is read of them, by ``model_type``."""
