"""What is known of memory before any family is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import get_args

import pytest

from planner.capabilities import OFFLOAD_PARTS
from planner.cluster.spec import HostSpec
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape
from planner.model.spec import LoraSpec, ModelSpec, Optimizer
from planner.search.bounds.states import StateRoom, targets_with_room
from planner.search.deadline import NO_LIMIT
from planner.search.explorer import Explorer
from planner.search.heuristics.even import missing_bytes
from planner.search.heuristics.quick import cheap_plan, everywhere
from planner.search.solve import search
from planner.search.space.choices import Family, families, usable_device_types
from planner.search.values import Limits, Silent
from planner.targets import TARGETS
from planner.units import gib_from_bytes
from tests.quick import first
from tests.worlds import (
    Problem,
    cluster,
    gpt,
    group,
    pool,
    with_adapters,
    with_all_at_once,
    with_constants,
    with_experts,
    with_hosts,
    with_measurements,
)

RUNTIMES = "megatron", "deepspeed", "torch"
MAKERS = (with_constants, with_experts, with_hosts, with_adapters, with_all_at_once)


def tight(problem: Problem, factor: float) -> Estimator:
    """The problem on devices that have together so many times what AdamW keeps, and hosts twice that."""
    spec, model, calibration = problem
    devices = sum(len(pool.devices) * len(pool.hosts) for pool in spec.pools)
    each = factor * 16.0 * model.parameters / devices / 2**30
    gpus = {name: gpu.model_copy(update={"memory_gib": each}) for name, gpu in spec.gpus.items()}
    pools = tuple(
        pool.model_copy(
            update={
                "host": pool.host
                and pool.host.model_copy(update={"memory_gib": 2 * len(pool.devices) * each})
            }
        )
        for pool in spec.pools
    )
    chosen = spec.model_copy(update={"gpus": gpus, "pools": pools, "reserve_gib": 0.0})
    return Estimator(chosen, model, calibration)


def most_layers(family: Family, estimator: Estimator) -> float:
    """Layers that all devices hold in stages of a family, each with one micro-batch alive."""
    assert family.tp is not None
    assert family.dp is not None
    shape = Shape(
        chunks=(1,),
        stage=1,
        depth=3,
        micro_batches=1,
        zero=family.zero,
        recompute=family.recompute or "full",
        sequence_parallel=True,
        folding=family.folding,
        offload=family.offload,
    )
    pricer, held = estimator.pricer(family.target, context=family.context), 0.0
    for device_type in usable_device_types(estimator.topology, estimator.model):
        replicas = group(*device_type.key, count=family.dp, share=family.dp, tp=family.tp)
        footprint = pricer.footprint(shape, replicas, family.dp, 1)
        fitting = [
            count for count in range(1, estimator.model.layers + 1) if footprint.least_room(count, 1.0) >= 0
        ]
        held += device_type.replicas(family.tp) / family.dp * max(fitting, default=0)
    return held


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("seed", first(1, range(4)))
def test_what_has_no_room_for_states_holds_too_few_layers(maker: Callable[[int], Problem], seed: int) -> None:
    """Whatever the target, ZeRO, degrees, experts and what is kept on hosts; some families are left, some are not."""
    left = out = 0
    for number, factor in enumerate((3.0, 1.5, 0.01)):
        estimator = tight(maker(10 * seed + number), factor)
        device_types = usable_device_types(estimator.topology, estimator.model)
        for row in TARGETS.values():
            room = StateRoom(row, estimator)
            limits = Limits(target=row.name, offload=OFFLOAD_PARTS)
            every = families(row, limits, estimator.model, device_types)
            for family in islice(every, 0, 3000, 7):
                if family.tp is None or family.dp is None:
                    continue
                if room.holds(family.zero, family.offload, family.tp, family.dp, family.folding):
                    left += 1
                else:
                    out += 1
                    assert most_layers(family, estimator) < estimator.model.layers
    assert left
    assert out


def trained(model: ModelSpec, seed: int) -> ModelSpec:
    """With one of the optimizers, some with adapters alone."""
    optimizers = get_args(Optimizer)
    changes: dict[str, object] = {"optimizer": optimizers[seed % len(optimizers)]}
    if seed % 3 == 0:
        changes = {"lora": LoraSpec(rank=4, base="nf4" if seed % 2 else None)}
    return model.model_copy(update={"training": model.training.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("world", "target"),
    [
        pytest.param(
            world,
            target,
            marks=() if (at + number) % 2 and world is not with_constants else (pytest.mark.slow,),
        )
        for at, world in enumerate((with_constants, with_hosts, with_experts))
        for number, target in enumerate(RUNTIMES)
    ],
)
def test_what_fits_is_tried(target: str, world: Callable[[int], Problem]) -> None:
    """Also once the reserve leaves a plan no byte to spare."""
    tight = 0
    for seed in range(4):
        spec, model, calibration = world(seed)
        model = model if model.experts else trained(model, seed)
        for offload in (None, OFFLOAD_PARTS):
            limits = Limits(target=target, offload=offload)
            estimator = Estimator(spec, model, calibration)
            found = cheap_plan(estimator, limits, everywhere(estimator), NO_LIMIT)
            if found is None:
                continue
            spare = gib_from_bytes(-missing_bytes(found))
            less = spec.model_copy(update={"reserve_gib": spec.reserve_gib + 0.999 * spare})
            smaller = Estimator(less, model, calibration)
            assert smaller.estimate(found.plan).fits
            assert targets_with_room(limits, smaller)
            tight += 1
    assert tight


@pytest.mark.parametrize("hosts_gib", [1700, 500])
def test_what_cannot_fit_is_not_tried(hosts_gib: float) -> None:
    """Weights of what is offloaded need room on the devices only where they stay there, and on hosts in their place."""
    host = HostSpec(memory_gib=hosts_gib, link_gBps=16)
    nodes = pool("a", "V100", per_node=2, nodes=2).model_copy(update={"host": host})
    large = Estimator(cluster(nodes), gpt(96, 12288, 96))
    for target in RUNTIMES:
        assert not targets_with_room(Limits(target=target), large)
    some = Limits(target="megatron", offload=("none", "optimizer"))
    assert not targets_with_room(some, large)
    every = Limits(target="deepspeed", offload=OFFLOAD_PARTS)
    assert bool(targets_with_room(every, large)) is (hosts_gib > 1000)


def test_a_model_that_is_too_large_is_known_to_be_at_once() -> None:
    """Nothing is listed or priced for it, and no time is needed."""
    estimator = Estimator(cluster(pool("a"), pool("b", "V100")), gpt(96, 12288, 96))
    explorer = Explorer(estimator, Limits(time_limit_seconds=0.0), Silent())
    explorer.run()
    assert explorer.status == "infeasible"
    assert explorer.candidates == 0


@pytest.mark.slow
def test_a_model_that_is_too_large_is_diagnosed_as_any() -> None:
    """The diagnosis, and hosts of any size, are those of any other search."""
    estimator = Estimator(cluster(pool("a"), pool("b", "V100")), gpt(96, 12288, 96))
    result = search(estimator.cluster, estimator.model, limits=Limits(target="megatron"))
    assert result.status in ("infeasible", "optimal", "feasible")
    assert result.best is None or result.best.plan.offload.anything


def test_measured_layers_may_have_fewer_bytes() -> None:
    """Then nothing is said."""
    spec, model, calibration = with_measurements(1)
    assert calibration.layers
    for known, said in ((calibration, True), (replace(calibration, layers=()), False)):
        room = StateRoom(TARGETS["megatron"], tight((spec, model, known), 0.1))
        assert room.holds_any(Limits()) is said
