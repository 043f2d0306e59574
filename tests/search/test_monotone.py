"""More rounds, more devices and wider limits never make an answer worse, and no bound is above a plan of a part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.file import shipped
from planner.cli.inputs import Overrides, read_inputs
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.search.explorer import Explorer
from planner.search.ranking import ranked
from planner.search.solve import search
from planner.search.values import Limits, Silent
from tests import worlds
from tests.quick import first
from tests.search.variants import three_pools

ROOT = Path(__file__).parents[2]
SLACK = 1 + 2e-6
"""Tolerance of the solver, twice."""


def grown(spec: ClusterSpec, index: int, nodes: int) -> ClusterSpec:
    """The cluster with more nodes in one pool."""
    chosen = spec.pools[index]
    hosts = (*chosen.hosts, *(f"more-{chosen.name}-{number}" for number in range(nodes)))
    pools = list(spec.pools)
    pools[index] = chosen.model_copy(update={"hosts": hosts})
    return spec.model_copy(update={"pools": tuple(pools)})


@pytest.mark.parametrize(
    ("seed", "target"), first(1, [(15, "flagscale"), (3, None), (15, None), (3, "flagscale")])
)
def test_more_rounds_are_never_worse(seed: int, target: str | None) -> None:
    """A search that stops later has a plan as fast, and a bound as high."""
    spec, model = three_pools(seed)
    estimator, limits = Estimator(ranked(spec), model), Limits(target=target)
    step, bound = float("inf"), 0.0
    for rounds in (1, 4, 16):
        explorer = Explorer(estimator, limits, Silent())
        explorer.run(rounds=rounds)
        if explorer.best is None:
            assert step == float("inf")
            continue
        assert explorer.best.estimate.step_seconds <= step * SLACK
        assert explorer.bound >= bound / SLACK
        step, bound = explorer.best.estimate.step_seconds, explorer.bound


def check_growth(small: ClusterSpec, large: ClusterSpec, model: ModelSpec, limits: Limits) -> None:
    """Within the gap that both were given, and beyond it for what is proven."""
    first = search(small, model, shipped(), limits, explain=False)
    second = search(large, model, shipped(), limits, explain=False)
    if first.best is None:
        return
    step = first.best.estimate.step_seconds
    assert second.best is not None
    assert second.bound_seconds <= step * SLACK
    if second.status == "optimal":
        assert second.best.estimate.step_seconds * (1 - limits.gap) <= step * SLACK


@pytest.mark.parametrize("seed", first(1, [10, 4]))
def test_more_nodes_are_never_worse(seed: int) -> None:
    """Without a gap: the plan of the smaller cluster is one of the larger."""
    spec, model = worlds.small_problem(seed)
    limits = Limits(gap=0.0)
    for index in range(len(spec.pools)):
        if spec.pools[index].nics:
            check_growth(spec, grown(spec, index, 1), model, limits)


@pytest.mark.parametrize("seed", first(1, [3, 1, 0, 2]))
def test_wider_limits_are_never_worse(seed: int) -> None:
    """What was allowed before still is."""
    spec, model = worlds.small_problem(seed)
    tight = Limits(gap=0.0, target="megatron", tp=(1,), zero=(0,))
    for wide in (replace(tight, tp=None), replace(tight, zero=None), replace(tight, target=None)):
        first, second = (search(spec, model, limits=limits, explain=False).best for limits in (tight, wide))
        if first is not None:
            assert second is not None
            assert second.estimate.step_seconds <= first.estimate.step_seconds * SLACK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "model"),
    [("a100_v100_128", "gpt_neo_2.7b"), ("lab", "gpt2_345m"), ("holmes_hybrid", "gpt_3.6b")],
)
def test_shipped_clusters_with_more_nodes(cluster: str, model: str) -> None:
    """Twice the nodes of each pool, one pool after the other."""
    files = ROOT / "cluster_specs" / f"{cluster}.yaml", ROOT / "model_specs" / f"{model}.yaml"
    spec, given = read_inputs(*files, Overrides())
    for index, pool in enumerate(spec.pools):
        larger = grown(spec, index, len(pool.hosts))
        check_growth(spec, larger, given, Limits(time_limit_seconds=60.0))
        spec = larger


@pytest.mark.slow
def test_sixteen_thousand_devices_with_more_time() -> None:
    """A later end keeps the plan at least as fast, though the gap stays open."""
    files = ROOT / "cluster_specs" / "three_sites.yaml", ROOT / "model_specs" / "llama_3_405b.yaml"
    spec, model = read_inputs(*files, Overrides())
    step = float("inf")
    for seconds in (1.0, 4.0, 16.0):
        limits = Limits(time_limit_seconds=seconds)
        best = search(spec, model, shipped(), limits, explain=False).best
        assert best is not None
        assert best.estimate.step_seconds <= step * SLACK
        step = best.estimate.step_seconds
