"""Published shapes against the parameters that transformers counts of them on its meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost.compute import model_flops
from planner.model.file import load_model

SHAPES: dict[str, tuple[int, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("shapes.json").read_text(encoding="utf-8")
)
"""(parameters, the keys of its ``config.json`` that say its shape) by name; transformers 5.24.0 has counted them."""
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "openelm-270m": (
        271_527_168,
        {
            **{"model_type": "openelm", "model_dim": 1280, "head_dim": 64, "num_transformer_layers": 16},
            **{"ffn_dim_divisor": 256, "ffn_with_glu": True, "normalize_qk_projections": True},
            "num_query_heads": [12, 12, 12, 12, 12, 16, 16, 16, 16, 16, 16, 16, 20, 20, 20, 20],
            "num_kv_heads": [3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5],
            "ffn_multipliers": [
                *(0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13),
                *(2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0),
            ],
            **{"share_input_output_layers": True, "vocab_size": 32000},
        },
    ),
    # Counted by transformers 5.23.0 with timm 1.0.31.
    "gemma-3n-e4b": (
        7_818_517_072,
        {
            **{"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"]},
            "text_config": {
                **{
                    "model_type": "gemma3n_text",
                    "hidden_size": 2048,
                    "num_hidden_layers": 35,
                    "head_dim": 256,
                },
                **{"intermediate_size": 16384, "num_attention_heads": 8, "num_key_value_heads": 2},
                **{"num_kv_shared_layers": 15, "vocab_size": 262400, "sliding_window": 512},
            },
            "vision_config": {"model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc"},
            "audio_config": {
                "model_type": "gemma3n_audio",
                "hidden_size": 1536,
                "conf_num_hidden_layers": 12,
            },
        },
    ),
    "minicpm-v-2.6": (
        8_099_175_152,
        {
            **{"model_type": "minicpmv", "architectures": ["MiniCPMV"], "version": 2.6, "query_num": 64},
            **{
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "vocab_size": 151666,
            },
            **{"num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
            "vision_config": {
                **{"model_type": "siglip", "hidden_size": 1152, "intermediate_size": 4304, "image_size": 980},
                **{"num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14},
            },
        },
    ),
    "llava-onevision-7b, its authors' file": (
        8_030_348_832,
        {
            **{"model_type": "llava_qwen", "architectures": ["LlavaQwenForCausalLM"], "vocab_size": 152064},
            **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28},
            **{"num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
            **{"mm_vision_tower": "google/siglip-so400m-patch14-384", "mm_projector_type": "mlp2x_gelu"},
            "mm_patch_merge_type": "spatial_unpad",
        },
    ),
    "olmo-1b, its authors' file": (
        1_176_764_416,
        {
            **{
                "model_type": "hf_olmo",
                "architectures": ["OLMoForCausalLM"],
                "d_model": 2048,
                "n_layers": 16,
            },
            **{"n_heads": 16, "mlp_ratio": 8, "mlp_hidden_size": None, "vocab_size": 50280},
            **{"embedding_size": 50304, "weight_tying": True, "activation_type": "swiglu"},
        },
    ),
    "jina-embeddings-v2-base": (
        137_368_320,
        {
            **{"model_type": "bert", "architectures": ["JinaBertModel"], "hidden_size": 768},
            **{"num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
            **{"vocab_size": 30528, "type_vocab_size": 2, "max_position_embeddings": 8192},
            **{"feed_forward_type": "geglu", "position_embedding_type": "alibi"},
        },
    ),
    # Its adapters of five tasks are counted as they are published with it.
    "jina-embeddings-v3": (
        572_310_396,
        {
            **{"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "hidden_size": 1024},
            **{"num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
            **{"vocab_size": 250002, "type_vocab_size": 1, "max_position_embeddings": 8194},
            **{"lora_adaptations": ["a", "b", "c", "d", "e"], "lora_rank": 4},
        },
    ),
    "nomic-embed-text-v2-moe": (
        475_292_928,
        {
            **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 768},
            **{"n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 2048, "vocab_size": 250048},
            **{"type_vocab_size": 1, "activation_function": "gelu", "qkv_proj_bias": True},
            **{"mlp_fc1_bias": True, "mlp_fc2_bias": True, "num_experts": 8, "moe_top_k": 2},
            **{"moe_every_n_layers": 2, "num_shared_experts": 0},
        },
    ),
    "dnabert-2-117m": (
        117_068_544,
        {
            **{"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768},
            **{"num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
            **{"vocab_size": 4096, "type_vocab_size": 2, "max_position_embeddings": 512},
            "alibi_starting_size": 512,
        },
    ),
    "qwen-vl": (
        9_656_935_168,
        {
            **{"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "hidden_size": 4096},
            **{"intermediate_size": 22016, "kv_channels": 128, "num_attention_heads": 32},
            **{"num_hidden_layers": 32, "vocab_size": 151936, "no_bias": True, "tie_word_embeddings": False},
            "visual": {
                **{"heads": 16, "image_size": 448, "layers": 48, "mlp_ratio": 4.9231},
                **{"output_dim": 4096, "patch_size": 14, "width": 1664},
            },
        },
    ),
    # The keys of the first Qwen of August 2023.
    "qwen-7b-first": (
        7_721_324_544,
        {
            **{"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "n_embd": 4096, "n_head": 32},
            **{"n_layer": 32, "n_inner": None, "ffn_hidden_size": 22016, "kv_channels": 128},
            **{"vocab_size": 151936, "no_bias": True, "tie_word_embeddings": False},
        },
    ),
    "deepseek-ocr": (
        3_336_106_240,
        {
            **{"model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"]},
            "language_config": {
                **{"first_k_dense_replace": 1, "hidden_size": 1280, "intermediate_size": 6848},
                **{"kv_lora_rank": None, "moe_intermediate_size": 896, "n_routed_experts": 64},
                **{"n_shared_experts": 2, "num_attention_heads": 10, "num_experts_per_tok": 6},
                **{"num_hidden_layers": 12, "num_key_value_heads": 10, "use_mla": False},
                "vocab_size": 129280,
            },
            "projector_config": {"input_dim": 2048, "n_embed": 1280, "projector_type": "linear"},
            "vision_config": {
                **{"image_size": 1024, "model_name": "deeplip_b_l", "model_type": "vision"},
                "width": {
                    "clip-l-14-224": {
                        **{"heads": 16, "image_size": 224, "layers": 24},
                        **{"patch_size": 14, "width": 1024},
                    },
                    "sam_vit_b": {
                        **{"downsample_channels": [512, 1024], "global_attn_indexes": [2, 5, 8, 11]},
                        **{"heads": 12, "layers": 12, "width": 768},
                    },
                },
            },
        },
    ),
    # By formula: its authors say 13.6 billion without the table of tokens.
    "minicpm-moe-8x2b": (
        13_873_291_776,
        {
            **{"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "hidden_size": 2304},
            **{"intermediate_size": 5760, "num_attention_heads": 36, "num_key_value_heads": 36},
            **{"num_hidden_layers": 40, "vocab_size": 122753, "num_experts": 8, "num_experts_per_tok": 2},
        },
    ),
    "minimax-text-01": (
        456_089_655_296,
        {
            **{"model_type": "minimax_text_01", "hidden_size": 6144, "num_hidden_layers": 80},
            **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064},
            **{"intermediate_size": 9216, "num_local_experts": 32, "num_experts_per_tok": 2},
            **{"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "shared_intermediate_size": 0},
        },
    ),
}
"""The same of types that transformers has no class for, by their authors."""


def loaded(folder: Path, config: dict[str, Any]) -> Any:
    """The model of a configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return load_model(path)


@pytest.mark.parametrize("name", [*SHAPES, *PUBLISHED])
def test_published_shapes_are_counted(tmp_path: Path, name: str) -> None:
    """To the last parameter."""
    parameters, config = (SHAPES | PUBLISHED)[name]
    assert loaded(tmp_path, config).parameters == parameters


FLOPS = {
    # Of a forward of one image; papers count a multiplication and an addition as one.
    "resnet-50": 2 * 4.1e9,
    "swin-tiny": 2 * 4.5e9,
    "convnext-tiny": 2 * 4.5e9,
    "convnextv2-tiny": 2 * 4.47e9,
    "vit-base-224": 2 * 17.6e9,
}


@pytest.mark.parametrize("name", FLOPS)
def test_operations_of_an_image_are_the_published_ones(tmp_path: Path, name: str) -> None:
    """A step is a forward and a backward of twice as much, but for the pixels, which have no gradient."""
    model = loaded(tmp_path, SHAPES[name][1])
    forward = model_flops(model) / model.training.global_batch / 3
    assert forward == pytest.approx(FLOPS[name], rel=0.05)
