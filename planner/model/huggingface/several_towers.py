"""Towers beside a text decoder, of multimodal models with several or unusual ones, by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log, prod

from planner.model.huggingface.audio import omni, parakeet
from planner.model.huggingface.defaults import defaults_of
from planner.model.huggingface.families import (
    CLIP,
    QWEN3_VISION,
    QWEN_IMAGE,
    Config,
    Seeing,
    Shape,
    clip_tower,
    in_blocks,
    pruned,
    siglip_tower,
)
from planner.model.huggingface.products import added, attention, feeds, linear, parameters, scores
from planner.model.huggingface.speech import wav_codes
from planner.model.huggingface.towers import HEARD_TOKENS, TowersType, conformer, muse_tower, no_tower
from planner.model.huggingface.vision import patch_of, patches_of, sides, whole_layers
from planner.ranges import LAYERS


def segmenter(vision: Config) -> tuple[list[Shape], int]:
    """SAM's encoder (arXiv:2304.02643) as products, and its other parameters: windows in all but a few layers."""
    width, heads, patches = vision["hidden_size"], vision["num_attention_heads"], patches_of(vision)
    layers, out, window = vision["num_hidden_layers"], vision["output_channels"], vision["window_size"]
    ffn = vision.get("mlp_dim") or int(vision.get("mlp_ratio", 4.0) * width)
    (high, wide), (rows, columns) = sides(vision["image_size"]), sides(vision["patch_size"])
    whole = whole_layers(vision)
    near, biased = layers - whole, bool(vision.get("qkv_bias", True))
    products = [
        *linear(patches, patch_of(vision), width),
        *attention(patches, width, seen=window**2, bias=biased, out_bias=True, times=near),
        *attention(patches, width, bias=biased, out_bias=True, times=whole),
        *feeds(patches, width, ffn, times=layers),
        *linear(patches, width, out, bias=False),
        *linear(patches, 9 * out, out, bias=False),
    ]
    tables = near * 2 * (2 * window - 1) + whole * 2 * (high // rows + wide // columns - 1)
    others = tables * (width // heads) * bool(vision.get("use_rel_pos", True))
    others += patches * width * bool(vision.get("use_abs_pos", True))
    return products, others + layers * 4 * width + 4 * out


def _got(config: Config, shape: Shape) -> Shape:
    """SAM's, two convolutions of stride 2, a matrix (arXiv:2409.01704)."""
    vision, text = config["vision_config"], shape["hidden"]
    products, others = segmenter(vision)
    out, patches = vision["output_channels"], patches_of(vision)
    products += linear(patches // 4, 9 * out, 2 * out, bias=False)
    products += linear(patches // 16, 9 * 2 * out, text, bias=False)
    return added(shape, products + linear(patches // 16, text, text), others)


def _deepseek_ocr(config: Config, shape: Shape) -> Shape:
    """SAM's for all pixels, CLIP's layers on what becomes of it, both side by side for a matrix
    (``deepencoder.py`` of deepseek-ai/DeepSeek-OCR)."""
    vision, text, joined = config["vision_config"], shape["hidden"], config.get("projector_config") or {}
    if vision.get("model_name") != "deeplip_b_l":
        raise ValueError("vision_config")
    sam, clip = vision["width"]["sam_vit_b"], vision["width"]["clip-l-14-224"]
    fixed = {"patch_size": 16, "window_size": 14, "output_channels": 256}
    sizes = {"num_hidden_layers": sam["layers"], "num_attention_heads": sam["heads"]}
    detail = {**fixed, **sizes, "hidden_size": sam["width"], "image_size": vision["image_size"]}
    products, others = segmenter({**detail, "global_attn_indexes": sam["global_attn_indexes"]})
    patches = patches_of(detail)
    for out in sam["downsample_channels"]:
        patches = max(1, patches // 4)
        products += linear(patches, 9 * products[-1]["outputs"], out, bias=False)
    width, deep = clip["width"], products[-1]["outputs"]
    if joined.get("projector_type") != "linear" or joined.get("input_dim") != width + deep:
        raise ValueError("projector_config")
    tower = clip_tower(
        {
            **{"num_hidden_layers": clip["layers"], "hidden_size": width, "intermediate_size": 4 * width},
            **{"num_attention_heads": clip["heads"], "patch_size": clip["patch_size"]},
            "image_size": clip["image_size"],
        }
    )
    tower |= {"norm_last": False, "projector": (text,)}
    products += linear(tower["outputs"], deep, text, bias=False)
    # Ends of lines, and what stands between crops and the whole.
    return {**added(shape, products, others + 2 * text), "tower": tower}


def _unlimited(config: Config, shape: Shape) -> Shape:
    """The same as DeepSeek-OCR has, each of them with a configuration of its own."""
    given, text = config["vision_config"], shape["hidden"]
    sam, clip = (
        {**defaults_of(kind), **(given.get(key) or {})}
        for key, kind in (
            ("sam_config", "unlimited_ocr_sam_vision_model"),
            ("encoder_config", "unlimited_ocr_vision_encoder"),
        )
    )
    products, others = segmenter(sam)
    patches, deep = patches_of(sam), sam["output_channels"]
    first, second = sam["downsample_channels"]
    products += linear(max(1, patches // 4), 9 * deep, first, bias=False)
    products += linear(max(1, patches // 16), 9 * first, second, bias=False)
    tower = clip_tower(clip)
    # What SAM makes stands in place of patches.
    tower |= {"patch": 1, "norm_last": False, "projector": (text,)}
    others -= tower["hidden"]
    products += linear(tower["outputs"], second, text, bias=False)
    return {**added(shape, products, others + 2 * text), "tower": tower}


def _lfm3(config: Config, shape: Shape) -> Shape:
    """Gated convolutions over height and width, or grouped queries, and a gated feed-forward in each layer; four tokens
    side by side behind a norm of each, two matrices."""
    vision, text = config["vision_config"], shape["hidden"]
    width, times, ffn = vision["hidden_size"], vision["num_hidden_layers"], vision["intermediate_size"]
    heads, pairs = vision["num_attention_heads"], vision["num_key_value_heads"]
    names = vision.get("layer_types")
    if not isinstance(names, list):
        names = ["conv" if index < 2 or index % 2 else "full_attention" for index in range(times)]
    if len(names) < times or not {*names} <= {"conv", "full_attention"}:
        raise ValueError("vision_config")
    near = names[:times].count("conv")
    attends, head, side = times - near, width // heads, vision["patch_size"]
    merged, kernel = int(vision.get("spatial_merge_size", 2)) ** 2, vision.get("conv_kernel_size", 3)
    inner = width + 2 * pairs * head
    patch = vision.get("in_channels", 3) * int(vision.get("temporal_patch_size", 2)) * side * side
    products = [
        *linear(QWEN_IMAGE, patch, width, bias=False),
        *linear(QWEN_IMAGE, width, 3 * width, bias=False, times=near),
        *linear(QWEN_IMAGE, kernel**2, width, bias=False, times=near),
        *linear(QWEN_IMAGE, width, inner, bias=False, times=attends),
        *scores(QWEN_IMAGE, width, QWEN_IMAGE, times=attends),
        *linear(QWEN_IMAGE, width, width, bias=False, times=times),
        *feeds(QWEN_IMAGE, width, ffn, gated=True, bias=False, times=times),
        *linear(
            max(1, QWEN_IMAGE // merged),
            *(merged * width, config["projector_hidden_size"], text),
            bias=bool(config.get("projector_bias", True)),
        ),
    ]
    # Norms ahead of the layers, in them, of queries and keys, and ahead of the matrices, which alone has a shift.
    return added(shape, products, width + 2 * times * width + 2 * attends * head + 2 * width)


def _docling(config: Config, shape: Shape) -> Shape:
    """SigLIP without its pooling head, and two ways to the text, for few tokens and for four times as many, of which an
    image takes the first here; what further mergers make of some layers is added to the text's."""
    vision, text = config["vision_config"], shape["hidden"]
    tower = siglip_tower({**vision, "vision_use_head": False})
    width, out, factor = tower["hidden"], vision["out_hidden_size"], vision["scale_factor"]
    given = vision.get("deepstack_visual_indexes")
    mergers = len(given) if isinstance(given, list) else 3

    def way(across: int) -> list[Shape]:
        wide, made = across**2 * width, max(1, tower["tokens"] // across**2)
        further = linear(made, wide, out, out, times=mergers) if mergers else []
        return [*linear(made, wide, out, bias=False), *further]

    def norms(across: int) -> int:
        return int(mergers * 2 * across**2 * width)

    (first, *products), others = way(factor), norms(factor) + 2 * width + 2 * 2 * out
    if vision.get("use_fine_route", True):
        others += parameters(way(factor // 2)) + norms(factor // 2)
    if inner := config.get("density_router_hidden_size"):
        others += width + 1 + 2 * width + (width + 1) * inner + inner + 1
    if out != text:
        raise ValueError("vision_config")
    tower |= {
        "merged": factor**2,
        "outputs": first["tokens"],
        "projector": (out, out),
        "projector_bias": False,
    }
    return {**added(shape, products, others), "tower": tower}


def _nemotron(config: Config, shape: Shape) -> Shape:
    """C-RADIO, several tokens side by side, a norm and two matrices; and a conformer for sound."""
    vision, text = config["vision_config"], shape["hidden"]
    width, heads, ratio = vision["hidden_size"], vision["num_attention_heads"], vision.get("mlp_ratio", 4.0)
    wide = config.get("vit_hidden_size") or config["vision_hidden_size"]
    if wide != width or vision.get("head_dim") not in (None, width // heads):
        raise ValueError("vision_config")
    ffn, gated = int(width * ratio), bool(vision.get("use_swiglu_ffn"))
    ffn = (int(ffn * 2 / 3) + 7) // 8 * 8 if gated else ffn
    ahead = vision.get("num_cls_tokens", 3) + vision.get("num_registers", 7)
    times, merged, patches = vision["num_hidden_layers"], _merged(config), patches_of(vision)
    others = times * 2 * width + ahead * width + merged * width
    others += (vision.get("video_temporal_patch_size") or 0) * patch_of(vision) * width
    # A norm that stands behind the tower where the text predicts further tokens.
    others += 2 * width * bool((config["text_config"].get("num_nextn_predict_layers") or 0) > 0)
    if not vision.get("qkv_bias", True):
        others -= times * 3 * width
    tower: Shape = {
        **{"layers": times, "hidden": width, "heads": heads, "ffn": ffn, "gated_mlp": gated},
        **{"norm": "layer", "patch": patch_of(vision), "tokens": patches + ahead},
        "positions": (vision.get("max_img_size", 2048) // vision["patch_size"]) ** 2,
        **{"outputs": max(1, patches // merged), "merged": merged},
        **{"projector": (config["projector_hidden_size"], text), "projector_bias": False},
        "other_parameters": others,
    }
    if audio := config.get("audio_config"):
        products, norms = parakeet(audio, HEARD_TOKENS // 2)
        heard, inner, biased = (
            audio[key] for key in ("hidden_size", "projection_hidden_size", "projection_bias")
        )
        products += linear(HEARD_TOKENS // 2, heard, inner, text, bias=bool(biased))
        shape = added(shape, products, norms + heard)
    return {**shape, "tower": tower}


def _inkling(config: Config, shape: Shape) -> Shape:
    """No attention: matrices fold the pixels of a patch together, step by step; sound is the sum of a row of a table
    for each of its frequencies."""
    vision, audio, text = config["vision_config"], config["audio_config"], shape["hidden"]
    products, norms = _folded(vision, text)
    heard = audio["n_mel_bins"] * audio["mel_vocab_size"] * text + text
    return added(shape, products, norms + text + heard)


def _folded(vision: Config, text: int) -> tuple[list[Shape], int]:
    """Matrices of a patch, and the norms behind all of them but the last one."""
    side, deep = int(vision["patch_size"]), int(vision["temporal_patch_size"])
    channels = int(vision.get("num_channels", 3))
    # The first of both names counts where a file has them.
    times: int = vision.get("n_layers") or vision["num_hidden_layers"]
    # (frames, pixels on a side, channels) of each step, from a single pixel to the whole patch.
    scales, across, frames = [(1, 1, channels)], 1, 1
    for prime in _primes(side):
        across *= prime
        scales.append((1, across, 64 * -(-(across**2) * channels // 64)))
    for prime in _primes(deep):
        frames *= prime
        scales.append((frames, across, 64 * across**2 * channels * frames))
    if times < len(scales):
        raise ValueError("vision_config")
    whole = log(side**2 * deep * channels)
    sizes = [log(frames * across**2) for frames, across, _ in scales]
    steps = [
        min(range(len(scales)), key=lambda index: abs(whole * layer / times - sizes[index]))
        for layer in range(times + 1)
    ]
    steps = [0, *steps[1:-1], len(scales) - 1]
    products: list[Shape] = []
    norms = 0
    for layer, (start, end) in enumerate(pairwise(steps)):
        (frames, across, inputs), (more, wider, outputs) = scales[start], scales[end]
        last = layer == times - 1
        folded = more // frames * (wider // across) ** 2
        places = SOFT_TOKENS * (deep // more) * (side // wider) ** 2
        products += linear(places, inputs * folded, text if last else outputs, bias=False)
        norms += 0 if last else outputs
    return products, norms


def _muse_spark(config: Config, shape: Shape) -> Shape:
    """The tower of Muse Glimmer, and convolutions of each channel for sound, from samples to tokens step by step."""
    audio, text = config["audio_config"], shape["hidden"]
    patches, widths, depths = (audio[key] for key in ("patch_sizes", "hidden_sizes", "depths"))
    ratio, kernel, out = audio.get("mlp_ratio", 4.0), audio["conv_kernel_size"], audio["out_hidden_size"]
    if audio.get("num_hidden_layers") != len(widths) or out != text:
        raise ValueError("audio_config")
    products: list[Shape] = []
    places, inputs, norms = SPARK_TOKENS * prod(patches), 1, 0
    for patch, width, depth in zip(patches, widths, depths, strict=True):
        places //= patch
        products += linear(places, patch * inputs, width) + linear(places, kernel, width, times=depth)
        products += feeds(places, width, int(width * ratio), times=depth)
        inputs, norms = width, norms + (1 + depth) * width
    products += linear(SPARK_TOKENS, inputs, out)
    return {**added(shape, products, norms + inputs + out), "tower": muse_tower(config, text)}


SPARK_TOKENS = 375
"""Tokens of half a minute of sound, of which each has 80 ms."""


def _fun_asr(config: Config, shape: Shape) -> Shape:
    """Convolutions of each channel beside attention to sound, of which the first layer takes several frames at once;
    two matrices, and a few layers more as wide as the text."""
    audio, more, text = config["audio_config"], config["adaptor_config"], shape["hidden"]
    width, ffn, times = audio["hidden_size"], audio["intermediate_size"], audio["num_hidden_layers"]
    wide, inner, behind = more["hidden_size"], more["projector_hidden_size"], more["num_hidden_layers"]
    if wide != text:
        raise ValueError("adaptor_config")
    inputs, kernel = (
        audio["num_mel_bins"] * audio.get("num_stacked_frames", 7),
        audio.get("fsmn_kernel_size", 11),
    )
    products = [
        *linear(FUN_TOKENS, inputs, 3 * width),
        *linear(FUN_TOKENS, width, 3 * width, times=times - 1),
        *scores(FUN_TOKENS, width, FUN_TOKENS, times=times),
        *linear(FUN_TOKENS, width, width, times=times),
        *linear(FUN_TOKENS, kernel, width, bias=False, times=times),
        *feeds(FUN_TOKENS, width, ffn, times=times),
        *linear(FUN_TOKENS, width, inner, wide),
        *attention(FUN_TOKENS, wide, times=behind),
        *feeds(FUN_TOKENS, wide, more["intermediate_size"], times=behind),
    ]
    # Behind the layers that make words, and behind those that place them, stands one norm more.
    ends = len({times - audio.get("num_timestamp_prediction_layers", 20), times} & {*range(1, times + 1)})
    norms = 2 * inputs + 2 * (2 * times - 1 + ends) * width + 4 * behind * wide
    return added(shape, products, norms)


FUN_TOKENS = 500
"""Tokens of half a minute of sound, of which each has 60 ms."""


def _primes(number: int) -> list[int]:
    """Prime factors, the largest first."""
    factors: list[int] = []
    divisor = 2
    while number > 1:
        if number % divisor:
            divisor += 1
        else:
            factors.insert(0, divisor)
            number //= divisor
    return factors


def _merged(config: Config) -> int:
    """Tokens side by side, of which a configuration says what part of height and width is left."""
    across: int = int(1 / float(config.get("downsample_ratio", 0.5)))
    return across * across


def _hybrid(config: Config, shape: Shape) -> Shape:
    """SigLIP for the whole and SAM for its details, side by side (arXiv:2403.05525)."""
    vision, high, text = config["vision_config"], config["high_res_vision_config"], shape["hidden"]
    products, others = segmenter(high)
    width, out, patches = high["hidden_size"], high["output_channels"], patches_of(high)
    # A neck once more, for what the layers with full attention make.
    products += linear(patches, width, out, bias=False) + linear(patches, 9 * out, out, bias=False)
    products += linear(patches // 4, 9 * out, 2 * out, bias=False)
    products += linear(patches // 16, 9 * 2 * out, 4 * out, bias=False)
    products += linear(patches // 16, 4 * out, text // 2)
    # The last matrix takes both halves.
    tower = {**siglip_tower(vision), "projector": (text // 2, text)}
    return {**added(shape, products, others + 4 * out + 1 + text // 2 * text), "tower": tower}


def _grouped_qwen(config: Config, shape: Shape) -> Shape:
    """The tower of Qwen 2.5 VL with grouped queries."""
    vision = config["vision_config"]
    width, ffn, times, heads = (
        vision["hidden_size"],
        vision["intermediate_size"],
        vision["depth"],
        vision["num_heads"],
    )
    pairs = vision.get("num_key_value_heads") or heads
    merged, (side, _) = int(vision.get("spatial_merge_size", 2)) ** 2, sides(vision["patch_size"])
    whole = [each for each in vision.get("fullatt_block_indexes") or () if each < times]
    window = (int(vision.get("window_size", 112)) // side) ** 2
    deep = sides(vision.get("temporal_patch_size", 2))[0]
    inner = width + 2 * pairs * (width // heads)
    products = [
        *linear(QWEN_IMAGE, vision.get("in_channels", 3) * deep * side * side, width, bias=False),
        *linear(QWEN_IMAGE, width, inner, times=times),
        *scores(QWEN_IMAGE, width, QWEN_IMAGE, times=len(whole)),
        *scores(QWEN_IMAGE, width, min(window, QWEN_IMAGE), times=times - len(whole)),
        *linear(QWEN_IMAGE, width, width, times=times),
        *linear(QWEN_IMAGE, width, 2 * ffn, times=times),
        *linear(QWEN_IMAGE, ffn, width, times=times),
        *linear(QWEN_IMAGE // merged, merged * width, merged * width, vision["out_hidden_size"]),
    ]
    return added(shape, products, 2 * times * width + width)


def _kosmos25(config: Config, text: int) -> Shape:
    """Pix2Struct's layers with rows and columns, and latent tokens that attend to what they make (arXiv:2309.11419)."""
    vision, latents = config["vision_config"], int(config.get("latent_query_num", 2048))
    rows, width = vision.get("max_num_patches", 4096), vision["hidden_size"]
    if (
        vision.get("head_dim", width // vision["num_attention_heads"]) * vision["num_attention_heads"]
        != width
    ):
        raise ValueError("heads of the tower")
    return {
        **{"layers": vision["num_hidden_layers"], "hidden": width, "heads": vision["num_attention_heads"]},
        **{"ffn": vision["intermediate_size"], "gated_mlp": True, "norm": "rms", "bias": False},
        **{"patch": vision["patch_embed_hidden_size"], "patch_bias": True, "positions": 2 * rows},
        **{"tokens": rows, "outputs": latents, "norm_last": True, "projector": (text,)},
        "other_parameters": latents * text + 4 * text * (text + 1),
    }


def _phi4(config: Config, shape: Shape) -> Shape:
    """SigLIP and two matrices, and a conformer with two pairs of matrices for sound (arXiv:2503.01743)."""
    vision, audio, text = config["vision_config"], config["audio_config"], shape["hidden"]
    tower = {**siglip_tower(vision), "projector": (text, text)}
    # Ends of lines, and what stands between the crops of an image; the mean of four tokens is one.
    tower |= {
        "outputs": max(1, tower["tokens"] // 4),
        "other_parameters": tower["other_parameters"] + 2 * tower["hidden"],
    }
    products, others = _phi4_heard(audio, text)
    return {**added(shape, products, others), "tower": tower}


def _phi4_heard(audio: Config, text: int) -> tuple[list[Shape], int]:
    """Convolutions that halve frequencies and time, layers with gates in both feed-forwards, and the projections."""
    width, ffn, times = audio["hidden_size"], audio["intermediate_size"], audio["num_blocks"]
    channels, high, rounds = (
        audio["nemo_conv_channels"],
        audio["input_size"],
        audio["time_reduction"].bit_length() - 1,
    )
    if 1 << rounds != audio["time_reduction"] or audio.get("depthwise_multiplier", 1) != 1:
        raise ValueError("convolutions of sound")
    out, narrow = audio["ext_pw_out_channel"], audio["depthwise_separable_out_channel"]
    tokens = HEARD_TOKENS // 2
    products: list[Shape] = []
    for number in range(rounds):
        high = -(-high // 2)
        places = tokens * high << rounds - number - 1
        products += linear(places, 9, channels)
        products += linear(places, channels, channels) if number else []
    products += [
        *linear(tokens, channels * high, width),
        *linear(tokens, width, 2 * ffn, times=2 * times),
        *linear(tokens, ffn, width, times=2 * times),
        *attention(tokens, width, times=times),
        *linear(tokens, width, 2 * out, times=times),
        *linear(tokens, audio["kernel_size"], width, times=times),
        *linear(tokens, width, narrow, times=times),
        *linear(tokens, width, out, times=times),
        # One pair of matrices for sound alone, one for sound beside an image: a sequence takes one of them.
        *linear(tokens, width * audio.get("downsample_rate", 1), text, text),
    ]
    if out != width or narrow != width:
        raise ValueError("convolutions of other widths than the layers")
    rows = audio["bias_max_distance"] * (1 if audio.get("bias_symmetric") else 2)
    other = sum(each["outputs"] * (each["inputs"] + 1) for each in products[-2:])
    return products, times * (2 * 5 * width + 2 * out) + rows * audio["num_attention_heads"] + other


def minicpm_v(config: Config, shape: Shape) -> Shape:
    """SigLIP for slices of an image, and a few queries that attend to what it makes (``resampler.py`` of
    openbmb/MiniCPM-V-2_6)."""
    vision, text, queries = config["vision_config"], shape["hidden"], int(config.get("query_num", 64))
    layers = vision["num_hidden_layers"] - bool(config.get("drop_vision_last_layer"))
    tower = siglip_tower({**vision, "num_hidden_layers": layers, "vision_use_head": False})
    tower |= {"tokens": QWEN_IMAGE, "outputs": queries, "projector": (text,), "projector_bias": False}
    return resampled(shape, tower, queries * text)


def resampled(shape: Shape, tower: Shape, others: int) -> Shape:
    """A tower, queries that attend to what it makes, and a matrix, with three norms and ``others`` parameters."""
    tokens, queries, text = tower["tokens"], tower["outputs"], shape["hidden"]
    products = [
        *linear(tokens, text, 2 * text),
        *linear(queries, text, text, times=2),
        *scores(queries, text, tokens),
        *linear(queries, text, text, bias=False),
    ]
    return {**added(shape, products, 6 * text + others), "tower": tower}


def _minicpm46(config: Config, shape: Shape) -> Shape:
    """SigLIP whose tokens become a quarter behind one of its layers, and a quarter once more ahead of the text
    (MiniCPM-V 4.6)."""
    vision, text, rounds = config["vision_config"], shape["hidden"], config.get("merger_times", 1)
    width, ffn, times = vision["hidden_size"], vision["intermediate_size"], vision["num_hidden_layers"]
    given = config.get("insert_layer_id", 6)
    rows, columns = sides(vision.get("window_kernel_size", [2, 2]))
    merged = rows * columns
    if not (LAYERS.holds(rounds) and isinstance(given, int) and 0 <= given < times):
        raise ValueError("insert_layer_id")
    products, tokens = linear(QWEN_IMAGE, patch_of(vision), width), QWEN_IMAGE // merged
    for count, many in ((QWEN_IMAGE, given + 1), (tokens, times - given - 1)):
        products += attention(count, width, times=many) + feeds(count, width, ffn, times=many)
    products += attention(QWEN_IMAGE, width, seen=merged)
    products += linear(tokens, merged * width, merged * ffn, width)
    for number in range(1, rounds + 1):
        made = max(1, tokens // 4**number)
        products += linear(made, 4 * width, 4 * width, text if number == rounds else width)
    norms = 4 * width * times + 2 * width + 2 * (1 + merged) * width + rounds * 2 * 4 * width
    return added(shape, products, patches_of(vision) * width + norms)


def phi4_mm(config: Config, shape: Shape) -> Shape:
    """Phi 4 multimodal under its first keys (``modeling_phi4mm.py``): adapters for images and for sound stand in every
    layer, of which a sequence takes those of images here."""
    audio, width, head = config["audio_processor"]["config"], shape["hidden"], shape["head_dim"]
    nemo = audio.get("nemo_conv_settings") or {}
    sound = {
        **{"hidden_size": audio["attention_dim"], "num_attention_heads": audio["attention_heads"]},
        **{"intermediate_size": audio["linear_units"], "num_blocks": audio["num_blocks"]},
        **{"input_size": audio["input_size"], "time_reduction": audio["time_reduction"]},
        **{"nemo_conv_channels": nemo.get("conv_channels", audio["attention_dim"])},
        **{
            key: audio[key]
            for key in ("ext_pw_out_channel", "depthwise_seperable_out_channel", "kernel_size")
        },
        "bias_max_distance": (audio.get("relative_attention_bias_args") or {}).get(
            "t5_bias_max_distance", 1000
        ),
    }
    sound["depthwise_separable_out_channel"] = sound["depthwise_seperable_out_channel"]
    siglip = {
        "hidden_size": 1152,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "intermediate_size": 4304,
    }
    whole = _phi4(
        {"vision_config": {**siglip, "patch_size": 14, "image_size": 448}, "audio_config": sound}, shape
    )
    inner, back, ffn = (shape["heads"] + 2 * shape["kv_heads"]) * head, shape["heads"] * head, shape["ffn"]
    pairs = ((width, inner), (back, width), (width, 2 * ffn), (ffn, width))
    seen, heard = (config[f"{key}_lora"]["r"] for key in ("vision", "speech"))
    adapters = [
        (inputs, outputs, "nothing")
        for one, other in pairs
        for inputs, outputs in ((one, seen), (seen, other))
    ]
    others = heard * sum(one + other for one, other in pairs)
    matrices = (*adapters, (width, inner, "columns"), (back, width, "rows"))
    return {**whole, "projections": matrices, "attention_other": others}


def _unified(config: Config, shape: Shape) -> Shape:
    """No towers: a matrix for patches with places of their own, one for samples, and one behind either (Gemma 4)."""
    text, products, others = shape["hidden"], [], 0
    if vision := config.get("vision_config"):
        width, rows = vision["mm_embed_dim"], vision["mm_posemb_size"]
        patch = 3 * (vision["patch_size"] * vision.get("pooling_kernel_size", 3)) ** 2
        tokens = vision.get("num_soft_tokens", SOFT_TOKENS)
        products += linear(tokens, patch, width) + linear(tokens, width, text, bias=False)
        others += 2 * patch + 4 * width + 2 * rows * width
    if audio := config.get("audio_config"):
        products += linear(HEARD_TOKENS, audio["audio_embed_dim"], text, bias=False)
    return added(shape, products, others)


SOFT_TOKENS = 280
"""Tokens of an image where a configuration names none."""


MOBILE = "mobilenetv5_300m_enc"
"""The tower of Gemma 3n, by the name that timm has for it."""
MOBILE_IMAGE, MOBILE_WIDTH = 768, 2048
"""Height and width of an image that it reads, and width of what it makes."""


def _mobile() -> tuple[list[Shape], int]:
    """That tower, which takes no sizes: convolutions, then inverted bottlenecks with convolutions of each channel and
    attention with one head of keys (arXiv:2404.10518); scales of norms and of residual sums besides."""
    given: list[Shape] = []
    scales = 64

    def mixed(pixels: int, channels: int, kernel: int) -> None:
        nonlocal scales
        given.extend(linear(pixels, kernel * kernel, channels, bias=False))
        scales += channels

    def made(pixels: int, inputs: int, outputs: int, kernel: int = 1) -> None:
        nonlocal scales
        given.extend(linear(pixels, kernel * kernel * inputs, outputs, bias=False))
        scales += outputs

    def inverted(
        pixels: int, inputs: int, outputs: int, wider: int, first: int = 0, *, halves: bool = False
    ) -> None:
        nonlocal scales
        ahead = 4 * pixels if halves else pixels
        if first:
            mixed(ahead, inputs, first)
        made(ahead, inputs, wider * inputs)
        if halves:
            mixed(pixels, wider * inputs, 5)
        made(pixels, wider * inputs, outputs)
        scales += outputs

    def attends(pixels: int, width: int, heads: int, head: int, *, fewer: bool) -> None:
        nonlocal scales
        seen = pixels // 4 if fewer else pixels
        given.extend(linear(pixels, width, heads * head, bias=False))
        for _ in ("keys", "values"):
            if fewer:
                mixed(seen, width, 3)
            given.extend(linear(seen, width, head, bias=False))
        given.extend(scores(pixels, heads * head, seen) + linear(pixels, heads * head, width, bias=False))
        scales += 2 * width

    side = MOBILE_IMAGE // 2
    given.extend(linear(side**2, 27, 64))
    side //= 2
    for inputs in (64, 128, 128):
        made(side**2, inputs, 4 * inputs, 3)
        made(side**2, 4 * inputs, 128)
    side //= 2
    inverted(side**2, 128, 256, 6, 3, halves=True)
    for kernel in (5, 3, 5, 3):
        inverted(side**2, 256, 256, 4, kernel)
    side //= 2
    inverted(side**2, 256, 640, 6, 5, halves=True)
    for _ in range(7):
        inverted(side**2, 640, 640, 4, 5)
    inverted(side**2, 640, 640, 1)
    for _ in range(14):
        attends(side**2, 640, 12, 64, fewer=True)
        inverted(side**2, 640, 640, 2)
    low = (side // 2) ** 2
    inverted(low, 640, 1280, 6, 5, halves=True)
    for _ in range(19):
        attends(low, 1280, 16, 96, fewer=False)
        inverted(low, 1280, 1280, 2)
    # Both last stages side by side.
    made(side**2, 640 + 1280, 2 * (640 + 1280))
    made(side**2, 2 * (640 + 1280), MOBILE_WIDTH)
    return given, scales + MOBILE_WIDTH


def _gemma3n(config: Config, shape: Shape) -> Shape:
    """A tower of convolutions and a conformer, each behind a table of tokens of its own."""
    vision, audio, text = config["vision_config"], config["audio_config"], shape["hidden"]
    usual = {"sscp_conv_kernel_size": [[3, 3], [3, 3]], "sscp_conv_stride_size": [[2, 2], [2, 2]]}
    if any(audio.get(key) not in (None, each) for key, each in {**usual, "input_feat_size": 128}.items()):
        raise ValueError("convolutions of sound")
    if vision.get("architecture", MOBILE) != MOBILE or vision["hidden_size"] != MOBILE_WIDTH:
        raise ValueError("vision_config")
    names = {"num_hidden_layers": "conf_num_hidden_layers", "num_attention_heads": "conf_num_attention_heads"}
    names |= {
        "subsampling_conv_channels": "sscp_conv_channel_size",
        "conv_kernel_size": "conf_conv_kernel_size",
    }
    names |= {"attention_chunk_size": "conf_attention_chunk_size"}
    names |= {"attention_context_left": "conf_attention_context_left"}
    names |= {"attention_context_right": "conf_attention_context_right"}
    heard, others = conformer({**audio, **{key: audio[other] for key, other in names.items()}})
    seen, scales = _mobile()
    products = [*seen, *heard]
    for given, tokens in (
        (vision, config.get("vision_soft_tokens_per_image", 256)),
        (audio, config.get("audio_soft_tokens_per_image", 188)),
    ):
        products += linear(tokens, given["hidden_size"], text, bias=False)
        others += (given["vocab_size"] + 2) * given["hidden_size"]
    return added(shape, products, others + scales)


def _granite_speech(config: Config, shape: Shape) -> Shape:
    """A conformer whose layers see blocks of a few seconds, and queries for each window of it (arXiv:2505.08699)."""
    audio, text, asked = config["encoder_config"], shape["hidden"], config["projector_config"]
    if asked.get("use_qformer_text_input"):
        raise ValueError("use_qformer_text_input")
    width, times, inner = audio["hidden_dim"], audio["num_layers"], audio["num_heads"] * _head(audio)
    ffn, channels = width * audio["feedforward_mult"], width * audio["conv_expansion_factor"]
    tokens, near = 2 * HEARD_TOKENS, audio["context_size"]
    products = [
        *linear(tokens, audio["input_dim"], width),
        *feeds(tokens, width, ffn, times=2 * times),
        *linear(tokens, width, 3 * inner, bias=False, times=times),
        # Scores of words and of distances.
        *scores(tokens, inner, near, times=times),
        *scores(tokens, inner, near // 2, times=times),
        *linear(tokens, inner, width, times=times),
        *linear(tokens, width, 2 * channels, times=times),
        *linear(tokens, audio["conv_kernel_size"], channels, bias=False, times=times),
        *linear(tokens, channels, width, times=times),
        *linear(tokens, width, audio["output_dim"], width),
    ]
    others = times * (10 * width + 2 * channels + (2 * audio["max_pos_emb"] + 1) * _head(audio))
    windows, queries = -(-tokens // config["window_size"]), config["window_size"] // config["downsample_rate"]
    read, ffn, deep = asked["hidden_size"], asked["intermediate_size"], asked["num_hidden_layers"]
    crossing = len(range(0, deep, asked.get("cross_attention_frequency", 2)))
    count = windows * queries
    products += [
        *attention(count, read, seen=queries, times=deep),
        *feeds(count, read, ffn, times=deep),
        *linear(count, read, read, times=2 * crossing),
        *linear(tokens, asked["encoder_hidden_size"], read, times=2 * crossing),
        *scores(count, read, config["window_size"], times=crossing),
        *linear(count, read, text),
    ]
    return added(shape, products, others + 2 * read * (2 * deep + crossing + 1) + queries * read)


def _head(audio: Config) -> int:
    """Width of a head; raises ValueError where there is no whole one."""
    if audio["hidden_dim"] % audio["num_heads"]:
        raise ValueError("num_heads")
    return int(audio.get("dim_head") or audio["hidden_dim"] // audio["num_heads"])


def codes(
    vq: Config, side: int, *, attends: Callable[[int, int], bool], back: bool
) -> tuple[list[Shape], int]:
    """Convolutions that make codes of an image ``side`` wide, and their norms; with the way ``back`` to an image.

    ``attends`` says of a level and its width in pixels whether its blocks attend.
    """
    base, channels, given = (
        vq["base_channels"],
        [vq["base_channels"] * each for each in vq["channel_multiplier"]],
        [],
    )
    blocks, latent, norms = vq["num_res_blocks"], vq["latent_channels"], 0

    def block(pixels: int, inputs: int, outputs: int) -> None:
        nonlocal norms
        given.extend(linear(pixels, 9 * inputs, outputs) + linear(pixels, 9 * outputs, outputs))
        given.extend(linear(pixels, inputs, outputs) if inputs != outputs else [])
        norms += 2 * (inputs + outputs)

    def attend(pixels: int, width: int) -> None:
        nonlocal norms
        given.extend(attention(pixels, width))
        norms += 2 * width

    def middle(pixels: int, width: int) -> None:
        block(pixels, width, width)
        if vq.get("attn_type", "vanilla") == "vanilla":
            attend(pixels, width)
        block(pixels, width, width)

    given.extend(linear(side * side, 9 * vq["in_channels"], base))
    inner = base
    for level, width in enumerate(channels):
        for _ in range(blocks):
            block(side * side, inner, width)
            inner = width
            if attends(level, side):
                attend(side * side, width)
        if level < len(channels) - 1:
            side //= 2
            given.extend(linear(side * side, 9 * width, width))
    middle(side * side, inner)
    out = latent * (2 if vq.get("double_latent") else 1)
    given.extend(linear(side * side, 9 * inner, out))
    given.extend(linear(side * side, latent, vq["embed_dim"]) + linear(side * side, vq["embed_dim"], latent))
    norms += 2 * inner + vq["num_embeddings"] * vq["embed_dim"]
    if back:
        given.extend(linear(side * side, 9 * latent, inner))
        middle(side * side, inner)
        for level in reversed(range(len(channels))):
            for _ in range(blocks + 1):
                block(side * side, inner, channels[level])
                inner = channels[level]
                if attends(level, side):
                    attend(side * side, inner)
            if level:
                side *= 2
                given.extend(linear(side * side, 9 * inner, inner))
        given.extend(linear(side * side, 9 * inner, vq["out_channels"]))
        norms += 2 * inner
    return given, norms


def _chameleon(config: Config, shape: Shape) -> Shape:
    """Codes of images among the tokens (arXiv:2405.09818)."""
    vq = config["vq_config"]
    listed = vq.get("attn_resolutions") or () if vq.get("attn_type", "vanilla") == "vanilla" else ()
    products, others = codes(vq, vq["resolution"], attends=lambda _, side: side in listed, back=False)
    return added(shape, products, others)


def _apertus(config: Config, shape: Shape) -> Shape:
    """Codes of images and of sound among the tokens; whether the table is the output layer too is said of the whole."""
    text, vq = config["text_config"], config["vision_config"]
    shape = pruned(
        {**shape, "vocab": text["vocab_size"], "other_parameters": 0}, text.get("output_vocab_size")
    )
    listed, given = vq["attn_resolutions"], {**vq, "num_embeddings": vq["codebook_size"]}
    products, others = codes(given, vq["resolution"], attends=lambda _, side: side in listed, back=False)
    # Nothing leads back from a code.
    return added(shape, products[:-1], others + wav_codes(config["audio_config"]))


def _omni(config: Config, shape: Shape) -> Shape:
    """Layers behind convolutions over samples, and one matrix (arXiv:2511.09690)."""
    heard, text = omni(config["audio_config"]), shape["hidden"]
    *convolutions, last = heard["front"]
    tower: Shape = {
        **{key: heard[key] for key in ("layers", "hidden", "heads", "ffn")},
        **{"patch": last["inputs"], "patch_bias": True, "norm_last": True, "projector": (text,)},
        **{"tokens": last["tokens"], "outputs": last["tokens"]},
    }
    products = [{**each, "times": 1} for each in convolutions]
    return {**added(shape, products, heard["other_parameters"]), "tower": tower}


def _janus(config: Config, shape: Shape) -> Shape:
    """SigLIP's layers for images that are read, and codes with a head of their own for those that are made; where
    images are read, these take no part (arXiv:2501.17811)."""
    vision, vq = config["vision_config"], config["vq_config"]
    width, patches = vision["hidden_size"], patches_of(vision)
    if vision.get("use_qk_norm") or not vision.get("attention_bias", True):
        raise ValueError("norms of queries, or no biases, in the tower")
    out, deep = vision.get("projection_dim", 2048), int(vision.get("depth", 2))
    tower: Shape = {
        **{"layers": vision["num_hidden_layers"], "hidden": width, "heads": vision["num_attention_heads"]},
        **{"ffn": int(width * vision.get("mlp_ratio", 4.0)), "norm_last": True},
        **{"patch": patch_of(vision), "patch_bias": True, "positions": patches},
        **{"tokens": patches, "outputs": patches, "projector": (out,) * deep},
    }
    last = len(vq["channel_multiplier"]) - 1
    side = vq.get("num_patches", 32) << last
    products, others = codes(vq, side, attends=lambda level, _: level == last, back=True)
    made, inner, rows = vq["projection_dim"], vq["image_token_embed_dim"], vq["num_embeddings"]
    others += parameters(products) + rows * vq["embed_dim"] + (vq["embed_dim"] + 1) * made
    others += (vq["num_hidden_layers"] - 1) * (made + 1) * made + (inner + 1) * made + (made + 1) * rows
    return {**added(shape, [], others), "tower": tower}


def _idefics(config: Config, shape: Shape) -> Shape:
    """Layers between those of the text that attend to what CLIP makes of images, or to a few latent tokens of it
    (arXiv:2306.16527)."""
    vision, width = config["vision_config"], shape["hidden"]
    wide, layers, patches = vision["embed_dim"], vision["num_hidden_layers"], patches_of(vision) + 1
    every, times, more = (
        config.get("cross_layer_interval", 1),
        shape["layers"],
        config.get("additional_vocab_size") or 0,
    )
    if not isinstance(every, int) or every < 1 or times % every:
        raise ValueError("cross_layer_interval")
    kinds = [
        kind
        for _ in range(times // every)
        for kind in (("cross", "dense"), *every * (("attention", "dense"),))
    ]
    head = shape["head_dim"] if "head_dim" in shape else width // shape["heads"]
    scales = 2 * (width if config.get("alpha_type", "float") == "vector" else 1)
    others = (times // every) * (scales + 2 * head * bool(config.get("qk_layer_norms")))
    # Layers of CLIP have norms with shifts and biases, those of the text have not.
    ffn = vision["intermediate_size"]
    others += layers * (2 * wide + 5 * wide + ffn) + 4 * wide + wide
    encoder: Shape = {
        **{
            "layers": layers,
            "hidden": wide,
            "heads": vision["num_attention_heads"],
            "ffn": ffn,
            "gated_mlp": False,
        },
        **{"sequence_length": patches, "learned_positions": patches, "final_norm": False},
    }
    encoder["front"] = ({"inputs": patch_of(vision), "outputs": wide, "tokens": patches - 1, "bias": False},)
    products: list[Shape] = []
    if config.get("use_resampler"):
        given = config["perceiver_config"]
        heads, size, latents = (
            given["resampler_n_heads"],
            given["resampler_head_dim"],
            given["resampler_n_latents"],
        )
        inner, deep = heads * size, given["resampler_depth"]
        products += linear(latents, wide, inner, bias=False, times=deep)
        products += linear(patches + latents, wide, 2 * inner, bias=False, times=deep)
        products += scores(latents, inner, patches + latents, times=deep)
        products += linear(latents, inner, wide, bias=False, times=deep)
        products += feeds(latents, wide, 4 * wide, bias=False, times=deep)
        norms = 2 * 2 * wide + 2 * wide + 2 * 2 * size * bool(given.get("qk_layer_norms_perceiver"))
        others += latents * wide + deep * norms + 2 * wide
    encoder["other_parameters"] = others + more * width * (1 if shape["tied_embeddings"] else 2)
    return {**added(in_blocks(shape, kinds), products), "encoder": encoder}


def _ernie(config: Config, shape: Shape) -> Shape:
    """Qwen 2 VL's tower with a norm behind it, four patches of two frames to a token, and a norm (ERNIE 4.5 VL)."""
    vision, text = config["vision_config"], shape["hidden"]
    width, merged = vision["hidden_size"], int(vision.get("spatial_merge_size", 2)) ** 2
    wide, (rows, columns) = merged * width, sides(vision["patch_size"])
    made = QWEN_IMAGE // merged
    tower: Shape = {
        **{"layers": vision["depth"], "hidden": width, "heads": vision["num_heads"]},
        **{"ffn": vision["intermediate_size"], "patch": vision.get("in_channels", 3) * rows * columns},
        **{"tokens": QWEN_IMAGE, "outputs": made, "merged": merged, "norm_last": True},
        **{"projector": (wide, wide, text), "other_parameters": 2 * 2 * wide + text},
    }
    frames = int(vision.get("temporal_merge_size", 2))
    return {**added(shape, linear(made, frames * wide, wide, wide)), "tower": tower}


def _molmo2(config: Config, shape: Shape) -> Shape:
    """SigLIP, of two layers of which squares of four patches attend to their mean, and a gated feed-forward."""
    vision, given = config["vision_config"], config["adapter_config"]
    width, times, patches = (
        vision["hidden_size"],
        vision["num_hidden_layers"],
        vision.get("num_position_embeddings"),
    )
    heads, pairs, head = (vision[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    biased, tokens = bool(vision.get("attention_bias", True)), int(patches or 729)
    products = [
        *linear(tokens, patch_of(vision), width),
        *linear(tokens, width, (heads + 2 * pairs) * head, bias=biased, times=times),
        *scores(tokens, heads * head, tokens, times=times),
        *linear(tokens, heads * head, width, bias=biased, times=times),
        *feeds(tokens, width, vision["intermediate_size"], times=times),
    ]
    # Layers behind the last one that is read are never made.
    seen = width * len(given.get("vision_feature_layer") or (-3, -9))
    made, read = max(1, tokens // 4), given["hidden_size"]
    heads, pairs, head = (given[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    biased, ffn, wide = (
        bool(given.get("attention_bias", True)),
        given["intermediate_size"],
        bool(given.get("mlp_bias")),
    )
    products += [
        *linear(made, seen, heads * head, bias=biased),
        *linear(tokens, seen, 2 * pairs * head, bias=biased),
        *linear(made, heads * head, read, bias=biased),
        *linear(made, read, 2 * ffn, bias=wide),
        *linear(made, ffn, given["text_hidden_size"], bias=False),
    ]
    return added(shape, products, tokens * width + 4 * times * width)


_SAM = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "image_size",
    "patch_size",
    "output_channels",
)
_PHI4_HEARD = ("hidden_size", "intermediate_size", "num_blocks", "num_attention_heads", "input_size")
_TALKING = (
    *(
        "input_dim",
        "num_layers",
        "hidden_dim",
        "feedforward_mult",
        "num_heads",
        "context_size",
        "max_pos_emb",
    ),
    *("conv_kernel_size", "conv_expansion_factor", "output_dim"),
)
_CONFORMED = ("conf_num_hidden_layers", "conf_num_attention_heads", "conf_conv_kernel_size")
_CODES = ("base_channels", "num_res_blocks", "latent_channels", "embed_dim", "num_embeddings", "in_channels")
_WAVES = (
    *("audio_channels", "num_filters", "compress", "kernel_size", "last_kernel_size", "residual_kernel_size"),
    *("num_residual_layers", "num_lstm_layers", "hidden_size"),
)
SEVERAL_TOWERS: dict[str, Seeing] = {
    "apertus1p5": TowersType(
        no_tower,
        "apertus1p5_vision_tokenizer",
        (*_CODES[:4], "in_channels", "codebook_size", "resolution"),
        further=(("audio_config", _WAVES),),
        whole=_apertus,
    ),
    "chameleon": TowersType(
        no_tower, "chameleon_vqgan", (*_CODES, "resolution"), section="vq_config", whole=_chameleon
    ),
    "deepseek_vl_v2": TowersType(
        no_tower,
        "vision",
        ("image_size",),
        text="language_config",
        optional=(("projector_config", "mlp_projector"),),
        whole=_deepseek_ocr,
    ),
    "deepseek_vl_hybrid": TowersType(
        no_tower,
        "siglip_vision_model",
        (*CLIP, "image_size"),
        further=(("high_res_vision_config", (*_SAM, "window_size")),),
        whole=_hybrid,
    ),
    "exaone4_5": TowersType(no_tower, "exaone4_5_vision", QWEN3_VISION, whole=_grouped_qwen),
    "fun_asr_nano": TowersType(
        no_tower,
        "fun_asr_nano_encoder",
        (*CLIP[:-1], "num_mel_bins"),
        section="audio_config",
        further=(
            (
                "adaptor_config",
                ("hidden_size", "intermediate_size", "num_hidden_layers", "projector_hidden_size"),
            ),
        ),
        whole=_fun_asr,
    ),
    "gemma3n": TowersType(
        no_tower,
        "gemma3n_vision",
        ("hidden_size", "vocab_size"),
        further=(("audio_config", ("hidden_size", "vocab_size", *_CONFORMED)),),
        whole=_gemma3n,
    ),
    "gemma4_unified": TowersType(
        no_tower,
        "gemma4_unified_vision",
        ("mm_embed_dim", "mm_posemb_size", "patch_size"),
        optional=(("audio_config", "gemma4_unified_audio"),),
        towerless=True,
        whole=_unified,
    ),
    "ernie4_5_vl_moe": TowersType(
        no_tower,
        "ernie4_5_vl_moe_vision",
        ("depth", "num_heads", "hidden_size", "intermediate_size", "patch_size"),
        whole=_ernie,
    ),
    "molmo2": TowersType(
        no_tower,
        "molmo2_vision",
        (*CLIP, "num_key_value_heads", "head_dim"),
        further=(
            (
                "adapter_config",
                (
                    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
                    *("head_dim", "text_hidden_size"),
                ),
            ),
        ),
        whole=_molmo2,
    ),
    **{
        kind: TowersType(no_tower, f"{kind}_vision", (*_SAM, "window_size"), whole=_got)
        for kind in ("got_ocr2", "pp_chart2table")
    },
    "granite_docling": TowersType(
        no_tower,
        "granite_docling_vision",
        (*CLIP, "image_size", "out_hidden_size", "scale_factor"),
        whole=_docling,
    ),
    "inkling_mm_model": TowersType(
        no_tower,
        "inkling_vision",
        ("patch_size", "temporal_patch_size", "num_hidden_layers"),
        further=(("audio_config", ("n_mel_bins", "mel_vocab_size")),),
        whole=_inkling,
    ),
    "lfm3_vl": TowersType(no_tower, "lfm3_vl_vision", (*CLIP, "num_key_value_heads"), whole=_lfm3),
    "muse_spark": TowersType(
        no_tower,
        "muse_spark_vision",
        (*CLIP, "pos_emb_height", "pos_emb_width"),
        further=(("audio_config", ("conv_kernel_size", "out_hidden_size")),),
        whole=_muse_spark,
    ),
    "nemotron_h_omni": TowersType(
        no_tower,
        "radio",
        (*(key for key in CLIP if key != "intermediate_size"), "image_size"),
        optional=(("audio_config", "parakeet_encoder"),),
        whole=_nemotron,
    ),
    "unlimited_ocr": TowersType(no_tower, "unlimited_ocr_vision", (), whole=_unlimited),
    **{
        kind: TowersType(
            no_tower,
            f"{kind}_encoder",
            _TALKING,
            section="encoder_config",
            further=(("projector_config", ("hidden_size", "intermediate_size", "num_hidden_layers")),),
            whole=_granite_speech,
        )
        for kind in ("granite_speech", "granite_speech_plus")
    },
    "janus": TowersType(
        no_tower,
        "janus_vision_model",
        ("num_hidden_layers", "hidden_size", "num_attention_heads", "image_size"),
        further=(("vq_config", _CODES),),
        whole=_janus,
    ),
    "idefics": TowersType(
        no_tower,
        "idefics_vision",
        (
            "num_hidden_layers",
            "embed_dim",
            "num_attention_heads",
            "intermediate_size",
            "patch_size",
            "image_size",
        ),
        optional=(("perceiver_config", "idefics_perciever"),),
        whole=_idefics,
    ),
    "kosmos-2.5": Seeing(
        _kosmos25,
        "kosmos_2_5_vision_model",
        (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "patch_embed_hidden_size",
        ),
    ),
    **{
        kind: TowersType(no_tower, f"{kind}_vision", (*CLIP, "image_size"), whole=_minicpm46)
        for kind in ("minicpmv4_6", "minicpmv4_7")
    },
    "minicpmv": TowersType(
        no_tower,
        "siglip",
        (*CLIP, "image_size"),
        towers=("siglip_vision_model", "idefics2"),
        whole=minicpm_v,
    ),
    "omniasr": TowersType(
        no_tower,
        "omniasr_audio",
        (*CLIP[:-1], "num_conv_pos_embeddings", "num_conv_pos_embedding_groups"),
        section="audio_config",
        whole=_omni,
    ),
    "phi4_multimodal": TowersType(
        no_tower,
        "phi4_multimodal_vision",
        (*CLIP, "image_size"),
        further=(("audio_config", _PHI4_HEARD),),
        whole=_phi4,
    ),
}
"""Models with more beside their text, by ``model_type``."""
