"""Adapters, bases in four bits and frozen parts: their seconds, bytes and traffic next to those of whole training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.calibration.values import ASSUMED
from planner.capabilities import Schedule
from planner.cluster.spec import HostSpec
from planner.cluster.topology import Topology
from planner.cost.communication import tensor_ring
from planner.cost.compute import (
    Device,
    Product,
    embedding_pass,
    layer_product_seconds,
    layer_products,
    model_flops,
    nf4_matrices,
)
from planner.cost.estimate import estimate
from planner.cost.memory import activation_bytes_per_layer, gathered_of
from planner.cost.values import Estimate
from planner.dims.tensor import tp_degrees
from planner.model.spec import (
    BASE_BYTES,
    NF4_BYTES,
    PARTS,
    AdapterTarget,
    BaseFormat,
    EncoderSpec,
    ExpertsSpec,
    LoraSpec,
    ModelSpec,
    RunSpec,
)
from planner.plan.checks import faults, model_faults, unwritten
from planner.plan.values import Offload, Plan, ReplicaGroup, Stage
from planner.targets import TARGETS
from planner.targets import target as row_of
from tests.cases import KINDS
from tests.worlds import cluster, gpt, pool

MATRICES = 12 * 2048**2
"""Elements of the matrices of a layer of the model below."""


def priced(zero: int, target: str = "deepspeed", **training: Any) -> Estimate:
    """Four devices with four sequences each."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    return estimate(
        Plan(target=target, zero=zero, stages=(stage,)), cluster(pool("a", per_node=4)), made(**training)
    )


def made(**training: Any) -> ModelSpec:
    """A GPT of 1.3 billion parameters."""
    return gpt(global_batch=16, **training)


def test_a_frozen_product_has_one_gradient() -> None:
    """Of its inputs: the backward takes about as long as the forward, and the step two thirds of the operations."""
    device = Device(Topology(cluster(pool("a"))).device_types[0], ASSUMED, "fp16", "torch")
    whole, frozen = made(), made(freeze=("attention", "mlp"))
    forward, backward = layer_product_seconds(whole, device, tp=1, tokens=4096)
    same, less = layer_product_seconds(frozen, device, tp=1, tokens=4096)
    assert same == pytest.approx(forward)
    weights = sum(device.product(each.backward()[1]) for each in layer_products(whole, tp=1, tokens=4096))
    assert less == pytest.approx(backward - weights)
    products = 2.0 * 16 * 1024 * 24 * MATRICES
    assert model_flops(whole) - model_flops(frozen) == pytest.approx(products)


def test_adapters_cost_their_products_and_save_the_weights_gradients() -> None:
    """A larger rank takes longer; a base in four bits takes what brings it back longer."""
    whole = priced(0).breakdown.compute_seconds
    thin, thick, packed = (
        priced(0, lora=lora).breakdown.compute_seconds
        for lora in (LoraSpec(rank=8), LoraSpec(rank=256), LoraSpec(rank=8, base="nf4"))
    )
    assert 2 / 3 * whole < thin < whole
    assert thin < thick
    assert thin < packed


def test_what_is_frozen_has_no_gradients_and_no_states() -> None:
    """Whole in two bytes, or divided with ZeRO 3; in four bits DeepSpeed has it whole whatever ZeRO."""
    model = made(lora=LoraSpec(rank=16))
    adapters = 24 * 16 * (6 * 2048 + 2 * 2048 + 2 * 5 * 2048)
    assert model.trained_parameters == adapters
    for zero in (0, 3):
        memory = priced(zero, lora=LoraSpec(rank=16)).stages[0].groups[0].memory
        ways = 4 if zero == 3 else 1
        assert memory.optimizer_bytes == pytest.approx(12 * adapters / ways)
        assert memory.gradients_bytes == pytest.approx(2 * adapters / ways)
        assert memory.parameters_bytes == pytest.approx(2 * (adapters + model.parameters) / ways)
        packed = priced(zero, lora=LoraSpec(rank=16, base="nf4")).stages[0].groups[0].memory
        rest = model.parameters - 24 * MATRICES
        wanted = 2 * (adapters + rest) / ways + 0.5625 * 24 * MATRICES
        assert packed.parameters_bytes == pytest.approx(wanted)


@pytest.mark.parametrize("base", NF4_BYTES)
def test_zero_3_of_torch_shards_a_base_in_four_bits(base: BaseFormat) -> None:
    """Codes and scales are divided over the replicas, or over groups of them; whole with the other stages."""
    model = made(lora=LoraSpec(rank=16, base=base))
    rest, codes = model.parameters - 24 * MATRICES, 24 * MATRICES * NF4_BYTES[base]
    for zero, size, ways in ((0, None, 1), (1, None, 1), (2, None, 1), (3, None, 4), (3, 2, 2)):
        memory = fsdp(model, zero, shard_size=size).stages[0].groups[0].memory
        # With ZeRO 3 what is trained rests in fp32 alone.
        trained = 2 * (zero < 3) * model.trained_parameters
        assert memory.parameters_bytes == pytest.approx((2 * rest + codes) / ways + trained)


def test_what_is_gathered_of_a_base_in_four_bits() -> None:
    """Its bytes: of two layers twice, where one is used and the next one is on its way; and in each pass."""
    wide, packed = (
        made(lora=LoraSpec(rank=16, base=base)).model_copy(update={"vocab": 128}) for base in (None, "nf4")
    )
    whole, codes = (fsdp(model, 3) for model in (wide, packed))
    one, other = (each.stages[0].groups[0].memory.buffers_bytes for each in (whole, codes))
    # The largest matrix is in two bytes meanwhile.
    assert other == pytest.approx(one - 2 * (2 - 0.5625) * MATRICES + 2 * 4 * 2048**2)
    elements = [
        gathered_of(model, layers=24, first=True, last=True, tp=1, shards_codes=sharded)
        for model, sharded in ((wide, False), (packed, True), (packed, False))
    ]
    assert elements[0] - elements[1] == pytest.approx((1 - 0.5625 / 2) * 24 * MATRICES)
    assert elements[1] - elements[2] == pytest.approx(0.5625 / 2 * 24 * MATRICES)
    seconds = [each.breakdown.zero_seconds + each.breakdown.hidden_seconds for each in (whole, codes)]
    assert seconds[1] / seconds[0] == pytest.approx(elements[1] / elements[0], rel=0.15)


@pytest.mark.parametrize("base", [None, *NF4_BYTES])
def test_a_base_in_four_bits_may_rest_in_host_memory(base: BaseFormat | None) -> None:
    """Its shards do, and are copied to the device for each gather; DeepSpeed keeps it on the devices."""
    model = made(precision="bf16", lora=LoraSpec(rank=16, base=base))
    rest, each = model.parameters - 24 * MATRICES, NF4_BYTES.get(base or "bf16", 2.0)
    all_of_it = Offload(optimizer="cpu", parameters="cpu")
    memory = fsdp(model, 3, offload=all_of_it).stages[0].groups[0].memory
    kept = 2 * rest + each * 24 * MATRICES
    # Weights, two moments, and the gradients in fp32.
    assert memory.host_bytes == pytest.approx((kept + (12 + 4) * model.trained_parameters) / 4)
    assert memory.parameters_bytes == memory.optimizer_bytes == 0
    moved = gathered_of(model, layers=24, first=True, last=True, tp=1, shards_codes=True)
    assert 2 * moved == pytest.approx(kept + 2 * model.trained_parameters)
    refused = [fault.what for fault in faults(plan_of("deepspeed", 3, offload=all_of_it), HOSTS, model)]
    what = "deepspeed keeps a model in four bits on the devices, expected none"
    assert refused == ([what] if base else [])


HOSTS = cluster(
    pool("a", per_node=4).model_copy(update={"host": HostSpec(all_links_gBps=40, memory_gib=512)})
)


def plan_of(target: str, zero: int, **fields: Any) -> Plan:
    """Four devices with four sequences each."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    return Plan(target=target, zero=zero, stages=(stage,), **fields)


def fsdp(model: ModelSpec, zero: int, **fields: Any) -> Estimate:
    """The same with torch."""
    return estimate(plan_of("torch", zero, **fields), HOSTS, model)


OF_EXPERTS: tuple[AdapterTarget, ...] = ("experts.up_proj", "experts.down_proj")


def test_adapters_of_experts_are_divided_with_them() -> None:
    """Their states, and ZeRO's shares of these, are those of the devices that have the same experts."""
    pairs, alone = sparse(16, OF_EXPERTS), sparse(16, ())
    beside = 24 * 16 * 2 * 2048
    each = 24 * 8 * 16 * 2 * (2048 + 1024)
    assert pairs.trained_parameters == beside + each
    assert alone.trained_parameters == beside
    assert pairs.adapter_parameters == beside + each
    for zero, ep in ((0, 1), (1, 1), (1, 2), (1, 4), (2, 2), (3, 2)):
        memory = spread(zero, ep, pairs).stages[0].groups[0].memory
        states = beside / (1 if zero == 0 else 4) + each / ep / (1 if zero == 0 else 4 / ep)
        assert memory.optimizer_bytes == pytest.approx(12 * states)
        kept = 2 * (pairs.parameters - 24 * pairs.expert_parameters + beside) / (4 if zero == 3 else 1)
        kept += 2 * (24 * pairs.expert_parameters + each) / ep / (4 / ep if zero == 3 else 1)
        assert memory.parameters_bytes == pytest.approx(kept)
    # With as many owners as devices nothing of them is exchanged.
    apart, thin = (spread(1, 4, model).breakdown.gradient_sync_seconds for model in (pairs, alone))
    assert apart == pytest.approx(thin)
    assert spread(1, 2, pairs).breakdown.gradient_sync_seconds > 1.5 * thin


def test_adapters_of_experts_cost_their_products() -> None:
    """Grouped, by the rows of each expert: operations of those that work on a token, and time with the rank."""
    none, thin, thick = sparse(16, ()), sparse(16, OF_EXPERTS), sparse(256, OF_EXPERTS)
    working = 24 * 2 * 16 * 2 * (2048 + 1024)
    assert model_flops(thin) - model_flops(none) == pytest.approx(6.0 * 16 * 1024 * working)
    seconds = [spread(0, 1, model).breakdown.compute_seconds for model in (none, thin, thick)]
    assert seconds == sorted(seconds)
    assert seconds[2] > 1.02 * seconds[1] > 1.02 * seconds[0]
    # Forward: two thin products for each expert, and three streams of what it adds; backward: of the inputs.
    device = Device(Topology(cluster(pool("a"))).device_types[0], ASSUMED, "fp16", "torch")
    rows = 2 * 4096 / 8
    forward = backward = 0.0
    for inputs, outputs in ((2048, 1024), (1024, 2048)):
        pair = Product(rows, 16, inputs, 8), Product(rows, outputs, 16, 8)
        ahead, back = device.products(pair)
        forward += ahead + device.stream(3 * 2 * 8 * rows * outputs)
        backward += back + device.stream(3 * 2 * 8 * rows * inputs)
    with_them, without = (layer_product_seconds(model, device, tp=1, tokens=4096) for model in (thin, none))
    assert with_them[0] - without[0] == pytest.approx(forward)
    assert with_them[1] - without[1] == pytest.approx(backward)


def sparse(rank: int, targets: tuple[AdapterTarget, ...]) -> ModelSpec:
    """The same with eight experts in each layer, adapters of queries, and of these."""
    experts = ExpertsSpec(number=8, top_k=2, ffn=1024)
    adapted = made(lora=LoraSpec(rank=rank, targets=("q_proj", *targets)))
    return adapted.model_copy(update={"experts": experts})


def spread(zero: int, ep: int, model: ModelSpec) -> Estimate:
    """Four devices with four sequences each, of which so many divide the experts."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    plan = Plan(target="deepspeed", zero=zero, stages=(stage,), ep=ep)
    return estimate(plan, cluster(pool("a", per_node=4)), model)


def test_frozen_parameters_travel_for_the_gather_alone() -> None:
    """ZeRO 1 exchanges adapters, ZeRO 3 gathers the base too, unless it is in four bits and whole as with DeepSpeed."""
    lora = LoraSpec(rank=16)
    assert (
        priced(1, lora=lora).breakdown.gradient_sync_seconds
        < 0.05 * priced(1).breakdown.gradient_sync_seconds
    )
    gathered, packed = (priced(3, lora=each).breakdown for each in (lora, LoraSpec(rank=16, base="nf4")))
    # Of the parts of tensors that hosts handle most are of adapters, which both have.
    more = gathered.zero_seconds + gathered.hidden_seconds - packed.zero_seconds - packed.hidden_seconds
    assert more > 0.7 * (packed.zero_seconds + packed.hidden_seconds)


def test_stages_train_their_own_adapters() -> None:
    """States and reductions are of a stage's adapters; both copies of a tied embedding are frozen, and not added up."""
    rank = 16
    stages = tuple(
        Stage(
            first_layer=first,
            end_layer=end,
            replicas=(
                ReplicaGroup(pool="a", gpu="A100", tp=1, count=2, local_batch=8, accumulation_steps=4),
            ),
        )
        for first, end in ((0, 16), (16, 24))
    )
    plan, where = Plan(target="torch", zero=1, stages=stages), cluster(pool("a", per_node=4))
    model = made(lora=LoraSpec(rank=rank))
    thin, whole = (estimate(plan, where, one) for one in (model, made()))
    each = rank * (6 * 2048 + 2 * 2048 + 2 * 5 * 2048)
    for stage, full, layers in zip(thin.stages, whole.stages, (16, 8), strict=True):
        memory = stage.groups[0].memory
        # FSDP2 keeps what it trains in fp32, of which AdamW has two more.
        assert memory.optimizer_bytes == pytest.approx(12 * layers * each / 2)
        ends = model.embedding_parameters
        frozen = 2 * (layers * model.layer_parameters + ends)
        assert memory.parameters_bytes == pytest.approx(frozen + 2 * layers * each, rel=0.01)
        assert stage.backward_seconds < 0.85 * full.backward_seconds
        assert stage.forward_seconds > full.forward_seconds
    assert thin.breakdown.gradient_sync_seconds < 0.05 * whole.breakdown.gradient_sync_seconds
    assert thin.breakdown.step_seconds == pytest.approx(thin.step_seconds)


def test_pipelines_of_what_is_trained_in_part() -> None:
    """Stages train adapters and parts, in schedules with whole backwards."""
    where = cluster(pool("a", per_node=4))

    def refused(target: str, schedule: Schedule = "1f1b", **training: Any) -> list[str]:
        stages = tuple(
            Stage(
                first_layer=first,
                end_layer=first + 12,
                replicas=(
                    ReplicaGroup(pool="a", gpu="A100", tp=1, count=2, local_batch=8, accumulation_steps=4),
                ),
            )
            for first in (0, 12)
        )
        plan = Plan(target=target, zero=1, stages=stages, schedule=schedule)
        return [fault.what for fault in faults(plan, where, made(**training))]

    lora = LoraSpec(rank=4)
    for target in ("torch", "deepspeed"):
        assert refused(target, lora=lora) == refused(target, freeze=("mlp",)) == []
    assert refused("torch", "zero-bubble", lora=lora) == [
        "adapters have next to no gradients of weights to compute apart, expected 1f1b, got zero-bubble"
    ]
    assert refused("torch", "zero-bubble", freeze=("mlp",)) == [
        "frozen parts have next to no gradients of weights to compute apart, expected 1f1b, got zero-bubble"
    ]


def divided(zero: int, steps: int = 4, tp: int = 2, **training: Any) -> Estimate:
    """Four devices, ``tp`` for a replica, 16 sequences in ``steps`` micro-batches."""
    dp = 4 // tp
    group = ReplicaGroup(
        pool="a", gpu="A100", tp=tp, count=dp, local_batch=16 // dp, accumulation_steps=steps
    )
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    plan = Plan(target="torch", zero=zero, stages=(stage,))
    where, model = cluster(pool("a", per_node=4)), made(**training)
    assert not faults(plan, where, model)
    return estimate(plan, where, model)


def test_halves_of_adapters_are_whole_on_every_device() -> None:
    """Those that take all inputs or make all outputs; the others, like the base, are divided."""
    rank, tp = 16, 4
    whole = 24 * rank * (3 * 2048 + 2048 + 2048 + 2048)
    parts = 24 * rank * (3 * 2048 + 2048 + 4 * 2048 + 4 * 2048)
    memory = divided(0, tp=tp, lora=LoraSpec(rank=rank)).stages[0].groups[0].memory
    mine = whole + parts / tp
    assert memory.gradients_bytes == pytest.approx(2 * mine)
    assert memory.optimizer_bytes == pytest.approx(12 * mine)
    assert memory.parameters_bytes == pytest.approx(2 * (mine + made().parameters / tp), rel=1e-3)
    sharded = divided(3, tp=2, lora=LoraSpec(rank=rank)).stages[0].groups[0].memory
    assert sharded.optimizer_bytes == pytest.approx(12 * (whole + parts / 2) / 2)
    packed = divided(0, tp=tp, lora=LoraSpec(rank=rank, base="nf4")).stages[0].groups[0].memory
    matrices = 24 * MATRICES / tp
    assert memory.parameters_bytes - packed.parameters_bytes == pytest.approx((2 - 0.5625) * matrices)
    # Its part of the largest matrix is brought to the working format.
    assert packed.buffers_bytes - memory.buffers_bytes == pytest.approx(2 * 2048 * 8192 / tp)


def test_what_adapters_keep_is_divided_like_their_layers() -> None:
    """The input of a divided product; what is between the halves of an adapter is whole."""
    kept = [
        activation_bytes_per_layer(
            made(lora=LoraSpec(rank=16, targets=targets)),
            tp=2,
            micro_batch=1,
            recompute="none",
            sequence_parallel=split,
        )
        for targets in ALONE_OR_BOTH
        for split in (False, True)
    ]
    # That of the feed-forward's norm is needed for neither.
    for without, added in zip(kept[:2], kept[2:], strict=True):
        assert added - without == pytest.approx(1024 * (2 * 8192 / 2 + 2 * 16))


ALONE_OR_BOTH: tuple[tuple[AdapterTarget, ...], ...] = (("q_proj",), ("q_proj", "down_proj"))


def test_products_of_adapters_are_divided_like_their_layers() -> None:
    """Columns and rows: the half beside the divided side has a part."""
    device, tp = Device(Topology(cluster(pool("a"))).device_types[0], ASSUMED, "fp16", "torch"), 4
    columns = Product(4096, 16, 2048), Product(4096, 8192 / tp, 16)
    rows = Product(4096, 16, 8192 / tp), Product(4096, 2048, 16)
    cases: tuple[tuple[AdapterTarget, tuple[Product, ...], float], ...] = (
        ("up_proj", columns, 8192 / tp),
        ("down_proj", rows, 2048),
    )
    for name, products, added in cases:
        model, frozen = made(lora=LoraSpec(rank=16, targets=(name,))), made(freeze=PARTS[:4])
        found = [layer_product_seconds(each, device, tp=tp, tokens=4096)[0] for each in (model, frozen)]
        thin = sum(map(device.product, products))
        assert found[0] - found[1] == pytest.approx(thin + device.stream(3.0 * 2 * 4096 * added))


def test_gradients_of_whole_halves_are_added_up() -> None:
    """Once a step as the reduction has them with ZeRO 0 and 1, and with 2 and 3 in each micro-batch as they are."""
    lora = LoraSpec(rank=256)
    model, where = made(lora=lora), cluster(pool("a", per_node=4))
    ring = tensor_ring(Topology(where).device_types[0], ASSUMED, tp=2)

    def summed(size: int) -> float:
        # Queries, keys, values and the first of the feed-forward by inputs, the others by outputs.
        return 24 * 6 * ring.reduce_seconds(size * 256 * 2048)

    def traffic(zero: int, steps: int) -> tuple[float, float]:
        found = divided(zero, steps, lora=lora, precision="bf16").breakdown
        return found.tensor_parallel_seconds, found.gradient_sync_seconds

    assert model.layer_adapters.whole == 6 * 256 * 2048
    once, several = (traffic(0, steps) for steps in (1, 8))
    assert several[1] - once[1] == pytest.approx(summed(4) - summed(2))
    for steps in (1, 8):
        sums = traffic(2, steps)[0] - traffic(1, steps)[0]
        assert sums == pytest.approx(steps * summed(2))


def test_autotp_adds_up_what_is_between_the_halves() -> None:
    """Beside columns the gradient in each backward, beside rows the product in each forward, recomputed too."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=2, count=2, local_batch=8, accumulation_steps=4)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    where, lora = cluster(pool("a", per_node=4)), LoraSpec(rank=64)
    ring = tensor_ring(Topology(where).device_types[0], ASSUMED, tp=2)
    for zero in (0, 2):
        plan = Plan(target="deepspeed", zero=zero, stages=(stage,))
        adapted, whole = (
            estimate(plan, where, made(**each)).breakdown.tensor_parallel_seconds
            for each in ({"lora": lora}, {})
        )
        narrow = ring.reduce_seconds(2 * 2 * 1024 * 64)
        assert adapted - whole == pytest.approx(4 * 24 * (4 + 2 * 2) * narrow)


def test_blocks_of_four_bits_are_not_torn() -> None:
    """Rows of whole blocks on each device, else another scale would be that of a part; DeepSpeed divides none."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=4, count=1, local_batch=16, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,))
    where = cluster(pool("a", per_node=4))

    def refused(target: str, ffn: int, base: BaseFormat | None) -> list[str]:
        model = made(lora=LoraSpec(rank=4, base=base)).model_copy(update={"ffn": ffn})
        return [fault.what for fault in faults(Plan(target=target, zero=1, stages=(stage,)), where, model)]

    torn = "tp 4 would give devices parts of the blocks of 64 elements that share a scale in down_proj, "
    assert refused("torch", 8192, "nf4") == refused("torch", 8192 + 32 * 4, None) == []
    assert refused("torch", 8192 + 32 * 4, "nf4") == [f"{torn}expected whole ones with base nf4"]
    assert refused("deepspeed", 8192, None) == []
    cannot: tuple[tuple[str, BaseFormat, str], ...] = (
        ("deepspeed", "nf4", "four bits"),
        ("deepspeed", "nf4-double", "four bits"),
        ("torch", "nf4-double", "nf4-double"),
    )
    for target, base, what in cannot:
        assert refused(target, 8192, base) == [
            f"{target} trains adapters on {what} without tensor parallelism, expected 1, got 4"
        ]
    degrees = [
        tp_degrees(row_of("torch"), None, model, Topology(where).device_types)
        for model in (made(lora=LoraSpec(rank=4, base="nf4")).model_copy(update={"ffn": 8320}), made())
    ]
    assert degrees == [(1, 2), (1, 2, 4)]


def test_parts_are_those_of_the_model() -> None:
    """Frozen one by one, nothing is left but adapters."""
    model = made()
    left = [made(freeze=(part,)).trained_parameters for part in PARTS]
    assert sum(model.parameters - each for each in left) == model.parameters


def test_bytes_of_bases() -> None:
    """A scale for each block, in fp32, or of eight bits with one in fp32 for each 256; none where nothing is packed."""
    bases: tuple[BaseFormat | None, ...] = (None, "bf16", "fp8", "nf4", "nf4-double")
    each = [made(lora=LoraSpec(rank=4, base=base)).quantised_bytes for base in bases]
    assert each == [0.0, 0.0, 1.0, 0.5625, 0.5 + 1 / 64 + 4 / (64 * 256)]
    assert dict(zip(bases[2:], each[2:], strict=True)) == BASE_BYTES
    assert dict(zip(bases[3:], each[3:], strict=True)) == NF4_BYTES


def on_hopper(base: BaseFormat | None, *, tp: int = 1, count: int = 4, zero: int = 0) -> Estimate:
    """Four H100 that train in fp8 with Megatron, of a model with experts beside a feed-forward."""
    group = ReplicaGroup(pool="a", gpu="H", tp=tp, count=count, local_batch=16 // count, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,))
    split = tp > 1
    plan = Plan(target="megatron", zero=zero, stages=(stage,), sequence_parallel=split)
    model = made(precision="fp8", lora=LoraSpec(rank=16, base=base))
    experts = ExpertsSpec(number=4, top_k=2, ffn=1024)
    return estimate(
        plan, cluster(pool("a", "H", per_node=4), gpus=KINDS), model.model_copy(update={"experts": experts})
    )


@pytest.mark.parametrize(("tp", "count", "zero"), [(1, 4, 0), (1, 4, 1), (4, 1, 1)])
def test_a_base_in_fp8(tp: int, count: int, zero: int) -> None:
    """One byte of each matrix in place of two, of those of experts too, and nothing else: products take it as it is."""
    plain, packed = (on_hopper(base, tp=tp, count=count, zero=zero) for base in ("bf16", "fp8"))
    before, after = (each.stages[0].groups[0].memory for each in (plain, packed))
    assert on_hopper(None, tp=tp, count=count, zero=zero) == plain
    # Each device has whole experts.
    matrices = 24 * (4 * 2048**2 / tp + 4 * 2 * 2048 * 1024)
    assert before.parameters_bytes - after.parameters_bytes == pytest.approx(matrices)
    assert replace(after, parameters_bytes=0.0, runtime_bytes=0.0, slack_bytes=0.0) == replace(
        before, parameters_bytes=0.0, runtime_bytes=0.0, slack_bytes=0.0
    )
    assert packed.step_seconds == plain.step_seconds
    assert packed.breakdown == plain.breakdown


def test_a_base_in_fp8_is_priced_for_megatron() -> None:
    """Refused for all others, with what to leave out; never proposed."""
    model = made(precision="fp8", lora=LoraSpec(rank=16, base="fp8"))
    refused = {name: [each.what for each in model_faults(row, model)] for name, row in TARGETS.items()}
    assert refused["megatron"] == []
    assert refused["torch"] == ["hetplan has no adapters on fp8 with torch, expected no base fp8"]
    assert refused["deepspeed"] == [
        "deepspeed does not train in fp8, it can: bf16, fp16, fp32, tf32",
        "hetplan has no adapters on fp8 with deepspeed, expected no base fp8",
    ]
    assert refused["flagscale"] == ["hetplan has no adapters on fp8 with flagscale, expected no lora"]
    why = "training adapters on fp8 with megatron is priced, but hetplan writes no launch files for it"
    assert unwritten(row_of("megatron"), model) == why


@pytest.mark.parametrize("frozen", ["adapters", "attention", "mlp"])
@pytest.mark.parametrize("zero", [1, 3])
def test_experts_are_divided_beside_frozen_parts(frozen: str, zero: int) -> None:
    """Each device has half of the experts, trained or not; those that are have states, and are reduced by pairs."""
    training: dict[str, Any] = {"lora": LoraSpec(rank=8)} if frozen == "adapters" else {"freeze": (frozen,)}
    experts = ExpertsSpec(number=8, top_k=2, ffn=1024)
    model = made(precision="bf16", **training).model_copy(update={"experts": experts})
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    whole, halved = (
        estimate(
            Plan(target="torch", zero=zero, stages=(stage,), ep=ep),
            cluster(pool("a", per_node=4)),
            model,
        )
        for ep in (1, 2)
    )
    routed = 24 * model.expert_parameters
    trained = 0 if frozen in ("adapters", "mlp") else routed
    one, other = (each.stages[0].groups[0].memory for each in (whole, halved))
    # Of the states ZeRO has parts over four devices of all experts, or over two of half of them.
    assert one.optimizer_bytes == pytest.approx(other.optimizer_bytes)
    states = 12 * (model.trained_parameters - trained) / 4 + 12 * trained / 4
    assert one.optimizer_bytes == pytest.approx(states)
    ways = 4 if zero == 3 else 1
    gone = 2 * routed * (1 / ways - 1 / 2 / (ways / 2 if zero == 3 else 1))
    assert one.parameters_bytes - other.parameters_bytes == pytest.approx(gone)
    if zero == 1 and not trained:
        # What is added up over the replicas has no experts in it.
        added = [each.breakdown.gradient_sync_seconds for each in (whole, halved)]
        assert added[0] == pytest.approx(added[1], rel=0.02)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zero", [1, 3])
def test_experts_rest_in_four_bits(zero: int, bias: bool) -> None:
    """Like linear layers, with ZeRO 3 of torch divided over the devices that have the same; half are brought back."""
    lora, experts = LoraSpec(rank=8, base="nf4"), ExpertsSpec(number=64, top_k=2, ffn=1024, bias=bias)
    model = made(precision="bf16", lora=lora).model_copy(update={"experts": experts, "vocab": 128})
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    whole, halved = (
        estimate(
            Plan(target="torch", zero=zero, stages=(stage,), ep=ep), cluster(pool("a", per_node=4)), model
        )
        for ep in (1, 2)
    )
    one, other = (each.stages[0].groups[0].memory for each in (whole, halved))
    matrices = 64 * 2 * 2048 * 1024
    biases = model.expert_parameters - matrices
    assert biases == bias * 64 * (2048 + 1024)
    experts_bytes = 24 * (0.5625 * matrices + 2 * biases)
    ways, pairs = (4, 2) if zero == 3 else (1, 1)
    rest = one.parameters_bytes - experts_bytes / ways
    assert other.parameters_bytes == pytest.approx(rest + experts_bytes / 2 / pairs)
    assert rest == pytest.approx(
        # With ZeRO 3 what is trained rests in fp32 alone.
        2 * (model.parameters + (zero == 1) * model.adapter_parameters - 24 * model.expert_parameters) / ways
        - (2 - 0.5625) / ways * 24 * model.quantised_layer_parameters
    )
    # Gates of all experts are whole in two bytes, and with ZeRO 3 two layers are gathered.
    fewer = 2 * (matrices / 2 / 2) + (zero == 3) * 2 * experts_bytes / 24 / 2
    assert one.buffers_bytes - other.buffers_bytes == pytest.approx(fewer)
    assert whole.breakdown.compute_seconds > halved.breakdown.compute_seconds
    gathers = [each.breakdown.zero_seconds + each.breakdown.hidden_seconds for each in (whole, halved)]
    # Each of two devices gets one half of half the experts; else three quarters of all.
    assert gathers[0] / gathers[1] == pytest.approx(2.5 if zero == 3 else 1.0, abs=0.1)


def test_a_base_in_four_bits_is_brought_back_by_one_kernel_a_matrix() -> None:
    """Half a byte and its part of a scale are read, two bytes are written; of experts all at once."""
    device = Device(Topology(cluster(pool("a"))).device_types[0], ASSUMED, "bf16")
    plain, packed = (
        layer_product_seconds(made(lora=LoraSpec(rank=4, base=base)), device, tp=1, tokens=1024)
        for base in (None, "nf4")
    )
    more = device.stream((0.5 + 4 / 64 + 2) * MATRICES, 6)
    assert [packed[way] - plain[way] for way in (0, 1)] == pytest.approx([more, more])
    model = made(lora=LoraSpec(rank=8, base="nf4"))
    experts = ExpertsSpec(number=64, top_k=1, ffn=1024)
    assert nf4_matrices(model) == 6
    assert nf4_matrices(model.model_copy(update={"experts": experts})) == 4 + 2


def test_what_is_ahead_has_no_backward_beside_adapters() -> None:
    """An encoder's own embedding, unlike where the whole model is trained."""
    crossed = {
        "encoder": EncoderSpec(layers=1, sequence_length=256),
        "block": (RunSpec(mixer="cross"),),
    }
    device = Device(Topology(cluster(pool("a"))).device_types[0], ASSUMED, "bf16")
    adapters, whole = (
        embedding_pass(made(**each).model_copy(update=crossed), device, tp=1, micro_batch=1)
        for each in ({"lora": LoraSpec(rank=4)}, {})
    )
    assert adapters.backward_seconds == 0.0 < whole.backward_seconds
    assert adapters.forward_seconds == whole.forward_seconds


def test_narrow_scales_are_widened_for_each_product() -> None:
    """Seven operations on the scale of each block of each matrix, forward and backward."""
    device = Device(Topology(cluster(pool("a"))).device_types[0], ASSUMED, "bf16")
    bases: tuple[BaseFormat, ...] = ("nf4", "nf4-double")
    one, other = (
        layer_product_seconds(made(lora=LoraSpec(rank=4, base=base)), device, tp=1, tokens=1024)
        for base in bases
    )
    more = device.stream(57.0 / 64 * MATRICES, 7 * 6)
    assert [other[way] - one[way] for way in (0, 1)] == pytest.approx([more, more])
