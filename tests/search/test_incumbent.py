"""The answer is the best of everything that was priced, and obeys what the user asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.plan.values import ON_DEVICE, Grid, Offload, Sync
from planner.search.explain.families import FamilyPlans
from planner.search.incumbent import Incumbent, allowing, misses, obeys, value_of
from planner.search.objectives.choose import choose
from planner.search.solve import search
from planner.search.values import Goal, Limits, Scored, SearchResult
from tests.quick import first
from tests.report import examples
from tests.search.variants import three_pools
from tests.worlds import cluster, gpt, group, plan, pool


def listed(result: SearchResult) -> Iterator[Scored]:
    """Every plan that a result shows beside the answer."""
    yield from (entry.scored for entry in result.alternatives if entry.scored is not None)
    yield from (entry.scored for entry in result.idle_costs if entry.scored is not None)
    yield from (entry.scored for entry in result.limit_costs)


def check(result: SearchResult, limits: Limits, goal: Goal) -> None:
    """None of them that obeys is better, and the numbers are those of the answer."""
    assert result.reasons_error is None
    assert result.best is not None
    best = value_of(result.best.estimate, goal.objective)
    for scored in listed(result):
        if obeys(scored.plan, limits, goal):
            assert value_of(scored.estimate, goal.objective) >= best
    assert [entry.scored for entry in result.alternatives if entry.chosen] in ([], [result.best])
    assert result.gap == pytest.approx(1 - (result.objective_bound or result.bound_seconds) / best, abs=1e-9)
    assert result.gap >= 0


def priced(spec: ClusterSpec) -> ClusterSpec:
    """With prices that differ by pool."""
    pools = tuple(
        item.model_copy(update={"price_per_gpu_hour": 1.0 + number, "watts_per_gpu": 300.0 - 50 * number})
        for number, item in enumerate(spec.pools)
    )
    return spec.model_copy(update={"pools": pools})


@pytest.mark.parametrize("objective", first(2, ["time", "cost", "energy"]))
@pytest.mark.parametrize(("seed", "seconds"), [(15, None), (2, 0.0), (3, 0.4), (4, 0.0)])
def test_nothing_that_is_listed_is_better(objective: str, seed: int, seconds: float | None) -> None:
    """Under every objective, whenever the limit strikes, and with a wide gap."""
    spec, model = three_pools(seed)
    limits, goal = Limits(gap=0.3, time_limit_seconds=seconds), Goal(objective=objective)  # type: ignore[arg-type]
    check(choose(priced(spec), model, ASSUMED, limits, goal), limits, goal)


def problem() -> tuple[ClusterSpec, ModelSpec]:
    """Devices of two device types, on which a poor plan is easily beaten."""
    return cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt(4, 512, 8, global_batch=8)


def test_a_better_plan_among_the_reasons_becomes_the_answer() -> None:
    """The search has only one poor plan: the answer is the best of the families, and the poor one is listed."""
    spec, model = problem()
    poor = search(spec, model, limits=Limits(target="megatron", tp=(2,), pp=(2,)), explain=False).best
    assert poor is not None
    told: list[Scored] = []

    def only_poor(self: object, *_: object, **__: object) -> None:
        self.offer(poor)  # type: ignore[attr-defined]
        self._taken_bound = 0.001  # type: ignore[attr-defined]

    with patch("planner.search.solve.Explorer.run", only_poor):
        result = search(spec, model, better=told.append)
    assert result.best is not None
    check(result, Limits(), Goal())
    assert result.best.estimate.step_seconds < poor.estimate.step_seconds
    assert result.best is told[-1]
    assert result.status == "feasible"
    seconds = [entry.estimate.step_seconds for entry in listed(result)]
    assert poor.estimate.step_seconds in seconds or min(seconds) == result.best.estimate.step_seconds
    assert all("faster" not in entry.reason for entry in result.alternatives)
    plans = FamilyPlans(Estimator(spec, model), Limits())
    plans.look(result.best)
    best = plans.beside(result.best)
    assert {entry.family for entry in result.alternatives} == {entry.family for entry in best}


def test_plans_that_break_a_limit_are_never_the_answer() -> None:
    """Whatever they take: each limit on the plan, on devices, on throughput and on price."""
    spec, model = problem()
    best = search(spec, model, limits=Limits(target="megatron", pp=(2,), tp=(2,)), explain=False).best
    assert best is not None
    chosen = best.plan
    batch = chosen.stages[0].replicas[0].micro_batch
    fine = Limits(target="megatron", pp=(2,), tp=(2,), zero=(chosen.zero,), micro_batch=(batch,))
    assert Incumbent(fine, Goal()).offer(best)
    used = chosen.devices
    for change in (
        {"target": "deepspeed"},
        {"pp": (1, 4)},
        {"tp": (1, 4)},
        {"zero": (3,)},
        {"micro_batch": (batch + 1,)},
        {"recompute": ()},
    ):
        assert not Incumbent(replace(fine, **change), Goal()).offer(best)
    for goal in (
        Goal(use_at_most=(("", used - 1),)),
        Goal(use_at_most=((chosen.stages[0].replicas[0].pool, 0),)),
        Goal(min_tokens_per_second=best.estimate.tokens_per_second * 1.01),
        Goal(max_cost_per_million_tokens=1.0),
    ):
        assert not Incumbent(fine, goal).offer(best)
    assert Incumbent(fine, Goal(use_at_most=(("", used),))).offer(best)
    answer = Incumbent(fine, Goal())
    assert answer.offer(best)
    assert not answer.offer(best)
    assert not answer.offer(None)


@pytest.mark.parametrize(
    ("time", "money", "broken"),
    [
        (None, None, []),
        (1.0, 1.0, []),
        (0.99, None, ["deadline_seconds"]),
        (1.01, 0.99, ["budget"]),
        (0.99, 0.99, ["deadline_seconds", "budget"]),
    ],
)
def test_what_a_training_run_may_take(time: float | None, money: float | None, broken: list[str]) -> None:
    """Exactly as much as is asked for, in time and money; a plan without a price keeps no budget."""
    best = examples.scored()
    run = Goal(tokens=1e9).run_of(best.estimate)
    assert run is not None
    assert run.price is not None
    goal = Goal(
        tokens=1e9,
        deadline_seconds=None if time is None else time * run.seconds,
        budget=None if money is None else money * run.price,
    )
    assert misses(run, goal) == broken
    assert Incumbent(Limits(), goal).offer(best) == (not broken)
    unpriced = replace(best, estimate=replace(best.estimate, price_per_hour=None))
    assert Incumbent(Limits(), goal).offer(unpriced) == (not broken and money is None)


@pytest.mark.parametrize(
    ("asked", "less"),
    [
        ({"grid": Grid(rows=2, columns=2)}, {"grids": False}),
        ({"backup": 2}, {"backup": 1}),
        ({"shards": (3, 1)}, {"unequal_shards": False}),
        (
            {"sync": Sync(every=500, islands=(("a",), ("b",)))},
            {"syncs": (Sync(every=500, format="int8"), Sync(every=100))},
        ),
        (
            {"zero": 3, "offload": Offload(optimizer="cpu", parameters="cpu")},
            {"offload": ("none", "optimizer")},
        ),
    ],
    ids=["grid", "backup", "shards", "sync", "offload"],
)
def test_what_must_be_asked_for(asked: dict[str, Any], less: dict[str, Any]) -> None:
    """A plan that has it is an answer only under limits that allow it, and those of ``allowing`` do."""
    first, second = asked.pop("shards", (1, 1))
    wide = 4 if "grid" in asked else 1
    groups = tuple(
        replace(group(name, gpu, tp=wide, count=8 // wide, share=2), shard=shard)
        for name, gpu, shard in (("a", "A100", first), ("b", "V100", second))
    )
    one = plan("torch", asked.pop("zero", 1), [8], [groups], **asked)
    limits = Limits(target="torch")
    if one.offload == ON_DEVICE:
        assert not obeys(one, limits, Goal())
    assert obeys(one, allowing(limits, one), Goal())
    assert not obeys(one, replace(allowing(limits, one), **less), Goal())
    plain = plan("torch", 1, [8], [tuple(replace(each, shard=1) for each in groups)])
    assert obeys(plain, allowing(limits, one), Goal())
    assert allowing(limits, plain) == limits


def test_an_excluded_pool_is_as_if_it_were_not_there() -> None:
    """No sub-clusters: the same search as without it, priced on the whole cluster."""
    spec, model = problem()
    extra = pool("c", "V100", per_node=2)
    more = cluster(*spec.pools, extra, gpus=spec.gpus)
    goal = Goal(use_at_most=(("c", 0),))
    limits = Limits(target="megatron")
    found = choose(more, model, ASSUMED, limits, goal, explain=False)
    plain = search(spec, model, limits=limits, explain=False)
    assert (found.best, found.bound_seconds, found.candidates) == (
        plain.best,
        plain.bound_seconds,
        plain.candidates,
    )
    assert (found.goal, found.subclusters) == (goal, None)
    assert found.best is not None
    assert Estimator(more, model).estimate(found.best.plan) == found.best.estimate


def test_a_bug_in_the_reasons_costs_no_plan() -> None:
    """It is kept beside the plan and its proof."""
    spec, model = problem()
    limits = Limits(target="megatron")
    with patch("planner.search.explain.reasons.advise", side_effect=ZeroDivisionError("oops")):
        result = search(spec, model, limits=limits)
        priced_result = choose(priced(spec), model, ASSUMED, limits, Goal(objective="cost"))
    for found in (result, priced_result):
        assert isinstance(found.reasons_error, ZeroDivisionError)
        assert found.best is not None
        assert found.status == "optimal"
        assert found.alternatives == ()
