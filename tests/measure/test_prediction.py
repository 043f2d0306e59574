"""A calibration of this processor predicts training on it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED
from planner.catalog import GpuSpec
from planner.cost.estimate import estimate
from planner.model.spec import ModelSpec, TrainingSpec
from tests.worlds import cluster, group, model, plan, pool

torch = pytest.importorskip("torch")

from planner.measure.backend import Backend, open_backend  # noqa: E402
from planner.measure.session import Request, Session  # noqa: E402
from tools.benchmarks.training import Configuration, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick")

TOLERANCE = 2.0
"""Machines are noisy; docs/calibration.md has the errors on a quiet one."""


@pytest.mark.slow
def test_steps_are_predicted() -> None:
    """At a measured micro-batch, and at one between two measured ones."""
    training = TrainingSpec(sequence_length=64, global_batch=12, precision="fp32", dropout=False)
    spec = model(12, hidden=192, heads=4, head_dim=48, ffn=768, vocab=256, training=training)
    one = Session(
        replace(open_backend("cpu"), clock=time.process_time),
        Request(model=spec, largest=4),
        ASSUMED,
        lambda found: None,
        lambda event: None,
    )
    assert one.run()
    peaks = one.peaks()
    gpu = GpuSpec(
        name="A100",  # the builders' pools know this name
        memory_gib=16.0,
        memory_bandwidth_gBps=peaks.memory_bytes_per_second / 1e9,
        tflops={"fp32": peaks.flops["fp32"] / 1e12},
        family=one.backend.family,
    )
    here = cluster(pool("here", ("A100",), 1)).model_copy(update={"gpus": {"A100": gpu}})
    layers = tuple(replace(point, gpu="A100") for point in one.calibration.layers)
    found = merged(ASSUMED, replace(one.calibration, layers=layers))
    for steps in (12, 4):
        asked = plan("torch", 0, (4,), ((group("here", "A100", share=12, steps=steps),),))
        predicted = estimate(asked, here, spec, found).step_seconds
        measured = step_seconds(one.backend, spec, 12 // steps)
        assert measured / TOLERANCE < predicted < measured * TOLERANCE, steps


def step_seconds(backend: Backend, spec: ModelSpec, micro_batch: int) -> float:
    """Median seconds of whole training steps here."""
    found = train(backend, Configuration(model=spec, micro_batch=micro_batch))
    assert found is not None
    return found.step_seconds
