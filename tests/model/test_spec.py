"""The model as a value: how many parameters it has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.spec import ModelSpec, TrainingSpec

TRAINING = TrainingSpec(sequence_length=128, global_batch=64)


def model(**fields: Any) -> ModelSpec:
    """A small model with these fields."""
    shape = {"layers": 2, "hidden": 8, "heads": 2, "kv_heads": 2, "head_dim": 4, "ffn": 32, "vocab": 100}
    return ModelSpec.model_validate({"name": "m", "training": TRAINING, **shape, **fields})


def test_a_gpt_layer_by_hand() -> None:
    """12 h^2 + 13 h, as everywhere in the literature."""
    assert model().layer_parameters == 12 * 8 * 8 + 13 * 8


def test_gated_models_have_rms_norms_and_no_biases() -> None:
    """Unless the file says otherwise."""
    gated = model(gated_mlp=True)
    assert (gated.norm, gated.qkv_bias, gated.output_bias, gated.mlp_bias) == ("rms", False, False, False)
    assert gated.layer_parameters == 4 * 8 * 8 + 3 * 8 * 32 + 2 * 8
    assert model(gated_mlp=True, qkv_bias=True).layer_parameters == gated.layer_parameters + 3 * 8


def test_plain_models_have_layer_norms_and_biases() -> None:
    """The GPT way."""
    plain = model()
    assert (plain.norm, plain.qkv_bias, plain.output_bias, plain.mlp_bias) == ("layer", True, True, True)


def test_embedding_and_head() -> None:
    """Tables, norms, and the output layer only when it is not tied."""
    assert model().embedding_parameters == 100 * 8
    assert model(learned_positions=5, token_types=2, embedding_norm=True).embedding_parameters == 107 * 8 + 16
    assert model(embedding_width=4).embedding_parameters == 100 * 4 + 2 * 4 * 8
    assert model().head_parameters == 16
    assert model(tied_embeddings=False, head_bias=True).head_parameters == 16 + 100 * 8 + 100
    assert model(final_norm=False, head_transform=True).head_parameters == 8 * 8 + 8 + 16


@given(st.integers(1, 50), st.booleans(), st.booleans())
def test_parameters_are_the_sum_of_the_parts(layers: int, gated: bool, tied: bool) -> None:
    """Nothing is counted twice or left out."""
    spec = model(layers=layers, gated_mlp=gated, tied_embeddings=tied)
    assert (
        spec.parameters == layers * spec.layer_parameters + spec.embedding_parameters + spec.head_parameters
    )


def test_reading_undoes_writing() -> None:
    """Derived defaults are written out."""
    spec = model(gated_mlp=True)
    assert ModelSpec.model_validate_json(spec.model_dump_json(exclude_none=True)) == spec


def test_a_model_needs_its_shape() -> None:
    """Nothing essential has a default."""
    with pytest.raises(ValueError, match="layers"):
        ModelSpec.model_validate({"name": "m"})
