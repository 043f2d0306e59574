"""What the diagnosis tries instead of the training that does not fit."""

from __future__ import annotations

from planner.model.spec import LoraSpec, ModelSpec
from planner.search.explain.diagnose import _trainings
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
    ]
    for other in shorter:
        assert other.training.global_batch * other.training.sequence_length == 64 * 2048


def test_other_trainings_of_adapters() -> None:
    """A base of four bits, where it has none yet; the rest of the sequence would be shorter than is tried."""
    plain, packed = (
        texts(gpt(sequence_length=1023, lora=LoraSpec(rank=4, base=base))) for base in (None, "nf4")
    )
    assert plain[0] == ["base: nf4 in training.lora"]
    assert packed[0] == []
    assert plain[1:] == packed[1:]
    assert plain[-1] == []


def test_other_trainings_with_muon() -> None:
    """Adapters are no matrices for it; of its states nothing is said."""
    found = texts(gpt(optimizer="muon", sequence_length=512))
    assert found == [
        [
            f"training.lora: {{rank: 16{base}}} and training.optimizer: adamw, which trains adapters alone"
            for base in ("", ", base: nf4")
        ],
        ["training.optimizer: adafactor"],
        [],
    ]
