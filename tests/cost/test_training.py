"""How long a whole training run takes, and what failures take of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from planner.cost.training import Interruptions, checkpoint_interval, goodput, training_run
from tests.report import examples


def simulated(per_second: float, checkpoint: float, restart: float, interval: float, work: float) -> float:
    """Share of the time that is work, with failures drawn at random."""
    draw = random.Random(7)
    clock, done, next_failure = 0.0, 0.0, draw.expovariate(per_second)
    while done < work:
        needed = interval + checkpoint
        while clock + needed > next_failure:
            clock = next_failure
            next_failure = clock + draw.expovariate(per_second)
            needed = restart + interval + checkpoint
        clock += needed
        done += interval
    return done / clock


@pytest.mark.parametrize(
    ("per_second", "checkpoint", "restart"), [(1e-4, 60.0, 900.0), (1e-3, 100.0, 300.0), (1e-5, 5.0, 60.0)]
)
def test_work_of_a_run_that_fails_at_random(per_second: float, checkpoint: float, restart: float) -> None:
    """Equation and a simulation of ten thousand checkpoints agree."""
    interval = checkpoint_interval(per_second, checkpoint)
    share = simulated(per_second, checkpoint, restart, interval, 10_000 * interval)
    assert goodput(per_second, checkpoint, restart) == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize(("per_second", "checkpoint"), [(1e-4, 60.0), (1e-3, 100.0), (1e-6, 30.0)])
def test_no_other_interval_is_much_better(per_second: float, checkpoint: float) -> None:
    """Within a thousandth of the best of many."""

    def share(interval: float) -> float:
        lost = math.exp(900 * per_second) * math.expm1((interval + checkpoint) * per_second)
        return interval * per_second / lost

    best = max(share(math.sqrt(2 * checkpoint / per_second) * 1.05**power) for power in range(-60, 61))
    assert goodput(per_second, checkpoint, 900.0) == pytest.approx(best, rel=1e-3)


def test_ends() -> None:
    """Nothing stops: all is work; everything stops: nothing is; and more failures never help."""
    assert goodput(0.0, 60.0, 900.0) == 1.0
    assert checkpoint_interval(0.0, 60.0) == math.inf
    assert goodput(10.0, 60.0, 900.0) == 0.0
    assert goodput(1e-4, 0.0, 0.0) == pytest.approx(1.0, abs=1e-6)
    shares = [Interruptions(per_gpu_month=rate).goodput(1024) for rate in (0, 0.01, 0.1, 1, 10)]
    assert shares == sorted(shares, reverse=True)


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
