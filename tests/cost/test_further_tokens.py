"""Modules that predict further tokens: counted, priced and held on the last stage, and read from configurations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cost.compute import model_flops
from planner.cost.estimate import estimate
from planner.errors import SpecError
from planner.model.file import load_model, unsaid
from planner.model.spec import ModelSpec
from planner.plan.checks import target_faults
from tests.cost.test_dense_layers import CLUSTER, mixture, staged

MODELS = Path(__file__).parents[2] / "model_specs"
DEEPSEEK = {
    **{"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128},
    **{
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "vocab_size": 129280,
        "n_routed_experts": 256,
    },
    **{"num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"num_nextn_predict_layers": 1, "tie_word_embeddings": False},
}


def further(count: int, **changes: Any) -> ModelSpec:
    """Eight layers with experts, and modules for so many further tokens."""
    return mixture(mtp_layers=count, tied_embeddings=False, **changes)


def test_deepseek_v3_has_as_many_as_published() -> None:
    """Its model card: 671 billion parameters, and 14 billion of the module, copies of embedding and head included."""
    spec = load_model(MODELS / "deepseek_v3.yaml")
    training = spec.training.model_copy(update={"mtp_layers": 1})
    more = spec.model_copy(update={"training": training}).parameters - spec.parameters
    assert more == spec.layer_parameters + 2 * 7168**2 + 3 * 7168
    assert more + 2 * 129280 * 7168 == pytest.approx(14e9, rel=0.05)


def test_operations_of_a_module() -> None:
    """A layer, an output layer and a projection of two widths to one, forward and backward."""
    tokens = 16 * 16
    layer = (model_flops(mixture(layers=9)) - model_flops(mixture())) / tokens
    more = (model_flops(further(2)) - model_flops(further(0))) / tokens
    assert more == pytest.approx(2 * (layer + 6 * 512 * 1000 + 6 * 2 * 512**2))


def test_they_stand_on_the_last_stage() -> None:
    """It takes longer, holds them with a copy of the embedding, and has logits for every token."""
    found = [estimate(staged([4, 4]), CLUSTER, further(count)) for count in (0, 1, 2)]
    for index, stage in enumerate(("first", "last")):
        seconds = [each.stages[index].forward_seconds for each in found]
        assert (seconds[0] < seconds[1] < seconds[2]) is (stage == "last")
    held = [each.stages[1].groups[0].memory for each in found]
    one = further(1)
    module = one.behind_parameters + one.head_parameters - further(0).head_parameters
    assert held[1].parameters_bytes - held[0].parameters_bytes == 2 * (module + 1000 * 512)
    assert held[2].parameters_bytes - held[1].parameters_bytes == 2 * module


def test_experts_of_a_module_are_divided() -> None:
    """As those of all other layers."""
    spec = further(1)
    whole, divided = (estimate(replace(staged([4, 4]), ep=ep), CLUSTER, spec).stages[1] for ep in (1, 4))
    saved = whole.groups[0].memory.parameters_bytes - divided.groups[0].memory.parameters_bytes
    assert saved == pytest.approx(2 * 5 * spec.expert_parameters * 3 / 4)


def test_other_runtimes_refuse_them() -> None:
    """And Megatron has them with rotary positions alone."""
    chosen = staged([8])
    assert not list(target_faults(chosen, further(1)))
    (fault,) = target_faults(chosen, further(1, learned_positions=16))
    assert "rotary positions" in fault.what
    faults = target_faults(replace(chosen, target="torch"), further(1, experts=None))
    assert any("predicts no further tokens with torch" in each.what for each in faults)


def test_a_configuration_says_how_many(tmp_path: Path) -> None:
    """They are left out, and it is said so, unless the training has them; any other number contradicts it."""
    config, file = tmp_path / "config.json", tmp_path / "m.yaml"
    config.write_text(json.dumps(DEEPSEEK))
    assert load_model(config).training.mtp_layers == 0
    assert "without the modules that predict further tokens (mtp_layers: 1)" in str(unsaid(config))
    file.write_text(
        "huggingface: config.json\ntraining: {mtp_layers: 1, sequence_length: 4096, global_batch: 8}\n"
    )
    assert load_model(file).parameters == load_model(config).parameters + 11_610_067_968
    assert unsaid(file) is None
    file.write_text("huggingface: config.json\ntraining: {mtp_layers: 2}\n")
    with pytest.raises(SpecError, match=r"mtp_layers: expected 0, or num_nextn_predict_layers 1 .*, got 2"):
        load_model(file)


@pytest.mark.parametrize(
    ("more", "key", "what"),
    [
        (
            "training: {sequence_length: 8, global_batch: 8, mtp_layers: 1, freeze: [head]}",
            "mtp_layers",
            "whole",
        ),
        (
            "kind: encoder\ntraining: {sequence_length: 8, global_batch: 8, mtp_layers: 1}",
            "mtp_layers",
            "masked",
        ),
    ],
)
def test_what_does_not_go_with_them(tmp_path: Path, more: str, key: str, what: str) -> None:
    """Said with the file and the key."""
    file = tmp_path / "m.yaml"
    file.write_text(f"name: m\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\n{more}\n")
    with pytest.raises(SpecError, match=f"{key}: .*{what}"):
        load_model(file)
