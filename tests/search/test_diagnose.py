"""What the diagnosis leaves untried: only what has no room for the model states whatever a plan does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import pytest

from planner.capabilities import OFFLOAD_PARTS, OffloadPart
from planner.catalog import GpuSpec, gpu_spec
from planner.cluster.spec import HostSpec
from planner.cost.estimate import Estimator
from planner.model.spec import LoraSpec, ModelSpec, Optimizer
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.diagnose import diagnose, may_fit
from planner.search.heuristics.even import missing_bytes
from planner.search.heuristics.quick import cheap_plan, everywhere
from planner.search.values import Limits
from planner.units import gib_from_bytes
from tests.worlds import Problem, cluster, gpt, pool, small_problem, with_constants, with_experts, with_hosts

TARGETS = "megatron", "deepspeed", "torch"


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
        pytest.param(world, target, marks=() if (at + number) % 2 else (pytest.mark.slow,))
        for at, world in enumerate((with_constants, with_hosts, with_experts))
        for number, target in enumerate(TARGETS)
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
            assert may_fit(smaller, limits)
            tight += 1
    assert tight


def test_what_cannot_fit_is_not_tried() -> None:
    """Weights of what is offloaded need room on the devices only where they stay there."""
    spec = cluster(pool("a", "V100", per_node=2, nodes=2))
    large = Estimator(spec, gpt(96, 12288, 96))
    for target in TARGETS:
        assert not may_fit(large, Limits(target=target))
    some = Limits(target="megatron", offload=("none", "optimizer"))
    assert not may_fit(large, some)
    assert may_fit(large, Limits(target="deepspeed", offload=OFFLOAD_PARTS))


def test_two_changes_where_none_alone_is_enough() -> None:
    """Adapters on four bits need more than this card has, and all weights more than any other."""
    alone = {"host": HostSpec(memory_gib=128), "nics": ()}
    box = pool("box", "RTX-3090", per_node=1, nodes=1).model_copy(update=alone)
    large = gpt(96, 8192, 64, precision="bf16", sequence_length=512)
    on = cluster(box, gpus={"RTX-3090": gpu_spec("RTX-3090")})
    hints = diagnose(Estimator(on, large), Limits(offload=OFFLOAD_PARTS)).hints
    adapters = "training.lora: {rank: 16, base: nf4}, which trains adapters alone"
    assert re.fullmatch(rf"fits with .* in place of every device and {re.escape(adapters)}", hints[0])
    assert not any(hint.startswith("fits with training.lora") for hint in hints)


def test_no_time_leaves_causes_alone() -> None:
    """One deadline ends all trials."""
    spec, _ = small_problem(1)
    found = diagnose(Estimator(spec, gpt(96, 12288, 96)), Limits(), Deadline.after(0.0))
    assert found.causes
    assert found.hints == ()


@pytest.mark.parametrize(
    ("target", "offload", "on_devices", "anywhere"),
    [
        ("deepspeed", ("none",), 14, 14),
        ("deepspeed", ("none", "optimizer"), 2, 14),
        ("deepspeed", ("parameters",), 0, 14),
        ("megatron", ("none", "optimizer"), 2, 14),
    ],
)
def test_room_for_one_copy_of_the_states(
    target: str, offload: tuple[OffloadPart, ...], on_devices: int, anywhere: int
) -> None:
    """Bytes of each parameter that devices must hold, and that devices and hosts must hold together."""
    model = gpt(24, 4096, 32)
    size = model.trained_parameters / 2**30
    limits = Limits(target=target, offload=offload)

    def fits(devices_gib: float, hosts_gib: float) -> bool:
        """Two nodes with a card of so much memory, 3 % of which fragments take, and so much in both hosts."""
        gib = devices_gib * 1.03 / 2
        card = GpuSpec(
            memory_gib=gib, memory_bandwidth_gBps=900, tflops={"fp16": 125, "fp32": 15}, reserve_gib=0.0
        )
        nodes = pool("a", "card", per_node=1, nodes=2).model_copy(
            update={"host": HostSpec(memory_gib=hosts_gib / 2)}
        )
        return may_fit(Estimator(cluster(nodes, gpus={"card": card}), model), limits)

    devices = max(on_devices, 1) * size
    assert fits(devices * 1.001, anywhere * size)
    if on_devices:
        assert not fits(devices * 0.999, 100 * size)
    if on_devices < anywhere:
        assert fits(devices * 1.001, (anywhere * size - devices) * 1.001)
        assert not fits(devices * 1.001, (anywhere * size - devices) * 0.99)
