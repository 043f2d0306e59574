"""Published runs of models with experts, which no constant was fitted to, against the cost model."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import spearmanr

from planner.calibration.file import shipped
from planner.cost.estimate import Estimator
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Run

TABLE = PUBLISHED.with_name("experts.csv")


@pytest.fixture(scope="module")
def predicted() -> list[tuple[Run, float, float]]:
    """Each run with its predicted seconds and bytes."""
    calibration = shipped()
    found = []
    for run in load_table(TABLE).runs:
        estimate = Estimator(run.cluster, run.model, calibration).estimate(run.plan)
        found.append((run, estimate.step_seconds, estimate.peak_memory_bytes))
    return found


def test_the_table_is_stated(predicted: list[tuple[Run, float, float]]) -> None:
    """All but those whose stages the source leaves open."""
    assert len(predicted) == 35
    assert {item.id for item in load_table(TABLE).skipped} == {f"xtuner-experts-{n}" for n in (1, 5, 6)}
    assert {run.plan.ep for run, _, _ in predicted} == {8, 16, 32, 64}
    assert all(Path(TABLE.parent, "experts").glob("*.yaml"))


def test_step_times(predicted: list[tuple[Run, float, float]]) -> None:
    """Within 28 % on the mean, and in the right order."""
    pairs = [(run.step_seconds, seconds) for run, seconds, _ in predicted if run.step_seconds]
    assert fmean(abs(seconds / measured - 1) for measured, seconds in pairs) < 0.28
    assert spearmanr(*zip(*pairs, strict=True)).statistic > 0.88


def test_more_room_takes_longer(predicted: list[tuple[Run, float, float]]) -> None:
    """Experts with room for 5 even shares and with room for 2: measured 66 and 52 s."""
    wide, narrow = (
        next(seconds for run, seconds, _ in predicted if run.model.name.endswith(f"capacity_{factor}"))
        for factor in (5, 2)
    )
    assert wide > narrow


def test_memory(predicted: list[tuple[Run, float, float]]) -> None:
    """One peak is published: 62 GiB."""
    [(run, _, used)] = [item for item in predicted if item[0].peak_memory_bytes]
    assert used == pytest.approx(run.peak_memory_bytes, rel=0.2)
