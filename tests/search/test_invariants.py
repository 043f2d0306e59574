"""What must hold for any problem: better hardware never hurts, plans are whole, units do not matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED, Calibration, GpuFamily
from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator, estimate
from planner.model.spec import ModelSpec
from planner.plan.checks import check_plan, faults
from planner.plan.placement import ranks
from planner.search.solve import search
from planner.search.values import Limits, Scored
from planner.targets import TARGETS
from tests.quick import first
from tests.search.variants import three_pools
from tests.worlds import cluster, gpt, pool, small_problem, with_constants, with_shapes

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
SLACK = 1 + 1e-6


def best(
    spec: ClusterSpec, model: ModelSpec, calibration: Calibration = ASSUMED, limits: Limits | None = None
) -> Scored | None:
    """The exact best plan."""
    return search(spec, model, calibration, replace(limits or Limits(), gap=0.0), explain=False).best


def seconds(scored: Scored | None) -> float:
    """Its step; infinite without a plan."""
    return scored.estimate.step_seconds if scored else float("inf")


def gpus(spec: ClusterSpec, change: Callable[[GpuSpec], dict[str, object]]) -> ClusterSpec:
    """Every device type changed."""
    found = {name: gpu.model_copy(update=change(gpu)) for name, gpu in spec.gpus.items()}
    return spec.model_copy(update={"gpus": found})


def pools(spec: ClusterSpec, change: Callable[[PoolSpec], dict[str, object]]) -> ClusterSpec:
    """Every pool changed."""
    found = tuple(item.model_copy(update=change(item)) for item in spec.pools)
    return spec.model_copy(update={"pools": found})


def cards(item: PoolSpec, factor: float) -> dict[str, object]:
    """All network cards of a pool faster by a factor."""
    found = (nic.model_copy(update={"bandwidth_gbps": factor * nic.bandwidth_gbps}) for nic in item.nics)
    return {"nics": tuple(found)}


def wires(item: PoolSpec, factor: float) -> dict[str, object]:
    """The network inside the nodes of a pool faster by a factor."""
    link = item.intra_node
    return {"intra_node": link.model_copy(update={"bandwidth_gBps": factor * link.bandwidth_gBps})}


CHANGES: dict[str, Callable[[ClusterSpec], ClusterSpec]] = {
    "more memory": lambda spec: gpus(spec, lambda gpu: {"memory_gib": 1.5 * gpu.memory_gib}),
    "faster cards": lambda spec: pools(spec, lambda item: cards(item, 4)),
    "a faster network inside nodes": lambda spec: pools(spec, lambda item: wires(item, 4)),
    "faster memory": lambda spec: gpus(
        spec, lambda gpu: {"memory_bandwidth_gBps": 2 * gpu.memory_bandwidth_gBps}
    ),
    "one more pool": lambda spec: one_more_pool(spec),
}


def one_more_pool(spec: ClusterSpec) -> ClusterSpec:
    """A device of another kind on the Ethernet that all share."""
    extra = pool("extra", "V100", per_node=1, fabric="eth", cards=1)
    added = cluster(*spec.pools, extra, gpus=spec.gpus)
    fabrics = {**added.fabrics, **spec.fabrics}
    return added.model_copy(update={"reserve_gib": spec.reserve_gib, "fabrics": fabrics})


@lru_cache(maxsize=8)
def unchanged(seed: int) -> float:
    """The best step of a problem as it is."""
    return seconds(best(*with_constants(seed)))


def check_never_hurts(change: str, seed: int) -> None:
    """The best plan is as fast or faster afterwards."""
    spec, model, calibration = with_constants(seed)
    after = best(CHANGES[change](spec), model, calibration)
    assert seconds(after) <= unchanged(seed) * SLACK


@pytest.mark.parametrize("seed", first(1, [9, 12, 4]))
@pytest.mark.parametrize("change", CHANGES)
def test_better_hardware_never_hurts(change: str, seed: int) -> None:
    """With constants far from the assumed ones too.

    All cards at once: two nodes talk over the widest network they share, and one that only becomes wider by
    name may carry less. A pool, not a node: with a second node a stage takes whole nodes or even parts of one, so
    three of four devices, say, are no longer offered.
    """
    check_never_hurts(change, seed)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@given(SEEDS)
@MANY
def test_better_hardware_never_hurts_in_hundreds(change: str, seed: int) -> None:
    """The same on more problems."""
    check_never_hurts(change, seed)


@given(SEEDS)
@FEW
def test_plans_are_whole(seed: int) -> None:
    """Every layer once, every device at most once, the whole batch in every stage, memory by our own table."""
    spec, model = three_pools(seed)
    found = search(spec, model, explain=False).best
    if found is None:
        return
    plan = found.plan
    check_plan(plan, spec, model)
    layers = [layer for stage in plan.stages for layer in range(stage.first_layer, stage.end_layer)]
    assert layers == list(range(model.layers))
    used = [(rank.host, rank.device) for rank in ranks(plan, spec)]
    assert len(used) == len(set(used)) == plan.devices
    owned = {
        (host, number) for item in spec.pools for host in item.hosts for number in range(len(item.devices))
    }
    assert set(used) <= owned
    for stage in plan.stages:
        assert sum(group.count * group.local_batch for group in stage.replicas) == model.training.global_batch
    for stage_estimate in estimate(plan, spec, model).stages:
        for group in stage_estimate.groups:
            memory = group.memory
            assert memory.used_bytes <= memory.capacity_bytes - memory.reserve_bytes
            assert memory.capacity_bytes == spec.gpus[group.gpu].memory_gib * 2**30


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_a_slower_card_costs_what_crosses_it(target: str, stages: int) -> None:
    """A plan on two nodes is slower the slower their cards are; one inside a node does not notice.

    The embedding is not tied: the sum of its two gradients is priced over the cards even where one node holds both
    copies, since the price of a stage does not know where the others stand.
    """
    model = gpt(8, 1024, 8, global_batch=8).model_copy(update={"tied_embeddings": False})
    for nodes in (1, 2):
        spec = cluster(pool("p", nodes=nodes, per_node=2 // nodes, cards=1))
        plan = best(spec, model, limits=Limits(target=target, pp=(stages,)))
        assert plan is not None
        assert plan.plan.devices == 2
        slow = pools(spec, lambda item: cards(item, 0.1))
        again = estimate(plan.plan, slow, model)
        if nodes == 1:
            assert again.step_seconds == plan.estimate.step_seconds
        else:
            assert again.step_seconds > plan.estimate.step_seconds


@pytest.mark.slow
@given(SEEDS)
@FEW
def test_the_unit_of_time_does_not_matter(seed: int) -> None:
    """All rates times 2 and all latencies and constant times halved halve the step."""
    spec, model, calibration = with_constants(seed)
    slow = best(spec, model, calibration)
    twice = twice_as_fast(spec)
    halved = replace(calibration, families={name: half(item) for name, item in calibration.families.items()})
    fast = best(twice, model, halved)
    assert seconds(fast) == pytest.approx(seconds(slow) / 2, rel=1e-6)
    if slow is not None:
        again = Estimator(twice, model, halved).estimate(slow.plan)
        assert again.step_seconds == pytest.approx(slow.estimate.step_seconds / 2, rel=1e-12)


def half(family: GpuFamily) -> GpuFamily:
    """Constant times of a family halved."""
    return replace(family, kernel_seconds=family.kernel_seconds / 2, launch_seconds=family.launch_seconds / 2)


def twice_as_fast(spec: ClusterSpec) -> ClusterSpec:
    """Every rate doubled, every latency halved."""
    fast = gpus(
        spec,
        lambda gpu: {
            "memory_bandwidth_gBps": 2 * gpu.memory_bandwidth_gBps,
            "tflops": {name: 2 * rate for name, rate in gpu.tflops.items()},
        },
    )
    fast = pools(fast, lambda item: cards(item, 2))
    fast = pools(
        fast,
        lambda item: {
            "intra_node": item.intra_node.model_copy(
                update={
                    "bandwidth_gBps": 2 * item.intra_node.bandwidth_gBps,
                    "latency_us": item.intra_node.latency_us / 2,
                }
            )
        },
    )
    fabrics = {
        name: fabric.model_copy(update={"latency_us": fabric.latency_us / 2})
        for name, fabric in spec.fabrics.items()
    }
    return fast.model_copy(update={"fabrics": fabrics})


@pytest.mark.slow
@given(SEEDS, st.sampled_from(["megatron", "deepspeed"]))
@FEW
def test_a_target_that_expresses_more_is_never_slower(seed: int, narrow: str) -> None:
    """FlagScale runs every pipeline of one device type a stage, without interleaving, at least as fast.

    That is the whole of it: FlagScale has no interleaving, no stage of two types in its space, and no batch per device,
    so the best plan of the other target is compared only where it has none of them, nor comes back to a node, nor
    stands on pools of which only some share RDMA, where Megatron alone gives each group its own network. In fp16
    gradients have the same size everywhere; what differs otherwise (overlap) is in FlagScale's favour, or equal to
    Megatron's.
    """
    spec, model = small_problem(seed)
    limits = Limits(target=narrow, pp=(2, 3, 4))
    found = best(spec, model, limits=limits)
    if (
        found is None
        or found.plan.interleave > 1
        or any(len(stage.replicas) > 1 for stage in found.plan.stages)
    ):
        return
    wide = replace(found.plan, target="flagscale")
    topology, pools = Topology(spec), {group.pool for stage in wide.stages for group in stage.replicas}
    if faults(wide, spec, model) or (topology.islands() and topology.needs_sockets(pools)):
        return
    assert estimate(wide, spec, model).step_seconds <= found.estimate.step_seconds * SLACK
    assert seconds(best(spec, model, limits=replace(limits, target="flagscale"))) <= seconds(found) * SLACK


@pytest.mark.slow
@given(SEEDS, st.sampled_from([{"tp": (1,)}, {"pp": (1,)}, {"zero": (0, 1)}, {"recompute": ("none",)}]))
@FEW
def test_fewer_choices_are_never_faster(seed: int, limit: dict[str, tuple[int, ...]]) -> None:
    """What a limit allows is part of the space, and the free search is the best of the targets that it considers."""
    spec, model, calibration = with_constants(seed)
    free = seconds(best(spec, model, calibration))
    limited = replace(Limits(), **limit)  # type: ignore[arg-type]
    assert free <= seconds(best(spec, model, calibration, limited)) * SLACK
    each = [
        seconds(best(spec, model, calibration, Limits(target=name)))
        for name, row in TARGETS.items()
        if row.by_default
    ]
    assert free == pytest.approx(min(each), rel=1e-6)


@given(SEEDS, st.sampled_from(["megatron", "deepspeed", "flagscale"]))
@FEW
def test_plans_pass_the_plan_checker_in_any_shape(seed: int, target: str) -> None:
    """Sequences that the degree does not divide, single devices on a target with degrees for each stage."""
    spec, model, calibration = with_shapes(seed)
    found = best(spec, model, calibration, Limits(target=target))
    if found is not None:
        check_plan(found.plan, spec, model)


@pytest.mark.parametrize("target", ["megatron", "flagscale"])
@pytest.mark.parametrize(("length", "split"), [(1000, False), (1026, True)])
def test_a_sequence_is_only_split_evenly(target: str, length: int, split: bool) -> None:
    """Three devices of a group cannot share 1000 positions: they keep them whole, FlagScale in a plan of Megatron's."""
    spec = cluster(pool("a", per_node=3))
    model = gpt(4, 1536, 12, global_batch=6, sequence_length=length)
    found = best(spec, model, limits=Limits(target=target, tp=(3,)))
    assert found is not None
    check_plan(found.plan, spec, model)
    assert found.plan.sequence_parallel == split
