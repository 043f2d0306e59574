"""Sequences that no device has room for: they are divided, or the answer names what would divide them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.file import load_cluster
from planner.model.file import load_model
from planner.plan.checks import faults
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, gpt, model, pool

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_llama_at_128k_tokens_on_two_device_types() -> None:
    """Eight H100 and eight A100 hold it by tensor parallelism, and without by context parallelism alone."""
    where = load_cluster(REPOSITORY / "cluster_specs/h100_a100.yaml")
    spec = load_model(REPOSITORY / "model_specs/llama_3_8b_128k.yaml")
    limits = Limits(target="megatron", tp=(1,), micro_batch=(1,), recompute=("full",), gap=0.05)
    found = search(where, spec, ASSUMED, limits, explain=False)
    assert found.status == "optimal"
    assert found.best is not None
    assert found.best.plan.cp > 1
    assert found.best.estimate.devices == 16
    assert faults(found.best.plan, where, spec) == ()
    whole = search(
        where, spec, ASSUMED, replace(limits, cp=(1,), zero=(1,), offload=("none",)), explain=False
    )
    assert whole.status == "infeasible"


def test_what_does_not_fit_names_context_parallelism() -> None:
    """Also below the tokens from which the search divides sequences unasked."""
    shape = {"hidden": 512, "heads": 8, "head_dim": 64, "kv_heads": 8, "ffn": 2048, "vocab": 128_256}
    spec = model(4, **shape, attention="flash", precision="fp16", cross_entropy="plain")
    training = spec.training.model_copy(update={"sequence_length": 12_288})
    spec = spec.model_copy(update={"training": training})
    found = search(
        cluster(pool("a", "T4", 1)),
        spec,
        ASSUMED,
        Limits(target="deepspeed", tp=(1,), zero=(3,), recompute=("full",)),
    )
    assert found.diagnosis is not None
    what = "fits with --cp 2, which divides sequences of fewer tokens than are divided unasked"
    assert any(hint.startswith(what) for hint in found.diagnosis.hints)


def test_sequences_over_nodes_of_equal_pools() -> None:
    """Equal pools are as good as one: the second of three pairs of nodes lies in both, and starts."""
    pools = tuple(pool(name, "A100", nodes=3, per_node=1) for name in "ab")
    spec = gpt(2, 512, 8, sequence_length=32_768, global_batch=3, precision="bf16")
    asked = Limits(target="megatron", cp=(2,), pp=(1,), tp=(1,))
    split, whole = (
        search(cluster(*each), spec, limits=asked, explain=False).best
        for each in (pools, (pool("a", "A100", nodes=6, per_node=1),))
    )
    assert split is not None
    assert whole is not None
    assert [group.count for group in split.plan.stages[0].replicas] == [3, 3]
    assert split.estimate.step_seconds == pytest.approx(whole.estimate.step_seconds)
    assert faults(split.plan, cluster(*pools), spec) == ()
