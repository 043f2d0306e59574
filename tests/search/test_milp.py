"""The ILP and its solvers."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pulp
import pytest

from planner.cluster.spec import NicSpec
from planner.cost.estimate import Estimator
from planner.runtimes.registry import TARGETS
from planner.search.deadline import NO_LIMIT
from planner.search.explorer import Explorer
from planner.search.milp.model import PipelineModel
from planner.search.milp.solver import available, relaxation, solve
from planner.search.space.choices import Choice, Family
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Silent
from tests.worlds import cluster, gpt, pool, small_problem


def options(depth: int = 4, interleave: int = 1) -> StageOptions:
    """Stages of two replicas over an A100 and a V100 node."""
    estimator = Estimator(cluster(pool("a"), pool("b", "V100")), gpt())
    family = Family(target="megatron", zero=1, recompute="none", tp=2, dp=2, batch=4, micro_batches=16)
    return StageOptions(Choice(family=family, depth=depth, interleave=interleave), estimator, Limits())


def torch_stages(*, waits: bool) -> StageOptions:
    """Four stages of torch on narrow cards, also as if nothing waited for its reductions."""
    row = replace(TARGETS["torch"], reduces_in_backward=waits)
    with patch.dict(TARGETS, torch=row):
        estimator = Estimator(cluster(pool("a", gbps=5), pool("b", "V100", gbps=5)), gpt())
        family = Family(target="torch", zero=1, recompute="none", tp=1, dp=4, batch=4, micro_batches=8)
        return StageOptions(Choice(family=family, depth=4, interleave=1), estimator, Limits())


def test_gradients_held_back_are_in_the_bound() -> None:
    """The reductions of three stages follow each other on the way to the first one."""
    bounds = {}
    for waits in (False, True):
        stages = torch_stages(waits=waits)
        model = PipelineModel(stages, 10.0)
        bounds[waits] = model.solve(gap=0.0).bound
        chosen = model.chosen()
        assert bounds[waits] <= stages.estimator.estimate(stages.plan(chosen)).step_seconds
        held = sum(option.held_seconds for option in chosen[1:])
        assert (held > 0) == waits
    assert bounds[True] > 1.004 * bounds[False]


def test_both_solvers_are_here() -> None:
    """HiGHS first, CBC as the fallback."""
    assert available() == ("highs", "cbc")


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_knapsack(name: str) -> None:
    """Both solve, say what is infeasible, and give a bound that is not above the answer."""
    problem = pulp.LpProblem("knapsack", pulp.LpMinimize)
    take = [problem.add_variable(f"x{index}", cat="Binary") for index in range(4)]
    problem += pulp.lpSum(cost * x for cost, x in zip((5, 4, 3, 7), take, strict=True))
    problem += pulp.lpSum(size * x for size, x in zip((2, 3, 1, 5), take, strict=True)) >= 6
    solved = solve(problem, gap=0.0, solver=name)
    assert solved.status == "optimal"
    assert pulp.value(problem.objective) == pytest.approx(10)
    assert solved.bound <= 10 + 1e-6
    problem += pulp.lpSum(take) >= 5
    assert solve(problem, gap=0.0, solver=name).status == "infeasible"


@pytest.mark.parametrize("interleave", [1, 2])
def test_solutions_are_plans(interleave: int) -> None:
    """Every layer once, one option a stage, and the model's time is never above the estimate's."""
    stages = options(interleave=interleave)
    model = PipelineModel(stages, 10.0)
    solved = model.solve(gap=0.0)
    plan = stages.plan(model.chosen())
    assert plan.layers == 24
    assert plan.pp == 4
    estimate = stages.estimator.estimate(plan)
    assert solved.bound <= estimate.step_seconds
    assert model.relaxed_bound() <= solved.bound + 1e-6
    assert solved.bound > 0.8 * estimate.step_seconds


def test_a_cut_solution_does_not_come_back_cheap() -> None:
    """After the cut the same options cost what the estimate says."""
    stages = options()
    model = PipelineModel(stages, 10.0)
    before = model.solve(gap=0.0).bound
    model.cut_solution(model.chosen(), 9.0, before)
    after = model.solve(gap=0.0)
    assert after.bound >= before * (1 - 1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_cbc_finds_what_highs_finds(seed: int) -> None:
    """The fallback gives plans of the same cost."""
    found = []
    for name in ("highs", "cbc"):
        spec, model = small_problem(seed)
        explorer = Explorer(Estimator(spec, model), Limits(gap=0.0, pp=(2, 3)), Silent(), solver=name)
        explorer.run()
        found.append(explorer.incumbent)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_relaxation_follows_the_bounds(name: str) -> None:
    """Solved again after bounds have changed, back and forth, it says what a new one says."""
    problem = pulp.LpProblem("cover", pulp.LpMinimize)
    take = [problem.add_variable(f"x{index}", cat="Binary") for index in range(3)]
    problem += pulp.lpSum(cost * x for cost, x in zip((2, 3, 5), take, strict=True))
    problem += pulp.lpSum(size * x for size, x in zip((2, 2, 2), take, strict=True)) >= 3
    relaxed = relaxation(problem, name)
    assert relaxed(NO_LIMIT) == pytest.approx(2 + 3 / 2)
    take[0].upBound = 0.0
    assert relaxed(NO_LIMIT) == pytest.approx(3 + 5 / 2)
    assert [x.value() for x in take] == pytest.approx([0.0, 1.0, 0.5])
    take[1].upBound = 0.0
    assert relaxed(NO_LIMIT) == float("inf")
    take[0].upBound = take[1].upBound = 1.0
    assert relaxed(NO_LIMIT) == pytest.approx(2 + 3 / 2)
    solve(problem, gap=0.0, solver=name)
    take[0].upBound = 0.0
    assert relaxed(NO_LIMIT) == pytest.approx(3 + 5 / 2)


def test_stages_are_dealt_to_islands_before_the_ilp() -> None:
    """Each branch gives one stage one island, and no branch can promise more than the whole."""
    spec = cluster(pool("a", nodes=2), pool("b", nodes=2, fabric="eth", gbps=10, cards=1))
    slow = NicSpec(fabric="eth", bandwidth_gbps=10, count=1)
    first = spec.pools[0].model_copy(update={"nics": (*spec.pools[0].nics, slow)})
    estimator = Estimator(spec.model_copy(update={"pools": (first, spec.pools[1])}), gpt())
    family = Family(target="megatron", zero=1, recompute="none", tp=2, dp=2, batch=4, micro_batches=16)
    choice = Choice(family=family, depth=4, interleave=1)
    stages = StageOptions(choice, estimator, Limits(), (("a",), ("b",)))
    model = PipelineModel(stages, 100.0)
    whole = model.relaxed_bound()
    branches = list(model.branching.branches())
    assert {keys for _, keys in branches} == {frozenset(((0,),)), frozenset(((1,),))}
    assert len({stage for stage, _ in branches}) == 1
    for branch in branches:
        model.branching.assign((branch,))
        assert model.relaxed_bound() >= whole * (1 - 1e-6)
    model.branching.assign(tuple((stage, frozenset(((0,),))) for stage in range(4)))
    assert model.relaxed_bound() == float("inf")


def test_stages_with_their_per_stage_degrees_are_told_their_devices_first() -> None:
    """The two sides of a branch share nothing, leave nothing out, and neither promises more than the whole."""
    estimator = Estimator(cluster(pool("a", nodes=2, per_node=4), pool("b", "V100", per_node=4)), gpt())
    family = Family(target="flagscale", zero=1, recompute="none", tp=None, dp=None, batch=8, micro_batches=8)
    stages = StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits())
    model = PipelineModel(stages, 100.0)
    whole = model.relaxed_bound()
    (stage, low), (other, high) = model.branching.branches()
    assert stage == other
    assert not low & high
    assert {key[1] for key in low | high} == {option.composition for option in model.options[stage]}
    assert max(low) < min(high)
    for keys in (low, high):
        model.branching.assign(((stage, keys),))
        assert model.relaxed_bound() >= whole * (1 - 1e-6)
    model.branching.assign(((stage, low), (stage, high)))
    assert model.relaxed_bound() == float("inf")
