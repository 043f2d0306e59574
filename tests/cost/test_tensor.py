"""Tensor-parallel traffic of a layer, and what products hide of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import Ring
from planner.cost.compute import LayerPass
from planner.cost.tensor import Hidden, collectives, has_user_buffers, hidden_by
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.targets import target
from tests.worlds import cluster, model, pool

DENSE = model(4)
ROUTED = model(4, experts=ExpertsSpec(number=8, top_k=2, ffn=32))


def ring(rate: float = 1e9, size: int = 4) -> Ring:
    """One without latency."""
    return Ring(size=size, bytes_per_second=rate, latency_seconds=0.0, crosses="node")


def layer(products: float) -> LayerPass:
    """A layer whose products take this long forward, and twice as long backward."""
    return LayerPass(
        forward_seconds=2 * products,
        backward_seconds=4 * products,
        attention_seconds=0.0,
        host_seconds=0.0,
        product_seconds=products,
        product_backward=2 * products,
    )


def kind(capability: float | None = 9.0, shared: bool = False) -> DeviceType:
    """A device of a node."""
    known = Topology(cluster(pool("a"))).device_type("a", "A100")
    return replace(known, compute_capability=capability, intra_shared=shared)


@pytest.mark.parametrize(
    ("spec", "whole", "split"),
    [
        (DENSE, 2, 2),
        (ROUTED, 2, 1),
        (model(4, experts=ExpertsSpec(number=8, top_k=2, ffn=32, shared_ffn=32)), 2, 2),
        (model(4, feed_forward="none"), 1, 1),
    ],
    ids=["dense", "experts", "shared experts", "attention alone"],
)
def test_without_overlap_each_joint_is_an_all_reduce_a_direction(
    spec: ModelSpec, whole: int, split: int
) -> None:
    """(arXiv:1909.08053, section 3.) Experts with a part of the tokens each are none."""
    each = ring().reduce_seconds(2 * spec.training.sequence_length * spec.hidden)
    for joints, divided in ((whole, False), (split, True)):
        found = collectives(layer(1.0), ring(), spec, 1, split=divided)
        assert found.forward_seconds == found.backward_seconds == pytest.approx(joints * each)


def test_one_device_has_no_collectives() -> None:
    """Whatever its layers have."""
    assert collectives(layer(1.0), ring(size=1), DENSE, 1, split=True, hides="all").backward_seconds == 0.0


@pytest.mark.parametrize(
    ("hides", "split", "forward", "backward"),
    [
        # Two passes of a joint and direction; the scatter of a backward meets a product, or all of them.
        ("backward", False, 4.0, 4.0),
        ("backward", True, 4.0, 2.0),
        ("all", False, 4.0, 4.0),
        ("all", True, 0.0, 0.0),
    ],
)
def test_what_long_products_leave(hides: Hidden, split: bool, forward: float, backward: float) -> None:
    """In passes around the ring, with all hidden that meets a product."""
    one = ring().reduce_seconds(2 * DENSE.training.sequence_length * DENSE.hidden) / 2
    found = collectives(layer(1e3), ring(), DENSE, 1, split=split, hides=hides, overlap=1.0)
    assert found.forward_seconds == pytest.approx(forward * one)
    assert found.backward_seconds == pytest.approx(backward * one)
    assert found.hidden_backward + found.backward_seconds == pytest.approx(4 * one)


def test_products_in_fp8_gather_in_fp8() -> None:
    """Half of the bytes of gathers; sums stay in two bytes, and all of them without splitting."""
    one = ring().reduce_seconds(2 * DENSE.training.sequence_length * DENSE.hidden) / 2
    spec = model(4, precision="fp8")
    for split, passes in ((True, 6.0), (False, 8.0)):
        found = collectives(layer(1e3), ring(), spec, 1, split=split, hides="all")
        assert found.forward_seconds + found.backward_seconds == pytest.approx(passes * one)


@given(
    products=st.floats(1e-6, 1.0),
    rate=st.floats(1e6, 1e12),
    overlap=st.floats(0.0, 0.98),
    hides=st.sampled_from(("backward", "all")),
    split=st.booleans(),
)
def test_a_layer_takes_no_less_than_its_products_or_its_traffic(
    products: float, rate: float, overlap: float, hides: Hidden, split: bool
) -> None:
    """No less with a larger micro-batch, as the sum is the larger of two that grow; no more than without splitting."""
    took = []
    for sequences in (1, 2):
        one = layer(products * sequences)
        found = collectives(one, ring(rate), DENSE, sequences, split=split, hides=hides, overlap=overlap)
        for exposed, hidden, busy in (
            (found.forward_seconds, found.hidden_forward, one.product_seconds),
            (found.backward_seconds, found.hidden_backward, one.product_backward),
        ):
            assert exposed >= 0.0
            assert exposed + busy >= max(exposed + hidden, busy) * (1 - 1e-9)
        whole = collectives(one, ring(rate), DENSE, sequences, split=False, hides=hides, overlap=overlap)
        assert found.forward_seconds <= whole.forward_seconds
        assert found.backward_seconds <= whole.backward_seconds
        took.append(found.forward_seconds + found.backward_seconds + 3 * products * sequences)
    assert took[0] <= took[1] <= 2 * took[0] * (1 + 1e-9)


def test_who_hides_what() -> None:
    """Transformer Engine's layers the backward's; user buffers need Hopper, its memory in reach, a dense model."""
    megatron, flagscale = target("megatron"), target("flagscale")
    for chosen, kernels, gpu, buffered, expected in (
        (megatron, "megatron", kind(), True, "all"),
        (megatron, "megatron", kind(), False, "backward"),
        (megatron, "megatron", kind(shared=True), True, "backward"),
        (megatron, "megatron", kind(8.0), True, "backward"),
        (megatron, "megatron", kind(None), True, "backward"),
        (megatron, "megatron-2021", kind(), True, "nothing"),
        (flagscale, "megatron", kind(), True, "backward"),
        (target("torch"), "torch", kind(), True, "nothing"),
    ):
        assert hidden_by(chosen, kernels, gpu, buffered) == expected
    assert has_user_buffers(model(4, precision="bf16"))
    assert not has_user_buffers(model(4, precision="fp32"))
    assert not has_user_buffers(ROUTED)
