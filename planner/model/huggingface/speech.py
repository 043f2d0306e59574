"""Shapes of models that produce speech or read audio codes, from Hugging Face configurations, by ``model_type``.

What makes codes of sound and sound of codes is trained apart: its parameters are those that no token meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from planner.model.huggingface.families import COMMON, Config, ModelType, Shape, first_of, llama
from planner.model.huggingface.heads import Head
from planner.model.huggingface.products import added, feeds, linear, scores


def conv(inputs: int, outputs: int, kernel: int = 1, *, bias: bool = True) -> int:
    """Parameters of a convolution, or of a linear layer."""
    return outputs * (inputs * kernel + bias)


def mimi(config: Config) -> int:
    """Parameters of Mimi, which makes codes of sound and sound of codes (arXiv:2410.00037)."""
    width, filters, heads = config["hidden_size"], config["num_filters"], config["num_attention_heads"]
    ratios, kernel = config.get("upsampling_ratios") or [8, 6, 5, 4], config["residual_kernel_size"]
    channels, ends = config["audio_channels"], (config["kernel_size"], config["last_kernel_size"])
    shortcut, blocks = bool(config.get("use_conv_shortcut")), config["num_residual_layers"]

    def residual(inner: int) -> int:
        narrow = inner // config["compress"]
        one = conv(inner, narrow, kernel) + conv(narrow, inner) + shortcut * conv(inner, inner)
        return int(blocks * one)

    count, inner = 0, filters
    for ratio in reversed(ratios):
        # The way to codes, and the way back.
        count += 2 * residual(inner) + conv(inner, 2 * inner, 2 * ratio) + conv(2 * inner, inner, 2 * ratio)
        inner *= 2
    count += conv(channels, filters, ends[0]) + conv(inner, width, ends[1])
    count += conv(width, inner, ends[0]) + conv(filters, channels, ends[1])
    head = config.get("head_dim") or width // heads
    projected = 2 * width * head * (heads + config["num_key_value_heads"])
    layer = projected + 2 * width * config["intermediate_size"] + 6 * width
    count += 2 * config["num_hidden_layers"] * layer
    # Frames of the codes are fewer than those of the convolutions.
    frames = -(-config["sampling_rate"] // prod(ratios))
    rate = first_of(config, ("frame_rate", "_frame_rate")) or config["sampling_rate"] / prod([*ratios, 2])
    if rate != frames:
        size = 2 * int(frames / rate)
        groups = config["upsample_groups"]
        count += conv(width, width, size, bias=False) + conv(width // groups, width, size, bias=False)
    narrow = config["vector_quantization_hidden_dimension"]
    return int(count + (2 * 2 * width * narrow if narrow != width else 0))


def wav_codes(config: Config) -> int:
    """Parameters of WavTokenizer's way to codes of sound (arXiv:2408.16532): convolutions with a norm of each, and
    recurrent layers behind them."""
    norms = {"weight_norm": 1, "time_group_norm": 2}[config["norm_type"]]

    def one(inputs: int, outputs: int, kernel: int = 1) -> int:
        return conv(inputs, outputs, kernel) + norms * outputs

    inner, count = (
        config["num_filters"],
        one(config["audio_channels"], config["num_filters"], config["kernel_size"]),
    )
    for ratio in reversed(config["upsampling_ratios"]):
        narrow = inner // config["compress"]
        block = one(inner, narrow, config["residual_kernel_size"]) + one(narrow, inner)
        block += one(inner, inner) if config["use_conv_shortcut"] else 0
        count += config["num_residual_layers"] * block + one(inner, 2 * inner, 2 * ratio)
        inner *= 2
    # Four gates, each of two matrices with a bias.
    count += config["num_lstm_layers"] * 4 * 2 * conv(inner, inner)
    return int(count + one(inner, config["hidden_size"], config["last_kernel_size"]))


def _codec_unlike(key: str, *, tied: bool = False) -> Callable[[Config], Iterator[tuple[str, str]]]:
    """What cannot be read of the codec under a key; ``tied`` where it does not matter what is said of that."""

    def unlike(config: Config) -> Iterator[tuple[str, str]]:
        if config.get("tie_word_embeddings") and not tied:
            yield "tie_word_embeddings", "tied embeddings of this type"
        codec = config.get(key)
        if isinstance(codec, dict):
            if codec.get("model_type", "mimi") != "mimi":
                yield key, "codecs of other types than mimi"
            if codec.get("attention_bias"):
                yield key, "codecs with biases of attention"

    return unlike


def _halved(config: Config) -> Shape:
    """Layers whose feed-forward gives its width for both of its first matrices."""
    given = {**config, "intermediate_size": config["ffn_dim"] // 2, "tie_word_embeddings": False}
    return llama(given, window=1, qkv_bias=False, out_bias=None, mlp_bias=None)


def _odd(config: Config) -> Iterator[tuple[str, str]]:
    for key, given in (("", config), ("depth_decoder_config.", config.get("depth_decoder_config") or {})):
        width = given.get("ffn_dim")
        if isinstance(width, int) and width % 2:
            yield f"{key}ffn_dim", f"expected an even number, got {width}"


def _moshi(config: Config) -> Shape:
    """Text that goes along with two voices, whose codes are summed up with it; where it speaks, a few layers predict
    the codes of each moment one by one, each by matrices of its own (arXiv:2410.00037)."""
    shape, width, text = _halved(config), config["hidden_size"], config["vocab_size"]
    # One row stands for no word.
    shape["other_parameters"] = width
    if not any(str(name).endswith(SPEAKS) for name in config.get("architectures") or ()):
        return shape
    depth, codec = config["depth_decoder_config"], config["audio_encoder_config"]
    codes, books = config.get("audio_vocab_size") or codec["codebook_size"], config["num_codebooks"]
    inner, heads, times = depth["hidden_size"], depth["num_attention_heads"], depth["num_hidden_layers"]
    head = depth.get("head_dim") or inner // heads
    pairs, tokens = depth.get("num_key_value_heads") or heads, config["max_position_embeddings"]
    each = books * times
    products = [
        *linear(tokens, width, inner, bias=False, times=books),
        *linear(tokens, inner, head * (heads + 2 * pairs), bias=False, times=each),
        *scores(tokens, heads * head, books, times=each),
        *linear(tokens, heads * head, inner, bias=False, times=each),
        *feeds(tokens, inner, depth["ffn_dim"] // 2, gated=True, bias=False, times=each),
        *linear(tokens, inner, codes, bias=False, times=books),
    ]
    tables = 2 * books * (codes + 1) * width + ((books - 1) * (codes + 1) + text + 1) * inner
    return added(shape, products, mimi(codec) + tables + 2 * times * inner)


def _kyutai(config: Config) -> Shape:
    """Codes of what is heard, summed up with the text that was said of it."""
    rows = config["num_codebooks"] * config["codebook_vocab_size"] + 1
    return {
        **_halved(config),
        "other_parameters": rows * config["hidden_size"] + mimi(config["codec_config"]),
    }


def _csm(config: Config) -> Shape:
    """Text and codes are read, the first code of a moment is predicted, and the others one by one by a few layers."""
    depth, width, books = config["depth_decoder_config"], config["hidden_size"], config["num_codebooks"]
    shape, codes, tokens = llama(config), config["vocab_size"], config["max_position_embeddings"]
    inner, heads, times = depth["hidden_size"], depth["num_attention_heads"], depth["num_hidden_layers"]
    pairs = depth.get("num_key_value_heads") or heads
    head, moments = depth.get("head_dim") or inner // heads, tokens * books
    biased, wide = bool(depth.get("attention_bias")), bool(depth.get("mlp_bias"))
    products = [
        *linear(moments, width, inner, bias=False),
        *linear(moments, inner, head * (heads + 2 * pairs), bias=biased, times=times),
        *scores(moments, heads * head, books, times=times),
        *linear(moments, heads * head, inner, bias=biased, times=times),
        *feeds(moments, inner, depth["intermediate_size"], gated=True, bias=wide, times=times),
        *linear(tokens, inner, codes, bias=False, times=books - 1),
    ]
    tables = config["text_vocab_size"] + (books - 1) * codes
    if not config.get("tie_codebooks_embeddings", True):
        tables += books * codes
    others = tables * width + (2 * times + 1) * inner + mimi(config["codec_config"])
    return added({**shape, "tied_embeddings": False}, products, others)


def _csm_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _codec_unlike("codec_config", tied=True)(config)
    depth = config.get("depth_decoder_config") or {}
    for own, other in (("vocab_size", "vocab_size"), ("num_codebooks", "num_codebooks")):
        if depth.get(own) != config.get(other):
            yield "depth_decoder_config", f"another {own} than the whole"
    if depth.get("backbone_hidden_size") != config.get("hidden_size"):
        yield "depth_decoder_config", "another backbone_hidden_size than the whole"


def talker(config: Config) -> int:
    """Parameters of what speaks in Qwen 2.5 Omni (arXiv:2503.20215): a decoder of codes, and what makes sound of
    these."""
    if not config.get("enable_audio_output", True):
        return 0
    given, sound = config["talker_config"], config["token2wav_config"]
    width, wide, heads = given["hidden_size"], given["embedding_size"], given["num_attention_heads"]
    head, pairs = given["head_dim"], given["num_key_value_heads"]
    layer = (width + 1) * head * (heads + 2 * pairs) + width * heads * head
    layer += 3 * width * given["intermediate_size"] + 2 * width
    count = given["vocab_size"] * (wide + width) + conv(wide, width) + width
    count += given["num_hidden_layers"] * layer
    return int(count + _diffused(sound["dit_config"]) + _bigvgan(sound["bigvgan_config"]))


def _diffused(given: Config) -> int:
    """Parameters of the layers that make a spectrogram of codes, and of what hears whose voice it shall be."""
    width, mels, voice, rank = (
        given[key] for key in ("hidden_size", "mel_dim", "enc_dim", "enc_se_channels")
    )
    channels, kernels = given["enc_channels"], given["enc_kernel_sizes"]
    last, scale, narrow = channels[-1], given["enc_res2net_scale"], given["enc_attention_channels"]
    count = conv(mels, channels[0], kernels[0])
    for ahead, own, kernel in zip(channels, channels[1:-1], kernels[1:-1], strict=False):
        part = own // scale
        count += conv(ahead, own) + (scale - 1) * conv(part, part, kernel) + conv(own, own)
        count += conv(own, rank) + conv(rank, own)
    count += conv(last, last, kernels[-1]) + conv(3 * last, narrow) + conv(narrow, last)
    count += conv(2 * last, voice)
    inner, ffn = given["num_attention_heads"] * given["head_dim"], given["ff_mult"] * width
    layer = conv(width, 6 * width) + 3 * conv(width, inner) + conv(inner, width)
    layer += conv(width, ffn) + conv(ffn, width)
    count += given["num_hidden_layers"] * layer + (given["num_embeds"] + 1) * given["emb_dim"]
    count += conv(mels + voice + given["enc_emb_dim"] + given["emb_dim"], width)
    return int(count + conv(TIMES, width) + conv(width, width) + conv(width, 2 * width) + conv(width, mels))


TIMES = 256
"""Width of what says how far a spectrogram has come, which no configuration says."""


def _bigvgan(given: Config) -> int:
    """Parameters of convolutions that make sound of a spectrogram (arXiv:2206.04658)."""
    width = given["upsample_initial_channel"]
    count = conv(given["mel_dim"], width, 7)
    kernels = list(zip(given["resblock_kernel_sizes"], given["resblock_dilation_sizes"], strict=True))
    for kernel in given["upsample_kernel_sizes"]:
        count += conv(width, width // 2, kernel)
        width //= 2
        # Each with a scale and a shift of what is bent.
        count += sum(2 * len(each) * (conv(width, width, size) + 2 * width) for size, each in kernels)
    return int(count + 2 * width + conv(width, 1, 7, bias=False))


SPEAKS = "ForConditionalGeneration"
_STACK = (*COMMON[:3], "vocab_size", "num_codebooks", "max_position_embeddings")
SPEECH: dict[str, ModelType] = {
    "csm": ModelType(
        _csm,
        (*_STACK, "intermediate_size"),
        _csm_unlike,
        parts=(("depth_decoder_config", "csm_depth_decoder_model"), ("codec_config", "mimi")),
    ),
    "kyutai_speech_to_text": ModelType(
        _kyutai,
        (*_STACK, "ffn_dim"),
        _codec_unlike("codec_config"),
        parts=(("codec_config", "mimi"),),
        contrary=_odd,
    ),
    "moshi": ModelType(
        _moshi,
        (*_STACK, "ffn_dim"),
        _codec_unlike("audio_encoder_config"),
        parts=(("depth_decoder_config", "moshi_depth"), ("audio_encoder_config", "mimi")),
        contrary=_odd,
    ),
}
"""Models that speak or hear codes, by ``model_type``."""
SPEECH_HEADS: dict[str, dict[str, Head]] = {kind: {SPEAKS: Head("tokens")} for kind in SPEECH}
"""Heads of these, by the end of an architecture's name."""
