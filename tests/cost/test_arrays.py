"""Prices of many cases at once are those of each case, whatever the model, the constants and the measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from planner.cost.arrays import as_array, finite, larger, smaller
from planner.cost.communication import Ring
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape, chunk_layers
from planner.cost.stage import Pricer
from planner.measured.dual import Dual
from planner.plan.values import ReplicaGroup
from tests.worlds import Problem, with_constants, with_measurements, with_shapes

WORLDS = (with_constants, with_shapes, with_measurements)
TARGETS = ("megatron", "deepspeed", "torch", "flagscale")
EXACT = 1e-12
SIZES = np.arange(1, 7)
STATES = [(0, "none", 1), (1, "full", 2), (2, "none", 4), (3, "selective", 3)]
"""ZeRO stage, recomputation, replicas."""


def stages(
    make: Callable[[int], Problem], target: str, seed: int
) -> list[tuple[Pricer, Shape, ReplicaGroup, Ring]]:
    """Stages of a small problem on each of its device types that has the number format."""
    spec, model, calibration = make(seed)
    pricer = Estimator(spec, model, calibration).pricer(target)
    precision = model.training.precision
    found = []
    for number, device_type in enumerate(pricer.topology.device_types):
        if precision not in device_type.peak_flops:
            continue
        zero, recompute, dp = STATES[(seed + number) % len(STATES)]
        shape = Shape(
            chunks=(min(3, model.layers),),
            stage=number % 3,
            depth=3,
            micro_batches=5,
            zero=zero,
            recompute=cast("Any", recompute),
            sequence_parallel=False,
        )
        group = ReplicaGroup(
            pool=device_type.pool, gpu=device_type.gpu, tp=1, count=dp, local_batch=10, accumulation_steps=5
        )
        ring = Ring(
            size=dp,
            bytes_per_second=2e9,
            latency_seconds=1e-5,
            crosses="eth",
            curves=pricer.link_curves,
            link="eth",
        )
        found.append((pricer, shape, group, ring))
    return found


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(4))
def test_micro_batches_of_many_sizes(make: Callable[[int], Problem], target: str, seed: int) -> None:
    """Every number of a micro-batch."""
    for pricer, shape, group, ring in stages(make, target, seed):
        many = pricer.micro_batch(shape, group, cast("int", SIZES), ring)
        for case, size in enumerate(SIZES.tolist()):
            one = pricer.micro_batch(shape, group, size, ring)
            for name in one.__slots__:
                value = np.broadcast_to(getattr(many, name), len(SIZES))[case]
                assert value == pytest.approx(getattr(one, name), rel=EXACT), name


@pytest.mark.parametrize("zero", [2, 3])
def test_traffic_is_added_to_micro_batches_without_it(zero: int) -> None:
    """On single devices with the whole model: as if each were priced with its traffic."""
    for pricer, shape, group, ring in stages(with_constants, "deepspeed", 1):
        whole = replace(
            shape,
            chunks=(pricer.model.layers,),
            stage=0,
            depth=1,
            zero=zero,
            recompute="none",
            micro_batches=1,
        )
        shared = replace(ring, size=4)
        # Of one device ZeRO 3 has what hosts do around modules alone.
        hooked = 3 if pricer.hooked(zero) else 0
        alone = pricer.micro_batch(
            replace(whole, zero=hooked), group, cast("int", SIZES), replace(ring, size=1)
        )
        forward, backward = as_array(alone.forward_seconds), as_array(alone.backward_seconds)
        kind = pricer.topology.device_type(group.pool, group.gpu)
        many = pricer.each_micro_batch(whole, shared, kind, forward, backward)
        for case, size in enumerate(SIZES.tolist()):
            one = pricer.micro_batch(whole, group, size, shared)
            assert many[0][case] == pytest.approx(one.forward_seconds, rel=EXACT)
            assert many[1][case] == pytest.approx(one.backward_seconds, rel=EXACT)
            assert one.backward_seconds > backward[case]


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunks", [1, 2])
def test_stages_of_many_lengths(make: Callable[[int], Problem], target: str, seed: int, chunks: int) -> None:
    """Seconds of options with 1, 2, ... layers, on one device type and on several."""
    found = stages(make, target, seed)
    if not found:
        return
    pricer, shape, group, ring = found[0]
    mixed = tuple(each[2] for each in found)
    lengths = np.arange(chunks, 8)
    for groups in ((group,), mixed):
        many = pricer.each_length(replace(shape, chunks=chunk_layers(lengths, chunks)), groups, ring)
        back = pricer.each_length(replace(shape, chunks=chunk_layers(lengths[::-1], chunks)), groups, ring)
        assert back.tail_seconds.tolist() == many.tail_seconds[::-1].tolist()
        for case, layers in enumerate(lengths.tolist()):
            one = pricer.price(replace(shape, chunks=chunk_layers(layers, chunks)), groups, ring)
            assert many.forward[case] == pytest.approx(one.forward, rel=EXACT)
            assert many.backward[case] == pytest.approx(one.backward, rel=EXACT)
            assert many.tail_seconds[case] == pytest.approx(one.tail_seconds, rel=EXACT)
            assert many.held_seconds[case] == pytest.approx(one.held_seconds, rel=EXACT)


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_memory_of_many_cases(make: Callable[[int], Problem], target: str, seed: int, lone: bool) -> None:
    """Headroom with many replicas and micro-batches; what fits is what the memory by component says."""
    for pricer, several, group, _ in stages(make, target, seed):
        replicas, shape = SIZES[::-1], replace(several, lone=lone)
        many = pricer.footprint(shape, group, cast("int", replicas), cast("int", SIZES))
        most, fits = pricer.most_sequences(shape, group, 2, 64), 0
        for case, (dp, size) in enumerate(zip(replicas.tolist(), SIZES.tolist(), strict=True)):
            one = pricer.footprint(shape, group, dp, size)
            for layers in (1, shape.layers):
                memory = one.memory(layers, float(layers))
                room = np.broadcast_to(many.headroom(layers, float(layers)), len(SIZES))[case]
                assert room == pytest.approx(memory.headroom_bytes, rel=EXACT, abs=1e-3)
                assert (one.least_room(layers, float(layers)) >= 0) == memory.fits
        held = shape.layers, float(shape.layers)
        for size in range(1, 65):
            sized, usual = (pricer.footprint(each, group, 2, size) for each in (shape, several))
            assert sized.memory(*held).used_bytes <= usual.memory(*held).used_bytes * (1 + EXACT)
            if sized.least_room(*held) < 0:
                break
            fits = size
        assert most == fits
        for layers in (1, shape.layers):
            room = pricer.footprint(shape, group, 2, cast("int", np.arange(1, 65))).room(
                layers, float(layers)
            )
            assert (np.diff(np.broadcast_to(room, 64)) <= 1.0).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_most_layers_that_fit(seed: int) -> None:
    """One layer more does not fit; the memory decides, not how it is looked for."""
    for pricer, shape, group, _ in stages(with_constants, "megatron", seed):
        most = pricer.most_layers(shape, group, group.count)
        fitting = [
            layers
            for layers in range(1, pricer.model.layers + 1)
            if pricer.memory(replace(shape, chunks=(layers,)), group, group.count).fits
        ]
        assert most == max(fitting, default=0)


def test_numbers_keep_their_kind() -> None:
    """A number with derivatives comes out as it went in, and arrays go case by case."""
    one, other = Dual(1.0, np.array([1.0])), Dual(2.0, np.array([3.0]))
    assert larger(one, other) is other
    assert smaller(one, other) is one
    assert larger(cast("float", np.array([1.0, 5.0])), 2.0) == pytest.approx([2.0, 5.0])
    assert smaller(2.0, cast("float", np.array([1.0, 5.0]))) == pytest.approx([1.0, 2.0])
    assert finite(one) is one
    assert finite(float("inf")) == 0.0
    assert finite(cast("float", np.array([1.0, np.inf]))) == pytest.approx([1.0, 0.0])
