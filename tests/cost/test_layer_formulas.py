"""Streams, kernels and launches of a layer, as docs/cost_model.md and the papers that it names count them."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import Any

import pytest

from planner.calibration.values import ASSUMED, Calibration, Framework, GpuFamily
from planner.cluster.topology import Topology
from planner.cost.compute import (
    Device,
    LayerPass,
    attention_seconds,
    element_wise_bytes,
    embedding_pass,
    head_pass,
    layer_pass,
    layer_products,
    loss_bytes,
    optimizer_seconds,
    trained_matrices,
)
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.targets import target
from tests.worlds import cluster, gpt, group, plan, pool

KIND = Topology(cluster(pool("p"))).device_types[0]
TOKENS = 2 * 1024


def one(
    model: ModelSpec, framework: str = "megatron", *, tp: int = 1, size: int = 1, **rest: Any
) -> LayerPass:
    """A layer for one micro-batch."""
    kernels = target(framework).kernels_of(None, model.training.attention)
    return layer_pass(
        model,
        Device(KIND, rest.pop("calibration", ASSUMED), model.training.precision, kernels),
        target(framework),
        tp=tp,
        micro_batch=size,
        sequence_parallel=rest.get("split", False),
    )


@pytest.mark.parametrize(
    ("heads", "tp", "attention", "kernels"),
    [
        (16, 1, "flash", 20),
        (16, 2, "flash", 22),
        (16, 8, "flash", 22),
        (16, 1, "unfused", 20),
        (6, 1, "unfused", 28),
        (6, 2, "unfused", 30),
    ],
)
def test_launches_of_a_layer(heads: int, tp: int, attention: str, kernels: int) -> None:
    """20 kernels, 2 more with tensor parallelism, 8 more where Megatron's fused softmax does not take the scores."""
    constants = Calibration(
        families={KIND.family: GpuFamily(launch_seconds=1e-5)},
        frameworks={name: Framework(host_factor=2.0) for name in ("megatron", "megatron-2021")},
    )
    found = one(gpt(heads=heads, hidden=64 * heads, attention=attention), tp=tp, calibration=constants)
    assert found.host_seconds == pytest.approx(kernels * 1e-5 * 2.0 * (1 + 0.06 * log2(tp)))


@pytest.mark.parametrize(("kind", "share"), [("decoder", 0.5), ("encoder", 1.0)])
@pytest.mark.parametrize("tp", [1, 4])
def test_flash_attention_is_one_kernel(kind: str, share: float, tp: int) -> None:
    """4 b s^2 a d / t FLOPs, half of them under a causal mask, and 2.5 times as many backward (arXiv:2307.08691)."""
    model = gpt().model_copy(update={"kind": kind})
    device = Device(KIND, ASSUMED, "fp16")
    flops = 4 * 2 * 1024**2 * 2048 / tp * share
    rate = KIND.peak_flops["fp16"] * device.family.attention_efficiency
    kernel = device.family.kernel_seconds
    found = attention_seconds(model, device, target("torch"), tp=tp, micro_batch=2)
    assert found == pytest.approx((flops / rate + kernel, 2.5 * flops / rate + kernel))


@pytest.mark.parametrize("dropout", [True, False])
def test_streams_of_the_score_matrix(dropout: bool) -> None:
    """2 streams and 2 kernels forward where the softmax is fused, 3 and 2 backward; 9 and 7, and 9 and 6, where it is
    not; dropout adds 2.5 both ways."""
    model = gpt(heads=6, hidden=768, attention="unfused", dropout=dropout)
    device, other_device = (
        Device(KIND, ASSUMED, "fp16", name) for name in ("megatron-2021", "deepspeed-2021")
    )
    scores = 2 * 2 * 6 / 2 * 1024**2
    drop = 2.5 if dropout else 0.0
    fused, backward = attention_seconds(model, other_device, target("deepspeed"), tp=2, micro_batch=2)
    apart, apart_back = attention_seconds(model, device, target("megatron"), tp=2, micro_batch=2)
    assert apart - fused == pytest.approx(device.stream(7 * scores, 5))
    assert apart_back - backward == pytest.approx(device.stream(6 * scores, 4))
    other = gpt(heads=6, hidden=768, attention="unfused", dropout=not dropout)
    turned = attention_seconds(other, other_device, target("deepspeed"), tp=2, micro_batch=2)
    sign = 1 if dropout else -1
    assert fused - turned[0] == pytest.approx(sign * device.stream(2.5 * scores, 0))
    assert backward - turned[1] == pytest.approx(sign * device.stream(2.5 * scores, 0))
    endless = Calibration(families={KIND.family: GpuFamily(matmul_efficiency=1e9)})
    quick = Device(KIND, endless, "fp16", "deepspeed-2021")
    batched = (
        2 * quick.family.kernel_seconds + 2 * (1024 * 128 * 2 + 1024**2) * 12 / 2 * 2 / quick._bytes_rate
    )
    found = attention_seconds(model, quick, target("deepspeed"), tp=2, micro_batch=2)[0]
    assert found == pytest.approx(batched + quick.stream((2 + drop) * scores, 2), rel=1e-6)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
def test_element_wise_streams(gated: bool, dropout: bool) -> None:
    """9 h a token (8 without dropout), 2 f (3 f when gated), 2 (a + 2 k) d; 7 kernels, 8 of 1.6 times as much."""
    model = gpt(dropout=dropout).model_copy(update={"gated_mlp": gated, "kv_heads": 4})
    wide = 2 * TOKENS * (9 if dropout else 8) * 2048
    narrow = 2 * TOKENS * ((3 if gated else 2) * 8192 + 2 * (16 + 2 * 4) * 128)
    for tp, split, ways in ((1, False, 1), (4, False, 1), (4, True, 4)):
        found = element_wise_bytes(model, 2, tp=tp, tokens=TOKENS, split=split)
        assert found == (wide / ways, narrow / tp)
    device = Device(KIND, ASSUMED, "fp16")
    forward, backward = device.products(layer_products(model, tp=1, tokens=TOKENS))
    core, core_back = attention_seconds(model, device, target("megatron"), tp=1, micro_batch=2)
    layer = one(model, size=2)
    assert layer.attention_seconds == core
    assert layer.forward_seconds == pytest.approx(forward + core + device.stream(wide + narrow, 7))
    assert layer.backward_seconds == pytest.approx(
        backward + core_back + device.stream(1.6 * (wide + narrow), 8)
    )


@pytest.mark.parametrize("tp", [1, 4])
def test_gradients_that_are_added_apart_are_streamed(tp: int) -> None:
    """In each micro-batch, of all matrices of a layer, the head and the embedding, whose gradient is a whole table."""
    model = gpt()
    fused, apart = (Device(KIND, ASSUMED, "fp16", "megatron-2021", added) for added in (0.0, 6.0))
    kernel, rate = fused.family.kernel_seconds, 1 / fused.stream(1.0, 0)
    for size in (1, 8):
        layers = [
            layer_pass(model, each, target("megatron"), tp=tp, micro_batch=size, sequence_parallel=False)
            for each in (fused, apart)
        ]
        more = layers[1].backward_seconds - layers[0].backward_seconds
        assert more == pytest.approx(6 * 12 * 2048**2 / tp / rate + 4 * kernel)
        assert layers[1].forward_seconds == layers[0].forward_seconds
        heads = [head_pass(model, each, tp=tp, micro_batch=size) for each in (fused, apart)]
        more = heads[1].backward_seconds - heads[0].backward_seconds
        assert more == pytest.approx(6 * 51200 * 2048 / tp / rate + kernel)
        ends = [embedding_pass(model, each, tp=tp, micro_batch=size) for each in (fused, apart)]
        more = ends[1].backward_seconds - ends[0].backward_seconds
        assert more == pytest.approx((2 + 6) * 51200 * 2048 / tp / rate + 2 * kernel)


def test_what_is_not_trained_is_not_added_up() -> None:
    """Matrices of a frozen part have no gradient."""
    frozen = gpt(freeze=("mlp",))
    assert trained_matrices(frozen, tp=2, tokens=TOKENS) == (3 * 2048**2 / 2, 2048**2 / 2)
    assert sum(trained_matrices(gpt(), tp=2, tokens=TOKENS)) == 12 * 2048**2 / 2


def test_products_of_a_layer() -> None:
    """Queries, keys and values; output; both ways of the MLP: 2 x parameters FLOPs a token (arXiv:1909.08053)."""
    for gated in (False, True):
        model = gpt().model_copy(update={"gated_mlp": gated, "kv_heads": 4})
        for tp in (1, 4):
            shapes = [(part.columns, part.inner) for part in layer_products(model, tp=tp, tokens=TOKENS)]
            assert shapes == [
                ((16 + 2 * 4) * 128 / tp, 2048),
                (2048, 16 * 128 / tp),
                ((2 if gated else 1) * 8192 / tp, 2048),
                (2048, 8192 / tp),
            ]


def test_ends_of_the_model() -> None:
    """An embedding streams its rows in and out; the loss 24 bytes a logit forward and 20 backward."""
    model = gpt(vocab=50257)
    device = Device(KIND, ASSUMED, "fp16")
    embedding = embedding_pass(model, device, tp=1, micro_batch=2)
    assert embedding.forward_seconds == pytest.approx(device.stream(4 * 2 * TOKENS * 2048, 3))
    assert embedding.backward_seconds == 2 * embedding.forward_seconds
    for tp, columns in ((1, 50304), (4, 12608)):
        quick = Calibration(families={KIND.family: GpuFamily(matmul_efficiency=1e9)})
        fast = Device(KIND, quick, "fp16")
        head = head_pass(model, fast, tp=tp, micro_batch=2)
        moved = 2 * (TOKENS * 2048 + 2048 * columns + TOKENS * columns)
        product = fast.stream(moved, 1)
        assert head.forward_seconds == pytest.approx(product + fast.stream(24 * TOKENS * columns, 6))
        assert head.backward_seconds == pytest.approx(2 * product + fast.stream(20 * TOKENS * columns, 4))


@pytest.mark.parametrize(
    ("name", "kernels", "cross_entropy", "size", "moved"),
    [
        # In fp32, one operation after the other; from two bytes and back 6 more each way.
        ("torch", "torch", "plain", 2, (24, 20)),
        ("torch", "torch", "masked", 2, (24, 20)),
        # The examples': differences, exponents, and their sum or the gradient, which takes the logits' place.
        ("torch", "torch", "chunked", 2, (20, 20)),
        ("deepspeed", "deepspeed-2021", "chunked", 4, (24, 24)),
        ("deepspeed", "deepspeed", "plain", 4, (18, 14)),
        ("megatron", "megatron", "plain", 2, (24, 20)),
        # FlashAttention's and compilers' read once, then read and write.
        ("torch", "torch-compiled", "fused", 2, (2, 4)),
        ("deepspeed", "deepspeed", "fused", 4, (4, 8)),
        # TransformerEngine's reads twice, writes and scales.
        ("megatron", "megatron", "fused", 2, (6, 4)),
        ("flagscale", "megatron", "fused", 4, (12, 8)),
        # Megatron's of 2021, whatever computes its layers.
        ("megatron", "megatron-2021", "fused", 2, (38, 14)),
        ("megatron", "torch", "fused", 2, (38, 14)),
        ("flagscale", "torch", "fused", 4, (32, 8)),
        ("deepspeed", "deepspeed-2021", "fused", 2, (38, 14)),
    ],
)
def test_bytes_of_a_loss(
    name: str, kernels: str, cross_entropy: str, size: int, moved: tuple[float, float]
) -> None:
    """For each logit, forward and backward, by the kernels that compute it."""
    assert loss_bytes(target(name), kernels, cross_entropy, size) == moved


def test_a_fused_loss_is_faster() -> None:
    """By what it does not stream, wherever else a kernel set fuses; masked, there are fewer tokens."""
    model = gpt(vocab=50257, global_batch=2, kernels="torch-compiled")
    spec = cluster(pool("p", per_node=1))
    one_device = plan("torch", 0, [24], [(group("p", spec.pools[0].devices[0], share=2),)])
    plain, fused = (
        Estimator(spec, model.trained_with(cross_entropy=way)).estimate(one_device).step_seconds
        for way in ("plain", "fused")
    )
    device = Device(KIND, ASSUMED, "fp16", "torch-compiled")
    assert plain - fused == pytest.approx(device.stream((44 - 6) * TOKENS * 50304, 0), rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "precision", "size"),
    [
        # Read a half gradient and write it in fp32, clip and clear it, move the states, write the half weight.
        ("adamw", "fp16", 2 + 4 + 4 + 4 + 2 + 24 + 4),
        ("sgd", "fp16", 2 + 4 + 4 + 4 + 2 + 16 + 4),
        ("adamw", "fp32", 4 + 4 + 24 + 4),
    ],
)
def test_bytes_of_an_update(optimizer: str, precision: str, size: int) -> None:
    """For each element; a measured update takes the place of the states alone."""
    model = gpt(optimizer=optimizer, precision=precision)
    device = Device(KIND, ASSUMED, precision)
    assert optimizer_seconds(1e8, device, model) == pytest.approx(device.stream(size * 1e8, 0))
    states = (24 if optimizer == "adamw" else 16) + 4
    measured = optimizer_seconds(1e8, device, model, 0.5)
    assert measured == pytest.approx(device.stream((size - states) * 1e8, 0) + 0.5)


@pytest.mark.parametrize(
    ("training", "compiled_from", "plain"),
    [
        ({"optimizer_states": "bf16"}, 8.0, 328),
        ({"optimizer_states": "int8"}, 7.0, 550),
        ({"optimizer": "lion"}, 7.0, 96),
    ],
    ids=str,
)
def test_old_devices_do_not_compile(training: dict[str, Any], compiled_from: float, plain: int) -> None:
    """The examples' own optimizers; those of other runtimes are one kernel on all devices."""
    model = gpt(**training)

    def seconds(capability: float | None, eager: bool = True) -> float:
        kind = replace(KIND, compute_capability=capability)
        return optimizer_seconds(1e8, Device(kind, ASSUMED, "fp16"), model, eager=eager)

    device, once = Device(KIND, ASSUMED, "fp16"), 2 * (4 + model.training.moment_bytes)
    assert seconds(compiled_from) == seconds(None) == seconds(6.0, eager=False)
    assert seconds(compiled_from - 0.1) - seconds(None) == pytest.approx(
        device.stream((plain - once) * 1e8, 0)
    )
