"""What FSDP2 copies beside its collectives, counted in a step and as it is priced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost.buffers import buffer_seconds, once_seconds
from planner.cost.communication import Ring
from planner.targets import target

pytest.importorskip("torch")

from tests.runtimes.torch.buffer_bytes import MICRO_BATCHES, MODEL, RANKS

ONE_BYTE_A_SECOND: Any = SimpleNamespace(size=2, added_bytes=0.0, stream=lambda moved, kernels: moved)


def counted(zero: int) -> dict[str, int]:
    """Bytes of a step in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtimes.torch.buffer_bytes", str(zero)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, int] = json.loads(run.stdout)
    return found


def priced(zero: int) -> tuple[float, float]:
    """Bytes of a micro-batch, forward and backward."""
    return buffer_seconds(
        MODEL,
        target("torch"),
        ONE_BYTE_A_SECOND,
        zero,
        alone=False,
        layers=MODEL.layers,
        first=True,
        last=True,
        tp=1,
        expert_ways=1,
    )


def test_zero_3_copies_out_of_its_gathers_and_to_its_reductions() -> None:
    """In each micro-batch; the head stays from the forward to the backward."""
    forward, backward = priced(3)
    found = counted(3)
    assert found["gathered"] == pytest.approx(2 * MICRO_BATCHES * forward, rel=0.02)
    assert found["reduced"] == pytest.approx(MICRO_BATCHES * (backward - forward), rel=1e-3)
    assert found["summed"] == 0


def test_zero_2_copies_gradients_alone_in_each_micro_batch() -> None:
    """Parameters once a step."""
    forward, backward = priced(2)
    found = counted(2)
    assert forward == 0
    assert found["reduced"] == pytest.approx(MICRO_BATCHES * backward, rel=1e-3)
    ranks = Ring(size=RANKS, bytes_per_second=1.0, latency_seconds=0.0, crosses="node")
    once = once_seconds(MODEL.parameters, ONE_BYTE_A_SECOND, target("torch"), 2, ranks)
    assert found["gathered"] == pytest.approx(once, rel=1e-3)


@pytest.mark.parametrize(("zero", "more"), [(0, 4), (1, 8)])
def test_zero_0_and_1_add_gradients_up(zero: int, more: int) -> None:
    """The first is widened rather than added, and all are copied once: four bytes an element more in a step.

    Parameters are copied once too, four more, where they are gathered and not merely widened.
    """
    forward, backward = priced(zero)
    assert forward == 0
    left = sum(counted(zero).values()) - MICRO_BATCHES * backward
    assert left == pytest.approx(more * MODEL.parameters, rel=1e-3)
