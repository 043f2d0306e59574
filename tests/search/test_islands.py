"""Shares of islands and of backup replicas: every choice and every set of devices against all its plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from planner.cost.estimate import Estimator
from planner.cost.training import devices_of
from planner.plan.values import Plan
from planner.search.backups import backup_choices
from planner.search.data_parallel import DataParallel, Shares
from planner.search.islands import island_choices, shares_of
from planner.search.space.device_sets import Box
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.search.exhaustive import plans
from tests.search.test_data_parallel import all_counts
from tests.search.test_oracle import SYNCS
from tests.worlds import Problem, with_islands, with_stragglers

Key = tuple[object, ...]


def key_of(plan: Plan) -> Key:
    """Of plans that one search for shares chooses between."""
    exchanged = plan.sync, plan.backup, plan.zero
    return *exchanged, plan.stages[0].recompute, *sorted(devices_of(plan).items())


def all_boxes(shares: Shares) -> Iterator[Box]:
    """Those that halving leads to."""
    waiting = [shares.sets]
    while waiting:
        box = waiting.pop()
        yield box
        if not box.single:
            waiting += shares.halves(box)


Choices = Callable[[Estimator, Limits], Iterator[DataParallel]]


def with_exchange(seed: int) -> tuple[Problem, Limits, Choices]:
    """Islands that exchange rarely, or little."""
    limits = Limits(gap=0.0, target="torch", zero=(0,), pp=(1,), tp=(1,), syncs=SYNCS[seed % 3])
    return with_islands(seed), limits, lambda estimator, own: island_choices(TARGETS["torch"], own, estimator)


def with_backups(seed: int) -> tuple[Problem, Limits, Choices]:
    """Up to two replicas that nobody waits for."""
    limits = Limits(gap=0.0, target="torch", zero=(0,), pp=(1,), tp=(1,), backup=2)
    return (
        with_stragglers(seed),
        limits,
        lambda estimator, own: backup_choices(TARGETS["torch"], own, estimator),
    )


@pytest.mark.parametrize(
    ("world", "seed"),
    [
        (world, seed)
        for world, seeds in ((with_exchange, (0, 2, 4)), (with_backups, (0, 2, 3)))
        for seed in seeds
    ],
)
def test_each_set_of_devices_has_its_best_shares(
    world: Callable[[int], tuple[Problem, Limits, Choices]], seed: int
) -> None:
    """The least step of each set, and nothing below it for any box of sets, which is close to it for most."""
    problem, limits, choices = world(seed)
    estimator = Estimator(*problem)
    wanted: dict[Key, float] = {}
    for plan in plans(estimator, limits):
        if not plan.sync.exact or plan.backup:
            estimate = estimator.estimate(plan)
            if estimate.fits:
                wanted[key_of(plan)] = min(wanted.get(key_of(plan), float("inf")), estimate.step_seconds)
    found: dict[Key, float] = {}
    for choice in choices(estimator, limits):
        shares = shares_of(choice, estimator, limits)
        least: dict[tuple[int, ...], float] = {}
        for counts in all_counts(shares):
            bound, best = shares.best(counts)
            step = estimator.estimate(best).step_seconds if best is not None else float("inf")
            assert bound <= step * (1 + 1e-9)
            if best is not None:
                least[counts] = step
                assert bound == pytest.approx(step, rel=1e-9)
                if estimator.estimate(best).fits:
                    found[key_of(best)] = step
        for box in all_boxes(shares):
            inside = [
                step
                for counts, step in least.items()
                if all(
                    low <= count <= high for low, count, high in zip(box.low, counts, box.high, strict=True)
                )
            ]
            assert shares.bound(box) <= min(inside, default=float("inf")) * (1 + 1e-9)
    assert found
    assert found == pytest.approx(wanted, rel=1e-9)
