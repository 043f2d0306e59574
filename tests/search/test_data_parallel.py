"""A batch per device: every way to choose devices gets its best shares, also when groups of them share the states."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration import ASSUMED
from planner.cost.estimate import Estimator
from planner.placement import place
from planner.plan import Plan
from planner.search.data_parallel import DataParallel, Shares, choices
from planner.search.device_counts import device_counts
from planner.search.exhaustive import plans
from planner.search.solve import search
from planner.search.space import shard_sizes
from planner.search.values import Limits
from planner.targets import TARGETS
from planner.topology import Topology
from tests.clusters import cluster, gpt, pool
from tests.search.problems import with_fast_nodes

ROW = TARGETS["torch"]
ONE_STAGE = Limits(gap=0.0, target="torch", pp=(1,), tp=(1,))


def shares_of(estimator: Estimator, limits: Limits) -> Iterator[Shares]:
    """All choices of torch."""
    for choice in choices(ROW, limits, estimator):
        yield Shares(choice, estimator, limits)


def best_of_ways(shares: Shares) -> float:
    """Least step of all ways that fit; their bounds hold."""
    best = float("inf")
    for way in shares.ways():
        plan = shares.plan(way)
        if plan is not None:
            estimate = shares.estimator.estimate(plan)
            assert shares.bound(way) <= estimate.step_seconds
            best = min(best, estimate.step_seconds if estimate.fits else best)
    return best


@given(st.integers(0, 10**9))
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_each_choice_is_solved_exactly(seed: int) -> None:
    """The least step of every ZeRO stage, recomputation and size of groups, against all its plans."""
    zero = seed % 4
    limits = Limits(gap=0.0, target="torch", pp=(1,), tp=(1,), zero=(zero,))
    estimator = Estimator(*with_fast_nodes(seed))
    wanted: dict[tuple[int | None, str], float] = {}
    for plan in plans(estimator, limits):
        estimate = estimator.estimate(plan)
        key = plan.shard_size, plan.stages[0].recompute
        wanted[key] = min(wanted.get(key, float("inf")), estimate.step_seconds if estimate.fits else 1e99)
    for shares in shares_of(estimator, limits):
        best = wanted[shares.choice.shard_size, shares.choice.recompute]
        assert best_of_ways(shares) == pytest.approx(best if best < 1e99 else float("inf"), rel=1e-6)


def test_sizes_of_groups() -> None:
    """Devices of a node and of a pool, where there are two such groups; only with a ZeRO that the target splits."""
    two = cluster(pool("a", nodes=2), pool("b", "V100", nodes=4, per_node=4))
    assert shard_sizes(ROW, 3, Topology(two).kinds) == (4, 8, 16)
    assert shard_sizes(ROW, 3, Topology(cluster(pool("a", nodes=2))).kinds) == (8,)
    assert shard_sizes(ROW, 3, Topology(cluster(pool("a"), pool("b", "V100", per_node=1))).kinds) == ()
    assert shard_sizes(ROW, 0, Topology(two).kinds) == ()
    assert shard_sizes(TARGETS["deepspeed"], 3, Topology(two).kinds) == ()


def test_devices_come_in_groups() -> None:
    """Whole groups of one kind, at least two of them in all."""
    kinds = Topology(cluster(pool("a", nodes=2), pool("b", "V100", nodes=2, per_node=4))).kinds
    assert device_counts(kinds, 64, 8) == [(8, 8), (16, 0), (16, 8)]
    assert device_counts(kinds, 20, 4) == [
        (a, b) for a in (0, 4, 8, 12, 16) for b in (0, 4, 8) if 4 < a + b <= 20
    ]


def test_large_clusters_are_offered_round_numbers_of_groups() -> None:
    """Halves of all of them down to one."""
    kinds = Topology(cluster(pool("a", nodes=512))).kinds
    assert device_counts(kinds, 10**6, 8) == [(8 << shift,) for shift in range(2, 10)]


@pytest.mark.parametrize("batch", range(16, 40))
def test_groups_stay_inside_nodes_whatever_the_batch(batch: int) -> None:
    """Some devices of a kind get one sequence less; their group is still on one node."""
    spec = cluster(pool("a", nodes=2, fabric="eth"), pool("b", "V100", nodes=2, per_node=4, fabric="eth"))
    estimator = Estimator(spec, gpt(4, 512, 8, global_batch=batch))
    for zero in (1, 2, 3):
        choice = DataParallel(target="torch", zero=zero, recompute="none", shard_size=4)
        shares = Shares(choice, estimator, ONE_STAGE)
        for way in ((16, 0), (8, 8), (4, 4), (12, 4)):
            plan = shares.plan(way)
            if plan is not None:
                assert plan.global_batch == batch
                assert estimator.price(plan).rings[0].crosses == "node", (way, plan, place(plan, spec))


def chosen(plan: Plan) -> tuple[int, int | None, int]:
    """ZeRO stage, size of the groups, pipeline stages."""
    return plan.zero, plan.shard_size, plan.pp


def test_a_model_that_fits_in_a_node_is_sharded_there() -> None:
    """13 billion parameters on two nodes: gradients fit only if sharded, and need not cross in every micro-batch."""
    spec = cluster(pool("a", nodes=2, gbps=200, nics=4))
    model = gpt(40, 5120, 40, global_batch=128, sequence_length=4096, precision="bf16")
    found = search(spec, model, ASSUMED, Limits(target="torch"), explain=False)
    assert found.status == "optimal"
    assert found.best is not None
    assert chosen(found.best.plan) == (2, 8, 1)
    own = found.best.estimate
    plain = search(spec, model, ASSUMED, Limits(target="torch", pp=(1,), tp=(1,)), explain=False)
    estimator = Estimator(spec, model)
    others = [
        estimator.estimate(shares.plan((16,)) or found.best.plan)
        for shares in shares_of(estimator, Limits(target="torch", pp=(1,), tp=(1,), recompute=("none",)))
        if shares.choice.shard_size is None and shares.plan((16,)) is not None
    ]
    assert plain.best == found.best
    assert others
    for other in others:
        assert other.breakdown.zero_seconds > 2 * own.breakdown.zero_seconds or not other.fits


def test_a_slow_network_makes_groups_worth_more() -> None:
    """Of all devices of two nodes: what ZeRO 3 saves by groups grows as the network gets slower."""
    model = gpt(32, 4096, 32, global_batch=64, sequence_length=4096, precision="bf16")
    savings = []
    for gbps in (200, 50, 25):
        spec = cluster(pool("a", nodes=2, fabric="eth", gbps=gbps, nics=1))
        estimator = Estimator(spec, model)
        steps = {}
        for size in (None, 8):
            choice = DataParallel(target="torch", zero=3, recompute="full", shard_size=size)
            plan = Shares(choice, estimator, ONE_STAGE).plan((16,))
            assert plan is not None
            steps[size] = estimator.estimate(plan).step_seconds
        savings.append(steps[None] / steps[8])
    assert savings == sorted(savings)
    assert savings[0] > 1.0
