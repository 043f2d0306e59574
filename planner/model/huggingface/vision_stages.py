"""Shapes of hierarchical vision models, whose stages have different widths, from Hugging Face configurations.

The layers are those of the last stage, which a head takes; what stands ahead of it are matrices beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.model.huggingface.families import Config, ModelType, Shape
from planner.model.huggingface.heads import Head, labels_of
from planner.model.huggingface.products import added, attention, feeds, linear
from planner.model.huggingface.vision import sides

IMAGE = 224
"""Height and width of an image where a configuration names none, as in ImageNet."""


def _ahead(config: Config, side: int, width: int) -> Shape:
    """What makes tokens of patches that do not overlap."""
    inputs = int(config.get("num_channels", 3)) * side * side
    return {"inputs": inputs, "outputs": width}


def _last(layers: int, width: int, tokens: int, front: Shape, first: int) -> Shape:
    """Layers of the last stage, behind patches of which there are ``first``."""
    if layers < 1:
        raise ValueError("depths")
    if min(tokens, first) < 1:
        raise ValueError("image_size")
    return {
        **{"kind": "encoder", "layers": layers, "hidden": width, "heads": 1, "vocab": 1, "labels": 0},
        **{"tied_embeddings": False, "norm": "layer", "sequence_length": tokens},
        "front": ({**front, "tokens": first},),
    }


def _swin(config: Config) -> Shape:
    """Attention in windows, four tokens of one stage to one of the next (arXiv:2103.14030)."""
    second, width, window = config["model_type"] == "swinv2", config["embed_dim"], config["window_size"]
    (high, wide), (rows, columns) = sides(config["image_size"]), sides(config["patch_size"])
    if rows != columns:
        raise ValueError("patches that are no squares")
    high, wide = high // rows, wide // columns
    tokens, biased = high * wide, bool(config.get("qkv_bias", True))
    stages = list(zip(config["depths"], config["num_heads"], strict=True))
    products: list[Shape] = []
    others, first = 2 * width, tokens
    if config.get("use_absolute_embeddings"):
        others += (tokens + second) * width
    for number, (depth, heads) in enumerate(stages):
        if number:
            high, wide = -(-high // 2), -(-wide // 2)
            tokens = high * wide
            products += linear(tokens, 4 * width, 2 * width, bias=False)
            others += 2 * (2 if second else 4) * width
            width *= 2
        # Biases by distance: a table, or two matrices that make it, and a scale of each head.
        table = heads * ((1 + 512) if second else (2 * window - 1) ** 2) + 3 * 512 * second
        if number == len(stages) - 1:
            break
        bias = second and biased
        products += attention(
            tokens, width, seen=min(window**2, tokens), bias=biased and not second, out_bias=True, times=depth
        )
        products += feeds(tokens, width, int(config["mlp_ratio"] * width), times=depth)
        others += depth * (4 * width + table + 2 * width * bias)
    shape = _last(depth, width, tokens, _ahead(config, rows, config["embed_dim"]), first)
    shape |= {"heads": heads, "ffn": int(config["mlp_ratio"] * width), "window": min(window**2, tokens)}
    shape |= {"qkv_bias": biased, "key_bias": not second, "attention_other": table}
    # Donut takes what the layers make as it is.
    shape["final_norm"] = config["model_type"] != "donut-swin"
    return added(shape, products, others)


def _convnext(config: Config) -> Shape:
    """Convolutions of each channel ahead of a feed-forward (arXiv:2201.03545)."""
    widths, depths, side = config["hidden_sizes"], config["depths"], config["patch_size"]
    second = config["model_type"] == "convnextv2"
    scaled = not second and config.get("layer_scale_init_value", 1e-6) > 0
    across = int(config.get("image_size") or IMAGE) // side
    first, width = across * across, widths[0]
    products: list[Shape] = []
    others = 2 * width
    stages = list(zip(widths, depths, strict=True))
    for number, (width, depth) in enumerate(stages):
        if number:
            ahead = widths[number - 1]
            across //= 2
            products += linear(across**2, 4 * ahead, width)
            others += 2 * ahead
        tokens = across**2
        products += linear(tokens, 49, width, times=depth)
        # Scales of the residual sum, or of the responses of all channels.
        others += depth * (width * scaled + 8 * width * second)
        if number < len(stages) - 1:
            products += feeds(tokens, width, 4 * width, times=depth)
            others += depth * 2 * width
    shape = _last(depth, width, tokens, _ahead(config, side, widths[0]), first)
    shape |= {"ffn": 4 * width, "mixer": "none", "layer_norms": 1}
    return added(shape, products, others)


def _convolution(tokens: int, size: int, channels: int, outputs: int, times: int = 1) -> list[Shape]:
    """A convolution without a bias."""
    return linear(tokens, size * size * channels, outputs, bias=False, times=times)


def _resnet(config: Config) -> Shape:
    """Residual convolutions (arXiv:1512.03385): those of equal shape of the last stage are its layers, whose two
    outer products, or two convolutions, are a feed-forward."""
    widths, depths, basic = config["hidden_sizes"], config["depths"], config["layer_type"] == "basic"
    inner, across = config["embedding_size"], int(config.get("image_size") or IMAGE) // 2
    first = across * across
    front = {"inputs": 49 * int(config.get("num_channels", 3)), "outputs": inner, "bias": False}
    across //= 2
    products: list[Shape] = []
    others, stages = 2 * inner, list(zip(widths, depths, strict=True))
    for number, (width, depth) in enumerate(stages):
        strided = number > 0 or bool(config.get("downsample_in_first_stage"))
        wide = across**2
        across = across // 2 if strided else across
        tokens, last = across**2, number == len(stages) - 1
        narrow = width if basic else width // 4
        if inner != width or strided:
            products += _convolution(tokens, 1, inner, width)
            others += 2 * width
        rest = 0 if last else depth - 1
        if basic:
            products += _convolution(tokens, 3, inner, width)
            products += _convolution(tokens, 3, width, width, 1 + 2 * rest)
            others += (1 + rest) * 4 * width
        else:
            products += _convolution(wide, 1, inner, narrow)
            products += _convolution(tokens, 3, narrow, narrow, depth)
            products += _convolution(tokens, 1, narrow, width, 1 + rest)
            products += _convolution(tokens, 1, width, narrow, rest)
            others += depth * 4 * narrow + (1 + rest) * 2 * width
        inner = width
    shape = _last(depth - 1, width, tokens, front, first)
    shape |= {"ffn": 9 * width if basic else narrow, "mixer": "none", "layer_norms": 2 if basic else 1}
    return added({**shape, "mlp_bias": False, "final_norm": False}, products, others)


def _segformer(config: Config) -> Shape:
    """Patches that overlap, and attention to fewer tokens (arXiv:2105.15203)."""
    across, ahead = int(config.get("image_size") or IMAGE), int(config.get("num_channels", 3))
    keys = (
        "hidden_sizes",
        "depths",
        "num_attention_heads",
        "sr_ratios",
        "patch_sizes",
        "strides",
        "mlp_ratios",
    )
    stages = list(zip(*(config[key] for key in keys), strict=True))
    products: list[Shape] = []
    front: Shape = {}
    each_tokens: list[int] = []
    others = first = 0
    for number, (width, depth, _, ratio, size, stride, ratio_ffn) in enumerate(stages):
        across //= stride
        tokens, ffn = across**2, int(width * ratio_ffn)
        each_tokens.append(tokens)
        if number:
            products += linear(tokens, size * size * ahead, width)
        else:
            front, first = {"inputs": size * size * ahead, "outputs": width}, tokens
        others += 2 * width
        seen = max(1, tokens // ratio**2)
        if ratio > 1:
            products += linear(seen, ratio**2 * width, width, times=depth)
            others += depth * 2 * width
        # A convolution of each channel inside the feed-forward.
        products += linear(tokens, 9, ffn, times=depth)
        if number < len(stages) - 1:
            products += attention(tokens, width, seen=seen, times=depth)
            products += feeds(tokens, width, ffn, times=depth)
            others += depth * 4 * width + 2 * width
        ahead = width
    shape = _last(depth, width, tokens, front, first)
    if any(str(name).endswith(SEGMENTS) for name in config.get("architectures") or ()):
        products, more = _segments(config, each_tokens, products)
        others += more
    shape |= {"heads": config["num_attention_heads"][-1], "ffn": ffn} | (
        {"window": seen} if seen < tokens else {}
    )
    return added(shape, products, others)


def _pvt(config: Config) -> Shape:
    """Attention to fewer tokens, behind patches with places of their own in each stage (arXiv:2102.12122)."""
    across, ahead = int(config.get("image_size") or IMAGE), int(config.get("num_channels", 3))
    keys = ("hidden_sizes", "depths", "sequence_reduction_ratios", "patch_sizes", "strides", "mlp_ratios")
    stages = list(zip(*(config[key] for key in keys), strict=True))
    biased = bool(config.get("qkv_bias", True))
    products: list[Shape] = []
    front: Shape = {}
    others = first = 0
    for number, (width, depth, ratio, size, stride, ratio_ffn) in enumerate(stages):
        across //= stride
        tokens, ffn, last = across**2, int(width * ratio_ffn), number == len(stages) - 1
        if number:
            products += linear(tokens, size * size * ahead, width)
        else:
            front, first = {"inputs": size * size * ahead, "outputs": width}, tokens
        # A class token stands ahead of the last stage alone.
        others += 2 * width + (tokens + 2 * last) * width
        if last:
            break
        seen = max(1, tokens // ratio**2)
        if ratio > 1:
            products += linear(seen, ratio**2 * width, width, times=depth)
            others += depth * 2 * width
        products += attention(tokens, width, seen=seen, bias=biased, out_bias=True, times=depth)
        products += feeds(tokens, width, ffn, times=depth)
        others += depth * 4 * width
        ahead = width
    if ratio > 1:
        raise ValueError("sequence_reduction_ratios")
    shape = _last(depth, width, tokens + 1, front, first)
    shape |= {"heads": config["num_attention_heads"][-1], "ffn": ffn, "qkv_bias": biased}
    return added(shape, products, others)


def _poolformer(config: Config) -> Shape:
    """Means of neighbours in place of attention (arXiv:2111.11418)."""
    across, ahead = int(config.get("image_size") or IMAGE), int(config.get("num_channels", 3))
    keys = ("hidden_sizes", "depths", "patch_sizes", "strides")
    stages = list(zip(*(config[key] for key in keys), strict=True))
    scaled = 2 * bool(config.get("use_layer_scale", True))
    products: list[Shape] = []
    front: Shape = {}
    others = first = 0
    for number, (width, depth, size, stride) in enumerate(stages):
        across //= stride
        tokens, ffn = across**2, int(width * config.get("mlp_ratio", 4.0))
        if number:
            products += linear(tokens, size * size * ahead, width)
        else:
            front, first = {"inputs": size * size * ahead, "outputs": width}, tokens
        others += depth * scaled * width
        if number < len(stages) - 1:
            products += feeds(tokens, width, ffn, times=depth)
            others += depth * 4 * width
        ahead = width
    shape = _last(depth, width, tokens, front, first)
    shape |= {"ffn": ffn, "mixer": "none", "layer_norms": 2, "final_norm": False}
    return added(shape, products, others)


SEGMENTS = "ForSemanticSegmentation"


def _segments(config: Config, tokens: Sequence[int], products: list[Shape]) -> tuple[list[Shape], int]:
    """With what makes a map of labels of the ``tokens`` of each stage, joined on those of the first."""
    width, widths = config["decoder_hidden_size"], config["hidden_sizes"]
    made = [each for own, inputs in zip(tokens, widths, strict=True) for each in linear(own, inputs, width)]
    made += linear(tokens[0], len(widths) * width, width, bias=False)
    return [*products, *made, *linear(tokens[0], width, labels_of(config))], 2 * width


_LISTS = (
    *("depths", "hidden_sizes", "num_heads", "sr_ratios", "patch_sizes", "strides"),
    "sequence_reduction_ratios",
)


def _unlike(config: Config) -> Iterator[tuple[str, str]]:
    lists = [(key, config.get(key)) for key in _LISTS]
    for key, value in lists:
        listed = value if isinstance(value, list) else []
        if value is not None and not (listed and all(type(each) is int and each > 0 for each in listed)):
            yield key, "stages without whole numbers"
    depths = config.get("depths")
    for key in ("num_stages", "num_encoder_blocks"):
        if isinstance(depths, list) and config.get(key) not in (None, len(depths)):
            yield key, "other numbers of stages than of depths"


def _resnet_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _unlike(config)
    if config.get("layer_type") not in ("basic", "bottleneck"):
        yield "layer_type", "layers of this type"
    if config.get("downsample_in_bottleneck"):
        yield "downsample_in_bottleneck", "strides in the first convolution"
    depths = config.get("depths")
    if isinstance(depths, list) and depths and depths[-1] == 1:
        yield "depths", "last stages of one layer"


VISION_STAGES: dict[str, ModelType] = {
    **dict.fromkeys(("convnext", "convnextv2"), ModelType(_convnext, (), _unlike)),
    "poolformer": ModelType(_poolformer, (), _unlike),
    "pvt": ModelType(_pvt, (), _unlike, listed=("num_attention_heads",)),
    "resnet": ModelType(_resnet, (), _resnet_unlike),
    "segformer": ModelType(_segformer, (), _unlike, listed=("num_attention_heads",)),
    **dict.fromkeys(
        ("donut-swin", "swin", "swinv2"),
        ModelType(_swin, (), _unlike, listed=("num_heads", "num_attention_heads")),
    ),
}
"""Models of images in stages, by ``model_type``."""
_CLASSES = {"Model": Head(0), "ForImageClassification": Head("labels", pooled=True)}
VISION_STAGE_HEADS: dict[str, dict[str, Head]] = {
    **dict.fromkeys(VISION_STAGES, _CLASSES),
    # The norm behind the layers is the classifier's.
    "poolformer": {
        "Model": Head(0),
        "ForImageClassification": Head(
            "labels", pooled=True, more=lambda config: 2 * config["hidden_sizes"][-1]
        ),
    },
    "segformer": {**_CLASSES, SEGMENTS: Head(0)},
}
"""Heads of these, by the end of an architecture's name."""
