"""Documents shorter than a sequence: lengths, prices, rules, what the search proposes, and faults of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.topology import Topology
from planner.cost.compute import Device, attention_seconds, model_flops
from planner.cost.convergence import convergence
from planner.cost.estimate import Estimator, estimate
from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.spec import DocumentsSpec, LoraSpec, ModelSpec, PreferenceSpec
from planner.plan.checks import target_faults
from planner.plan.values import Offload, Plan, Sync
from planner.report.inputs import _model
from planner.search.bounds.device_rates import DeviceRates
from planner.search.objectives.loss import to_loss
from planner.search.solve import search
from planner.search.values import Goal, Limits
from planner.targets import TARGETS
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


@pytest.mark.parametrize(("target", "kernels"), [("torch", 16), ("megatron", 1)])
def test_attention_stays_in_documents(target: str, kernels: int) -> None:
    """An eighth of the scores, at a kernel for each document in the examples; products are the same."""
    kind = Topology(WHERE).device_types[0]
    device = Device(kind, ASSUMED, "fp16", "torch")
    full, packed = (
        attention_seconds(each, device, TARGETS[target], tp=1, micro_batch=2)[0]
        for each in (whole(), made(spread=0.0))
    )
    kernel = device.stream(0.0, 1)
    assert packed - kernels * kernel == pytest.approx((full - kernel) / 8)
    scores = 12.0 * 24 * 2048 * LENGTH * LENGTH * 0.5 * 16
    assert model_flops(whole()) - model_flops(made(spread=0.0)) == pytest.approx(scores * 7 / 8)


def test_a_step_of_documents() -> None:
    """Padding is computed and counts for nothing; packed sequences are full and attend to less."""
    full, packed, padded = step(whole()), step(made()), step(made(packing=False))
    assert padded.step_seconds == full.step_seconds
    assert padded.tokens_per_second == pytest.approx(full.tokens_per_second / 8)
    assert packed.breakdown.compute_seconds < full.breakdown.compute_seconds


def test_documents_are_priced_for_megatron_and_not_written() -> None:
    """As NeMo and Megatron Bridge pack them."""
    found = search(WHERE, made(), limits=Limits(target="megatron"))
    assert found.diagnosis is not None
    assert found.diagnosis.causes == (
        "training on documents with megatron is priced, but hetplan writes no launch files for it",
    )


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
            plan("torch", 1, [4], [(group("a", "A100", count=2, share=8),)], cp=2, cp_kind="ring"),
            "not passed around a ring",
        ),
        (
            plan("torch", 0, [4], [(group("a", "A100", count=2, share=4),)], sync=Sync(every=5)),
            "whole gradients in every step, got islands",
        ),
        (
            plan("flagscale", 0, [4], [(group("a", "A100", count=2, share=4),)]),
            "does not train on documents with flagscale",
        ),
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
    """Whole sequences, of a runtime that deals documents, in stages where it tells each of them where they end."""
    result = search(WHERE, made(), limits=Limits())
    assert result.best is not None
    assert result.best.plan.target in ("torch", "deepspeed")
    assert result.best.plan.cp == 1
    assert not target_faults(result.best.plan, made())


def test_the_time_to_a_loss_counts_no_padding() -> None:
    """The steps of a batch take as long as the run that is told of it."""
    spec = made(packing=False)
    steps = convergence(spec, 1e9, None)
    limits = Limits(target="torch", zero=(3,), recompute=("full",))
    found = to_loss(WHERE, spec, ASSUMED, limits, Goal(), steps, (8, 16), explain=False)
    assert steps.steps_known == pytest.approx(1e9 / (16 * 1024))
    runs = [(point.run, point.seconds) for point in found.points if point.run is not None]
    assert runs
    for run, seconds in runs:
        assert run.seconds == pytest.approx(seconds)


def test_devices_have_no_more_tokens_than_they_train_on() -> None:
    """The bound on tokens a second counts no padding either."""
    limits = Limits(target="torch", zero=(3,), recompute=("full",))
    full, padded = (
        DeviceRates(Estimator(WHERE, each, ASSUMED), limits).tokens_per_second()
        for each in (whole(), made(packing=False))
    )
    assert padded == pytest.approx({key: rate / 8 for key, rate in full.items()})


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


def pairs(**training: Any) -> ModelSpec:
    """The same model on pairs of answers."""
    return gpt(global_batch=16, sequence_length=LENGTH, preference=PreferenceSpec(), **training)


@pytest.mark.parametrize("zero", [0, 3])
def test_a_copy_of_the_model_stands_beside_it(zero: int) -> None:
    """In its working format, sharded by ZeRO 3; with adapters there is none."""
    chosen = plan("deepspeed", zero, [24], [(group("a", "A100", count=4, share=4),)], recompute="full")
    lora = LoraSpec(rank=8)
    plain, trained, adapted, both = (
        estimate(chosen, WHERE, each).stages[0].groups[0].memory
        for each in (
            whole(),
            pairs(),
            gpt(global_batch=16, sequence_length=LENGTH, lora=lora),
            pairs(lora=lora),
        )
    )
    copied = 2.0 * whole().parameters / (4 if zero == 3 else 1)
    assert trained.parameters_bytes - plain.parameters_bytes == pytest.approx(copied)
    assert trained.optimizer_bytes == plain.optimizer_bytes
    assert trained.gradients_bytes == plain.gradients_bytes
    assert both.parameters_bytes == adapted.parameters_bytes


def test_a_second_forward() -> None:
    """The forward twice, gathers of ZeRO 3 included; answers attend to themselves, which halves their scores."""
    chosen = plan("deepspeed", 3, [24], [(group("a", "A100", count=4, share=4),)], recompute="full")
    halves = gpt(
        global_batch=16, sequence_length=LENGTH, documents=DocumentsSpec(mean_length=LENGTH // 2, spread=0.0)
    )
    one, two = (estimate(chosen, WHERE, each).stages[0].groups[0] for each in (halves, pairs()))
    assert two.forward_seconds == pytest.approx(2 * one.forward_seconds, rel=0.02)
    assert two.backward_seconds == pytest.approx(one.backward_seconds)


def test_the_search_prices_the_second_forward_of_zero_3() -> None:
    """Its gathers too: what is proven is what the plan takes."""
    apart = cluster(pool("a", "A100", 2, per_node=2))
    spec = gpt(global_batch=16, sequence_length=1024, preference=PreferenceSpec())
    found = search(apart, spec, limits=Limits(target="deepspeed", zero=(3,), gap=0.0), explain=False)
    assert found.best is not None
    assert found.bound_seconds == pytest.approx(found.best.estimate.step_seconds)
    assert found.status == "optimal"


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        (plan("torch", 1, [4], [(group("a", "A100", tp=2, share=8),)]), "replicas of one device, got tp 2"),
        (
            plan("megatron", 0, [4], [(group("a", "A100", count=2, share=4),)]),
            "does not train on pairs of answers with megatron",
        ),
        (
            plan(
                "deepspeed",
                3,
                [4],
                [(group("a", "A100", count=2, share=4),)],
                offload=Offload(optimizer="cpu"),
            ),
            "everything on the devices",
        ),
    ],
)
def test_rules_of_pairs(chosen: Plan, what: str) -> None:
    """Each has its reason."""
    spec = model(8, preference=PreferenceSpec())
    assert [fault.what for fault in target_faults(chosen, spec) if what in fault.what]


def test_the_search_proposes_plans_for_pairs() -> None:
    """Stages of whole devices, which hold the copy too."""
    result = search(WHERE, pairs(), limits=Limits())
    assert result.best is not None
    assert not target_faults(result.best.plan, pairs())


HALVES = DocumentsSpec(mean_length=LENGTH // 2, spread=0.0)
"""What takes as long as pairs but for their second forward."""


@pytest.mark.parametrize(("target", "busy"), [("torch", 3), ("deepspeed", 5)])
def test_both_forwards_are_sent(target: str, busy: int) -> None:
    """And one gradient; with DeepSpeed the stage below waits for what it receives."""
    stages = [(group("a", "A100", share=16, steps=8),)] * 3
    chosen = plan(target, 1, [8, 8, 8], stages)
    spec = pairs()
    priced = Estimator(WHERE, spec, ASSUMED).price(chosen)
    sends = {send.seconds for send in priced.sends[:2]}
    assert len(sends) == 1
    alone = priced.stages[1].forward[0] + priced.stages[1].backward[0]
    sent = priced.forward[1][0] + priced.backward[1][0] - alone
    assert sent == pytest.approx(busy * sends.pop())
    assert (
        priced.backward[1][0] - priced.stages[1].backward[0]
        < priced.forward[0][0] - priced.stages[0].forward[0]
    )


def test_stages_keep_hidden_states_of_the_copy() -> None:
    """Those that come and go with each micro-batch alive, and at the end its logits, beside its part of the copy."""
    stages = [(group("a", "A100", share=16, steps=8),)] * 3
    chosen = plan("torch", 1, [8, 8, 8], stages, recompute="full")
    halves, both = (
        estimate(chosen, WHERE, each).stages
        for each in (gpt(global_batch=16, sequence_length=LENGTH, documents=HALVES), pairs())
    )
    hidden = 2.0 * 2 * LENGTH * 2048
    for stage, kept in ((0, 3), (1, 2 * 2), (2, 1)):
        one, two = (each[stage].groups[0].memory for each in (halves, both))
        assert two.activations_bytes - one.activations_bytes == pytest.approx(kept * hidden)
        assert two.parameters_bytes > one.parameters_bytes
        more = 2.0 * 2 * LENGTH * 51200 if stage == 2 else 0.0
        # Those without a reference are less than the buffers of the head behind them.
        assert two.logits_bytes - one.logits_bytes == pytest.approx(more, rel=0.1)


@pytest.mark.parametrize("target", ["torch", "deepspeed"])
@pytest.mark.parametrize("spec", [made(), pairs()], ids=["documents", "pairs"])
def test_pipelines_of_both_are_found(target: str, spec: ModelSpec) -> None:
    """Where pipelines alone are asked for."""
    found = search(WHERE, spec, limits=Limits(target=target, pp=(2, 4)), explain=False)
    assert found.best is not None
    assert found.best.plan.pp > 1
    assert not target_faults(found.best.plan, spec)


@pytest.mark.parametrize(
    ("training", "more", "said"),
    [
        ("preference: {}\n  documents: {mean_length: 60}", "", "documents: a sequence is a pair of answers"),
        ("preference: {beta: 0}", "", "beta: expected"),
        ("preference: {beta: 0.1}", "kind: encoder", "preference: expected none, the model has an encoder"),
    ],
)
def test_faults_of_pairs(tmp_path: Path, training: str, more: str, said: str) -> None:
    """One clear error each."""
    test_faults_of_a_file(tmp_path, training, more, said)


def test_halves_of_a_sequence(tmp_path: Path) -> None:
    """An odd number of tokens has none."""
    path = tmp_path / "model.yaml"
    path.write_text(FILE.format(training="preference: {}", more="").replace("512", "513"))
    with pytest.raises(SpecError, match="sequence_length: expected an even number of tokens with preference"):
        load_model(path)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (made(), ", packed documents of 1024 tokens"),
        (made(packing=False), ", documents of 1024 tokens with 88 % padding"),
        (pairs(), ", pairs of answers beside a frozen copy of the model"),
        (whole(), "flash attention"),
        (gpt(optimizer_states="int8"), "adamw with moments in int8, flash attention"),
        (gpt(norms="unfused", token_dispatcher="deepep"), "unfused norms, tokens to experts by deepep"),
        (
            gpt(norms="unfused", lora=LoraSpec(rank=8, base="nf4", dropout=True, keeps_inputs=True)),
            "unfused norms, adapters of rank 8 that drop on a base in nf4 that keeps its inputs (7.08 M "
            "parameters trained)",
        ),
    ],
)
def test_what_is_understood(spec: ModelSpec, said: str) -> None:
    """At the end of the line on the training."""
    lines = dict(_model(spec))
    assert lines["training"].endswith(said)


ENCODER = {
    **{"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4},
    **{"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 128},
}
LABELS = {
    **{**ENCODER, "model_type": "llama", "max_position_embeddings": 101},
    "architectures": ["LlamaForSequenceClassification"],
}


@pytest.mark.parametrize(
    ("config", "training", "what"),
    [
        (ENCODER, "documents: {mean_length: 8}", "documents: expected none, the model has an encoder"),
        (ENCODER, "documents: {mean_length: 129}", "mean_length: expected at most the 128 tokens"),
        (ENCODER, "preference: {beta: 0.1}", "preference: expected none, the model has an encoder"),
        (LABELS, "documents: {mean_length: 8}", "documents: expected none, the model has a head of labels"),
        (LABELS, "preference: {beta: 0.1}", "sequence_length: expected an even number of tokens"),
    ],
)
def test_what_does_not_go_with_a_configuration(
    tmp_path: Path, config: dict[str, Any], training: str, what: str
) -> None:
    """Models of a config.json are checked as those of model files are."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "model.yaml"
    path.write_text(f"huggingface: config.json\ntraining:\n  {training}\n")
    with pytest.raises(SpecError, match=what):
        load_model(path)


def test_families_say_what_rules_them_out() -> None:
    """Tensor parallelism is not missing because of memory."""
    for spec, family, what in (
        (pairs(), "torch: pipeline + tensor", "not with pairs of answers"),
        (pairs(), "torch: data + tensor", "not with pairs of answers"),
        (
            gpt(global_batch=16, lora=LoraSpec(rank=8, base="nf4")),
            "deepspeed: data + tensor",
            "not with adapters on four bits",
        ),
        (
            gpt(global_batch=16, lora=LoraSpec(rank=8, base="nf4-double")),
            "torch: data + tensor",
            "not with adapters on nf4-double",
        ),
    ):
        result = search(WHERE, spec, limits=Limits())
        assert {entry.family: entry.reason for entry in result.alternatives}[family] == what


def test_padding_is_no_token_of_a_training() -> None:
    """A run of so many tokens takes as many steps as its plan's tokens a second say, with every batch."""
    spec = made(packing=False)
    law = convergence(spec, 1e9, None)
    assert law.steps_known * spec.training.tokens == pytest.approx(1e9)
    result = to_loss(WHERE, spec, ASSUMED, Limits(target="torch"), Goal(), law, (8, 16))
    for point in result.points:
        assert point.tokens == pytest.approx(point.steps * point.batch * 1024)
        assert point.scored is not None
        assert point.run is not None
        assert point.run.seconds == pytest.approx(point.seconds)
