"""Shape of SeamlessM4T from its Hugging Face configuration: stacks for text and for speech (arXiv:2308.11596)."""

from __future__ import annotations

from collections.abc import Iterator

from planner.model.huggingface.audio import FRAMES, SECONDS
from planner.model.huggingface.encoder_decoders import bart
from planner.model.huggingface.families import Config, ModelType, Shape
from planner.model.huggingface.heads import Head
from planner.model.huggingface.products import added, attention, feeds, linear, parameters
from planner.model.huggingface.speech import conv


def _seamless(config: Config) -> Shape:
    """What reads or hears, and the decoder of texts; what speaks, and in the whole what hears, is trained apart."""
    text = {**config, "d_model": config["hidden_size"]}
    shape = bart(text, offset=None, embedding_norm=False, final_norm=True)
    names = _names(config)
    speaks = any(name.endswith("ToSpeech") for name in names)
    whole = _whole(names)
    if _hears(names):
        encoder, products = _heard(config)
        shape = added({**shape, "encoder": encoder}, products)
    others = _unit_parameters(config) + _vocoder_parameters(config) if speaks or whole else 0
    if whole:
        encoder, products = _heard(config)
        width, ffn = encoder["hidden"], encoder["ffn"]
        layer = 4 * width * (width + 1) + 2 * width * ffn + width + ffn + 2 * 2 * width
        others += encoder["layers"] * layer + 2 * width + encoder["other_parameters"]
        others += parameters([*products, *({**each, "times": 1, "bias": True} for each in encoder["front"])])
    return {**shape, "other_parameters": shape.get("other_parameters", 0) + others}


def _names(config: Config) -> list[str]:
    return [str(name) for name in config.get("architectures") or ()]


def _hears(names: list[str]) -> bool:
    """Whether speech is what such architectures read."""
    return any("ForSpeechTo" in name for name in names)


def _whole(names: list[str]) -> bool:
    """Whether they have the encoders of texts and of speech, and what speaks."""
    return not names or any(name.endswith("Model") for name in names)


def _heard(config: Config) -> tuple[Shape, list[Shape]]:
    """An encoder of the few layers that make tokens of several each, and the conformer ahead of them as matrices."""
    width, ffn = config["hidden_size"], config["speech_encoder_intermediate_size"]
    heads, times = config["speech_encoder_attention_heads"], config["speech_encoder_layers"]
    inputs, count = config["feature_projection_input_dim"], config["num_adapter_layers"]
    tokens, step = SECONDS * FRAMES, config["adaptor_stride"]
    made = max(1, tokens // step**count)
    products = [
        *feeds(tokens, width, ffn, times=2 * times + 1),
        *attention(tokens, width, times=times),
        *linear(tokens, width, 2 * width, bias=False, times=times),
        *linear(tokens, config["conv_depthwise_kernel_size"], width, bias=False, times=times),
        *linear(tokens, width, width, bias=False, times=times),
        *linear(made, config["adaptor_kernel_size"] * width, 2 * width, times=2 * count),
    ]
    # Norms of a layer and of its convolution.
    own, kind = 6 * 2 * width, config.get("position_embeddings_type")
    if kind == "relative" and config["model_type"] == "seamless_m4t":
        products += linear(2 * tokens, width, width, bias=False, times=times)
        own += 2 * width
    elif kind == "relative_key":
        rows = config["left_max_position_embeddings"] + config["right_max_position_embeddings"] + 1
        own += rows * (width // heads)
    encoder: Shape = {
        **{"layers": count, "hidden": width, "heads": heads, "ffn": ffn, "sequence_length": made},
        "front": ({"inputs": inputs, "outputs": width, "tokens": tokens},),
        "other_parameters": times * own + 2 * inputs + 2 * width + count * 2 * width,
    }
    return encoder, products


def _unit_parameters(config: Config) -> int:
    """Parameters of what makes units of sound of a text: two stacks, in the second version without attention between
    them, for all units at once."""
    width = config["hidden_size"]
    mixes = 4 * width * (width + 1) + 2 * width
    read, made = (
        2 * width * ffn + width + ffn + 2 * width
        for ffn in (config["t2u_encoder_ffn_dim"], config["t2u_decoder_ffn_dim"])
    )
    count = config["t2u_encoder_layers"] * (mixes + read) + 2 * 2 * width + config["t2u_vocab_size"] * width
    if config["model_type"] == "seamless_m4t":
        return int(count + config["t2u_decoder_layers"] * (2 * mixes + made))
    count += config["t2u_decoder_layers"] * (mixes + 2 * conv(width, width, UNIT_KERNEL) + 2 * width)
    inputs, inner = config["t2u_variance_predictor_embed_dim"], config["t2u_variance_predictor_hidden_dim"]
    kernel = config["t2u_variance_predictor_kernel_size"]
    return int(count + 2 + config["char_vocab_size"] * width + _lengths(inputs, inner, kernel))


UNIT_KERNEL = 7
"""Units under the convolutions of the second version, which no configuration says."""


def _lengths(inputs: int, inner: int, kernel: int) -> int:
    """Parameters of what says how long a unit sounds."""
    return conv(inputs, inner, kernel) + conv(inner, inner, kernel) + 2 * 2 * inner + conv(inner, 1)


def _vocoder_parameters(config: Config) -> int:
    """Parameters of what makes sound of units (arXiv:2010.05646)."""
    width, voice, tongue = (config[key] for key in ("unit_embed_dim", "spkr_embed_dim", "lang_embed_dim"))
    inner = config["upsample_initial_channel"]
    count = _lengths(width, width, config["variance_predictor_kernel_size"])
    count += config["unit_hifi_gan_vocab_size"] * width + config["vocoder_num_spkrs"] * voice
    count += config["vocoder_num_langs"] * tongue + conv(width + voice + tongue, inner, 7)
    blocks = list(zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True))
    for kernel in config["upsample_kernel_sizes"]:
        count += conv(inner, inner // 2, kernel)
        inner //= 2
        count += sum(2 * len(steps) * conv(inner, inner, size) for size, steps in blocks)
    return int(count + conv(inner, 1, 7))


def _unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "an output layer of its own of this type"
    names = _names(config)
    if not (_hears(names) or _whole(names)):
        return
    if config.get("add_adapter") is False:
        yield "add_adapter", "encoders of speech without an adapter"
    if config["num_adapter_layers"] == 0:
        yield "num_adapter_layers", "encoders of speech without an adapter"


_SIZES = (
    *("hidden_size", "encoder_layers", "decoder_layers", "encoder_attention_heads"),
    *("decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size"),
    *("max_position_embeddings", "speech_encoder_layers", "num_adapter_layers"),
)
SEAMLESS: dict[str, ModelType] = dict.fromkeys(
    ("seamless_m4t", "seamless_m4t_v2"), ModelType(_seamless, _SIZES, _unlike)
)
"""Both versions, by ``model_type``."""
_HEADS = {
    "Model": Head("tokens"),
    **{f"For{one}To{other}": Head("tokens") for one in ("Text", "Speech") for other in ("Text", "Speech")},
}
SEAMLESS_HEADS: dict[str, dict[str, Head]] = dict.fromkeys(SEAMLESS, _HEADS)
"""Heads of these, by the end of an architecture's name."""
