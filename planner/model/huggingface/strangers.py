"""Files beside a model's ``config.json`` that are taken for it: what each is, and what is wanted instead."""

from __future__ import annotations

from planner.errors import Problem
from planner.files.document import Document

_BESIDE = "the config.json beside it describes the model"
_NONE = "models of that kind are not planned"
_STRANGERS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("peft_type",),
        "is of an adapter (PEFT), expected that of a model",
        "name the config.json of the model that it adapts under huggingface in a model file, and give that lora",
    ),
    (("_diffusers_version",), "is of a diffusion model, expected one of transformers", _NONE),
    (("pretrained_cfg",), "is of a model of timm, expected one of transformers", _NONE),
    (
        ("dim", "n_layers"),
        "is the authors' own format (params.json), expected that of transformers",
        "the same model's config.json, or its shape as a model file",
    ),
    (("tokenizer_class",), "is of a tokenizer, expected that of a model", _BESIDE),
    (("added_tokens_decoder",), "is of a tokenizer, expected that of a model", _BESIDE),
    (("weight_map",), "is an index of weights, expected the configuration of a model", _BESIDE),
    (("eos_token_id",), "says how text is generated, expected the configuration of a model", _BESIDE),
    (("__version__",), "is of sentence-transformers, expected that of a model", _BESIDE),
)
"""Keys that tell such a file, what it is, and a hint."""


def stranger(document: Document) -> Problem | None:
    """What a file is that says neither a model's type nor its shape; None where nobody knows."""
    if "vocab_size" in document.data and "dim" not in document.data:
        return None
    for keys, what, hint in _STRANGERS:
        if {*keys} <= {*document.data}:
            return document.problem((keys[0],), what, hint)
    return None
