"""Weights that the optimizer updates: an fp32 copy, the 16 bits that bf16 lacks, or the bf16 weights themselves."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.estimate import estimate
from planner.cost.failures import state_bytes
from planner.cost.memory import parameters_of
from planner.cost.values import Estimate
from planner.model.spec import ModelSpec
from planner.search.solve import search
from planner.search.values import Limits
from tests.quick import first
from tests.search.exhaustive import exhaustive
from tests.worlds import GPUS, cluster, group, model, plan, pool

GPU = GPUS["A100"].model_copy(update={"tflops": {"bf16": 312, "fp16": 312, "fp8": 624}})
WHERE = cluster(pool("a", ("A100",) * 4), gpus={"A100": GPU})


def trained(masters: str | None, **training: Any) -> ModelSpec:
    """A small model in 16 bits."""
    shape: dict[str, Any] = {"hidden": 256, "heads": 4, "head_dim": 64, "precision": "bf16"}
    return model(8, master_weights=masters, **shape, **training)


def priced(target: str, zero: int, chosen: ModelSpec, devices: int = 1, steps: int = 1) -> Estimate:
    """A step on some replicas of a device each."""
    replicas = group("a", "A100", count=devices, share=8 // devices, steps=steps)
    return estimate(plan(target, zero, [4], [(replicas,)]), WHERE, chosen)


@pytest.mark.parametrize(
    ("target", "zero", "masters", "parameters", "gradients", "optimizer"),
    [
        ("torch", 3, "fp32", 0, 4, 12),
        ("torch", 3, "bf16", 2, 2, 8),
        ("deepspeed", 3, "fp32", 2, 2, 12),
        ("deepspeed", 3, "bf16", 2, 2, 8),
        ("megatron", 1, "fp32", 2, 4, 12),
        ("megatron", 1, "split", 2, 4, 10),
        ("megatron", 1, "bf16", 2, 2, 8),
    ],
)
def test_bytes_of_a_parameter(
    target: str, zero: int, masters: str, parameters: int, gradients: int, optimizer: int
) -> None:
    """On a device alone, over several micro-batches; a shard of torch has one copy of a weight, whatever its format."""
    chosen = trained(masters)
    used = priced(target, zero, chosen, steps=2).stages[0].groups[0].memory
    assert used.parameters_bytes == pytest.approx(parameters * chosen.parameters)
    assert used.gradients_bytes == pytest.approx(gradients * chosen.parameters)
    assert used.optimizer_bytes == pytest.approx(optimizer * chosen.parameters)


@pytest.mark.parametrize(
    ("target", "zero", "optimizer"), [("deepspeed", 0, 8), ("deepspeed", 1, 12), ("torch", 1, 12)]
)
def test_zero_updates_a_copy_in_fp32_training_too(target: str, zero: int, optimizer: int) -> None:
    """As counted in DeepSpeed's engine of ZeRO 1 to 3, and in a step of torch's example: 12 bytes beside 4."""
    chosen = model(8, hidden=256, heads=4, head_dim=64, precision="fp32")
    gpu = GPU.model_copy(update={"tflops": {"fp32": 19.5}})
    where = cluster(pool("a", ("A100",)), gpus={"A100": gpu})
    alone = plan(target, zero, [4], [(group("a", "A100", count=1, share=8),)])
    used = estimate(alone, where, chosen).stages[0].groups[0].memory
    assert (used.parameters_bytes, used.optimizer_bytes) == pytest.approx(
        (4 * chosen.parameters, optimizer * chosen.parameters)
    )


@pytest.mark.parametrize(
    ("target", "precision", "zero", "gradients", "optimizer"),
    [
        ("deepspeed", "bf16", 0, 2 + 2, 12 / 2),
        ("deepspeed", "bf16", 1, 2, 12 / 2),
        ("deepspeed", "fp16", 0, 2, 12),
        ("torch", "bf16", 0, 4, 12),
    ],
)
def test_pipelines_of_deepspeed_divide_bf16_states_without_zero(
    target: str, precision: str, zero: int, gradients: float, optimizer: float
) -> None:
    """Over two replicas; the sums of its gradients are beside them, and new parameters are gathered."""
    chosen = trained("fp32").trained_with(precision=precision)
    replicas = group("a", "A100", count=2, share=2, steps=2)
    priced = estimate(plan(target, zero, [4, 4], [(replicas,)] * 2), WHERE, chosen)
    here = parameters_of(chosen, layers=4, first=True, last=False, tp=1)
    used = priced.stages[0].groups[0].memory
    assert used.gradients_bytes == pytest.approx(gradients * here)
    assert used.optimizer_bytes == pytest.approx(optimizer * here)


def test_a_pipeline_of_deepspeed_in_bf16_updates_a_part_without_zero() -> None:
    """As long as with ZeRO 1, and all that ends the step is."""
    replicas = group("a", "A100", count=2, share=2, steps=2)
    chosen = trained("fp32", reduce_dtype="bf16")
    none, one = (
        estimate(plan("deepspeed", zero, [4, 4], [(replicas,)] * 2), WHERE, chosen) for zero in (0, 1)
    )
    assert none.breakdown.optimizer_seconds == pytest.approx(one.breakdown.optimizer_seconds)
    assert none.step_seconds == pytest.approx(one.step_seconds, rel=1e-3)


def test_megatron_splits_weights_for_narrow_moments() -> None:
    """Unasked, in bf16 training: 2 bytes beside two moments of 2; those of fp8 training are not split."""
    for precision, each in (("bf16", 6), ("fp8", 8)):
        chosen = trained(None, optimizer_states="bf16").trained_with(precision=precision)
        used = priced("megatron", 1, chosen).stages[0].groups[0].memory
        assert used.optimizer_bytes == pytest.approx(each * chosen.parameters)


def test_gradients_have_no_copy_in_fp32() -> None:
    """Where the optimizer takes them as they are."""
    buffers = {
        masters: priced("megatron", 1, trained(masters, gradient_dtype="bf16")).stages[0].groups[0].memory
        for masters in ("fp32", "split")
    }
    copied = buffers["fp32"].buffers_bytes - buffers["split"].buffers_bytes
    assert 0 < copied <= 4 * trained("fp32").parameters


@pytest.mark.parametrize(
    ("states", "exact_bytes", "narrow_bytes"),
    [("fp32", 24, 20), ("bf16", 16, 12), ("int8", 12 + 16 / 256, 8 + 16 / 256)],
)
def test_what_an_update_of_bf16_weights_moves(states: str, exact_bytes: float, narrow_bytes: float) -> None:
    """Weights and moments once each way, beside bf16 gradients that are measured, cleared and read; fp32 weights have a
    copy of these, too."""
    exact, narrow = (
        priced("torch", 3, trained(masters, optimizer_states=states), devices=4).breakdown.optimizer_seconds
        for masters in ("fp32", "bf16")
    )
    assert narrow / exact == pytest.approx((narrow_bytes + 3 * 2) / (exact_bytes + 3 * 4 + 6 + 2))


def test_state_is_what_is_updated() -> None:
    """2 bytes of a weight, or 4, beside its moments."""
    assert [state_bytes(trained(masters)) for masters in (None, "split", "bf16")] == [12, 12, 10]


@pytest.mark.parametrize(
    ("target", "states"),
    first(0, [("torch", "int8"), ("deepspeed", "fp32"), ("torch", "fp32"), ("deepspeed", "int8")]),
)
def test_the_search_finds_the_best_plan(target: str, states: str) -> None:
    """Of all plans of a small cluster, all of them with ZeRO 3."""
    where = cluster(pool("a", ("A100",) * 2), pool("b", ("T4",)))
    chosen, limits = trained("bf16", optimizer_states=states, layers=3), Limits(target=target, gap=0.0)
    found = search(where, chosen, limits=limits, explain=False)
    best = exhaustive(where, chosen, limits=limits)
    assert found.best is not None
    assert best is not None
    assert found.best.plan.zero == 3
    assert found.best.estimate.step_seconds == pytest.approx(best.estimate.step_seconds)
    assert found.bound_seconds <= best.estimate.step_seconds * (1 + 1e-9)
