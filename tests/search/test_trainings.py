"""What the diagnosis tries instead of the training that does not fit."""

from __future__ import annotations

import pytest

from planner.model.spec import NF4_BYTES, LoraSpec, ModelSpec
from planner.search.explain.diagnose import _frozen_bytes, _trainings
from tests.worlds import gpt


def texts(model: ModelSpec) -> list[list[str]]:
    """What is to be written for each."""
    return [[what for what, _ in ways] for ways in _trainings(model)]


def test_other_trainings_of_a_whole_model() -> None:
    """Adapters, plain and on a base of four bits; smaller moments; optimizers with fewer; shorter sequences."""
    model = gpt(sequence_length=2048, global_batch=64)
    assert texts(model) == [
        [
            "training.lora: {rank: 16}, which trains adapters alone",
            "training.lora: {rank: 16, base: nf4}, which trains adapters alone",
            "training.lora: {rank: 16, base: nf4-double}, which trains adapters alone",
        ],
        ["training.optimizer_states: bf16", "training.optimizer_states: int8"],
        ["training.optimizer: sgd"],
        ["training.optimizer: lion"],
        ["training.optimizer: muon"],
        ["training.optimizer: adafactor"],
        ["--sequence-length 1024 --global-batch 128", "--sequence-length 512 --global-batch 256"],
    ]
    adapters, _, *_, shorter = [[other for _, other in ways] for ways in _trainings(model)]
    assert [other.training.lora for other in adapters] == [
        LoraSpec(rank=16),
        LoraSpec(rank=16, base="nf4"),
        LoraSpec(rank=16, base="nf4-double"),
    ]
    for other in shorter:
        assert other.training.global_batch * other.training.sequence_length == 64 * 2048


def test_weights_in_bf16_come_after_narrow_moments() -> None:
    """In 16-bit training, where they are not yet."""
    plain, narrow = (gpt(precision="bf16", master_weights=masters) for masters in (None, "bf16"))
    moments = [f"training.optimizer_states: {name}" for name in ("bf16", "int8")]
    both = [f"{each} and training.master_weights: bf16" for each in moments]
    assert texts(plain)[1] == [*moments, *both]
    assert texts(narrow)[1] == moments
    tried = [other.training for _, other in [*_trainings(plain)][1]]
    assert [each.master_weights for each in tried] == [None, None, "bf16", "bf16"]


def test_a_plain_loss_may_be_computed_in_chunks() -> None:
    """Ahead of all else, as it trains the same."""
    first, *others = _trainings(gpt(sequence_length=512, cross_entropy="plain"))
    assert [(what, made.training.cross_entropy) for what, made in first] == [
        ("training.cross_entropy: chunked", "chunked")
    ]
    assert [[what for what, _ in ways] for ways in others] == texts(gpt(sequence_length=512))


def test_no_adapters_where_a_model_file_would_be_refused() -> None:
    """Beside modules that predict further tokens, and with matrices of attention that have no names alone."""
    further = gpt(sequence_length=512, mtp_layers=1)
    matrices = {"projections": ((1024, 3072, "columns"), (1024, 1024, "rows")), "feed_forward": "none"}
    for model in (further, gpt(sequence_length=512).model_copy(update=matrices)):
        assert texts(model)[0] == []


def test_other_trainings_of_adapters() -> None:
    """A base of four bits, where it has none yet; the rest of the sequence would be shorter than is tried."""
    plain, packed, double = (
        texts(gpt(sequence_length=1023, lora=LoraSpec(rank=4, base=base)))
        for base in (None, "nf4", "nf4-double")
    )
    assert plain[0] == ["base: nf4 in training.lora", "base: nf4-double in training.lora"]
    assert packed[0] == plain[0][1:]
    assert double[0] == []
    assert plain[1:] == packed[1:] == double[1:]
    assert plain[-1] == []


def test_other_trainings_with_muon() -> None:
    """Adapters are no matrices for it; of its states nothing is said."""
    found = texts(gpt(optimizer="muon", sequence_length=512))
    assert found == [
        [
            f"training.lora: {{rank: 16{base}}} and training.optimizer: adamw, which trains adapters alone"
            for base in ("", ", base: nf4", ", base: nf4-double")
        ],
        ["training.optimizer: adafactor"],
        [],
    ]


def test_other_optimizers_beside_moments_in_another_format() -> None:
    """A model file with both is refused, so that the hint says what goes."""
    found = texts(gpt(optimizer_states="int8", sequence_length=512))
    assert ["training.optimizer: sgd without optimizer_states"] in found
    both = texts(gpt(optimizer_states="int8", master_weights="bf16", precision="bf16", sequence_length=512))
    assert ["training.optimizer: sgd without optimizer_states and master_weights"] in both
    assert ["training.optimizer: sgd"] in texts(gpt(sequence_length=512))
    assert ["training.optimizer: muon"] in texts(gpt(sequence_length=512))
    assert ["training.optimizer: muon"] not in texts(gpt(sequence_length=512, lora=LoraSpec(rank=4)))


def test_bytes_of_what_is_not_trained() -> None:
    """Nothing of a whole model; beside adapters all of it, in two bytes, or a good half of one where it is packed."""
    whole, plain, packed = (
        gpt(24, 2048, lora=lora) for lora in (None, LoraSpec(rank=4), LoraSpec(rank=4, base="nf4"))
    )
    assert _frozen_bytes(whole) == 0
    frozen = plain.parameters + plain.adapter_parameters - plain.trained_parameters
    assert frozen > 0.9 * whole.parameters
    assert _frozen_bytes(plain) == 2 * frozen
    layers = packed.layers * packed.quantised_layer_parameters
    assert 0 < layers < frozen
    assert _frozen_bytes(packed) == pytest.approx(2 * (frozen - layers) + NF4_BYTES["nf4"] * layers)
    assert 0.5 < NF4_BYTES["nf4-double"] < 0.52 < NF4_BYTES["nf4"] < 0.6
