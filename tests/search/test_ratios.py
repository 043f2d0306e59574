"""What a plan rests on where speeds are not well known, and the plan that regrets least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import hypot, sqrt

import pytest

from planner.calibration.values import (
    ASSUMED,
    Calibration,
    Constant,
    GpuFamily,
    LayerPoint,
    Link,
    LinkPoint,
    Residual,
)
from planner.capabilities import Recompute
from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.values import Plan
from planner.search.deadline import Deadline
from planner.search.explain.bars import ErrorBar, device_bars, network_bars, scaled, with_families
from planner.search.explain.ratios import NOT_WEIGHED, ONE_SPEED
from planner.search.explain.reasons import LEFT_OUT
from planner.search.objectives.choose import choose
from planner.search.ranking import ranked
from planner.search.solve import search
from planner.search.values import Goal, Limits, SearchResult
from tests import worlds
from tests.quick import first
from tests.search.exhaustive import plans

ROBUST = Goal(robust=True)
UNKNOWN = 0.4
"""Spread of a step on a family that nobody has run."""
NEWEST = GpuSpec(
    name="new",
    memory_gib=80,
    memory_bandwidth_gBps=2039,
    tflops={"fp16": 312},
    family="New",
)
KNOWN = NEWEST.model_copy(update={"name": "old", "family": "Old"})


def constants(family: str, spread: float, provenance: str = "fitted") -> tuple[Constant, ...]:
    """All that a micro-batch depends on, known this well."""
    values = {"matmul_efficiency": 0.7, "attention_efficiency": 0.5, "memory_efficiency": 0.8}
    return tuple(
        Constant(name=f"families.{family}.{key}", value=value, provenance=provenance, spread=spread)  # type: ignore[arg-type]
        for key, value in values.items()
    )


def calibration(*own: Constant) -> Calibration:
    """Runs of the old family are known; constants of both, and what is said of the new ones."""
    return Calibration(
        families={name: GpuFamily(matmul_efficiency=0.7) for name in ("Old", "New")},
        residuals=(Residual(family="Old", framework="megatron", rows=50, spread=0.1),),
        constants=(*constants("Old", 0.03), *own),
        default_spread=UNKNOWN,
    )


def halves() -> tuple[ClusterSpec, ModelSpec]:
    """Two devices of a family that is known and two, alike on paper, of one that is not."""
    pools = (
        worlds.pool("old", "old", per_node=2, cards=4),
        worlds.pool("new", "new", per_node=2, cards=4),
    )
    cluster = worlds.cluster(*pools, gpus={"old": KNOWN, "new": NEWEST})
    return cluster, worlds.gpt(layers=12, hidden=2048, global_batch=32)


LIMITS = Limits(target="deepspeed", zero=(1,), gap=0.0)


@cache
def unmeasured() -> tuple[Calibration, SearchResult]:
    """Speeds of the new family that nobody has measured, and the answer on both halves."""
    known = calibration(*constants("New", 0.05))
    return known, choose(*halves(), known, LIMITS, Goal())


def test_a_ratio_that_nobody_measured_is_told() -> None:
    """The wide bar of the unknown family: its constants, and what unknown families are off by beyond known ones."""
    _, found = unmeasured()
    (ratio,) = found.ratios
    assert ratio.gpus == ("new",)
    assert ratio.against == ("old",)
    assert ratio.measure == ("new",)
    unseen = sqrt(UNKNOWN**2 - 0.1**2)
    assert unseen < ratio.bar < hypot(unseen, 0.05, 0.03)
    assert ratio.slower_than is not None
    assert 1 / (1 + ratio.bar) <= ratio.slower_than < 1
    assert ratio.regret >= 0.05
    assert ratio.scored.plan != found.best.plan  # type: ignore[union-attr]


def test_a_ratio_rests_on_what_families_have_of_their_own() -> None:
    """What is unknown of kernels is common to both devices; a family whose constants are worse known keeps these."""
    cluster, model = halves()
    usual, found = unmeasured()

    def bar(own: float) -> float:
        known = replace(usual, device_spread=own)
        return {item.name: item.spread for item in _bars(found, cluster, model, known)}["New"]

    assert bar(0.15) == pytest.approx(0.15)
    assert 0.02 < bar(0.01) == bar(0.001) < 0.05


@pytest.mark.slow
def test_a_measurement_settles_it() -> None:
    """The user's own constants have narrow bars, whatever families without runs are off by."""
    found = choose(*halves(), calibration(*constants("New", 0.02, "measured")), LIMITS, Goal())
    assert found.best is not None
    assert found.ratios == ()


@pytest.mark.slow
def test_measured_layers_settle_it() -> None:
    """Layers of the very model need no constants."""
    cluster, model = halves()
    layers = tuple(
        LayerPoint(
            gpu="new",
            model=model.name,
            tp=tp,
            micro_batch=size,
            forward_seconds=1e-3 * size / tp,
            backward_seconds=2e-3 * size / tp,
            spread=0.01,
        )
        for tp in (1, 2, 4)
        for size in (1, 2, 4, 8, 16, 32, 64)
    )
    known = replace(calibration(*constants("New", 0.05)), layers=layers)
    found = choose(cluster, model, known, LIMITS, Goal())
    bars = {bar.name: bar.spread for bar in _bars(found, cluster, model, known)}
    assert 0.05 <= bars["New"] < 0.08
    assert found.ratios == ()


def _bars(
    found: SearchResult, cluster: ClusterSpec, model: ModelSpec, known: Calibration
) -> tuple[ErrorBar, ...]:
    assert found.best is not None
    plans = [found.best, *(entry.scored for entry in found.alternatives if entry.scored)]
    return device_bars(plans, Estimator(with_families(ranked(cluster)), model, known))


@pytest.mark.parametrize("faster", [False, True])
def test_the_plan_changes_where_it_says(faster: bool) -> None:
    """A whole search at that factor finds a better plan; at the speeds of the cost model there is none."""
    cluster, model = halves()
    known, found = unmeasured()
    (ratio,) = found.ratios
    factor = ratio.faster_than if faster else ratio.slower_than
    assert factor is not None
    assert found.best is not None
    assert (factor > 1) == faster
    bar = ErrorBar(section="families", name="New", members=("new",), spread=ratio.bar)
    there = scaled(known, ((bar, factor),))
    again = search(cluster, model, there, LIMITS, explain=False)
    assert again.best is not None
    now = Estimator(cluster, model, there).step_seconds(found.best.plan)
    assert now / again.best.estimate.step_seconds - 1 >= 0.01 * (1 - 1e-6)
    here = search(cluster, model, known, LIMITS, explain=False)
    assert here.best is not None
    assert found.best.estimate.step_seconds <= here.best.estimate.step_seconds * (1 + 1e-6)


def test_a_faster_device_takes_so_much_less_time() -> None:
    """Everything that a device computes has the speed, measured or not, under every set of kernels."""
    cluster, model = halves()
    known = replace(
        calibration(*constants("New", 0.05)),
        families={
            "New": GpuFamily(matmul_efficiency=0.6),
            "New.megatron": GpuFamily(matmul_efficiency=0.4),
            "Old": GpuFamily(),
        },
    )
    plan = worlds.plan("megatron", 0, [24], [(worlds.group("new", "new", share=64, steps=32),)])
    bar = ErrorBar(section="families", name="New", members=("new",), spread=0.3)
    before = Estimator(cluster, model, known).estimate(plan).step_seconds
    after = Estimator(cluster, model, scaled(known, ((bar, 1.3),))).estimate(plan).step_seconds
    assert after == pytest.approx(before / 1.3, rel=1e-9)
    points = tuple(
        LayerPoint(
            gpu="NEW", model="gpt", tp=1, micro_batch=size, forward_seconds=size, backward_seconds=2 * size
        )
        for size in (1, 2)
    )
    layers = scaled(replace(known, layers=points), ((bar, 1.3),)).layers
    assert [point.forward_seconds * 1.3 for point in layers] == pytest.approx([1, 2])


def test_networks_have_bars_too() -> None:
    """By the spreads of their kind, narrow where every fabric of it was measured; measured curves move with them."""
    cluster, model = halves()
    link = Constant(name="links.infiniband.efficiency", value=0.8, provenance="fitted", spread=0.2)
    points = tuple(
        LinkPoint(link="ib", operation="all-reduce", members=2, size_bytes=size, seconds=size / 1e9)
        for size in (1e6, 1e8)
    )
    known = replace(calibration(link), links={"infiniband": Link(efficiency=0.8)})
    (bar,) = network_bars(Estimator(cluster, model, known))
    assert (bar.name, bar.members) == ("infiniband", ("ib",))
    assert bar.spread == pytest.approx(0.2)
    assert scaled(known, ((bar, 0.5),)).links["infiniband"].efficiency == pytest.approx(0.4)
    measured = replace(known, link_points=points)
    (narrow,) = network_bars(Estimator(cluster, model, measured))
    assert narrow.spread < 0.1
    moved = scaled(measured, ((bar, 0.5),)).link_points
    assert [point.seconds for point in moved] == pytest.approx([2e-3, 0.2])


def test_devices_of_no_family_have_speeds_of_their_own() -> None:
    """Two unknown types do not become slower together."""
    cluster, model = worlds.small_problem(3)
    named = with_families(cluster)
    families = {gpu.family for gpu in named.gpus.values()}
    assert len(families) == len(cluster.gpus)
    plan = choose(cluster, model, ASSUMED, Limits(), Goal()).best
    assert plan is not None
    assert Estimator(named, model).step_seconds(plan.plan) == plan.estimate.step_seconds


def test_robust_on_one_node_is_the_usual_answer() -> None:
    """And says that no ratio of speeds matters."""
    cluster = worlds.cluster(worlds.pool("a", per_node=2, nodes=1, nics=()))
    model = worlds.gpt(layers=8, global_batch=16)
    usual, found = (choose(cluster, model, ASSUMED, LIMITS, goal) for goal in (Goal(), ROBUST))
    assert found.best == usual.best
    assert found.hedge is None
    assert found.warnings == (*usual.warnings, ONE_SPEED)
    assert ONE_SPEED not in usual.warnings


@pytest.mark.slow
def test_robust_on_one_device_type_weighs_its_network() -> None:
    """Devices may be fast or slow next to what joins them."""
    cluster = worlds.cluster(worlds.pool("a", per_node=2, nodes=2, fabric="eth", gbps=10, cards=1))
    found = choose(cluster, worlds.gpt(layers=8, global_batch=16), ASSUMED, LIMITS, ROBUST)
    assert found.hedge is not None
    assert any("eth" in speed for speed in found.hedge.speeds)
    assert ONE_SPEED not in found.warnings
    assert NOT_WEIGHED not in found.warnings


def test_time_that_is_up_is_said() -> None:
    """The answer stays; what is missing is named."""
    known = calibration(*constants("New", 0.05))
    found = choose(*halves(), known, LIMITS, ROBUST, deadline=Deadline.after(0.0))
    assert found.hedge is None
    assert found.ratios == ()
    assert found.best is not None
    assert LEFT_OUT in found.warnings
    assert NOT_WEIGHED in found.warnings
    usual = choose(*halves(), known, LIMITS, Goal(), deadline=Deadline.after(0.0))
    assert NOT_WEIGHED not in usual.warnings


def test_robust_keeps_to_the_limits() -> None:
    """No plan that the user does not allow is the answer, however little it would regret."""
    known = calibration(*constants("New", 0.05))
    goal = replace(ROBUST, use_at_most=(("new", 1),))
    found = choose(*halves(), known, Limits(target="megatron", tp=(1,), zero=(1,)), goal)
    assert found.best is not None
    assert found.hedge is not None
    groups = [group for stage in found.best.plan.stages for group in stage.replicas]
    assert all(group.tp == 1 for group in groups)
    assert sum(group.count for group in groups if group.gpu == "new") <= 1


def corners(
    found: SearchResult, cluster: ClusterSpec, model: ModelSpec, known: Calibration
) -> list[Estimator]:
    """Estimators at the speeds of the cost model and at the ends of the widest bars, worked out anew."""
    base = Estimator(with_families(ranked(cluster)), model, known)
    bars = [*_bars(found, cluster, model, known), *network_bars(base)]
    chosen = sorted(bars, key=lambda bar: -bar.spread)[:4]
    ends = product(*([(bar, end) for end in bar.ends] for bar in chosen))
    return [base, *(base.with_calibration(scaled(known, tuple(factors))) for factors in ends)]


def worst_regrets(all_plans: Sequence[Plan], estimators: Iterable[Estimator]) -> dict[Plan, float]:
    """Of every plan over the best of all of them, in its worst corner."""
    worst = dict.fromkeys(all_plans, 0.0)
    for own in estimators:
        seconds = {plan: own.step_seconds(plan) for plan in all_plans}
        least = min(seconds.values())
        worst = {plan: max(worst[plan], seconds[plan] / least - 1) for plan in all_plans}
    return worst


def fitting(cluster: ClusterSpec, model: ModelSpec, known: Calibration, limits: Limits) -> Iterable[Plan]:
    """Every plan of the space that runs and fits."""
    estimator = Estimator(ranked(cluster), model, known)
    for plan in plans(estimator, limits):
        try:
            fits = estimator.estimate(plan).fits
        except PlanError:
            continue
        if fits and not faults(plan, cluster, model):
            yield plan


def test_what_the_fastest_plan_depends_on_is_not_said_of_the_robust_one() -> None:
    """Its regret at worst is said instead."""
    cluster, model, known = worlds.with_constants(2)
    limits = Limits(gap=0.0, target="megatron")
    assert choose(cluster, model, known, limits, Goal()).ratios
    found = choose(cluster, model, known, limits, ROBUST)
    assert found.hedge is not None
    assert found.hedge.slower > 0
    assert found.ratios == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [8, 9])
def test_the_robust_plan_regrets_less_than_the_fastest(seed: int) -> None:
    """By the search's own account for any cluster; nothing is said of one without a choice."""
    cluster, model, known = worlds.with_constants(seed)
    limits = Limits(gap=0.0, target="megatron")
    usual, found = (choose(cluster, model, known, limits, goal) for goal in (Goal(), ROBUST))
    assert (found.best is None) == (usual.best is None)
    if found.hedge is None:
        assert found.best == usual.best
        return
    assert found.best is not None
    assert usual.best is not None
    assert found.hedge.regret <= found.hedge.fastest_regret
    slower = found.best.estimate.step_seconds / usual.best.estimate.step_seconds - 1
    assert found.hedge.slower == pytest.approx(slower, abs=1e-9)
    assert found.bound_seconds <= usual.best.estimate.step_seconds * (1 + 1e-9)
    assert found.gap == pytest.approx(1 - found.bound_seconds / found.best.estimate.step_seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "recompute"), first(1, [(12, ("none",)), *((seed, None) for seed in (6, 12, 13, 24))])
)
def test_against_all_plans(seed: int, recompute: tuple[Recompute, ...] | None) -> None:
    """No plan of the space at all regrets less than the robust one does, over the best of all plans."""
    cluster, model, known = worlds.with_constants(seed)
    known = replace(known, default_spread=0.5)
    limits = Limits(gap=0.0, target="megatron", recompute=recompute)
    usual, found = (choose(cluster, model, known, limits, goal) for goal in (Goal(), ROBUST))
    assert usual.best is not None
    assert found.best is not None
    assert found.hedge is not None
    every = [*fitting(cluster, model, known, limits), found.best.plan, usual.best.plan]
    worst = worst_regrets(every, corners(usual, cluster, model, known))
    assert worst[found.best.plan] == pytest.approx(min(worst.values()), abs=1e-3)
    assert worst[found.best.plan] <= worst[usual.best.plan] + 1e-9
    # The best of the plans that the search knows is no better than the best of all.
    assert found.hedge.regret <= worst[found.best.plan] + 1e-9
    assert (found.hedge.slower > 0) == (seed == 12)
