"""A batch per device: every way to choose devices gets its best shares, also when groups of them share the states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED, Calibration, LinkPoint
from planner.cluster.spec import ClusterSpec, FabricLinkSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.dims.sharding import node_sizes, shard_sizes
from planner.plan.placement import place
from planner.plan.values import Plan
from planner.search.data_parallel import DataParallel, Shares, choices
from planner.search.solve import search
from planner.search.space.device_sets import Box, Counts
from planner.search.space.partitions import network_partitions
from planner.search.space.rings import RingSetup, ring_alone
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.quick import first
from tests.search.exhaustive import plans
from tests.worlds import cluster, gpt, pool, with_fast_nodes

ROW = TARGETS["torch"]
ONE_STAGE = Limits(gap=0.0, target="torch", pp=(1,), tp=(1,))


def shares_of(estimator: Estimator, limits: Limits) -> Iterator[Shares]:
    """All choices of torch."""
    for choice in choices(ROW, limits, estimator):
        yield Shares(choice, estimator, limits)


@pytest.mark.parametrize(("zero", "parts"), [(1, [(5, 8), (5, 7)]), (3, [(5, 8), (3, 7), (2, 7)])])
def test_parts_of_a_device_type(zero: int, parts: list[tuple[int, int]]) -> None:
    """Five of ten devices get a sequence less; where nodes share the states, three of them fill the others' node."""
    estimator = Estimator(cluster(pool("a", nodes=3, per_node=4)), gpt())
    wanted = DataParallel(target="torch", zero=zero, recompute="none", shard_size=4 if zero == 3 else None)
    shares = Shares(wanted, estimator, ONE_STAGE)
    assert list(shares._parts(shares.device_types[0], 10, 5, 8)) == parts


def test_measured_collectives_count_before_a_set_is_known() -> None:
    """No set with four devices or more adds its gradients up faster than such a link was seen to do."""
    bounds = []
    for rate in (1e12, 1e8):
        points = tuple(
            LinkPoint(link=link, operation="all-gather", members=4, size_bytes=size, seconds=size / rate)
            for link in ("ib", "node:A100")
            for size in (1e6, 1e9)
        )
        spec, calibration = cluster(pool("a", nodes=4, per_node=2)), Calibration(link_points=points)
        wanted = DataParallel(target="torch", zero=0, recompute="none")
        shares = Shares(wanted, Estimator(spec, gpt(), calibration), ONE_STAGE)
        bounds.append(shares.bound(Box((4,), (8,))))
    assert bounds[1] > 2 * bounds[0]


def all_counts(shares: Shares) -> Iterator[Counts]:
    """Every set of devices, by halving until nothing is left to halve."""
    waiting = [shares.sets]
    while waiting:
        box = waiting.pop()
        if box.single:
            yield box.low
        else:
            waiting += shares.halves(box)


def best_of_sets(shares: Shares) -> float:
    """Least step of all sets of devices that fit; their bounds hold."""
    best = float("inf")
    for counts in all_counts(shares):
        bound, plan = shares.best(counts)
        assert shares.bound(Box(counts, counts)) <= bound * (1 + 1e-9)
        if plan is not None:
            estimate = shares.estimator.estimate(plan)
            assert bound <= estimate.step_seconds * (1 + 1e-12)
            best = min(best, estimate.step_seconds if estimate.fits else best)
    return best


@pytest.mark.slow
@given(st.integers(0, 10**9))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
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
        assert best_of_sets(shares) == pytest.approx(best if best < 1e99 else float("inf"), rel=1e-6)


def test_sizes_of_groups() -> None:
    """Replicas of a part of a node, of a node and of a pool, where there are two such groups.

    Whatever else there is, and only with a ZeRO that the target splits.
    """
    two = cluster(pool("a", nodes=2), pool("b", "V100", nodes=4, per_node=4))
    assert shard_sizes(ROW, 3, Topology(two).device_types) == (2, 4, 8, 16)
    assert shard_sizes(ROW, 3, Topology(two).device_types, 2) == (2, 4, 8)
    assert node_sizes(ROW, 3, Topology(two).device_types, 2) == (2, 4)
    assert shard_sizes(ROW, 3, Topology(cluster(pool("a", nodes=2))).device_types) == (2, 4, 8)
    assert node_sizes(ROW, 3, Topology(cluster(pool("a", nodes=2))).device_types, 1) == (8,)
    lone = cluster(pool("a", per_node=3), pool("b", "V100", per_node=1))
    assert shard_sizes(ROW, 3, Topology(lone).device_types) == ()
    assert shard_sizes(ROW, 0, Topology(two).device_types) == ()
    assert shard_sizes(TARGETS["deepspeed"], 3, Topology(two).device_types) == ()


def shares_of_groups(spec: ClusterSpec, batch: int, size: int | None) -> Shares:
    """ZeRO 2 of torch in groups."""
    choice = DataParallel(target="torch", zero=2, recompute="none", shard_size=size)
    return Shares(choice, Estimator(spec, gpt(4, 512, 8, global_batch=batch)), ONE_STAGE)


def test_devices_come_in_groups() -> None:
    """Whole groups of one type, at least two of them in all, and a sequence for each device."""
    spec = cluster(pool("a", nodes=2), pool("b", "V100", nodes=2, per_node=4))
    assert sorted(all_counts(shares_of_groups(spec, 64, 8))) == [(8, 8), (16, 0), (16, 8)]
    wanted = [(a, b) for a in (0, 4, 8, 12, 16) for b in (0, 4, 8) if 4 < a + b <= 20]
    assert sorted(all_counts(shares_of_groups(spec, 20, 4))) == wanted


def test_all_sets_of_devices_are_in_the_space() -> None:
    """No number is left out, however many devices of a type there are."""
    spec = cluster(pool("a", nodes=2), pool("b", "V100", nodes=3, per_node=5))
    wanted = [(a, b) for a in range(17) for b in range(16) if a + b]
    assert sorted(all_counts(shares_of_groups(spec, 64, None))) == wanted


@given(st.integers(0, 10**9))
@settings(max_examples=3, deadline=None)
def test_no_set_of_a_box_is_faster_than_its_bound(seed: int) -> None:
    """Random boxes of clusters with odd nodes, several fabrics and gateways; random sets in them."""
    draw = random.Random(seed)
    spec, model = odd_cluster(draw), gpt(4, 512, 8, global_batch=draw.choice([1, 7, 64, 1000, 99991]))
    for row in (TARGETS["deepspeed"], ROW):
        found = [
            Shares(choice, partition.estimator, Limits())
            for partition in network_partitions(Estimator(spec, model), row).values()
            for choice in choices(row, Limits(), partition.estimator)
        ]
        for shares in draw.sample(found, min(len(found), 4)):
            box = shares.sets
            while not box.single and (parts := list(shares.halves(box))):
                smaller = draw.choice(parts)
                assert shares.bound(smaller) >= shares.bound(box) * (1 - 1e-6)
                box = smaller
                for counts in (box.fullest(shares.batch, shares.unit), random_set(box, shares.unit, draw)):
                    plan = shares.plan(counts)
                    if plan is not None:
                        step = shares.estimator.estimate(plan).step_seconds
                        assert shares.bound(box) <= step * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_ring_of_a_set_has_less_latency_than_its_bound(seed: int) -> None:
    """However many devices of each type get a sequence less and so stand apart from the others; hops between nodes may
    be shorter than those inside."""
    draw = random.Random(seed)
    spec = odd_cluster(draw)
    fabrics = {
        name: fabric.model_copy(update={"latency_us": draw.choice([1.0, 10.0])})
        for name, fabric in spec.fabrics.items()
    }
    estimator = Estimator(spec.model_copy(update={"fabrics": fabrics}), gpt(4, 512, 8, global_batch=999))
    for partition in network_partitions(estimator, TARGETS["deepspeed"]).values():
        shares = Shares(
            next(iter(choices(TARGETS["deepspeed"], Limits(), partition.estimator))),
            partition.estimator,
            Limits(),
        )
        for _ in range(10):
            counts = random_set(shares.sets, 1, draw)
            if sum(counts) < 2 or not shares._ring(counts).connected:
                continue
            bound = shares._fastest_ring(Box(counts, counts))
            groups = [
                shares._group(device_type, number, share, 1)
                for device_type, count in zip(shares.device_types, counts, strict=True)
                for part in (draw.randint(0, count),)
                for number, share in ((count - part, 2), (part, 1))
                if number
            ]
            ring = ring_alone(partition.estimator, tuple(groups), RingSetup(shares.pricer.kernels))
            assert ring.latency_seconds >= bound.latency_seconds * (1 - 1e-9)
            assert ring.around_seconds is not None
            assert bound.around_seconds is not None
            assert ring.around_seconds >= bound.around_seconds * (1 - 1e-9)


def odd_cluster(draw: random.Random) -> ClusterSpec:
    """Nodes of 1 to 7 devices on two fabrics that a slow link joins."""
    pools = [
        pool(
            name,
            draw.choice(["A100", "V100"]),
            nodes=draw.choice([1, 2, 3]),
            per_node=draw.choice([1, 2, 3, 5, 6, 7]),
            fabric=draw.choice(["ib", "eth"]),
            gbps=draw.choice([10, 100, 400]),
        )
        for name in "abc"[: draw.randint(1, 3)]
    ]
    spec = cluster(*pools)
    if {"ib", "eth"} <= set(spec.fabrics):
        link = FabricLinkSpec(between=("ib", "eth"), bandwidth_gbps=draw.choice([1, 10]), latency_us=100)
        spec = spec.model_copy(update={"links": (link,)})
    return spec


def random_set(box: Box, unit: int, draw: random.Random) -> Counts:
    """Any set of a box."""
    return tuple(draw.randrange(low, high + 1, unit) for low, high in zip(box.low, box.high, strict=True))


@pytest.mark.parametrize("batch", first(2, [1, 1009, 65536, 10**6]))
def test_large_batches_are_dealt_whole(batch: int) -> None:
    """One sequence to a million: all of them, and the bound is that of the plan."""
    spec = cluster(pool("a", per_node=3), pool("b", "V100", nodes=2, per_node=2))
    estimator = Estimator(spec, gpt(4, 512, 8, global_batch=batch))
    for choice in choices(ROW, Limits(), estimator):
        shares = Shares(choice, estimator, Limits())
        counts = shares.sets.fullest(batch, shares.unit)
        bound, plan = shares.best(counts)
        if plan is not None:
            assert plan.global_batch == batch
            assert estimator.estimate(plan).step_seconds == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("batch", range(16, 40))
def test_groups_stay_inside_nodes_whatever_the_batch(batch: int) -> None:
    """Some devices of a type get one sequence less; their group is still on one node."""
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
    """13 billion parameters on two nodes: they fit only if sharded, and need not cross in every micro-batch."""
    spec = cluster(pool("a", nodes=2, gbps=200, cards=4))
    model = gpt(40, 5120, 40, global_batch=128, sequence_length=4096, precision="bf16")
    found = search(spec, model, ASSUMED, Limits(target="torch", pp=(1,), tp=(1,)), explain=False)
    assert found.status == "optimal"
    assert found.best is not None
    assert chosen(found.best.plan) == (3, 8, 1)
    own = found.best.estimate
    estimator = Estimator(spec, model)
    others = [
        estimator.estimate(shares.plan((16,)) or found.best.plan)
        for shares in shares_of(estimator, Limits(target="torch", pp=(1,), tp=(1,), recompute=("none",)))
        if shares.choice.shard_size is None and shares.plan((16,)) is not None
    ]
    assert others
    for other in others:
        assert other.breakdown.zero_seconds > 2 * own.breakdown.zero_seconds or not other.fits


def test_a_slow_network_makes_groups_worth_more() -> None:
    """Of all devices of two nodes: what ZeRO 3 saves by groups grows as the network gets slower."""
    model = gpt(32, 4096, 32, global_batch=64, sequence_length=4096, precision="bf16")
    savings = []
    for gbps in (200, 50, 25):
        spec = cluster(pool("a", nodes=2, fabric="eth", gbps=gbps, cards=1))
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


@pytest.mark.parametrize("layers", [4, 60, 90, 400])
def test_groups_of_shards_are_no_faster_than_one_copy(layers: int) -> None:
    """Nor have they room where one copy on all devices has none: the search looks at neither then."""
    pools = pool("a", per_node=2, nodes=4), pool("b", "V100", per_node=2, nodes=2)
    estimator = Estimator(cluster(*pools), gpt(layers, 4096, 32, global_batch=32))
    found = {shares.choice: shares for shares in shares_of(estimator, Limits(target="torch"))}
    rooms = set[tuple[bool, bool]]()
    for choice, shares in found.items():
        if choice.shard_size is None:
            continue
        whole = found[replace(choice, shard_size=None)]
        assert whole.bound(whole.sets) <= shares.bound(shares.sets)
        for device_type in shares.device_types:
            most = whole.most_sequences(device_type, sum(whole.sets.high))
            group = shares._group(device_type)
            own = shares.pricer.most_sequences(shares._shape, group, choice.shard_size, 32)
            assert own <= most
            rooms.add((own > 0, most > 0))
    assert rooms >= {4: {(True, True)}, 400: {(False, False)}}.get(layers, {(False, True)})
