"""Steps from plan to plan by hand: which plans are near one, and in what order they are tried."""

from __future__ import annotations

from functools import cache
from itertools import product

from planner.cost.estimate import Estimator
from planner.plan.values import Plan
from planner.search.deadline import NO_LIMIT
from planner.search.heuristics.local import Stand, _LocalSearch, _read, best_near
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.values import Limits, Scored
from planner.targets import TARGETS
from tests import worlds
from tests.worlds import cluster, gpt, group, pool

LIMITS = Limits(target="flagscale")


@cache
def place() -> tuple[Estimator, NetworkPartition]:
    """Two fast and two slow devices."""
    spec = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
    estimator = Estimator(spec, gpt(4, 512, 8, global_batch=8))
    (partition,) = network_partitions(estimator, TARGETS["flagscale"]).values()
    return estimator, partition


def pipeline() -> Plan:
    """A stage of two replicas on each type."""
    stages = [(group(name, gpu, count=2, share=4, steps=4),) for name, gpu in (("a", "A100"), ("b", "V100"))]
    return worlds.plan("flagscale", 1, [2, 2], stages)


def search(limits: Limits = LIMITS) -> _LocalSearch:
    """One that begins with this pipeline."""
    estimator, partition = place()
    scored = Scored(plan=pipeline(), estimate=estimator.estimate(pipeline()))
    return _LocalSearch(scored, partition, estimator, limits, NO_LIMIT)


def test_where_a_plan_stands() -> None:
    """Its family is one of any degrees, with its batch."""
    family, stands = _read(pipeline())
    assert (family.tp, family.dp, family.recompute, family.zero) == (None, None, None, 1)
    assert (family.batch, family.micro_batches) == (2, 4)
    assert stands == (("a", "A100", 1, 2), ("b", "V100", 1, 2))


def test_micro_batches_near_one() -> None:
    """The same, twice and half as large, where they divide the batch."""
    family, _ = _read(pipeline())
    found = search()._families

    def near(batch: int) -> list[tuple[int, int]]:
        each = found(family._replace(batch=batch, micro_batches=8 // batch))
        return [(one.batch, one.micro_batches) for one in each]

    assert near(2) == [(2, 4), (4, 2), (1, 8)]
    assert near(1) == [(1, 8), (2, 4)]
    assert near(8) == [(8, 1), (4, 2)]


def test_stages_near_others() -> None:
    """One or two neighbouring stages are replaced by one or two, as far as there are devices; the fastest first."""
    own = search()
    family, stands = _read(pipeline())
    rates = own._rates(family)
    found = own._neighbours(family, stands)
    every = [
        item
        for depth in (1, 2, 3)
        for item in product(rates, repeat=depth)
        if item != stands and one_step(stands, item) and fits(item)
    ]
    assert len(every) > 10
    assert sorted(found) == sorted(every)
    keys = [(-sum(rates[stand] for stand in item), item) for item in found]
    assert keys == sorted(keys)
    # With another micro-batch the same stages are another plan.
    assert stands in own._neighbours(family._replace(batch=4, micro_batches=2), stands)
    assert own._neighbours(family, (("c", "A100", 1, 2),)) == []


def one_step(before: tuple[Stand, ...], after: tuple[Stand, ...]) -> bool:
    """Whether one or two neighbouring stages make the difference, and one or two take their place."""
    return any(
        before[:first] == after[:first]
        and before[first + wide :] == after[first + count :]
        and len(after) == len(before) - wide + count
        for first in range(len(before))
        for wide, count in product((1, 2), (1, 2))
        if first + wide <= len(before)
    )


def fits(item: tuple[Stand, ...]) -> bool:
    """Whether there are two devices of each type or fewer."""
    return all(sum(tp * dp for name, _, tp, dp in item if name == own) <= 2 for own in "ab")


def test_other_networks_are_left_alone() -> None:
    """A plan is looked at where all its pools are; elsewhere it stays."""
    estimator, partition = place()
    alone = Estimator(cluster(pool("a", per_node=2)), estimator.model)
    (part,) = network_partitions(alone, TARGETS["flagscale"]).values()
    start = search().best
    assert best_near(start, [], estimator, LIMITS) is start
    assert best_near(start, [part], estimator, LIMITS) is start
    found = best_near(start, [partition], estimator, LIMITS)
    assert found.estimate.step_seconds < start.estimate.step_seconds
