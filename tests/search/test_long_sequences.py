"""Sequences that no device has room for: they are divided, or the answer names what would divide them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.calibration.values import ASSUMED
from planner.cluster.file import load_cluster
from planner.model.file import load_model
from planner.plan.checks import faults
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, model, pool

REPOSITORY = Path(__file__).parents[2]


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
    spec = model(4, **shape, attention="flash", precision="fp16")
    training = spec.training.model_copy(update={"sequence_length": 12_288})
    spec = spec.model_copy(update={"training": training})
    found = search(cluster(pool("a", "T4", 1)), spec, ASSUMED, Limits(target="deepspeed", tp=(1,)))
    assert found.diagnosis is not None
    what = "fits with --cp 2, which divides sequences of fewer tokens than are divided unasked"
    assert any(hint.startswith(what) for hint in found.diagnosis.hints)
