"""The ILP against every plan of the space, on generated small instances."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED
from planner.capabilities import OFFLOAD_PARTS, V_SHAPED, OffloadPart, Recompute
from planner.cluster.multi_node import dealt
from planner.cluster.spec import HostSpec
from planner.cost.estimate import Estimator
from planner.model.spec import AdapterTarget, DocumentsSpec, ExpertsSpec, LoraSpec, PreferenceSpec
from planner.plan.checks import faults
from planner.plan.placement import widths
from planner.plan.values import ON_DEVICE, Plan, ReplicaGroup, Sync
from planner.search.explorer import Explorer
from planner.search.ranking import ranked
from planner.search.solve import search
from planner.search.space.choices import targets_of
from planner.search.values import Limits, Scored, SearchResult
from planner.targets import TARGETS as DEFINED
from tests.quick import first
from tests.search.exhaustive import exhaustive, fills_nodes, plans
from tests.worlds import (
    Problem,
    small_problem,
    with_adapters,
    with_adapters_of_unlike_layers,
    with_all_at_once,
    with_beside,
    with_constants,
    with_copies,
    with_devices_left_over,
    with_encoders,
    with_experts,
    with_fast_nodes,
    with_four_bits,
    with_further_tokens,
    with_grids,
    with_hosts,
    with_islands,
    with_late_messages,
    with_lone_nodes,
    with_long_documents,
    with_long_sequences,
    with_long_sequences_on_hosts,
    with_long_states,
    with_measurements,
    with_odd_nodes,
    with_racks,
    with_replicas,
    with_shapes,
    with_slow_nodes,
    with_small_nodes,
    with_stacked_layers,
    with_stragglers,
    with_tight_memories,
    with_unequal_steps,
    with_unlike_layers,
    with_unlike_sizes,
    with_user_buffers,
)

SEEDS = st.integers(0, 10**9)
QUICK, MANY = 500, 4_000
"""Plans of a problem of the quick tests and of the slow ones."""
PARTS = 5
"""Tests among which the instances are batches, so that several processes can share them."""

TARGETS = st.sampled_from([None, "megatron", "deepspeed", "flagscale", "torch"])


def check(problem: Problem, asked: Limits, most: int | None = None) -> tuple[Scored | None, Scored | None]:
    """The ILP alone finds the cost of the oracle, and so does the whole search, or a faster plan of another runtime.

    ``most``: leave alone a problem with more plans; each costs the oracle half a millisecond. Returns the answer of
    the whole search and the best of all plans.
    """
    all_plans = None
    if most is not None:
        cluster, model, calibration = problem
        all_plans = list(islice(plans(Estimator(ranked(cluster), model, calibration), asked), most + 1))
        assume(len(all_plans) <= most)
    best = exhaustive(*problem, asked, all_plans)
    found = search(*problem, asked, explain=False)
    if best is None and asked.offload is None and found.best is not None:
        # Host memory is used where nothing fits without; the oracle was not asked for that.
        assert found.best.plan.offload != ON_DEVICE
        return found.best, best
    if is_of_another_runtime(found, best, problem, asked) or fills_no_nodes(found, best, problem):
        assert found.status == "optimal"
    else:
        compare(found, best)
    with (
        patch.object(Explorer, "_others", lambda explorer: iter(())),
        patch.object(Explorer, "_first_plans", lambda explorer: None),
        patch.object(Explorer, "_one_degree", lambda explorer, rounds: None),
        patch.object(Explorer, "_of_runs", lambda explorer: None),
        patch.object(Explorer, "_near", lambda explorer, rounds: None),
    ):
        alone = search(*problem, asked, explain=False)
        if not fills_no_nodes(alone, best, problem):
            compare(alone, best)
    return found.best, best


def fills_no_nodes(found: SearchResult, best: Scored | None, problem: Problem) -> bool:
    """True for a plan that is faster than all of the space, and has stages dealt over nodes that they do not fill.

    The search meets such plans beside those that fill them, and takes them at their price; nothing is proven of others.
    """
    cluster, model, _ = problem
    if found.best is None or best is None or found.best.plan.stage_nodes == 1:
        return False
    plan, seconds = found.best.plan, found.best.estimate.step_seconds
    if seconds >= best.estimate.step_seconds * (1 - 1e-6) or fills_nodes(
        plan, dealt(cluster, plan.stage_nodes)
    ):
        return False
    assert found.best.estimate.fits
    assert not faults(plan, cluster, model)
    return True


def is_of_another_runtime(found: SearchResult, best: Scored | None, problem: Problem, asked: Limits) -> bool:
    """True for a plan of the space of another runtime that is faster than all of the own space.

    Targets with degrees of each stage begin with such plans, which may have tensor parallelism that does not divide
    the sequence. Anything faster that is in no space is an error of the search or of the oracle.
    """
    rows = [row for row in targets_of(asked) if row.dp_per_stage]
    if not rows or found.best is None:
        return False
    limit = best.estimate.step_seconds if best is not None else float("inf")
    if found.best.estimate.step_seconds >= limit * (1 - 1e-6):
        return False
    assert found.best.estimate.fits
    assert found.best.plan.target in {row.name for row in rows}
    assert not faults(found.best.plan, problem[0], problem[1])
    cluster, model, calibration = problem
    others = replace(asked, target=None)
    theirs = plans(Estimator(ranked(cluster), model, calibration), others)
    own = gathered(found.best.plan)
    assert own in (gathered(replace(plan, target=own.target)) for plan in theirs)
    return True


def gathered(plan: Plan) -> Plan:
    """With replicas that are alike in one group: the oracle lists those of data parallelism one by one."""
    stages = []
    for stage in plan.stages:
        counts: Counter[ReplicaGroup] = Counter()
        for group in stage.replicas:
            counts[replace(group, count=1)] += group.count
        replicas = tuple(replace(group, count=count) for group, count in counts.items())
        stages.append(replace(stage, replicas=replicas))
    return replace(plan, stages=tuple(stages))


def limits(seed: int, target: str | None, pp: tuple[int, ...] | None = None) -> Limits:
    """No gap; where torch is offered, whose four ZeRO stages go with everything, two of them at a time."""
    zero = ((0, 1), (2, 3))[seed % 2] if target in (None, "torch") else None
    return Limits(gap=0.0, target=target, zero=zero, pp=pp)


def plain(seed: int) -> Problem:
    """Everything assumed."""
    return *small_problem(seed), ASSUMED


def compare(found: SearchResult, best: Scored | None) -> None:
    """The same cost, never a bound above it, and a plan that fits."""
    if best is None:
        assert found.best is None
        assert found.status == "infeasible"
        return
    assert found.best is not None, best.plan
    assert found.best.estimate.fits
    assert found.best.estimate.step_seconds == pytest.approx(best.estimate.step_seconds, rel=1e-6)
    assert found.bound_seconds <= best.estimate.step_seconds * (1 + 1e-9)
    assert found.status == "optimal"
    assert found.gap <= 1e-5


def answers(
    problem: Callable[[int], Problem], asked: Callable[[int], Limits], seeds: Iterable[int]
) -> Iterator[Plan]:
    """The best plans of problems that have any."""
    for seed in seeds:
        best = search(*problem(seed), asked(seed), explain=False).best
        if best is not None:
            yield best.plan


def met(values: Iterable[object], wanted: set[Any]) -> set[object]:
    """All values up to the one with which nothing is wanted any more."""
    found: set[object] = set()
    for value in values:
        found.add(value)
        if found >= wanted:
            break
    return found


@pytest.mark.parametrize("part", first(2, [1, 2, 0, *range(3, PARTS)]))
@given(seed=SEEDS)
@settings(max_examples=5 // PARTS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_search_finds_what_exhaustion_finds(part: int, seed: int) -> None:
    """All targets that are emitted, the whole space."""
    check(plain(PARTS * seed + part), limits(seed, None), QUICK)


@given(SEEDS, st.sampled_from(["megatron", "deepspeed", "torch"]))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_pipelines_alone(seed: int, target: str) -> None:
    """Only several stages, so that the ILP has to answer."""
    check(plain(seed), limits(seed, target, (2, 3, 4)), QUICK)


def in_bf16(seed: int) -> Problem:
    """The same on devices with units for bf16."""
    where, model, constants = plain(seed)
    able = {
        name: gpu.model_copy(update={"tflops": {"bf16": gpu.tflops["fp16"]}})
        for name, gpu in where.gpus.items()
    }
    return where.model_copy(update={"gpus": able}), model.trained_with(precision="bf16"), constants


@given(SEEDS)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_pipelines_that_divide_states_without_zero(seed: int) -> None:
    """DeepSpeed's in bf16, whose memory and end of a step are those of ZeRO 1 at ZeRO 0."""
    asked = replace(limits(seed, "deepspeed", (1, 2, 3, 4)), zero=((0,), (0, 1))[seed % 2])
    check(in_bf16(seed), asked, QUICK)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_degrees_of_each_stage(seed: int) -> None:
    """The target whose stages have tensor- and data-parallel degrees of their own."""
    check(plain(seed), Limits(gap=0.0, target="flagscale"), QUICK // 2)


@given(SEEDS, TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_constants(seed: int, target: str | None) -> None:
    """Tiles, ramps, hosts, overlaps and links far from what is assumed."""
    check(with_constants(seed), limits(seed, target), QUICK)


def check_safe(seed: int, target: str | None, safe: float, most: int = QUICK) -> None:
    """What keeps the chance small is part of the room, so the proof holds for it; the answer has no greater one."""
    spec, model = small_problem(seed)
    cluster = spec.model_copy(update={"safe": safe})
    best, _ = check((cluster, model, ASSUMED), limits(seed, target), most)
    assert best is None or best.estimate.out_of_memory <= safe * (1 + 1e-9)


CHANCES = st.sampled_from([0.3, 0.05, 0.001])


@given(SEEDS, TARGETS, CHANCES)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_chance_to_run_out_of_memory(seed: int, target: str | None, safe: float) -> None:
    """A plan that may run out of memory more often than the cluster file allows is none."""
    check_safe(seed, target, safe)


@pytest.mark.slow
@given(SEEDS, TARGETS, CHANCES)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_chances_to_run_out_of_memory(seed: int, target: str | None, safe: float) -> None:
    """The same of more of them."""
    check_safe(seed, target, safe, most=MANY)


@given(SEEDS, TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_measured_layers_and_links(seed: int, target: str | None) -> None:
    """One device by measurement, the other by formula; some links by measurement."""
    check(with_measurements(seed), limits(seed, target), QUICK)


@given(SEEDS, TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_shapes(seed: int, target: str | None) -> None:
    """Sequences and heads that are not aligned, softmax that is fused now and then, all number formats."""
    check(with_shapes(seed), limits(seed, target), QUICK)


@given(SEEDS, st.sampled_from(["megatron", "flagscale"]))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_products_that_hide_tensor_parallel_traffic(seed: int, target: str) -> None:
    """In the backward, and by user buffers in both directions."""
    check(with_user_buffers(seed), limits(seed, target), QUICK)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_groups_that_shard_in_nodes(seed: int) -> None:
    """Nodes that are fast inside, where hybrid sharding is the best of all plans now and then."""
    check(with_fast_nodes(seed), Limits(gap=0.0, target="torch", zero=(1 + seed % 3,), pp=(1,)), QUICK)


@given(SEEDS, TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nvlink_between_nodes(seed: int, target: str | None) -> None:
    """Nodes of one rack, whose cards to other nodes are slower; of all runtimes, replicas on several nodes as well."""
    check(with_racks(seed), limits(seed, target), QUICK)


@pytest.mark.slow
@given(SEEDS, TARGETS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_racks(seed: int, target: str | None) -> None:
    """The same of more of them."""
    check(with_racks(seed), limits(seed, target), MANY)


RECOMPUTES: tuple[Recompute, ...] = ("none", "full", "selective")


def check_copies(seed: int, most: int | None = QUICK) -> Plan | None:
    """Groups that share a copy of the states in pipelines, with tensor parallelism and without; the best plan."""
    asked = Limits(
        gap=0.0,
        target="torch",
        zero=(1 + seed // 7 % 3,),
        recompute=(RECOMPUTES[seed % 3],),
        micro_batch=((1,), (1, 2), None)[seed % 3],
    )
    # What data parallelism alone does is tried elsewhere, and has most plans.
    asked = replace(asked, pp=(2, 3), tp=(2,) if seed % 2 else None)
    _, best = check(with_copies(seed), asked, most)
    return best.plan if best else None


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_copies_in_pipelines_and_with_tensor_parallelism(seed: int) -> None:
    """HSDP with several stages, or with replicas of two devices, is searched and proven."""
    check_copies(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_copies_in_pipelines_and_with_tensor_parallelism(seed: int) -> None:
    """The same of more of them."""
    check_copies(seed, most=MANY)


OF_EXPERTS: tuple[AdapterTarget, ...] = ("q_proj", "experts.up_proj", "experts.down_proj")


def check_copies_with_experts(seed: int, most: int | None = QUICK) -> Plan | None:
    """Groups that share a copy of the states and divide the experts; trained whole, beside adapters or frozen."""
    spec, model, calibration = (with_copies, with_fast_nodes)[seed % 3 == 0](seed)
    draw = random.Random(seed)
    experts = ExpertsSpec(
        number=draw.choice([2, 4, 8]),
        top_k=draw.randint(1, 2),
        ffn=draw.choice([512, 1024, 2000]),
        bias=draw.random() < 0.3,
    )
    model = model.model_copy(update={"experts": experts, "layers": min(model.layers, 4)})
    ways: list[dict[str, Any]] = [{}] * 4
    ways += [{"lora": LoraSpec(rank=8, base=base)} for base in (None, "nf4")]
    ways += [{"lora": LoraSpec(rank=8, base=base, targets=OF_EXPERTS)} for base in (None, "nf4")]
    ways += [{"freeze": (part,)} for part in ("mlp", "attention")]
    asked = Limits(
        gap=0.0,
        target="torch",
        zero=(1 + seed // 7 % 3,),
        recompute=(RECOMPUTES[seed % 3],),
        micro_batch=((1,), (1, 2), None)[seed // 3 % 3],
        tp=(1,),
        pp=draw.choice([(1,), (1, 2), (2, 3)]),
        ep=draw.choice([None, (2, 4, 8)]),
    )
    _, best = check((spec, model.trained_with(**draw.choice(ways)), calibration), asked, most)
    return best.plan if best else None


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_copies_with_divided_experts(seed: int) -> None:
    """HSDP over devices that divide the experts is searched and proven."""
    check_copies_with_experts(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_copies_with_divided_experts(seed: int) -> None:
    """The same of more of them."""
    check_copies_with_experts(seed, most=MANY)


@pytest.mark.slow
def test_copies_in_pipelines_are_the_best_now_and_then() -> None:
    """With each ZeRO stage that shards, in pipelines of two and three stages and with tensor parallelism."""
    found = set()
    for seed in (33, 40, 42, 56):
        best = check_copies(seed, None)
        assert best is not None
        found.add((best.zero, best.shard_size, best.pp, best.stages[0].replicas[0].tp))
    assert found == {(2, 2, 2, 2), (3, 2, 2, 1), (3, 2, 3, 1), (1, 2, 2, 1)}


def zero_plus_limits(seed: int) -> Limits:
    """ZeRO 3 of DeepSpeed, every second time with what it may round."""
    return Limits(gap=0.0, target="deepspeed", zero=(3,), tp=(1,), quantised=seed % 2 == 1)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_second_copies_and_rounded_traffic(seed: int) -> None:
    """ZeRO++ on nodes that are fast inside is searched and proven."""
    check(with_fast_nodes(seed), zero_plus_limits(seed), QUICK)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_second_copies_and_rounded_traffic(seed: int) -> None:
    """The same of more of them."""
    check(with_fast_nodes(seed), zero_plus_limits(seed), MANY)


def test_second_copies_are_the_best_now_and_then() -> None:
    """The search has plans with a second copy as the best, others with rounded traffic, and plain ones."""
    found = set()
    for seed in (16, 17, 19):
        best = search(*with_fast_nodes(seed), zero_plus_limits(seed), explain=False).best
        assert best is not None
        found.add((best.plan.zero_plus.secondary, best.plan.zero_plus.lossy))
    assert found == {(None, False), (2, True), (2, False)}


def check_hosts(seed: int, target: str | None, most: int = QUICK) -> None:
    """What may be kept in host memory is where that is faster; unless asked, only where nothing fits without."""
    asked = replace(limits(seed, target), offload=OFFLOAD_PARTS)
    _, best = check(with_hosts(seed), asked, most)
    alone, freely = (
        search(*with_hosts(seed), replace(asked, offload=part), explain=False) for part in (("none",), None)
    )
    compare(freely, alone.best or best)


HOST_TARGETS = st.sampled_from([None, "megatron", "deepspeed", "torch"])


@given(SEEDS, HOST_TARGETS)
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_host_memory(seed: int, target: str | None) -> None:
    """Parts in host memory are the best where exhaustion says so."""
    check_hosts(seed, target)


@pytest.mark.slow
def test_shares_of_the_optimizer_in_pipelines() -> None:
    """Megatron's tenths, and all of it, are the best now and then; each answer is that of exhaustion."""
    asked, found = Limits(gap=0.0, target="megatron", zero=(1,), offload=("optimizer",)), set()
    for seed in (0, 14, 35, 6):
        _, best = check(with_hosts(seed), asked)
        assert best is not None
        found.add((best.plan.pp > 1, best.plan.offload.ratio))
    assert found == {(True, 0.1), (True, 0.4), (True, 0.3), (False, 1.0)}


@pytest.mark.slow
@given(SEEDS, HOST_TARGETS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_with_host_memory(seed: int, target: str | None) -> None:
    """The same of more of them."""
    check_hosts(seed, target, most=MANY)


def small_hosts(seed: int) -> Problem:
    """NVMe behind hosts with little memory, for models of so many layers that its buffers are a small part."""
    spec, model, calibration = with_hosts(seed)
    host = HostSpec(link_gBps=12, memory_gib=4, nvme_gBps=6)
    pools = tuple(item.model_copy(update={"host": host}) for item in spec.pools)
    deep = model.model_copy(update={"layers": 100})
    return spec.model_copy(update={"pools": pools}), deep, calibration


@pytest.mark.parametrize(
    ("target", "seed"),
    first(
        3,
        [
            ("torch", 25),
            ("deepspeed", 20),
            ("deepspeed", 39),
            *((target, seed) for seed in range(20) for target in ("torch", "deepspeed")),
        ],
    ),
)
def test_replicas_of_several_devices_rest_on_hosts(target: str, seed: int) -> None:
    """Some fill nodes of one device; what they keep elsewhere is divided among theirs."""
    parts: tuple[OffloadPart, ...] = ("optimizer", "parameters", "activations")
    check(with_hosts(seed), replace(limits(seed, target), offload=parts, tp=(2,)))


@pytest.mark.slow
def test_nvme_is_the_best_now_and_then() -> None:
    """Where host memory is too small for the optimizer's states; each answer is that of exhaustion."""
    asked = Limits(gap=0.0, target="deepspeed", zero=(3,), tp=(1,), offload=OFFLOAD_PARTS)
    found = set()
    for seed in (2, 5, 6):
        check(small_hosts(seed), asked)
        best = search(*small_hosts(seed), asked, explain=False).best
        found.add(best is not None and best.plan.offload.uses_nvme)
    assert found == {True, False}


def superchips(seed: int) -> Problem:
    """Devices behind links as fast as NVLink-C2C, trained in bf16."""
    spec, model, calibration = with_hosts(seed)
    pools = tuple(
        item.model_copy(update={"host": item.host.model_copy(update={"link_gBps": 300})})
        for item in spec.pools
        if item.host is not None
    )
    gpus = {
        name: gpu.model_copy(update={"tflops": {"bf16": gpu.tflops["fp16"]}})
        for name, gpu in spec.gpus.items()
    }
    half = model.model_copy(
        update={
            "training": model.training.model_copy(update={"precision": "bf16", "optimizer_states": "fp32"})
        }
    )
    return spec.model_copy(update={"pools": pools, "gpus": gpus}), half, calibration


def test_updates_during_the_backward() -> None:
    """On superchips, where they are asked for; shares of the optimizer and all of it are the best now and then."""
    asked = Limits(gap=0.0, target="deepspeed", zero=(3,), tp=(1,), offload=(*OFFLOAD_PARTS, "super"))
    found = set()
    for seed in (2, 4):
        best, _ = check(superchips(seed), asked)
        assert best is not None
        found.add((best.plan.offload.super_offload, best.plan.offload.ratio < 1))
    assert found == {(True, True), (True, False)}


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_unequal_shards(seed: int) -> None:
    """Devices of one type that hold more of what is sharded than those of another."""
    check_unequal(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_unequal_shards(seed: int) -> None:
    """The same of more of them."""
    check_unequal(seed, most=MANY)


def check_unequal(seed: int, most: int = QUICK) -> None:
    """Shards of all parts that a search looks at, on clusters whose memories differ, are searched and proven."""
    check(with_tight_memories(seed), unequal_limits(seed), most)


def unequal_limits(seed: int) -> Limits:
    """One ZeRO stage and one recomputation, each with its turn."""
    recompute = ("none", "full")[seed // 3 % 2]
    return Limits(
        gap=0.0,
        target="torch",
        zero=(1 + seed % 3,),
        pp=(1,),
        tp=(1,),
        recompute=(recompute,),  # type: ignore[arg-type]
        unequal_shards=True,
    )


def test_unequal_shards_are_the_best_now_and_then() -> None:
    """The search has plans with unequal shards and with equal ones as the best."""
    bests = answers(with_tight_memories, unequal_limits, (14, 22))
    assert [plan.unequal_shards for plan in bests] == [False, True]


def check_unequal_steps(seed: int, most: int = QUICK) -> None:
    """Plans of torch, most often pipelines alone, of batches that few numbers divide."""
    depths = (2, 3) if seed % 8 else None
    check(with_unequal_steps(seed), Limits(gap=0.0, target="torch", zero=(seed % 2,), pp=depths), most)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_unequal_steps(seed: int) -> None:
    """Pipelines with a micro-batch less are the best where exhaustion says so."""
    check_unequal_steps(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_unequal_steps(seed: int) -> None:
    """The same of more of them."""
    check_unequal_steps(seed, most=MANY)


def test_unequal_steps_are_the_best_now_and_then() -> None:
    """The search has plans in which replicas run unequal numbers of micro-batches as the best, and others."""
    asked = Limits(gap=0.0, target="torch", zero=(0, 1), pp=(2, 3), tp=(1,))
    bests = answers(with_unequal_steps, lambda seed: asked, range(16))
    assert met((plan.fewer_steps > 0 for plan in bests), {True, False}) == {True, False}


def v_shaped_limits(seed: int) -> Limits:
    """Pipelines of torch, of a ZeRO stage that may be V-shaped."""
    return Limits(gap=0.0, target="torch", zero=(seed % 2,), pp=(2, 3), tp=(1,), recompute=("none",))


def tied_or_not(seed: int) -> Problem:
    """A model whose output layer is its own in two problems of three."""
    spec, model = small_problem(seed)
    return spec, model.model_copy(update={"tied_embeddings": seed % 3 == 0}), ASSUMED


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_v_shaped_pipelines(seed: int) -> None:
    """ZB-V and DualPipeV are the best where exhaustion says so."""
    check(tied_or_not(seed), v_shaped_limits(seed), QUICK)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_v_shaped_pipelines(seed: int) -> None:
    """The same of more of them."""
    check(tied_or_not(seed), v_shaped_limits(seed), MANY)


def test_v_shaped_pipelines_are_the_best_now_and_then() -> None:
    """The search has them as the best, and others."""
    bests = answers(tied_or_not, v_shaped_limits, (17, 20))
    assert [plan.schedule in V_SHAPED for plan in bests] == [False, True]


def check_backups(seed: int, most: int = QUICK) -> None:
    """Up to two replicas that nobody waits for, on devices that vary."""
    asked = Limits(gap=0.0, target="torch", zero=(seed % 2,), pp=(1,), tp=(1,), backup=2)
    check(with_stragglers(seed), asked, most)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_backups(seed: int) -> None:
    """Backup replicas are the best where exhaustion says so."""
    check_backups(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_backups(seed: int) -> None:
    """The same of more of them."""
    check_backups(seed, most=MANY)


def test_backups_are_the_best_now_and_then() -> None:
    """The search has plans with backup replicas and without as the best."""
    asked = Limits(gap=0.0, target="torch", zero=(0, 1), pp=(1,), tp=(1,), backup=2)
    bests = answers(with_stragglers, lambda seed: asked, range(24))
    assert met((plan.backup > 0 for plan in bests), {True, False}) == {True, False}


SYNCS = (
    (Sync(every=10), Sync(every=10, format="int8")),
    (Sync(every=2, method="average", format="bf16"), Sync(rank=4)),
    (Sync(format="int8"), Sync(ratio=0.01)),
)
"""What islands may exchange."""


def check_islands(seed: int, most: int = QUICK) -> None:
    """Islands of everything that torch has, beside ZeRO 0 and 1 without."""
    zero = ((0, 1), (0,))[seed % 2]
    check(
        with_islands(seed), Limits(gap=0.0, target="torch", zero=zero, pp=(1,), syncs=SYNCS[seed % 3]), most
    )


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_islands(seed: int) -> None:
    """Islands at slow links that exchange rarely, or little, are the best where exhaustion says so."""
    check_islands(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_islands(seed: int) -> None:
    """The same of more of them."""
    check_islands(seed, most=MANY)


def test_islands_are_the_best_now_and_then() -> None:
    """The oracle sees plans with islands and without as the best."""
    kinds = {(), ("diloco", "int8"), ("powersgd",), ("topk",)}
    bests = answers(
        with_islands,
        lambda seed: Limits(gap=0.0, target="torch", zero=(0,), pp=(1,), syncs=SYNCS[seed % 3]),
        range(14),
    )
    assert met((plan.sync.kinds for plan in bests), kinds) >= kinds


GRIDS = Limits(gap=0.0, target="torch", pp=(1,), grids=True)


def check_grids(seed: int, most: int = QUICK) -> None:
    """Against tensor parallelism in one dimension, whose plans are few, of the same degree or of smaller ones too."""
    check(with_grids(seed), replace(GRIDS, tp=((4,), (2, 4))[seed % 2]), most)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_grids(seed: int) -> None:
    """Grids of devices are the best where exhaustion says so, and none with a depth is better."""
    check_grids(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_grids(seed: int) -> None:
    """The same of more of them."""
    check_grids(seed, most=MANY)


def test_grids_are_the_best_now_and_then() -> None:
    """The oracle sees plans on grids and others as the best."""
    bests = answers(with_grids, lambda seed: replace(GRIDS, tp=(4,)), (1, 20))
    assert [plan.grid is not None for plan in bests] == [False, True]


def small_nodes(seed: int) -> Limits:
    """With degrees that need several nodes, or all."""
    target = ("torch", "megatron", "deepspeed")[seed % 3]
    return replace(limits(seed, target), tp=((2, 4), None, (2,))[seed // 3 % 3])


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_replicas_on_several_nodes(seed: int) -> None:
    """Replicas that fill several nodes are the best where exhaustion says so, and no bound is above them."""
    check(with_small_nodes(seed), small_nodes(seed), QUICK)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_replicas_on_several_nodes_of_many(seed: int) -> None:
    """The same of more of them."""
    check(with_small_nodes(seed), small_nodes(seed), MANY)


def test_replicas_on_several_nodes_are_the_best_now_and_then() -> None:
    """The oracle sees plans with and without them as the best."""
    for seed, wide in ((2, False), (11, True)):
        best = search(*with_small_nodes(seed), small_nodes(seed), explain=False).best
        assert best is not None
        assert bool(widths(best.plan, with_small_nodes(seed)[0])) == wide


def of_stages(seed: int) -> Limits:
    """Pipelines of runtimes that train adapters in them, half of them as deep as the devices of two pools allow."""
    return limits(seed, ("torch", "deepspeed")[seed % 2], ((2, 3, 4), (4,))[seed // 2 % 2])


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_stages_dealt_over_nodes(seed: int) -> None:
    """Stages that share the nodes they are dealt over are the best where exhaustion says so, and no bound is above."""
    check(with_slow_nodes(seed), of_stages(seed), QUICK)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_stages_dealt_over_nodes(seed: int) -> None:
    """The same of more of them."""
    check(with_slow_nodes(seed), of_stages(seed), MANY)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [719, 807, 818])
def test_stages_dealt_over_the_nodes_of_each_of_two_pools(seed: int) -> None:
    """Problems with more plans than above, in which stages of both pools are dealt."""
    best, _ = check(with_slow_nodes(seed), of_stages(seed))
    assert best is not None
    assert best.plan.stage_nodes == 2


def test_stages_are_dealt_over_nodes_now_and_then() -> None:
    """The oracle sees plans with and without them as the best, over two nodes, three and four, and in two pools."""
    found = [*answers(with_slow_nodes, of_stages, (1, 0, 33, 105, 719, 818))]
    assert [plan.stage_nodes for plan in found] == [1, 2, 3, 4, 2, 2]
    for plan in found[-2:]:
        assert len({group.pool for stage in plan.stages for group in stage.replicas}) == 2


def several_replicas(seed: int) -> Limits:
    """Without a pipeline, with tensor parallelism or with whatever degree."""
    return replace(
        limits(seed, ("torch", "deepspeed")[seed % 2], (1,)), tp=((2,), (2, 4), None)[seed // 4 % 3]
    )


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_replicas_with_batches_of_their_own(seed: int) -> None:
    """Tensor-parallel replicas get the batches that suit them, as exhaustion deals them."""
    check(with_replicas(seed), several_replicas(seed), QUICK)


@pytest.mark.parametrize(("seed", "zero"), [(15, 1), *first(0, [(15, 3), (24, 1), (33, 3)])])
def test_replicas_of_devices_that_vary(seed: int, zero: int) -> None:
    """Each replica waits for its slowest device, and all for the slowest of all: once, not twice."""
    spec, model, _ = with_replicas(seed)
    asked = Limits(gap=0.0, target="torch", zero=(zero,), pp=(1,))
    check((spec, model, with_stragglers(seed)[2]), asked)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_replicas_with_batches_of_their_own(seed: int) -> None:
    """The same of more of them."""
    check(with_replicas(seed), several_replicas(seed), 4 * MANY)


def test_batches_of_tensor_parallel_replicas_differ_now_and_then() -> None:
    """The oracle sees equal and unequal ones as the best."""
    groups = [plan.stages[0].replicas for plan in answers(with_replicas, several_replicas, (31, 25))]
    assert all(each[0].tp > 1 for each in groups)
    kinds = [{(group.local_batch, group.accumulation_steps) for group in each} for each in groups]
    assert [len(each) > 1 for each in kinds] == [False, True]


EXPERT_TARGETS = st.sampled_from([None, "megatron", "megatron", "megatron", "torch", "deepspeed"])


@given(SEEDS, EXPERT_TARGETS)
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_experts(seed: int, target: str | None) -> None:
    """Experts whole on every device or divided over some, where a device has not room for all of them too."""
    check(with_experts(seed), limits(seed, target), QUICK)
    usual = limits(seed, "megatron")
    limited = (replace(usual, ep=(2, 4)), replace(usual, ep=(1, 3)), replace(usual, tp=(2, 4)))
    check(with_experts(seed), limited[seed % 3], QUICK)
    check(dropless(with_experts(seed)), replace(limits(seed, "torch"), ep=(2, 3, 4, 8)), QUICK)


def overlapping(problem: Problem) -> Problem:
    """The same with all-to-alls beside the computation of other micro-batches."""
    spec, model, calibration = problem
    return spec, model.trained_with(expert_overlap=True), calibration


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_experts_beside_computation(seed: int) -> None:
    """Pipelines have several chunks a stage then, and no layers that are recomputed whole."""
    check(overlapping(with_experts(seed)), replace(limits(seed, "megatron"), ep=(2, 4, 8)), QUICK)


def test_experts_that_deepspeed_divides() -> None:
    """In plans of one stage alone, whose bound has the experts of a device and not all of them."""
    found, _ = check(dropless(with_experts(129)), replace(limits(129, "deepspeed"), ep=(2, 4)))
    assert found is not None
    assert found.plan.ep == 2
    assert found.plan.zero in (1, 2)


def dropless(problem: Problem) -> Problem:
    """The same with experts that have room for all tokens, as all runtimes but Megatron train them."""
    spec, model, calibration = problem
    assert model.experts is not None
    experts = model.experts.model_copy(update={"capacity_factor": None})
    return spec, model.model_copy(update={"experts": experts}), calibration


@given(SEEDS)
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_documents_and_paged_moments(seed: int) -> None:
    """Documents in stages of torch, and moments that take room on the host and time on its link."""
    spec, model = small_problem(seed)
    linked = {name: gpu.model_copy(update={"host_link_gBps": 8.0}) for name, gpu in spec.gpus.items()}
    for target, changes in (
        ("torch", {"documents": DocumentsSpec(mean_length=max(2, model.training.sequence_length // 4))}),
        ("deepspeed", {"optimizer": "adamw", "optimizer_states": "paged-int8"}),
    ):
        training = model.training.model_copy(update=changes)
        problem = spec.model_copy(update={"gpus": linked}), model.model_copy(update={"training": training})
        check((*problem, ASSUMED), limits(seed, target), QUICK)


def check_pairs(seed: int, target: str, problem: Callable[[int], Problem] = plain, most: int = QUICK) -> None:
    """Pairs of answers in pipelines, where the parts of a copy, two forwards and their sends go with every stage."""
    spec, model, calibration = problem(seed)
    training = model.training.model_copy(update={"preference": PreferenceSpec()})
    changed = model.model_copy(update={"training": training})
    check((spec, changed, calibration), limits(seed, target, (2, 3, 4)), most)


@given(SEEDS, st.sampled_from(["torch", "deepspeed"]))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_pairs_in_pipelines(seed: int, target: str) -> None:
    """Of both runtimes that have them."""
    check_pairs(seed, target)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(
    SEEDS, st.sampled_from(["torch", "deepspeed"]), st.sampled_from([plain, with_constants, with_fast_nodes])
)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_pairs_in_pipelines(
    part: int, seed: int, target: str, problem: Callable[[int], Problem]
) -> None:
    """The same on more problems."""
    check_pairs(PARTS * seed + part, target, problem, most=MANY)


def test_shared_experts_are_the_best_now_and_then() -> None:
    """The oracle sees experts that all devices of a replica share, and whole ones, as the best with wide replicas."""
    best = [
        search(*with_experts(seed), replace(limits(seed, "megatron"), tp=(2,)), explain=False).best
        for seed in (2, 9)
    ]
    assert [one and one.plan.etp for one in best] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS, target=EXPERT_TARGETS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_experts(part: int, seed: int, target: str | None) -> None:
    """The same on more of them."""
    check(with_experts(PARTS * seed + part), limits(seed, target), 2 * MANY)
    asked = replace(limits(seed, ("torch", "deepspeed")[seed % 2]), ep=(2, 3, 4, 8))
    check(dropless(with_experts(PARTS * seed + part)), asked, 2 * MANY)


UNLIKE_TARGETS = st.sampled_from(["torch", "deepspeed", "megatron", None])


@given(SEEDS, UNLIKE_TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_unlike_layers(seed: int, target: str | None) -> None:
    """Blocks of unlike layers, and others at either end."""
    check(with_unlike_layers(seed), limits(seed, target), QUICK)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_stacked_layers(seed: int) -> None:
    """The same with Megatron, which divides their states by tensor parallelism."""
    check(with_stacked_layers(seed), limits(seed, "megatron"), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_stacked_layers(part: int, seed: int) -> None:
    """The same on more of them."""
    check(with_stacked_layers(PARTS * seed + part), limits(seed, "megatron"), 2 * MANY)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS, target=UNLIKE_TARGETS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_unlike_layers(part: int, seed: int, target: str | None) -> None:
    """The same on more of them."""
    check(with_unlike_layers(PARTS * seed + part), limits(seed, target), 2 * MANY)


def check_beside(seed: int, most: int = QUICK) -> None:
    """Plans of torch, which alone trains such models, in one of two problems pipelines alone."""
    check(with_beside(seed), limits(seed, "torch", (None, (2, 3, 4))[seed // 4 % 2]), most)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_matrices_beside_the_layers(seed: int) -> None:
    """One or several on the first stage, which takes fewer layers for them."""
    check_beside(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_with_matrices_beside_the_layers(part: int, seed: int) -> None:
    """The same of more of them, and in V-shaped pipelines, whose first stage has both ends."""
    check_beside(PARTS * seed + part, most=MANY)
    spec, model, calibration = tied_or_not(seed)
    v_shaped = model.model_copy(update={"beside": with_beside(seed)[1].beside})
    check((spec, v_shaped, calibration), v_shaped_limits(seed), MANY)


def check_unlike_sizes(seed: int, most: int = QUICK) -> None:
    """As if both runtimes had such layers: torch has all but other matrices of attention."""
    target = ("torch", "torch", "megatron")[seed % 3]
    with patch("planner.plan.checks._unusual", lambda row, model: ""):
        check(with_unlike_sizes(seed), limits(seed, target, (None, (2, 3, 4))[seed // 3 % 2]), most)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_layers_of_several_sizes(seed: int) -> None:
    """Blocks, and runs at either end, whose layers have sizes, windows and projections of their own."""
    check_unlike_sizes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_with_layers_of_several_sizes(part: int, seed: int) -> None:
    """The same of more of them."""
    check_unlike_sizes(PARTS * seed + part, most=MANY)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_further_tokens(seed: int) -> None:
    """Modules on the last stage, whose experts are divided like all others."""
    check(with_further_tokens(seed), limits(seed, "megatron"), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_with_further_tokens(part: int, seed: int) -> None:
    """The same of more of them."""
    check(with_further_tokens(PARTS * seed + part), limits(seed, "megatron"), 2 * MANY)


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_encoder_decoders(seed: int) -> None:
    """An encoder on the first stage, whose output all others are sent too."""
    check(with_encoders(seed), limits(seed, ("torch", "deepspeed")[seed % 2]), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_encoder_decoders(part: int, seed: int) -> None:
    """The same of more of them."""
    check(with_encoders(PARTS * seed + part), limits(seed, (None, "torch")[seed % 2]), 2 * MANY)


def test_experts_are_divided_now_and_then() -> None:
    """The oracle sees plans whose experts are divided, in a node and between nodes, and some are the best."""
    asked = Limits(gap=0.0, target="megatron", zero=(0, 1))
    bests = answers(with_experts, lambda seed: asked, (1, 7))
    assert [plan.ep > 1 for plan in bests] == [False, True]


CONTEXT_TARGETS = st.sampled_from(["megatron", "megatron", "megatron", "torch", None])


@given(SEEDS, CONTEXT_TARGETS)
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_long_sequences(seed: int, target: str | None) -> None:
    """Sequences whole on every replica or divided over some, by rings and by all-to-alls."""
    check(with_long_sequences(seed), limits(seed, target), QUICK)
    check(with_long_sequences(seed), replace(limits(seed, "megatron"), cp=((1, 2), (2, 4))[seed % 2]), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS, target=CONTEXT_TARGETS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_long_sequences(part: int, seed: int, target: str | None) -> None:
    """The same on more of them."""
    check(with_long_sequences(PARTS * seed + part), limits(seed, target), 2 * MANY)


@given(SEEDS, CONTEXT_TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_long_sequences_along_states(seed: int, target: str | None) -> None:
    """Where replicas that share sequences exchange tokens for heads of states too."""
    check(with_long_states(seed), replace(limits(seed, target), cp=((1, 2), (2, 4), None)[seed % 3]), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS, target=CONTEXT_TARGETS)
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_long_states(part: int, seed: int, target: str | None) -> None:
    """The same on more of them."""
    check(with_long_states(PARTS * seed + part), replace(limits(seed, target), cp=(1, 2, 4)), 2 * MANY)


def test_sequences_are_divided_along_states_now_and_then() -> None:
    """The oracle sees such plans, and some are the best."""
    asked = Limits(gap=0.0, target="torch", zero=(0, 1))
    bests = answers(with_long_states, lambda seed: asked, (2, 3))
    assert [plan.cp > 1 for plan in bests] == [False, True]


@given(SEEDS, st.sampled_from(["torch", "deepspeed"]))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_adapters_and_frozen_parts_in_pipelines(seed: int, target: str) -> None:
    """Stages train what they have of it."""
    check(with_adapters(seed), limits(seed, target, (2, 3, 4)), QUICK)


def check_adapters_of_unlike_layers(seed: int, most: int = QUICK) -> None:
    """Without a pipeline and in pipelines, as if torch had all matrices of attention."""
    target = ("torch", "torch", "deepspeed")[seed // 3 % 3]
    with patch("planner.plan.checks._unusual", lambda row, model: ""):
        check(
            with_adapters_of_unlike_layers(seed), limits(seed, target, (None, (2, 3, 4))[seed // 9 % 2]), most
        )


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_adapters_and_frozen_parts_of_unlike_layers(seed: int) -> None:
    """Each stage and each end trains what its layers have of it."""
    check_adapters_of_unlike_layers(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_adapters_and_frozen_parts_of_unlike_layers(part: int, seed: int) -> None:
    """The same of more of them."""
    check_adapters_of_unlike_layers(PARTS * seed + part, most=2 * MANY)


@pytest.mark.slow
@given(SEEDS, st.sampled_from(["torch", "deepspeed"]))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_with_adapters_and_frozen_parts(seed: int, target: str) -> None:
    """With or without a pipeline."""
    check(with_adapters(seed), limits(seed, target), MANY)


def check_four_bits(seed: int, most: int | None = None) -> Plan | None:
    """ZeRO 3 of torch, which shards codes, with what may be in host memory."""
    asked = replace(limits(seed, "torch"), zero=(3,), offload=OFFLOAD_PARTS)
    _, best = check(with_four_bits(seed), asked, most)
    return best.plan if best else None


def test_a_base_in_four_bits_in_shards() -> None:
    """On the devices, and on their hosts."""
    bests = [check_four_bits(seed) for seed in (4, 20)]
    assert [plan is not None and plan.offload.anything for plan in bests] == [False, True]


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_bases_in_four_bits_in_shards(seed: int) -> None:
    """The same of more of them."""
    check_four_bits(seed, most=MANY)


def divided(seed: int, target: str) -> Limits:
    """Tensor parallelism at all events."""
    return replace(limits(seed, target), tp=(2, 4))


@given(SEEDS, st.sampled_from(["torch", "deepspeed"]))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_adapters_and_frozen_parts_on_several_devices(seed: int, target: str) -> None:
    """Their products are divided with those beside which they stand."""
    check(with_adapters(seed), divided(seed, target), QUICK)


@pytest.mark.slow
@given(SEEDS, st.sampled_from(["torch", "deepspeed"]))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_adapters_and_frozen_parts_on_several_devices(seed: int, target: str) -> None:
    """The same on more of them."""
    check(with_adapters(seed), divided(seed, target), MANY)


def check_buckets(seed: int, target: str, most: int = QUICK) -> None:
    """Buckets of which even small models fill several."""
    draw, rows = random.Random(seed + 42), {}
    for name in BUCKETED:
        buckets = DEFINED[name].buckets
        assert buckets is not None
        size, each = (10 ** draw.uniform(4.5, 7.5) for _ in range(2))
        changes: dict[str, Any] = (
            {"per_replica": each} if buckets.per_replica else {"elements_without_zero": 2 * size}
        )
        rows[name] = replace(DEFINED[name], buckets=replace(buckets, elements=size, **changes))
    with patch.dict(DEFINED, rows):
        check(with_late_messages(seed), limits(seed, target), most)


BUCKETED = ("megatron", "deepspeed", "flagscale")


@given(SEEDS, st.sampled_from(BUCKETED))
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_buckets_and_late_messages(seed: int, target: str) -> None:
    """How many messages a stage sends depends on its elements, its replicas and its place."""
    check_buckets(seed, target)


@pytest.mark.slow
@given(SEEDS, st.sampled_from(BUCKETED))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_buckets_and_late_messages(seed: int, target: str) -> None:
    """The same of more of them."""
    check_buckets(seed, target, MANY)


def combined(seed: int, target: str) -> Limits:
    """Offloading wherever it is allowed, and in two of three problems sequences that are divided at all events."""
    cp = (None, (2, 4), (1, 2))[seed % 3] if with_all_at_once(seed)[1].experts is None else None
    return replace(limits(seed, target), offload=OFFLOAD_PARTS, cp=cp)


COMBINED = st.sampled_from(["megatron", "deepspeed", "torch"])


@pytest.mark.slow
@given(SEEDS, COMBINED)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_all_at_once(seed: int, target: str) -> None:
    """Divided sequences, experts, dense layers ahead of them, adapters and host memory, one beside another."""
    check(with_all_at_once(seed), combined(seed, target), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS, target=COMBINED)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_all_at_once(part: int, seed: int, target: str) -> None:
    """The same on more of them."""
    check(with_all_at_once(PARTS * seed + part), combined(PARTS * seed + part, target), MANY)


@pytest.mark.parametrize("seed", first(2, [1, 4, *range(8, 20)]))
def test_long_sequences_of_documents(seed: int) -> None:
    """Divided by all-to-alls alone, or whole."""
    asked = replace(limits(seed, ("deepspeed", "torch")[seed % 2]), cp=(1, 2, 4))
    check(with_long_documents(seed), asked)


def with_hosts_of_long_sequences(seed: int) -> tuple[Problem, Limits]:
    """Such a problem, and limits that let some of it rest on hosts and divide sequences."""
    asked = limits(seed, ("deepspeed", "torch")[seed % 4 == 3])
    return with_long_sequences_on_hosts(seed), replace(asked, offload=OFFLOAD_PARTS, cp=(1, 2))


@pytest.mark.parametrize("seed", first(3, [4, 27, 31, *range(5, 27)]))
def test_long_sequences_on_hosts(seed: int) -> None:
    """Replicas that share sequences keep states and checkpoints on their hosts; the first micro-batch copies less."""
    check(*with_hosts_of_long_sequences(seed))


@pytest.mark.parametrize(
    ("problem", "seed"),
    first(
        3,
        [
            (with_hosts, 2),
            (with_long_sequences_on_hosts, 38),
            *((world, seed) for seed in range(20) for world in (with_hosts, with_long_sequences_on_hosts)),
        ],
    ),
)
def test_checkpoints_that_kernels_wait_for(problem: Callable[[int], Problem], seed: int) -> None:
    """Torch copies them in the stream of its kernels: nothing hides them."""
    asked = replace(limits(seed, "torch"), offload=("activations",))
    check(problem(seed), replace(asked, cp=(1, 2)) if problem is with_long_sequences_on_hosts else asked)


def test_long_sequences_rest_on_hosts_now_and_then() -> None:
    """The oracle sees such plans, and some are the best."""
    found = [
        search(*problem, replace(asked, tp=(1,)), explain=False).best
        for problem, asked in map(with_hosts_of_long_sequences, (4, 27, 31))
    ]
    assert all(each is not None and each.plan.cp > 1 and each.plan.offload.anything for each in found)


def test_chunks_that_send_beside_computation() -> None:
    """Bounds take the sends of stages with chunks for as short as Megatron's prices do: else they cut the best plan."""
    seed = 2_578_031
    check(with_long_sequences(seed), limits(seed, "megatron"))


def test_sequences_are_divided_now_and_then() -> None:
    """The oracle sees plans that divide sequences in both ways, and such that do not, as the best."""
    ways = {(False, "ring"), (True, "ring"), (True, "ulysses")}
    asked = Limits(gap=0.0, target="megatron", zero=(0, 1))
    bests = answers(with_long_sequences, lambda seed: asked, range(24))
    assert met(((plan.cp > 1, plan.cp_kind) for plan in bests), ways) == ways


@given(SEEDS, TARGETS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_stragglers(seed: int, target: str | None) -> None:
    """Stages that wait for the slowest of their devices, the longer the more there are: bounds and prices agree."""
    check(with_stragglers(seed), limits(seed, target), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@given(seed=SEEDS, target=TARGETS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_problems_with_stragglers(part: int, seed: int, target: str | None) -> None:
    """The same on more of them."""
    check(with_stragglers(PARTS * seed + part), limits(seed, target), 2 * MANY)


ODD_TARGETS = [("megatron", None), ("flagscale", (1, 2)), ("deepspeed", (2, 3)), ("torch", (2, 3))]


def check_odd_nodes(seed: int, target: str, depths: tuple[int, ...] | None, most: int | None = None) -> None:
    """Stages that fill some nodes and a part of another, and gateways."""
    zero = ((0,), (1,))[seed % 2]
    check(
        with_odd_nodes(seed), Limits(gap=0.0, target=target, pp=depths, zero=zero, recompute=("none",)), most
    )


@pytest.mark.parametrize(("target", "depths"), first(1, ODD_TARGETS))
@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_odd_nodes(target: str, depths: tuple[int, ...] | None, seed: int) -> None:
    """Pipelines and tensor parallelism on nodes of 2 to 7 devices."""
    check_odd_nodes(seed, target, depths, QUICK)


def check_left_over(seed: int, target: str, most: int | None = None) -> None:
    """Stages on what others leave of several nodes."""
    asked = Limits(
        gap=0.0, target=target, pp=(2, 3, 4, 5), tp=(1, 2), zero=((0,), (1,))[seed % 2], recompute=("none",)
    )
    check(with_devices_left_over(seed), asked, most)


def test_the_first_plan_of_another_runtime_may_be_faster_than_all_of_the_own_space() -> None:
    """Tensor parallelism over three devices, which do not divide the sequence."""
    check_odd_nodes(1380, "flagscale", (1, 2))


@pytest.mark.parametrize("seed", first(2, [2, 9, 24, 31, 37]))
def test_devices_left_over(seed: int) -> None:
    """Where these are worth a stage, however slow wires and cards are."""
    check_left_over(seed, "megatron")


def test_stages_that_do_not_fill_their_nodes_may_be_the_best() -> None:
    """Two of two replicas on two nodes of three devices, met beside three of two."""
    check_left_over(1425235, "torch")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron", "deepspeed", "torch"])
@given(SEEDS)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_hundreds_with_devices_left_over(target: str, seed: int) -> None:
    """The same on many more."""
    check_left_over(seed, target, 10 * MANY)


@pytest.mark.parametrize("zero", first(1, [3, 0, 1, 2]))
def test_devices_on_rdma_are_not_bounded_on_sockets(zero: int) -> None:
    """Which constants far from any network say are faster: a runtime of one network uses RDMA where it can."""
    check(with_constants(18399), Limits(gap=0.0, target="deepspeed", zero=(zero,), pp=(1,)))


def check_lone_nodes(seed: int, most: int | None = None) -> None:
    """Pipelines of three stages, some of which come back to a node."""
    target = ("deepspeed", "torch", "flagscale")[seed % 3]
    check(with_lone_nodes(seed), Limits(gap=0.0, target=target, pp=(3,), zero=(seed // 3 % 2,)), most)


@pytest.mark.parametrize("seed", first(1, [27, 25]))
def test_nodes_that_only_others_reach_by_rdma(seed: int) -> None:
    """One of them on RDMA, or both on sockets."""
    check_lone_nodes(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_nodes_that_only_others_reach_by_rdma(seed: int) -> None:
    """The same of more of them."""
    check_lone_nodes(seed, MANY)


@pytest.mark.slow
def test_types_of_one_pool_may_stand_on_different_nodes() -> None:
    """Where the network is faster than what is inside a node, that is the faster ring."""
    check_odd_nodes(145933, "megatron", None)


def test_one_micro_batch_may_take_longer_than_the_durations_of_the_ilp_say() -> None:
    """Sends between device types whose nodes are the same count as if they stayed on one: a bound, not the truth."""
    check_odd_nodes(19197060, "megatron", None)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "depths"), ODD_TARGETS)
@given(SEEDS)
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
def test_hundreds_of_odd_nodes(target: str, depths: tuple[int, ...] | None, seed: int) -> None:
    """The same on many more."""
    check_odd_nodes(seed, target, depths)


@pytest.mark.slow
@given(
    SEEDS,
    TARGETS,
    st.sampled_from([None, (2, 3, 4)]),
    st.sampled_from([plain, with_constants, with_measurements, with_shapes, with_fast_nodes]),
)
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_thousands(
    seed: int, target: str | None, depths: tuple[int, ...] | None, problem: Callable[[int], Problem]
) -> None:
    """The same on many more instances."""
    check(problem(seed), Limits(gap=0.0, target=target, pp=depths))


TRAININGS = (
    {"reduce_dtype": "bf16", "precision": "bf16"},
    {"gradient_dtype": "fp32", "precision": "bf16"},
    {"optimizer": "muon"},
    {"optimizer": "lion"},
    {"optimizer_states": "bf16"},
    {"master_weights": "bf16", "precision": "bf16"},
    {"master_weights": "split", "precision": "bf16"},
    {"documents": DocumentsSpec(mean_length=100)},
)
"""Formats and optimizers that some targets have with some ZeRO stages only, and documents."""


@given(SEEDS, st.sampled_from(["megatron", "deepspeed", "torch"]), st.sampled_from(TRAININGS))
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_formats_of_gradients_and_states(seed: int, target: str, changes: dict[str, Any]) -> None:
    """Stages without them are no plans, and the proof holds with the bytes of each stage."""
    cluster, model, calibration = plain(seed)
    training = model.training.model_copy(update=changes)
    check(
        (cluster, model.model_copy(update={"training": training}), calibration), limits(seed, target), QUICK
    )
