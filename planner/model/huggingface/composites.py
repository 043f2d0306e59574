"""Shapes of composite models from their Hugging Face configurations: an encoder and a decoder of any two types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.model.huggingface.encoder_decoders import ENCODER_DECODERS, T5_LENGTH, decoded
from planner.model.huggingface.encoders import ENCODER_HEADS, ENCODERS
from planner.model.huggingface.families import MODEL_TYPES, Config, ModelType, Shape
from planner.model.huggingface.heads import Head, heads_of, with_head
from planner.model.huggingface.products import added, attention, feeds, linear
from planner.model.huggingface.vision import VISION, VISION_HEADS, vision
from planner.model.huggingface.vision_stages import VISION_STAGE_HEADS, VISION_STAGES
from planner.model.spec import ModelSpec, ProductSpec
from planner.ranges import LAYERS

_READ = {**MODEL_TYPES, **ENCODERS, **VISION, **VISION_STAGES}
_HEADS = {**ENCODER_HEADS, **VISION_HEADS, **VISION_STAGE_HEADS}
_OF_DECODERS = {"kind": "decoder", "final_norm": False}
_STACK = ("layers", "hidden", "heads", "ffn", "learned_positions", "embedding_norm", "final_norm", "front")


def _alone(shape: Shape) -> ModelSpec:
    """A model of a shape."""
    heads, width = shape["heads"], shape["hidden"]
    usual = {"name": "part", "kv_heads": heads, "head_dim": width // heads}
    length = shape.get("sequence_length") or shape.get("learned_positions") or 512
    training = {"sequence_length": length, "global_batch": 1}
    given = {key: value for key, value in shape.items() if key != "sequence_length"}
    return ModelSpec.model_validate({**usual, **given, "training": training})


def joined(encoder: Shape, decoder: Shape, further: int = 0) -> Shape:
    """The decoder with layers that attend to the encoder, which has ``further`` parameters behind it.

    What an encoder's layers have otherwise than the decoder's is counted beside them; raises ValueError where it is
    less.
    """
    stack: Shape = {key: encoder[key] for key in _STACK if key in encoder}
    table = 0 if encoder.get("front") else encoder["vocab"]
    stack |= {"vocab": table, "sequence_length": _alone(encoder).training.sequence_length}
    if not LAYERS.holds(decoder["layers"]):
        raise ValueError("layers of the decoder out of range")
    parts = {key: value for key, value in decoder.items() if key not in ("layers", "sequence_length")}
    shape = {
        **decoded(parts, ["dense"] * decoder["layers"]),
        "encoder": stack,
        "beside": encoder.get("beside", ()),
    }
    without = {key: value for key, value in shape.items() if key != "encoder"}
    crossed = {**without, "encoder": {**stack, "other_parameters": 0}}
    others = _alone(encoder).parameters + further - _alone(crossed).ahead_parameters
    others -= sum(ProductSpec.model_validate(each).parameters for each in shape["beside"])
    if others < 0:
        raise ValueError("an encoder of fewer parameters than its layers have")
    return {**shape, "encoder": {**stack, "other_parameters": others}}


def _part(config: Config) -> Shape:
    """One of two models without its head."""
    kind = str(config["model_type"])
    shape = _READ[kind].build(config)
    head = _HEADS.get(kind, heads_of(kind, stacks=False)).get("Model")
    return with_head(shape, head, config) if head is not None else shape


def _decoder(config: Config) -> Shape:
    """A decoder, which predicts tokens."""
    kind = str(config["model_type"])
    if kind in _BART:
        shape = ENCODER_DECODERS["bart" if kind == "trocr" else kind].build({**_UNUSED, **config})
        parts = ("block", "ahead", "behind", "encoder")
        final = {"final_norm": kind == "mbart"}
        whole = {key: value for key, value in shape.items() if key not in parts}
        return {**whole, **final, "layers": config["decoder_layers"]}
    shape = _READ[kind].build(config)
    return {**shape, **(_OF_DECODERS if shape.get("kind") == "encoder" else {})}


_BART = ("bart", "mbart", "trocr")
_UNUSED: dict[str, Any] = {"encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 1}
"""Of the encoder that a decoder alone does not have."""


def _pair(config: Config) -> Shape:
    """Two models; where they are of different widths, a matrix stands between them."""
    encoder, decoder = _part(config["encoder"]), _decoder(config["decoder"])
    wide, width, further = encoder["hidden"], decoder["hidden"], 0
    if wide != width and config["decoder"].get("cross_attention_hidden_size") is None:
        # Keys and values are made of what the matrix makes.
        further = (wide + 1) * width + 2 * decoder["layers"] * width * (width - wide)
    return joined(encoder, decoder, further)


def _blip(config: Config) -> Shape:
    """A decoder like BERT, every layer of which attends to an image."""
    text = config["text_config"]
    names = {"type_vocab_size": 0, "model_type": "bert"}
    decoder = {**MODEL_TYPES["bert"].build({**text, **names}), **_OF_DECODERS}
    return joined(vision(config["vision_config"]), decoder)


FLORENCE_IMAGE = 768
"""Height and width of an image that Florence-2 reads."""


def _davit(given: Config) -> tuple[list[Shape], int, int]:
    """Products of attention over windows of places and over groups of channels by turns (arXiv:2204.03645), the other
    parameters, and the places that are left."""
    keys = ("depths", "patch_size", "patch_stride", "patch_prenorm", "num_heads", "num_groups")
    widths = given.get("dim_embed") or given["embed_dim"]
    stages = list(zip(widths, *(given[key] for key in keys), strict=True))
    across, ahead, biased = (
        FLORENCE_IMAGE,
        int(given.get("in_channels", 3)),
        bool(given.get("qkv_bias", True)),
    )
    products: list[Shape] = []
    others = 0
    for width, depth, size, stride, first, _, groups in stages:
        across //= stride
        places, near = across**2, int(given["window_size"]) ** 2
        ffn = int(width * given.get("mlp_ratio", 4.0))
        products += linear(places, size * size * ahead, width)
        others += 2 * (ahead if first else width)
        for seen in (min(near, places), width // groups):
            products += attention(places, width, seen=seen, bias=biased, out_bias=True, times=depth)
            # A convolution of each channel ahead of either.
            products += linear(places, 9, width, times=2 * depth) + feeds(places, width, ffn, times=depth)
            others += depth * 4 * width
        ahead = width
    return products, others, across**2


def _florence2(config: Config) -> Shape:
    """BART that reads what DaViT makes of an image (arXiv:2311.06242)."""
    text, given = config["text_config"], config["vision_config"]
    if not all(LAYERS.holds(text[f"{each}_layers"]) for each in ("encoder", "decoder")):
        raise ValueError("layers out of range")
    shape = ENCODER_DECODERS["bart"].build({**text, "tie_word_embeddings": True})
    products, others, places = _davit(given)
    width, out = (given.get("dim_embed") or given["embed_dim"])[-1], given["projection_dim"]
    products += linear(places + 1, width, out, bias=False)
    placed = given.get("image_pos_embed") or {}
    rows = placed.get("max_pos_embeddings") or given.get("max_position_embeddings", 50)
    return added(shape, products, others + 2 * out + rows * width)


def _florence2_unlike(config: Config) -> Iterator[tuple[str, str]]:
    text, seen = (config.get(f"{each}_config") or {} for each in ("text", "vision"))
    for given, key in ((config, "tie_word_embeddings"), (text, "text_config.tie_word_embeddings")):
        if given.get("tie_word_embeddings") is False:
            yield key, "an output layer of its own of this type"
    if seen.get("projection_dim") not in (None, text.get("d_model")):
        yield "vision_config.projection_dim", "images of another width than the text"


PATCHES = 2048
"""Patches of an image, as Pix2Struct's processor makes them where nobody says how many."""


def _pix2struct(config: Config) -> Shape:
    """Patches with rows and columns ahead of an encoder without biases, and a decoder as in T5 (arXiv:2210.03347)."""
    text, seen = config["text_config"], config["vision_config"]
    width, wide = text["hidden_size"], seen["hidden_size"]
    if not (LAYERS.holds(text["num_layers"]) and LAYERS.holds(seen["num_hidden_layers"])):
        raise ValueError("layers out of range")
    heads, read = text["num_heads"], seen["num_attention_heads"]
    if not width == wide == seen["d_kv"] * read == text["d_kv"] * heads or min(heads, read) < 1:
        raise ValueError("heads of another width, or stacks")
    shape: Shape = {
        **{"hidden": width, "heads": heads, "head_dim": text["d_kv"], "ffn": text["d_ff"]},
        **{"gated_mlp": True, "norm": "rms", "vocab": text["vocab_size"]},
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "relative_positions": text.get("relative_attention_num_buckets", 32),
        "sequence_length": T5_LENGTH,
    }
    front = {"inputs": seen["patch_embed_hidden_size"], "outputs": wide, "tokens": PATCHES}
    encoder = {
        **{"layers": seen["num_hidden_layers"], "hidden": wide, "heads": read},
        **{"ffn": seen["d_ff"], "sequence_length": PATCHES, "front": (front,)},
        "other_parameters": 2 * seen.get("seq_len", 4096) * wide,
    }
    return {**decoded(shape, ["dense"] * text["num_layers"]), "encoder": encoder}


def _pair_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key, read in (("encoder", {*_READ}), ("decoder", {*_READ, *_BART})):
        part = config.get(key)
        kind = part.get("model_type") if isinstance(part, dict) else None
        if kind not in read:
            yield key, f'{key}s of type "{kind}"' if kind else f"models without the configuration of {key}s"


_PARTS = (("encoder", ""), ("decoder", ""))
COMPOSITES: dict[str, ModelType] = {
    "blip": ModelType(
        _blip, (), parts=(("text_config", "blip_text_model"), ("vision_config", "blip_vision_model"))
    ),
    "encoder-decoder": ModelType(_pair, (), _pair_unlike, parts=_PARTS),
    "florence2": ModelType(
        _florence2,
        (),
        _florence2_unlike,
        parts=(("text_config", "bart"), ("vision_config", "florence_vision")),
    ),
    "pix2struct": ModelType(
        _pix2struct,
        (),
        parts=(("text_config", "pix2struct_text_model"), ("vision_config", "pix2struct_vision_model")),
    ),
    "vision-encoder-decoder": ModelType(_pair, (), _pair_unlike, parts=_PARTS),
}
"""Models of two, by ``model_type``."""
COMPOSITE_HEADS: dict[str, dict[str, Head]] = {
    **{kind: {"ForConditionalGeneration": Head("tokens")} for kind in ("blip", "florence2", "pix2struct")},
    "encoder-decoder": {"EncoderDecoderModel": Head("tokens")},
    "vision-encoder-decoder": {"EncoderDecoderModel": Head("tokens")},
}
"""Heads of these, by the end of an architecture's name."""
