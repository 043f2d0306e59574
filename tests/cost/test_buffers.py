"""Copies between buffers and what they hold: what the search relies on, and bytes by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost.buffers import buffer_seconds
from planner.model.spec import LoraSpec, ModelSpec
from planner.targets import target
from tests.worlds import gpt, model

RUNTIMES = ("torch", "deepspeed")


def moved(spec: ModelSpec, runtime: str, zero: int, *, alone: bool = False) -> tuple[float, float]:
    """Bytes of a micro-batch, forward and backward."""
    device: Any = SimpleNamespace(size=2, added_bytes=0.0, stream=lambda count, kernels: count)
    return buffer_seconds(
        spec,
        target(runtime),
        device,
        zero,
        alone=alone,
        layers=spec.layers,
        first=True,
        last=True,
        tp=1,
        expert_ways=1,
    )


@pytest.mark.parametrize(
    ("runtime", "each"),
    [
        # fp32 sums and reduction.
        ("torch", [(0, 10), (0, 10), (0, 6), (4, 10)]),
        # Both in bf16.
        ("deepspeed", [(0, 6), (0, 6), (0, 4), (4, 8)]),
    ],
)
def test_bytes_of_a_parameter_in_bf16_training(runtime: str, each: list[tuple[int, int]]) -> None:
    """By ZeRO stage."""
    spec = gpt(4, precision="bf16")
    for zero, (forward, backward) in enumerate(each):
        found = moved(spec, runtime, zero)
        assert found == pytest.approx((forward * spec.parameters, backward * spec.parameters))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lone_replica_copies_the_same_with_every_zero_and_no_more_than_others(
    runtime: str, precision: str
) -> None:
    """Bounds price a stage as if it were alone, and the answer calls all ZeRO stages of lone replicas one plan."""
    spec = gpt(4, precision=precision)
    lone = [moved(spec, runtime, zero, alone=True) for zero in range(4)]
    assert lone == [lone[0]] * 4
    for zero in range(4):
        assert all(one <= other for one, other in zip(lone[0], moved(spec, runtime, zero), strict=True))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_is_frozen_is_gathered_alone(runtime: str) -> None:
    """Gradients of adapters are few, and what ZeRO 3 gathers is not."""
    whole = model(8, precision="bf16")
    adapted = model(8, precision="bf16", lora=LoraSpec(rank=4))
    forward, backward = moved(adapted, runtime, 3)
    assert forward >= moved(whole, runtime, 3)[0]
    assert 0 < backward - forward < 0.2 * (moved(whole, runtime, 3)[1] - moved(whole, runtime, 3)[0])
