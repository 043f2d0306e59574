"""Blocks of unlike layers: counted, priced, held and placed as what they consist of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.calibration.values import ASSUMED, Calibration, Residual
from planner.cluster.topology import Topology
from planner.cost.compute import model_flops, state_flops
from planner.cost.estimate import estimate
from planner.cost.memory import activation_bytes_per_layer
from planner.cost.stage import PLAIN, Pricer
from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.spec import ModelSpec, RunSpec, StateSpec, TowerSpec
from planner.plan.values import Plan
from planner.targets import TARGETS
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", "A100", 2))
EXPERTS = {"number": 8, "top_k": 2, "ffn": 512}
DUALITY = StateSpec(kind="mamba2", heads=16, head_dim=64, size=128, groups=2)
RUNS = (
    RunSpec(layers=3, mixer="state", feed_forward="dense"),
    RunSpec(layers=1, mixer="attention", feed_forward="experts"),
)


def hybrid(**changes: Any) -> ModelSpec:
    """Four blocks of four layers, three of them with a state and one with experts."""
    shape = {"hidden": 512, "heads": 8, "head_dim": 64, "kv_heads": 8, "ffn": 2048, "vocab": 1000}
    values = {"layers": 4, "gated_mlp": True, "experts": EXPERTS, "state": DUALITY, "block": RUNS, **shape}
    return model(16, **{**values, **changes})


def alone(mixer: str, **changes: Any) -> ModelSpec:
    """Layers of one kind."""
    more = {"block": None, "mixer": mixer, "state": DUALITY if mixer == "state" else None}
    return hybrid(**{**more, "experts": None, **changes})


def staged(layers: list[int], target: str = "megatron", **changes: Any) -> Plan:
    """Stages of four replicas."""
    stage = (group("a", "A100", count=4, share=4, steps=4),)
    return plan(target, 1, layers, [stage] * len(layers), **changes)


def test_a_block_counts_as_its_layers() -> None:
    """Parameters and operations are those of models of one kind each, the ends once."""
    both, carried, routed = hybrid(), alone("state"), alone("attention", experts=EXPERTS)
    assert both.layer_parameters == 3 * carried.layer_parameters + routed.layer_parameters
    assert both.expert_parameters == routed.expert_parameters
    assert both.all_layers == 16
    head = 3 * 2 * 16 * 512 * 1000 * 16
    ends = model_flops(both) - head
    assert ends == pytest.approx(3 * (model_flops(carried) - head) + model_flops(routed) - head)


def test_the_state_of_mamba_2() -> None:
    """2,560 wide, by the parameters of transformers' own layer and the operations of the paper's four products."""
    state = StateSpec(kind="mamba2", heads=80, head_dim=64, size=128, groups=1)
    assert state.matrices(2560)[0][1] == 2 * 5120 + 2 * 128 + 80
    assert state.own_parameters == 5 * (5120 + 256) + 3 * 80 + 5120
    assert state_flops(state) == 2 * 256 * (128 + 5120) + 4 * 128 * 5120


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_block_takes_as_long_as_its_layers(recompute: Any) -> None:
    """And keeps as much for the backward."""
    topology = Topology(CLUSTER)
    (kind,) = topology.device_types

    def priced(spec: ModelSpec) -> Any:
        return Pricer(topology, spec, ASSUMED, TARGETS["torch"])._layer(
            kind, 1, 2, PLAIN._replace(recompute=recompute)
        )

    def kept(spec: ModelSpec) -> float:
        return activation_bytes_per_layer(
            spec, tp=1, micro_batch=2, recompute=recompute, sequence_parallel=False, eager=True
        )

    both, carried, routed = hybrid(), alone("state"), alone("attention", experts=EXPERTS)
    for name in ("forward_seconds", "backward_seconds", "recompute_seconds"):
        wanted = 3 * getattr(priced(carried), name) + getattr(priced(routed), name)
        assert getattr(priced(both), name) == pytest.approx(wanted)
    assert (kept(carried) != kept(routed)) is (recompute == "none")
    runs = {run.kind.mixer: kept(run.kind) for run in both.runs}
    assert runs == {"state": kept(carried), "attention": kept(routed)}


def test_layers_behind_stand_on_the_last_stage() -> None:
    """As those ahead stand on the first: each takes longer by its own, and holds it."""
    bare = hybrid(state=None, block=None)
    run = RunSpec(layers=2, feed_forward="dense")
    ahead, behind = (
        hybrid(state=None, block=None, ahead=(run,)),
        hybrid(state=None, block=None, behind=(run,)),
    )
    found = {spec: estimate(staged([2, 2]), CLUSTER, spec).stages for spec in (bare, ahead, behind)}
    first, last = (
        found[spec][index].forward_seconds - found[bare][index].forward_seconds
        for spec, index in ((ahead, 0), (behind, 1))
    )
    assert first == pytest.approx(last)
    assert first > 0
    assert found[ahead][1].forward_seconds == found[bare][1].forward_seconds
    assert found[behind][0].forward_seconds == found[bare][0].forward_seconds
    more = [found[behind][1].groups[0].memory, found[bare][1].groups[0].memory]
    assert more[0].parameters_bytes - more[1].parameters_bytes == 2 * behind.behind_parameters


TOWER = TowerSpec(
    layers=4, hidden=256, heads=4, ffn=1024, patch=588, tokens=64, outputs=16, merged=4, projector=(1024, 512)
)


def seeing(**changes: Any) -> ModelSpec:
    """A plain decoder behind a tower."""
    return hybrid(state=None, block=None, experts=None, tower=TOWER.model_copy(update=changes))


def test_a_tower_stands_on_the_first_stage() -> None:
    """It takes there what its layers take as a model of images, and more of it for more images."""
    bare = hybrid(state=None, block=None, experts=None)
    found = {
        images: estimate(staged([2, 2], "torch"), CLUSTER, seeing(images=images)).stages for images in (1, 4)
    }
    plain = estimate(staged([2, 2], "torch"), CLUSTER, bare).stages
    for images, stages in found.items():
        more = stages[0].groups[0].memory.parameters_bytes - plain[0].groups[0].memory.parameters_bytes
        assert more == pytest.approx(
            plain[0].groups[0].memory.parameters_bytes / bare_elements(bare) * elements()
        )
        assert stages[0].forward_seconds > plain[0].forward_seconds
        assert stages[1].forward_seconds == plain[1].forward_seconds, images
    assert found[4][0].forward_seconds > found[1][0].forward_seconds
    (run,) = seeing(images=4).first_runs
    assert (run.layers, run.inputs, run.kind.training.sequence_length) == (4, 4, 64)


def bare_elements(bare: ModelSpec) -> int:
    """Parameters of two layers and the embedding."""
    return 2 * bare.layer_parameters + bare.embedding_parameters


def elements() -> int:
    """Parameters of the tower: four layers, patches and a projector of two matrices, with biases."""
    layer = 4 * 256 * 256 + 2 * 256 * 1024 + 5 * 256 + 1024 + 3 * 256 + 256
    return 4 * layer + 588 * 256 + 1024 * (1024 + 1) + 512 * (1024 + 1)


def test_a_frozen_tower_is_read_forward_alone() -> None:
    """No backward, no gradients, no states: it costs its weights, and a third of its operations."""
    trained, frozen = seeing(), seeing(frozen=True)
    assert trained.parameters == frozen.parameters
    layers = 4 * trained.first_runs[0].kind.layer_parameters
    assert trained.trained_parameters - frozen.trained_parameters == layers + 588 * 256
    found = [estimate(staged([2, 2], "torch"), CLUSTER, spec).stages[0] for spec in (trained, frozen)]
    assert found[0].forward_seconds == found[1].forward_seconds
    assert found[0].backward_seconds > found[1].backward_seconds
    first, second = (stage.groups[0].memory for stage in found)
    assert first.activations_bytes > second.activations_bytes
    assert first.optimizer_bytes > second.optimizer_bytes
    assert model_flops(frozen) < model_flops(trained)


HEAD = "name: m\nlayers: 4\nhidden: 64\nheads: 4\nvocab: 100\n"
TRAINING = "training: {sequence_length: 64, global_batch: 8}\n"


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("mixer: state", "mixer", "state needs a state, expected attention or none"),
        ("block: [{feed_forward: experts}]", "block[0].feed_forward", "the model has no experts"),
        (
            "block: [{mixer: none, feed_forward: none}]",
            "block[0].mixer",
            "a layer needs a mixer or a feed-forward",
        ),
        ("state: {kind: conv, head_dim: 64}", "state", "no layer carries a state"),
        (
            "experts: {number: 8, top_k: 2, ffn: 64}\nfeed_forward: dense",
            "feed_forward",
            "layers without a block have the experts, expected experts, got dense",
        ),
        (
            "experts: {number: 8, top_k: 2, ffn: 64}\nblock: [{feed_forward: dense}, {feed_forward: none}]",
            "experts",
            "no layer has experts, expected feed_forward experts somewhere",
        ),
        (
            "window: 8\nwindow_layers: 90\nblock: [{layers: 4}]",
            "window_layers",
            "expected at most layers 16, got 90",
        ),
        ("kind: encoder\nblock: [{layers: 2}]", "block", "encoders have layers of attention"),
        (
            "mixer: state\nstate: {kind: mamba2, heads: 4, head_dim: 8, groups: 3}",
            "state.groups",
            "expected a divisor of the state's heads 4, got 3",
        ),
        (
            "tower: {layers: 1, hidden: 8, heads: 2, ffn: 8, patch: 4, tokens: 4, outputs: 4, projector: [32]}",
            "tower.projector",
            "expected hidden 64 of the text as the last width, got 32",
        ),
        (
            "tower: {layers: 1, hidden: 8, heads: 2, ffn: 8, patch: 4, tokens: 4, outputs: 65, projector: [64]}",
            "tower.outputs",
            "expected at most the 64 tokens of a sequence, got 1 x 65 of images",
        ),
        ("mixer: state\nstate: {kind: mamba, head_dim: 8}", "state.rank", "missing, expected the rank"),
        ("mixer: state\nstate: {kind: conv, heads: 2, head_dim: 8}", "state.heads", "has channels alone"),
        ("mixer: state\nstate: {kind: linear, heads: 4, groups: 4, head_dim: 8}", "state.size", "missing"),
        (
            "mixer: state\nstate: {kind: linear, heads: 4, groups: 2, head_dim: 8, size: 4}",
            "state.groups",
            "keys of its own for each head, expected 4, got 2",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, key: str, what: str) -> None:
    """With the key."""
    path = tmp_path / "model.yaml"
    path.write_text(f"{HEAD}{text}\n{TRAINING}")
    with pytest.raises(SpecError) as found:
        load_model(path)
    (problem,) = found.value.problems
    assert problem.key == key
    assert what in problem.what


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("lora: {rank: 8, targets: [q_proj]}", "nothing of the state and dense layers is trained, expected"),
        ("lora: {rank: 8, targets: [in_proj, kv_b_proj]}", "the layers have no kv_b_proj, expected q_proj"),
        ("freeze: [attention, norms]", "freezes all of the state layers, expected something in them"),
    ],
)
def test_something_is_trained_in_every_kind_of_layers(tmp_path: Path, key: str, what: str) -> None:
    """Whatever adapters are beside, and whatever is frozen; else no gradient would come to them."""
    feeds = "none" if "freeze" in key else "dense"
    state = "state: {kind: mamba2, heads: 4, head_dim: 16, size: 8}"
    path = tmp_path / "model.yaml"
    path.write_text(
        f"{HEAD}{state}\nblock: [{{mixer: state, feed_forward: {feeds}}}, {{}}]\n{TRAINING.replace('}', f', {key}}}')}"
    )
    with pytest.raises(SpecError) as found:
        load_model(path)
    assert what in str(found.value)


def test_layers_without_runs_have_the_bar_of_what_is_not_known() -> None:
    """However well the family and the runtime are known from other layers."""
    family = Topology(CLUSTER).device_type("a", "A100").family
    residuals = (Residual(family=family, framework="torch", rows=9, spread=0.1),)
    calibration = Calibration(residuals=residuals, default_spread=0.4)
    bars = {
        mixer: estimate(staged([8], "torch"), CLUSTER, alone(mixer, layers=8), calibration).spread
        for mixer in ("attention", "state")
    }
    assert bars == {"attention": 0.1, "state": 0.4}
