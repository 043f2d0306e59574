"""Defaults and alternative key names that transformers applies to a configuration.

Old configurations lack keys, and inside another transformers writes only what differs from its defaults.
``python -m tools.model_defaults`` writes the table, ``defaults.json``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_GPT_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
_NAMES = {
    "bloom": {"n_embed": "hidden_size"},
    "lfm2": {"block_ff_dim": "intermediate_size"},
    "llada": {
        **{"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads"},
        **{"n_layers": "num_hidden_layers", "mlp_hidden_size": "intermediate_size"},
        **{"weight_tying": "tie_word_embeddings", "max_sequence_length": "max_position_embeddings"},
    },
    "kimi_k25_vision": {
        **{"vt_hidden_size": "hidden_size", "vt_num_hidden_layers": "num_hidden_layers"},
        **{"vt_intermediate_size": "intermediate_size", "vt_num_attention_heads": "num_attention_heads"},
        **{"init_pos_emb_height": "pos_emb_height", "init_pos_emb_width": "pos_emb_width"},
    },
    "moonvit": {"init_pos_emb_height": "pos_emb_height", "init_pos_emb_width": "pos_emb_width"},
    "nomic_bert": {**_GPT_NAMES, "moe_top_k": "num_experts_per_tok"},
    "qwen": {
        **{"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
        **{"ffn_hidden_size": "intermediate_size", "n_positions": "max_position_embeddings"},
    },
    "xlstm": {"embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers"},
}
"""Names that repositories with code of their own have for a key, by ``model_type``."""
TABLE = Path(__file__).with_name("defaults.json")


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def defaults_of(kind: str) -> dict[str, Any]:
    """Values of the keys of a ``model_type`` that have one by themselves."""
    return dict(_table()["values"].get(kind, {}))


def class_of(kind: str) -> str:
    """How the names of the classes of a ``model_type`` begin in transformers; "" for one that it does not have."""
    return str(_table()["classes"].get(kind, ""))


def renamed(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """What a configuration says, under the names that keys of its ``model_type`` have in transformers, which goes by
    another name where a file has both."""
    others, own = _table()["names"].get(kind, {}), _NAMES.get(kind, {})
    keys = {key: others.get(key) or own.get(key, key) for key in given}
    values = {
        keys[key]: _alike(value) if kind == HUNYUAN and key in _OF_LAYERS else value
        for key, value in given.items()
        if key not in others and (keys[key] == key or keys[key] not in given)
    }
    return {**values, **{keys[key]: value for key, value in given.items() if key in others}}


HUNYUAN = "hunyuan_v1_moe"
_OF_LAYERS = ("moe_topk", "num_experts", "num_shared_expert", "moe_intermediate_size")
"""Keys of which HunYuan lists a number for every layer."""


def _alike(value: Any) -> Any:
    """The number that a list has for every layer, where it is the same for all."""
    same = isinstance(value, list) and value and {*map(str, value)} == {str(value[0])}
    return value[0] if same else value
