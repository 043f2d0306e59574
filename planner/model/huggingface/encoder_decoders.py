"""Shapes of encoder-decoders from their Hugging Face configurations, by ``model_type``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from planner.files.messages import shown
from planner.model.huggingface.families import Config, Kind, ModelType, Shape, in_blocks, llama
from planner.model.huggingface.heads import decoder_alone
from planner.model.huggingface.products import added, linear
from planner.model.huggingface.vision import patch_of, patches_of
from planner.ranges import LAYERS

_gemma = partial(llama, tied=True, width=256, layer_norms=4, window=2)

T5_LENGTH = 512
"""Tokens of an input where a configuration with relative positions names none: those of its pretraining
(arXiv:1910.10683, section 3.1.2)."""


def decoded(shape: Shape, feeds: Sequence[str]) -> Shape:
    """The shape with decoder layers of attention, attention to the encoder and a feed-forward each."""
    kinds = [kind for each in feeds for kind in (("attention", "none"), ("cross", each))]
    return in_blocks(shape, kinds)


def _encoded(encoder: Shape, feeds: Sequence[str]) -> Shape:
    """The encoder with layers of these feed-forwards: equal blocks, the shortest that repeat."""
    if {*feeds} <= {"dense"}:
        return {**encoder, "layers": len(feeds)}
    total = len(feeds)
    length = next(
        size
        for size in range(1, total + 1)
        if total % size == 0 and [*feeds[:size]] * (total // size) == [*feeds]
    )
    block = tuple({"feed_forward": each} for each in feeds[:length])
    return {**encoder, "layers": total // length, "block": block}


def _sparse_feeds(config: Config, layers: int, which: str) -> list[str]:
    """Feed-forwards of a stack whose every n-th layer has experts, from the second on."""
    step = config.get(f"{which}_sparse_step") or 0
    if step == 1:
        return ["experts"] * layers
    return ["experts" if step and index % step == 1 else "dense" for index in range(layers)]


def _nllb_feeds(config: Config, layers: int, which: str) -> list[str]:
    """The same where the last of every n has them."""
    step = config.get(f"{which}_sparse_step") or 0
    return ["experts" if step and (index + 1) % step == 0 else "dense" for index in range(layers)]


def _t5(config: Config, *, each: bool = False, tied: bool = False) -> Shape:
    """Relative positions, norms without shift, no biases; ``each`` layer has a table of its own (UMT5).

    Embeddings of most of them are ``tied`` whatever the configuration says: transformers takes what it says of that as
    a sign whether outputs are scaled.
    """
    layers = config["num_layers"]
    below = config.get("num_decoder_layers") or layers
    rows = config.get("relative_attention_num_buckets", 32)
    length = config.get("n_positions") or T5_LENGTH
    shape: Shape = {
        "hidden": config["d_model"],
        "heads": config["num_heads"],
        "head_dim": config["d_kv"],
        "ffn": config["d_ff"],
        "gated_mlp": str(config.get("feed_forward_proj", "relu")).startswith("gated"),
        "norm": "rms",
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), False),
        "vocab": config["vocab_size"],
        "tied_embeddings": tied or bool(config.get("tie_word_embeddings", True)),
        "relative_positions": rows * (below if each else 1),
    }
    encoder = {"sequence_length": length, "relative_positions": rows * (layers if each else 1)}
    if config.get("encoder_attention_type", "local") == "local" and "local_radius" in config:
        encoder["window"] = 2 * int(config["local_radius"]) + 1
    if config.get("encoder_attention_type") == "transient-global" and "local_radius" in config:
        # A token for each block of them, with a norm in each layer and a table of its own.
        encoder["window"] = 2 * int(config["local_radius"]) + 1 + length // int(config["global_block_size"])
        encoder |= {"relative_positions": 2 * rows, "other_parameters": layers * config["d_model"]}
    if not config.get("num_experts") or config["model_type"] != "switch_transformers":
        return {**decoded(shape, ["dense"] * below), "encoder": _encoded(encoder, ["dense"] * layers)}
    experts = {"number": config["num_experts"], "top_k": 1, "ffn": config["d_ff"]}
    encoder |= _tables(shape)
    shape["experts"] = {**experts, "router_bias": bool(config.get("router_bias", False))}
    ways = {
        which: config.get(f"{which}_sparse_step")
        or (total // sparse if (sparse := config.get(f"num_sparse_{which}_layers", 0)) else total)
        for which, total in (("encoder", layers), ("decoder", below))
    }
    steps = {f"{which}_sparse_step": step for which, step in ways.items()}
    shape = decoded(shape, _sparse_feeds(steps, below, "decoder"))
    return {**shape, "encoder": _encoded(encoder, _sparse_feeds(steps, layers, "encoder"))}


def _longt5_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("encoder_attention_type", "local") not in ("local", "transient-global"):
        yield "encoder_attention_type", "attention of this kind in an encoder"


def bart(
    config: Config,
    *,
    offset: int | None = 2,
    embedding_norm: bool = True,
    final_norm: bool = False,
    **more: Any,
) -> Shape:
    """Two stacks with biases and layer norms; ``offset`` rows of its position tables are unused, None for no table."""
    positions = config["max_position_embeddings"]
    rows = 0 if offset is None else positions + offset
    width = config["d_model"]
    shape: Shape = {
        "hidden": width,
        "heads": config["decoder_attention_heads"],
        "head_dim": width // config["decoder_attention_heads"],
        "ffn": config["decoder_ffn_dim"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "learned_positions": rows,
        "embedding_norm": embedding_norm,
        "final_norm": final_norm,
        **more,
    }
    encoder: Shape = {
        **_encoder_sizes(config),
        **_tables(shape),
        "sequence_length": positions,
        "learned_positions": rows,
        "embedding_norm": embedding_norm,
        "final_norm": final_norm,
    }
    return {
        **decoded(shape, ["dense"] * config["decoder_layers"]),
        "encoder": _encoded(encoder, ["dense"] * config["encoder_layers"]),
    }


def _tables(shape: Shape) -> Shape:
    """Of the encoder's own where nothing is tied: one for its tokens, and the shared one that is left unused."""
    if shape["tied_embeddings"]:
        return {}
    return {"vocab": shape["vocab"], "other_parameters": shape["vocab"] * shape["hidden"]}


def _encoder_sizes(config: Config) -> Shape:
    return {"heads": config["encoder_attention_heads"], "ffn": config["encoder_ffn_dim"]}


def _nllb_moe(config: Config) -> Shape:
    """Experts with biases, two for a token; positions are computed."""
    shape = bart(config, offset=None, embedding_norm=False, final_norm=True)
    shape |= {
        "experts": {
            **{"number": config["num_experts"], "top_k": 2, "ffn": config["decoder_ffn_dim"]},
            **{"bias": True, "router_bias": bool(config.get("router_bias", False))},
        }
    }
    bare = {key: each for key, each in shape.items() if key not in ("block", "ahead", "behind", "layers")}
    encoder = {key: each for key, each in shape["encoder"].items() if key != "layers"}
    return {
        **decoded(bare, _nllb_feeds(config, config["decoder_layers"], "decoder")),
        "encoder": _encoded(encoder, _nllb_feeds(config, config["encoder_layers"], "encoder")),
    }


def _unequal_experts(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("encoder_ffn_dim") != config.get("decoder_ffn_dim"):
        yield "encoder_ffn_dim", "experts of other widths in the encoder than in the decoder"


def _own_vocabulary(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "an output layer of its own of this type"
    if config.get("share_encoder_decoder_embeddings") is False:
        yield "share_encoder_decoder_embeddings", "vocabularies of its own of each stack"
    if config.get("decoder_vocab_size") not in (None, config.get("vocab_size")):
        yield "decoder_vocab_size", "other vocabularies of the decoder than of the encoder"


def _prompts(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("use_prompt"):
        yield "use_prompt", "prompts in front of each layer"


def _bigbird(config: Config) -> Shape:
    """An encoder that attends to blocks beside a token, a few others, and two global ones."""
    shape = bart(config, offset=0)
    biased = bool(config.get("use_bias", False))
    if config.get("attention_type", "block_sparse") == "block_sparse":
        blocks = 3 + int(config.get("num_random_blocks", 3)) + 2
        shape["encoder"]["window"] = blocks * int(config.get("block_size", 64))
    return {**shape, "qkv_bias": biased, "output_bias": biased}


def _led(config: Config) -> Shape:
    """An encoder with windows, and projections of a few global tokens beside those of all."""
    texts = {**config, "max_position_embeddings": config["max_decoder_position_embeddings"]}
    shape, width = bart(texts, offset=0), config["d_model"]
    rows, windows = config["max_encoder_position_embeddings"], config.get("attention_window", 512)
    encoder = {**shape["encoder"], "sequence_length": rows, "learned_positions": rows}
    encoder["window"] = max(windows) if isinstance(windows, list) else windows
    encoder["other_parameters"] = config["encoder_layers"] * 3 * width * (width + 1) + encoder.get(
        "other_parameters", 0
    )
    return {**shape, "encoder": encoder}


def _pegasus_x(config: Config) -> Shape:
    """An encoder that attends to blocks and to global tokens, which have norms of their own."""
    shape = bart(config, offset=None, embedding_norm=False, final_norm=True)
    biases = dict.fromkeys(("qkv_bias", "output_bias"), False)
    tokens, width = int(config.get("num_global_tokens", 32)), config["d_model"]
    own = tokens * width + config["encoder_layers"] * 2 * width
    encoder = {**shape["encoder"], "window": int(config.get("block_size", 512)) + tokens}
    encoder["other_parameters"] = own + encoder.get("other_parameters", 0)
    return {**shape, **biases, "encoder": encoder}


def _fsmt(config: Config) -> Shape:
    """A vocabulary for each stack."""
    shape = bart({**config, "vocab_size": config["tgt_vocab_size"]}, embedding_norm=False)
    encoder = {**shape["encoder"], "vocab": config["src_vocab_size"], "other_parameters": 0}
    return {**shape, "encoder": encoder}


def _fsmt_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings", True):
        yield "tie_word_embeddings", "one table for both vocabularies of this type"


def _t5gemma(config: Config) -> Shape:
    """Two stacks of Gemma 2, each with a configuration and a table of its own."""
    if not all(LAYERS.holds(config[each]["num_hidden_layers"]) for each in ("encoder", "decoder")):
        raise ValueError("layers of a stack out of range")
    shape = _gemma({**config["decoder"], "tie_word_embeddings": config.get("tie_word_embeddings", True)})
    read = _gemma(config["encoder"])
    sizes = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    encoder = {name: read[name] for name in sizes}
    length = config["encoder"].get("max_position_embeddings", 8192)
    encoder |= {"sequence_length": min(length, T5GEMMA_LENGTH)}
    layers = read["layers"]
    return {
        **decoded(shape, ["dense"] * shape["layers"]),
        "encoder": _encoded(encoder, ["dense"] * layers),
    }


T5GEMMA_LENGTH = 4096
"""Tokens of an input of a model that could read longer ones."""


def _pop2piano(config: Config) -> Shape:
    """T5 that reads what was heard, behind a token for the composer; its output layer is not tied."""
    shape = _t5(config)
    tokens = int(config.get("composer_vocab_size", 21)) * config["d_model"]
    encoder = {**shape["encoder"], "other_parameters": tokens}
    return {**shape, "tied_embeddings": False, "encoder": encoder}


def _udop(config: Config) -> Shape:
    """T5 that reads words, where they stand on a page, and patches of its image (arXiv:2212.02623)."""
    shape, width = _t5(config, tied=True), config["d_model"]
    rows = config.get("relative_attention_num_buckets", 32)
    biases: list[Any] = config.get("relative_bias_args") or 3 * [{}]
    patches = patches_of(config)
    inputs = patch_of(config)
    # Places of both directions, and a matrix of patches that the decoder does not take.
    own = 2 * config.get("max_2d_position_embeddings", 1024) * width + (inputs + 1) * width
    table = {"relative_positions": rows * len(biases)}
    length = shape["encoder"]["sequence_length"] + patches
    encoder = {**shape["encoder"], **table, "sequence_length": length, "other_parameters": own}
    return added({**shape, **table, "encoder": encoder}, linear(patches, inputs, width))


def _udop_unlike(config: Config) -> Iterator[tuple[str, str]]:
    biases = config.get("relative_bias_args") or [{"type": "1d"}]
    first = biases[0] if isinstance(biases, list) and isinstance(biases[0], dict) else {}
    if first.get("type") != "1d":
        yield "relative_bias_args", "biases of which the first is not by distance in the text"
    if config.get("relative_attention_num_buckets", 32) != 32:
        yield "relative_attention_num_buckets", "other tables than of 32 rows"


def _whisper(config: Config) -> Shape:
    """Two convolutions, the second of which halves what is heard; keys have no biases."""
    heard, width = config["max_source_positions"], config["d_model"]
    texts = {**config, "max_position_embeddings": config["max_target_positions"]}
    shape = bart(texts, offset=0, embedding_norm=False, final_norm=True, key_bias=False)
    front = (
        {"inputs": 3 * config["num_mel_bins"], "outputs": width, "tokens": 2 * heard},
        {"inputs": 3 * width, "outputs": width, "tokens": heard},
    )
    # No table of tokens is shared.
    places = {
        "vocab": 0,
        "other_parameters": 0,
        "sequence_length": heard,
        "learned_positions": heard,
        "front": front,
    }
    return {**shape, "encoder": {**shape["encoder"], **places}}


def _moonshine(config: Config) -> Shape:
    """Three convolutions over samples; feed-forwards with gates in the decoder alone (arXiv:2410.15608).

    The decoder has the heads of the encoder in transformers, whatever its own keys say.
    """
    width, heads, tokens = config["hidden_size"], config["encoder_num_attention_heads"], SAMPLES
    pairs, front = config.get("encoder_num_key_value_heads") or heads, []
    for size, step, inputs, outputs in (
        (127, 64, 1, width),
        (7, 3, width, 2 * width),
        (3, 2, 2 * width, width),
    ):
        tokens = (tokens - size) // step + 1
        front.append({"inputs": size * inputs, "outputs": outputs, "tokens": tokens, "bias": inputs > 1})
    shape: Shape = {
        **{"hidden": width, "heads": heads, "head_dim": width // heads, "ffn": config["intermediate_size"]},
        "kv_heads": pairs,
        **{"gated_mlp": True, "mlp_bias": True, "norm": "rms", "output_bias": False},
        "qkv_bias": bool(config.get("attention_bias", False)),
        **{"vocab": config["vocab_size"], "tied_embeddings": bool(config.get("tie_word_embeddings", True))},
        "sequence_length": config.get("max_position_embeddings", 512),
    }
    encoder: Shape = {
        **{"heads": heads, "kv_heads": pairs, "head_dim": width // heads},
        **{"gated_mlp": False, "front": tuple(front)},
        **{"sequence_length": tokens, "other_parameters": 2 * width},
    }
    return {
        **decoded(shape, ["dense"] * config["decoder_num_hidden_layers"]),
        "encoder": _encoded(encoder, ["dense"] * config["encoder_num_hidden_layers"]),
    }


def _prophetnet(config: Config) -> Shape:
    """BART whose decoder predicts several tokens at once (arXiv:2001.04063): beside what was read, it works on as many
    streams as it predicts tokens, which are taken for further tokens of a sequence; distances are weighed by a matrix.
    """
    width, ngram = config["hidden_size"], int(config.get("ngram", 2))
    names = {
        **{"d_model": "hidden_size", "encoder_layers": "num_encoder_layers"},
        **{"decoder_layers": "num_decoder_layers", "encoder_attention_heads": "num_encoder_attention_heads"},
        "decoder_attention_heads": "num_decoder_attention_heads",
    }
    shape = bart({**config, **{name: config[key] for name, key in names.items()}}, offset=0)
    return {
        **shape,
        "attention_other": int(config.get("num_buckets", 32)) * shape["heads"] * (width + 1),
        # Each stream has the places of what is predicted.
        "learned_positions": 0,
        "other_parameters": (ngram + config["max_position_embeddings"]) * width,
        "sequence_length": (1 + ngram) * config["max_position_embeddings"],
    }


def _prophetnet_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("add_cross_attention") is False:
        yield "add_cross_attention", "decoders without attention to the encoder of this type"
    alone = any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or ())
    if alone and config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "decoders with an output layer of their own of this type"


def _dia(config: Config) -> Shape:
    """Bytes of a text are read; several codes of sound are predicted for each moment, each of a vocabulary of its own.

    Attention to the encoder has as many heads of keys as of queries where that among the codes shares some.
    """
    read, text = config["encoder_config"], config["decoder_config"]
    if not all(LAYERS.holds(each["num_hidden_layers"]) for each in (read, text)):
        raise ValueError("layers of a stack out of range")
    shape = llama(text)
    shape |= {"vocab": text["num_channels"] * text["vocab_size"], "tied_embeddings": False}
    encoder = {
        **{"hidden": read["hidden_size"], "heads": read["num_attention_heads"]},
        **{"kv_heads": read.get("num_key_value_heads") or read["num_attention_heads"]},
        **{"head_dim": read["head_dim"], "ffn": read["intermediate_size"], "vocab": read["vocab_size"]},
        **{"layers": read["num_hidden_layers"], "sequence_length": read["max_position_embeddings"]},
    }
    sizes = (("kv_heads", text["cross_num_key_value_heads"]),)
    kinds: list[Kind] = [("attention", "none"), ("cross", "dense", sizes)]
    shape["sequence_length"] = text["max_position_embeddings"]
    return {**in_blocks(shape, kinds * shape["layers"]), "encoder": encoder}


_DELAYS = 9
"""Numbers of a ``delay_pattern`` that nobody gives."""


def _dia_contrary(config: Config) -> Iterator[tuple[str, str]]:
    codes, delays = (config.get("decoder_config") or {}).get("num_channels"), config.get("delay_pattern")
    if isinstance(delays, list) and len(delays) != codes:
        what = f"expected as many numbers as decoder_config.num_channels, {shown(codes)}, got {len(delays)}"
        yield "delay_pattern", what
    if delays is None and codes != _DELAYS:
        yield "decoder_config.num_channels", f"expected {_DELAYS} without a delay_pattern, got {shown(codes)}"


def _dia_unlike(config: Config) -> Iterator[tuple[str, str]]:
    read, text = (config.get(f"{each}_config") or {} for each in ("encoder", "decoder"))
    for key, own, what in (
        ("cross_num_attention_heads", "num_attention_heads", "heads"),
        ("cross_head_dim", "head_dim", "widths of a head"),
    ):
        if text.get(key) != text.get(own):
            yield f"decoder_config.{key}", f"other {what} to the encoder than among the codes"
    if text.get("cross_hidden_size") != read.get("hidden_size"):
        yield "decoder_config.cross_hidden_size", "attention to an encoder of another width"


SAMPLES = 15 * 16_000
"""Samples of one input that is read as it was recorded: 15 seconds."""


def _speech_to_text(config: Config) -> Shape:
    """Convolutions of stride 2 with gates; positions are computed."""
    texts = {**config, "max_position_embeddings": config["max_target_positions"]}
    shape = bart(texts, offset=None, embedding_norm=False, final_norm=True)
    sizes, heard = config["conv_kernel_sizes"], config["max_source_positions"]
    channels = config["input_feat_per_channel"] * config.get("input_channels", 1)
    front = []
    for index, kernel in enumerate(sizes):
        last = index == len(sizes) - 1
        heard = -(-heard // 2)
        outputs = 2 * config["d_model"] if last else config["conv_channels"]
        front.append({"inputs": kernel * channels, "outputs": outputs, "tokens": heard})
        channels = outputs // 2
    places = {"vocab": 0, "other_parameters": 0, "sequence_length": heard, "front": tuple(front)}
    return {**shape, "encoder": {**shape["encoder"], **places}}


def _trocr(config: Config) -> Shape:
    """BART's decoder, which reads what a model of images makes (arXiv:2109.10282)."""
    placed = config.get("use_learned_position_embeddings", True)
    without: Config = {"encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 1}
    shape = bart({**without, **config}, offset=2 if placed else None)
    shape |= {"embedding_norm": bool(config.get("layernorm_embedding", True))}
    # What it attends to may be of another width.
    shape["encoder"] |= {"hidden": config.get("cross_attention_hidden_size") or shape["hidden"]}
    return {**decoder_alone(shape), "layers": config["decoder_layers"]}


_STACKS = ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
_SIZES = ("d_model", *_STACKS, "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size")
_BART = (*_SIZES, "max_position_embeddings")
_T5 = ("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "vocab_size")
_HEARD = (*_SIZES, "max_source_positions", "max_target_positions")
_FINAL: dict[str, Any] = {"embedding_norm": False, "final_norm": True}

ENCODER_DECODERS: dict[str, ModelType] = {
    "bart": ModelType(bart, _BART),
    "bigbird_pegasus": ModelType(_bigbird, _BART),
    "blenderbot": ModelType(partial(bart, offset=0, **_FINAL), _BART),
    "blenderbot-small": ModelType(partial(bart, offset=0), _BART),
    "dia": ModelType(
        _dia,
        (),
        _dia_unlike,
        parts=(("encoder_config", "dia_encoder"), ("decoder_config", "dia_decoder")),
        contrary=_dia_contrary,
    ),
    "fsmt": ModelType(
        _fsmt, (*_SIZES[:-1], "max_position_embeddings", "src_vocab_size", "tgt_vocab_size"), _fsmt_unlike
    ),
    "led": ModelType(_led, (*_SIZES, "max_encoder_position_embeddings", "max_decoder_position_embeddings")),
    "longt5": ModelType(partial(_t5, tied=True), _T5, _longt5_unlike),
    "m2m_100": ModelType(partial(bart, offset=None, **_FINAL), _BART),
    "marian": ModelType(partial(bart, offset=0, embedding_norm=False), _BART, _own_vocabulary),
    "moonshine": ModelType(_moonshine, ("hidden_size", "intermediate_size", "vocab_size")),
    "mbart": ModelType(partial(bart, final_norm=True), _BART),
    "mt5": ModelType(partial(_t5, tied=True), _T5),
    "mvp": ModelType(bart, _BART, _prompts),
    "nllb-moe": ModelType(_nllb_moe, (*_BART, "num_experts"), _unequal_experts, any_experts=True),
    "pop2piano": ModelType(_pop2piano, _T5),
    "pegasus": ModelType(partial(bart, offset=0, **_FINAL), _BART),
    "pegasus_x": ModelType(_pegasus_x, _BART),
    "prophetnet": ModelType(
        _prophetnet,
        (
            *("hidden_size", "num_encoder_layers", "num_decoder_layers", "num_encoder_attention_heads"),
            *("num_decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
            *("max_position_embeddings", "vocab_size"),
        ),
        _prophetnet_unlike,
    ),
    "plbart": ModelType(bart, _BART),
    "speech_to_text": ModelType(_speech_to_text, _HEARD),
    "switch_transformers": ModelType(_t5, (*_T5, "num_experts"), any_experts=True),
    "t5": ModelType(partial(_t5, tied=True), _T5),
    "t5gemma": ModelType(
        _t5gemma, (), parts=(("encoder", "t5_gemma_module"), ("decoder", "t5_gemma_module"))
    ),
    "udop": ModelType(_udop, _T5, _udop_unlike),
    "umt5": ModelType(partial(_t5, each=True, tied=True), _T5),
    "whisper": ModelType(_whisper, (*_HEARD, "num_mel_bins")),
}
"""Encoder-decoders, by ``model_type``."""
HALVES: dict[str, ModelType] = {
    "trocr": ModelType(
        _trocr,
        (
            *("d_model", "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
            *("max_position_embeddings", "vocab_size"),
        ),
    ),
}
"""Decoders that read what another model makes, alone, by ``model_type``."""
