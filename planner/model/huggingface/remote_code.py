"""Decoders without a transformers class: their repositories ship their own code, which is never executed.

What is read here is counted by formula, out of the code that each repository publishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from planner.files.messages import shown
from planner.model.huggingface.families import (
    COMMON,
    EXPERT_COUNTS,
    LATENT,
    Config,
    ModelType,
    Shape,
    bert,
    clip_tower,
    deepseek,
    falcon,
    first_of,
    gte,
    llama,
    mixed_dense,
    phi,
    shared_experts,
    siglip_tower,
    sparse_llama,
    stablelm,
)
from planner.model.huggingface.heads import Head
from planner.model.huggingface.several_towers import phi4_mm, resampled
from planner.ranges import WIDTH


def _renamed(config: Config, names: dict[str, str]) -> Config:
    """The configuration with the usual keys where it has others for them."""
    return {**config, **{key: config[other] for key, other in names.items() if config.get(other) is not None}}


def _chatglm(config: Config) -> Shape:
    """ChatGLM2, ChatGLM3 and GLM-4 (THUDM, ``modeling_chatglm.py``); the first ChatGLM has other keys and layers."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    common = {
        **{"layers": config["num_layers"], "hidden": hidden, "heads": heads},
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
    }
    if config.get("inner_hidden_size"):
        # One table serves both ends.
        first = {"ffn": config["inner_hidden_size"], "vocab": config["vocab_size"], "tied_embeddings": True}
        return {**common, **first}
    bias = bool(config.get("add_bias_linear", False))
    groups = config["multi_query_group_num"] if config.get("multi_query_attention") else heads
    return {
        **common,
        **{"kv_heads": groups, "head_dim": config.get("kv_channels") or hidden // heads},
        **{"ffn": config["ffn_hidden_size"], "gated_mlp": True, "vocab": config["padded_vocab_size"]},
        **{"norm": "rms" if config.get("rmsnorm", True) else "layer"},
        "final_norm": bool(config.get("post_layer_norm", True)),
        **{
            "qkv_bias": bias or bool(config.get("add_qkv_bias", False)),
            "output_bias": bias,
            "mlp_bias": bias,
        },
    }


def _qwen(config: Config) -> Shape:
    """The first Qwen (``modeling_qwen.py``): its feed-forward is half as wide as the key says."""
    halved = {**config, "intermediate_size": config["intermediate_size"] // 2}
    width = config.get("kv_channels")
    shape = llama(halved, width=width, qkv_bias=True, out_bias=None)
    return _qwen_vl(config["visual"], shape) if config.get("visual") else shape


_QWEN_QUERIES = 256
"""Queries of Qwen-VL's resampler, and rows of both of its tables of positions."""


def _qwen_vl(vision: Config, text: Shape) -> Shape:
    """Qwen-VL (``visual.py`` of Qwen/Qwen-VL): CLIP's layers without a class token, queries, a norm and a matrix."""
    width, out, patch = vision["width"], vision["output_dim"], vision["patch_size"]
    tokens, queries = (vision["image_size"] // patch) ** 2, _QWEN_QUERIES
    tower = {
        **{"layers": vision["layers"], "hidden": width, "heads": vision["heads"]},
        **{"ffn": int(width * vision["mlp_ratio"]), "patch": 3 * patch * patch, "norm_first": True},
        **{"tokens": tokens, "outputs": queries, "positions": queries},
        **{"projector": (out,), "projector_bias": False},
    }
    return resampled(text, tower, 2 * queries * out)


_QWEN_VISUAL = ("width", "layers", "heads", "patch_size", "image_size", "output_dim")


def _qwen_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("no_bias") is False:
        yield "no_bias", "biases of this type"


def _qwen_contrary(config: Config) -> Iterator[tuple[str, str]]:
    vision = config.get("visual")
    if not vision:
        return
    if not isinstance(vision, dict):
        yield "visual", "expected the configuration of the tower"
        return
    for key in _QWEN_VISUAL:
        if not _counts(vision.get(key)):
            yield f"visual.{key}", f"expected a whole number from 1, got {shown(vision.get(key))}"
    if not (isinstance(ratio := vision.get("mlp_ratio"), int | float) and 0 < ratio <= WIDTH.most):
        yield "visual.mlp_ratio", f"expected a positive number, got {shown(ratio)}"
    if vision.get("output_dim") != config.get("hidden_size"):
        what = f"expected hidden_size {config.get('hidden_size')}, got {shown(vision.get('output_dim'))}"
        yield "visual.output_dim", what


def _counts(value: Any) -> bool:
    """Whether a value is a whole number that something may be large or many."""
    return type(value) is int and WIDTH.holds(value)


def _minicpm(config: Config) -> Shape:
    """MiniCPM, of which one has experts (``modeling_minicpm.py`` of openbmb/MiniCPM-MoE-8x2B)."""
    several = (first_of(config, EXPERT_COUNTS) or 1) > 1
    return sparse_llama(config, tied=True) if several else llama(config, tied=True)


def _internlm2(config: Config) -> Shape:
    return llama(config, qkv_bias="bias", out_bias="bias", mlp_bias=None)


def _internlm(config: Config) -> Shape:
    """Biases of attention unless they are switched off."""
    return _internlm2({"bias": True, **config})


def _refined_web(config: Config) -> Shape:
    """Falcon under its first name; 40B has two norms of a layer (``modelling_RW.py``)."""
    new = config["model_type"] == "RefinedWeb"
    names = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "num_kv_heads": "n_head_kv"}
    return falcon({**_renamed(config, names), "new_decoder_architecture": new})


def _phi_first(config: Config) -> Shape:
    """Phi under its first keys (``modeling_phi.py`` of microsoft/phi-2)."""
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    shape = _renamed(config, {**names, "num_key_value_heads": "n_head_kv"})
    return phi({**shape, "intermediate_size": config.get("n_inner") or 4 * config["n_embd"]})


def _bailing(config: Config) -> Shape:
    """Ling (``modeling_bailing_moe.py``)."""
    more: dict[str, Any] = {"qkv_bias": "use_qkv_bias", "out_bias": "use_bias", "mlp_bias": "use_bias"}
    return sparse_llama(config, experts=shared_experts, **more)


def _phi3_vision(config: Config) -> Shape:
    """Phi 3 behind CLIP ViT-L/14 of 336 pixels, four tokens of which are one of the text
    (``image_embedding_phi3_v.py``)."""
    text = llama(config, window=1)
    clip = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14}
    tower = clip_tower({**clip, "intermediate_size": 4096, "image_size": 336})
    # Ends of lines, and what stands between crops and the whole.
    made = {"merged": 4, "outputs": 144, "projector": (text["hidden"],) * 2, "other_parameters": 2 * 4 * 1024}
    return {**text, "tower": {**tower, **made}}


def _phi3_vision_unlike(config: Config) -> Iterator[tuple[str, str]]:
    image = config.get("img_processor")
    name = image.get("name") if isinstance(image, dict) else None
    if name != "clip_vision_model":
        yield "img_processor", "towers other than clip_vision_model"
    layer = config.get("embd_layer")
    if isinstance(layer, dict) and layer.get("projection_cls", "mlp") != "mlp":
        yield "embd_layer", "projections other than mlp"


def _phi3_small(config: Config) -> Shape:
    """Biases and norms with shifts in a Llama (``modeling_phi3_small.py``); every other layer attends to blocks."""
    given = _renamed(config, {"intermediate_size": "ff_intermediate_size"})
    fields: dict[str, Any] = {"norm": "layer", "output_bias": True, "mlp_bias": True}
    return {**llama(given, tied=True, qkv_bias=True), **fields}


def _old_olmo(config: Config) -> Shape:
    """The first OLMo (``modeling_olmo.py`` of hf_olmo): norms without weights; a gated feed-forward is half as wide as
    its first matrix."""
    ffn = config.get("mlp_hidden_size") or int(config.get("mlp_ratio", 4) * config["d_model"])
    names = {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    names |= {"tie_word_embeddings": "weight_tying", "max_position_embeddings": "max_sequence_length"}
    given = {**_renamed(config, names), "intermediate_size": ffn // 2}
    rows = config.get("embedding_size") or config["vocab_size"]
    return llama({**given, "vocab_size": rows}, norm="plain", qkv_bias=False, out_bias=None, mlp_bias=None)


def _old_olmo_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("activation_type", "swiglu") != "swiglu":
        yield "activation_type", "feed-forwards without gates of this type"
    for key in ("include_bias", "layer_norm_with_affine", "multi_query_attention", "attention_layer_norm"):
        if config.get(key):
            yield key, "biases, weights of norms or grouped queries of this type"


def _bailing2(config: Config) -> Shape:
    """Ling 2.0 and Ring (``modeling_bailing_moe_v2.py``)."""
    more: dict[str, Any] = {"qkv_bias": "use_qkv_bias", "out_bias": "use_bias", "mlp_bias": None}
    return sparse_llama(config, experts=shared_experts, qk_norm=bool(config.get("use_qk_norm", True)), **more)


def _bailing2_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from mixed_dense(config)
    if config.get("use_bias") or config.get("use_qkv_bias"):
        yield "use_bias", "biases of this type"


def _jina_bert(config: Config) -> Shape:
    """BERT with biases of scores by distance in place of positions, and gates (``modeling_bert.py`` of
    jinaai/jina-bert-implementation): of the feed-forward only what leads back has a bias."""
    return {**gte(config), "token_types": config.get("type_vocab_size", 2), "output_bias": True}


def _jina_lora(config: Config) -> Shape:
    """XLM-RoBERTa with rotary positions, and an adapter of every matrix for each task (``modeling_lora.py`` of
    jinaai/xlm-roberta-flash-implementation)."""
    shape, tasks = bert(config, 1), len(config["lora_adaptations"])
    width, ffn, layers = shape["hidden"], shape["ffn"], shape["layers"]
    sides = layers * (4 * width + 2 * width + 2 * (width + ffn))
    # Of both tables, and of the matrix behind the layers.
    sides += config["vocab_size"] + config["type_vocab_size"] + 2 * width + 2 * width
    return {**shape, "learned_positions": 0, "other_parameters": tasks * config["lora_rank"] * sides}


def _jina_lora_contrary(config: Config) -> Iterator[tuple[str, str]]:
    if not isinstance(config.get("lora_adaptations"), list):
        yield "lora_adaptations", "expected a list of tasks"
    for key in ("lora_rank", "type_vocab_size"):
        if not _counts(config.get(key)):
            yield key, f"expected a whole number from 1, got {shown(config.get(key))}"


TOWERS = {
    "google/siglip-so400m-patch14-384": (27, 1152, 16, 4304, 14, 384),
    "openai/clip-vit-large-patch14-336": (24, 1024, 16, 4096, 14, 336),
    "openai/clip-vit-large-patch14": (24, 1024, 16, 4096, 14, 224),
}
"""Layers, width, heads, feed-forward, patch and image of towers that repositories name."""


_MINICPM_V: dict[str, Shape] = {
    "2.5": {},
    "4.0": {},
    "2.6": {"qkv_bias": True, "out_bias": None},
    "4.5": {"width": 128, "qk_norm": True},
}
"""What the text of each version of MiniCPM-V has: that of Llama 3, of MiniCPM 4, of Qwen 2 and of Qwen 3."""


def _minicpm_v(config: Config) -> Shape:
    """MiniCPM-V (``modeling_minicpmv.py``)."""
    return llama(config, **_MINICPM_V[str(config["version"])])


def _minicpm_v_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if str(config.get("version")) not in _MINICPM_V:
        yield "version", f"versions other than {', '.join(_MINICPM_V)}"


def _phi4_mm_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("audio_processor", "vision_lora", "speech_lora"):
        if not isinstance(config.get(key), dict):
            yield key, "models without this part of theirs"


def _llava(config: Config) -> Shape:
    """LLaVA as its authors save it: the text, and the name of a tower (``llava_arch.py``)."""
    text = llama(config, qkv_bias=config["model_type"] == "llava_qwen", out_bias=None, mlp_bias=None)
    keys = (*("num_hidden_layers", "hidden_size", "num_attention_heads"), "intermediate_size")
    sizes = dict(zip((*keys, "patch_size", "image_size"), TOWERS[config["mm_vision_tower"]], strict=True))
    layers = 1 if config.get("mm_projector_type", "linear") == "linear" else 2
    if "siglip" in config["mm_vision_tower"]:
        # Neither its last layer nor its pooling head is there (``siglip_encoder.py``).
        fewer = {**sizes, "num_hidden_layers": sizes["num_hidden_layers"] - 1, "vision_use_head": False}
        tower = siglip_tower(fewer)
    else:
        tower = clip_tower(sizes)
    newline = text["hidden"] * ("unpad" in str(config.get("mm_patch_merge_type", "flat")))
    made = {"projector": (text["hidden"],) * layers, "other_parameters": newline}
    return {**text, "tower": {**tower, **made}}


def _llava_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("mm_vision_tower") not in TOWERS:
        yield "mm_vision_tower", "towers that are neither CLIP ViT-L/14 nor SigLIP-SO400M/14"
    if config.get("mm_projector_type", "linear") not in ("linear", "mlp2x_gelu"):
        yield "mm_projector_type", "projections other than linear and mlp2x_gelu"


def _arctic(config: Config) -> Shape:
    """Experts beside a dense feed-forward as wide as the model, with a norm of its own (``modeling_arctic.py``)."""
    experts = {**shared_experts(config), "shared_ffn": config["hidden_size"]}
    return llama(config, experts=experts, layer_norms=3)


def _arctic_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("moe_layer_frequency", 1) != 1:
        yield "moe_layer_frequency", "layers without experts between those with experts by frequency"
    if not config.get("parallel_attn_mlp_res"):
        yield "parallel_attn_mlp_res", "layers without a feed-forward beside the experts"


def _grok(config: Config) -> Shape:
    """Grok-1 (``modeling_grok1.py``): norms on both sides."""
    return sparse_llama(config, tied=True, layer_norms=4)


_GPT = ("n_layer", "n_embd", "n_head", "vocab_size")

REMOTE_CODE: dict[str, ModelType] = {
    "RefinedWeb": ModelType(_refined_web, ("n_layer", "hidden_size", "n_head", "vocab_size")),
    "RefinedWebModel": ModelType(_refined_web, ("n_layer", "hidden_size", "n_head", "vocab_size")),
    "Yi": ModelType(llama),
    "aquila": ModelType(llama),
    "baichuan": ModelType(llama),
    "Dream": ModelType(lambda config: {**llama(config, qkv_bias=True, out_bias=None), "kind": "encoder"}),
    "bailing_moe": ModelType(_bailing, unlike=mixed_dense, experts=True),
    "bailing_moe_v2": ModelType(_bailing2, unlike=_bailing2_unlike, experts=True),
    "hf_olmo": ModelType(_old_olmo, ("d_model", "n_layers", "n_heads", "vocab_size"), _old_olmo_unlike),
    "jina_bert": ModelType(_jina_bert),
    "jina_lora": ModelType(_jina_lora, contrary=_jina_lora_contrary),
    "chatglm": ModelType(_chatglm, ("num_layers", "hidden_size", "num_attention_heads")),
    "deepseek": ModelType(partial(sparse_llama, experts=shared_experts), unlike=mixed_dense, experts=True),
    "internlm": ModelType(_internlm),
    "internlm2": ModelType(_internlm2),
    "arctic": ModelType(_arctic, unlike=_arctic_unlike, experts=True),
    "phi3_v": ModelType(_phi3_vision, COMMON, _phi3_vision_unlike),
    **dict.fromkeys(("llava_llama", "llava_mistral", "llava_qwen"), ModelType(_llava, COMMON, _llava_unlike)),
    "phi3small": ModelType(_phi3_small, (*COMMON[:3], "vocab_size")),
    "grok-1": ModelType(_grok, experts=True),
    "llada": ModelType(lambda config: {**llama(config), "kind": "encoder"}),
    "new": ModelType(gte),
    "kimi_k2": ModelType(deepseek, LATENT, mixed_dense, experts=True),
    "minicpmv": ModelType(_minicpm_v, COMMON, _minicpm_v_unlike),
    "phi4mm": ModelType(lambda config: phi4_mm(config, llama(config, window=1)), COMMON, _phi4_mm_unlike),
    "mimo": ModelType(partial(llama, qkv_bias=True, out_bias=None)),
    "minicpm": ModelType(_minicpm, any_experts=True),
    "orion": ModelType(partial(llama, norm="layer")),
    "phi-msft": ModelType(_phi_first, _GPT),
    "qwen": ModelType(_qwen, COMMON, _qwen_unlike, parts=(("visual", ""),), contrary=_qwen_contrary),
    "skywork": ModelType(llama),
    "stablelm_epoch": ModelType(stablelm),
    "xverse": ModelType(llama),
}
"""What is read of them, by ``model_type``."""
_WHOLE = Head("tokens")
REMOTE_CODE_HEADS: dict[str, dict[str, Head]] = {
    **{kind: {"Model": Head(0)} for kind in REMOTE_CODE},
    # Its repositories name the model without the output layer, and load the one with it.
    "Dream": {"Model": _WHOLE},
    "jina_bert": {
        "Model": Head(0, dense=1),
        "ForSequenceClassification": Head("labels", pooled=True, dense=1),
    },
    "jina_lora": {"Model": Head(0, dense=1)},
    "chatglm": {"Model": _WHOLE, "ForConditionalGeneration": _WHOLE},
    "internlm2": {"Model": Head(0), "ForRewardModel": Head(1, pooled=True, bias=False)},
    "llada": {"Model": Head(0), "ModelLM": _WHOLE},
}
"""Heads of these, by the end of an architecture's name."""
