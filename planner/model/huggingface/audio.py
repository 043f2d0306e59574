"""Shapes of audio encoders from their Hugging Face configurations, by ``model_type``."""

from __future__ import annotations

from collections.abc import Iterator

from planner.files.messages import shown
from planner.model.huggingface.families import Config, ModelType, Shape
from planner.model.huggingface.heads import Head
from planner.model.huggingface.products import added, attention, feeds, linear, scores
from planner.ranges import WIDTH

SECONDS, RATE = 15, 16_000
"""Sound of one sequence where nobody says, and its samples in a second: utterances of LibriSpeech have up to 17."""


def _wav2vec(config: Config) -> Shape:
    """Convolutions over samples, a projection, positions by a convolution, layers of full attention; no head."""
    width, channels = config["hidden_size"], 1
    sizes = list(zip(config["conv_dim"], config["conv_kernel"], config["conv_stride"], strict=True))
    biased, layered = bool(config.get("conv_bias", False)), config.get("feat_extract_norm") == "layer"
    tokens, front, others = SECONDS * RATE, [], 0
    for index, (outputs, kernel, stride) in enumerate(sizes):
        tokens = (tokens - kernel) // stride + 1
        front.append({"inputs": kernel * channels, "outputs": outputs, "tokens": tokens, "bias": biased})
        others += 2 * outputs * (layered or index == 0)
        channels = outputs
    front.append({"inputs": channels, "outputs": width, "tokens": tokens})
    others += 2 * channels * bool(config.get("feat_proj_layer_norm", True))
    # A kernel for each group of channels, its bias, and the norm that the weight is parted from.
    kernel, groups = (
        config.get("num_conv_pos_embeddings", 128),
        config.get("num_conv_pos_embedding_groups", 16),
    )
    others += width * (width // groups) * kernel + width + kernel
    masks = config.get("mask_time_prob", 0.05) > 0 or config.get("mask_feature_prob", 0.0) > 0
    others += width * masks
    adapted = config.get("adapter_attn_dim")
    own = 2 * width + 2 * width * adapted + width + adapted if adapted else 0
    return {
        **{"kind": "encoder", "layers": config["num_hidden_layers"], "hidden": width},
        **{"heads": config["num_attention_heads"], "ffn": config["intermediate_size"]},
        # The norm of the encoder stands ahead of its layers or behind them.
        **{"vocab": 1, "tied_embeddings": False, "labels": 0, "norm": "layer"},
        "attention_other": own,
        **{"front": tuple(front), "other_parameters": others, "sequence_length": tokens},
    }


def omni(config: Config) -> Shape:
    """The same without masks, with norms of all convolutions, and without one that the weight of positions is parted
    from."""
    sizes = [each for key in ("conv_dim", "conv_kernel", "conv_stride") for each in config[key]]
    if not all(type(each) is int and each > 0 for each in sizes):
        raise ValueError("audio_config")
    given = {**config, "feat_extract_norm": "layer", "mask_time_prob": 0, "mask_feature_prob": 0}
    shape = _wav2vec(given)
    return {**shape, "other_parameters": shape["other_parameters"] - config["num_conv_pos_embeddings"]}


def _omni_contrary(config: Config) -> Iterator[tuple[str, str]]:
    given = config.get("audio_config")
    if not isinstance(given, dict):
        yield "audio_config", "missing, expected the configuration of the encoder"
        return
    for key in _SIZES:
        if not (type(given.get(key)) is int and WIDTH.holds(given[key])):
            yield f"audio_config.{key}", f"expected a whole number from 1, got {shown(given.get(key))}"
            return
    if given["hidden_size"] % given["num_attention_heads"]:
        what = f"expected a divisor of hidden_size {given['hidden_size']}, got {given['num_attention_heads']}"
        yield "audio_config.num_attention_heads", what


def _wavlm(config: Config) -> Shape:
    """Biases by distance, which a gate of each head scales."""
    shape = _wav2vec({**config, "adapter_attn_dim": None})
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads
    rows = config.get("num_buckets", 320)
    return {**shape, "attention_other": heads + 8 * (width + 1), "relative_positions": rows}


def _data2vec(config: Config) -> Shape:
    """Positions by several convolutions, one behind the other; norms of all convolutions."""
    shape = _wav2vec({**config, "feat_extract_norm": "layer", "num_conv_pos_embeddings": 0})
    width, groups = config["hidden_size"], config.get("num_conv_pos_embedding_groups", 16)
    one = width * (width // groups) * config.get("conv_pos_kernel_size", 19) + width
    convolutions = config.get("num_conv_pos_embeddings", 5)
    return {**shape, "other_parameters": shape["other_parameters"] - width + convolutions * one}


def _sew(config: Config) -> Shape:
    """Layers for the mean of a few tokens, and a matrix that makes as many of each again (arXiv:2109.06870)."""
    shape, width, squeezed = _wav2vec(config), config["hidden_size"], config["squeeze_factor"]
    tokens = max(1, shape["sequence_length"] // squeezed)
    return {**added(shape, linear(tokens, width, squeezed * width)), "sequence_length": tokens}


def _sew_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _unlike(config)
    channels = config.get("conv_dim")
    if isinstance(channels, list) and channels and channels[-1] == config.get("hidden_size"):
        yield "conv_dim", "convolutions as wide as the layers of this type"


def _conformer(config: Config) -> Shape:
    """Half a feed-forward, attention, a convolution and half a feed-forward (arXiv:2005.08100)."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    inputs, kernel = config["feature_projection_input_dim"], config.get("conv_depthwise_kernel_size", 31)
    # The last norm, and that of the convolution.
    own = 2 * 2 * width
    if config.get("position_embeddings_type", "relative_key") == "relative_key":
        rows = config.get("left_max_position_embeddings", 64) + config.get("right_max_position_embeddings", 8)
        own += (rows + 1) * (width // heads)
    others = 2 * inputs
    masks = config.get("mask_time_prob", 0.05) > 0 or config.get("mask_feature_prob", 0.0) > 0
    tokens = SECONDS * FRAMES
    kinds = (("none", "dense"), ("attention", "none"), ("state", "none"), ("none", "dense"))
    return {
        **{"kind": "encoder", "layers": config["num_hidden_layers"], "hidden": width, "heads": heads},
        **{"ffn": config["intermediate_size"], "vocab": 1, "tied_embeddings": False, "labels": 0},
        **{"norm": "layer", "final_norm": False, "attention_other": own},
        "block": tuple({"mixer": mixer, "feed_forward": feeds} for mixer, feeds in kinds),
        "state": {
            **{"kind": "conv", "head_dim": width, "conv": kernel, "conv_bias": False, "gates": 1},
        },
        "front": ({"inputs": inputs, "outputs": width, "tokens": tokens},),
        **{"other_parameters": others + width * masks, "sequence_length": tokens},
    }


def _conformed(config: Config) -> Shape:
    """The same behind convolutions over samples (arXiv:2010.05646)."""
    shape, width = _wav2vec(config), config["hidden_size"]
    kinds = (("none", "dense"), ("attention", "none"), ("state", "none"), ("none", "dense"))
    relative = config.get("position_embeddings_type", "relative") == "relative"
    return {
        **shape,
        # The last norm and that of the convolution, distances and biases of queries.
        "attention_other": 2 * 2 * width + (width * width + 2 * width) * relative,
        "block": tuple({"mixer": mixer, "feed_forward": feeds} for mixer, feeds in kinds),
        "state": {
            **{"kind": "conv", "head_dim": width, "conv": config.get("conv_depthwise_kernel_size", 31)},
            **{"conv_bias": False, "gates": 1},
        },
    }


def _conformed_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _unlike(config)
    if config.get("position_embeddings_type", "relative") not in ("relative", "rotary", None):
        yield "position_embeddings_type", "positions of this kind"


def _sew_d(config: Config) -> Shape:
    """The same with attention to words and to distances, as in DeBERTa; a table of these for all layers."""
    shape, width = _sew(config), config["hidden_size"]
    own = others = 0
    if config.get("relative_attention", True):
        rows, buckets = config.get("max_relative_positions", -1), config.get("position_buckets", 256)
        rows = rows if rows >= 1 else config["max_position_embeddings"]
        others += 2 * (buckets if buckets > 0 else rows) * width
        if not config.get("share_att_key", True):
            kinds = config.get("pos_att_type") or ()
            own += width * (width + 1) * (("c2p" in kinds) + ("p2c" in kinds))
    if "layer_norm" in str(config.get("norm_rel_ebd", "layer_norm")):
        others += 2 * width
    return added({**shape, "final_norm": False, "attention_other": own}, [], others)


def _sew_d_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _sew_unlike(config)
    if config.get("conv_kernel_size"):
        yield "conv_kernel_size", "convolutions beside the first layer"


FRAMES = 50
"""Tokens of a second of sound in a conformer whose features are stacked two by two."""


def _parakeet(config: Config) -> Shape:
    """The same behind convolutions that halve frequencies and time; a matrix of distances in each layer."""
    given = config["encoder_config"]
    width, heads, factor = given["hidden_size"], given["num_attention_heads"], given["subsampling_factor"]
    channels, bins = given["subsampling_conv_channels"], given["num_mel_bins"]
    if not (given.get("attention_bias", True) and given.get("convolution_bias", True)):
        raise ValueError("layers without biases")
    tokens = SECONDS * 100 // factor
    products = _halved(given, tokens)
    kinds = (("none", "dense"), ("attention", "none"), ("state", "none"), ("none", "dense"))
    state = {"kind": "conv", "head_dim": width, "conv": given["conv_kernel_size"], "gates": 1, "bias": True}
    shape = {
        **{"kind": "encoder", "layers": given["num_hidden_layers"], "hidden": width, "heads": heads},
        **{"ffn": given["intermediate_size"], "vocab": 1, "tied_embeddings": False, "labels": 0},
        # Distances, biases of queries, the last norm and that of the convolution.
        **{"norm": "layer", "final_norm": False, "attention_other": width * width + (2 + 2 * 2) * width},
        "block": tuple({"mixer": mixer, "feed_forward": feeds} for mixer, feeds in kinds),
        "state": state,
        "front": ({"inputs": channels * bins // factor, "outputs": width, "tokens": tokens},),
        "sequence_length": tokens,
    }
    return added(shape, products)


def _lasr(config: Config) -> Shape:
    """The same with rotary positions, norms without shifts, and two convolutions over time alone."""
    given = config["encoder_config"]
    width, channels, kernel = (
        given[key] for key in ("hidden_size", "subsampling_conv_channels", "subsampling_conv_kernel_size")
    )
    heads, stride, bins = (
        given["num_attention_heads"],
        given["subsampling_conv_stride"],
        given["num_mel_bins"],
    )
    if given.get("num_key_value_heads") not in (None, heads):
        raise ValueError("encoder_config")
    biased, convolved = bool(given.get("attention_bias", False)), bool(given.get("convolution_bias", False))
    tokens = max(1, SECONDS * 100 // stride**2)
    kinds = (("none", "dense"), ("attention", "none"), ("state", "none"), ("none", "dense"))
    state = {"kind": "conv", "head_dim": width, "conv": given["conv_kernel_size"], "gates": 1}
    shape = {
        **{"kind": "encoder", "layers": given["num_hidden_layers"], "hidden": width, "heads": heads},
        **{"ffn": given["intermediate_size"], "vocab": 1, "tied_embeddings": False, "labels": 0},
        # The last norm of a layer and that of the convolution, which alone has a shift.
        **{"norm": "rms", "attention_other": 3 * width},
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), biased),
        "block": tuple({"mixer": mixer, "feed_forward": feeds} for mixer, feeds in kinds),
        "state": {**state, "bias": convolved, "conv_bias": convolved},
        "front": ({"inputs": channels, "outputs": width, "tokens": tokens},),
        "sequence_length": tokens,
    }
    products = linear(tokens * stride**2, bins, width) + linear(tokens * stride, kernel * width, width)
    return added(shape, products + linear(tokens, kernel * width, channels))


def _halved(given: Config, tokens: int) -> list[Shape]:
    """Convolutions that halve frequencies and time, and leave so many tokens."""
    factor, bins, kernel = (
        given[key] for key in ("subsampling_factor", "num_mel_bins", "subsampling_conv_kernel_size")
    )
    if (
        given.get("num_key_value_heads") not in (None, given["num_attention_heads"])
        or given.get("subsampling_conv_stride", 2) != 2
        or factor < 2
        or factor & (factor - 1)
        or bins % factor
    ):
        raise ValueError("audio_config")
    products, channels = [], given["subsampling_conv_channels"]
    for number in range(1, factor.bit_length()):
        # Places of the kernel: time is halved as often as frequencies are.
        places = tokens * factor * bins >> 2 * number
        products += linear(places, kernel * kernel, channels)
        products += linear(places, channels, channels) if number > 1 else []
    return products


def parakeet(given: Config, tokens: int) -> tuple[list[Shape], int]:
    """The same as products, beside a text, and its other parameters."""
    width, ffn, times = given["hidden_size"], given["intermediate_size"], given["num_hidden_layers"]
    biased, convolved = bool(given.get("attention_bias", True)), bool(given.get("convolution_bias", True))
    patch = given["subsampling_conv_channels"] * given["num_mel_bins"] // given["subsampling_factor"]
    products = [
        *_halved(given, tokens),
        *linear(tokens, patch, width),
        *feeds(tokens, width, ffn, bias=biased, times=2 * times),
        *attention(tokens, width, bias=biased, times=times),
        # Distances, and the scores that they have.
        *linear(2 * tokens, width, width, bias=False, times=times),
        *scores(tokens, width, tokens, times=times),
        *linear(tokens, width, 2 * width, bias=convolved, times=times),
        *linear(tokens, given["conv_kernel_size"], width, bias=convolved, times=times),
        *linear(tokens, width, width, bias=convolved, times=times),
    ]
    # Norms, and biases of queries.
    return products, times * (2 * 6 + 2) * width


def _conformer_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("add_adapter"):
        yield "add_adapter", "layers of an adapter behind the others"
    if config.get("position_embeddings_type", "relative_key") not in ("relative_key", "rotary", None):
        yield "position_embeddings_type", "positions of this kind"


def _unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("add_adapter"):
        yield "add_adapter", "convolutions behind the layers"
    if config.get("conv_pos_batch_norm"):
        yield "conv_pos_batch_norm", "batch norms"
    if config.get("num_conv_pos_embedding_groups") == 0:
        yield "num_conv_pos_embedding_groups", "convolutions of no groups"


def _weights(config: Config) -> int:
    """Weights of the layers, of which a classifier takes the mean."""
    return int(config["num_hidden_layers"]) + 1 if config.get("use_weighted_layer_sum") else 0


def _projected(config: Config) -> int:
    """What labels take more, and what they take less, than of the hidden width: a projection stands between."""
    width, narrow = int(config["hidden_size"]), int(config.get("classifier_proj_size", 256))
    return _weights(config) + (width + 1) * narrow


def _quantised(config: Config) -> int:
    """Codes that pretraining predicts, and projections of both sides."""
    groups, codes = config.get("num_codevector_groups", 2), config.get("num_codevectors_per_group", 320)
    width, out = config.get("codevector_dim", 256), config.get("proj_codevector_dim", 256)
    books = groups * codes * (width // groups) + groups * codes * (config["conv_dim"][-1] + 1)
    return int(books + (config["hidden_size"] + 1) * out + (width + 1) * out)


_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
AUDIO: dict[str, ModelType] = {
    **dict.fromkeys(("wav2vec2", "unispeech", "unispeech-sat"), ModelType(_wav2vec, _SIZES, _unlike)),
    "hubert": ModelType(_wav2vec, _SIZES, _unlike),
    "data2vec-audio": ModelType(_data2vec, _SIZES, _unlike),
    "wav2vec2-bert": ModelType(_conformer, (*_SIZES, "feature_projection_input_dim"), _conformer_unlike),
    "omniasr_audio": ModelType(omni, _SIZES),
    "omniasr_ctc": ModelType(
        lambda config: omni(config["audio_config"]),
        ("vocab_size",),
        parts=(("audio_config", "omniasr_audio"),),
        contrary=_omni_contrary,
    ),
    "parakeet_ctc": ModelType(_parakeet, ("vocab_size",), parts=(("encoder_config", "parakeet_encoder"),)),
    "lasr_ctc": ModelType(_lasr, ("vocab_size",), parts=(("encoder_config", "lasr_encoder"),)),
    "sew-d": ModelType(_sew_d, (*_SIZES, "max_position_embeddings"), _sew_d_unlike),
    "wav2vec2-conformer": ModelType(_conformed, _SIZES, _conformed_unlike),
    "sew": ModelType(_sew, _SIZES, _sew_unlike),
    "wavlm": ModelType(_wavlm, _SIZES, _unlike),
}
"""Models of sound, by ``model_type``."""
_HEADS = {
    "Model": Head(0),
    "ForCTC": Head("vocab_size"),
    "ForSequenceClassification": Head("labels", pooled=True, more=_projected, width="classifier_proj_size"),
    "ForAudioFrameClassification": Head("labels", more=_weights),
}
_CTC = {"ForCTC": Head("vocab_size")}
AUDIO_HEADS: dict[str, dict[str, Head]] = {
    **dict.fromkeys(AUDIO, _HEADS),
    "omniasr_audio": {"Model": Head(0)},
    "omniasr_ctc": {"Model": Head(0), "ForCTC": Head("vocab_size")},
    **dict.fromkeys(("lasr_ctc", "parakeet_ctc"), _CTC),
    **{
        kind: {**_HEADS, "ForPreTraining": Head(0, more=_quantised)}
        for kind in ("wav2vec2", "wav2vec2-conformer")
    },
}
"""Heads of these, by the end of an architecture's name."""
