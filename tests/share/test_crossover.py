"""Two jobs on the same devices: the simulation against what can be worked out by hand, and its limits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.file import shipped
from planner.cluster.file import load_cluster
from planner.cost.estimate import Estimator
from planner.cost.feed import NOTHING, Fed
from planner.report.share import crossing_lines
from planner.search.deadline import Deadline, Struck
from planner.search.values import Scored
from planner.share.crossover import (
    Crossover,
    CrossoverPair,
    PairSpeed,
    StepInterval,
    beside,
    fed_beside,
    moments_of,
    waiting,
)
from planner.units import bytes_from_gib
from tests.share.test_search import FEW, FOUR_NODES, JOBS, loaded
from tests.worlds import cluster, group, model, nic, plan, pool

HERE = frozenset({("a", 0)})
THERE = frozenset({("b", 0)})


def job(*seconds: float, where: frozenset[tuple[str, int]] = HERE) -> tuple[StepInterval, ...]:
    """Computing and exchanging by turns."""
    hosts = frozenset(host for host, _ in where)
    return tuple(
        StepInterval(each, frozenset(), hosts) if number % 2 else StepInterval(each, where, frozenset())
        for number, each in enumerate(seconds)
    )


def gain(first: tuple[StepInterval, ...], second: tuple[StepInterval, ...]) -> float:
    """Work of both over what they do by turns."""
    found = beside(first, second)
    lengths = [sum(moment.seconds for moment in moments) for moments in (first, second)]
    return lengths[0] / found.first_seconds + lengths[1] / found.second_seconds


def test_by_hand() -> None:
    """All compute: by turns. Nothing in common: as alone. One only waits for others: it costs nothing."""
    computes = job(2.0)
    assert beside(computes, computes).first_seconds == pytest.approx(4.0)
    apart = beside(job(2.0, 1.0), job(1.0, 3.0, where=THERE))
    assert (apart.first_seconds, apart.second_seconds) == pytest.approx((3.0, 4.0))
    waits = (StepInterval(5.0, frozenset(), frozenset()),)
    assert beside(computes, waits).first_seconds == pytest.approx(2.0)
    # A second of computing for each of exchanging: once both are out of step by all of it nothing is lost.
    even = job(1.0, 1.0)
    assert 1.0 < gain(even, even) < 2.0


@pytest.mark.parametrize("seed", range(20))
def test_gains_have_limits(seed: int) -> None:
    """Never less than turns give, never more than the fuller of device and network allows; the order is none."""
    draw = random.Random(seed)
    first, second = (job(*(draw.uniform(0.1, 2) for _ in range(2 * draw.randint(1, 3)))) for _ in range(2))
    found, other = beside(first, second), beside(second, first)
    gained = gain(first, second)
    assert 1.0 - 1e-9 <= gained <= 2.0 + 1e-9
    assert found.first_seconds == pytest.approx(other.second_seconds, rel=0.1)
    for kind in ("computing", "talking"):
        busy = [
            sum(moment.seconds for moment in moments if getattr(moment, kind)) for moments in (first, second)
        ]
        assert busy[0] / found.first_seconds + busy[1] / found.second_seconds <= 1 + 1e-6


def test_what_feeds_both_works_for_one_at_a_time() -> None:
    """Each is fed for its whole step: by turns; by something else, or half as long, both as if alone."""
    found = PairSpeed(2.0, 4.0)
    slow, fast = (
        Fed(seconds=2.0, limit="the storage of all nodes"),
        Fed(seconds=4.0, limit="the storage of all nodes"),
    )
    assert fed_beside(found, slow, fast) == PairSpeed(4.0, 8.0)
    assert fed_beside(found, slow, replace(fast, limit="the processors of a node of a")) == found
    assert fed_beside(found, replace(slow, seconds=1.0), replace(fast, seconds=2.0)) == found
    assert fed_beside(found, NOTHING, NOTHING) == found


@pytest.mark.parametrize("stages", [1, 2])
def test_moments_are_those_of_the_step(stages: int) -> None:
    """They add up to it; every device computes as long as its lane does."""
    where = cluster(pool("a", ("A100",) * 2, 1, (nic("eth"),)), pool("b", ("T4",) * 2, 1, (nic("eth"),)))
    spec, groups = (
        model(8),
        [(group("a", "A100", count=2, share=4, steps=4),), (group("b", "T4", count=2, share=4, steps=4),)],
    )
    chosen = (
        plan("torch", 0, [2, 2], groups)
        if stages == 2
        else plan(
            "torch", 0, [4], [(group("a", "A100", count=2, share=3), group("b", "T4", count=2, share=1))]
        )
    )
    estimator = Estimator(where, spec, shipped())
    scored = Scored(plan=chosen, estimate=estimator.estimate(chosen))
    moments = moments_of(scored, estimator)
    assert sum(moment.seconds for moment in moments) == pytest.approx(scored.estimate.step_seconds)
    assert {device for moment in moments for device in moment.computing} == {
        (f"{name}-0", number) for name in "ab" for number in range(2)
    }
    network, idle = waiting(moments, chosen)
    assert 0 < network < 1
    assert 0 <= idle < 1


def test_pairs_fit_beside_each_other(tmp_path: Path) -> None:
    """What both need of a device and its reserve is no more than it has; a pair gains, or is told to gain nothing."""
    several = loaded(tmp_path, FOUR_NODES, JOBS)
    spec, limits = load_cluster(tmp_path / "cluster.yaml"), replace(FEW, gap=0.05)
    (pair,) = Crossover(spec, several, shipped(), limits, Deadline.after(None)).run()
    assert {pair.first, pair.second} == {"first", "second"}
    assert pair.fits
    assert pair.gain is not None
    assert 0.8 < pair.gain <= 2.0
    assert pair.both_seconds is not None
    assert pair.in_turn_seconds is not None
    for pool_spec in spec.pools:
        used = [
            max(
                (
                    part.memory.used_bytes
                    for stage in side.scored.estimate.stages
                    for part in stage.groups
                    if part.pool == pool_spec.name
                ),
                default=0.0,
            )
            for side in pair.plans
        ]
        least = min(spec.gpus[gpu].memory_gib for gpu in pool_spec.devices)
        assert sum(used) <= bytes_from_gib(least - spec.reserve_gib)
    in_time = Crossover(spec, several, shipped(), limits, Deadline.after(0.0)).run()
    assert in_time == ()


def test_a_pair_without_room_is_no_proof() -> None:
    """Three ways to divide the memory are tried, and the report claims no more."""
    pair = CrossoverPair(
        first="one",
        second="two",
        network_share=0.25,
        idle_share=0.0,
        fits=False,
        first_alone_seconds=1.0,
        second_alone_seconds=1.0,
        first_seconds=None,
        second_seconds=None,
        gain=None,
        both_seconds=None,
        in_turn_seconds=None,
        plans=(),
    )
    (line,) = crossing_lines(pair)
    assert line.endswith("two does not fit beside it in any of three ways to divide the memory")


def test_the_simulation_ends_with_the_time() -> None:
    """Long before its last moment."""
    with pytest.raises(Struck):
        beside(job(2.0, 1.0), job(1.0, 3.0), Deadline.after(0.0))
