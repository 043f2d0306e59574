"""Shapes of vision encoders from their Hugging Face configurations, by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from planner.model.huggingface.families import Config, ModelType, Shape
from planner.model.huggingface.heads import Head, labels_of
from planner.model.huggingface.products import added, attention, feeds, linear


def sides(value: Any) -> tuple[int, int]:
    """Height and width, which a configuration gives as one number or two; raises ValueError for anything else."""
    both = value if isinstance(value, list) else [value, value]
    if len(both) != 2 or not all(isinstance(each, int) and 0 < each <= 100_000 for each in both):
        raise ValueError("sides of an image")
    return both[0], both[1]


def patches_of(config: Config) -> int:
    """Patches of an image."""
    (high, wide), (rows, columns) = sides(config["image_size"]), sides(config["patch_size"])
    return (high // rows) * (wide // columns)


def patch_of(config: Config) -> int:
    """Numbers of one patch, of all its channels."""
    rows, columns = sides(config["patch_size"])
    return int(config.get("num_channels", 3)) * rows * columns


def vision(config: Config, *, ahead: int = 1, placed: int | None = None, patch_bias: bool = True) -> Shape:
    """Patches, ``ahead`` of them tokens of a class and the like, and layers of full attention, without a head.

    ``placed`` tokens have a row of the table of positions; all where it is None.
    """
    patches, width = patches_of(config), config["hidden_size"]
    inputs = patch_of(config)
    biased = bool(config.get("qkv_bias", True))
    return {
        **{"kind": "encoder", "layers": config["num_hidden_layers"], "hidden": width},
        **{"heads": config["num_attention_heads"], "vocab": 1, "tied_embeddings": False, "labels": 0},
        "ffn": config.get("intermediate_size") or int(config.get("mlp_ratio", 4) * width),
        "front": ({"inputs": inputs, "outputs": width, "tokens": patches, "bias": patch_bias},),
        **{"sequence_length": patches + ahead, "qkv_bias": biased, "norm": "layer"},
        "learned_positions": patches + ahead if placed is None else placed,
        "other_parameters": ahead * width,
    }


def _beit(config: Config) -> Shape:
    """Keys without biases, tables of biases by distance, scales of both residual sums."""
    shape, width = vision(config), config["hidden_size"]
    (high, wide), (rows, columns) = sides(config["image_size"]), sides(config["patch_size"])
    table = (2 * (high // rows) - 1) * (2 * (wide // columns) - 1) + 3
    tables = config["num_hidden_layers"] * bool(config.get("use_relative_position_bias"))
    tables += bool(config.get("use_shared_relative_position_bias"))
    scaled = config.get("layer_scale_init_value", 0.1) > 0
    return {
        **shape,
        "learned_positions": shape["learned_positions"]
        * bool(config.get("use_absolute_position_embeddings")),
        "key_bias": False,
        "relative_positions": tables * table,
        "attention_other": 2 * width * scaled,
        "other_parameters": width * (1 + bool(config.get("use_mask_token"))),
    }


def _dinov2(config: Config) -> Shape:
    registers = int(config.get("num_register_tokens") or 0) * (config["model_type"] != "dinov2")
    width = config["hidden_size"]
    masked = 1 if config["model_type"] != "dinov2" else int(bool(config.get("use_mask_token", True)))
    shape = vision({**config, "intermediate_size": None}, ahead=1 + registers, placed=patches_of(config) + 1)
    if config.get("use_swiglu_ffn"):
        shape |= {"gated_mlp": True, "ffn": (int(shape["ffn"] * 2 / 3) + 7) // 8 * 8}
        shape |= {"output_bias": True, "mlp_bias": True}
    return {
        **shape,
        "attention_other": 2 * width,
        "other_parameters": (1 + registers + masked) * width,
    }


def _dinov3(config: Config) -> Shape:
    """Rotary positions; each projection has a switch for its bias."""
    width, registers = config["hidden_size"], int(config.get("num_register_tokens") or 0)
    shape = vision(config, ahead=1 + registers, placed=0)
    biased = {key: bool(config.get(f"{key}_bias", key != "key")) for key in ("query", "key", "value", "proj")}
    return {
        **shape,
        "gated_mlp": bool(config.get("use_gated_mlp", False)),
        **{"qkv_bias": biased["query"], "key_bias": biased["key"], "output_bias": biased["proj"]},
        "mlp_bias": bool(config.get("mlp_bias", True)),
        "attention_other": 2 * width,
        "other_parameters": (2 + registers) * width,
    }


def _dinov3_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("query_bias", True) != config.get("value_bias", True):
        yield "value_bias", "biases of values without those of queries"
    if config.get("key_bias", False) and not config.get("query_bias", True):
        yield "key_bias", "biases of keys alone"


def clip_vision(config: Config) -> Shape:
    """CLIP's: norms on both sides."""
    return {**vision(config, patch_bias=False), "embedding_norm": True, "qkv_bias": True}


def pooling(config: Config) -> int:
    """Parameters of SigLIP's pooling head: a probe, attention, a norm and a feed-forward."""
    width, ffn = int(config["hidden_size"]), int(config["intermediate_size"])
    return 4 * width * (width + 1) + width + 2 * width + 2 * width * ffn + width + ffn


def siglip_vision(config: Config) -> Shape:
    """SigLIP's: no token ahead."""
    shape = vision(config, ahead=0)
    return {**shape, "other_parameters": pooling(config) if config.get("vision_use_head", True) else 0}


def siglip2_vision(config: Config) -> Shape:
    """Images of any size, of up to as many patches as there are positions."""
    patches = config["num_patches"]
    shape = vision({**config, "image_size": [patches, 1], "patch_size": [1, 1]}, ahead=0)
    front = {"inputs": patch_of(config), "outputs": config["hidden_size"], "tokens": patches}
    head = pooling(config) if config.get("vision_use_head", True) else 0
    return {**shape, "front": (front,), "other_parameters": head}


def whole_layers(vision: Config) -> int:
    """Layers of SAM's encoder that see all of an image; numbers of layers that it does not have name none."""
    return len({*vision["global_attn_indexes"]} & {*range(vision["num_hidden_layers"])})


def _sam(config: Config) -> Shape:
    """Windows in all but a few layers, tables of distances in each (arXiv:2304.02643), and a decoder of masks."""
    seen, given, mask = (config[f"{key}_config"] for key in ("vision", "prompt_encoder", "mask_decoder"))
    width, heads, patches = seen["hidden_size"], seen["num_attention_heads"], patches_of(seen)
    ffn = seen.get("mlp_dim") or int(seen.get("mlp_ratio", 4.0) * width)
    placed = patches if seen.get("use_abs_pos", True) else 0
    shape = vision({**seen, "intermediate_size": ffn}, ahead=0, placed=placed)
    (high, _), (rows, _) = sides(seen["image_size"]), sides(seen["patch_size"])
    window, whole = seen["window_size"], whole_layers(seen)
    near, out = seen["num_hidden_layers"] - whole, seen["output_channels"]
    tables = 2 * (near * (2 * window - 1) + whole * (2 * (high // rows) - 1)) * (width // heads)
    # Image and prompts share a table of positions unless the configuration says otherwise.
    placing = 2 * seen["num_pos_feats"] * (1 + (config.get("tie_word_embeddings") is False))
    others = tables * bool(seen.get("use_rel_pos", True)) + 4 * out + placing
    products = linear(patches, width, out, bias=False) + linear(patches, 9 * out, out, bias=False)
    shape |= {"final_norm": False}
    shape |= {"window": window**2, "window_layers": near} if near else {}
    return added(
        shape, [*products, *_prompts(given, patches), *_masks(mask, patches)], others + _tokens(given, mask)
    )


def _tokens(given: Config, mask: Config) -> int:
    """Parameters of what is asked and of masks that take part in few operations: tokens and norms."""
    width, count = mask["hidden_size"], mask["num_multimask_outputs"] + 1
    made = given["mask_input_channels"]
    asked = (2 + given["num_point_embeddings"]) * given["hidden_size"] + 2 * (made + made // 4)
    return int(asked + (1 + count) * width + (8 * mask["num_hidden_layers"] + 2) * width + 2 * (width // 4))


def _prompts(given: Config, patches: int) -> list[Shape]:
    """Three convolutions of a mask that is given."""
    made = given["mask_input_channels"]
    first, second = linear(4 * patches, 4, made // 4), linear(patches, made, made)
    return [*first, *second, *linear(patches, made, given["hidden_size"])]


PROMPTS = 8
"""Tokens of a decoder of masks: those that are asked for, and points."""


def _masks(mask: Config, patches: int) -> list[Shape]:
    """Attention of a few tokens to each other and to the image, and back; convolutions and matrices of each mask."""
    width = mask["hidden_size"]
    # Layers halve the width, whatever the key says, which is of the attention behind them.
    half, last = width // 2, width // mask["attention_downsample_rate"]
    times, count, head = (
        mask["num_hidden_layers"],
        mask["num_multimask_outputs"] + 1,
        mask["iou_head_hidden_dim"],
    )
    products = attention(PROMPTS, width, times=times)
    products += feeds(PROMPTS, width, mask["mlp_dim"], times=times)
    for inner, often in ((half, times), (last, 1)):
        # From the tokens to the image in every layer, and once more behind them.
        products += linear(PROMPTS, width, inner, times=often) + linear(PROMPTS, inner, width, times=often)
        products += linear(patches, width, inner, times=2 * often)
    products += linear(PROMPTS, width, 2 * half, times=times)
    products += linear(patches, width, half, width, times=times)
    products += linear(4 * patches, width, width // 4) + linear(16 * patches, width // 4, width // 8)
    # A transposed convolution of two by two has four such matrices and one bias.
    products += linear(4 * patches, width, width // 4, bias=False, times=3)
    products += linear(16 * patches, width // 4, width // 8, bias=False, times=3)
    products += linear(1, width, width, times=2 * count) + linear(1, width, width // 8, times=count)
    products += linear(1, width, head) + linear(1, head, head, times=mask["iou_head_depth"] - 2)
    return products + linear(1, head, count)


def _masked(config: Config) -> Shape:
    """A quarter of the patches, unless another part is masked, and a narrower decoder of all (arXiv:2111.06377)."""
    shape, patches = vision(config), patches_of(config)
    seen = 1 + int(patches * (1 - config.get("mask_ratio", 0.75)))
    shape |= {"sequence_length": seen}
    if not any(str(name).endswith("ForPreTraining") for name in config.get("architectures") or ()):
        return shape
    width, ffn, times = (
        config[f"decoder_{key}"] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    (front,) = shape["front"]
    tokens, biased = patches + 1, bool(config.get("qkv_bias", True))
    products = linear(seen, shape["hidden"], width)
    products += attention(tokens, width, bias=biased, out_bias=True, times=times)
    products += feeds(tokens, width, ffn, times=times)
    products += linear(tokens, width, front["inputs"])
    return added(shape, products, (1 + tokens + 4 * times + 2) * width)


def _ijepa(config: Config) -> Shape:
    return vision(config, ahead=0)


def _spectrogram(config: Config) -> Shape:
    """Patches of a spectrogram that overlap, a class token and one more."""
    size, width = config["patch_size"], config["hidden_size"]
    high = (config.get("num_mel_bins", 128) - size) // config.get("frequency_stride", 10) + 1
    wide = (config.get("max_length", 1024) - size) // config.get("time_stride", 10) + 1
    shape = vision({**config, "image_size": [high, wide], "patch_size": [1, 1]}, ahead=2)
    front = {"inputs": size * size, "outputs": width, "tokens": high * wide}
    return {**shape, "front": (front,)}


def _video(config: Config) -> Shape:
    """Cubes of a film, with computed positions; keys have no biases."""
    deep = config.get("tubelet_size", 2)
    cubes = patches_of(config) * (config["num_frames"] // deep)
    shape = vision({**config, "image_size": [cubes, 1], "patch_size": [1, 1]}, ahead=0, placed=0)
    front = {"inputs": patch_of(config) * deep, "outputs": config["hidden_size"], "tokens": cubes}
    biased = bool(config.get("qv_bias", True))
    normed = not config.get("use_mean_pooling", True)
    return {**shape, "front": (front,), "key_bias": False, "qkv_bias": biased, "final_norm": normed}


def _film_norm(config: Config) -> int:
    """The norm of the mean, where a classifier takes that."""
    return 2 * int(config["hidden_size"]) * bool(config.get("use_mean_pooling", True))


def _yolos(config: Config) -> Shape:
    """Tokens for what is looked for behind the patches; further tables of positions for the layers."""
    found = config.get("num_detection_tokens", 100)
    shape, width = vision(config, ahead=1 + found), config["hidden_size"]
    further = (config["num_hidden_layers"] - 1) * shape["learned_positions"] * width
    if config.get("use_mid_position_embeddings", True):
        shape["other_parameters"] += further
    return shape


def _boxes(config: Config) -> int:
    """Two matrices ahead of the labels, three of the boxes, and no label."""
    width = int(config["hidden_size"])
    return 4 * width * (width + 1) + (width + 1) * 5


def _timesformer(config: Config) -> Shape:
    """Attention over time and over space by turns (arXiv:2102.05095), of the patches of a film."""
    frames, width = config["num_frames"], config["hidden_size"]
    patches = patches_of(config)
    shape = vision({**config, "image_size": [patches * frames, 1], "patch_size": [1, 1]}, placed=0)
    front = {"inputs": patch_of(config), "outputs": width}
    if config.get("attention_type", "divided_space_time") != "divided_space_time":
        raise ValueError("attention of another kind")
    layers = config["num_hidden_layers"]
    places = (1 + patches + 1 + frames) * width
    return {
        **shape,
        "front": ({**front, "tokens": patches * frames},),
        **{"block": ({"feed_forward": "none"}, {}), "window": patches + 1},
        "other_parameters": places + layers * width * (width + 1),
    }


def clip_text(config: Config) -> Shape:
    """CLIP's: causal, though no token is predicted."""
    return {
        **{"kind": "decoder", "layers": config["num_hidden_layers"], "hidden": config["hidden_size"]},
        **{"heads": config["num_attention_heads"], "ffn": config["intermediate_size"]},
        **{"vocab": config["vocab_size"], "learned_positions": config["max_position_embeddings"]},
        **{"tied_embeddings": False, "labels": 0, "sequence_length": config["max_position_embeddings"]},
    }


def siglip_text(config: Config) -> Shape:
    """SigLIP's: full attention, and a projection of one token."""
    out = config.get("projection_size") or config["hidden_size"]
    return {**clip_text(config), "kind": "encoder", "labels": out, "pooled": True, "head_bias": True}


def _beside(seen: Shape) -> Shape:
    """A model of images as the tower beside a text."""
    (front,) = seen["front"]
    tokens = seen["sequence_length"]
    given: Shape = {key: seen[key] for key in ("layers", "hidden", "heads", "ffn") if key in seen}
    return {
        **given,
        "patch": front["inputs"],
        "patch_bias": front.get("bias", True),
        **{"tokens": tokens, "outputs": 1, "positions": seen["learned_positions"]},
        "norm_first": bool(seen.get("embedding_norm")),
        "norm_last": True,
        "other_parameters": seen["other_parameters"],
    }


def _classifies(config: Config) -> bool:
    """True where the model has the tower alone."""
    return any(str(name).endswith(IMAGES) for name in config.get("architectures") or ())


IMAGES = "ForImageClassification"


def _clip(config: Config) -> Shape:
    """Two towers, whose outputs of a token each are projected to one width and compared."""
    if _classifies(config):
        return clip_vision(config["vision_config"])
    out = config.get("projection_dim", 512)
    tower = _beside(clip_vision(config["vision_config"]))
    text = clip_text(config["text_config"])
    tower |= {"projector": (out,), "projector_bias": False}
    return {**text, "labels": out, "pooled": True, "tower": tower, "other_parameters": 1}


def _chinese_clip(config: Config) -> Shape:
    """The same with BERT."""
    shape, text = _clip({**config, "text_config": {**config["text_config"]}}), config["text_config"]
    ends = {"final_norm": False, "embedding_norm": True, "token_types": text.get("type_vocab_size", 2)}
    return {**shape, **ends, "kind": "encoder", "head_bias": False}


def _altclip(config: Config) -> Shape:
    """The same with XLM-RoBERTa, a norm and one matrix more."""
    shape, text = _chinese_clip(config), config["text_config"]
    width, inner, out = text["hidden_size"], text.get("project_dim", 768), config.get("projection_dim", 768)
    # What is compared is made of the further matrix's outputs.
    others = 2 * width + (width + 1) * inner + (inner - width) * out
    return added({**shape, "token_types": text.get("type_vocab_size", 1)}, [], others)


def _siglip(config: Config, *, tower: Callable[[Config], Shape]) -> Shape:
    """The same with a feed-forward behind the tower."""
    seen = config["vision_config"]
    if _classifies(config):
        return tower(seen)
    made = _beside(tower(seen))
    width, ffn = seen["hidden_size"], seen["intermediate_size"]
    if not seen.get("vision_use_head", True):
        raise ValueError("a tower without its head")
    feeds = 2 * width * ffn + width + ffn
    made |= {"projector": (ffn, width), "other_parameters": made["other_parameters"] - feeds}
    return {**siglip_text(config["text_config"]), "tower": made, "other_parameters": 2}


_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_BOTH = (*_SIZES, "intermediate_size")
_TEXT = (*_BOTH, "vocab_size", "max_position_embeddings")


def _parts(kind: str) -> tuple[tuple[str, str], ...]:
    return ("text_config", f"{kind}_text_model"), ("vision_config", f"{kind}_vision_model")


VISION: dict[str, ModelType] = {
    "audio-spectrogram-transformer": ModelType(_spectrogram, _BOTH),
    **dict.fromkeys(("beit", "data2vec-vision"), ModelType(_beit, _BOTH)),
    "clip": ModelType(_clip, (), parts=_parts("clip")),
    "chinese_clip": ModelType(_chinese_clip, (), parts=_parts("chinese_clip")),
    "altclip": ModelType(_altclip, (), parts=_parts("altclip")),
    "clipseg": ModelType(_clip, (), parts=_parts("clipseg")),
    "metaclip_2": ModelType(_clip, (), parts=_parts("metaclip_2")),
    **{kind: ModelType(_clip, (), parts=_parts(kind)) for kind in ("owlv2", "owlvit")},
    "sam": ModelType(
        _sam,
        (),
        parts=(
            *(("vision_config", "sam_vision_model"), ("prompt_encoder_config", "sam_prompt_encoder")),
            ("mask_decoder_config", "sam_mask_decoder"),
        ),
    ),
    "timesformer": ModelType(_timesformer, (*_BOTH, "num_frames")),
    "yolos": ModelType(_yolos, _BOTH),
    "clip_text_model": ModelType(clip_text, _TEXT),
    "clip_vision_model": ModelType(clip_vision, _BOTH),
    "deit": ModelType(partial(vision, ahead=2), _BOTH),
    "dinov2": ModelType(_dinov2, _SIZES),
    "dinov2_with_registers": ModelType(_dinov2, _SIZES),
    "dinov3_vit": ModelType(_dinov3, _BOTH, _dinov3_unlike),
    "ijepa": ModelType(_ijepa, _BOTH),
    "siglip": ModelType(partial(_siglip, tower=siglip_vision), (), parts=_parts("siglip")),
    "siglip2": ModelType(partial(_siglip, tower=siglip2_vision), (), parts=_parts("siglip2")),
    "siglip2_vision_model": ModelType(siglip2_vision, _BOTH),
    "siglip_text_model": ModelType(siglip_text, _TEXT),
    "siglip_vision_model": ModelType(siglip_vision, _BOTH),
    "videomae": ModelType(_video, (*_BOTH, "num_frames")),
    "vit": ModelType(vision, _BOTH),
    "vit_mae": ModelType(_masked, _BOTH),
    "vit_msn": ModelType(vision, _BOTH),
}
"""Models of images, by ``model_type``."""


def _pooler(config: Config) -> int:
    width = int(config["hidden_size"])
    return (width + 1) * int(config.get("pooler_output_size") or width)


def _found(config: Config) -> int:
    """Classes and boxes of patches, and in the second version whether anything is there."""
    width, text = int(config["vision_config"]["hidden_size"]), int(config["text_config"]["hidden_size"])
    second: bool = config["model_type"] == "owlv2"
    boxes = 2 * width * (width + 1) * (1 + second) + (width + 1) * (4 + second)
    return int((width + 1) * (text + 2) + boxes + 2 * width)


def _doubled(config: Config) -> int:
    """What a classifier takes besides: the mean of all patches beside the class token."""
    return int(config["hidden_size"]) * labels_of(config)


_CLASSES = {IMAGES: Head("labels", pooled=True)}
_PROJECTED = {"WithProjection": Head("projection_dim", pooled=True, bias=False)}
_TWICE = {"Model": Head(0), "ForImageClassification": Head("labels", pooled=True, more=_doubled)}
VISION_HEADS: dict[str, dict[str, Head]] = {
    "audio-spectrogram-transformer": {
        "Model": Head(0),
        "ForAudioClassification": Head("labels", pooled=True, more=lambda config: 2 * config["hidden_size"]),
    },
    "beit": {"Model": Head(0), **_CLASSES},
    "data2vec-vision": {"Model": Head(0, unnormed="use_mean_pooling"), **_CLASSES},
    **{
        kind: {"Model": Head("shape"), **(_CLASSES if kind in ("clip", "metaclip_2") else {})}
        for kind in ("altclip", "clip", "clipseg", "chinese_clip", "metaclip_2")
    },
    **{
        kind: {"Model": Head("shape"), "ForObjectDetection": Head("shape", more=_found)}
        for kind in ("owlv2", "owlvit")
    },
    "sam": {"Model": Head(0)},
    "timesformer": {"Model": Head(0), "ForVideoClassification": Head("labels", pooled=True)},
    "yolos": {
        "Model": Head(0, more=_pooler),
        "ForObjectDetection": Head("labels", more=lambda config: _boxes(config)),
    },
    "clip_text_model": {"Model": Head(0), **_PROJECTED},
    "clip_vision_model": {"Model": Head(0), **_PROJECTED},
    "deit": {
        "Model": Head(0, more=_pooler),
        **_CLASSES,
        "WithTeacher": Head("labels", pooled=True, more=lambda config: _doubled(config) + labels_of(config)),
    },
    "dinov2": _TWICE,
    "dinov2_with_registers": _TWICE,
    "dinov3_vit": {"Model": Head(0)},
    "ijepa": {"Model": Head(0), **_CLASSES},
    "siglip": {"Model": Head("shape"), **_CLASSES},
    "siglip2": {"Model": Head("shape"), **_CLASSES},
    "siglip2_vision_model": {"Model": Head(0)},
    "siglip_text_model": {"Model": Head("shape")},
    "siglip_vision_model": {"Model": Head(0)},
    "videomae": {
        "Model": Head(0),
        "ForVideoClassification": Head("labels", pooled=True, more=_film_norm),
    },
    "vit": {"Model": Head(0, more=_pooler), **_CLASSES},
    "vit_mae": {"Model": Head(0), "ForPreTraining": Head(0)},
    "vit_msn": {"Model": Head(0), **_CLASSES},
}
"""Heads of these, by the end of an architecture's name."""
