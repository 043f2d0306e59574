"""Vision and audio towers beside a text decoder, by the ``model_type`` of the multimodal model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.model.huggingface.families import (
    CLIP,
    QWEN3_VISION,
    QWEN_IMAGE,
    SEEING,
    Config,
    Seeing,
    Shape,
    clip_tower,
    in_blocks,
    pixtral_tower,
    qwen3_tower,
    qwen_tower,
    siglip_tower,
    two_matrices,
)
from planner.model.huggingface.products import added, attention, feeds, layers, linear, scores
from planner.model.huggingface.vision import patch_of, patches_of, pooling, sides


def _weights(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with biases."""
    return (inputs + 1) * outputs


def _biased(tower: Shape, biases: int) -> Shape:
    """A tower whose layers have so many elements of biases: as its own where they are all, else with the others."""
    width, feeds = tower["hidden"], (2 if tower.get("gated_mlp") else 1) * tower["ffn"]
    if biases == 5 * width + feeds:
        return tower
    others = tower.get("other_parameters", 0) + tower["layers"] * biases
    return {**tower, "bias": False, "other_parameters": others}


def _sizes(config: Config) -> Shape:
    return {
        **{"layers": config["num_hidden_layers"], "hidden": config["hidden_size"]},
        **{"heads": config["num_attention_heads"], "ffn": config["intermediate_size"]},
    }


def _internvl(config: Config, text: int) -> Shape:
    """InternViT: scales of both residual sums; four tokens side by side, a norm and two matrices."""
    vision = config["vision_config"]
    remote = config["model_type"] == "internvl_chat"
    tower, patches, width = _sizes(vision), patches_of(vision), vision["hidden_size"]
    merged = int(1 / config.get("downsample_ratio", 0.5)) ** 2
    normed = vision.get("qk_normalization" if remote else "use_qk_norm", False)
    others = 2 * merged * width + tower["layers"] * (2 * width + 2 * width * bool(normed))
    others += width * bool(vision.get("use_mask_token") and not remote)
    last, rms = not (remote or vision.get("use_mean_pooling", True)), vision.get("norm_type") == "rms_norm"
    # The norm behind the layers has a shift, whatever those of the layers are.
    others += width * (last and rms)
    placed = remote or vision.get("use_absolute_position_embeddings", True)
    biased = vision.get("qkv_bias" if remote else "attention_bias", remote)
    tower |= {
        "norm": "rms" if rms else "layer",
        **{"patch": patch_of(vision), "patch_bias": True, "class_token": True},
        **{"tokens": patches + 1, "outputs": patches // merged, "positions": (patches + 1) * bool(placed)},
        "norm_last": last,
        **{"merged": merged, "projector": (text, text), "other_parameters": others},
    }
    return _biased(tower, 2 * width + tower["ffn"] + 3 * width * bool(biased))


def _aya(config: Config, text: int) -> Shape:
    """SigLIP, four tokens side by side, a norm in the first of both models, and a gated feed-forward."""
    tower, merged = siglip_tower(config["vision_config"]), int(config.get("downsample_factor", 2)) ** 2
    normed = config["model_type"] == "aya_vision"
    wide, half = merged * tower["hidden"], (config.get("alignment_intermediate_size") or text) // 2
    others = tower["other_parameters"] + 2 * wide * normed + _weights(wide, half)
    made = {"merged": merged, "outputs": tower["tokens"] // merged, "projector": (half, text)}
    return {**tower, **made, "other_parameters": others}


def _vipllava(config: Config, text: int) -> Shape:
    """CLIP, of which several layers give features, side by side."""
    layers = config.get("vision_feature_layers", config.get("vision_feature_layer", -2))
    count = len(layers) if isinstance(layers, list) else 1
    tower = clip_tower(config["vision_config"])
    others = 2 * count * tower["hidden"]
    return {**tower, "merged": count, "projector": (text, text), "other_parameters": others}


def _llava(config: Config, text: int) -> Shape:
    """Towers of several makers ahead of two matrices."""
    kind = config["vision_config"].get("model_type", "clip_vision_model")
    newline = text if config["model_type"] in ("llava_next", "llava_next_video") else 0
    if kind == "pixtral":
        tower = {**pixtral_tower(config, text), "merged": 1, "projector_norm": False}
        tower |= {"outputs": tower["tokens"], "other_parameters": 0}
    else:
        tower = (
            clip_tower(config["vision_config"])
            if kind != "siglip_vision_model"
            else siglip_tower(config["vision_config"])
        )
    layers = config.get("vision_feature_layer", -2)
    tower |= {"merged": len(layers)} if isinstance(layers, list) else {}
    others = tower.get("other_parameters", 0) + newline
    return {**tower, **two_matrices(config, text), "other_parameters": others}


def _llama4(config: Config, text: int) -> Shape:
    """A class token behind the patches, four tokens side by side, two matrices and one more."""
    vision = config["vision_config"]
    tower, patches = _sizes(vision), patches_of(vision)
    merged = round(1 / float(vision.get("pixel_shuffle_ratio", 0.5))) ** 2
    inner, out = vision.get("projector_input_dim", 4096), vision.get("projector_output_dim", 4096)
    # Whatever the tokens side by side are wide, the first matrix is as wide as the feed-forward, and so on.
    others = (tower["ffn"] - merged * tower["hidden"]) * inner + (out - inner) * out
    others += (vision.get("vision_output_dim", 4096) - out) * text
    if others < 0:
        raise ValueError("widths of the projector")
    return {
        **tower,
        **{"patch": patch_of(vision), "class_token": True, "norm_first": True, "norm_last": True},
        **{"tokens": patches + 1, "outputs": patches // merged, "positions": patches + 1, "merged": merged},
        **{"projector": (inner, out, text), "projector_bias": False, "other_parameters": others},
    }


def _idefics2(config: Config, text: int) -> Shape:
    """SigLIP's layers, a gated feed-forward, and a few latent tokens that attend to what these make."""
    vision, given = config["vision_config"], config["perceiver_config"]
    tower, ffn = (
        siglip_tower({**vision, "vision_use_head": False}),
        config["text_config"]["intermediate_size"],
    )
    # As wide as the text, whatever its own configuration says.
    width, heads, head = text, given["resampler_n_heads"], given["resampler_head_dim"]
    pairs, latents = given["num_key_value_heads"], given["resampler_n_latents"]
    layer = 2 * width * head * (heads + pairs) + 3 * width + 3 * width * 4 * width
    others = tower["hidden"] * ffn + latents * width + given["resampler_depth"] * layer + width
    made = {"outputs": latents, "projector": (ffn, text), "projector_bias": False}
    return {**tower, **made, "other_parameters": others}


def _blip2(config: Config, shape: Shape) -> Shape:
    """A tower, and a few queries in layers of their own, of which every second attends to it."""
    vision, given = config["vision_config"], config["qformer_config"]
    tower, patches, wide = _sizes(vision), patches_of(vision), vision["hidden_size"]
    width, ffn, count = given["hidden_size"], given["intermediate_size"], given["num_hidden_layers"]
    crossing = len(range(0, count, given.get("cross_attention_frequency", 2)))
    asked = bool(given.get("use_qformer_text_input", config["model_type"] != "blip-2"))
    queries, seen = int(config.get("num_query_tokens", 32)), patches + 1
    words = ASKED * asked
    products = [
        *attention(queries + words, width, times=count),
        *feeds(queries, width, ffn, times=count),
        *(feeds(words, width, ffn, times=count) if asked else ()),
        *linear(queries, width, width, times=2 * crossing),
        # The first of the matrices of its keys stands ahead of those to the text.
        *linear(seen, wide, width, times=2 * crossing - 1),
        *scores(queries, width, seen, times=crossing),
    ]
    others = 2 * width * (count * (2 + asked) + crossing + 1) + queries * width
    if asked:
        others += (given["vocab_size"] + given["max_position_embeddings"]) * width
    tower |= {
        **{"patch": patch_of(vision), "patch_bias": True, "class_token": True, "norm_last": True},
        **{"tokens": seen, "outputs": queries, "positions": seen, "projector": (width, shape["hidden"])},
    }
    biased = 3 * wide * bool(vision.get("qkv_bias", True))
    tower = _biased(tower, 2 * wide + tower["ffn"] + biased)
    return {**added(shape, products, others), "tower": tower}


ASKED = 32
"""Tokens of what an image is asked, beside its queries."""


def _git(config: Config, text: int) -> Shape:
    """CLIP, a matrix and a norm; embeddings of the frames of a film."""
    tower = clip_tower(config["vision_config"])
    frames = int(config.get("num_image_with_embedding") or 0)
    made = {"outputs": tower["tokens"], "projector": (text,), "other_parameters": 2 * text}
    made["other_parameters"] += frames * tower["hidden"]
    return {**tower, **made}


def _kosmos2(config: Config, text: int) -> Shape:
    """CLIP, a matrix, and a few latent tokens that attend to what it makes."""
    tower, latents = clip_tower(config["vision_config"]), int(config.get("latent_query_num", 64))
    others = latents * text + 4 * _weights(text, text)
    return {**tower, "outputs": latents, "projector": (text,), "other_parameters": others}


def _qwen2_audio(config: Config, text: int) -> Shape:
    """Whisper's encoder, two tokens of which are taken as their mean, and one matrix."""
    audio = config["audio_config"]
    width, heard = audio["d_model"], audio["max_source_positions"]
    tower: Shape = {
        **{"layers": audio["encoder_layers"], "hidden": width, "heads": audio["encoder_attention_heads"]},
        **{"ffn": audio["encoder_ffn_dim"], "patch": 3 * audio["num_mel_bins"], "patch_bias": True},
        **{"tokens": heard, "outputs": heard // 2, "positions": heard, "norm_last": True},
        **{"projector": (text,), "other_parameters": _weights(3 * width, width)},
    }
    return _biased(tower, 4 * width + tower["ffn"])


def _whisper(audio: Config, text: int, heard: int) -> Shape:
    """The same by other names, with two matrices behind it, for so many tokens of sound."""
    named = {"d_model": "hidden_size", "encoder_layers": "num_hidden_layers"}
    named |= {"encoder_ffn_dim": "intermediate_size", "encoder_attention_heads": "num_attention_heads"}
    named = {key: audio[other] for key, other in named.items()}
    tower = _qwen2_audio({"audio_config": {**audio, **named, "max_source_positions": heard}}, text)
    return {**tower, "projector": (text, text)}


def _flamingo(config: Config, text: int) -> Shape:
    """The mean of two tokens ahead of the matrices."""
    audio = config["audio_config"]
    tower = _whisper(audio, text, audio["max_source_positions"])
    return {**tower, "projector_bias": bool(config.get("projector_bias", True))}


def _hy4(config: Config, text: int) -> Shape:
    """A table of positions for the largest image, which is resampled; two convolutions, and a token at the end of each
    line."""
    vision = config["vision_config"]
    width, side, out = vision["hidden_size"], vision["patch_size"], vision["out_hidden_size"]
    across = int(vision["spatial_merge_size"])
    if vision.get("head_dim") not in (None, width // vision["num_attention_heads"]):
        raise ValueError("heads of the tower")
    tokens = QWEN_IMAGE // across**2
    return {
        **_sizes(vision),
        **{
            "patch": patch_of(vision),
            "patch_bias": True,
            "positions": (vision["max_image_size"] // side) ** 2 + 1,
        },
        **{"tokens": QWEN_IMAGE, "outputs": tokens + round(tokens**0.5), "merged": across**2},
        **{"projector": (across**2 * width, out), "other_parameters": width + out},
    }


def _voxtral_realtime(config: Config, shape: Shape) -> Shape:
    """Causal layers with heads of another width and gates in place of Whisper's, each beside the layers of the text."""
    audio, text = config["audio_config"], shape["hidden"]
    width, ffn, times = audio["hidden_size"], audio["intermediate_size"], audio["num_hidden_layers"]
    heard, merged, heads = (
        audio["max_position_embeddings"],
        config["downsample_factor"],
        audio["num_attention_heads"],
    )
    inner, seen = heads * audio["head_dim"], min(heard, audio.get("sliding_window") or heard)
    if audio.get("num_key_value_heads") not in (None, heads):
        raise ValueError("heads of the tower")
    products = [
        *linear(2 * heard, 3 * audio["num_mel_bins"], width),
        *linear(heard, 3 * width, width),
        *linear(heard, width, 2 * inner, times=times),
        *linear(heard, width, inner, bias=False, times=times),
        *scores(heard, inner, seen, times),
        *linear(heard, inner, width, times=times),
        *linear(heard, width, 2 * ffn, bias=False, times=times),
        *linear(heard, ffn, width, times=times),
        *linear(heard // merged, merged * width, text, text, bias=False),
    ]
    return added(shape, products, (2 * times + 1) * width)


def _side_by_side(audio: Config) -> int:
    """Tokens that are taken as one: as many as the feed-forward is wide."""
    merged, rest = divmod(audio["intermediate_size"], audio["hidden_size"])
    if rest:
        raise ValueError("a feed-forward that holds no whole tokens")
    return int(merged)


def _voxtral(config: Config, text: int) -> Shape:
    """Four tokens side by side ahead of the matrices."""
    audio = config["audio_config"]
    merged, heard = _side_by_side(audio), audio["max_source_positions"]
    made = {"merged": merged, "outputs": heard // merged, "projector_bias": False}
    return {**_whisper(audio, text, heard), **made}


def _moss(config: Config, text: int) -> Shape:
    """A few tokens side by side ahead of the matrices, and a norm behind them."""
    audio = config["audio_config"]
    merged, heard = int(config.get("audio_merge_size", 4)), audio["max_source_positions"]
    tower = _whisper(audio, text, heard)
    others = tower.get("other_parameters", 0) + 2 * text
    made = {"merged": merged, "outputs": max(1, heard // merged), "other_parameters": others}
    return {**tower, **made, "projector_bias": bool(config.get("projector_bias", True))}


def _glm_asr(config: Config, text: int) -> Shape:
    """The same with rotary positions, and the first matrix twice as wide."""
    audio = config["audio_config"]
    merged, heard, heads = (
        _side_by_side(audio),
        audio["max_position_embeddings"],
        audio["num_attention_heads"],
    )
    if audio.get("num_key_value_heads") not in (None, heads) or audio.get("head_dim"):
        raise ValueError("heads of the tower")
    made = {"positions": 0, "merged": merged, "outputs": heard // merged, "projector": (2 * text, text)}
    return {**_whisper(audio, text, heard), **made}


SPOKEN = 390
"""Tokens of half a minute of sound behind three convolutions, of which each second has 13."""


def _convolutions(audio: Config) -> tuple[list[Shape], int]:
    """Three that halve frequencies and time each, and what a token has behind them."""
    channels, high, products = audio["downsample_hidden_size"], audio["num_mel_bins"], []
    for inputs, times in ((1, 4), (channels, 2), (channels, 1)):
        high = -(-high // 2)
        products += linear(times * high * SPOKEN, 9 * inputs, channels)
    return products, channels * high


def _qwen3_asr(config: Config, shape: Shape) -> Shape:
    """Three convolutions, Whisper's layers with biases of keys, and two matrices."""
    audio = config["audio_config"]
    products, patch = _convolutions(audio)
    width = audio["d_model"]
    tower: Shape = {
        **{"layers": audio["encoder_layers"], "hidden": width, "heads": audio["encoder_attention_heads"]},
        **{"ffn": audio["encoder_ffn_dim"], "patch": patch, "norm_last": True},
        **{"tokens": SPOKEN, "outputs": SPOKEN, "projector": (width, audio["output_dim"])},
    }
    return {**added(shape, products), "tower": tower}


def _qwen25_omni(config: Config, shape: Shape) -> Shape:
    """The tower of Qwen 2.5 VL, and Whisper's encoder in windows for sound."""
    audio = config["audio_config"]
    width, times, heard = audio["d_model"], audio["encoder_layers"], audio["max_source_positions"]
    products = [
        *linear(2 * heard, 3 * audio["num_mel_bins"], width),
        *linear(heard, 3 * width, width),
        *attention(heard, width, seen=audio["n_window"], times=times),
        *feeds(heard, width, audio["encoder_ffn_dim"], times=times),
        *linear(heard // 2, width, audio["output_dim"]),
    ]
    # Norms of the layers and behind them, without biases of keys; tokens that begin and end a sound.
    others = (4 - 1) * times * width + 2 * width + 2 * audio["output_dim"]
    return {**added(shape, products, others), "tower": qwen_tower(config["vision_config"], gated=True)}


def _qwen3_omni(config: Config, shape: Shape) -> Shape:
    """The tower of Qwen 3 VL, and three convolutions and Whisper's layers for sound."""
    audio = config["audio_config"]
    products, patch = _convolutions(audio)
    width, times = audio["d_model"], audio["encoder_layers"]
    products += linear(SPOKEN, patch, width, bias=False)
    products += layers(SPOKEN, times, width, audio["encoder_ffn_dim"])
    products += linear(SPOKEN, width, width, audio["output_dim"])
    others = (4 * times + 2) * width
    return {**added(shape, products, others), "tower": qwen3_tower(config, shape["hidden"])}


def _glm_ocr(config: Config, text: int) -> Shape:
    """GLM 4.1V's with rotary positions alone, norms of queries and keys, and another width of the last feed-forward."""
    vision = config["vision_config"]
    width, out, times = vision["hidden_size"], vision["out_hidden_size"], vision["depth"]
    inner = vision.get("projection_intermediate_size") or out * vision.get("in_channels", 3)
    tower = _glm4v({"vision_config": {**vision, "attention_bias": False}}, text)
    others = 3 * out + out * inner + times * 2 * (width // vision["num_heads"])
    made = {"ffn": vision["intermediate_size"], "positions": 0, "norm_first": False}
    tower |= {**made, "projector": (out, out, inner, out), "other_parameters": others}
    biases = 5 * width + 2 * tower["ffn"]
    return _biased({**tower, "bias": True}, biases * bool(vision.get("attention_bias", True)))


def _paddle(config: Config, text: int) -> Shape:
    """SigLIP's layers for images of any size, and four patches to a token of the text."""
    vision = config["vision_config"]
    merged = int(vision.get("spatial_merge_size", 2)) ** 2
    return {
        **_sizes(vision),
        **{"patch": patch_of(vision), "patch_bias": True, "norm_last": True, "merged": merged},
        **{"tokens": QWEN_IMAGE, "outputs": QWEN_IMAGE // merged, "positions": patches_of(vision)},
        **{"projector": (merged * vision["hidden_size"], text), "projector_norm": True},
    }


def _video_llama3(config: Config, text: int) -> Shape:
    """The same with rotary positions, and two matrices for each patch."""
    vision = config["vision_config"]
    return {
        **_sizes(vision),
        **{"patch": patch_of(vision), "patch_bias": True, "norm_last": True},
        **{"tokens": QWEN_IMAGE, "outputs": QWEN_IMAGE, "projector": (text, text)},
    }


def _deepseek_vl(config: Config, text: int) -> Shape:
    """SigLIP and two matrices."""
    return {**siglip_tower(config["vision_config"]), "projector": (text, text)}


def _ovis2(config: Config, text: int) -> Shape:
    """Gates and norms without shift; each token is a mixture of the rows of a table, by what a matrix makes of it."""
    vision, rows = config["vision_config"], config["vision_config"]["vocab_size"]
    if vision.get("qkv_bias") or vision.get("mlp_bias") or config.get("tie_word_embeddings") is False:
        raise ValueError("biases of the tower, or an output layer of its own")
    if config.get("hidden_size", text) != text:
        raise ValueError("a table of another width than the text")
    special, patches = vision.get("num_visual_indicator_tokens", 5), patches_of(vision)
    merged = int(vision.get("hidden_stride", 1)) ** 2
    tower: Shape = {
        **_sizes(vision),
        **{"gated_mlp": True, "norm": "rms", "bias": False, "norm_first": True, "norm_last": True},
        **{"patch": patch_of(vision), "patch_bias": True, "positions": patches, "tokens": patches},
        **{"merged": merged, "outputs": max(1, patches // merged), "projector_bias": False},
        # The norm between both matrices, and rows for where an image begins and ends.
        **{"projector": (rows - special, text), "other_parameters": 2 * (rows - special) + special * text},
    }
    return tower


def _glm4v(config: Config, text: int) -> Shape:
    """Norms without shift, a gated feed-forward, four patches to a token, one more gated feed-forward."""
    vision = config["vision_config"]
    width, out, inner = vision["hidden_size"], vision["out_hidden_size"], vision["intermediate_size"]
    merged, side = int(vision.get("spatial_merge_size", 2)) ** 2, vision["patch_size"]
    patches = patches_of(vision)
    tower: Shape = {
        **{"layers": vision["depth"], "hidden": width, "heads": vision["num_heads"], "gated_mlp": True},
        # The layers' feed-forward is as wide as the text takes it, the merger's as the key says.
        **{"ffn": out, "norm": "rms", "norm_first": True, "norm_last": True, "patch_bias": True},
        "patch": vision.get("in_channels", 3) * int(vision.get("temporal_patch_size", 2)) * side * side,
        **{"tokens": patches, "outputs": patches // merged, "positions": patches, "merged": merged},
        **{"projector": (out, out, inner, out), "projector_bias": False},
        "other_parameters": out + 2 * out + out * inner,
    }
    return _biased(tower, 3 * width * bool(vision.get("attention_bias", False)))


def _hyperclovax(config: Config, text: int) -> Shape:
    """That of Qwen 2.5 VL, and one more matrix."""
    tower = qwen_tower(config["vision_config"], gated=True)
    return {**tower, "projector": (*tower["projector"], text)}


def _cosmos_edge(config: Config, text: int) -> Shape:
    """SigLIP 2 without its pooling head, four tokens side by side behind a norm of each, two matrices."""
    vision = config["vision_config"]
    patches, merged = vision["num_patches"], int(vision.get("spatial_merge_size", 2)) ** 2
    return {
        **_sizes(vision),
        **{"patch": patch_of(vision), "patch_bias": True, "norm_last": True, "positions": patches},
        **{"tokens": patches, "outputs": max(1, patches // merged), "merged": merged},
        **{"projector": (config["projector_hidden_size"], text), "projector_norm": True},
    }


def muse_tower(config: Config, text: int) -> Shape:
    """Windows in three of four layers, as large as the table of positions; four tokens side by side, three matrices."""
    vision = config["vision_config"]
    width, times, side = vision["hidden_size"], vision["num_hidden_layers"], vision["patch_size"]
    window, merged = vision["pos_emb_height"] * vision["pos_emb_width"], int(vision.get("merge_size", 2)) ** 2
    wide, inner = merged * width, config["projector_hidden_size"]
    if config["out_hidden_size"] != wide:
        raise ValueError("out_hidden_size")
    names = vision.get("layer_types")
    if isinstance(names, list):
        near = names.count("window_attention")
    else:
        near = sum((index + 1) % 4 > 0 for index in range(times - 1))
    windows: Shape = {"window": window, "window_layers": near} if near else {}
    return {
        **_sizes(vision),
        **{"patch": 3 * int(vision.get("patch_temporal", 2)) * side * side, "positions": window},
        **{"norm_first": True, "norm_last": True, "merged": merged},
        **{"tokens": QWEN_IMAGE, "outputs": QWEN_IMAGE // merged, **windows},
        **{"projector": (inner, inner, text), "projector_bias": False},
    }


def _step3(config: Config, shape: Shape) -> Shape:
    """Scales of both residual sums; two convolutions that halve height and width, and one matrix."""
    vision, text = config["vision_config"], shape["hidden"]
    # Older files have other names, which count where a file has both.
    width, times, heads = (
        vision.get(old, vision[new])
        for old, new in (
            ("width", "hidden_size"),
            ("layers", "num_hidden_layers"),
            ("heads", "num_attention_heads"),
        )
    )
    if width % heads:
        raise ValueError("vision_config")
    patches, ratio = patches_of(vision), vision.get("mlp_ratio", 8960 / 1536)
    tower: Shape = {
        **{"layers": times, "hidden": width, "heads": heads, "ffn": int(width * ratio)},
        **{"patch": patch_of(vision), "positions": patches, "norm_first": True},
        **{"tokens": patches, "outputs": max(1, patches // 16), "merged": 4, "projector": (text,)},
        **{
            "projector_bias": bool(config.get("projector_bias", False)),
            "other_parameters": times * 2 * width,
        },
    }
    convolved = linear(max(1, patches // 4), 9 * width, 2 * width)
    convolved += linear(max(1, patches // 16), 9 * 2 * width, 4 * width)
    return {**added(shape, convolved), "tower": tower}


def _vbert(config: Config, text: int) -> Shape:
    """SigLIP, tokens of a square side by side, one matrix, and in one of both models a norm behind it."""
    tower, merged = siglip_tower(config["vision_config"]), int(config.get("pixel_shuffle_factor", 4)) ** 2
    norm = text * (config["model_type"] == "ultravbert")
    made = {"merged": merged, "outputs": max(1, tower["tokens"] // merged)}
    others = tower["other_parameters"] + norm
    return {**tower, **made, "projector": (text,), "projector_bias": False, "other_parameters": others}


def _mllama(config: Config, shape: Shape) -> Shape:
    """Layers that attend to what a tower makes of the tiles of an image."""
    vision, text = config["vision_config"], config["text_config"]
    # Those behind the last layer are never made.
    crossing = {*(text.get("cross_attention_layers") or range(3, 40, 5))} & {*range(shape["layers"])}
    kinds = [("cross" if index in crossing else "attention", "dense") for index in range(shape["layers"])]
    width, tiles, ids = vision["hidden_size"], vision.get("max_num_tiles", 4), 1
    ratios = vision.get("supported_aspect_ratios")
    ids += len(ratios) if isinstance(ratios, list) else 8
    patches, ffn = patches_of(vision) + 1, vision["intermediate_size"]
    layers = vision["num_hidden_layers"] + vision["num_global_layers"]
    # Norms with shifts, and biases of the feed-forwards.
    others = layers * (2 * width + width + ffn) + 2 * vision["num_global_layers"]
    others += 2 * 2 * width + width + 1 + ids * tiles * patches * width + 2 * (ids * tiles * width + 1)
    hidden, head, pairs = shape["hidden"], shape["head_dim"], shape["kv_heads"]
    indices = vision.get("intermediate_layers_indices")
    given = len(indices) if isinstance(indices, list) else 5
    others += _weights(width * (1 + given), hidden)
    # Keys and values are made of the projected output, not of the tower's own.
    crossed = 2 * pairs * head * (hidden - width) + 2 * head + 2
    encoder = {
        **{"layers": layers, "hidden": width, "heads": vision["attention_heads"], "ffn": ffn},
        **{"gated_mlp": False, "sequence_length": tiles * patches, "learned_positions": patches},
        "front": (
            {"inputs": patch_of(vision), "outputs": width, "tokens": tiles * (patches - 1), "bias": False},
        ),
        **{"final_norm": False, "other_parameters": others + len(crossing) * crossed + 8 * hidden},
    }
    return {**in_blocks(shape, kinds), "encoder": encoder}


def _kimi(config: Config, text: int) -> Shape:
    """A table of positions that is resampled, four tokens side by side, two matrices."""
    vision = config["vision_config"]
    width, (rows, columns) = vision["hidden_size"], sides(vision.get("merge_kernel_size", [2, 2]))
    if config.get("projection_hidden_size", width) != width:
        raise ValueError("widths of the projector")
    merged = rows * columns
    return {
        **_sizes(vision),
        **{"patch": patch_of(vision), "patch_bias": True, "norm_last": True, "merged": merged},
        "positions": vision.get("pos_emb_height", 64) * vision.get("pos_emb_width", 64),
        **{"tokens": QWEN_IMAGE, "outputs": QWEN_IMAGE // merged},
        **{"projector": (merged * width, text), "projector_norm": True},
    }


def _minimax3(config: Config, shape: Shape) -> Shape:
    """A norm ahead of the layers alone, two matrices for each patch, and two for four of them side by side."""
    vision, text, inner = config["vision_config"], shape["hidden"], config["projector_hidden_size"]
    merged = int(vision.get("spatial_merge_size", 2)) ** 2
    made = QWEN_IMAGE // merged
    tower: Shape = {
        **_sizes(vision),
        **{"patch": patch_of(vision) * int(vision.get("temporal_patch_size", 2)), "norm_first": True},
        **{"tokens": QWEN_IMAGE, "outputs": made, "projector": (inner, text)},
    }
    return {**added(shape, linear(made, merged * text, inner, text)), "tower": tower}


def _lfm2(config: Config, text: int) -> Shape:
    """SigLIP 2, four tokens side by side, a norm and two matrices."""
    vision, merged = config["vision_config"], int(config.get("downsample_factor", 2)) ** 2
    patches, width = vision["num_patches"], vision["hidden_size"]
    others = pooling(vision) if vision.get("vision_use_head", True) else 0
    others += 2 * merged * width * bool(config.get("projector_use_layernorm", True))
    return {
        **_sizes(vision),
        **{"patch": patch_of(vision), "patch_bias": True, "norm_last": True, "positions": patches},
        **{"tokens": patches, "outputs": max(1, patches // merged), "merged": merged},
        "projector": (config.get("projector_hidden_size", 2560), text),
        "projector_bias": bool(config.get("projector_bias", True)),
        "other_parameters": others,
    }


def _video_llava(config: Config, shape: Shape) -> Shape:
    """CLIP for films and once more for images."""
    vision, text = config["vision_config"], shape["hidden"]
    tower = clip_tower(vision)
    tokens, width, times = tower["tokens"], tower["hidden"], tower["layers"]
    chosen = config.get("vision_feature_layer", -2)
    tower |= {"merged": len(chosen)} if isinstance(chosen, list) else {}
    products = linear(tokens - 1, tower["patch"], width, bias=False)
    products += layers(tokens, times, width, tower["ffn"])
    others = (tokens + 1 + 4 * times + 4) * width
    return {**added(shape, products, others), "tower": {**tower, **two_matrices(config, text)}}


def _aria(config: Config, shape: Shape) -> Shape:
    """SigLIP without its pooling head, and a few queries that attend to what it makes."""
    vision, text = config["vision_config"], shape["hidden"]
    tower = siglip_tower({**vision, "vision_use_head": False})
    width, tokens = tower["hidden"], tower["tokens"]
    named = config.get("projector_patch_to_query_dict")
    queries = max(map(int, named.values())) if isinstance(named, dict) and named else 256
    products = [
        # Projections, those of attention behind them, and what follows it.
        *linear(queries, width, width, bias=False),
        *linear(tokens, width, 2 * width, bias=False),
        *linear(queries, width, width, times=3),
        *linear(tokens, width, 2 * width),
        *scores(queries, width, tokens),
    ]
    made = {"outputs": queries, "projector": (text, text), "projector_bias": False}
    return {**added(shape, products, (queries + 6) * width), "tower": {**tower, **made}}


def _gemma4(config: Config, shape: Shape) -> Shape:
    """Norms on both sides and of queries and keys, a mean over a few tokens, a matrix; and a conformer for sound."""
    if audio := config.get("audio_config"):
        shape = _gemma4_heard(audio, shape)
    vision, text = config.get("vision_config"), shape["hidden"]
    if not vision:
        return shape
    width, heads = vision["hidden_size"], vision["num_attention_heads"]
    head = vision.get("head_dim") or width // heads
    if (
        head * heads != width
        or vision.get("num_key_value_heads", heads) != heads
        or vision.get("attention_bias")
    ):
        raise ValueError("heads of the tower")
    made = vision.get("default_output_length") or config.get("vision_soft_tokens_per_image") or 280
    tower: Shape = {
        **_sizes(vision),
        **{"gated_mlp": True, "norm": "rms", "bias": False, "patch": 3 * vision["patch_size"] ** 2},
        "positions": 2 * vision.get("position_embedding_size", 10240),
        **{"tokens": made * vision.get("pooling_kernel_size", 3) ** 2, "outputs": made},
        **{"projector": (text,), "projector_bias": False},
        "other_parameters": vision["num_hidden_layers"] * (2 * width + 2 * head),
    }
    return {**shape, "tower": tower}


def _gemma4_heard(audio: Config, shape: Shape) -> Shape:
    """A conformer, and two matrices."""
    products, others = conformer(audio)
    ends = linear(HEARD_TOKENS, audio["hidden_size"], audio["output_proj_dims"])
    ends += linear(HEARD_TOKENS, audio["output_proj_dims"], shape["hidden"], bias=False)
    return added(shape, [*products, *ends], others)


def conformer(audio: Config) -> tuple[list[Shape], int]:
    """Two convolutions, half a feed-forward, attention to a few chunks, a convolution and half a feed-forward, and its
    other parameters."""
    width, times, tokens = audio["hidden_size"], audio["num_hidden_layers"], HEARD_TOKENS
    first, second = audio["subsampling_conv_channels"]
    seen = audio["attention_chunk_size"] + audio["attention_context_left"] + audio["attention_context_right"]
    products = [
        *linear(128 * tokens, 9, first, bias=False),
        *linear(32 * tokens, 9 * first, second, bias=False),
        *linear(tokens, first // 4 * second, width, bias=False),
        *feeds(tokens, width, 4 * width, bias=False, times=2 * times),
        *attention(tokens, width, seen=seen, bias=False, times=times),
        *linear(seen, width, width, bias=False, times=times),
        *linear(tokens, width, 2 * width, bias=False, times=times),
        *linear(tokens, audio["conv_kernel_size"], width, bias=False, times=times),
        *linear(tokens, width, width, bias=False, times=times),
    ]
    return products, first + second + times * (9 * width + width // audio["num_attention_heads"])


HEARD_TOKENS = 750
"""Tokens of half a minute of sound, of which each has 40 ms."""


@dataclass(frozen=True, slots=True)
class TowersType(Seeing):
    """One value of ``model_type`` with something other than one tower of images beside its text."""

    section: str = "vision_config"
    """Key of the configuration of what stands beside."""
    text: str = "text_config"
    """Key of that of the text."""
    further: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(key, its keys that must be whole numbers) of other configurations that are read."""
    towers: tuple[str, ...] = ()
    """Other values of ``model_type`` of the tower."""
    optional: tuple[tuple[str, str], ...] = ()
    """(key, its ``model_type``) of others that are read where they are given."""
    towerless: bool = False
    """True where there may be no tower."""
    whole: Callable[[Config, Shape], Shape] | None = None
    """The shape of the whole, where what stands beside is no tower."""


def no_tower(config: Config, text: int) -> Shape:
    """Placeholder of models whose shape ``whole`` returns."""
    raise ValueError("a tower")


_PERCEIVER = ("hidden_size", "resampler_n_heads", "resampler_head_dim", "num_key_value_heads")
_QFORMER = ("hidden_size", "intermediate_size", "num_hidden_layers")
_SIDED = CLIP[:-1]
_GLM = ("depth", "num_heads", "hidden_size", "out_hidden_size", "intermediate_size", "patch_size")
_WHISPER = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_mel_bins")
_CONVOLVED = (*_WHISPER, "downsample_hidden_size", "output_dim")
TOWERS: dict[str, Seeing] = {
    **SEEING,
    # Queries read what the tower makes.
    **{
        kind: TowersType(
            no_tower,
            f"{kind.replace('-', '_')}_vision_model",
            (*CLIP, "image_size"),
            further=(("qformer_config", _QFORMER),),
            whole=_blip2,
        )
        for kind in ("blip-2", "instructblip", "instructblipvideo")
    },
    # The tower of either is that of the other.
    **{
        kind: TowersType(
            qwen3_tower, f"{kind}_vision", QWEN3_VISION, towers=("qwen3_5", "qwen3_5_vision", "qwen3_vl")
        )
        for kind in ("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe")
    },
    "aria": TowersType(no_tower, "idefics3_vision", (*CLIP, "image_size"), whole=_aria),
    "gemma4": TowersType(
        no_tower,
        "gemma4_vision",
        CLIP,
        whole=_gemma4,
        towerless=True,
        optional=(("audio_config", "gemma4_audio"),),
    ),
    "glm46v": TowersType(
        _glm4v, "glm4v_vision", (*_GLM, "image_size"), towers=("glm4v_moe_vision", "glm46v_vision")
    ),
    "kimi_k25": Seeing(_kimi, "kimi_k25_vision", CLIP),
    "kimi_vl": Seeing(_kimi, "moonvit", CLIP),
    "lfm2_vl": Seeing(_lfm2, "siglip2_vision_model", (*CLIP, "num_patches")),
    "minimax_m3_vl": TowersType(
        no_tower, "minimax_m3_vl_vision", CLIP, towers=("clip_vision_model",), whole=_minimax3
    ),
    "video_llava": TowersType(no_tower, "clip_vision_model", (*CLIP, "image_size"), whole=_video_llava),
    "aya_vision": Seeing(_aya, "siglip_vision_model", (*CLIP, "image_size")),
    "git": Seeing(_git, "git_vision_model", (*CLIP, "image_size")),
    "kosmos-2": Seeing(_kosmos2, "kosmos_2_vision_model", (*CLIP, "image_size")),
    "glm4v_moe": Seeing(_glm4v, "glm4v_moe_vision", (*_GLM, "image_size")),
    "cohere2_vision": Seeing(_aya, "siglip_vision_model", (*CLIP, "image_size")),
    "voxtral": TowersType(
        _voxtral,
        "voxtral_encoder",
        (*CLIP[:-1], "num_mel_bins", "max_source_positions"),
        section="audio_config",
    ),
    "glm4v": Seeing(_glm4v, "glm4v_vision", (*_GLM, "image_size")),
    "idefics2": TowersType(
        _idefics2,
        "idefics2_vision",
        (*CLIP, "image_size"),
        further=(("perceiver_config", (*_PERCEIVER, "resampler_n_latents", "resampler_depth")),),
    ),
    "hy_v4_vl": Seeing(
        _hy4, "hy_v4_vl_vision", (*CLIP, "out_hidden_size", "max_image_size", "spatial_merge_size")
    ),
    "internvl": Seeing(_internvl, "internvl_vision", _SIDED),
    "internvl_chat": TowersType(_internvl, "intern_vit_6b", (*CLIP, "image_size"), text="llm_config"),
    "llama4": Seeing(_llama4, "llama4_vision_model", (*CLIP, "image_size")),
    **dict.fromkeys(
        ("llava", "llava_next", "llava_next_video"),
        TowersType(_llava, "clip_vision_model", CLIP, towers=("siglip_vision_model", "pixtral")),
    ),
    "mllama": TowersType(
        no_tower,
        "mllama_vision_model",
        (
            *("num_hidden_layers", "hidden_size", "attention_heads", "intermediate_size", "patch_size"),
            *("image_size", "num_global_layers"),
        ),
        whole=_mllama,
    ),
    "qwen2_audio": TowersType(
        _qwen2_audio,
        "qwen2_audio_encoder",
        (*_WHISPER, "max_source_positions"),
        section="audio_config",
    ),
    **dict.fromkeys(
        ("audioflamingo3", "musicflamingo"),
        TowersType(
            _flamingo,
            "audioflamingo3_encoder",
            (*CLIP[:-1], "num_mel_bins", "max_source_positions"),
            section="audio_config",
        ),
    ),
    "moss_transcribe_diarize": TowersType(
        _moss,
        "moss_transcribe_diarize_audio",
        (*CLIP[:-1], "num_mel_bins", "max_source_positions"),
        section="audio_config",
    ),
    "glmasr": TowersType(
        _glm_asr,
        "glmasr_encoder",
        (*CLIP[:-1], "num_mel_bins", "max_position_embeddings"),
        section="audio_config",
    ),
    "qwen3_asr": TowersType(
        no_tower, "qwen3_asr_encoder", _CONVOLVED, section="audio_config", whole=_qwen3_asr
    ),
    "qwen2_5_omni_thinker": TowersType(
        no_tower,
        "qwen2_5_omni_vision_encoder",
        QWEN3_VISION,
        further=(("audio_config", (*_WHISPER, "max_source_positions", "n_window", "output_dim")),),
        whole=_qwen25_omni,
    ),
    "qwen3_omni_moe_thinker": TowersType(
        no_tower,
        "qwen3_omni_moe_vision_encoder",
        QWEN3_VISION,
        further=(("audio_config", _CONVOLVED),),
        whole=_qwen3_omni,
    ),
    "voxtral_realtime": TowersType(
        no_tower,
        "voxtral_realtime_encoder",
        (*CLIP[:-1], "num_mel_bins", "max_position_embeddings", "head_dim"),
        section="audio_config",
        whole=_voxtral_realtime,
    ),
    **{
        kind: Seeing(_vbert, "siglip_vision_model", (*CLIP, "image_size"))
        for kind in ("modernvbert", "ultravbert")
    },
    "cosmos3_edge": Seeing(_cosmos_edge, "cosmos3_edge_vision", (*CLIP, "num_patches")),
    "cosmos3_omni": TowersType(qwen3_tower, "qwen3_vl_vision", QWEN3_VISION, towers=("qwen3_vl",)),
    "glm5_next": Seeing(_glm_ocr, "glm5_next_vision", (*_GLM, "image_size", "projection_intermediate_size")),
    "glmga": Seeing(_glm4v, "glm4v_vision", (*_GLM, "image_size")),
    "hyperclovax_vision_v2": TowersType(
        _hyperclovax,
        "qwen2_5_vl_vision",
        (*("depth", "num_heads", "patch_size", "hidden_size"), "intermediate_size", "out_hidden_size"),
        towers=("qwen2_5_vl",),
    ),
    "mistral_large4": Seeing(pixtral_tower, "pixtral", CLIP),
    "muse_glimmer": Seeing(muse_tower, "muse_glimmer_vision", (*CLIP, "pos_emb_height", "pos_emb_width")),
    "qianfan_ocr": Seeing(_internvl, "qianfan_ocr_vision", _SIDED),
    "step3p7": TowersType(no_tower, "step3p5_vision", (*CLIP, "image_size"), whole=_step3),
    "deepseek_vl": Seeing(_deepseek_vl, "siglip_vision_model", (*CLIP, "image_size")),
    "glm_ocr": Seeing(_glm_ocr, "glm_ocr_vision", (*_GLM, "image_size")),
    "ovis2": Seeing(_ovis2, "ovis2_vision", (*CLIP, "image_size", "vocab_size")),
    "paddleocr_vl": Seeing(_paddle, "paddleocr_vl_vision", (*CLIP, "image_size")),
    "video_llama_3": Seeing(_video_llama3, "video_llama_3_vision", CLIP),
    "vipllava": Seeing(_vipllava, "clip_vision_model", (*CLIP, "image_size")),
}
"""Models with something beside a text decoder, by ``model_type``."""
