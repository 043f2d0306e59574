"""How long predictions take: 10,000 of them should need 10 seconds."""

from __future__ import annotations

import time

from planner.calibration.file import shipped
from planner.cost.estimate import Estimator
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Run

PLANS = 300
MOST_SECONDS = 3e-3
"""Mean of one prediction; three times the aim, for slow and busy machines."""


def mixed_runs() -> list[Run]:
    """Published runs at even distances: every source, every target, one device to thousands."""
    runs = load_table(PUBLISHED).runs
    return [runs[index * len(runs) // PLANS] for index in range(PLANS)]


def test_a_prediction_takes_a_millisecond() -> None:
    """Plans that were not priced before, on estimators that are there already."""
    runs = mixed_runs()
    estimators = [Estimator(run.cluster, run.model, shipped()) for run in runs]
    start = time.perf_counter()
    for run, estimator in zip(runs, estimators, strict=True):
        estimator.estimate(run.plan)
    assert (time.perf_counter() - start) / PLANS < MOST_SECONDS


def test_the_mix_is_a_mix() -> None:
    """Else its mean says nothing."""
    runs = mixed_runs()
    assert len({run.id for run in runs}) == PLANS
    assert {run.plan.target for run in runs} == {"megatron", "deepspeed", "torch"}
    assert max(run.devices for run in runs) > 1000
