"""How long a whole training run takes, and what failures take of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.cost.failures import Interruptions
from planner.cost.training import training_run
from tests.report import examples


def test_a_run_has_time_price_and_energy() -> None:
    """Each grows with what failures take."""
    estimate = replace(examples.scored().estimate, price_per_hour=10.0, watts=2000.0)
    free = training_run(estimate, 1e9)
    assert free.seconds == 1e9 / estimate.tokens_per_second
    assert (free.price, free.joules) == (free.seconds / 3600 * 10, free.seconds * 2000)
    assert (free.goodput, free.checkpoint_interval_seconds, free.stops) == (1.0, None, 0.0)
    failing = Interruptions(per_gpu_month=50)
    stopped = training_run(estimate, 1e9, failing)
    assert stopped.seconds == pytest.approx(free.seconds / stopped.goodput)
    assert free.price is not None
    assert stopped.price == pytest.approx(free.price / stopped.goodput)
    assert stopped.stops == pytest.approx(stopped.seconds * failing.per_second(estimate.devices))
    assert (
        training_run(estimate, 1e9, Interruptions(per_gpu_month=1e4, restart_seconds=1e9)).seconds == math.inf
    )
