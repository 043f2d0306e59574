"""``python -m tools.benchmarks.predictions``: processor time of a prediction; 10,000 should need 10 seconds."""

from __future__ import annotations

import sys
import time

from planner.calibration.file import shipped
from planner.cost.estimate import Estimator
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Run

PLANS = 300
AIM_SECONDS = 1e-3
"""Mean of one prediction."""
ALLOWED = 3
"""Times the aim, for slow machines."""


def mixed_runs() -> list[Run]:
    """Published runs at even distances: every source, most targets, one device to thousands."""
    runs = load_table(PUBLISHED).runs
    return [runs[index * len(runs) // PLANS] for index in range(PLANS)]


def mean_seconds(runs: list[Run]) -> float:
    """Processor time of one prediction: plans that were not priced before, on estimators that are there already."""
    estimators = [Estimator(run.cluster, run.model, shipped()) for run in runs]
    start = time.process_time()
    for run, estimator in zip(runs, estimators, strict=True):
        estimator.estimate(run.plan)
    return (time.process_time() - start) / len(runs)


def main() -> int:
    """Print the mean; 1 when it misses the aim by far."""
    found = mean_seconds(mixed_runs())
    sys.stdout.write(f"{found * 1e3:.2f} ms a prediction, aim {AIM_SECONDS * 1e3:g} ms\n")
    return int(found > ALLOWED * AIM_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
