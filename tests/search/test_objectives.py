"""Cost, energy and limits against every plan of every sub-cluster, on generated small instances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count, product
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED
from planner.cluster.spec import ClusterSpec, HostSpec
from planner.cost.estimate import Estimator
from planner.cost.failures import Interruptions
from planner.cost.training import devices_of, training_run
from planner.cost.values import Estimate
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explorer import Explorer
from planner.search.incumbent import meets, value_of
from planner.search.objectives.candidates import sub_cluster_candidates
from planner.search.objectives.choose import choose
from planner.search.objectives.objectives import BestSearch, SubClusterCandidates
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Objective, SearchResult, Silent
from tests.quick import first
from tests.search.exhaustive import plans
from tests.worlds import Problem, cluster, gpt, pool, small_problem, with_constants

SEEDS = st.integers(0, 10**9)
TARGETS = st.sampled_from(["megatron", "deepspeed"])
OBJECTIVES: tuple[Objective, ...] = ("time", "cost", "energy")
FEW = settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def rated(spec: ClusterSpec, seed: int) -> ClusterSpec:
    """The cluster with prices and powers of its own."""
    pools = tuple(
        item.model_copy(
            update={
                "price_per_gpu_hour": (1.0, 0.4, 2.5)[(seed + index) % 3],
                "watts_per_gpu": (300.0, 70.0, 400.0)[(seed // 3 + index) % 3],
            }
        )
        for index, item in enumerate(spec.pools)
    )
    return spec.model_copy(update={"pools": pools})


def every(problem: Problem, limits: Limits, goal: Goal) -> Iterator[tuple[bool, Estimate]]:
    """Estimates of all plans of all sub-clusters that fit, and whether each uses all of its sub-cluster."""
    spec, model, calibration = problem
    for sub in sub_cluster_candidates(spec, model, goal.use_at_most):
        estimator = Estimator(sub.cluster, model, calibration)
        for plan in plans(estimator, limits):
            try:
                found = estimator.estimate(plan)
            except PlanError:
                continue
            if found.fits and meets(found, goal):
                yield devices_of(plan) == sub.devices, found


def check(problem: Problem, limits: Limits, goal: Goal) -> None:
    """The value of the best plan of the candidates, never a bound above it."""
    found = choose(*problem, limits, goal, explain=False)
    all_plans = list(every(problem, limits, goal))
    filling = [value_of(estimate, goal.objective) for full, estimate in all_plans if full]
    if not all_plans:
        assert (found.best, found.status) == (None, "infeasible")
        return
    assert found.best is not None
    assert found.objective_bound is not None
    assert found.bound_seconds == (found.objective_bound if goal.objective == "time" else 0.0)
    assert meets(found.best.estimate, goal)
    value = value_of(found.best.estimate, goal.objective)
    best = min(filling, default=float("inf"))
    assert found.objective_bound <= best * (1 + 1e-9)
    # A part of a node on a shared bus may be searched with too fast a bus; the gap then stays open.
    if not any(item.intra_node.shared and not item.nics for item in problem[0].pools):
        assert value <= best * (1 + 1e-5)
        assert found.status == "optimal"
    assert value >= min(value_of(estimate, goal.objective) for _, estimate in all_plans) * (1 - 1e-6)


@given(SEEDS, st.sampled_from(OBJECTIVES), TARGETS)
@settings(FEW, max_examples=2)
def test_the_best_of_all_sub_clusters(seed: int, objective: Objective, target: str) -> None:
    """What exhaustion over every sub-cluster finds."""
    spec, model = small_problem(seed)
    goal = Goal(objective=objective, use_at_most=(("", 2),))
    check((rated(spec, seed), model, ASSUMED), Limits(gap=0.0, target=target), goal)


FACTORS = st.sampled_from([0.7, 1.0, 1.3, 2.0])


@given(SEEDS, st.sampled_from(OBJECTIVES), TARGETS, FACTORS)
@settings(FEW, max_examples=2)
def test_limits_around_what_is_reached(seed: int, objective: Objective, target: str, factor: float) -> None:
    """Limits on cost and speed near those of the fastest plan, so that some bind and some exclude all."""
    limits_around(seed, objective, target, factor)


@pytest.mark.slow
@given(SEEDS, st.sampled_from(OBJECTIVES), TARGETS, FACTORS)
@settings(FEW, max_examples=20)
def test_many_limits_around_what_is_reached(
    seed: int, objective: Objective, target: str, factor: float
) -> None:
    """The same of more of them."""
    limits_around(seed, objective, target, factor)


def limits_around(seed: int, objective: Objective, target: str, factor: float) -> None:
    """Check the answer within limits that are so far from what the fastest plan reaches."""
    spec, model, calibration = with_constants(seed)
    problem = rated(spec, seed), model, calibration
    limits = Limits(gap=0.0, target=target)
    fastest = choose(*problem, limits, Goal(), explain=False).best
    if fastest is None or fastest.estimate.cost_per_million_tokens is None:
        return
    goal = Goal(
        objective=objective,
        max_cost_per_million_tokens=fastest.estimate.cost_per_million_tokens * factor,
        min_tokens_per_second=fastest.estimate.tokens_per_second * 0.6,
    )
    check(problem, limits, goal)


@given(SEEDS)
@FEW
def test_no_step_is_shorter_than_its_operations(seed: int) -> None:
    """The bound before any search: no plan has an MFU above 1."""
    found = choose(*with_constants(seed), Limits(gap=0.5), Goal(), explain=False).best
    assert found is None or found.estimate.mfu <= 1


def problem() -> tuple[ClusterSpec, ModelSpec]:
    """Two nodes of 2 A100 and one of 2 V100, with prices and powers."""
    spec = cluster(pool("a", nodes=2, per_node=2), pool("b", "V100", per_node=2))
    return rated(spec, 0), gpt(global_batch=32)


@cache
def chosen(goal: Goal, limits: Limits | None = None, *, explain: bool = False) -> SearchResult:
    """The answer for ``problem``, of one runtime."""
    limits = replace(limits or Limits(), target="deepspeed")
    return choose(*problem(), ASSUMED, limits, goal, explain=explain)


def cheapest() -> SearchResult:
    """The exact answer for the least cost."""
    return chosen(Goal(objective="cost"), Limits(gap=0.0))


def test_each_objective_is_best_at_its_own() -> None:
    """Nothing beats the cheapest in cost, nor the fastest in time."""
    found = {name: chosen(Goal(objective=name)).best for name in OBJECTIVES}
    for one in OBJECTIVES:
        for other in OBJECTIVES:
            ours, theirs = found[one], found[other]
            assert ours is not None
            assert theirs is not None
            assert value_of(ours.estimate, one) <= value_of(theirs.estimate, one) * 1.01


@pytest.mark.parametrize(
    ("objective", "per_node", "target"),
    first(
        0,
        [
            ("cost", 1, "deepspeed"),
            *(("cost", 1, None), ("time", 1, None)),
            *((name, 2, None) for name in OBJECTIVES),
        ],
    ),
)
def test_every_objective_explores_all_depths(objective: Objective, per_node: int, target: str | None) -> None:
    """Each depth can be pinned and is found, and the free search is as good as any of them."""
    pools, depths = (pool(name, per_node=per_node) for name in "abc"), range(1, 3 * per_node + 1)
    spec, model = rated(cluster(*pools), 1), gpt(6, 1024, 8, global_batch=12)
    limits, goal = Limits(gap=0.0, target=target), Goal(objective=objective)
    free = choose(spec, model, ASSUMED, limits, goal, explain=False)
    assert free.best is not None
    for depth in depths:
        pinned = choose(spec, model, ASSUMED, replace(limits, pp=(depth,)), goal, explain=False).best
        assert pinned is not None
        assert pinned.plan.pp == depth
        assert value_of(free.best.estimate, objective) <= value_of(pinned.estimate, objective) * (1 + 1e-5)


def test_the_fastest_over_the_ladder_is_the_fastest() -> None:
    """A limit that excludes nothing changes nothing."""
    plain = chosen(Goal(), Limits(gap=0.0)).best
    over = chosen(Goal(use_at_most=(("", 6),)), Limits(gap=0.0)).best
    assert plain is not None
    assert over is not None
    assert over.estimate.step_seconds == pytest.approx(plain.estimate.step_seconds, rel=1e-5)


def test_bounds_of_sub_clusters_before_any_search() -> None:
    """What a second of their devices costs, for as long as their operations take at least."""
    spec, model = problem()
    estimator = Estimator(ranked(spec), model, ASSUMED)
    goal, limits = Goal(objective="cost"), Limits(target="deepspeed")
    search = BestSearch(estimator, limits, goal, Silent(), NO_LIMIT)
    assert len(search.sub_clusters) > 1
    for each in search.sub_clusters:
        assert each.bound == each.weight * search.rates.least_seconds(each.sub.devices) > 0


def test_sub_clusters_are_named() -> None:
    """Where there are several."""
    between = "numbers of devices between those of the sub-clusters"
    assert between in chosen(Goal(objective="cost")).outside
    spec = rated(cluster(pool("a", per_node=1)), 0)
    alone = choose(
        spec, gpt(4), ASSUMED, Limits(target="deepspeed"), Goal(min_tokens_per_second=1.0), explain=False
    )
    assert between not in alone.outside


def test_devices_are_limited() -> None:
    """Per pool and in all."""
    found = chosen(Goal(use_at_most=(("a", 2), ("", 3)))).best
    assert found is not None
    used = devices_of(found.plan)
    assert used["a", "A100"] <= 2
    assert sum(used.values()) <= 3


def test_free_devices_cost_nothing() -> None:
    """A price of zero is a price."""
    spec, model = problem()
    free = tuple(item.model_copy(update={"price_per_gpu_hour": 0.0}) for item in spec.pools)
    spec = spec.model_copy(update={"pools": free})
    found = choose(spec, model, ASSUMED, Limits(), Goal(objective="cost"), explain=False)
    assert found.best is not None
    assert (found.best.estimate.cost_per_million_tokens, found.gap, found.status) == (0.0, 0.0, "optimal")


def test_of_plans_that_cost_nothing_the_fastest_is_the_cheapest() -> None:
    """Own devices beside rented ones: all of them are used, not the first that a plan was found for."""
    spec, model = problem()
    limits = Limits(gap=0.0, target="deepspeed")
    own = tuple(
        item.model_copy(update={"price_per_gpu_hour": 0.0 if item.name == "a" else 2.0})
        for item in spec.pools
    )
    spec = spec.model_copy(update={"pools": own})
    found = choose(spec, model, ASSUMED, limits, Goal(objective="cost"))
    fastest = choose(spec, model, ASSUMED, limits, Goal(use_at_most=(("b", 0),)), explain=False)
    assert found.best is not None
    assert fastest.best is not None
    assert found.best.estimate.cost_per_million_tokens == 0.0
    assert found.best.estimate.step_seconds == pytest.approx(fastest.best.estimate.step_seconds)
    free = [
        entry
        for entry in found.alternatives
        if entry.scored is not None and entry.scored.estimate.cost_per_million_tokens == 0.0
    ]
    assert len(free) > 1
    assert not [entry.reason for entry in free if "not free" in entry.reason]


@pytest.mark.slow
def test_out_of_reach_says_what_is_in_reach() -> None:
    """Each limit with the plan that comes nearest."""
    fastest = chosen(Goal()).best
    assert fastest is not None
    asked = 2 * fastest.estimate.tokens_per_second
    found = chosen(Goal(min_tokens_per_second=asked), explain=True)
    assert (found.status, found.best, found.diagnosis) == ("infeasible", None, None)
    (nearest,) = found.nearest
    assert (nearest.limit, nearest.asked, nearest.kept) == ("min_tokens_per_second", asked, True)
    assert nearest.proven
    assert nearest.scored.estimate.tokens_per_second == pytest.approx(asked / 2, rel=0.01)
    both = chosen(Goal(min_tokens_per_second=asked, max_cost_per_million_tokens=1e-6), explain=True)
    assert [(entry.limit, entry.kept) for entry in both.nearest] == [
        ("min_tokens_per_second", False),
        ("max_cost_per_million_tokens", False),
    ]


@pytest.mark.slow
def test_the_nearest_run_counts_its_failures() -> None:
    """Where devices fail so often that fewer train sooner and for less, what comes nearest has fewer."""
    stops = Interruptions(per_gpu_month=2000.0)
    asked = Goal(tokens=1e9, deadline_seconds=1.0, budget=1e-3, interruptions=stops)
    soon, cheap = chosen(asked, explain=True).nearest
    assert (soon.limit, cheap.limit) == ("deadline_seconds", "budget")
    runs = []
    for objective, most in product(("time", "cost"), range(1, 7)):
        best = chosen(Goal(objective=objective, use_at_most=(("", most),))).best  # type: ignore[arg-type]
        assert best is not None
        runs.append(training_run(best.estimate, 1e9, stops))
    nearest = [training_run(each.scored.estimate, 1e9, stops) for each in (soon, cheap)]
    assert nearest[0].seconds <= min(run.seconds for run in runs) * 1.01
    assert nearest[1].price <= min(run.price for run in runs if run.price is not None) * 1.01  # type: ignore[operator]
    fastest = chosen(Goal()).best
    assert fastest is not None
    assert soon.scored.plan.devices < fastest.plan.devices


def test_a_goal_that_no_plan_meets_is_no_reason_for_host_memory() -> None:
    """What comes nearest stays on the devices where it fits there; two devices with a fast host would be cheaper."""
    host = HostSpec(link_gBps=1000, adam_billion_per_s=1000, memory_gib=4000)
    roomy = pool("a", per_node=2, nodes=4, gbps=1, cards=1).model_copy(update={"host": host})
    spec, model = rated(cluster(roomy), 0), gpt(60, 4096, 32, global_batch=16)
    limits, goal = Limits(gap=0.1, target="deepspeed"), Goal(max_cost_per_million_tokens=1e-9)
    found = choose(spec, model, ASSUMED, limits, goal)
    assert found.status == "infeasible"
    assert found.nearest
    assert not any(entry.scored.plan.offload.anything for entry in found.nearest)


def test_what_comes_nearest_in_no_time_is_not_proven() -> None:
    """Bounds alone rule the goal out, and the time that they take is told; what comes nearest was met on the way."""
    spec, model = problem()
    goal, limits = Goal(min_tokens_per_second=1e12), Limits(time_limit_seconds=0.0)
    found = choose(spec, model, ASSUMED, limits, goal)
    assert found.status == "infeasible"
    assert found.seconds > 1e-3
    assert [entry.proven for entry in found.nearest] == [False]


@pytest.mark.slow
def test_a_model_that_fits_nowhere_is_diagnosed() -> None:
    """On the largest part that may be used."""
    spec, _ = problem()
    goal = Goal(objective="cost", use_at_most=(("a", 2),))
    found = choose(spec, gpt(96, 12288, 96, global_batch=8), ASSUMED, Limits(target="megatron"), goal)
    assert found.status == "infeasible"
    assert found.diagnosis is not None
    assert "2 x A100" in found.diagnosis.causes[1]


@pytest.mark.slow
def test_no_device_has_the_number_format() -> None:
    """No sub-cluster at all."""
    spec = rated(cluster(pool("b", "V100")), 0)
    found = choose(spec, gpt(precision="bf16"), ASSUMED, Limits(), Goal(objective="cost"))
    assert (found.status, found.subclusters) == ("infeasible", None)
    assert found.diagnosis is not None


@pytest.mark.slow
def test_what_lost_is_told() -> None:
    """Families on the chosen devices, and what other pools would cost."""
    found = chosen(Goal(objective="cost"), explain=True)
    assert found.alternatives[0].chosen
    (fast,) = (entry for entry in found.alternatives if entry.family == "for speed")
    assert fast.reason.startswith("cost of a token +")
    assert found.best is not None
    assert fast.scored is not None
    assert fast.scored.estimate.step_seconds < found.best.estimate.step_seconds


def test_a_time_limit_keeps_an_honest_gap() -> None:
    """Feasible or optimal with a bound below the optimum, even in no time at all."""
    exact = cheapest().best
    assert exact is not None
    best = value_of(exact.estimate, "cost")
    for seconds in (0.0, 0.3):
        found = chosen(Goal(objective="cost"), Limits(time_limit_seconds=seconds))
        assert found.objective_bound is not None
        assert 0 < found.objective_bound <= best * (1 + 1e-6)
        assert found.status in ("feasible", "optimal")


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_an_interrupt_keeps_the_best_plan(calls: int) -> None:
    """Ctrl-C inside one of the searches: a valid bound, and the best so far."""
    exact = cheapest().best
    assert exact is not None
    original, left = Explorer._rule_out, iter(range(calls - 1))

    def cut(self: Explorer) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        original(self)

    with patch.object(Explorer, "_rule_out", cut):
        found = choose(*problem(), ASSUMED, Limits(), Goal(objective="cost"))
    assert found.interrupted
    assert (found.best is None) == (calls == 1)
    assert found.objective_bound is not None
    assert found.objective_bound <= value_of(exact.estimate, "cost") * (1 + 1e-6)


def test_searches_of_parts_go_on_until_all_are_proven() -> None:
    """However short the slices are that each gets at first: the end is the same as without any."""

    class After:
        def __init__(self, checks: int) -> None:
            self.left = checks

        def is_set(self) -> bool:
            self.left -= 1
            return self.left < 0

    goal, slices = Goal(objective="cost"), count(20)
    exact = cheapest()

    def short(_: SubClusterCandidates, __: float) -> Deadline:
        return Deadline(flag=After(next(slices) ** 2 // 20))

    original = Explorer.go_on

    def not_the_user(self: Explorer, deadline: Deadline, cutoff_seconds: float) -> None:
        original(self, deadline, cutoff_seconds)
        self.interrupted = False

    spec, model = problem()
    search = BestSearch(
        Estimator(ranked(spec), model), Limits(gap=0.0, target="deepspeed"), goal, Silent(), NO_LIMIT
    )
    with patch.object(SubClusterCandidates, "_slice", short), patch.object(Explorer, "go_on", not_the_user):
        search.run()
    assert next(slices) > 20 + len(search.sub_clusters)
    assert search.status == "optimal"
    assert exact.best is not None
    assert search.value == pytest.approx(value_of(exact.best.estimate, "cost"))
    assert search.bound <= search.value
