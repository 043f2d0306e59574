"""Seconds of layers: roofline, launch floor, recomputation, useful FLOPs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration import DEFAULT
from planner.cost.compute import Pass, embedding_pass, head_pass, layer_pass, model_flops, optimizer_seconds
from planner.spec.model import ModelSpec
from planner.targets import Recompute
from planner.topology import Topology
from tests.clusters import cluster, gpt, pool

KIND = Topology(cluster(pool("p"))).kinds[0]


def one(model: ModelSpec, *, tp: int = 1, micro_batch: int = 4, recompute: Recompute = "none") -> Pass:
    """A layer on an A100."""
    return layer_pass(
        model, KIND, DEFAULT, tp=tp, micro_batch=micro_batch, recompute=recompute, sequence_parallel=tp > 1
    )


def test_useful_flops_are_those_of_the_megatron_paper() -> None:
    """72 B s l h^2 (1 + s/6h + V/12lh) of arXiv:2104.04473, with half of the attention for causality."""
    model = gpt(48, 8192, 64, global_batch=1536, sequence_length=2048)
    full = 72 * 1536 * 2048 * 48 * 8192**2 * (1 + 2048 / (12 * 8192) + 51200 / (12 * 48 * 8192))
    assert model_flops(model) == pytest.approx(full, rel=1e-3)


def test_a_large_layer_runs_at_the_matrix_rate() -> None:
    """Most of a wide layer's time is its products at peak x efficiency."""
    model = gpt(hidden=8192, heads=64, sequence_length=2048)
    flops = 24 * 4 * 2048 * 8192**2
    ideal = flops / (312e12 * DEFAULT.matmul_efficiency)
    assert ideal < one(model).forward_seconds < 1.3 * ideal
    assert one(model).backward_seconds == pytest.approx(2 * one(model).forward_seconds, rel=0.05)


def test_a_small_layer_waits_for_its_launches() -> None:
    """Kernels of a tiny layer take their launch time however little they do."""
    tiny = gpt(hidden=128, heads=4, sequence_length=16)
    assert one(tiny, micro_batch=1).forward_seconds == one(tiny, micro_batch=2).forward_seconds > 5e-5


def test_recomputation_costs_a_forward() -> None:
    """Full: the whole forward again; selective: attention only; none: nothing."""
    model = gpt(attention="unfused")
    none, some, full = (one(model, recompute=kind) for kind in ("none", "selective", "full"))
    assert none.recompute_seconds == 0
    assert 0 < some.recompute_seconds < full.recompute_seconds == full.forward_seconds


def test_seconds_scale_with_speed() -> None:
    """A device k times as fast in everything takes 1/k of the time, launches included."""
    fast = replace(
        KIND,
        memory_bytes_per_second=3 * KIND.memory_bytes_per_second,
        peak_flops={name: 3 * value for name, value in KIND.peak_flops.items()},
    )
    quick = replace(DEFAULT, launch_seconds=DEFAULT.launch_seconds / 3)
    model = gpt()
    slow = one(model).forward_seconds
    found = layer_pass(model, fast, quick, tp=1, micro_batch=4, recompute="none", sequence_parallel=False)
    assert found.forward_seconds == pytest.approx(slow / 3)


def test_tensor_parallelism_splits_the_products() -> None:
    """Eight devices need an eighth of the matrix time and more than an eighth in total without SP."""
    model = gpt(hidden=8192, heads=64, sequence_length=2048)
    assert one(model).forward_seconds / 8 <= one(model, tp=8).forward_seconds < one(model).forward_seconds / 6


def test_a_number_format_that_the_device_lacks_is_a_key_error() -> None:
    """V100 has no bf16."""
    kind = Topology(cluster(pool("p", "V100"))).kinds[0]
    with pytest.raises(KeyError, match="bf16"):
        layer_pass(
            gpt(precision="bf16"),
            kind,
            DEFAULT,
            tp=1,
            micro_batch=1,
            recompute="none",
            sequence_parallel=False,
        )


def test_head_embedding_and_optimizer_are_real_work() -> None:
    """A large vocabulary costs as much as layers do; the embedding and the optimizer are streams of bytes."""
    model = gpt(vocab=256_000)
    head = head_pass(model, KIND, DEFAULT, tp=1, micro_batch=4)
    assert head.forward_seconds > 5 * one(model).forward_seconds
    assert (
        0 < embedding_pass(model, KIND, DEFAULT, tp=1, micro_batch=4).forward_seconds < head.forward_seconds
    )
    assert optimizer_seconds(1e9, KIND, model, DEFAULT) == pytest.approx(30e9 / (2039e9 * 0.8), rel=0.01)
