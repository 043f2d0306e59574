"""Stragglers: what waiting for the slowest of several devices takes."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scipy.integrate import quad

from planner.calibration.values import Calibration, GpuFamily
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.stragglers import backups, deviation_of_largest, expected_largest, stretch
from planner.plan.values import Plan
from tests.worlds import GPUS, cluster, gpt, group, plan, pool

GPU = GPUS["A100"].model_copy(update={"family": "A100"})
TRAINED = gpt(8, precision="bf16", global_batch=256)
NORMAL = NormalDist()


def where(nodes: int) -> ClusterSpec:
    return cluster(pool("a", "A100", nodes), gpus={"A100": GPU})


def replicas(count: int, zero: int = 1) -> Plan:
    return plan(
        "torch", zero, [8], [(group("a", "A100", count=count, share=256 // count, steps=256 // count // 2),)]
    )


def estimator(sigma: float) -> Estimator:
    return Estimator(where(8), TRAINED, Calibration(families={"A100": GpuFamily(sigma=sigma)}))


@pytest.mark.parametrize("number", [1, 2, 3, 5, 10, 64, 1000, 100_000])
def test_the_largest_of_several(number: int) -> None:
    """Next to the integral over the distribution of the largest."""
    exact = quad(
        lambda z: z * number * NORMAL.pdf(z) * NORMAL.cdf(z) ** (number - 1),
        -8,
        12,
        points=[0, 2, 4, 6],
        limit=400,
    )[0]
    assert expected_largest(number) == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize("number", [1, 2, 8, 64, 1000])
def test_how_much_the_largest_varies(number: int) -> None:
    """Next to a simulation; alone it varies as every one does."""
    draw = np.random.default_rng(3)
    largest = draw.standard_normal((20_000, number), dtype=np.float32).max(axis=1)
    assert deviation_of_largest(number) == pytest.approx(float(largest.std()), rel=0.03)


@pytest.mark.parametrize(("sigma", "number"), [(0.02, 64), (0.1, 64), (0.3, 16), (0.3, 200), (0.05, 2)])
def test_backups_are_the_best_of_a_simulation(sigma: float, number: int) -> None:
    """No other number of dropped gradients gives many more sequences a second in many steps drawn at random."""
    draw = np.random.default_rng(5)
    ordered = np.sort(1 + sigma * draw.standard_normal((20_000, number)), axis=1).mean(axis=0)
    rates = [
        (number - dropped) / number / ordered[number - dropped - 1] for dropped in range(number // 2 + 1)
    ]
    dropped, gain = backups(sigma, number)
    assert rates[dropped] > 0.995 * max(rates)
    assert gain == pytest.approx(rates[dropped] / rates[0] - 1, abs=0.01)
    assert gain >= 0


def test_backups_pay_only_where_devices_vary_much() -> None:
    """A device of 64 counts for more than the wait for it below 4.5 %."""
    assert backups(0.0, 64) == (0, 0.0)
    assert [backups(sigma, 64)[0] for sigma in (0.02, 0.045, 0.05, 0.1)] == [0, 0, 1, 2]


def test_many_at_once() -> None:
    """An array of numbers has those of each; more are no less."""
    numbers = np.array([1.0, 2.0, 7.0, 512.0])
    each = expected_largest(numbers)
    assert isinstance(each, np.ndarray)
    assert each.tolist() == [expected_largest(int(one)) for one in numbers]
    assert each.tolist() == sorted(each.tolist())
    assert stretch(0.0, numbers) == 1.0


def test_without_sigma_nothing_changes() -> None:
    """To the last bit."""
    for chosen in (replicas(8), replicas(64, zero=3)):
        known = Estimator(where(8), TRAINED, Calibration(families={"A100": GpuFamily()})).estimate(chosen)
        assert known == estimator(0.0).estimate(chosen)
        assert known.breakdown.straggler_seconds == 0.0


def test_a_step_takes_what_a_simulation_takes() -> None:
    """Devices drawn at random at each of many steps, all waiting for the slowest: its mean is what is priced."""
    draw, sigma, devices = random.Random(1), 0.05, 64
    nominal = estimator(0.0).estimate(replicas(devices))
    work = nominal.breakdown.compute_seconds
    rest = nominal.step_seconds - work
    steps = [max(work * (1 + sigma * draw.gauss(0, 1)) for _ in range(devices)) + rest for _ in range(4000)]
    found = estimator(sigma).estimate(replicas(devices))
    assert found.step_seconds == pytest.approx(sum(steps) / len(steps), rel=0.01)
    assert found.breakdown.straggler_seconds == pytest.approx(
        found.step_seconds - nominal.step_seconds, rel=0.05
    )
    assert found.breakdown.step_seconds == pytest.approx(found.step_seconds)


def test_more_devices_wait_longer() -> None:
    """The share of a step that is waiting grows with the devices; with tensor parallelism those of a replica count."""
    shares = [
        found.breakdown.straggler_seconds / found.step_seconds
        for found in (estimator(0.05).estimate(replicas(count)) for count in (1, 2, 8, 64))
    ]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    wide = plan("megatron", 0, [8], [(group("a", "A100", count=1, share=256, steps=128, tp=8),)])
    assert estimator(0.05).estimate(wide).breakdown.straggler_seconds > 0


def test_what_the_user_measured_holds_under_all_kernels() -> None:
    """A family's sigma of a user's file is not lost beside constants of a kernel set that ship."""
    from planner.calibration.file import shipped
    from planner.calibration.merge import merged, sourced
    from planner.calibration.values import Constant

    own = Calibration(
        families={"A100": GpuFamily(sigma=0.04)},
        constants=(Constant(name="families.A100.sigma", value=0.04, provenance="measured"),),
    )
    both = merged(shipped(), sourced(own))
    assert {both.family("A100", kernels).sigma for kernels in ("torch", "megatron", "deepspeed")} == {0.04}
    assert replace(both.family("A100", "torch"), sigma=0.0) == shipped().family("A100", "torch")
