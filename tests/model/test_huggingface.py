"""Hugging Face configurations against the parameter counts that their authors publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.huggingface.config import supported
from tests.files.writing import the_problem


def llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """A configuration of the Llama family."""
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        **more,
    }


def gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """A configuration of GPT-2."""
    shape = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "vocab_size": 50257}
    return {"model_type": "gpt2", "n_inner": None, **shape}


def opt(layers: int, hidden: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """A configuration of OPT."""
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_dim": ffn,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        **more,
    }


def common(
    kind: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """A configuration with the usual keys."""
    return {**llama(layers, hidden, heads, heads, ffn, vocab), "model_type": kind, **more}


MASKED: dict[str, Any] = {"tie_word_embeddings": True, "architectures": ["BertForMaskedLM"]}
PUBLISHED = {
    "llama-2-7b": (llama(32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "llama-2-13b": (llama(40, 5120, 40, 40, 13824, 32000), 13_015_864_320),
    "llama-2-70b": (llama(80, 8192, 64, 8, 28672, 32000), 68_976_648_192),
    "llama-3-8b": (llama(32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "llama-3-70b": (llama(80, 8192, 64, 8, 28672, 128256), 70_553_706_496),
    "llama-3-405b": (llama(126, 16384, 128, 8, 53248, 128256), 405_853_388_800),
    "tinyllama": (llama(22, 2048, 32, 4, 5632, 32000), 1_100_048_384),
    "mistral-7b": ({**llama(32, 4096, 32, 8, 14336, 32000), "model_type": "mistral"}, 7_241_732_096),
    "qwen2-7b": ({**llama(28, 3584, 28, 4, 18944, 152064), "model_type": "qwen2"}, 7_615_616_512),
    "qwen2.5-0.5b": (
        {**llama(24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True), "model_type": "qwen2"},
        494_032_768,
    ),
    "qwen3-8b": (
        {**llama(36, 4096, 32, 8, 12288, 151936, head_dim=128), "model_type": "qwen3"},
        8_190_735_360,
    ),
    "gemma-7b": (
        common("gemma", 28, 3072, 16, 24576, 256000, head_dim=256, tie_word_embeddings=True),
        8_537_680_896,
    ),
    "phi-2": (common("phi", 32, 2560, 32, 10240, 51200), 2_779_683_840),
    "phi-3-mini": (common("phi3", 32, 3072, 32, 8192, 32064), 3_821_079_552),
    "gpt2": (gpt2(12, 768, 12), 124_439_808),
    "gpt2-xl": (gpt2(48, 1600, 25), 1_557_611_200),
    "gpt-neo-2.7b": (
        {
            "model_type": "gpt_neo",
            "num_layers": 32,
            "hidden_size": 2560,
            "num_heads": 20,
            "intermediate_size": None,
            "vocab_size": 50257,
            "max_position_embeddings": 2048,
        },
        2_651_307_520,
    ),
    "gpt-neox-20b": (common("gpt_neox", 44, 6144, 64, 24576, 50432), 20_554_567_680),
    "opt-125m": (opt(12, 768, 12, 3072, word_embed_proj_dim=768), 125_239_296),
    "opt-350m": (opt(24, 1024, 16, 4096, word_embed_proj_dim=512, do_layer_norm_before=False), 331_196_416),
    "opt-6.7b": (opt(32, 4096, 32, 16384), 6_658_473_984),
    "bert-large": (
        common("bert", 24, 1024, 16, 4096, 30522, max_position_embeddings=512, **MASKED),
        335_174_458,
    ),
    "bert-base": (
        common("bert", 12, 768, 12, 3072, 30522, max_position_embeddings=512, **MASKED),
        109_514_298,
    ),
}


REMOTE: dict[str, tuple[dict[str, Any], int]] = {
    "baichuan-7b": (common("baichuan", 32, 4096, 32, 11008, 64000), 7_000_559_616),
    "chatglm2-6b": (
        {
            **{"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696},
            **{"num_attention_heads": 32, "kv_channels": 128, "multi_query_attention": True},
            **{"multi_query_group_num": 2, "padded_vocab_size": 65024, "add_qkv_bias": True},
            **{"add_bias_linear": False, "rmsnorm": True, "architectures": ["ChatGLMModel"]},
        },
        6_243_584_000,
    ),
    "qwen-7b": (common("qwen", 32, 4096, 32, 22016, 151936, kv_channels=128), 7_721_324_544),
    "internlm2-7b": (
        {**llama(32, 4096, 32, 8, 14336, 92544), "model_type": "internlm2", "bias": False},
        7_737_708_544,
    ),
    "deepseek-moe-16b": (
        {
            **common("deepseek", 28, 2048, 16, 10944, 102400),
            **{"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
            **{"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1},
        },
        16_375_728_128,
    ),
    "phi-2": (
        {
            **{"model_type": "phi-msft", "n_layer": 32, "n_embd": 2560, "n_head": 32, "n_inner": None},
            **{"vocab_size": 51200, "n_positions": 2048},
        },
        2_779_683_840,
    ),
    "falcon-7b": (
        {
            **{"model_type": "RefinedWebModel", "n_layer": 32, "hidden_size": 4544, "n_head": 71},
            **{"vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False},
            "architectures": ["RWForCausalLM"],
        },
        6_921_720_704,
    ),
}
"""The same of types that transformers has no class for."""


@pytest.mark.parametrize("name", REMOTE)
def test_types_with_code_of_their_own_are_counted_by_formula(tmp_path: Path, name: str) -> None:
    """To the last parameter too."""
    config, parameters = REMOTE[name]
    assert load_model(written(tmp_path, config)).parameters == parameters


def test_sequences_longer_than_the_learned_positions(tmp_path: Path) -> None:
    """Are refused where somebody asks for them, and nobody else gets them; of both names of that number, transformers
    goes by ``max_position_embeddings``."""
    config = gpt2(2, 64, 2)
    both = {**config, "max_position_embeddings": 4096}
    assert load_model(written(tmp_path, both)).training.sequence_length == 4096
    assert load_model(written(tmp_path, config)).training.sequence_length == 1024
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: config.json\ntraining: {sequence_length: 2048}\n")
    problem = the_problem(load_model, path)
    assert problem.key == "training.sequence_length"
    assert problem.what == "expected at most the 1024 learned positions of the configuration, got 2048"
    assert problem.hint is None


@pytest.mark.parametrize(
    ("kind", "more", "positions"),
    [
        ("roberta", {}, 512),
        ("xlm-roberta", {"pad_token_id": 1}, 512),
        ("camembert", {"pad_token_id": 3}, 510),
        ("longformer", {"pad_token_id": None}, 512),
        ("mpnet", {"pad_token_id": 3}, 512),
        ("markuplm", {}, 513),
        ("markuplm", {"pad_token_id": 1}, 512),
        ("bert", {"pad_token_id": 1}, 514),
    ],
)
def test_positions_behind_the_one_of_padding(
    tmp_path: Path, kind: str, more: dict[str, Any], positions: int
) -> None:
    """Rows of the table up to it are parameters, and no token of a sequence has them."""
    config = common(kind, 2, 64, 2, 256, 1000, max_position_embeddings=514, tie_word_embeddings=True, **more)
    longer = load_model(written(tmp_path, {**config, "max_position_embeddings": 515}))
    model = load_model(written(tmp_path, config))
    assert model.training.sequence_length == model.learned_positions == positions
    assert longer.parameters - model.parameters == 64
    path = tmp_path / "model.yaml"
    path.write_text(f"huggingface: config.json\ntraining: {{sequence_length: {positions + 1}}}\n")
    problem = the_problem(load_model, path)
    what = f"expected at most the {positions} learned positions of the configuration, got {positions + 1}"
    assert problem.what == what
    are = "is" if positions == 513 else "are"
    kept = f"of max_position_embeddings {514 - positions} {are} kept for padding"
    assert problem.hint == (kept if positions < 514 else None)


def test_the_sequences_of_a_model_of_images_are_its_patches(tmp_path: Path) -> None:
    """And a token of the class; nobody may ask for others."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"model_type": "vit", **sizes, "image_size": 64, "patch_size": 16, "num_labels": 7}
    config["architectures"] = ["ViTForImageClassification"]
    model = load_model(written(tmp_path, config))
    assert (model.training.sequence_length, model.outputs, model.pooled) == (17, 7, True)
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: config.json\ntraining: {sequence_length: 2048}\n")
    assert the_problem(load_model, path).key == "training.sequence_length"


def written(folder: Path, config: dict[str, Any]) -> Path:
    """The configuration as a file."""
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=1))
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(tmp_path: Path, name: str) -> None:
    """To the last parameter."""
    config, parameters = PUBLISHED[name]
    assert load_model(written(tmp_path, config)).parameters == parameters


def test_published_families_are_supported() -> None:
    """All are also counted by transformers, in ``test_counts.py``."""
    assert {config["model_type"] for config, _ in PUBLISHED.values()} <= set(supported())


def test_bert_is_an_encoder(tmp_path: Path) -> None:
    """With full attention."""
    assert load_model(written(tmp_path, PUBLISHED["bert-large"][0])).kind == "encoder"


@pytest.mark.parametrize("kind", ["efficientnet", "speecht5", "blt"])
def test_an_unknown_family_names_the_known_ones(tmp_path: Path, kind: str) -> None:
    """And the way around."""
    problem = the_problem(load_model, written(tmp_path, {"model_type": kind}))
    assert (problem.line, problem.key) == (2, "model_type")
    assert problem.what == f'the model type "{kind}" is not supported'
    assert "llama" in str(problem.hint)
    assert "write the shape as a model file" in str(problem.hint)


def test_what_speaks_besides_says_where_what_reads_stands(tmp_path: Path) -> None:
    """Which is read on its own."""
    config = {"model_type": "qwen3_omni_moe", "thinker_config": {"model_type": "qwen3_omni_moe_thinker"}}
    problem = the_problem(load_model, written(tmp_path, config))
    assert problem.key == "model_type"
    assert "save what stands under thinker_config as a config.json" in str(problem.hint)
    assert "qwen3_omni_moe_thinker" in supported()


def test_a_model_that_speaks_needs_what_reads(tmp_path: Path) -> None:
    """Under its key."""
    problem = the_problem(load_model, written(tmp_path, {"model_type": "qwen2_5_omni"}))
    assert problem.key == "thinker_config"
    assert problem.what.startswith("missing")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "florence2", "tie_word_embeddings": False}, "tie_word_embeddings"),
        (
            {"model_type": "florence2", "text_config": {"d_model": 768, "tie_word_embeddings": False}},
            "text_config.tie_word_embeddings",
        ),
        (
            {"model_type": "florence2", "vision_config": {"projection_dim": 512}},
            "vision_config.projection_dim",
        ),
        (
            {
                "model_type": "dia",
                "encoder_config": {"hidden_size": 1024},
                "decoder_config": {"cross_head_dim": 64},
            },
            "decoder_config.cross_head_dim",
        ),
    ],
)
def test_what_a_part_says_is_refused_by_its_key(tmp_path: Path, config: dict[str, object], key: str) -> None:
    """Where it stands in the file."""
    seen = {"text_config": {"d_model": 768}, "vision_config": {"projection_dim": 768}}
    given = {**({} if config["model_type"] == "dia" else seen), **config}
    assert the_problem(load_model, written(tmp_path, given)).key == key


VIT = {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "image_size": 384, "qkv_bias": False}
TROCR = {"model_type": "trocr", "cross_attention_hidden_size": 768, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({"model_type": "clip", "text_config": {}, "vision_config": {}}, 151_277_313),
        (
            {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
            559_214_592,
        ),
        ({"model_type": "vision-encoder-decoder", "encoder": VIT, "decoder": TROCR}, 385_393_152),
        (common("rwkv", 12, 768, 1, 3072, 50277), 169_342_464),
        (
            {
                **common("wav2vec2-bert", 24, 1024, 16, 4096, 1),
                **{"feature_projection_input_dim": 160, "architectures": ["Wav2Vec2BertModel"]},
            },
            580_493_120,
        ),
    ],
)
def test_what_a_configuration_leaves_out_is_as_in_transformers(
    tmp_path: Path, config: dict[str, Any], parameters: int
) -> None:
    """Published counts: CLIP ViT-B/32, BLOOM 560M, TrOCR base, RWKV 169M, w2v-BERT 2.0."""
    assert load_model(written(tmp_path, config)).parameters == parameters


def test_what_it_says_is_nothing_stays_nothing(tmp_path: Path) -> None:
    """A Mistral without a window, whose default has one; heads are as wide as those of the width that it says."""
    text = common("mistral", 2, 2048, 32, 4096, 1000, sliding_window=None)
    vision = {"model_type": "clip_vision_model", "num_hidden_layers": 2}
    config = {"model_type": "llava_next", "text_config": text, "vision_config": vision}
    model = load_model(written(tmp_path, config))
    assert (model.window, model.head_dim) == (None, 64)


@pytest.mark.parametrize(
    ("more", "key", "what"),
    [
        (
            {"architectures": ["LlavaLlamaForCausalLM"]},
            "architectures[0]",
            'expected a name that begins with Llama, got "LlavaLlamaForCausalLM"',
        ),
        (
            {"vision_config": {"hidden_size": 8}},
            "vision_config",
            'is not read for the type "llama", expected none',
        ),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads", 'is not read for the type "llama", expected none'),
    ],
)
def test_what_a_type_does_not_have_is_refused(
    tmp_path: Path, more: dict[str, Any], key: str, what: str
) -> None:
    """Rather than left out of the count."""
    problem = the_problem(load_model, written(tmp_path, llama(2, 64, 4, 4, 128, 1000, **more)))
    assert (problem.key, problem.what) == (key, what)


def mixture(kind: str, **more: Any) -> dict[str, Any]:
    """A configuration with experts."""
    return common(kind, 2, 64, 4, 128, 1000, num_experts=8, num_experts_per_tok=2, **more)


KIMI = mixture(
    "kimi_linear",
    **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"moe_intermediate_size": 32, "linear_head_dim": 16, "linear_num_heads": 4},
)


@pytest.mark.parametrize(
    ("config", "key", "what"),
    [
        (
            llama(32, 4096, 32, 8, 14336, 32000, num_local_experts=8),
            "num_local_experts",
            'experts in a model of type "llama" are not supported',
        ),
        (
            mixture("mixtral") | {"num_experts_per_tok": 9},
            "num_experts_per_tok",
            "expected at most num_experts 8, got 9",
        ),
        (
            mixture("mixtral") | {"num_experts": None},
            "num_experts",
            "expected a whole number from 1 to 100000, it is missing",
        ),
        (
            common("mixtral", 2, 64, 4, 128, 1000, num_local_experts=None),
            "num_local_experts",
            "expected a whole number from 1 to 100000, it is missing",
        ),
        (
            KIMI | {"routed_expert_hidden_size": 32},
            "routed_expert_hidden_size",
            "experts of another width than the model's are not supported yet",
        ),
        (
            KIMI | {"mla_use_output_gate": True},
            "mla_use_output_gate",
            "gates of latent attention are not supported yet",
        ),
        (
            KIMI | {"attn_res_block_size": 12},
            "attn_res_block_size",
            "residuals that attend to earlier layers are not supported yet",
        ),
        (
            common("phi", 32, 2560, 32, 10240, 51200, qk_layernorm=True),
            "qk_layernorm",
            "norms of queries and keys with shifts are not supported yet",
        ),
        (
            common("gemma4_text", 4, 64, 4, 128, 100, num_kv_shared_layers=4),
            "num_kv_shared_layers",
            "models without a layer that has keys of its own are not supported yet",
        ),
        (
            gpt2(12, 768, 12) | {"add_cross_attention": True},
            "add_cross_attention",
            "cross-attention is not supported yet, expected false",
        ),
        (
            common("bert", 2, 64, 4, 128, 100, tie_word_embeddings=True, is_decoder=True),
            "is_decoder",
            "encoders as decoders are not supported yet",
        ),
        (
            common(
                "bert",
                2,
                64,
                4,
                128,
                100,
                tie_word_embeddings=True,
                architectures=["BertForEntityLinking"],
            ),
            "architectures[0]",
            'has a head that is not read yet: "BertForEntityLinking"',
        ),
        (
            {
                "model_type": "tipsv2",
                "vision_config": {"hidden_size": 8},
                "text_config": llama(2, 64, 4, 4, 128, 100),
            },
            "vision_config",
            "towers beside the text decoder are not supported yet",
        ),
        (
            {
                "model_type": "unlimited_ocr",
                "vision_config": {},
                "text_config": llama(2, 64, 4, 4, 128, 100),
            },
            "text_config.model_type",
            'expected unlimited_ocr_text, got "llama": other texts are not supported yet',
        ),
        (
            {
                "model_type": "vibevoice_asr",
                "acoustic_tokenizer_encoder_config": {"hidden_size": 8},
                "text_config": llama(2, 64, 4, 4, 128, 100),
            },
            "acoustic_tokenizer_encoder_config",
            "towers beside the text decoder are not supported yet",
        ),
    ],
)
def test_what_a_shape_cannot_hold_is_refused(
    tmp_path: Path, config: dict[str, Any], key: str, what: str
) -> None:
    """Rather than counted wrong."""
    problem = the_problem(load_model, written(tmp_path, config))
    assert (problem.key, problem.what) == (key, what)
    assert problem.line


def test_a_text_decoder_inside_another_configuration(tmp_path: Path) -> None:
    """Where nothing stands beside it."""
    config = {"model_type": "wrapped", "text_config": PUBLISHED["llama-2-7b"][0]}
    assert load_model(written(tmp_path, config)).parameters == 6_738_415_616


def test_training_that_nobody_asked_for_is_short(tmp_path: Path) -> None:
    """Never the longest context by accident; about two million tokens a step."""
    for longest, wanted in (
        (131072, (4096, 512)),
        (2048, (2048, 1024)),
        (512, (512, 4096)),
        (3000, (3000, 512)),
    ):
        config = llama(2, 64, 2, 2, 128, 100) | {"max_position_embeddings": longest}
        training = load_model(written(tmp_path, config)).training
        assert (training.sequence_length, training.global_batch) == wanted
    given = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100, "max_seq_len": 8192}
    assert load_model(written(tmp_path, {"model_type": "mpt", **given})).training.sequence_length == 4096


@pytest.mark.parametrize("given", [{"architectures": ["X"]}, {"d_model": 2560, "n_layer": 64}])
def test_no_model_type(tmp_path: Path, given: dict[str, Any]) -> None:
    """Architectures alone do not say the shape, nor does a file that only its name says to be a configuration."""
    problem = the_problem(load_model, written(tmp_path, given))
    assert (problem.key, problem.what) == ("model_type", "missing, expected the model's type")


STRANGERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "adapter_config.json": ({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}, "adapter", "lora"),
    "unet/config.json": ({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6"}, "diff", "not"),
    "params.json": (
        {"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 100},
        "authors",
        "config.json",
    ),
    "tokenizer_config.json": ({"tokenizer_class": "LlamaTokenizer"}, "tokenizer", "config.json beside"),
    "generation_config.json": ({"bos_token_id": 1, "eos_token_id": 2}, "generated", "config.json beside"),
    "model.safetensors.index.json": ({"metadata": {}, "weight_map": {}}, "weights", "config.json beside"),
    "timm/config.json": ({"architecture": "vit", "pretrained_cfg": {}}, "timm", "not"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_files_beside_a_configuration_are_known(tmp_path: Path, name: str) -> None:
    """One message says what was given in place of a configuration, and what is wanted."""
    given, what, hint = STRANGERS[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(given), encoding="utf-8")
    problem = the_problem(load_model, path)
    assert what in problem.what
    assert hint in str(problem.hint)


QWEN = llama(2, 64, 2, 2, 128, 100) | {"model_type": "qwen", "architectures": ["QWenLMHeadModel"]}
VISUAL = {"heads": 4, "image_size": 448, "layers": 2, "mlp_ratio": 4.0, "output_dim": 64, "patch_size": 14}


@pytest.mark.parametrize(
    ("wrong", "key", "what"),
    [
        ({"visual": {**VISUAL}}, "visual.width", "expected a whole number from 1, got nothing"),
        (
            {"visual": {**VISUAL, "width": 32, "mlp_ratio": "4"}},
            "visual.mlp_ratio",
            "expected a positive number",
        ),
        (
            {"visual": {**VISUAL, "width": 32, "output_dim": 32}},
            "visual.output_dim",
            "expected hidden_size 64",
        ),
        ({"visual": 7}, "visual", "expected the configuration of the tower"),
        (
            {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "tie_word_embeddings": True}
            | {"prenorm": True},
            *("prenorm", "other norms, blocks or routers of this type"),
        ),
        (
            {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "lora_adaptations": ["a"]},
            *("lora_rank", "expected a whole number from 1"),
        ),
        (
            {
                **{"model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"]},
                "language_config": llama(2, 64, 2, 2, 128, 100)
                | {"model_type": "deepseek", "n_routed_experts": 4, "num_experts_per_tok": 2},
                "vision_config": {"image_size": 384, "model_name": "siglip", "model_type": "vision"},
            },
            *("vision_config", 'a model of type "deepseek_vl_v2" cannot be read'),
        ),
    ],
)
def test_what_repositories_of_their_own_say_wrong(
    tmp_path: Path, wrong: dict[str, Any], key: str, what: str
) -> None:
    """By key."""
    with pytest.raises(SpecError) as caught:
        load_model(written(tmp_path, QWEN | {"type_vocab_size": 1} | wrong))
    problem = caught.value.problems[0]
    assert problem.key == key
    assert problem.what.startswith(what)


@pytest.mark.parametrize(
    ("change", "key", "what"),
    [
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings", "expected true or false"),
        ({"attention_bias": []}, "attention_bias", "expected true or false"),
        ({"mlp_bias": -1}, "mlp_bias", "expected true or false"),
        ({"architectures": "LlamaModel"}, "architectures", "expected a list"),
        ({"layer_types": "full_attention"}, "layer_types", "expected a list"),
        (
            {"model_type": "vit", "num_channels": True, "image_size": 32},
            "num_channels",
            "a whole number from 0",
        ),
        ({"model_type": "vit", "image_size": -32}, "image_size", "a whole number from 1"),
    ],
)
def test_wrong_types(tmp_path: Path, change: dict[str, Any], key: str, what: str) -> None:
    """Words and numbers in place of switches, and the like, are no such values by accident."""
    found = the_problem(load_model, written(tmp_path, llama(2, 64, 4, 4, 128, 100) | change))
    assert found.key == key
    assert what in found.what


TEXT = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "laguna", "num_attention_heads_per_layer": [4, 4], "num_attention_heads": {}},
        {"model_type": "clip", "text": {"max_position_embeddings": 0}},
        {"model_type": "clip", "text": {"hidden_size": [64]}},
    ],
)
def test_odd_values_beside_those_that_are_checked(tmp_path: Path, change: dict[str, Any]) -> None:
    """One clear error, wherever reading stumbles over them."""
    text = {**TEXT, "vocab_size": 100, "max_position_embeddings": 16, **change.get("text", {})}
    vision = {**TEXT, "image_size": 32, "patch_size": 16}
    config = llama(2, 64, 4, 4, 128, 100) | change | {"text_config": text, "vision_config": vision}
    config.pop("text", None)
    with pytest.raises(SpecError):
        load_model(written(tmp_path, config))


@pytest.mark.parametrize(
    ("change", "key", "what"),
    [
        ({"hidden_size": "4096"}, "hidden_size", 'expected a whole number from 1 to 1000000, got "4096"'),
        ({"hidden_size": None}, "hidden_size", "expected a whole number from 1 to 1000000, it is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "expected a whole number from 1 to 10000, got 0"),
        (
            {"num_key_value_heads": -8},
            "num_key_value_heads",
            "expected a whole number from 1 to 10000, got -8",
        ),
        (
            {"num_attention_heads": 33, "num_key_value_heads": None},
            "num_attention_heads",
            "expected a divisor of hidden_size 4096, got 33",
        ),
        (
            {"num_key_value_heads": 5},
            "num_key_value_heads",
            "expected a divisor of num_attention_heads 32, got 5",
        ),
    ],
)
def test_wrong_numbers(tmp_path: Path, change: dict[str, Any], key: str, what: str) -> None:
    """With the key and its line."""
    config = {**llama(32, 4096, 32, 8, 11008, 32000), **change}
    problem = the_problem(load_model, written(tmp_path, config))
    assert (problem.key, problem.what) == (key, what)
    assert problem.line


def test_the_name_is_cleaned(tmp_path: Path) -> None:
    """It names files later."""
    config = llama(2, 64, 2, 2, 128, 100, _name_or_path="meta-llama/Llama 2 (7B)/")
    assert load_model(written(tmp_path, config)).name == "Llama-2-7B"


def test_what_no_layer_has_is_not_of_the_model(tmp_path: Path) -> None:
    """A state of Granite 4 Micro, all of whose layers attend."""
    layers = {"layer_types": ["attention"] * 2, "shared_intermediate_size": 128, "num_local_experts": 0}
    state = {"mamba_n_heads": 2, "mamba_d_state": 16}
    path = written(tmp_path, common("granitemoehybrid", 2, 64, 2, 128, 100, **layers, **state))
    assert (load_model(path).state, load_model(path).experts) == (None, None)


@pytest.mark.parametrize(
    ("config", "drops"),
    [
        (gpt2(2, 64, 2), True),
        ({**gpt2(2, 64, 2), "resid_pdrop": 0.0}, False),
        (opt(2, 64, 2, 128), True),
        (common("gpt_neox", 2, 64, 2, 256, 100), False),
        (common("gpt_neox", 2, 64, 2, 256, 100, hidden_dropout=0.1), True),
        (common("starcoder2", 2, 64, 2, 256, 100), False),
        (common("arcee", 2, 64, 2, 256, 100), False),
        (common("llama", 2, 64, 2, 256, 100), False),
        (common("seed_oss", 2, 64, 2, 256, 100), True),
        (common("seed_oss", 2, 64, 2, 256, 100, residual_dropout=0), False),
        (common("bert", 2, 64, 2, 256, 100, tie_word_embeddings=True), True),
    ],
)
def test_layers_drop_where_the_configuration_says_so(
    tmp_path: Path, config: dict[str, Any], drops: bool
) -> None:
    """Whatever their feed-forward; a type without a key for it drops nothing."""
    path = written(tmp_path, config)
    assert load_model(path).drops is drops
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"huggingface: {path}\ntraining: {{dropout: {str(not drops).lower()}}}\n")
    assert load_model(mine).drops is not drops


def test_a_string_of_another_type_as_dtype(tmp_path: Path) -> None:
    """An unknown precision falls back on bf16."""
    assert (
        load_model(written(tmp_path, llama(2, 64, 2, 2, 128, 100, torch_dtype="float32"))).training.precision
        == "bf16"
    )


STACKS = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
}


def test_sequences_of_two_stacks_are_those_of_the_decoder(tmp_path: Path) -> None:
    tables = {"max_encoder_position_embeddings": 4096, "max_decoder_position_embeddings": 256}
    model = load_model(written(tmp_path, {"model_type": "led", **STACKS, **tables}))
    assert model.encoder is not None
    assert (model.encoder.sequence_length, model.training.sequence_length) == (4096, 256)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (
            {"model_type": "bart", **STACKS, "max_position_embeddings": 128, "max_target_positions": "many"},
            "max_target_positions",
        ),
        (
            {"model_type": "bart", **STACKS, "max_position_embeddings": 128, "num_heads": 0},
            "num_heads",
        ),
        (
            {
                **{"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2},
                **{"num_heads": 4, "vocab_size": 1000, "encoder_attention_heads": "four"},
            },
            "encoder_attention_heads",
        ),
        (
            {
                "model_type": "t5gemma",
                "encoder": common("t5_gemma_module", -1, 64, 4, 128, 1000),
                "decoder": common("t5_gemma_module", 2, 64, 4, 128, 1000),
            },
            "encoder.num_hidden_layers",
        ),
        (
            {
                "model_type": "t5gemma",
                "encoder": common("t5_gemma_module", 2, 64, 4, 128, 1000, sliding_window=-1),
                "decoder": common("t5_gemma_module", 2, 64, 4, 128, 1000),
            },
            "encoder.sliding_window",
        ),
        (
            {
                "model_type": "t5gemma",
                "encoder": common("t5_gemma_module", 2, 64, 4, 128, 1000),
                "decoder": common("t5_gemma_module", 2, 64, 4, 128, 1000, num_key_value_heads=3),
            },
            "decoder.num_key_value_heads",
        ),
        (
            {
                **{"model_type": "speech_to_text", **STACKS, "max_source_positions": 100},
                **{"max_target_positions": 64, "conv_kernel_sizes": []},
            },
            "conv_kernel_sizes",
        ),
        (mixture("qwen3_moe", decoder_sparse_step=-2), "decoder_sparse_step"),
        (mixture("qwen3_moe", num_nextn_predict_layers="a"), "num_nextn_predict_layers"),
        (llama(2, 100, 33, 33, 128, 1000, d_kv=64), "num_attention_heads"),
    ],
)
def test_wrong_numbers_of_two_stacks(tmp_path: Path, config: dict[str, Any], key: str) -> None:
    problem = the_problem(load_model, written(tmp_path, config))
    assert problem.key == key
