"""Quick plans on certain devices."""

from __future__ import annotations

import pytest

from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.training import devices_of
from planner.plan.checks import check_plan
from planner.search.heuristics.quick import Wanted, everywhere, quick_plan
from planner.search.solve import search
from planner.search.values import Limits
from tests.quick import first
from tests.worlds import cluster, gpt, pool

MODEL = gpt(global_batch=64)


def spec() -> ClusterSpec:
    """Eight A100 and eight V100."""
    return cluster(pool("a"), pool("b", "V100"))


@pytest.mark.slow
@pytest.mark.parametrize("name", first(1, ["b", "a"]))
def test_a_pool_alone_is_almost_as_good_as_a_search_of_it(name: str) -> None:
    """Within a tenth of the proven best, on its devices only, and a plan that its target runs."""
    found = quick_plan(Estimator(spec(), MODEL), Limits(), Wanted(pools=frozenset((name,))))
    alone = spec().model_copy(update={"pools": tuple(item for item in spec().pools if item.name == name)})
    best = search(alone, MODEL, explain=False)
    assert found is not None
    assert best.best is not None
    check_plan(found.plan, spec(), MODEL)
    assert {device_type for device_type, _ in devices_of(found.plan)} == {name}
    assert best.bound_seconds <= found.estimate.step_seconds <= 1.1 * best.best.estimate.step_seconds


@pytest.mark.parametrize("target", ["deepspeed", "megatron"])
@pytest.mark.parametrize("least", [1, 5, 8])
def test_what_must_work_does(target: str, least: int) -> None:
    """As many of the slow devices as are asked for."""
    wanted = Wanted(pools=frozenset(("a", "b")), least={("b", "V100"): least})
    found = quick_plan(Estimator(spec(), MODEL), Limits(target=target), wanted)
    assert found is not None
    assert found.plan.target == target
    assert devices_of(found.plan)["b", "V100"] >= least


def test_limits_hold() -> None:
    """Depth and degree of a quick plan are those that are allowed."""
    estimator = Estimator(spec(), MODEL)
    found = quick_plan(estimator, Limits(pp=(2,), tp=(2,)), everywhere(estimator))
    assert found is not None
    assert found.plan.pp == 2
    assert {group.tp for stage in found.plan.stages for group in stage.replicas} == {2}


def test_nothing_where_nothing_fits() -> None:
    """A model far too large."""
    estimator = Estimator(spec(), gpt(96, 12288, 96, global_batch=64))
    assert quick_plan(estimator, Limits(target="deepspeed"), everywhere(estimator)) is None
