"""Steps from plan to plan: never slower, never outside what the target runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.estimate import Estimator
from planner.plan.checks import faults
from planner.search.explorer import Explorer
from planner.search.heuristics.local import best_near
from planner.search.solve import search
from planner.search.space.partitions import network_partitions
from planner.search.values import Limits, Scored, Silent
from planner.targets import TARGETS
from tests.quick import first
from tests.worlds import cluster, gpt, pool, small_problem

LIMITS = Limits(gap=0.0, target="flagscale")


def alike(estimator: Estimator) -> Scored | None:
    """The best plan whose stages all have the same degrees."""
    explorer = Explorer(estimator, LIMITS, Silent(), one_degree=True)
    explorer.run()
    return explorer.best


@pytest.mark.parametrize("seed", first(1, [5, 7, 1, 3]))
def test_it_ends_between_the_start_and_the_best(seed: int) -> None:
    """What it proposes is a plan of the space that is no slower than where it began."""
    estimator = Estimator(*small_problem(seed))
    start = alike(estimator)
    best = search(estimator.cluster, estimator.model, limits=LIMITS, explain=False).best
    assert (start is None) == (best is None)
    if start is None or best is None:
        return
    near = best_near(
        start, list(network_partitions(estimator, TARGETS["flagscale"]).values()), estimator, LIMITS
    )
    assert near.estimate.fits
    assert not faults(near.plan, estimator.cluster, estimator.model)
    assert best.estimate.step_seconds * (1 - 1e-5) <= near.estimate.step_seconds
    assert near.estimate.step_seconds <= start.estimate.step_seconds


def test_it_finds_degrees_that_fit_unequal_pools() -> None:
    """A node of two fast devices and one of four slow ones want different degrees."""
    estimator = Estimator(
        cluster(pool("a", per_node=2), pool("b", "V100", per_node=4)), gpt(12, 1024, 8, global_batch=16)
    )
    start = alike(estimator)
    assert start is not None
    near = best_near(
        start, list(network_partitions(estimator, TARGETS["flagscale"]).values()), estimator, LIMITS
    )
    assert near.estimate.step_seconds < start.estimate.step_seconds
    assert len({group.devices for stage in near.plan.stages for group in stage.replicas}) > 1


def test_the_search_begins_with_one_degree() -> None:
    """However little time is left for the rest, the answer is no slower than the best plan of one degree."""
    estimator = Estimator(
        cluster(pool("a", nodes=2, per_node=4), pool("b", "V100", per_node=4)), gpt(global_batch=32)
    )
    start = alike(estimator)
    explorer = Explorer(estimator, LIMITS, Silent())
    explorer._one_degree(None)
    assert start is not None
    assert explorer.incumbent <= start.estimate.step_seconds


@pytest.mark.parametrize("seed", first(1, [33, 18, 25, 47]))
def test_it_is_never_worse_than_what_it_can_run_of_other_runtimes(seed: int) -> None:
    """The best plans of the others, priced as its own, are where its search begins."""
    spec, model = small_problem(seed)
    found = search(spec, model, limits=replace(LIMITS, gap=0.9), explain=False).best
    for other in TARGETS:
        best = search(spec, model, limits=replace(LIMITS, gap=0.9, target=other), explain=False).best
        if best is None:
            continue
        plan = replace(best.plan, target="flagscale")
        if not faults(plan, spec, model):
            estimate = Estimator(spec, model).estimate(plan)
            if estimate.fits:
                assert found is not None
                assert found.estimate.step_seconds <= estimate.step_seconds * (1 + 1e-9)


def test_a_plan_of_another_runtime_comes_whatever_the_time() -> None:
    """As for runtimes that have quick plans of their own."""
    spec = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
    for target in ("flagscale", "megatron"):
        limits = Limits(target=target, time_limit_seconds=1e-6)
        found = search(spec, gpt(8, 1024, 8, global_batch=16), limits=limits, explain=False)
        assert found.status == "feasible"
        assert found.best is not None
        assert found.best.plan.target == target


def test_other_runtimes_are_searched_in_its_own_orders() -> None:
    """Torch would divide backwards here, which FlagScale cannot; what it begins with are pipelines that it can run."""
    spec, model = cluster(pool("a", nodes=2, per_node=2, gbps=10, cards=1)), gpt(8, global_batch=8)
    limits = Limits(gap=0.01, target="torch", tp=(1,), pp=(4,))
    offered: list[Scored] = []
    free = Explorer(Estimator(spec, model), limits, Silent())
    free.run()
    assert free.best is not None
    assert free.best.plan.schedule != "1f1b"
    held = Explorer(
        Estimator(spec, model), limits, Silent(), runner=TARGETS["flagscale"], better=offered.append
    )
    held.run()
    assert offered
    assert {(scored.plan.schedule, scored.plan.interleave) for scored in offered} == {("1f1b", 1)}
