"""Hugging Face ``config.json`` as the shape of a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from planner.errors import Problem
from planner.files.document import Document, fail_on
from planner.files.fields import figure
from planner.files.messages import shown
from planner.model.spec import Precision
from planner.ranges import FFN, HEADS, LAYERS, ROWS, SEQUENCE, WIDTH

DEFAULT_BATCH = 512
"""Sequences of one optimizer step when nobody says."""

Config = dict[str, Any]
Shape = dict[str, Any]

_PRECISIONS: dict[str, Precision] = {"float16": "fp16", "half": "fp16"}
_EXPERT_KEYS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
)


def shape_of(document: Document) -> tuple[Shape, int, Precision]:
    """Fields of a ModelSpec without training, the longest sequence, and the suggested precision."""
    config = document.data
    fail_on(_unsupported(document))
    needed, build = _FAMILIES[str(config["model_type"])]
    fail_on(_wrong_numbers(document, needed))
    shape = build(config)
    shape = {
        "name": _name(document),
        "kv_heads": shape["heads"],
        "head_dim": shape["hidden"] // shape["heads"],
        **shape,
    }
    dtype = str(config.get("torch_dtype", config.get("dtype")))
    return shape, _longest(config), _PRECISIONS.get(dtype, "bf16")


def supported() -> tuple[str, ...]:
    """Values of ``model_type`` that can be read."""
    return tuple(sorted(_FAMILIES))


def _llama(config: Config) -> Shape:
    heads = config["num_attention_heads"]
    bias = bool(config.get("attention_bias", False))
    mlp_bias = bool(config.get("mlp_bias", False))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "ffn": config["intermediate_size"],
        "gated_mlp": True,
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": mlp_bias,
    }


def _qwen2(config: Config) -> Shape:
    return {**_llama(config), "qkv_bias": True, "output_bias": False}


def _qwen3(config: Config) -> Shape:
    return {**_llama(config), "head_dim": config.get("head_dim") or 128, "qk_norm": True}


def _gemma(config: Config) -> Shape:
    shape = {**_llama(config), "tied_embeddings": bool(config.get("tie_word_embeddings", True))}
    return {**shape, "head_dim": config.get("head_dim") or 256}


def _gpt2(config: Config) -> Shape:
    hidden = config["n_embd"]
    return {
        "layers": config["n_layer"],
        "hidden": hidden,
        "heads": config["n_head"],
        "ffn": config.get("n_inner") or 4 * hidden,
        "vocab": config["vocab_size"],
        "learned_positions": config["n_positions"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _gpt_neo(config: Config) -> Shape:
    hidden = config["hidden_size"]
    return {
        "layers": config["num_layers"],
        "hidden": hidden,
        "heads": config["num_heads"],
        "ffn": config.get("intermediate_size") or 4 * hidden,
        "vocab": config["vocab_size"],
        "learned_positions": config["max_position_embeddings"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "qkv_bias": False,
    }


def _gpt_neox(config: Config) -> Shape:
    bias = bool(config.get("attention_bias", True))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": bias,
        "output_bias": bias,
    }


def _opt(config: Config) -> Shape:
    hidden = config["hidden_size"]
    biased = bool(config.get("enable_bias", True))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": hidden,
        "heads": config["num_attention_heads"],
        "ffn": config["ffn_dim"],
        "vocab": config["vocab_size"],
        "embedding_width": config.get("word_embed_proj_dim") or hidden,
        "learned_positions": config["max_position_embeddings"] + _OPT_POSITION_OFFSET,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "final_norm": bool(config.get("do_layer_norm_before", True)),
        "qkv_bias": biased,
        "output_bias": biased,
        "mlp_bias": biased,
    }


_OPT_POSITION_OFFSET = 2
"""OPT's table starts with two rows that no position uses."""


def _bert(config: Config) -> Shape:
    return {
        "kind": "encoder",
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "learned_positions": config["max_position_embeddings"],
        "token_types": config.get("type_vocab_size", 2),
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
    }


def _phi(config: Config) -> Shape:
    heads = config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "layer_norms": 1,
        "head_bias": True,
    }


_COMMON = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[Config], Shape]]] = {
    "llama": (_COMMON, _llama),
    "mistral": (_COMMON, _llama),
    "phi3": (_COMMON, _llama),
    "qwen2": (_COMMON, _qwen2),
    "qwen3": (_COMMON, _qwen3),
    "gemma": (_COMMON, _gemma),
    "phi": (_COMMON, _phi),
    "gpt_neox": (_COMMON, _gpt_neox),
    "bert": ((*_COMMON, "max_position_embeddings"), _bert),
    "gpt2": (("n_layer", "n_embd", "n_head", "n_positions", "vocab_size"), _gpt2),
    "gpt_neo": (
        ("num_layers", "hidden_size", "num_heads", "max_position_embeddings", "vocab_size"),
        _gpt_neo,
    ),
    "opt": (
        (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "ffn_dim",
            "max_position_embeddings",
            "vocab_size",
        ),
        _opt,
    ),
}
"""Keys that must be positive whole numbers, and how the shape follows from them, by ``model_type``."""


def _unsupported(document: Document) -> list[Problem]:
    config = document.data
    known = f"supported: {', '.join(supported())}; or write the shape as a model file"
    kind = str(config.get("model_type") or "")
    experts = next((key for key in _EXPERT_KEYS if config.get(key)), None)
    if experts or "moe" in kind.lower() or kind in ("mixtral", "dbrx", "switch_transformers"):
        return [
            document.problem(
                (experts or "model_type",), "mixture-of-experts models are not supported yet", known
            )
        ]
    if kind not in _FAMILIES:
        what = f'the model type "{kind}" is not supported' if kind else "missing, expected the model's type"
        return [document.problem(("model_type",), what, known)]
    return []


def _wrong_numbers(document: Document, needed: tuple[str, ...]) -> list[Problem]:
    optional = (
        "num_key_value_heads",
        "head_dim",
        "n_inner",
        "word_embed_proj_dim",
        "type_vocab_size",
        *_LENGTHS,
    )
    given = [key for key in optional if document.data.get(key) is not None]
    problems = [
        document.problem((key,), _need(document, key))
        for key in (*needed, *given)
        if not _in_range(document, key)
    ]
    return problems or _undivided(document)


def _undivided(document: Document) -> list[Problem]:
    config: Config = document.data
    width = next(key for key in _HIDDEN if key in config)
    heads = next(key for key in _HEADS if key in config)
    pairs = [(heads, width)] if config.get("head_dim") is None else []
    pairs += [("num_key_value_heads", heads)] if config.get("num_key_value_heads") else []
    return [
        document.problem((part,), f"expected a divisor of {whole} {config[whole]}, got {config[part]}")
        for part, whole in pairs
        if config[whole] % config[part]
    ]


_LENGTHS = ("max_position_embeddings", "n_positions")
_HIDDEN = ("hidden_size", "n_embd")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


_RANGES = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), LAYERS),
    **dict.fromkeys((*_HIDDEN, "head_dim", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys((*_HEADS, "num_key_value_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), FFN),
    **dict.fromkeys(_LENGTHS, SEQUENCE),
    **dict.fromkeys(("vocab_size", "type_vocab_size"), ROWS),
}
"""Range of each key that is read as a number."""


def _in_range(document: Document, key: str) -> bool:
    value = document.data.get(key)
    least, most = _RANGES[key]
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _need(document: Document, key: str) -> str:
    value = document.data.get(key)
    wanted = f"expected a whole number from {figure(_RANGES[key].least)} to {figure(_RANGES[key].most)}"
    return f"{wanted}, {'it is missing' if value is None else f'got {shown(value)}'}"


def _longest(config: Config) -> int:
    return next((int(config[key]) for key in _LENGTHS if config.get(key) is not None), 2048)


def _name(document: Document) -> str:
    """The model's name: what the file says, else its folder, else its type."""
    given = document.data.get("_name_or_path") or document.folder or document.data["model_type"]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(given).rstrip("/").rsplit("/", 1)[-1]).strip("-._")
    return name[:100] or str(document.data["model_type"])
