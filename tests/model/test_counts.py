"""Parameters of Hugging Face configurations against what transformers itself builds, on its meta device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.huggingface.config import supported
from planner.model.huggingface.remote_code import REMOTE_CODE
from tests.quick import every

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hub = pytest.importorskip("huggingface_hub")

CLASSES = (
    *("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText"),
    *("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForCTC", "AutoModel"),
    "AutoModelForTextToWaveform",
)
INSIDE = (
    *("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "mllama_text_model"),
    *(
        "glm4v_text",
        "glm4v_moe_text",
        "kosmos_2_text_model",
        "internvl_chat",
        "siglip_text_model",
        *REMOTE_CODE,
    ),
    "kosmos_2_5_text_model",
    *("glm_ocr_text", "paddleocr_vl_text", "qwen2_5_omni_text", "qwen3_omni_moe_text"),
    *("voxtral_realtime_text", "ernie4_5_vl_moe_text", "molmo2_text"),
    # The tower of Gemma 3n is timm's: ``test_shapes.py`` has its count.
    *("gemma3n", "kimi_vl", "deepseek_vl_v2"),
    *("step3p5", "unlimited_ocr_text"),
    *("deci", "minimax_m1", "minimax_m3", "minimax_text_01", "nemotron-nas", "openelm"),
)
"""Text decoders that transformers has inside others alone, or not at all."""
SMALL = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
GIVEN: dict[str, dict[str, Any]] = {
    **{kind: {"vocab_size": 32} for kind in ("sew-d", "wav2vec2-bert", "wav2vec2-conformer")},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "gemma4_unified": {
        "vision_config": {"model_type": "gemma4_unified_vision"},
        "audio_config": {"model_type": "gemma4_unified_audio"},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0}},
    "glm4v_moe": {"text_config": {"model_type": "glm4v_moe_text", "head_dim": 128}},
    "dots1": {**ROUTED, "first_k_dense_replace": 1, "sliding_window": None, "num_hidden_layers": 3},
    "glm4_moe": {"head_dim": 128, "first_k_dense_replace": 3},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gemma4": {
        "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": {"model_type": "gemma4_audio"},
    },
    "ovis2": {"hidden_size": 4096},
    "qwen3_omni_moe_thinker": {
        "text_config": {"num_attention_heads": 32, "head_dim": 128, "num_hidden_layers": 3},
        "vision_config": {"out_hidden_size": 2048},
        "audio_config": {"output_dim": 2048},
    },
    "hunyuan_v1_moe": {**SMALL, "num_hidden_layers": 2, "num_experts": 8, "moe_topk": [2, 2]},
    "ministral": SMALL,
    "hunyuan_v1_dense": SMALL,
    "nemotron": SMALL,
    "deepseek_v2": {"first_k_dense_replace": 2, "num_experts_per_tok": 4},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "lfm2": {"layer_types": None, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_hidden_layers": 16},
    "nemotron_h": {
        "layers_block_type": None,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EM-MEME",
    },
}
GIVEN["reformer"] = {"is_decoder": True}
GIVEN["encoder-decoder"] = {
    "encoder": {"model_type": "bert", "num_hidden_layers": 2},
    "decoder": {"model_type": "gpt2", "n_layer": 2, "add_cross_attention": True},
}
GIVEN["vision-encoder-decoder"] = {
    **GIVEN["encoder-decoder"],
    "encoder": {"model_type": "vit", "hidden_size": 384},
}
"""What a default leaves open, or has of unlike layers."""

UNLIKE: list[tuple[str, dict[str, Any]]] = [
    ("qwen2_moe", {"decoder_sparse_step": 2}),
    ("qwen2_moe", {"mlp_only_layers": [1, 5]}),
    ("qwen3_moe", {"mlp_only_layers": [3]}),
    ("ernie4_5_moe", {"moe_layer_interval": 2}),
    ("ernie4_5_moe", {"moe_layer_end_index": 20}),
    ("qwen3_next", {"mlp_only_layers": [0]}),
    ("jamba", {"num_experts": 1}),
    ("llama4_text", {"interleave_moe_layer_step": 2, "moe_layers": None}),
    ("laguna", {"num_attention_heads_per_layer": [48 if index % 4 == 0 else 64 for index in range(40)]}),
    ("granitemoehybrid", {"num_local_experts": 0, "layer_types": ["mamba", "attention"] * 16}),
]
"""Layers that differ from each other."""

SWITCHES = (
    *("attention_bias", "mlp_bias", "tie_word_embeddings", "use_bias", "bias", "enable_bias", "qkv_bias"),
    *(
        "use_qkv_bias",
        "attention_out_bias",
        "use_parallel_residual",
        "use_post_norm",
        "use_qk_norm",
        "qk_layernorm",
    ),
    *("multi_query", "parallel_attn", "new_decoder_architecture", "do_layer_norm_before", "lm_head_bias"),
    *("use_sliding_window", "add_cross_attention", "is_decoder", "use_task_id"),
    *(
        "mamba_conv_bias",
        "mamba_proj_bias",
        "mamba_rms_norm",
        "use_conv_bias",
        "conv_bias",
        "projectors_bias",
    ),
)
"""Keys that change what a model consists of."""


def default(kind: str, **more: Any) -> Any:
    """The configuration that transformers has of a type."""
    made = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
    return made(**{**GIVEN.get(kind, {}), **more})


def variants(kind: str) -> Iterator[tuple[str, Any]]:
    """Configurations with one switch turned each, where transformers has such a model."""
    for key in SWITCHES:
        value = default(kind).to_dict().get(key)
        if isinstance(value, bool):
            try:
                yield key, default(kind, **{key: not value})
            except (ValueError, hub.errors.StrictDataclassError):
                continue


def read(folder: Path, config: Any, architecture: str | None = None) -> int:
    """Parameters of the configuration by its file; raises SpecError where it is refused."""
    path = folder / "config.json"
    values = json.loads(config.to_json_string(use_diff=False))
    path.write_text(json.dumps({**values, "architectures": architecture and [architecture]}))
    return load_model(path).parameters


@contextmanager
def unfilled() -> Iterator[None]:
    """Leaves out torch's first values of weights, which take longer than to count them."""
    names = ("kaiming_uniform_", "normal_", "uniform_", "ones_", "zeros_")
    nothing: dict[str, Any] = dict.fromkeys(names, lambda weight, *_, **__: weight)
    with patch.multiple(torch.nn.init, **nothing):
        yield


def trained_by(name: str) -> set[str]:
    """Types that one of transformers' automatic classes builds; ``CLASSES`` are tried in order."""
    return {*getattr(transformers, name)._model_mapping._model_mapping}


def counted(kind: str, config: Any) -> tuple[int, str]:
    """Parameters of the model that transformers builds, and its architecture."""
    with torch.device("meta"), unfilled():
        auto = getattr(transformers, next(name for name in CLASSES if kind in trained_by(name)))
        model = auto.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters()), type(model).__name__


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", every(12, [kind for kind in supported() if kind not in INSIDE]))
def test_parameters_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    """To the last one, of the default shape."""
    config = default(kind)
    parameters, architecture = counted(kind, config)
    assert read(tmp_path, config, architecture) == parameters


MIMI = {"model_type": "mimi", "num_residual_layers": 2, "use_conv_shortcut": True, "frame_rate": 5}
MOSHI = {
    "audio_encoder_config": MIMI,
    "depth_decoder_config": {"num_hidden_layers": 2, "num_key_value_heads": 4, "ffn_dim": 1000},
}
SPEECH = {
    **{"encoder_layers": 2, "decoder_layers": 3, "decoder_ffn_dim": 600, "speech_encoder_layers": 2},
    **{"adaptor_kernel_size": 5, "t2u_encoder_layers": 1, "t2u_decoder_layers": 2, "unit_embed_dim": 256},
    **{"upsample_rates": [5, 4], "upsample_kernel_sizes": [11, 8]},
}
HEADS: list[tuple[str, str, dict[str, Any]]] = [
    ("axk2", "AXK2ForSequenceClassification", {"num_hidden_layers": 2, "num_labels": 3}),
    ("gemma3", "Gemma3ForSequenceClassification", {"text_config": {"num_hidden_layers": 2}, "num_labels": 7}),
    ("qwen3_5", "Qwen3_5ForSequenceClassification", {"num_labels": 5, "tie_word_embeddings": True}),
    ("shieldgemma2", "ShieldGemma2ForImageClassification", {"text_config": {"num_hidden_layers": 2}}),
    ("luke", "LukeForSequenceClassification", {"num_labels": 7, "use_entity_aware_attention": False}),
    ("luke", "LukeModel", {"entity_emb_size": 100}),
    ("reformer", "ReformerForSequenceClassification", {"num_labels": 7, "is_decoder": False}),
    ("reformer", "ReformerModel", {"attn_layers": ["local", "lsh"], "axial_pos_embds": False}),
    *(
        (kind, f"{begins}{ending}", {"num_labels": 7})
        for kind, begins in (("modernvbert", "ModernVBert"), ("ultravbert", "UltraVBert"))
        for ending in ("Model", "ForSequenceClassification", "ForTokenClassification")
    ),
    ("ultrabert", "UltrabertModel", {"num_hidden_layers": 2}),
    ("ultrabert", "UltrabertForSequenceClassification", {"num_hidden_layers": 2, "num_labels": 7}),
    ("ultrabert", "UltrabertForQuestionAnswering", {"num_hidden_layers": 2}),
    ("omniasr_ctc", "OmniASRCTCModel", {}),
    ("canine", "CanineForTokenClassification", {"num_labels": 5, "num_hidden_layers": 2}),
    ("jina_embeddings_v3", "JinaEmbeddingsV3Model", {"num_hidden_layers": 2}),
    ("imagegpt", "ImageGPTForCausalImageModeling", {"n_layer": 2}),
    ("markuplm", "MarkupLMForSequenceClassification", {"max_depth": 20}),
    ("mra", "MraForMultipleChoice", {"num_hidden_layers": 2}),
    ("poolformer", "PoolFormerForImageClassification", {"use_layer_scale": False, "num_labels": 7}),
    ("pvt", "PvtForImageClassification", {"qkv_bias": False, "num_labels": 7}),
    ("roc_bert", "RoCBertForSequenceClassification", {"enable_shape": False, "num_labels": 3}),
    ("sew", "SEWForSequenceClassification", {"num_hidden_layers": 2}),
    ("xmod", "XmodForTokenClassification", {"languages": ["en_XX", "de_DE"], "adapter_layer_norm": True}),
    ("yoso", "YosoForSequenceClassification", {"conv_window": 33}),
    ("bert", "BertForSequenceClassification", {"num_labels": 3}),
    ("bert", "BertForPreTraining", {}),
    ("big_bird", "BigBirdForPreTraining", {"num_hidden_layers": 1}),
    ("nystromformer", "NystromformerForSequenceClassification", {"num_hidden_layers": 1}),
    ("yolos", "YolosForObjectDetection", {"num_hidden_layers": 2}),
    ("visual_bert", "VisualBertForPreTraining", {"num_hidden_layers": 1}),
    ("roberta", "RobertaForTokenClassification", {"num_labels": 9}),
    ("roberta", "RobertaModel", {}),
    ("electra", "ElectraForPreTraining", {}),
    ("modernbert", "ModernBertForSequenceClassification", {"num_labels": 1}),
    (
        "deberta-v2",
        "DebertaV2ForSequenceClassification",
        {"relative_attention": True, "pos_att_type": ["c2p"]},
    ),
    ("albert", "AlbertModel", {"embedding_size": 64, "num_hidden_layers": 3}),
    ("llama", "LlamaForSequenceClassification", {"num_labels": 1, "num_hidden_layers": 2}),
    ("gpt2", "GPT2Model", {}),
    ("bart", "BartForSequenceClassification", {"num_labels": 3}),
    ("t5", "T5EncoderModel", {"tie_word_embeddings": False}),
    ("vit", "ViTModel", {"image_size": 384}),
    ("deit", "DeiTForImageClassificationWithTeacher", {"num_labels": 10}),
    ("dinov2", "Dinov2Model", {"use_swiglu_ffn": True}),
    ("clip_vision_model", "CLIPVisionModelWithProjection", {"projection_dim": 96}),
    ("wav2vec2", "Wav2Vec2ForPreTraining", {"feat_extract_norm": "layer", "conv_bias": True}),
    ("hubert", "HubertForSequenceClassification", {"num_labels": 4}),
    ("bart", "BartForCausalLM", {"decoder_layers": 2, "decoder_ffn_dim": 512, "is_encoder_decoder": False}),
    ("mbart", "MBartForCausalLM", {"decoder_layers": 2, "tie_word_embeddings": False}),
    ("whisper", "WhisperForCausalLM", {"decoder_layers": 3, "is_decoder": True}),
    ("prophetnet", "ProphetNetForCausalLM", {"num_decoder_layers": 2, "num_buckets": 16}),
    ("clip", "CLIPForImageClassification", {"num_labels": 7}),
    ("siglip", "SiglipForImageClassification", {"vision_config": {"vision_use_head": False}}),
    ("siglip2", "Siglip2ForImageClassification", {"num_labels": 5}),
    ("funnel", "FunnelBaseModel", {"block_sizes": [2, 3], "block_repeats": [1, 2]}),
    ("funnel", "FunnelForPreTraining", {"block_sizes": [3], "num_decoder_layers": 1}),
    ("funnel", "FunnelForSequenceClassification", {"num_labels": 5, "d_head": 32}),
    ("reformer", "ReformerForMaskedLM", {"is_decoder": False, "axial_pos_embds": False}),
    ("moshi", "MoshiForConditionalGeneration", {"num_hidden_layers": 2, **MOSHI}),
    ("seamless_m4t", "SeamlessM4TModel", SPEECH),
    ("seamless_m4t", "SeamlessM4TForSpeechToText", {**SPEECH, "position_embeddings_type": "rotary"}),
    ("seamless_m4t_v2", "SeamlessM4Tv2ForSpeechToText", {**SPEECH, "position_embeddings_type": "relative"}),
    ("seamless_m4t_v2", "SeamlessM4Tv2Model", {**SPEECH, "position_embeddings_type": "relative"}),
    ("seamless_m4t_v2", "SeamlessM4Tv2ForTextToSpeech", SPEECH),
    ("seamless_m4t_v2", "SeamlessM4Tv2ForTextToText", {**SPEECH, "add_adapter": False}),
    ("seamless_m4t", "SeamlessM4TForTextToText", {**SPEECH, "num_adapter_layers": 0}),
    (
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoeForConditionalGeneration",
        {"text_config": {"num_hidden_layers": 2, "moe_intermediate_size": [16, 16]}},
    ),
    ("seamless_m4t_v2", "SeamlessM4Tv2ForSpeechToSpeech", {**SPEECH, "num_adapter_layers": 2}),
]
"""Architectures with other heads than an output layer for tokens, or none, and a change of the default."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "architecture", "changes"), HEADS)
def test_heads_are_counted(tmp_path: Path, kind: str, architecture: str, changes: dict[str, Any]) -> None:
    """By the name of the architecture."""
    config = default(kind, **changes)
    with torch.device("meta"), unfilled():
        model = getattr(transformers, architecture)(config)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    assert read(tmp_path, config, architecture) == wanted


UNSAID = [
    ("axk1", "AXK1ForCausalLM", {"num_hidden_layers": 3}, {"mlp_layer_types"}),
    ("beam", "BeamForCausalLM", {"num_hidden_layers": 5}, {"mlp_layer_types"}),
    ("flint", "FlintForCausalLM", {"num_hidden_layers": 5}, {"mlp_only_layers"}),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", {"num_hidden_layers": 3}, {"mlp_layer_types"}),
    ("hy_v3", "HYV3ForCausalLM", {"num_hidden_layers": 3}, {"mlp_layer_types"}),
    ("laguna", "LagunaForCausalLM", {"num_hidden_layers": 3}, {"mlp_layer_types"}),
    ("lfm3", "Lfm3ForCausalLM", {}, {"layer_types"}),
    ("bart", "BartForSequenceClassification", {"encoder_layers": 2}, {"id2label"}),
    ("pvt", "PvtForImageClassification", {}, {"num_labels", "id2label"}),
    ("roberta", "RobertaForSequenceClassification", {"num_hidden_layers": 2}, {"id2label"}),
    ("seamless_m4t", "SeamlessM4TForSpeechToText", SPEECH, {"num_adapter_layers", "add_adapter"}),
    ("seamless_m4t_v2", "SeamlessM4Tv2Model", SPEECH, {"num_adapter_layers"}),
    ("seamless_m4t_v2", "SeamlessM4Tv2ForTextToText", SPEECH, {"num_adapter_layers"}),
]
"""Keys that a file does not have, and that count for its architecture or for others of its type."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "architecture", "changes", "unsaid"), UNSAID)
def test_what_a_file_does_not_say_is_the_default_of_its_type(
    tmp_path: Path, kind: str, architecture: str, changes: dict[str, Any], unsaid: set[str]
) -> None:
    """As in transformers, where types differ in it."""
    config = default(kind, **changes)
    values = json.loads(config.to_json_string(use_diff=False))
    given = {key: value for key, value in values.items() if key not in unsaid}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**given, "architectures": [architecture]}))
    with torch.device("meta"), unfilled():
        model = getattr(transformers, architecture)(config)
    assert load_model(path).parameters == sum(parameter.numel() for parameter in model.parameters())


NESTED: dict[str, dict[str, Any]] = {
    "llava": {"text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}},
    "paligemma": {"text_config": {"model_type": "gemma", "num_hidden_layers": 3}, "projection_dim": 2048},
    "mllama": {"text_config": {"model_type": "mllama_text_model", "rope_theta": 500000.0}},
}
"""Configurations inside others that say little, as transformers writes them: what differs from their defaults."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama4", "qwen3_5", "qwen3_5_moe"])
def test_a_text_decoder_alone_is_read_by_its_class(tmp_path: Path, kind: str) -> None:
    """Of the configuration of a model that sees: transformers builds its text alone."""
    config = default(kind)
    with torch.device("meta"), unfilled():
        model = transformers.AutoModelForCausalLM.from_config(config)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    assert read(tmp_path, config, type(model).__name__) == wanted


def test_a_text_decoder_that_attends_to_images_is_not_read_alone(tmp_path: Path) -> None:
    """Some layers of Mllama do nothing else."""
    for config in (default("mllama"), default("mllama").text_config):
        with pytest.raises(SpecError, match="cross_attention_layers: is not read"):
            read(tmp_path, config, "MllamaForCausalLM")


@pytest.mark.parametrize("kind", NESTED)
def test_what_nobody_says_inside_is_the_default_of_transformers(tmp_path: Path, kind: str) -> None:
    """Of the type that it names."""
    values = {"model_type": kind, "vision_config": {}, **NESTED[kind]}
    parameters, architecture = counted(kind, transformers.CONFIG_MAPPING[kind].from_dict(dict(values)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "architectures": [architecture]}))
    assert load_model(path).parameters == parameters


@pytest.mark.filterwarnings("ignore")
def test_kimi_vl_is_counted_as_its_successor(tmp_path: Path) -> None:
    """Which has the same tower and the same kind of text, and a class in transformers."""
    path = tmp_path / "config.json"
    values = json.loads(default("kimi_k25").to_json_string(use_diff=False))
    found = []
    for kind, tower, architecture in (
        ("kimi_k25", "kimi_k25_vision", "KimiK25ForConditionalGeneration"),
        ("kimi_vl", "moonvit", "KimiVLForConditionalGeneration"),
    ):
        vision = {**values["vision_config"], "model_type": tower}
        given = {**values, "model_type": kind, "vision_config": vision, "architectures": [architecture]}
        path.write_text(json.dumps(given))
        found.append(load_model(path).parameters)
    assert found[0] == found[1]


def test_a_table_of_another_width_than_the_text_is_refused(tmp_path: Path) -> None:
    """Ovis 2 has its rows in place of tokens."""
    with pytest.raises(SpecError, match="cannot be read of these keys"):
        read(tmp_path, default("ovis2", hidden_size=1536))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "changes"), UNLIKE)
def test_unlike_layers_are_counted(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """Wherever those of each kind stand."""
    config = default(kind, **changes)
    parameters, architecture = counted(kind, config)
    assert read(tmp_path, config, architecture) == parameters


TEXT = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
TEXT |= {"intermediate_size": 1024, "vocab_size": 1000}
HEARD = {
    **{"model_type": "omniasr_audio", "num_hidden_layers": 2, "conv_bias": False, "conv_dim": [64, 128, 96]},
    **{"conv_kernel": [10, 3, 4], "conv_stride": [5, 4, 4], "hidden_size": 256, "num_attention_heads": 8},
    **{"intermediate_size": 500, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
}
LOOK = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 500}
PADDED = {**TEXT, "pad_token_id": 0}
ROUTED_TEXT = {**PADDED, **ROUTED, "num_hidden_layers": 4}
SEEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "qianfan_ocr",
        {
            "text_config": {"model_type": "qwen3", **TEXT, "tie_word_embeddings": True},
            "vision_config": {**LOOK, "attention_bias": False, "use_qk_norm": True, "image_size": [224, 448]},
        },
        {
            "vision_config": {
                **{**LOOK, "norm_type": "rms_norm", "use_mask_token": True, "use_mean_pooling": False},
                "use_absolute_position_embeddings": False,
            },
            "downsample_ratio": 0.25,
        },
    ),
    (
        "hyperclovax_vision_v2",
        {
            "text_config": {"model_type": "hyperclovax", **TEXT, "use_post_norm": True, "mlp_bias": True},
            "vision_config": {
                **{"model_type": "qwen2_5_vl_vision", "hidden_size": 320, "depth": 5, "num_heads": 4},
                **{"intermediate_size": 333, "out_hidden_size": 777, "spatial_merge_size": 3},
            },
        },
        {},
    ),
    (
        "cosmos3_omni",
        {
            "text_config": {"model_type": "qwen3_vl_text", **TEXT, "attention_bias": True},
            "vision_config": {
                **{"model_type": "qwen3_vl_vision", "hidden_size": 320, "depth": 5, "num_heads": 4},
                **{"intermediate_size": 333, "out_hidden_size": 512, "deepstack_visual_indexes": [1, 2]},
            },
        },
        {},
    ),
    (
        "cosmos3_edge",
        {
            "text_config": {**TEXT, "mlp_bias": True},
            "vision_config": {**LOOK, "num_patches": 100, "spatial_merge_size": 3},
            "projector_hidden_size": 999,
        },
        {"text_config": {**TEXT, "attention_bias": True, "num_key_value_heads": 2}},
    ),
    (
        "glmga",
        {
            "text_config": {"model_type": "glm4v_text", **TEXT},
            "vision_config": {
                **{"model_type": "glm4v_vision", "hidden_size": 320, "depth": 3, "num_heads": 4},
                **{"intermediate_size": 333, "out_hidden_size": 512, "attention_bias": True},
            },
        },
        {},
    ),
    (
        "pp_chart2table",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {"use_rel_pos": False, "num_hidden_layers": 5, "mlp_dim": 1000},
        },
        {"vision_config": {"num_hidden_layers": 5, "global_attn_indexes": [1, 7], "use_abs_pos": False}},
    ),
    (
        "unlimited_ocr",
        {
            "text_config": {
                **{**TEXT, "n_shared_experts": 3, "n_routed_experts": 8, "moe_intermediate_size": 99},
                **{"mlp_bias": True, "attention_bias": True},
            },
            "vision_config": {
                "sam_config": {"num_hidden_layers": 4, "downsample_channels": [128, 100]},
                "encoder_config": {**LOOK, "image_size": 336},
            },
        },
        {"text_config": {**TEXT, "mlp_layer_types": ["sparse", "dense"]}},
    ),
    (
        "muse_glimmer",
        {
            "text_config": {**TEXT, "num_hidden_layers": 5, "head_dim": 32, "tie_word_embeddings": True},
            "vision_config": {**LOOK, "merge_size": 3, "pos_emb_height": 10, "pos_emb_width": 10},
            **{"out_hidden_size": 9 * 192, "projector_hidden_size": 333},
        },
        {
            "vision_config": {
                **LOOK,
                "merge_size": 3,
                "layer_types": ["full_attention"] * 3,
                "patch_temporal": 1,
            }
        },
    ),
    (
        "mistral_large4",
        {
            "text_config": {
                **{**TEXT, "num_key_value_heads": 8, "num_hidden_layers": 7, "n_routed_experts": 8},
                **{"n_shared_experts": 2, "moe_intermediate_size": 99, "first_k_dense_replace": 2},
                **{"kv_source_layers": [0, 1, 1, 3, 3, 1, 6], "attention_bias": True, "kv_lora_rank": 70},
                **{"qk_rope_head_dim": 30, "v_head_dim": 40, "qk_nope_head_dim": 50},
            },
            "vision_config": {"model_type": "pixtral", **LOOK},
            "multimodal_projector_bias": True,
        },
        {
            "text_config": {
                **{**TEXT, "num_key_value_heads": 8, "num_hidden_layers": 4, "n_routed_experts": 8},
                **{"no_rope_layers": [1, 0, 0, 1], "indexer_types": ["full", "shared", "full", "shared"]},
                **{"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], "index_n_heads": 3},
            },
        },
    ),
    (
        "granite_docling",
        {
            "text_config": {**PADDED, "attention_bias": True},
            "vision_config": {**LOOK, "out_hidden_size": 512, "scale_factor": 2, "use_fine_route": False},
        },
        {
            "text_config": {**PADDED, "mlp_bias": True},
            "vision_config": {
                **{**LOOK, "out_hidden_size": 512, "scale_factor": 8},
                "deepstack_visual_indexes": [0],
            },
            "density_router_hidden_size": 55,
        },
    ),
    (
        "lfm3_vl",
        {
            "text_config": {"model_type": "lfm3", **PADDED},
            "vision_config": {
                **{**LOOK, "num_hidden_layers": 6, "num_key_value_heads": 3, "conv_kernel_size": 5},
                **{"spatial_merge_size": 3, "temporal_patch_size": 1},
            },
            **{"projector_hidden_size": 321, "projector_bias": False},
        },
        {
            "vision_config": {
                **{**LOOK, "num_key_value_heads": 2},
                "layer_types": ["full_attention", "conv", "full_attention"],
            },
        },
    ),
    (
        "step3p7",
        {
            "text_config": {
                **{**TEXT, "head_dim": 48, "num_hidden_layers": 4, "sliding_window": 128, "mlp_bias": True},
                **{
                    "num_sliding_attention_heads": 12,
                    "layer_types": ["full_attention", "sliding_attention"] * 2,
                },
                **{"n_routed_experts": 8, "moe_intermediate_size": 99, "share_expert_dim": 77},
            },
            "vision_config": {**LOOK, "image_size": 224, "mlp_ratio": 3.7},
            "projector_bias": True,
        },
        {
            "text_config": {
                **{**TEXT, "attention_bias": True, "mlp_layer_types": ["sparse", "dense"]},
                "tie_word_embeddings": True,
            },
        },
    ),
    (
        "glm5_next",
        {
            "text_config": {
                **{**ROUTED_TEXT, "num_key_value_heads": 8, "attention_bias": True, "hc_mult": 3},
                **{"linear_head_dim": 48, "linear_num_heads": 5, "index_kpool": 8, "q_lora_rank": 77},
                **{"v_head_dim": 40, "indexer_types": ["full", "shared", "full", "shared"]},
            },
            "vision_config": {
                **{"hidden_size": 320, "depth": 3, "num_heads": 4, "intermediate_size": 333},
                **{"out_hidden_size": 512, "projection_intermediate_size": 444, "spatial_merge_size": 3},
            },
        },
        {
            "text_config": {
                **{**ROUTED_TEXT, "num_key_value_heads": 8},
                "layer_types": ["indexed_attention", "linear_attention"] * 2,
            },
            "vision_config": {"depth": 2, "attention_bias": False, "out_hidden_size": 512},
        },
    ),
    (
        "inkling_mm_model",
        {
            "text_config": {**ROUTED_TEXT, "mlp_layer_types": ["dense", "sparse"] * 2},
            "vision_config": {"patch_size": 30, "temporal_patch_size": 4, "num_hidden_layers": 9},
            "audio_config": {"n_mel_bins": 40, "mel_vocab_size": 100},
        },
        {"vision_config": {"num_hidden_layers": 6}},
    ),
    *(
        (
            kind,
            {
                "text_config": {"model_type": text, **PADDED, "num_key_value_heads": 8, **more},
                "vision_config": {"model_type": "siglip_vision_model", **LOOK, "vision_use_head": False},
                "pixel_shuffle_factor": 2,
            },
            {"vision_config": {"model_type": "siglip_vision_model", **LOOK}},
        )
        for kind, text, more in (
            ("modernvbert", "modernbert", {"decoder_bias": False}),
            ("ultravbert", "ultrabert", {"prediction_head_size": 99}),
        )
    ),
    (
        "fun_asr_nano",
        {
            "text_config": {"model_type": "qwen3", **TEXT},
            "audio_config": {
                "model_type": "fun_asr_nano_encoder",
                **{**LOOK, "num_timestamp_prediction_layers": 1, "fsmn_kernel_size": 5, "num_mel_bins": 64},
            },
            "adaptor_config": {
                **{"hidden_size": 512, "intermediate_size": 128, "num_hidden_layers": 3},
                "projector_hidden_size": 777,
            },
        },
        {
            "audio_config": {
                "model_type": "fun_asr_nano_encoder",
                **{**LOOK, "num_timestamp_prediction_layers": 0, "num_stacked_frames": 4},
            },
        },
    ),
    (
        "moss_transcribe_diarize",
        {
            "text_config": {"model_type": "qwen3", **TEXT, "attention_bias": True},
            "audio_config": {**LOOK, "num_mel_bins": 128, "max_source_positions": 1000},
            "audio_merge_size": 3,
        },
        {"audio_config": {**LOOK, "num_mel_bins": 64}, "projector_bias": False},
    ),
    (
        "muse_spark",
        {
            "text_config": {
                **{**PADDED, "num_hidden_layers": 5, "head_dim": 32, "num_local_experts": 8},
                **{"moe_intermediate_size": 99, "moe_hidden_size": 77},
                "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse"],
            },
            "vision_config": {**LOOK, "merge_size": 3, "pos_emb_height": 10, "pos_emb_width": 10},
            "audio_config": {
                **{"patch_sizes": [16, 5], "hidden_sizes": [64, 100], "depths": [1, 3]},
                **{"num_hidden_layers": 2, "mlp_ratio": 2.5, "conv_kernel_size": 5, "out_hidden_size": 512},
            },
            **{"out_hidden_size": 9 * 192, "projector_hidden_size": 333},
        },
        {
            "text_config": {
                **{**PADDED, "num_local_experts": 8, "moe_intermediate_size": 99},
                "layer_types": ["sliding_attention"] * 2,
            },
        },
    ),
    (
        "nemotron_h_omni",
        {
            "text_config": {"model_type": "nemotron_h", "num_nextn_predict_layers": 1, "hidden_size": 512},
            "vision_config": {
                **{
                    "model_type": "radio",
                    "hidden_size": 192,
                    "num_hidden_layers": 3,
                    "num_attention_heads": 6,
                },
                **{"use_swiglu_ffn": True, "video_temporal_patch_size": 4, "qkv_bias": False},
                **{"num_registers": 3, "max_img_size": 1024, "mlp_ratio": 3.3},
            },
            **{"vision_hidden_size": 192, "video_temporal_patch_size": 4, "projector_hidden_size": 555},
        },
        {
            "audio_config": {
                **{"hidden_size": 256, "num_hidden_layers": 2, "convolution_bias": False},
                **{"projection_hidden_size": 123, "projection_bias": True},
            },
        },
    ),
]
"""Models that see, with two other shapes: the second is the first with these changes."""
SHAPED: list[tuple[str, dict[str, Any]]] = [
    *(
        (kind, {**first, **more, "tie_word_embeddings": tied})
        for kind, first, second in SEEN
        for more, tied in (({}, True), (second, False))
    ),
    (
        "hy_v4",
        {
            **{"num_hidden_layers": 6, "attention_bias": True, "tie_word_embeddings": True, "hc_mult": 3},
            **{"n_shared_experts": 2, "n_routed_experts": 16},
        },
    ),
    (
        "hy_v4_vl_text",
        {
            **{
                "num_hidden_layers": 3,
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "n_routed_experts": 8,
            },
            **{"indexer_types": ["full", "shared", "shared"], "v_head_dim": 64, "qk_nope_head_dim": 96},
        },
    ),
    (
        "hy_v4_vl",
        {
            "text_config": {"num_hidden_layers": 2, "n_routed_experts": 8},
            "vision_config": {
                **{"num_hidden_layers": 3, "hidden_size": 480, "num_attention_heads": 8, "patch_size": 14},
                **{"intermediate_size": 999, "spatial_merge_size": 3, "max_image_size": 1000},
            },
            "tie_word_embeddings": True,
        },
    ),
    (
        "axk2",
        {
            **{**ROUTED_TEXT, "num_key_value_heads": 8, "attention_bias": True, "gated_norm_rank": 5},
            **{"mlp_layer_types": ["sparse", "dense", "dense", "sparse"], "q_lora_rank": 77},
            **{"kv_lora_rank": 66, "v_head_dim": 32, "index_n_heads": 3, "tie_word_embeddings": True},
        },
    ),
    ("axk2", {**ROUTED_TEXT, "num_key_value_heads": 8, "first_k_dense_replace": 3, "n_shared_experts": 3}),
    (
        "bailing_hybrid",
        {
            **{**ROUTED_TEXT, "num_key_value_heads": 8, "attention_bias": True, "q_lora_rank": 77},
            **{"layer_group_size": 3, "head_dim": 48, "short_conv_kernel_size": 3},
            **{"tie_word_embeddings": True, "mlp_layer_types": ["sparse", "dense", "dense", "sparse"]},
        },
    ),
    (
        "bailing_hybrid",
        {
            **{**ROUTED_TEXT, "num_experts": 4, "num_shared_experts": 2, "first_k_dense_replace": 1},
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        },
    ),
    (
        "inkling_text",
        {
            **{**ROUTED_TEXT, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 96},
            **{"head_dim": 48, "d_rel": 7, "rel_extent": 55, "sliding_window_size": 44},
            **{"conv_kernel_size": 3, "n_shared_experts": 3, "local_layer_ids": [0, 3]},
            **{"dense_mlp_idx": 2, "tie_word_embeddings": True},
        },
    ),
    ("inkling_text", {**ROUTED_TEXT, "dense_intermediate_size": 2000, "dense_mlp_idx": 2}),
    *(
        (
            "zaya",
            {
                **{**PADDED, "num_experts": 8, "moe_intermediate_size": 64, "attention_bias": flag},
                **{"lm_head_bias": flag, "router_hidden_size": 33, "cca_time0": 3, "cca_time1": 4},
                **{"tie_word_embeddings": flag, "layer_types": ["hybrid", kind], "sliding_window": 100},
            },
        )
        for flag, kind in ((True, "hybrid_sliding"), (False, "hybrid"))
    ),
    (
        "dots3_note_text",
        {
            **{**ROUTED_TEXT, "num_key_value_heads": 8, "attention_bias": True, "n_shared_experts": 2},
            **{"shared_experts_intermediate_size": 77, "q_lora_rank": 66, "kv_lora_rank": 55},
            **{"index_n_heads": 3, "index_head_dim": 64, "moe_layer_freq": [1, 1, 0, 1]},
            **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 88},
            **{"swa_qk_nope_head_dim": 100, "tie_word_embeddings": True},
        },
    ),
    *(
        ("dots3_note_text", {**ROUTED_TEXT, "num_key_value_heads": 8, "use_dsa": flag, **more})
        for flag, more in (
            (True, {"layer_types": ["full_attention", "sliding_attention"] * 2}),
            (False, {"use_sliding_window": False}),
            (False, {"first_k_dense_replace": 0, "moe_layer_freq": 2}),
        )
    ),
    *(
        (
            "lasr_ctc",
            {
                "vocab_size": 99,
                "encoder_config": {
                    **{**LOOK, "attention_bias": flag, "convolution_bias": not flag, "conv_kernel_size": 16},
                    **{
                        "num_mel_bins": 64,
                        "subsampling_conv_channels": 100,
                        "subsampling_conv_kernel_size": 3,
                    },
                },
            },
        )
        for flag in (True, False)
    ),
    (
        "ultrabert",
        {
            **{**PADDED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
            **{"prediction_head_size": 99, "attention_windows": [64, 0]},
        },
    ),
    (
        "sam",
        {
            "vision_config": {**LOOK, "global_attn_indexes": [1, 5], "mlp_dim": 100},
            "mask_decoder_config": {"attention_downsample_rate": 4},
        },
    ),
    *(("nemotron_h", {"n_shared_experts": count}) for count in (0, 2)),
    (
        "internvl",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {**LOOK, "norm_type": "rms_norm", "use_mean_pooling": False},
        },
    ),
    ("omniasr_ctc", {"vocab_size": 100, "audio_config": HEARD}),
    ("omniasr", {"text_config": {"model_type": "qwen2", **TEXT}, "audio_config": HEARD}),
    (
        "omniasr",
        {
            "text_config": {"model_type": "llama", **TEXT, "tie_word_embeddings": True},
            "tie_word_embeddings": True,
        },
    ),
    (
        "lara_mini",
        {
            **{
                "num_hidden_layers": 7,
                "attention_bias": True,
                "tie_word_embeddings": False,
                "num_experts": 8,
            },
            **{
                "shared_expert_intermediate_size": 100,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 6,
            },
            "linear_conv_kernel_dim": 3,
        },
    ),
    (
        "lara_mini",
        {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    ("lara_mini", {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}),
    *(
        ("dory", {"n_recurrent_loops": loops, "mlp_bias": loops > 1, "tie_word_embeddings": True})
        for loops in (1, 5)
    ),
    ("dory", {**TEXT, "num_hidden_layers": 7, "n_input_layers": 1, "n_output_layers": 2, "head_dim": 32}),
    ("dory", {**TEXT, "num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 2}),
    (
        "dory",
        {
            **{**TEXT, "num_hidden_layers": 4, "n_input_layers": 0, "n_output_layers": 0},
            "layer_types": ["full_attention"] * 4,
        },
    ),
    *(
        ("apertus1p5_text", {**TEXT, "output_vocab_size": 700, "tie_word_embeddings": tied})
        for tied in (True, False)
    ),
    *(
        (
            "apertus1p5",
            {
                "text_config": {
                    "num_hidden_layers": 2,
                    "output_vocab_size": 131072,
                    "tie_word_embeddings": text,
                },
                "tie_word_embeddings": whole,
            },
        )
        for text in (True, False)
        for whole in (True, False)
    ),
    (
        "apertus1p5",
        {
            "text_config": {"num_hidden_layers": 2},
            "vision_config": {
                **{"channel_multiplier": [1, 2, 4], "attn_resolutions": [64, 128], "num_res_blocks": 2},
                **{"embed_dim": 64, "latent_channels": 96},
            },
            "audio_config": {
                **{"model_type": "wavtokenizer_encoder", "num_lstm_layers": 1, "use_conv_shortcut": False},
                **{"norm_type": "time_group_norm", "num_residual_layers": 2, "upsampling_ratios": [8, 4]},
                **{"hidden_size": 256, "codebook_dim": 256},
            },
        },
    ),
    (
        "exaone",
        {"num_hidden_layers": 2, "tie_word_embeddings": True, "head_dim": 64, "num_key_value_heads": 4},
    ),
    ("sarvam_mla", {"num_hidden_layers": 3, "q_lora_rank": 96, "first_k_dense_replace": 2, "v_head_dim": 64}),
    ("sarvam_mla", {"num_hidden_layers": 2, "first_k_dense_replace": 0, "n_routed_experts": 16}),
    (
        "sarvam_moe",
        {"num_hidden_layers": 3, "first_k_dense_replace": 2, "n_shared_experts": 2, "head_dim": 48},
    ),
    (
        "jetmoe",
        {"num_local_experts": 6, "num_experts_per_tok": 3, "num_key_value_heads": 4, "num_hidden_layers": 2},
    ),
    (
        "xlstm",
        {"hidden_size": 512, "num_hidden_layers": 2, "qk_dim_factor": 1.0, "tie_word_embeddings": True},
    ),
    ("xlstm", {"hidden_size": 512, "num_hidden_layers": 2, "weight_mode": "fused", "add_out_norm": False}),
    ("wav2vec2-conformer", {"position_embeddings_type": "rotary", "num_hidden_layers": 2, "conv_bias": True}),
    ("sew-d", {"share_att_key": False, "position_buckets": -1, "num_hidden_layers": 2}),
    ("sew-d", {"relative_attention": False, "num_hidden_layers": 2}),
    ("udop", {"num_layers": 2, "feed_forward_proj": "gated-gelu", "image_size": 512}),
    (
        "florence2",
        {
            "vision_config": {"model_type": "florence_vision", "embed_dim": [64, 128, 256, 512]},
            "text_config": {"model_type": "bart", "encoder_layers": 2, "decoder_layers": 3},
        },
    ),
    (
        "pix2struct",
        {"text_config": {"num_layers": 2}, "vision_config": {"num_hidden_layers": 3, "seq_len": 2048}},
    ),
    *(
        (
            "kosmos-2",
            {"text_config": {"layers": 2, "tie_word_embeddings": text}, "tie_word_embeddings": whole},
        )
        for text in (True, False)
        for whole in (True, False)
    ),
    ("kosmos-2.5", {"text_config": {"layers": 2, "tie_word_embeddings": False}, "latent_query_num": 100}),
    ("got_ocr2", {"text_config": {"model_type": "qwen2", **TEXT}, "vision_config": {"use_rel_pos": False}}),
    ("deepseek_vl_hybrid", {"text_config": {"model_type": "llama", **TEXT}, "tie_word_embeddings": False}),
    (
        "exaone4_5",
        {
            "text_config": {"model_type": "exaone4", **TEXT},
            "vision_config": {"depth": 6, "num_key_value_heads": 4, "out_hidden_size": 512},
        },
    ),
    (
        "granite_speech",
        {
            "text_config": {"model_type": "granite", **TEXT},
            "encoder_config": {"num_layers": 2, "output_dim": 256},
            "projector_config": {"model_type": "blip_2_qformer", "num_hidden_layers": 2},
        },
    ),
    (
        "chameleon",
        {**TEXT, "swin_norm": True, "vq_config": {"attn_resolutions": [32], "double_latent": True}},
    ),
    (
        "janus",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {"depth": 3, "projection_dim": 512, "num_hidden_layers": 2},
            "vq_config": {"num_res_blocks": 1},
        },
    ),
    (
        "idefics",
        {
            **{
                "num_hidden_layers": 4,
                "cross_layer_interval": 2,
                "use_resampler": True,
                "qk_layer_norms": True,
            },
            **{"alpha_type": "vector", "additional_vocab_size": 2, "vision_config": {"embed_dim": 1280}},
        },
    ),
    ("idefics", {"num_hidden_layers": 2, "additional_vocab_size": 2, "tie_word_embeddings": True}),
    (
        "prophetnet",
        {"num_encoder_layers": 2, "num_decoder_layers": 3, "ngram": 3, "tie_word_embeddings": False},
    ),
    (
        "dia",
        {
            "delay_pattern": [0, 1, 2, 3],
            "encoder_config": {"num_hidden_layers": 2, "hidden_size": 512, "num_key_value_heads": 4},
            "decoder_config": {"num_hidden_layers": 3, "cross_hidden_size": 512, "num_channels": 4},
        },
    ),
    ("trocr", {"decoder_layers": 2, "cross_attention_hidden_size": 768, "layernorm_embedding": False}),
    ("trocr", {"decoder_layers": 2, "use_learned_position_embeddings": False, "tie_word_embeddings": False}),
    ("reformer", {"attn_layers": ["local", "local", "lsh"], "num_attention_heads": 2}),
    ("reformer", {"attn_layers": ["lsh"] * 3, "axial_pos_embds": False, "num_hashes": 4}),
    ("funnel", {"block_sizes": [2, 3], "block_repeats": [1, 2], "num_decoder_layers": 1, "n_head": 8}),
    ("perceiver", {"qk_channels": 256, "v_channels": 1280, "num_self_attends_per_block": 2}),
    (
        "perceiver",
        {
            **{"num_blocks": 2, "d_latents": 512, "num_self_attends_per_block": 3, "num_latents": 100},
            **{"self_attention_widening_factor": 2, "cross_attention_widening_factor": 3},
            "cross_attention_shape_for_attention": "q",
        },
    ),
    ("moshi", {"num_hidden_layers": 2, "num_key_value_heads": 8, "ffn_dim": 1024}),
    ("kyutai_speech_to_text", {"num_hidden_layers": 2, "num_key_value_heads": 4, "codec_config": MIMI}),
    (
        "csm",
        {
            **{"num_hidden_layers": 2, "tie_codebooks_embeddings": False, "attention_bias": True},
            "depth_decoder_config": {"num_hidden_layers": 2, "hidden_size": 512, "mlp_bias": True},
        },
    ),
    (
        "qwen2_5_omni",
        {
            "talker_config": {"num_hidden_layers": 2, "hidden_size": 896, "num_attention_heads": 12},
            "token2wav_config": {
                "dit_config": {"num_hidden_layers": 2, "ff_mult": 4, "enc_dim": 192},
                "bigvgan_config": {"upsample_rates": [5, 3], "upsample_kernel_sizes": [11, 7]},
            },
        },
    ),
    ("qwen2_5_omni", {"enable_audio_output": False, "thinker_config": {"text_config": TEXT}}),
    (
        "ernie4_5_vl_moe",
        {
            "text_config": {
                **{
                    **TEXT,
                    "num_attention_heads": 4,
                    "num_hidden_layers": 4,
                    "moe_num_experts": 8,
                    "moe_k": 2,
                },
                **{"moe_intermediate_size": [256, 128]},
                "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            },
            "vision_config": {"depth": 2, "hidden_size": 320, "temporal_merge_size": 3},
            "tie_word_embeddings": False,
        },
    ),
    (
        "molmo2",
        {
            "text_config": {**TEXT, "attention_bias": True, "qk_norm_type": "olmo"},
            "vision_config": {"num_hidden_layers": 3, "attention_bias": False},
            "adapter_config": {"mlp_bias": True, "text_hidden_size": 512, "vision_feature_layer": [-1]},
        },
    ),
    (
        "molmo2",
        {
            "text_config": {**TEXT, "norm_after": True, "additional_vocab_size": 0},
            "vision_config": {"num_hidden_layers": 12, "num_position_embeddings": 100},
            "adapter_config": {"num_key_value_heads": 4, "vision_feature_layer": [3, 7, 11]},
            "tie_word_embeddings": True,
        },
    ),
    (
        "granite_speech_plus",
        {
            "text_config": {"model_type": "granite", **TEXT},
            "encoder_config": {"num_layers": 3, "cat_hidden_layers": [1]},
            "projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 2048},
        },
    ),
    ("seamless_m4t", SPEECH),
    ("gemma4", {"vision_config": None, "text_config": {"num_hidden_layers": 2}}),
    ("gemma4", {"vision_config": None, "audio_config": None}),
    *(("laguna", {"gating": gating, "num_hidden_layers": 2}) for gating in (False, "per-head")),
    *(
        ("opt", {key: key.startswith("_")})
        for key in ("layer_norm_elementwise_affine", "_remove_final_layer_norm")
    ),
    ("nomic_bert", {"head_dim": 32}),
    ("gemma4_unified", {"vision_config": None, "text_config": {"num_hidden_layers": 2}}),
    (
        "phi4_multimodal",
        {
            **{"num_hidden_layers": 2, "tie_word_embeddings": True},
            "audio_config": {"num_blocks": 2, "bias_symmetric": True},
        },
    ),
]
"""Other shapes than the default one, with keys that public files have otherwise."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "changes"), every(3, SHAPED))
def test_other_shapes_are_counted(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """As the default one is."""
    config = default(kind, **changes)
    parameters, architecture = counted(kind, config)
    assert read(tmp_path, config, architecture) == parameters


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("inkling_mm_model", {"vision_config": {"num_hidden_layers": 4}}),
        ("zaya", {"router_hidden_size": 16}),
        ("dory", {"attention_bias": True}),
        ("hy_v4", {"num_hidden_layers": 2, "indexer_types": ["full", "none"]}),
        ("hy_v4_vl", {"vision_config": {"head_dim": 32}}),
        ("xlstm", {"use_bias": True}),
        ("moonshine", {"encoder_num_hidden_layers": 0}),
        ("convnext", {"num_stages": 2}),
        ("segformer", {"num_encoder_blocks": 3}),
        ("laguna", {"num_attention_heads_per_layer": [44] * 40}),
        ("perceiver", {"v_channels": 256}),
        ("dia", {"decoder_config": {"cross_head_dim": 64}}),
        ("marian", {"decoder_vocab_size": 100}),
        ("reformer", {"tie_word_embeddings": True}),
        ("funnel", {"block_repeats": [2, 2, 2]}),
        ("moshi", {"tie_word_embeddings": True}),
        ("seamless_m4t", {"add_adapter": False}),
        ("seamless_m4t", {"num_adapter_layers": 0}),
        ("ernie4_5_vl_moe", {"text_config": {"use_bias": True}}),
        ("florence2", {"text_config": {"model_type": "bart", "tie_word_embeddings": False}}),
        ("pix2struct", {"vision_config": {"hidden_size": 1536, "num_attention_heads": 24}}),
        ("sew-d", {"conv_dim": [64, 768], "conv_kernel": [10, 3], "conv_stride": [5, 2]}),
    ],
)
def test_shapes_that_would_be_counted_wrong_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    """Rather than taken for others."""
    with pytest.raises(SpecError):
        read(tmp_path, default(kind, **changes))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["inkling2_loop", "inkling2_loop_text"])
def test_layers_with_experts_that_are_run_again_are_refused(tmp_path: Path, kind: str) -> None:
    """With what is missing, and no hint at a part that would be refused too."""
    with pytest.raises(
        SpecError, match=r"model_type: .* no shape has layers with experts that are run again"
    ):
        read(tmp_path, default(kind))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["inkling2", "inkling2_text"])
def test_layers_that_attend_to_earlier_ones_are_refused(tmp_path: Path, kind: str) -> None:
    """By name, as no sizes of single layers say what is kept for them."""
    with pytest.raises(SpecError, match=r"model_type: .* attend to what earlier layers made"):
        read(tmp_path, default(kind))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", ["wavtokenizer", "wavtokenizer_encoder", "apertus1p5_vision_tokenizer", "mimi"]
)
def test_what_makes_codes_is_refused(tmp_path: Path, kind: str) -> None:
    """Alone, as it is no model of a language."""
    with pytest.raises(SpecError, match=f'model_type: the model type "{kind}" is not supported'):
        read(tmp_path, default(kind))


STRICT = hub.errors.StrictDataclassError
CONTRARY: list[tuple[str, str, dict[str, Any], str, type[Exception]]] = [
    *(
        ("dory", "DoryForCausalLM", wrong, said, refusal)
        for wrong, said, refusal in (
            (
                {"n_recurrent_layers": 38},
                "n_recurrent_layers: expected what makes up num_hidden_layers, 36",
                STRICT,
            ),
            ({"n_recurrent_loops": 0}, "n_recurrent_loops: expected a whole number from 1", STRICT),
            (
                {"layer_types": ["full_attention", "mlp"] * 35 + ["linear_attention", "mlp"]},
                *(
                    'layer_types: expected full_attention or sliding_attention, got "linear_attention"',
                    KeyError,
                ),
            ),
        )
    ),
    (
        *("reformer", "ReformerModelWithLMHead", {"is_decoder": False}),
        *("is_decoder: expected true", AssertionError),
    ),
    ("reformer", "ReformerForMaskedLM", {"is_decoder": True}, "is_decoder: expected false", AssertionError),
    ("reformer", "ReformerModel", {"num_hidden_layers": 7}, "num_hidden_layers: expected 6", IndexError),
    (
        *("reformer", "ReformerModel", {"axial_pos_embds_dim": [64, 64]}),
        *("axial_pos_embds_dim: expected widths that add up to hidden_size 256", ValueError),
    ),
    (
        *("funnel", "FunnelModel", {"num_hidden_layers": 11}),
        *("num_hidden_layers: expected 12", NotImplementedError),
    ),
    ("moshi", "MoshiForCausalLM", {"ffn_dim": 1001}, "ffn_dim: expected an even number", STRICT),
    (
        *("kyutai_speech_to_text", "KyutaiSpeechToTextForConditionalGeneration", {"ffn_dim": 1001}),
        *("even number", STRICT),
    ),
    (
        *("dia", "DiaForConditionalGeneration", {"delay_pattern": [0, 8]}),
        *("delay_pattern: expected as many", STRICT),
    ),
    (
        *("apertus1p5_text", "Apertus1p5TextForCausalLM", {"output_vocab_size": 266753}),
        *("output_vocab_size: expected a whole number from 1 to vocab_size 266752, got 266753", STRICT),
    ),
    (
        *(
            "omniasr_ctc",
            "OmniASRForCTC",
            {"audio_config": {"model_type": "omniasr_audio", "hidden_size": 1000}},
        ),
        *("audio_config.num_attention_heads: expected a divisor of hidden_size 1000, got 16", ValueError),
    ),
    (
        *("mistral_large4_text", "MistralLarge4TextModel", {"kv_source_layers": [*range(71), 72]}),
        *("kv_source_layers: expected numbers of earlier layers", STRICT),
    ),
    (
        *("gemma2", "Gemma2ForCausalLM", {"layer_types": ["full_attention"]}),
        *("layer_types: expected one for each", STRICT),
    ),
    (
        *("gemma2", "Gemma2ForCausalLM", {"layer_types": [*["full_attention"] * 25, "full"]}),
        *('layer_types: layers of type "full" are not supported', STRICT),
    ),
]
"""A type, its class, a key that contradicts others, what hetplan says of it, and what transformers raises."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "architecture", "wrong", "said", "refusal"), CONTRARY)
def test_what_transformers_does_not_build_is_refused(
    tmp_path: Path,
    kind: str,
    architecture: str,
    wrong: dict[str, Any],
    said: str,
    refusal: type[Exception],
) -> None:
    """By file and key."""
    values = json.loads(default(kind).to_json_string(use_diff=False))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, **wrong, "architectures": [architecture]}))
    with pytest.raises(SpecError, match=f"config.json.*{said}"):
        load_model(path)
    with pytest.raises(refusal), torch.device("meta"), unfilled():
        getattr(transformers, architecture)(transformers.CONFIG_MAPPING[kind].from_dict({**values, **wrong}))


REMOTE: list[tuple[str, dict[str, Any]]] = [
    (
        "step3p7",
        {
            "text_config": {
                **{"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "head_dim": 64},
                **{"num_attention_groups": 4, "intermediate_size": 1024, "vocab_size": 1000},
                **{"moe_num_experts": 8, "moe_top_k": 2, "share_expert_dims": 77, "moe_layers_enum": "2,3"},
                **{"layer_types": [*["sliding_attention"] * 4, "full_attention"], "sliding_window": 64},
                **{"attention_other_setting": {"num_attention_heads": 12}, "num_nextn_predict_layers": 1},
            },
            "vision_config": {"width": 192, "layers": 3, "heads": 6},
            "architectures": ["Step3p7ForConditionalGeneration"],
        },
    ),
    (
        "dory",
        {
            **{
                **TEXT,
                "num_hidden_layers": 6,
                "n_input_layers": 2,
                "n_recurrent_layers": 3,
                "n_output_layers": 1,
            },
            "architectures": ["DoryForCausalLM"],
        },
    ),
    (
        "exaone",
        {
            **{"num_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2},
            **{"intermediate_size": 1024, "vocab_size": 1000, "layer_norm_epsilon": 1e-5},
            "architectures": ["ExaoneForCausalLM"],
        },
    ),
    (
        "sarvam_moe",
        {
            **{
                "num_hidden_layers": 3,
                "hidden_size": 512,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
            },
            **{"intermediate_size": 1024, "moe_intermediate_size": 128, "num_experts": 8, "vocab_size": 1000},
            **{"num_shared_experts": 2, "num_experts_per_tok": 2, "head_dim": 64, "use_qkv_bias": True},
            **{"use_bias": False, "use_qk_norm": True, "architectures": ["SarvamMoEForCausalLM"]},
        },
    ),
    (
        "sarvam_mla",
        {
            **{"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "q_lora_rank": None},
            **{"intermediate_size": 1024, "moe_intermediate_size": 128, "num_experts": 8, "vocab_size": 1000},
            **{"num_shared_experts": 2, "num_experts_per_tok": 2, "kv_lora_rank": 64, "head_dim": 128},
            **{"q_head_dim": 192, "architectures": ["SarvamMLAForCausalLM"]},
        },
    ),
]
"""A type, and a file with keys that transformers reads and does not write, as those of repositories that had a class of
their own."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "values"), REMOTE)
def test_files_that_transformers_reads_and_does_not_write_are_counted(
    tmp_path: Path, kind: str, values: dict[str, Any]
) -> None:
    """As transformers reads them."""
    parameters, _ = counted(kind, transformers.CONFIG_MAPPING[kind].from_dict(deepcopy(values)))
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": kind}))
    assert load_model(tmp_path / "config.json").parameters == parameters


DISPUTED: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"num_hidden_layers": 3}),
    ("t5", {"d_model": 256, "hidden_size": 512, "num_attention_heads": 4}),
    ("whisper", {"num_hidden_layers": 2}),
    ("exaone", {"num_layers": 3}),
    ("sarvam_moe", {"use_qkv_bias": True}),
    ("moonshine", {"decoder_num_attention_heads": 4, "decoder_num_key_value_heads": 2}),
    ("zamba2", {"attention_head_dim": 80}),
    ("mamba", {"expand": 16}),
    ("falcon_mamba", {"intermediate_size": 768}),
    ("exaone_moe", {"first_k_dense_replace": 2}),
    ("deepseek_v32", {"first_k_dense_replace": 4}),
    ("idefics2", {"perceiver_config": {"hidden_size": 1024}}),
    *(
        (kind, {"text_config": {"tie_word_embeddings": True}})
        for kind in ("audioflamingo3", "glm4v_moe", "glm_ocr", "musicflamingo", "video_llama_3")
    ),
    ("paddleocr_vl", {"tie_word_embeddings": False}),
]
"""A type, and keys that say other than what transformers goes by."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "changes"), DISPUTED)
def test_of_two_keys_the_one_that_transformers_goes_by_counts(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    """As in files that were written by hand or by other programs."""
    values = json.loads(default(kind).to_json_string(use_diff=False))
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    parameters, architecture = counted(kind, transformers.CONFIG_MAPPING[kind].from_dict(deepcopy(values)))
    (tmp_path / "config.json").write_text(json.dumps({**values, "architectures": [architecture]}))
    assert load_model(tmp_path / "config.json").parameters == parameters


NOT_BUILT = (
    "should be used as a decoder model if cross attention is added",
    "Cross-attention not implemented for MQA",
    "make sure that `is_decoder=True`",
)
"""What transformers says of switches with which it builds no model, in errors of several kinds."""


def compared(folder: Path, kind: str) -> dict[str, tuple[int, int]]:
    """(parameters that are read, those that transformers counts) by the switch that was turned, of all that both
    make something of."""
    both = {}
    for name, config in variants(kind):
        try:
            parameters, architecture = counted(kind, config)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            if not any(words in str(error) for words in NOT_BUILT):
                raise
            continue
        try:
            both[name] = (read(folder, config, architecture), parameters)
        except SpecError:
            continue
    return both


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in supported() if kind not in INSIDE])
def test_switches_are_counted_or_refused(tmp_path: Path, kind: str) -> None:
    """A key that adds biases, norms or an output layer is never overlooked."""
    both = compared(tmp_path, kind)
    assert {name: read for name, (read, _) in both.items()} == {
        name: wanted for name, (_, wanted) in both.items()
    }


SWITCHED = [
    ("llama", {"attention_bias", "mlp_bias", "tie_word_embeddings"}),
    ("falcon", {"bias", "multi_query", "parallel_attn", "new_decoder_architecture", "tie_word_embeddings"}),
    ("bamba", {"attention_bias", "mamba_conv_bias", "mamba_proj_bias", "tie_word_embeddings"}),
    ("vit", {"qkv_bias"}),
    ("stablelm", {"qk_layernorm", "use_parallel_residual", "use_qkv_bias", "tie_word_embeddings"}),
    ("gpt_bigcode", {"multi_query", "tie_word_embeddings"}),
    ("wav2vec2", {"conv_bias"}),
    ("qwen3_moe", {"attention_bias", "tie_word_embeddings"}),
]
"""Switches of some types that both must make something of: were all variants passed over, these would be missed."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "least"), every(3, SWITCHED))
def test_switches_are_compared_at_all(tmp_path: Path, kind: str, least: set[str]) -> None:
    """None of these is passed over."""
    assert compared(tmp_path, kind).keys() >= least
