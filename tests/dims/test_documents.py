"""Documents shorter than a sequence: lengths, prices, rules, what the search proposes, and faults of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.topology import Topology
from planner.cost.compute import Device, attention_seconds, model_flops
from planner.cost.estimate import estimate
from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.spec import DocumentsSpec, ModelSpec
from planner.plan.checks import target_faults
from planner.plan.values import Plan, Sync
from planner.runtimes.registry import TARGETS
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, gpt, group, model, plan, pool

LENGTH = 8192


def made(**documents: Any) -> ModelSpec:
    """A GPT of 1.3 billion parameters, on documents of 1,024 tokens."""
    values = {"mean_length": 1024, **documents}
    return gpt(global_batch=16, sequence_length=LENGTH, documents=DocumentsSpec(**values))


def whole() -> ModelSpec:
    """The same on whole sequences."""
    return gpt(global_batch=16, sequence_length=LENGTH)


def step(spec: ModelSpec) -> Any:
    """Its price on four devices."""
    return estimate(plan("torch", 3, [24], [(group("a", "A100", count=4, share=4),)]), WHERE, spec)


WHERE = cluster(pool("a", per_node=4))


@pytest.mark.parametrize(
    ("documents", "tokens", "own"),
    [
        ({"spread": 0.0}, LENGTH, 1024),
        ({"spread": 1.0}, LENGTH, 2048),
        ({"spread": 9.0}, LENGTH, LENGTH),
        ({"packing": False}, 1024, LENGTH),
        ({"packing": False, "mean_length": LENGTH}, LENGTH, LENGTH),
    ],
)
def test_tokens_that_count_and_that_are_seen(documents: dict[str, Any], tokens: int, own: float) -> None:
    """Tokens are more in longer documents: their mean document is longer than the mean of all by its variance."""
    training = made(**documents).training
    assert training.tokens == 16 * tokens
    assert training.own_tokens == own


def test_attention_stays_in_documents() -> None:
    """An eighth of the scores, at a kernel for each document; products are the same."""
    kind = Topology(WHERE).device_types[0]
    device = Device(kind, ASSUMED, "fp16", "torch")
    full, packed = (
        attention_seconds(each, device, TARGETS["torch"], tp=1, micro_batch=2)[0]
        for each in (whole(), made(spread=0.0))
    )
    kernel = device.stream(0.0, 1)
    assert packed - 16 * kernel == pytest.approx((full - kernel) / 8)
    scores = 12.0 * 24 * 2048 * LENGTH * LENGTH * 0.5 * 16
    assert model_flops(whole()) - model_flops(made(spread=0.0)) == pytest.approx(scores * 7 / 8)


def test_a_step_of_documents() -> None:
    """Padding is computed and counts for nothing; packed sequences are full and attend to less."""
    full, packed, padded = step(whole()), step(made()), step(made(packing=False))
    assert padded.step_seconds == full.step_seconds
    assert padded.tokens_per_second == pytest.approx(full.tokens_per_second / 8)
    assert packed.breakdown.compute_seconds < full.breakdown.compute_seconds
    assert packed.model_flops < full.model_flops


def test_a_measured_layer_of_whole_sequences_is_none_of_documents() -> None:
    """Unfused scores, too, are those of documents."""
    unfused = gpt(global_batch=16, sequence_length=LENGTH, attention="unfused")
    documents = unfused.training.model_copy(update={"documents": DocumentsSpec(mean_length=1024, spread=0.0)})
    packed = unfused.model_copy(update={"training": documents})
    chosen = plan("torch", 3, [24], [(group("a", "A100", count=4, share=4),)])
    bytes_of = [estimate(chosen, WHERE, each).stages[0].groups[0].memory for each in (unfused, packed)]
    scores = 5.0 * 16 * LENGTH * LENGTH * 24 * 4
    assert bytes_of[0].activations_bytes - bytes_of[1].activations_bytes == pytest.approx(scores * 7 / 8)


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        (
            plan("torch", 1, [2, 2], [(group("a", "A100", share=8, steps=4),)] * 2),
            "needs one stage, got 2",
        ),
        (
            plan("torch", 1, [4], [(group("a", "A100", count=2, share=8),)], cp=2, cp_kind="ulysses"),
            "whole sequences, got 2 parts",
        ),
        (
            plan("torch", 0, [4], [(group("a", "A100", count=2, share=4),)], sync=Sync(every=5)),
            "whole gradients in every step, got islands",
        ),
        (plan("megatron", 0, [4], [(group("a", "A100", count=2, share=4),)]), "no documents to megatron"),
        (
            plan("torch", 0, [4], [(group("a", "A100", count=4, share=4),)], backup=2),
            "drops no gradients",
        ),
    ],
)
def test_rules(chosen: Plan, what: str) -> None:
    """Each has its reason."""
    spec = model(8, documents=DocumentsSpec(mean_length=4))
    assert [fault.what for fault in target_faults(chosen, spec) if what in fault.what]


def test_the_search_proposes_what_can_be_launched() -> None:
    """One stage with whole sequences, of a runtime that deals documents."""
    result = search(WHERE, made(), limits=Limits())
    assert result.best is not None
    assert result.best.plan.target in ("torch", "deepspeed")
    assert result.best.plan.pp == 1
    assert not target_faults(result.best.plan, made())


FILE = """
name: m
layers: 2
hidden: 64
heads: 4
vocab: 100
{more}
training:
  sequence_length: 512
  global_batch: 8
  {training}
"""


@pytest.mark.parametrize(
    ("training", "more", "said"),
    [
        ("documents: {mean_length: 600}", "", "mean_length: expected at most the 512 tokens"),
        (
            "documents: {mean_length: 60}",
            "kind: encoder",
            "documents: expected none, the model has an encoder",
        ),
        ("documents: {mean_length: 60, packed: true}", "", "packed"),
        ("documents: {spread: 1}", "", "mean_length: missing"),
        ("documents: {mean_length: 0}", "", "mean_length: expected"),
        ("documents: {mean_length: 60}\n  mtp_layers: 1", "", "modules that predict further tokens"),
    ],
)
def test_faults_of_a_file(tmp_path: Path, training: str, more: str, said: str) -> None:
    """One clear error each."""
    path = tmp_path / "model.yaml"
    path.write_text(FILE.format(training=training, more=more))
    with pytest.raises(SpecError) as raised:
        load_model(path)
    assert [line for line in str(raised.value).splitlines() if said in line], str(raised.value)
    assert len(raised.value.problems) == 1
