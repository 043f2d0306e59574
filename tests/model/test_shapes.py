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
"""(parameters, the keys of its ``config.json`` that say its shape) by name; transformers 5.23.0 has counted them."""
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
