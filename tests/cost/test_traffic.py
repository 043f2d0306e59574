"""Bytes that replicas exchange by ZeRO stage and runtime, and what of the time computation hides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import Framework
from planner.cost.communication import Ring
from planner.cost.memory import parameters_of
from planner.cost.shape import Shape
from planner.cost.traffic import EndTraffic, Traffic
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.plan.values import Folding
from planner.targets import TARGETS
from tests.worlds import gpt

MODEL = gpt(8, 512, 8)
RING = Ring(size=4, bytes_per_second=1e9, latency_seconds=0.0, crosses="ib")
ALONE = Ring(size=1, bytes_per_second=1e9, latency_seconds=0.0, crosses="device")
COUNT = parameters_of(MODEL, layers=8, first=True, last=True, tp=1)
PASS = 3 / 4 * COUNT / 1e9
"""Seconds in which one byte of each parameter goes around the ring once."""


def shape(zero: int = 0, depth: int = 1, stage: int = 0) -> Shape:
    """All layers in one chunk."""
    return Shape(
        chunks=(8,),
        stage=stage,
        depth=depth,
        micro_batches=4,
        zero=zero,
        recompute="none",
        sequence_parallel=False,
    )


def traffic(target: str, overlap: float = 0.0) -> Traffic:
    """fp16 training, so that gradients and parameters have two bytes in every runtime."""
    return Traffic(MODEL, TARGETS[target], Framework(overlap=overlap))


@pytest.mark.parametrize(
    ("target", "zero", "gathered", "reduced"),
    [
        # arXiv:1910.02054, section 7: an all-reduce moves the gradients twice, a scatter once.
        ("megatron", 0, 0, 0),
        ("megatron", 1, 0, 0),
        ("torch", 2, 0, 2),
        ("torch", 3, 2, 2),
        # DeepSpeed sums the gradients on every rank with ZeRO 2.
        ("deepspeed", 2, 0, 4),
        ("deepspeed", 3, 2, 2),
    ],
)
def test_bytes_in_every_micro_batch(target: str, zero: int, gathered: int, reduced: int) -> None:
    """ZeRO-3 gathers parameters, ZeRO 2 and 3 reduce gradients; nothing on one device."""
    found = traffic(target).in_micro_batch(shape(zero), RING, 8, True, True, 1, 0.0)
    assert found == pytest.approx((gathered * PASS, reduced * PASS))
    assert traffic(target).in_micro_batch(shape(zero), ALONE, 8, True, True, 1, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("target", "zero", "reduced", "gathered"),
    [
        ("megatron", 0, 4, 0),
        ("megatron", 1, 2, 2),
        ("deepspeed", 0, 4, 0),
        ("deepspeed", 1, 4, 2),
        ("deepspeed", 2, 0, 2),
        ("deepspeed", 3, 0, 0),
        ("torch", 1, 2, 2),
        ("torch", 2, 0, 2),
        ("torch", 3, 0, 0),
    ],
)
def test_bytes_at_the_end_of_the_step(target: str, zero: int, reduced: int, gathered: int) -> None:
    """What ZeRO leaves for the end, with nothing to hide under."""
    found = traffic(target).at_end(shape(zero), RING, COUNT, 1e9, 1e9)
    assert found.reduction_seconds == pytest.approx(reduced * PASS)
    assert found.gather_seconds == pytest.approx(gathered * PASS)
    assert found.seconds == pytest.approx((reduced + gathered) * PASS)
    assert found.hidden_seconds == 0
    assert traffic(target).at_end(shape(zero), ALONE, COUNT, 1.0, 1.0) == EndTraffic()
    assert (EndTraffic().seconds, EndTraffic().hidden_seconds) == (0, 0)


LATENCY, AROUND = 1e-3, 1e-1


@pytest.mark.parametrize(
    ("target", "zero", "micro_batch", "end"),
    [
        # One message for each of 8 layers: an all-reduce is two passes of a tree, a gather or a scatter one around all.
        ("torch", 0, (0, 0), 16 * LATENCY),
        ("torch", 1, (0, 0), 16 * AROUND),
        ("torch", 2, (0, 8 * AROUND), 8 * AROUND),
        ("torch", 3, (8 * AROUND, 8 * AROUND), 0),
        # 52 million elements are two buckets of Megatron, and one of DeepSpeed.
        ("megatron", 0, (0, 0), 4 * LATENCY),
        ("megatron", 1, (0, 0), 4 * AROUND),
        ("deepspeed", 0, (0, 0), 2 * LATENCY),
        ("deepspeed", 1, (0, 0), 2 * LATENCY + AROUND),
        ("deepspeed", 2, (0, 2 * LATENCY), AROUND),
        # With ZeRO 3 DeepSpeed gathers and scatters a layer in four.
        ("deepspeed", 3, (32 * AROUND, 32 * AROUND), 0),
    ],
)
def test_latency_of_the_messages(
    target: str, zero: int, micro_batch: tuple[float, float], end: float
) -> None:
    """What a fabric with latency takes longer than one without, which is the same however large the layers are."""
    slow = replace(RING, latency_seconds=LATENCY, around_seconds=AROUND)
    found, plain = (
        traffic(target).in_micro_batch(shape(zero), ring, 8, True, True, 1, 0.0) for ring in (slow, RING)
    )
    assert (found[0] - plain[0], found[1] - plain[1]) == pytest.approx(micro_batch)
    late, early = (
        traffic(target).at_end(shape(zero), ring, COUNT, 1e9, 1e9).seconds for ring in (slow, RING)
    )
    assert late - early == pytest.approx(end)


def handled(ring: Ring, zero: int = 3, model: ModelSpec = MODEL) -> list[float]:
    """What a host that takes 10 microseconds to launch a kernel adds to a gather and to a scatter."""
    priced = Traffic(model, TARGETS["deepspeed"], Framework())
    early, late = (
        priced.in_micro_batch(shape(zero), ring, 8, True, True, 1, seconds) for seconds in (0.0, 1e-5)
    )
    return [after - before for before, after in zip(early, late, strict=True)]


def test_hosts_handle_the_part_of_each_member() -> None:
    """Of DeepSpeed's five tensors of a layer, whose parts of all members are cut out one by one: 0.4 launches each."""
    for size in (4, 16):
        assert handled(replace(RING, size=size)) == pytest.approx([0.4e-5 * size * 5 * 8] * 2)
    assert handled(RING, zero=2) == [0.0, 0.0]


def test_parts_of_experts_are_those_of_their_own_ring() -> None:
    """Three tensors of attention and the router's of all 16, the two stacks of experts of the four that share them."""
    model = MODEL.model_copy(update={"experts": ExpertsSpec(number=4, top_k=1, ffn=64)})
    ring = replace(RING, size=16, experts=replace(RING, size=4))
    assert handled(ring, model=model) == pytest.approx([0.4e-5 * (16 * 4 + 4 * 2) * 8] * 2)


def messages(target: str, model: ModelSpec, stage: Shape, ring: Ring, elements: float) -> tuple[int, int]:
    """Messages of the reduction and of the gather at the end of a step: the latencies that are paid."""
    priced = Traffic(model, TARGETS[target], Framework(overlap=0.0))
    late, early = (
        priced.at_end(stage, each, elements, 1e9, 1e9)
        for each in (replace(ring, latency_seconds=1.0, around_seconds=1.0), ring)
    )
    reduced = late.reduction_seconds - early.reduction_seconds
    passes = 1 if stage.zero in TARGETS[target].scatters_gradients else 2
    return round(reduced / passes), round(late.gather_seconds - early.gather_seconds)


@pytest.mark.parametrize(
    ("target", "zero", "layers", "elements", "replicas", "reduced", "gathered"),
    [
        # Adapters of 70 billion parameters: a bucket has 512 million elements, or 40 million at least.
        ("megatron", 1, 80, 66e6, 512, 1, 1),
        ("flagscale", 1, 80, 66e6, 512, 1, 1),
        ("megatron", 0, 80, 66e6, 512, 1, 0),
        ("megatron", 1, 80, 66e6, 8, 2, 2),
        ("deepspeed", 1, 80, 66e6, 512, 1, 1),
        ("torch", 1, 80, 66e6, 512, 80, 80),
        ("torch", 0, 80, 66e6, 512, 80, 0),
        # 8 billion: of 201 buckets each is counted as no less than a layer; of 512 million elements there are 16.
        ("megatron", 1, 32, 8.03e9, 8, 32, 32),
        ("megatron", 1, 32, 8.03e9, 512, 16, 16),
        ("deepspeed", 0, 32, 8.03e9, 512, 17, 0),
        ("deepspeed", 1, 32, 8.03e9, 512, 32, 1),
        ("deepspeed", 2, 32, 8.03e9, 512, 0, 1),
        ("torch", 1, 32, 8.03e9, 512, 32, 32),
        # 355 million.
        ("megatron", 1, 24, 355e6, 8, 9, 9),
        ("megatron", 1, 24, 355e6, 128, 3, 3),
        ("deepspeed", 0, 24, 355e6, 128, 1, 0),
        ("deepspeed", 1, 24, 355e6, 128, 2, 1),
        # Nothing is less than a message.
        ("megatron", 1, 24, 0.0, 8, 1, 1),
    ],
)
def test_buckets_of_each_runtime(
    target: str, zero: int, layers: int, elements: float, replicas: int, reduced: int, gathered: int
) -> None:
    """As many as elements fill, and no more than there are layers."""
    ring, stage = replace(RING, size=replicas), replace(shape(zero), chunks=(layers,))
    assert messages(target, MODEL, stage, ring, elements) == (reduced, gathered)


@pytest.mark.parametrize(
    ("stage", "chunks", "count"),
    [(0, (8,), 6), (1, (8,), 1), (3, (8,), 1), (0, (4, 4), 4), (0, (2, 2, 2, 2), 5), (1, (4, 4), 2)],
)
def test_megatron_divides_the_first_chunk_of_a_pipeline_alone(
    stage: int, chunks: tuple[int, ...], count: int
) -> None:
    """Of 240 million elements; each other chunk of layers is a bucket."""
    found = replace(shape(1, depth=4, stage=stage), chunks=chunks)
    assert messages("megatron", MODEL, found, RING, 240e6) == (count, count)
    assert messages("torch", MODEL, found, RING, 240e6) == (8, 8)


def test_experts_have_buckets_of_their_own() -> None:
    """Those of 100 replicas hold 100 million elements, though 10 share an expert."""
    model = MODEL.model_copy(update={"experts": ExpertsSpec(number=80, top_k=2, ffn=2048)})
    ring = replace(RING, size=100, experts=replace(RING, size=10))
    stage = replace(shape(1), folding=Folding(ep=10))
    experts = 8 * 8 * 2 * 512 * 2048
    assert Traffic(model, TARGETS["megatron"], Framework()).trained_experts(stage) == experts
    late = replace(ring, experts=replace(RING, size=10, latency_seconds=1.0, around_seconds=1.0))
    found = [
        Traffic(model, TARGETS["megatron"], Framework(overlap=0.0)).at_end(stage, each, 3e8, 1.0, 1.0)
        for each in (ring, late)
    ]
    # 134 million elements of them.
    assert found[1].gather_seconds - found[0].gather_seconds == pytest.approx(2)
    assert messages("megatron", model, stage, ring, 3e8) == (2, 2)


def test_buckets_grow_with_replicas_where_batches_are_equal() -> None:
    """The search of replicas with batches of their own takes it that no ring is faster for more members."""
    for row in TARGETS.values():
        if row.batch_without_pipeline == "per-device" and row.buckets is not None:
            assert row.buckets.per_replica == 0


@pytest.mark.parametrize(("target", "size"), [("megatron", 1), ("flagscale", 1), ("torch", 2)])
def test_new_parameters_travel_in_fp8_where_they_are_kept_in_it(target: str, size: int) -> None:
    """Kernels of Transformer Engine keep weights in fp8 beside a sharded optimizer, and gather them so."""
    narrow = Traffic(gpt(8, 512, 8, precision="fp8"), TARGETS[target], Framework(overlap=0.0))
    assert narrow.at_end(shape(1), RING, COUNT, 1.0, 1.0).gather_seconds == pytest.approx(size * PASS)


def test_copies_are_added_up_last() -> None:
    """Each member all-reduces its part of the gradients with the same member of the other groups."""
    copies = Ring(size=2, bytes_per_second=5e8, latency_seconds=0.0, crosses="ib")
    both = traffic("torch").at_end(shape(3), replace(RING, copies=copies), COUNT, 1.0, 1.0)
    assert both.reduction_seconds == pytest.approx(2 * (1 / 2) * (2 * COUNT / 4) / 5e8)


@pytest.mark.parametrize(
    ("target", "zero", "depth", "reduction", "gather"),
    [
        ("megatron", 0, 1, True, False),
        ("megatron", 1, 4, True, True),
        ("torch", 1, 1, True, True),
        ("deepspeed", 0, 1, False, False),
        ("deepspeed", 1, 1, True, False),
        ("deepspeed", 1, 4, False, False),
    ],
)
def test_what_hides_under_computation(
    target: str, zero: int, depth: int, reduction: bool, gather: bool
) -> None:
    """Reductions under the last backward and gathers under the next forward, as far as the runtime can."""
    slow, plain = traffic(target, 0.25), traffic(target)
    shown = plain.at_end(shape(zero, depth), RING, COUNT, 1e9, 1e9)
    found = slow.at_end(shape(zero, depth), RING, COUNT, 1e9, 1e9)
    kept = [0.75 if reduction else 1.0, 0.75 if gather else 1.0]
    assert found.reduction_seconds == pytest.approx(kept[0] * shown.reduction_seconds)
    assert found.gather_seconds == pytest.approx(kept[1] * shown.gather_seconds)
    assert found.hidden_seconds == pytest.approx(shown.seconds - found.seconds)


def test_no_more_hides_than_there_is_computation() -> None:
    """The shorter of the two, times the share that overlaps."""
    assert traffic("torch", 0.5).exposed(4.0, 2.0) == (3.0, 1.0)
    assert traffic("torch", 0.5).exposed(2.0, 4.0) == (1.0, 1.0)


def test_who_waits_in_the_last_backward() -> None:
    """torch alone, without a pipeline and with ZeRO 0 or 1; whole gradients and copies only where nothing hides."""
    copies = replace(RING, copies=RING)
    hides, shows = traffic("torch", 0.5), traffic("torch")
    assert [hides.keeps_step(shape(zero), RING) for zero in range(4)] == [False, True, False, False]
    assert [shows.keeps_step(shape(zero), RING) for zero in range(4)] == [True, True, False, False]
    assert not hides.keeps_step(shape(1), copies)
    assert shows.keeps_step(shape(1), copies)
    assert not shows.keeps_step(shape(1, depth=2), RING)
    assert not shows.keeps_step(shape(1), ALONE)
    assert not traffic("megatron").keeps_step(shape(1), RING)
    assert shows.holds_gradients(shape(1, depth=2))
    assert not shows.holds_gradients(shape(1))
    assert not traffic("megatron").holds_gradients(shape(1, depth=2))
