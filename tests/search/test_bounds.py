"""Closed-form bounds are never above what a choice really gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import Calibration, LinkPoint
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape
from planner.model.spec import LoraSpec, ModelSpec, TowerSpec
from planner.search.bounds.best import FamilyBounds
from planner.search.bounds.groups import Group, group_bound, searched
from planner.search.bounds.lagrangian import LagrangianBound
from planner.search.bounds.layer_count import BEYOND
from planner.search.bounds.ramp import by_position
from planner.search.bounds.rates import Rates
from planner.search.pipeline import OpenChoice, score
from planner.search.space.choices import Choice, Family, depths, families, orders_of, usable_device_types
from planner.search.space.rings import RingSetup, ring_alone
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored
from planner.targets import TARGETS
from tests.quick import first
from tests.worlds import (
    Problem,
    cluster,
    gpt,
    group,
    plan,
    pool,
    small_problem,
    with_all_at_once,
    with_beside,
    with_constants,
    with_copies,
    with_long_sequences,
    with_long_states,
    with_measurements,
)


@given(st.integers(0, 10**9), st.sampled_from(["megatron", "deepspeed", "torch", "flagscale"]))
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_bounds_hold_for_every_choice(seed: int, target: str) -> None:
    """Family <= choice <= best plan of the choice."""
    hold(Estimator(*small_problem(seed)), Limits(gap=0.0), target)


@pytest.mark.parametrize("seed", first(3, [17, 18, 19, 20]))
def test_bounds_hold_with_matrices_beside_the_layers(seed: int) -> None:
    """They take time of the first stage and room on it, on whichever device type that is cheapest."""
    hold(Estimator(*with_beside(seed)), Limits(gap=0.0, zero=(0, 1)), "torch")


@pytest.mark.parametrize(("seed", "zero", "tp"), [(6, 1, 1), (33, 2, 2), (40, 3, 1), (42, 1, 1), (56, 3, 1)])
def test_bounds_hold_where_groups_share_a_copy(seed: int, zero: int, tp: int) -> None:
    """Pipelines and tensor parallelism with HSDP, which is among the choices."""
    asked = Limits(gap=0.0, zero=(zero,), tp=(tp,), micro_batch=(1,))
    planned = hold(Estimator(*with_copies(seed)), asked, "torch")
    assert any(choice.family.shard_size for choice in planned)


def test_no_copies_between_nodes_that_do_not_talk() -> None:
    """A stage of one type fills its part of a node that two types share; no group leaves a node without cards."""
    alone = cluster(pool("a", gpu=("A100",) * 4 + ("V100",) * 4, nics=()))
    family = Family(
        target="torch", zero=1, recompute="none", tp=1, dp=8, batch=8, micro_batches=8, shard_size=4
    )
    estimator = Estimator(alone, gpt(hidden=1024, global_batch=64))
    assert not list(Rates(estimator, ()).speeds(family))
    assert list(Rates(estimator, ()).speeds(family._replace(shard_size=None)))


def test_bounds_hold_where_the_ends_hide_what_layers_exchange() -> None:
    """A small vocabulary has little to reduce, but its head's kernels run beside the reductions of the layers."""
    hold(Estimator(*with_copies(151)), Limits(gap=0.0, zero=(1,), tp=(2,), micro_batch=(2,)), "torch")


@pytest.mark.parametrize(("tp", "dp", "size"), [(1, 16, 8), (2, 8, 4), (4, 8, 2), (1, 32, 8)])
def test_rings_of_groups_that_share_a_copy_are_those_of_a_stage_alone(tp: int, dp: int, size: int) -> None:
    """But for latency, on nodes that are all alike: a bound that is looser costs time."""
    estimator = Estimator(cluster(pool("a", nodes=4, cards=2)), gpt(hidden=4096, heads=32, global_batch=64))
    rates, pricer = Rates(estimator, ()), estimator.pricer("torch")
    for zero in (1, 2, 3):
        family = Family(
            target="torch",
            zero=zero,
            recompute="none",
            tp=tp,
            dp=dp,
            batch=dp,
            micro_batches=64 // dp,
            shard_size=size,
        )
        (speed,) = rates.speeds(family)
        replicas = group("a", "A100", tp=tp, count=dp, share=64 // dp, steps=64 // dp)
        ring = ring_alone(estimator, (replicas,), RingSetup(pricer.kernels, size))
        assert ring.copies is not None
        copies = replace(ring.copies, latency_seconds=0.0, around_seconds=0.0)
        ring = replace(ring, latency_seconds=0.0, around_seconds=0.0, copies=copies)
        shape = family.shape((1,), 1, 3, estimator.model, "none", tp)
        micro = pricer.micro_batch(shape, replicas, 1, ring)
        assert speed.layer_seconds == pytest.approx(micro.seconds - micro.host_seconds, rel=1e-9)
        tail = pricer.sync_seconds(shape, replicas, ring, micro)
        tail += pricer.update_seconds(shape, replicas, ring)
        assert speed.tail_seconds == pytest.approx(tail, rel=1e-9)


def test_replicas_that_have_no_place_are_not_connected() -> None:
    """Two nodes of four devices have room for two replicas of three, not for three."""
    estimator = Estimator(cluster(pool("a", nodes=2, per_node=4)), gpt(heads=12))
    kernels = estimator.pricer("torch").kernels
    for count, connected in ((2, True), (3, False)):
        replicas = group("a", "A100", tp=3, count=count, share=1)
        assert ring_alone(estimator, (replicas,), RingSetup(kernels)).connected is connected


@pytest.mark.parametrize(
    "problem", [*map(with_long_sequences, (0, 18, 35, 83)), *map(with_long_states, (3, 27, 29))]
)
def test_bounds_hold_where_stages_of_divided_sequences_recompute(problem: Problem) -> None:
    """A stage that recomputes as much as it must has parts of sequences too, not whole ones."""
    hold(Estimator(*problem), Limits(gap=0.0, cp=(2,), zero=(1,)), "torch")


@pytest.mark.parametrize("seed", [4])
def test_bounds_hold_where_the_whole_model_hides_reductions(seed: int) -> None:
    """DeepSpeed reduces under the backward without a pipeline alone; frozen ends hide and have nothing to reduce."""
    hold(Estimator(*with_all_at_once(seed)), Limits(gap=0.0, cp=(2, 4), zero=(0, 1)), "deepspeed")


HIDING = {
    "frozen head": gpt(2, 256, 4, global_batch=4, vocab=200_000, lora=LoraSpec(rank=64)),
    "tower": gpt(2, 1024, 8, global_batch=4, vocab=1000).model_copy(
        update={
            "tied_embeddings": False,
            "tower": TowerSpec(
                projector=(1024, 1024),
                frozen=True,
                layers=24,
                hidden=1024,
                heads=8,
                ffn=4096,
                patch=588,
                tokens=256,
                outputs=16,
                merged=1,
                images=8,
            ),
        }
    ),
}
"""Models with an end that hides what the layers beside it reduce."""


@pytest.mark.parametrize(("what", "gbps"), [("frozen head", 1), ("tower", 10)])
def test_ends_hide_what_layers_reduce(what: str, gbps: float) -> None:
    """The end of a step that is counted for each layer is no more than that of any stage, those with ends too."""
    model = HIDING[what]
    estimator = Estimator(cluster(pool("p", nodes=4, per_node=1, gbps=gbps, cards=1)), model)
    bounds, compared = FamilyBounds(estimator), 0
    usable = usable_device_types(estimator.topology, model)
    for family in families(TARGETS["torch"], Limits(zero=(0, 1), pp=(2,)), model, usable):
        if family.dp != 2 or 2 not in depths(family, Limits(pp=(2,)), model, usable):
            continue
        replicas = (group("p", "A100", count=2, share=2, steps=family.micro_batches),)
        priced = estimator.estimate(plan("torch", family.zero, [1, 1], [replicas, replicas]))
        hidden, shown = sorted(stage.sync_seconds for stage in priced.stages)
        assert hidden < shown
        for speed in bounds.rates.speeds(family):
            assert speed.tail_seconds <= hidden + priced.breakdown.optimizer_seconds
            compared += 1
    assert compared > 1


def test_bounds_hold_where_layers_fit_without_slack() -> None:
    """A device on which the allocator has to give something back holds as many layers as the search lets it."""
    hold(Estimator(*with_all_at_once(325)), Limits(gap=0.0, zero=(3,)), "torch")


def test_no_room_is_smaller_than_what_fits() -> None:
    """The copy that the optimizer makes of gradients takes the place of activations, however many are alive."""
    estimator = Estimator(
        cluster(pool("a"), pool("v", "V100", nodes=2)),
        gpt(24, 2560, 20, global_batch=16, sequence_length=128),
    )
    compared = 0
    for _, _, partition, found in searched(
        (TARGETS["deepspeed"],), estimator, Limits(target="deepspeed"), one_degree=False
    ):
        rates = partition.bounds.rates
        for family, speed in ((each, speed) for each in found[:40] for speed in rates.speeds(each)):
            assert family.dp is not None
            replicas = group(*speed.device_type, count=family.dp, share=family.micro_batches)
            shape = Shape(
                chunks=(1,),
                stage=1,
                depth=3,
                micro_batches=1,
                zero=family.zero,
                recompute="none",
                sequence_parallel=False,
            )
            size = family.micro_batch or 1
            held = rates.pricer(family).footprint(shape, replicas, family.dp, size)
            for alive in (1, 2, 4):
                fitting = [
                    count for count in range(1, 25) if held.least_room(count, float(alive * count)) >= 0
                ]
                assert speed.policies[0].room.layers(alive) >= max(fitting, default=0)
                compared += 1
    assert compared > 100


def hold(estimator: Estimator, limits: Limits, target: str) -> list[Choice]:
    """Bounds of a target's families and choices hold; the choices that have a plan."""
    model, planned = estimator.model, []
    bounds, device_types = FamilyBounds(estimator), usable_device_types(estimator.topology, model)
    for family in families(TARGETS[target], limits, model, device_types):
        found = depths(family, limits, model, device_types)
        if not found:
            continue
        outer = bounds.family_bound(family, max(found))
        first = group_bound(Group((family,)), bounds)
        for depth in found:
            for interleave, schedule in orders_of(family, depth, model, limits):
                own = bounds.bound(family, depth, interleave, schedule=schedule)
                assert outer <= own * (1 + 1e-9)
                choice = Choice(family=family, depth=depth, interleave=interleave, schedule=schedule)
                best = solved(choice, estimator, limits)
                assert max(first, own) <= best * (1 + 1e-9)
                quick_looks_hold(bounds, choice, max(found), best)
                if best < inf:
                    planned.append(choice)
    return planned


def quick_looks_hold(bounds: FamilyBounds, choice: Choice, most: int, seconds: float) -> None:
    """With a cutoff at which a look without sends might leave out a plan of these seconds, it does not."""
    cutoff = seconds * (1 + 1e-6) / BEYOND
    own = bounds.bound(choice.family, choice.depth, choice.interleave, cutoff, choice.schedule)
    assert own <= seconds * (1 + 1e-9)
    if choice.family.dp is None and seconds < inf:
        near = [depth for depth in range(1, most + 1) if abs(depth - choice.depth) < 2]
        for looked in (cutoff, 2 * cutoff):
            ((least, _),) = bounds.of_ranges(choice.family, near, 0.0, looked)
            assert least <= seconds * (1 + 1e-9)
    if choice.family.dp is not None and seconds < inf:
        assert bounds.late([choice.family], [most], cutoff) == [0.0]


def solved(choice: Choice, estimator: Estimator, limits: Limits) -> float:
    """Seconds of the best plan of a choice; infinite without one."""
    opened = OpenChoice(choice, estimator, limits, cutoff_seconds=float("inf"), bound_seconds=0.0)
    for _ in range(200):
        if opened.closed:
            break
        opened.step(float("inf"))
    return opened.best.estimate.step_seconds if opened.best else float("inf")


def test_bounds_hold_for_many_small_layers() -> None:
    """What the end of the step costs once a device is not counted once a layer."""
    spec = cluster(pool("p", per_node=2))
    model = gpt(96, 128, 4, global_batch=2, vocab=128, sequence_length=16)
    estimator, limits = Estimator(spec, model), Limits(gap=0.0, pp=(1,))
    bounds, device_types = FamilyBounds(estimator), usable_device_types(estimator.topology, model)
    for family in families(TARGETS["megatron"], limits, model, device_types):
        best = solved(Choice(family=family, depth=1, interleave=1), estimator, limits)
        assert bounds.bound(family, 1, 1) <= best * (1 + 1e-9)


def test_a_model_too_large_for_every_memory_is_out() -> None:
    """No choice of it is even opened."""
    model = gpt(96, 12288, 96, global_batch=64)
    estimator = Estimator(cluster(pool("p")), model)
    bounds = FamilyBounds(estimator)
    device_types = usable_device_types(estimator.topology, model)
    for family in families(TARGETS["megatron"], Limits(), model, device_types):
        assert bounds.family_bound(family, 8) == float("inf")


def test_slow_networks_raise_the_bound_of_pipelines() -> None:
    """Sends that every stage must do are counted."""
    found = []
    for gbps in (200.0, 1.0):
        estimator = Estimator(cluster(pool("p", nodes=4, cards=1, gbps=gbps)), gpt(global_batch=64))
        device_types = usable_device_types(estimator.topology, estimator.model)
        family = next(
            item
            for item in families(TARGETS["megatron"], Limits(), estimator.model, device_types)
            if (item.tp, item.dp, item.recompute, item.batch, item.zero) == (1, 8, "none", 8, 1)
        )
        found.append(FamilyBounds(estimator).bound(family, 4, 1))
    assert found[1] > 2 * found[0]


def test_measured_collectives_raise_the_bound_of_pipelines() -> None:
    """As a slow network does: gradients take as long as they took when it was measured."""
    found = []
    for rate in (1e12, 1e8):
        points = tuple(
            LinkPoint(link=link, operation="all-gather", members=2, size_bytes=size, seconds=size / rate)
            for link in ("ib", "node:A100")
            for size in (1e6, 1e9)
        )
        spec, model = cluster(pool("p", nodes=4)), gpt(global_batch=64)
        estimator = Estimator(spec, model, Calibration(link_points=points))
        device_types = usable_device_types(estimator.topology, estimator.model)
        family = next(
            item
            for item in families(TARGETS["megatron"], Limits(), estimator.model, device_types)
            if (item.tp, item.dp, item.recompute, item.batch, item.zero) == (1, 8, "none", 8, 1)
        )
        found.append(FamilyBounds(estimator).bound(family, 4, 1))
    assert found[1] > 2 * found[0]


@pytest.mark.slow
@given(st.integers(0, 10**9), st.sampled_from(["megatron", "deepspeed", "torch", "flagscale"]))
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_families_priced_together_are_priced_as_alone(seed: int, target: str) -> None:
    """Speeds, and the bounds of all depths at once, to the last digits."""
    spec, model, calibration = with_measurements(seed) if seed % 2 else with_constants(seed)
    estimator, limits = Estimator(spec, model, calibration), Limits()
    together, device_types = FamilyBounds(estimator), usable_device_types(estimator.topology, model)
    found = list(families(TARGETS[target], limits, model, device_types))
    together.rates.price(found)
    for family in found:
        alone = FamilyBounds(estimator)
        for one, other in zip(together.rates.speeds(family), alone.rates.speeds(family), strict=True):
            assert one.device_type == other.device_type
            assert one.most_layers == other.most_layers
            for name in ("slots", "layer_seconds", "tail_seconds", "first_seconds", "last_seconds"):
                assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12)
            for ours, theirs in zip(one.policies, other.policies, strict=True):
                assert ours.layer_seconds == pytest.approx(theirs.layer_seconds, rel=1e-12)
                assert ours.room.free_bytes == pytest.approx(theirs.room.free_bytes, rel=1e-12)
        possible = depths(family, limits, model, device_types)
        bounds = together.bounds(family, possible, 1) if possible else ()
        for depth, bound in zip(possible, bounds, strict=True):
            assert bound == pytest.approx(alone.bound(family, depth, 1), rel=1e-12)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)), min_size=1, max_size=4), st.integers(1, 20))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_slots_by_position(slots: list[tuple[float, float]], most: int) -> None:
    """A slot stands where those before it end; what is left of a position is empty."""
    found = by_position([count for count, _ in slots], [value for _, value in slots], most)
    begin, expected = 0.0, [0.0] * most
    for count, value in slots:
        for position in range(most):
            part = min(begin + count, position + 1) - max(begin, position)
            expected[position] += max(0.0, part) * value
        begin += count
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "seed",
    [
        2,
        1015,
        1020,
        1026,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, *range(3, 36), 37, 40)),
    ],
)
def test_no_random_plan_beats_a_bound(seed: int) -> None:
    """Pipelines on nodes that hold several stages: neither a step nor one micro-batch of theirs is shorter."""
    draw = random.Random(seed)
    target = draw.choice(["megatron", "deepspeed", "torch", "flagscale"])
    compare_random_plans(target, *on_several_nodes(draw), draw)


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in (*range(3, 32), *range(33, 46)))],
)
def test_no_random_plan_of_divided_and_mixed_stages_beats_a_bound(seed: int) -> None:
    """On nodes of several types that leave devices over: stages on these, and stages of several types."""
    draw = random.Random(seed)
    target = draw.choice(["megatron", "deepspeed", "torch"])
    compare_random_plans(target, *on_odd_nodes(draw), draw)


def compare_random_plans(target: str, spec: ClusterSpec, model: ModelSpec, draw: random.Random) -> None:
    """Bounds of a dozen choices with a few of their plans."""
    estimator, limits = Estimator(spec, model), Limits()
    bounds, device_types = FamilyBounds(estimator), usable_device_types(estimator.topology, model)
    able = [
        (family, depth)
        for family in families(TARGETS[target], limits, model, device_types)
        for depth in depths(family, limits, model, device_types)
        if depth > 1
    ]
    priced = 0
    for family, depth in draw.sample(able, min(len(able), 12)):
        interleave, schedule = draw.choice([*orders_of(family, depth, model, limits)])
        choice = Choice(family=family, depth=depth, interleave=interleave, schedule=schedule)
        own = bounds.bound(family, depth, interleave, schedule=schedule)
        own = max(own, group_bound(Group((family,)), bounds))
        for scored in islice(random_plans(StageOptions(choice, estimator, limits), draw), 6):
            step = scored.estimate.step_seconds
            assert own <= step * (1 + 1e-9), (family, depth, interleave)
            quick_looks_hold(bounds, choice, max(depths(family, limits, model, device_types)), step)
            seconds = estimator.price(scored.plan)
            once = sum(sum(map(sum, each)) for each in (seconds.forward, seconds.backward, seconds.weight))
            assert bounds.once(choice, step * (1 + 1e-9)) <= once * (1 + 1e-9), (family, depth)
            priced += 1
    assert priced


def on_several_nodes(draw: random.Random) -> tuple[ClusterSpec, ModelSpec]:
    """Fast nodes of 2 to 8 devices, of one type or two and perhaps on one host, on a slow network; little memory."""
    per_node, gbps = draw.choice([2, 3, 4, 6, 8]), draw.choice([2.0, 10.0, 100.0])
    memory = draw.choice([1.5, 3, 40])
    gpus = {
        name: GpuSpec(name=name, memory_gib=memory, memory_bandwidth_gBps=900, tflops={"fp16": peak})
        for name, peak in (("A", 312), ("B", draw.choice([65, 200])))
    }
    pools = [pool("a", "A", nodes=draw.randint(2, 3), per_node=per_node, cards=1, gbps=gbps)]
    if draw.random() < 0.4:
        pools.append(pool("b", "B", nodes=draw.randint(1, 2), per_node=per_node, cards=1, gbps=gbps))
    elif draw.random() < 0.5:
        pools[0] = pools[0].model_copy(update={"devices": ("A",) * per_node + ("B",) * 2})
    model = drawn_model(draw, 4)
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.0}), model


def drawn_model(draw: random.Random, least_layers: int) -> ModelSpec:
    """Up to 20 layers."""
    return gpt(
        draw.randint(least_layers, 20),
        draw.choice([512, 1024, 2048]),
        8,
        global_batch=draw.choice([12, 16, 64]),
        sequence_length=draw.choice([256, 1024]),
    )


def on_odd_nodes(draw: random.Random) -> tuple[ClusterSpec, ModelSpec]:
    """Nodes of 3 to 7 devices of one type to three, on a slow network; wires inside are fast or slow."""
    gpus = {
        name: GpuSpec(
            name=name,
            memory_gib=draw.choice([3, 40]),
            memory_bandwidth_gBps=900,
            tflops={"fp16": draw.choice([65, 200, 312])},
        )
        for name in "ABC"
    }
    pools = [
        pool(
            name.lower(),
            name,
            nodes=draw.randint(1, 4),
            per_node=draw.choice([1, 3, 4, 5, 7]),
            cards=1,
            gbps=draw.choice([2.0, 10.0, 100.0]),
        ).model_copy(update={"intra_node": IntraNodeSpec(bandwidth_gBps=draw.choice([1, 20, 300]))})
        for name in "ABC"[: draw.choice([1, 2, 2, 3])]
    ]
    model = drawn_model(draw, 8)
    used = {name: gpus[name] for each in pools for name in each.devices}
    return cluster(*pools, gpus=used).model_copy(update={"reserve_gib": 0.0}), model


def random_plans(stages: StageOptions, draw: random.Random) -> Iterator[Scored]:
    """Plans of a choice that fit, those of a few drawn at random."""
    layers, depth = stages.estimator.model.layers, stages.choice.depth
    for _ in range(40):
        kinds = draw.sample(
            range(len(stages.compositions)), min(len(stages.compositions), draw.randint(1, 3))
        )
        slots = sorted(draw.choice(kinds) for _ in range(depth)) if kinds else []
        counts = [stages.choice.interleave] * depth
        most = [stages.most_layers(stage, slot) for stage, slot in enumerate(slots)]
        while sum(counts) < layers:
            room = [stage for stage in range(len(slots)) if counts[stage] < most[stage]]
            if not room:
                break
            counts[draw.choice(room)] += 1
        if not slots or sum(counts) < layers:
            continue
        chosen = [stages.option(stage, slot, counts[stage]) for stage, slot in enumerate(slots)]
        found = score(stages.estimator, stages, chosen)
        if found is not None:
            yield found


@pytest.mark.parametrize("cutoff", [inf, 3.0])
def test_no_stage_that_has_a_neighbour(cutoff: float) -> None:
    """Where all devices together are needed to hold a micro-batch, no part has any sends: there is no pipeline."""
    bound = LagrangianBound((), (12,), 2, 1)
    assert bound.bound(2, cutoff=cutoff) >= cutoff
    assert bound.once(2, 3.0) == inf
