"""Checkpoints, their best interval, what is left of the time, and spare nodes."""

from __future__ import annotations

import math
import random

import pytest

from planner.cost.failures import RISK, Interruptions, checkpoint_bytes, checkpoint_interval, goodput, spares
from planner.model.spec import LoraSpec
from tests.worlds import gpt, model


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


@pytest.mark.parametrize("away", [1e-4, 0.01, 0.02, 0.2, 1.0, 2.5, 40.0])
def test_spares_are_the_fewest_that_do(away: float) -> None:
    """Next to Poisson's sums: with one less, more nodes are away for longer than the risk."""

    def beyond(number: int) -> float:
        return 1.0 - sum(math.exp(-away + k * math.log(away) - math.lgamma(k + 1)) for k in range(number + 1))

    found = spares(away / 86400.0, 86400.0)
    assert beyond(found) <= RISK
    assert found == 0 or beyond(found - 1) > RISK


def test_spares_of_nodes_drawn_at_random() -> None:
    """Failures and repairs of any length, followed for a long time: the share of it with too many away."""
    draw, rate, repair = random.Random(3), 1e-3, 2000.0
    clock, back, bad = 0.0, list[float](), 0.0
    most = spares(rate, repair)
    while clock < 1e8:
        following = draw.expovariate(rate)
        ends = sorted(end - clock for end in back if end > clock)
        if len(ends) > most:
            bad += min(following, ends[len(ends) - most - 1])
        clock += following
        back = [end for end in back if end > clock] + [clock + draw.choice([0.0, 2 * repair])]
    assert 0 < bad / clock < 1.15 * RISK


def test_no_spares_without_failures() -> None:
    """Nor where nobody says how long a node is away."""
    assert Interruptions(repair_seconds=1e6).spares(64) is None
    assert Interruptions(per_gpu_month=1.0).spares(64) is None
    assert Interruptions(per_gpu_month=1.0, repair_seconds=0.0).spares(64) == 0


def test_a_checkpoint_has_weights_and_moments() -> None:
    """AdamW: 12 bytes a parameter; one without moments four; adapters alone: their states and the frozen weights."""
    plain = gpt(precision="bf16")
    assert checkpoint_bytes(plain) == 12 * plain.parameters
    assert checkpoint_bytes(gpt(optimizer="sgd")) == 8 * plain.parameters
    adapted = model(8, precision="bf16", lora=LoraSpec(rank=4))
    assert checkpoint_bytes(adapted) == 12 * adapted.adapter_parameters + 2 * adapted.parameters


def test_storage_says_what_a_checkpoint_takes() -> None:
    """Bytes over bandwidth; without storage the time that was said."""
    trained, stops = gpt(precision="bf16"), Interruptions(per_gpu_month=1.0, storage_bytes_per_second=2e9)
    assert stops.of(trained).checkpoint_seconds == 12 * trained.parameters / 2e9
    assert Interruptions(checkpoint_seconds=7.0).of(trained).checkpoint_seconds == 7.0
    slow = Interruptions(per_gpu_month=1.0, storage_bytes_per_second=2e6)
    assert slow.of(trained).goodput(64) < stops.of(trained).goodput(64)
