"""Reads the shape of a model from a Hugging Face ``config.json``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from planner.errors import Problem, SpecError
from planner.files.document import Document, fail_on
from planner.files.fields import figure
from planner.files.messages import shown
from planner.files.nodes import YamlNode
from planner.model.huggingface.audio import AUDIO, AUDIO_HEADS
from planner.model.huggingface.composites import COMPOSITE_HEADS, COMPOSITES
from planner.model.huggingface.defaults import class_of, defaults_of, renamed
from planner.model.huggingface.encoder_decoders import ENCODER_DECODERS, HALVES
from planner.model.huggingface.encoders import ENCODER_HEADS, ENCODERS
from planner.model.huggingface.families import (
    EXPERT_COUNTS,
    EXPERT_PICKS,
    SHARED_COUNTS,
    Config,
    ModelType,
    Seeing,
    Shape,
    first_of,
    mixed_dense,
    with_runs,
)
from planner.model.huggingface.families import MODEL_TYPES as ONE_STACK
from planner.model.huggingface.heads import TOKENS, Head, head_of, heads_of, with_head
from planner.model.huggingface.mixed_layers import MIXED_LAYERS
from planner.model.huggingface.numerics import ROTARY, SYNONYMS, numerics_of, place_of
from planner.model.huggingface.remote_code import REMOTE_CODE, REMOTE_CODE_HEADS
from planner.model.huggingface.seamless import SEAMLESS, SEAMLESS_HEADS
from planner.model.huggingface.several_towers import SEVERAL_TOWERS
from planner.model.huggingface.speech import SPEECH, SPEECH_HEADS, talker
from planner.model.huggingface.strangers import stranger
from planner.model.huggingface.towers import TOWERS, TowersType
from planner.model.huggingface.vision import VISION, VISION_HEADS
from planner.model.huggingface.vision_stages import VISION_STAGE_HEADS, VISION_STAGES
from planner.model.spec import NumericsSpec, Precision
from planner.ranges import BATCH, EXPERTS, FFN, HEADS, LAYERS, MTP_LAYERS, ROWS, SEQUENCE, WIDTH

USUAL_LENGTH, USUAL_TOKENS = 4096, 2**21
"""Tokens of a sequence, and about those of an optimizer step, when nobody says: as most models are pretrained."""

BESIDE = {**TOWERS, **SEVERAL_TOWERS}
MODEL_TYPES = {
    **ONE_STACK,
    **ENCODERS,
    **ENCODER_DECODERS,
    **COMPOSITES,
    **HALVES,
    **VISION,
    **VISION_STAGES,
    **AUDIO,
    **SPEECH,
    **SEAMLESS,
    **MIXED_LAYERS,
    **REMOTE_CODE,
}
"""Every ``model_type`` that is read, apart from those with towers."""
OWN_HEADS = {
    **ENCODER_HEADS,
    **COMPOSITE_HEADS,
    **VISION_HEADS,
    **VISION_STAGE_HEADS,
    **AUDIO_HEADS,
    **SPEECH_HEADS,
    **SEAMLESS_HEADS,
    **REMOTE_CODE_HEADS,
}
"""Heads by architecture, of each ``model_type`` whose heads differ from the usual ones."""

_PRECISIONS: dict[str, Precision] = {"float16": "fp16", "half": "fp16"}
_DROPPED = (
    *("dropout", "dropout_rate", "hidden_dropout", "hidden_dropout_prob"),
    *("resid_dropout", "resid_pdrop", "residual_dropout"),
)
"""Keys of the share of hidden states that layers drop; types without one drop none."""

SEES = "ForConditionalGeneration"
"""The same of models that see."""
_SEEING = (
    *("InternVLChatModel", "MiniCPMV", "GitForCausalLM", "ForVisionText2Text", "MultimodalForCausalLM"),
    *("OCRForCausalLM", "Omni_Reasoning_V3"),
)
"""The same of single ones."""


def _squared(config: Config) -> int:
    """The square layer ahead of tokens, and its norm without a shift."""
    return int(config["hidden_size"] * (config["hidden_size"] + 1))


_SEEN_WORDS = {
    "ForMaskedLM": Head("tokens"),
    "ForSequenceClassification": Head("labels", pooled=True),
    "ForTokenClassification": Head("labels"),
}
_SEEING_HEADS: dict[str, dict[str, Head]] = {
    **{
        kind: {"ForSequenceClassification": Head("labels", pooled=True, bias=False)}
        for kind in ("gemma3", "qwen3_5")
    },
    "modernvbert": {**_SEEN_WORDS, "Model": Head(0, more=lambda config: -_squared(config["text_config"]))},
    "ultravbert": {**_SEEN_WORDS, "Model": Head(0)},
    # Its labels are tokens.
    "shieldgemma2": {"ForImageClassification": Head("tokens")},
}
"""Heads of models that see which predict no tokens, by the end of an architecture's name."""
_GENERATING = ("ForConditionalGeneration", "MTModel", "T5WithLMHeadModel")
"""The same of encoder-decoders."""


def shape_of(document: Document) -> tuple[Shape, int, Precision, bool]:
    """Fields of a ModelSpec without training, the longest sequence, the suggested precision, and true where layers
    drop."""
    kind = str(document.data.get("model_type"))
    if kind in _UNDESCRIBED:
        what = f'the model type "{kind}" is not supported: {_UNDESCRIBED[kind]}'
        hint = "for an estimate, write a shape of about its size as a model file"
        raise SpecError((document.problem(("model_type",), what, hint),))
    if kind in _SPEAKING:
        if (reads := document.part(_READS[kind])) is None:
            what = "missing, expected the configuration of what reads, hears and sees"
            raise SpecError((document.problem((_READS[kind],), what),))
        return _and_speaks(document, reads)
    said = document.data
    whole = _alone(_filled(document))
    document = _text_of(whole)
    config = document.data
    try:
        fail_on(_of_its_own(whole) or _unsupported(document))
        fail_on(_wrong_types(whole))
        family = MODEL_TYPES[str(config["model_type"])]
        fail_on(_wrong_numbers(document, family.needed))
        fail_on([*_wrong_steps(document), *_wrong_stacks(document)])
        shape = _finished(_built(family, document, whole), document)
        longest, rows = _longest(config, shape), shape.get("learned_positions") or 0
        padding = padding_rows(document) if rows else 0
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Keys beside those that were checked.
        named = error.args[0] if type(error) is ValueError and error.args else None
        place = document if isinstance(named, str) and named in config else whole
        key = named if isinstance(named, str) and named in place.data else "model_type"
        what = f"a model of type {shown(place.data['model_type'])} cannot be read of these keys"
        hint = "some of them are missing or have values of another kind than transformers writes"
        raise SpecError((place.problem((key,), what, hint),)) from None
    if rows and not shape.get("front"):
        longest = min(longest, rows - padding)
    if longest < 1:
        raise SpecError(
            (document.problem(("model_type",), "its sequences have no tokens, expected at least 1"),)
        )
    if padding:
        others = shape.get("other_parameters", 0) + padding * shape["hidden"]
        shape |= {"learned_positions": rows - padding, "other_parameters": others}
    if (numerics := numerics_of(config, shape)) is not None:
        shape |= {"numerics": _checked(numerics, document)}
    drops = any(isinstance(share := config.get(key), int | float) and share > 0 for key in _DROPPED)
    return shape, longest, _precision_of(said, whole.data, config), drops


def _checked(numerics: Config, document: Document) -> Config:
    """Numerics that a model may have; another value is a problem of the key that says it."""
    try:
        NumericsSpec.model_validate(numerics)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = place_of(document.data, first["loc"])
        value: Any = document.data
        for key in place:
            value = value[key]
        what = f"{first['msg']}, got {shown(value)}" if place != ("model_type",) else first["msg"]
        hint = "divided by the width of a head" if place[-1] == "rotary_dim" else None
        raise SpecError((document.problem(place, what, hint),)) from None
    return numerics


def _precision_of(*configs: Config) -> Precision:
    """Number format of the first configuration that says one; ``dtype`` wins over its older name."""
    said = (config[key] for config in configs for key in ("dtype", "torch_dtype") if config.get(key))
    return _PRECISIONS.get(str(next(said, None)), "bf16")


_UNDESCRIBED = {
    **dict.fromkeys(
        ("inkling2_loop", "inkling2_loop_text"),
        "no shape has layers with experts that are run again, attention to what earlier layers made, "
        "or gates of messages",
    ),
    **dict.fromkeys(
        ("inkling2", "inkling2_text"), "no shape has layers that attend to what earlier layers made"
    ),
}
"""Types that transformers builds, with what no ModelSpec has of them."""

_FROM_PADDING = {
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert"), 1),
    **dict.fromkeys(
        ("data2vec-text", "esm", "ibert", "layoutlmv3", "longformer", "luke", "mpnet", "xmod"), 1
    ),
    **dict.fromkeys(("lilt", "markuplm"), 0),
}
"""Types that count positions from the one behind ``pad_token_id``, and that of transformers where none is given."""


def padding_rows(config: Document) -> int:
    """Rows of the position table that no token of a sequence has: those up to the one of padding."""
    kind = str(config.data.get("model_type"))
    if kind not in _FROM_PADDING:
        return 0
    given = config.data.get("pad_token_id")
    # MPNet has its own, whatever the configuration says.
    if kind == "mpnet" or not isinstance(given, int) or given < 0:
        return 1 + _FROM_PADDING[kind]
    return 1 + given


def _and_speaks(document: Document, reads: Document) -> tuple[Shape, int, Precision, bool]:
    """The part of a model that reads, hears and sees, with what speaks beside it, which is trained apart."""
    fail_on(_of_its_own(document))
    parts = {key: f"{document.data['model_type']}_{key.removesuffix('_config')}" for key in _SPEAKING_PARTS}
    filled = {key: part.data for key, kind in parts.items() if (part := _inside(document, key, (kind,)))}
    sound = document.part("token2wav_config")
    made = {
        key: part.data
        for key in ("dit_config", "bigvgan_config")
        if sound is not None
        and (part := _inside(sound, key, (f"qwen2_5_omni_{key.removesuffix('_config')}",))) is not None
    }
    filled["token2wav_config"] = {**filled.get("token2wav_config", {}), **made}
    given = {key: value for key, value in reads.data.items() if key != "architectures"}
    shape, longest, precision, drops = shape_of(replace(reads, root=replace(reads.root, data=given)))
    try:
        others = talker({**document.data, **filled})
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"what speaks cannot be read of these keys, {shown(str(error))} among them"
        raise SpecError((document.problem((_SPEAKING_PARTS[0],), what),)) from None
    shape |= {"name": _name(document), "other_parameters": shape.get("other_parameters", 0) + others}
    return shape, longest, precision, drops


_SPEAKING = ("qwen2_5_omni",)
"""Types of them of which the whole is read."""
_SPEAKING_PARTS = ("talker_config", "token2wav_config")


def _finished(shape: Shape, document: Document) -> Shape:
    """The shape with what follows from the rest of it."""
    return {
        "name": _name(document),
        "kv_heads": shape["heads"],
        **shape,
        "head_dim": shape.get("head_dim") or shape["hidden"] // shape["heads"],
    }


def _built(family: ModelType, document: Document, whole: Document) -> Shape:
    """The shape of a configuration whose needed keys are in order."""
    shape = family.build(document.data)
    if not {"state", "encoder", "block", "ahead", "behind"} & {*shape}:
        shape = with_runs(shape, document.data)
    shape = _with_head(shape, document.data, alone=whole is document)
    return _with_tower(shape, whole) if whole is not document or whole.data["model_type"] in BESIDE else shape


def _heads(kind: str) -> dict[str, Head]:
    """Heads of a type that are read, by the end of an architecture's name."""
    return OWN_HEADS.get(kind) or heads_of(kind, stacks=kind in ENCODER_DECODERS)


def _with_head(shape: Shape, config: Config, *, alone: bool) -> Shape:
    """The shape with the head that the architecture's name says; an encoder without one has none, where it stands
    ``alone``."""
    kind, names = str(config["model_type"]), config.get("architectures")
    heads = _heads(kind)
    if alone and not names and shape.get("kind") == "encoder" and shape.get("labels") is None:
        # As transformers' AutoModel, which asks for no architecture.
        names = [f"{kind}Model"] if "Model" in heads else []
    # Where several are listed the first one is the model, as it is to what loads it.
    first = next(iter(names), None) if isinstance(names, list) else None
    head = head_of(str(first), heads)
    return shape if head is None else with_head(shape, head, config)


def supported() -> tuple[str, ...]:
    """Values of ``model_type`` that can be read."""
    return tuple(sorted({*MODEL_TYPES, *BESIDE, *_SPEAKING}))


def further_tokens(document: Document) -> int:
    """Modules that predict further tokens, which transformers leaves out."""
    config = document.data
    text = config.get("text_config")
    count = (text if isinstance(text, dict) else config).get("num_nextn_predict_layers")
    return count if isinstance(count, int) and MTP_LAYERS.holds(count) else 0


def quantised_by(document: Document) -> str | None:
    """How the weights of the file are quantised, by the method's name; None where they are not."""
    text = document.data.get("text_config")
    for config in (document.data, text if isinstance(text, dict) else {}):
        # MLX has a key of its own.
        for key in ("quantization_config", "quantization"):
            if isinstance(found := config.get(key), dict) and found:
                return str(found.get("quant_method") or key)
    return None


def usual_length(longest: int) -> int:
    """Tokens of a sequence where nobody says: no long context by accident."""
    return min(longest, USUAL_LENGTH)


def usual_batch(sequence_length: int) -> int:
    """Sequences of an optimizer step where nobody says: the power of two with about ``USUAL_TOKENS``."""
    sequences = min(round(USUAL_TOKENS / sequence_length), int(BATCH.most))
    return 1 << max(1, sequences).bit_length() - 1


_NO_TOWERS = (
    "text_config",
    "img_token_compression_config",
    "quantization_config",
    "generation_config",
    "compression_config",
)
"""Configurations inside another that are none of a tower."""


def _inside(document: Document, key: str, kinds: tuple[str, ...]) -> Document | None:
    """A configuration inside another, of the first of some ``kinds`` unless it says another of them, with its defaults.

    Where the only kind is empty, it is of the kind that it says.
    """
    part = document.part(key)
    if part is None:
        return None
    named = str(part.data.get("model_type") or kinds[0])
    kinds = kinds if kinds != ("",) else (named,)
    kind = named if named in kinds or key in _OF_TEXTS else kinds[0]
    said = _SAID_INSIDE.get(str(document.data.get("model_type")), {}).get(key, {})
    filled = {**_unsaid(kind, part.data), **said, **renamed(kind, part.data), "model_type": named}
    return replace(part, root=replace(part.root, data=filled))


def _unsaid(kind: str, given: Config) -> Config:
    """Defaults of a type, but of keys for which a configuration has another name."""
    alike = (EXPERT_COUNTS, EXPERT_PICKS, SHARED_COUNTS, *SYNONYMS)
    said = {key for keys in alike if {*keys} & {*given} for key in keys}
    return {key: value for key, value in defaults_of(kind).items() if key not in said}


def _filled(document: Document) -> Document:
    """The configuration and those inside it that are read, with the defaults of what they do not say.

    How large the whole is it says itself.
    """
    kind = str(document.data.get("model_type"))
    if (other := _other_kind(kind, document.data)) is not None:
        kind = other
        document = replace(document, root=replace(document.root, data={**document.data, "model_type": kind}))
    beside, family = BESIDE.get(kind), MODEL_TYPES.get(kind)
    kinds: dict[str, tuple[str, ...]] = {}
    kinds |= {key: (each,) for key, each in family.parts} if family is not None else {}
    if beside is not None:
        kinds[_section(beside)] = (beside.tower, *(beside.towers if isinstance(beside, TowersType) else ()))
        kinds[beside.text if isinstance(beside, TowersType) else "text_config"] = (_TEXTS.get(kind, "llama"),)
        kinds |= {
            key: (_OWN_FURTHER.get(kind, _FURTHER[key]),)
            for key, _ in (beside.further if isinstance(beside, TowersType) else ())
        }
        kinds |= {key: (each,) for key, each in (beside.optional if isinstance(beside, TowersType) else ())}
    if kind in _BARE and not document.data.get("vision_config") and document.part("text_config") is not None:
        document = _with_empty(document, "vision_config")
    parts = {key: _inside(document, key, each) for key, each in kinds.items()}
    read = {key: part.data for key, part in parts.items() if part is not None}
    unsaid = {key: value for key, value in _unsaid(kind, document.data).items() if key not in _SIZES}
    data = {**unsaid, **renamed(kind, document.data), **read}
    if kind in _FLAT:
        data = {**data.get("text_config", {}), **data}
    return replace(document, root=replace(document.root, data=data))


def _other_kind(kind: str, config: Config) -> str | None:
    """Our name of a repository's own model that has another's ``model_type``; None where it is what it says."""
    names = config.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    if kind == "llava" and config.get("mm_vision_tower"):
        # The first files of LLaVA have no part of their own for the text.
        texts = {"": "llava_llama", "LlavaLlama": "llava_llama"}
        texts |= {"LlavaMistral": "llava_mistral", "LlavaQwen": "llava_qwen"}
        return texts.get(first.partition("For")[0])
    if kind == "xlm-roberta" and config.get("lora_adaptations"):
        return "jina_lora"
    if kind == "bert" and config.get("alibi_starting_size"):
        # MosaicBERT and DNABERT-2 have the layers of Jina's BERT.
        return "jina_bert"
    given = config.get("feed_forward_type"), config.get("position_embedding_type")
    if kind == "bert" and first.startswith("JinaBert") and given == ("geglu", "alibi"):
        # One of them has norms of queries and keys besides.
        return None if "qk-post-norm" in str(config.get("auto_map")) else "jina_bert"
    return None


def _with_empty(document: Document, key: str) -> Document:
    """With an empty mapping under a key, which the file does not have."""
    root = document.root
    children = {**root.children, key: YamlNode(root.line, {})}
    lines = {**root.key_lines, key: root.line}
    return replace(
        document, root=replace(root, data={**document.data, key: {}}, children=children, key_lines=lines)
    )


def _section(beside: Seeing) -> str:
    return beside.section if isinstance(beside, TowersType) else "vision_config"


_TEXTS = {"blip-2": "opt", "gemma3": "gemma3_text", "shieldgemma2": "gemma3_text", "idefics2": "mistral"}
_TEXTS |= {"llama4": "llama4_text", "mllama": "mllama_text_model", "qwen2_audio": "qwen2"}
_TEXTS |= {"glm4v_moe": "glm4v_moe_text", "instructblip": "opt", "kosmos-2": "kosmos_2_text_model"}
_TEXTS |= {"aya_vision": "cohere2", "internvl": "qwen2", "paligemma": "gemma"}
_TEXTS |= {"aria": "aria_text", "gemma4": "gemma4_text", "glm46v": "glm4v_text", "instructblipvideo": "opt"}
_TEXTS |= {"kimi_k25": "deepseek_v3", "lfm2_vl": "lfm2", "minimax_m3_vl": "minimax_m3_vl_text"}
_TEXTS |= dict.fromkeys(("audioflamingo3", "musicflamingo", "ovis2", "video_llama_3"), "qwen2")
_TEXTS |= {"qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text"}
_TEXTS |= {"voxtral_realtime": "voxtral_realtime_text", "kosmos-2.5": "kosmos_2_5_text_model"}
_TEXTS |= {"exaone4_5": "exaone4", "got_ocr2": "qwen2", "granite_speech": "granite"}
_TEXTS |= {"kimi_vl": "deepseek_v3", "ernie4_5_vl_moe": "ernie4_5_vl_moe_text", "molmo2": "molmo2_text"}
_TEXTS |= {"granite_speech_plus": "granite"}
_TEXTS |= {"apertus1p5": "apertus1p5_text", "gemma3n": "gemma3n_text", "hy_v4_vl": "hy_v4_vl_text"}
_TEXTS |= {"gemma4_unified": "gemma4_unified_text"}
_TEXTS |= {"deepseek_vl_v2": "deepseek", "minicpmv4_6": "qwen3_5_text", "minicpmv4_7": "qwen3_5_text"}
_TEXTS |= {"glm_ocr": "glm_ocr_text", "paddleocr_vl": "paddleocr_vl_text", "qwen3_asr": "qwen3"}
_TEXTS |= {"qianfan_ocr": "qwen3", "hyperclovax_vision_v2": "hyperclovax", "cosmos3_omni": "qwen3_vl_text"}
_TEXTS |= {"glmga": "glm4v_text", "pp_chart2table": "qwen2", "lfm3_vl": "lfm3", "step3p7": "step3p5"}
_TEXTS |= {"muse_spark": "muse_spark_text", "moss_transcribe_diarize": "qwen3", "fun_asr_nano": "qwen3"}
_TEXTS |= {"modernvbert": "modernbert", "ultravbert": "ultrabert"}
_TEXTS |= {"nemotron_h_omni": "nemotron_h", "inkling_mm_model": "inkling_text", "glm5_next": "glm5_next_text"}
_TEXTS |= {
    kind: f"{kind}_text"
    for kind in ("cosmos3_edge", "granite_docling", "mistral_large4", "muse_glimmer", "unlimited_ocr")
}
"""Type of the text where a configuration does not say it."""
_OWN_TEXTS = (
    *("cosmos3_edge", "granite_docling", "mistral_large4", "muse_glimmer", "step3p7", "unlimited_ocr"),
    *("glm5_next", "inkling_mm_model", "muse_spark"),
)
"""Types whose text transformers takes for one of their own, whatever type it says."""
_TIED_BY_EITHER = (
    "kosmos-2",
    "minimax_m3_vl",
    "glm4v",
    "glm4v_moe",
    "glm_ocr",
    "llava",
    "llava_next_video",
    "llava_onevision",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen2_vl",
    "shieldgemma2",
    "video_llama_3",
)
"""Where the configuration of the text says that embeddings are tied, they are, whatever the whole says."""
_TIED_BY_TEXT = (*("blip-2", "instructblip", "instructblipvideo", "internvl_chat", "kosmos-2.5", "llama4"),)
"""Where that of the text alone says it."""
_NEVER_TIED = (
    *("cosmos3_edge", "inkling_mm_model", "mllama", "molmo2", "muse_spark", "nemotron_h_omni", "omniasr"),
    *("qwen2_audio", "voxtral"),
)
"""Where they are not tied, whatever is said."""
_TIED = {
    **dict.fromkeys(
        (
            *("aya_vision", "cohere2_vision", "gemma3", "gemma4", "internvl", "kimi_k25", "lfm2_vl"),
            *("lighton_ocr", "mistral3", "paligemma", "glmasr", "ovis2", "qwen3_asr"),
            *("deepseek_vl", "voxtral_realtime", "granite_docling", "hyperclovax_vision_v2", "lfm3_vl"),
            *("fun_asr_nano", "moss_transcribe_diarize", "pp_chart2table"),
        ),
        True,
    ),
    **dict.fromkeys(
        (
            *("aria", "glm46v", "idefics2", "idefics3", "llava_next", "mllama", "qwen2_audio", "smolvlm"),
            *("video_llava", "vipllava", "voxtral", "glm_ocr", "qwen2_5_omni_thinker"),
            *("audioflamingo3", "musicflamingo"),
            *("qwen3_omni_moe_thinker", "video_llama_3", "cosmos3_omni", "glm5_next", "modernvbert"),
            *("ultravbert", "glmga", "mistral_large4"),
            *("muse_glimmer", "qianfan_ocr", "step3p7", "unlimited_ocr"),
        ),
        False,
    ),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", *_TIED_BY_EITHER), False),
}
"""Whether embeddings are tied where the whole does not say it, whatever the text says."""
_SAID_INSIDE: dict[str, dict[str, Config]] = {"nemotron_h_omni": {"audio_config": {"attention_bias": False}}}
"""What types say of a configuration inside them that does not say it itself."""
_BARE = ("llama4",)
"""Types whose tower is transformers' default where a configuration says nothing of it."""
_FLAT = ("fuyu",)
"""Types that say of a text within what older ones say of the whole."""
_OF_TEXTS = ("text_config", "llm_config", "language_config")
"""Keys of configurations of texts, which may be of any type."""
_FURTHER = {"perceiver_config": "idefics2_perceiver", "qformer_config": "blip_2_qformer"}
_FURTHER |= {"audio_config": "qwen2_5_omni_audio_encoder", "vq_config": "janus_vqgan"}
_FURTHER |= {"high_res_vision_config": "sam_vision_model", "projector_config": "blip_2_qformer"}
"""Type of what stands beside the text and its tower, by its key."""
_OWN_FURTHER = {"instructblip": "instructblip_qformer", "instructblipvideo": "instructblipvideo_qformer"}
_OWN_FURTHER |= {"apertus1p5": "wavtokenizer_encoder", "inkling_mm_model": "inkling_audio"}
_OWN_FURTHER |= {"muse_spark": "muse_spark_audio"}
_OWN_FURTHER |= {"phi4_multimodal": "phi4_multimodal_audio", "gemma3n": "gemma3n_audio"}
_FURTHER |= {"adapter_config": "molmo2_adapter", "adaptor_config": "fun_asr_nano_adaptor"}
_OWN_FURTHER |= {"qwen3_omni_moe_thinker": "qwen3_omni_moe_audio_encoder"}
"""The same where the type of the whole has one of its own."""


def _alone(document: Document) -> Document:
    """The configuration of the text decoder where the architecture is that of the text, whatever may stand beside it.

    Transformers builds such a model of ``text_config`` alone too.
    """
    beside, names = BESIDE.get(str(document.data.get("model_type"))), document.data.get("architectures")
    key = beside.text if isinstance(beside, TowersType) else "text_config"
    if beside is None or not isinstance(names, list) or not isinstance(document.data.get(key), dict):
        return document
    alone = all(str(name).endswith("ForCausalLM") and not str(name).endswith(_SEEING) for name in names)
    text = _part(document, key)
    return text if names and alone and text.data.get("model_type") in MODEL_TYPES else document


def _text_of(document: Document) -> Document:
    """The text decoder's own configuration, where nothing else stands beside it."""
    config = document.data
    kind = str(config.get("model_type"))
    beside = BESIDE.get(kind)
    key = beside.text if isinstance(beside, TowersType) else "text_config"
    flat = not isinstance(config.get(key), dict)
    if beside is not None and flat:
        fail_on(_tower_problems(document, beside))
        return document
    if (kind in MODEL_TYPES and beside is None) or flat:
        fail_on(_unread_parts(document))
        return document
    text = _part(document, key)
    inside = (name for name in config if name.endswith("_config") and isinstance(config[name], dict))
    towers = [name for name in inside if name not in (*_NO_TOWERS, key) and config[name]]
    if beside is not None:
        fail_on(_tower_problems(document, beside))
        further = (
            [name for name, _ in (*beside.further, *beside.optional)]
            if isinstance(beside, TowersType)
            else []
        )
        towers = [name for name in towers if name not in (_section(beside), *further)]
    sizes = [name for name in ("patch_size", "image_size") if config.get(name) is not None]
    if sizes and kind not in MODEL_TYPES and beside is None:
        problems = [document.problem((sizes[0],), "images beside the text decoder are not supported yet")]
        raise SpecError(tuple(problems))
    if not towers:
        return text
    what = "towers beside the text decoder are not supported yet"
    hint = "to plan its text decoder alone, save what stands under text_config as a config.json of its own"
    raise SpecError((document.problem((towers[0],), what, hint),))


_UNREAD = (
    *("vision_config", "audio_config", "visual", "mm_vision_tower", "pruned_heads"),
    "cross_attention_layers",
)
"""Keys of what a type of text alone does not have."""
_NAMED = ("llava_llama", "llava_mistral", "llava_qwen")
"""Types that name their tower under ``mm_vision_tower``."""


def _unread_parts(document: Document) -> list[Problem]:
    """What a repository's own code adds to a type, and heads that were taken away."""
    family = MODEL_TYPES.get(str(document.data.get("model_type")))
    read = {key for key, _ in family.parts} if family is not None else {*_UNREAD}
    return [
        document.problem(
            (key,), f"is not read for the type {shown(document.data['model_type'])}, expected none"
        )
        for key in _UNREAD
        if document.data.get(key)
        and key not in read
        and not (key == "mm_vision_tower" and document.data["model_type"] in _NAMED)
    ]


def _part(document: Document, key: str) -> Document:
    """A configuration inside another, with what was filled in."""
    part = document.part(key)
    assert part is not None
    data = document.data[key]
    assert isinstance(data, dict)
    return replace(part, root=replace(part.root, data=data))


def _tower_problems(document: Document, beside: Seeing) -> list[Problem]:
    """What of a tower is missing, or not that of its model."""
    section = _section(beside)
    if document.part(section) is None:
        if isinstance(beside, TowersType) and beside.towerless:
            return []
        return [document.problem((section,), "missing, expected the configuration of the tower")]
    tower = _part(document, section)
    kind = tower.data.get("model_type")
    others = beside.towers if isinstance(beside, TowersType) else ()
    if kind not in (None, beside.tower, str(document.data["model_type"]), *others):
        what = f"expected {beside.tower}, got {shown(kind)}: other towers are not supported yet"
        return [tower.problem(("model_type",), what)]
    text, own = document.part("text_config"), str(document.data["model_type"])
    if own in _OWN_TEXTS and text is not None and text.data.get("model_type") not in (None, _TEXTS[own]):
        what = (
            f"expected {_TEXTS[own]}, got {shown(text.data['model_type'])}: other texts are not supported yet"
        )
        return [text.problem(("model_type",), what)]
    names = document.data.get("architectures")
    problems = [
        document.problem(
            ("architectures", index),
            f"expected a model with its tower, got {shown(name)}",
            f"expected {SEES}",
        )
        for index, name in enumerate(names if isinstance(names, list) else [])
        if not str(name).endswith((SEES, *_SEEING, *_SEEING_HEADS.get(own, ())))
    ]
    problems += _out_of_range(tower, beside.needed)
    for key, needed in beside.further if isinstance(beside, TowersType) else ():
        if document.part(key) is None:
            problems.append(document.problem((key,), "missing, expected a configuration"))
        else:
            problems += _out_of_range(_part(document, key), needed)
    config: Config = tower.data
    width = first_given(config, ("embed_dim", "d_model", "hidden_size"))
    heads = first_given(config, _TOWER_HEADS)
    attends = config.get(width) is not None and config.get(heads) is not None
    if not problems and attends and config[width] % config[heads]:
        what = f"expected a divisor of {width} {config[width]}, got {config[heads]}"
        problems.append(tower.problem((heads,), what))
    return problems


def _out_of_range(document: Document, keys: tuple[str, ...]) -> list[Problem]:
    """Keys of what stands beside a text that are no whole numbers of their range."""
    problems = []
    for key in keys:
        value = document.data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= WIDTH.most:
            got = "it is missing" if value is None else f"got {shown(value)}"
            what = f"expected a whole number from 1 to {figure(WIDTH.most)}, {got}"
            problems.append(document.problem((key,), what))
    return problems


_TOWER_HEADS = ("num_attention_heads", "num_heads", "encoder_attention_heads", "attention_heads")


def _with_tower(shape: Shape, document: Document) -> Shape:
    """The text decoder with the tower beside it; how it is tied is said of the whole."""
    config = document.data
    kind, tied = str(config.get("model_type")), config.get("tie_word_embeddings")
    if document.part("text_config") is not None and kind in _TIED:
        tied = tied if isinstance(tied, bool) else _TIED[kind]
    if kind in _NEVER_TIED:
        tied = False
    if isinstance(tied, bool) and kind not in _TIED_BY_TEXT:
        tied = tied or (kind in _TIED_BY_EITHER and shape["tied_embeddings"])
        shape = {**shape, "tied_embeddings": tied}
    beside, names = BESIDE.get(str(config.get("model_type"))), config.get("architectures")
    if beside is None:
        return shape
    heads = _SEEING_HEADS.get(kind, {})
    first = next(iter(names), None) if isinstance(names, list) else None
    if first is None and "Model" in heads:
        first = "Model"
    if (head := head_of(str(first), heads)) is not None:
        shape = with_head(shape, head, config)
    if isinstance(beside, TowersType) and beside.whole is not None:
        return beside.whole(config, shape)
    return {**shape, "tower": beside.build(config, shape["hidden"])}


_READS = dict.fromkeys(("qwen2_5_omni", "qwen3_omni_moe"), "thinker_config")
"""Key of the part that reads text, sees and hears, of types with others that speak."""


def _unsupported(document: Document) -> list[Problem]:
    config = document.data
    known = f"supported: {', '.join(supported())}; or write the shape as a model file"
    kind = str(config.get("model_type") or "")
    if kind in BESIDE and kind not in MODEL_TYPES:
        return [document.problem(("text_config",), "missing, expected the configuration of the text decoder")]
    if not kind and (other := stranger(document)) is not None:
        return [other]
    if kind not in MODEL_TYPES:
        what = f'the model type "{kind}" is not supported' if kind else "missing, expected the model's type"
        inside = _READS.get(kind, "")
        if document.part(inside) is not None:
            known = f"to plan what reads alone, save what stands under {inside} as a config.json of its own"
        mixed = [
            document.problem((key,), f"{each} are not supported yet") for key, each in mixed_dense(config)
        ]
        return [document.problem(("model_type",), what, known), *mixed]
    problems = []
    two = kind in {**ENCODER_DECODERS, **COMPOSITES, **SEAMLESS}
    listed = config.get("architectures")
    heads = [head_of(str(name), _heads(kind)) for name in (listed if isinstance(listed, list) else [])]
    alone = any(head is not None and (head.encoder or head.decoder) for head in heads)
    if kind in ENCODER_DECODERS and config.get("is_encoder_decoder") is False and not alone:
        problems.append(
            document.problem(("is_encoder_decoder",), "expected true: one stack alone is not read")
        )
    if two and config.get("is_decoder") and not alone:
        problems.append(document.problem(("is_decoder",), "expected false: a decoder alone is not read"))
    for key in ("add_cross_attention", "is_encoder_decoder"):
        if config.get(key) and not two:
            problems.append(document.problem((key,), "cross-attention is not supported yet, expected false"))
    names = config.get("architectures")
    for index, name in enumerate(names if isinstance(names, list) else []):
        wanted = _GENERATING if two else ("ForCausalLM", "ForMaskedLM", *_heads(kind))
        usual = str(name).endswith(_GENERATING) if two else bool(TOKENS.search(str(name)))
        read = usual or head_of(str(name), _heads(kind)) is not None
        if not read and kind not in BESIDE:
            what = f"has a head that is not read yet: {shown(name)}"
            hint = f"expected a name that ends in {', '.join(wanted[:3])}"
            problems.append(document.problem(("architectures", index), what, hint))
    named = first_given(config, EXPERT_COUNTS)
    without = not (MODEL_TYPES[kind].experts or MODEL_TYPES[kind].any_experts)
    if without and config.get(named) not in (None, 0, 1):
        problems.append(document.problem((named,), f'experts in a model of type "{kind}" are not supported'))
    unlike = MODEL_TYPES[kind].unlike
    for key, what in unlike(config) if unlike else ():
        problems.append(document.problem(tuple(key.split(".")), f"{what} are not supported yet"))
    contrary = MODEL_TYPES[kind].contrary
    for key, what in contrary(config) if contrary else ():
        problems.append(document.problem(tuple(key.split(".")), what))
    return problems


def _of_its_own(document: Document) -> list[Problem]:
    """Architectures that are none of transformers' classes of a type: those of a repository may have other layers."""
    names, begins = document.data.get("architectures"), class_of(str(document.data.get("model_type")))
    return [
        document.problem(
            ("architectures", index),
            f"expected a name that begins with {begins}, got {shown(name)}",
            "a class of a repository's own may have other layers than the type says",
        )
        for index, name in enumerate(names if isinstance(names, list) else [])
        if not _bare(str(name)).startswith(_bare(begins))
    ]


def _bare(name: str) -> str:
    """The name of a class as it is compared: some repositories write theirs with other underscores."""
    return name.lower().replace("_", "")


_SHARED = (
    *("shared_expert_intermediate_size", "shared_intermediate_size"),
    *SHARED_COUNTS,
)


def _wrong_numbers(document: Document, needed: tuple[str, ...]) -> list[Problem]:
    family = MODEL_TYPES[str(document.data["model_type"])]
    given = [key for key in _OPTIONAL if document.data.get(key) is not None]
    given = [key for key in given if key not in (*needed, *family.listed)]
    experts = family.experts
    if family.any_experts:
        routed = (first_given(document.data, keys) for keys in (EXPERT_COUNTS, EXPERT_PICKS))
        given += [key for key in routed if document.data.get(key) not in (None, 0)]
    needed = (
        *needed,
        *(first_given(document.data, keys) for keys in (EXPERT_COUNTS, EXPERT_PICKS) if experts),
    )
    problems = [
        document.problem((key,), _need(document, key))
        for key in (*needed, *given)
        if not _in_range(document, key)
    ]
    return problems or _undivided(document)


_STEPS = (
    *("decoder_sparse_step", "encoder_sparse_step", "moe_layer_interval", "moe_layer_freq"),
    *("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "interleave_moe_layer_step"),
    *("expert_layer_period", "expert_layer_offset", "attn_layer_period", "attn_layer_offset"),
    *("full_attention_interval", "num_sparse_encoder_layers", "num_sparse_decoder_layers"),
)
"""Numbers of layers, and every how many of them something stands."""


_OF_EACH_LAYER = ("layer_types", "mlp_layer_types")
"""Lists that transformers builds no model of where they are not as long as there are layers."""
_LAYER_TYPES = (
    *("full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention"),
    *("compressed_sparse_attention", "heavily_compressed_attention", "reference_sliding_attention"),
    *("linear_attention", "minimax_m3_sparse", "conv", "hybrid", "hybrid_sliding", "moe", "sparse", "dense"),
    *("attention", "mamba", "mamba2", "recurrent", "hash_moe"),
    *("deepseek_sparse_attention", "qwen_sparse_attention"),
)
"""Names of layers in configurations, those of older files and of single types last."""
_PADDED = ("step3p5",)
"""Types whose lists may go on with the modules that predict further tokens."""
_OWN_LAYERS = {"dory": ("mlp",)}
"""Names that layers of one type alone have."""


_SWITCHES = frozenset(
    (
        *("add_adapter", "add_bias_linear", "add_cross_attention", "add_qkv_bias", "asm"),
        *("attention_bias", "attention_out_bias", "bias", "block_auto_adjust_ff_dim"),
        *("conv_bias", "conv_pos_batch_norm", "decoder_bias", "do_layer_norm_before"),
        *("emb_layer_norm_before", "enable_bias", "feat_proj_layer_norm"),
        *("has_relative_attention_bias", "has_spatial_attention_bias", "is_decoder"),
        *("is_encoder_decoder", "is_folding_model", "key_bias", "legacy", "lm_head_bias"),
        *("mamba_conv_bias", "mamba_proj_bias", "mamba_rms_norm", "mlp_bias", "multi_query"),
        *("multi_query_attention", "multimodal_projector_bias", "new_decoder_architecture"),
        *("no_bias", "parallel_attn", "position_biased_input", "post_layer_norm", "proj_bias"),
        *("projectors_bias", "qk_layernorm", "qkv_bias", "query_bias", "qv_bias"),
        *("relative_attention", "rmsnorm", "router_bias", "share_att_key"),
        *("share_encoder_decoder_embeddings", "summary_use_proj", "talking_head"),
        *("tie_word_embeddings", "untie_r", "use_absolute_position_embeddings"),
        *(
            "use_attention_gate",
            "use_bias",
            "use_conv_bias",
            "use_conv_shortcut",
            "use_gated_mlp",
            "use_lang_emb",
        ),
        *("use_mask_token", "use_mean_pooling", "use_parallel_residual", "use_post_norm"),
        *("use_qk_norm", "use_qkv_bias", "use_relative_position_bias", "use_sandwich_norm"),
        *("use_shared_relative_position_bias", "use_sliding_window", "use_swiglu_ffn"),
        *("use_task_id", "use_weighted_layer_sum", "value_bias"),
        *("vision_use_head", "visual_embed"),
        *("attention_k_eq_v", "downsample_in_bottleneck"),
        *("downsample_in_first_stage", "enable_moe_block", "ffn_with_glu"),
        *("key_query_shared_bottleneck", "normalize_qk_projections", "projector_bias"),
        *("projector_use_layernorm", "share_input_output_layers", "trigram_input"),
        *("use_abs_pos", "use_absolute_embeddings", "use_bottleneck"),
        *("use_bottleneck_attention", "use_double_wide_mlp", "use_qformer_text_input"),
        *("use_rel_pos", "use_shared_attention_adapter"),
        *("adapter_layer_norm", "concat_input", "convolution_bias", "enable_pronunciation"),
        *("enable_shape", "pre_norm", "use_layer_scale"),
    )
)
"""Keys that are true or false: the words "true" and "false" in quotes would both be true."""
_LISTS = frozenset(
    (
        *("architectures", "attn_layer_indices", "cross_attention_layers", "full_attn_idxs"),
        *("layer_types", "layers_block_type", "mlp_layer_types"),
        *("mlp_only_layers", "moe_layers"),
        "indexer_types",
    )
)
"""Keys that are lists."""
_COUNTS = frozenset(
    (
        *("coordinate_size", "embedding_size", "in_channels", "max_2d_position_embeddings"),
        *("moe_shared_expert_intermediate_size", "num_buckets", "num_channels"),
        *("num_conv_pos_embedding_groups", "num_conv_pos_embeddings", "num_global_tokens"),
        *("num_query_tokens", "num_register_tokens", "pooler_output_size"),
        *("position_bias_num_buckets", "prompt_types", "segment_types", "shape_size"),
        *("adapter_reduction_factor", "block_per_row", "conv_window", "downsample_factor"),
        *("downsample_hidden_size", "downsampling_rate", "hidden_stride", "local_transformer_stride"),
        *("max_depth", "max_xpath_subs_unit_embeddings", "max_xpath_tag_unit_embeddings", "n_window"),
        *("num_hash_buckets", "num_hash_functions", "num_visual_indicator_tokens", "output_dim"),
        *("project_dim", "pronunciation_embed_dim", "pronunciation_vocab_size", "shape_embed_dim"),
        *("shape_vocab_size", "squeeze_factor", "subsampling_conv_channels", "subsampling_factor"),
        *("subsampling_conv_kernel_size", "upsampling_kernel_size", "xpath_unit_hidden_size"),
        *("spatial_merge_size", "temporal_patch_size", "tubelet_size"),
    )
)
"""Whole numbers that are read where they are given, 0 or more."""


def _wrong_types(document: Document) -> list[Problem]:
    """Switches, lists and numbers of another kind, in a configuration and in those inside it."""
    problems = []
    for key, value in document.data.items():
        wanted = None
        if key in ROTARY and not isinstance(value, dict):
            wanted = "a mapping"
        elif key in _SWITCHES and not (isinstance(value, bool) or value in (0, 1)):
            wanted = "true or false"
        elif key in _LISTS and not isinstance(value, list):
            wanted = "a list"
        elif key in _COUNTS and not all(
            type(each) is int and 0 <= each <= WIDTH.most
            # Gemma 4 lists those of both of its convolutions.
            for each in (value if key == "subsampling_conv_channels" and isinstance(value, list) else [value])
        ):
            wanted = f"a whole number from 0 to {figure(WIDTH.most)}"
        elif key in ("image_size", "patch_size") and isinstance(value, int) and (value is True or value < 1):
            wanted = "a whole number from 1"
        if wanted is not None and value is not None:
            problems.append(document.problem((key,), f"expected {wanted}, got {shown(value)}"))
        if key not in _NO_TOWERS[1:] and (key.endswith("_config") or key in ("encoder", "decoder")):
            inside = document.part(key)
            problems += _wrong_types(inside) if inside is not None else []
    return problems


def _wrong_steps(document: Document) -> list[Problem]:
    """Steps of layers, further tokens and kernels that are no numbers of their range."""
    ranges = {**dict.fromkeys(_STEPS, LAYERS._replace(least=0)), "num_nextn_predict_layers": MTP_LAYERS}
    problems = []
    for key, (least, most) in ranges.items():
        value = document.data.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        if not (value is None or whole or (key == "moe_layer_freq" and isinstance(value, list))):
            what = f"expected a whole number from {figure(least)} to {figure(most)}, got {shown(value)}"
            problems.append(document.problem((key,), what))
    count, further = document.data.get("num_hidden_layers"), 0
    if document.data["model_type"] in _PADDED:
        further = further_tokens(document)
    for key in _OF_EACH_LAYER if class_of(str(document.data["model_type"])) else ():
        given = document.data.get(key)
        if isinstance(given, list) and isinstance(count, int) and len(given) not in (count, count + further):
            what = f"expected one for each of num_hidden_layers {count}, got {len(given)}"
            problems.append(document.problem((key,), what))
        known = (*_LAYER_TYPES, *_OWN_LAYERS.get(str(document.data["model_type"]), ()))
        strange = [each for each in given if each not in known] if isinstance(given, list) else []
        if strange:
            problems.append(
                document.problem((key,), f"layers of type {shown(strange[0])} are not supported yet")
            )
    for key in ("conv_kernel_sizes", "conv_dim", "conv_kernel", "conv_stride"):
        given = document.data.get(key)
        listed = given if isinstance(given, list) else [1]
        if not listed or not all(isinstance(each, int) and 1 <= each <= WIDTH.most for each in listed):
            what = f"expected one or more whole numbers from 1 to {figure(WIDTH.most)}, got {shown(given)}"
            problems.append(document.problem((key,), what))
    return problems


def _wrong_stacks(document: Document) -> list[Problem]:
    """What is wrong with the configurations of two stacks that stand inside (T5Gemma)."""
    if document.data["model_type"] != "t5gemma":
        return []
    problems = []
    for key in ("encoder", "decoder"):
        part = document.part(key)
        if part is None:
            problems.append(document.problem((key,), "missing, expected the configuration of a stack"))
            continue
        as_text = replace(part, root=replace(part.root, data={**part.data, "model_type": "gemma2"}))
        problems += _wrong_numbers(as_text, MODEL_TYPES["gemma2"].needed)
    return problems


def _undivided(document: Document) -> list[Problem]:
    config: Config = document.data
    width, heads = first_given(config, _HIDDEN), first_given(config, _HEADS)
    latent = config.get("kv_lora_rank") is not None
    # Stages list theirs.
    attends = config.get(heads) is not None and heads not in MODEL_TYPES[str(config["model_type"])].listed
    two = str(config["model_type"]) in ENCODER_DECODERS
    widths = ("head_dim", "d_kv") if two else ("head_dim", "kv_channels", "attention_head_size")
    own = first_of(config, widths) is not None
    pairs = [(heads, width)] if attends and not own and not latent else []
    pairs += [
        (key, width)
        for key in _STACK_HEADS
        if str(config["model_type"]) in ENCODER_DECODERS and config.get(key)
    ]
    pairs += [("num_key_value_heads", heads)] if attends and config.get("num_key_value_heads") else []
    # Keys of other types beside those that are needed.
    wrong = dict.fromkeys(key for pair in pairs for key in pair if not _in_range(document, key))
    if wrong:
        return [document.problem((key,), _need(document, key)) for key in wrong]
    problems = [
        document.problem((part,), f"expected a divisor of {whole} {config[whole]}, got {config[part]}")
        for part, whole in pairs
        if config[whole] % config[part]
    ]
    number, picked = first_given(config, EXPERT_COUNTS), first_given(config, EXPERT_PICKS)
    # Where experts may be none, a single one is none.
    several = not MODEL_TYPES[str(config["model_type"])].any_experts or config.get(number) != 1
    if several and config.get(number) and config.get(picked) and config[picked] > config[number]:
        what = f"expected at most {number} {config[number]}, got {config[picked]}"
        problems.append(document.problem((picked,), what))
    return problems


def first_given(config: Config, keys: tuple[str, ...]) -> str:
    """The first of several keys that has a value, or stands there without one; the first of all where none does."""
    named = [key for key in keys if key in config]
    return next((key for key in named if config[key] is not None), (named or keys)[0])


_STACK_HEADS = ("encoder_attention_heads", "decoder_attention_heads")
_STACK_LENGTHS = (
    *("max_source_positions", "max_target_positions"),
    *("max_encoder_position_embeddings", "max_decoder_position_embeddings"),
)
_LENGTHS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
_HIDDEN = ("hidden_size", "n_embd", "dim", "d_model", "emb_dim", "embed_dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
_RANKS = (
    "moe_hidden_size",
    "hc_mult",
    "index_n_heads",
    "index_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)

_STATES = (
    *("num_heads", "mamba_n_heads", "mamba_num_heads", "linear_num_value_heads", "linear_num_key_heads"),
    *("head_dim", "mamba_head_dim", "linear_value_head_dim", "linear_key_head_dim"),
    *("state_size", "ssm_state_size", "mamba_d_state", "linear_conv_kernel_dim"),
)
"""Sizes of what carries a state."""

_FEEDS = ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "ffn_hidden_size", "d_ff")
_RANGES = {
    **dict.fromkeys(_STATES, WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers"), LAYERS),
    **dict.fromkeys(("feature_projection_input_dim", "num_landmarks"), WIDTH),
    "entity_vocab_size": ROWS,
    **dict.fromkeys(("num_feedforward_networks", "num_self_attends_per_block", "num_encoder_layers"), LAYERS),
    "speech_encoder_layers": LAYERS,
    "num_adapter_layers": LAYERS._replace(least=0),
    **dict.fromkeys(("attention_head_size", "d_head", "d_latents", "num_latents"), WIDTH),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys((*_HIDDEN, *_RANKS, "kv_channels", "head_dim", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys((*_HEADS, "num_key_value_heads", "num_kv_heads"), HEADS),
    **dict.fromkeys((*_FEEDS, "d_inner", "feed_forward_size"), FFN),
    **dict.fromkeys(("moe_intermediate_size", "window_size"), FFN),
    "sliding_window": FFN._replace(least=0),
    **dict.fromkeys(_SHARED, FFN._replace(least=0)),
    **dict.fromkeys((*EXPERT_COUNTS, *EXPERT_PICKS), EXPERTS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(_STACK_HEADS, HEADS),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dim_ff", "dff"), FFN),
    **dict.fromkeys(("d_kv", "num_mel_bins"), WIDTH),
    **dict.fromkeys((*_LENGTHS, *_STACK_LENGTHS), SEQUENCE),
    "num_codebooks": LAYERS,
    "num_frames": LAYERS,
    **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size"), ROWS),
    "type_vocab_size": ROWS._replace(least=0),
}
"""Range of each key that is read as a number."""

_SIZES = frozenset(
    key for key, each in _RANGES.items() if each in (LAYERS, HEADS, ROWS) or key in (*_HIDDEN, *_FEEDS)
) - {"num_key_value_heads", "num_kv_heads"}
"""Keys of the size of a model, which it says itself."""

_OPTIONAL = (
    *("num_key_value_heads", "num_kv_heads", "head_dim", "n_inner", "word_embed_proj_dim", "type_vocab_size"),
    *(
        "num_decoder_layers",
        "num_feedforward_networks",
        "ffn_hidden_size",
        "moe_intermediate_size",
        "q_lora_rank",
        *_SHARED,
        *_LENGTHS,
    ),
    *(*_STACK_HEADS, *_STACK_LENGTHS, "sliding_window", "window_size"),
)
"""Keys that are read where they are given."""


def _in_range(document: Document, key: str) -> bool:
    value = document.data.get(key)
    least, most = _RANGES[key]
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _need(document: Document, key: str) -> str:
    value = document.data.get(key)
    wanted = f"expected a whole number from {figure(_RANGES[key].least)} to {figure(_RANGES[key].most)}"
    return f"{wanted}, {'it is missing' if value is None else f'got {shown(value)}'}"


def _longest(config: Config, shape: Shape) -> int:
    if "sequence_length" in shape:
        return int(shape.pop("sequence_length"))
    if shape.get("encoder"):
        decoded = first_of(config, ("max_target_positions", "max_decoder_position_embeddings"))
        return int(decoded or shape["encoder"]["sequence_length"])
    return next((int(config[key]) for key in _LENGTHS if config.get(key) is not None), 2048)


def _name(document: Document) -> str:
    """The model's name: what the file says, else its folder, else its type."""
    given = document.data.get("_name_or_path") or document.folder or document.data["model_type"]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(given).rstrip("/").rsplit("/", 1)[-1]).strip("-._")
    return name[:100] or str(document.data["model_type"])
