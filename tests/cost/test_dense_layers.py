"""Dense layers ahead of those with experts: counted, priced and held with the embedding on the first stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.cost.compute import model_flops, seen_scores
from planner.cost.estimate import estimate
from planner.cost.memory import meeting_gradients
from planner.errors import SpecError
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from planner.plan.values import WHOLE_EXPERTS, Plan
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", "A100", 2))
EXPERTS = {"number": 8, "top_k": 2, "ffn": 512}


def mixture(**changes: Any) -> ModelSpec:
    """Eight layers with experts and none ahead of them."""
    shape = {"hidden": 512, "heads": 8, "head_dim": 64, "kv_heads": 8, "ffn": 2048, "vocab": 1000}
    values = {"layers": 8, "gated_mlp": True, "precision": "fp16", "experts": EXPERTS, **shape, **changes}
    return model(16, **values)


def staged(layers: list[int], **changes: Any) -> Plan:
    """Stages of four replicas."""
    stage = (group("a", "A100", count=4, share=4, steps=4),)
    return plan("megatron", 1, layers, [stage] * len(layers), **changes)


def test_parameters_and_flops_of_both_kinds() -> None:
    """Those of a model of each kind of layers, the ends once."""
    both, dense = mixture(dense_layers=3), mixture(experts=None, layers=3)
    ends = both.embedding_parameters + both.head_parameters
    assert both.parameters == mixture().parameters + dense.parameters - ends
    assert both.active_parameters == mixture().active_parameters + dense.parameters - ends
    head = 3 * 2 * 16 * 512 * 1000 * 16
    assert model_flops(both) == pytest.approx(model_flops(mixture()) + model_flops(dense) - head)


def test_windows_are_those_of_all_layers() -> None:
    """Five of the eleven, of dense layers as of those with experts."""
    spec = mixture(dense_layers=3, window=4, window_layers=5)
    part = (4 * 16 - 6) / (16 * 17 / 2)
    for kind in spec.kinds:
        assert seen_scores(kind, True) == pytest.approx(1 - 5 / 11 * (1 - part))
    assert model_flops(spec) < model_flops(mixture(dense_layers=3))


def test_they_stand_on_the_first_stage() -> None:
    """Its micro-batches take longer by dense layers, and it holds them; nothing else changes."""
    bare, ahead = (estimate(staged([5, 3]), CLUSTER, mixture(dense_layers=count)) for count in (0, 3))
    dense = estimate(staged([3]), CLUSTER, mixture(experts=None, layers=3, tied_embeddings=False))
    alone = estimate(staged([1]), CLUSTER, mixture(experts=None, layers=1, tied_embeddings=False))
    more = ahead.stages[0].forward_seconds - bare.stages[0].forward_seconds
    one = (dense.stages[0].forward_seconds - alone.stages[0].forward_seconds) / 2
    assert more == pytest.approx(3 * one, rel=1e-6)
    assert ahead.stages[1].forward_seconds == bare.stages[1].forward_seconds
    first, before = (found.stages[0].groups[0].memory for found in (ahead, bare))
    assert first.parameters_bytes - before.parameters_bytes == 2 * mixture(dense_layers=3).ahead_parameters
    # Two micro-batches are alive there.
    kept = (
        dense.stages[0].groups[0].memory.activations_bytes
        - alone.stages[0].groups[0].memory.activations_bytes
    ) / 2
    # More gradients meet in the backward of a layer where its feed-forward is dense.
    met, fewer = (
        meeting_gradients(
            kind, tp=1, micro_batch=1, sequence_parallel=False, eager=False, folding=WHOLE_EXPERTS
        )
        for kind in (mixture(experts=None), mixture())
    )
    more_bytes = first.activations_bytes - before.activations_bytes
    assert more_bytes == pytest.approx(2 * 3 * kept + max(0.0, met - fewer))
    assert ahead.stages[1].groups[0].memory == bare.stages[1].groups[0].memory


def test_the_first_stage_gets_fewer_of_the_others() -> None:
    """The search knows that it has them: two stages alike in devices divide the others unevenly."""
    limits = Limits(target="megatron", pp=(2,), zero=(1,), ep=(1,), tp=(1,), recompute=("none",), gap=0.0)
    found = search(CLUSTER, mixture(dense_layers=4, ffn=4096), limits=limits, explain=False).best
    assert found is not None
    first, last = found.plan.stages
    assert first.layers < last.layers
    assert found.plan.layers == 8


def test_without_experts_all_layers_are_dense(tmp_path: Path) -> None:
    """None stand ahead of others."""
    path = tmp_path / "model.yaml"
    head = "name: m\nlayers: 4\nhidden: 64\nheads: 4\nvocab: 100\ndense_layers: 2\n"
    path.write_text(f"{head}training: {{sequence_length: 64, global_batch: 8}}\n")
    with pytest.raises(SpecError, match=r"dense_layers: .*without experts all layers are dense"):
        load_model(path)
