"""Published runs of models with experts against the cost model."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from planner.calibration.file import shipped
from planner.cost.estimate import Estimator
from planner.cost.values import Estimate
from planner.measured.values import Run
from tests.measured.examples import published

SOURCES = ("bridge-experts", "bridge-skills", "xtuner-moe")


@pytest.fixture(scope="module")
def estimated() -> list[tuple[Run, Estimate]]:
    """Each run with its estimate."""
    calibration = shipped()
    return [
        (run, Estimator(run.cluster, run.model, calibration).estimate(run.plan))
        for run in published().runs
        if run.source in SOURCES
    ]


@pytest.fixture(scope="module")
def predicted(estimated: list[tuple[Run, Estimate]]) -> list[tuple[Run, float, float]]:
    """Each run with its predicted seconds and bytes."""
    return [(run, estimate.step_seconds, estimate.peak_memory_bytes) for run, estimate in estimated]


def test_the_rows_are_stated(predicted: list[tuple[Run, float, float]]) -> None:
    """All but those with kernels of their own, chunks without a layer or experts recomputed alone."""
    assert len(predicted) == 61
    assert sum("mamba2" in run.model.states for run, _, _ in predicted) == 11
    assert all(run.model.experts for run, _, _ in predicted)
    assert {run.plan.ep for run, _, _ in predicted} == {8, 16, 32, 64}


def test_step_times(predicted: list[tuple[Run, float, float]]) -> None:
    """Within 18 % on the mean, and in the right order."""
    pairs = [(run.step_seconds, seconds) for run, seconds, _ in predicted if run.step_seconds]
    assert fmean(abs(seconds / measured - 1) for measured, seconds in pairs) < 0.18
    measured, predicted_seconds = (np.argsort(np.argsort(each)) for each in zip(*pairs, strict=True))
    assert np.corrcoef(measured, predicted_seconds)[0, 1] > 0.93


def test_what_ran_fits(estimated: list[tuple[Run, Estimate]]) -> None:
    """Each of them ran, with what its recipe recomputes, but one of Nemotron 3 Nano that recomputed nothing."""
    for run, estimate in estimated:
        assert estimate.fits == run.fits, run.id
    assert [run.id for run, _ in estimated if not run.fits] == ["bridge-skills-05"]


def test_layers_with_a_state(predicted: list[tuple[Run, float, float]]) -> None:
    """Nemotron 3 within a fifth on the mean."""
    pairs = [
        (run.step_seconds, seconds) for run, seconds, _ in predicted if run.model.states and run.step_seconds
    ]
    assert fmean(abs(seconds / measured - 1) for measured, seconds in pairs) < 0.2


def test_more_room_takes_longer(predicted: list[tuple[Run, float, float]]) -> None:
    """Experts with room for 5 even shares and with room for 2: measured 66 and 52 s."""
    wide, narrow = (
        next(seconds for run, seconds, _ in predicted if run.model.name.endswith(f"235b_capacity_{factor}"))
        for factor in (5, 2)
    )
    assert wide > narrow


def test_memory(predicted: list[tuple[Run, float, float]]) -> None:
    """Peaks of 62 GiB, and of 34 GiB that the allocator had handed out."""
    peaks = [(run.peak_memory_bytes, used) for run, _, used in predicted if run.peak_memory_bytes]
    assert len(peaks) == 4
    assert peaks[0][1] == pytest.approx(peaks[0][0], rel=0.1)
