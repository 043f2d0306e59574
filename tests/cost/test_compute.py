"""Seconds of layers: roofline, tiles, alignment, host floor, number formats, useful FLOPs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from statistics import fmean
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.values import (
    ASSUMED,
    ASSUMED_FAMILY,
    ASSUMED_FRAMEWORK,
    Calibration,
    Framework,
    GpuFamily,
)
from planner.capabilities import CudaGraphs, Recompute, Schedule
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import ALONE, tensor_ring
from planner.cost.compute import (
    ELEMENT_BYTES,
    FORMAT_SHARES,
    HOST_JITTER,
    MIXED,
    TILE_FILL,
    TILES,
    Device,
    EndPass,
    LayerPass,
    Product,
    attention_seconds,
    cast_bytes,
    embedding_pass,
    fused_softmax,
    head_pass,
    layer_pass,
    layer_products,
    model_flops,
    optimizer_seconds,
    reached,
    state_seconds,
)
from planner.cost.measured_curves import LayerTimes, with_host
from planner.cost.shape import whole_model
from planner.cost.stage import LayerPrice, Pricer, layer_price, measured_layer, orthogonal_seconds
from planner.cost.tensor import Collectives, collectives
from planner.model.spec import DocumentsSpec, ExpertsSpec, LoraSpec, ModelSpec, PreferenceSpec, StateSpec
from planner.plan.placement import replicas_on
from planner.targets import TARGETS, target
from tests.worlds import cluster, gpt, pool

KIND = replace(Topology(cluster(pool("p"))).device_types[0], family="A100")
TILED = replace(KIND, multiprocessors=108)
FAST = replace(
    KIND, peak_flops={"fp8": 1979e12, "bf16": 989e12, "fp16": 989e12, "tf32": 494e12, "fp32": 67e12}
)
LARGE = gpt(hidden=8192, heads=64, sequence_length=2048)
TINY = gpt(hidden=128, heads=4, sequence_length=16)


def calibrated(framework: Framework | None = None, **family: float) -> Calibration:
    """Other constants for the A100 and for Megatron."""
    return Calibration(
        families={"A100": GpuFamily(**family)}, frameworks={"megatron": framework or Framework()}
    )


def kernels_of(model: ModelSpec, framework: str = "megatron") -> str:
    """The kernel set that a framework's own choice falls on."""
    return target(framework).kernels_of(model.training.kernels, model.training.attention)


def device_of(model: ModelSpec, device_type: DeviceType = KIND) -> Device:
    """A device with assumed constants in the model's number format."""
    return Device(device_type, ASSUMED, model.training.precision)


def one(
    model: ModelSpec,
    *,
    tp: int = 1,
    micro_batch: int = 4,
    device_type: DeviceType = KIND,
    calibration: Calibration = ASSUMED,
    split: bool | None = None,
) -> LayerPass:
    """A layer on an A100."""
    return layer_pass(
        model,
        Device(device_type, calibration, model.training.precision, kernels_of(model)),
        target("megatron"),
        tp=tp,
        micro_batch=micro_batch,
        sequence_parallel=tp > 1 if split is None else split,
    )


UNDIVIDED = Collectives(forward_seconds=0.0, backward_seconds=0.0)
"""Traffic of one device."""


def price(
    model: ModelSpec,
    *,
    tp: int = 1,
    micro_batch: int = 4,
    recompute: Recompute = "none",
    device_type: DeviceType = KIND,
    calibration: Calibration = ASSUMED,
) -> LayerPrice:
    """A layer with its host and its collectives."""
    done = one(model, tp=tp, micro_batch=micro_batch, device_type=device_type, calibration=calibration)
    moved = collectives(done, tensor_ring(device_type, calibration, tp=tp), model, micro_batch, split=False)
    return layer_price(done, moved, model, recompute)


def head(model: ModelSpec, device_type: DeviceType = KIND, tp: int = 1) -> EndPass:
    """The output layer and the loss."""
    return head_pass(model, device_of(model, device_type), tp=tp, micro_batch=4)


def product(
    device_type: DeviceType = KIND,
    precision: str = "fp16",
    *,
    rows: float,
    columns: float,
    inner: float,
    count: float = 1.0,
) -> float:
    """Seconds of a product without the ramp of its kernel."""
    item = Product(rows, columns, inner, count)
    return Device(device_type, calibrated(kernel_seconds=1e-12), precision).product(item)


@pytest.mark.parametrize(("attention", "again"), [("flash", 5.5), ("unfused", 7.5)])
def test_selective_recomputation_by_operation(attention: str, again: float) -> None:
    """Half of a GPT's products, all that is no product, and attention only where its scores are not kept."""
    done = LayerPass(
        forward_seconds=10.0,
        backward_seconds=20.0,
        attention_seconds=2.0,
        host_seconds=0.0,
        product_seconds=5.0,
    )
    model = gpt(attention=attention)
    found = layer_price(done, UNDIVIDED, model, "selective", by_operation=True)
    assert found.recompute_seconds == pytest.approx(again)


@pytest.mark.parametrize("again", [0.0, 2.0, 8.0])
def test_what_a_measured_layer_does_again(again: float) -> None:
    """As large a share of its measured forward as by formula; collectives where they were not in it."""
    times = LayerTimes(
        forward_seconds=10.0, backward_seconds=20.0, activation_ratio=1.0, parameter_ratio=1.0, spread=0.0
    )
    formula = LayerPrice(
        forward_seconds=8.0,
        backward_seconds=15.0,
        recompute_seconds=again,
        collective_forward=1.0,
        collective_backward=1.5,
        routing_forward=3.0,
        routing_backward=6.0,
    )
    found = measured_layer(times, formula)
    assert (found.forward_seconds, found.backward_seconds) == (10.0, 20.0)
    assert found.recompute_seconds == 10.0 * again / 8.0
    assert (found.collective_forward, found.collective_backward) == (0.0, 0.0)
    assert (found.routing_forward, found.routing_backward) == (3.0, 6.0)
    without = measured_layer(replace(times, without_collectives=True), formula)
    assert (without.collective_forward, without.collective_backward) == (1.0, 1.5)


def test_useful_flops_are_those_of_the_megatron_paper() -> None:
    """72 B s l h^2 (1 + s/6h + V/12lh) of arXiv:2104.04473, with half of the attention for causality."""
    model = gpt(48, 8192, 64, global_batch=1536, sequence_length=2048)
    full = 72 * 1536 * 2048 * 48 * 8192**2 * (1 + 2048 / (12 * 8192) + 51200 / (12 * 48 * 8192))
    assert model_flops(model) == pytest.approx(full, rel=1e-3)


def test_the_reference_of_pairs_has_a_forward_of_its_own() -> None:
    """A third of what training the whole model takes, whatever of it is trained, and no adapters in it."""
    half = gpt().training.sequence_length // 2
    apart = {"documents": DocumentsSpec(mean_length=half, spread=0.0)}

    def flops(**changes: Any) -> float:
        model = gpt()
        return model_flops(model.model_copy(update={"training": model.training.model_copy(update=changes)}))

    whole = flops(**apart)
    for lora in (None, LoraSpec(rank=8)):
        more = flops(preference=PreferenceSpec(), lora=lora) - flops(lora=lora, **apart)
        assert more == pytest.approx(whole / 3)


def test_a_large_layer_runs_at_the_matrix_rate() -> None:
    """Most of a wide layer's time is its products at peak x efficiency."""
    flops = 24 * 4 * 2048 * 8192**2
    ideal = flops / (312e12 * ASSUMED_FAMILY.matmul_efficiency)
    assert ideal < one(LARGE).forward_seconds < 1.3 * ideal
    assert one(LARGE).backward_seconds == pytest.approx(2 * one(LARGE).forward_seconds, rel=0.05)
    assert price(LARGE).forward_seconds == pytest.approx(one(LARGE).forward_seconds, rel=1e-3)


def test_products_that_are_not_aligned_run_on_the_vector_units() -> None:
    """Rows that start on 16 bytes reach the matrix units: 8 elements of two bytes; fp32 has no such rule."""
    odd = product(rows=4096, columns=4095, inner=4096)
    even = product(rows=4096, columns=4096, inner=4096)
    slower = KIND.peak_flops["fp16"] / KIND.peak_flops["fp32"]
    assert odd == pytest.approx(slower * even, rel=0.01)
    assert product(rows=4096, columns=4096, inner=4092) > 10 * even
    assert product(rows=4095, columns=4096, inner=4096) <= even
    wide = product(precision="fp32", rows=4096, columns=4096, inner=4096)
    assert product(precision="fp32", rows=4096, columns=4095, inner=4096) <= wide


@pytest.mark.parametrize("direction", [0, 1])
def test_head_dimensions_that_are_not_aligned_slow_attention(direction: int) -> None:
    """A head dimension of 108 costs more than one of 112: forward and backward of unfused attention."""

    def seconds(width: int) -> float:
        model = gpt(attention="unfused", sequence_length=2048).model_copy(update={"head_dim": width})
        return attention_seconds(
            model, Device(KIND, ASSUMED, "fp16"), target("megatron"), tp=1, micro_batch=4
        )[direction]

    assert seconds(108) > 1.5 * seconds(112)
    assert seconds(104) < seconds(112)


def test_all_gradients_of_an_unaligned_product_are_unaligned() -> None:
    """A matrix with rows of 108 elements is a factor or the result of all three products."""
    device = Device(KIND, ASSUMED, "fp16")
    for odd, even in (
        (Product(2048, 2048, 108, 64), Product(2048, 2048, 112, 64)),
        (Product(2048, 108, 2048, 64), Product(2048, 112, 2048, 64)),
    ):
        for slow, fast in zip((odd, *odd.backward()), (even, *even.backward()), strict=True):
            assert device.product(slow) > 2 * device.product(fast)


def test_the_number_of_tokens_need_not_be_aligned() -> None:
    """No matrix of a layer has rows of tokens: 8191 cost no more than 8192, in both directions."""
    for odd, even in ((1023, 1024), (1020, 1024)):
        less, more = (one(gpt(sequence_length=length), micro_batch=1) for length in (odd, even))
        assert less.forward_seconds <= more.forward_seconds
        assert less.backward_seconds <= more.backward_seconds


def test_one_tile_more_than_a_wave_takes_a_second_wave() -> None:
    """Per element the product that just fills the multiprocessors is the fastest."""
    rows, columns, _ = TILES[0]
    full, more = (
        product(TILED, rows=count * rows, columns=columns, inner=4096) / count for count in (108, 109)
    )
    assert more > 1.2 * full
    assert product(TILED, rows=216 * rows, columns=columns, inner=4096) / 216 == pytest.approx(full, rel=0.01)


def test_devices_without_known_multiprocessors_have_no_waves() -> None:
    """Twice the rows take twice the time, whatever fills the device."""
    rows, columns, _ = TILES[0]
    seconds = [
        product(KIND, rows=count * rows, columns=8 * columns, inner=4096) / count for count in (108, 109)
    ]
    assert seconds[0] == pytest.approx(seconds[1])


@given(st.integers(1, 5000), st.integers(1, 600), st.integers(1, 600), st.integers(1, 64))
@settings(deadline=None)
def test_tiles_only_cost(rows: int, columns: int, inner: int, count: int) -> None:
    """Padding never makes a product faster than one that fills every tile."""
    tiled, plain = (
        product(device_type, rows=rows, columns=8 * columns, inner=8 * inner, count=count)
        for device_type in (TILED, KIND)
    )
    assert tiled >= plain * (1 - 1e-12)


def test_a_longer_inner_dimension_is_more_efficient() -> None:
    """Filling the pipeline is paid once a tile."""
    short, long = (product(rows=8192, columns=8192, inner=inner) / inner for inner in (1024, 8192))
    assert short / long == pytest.approx((1 + TILE_FILL / 1024) / (1 + TILE_FILL / 8192))


def test_filling_a_tile_takes_as_long_in_slower_formats() -> None:
    """In tf32 and on vector units, fewer steps; in fp8 it is as many steps as in two bytes."""

    def filling(precision: str) -> float:
        """Twice a product less one of twice its inner dimension, at the peak."""
        device = Device(
            replace(FAST, memory_bytes_per_second=1e18), calibrated(kernel_seconds=1e-18), precision
        )
        once, both = (device.product(Product(8192, 8192, inner)) for inner in (4096, 8192))
        shares = {"fp32": ASSUMED_FAMILY.vector_efficiency}
        return (2 * once - both) * shares.get(
            precision,
            ASSUMED_FAMILY.matmul_efficiency * dict(FORMAT_SHARES.get(precision, ((0.0, 1.0),)))[0.0],
        )

    assert filling("tf32") == pytest.approx(filling("bf16"), rel=1e-3)
    assert filling("fp32") == pytest.approx(filling("bf16"), rel=1e-3)
    assert filling("fp8") == pytest.approx(filling("bf16") / 2, rel=1e-3)


def test_fp32_has_a_share_of_its_own_beside_faster_units() -> None:
    """On vector units; where two bytes are no faster there are no others, and the share of products holds."""
    known = calibrated(matmul_efficiency=0.5, vector_efficiency=0.9)
    slow = replace(KIND, peak_flops={"fp32": KIND.peak_flops["fp32"], "bf16": KIND.peak_flops["fp32"]})
    wide = Product(8192, 8192, 8192)
    vector, plain = (Device(kind, known, "fp32").product(wide) for kind in (KIND, slow))
    assert plain / vector == pytest.approx(0.9 / 0.5, rel=0.05)


def test_scans_of_channels_run_on_vector_units() -> None:
    """Whatever the format of the layer's products; where fp32 has no peak, at the rate of the format."""
    known = calibrated(matmul_efficiency=0.5, vector_efficiency=0.8)
    peaks = KIND.peak_flops
    assert Device(KIND, known, "fp16").vectors(1e12) == pytest.approx(1e12 / peaks["fp32"] / 0.8)
    alone = replace(KIND, peak_flops={"fp16": peaks["fp16"]})
    assert Device(alone, known, "fp16").vectors(1e12) == pytest.approx(1e12 / peaks["fp16"] / 0.5)
    state = StateSpec(kind="mamba", heads=1, head_dim=4096, size=16, rank=128)
    slow, fast = (
        state_seconds(
            state,
            Device(replace(KIND, memory_bytes_per_second=1e18), calibrated(vector_efficiency=share), "fp16"),
            TARGETS["torch"],
            tp=1,
            tokens=2**20,
        )
        for share in (0.4, 0.8)
    )
    assert slow == pytest.approx([2 * seconds for seconds in fast], rel=0.01)


def test_every_kernel_has_its_ramp() -> None:
    """A constant on top of the work of products, attention and streams."""
    slow, quick = (Device(KIND, calibrated(kernel_seconds=value), "fp16") for value in (3e-5, 1e-5))
    item = Product(1024, 1024, 1024)
    assert slow.product(item) - quick.product(item) == pytest.approx(2e-5)
    assert slow.flash(1e9) - quick.flash(1e9) == pytest.approx(2e-5)
    assert slow.stream(1e6, 7) - quick.stream(1e6, 7) == pytest.approx(14e-5)


def test_a_product_is_never_faster_than_its_traffic() -> None:
    """A thin product streams its matrices."""
    moved = ELEMENT_BYTES["fp16"] * (8 * 8192 + 8192 * 8192 + 8 * 8192)
    rate = KIND.memory_bytes_per_second * ASSUMED_FAMILY.memory_efficiency
    assert product(rows=8, columns=8192, inner=8192) == pytest.approx(moved / rate, rel=1e-3)


def test_fused_softmax_takes_four_score_matrices_at_a_time() -> None:
    """Other numbers stream the scores more often and launch more kernels."""
    model = gpt(hidden=768, heads=6, sequence_length=2048, attention="unfused")

    def fused(framework: str = "megatron", *, tp: int = 1, size: int = 1) -> bool:
        device = Device(KIND, ASSUMED, "fp16", kernels_of(model, framework))
        return fused_softmax(model, device, target(framework), tp=tp, micro_batch=size)

    assert [fused(size=size) for size in (1, 2, 3, 4)] == [False, True] * 2
    assert fused(tp=3, size=2)
    assert not fused(tp=2, size=2)
    assert fused("deepspeed")
    odd, even = one(model, micro_batch=1), one(model, micro_batch=2)
    assert odd.attention_seconds > 0.6 * even.attention_seconds
    assert odd.host_seconds > even.host_seconds
    flash = gpt(hidden=768, heads=6, sequence_length=2048)
    assert one(flash, micro_batch=1).host_seconds == one(flash, micro_batch=2).host_seconds


@pytest.mark.parametrize(
    ("kernels", "fused"),
    [
        ("megatron", True),
        ("megatron-2021", True),
        ("deepspeed-2021", True),
        ("deepspeed", False),
        ("torch", False),
        ("torch-compiled", False),
    ],
)
def test_the_kernel_set_decides_about_the_softmax(kernels: str, fused: bool) -> None:
    """Frameworks of 2021 brought one of their own; where there is none, the scores are streamed step by step."""
    model = gpt(heads=16, attention="unfused")
    own, other = (Device(KIND, ASSUMED, "fp16", name) for name in (kernels, "megatron-2021"))
    runtime = next(row for row in TARGETS.values() if kernels in row.kernels)
    assert fused_softmax(model, own, runtime, tp=1, micro_batch=1) == fused
    mine, theirs = (
        layer_pass(model, device, row, tp=1, micro_batch=1, sequence_parallel=False)
        for device, row in ((own, runtime), (other, target("megatron")))
    )
    assert (mine.attention_seconds > theirs.attention_seconds) == (not fused)
    assert (mine.host_seconds > theirs.host_seconds) == (not fused)


def test_a_device_has_the_constants_of_its_kernel_set() -> None:
    """Those of the family under the set where there are some, else those of the family; the framework's by the set."""
    own = GpuFamily(attention_efficiency=0.2)
    calibration = Calibration(
        families={"A100": GpuFamily(attention_efficiency=0.6), "A100.torch": own},
        frameworks={"torch": Framework(matmul_factor=0.5, host_factor=0.9)},
    )
    plain, torch = (Device(KIND, calibration, "fp16", name) for name in ("megatron", "torch"))
    kernel = ASSUMED_FAMILY.kernel_seconds
    assert torch.family == own
    assert torch.flash(1e15) - kernel == pytest.approx(3 * (plain.flash(1e15) - kernel))
    item = Product(8192, 8192, 8192)
    assert torch.product(item) - kernel == pytest.approx(2 * (plain.product(item) - kernel))
    model = gpt(sequence_length=2048)
    seconds = {
        device.kernels: layer_pass(
            model, device, target("megatron"), tp=1, micro_batch=4, sequence_parallel=False
        ).host_seconds
        for device in (plain, torch)
    }
    assert seconds["torch"] == pytest.approx(0.9 / ASSUMED_FRAMEWORK.host_factor * seconds["megatron"])


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_dropout_costs_time(attention: str) -> None:
    """Masks are written and read; with unfused attention on every score too."""
    drops, keeps = (one(gpt(attention=attention, dropout=value)) for value in (True, False))
    assert drops.forward_seconds > keeps.forward_seconds
    assert drops.backward_seconds > keeps.backward_seconds
    assert (drops.attention_seconds > keeps.attention_seconds) == (attention == "unfused")
    assert one(gpt(attention=attention)) == drops


def test_a_small_layer_waits_for_its_launches() -> None:
    """Its time is the host's however little its kernels do."""
    quick = calibrated(kernel_seconds=1e-7)
    single, double = (price(TINY, micro_batch=size, calibration=quick) for size in (1, 2))
    host = one(TINY, calibration=quick).host_seconds
    assert single.forward_seconds == pytest.approx(double.forward_seconds, rel=1e-3)
    assert single.forward_seconds == pytest.approx(host, rel=1e-2)
    assert single.backward_seconds >= host


def test_host_seconds_are_those_of_family_and_stack() -> None:
    """Twice the launch time or twice the factor double them; the device does not change them."""
    thin, thick = Framework(host_factor=0.5), Framework(host_factor=1.0)
    plain = one(TINY, calibration=calibrated(thin, launch_seconds=1e-5))
    for constants in (calibrated(thin, launch_seconds=2e-5), calibrated(thick, launch_seconds=1e-5)):
        found = one(TINY, calibration=constants)
        assert found.host_seconds == pytest.approx(2 * plain.host_seconds)
        assert found.forward_seconds == plain.forward_seconds
    assert one(LARGE).host_seconds == one(TINY).host_seconds


@pytest.mark.parametrize(
    ("lora", "modules", "gathered", "trained"),
    [
        # Llama's layer, two norms, attention, feed-forward, what activates, and six products with keys beside values.
        (None, 13, 6, 6),
        # Of four adapters two products each, what scales, and what stands around both; the base is gathered too.
        (LoraSpec(rank=8, targets=("q_proj", "k_proj", "v_proj", "o_proj")), 29, 14, 8),
        # Codes are whole everywhere.
        (LoraSpec(rank=8, targets=("q_proj",), base="nf4"), 17, 2, 2),
    ],
)
def test_hooks_of_zero_3(lora: LoraSpec | None, modules: int, gathered: int, trained: int) -> None:
    """What DeepSpeed's host does around modules and tensors of a layer, in launches of kernels, counted by hand."""
    model = gpt(precision="bf16", lora=lora).model_copy(update={"gated_mlp": True})
    device, row = device_of(model), target("deepspeed")
    bare, hooked = (
        layer_pass(model, device, row, tp=1, micro_batch=1, sequence_parallel=False, hooks=hooks)
        for hooks in (None, row.hooks)
    )
    launch = device.family.launch_seconds * device.framework.host_factor
    more = (hooked.host_seconds - bare.host_seconds) / launch
    assert more == pytest.approx(4 * modules + 5 * gathered)
    assert hooked.host_more_seconds / launch == pytest.approx(2 * trained)
    assert (bare.host_more_seconds, bare.forward_seconds) == (0.0, hooked.forward_seconds)


def test_zero_3_of_deepspeed_alone_has_hooks() -> None:
    """A small layer takes longer with ZeRO 3 than with 2, and no longer with torch."""
    topology = Topology(cluster(pool("a")))
    for name, longer in (("deepspeed", True), ("torch", False), ("megatron", False)):
        pricer = Pricer(topology, TINY, ASSUMED, target(name))
        group = replicas_on(topology.device_types[0], 1)
        two, three = (
            pricer.micro_batch(whole_model(TINY, zero, "none"), group, 1, ALONE).forward_seconds
            for zero in (2, 3)
        )
        assert (three > 2 * two) == longer
        assert longer or three == two


WITHOUT_BIASES: dict[str, Any] = {"qkv_bias": False, "output_bias": False, "mlp_bias": False}


@pytest.mark.parametrize(
    ("changes", "modules", "dealt"),
    [
        # Five products, keys beside values, and two norms; of both sums of rows biases too, which all devices have.
        ({}, 7, 14),
        ({"norm": "plain"}, 5, 10),
        # One more product, and two norms of queries and keys.
        (WITHOUT_BIASES | {"gated_mlp": True, "norm": "rms", "qk_norm": True}, 10, 10),
    ],
)
def test_launches_that_divide_a_backward(changes: dict[str, Any], modules: int, dealt: int) -> None:
    """What torch's host does for a layer in a graph of twelve, with tensor parallelism too, counted by hand."""
    model = gpt(precision="bf16").model_copy(update=changes)
    row = target("torch")
    device = Device(device_of(model).device_type, ASSUMED, "bf16", row.kernels_of(None, "flash"))
    launch = device.family.launch_seconds * device.framework.host_factor
    for tp, again in ((1, 0.0), (2, 1.8 * dealt)):
        whole, parts = (
            layer_pass(model, device, row, tp=tp, micro_batch=1, sequence_parallel=tp > 1, graph=graph)
            for graph in (0, 12)
        )
        more = (parts.host_more_seconds - whole.host_more_seconds) / launch / (1 + HOST_JITTER * (tp - 1))
        assert more == pytest.approx((1.5 + 12 * 0.24) * modules + again)
        assert replace(parts, host_more_seconds=whole.host_more_seconds) == whole


@pytest.mark.parametrize("schedule", ["zero-bubble", "zb-v"])
def test_what_divides_a_backward_is_behind_the_gradient_that_goes_on(schedule: Schedule) -> None:
    """Of small layers, whose host is all of their time; the pipeline's first chunk passes no gradient on."""
    model = gpt(24, vocab=64, sequence_length=64).model_copy(update={"hidden": 64, "ffn": 64})
    topology = Topology(cluster(pool("a")))
    device_type = topology.device_types[0]
    pricer, group = Pricer(topology, model, ASSUMED, target("torch")), replicas_on(device_type, 1)
    for stage in (0, 1, 2):
        shape = replace(whole_model(model, 0, "none"), chunks=(2, 4), stage=stage, depth=4)
        whole = pricer.price(shape, (group,), ALONE)
        parts = pricer.price(replace(shape, schedule=schedule), (group,), ALONE)
        for chunk, layers in enumerate(shape.chunks):
            divided = stage > 0 or chunk > 0
            # Seven modules, in a graph of 24 / 8 layers.
            more = layers * 7 * (1.5 + 3 * 0.24) * pricer.launch_seconds(device_type) * divided
            took = parts.forward[chunk] + parts.backward[chunk] + parts.weight[chunk]
            before = whole.forward[chunk] + whole.backward[chunk]
            # The first stage of a V-shaped pipeline has the head, with its second chunk.
            head = (
                pricer.ends_seconds(shape, group, 1)[1]
                if schedule == "zb-v" and (stage, chunk) == (0, 1)
                else 0.0
            )
            assert took - before == pytest.approx(more + head, rel=0.01)
            assert (parts.backward[chunk] > 0) == divided


@pytest.mark.parametrize(("number", "top_k"), [(8, 1), (8, 3), (12, 4), (8, 8)])
def test_groups_that_a_tokens_experts_are_in(number: int, top_k: int) -> None:
    """The mean over all choices of experts; one where each is a group, and of one group an expert's share."""
    model = TINY.model_copy(update={"experts": ExpertsSpec(number=number, top_k=top_k, ffn=64)})
    for ways in (1, 2, 4, number):
        chosen = [{expert * ways // number for expert in some} for some in combinations(range(number), top_k)]
        assert reached(model, ways) == pytest.approx(fmean(map(len, chosen)) / top_k)
    assert reached(TINY, 4) == 1.0


def test_graphs_launch_in_place_of_the_host() -> None:
    """All of a layer but rows of experts on their way, or these too; devices have as much to do."""

    def seconds(graphs: CudaGraphs, model: ModelSpec) -> LayerPass:
        return one(model.trained_with(cuda_graphs=graphs), calibration=calibrated(launch_seconds=1e-5))

    routed = TINY.model_copy(update={"experts": ExpertsSpec(number=8, top_k=2, ffn=64)})
    launch = 1e-5 * ASSUMED_FRAMEWORK.host_factor
    for model, eager, left in ((TINY, 20, 0), (routed, 20 + 65 + 3 * 8, 19 + 3 * 8)):
        found = [seconds(graphs, model) for graphs in get_args(CudaGraphs)]
        launches = [each.host_seconds / launch for each in found]
        assert launches == pytest.approx([eager, left, 0])
        assert len({each.forward_seconds for each in found}) == 1
    small = price(TINY.trained_with(cuda_graphs="layers"))
    assert small.forward_seconds == one(TINY).forward_seconds < price(TINY).forward_seconds


def test_products_in_fp8_are_cast_by_kernels_of_their_own() -> None:
    """Two for each of a layer's four, which the host launches."""
    launch = 1e-5 * ASSUMED_FRAMEWORK.host_factor
    hosts = [
        one(
            gpt(precision=precision),
            device_type=FAST,
            calibration=calibrated(launch_seconds=1e-5),
        ).host_seconds
        for precision in ("bf16", "fp8")
    ]
    assert (hosts[1] - hosts[0]) / launch == pytest.approx(2 * 4)


def test_hosts_of_a_tensor_parallel_group_wait_for_each_other() -> None:
    """Every doubling adds its share."""
    two, eight = (one(LARGE, tp=tp).host_seconds for tp in (2, 8))
    assert eight / two == pytest.approx((1 + 3 * HOST_JITTER) / (1 + HOST_JITTER))
    assert one(LARGE).host_seconds < two


@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2))
@settings(deadline=None)
def test_host_and_device_run_side_by_side(device: float, host: float) -> None:
    """The layer takes at least the longer and less than both, also with collectives."""
    item = LayerPass(
        forward_seconds=device, backward_seconds=2 * device, attention_seconds=0.0, host_seconds=host
    )
    for tp in (1, 4):
        moved = collectives(item, tensor_ring(KIND, ASSUMED, tp=tp), TINY, 1, split=False)
        found = layer_price(item, moved, TINY, "none")
        forward = found.forward_seconds + found.collective_forward
        backward = found.backward_seconds + found.collective_backward
        busy = device + found.collective_forward
        assert max(busy, host) * (1 - 1e-9) <= forward <= busy + host
        assert max(busy + device, host) * (1 - 1e-9) <= backward <= busy + device + host


@given(*[st.floats(1e-6, 1e-2)] * 3)
@settings(deadline=None)
def test_all_to_alls_run_beside_the_host(device: float, host: float, routing: float) -> None:
    """Where the host holds a layer with experts up they cost little more; recomputation has them again."""
    item = LayerPass(
        forward_seconds=device, backward_seconds=2 * device, attention_seconds=0.0, host_seconds=host
    )
    found = layer_price(item, UNDIVIDED, TINY, "full", routing=routing)
    forward = found.forward_seconds + found.routing_forward
    assert forward == pytest.approx(with_host(device + routing, host))
    backward = found.backward_seconds + found.recompute_seconds + found.routing_backward
    assert backward == pytest.approx(with_host(2 * device + routing, host) + forward)
    assert min(found.forward_seconds, found.backward_seconds) >= device * (1 - 1e-9)


def test_recomputation_costs_a_forward() -> None:
    """Full: the whole forward again with its collectives; selective: attention only; none: nothing."""
    model = gpt(attention="unfused")
    none, some, full = (
        price(model, tp=2, recompute=device_type) for device_type in ("none", "selective", "full")
    )
    assert none.recompute_seconds == 0
    assert 0 < some.recompute_seconds < full.recompute_seconds == full.forward_seconds
    assert some.collective_backward == none.collective_backward == none.collective_forward
    assert full.collective_backward == 2 * none.collective_backward
    assert price(gpt(), recompute="selective").recompute_seconds == 0


def test_fp8_speeds_up_the_products_and_stores_two_bytes() -> None:
    """Attention and the head stay in bf16."""
    models = [gpt(hidden=8192, heads=64, sequence_length=2048, precision=name) for name in ("bf16", "fp8")]
    wide, narrow = (one(model, device_type=FAST) for model in models)
    assert 0.5 * wide.forward_seconds < narrow.forward_seconds < 0.85 * wide.forward_seconds
    assert narrow.backward_seconds < 0.85 * wide.backward_seconds
    assert narrow.attention_seconds == wide.attention_seconds
    assert ELEMENT_BYTES["fp8"] == ELEMENT_BYTES["bf16"] == 2
    assert head(models[0], FAST) == head(models[1], FAST)


@pytest.mark.parametrize(
    ("precision", "capability", "share"),
    [("fp8", 9.0, 0.91), ("fp8", None, 0.91), ("tf32", 8.0, 0.92), ("tf32", 8.6, 0.97)],
)
def test_formats_reach_what_was_measured_of_their_generation(
    precision: str, capability: float | None, share: float
) -> None:
    """Of the share of a peak that products of two bytes reach."""
    kind = replace(FAST, compute_capability=capability)
    seconds = {name: product(kind, name, rows=8192, columns=8192, inner=8192) for name in ("bf16", precision)}
    peaks = FAST.peak_flops[precision] / FAST.peak_flops["bf16"]
    assert seconds["bf16"] / seconds[precision] == pytest.approx(share * peaks, rel=0.02)


def test_tf32_multiplies_faster_and_stores_four_bytes() -> None:
    """Faster than fp32, slower than bf16, with the traffic of fp32."""
    names = ("bf16", "tf32", "fp32")
    large = {
        name: one(gpt(hidden=8192, heads=64, precision=name), device_type=FAST).forward_seconds
        for name in names
    }
    assert large["bf16"] < large["tf32"] < large["fp32"]
    assert ELEMENT_BYTES["tf32"] == 4
    models = [gpt(precision=name) for name in names]
    ends = [embedding_pass(model, device_of(model, FAST), tp=1, micro_batch=4) for model in models]
    assert ends[0].forward_seconds < ends[1].forward_seconds == ends[2].forward_seconds


def test_muon_turns_what_is_trained() -> None:
    """Of a layer's matrices those of frozen parts are none of its own."""
    parts = (("attention",), ("mlp",), ("attention", "mlp"), ("embedding",))
    models = [gpt(optimizer="muon", freeze=part) for part in parts]
    mlp, attention, none, whole = (orthogonal_seconds(model, device_of(model)) for model in models)
    assert none == 0.0 < min(mlp, attention)
    assert whole == pytest.approx(mlp + attention)


def test_tensor_parallelism_splits_the_products() -> None:
    """Eight devices need an eighth of the matrix time and more than an eighth in total without SP."""
    whole = one(LARGE).forward_seconds
    assert whole / 8 <= one(LARGE, tp=8).forward_seconds < whole / 6
    assert one(LARGE, tp=8).forward_seconds < one(LARGE, tp=8, split=False).forward_seconds


def test_a_number_format_that_the_device_lacks_is_a_key_error() -> None:
    """V100 has no bf16."""
    device_type = Topology(cluster(pool("p", "V100"))).device_types[0]
    with pytest.raises(KeyError, match="bf16"):
        one(gpt(precision="bf16"), device_type=device_type)


def test_head_embedding_and_optimizer_are_real_work() -> None:
    """A large vocabulary costs as much as layers do; the embedding and the optimizer are streams of bytes."""
    model = gpt(vocab=256_000)
    assert head(model).forward_seconds > 5 * one(model).forward_seconds
    embedding = embedding_pass(model, device_of(model), tp=1, micro_batch=4)
    assert 0 < embedding.forward_seconds < head(model).forward_seconds
    seconds = optimizer_seconds(1e9, device_of(model), model)
    rate = KIND.memory_bytes_per_second * ASSUMED_FAMILY.memory_efficiency
    assert 24 * 1e9 / rate < seconds < 2.5 * 24 * 1e9 / rate
    assert optimizer_seconds(2e9, device_of(model), model) == pytest.approx(2 * seconds, rel=1e-3)


def test_the_loss_streams_its_logits() -> None:
    """On top of the product; tensor parallelism splits the vocabulary."""
    model = gpt(vocab=256_000)
    rate = KIND.memory_bytes_per_second * ASSUMED_FAMILY.memory_efficiency
    logits = 4 * model.training.sequence_length * model.vocab
    matrix = Device(KIND, ASSUMED, "fp16").product(Product(4096, 256_000, model.hidden))
    rest = head(model).forward_seconds - matrix
    assert rest == pytest.approx(24 * logits / rate, rel=0.05)
    assert head(model, tp=8).forward_seconds < head(model).forward_seconds / 4


def test_a_measured_update_stands_for_the_states_and_the_read_gradient() -> None:
    """What is done besides is still streamed."""
    model = gpt(precision="fp32")
    formula = optimizer_seconds(1e9, device_of(model), model)
    update = (24 + 4) * 1e9
    update /= KIND.memory_bytes_per_second * ASSUMED_FAMILY.memory_efficiency
    assert optimizer_seconds(1e9, device_of(model), model, update) == pytest.approx(formula)
    assert optimizer_seconds(1e9, device_of(model), model, 2 * update) == pytest.approx(formula + update)


def test_sgd_and_plain_precision_stream_less() -> None:
    """No second moment; no fp32 copy beside the weight."""
    models = (gpt(optimizer="sgd"), gpt(precision="fp32"), gpt())
    sgd, plain, adamw = (optimizer_seconds(1e9, device_of(model), model) for model in models)
    assert max(sgd, plain) < adamw
    assert "fp32" not in MIXED


CONSTANTS = ("matmul_efficiency", "attention_efficiency", "memory_efficiency", "link_efficiency")
FAMILIES = st.builds(
    GpuFamily,
    **{name: st.floats(0.1, 0.9) for name in CONSTANTS},
    kernel_seconds=st.floats(1e-7, 1e-4),
    launch_seconds=st.floats(1e-6, 1e-3),
)
MODELS = st.builds(
    gpt,
    hidden=st.sampled_from([256, 1024, 2048, 4096]),
    heads=st.sampled_from([4, 8, 16]),
    sequence_length=st.sampled_from([128, 1000, 1024, 2048]),
    attention=st.sampled_from(["flash", "unfused"]),
    dropout=st.booleans(),
)
KINDS = st.sampled_from([KIND, TILED])
DEGREES = st.sampled_from([1, 2, 4])


def seconds_of(found: LayerPrice) -> tuple[float, float]:
    """Forward and backward with everything."""
    return (
        found.forward_seconds + found.collective_forward,
        found.backward_seconds + found.recompute_seconds + found.collective_backward,
    )


@given(FAMILIES, MODELS, KINDS, DEGREES, st.sampled_from([*CONSTANTS, "kernel_seconds", "launch_seconds"]))
@settings(deadline=None)
def test_better_constants_never_slow_a_layer(
    family: GpuFamily, model: ModelSpec, device_type: DeviceType, tp: int, name: str
) -> None:
    """Higher efficiencies and shorter constants."""
    factor = 1.1 if name in CONSTANTS else 0.5
    better = replace(family, **{name: getattr(family, name) * factor})
    before, after = (
        seconds_of(
            price(model, tp=tp, device_type=device_type, calibration=Calibration(families={"A100": item}))
        )
        for item in (family, better)
    )
    assert after[0] <= before[0] * (1 + 1e-9)
    assert after[1] <= before[1] * (1 + 1e-9)


def scaled(device_type: DeviceType, factor: float) -> DeviceType:
    """A device that is ``factor`` times as fast in everything."""
    return replace(
        device_type,
        memory_bytes_per_second=factor * device_type.memory_bytes_per_second,
        peak_flops={name: factor * value for name, value in device_type.peak_flops.items()},
        intra_bytes_per_second=factor * device_type.intra_bytes_per_second,
        intra_latency_seconds=device_type.intra_latency_seconds / factor,
    )


@given(FAMILIES, MODELS, KINDS, DEGREES, st.floats(0.1, 10.0), st.sampled_from(["none", "selective", "full"]))
@settings(deadline=None)
def test_seconds_scale_with_speed(
    family: GpuFamily, model: ModelSpec, device_type: DeviceType, tp: int, factor: float, recompute: Recompute
) -> None:
    """Everything k times as fast takes 1/k of the time: rates, links, kernels, launches, latencies."""
    quick = replace(
        family,
        kernel_seconds=family.kernel_seconds / factor,
        launch_seconds=family.launch_seconds / factor,
    )
    slow, fast = (
        seconds_of(
            price(
                model,
                tp=tp,
                device_type=item,
                recompute=recompute,
                calibration=Calibration(families={"A100": part}),
            )
        )
        for item, part in ((device_type, family), (scaled(device_type, factor), quick))
    )
    assert fast == pytest.approx([value / factor for value in slow])


@given(FAMILIES, KINDS, DEGREES, st.integers(1, 16), st.integers(32, 1100), st.data())
@settings(deadline=None)
def test_a_larger_micro_batch_takes_longer(
    family: GpuFamily, device_type: DeviceType, tp: int, size: int, length: int, data: st.DataObject
) -> None:
    """For any sequence length; unfused attention where its softmax is fused for both sizes."""
    attention: Any = data.draw(st.sampled_from(["flash", "unfused"]))
    model = gpt(hidden=1024, heads=16, sequence_length=length, attention=attention)
    calibration = Calibration(families={"A100": family})
    small, large = (
        seconds_of(price(model, tp=tp, micro_batch=item, device_type=device_type, calibration=calibration))
        for item in (size, size + 1)
    )
    assert small[0] <= large[0] * (1 + 1e-9)
    assert small[1] <= large[1] * (1 + 1e-9)


def test_masked_logits_are_a_part_of_all() -> None:
    """The head works on 15 % of the tokens."""
    plain = gpt(cross_entropy="plain")
    masked = plain.model_copy(
        update={"training": plain.training.model_copy(update={"cross_entropy": "masked"})}
    )
    device = Device(KIND, ASSUMED, "fp16", "torch")
    whole, part = (head_pass(one, device, tp=1, micro_batch=64) for one in (plain, masked))
    assert part.forward_seconds == pytest.approx(0.15 * whole.forward_seconds, rel=0.02)
    assert part.backward_seconds == pytest.approx(0.15 * whole.backward_seconds, rel=0.02)


def test_casts_to_fp8() -> None:
    """Of what comes in forward, and of gradients backward: read, and written by rows and by columns.

    By columns for the gradient of the weight alone, which frozen ones lack.
    """
    whole, half, adapters = (
        gpt(precision="fp8", **training)
        for training in ({}, {"freeze": ("attention",)}, {"lora": LoraSpec(rank=8)})
    )
    products = layer_products(whole, tp=2, tokens=1024)
    hidden = whole.hidden
    # (inputs, outputs) a token: queries, keys and values, and their output; both products of the feed-forward.
    attention, mlp = (hidden + hidden / 2, 3 * hidden / 2 + hidden), (3 * hidden, 3 * hidden)
    assert [1024 * sum(part) for part in zip(attention, mlp, strict=True)] == [
        sum(each.rows * each.inner for each in products),
        sum(each.rows * each.columns for each in products),
    ]
    for model, of_attention, of_mlp in ((whole, 4, 4), (half, 3, 4), (adapters, 3, 3)):
        assert cast_bytes(model, products) == tuple(
            1024 * (of_attention * one + of_mlp * other) for one, other in zip(attention, mlp, strict=True)
        )
    # A layer streams them beside all else.
    device = Device(FAST, ASSUMED, "fp8", "megatron")
    frozen = gpt(precision="fp8", freeze=("attention", "mlp"))
    thin, thick = (
        layer_pass(model, device, target("megatron"), tp=2, micro_batch=1, sequence_parallel=False)
        for model in (frozen, whole)
    )
    moved = 1024 * (attention[0] + mlp[0])
    assert thick.forward_seconds - thin.forward_seconds == pytest.approx(device.stream(moved, 0))


@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2), st.booleans())
@settings(deadline=None)
def test_no_recomputation_takes_longer_than_that_of_all(
    device: float, host: float, by_operation: bool
) -> None:
    """Nor where the host holds the device up: the search takes the least recomputation that fits."""
    item = LayerPass(
        forward_seconds=device,
        backward_seconds=2 * device,
        attention_seconds=0.2 * device,
        host_seconds=host,
        product_seconds=0.7 * device,
        again_seconds=0.2 * device,
    )
    for tp in (1, 4):
        model = gpt(attention="unfused")
        moved = collectives(item, tensor_ring(KIND, ASSUMED, tp=tp), model, 1, split=False)
        some, whole = (
            layer_price(item, moved, model, recompute, by_operation) for recompute in ("selective", "full")
        )
        backward = [each.recompute_seconds + each.collective_backward for each in (some, whole)]
        assert backward[0] <= backward[1] * (1 + 1e-9)
