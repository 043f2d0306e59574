"""How many pools a file writes equal nodes in changes neither what a plan costs nor what a search finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cluster.equal_pools import joined
from planner.cluster.spec import ClusterSpec
from planner.cost.binding import binding
from planner.cost.estimate import Estimator
from planner.cost.grids import copies_of
from planner.errors import PlanError
from planner.model.spec import ExpertsSpec
from planner.plan.equal_pools import on_joined_pools, on_own_pools
from planner.plan.placement import place, widths
from planner.plan.values import Grid, Plan, ReplicaGroup, Stage, Sync
from planner.search.solve import search
from planner.search.values import Limits
from tests.quick import first
from tests.search.exhaustive import plans
from tests.search.variants import renamed, shuffled
from tests.worlds import Problem, cluster, gpt, pool, with_devices_left_over, with_odd_nodes

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


def split(spec: ClusterSpec, seed: int) -> ClusterSpec:
    """Pools of several nodes as two or more, in parts of any size."""
    draw = random.Random(seed)
    found = []
    for item in spec.pools:
        hosts = item.hosts
        while len(hosts) > 1 and draw.random() < 0.7:
            first = draw.randint(1, len(hosts) - 1)
            found.append(
                item.model_copy(update={"name": f"{item.name}-{len(hosts)}", "hosts": hosts[:first]})
            )
            hosts = hosts[first:]
        found.append(item.model_copy(update={"hosts": hosts}))
    return spec.model_copy(update={"pools": tuple(found)})


def test_equal_pools_become_one() -> None:
    """Those that differ in names and hosts only, whatever the order of their cards."""
    a, b = pool("a", nodes=2), pool("b", nodes=3)
    spec = cluster(a, pool("c", nodes=1, gbps=100), b)
    one, other = joined(spec).pools
    assert one.name == "a"
    assert one.hosts == (*a.hosts, *b.hosts)
    assert other.name == "c"
    dear = spec.model_copy(update={"pools": (a, b.model_copy(update={"price_per_gpu_hour": 2.0}))})
    assert joined(dear) is dear


def test_a_stage_over_the_border_has_a_group_on_each_side() -> None:
    """Full nodes of both pools, and a rest on the second."""
    spec = cluster(pool("a", nodes=2, per_node=4), pool("b", nodes=2, per_node=4))
    whole = ReplicaGroup(pool="a", gpu="A100", tp=1, count=14, local_batch=1, accumulation_steps=1)
    plan = Plan(target="megatron", zero=1, stages=(Stage(first_layer=0, end_layer=4, replicas=(whole,)),))
    own = on_own_pools(plan, joined(spec), spec)
    assert [(group.pool, group.count) for group in own.stages[0].replicas] == [("a", 8), ("b", 6)]
    assert on_joined_pools(own, joined(spec), spec) == plan


def test_islands_of_one_pool_are_islands_of_its_parts() -> None:
    """Of those only that the plan uses."""
    parts = [pool(name, nodes=1, per_node=4) for name in ("a", "b", "c")]
    spec = cluster(*parts, pool("d", "V100", per_node=4))
    groups = [
        ReplicaGroup(pool=name, gpu=gpu, tp=1, count=count, local_batch=1, accumulation_steps=1)
        for name, gpu, count in (("a", "A100", 8), ("d", "V100", 4))
    ]
    stage = Stage(first_layer=0, end_layer=4, replicas=tuple(groups))
    chosen = Plan(target="torch", zero=0, stages=(stage,), sync=Sync(every=500, islands=(("a",), ("d",))))
    own = on_own_pools(chosen, joined(spec), spec)
    assert own.sync.islands == (("a", "b"), ("d",))
    assert on_joined_pools(own, joined(spec), spec) == chosen


@pytest.mark.parametrize("changes", [{"ep": 4}, {"cp": 4}, {"cp": 4, "cp_kind": "ulysses"}], ids=str)
@pytest.mark.parametrize("nodes", [(2,), (1, 1)])
def test_groups_over_nodes_use_the_network_between_equal_pools(
    nodes: tuple[int, ...], changes: dict[str, Any]
) -> None:
    """Experts or parts of sequences on two nodes cost the same in one pool as in two of a node each."""
    experts = ExpertsSpec(number=4, top_k=2, ffn=512) if "ep" in changes else None
    model = gpt(heads=16).model_copy(update={"experts": experts})
    parts = [pool(f"a{number}", nodes=count, per_node=2) for number, count in enumerate(nodes)]
    group = ReplicaGroup(pool="a0", gpu="A100", tp=1, count=4, local_batch=16, accumulation_steps=16)
    stage = Stage(first_layer=0, end_layer=4, replicas=(group,))
    chosen = Plan(target="megatron", zero=1, stages=(stage,), **changes)
    whole = cluster(pool("a0", nodes=2, per_node=2))
    own = on_own_pools(chosen, joined(cluster(*parts)), cluster(*parts))
    assert len(own.stages[0].replicas) == len(nodes)
    one, other = Estimator(whole, model), Estimator(cluster(*parts), model)
    assert one.estimate(chosen).breakdown == other.estimate(own).breakdown
    assert binding(chosen, one).links == binding(own, other).links


def check_prices(seed: int, problem: Callable[[int], Problem] = with_odd_nodes) -> None:
    """Every plan on joined pools costs the same on those of the file, and comes back as it was."""
    spec, model, calibration = problem(seed)
    spec = split(spec, seed)
    seen = Estimator(joined(spec), model, calibration)
    own = Estimator(spec, model, calibration)
    limits = Limits(target="megatron", zero=(1,), recompute=("none",))
    for plan in random.Random(seed).sample(found := list(plans(seen, limits)), min(200, len(found))):
        try:
            step = seen.estimate(plan).step_seconds
        except PlanError:
            continue
        try:
            there = on_own_pools(plan, seen.cluster, spec)
        except PlanError:
            # A replica that fills several nodes would lie in two pools.
            assert widths(plan, seen.cluster)
            continue
        assert own.estimate(there).step_seconds == pytest.approx(step, rel=1e-12)
        assert on_joined_pools(there, seen.cluster, spec) == plan


@given(SEEDS)
@FEW
def test_a_plan_costs_the_same_on_parts(seed: int) -> None:
    """Whatever its stages share."""
    check_prices(seed)


@pytest.mark.parametrize("seed", [2059, 2287])
def test_a_replica_does_not_stand_on_nodes_that_two_pools_have_left(seed: int) -> None:
    """Of pools of two nodes, one and one, replicas that fill two have room for one, in whichever pool it is."""
    check_prices(seed)


@pytest.mark.slow
@given(SEEDS)
@settings(FEW, max_examples=3)
def test_a_stage_on_what_others_leave_costs_the_same_on_parts(seed: int) -> None:
    """Its parts are groups of their own where the nodes are in several pools."""
    check_prices(seed, with_devices_left_over)


@pytest.mark.slow
@pytest.mark.parametrize("problem", [with_odd_nodes, with_devices_left_over])
@given(SEEDS)
@MANY
def test_hundreds_of_plans_cost_the_same_on_parts(problem: Callable[[int], Problem], seed: int) -> None:
    """The same on more clusters."""
    check_prices(seed, problem)


def check_answers(
    seed: int, target: str, problem: Callable[[int], Problem] = with_odd_nodes, *, explain: bool = False
) -> None:
    """Split, renamed and in another order: the same step, and no bound above another's plan."""
    spec, model, calibration = problem(seed)
    # Degrees that leave no device of a node over: what stands on such devices is outside of the space.
    tp = tuple(tp for tp in range(1, 8) if all(len(item.devices) % tp == 0 for item in spec.pools))
    limits = Limits(gap=0.0, target=target, zero=(1,), recompute=("none",), pp=(1, 2, 3), tp=tp)
    variants: tuple[ClusterSpec, ...] = (
        spec,
        joined(spec),
        split(spec, seed),
        shuffled(split(spec, seed + 1), seed),
        renamed(spec, seed)[0],
    )
    if explain:  # takes longer, and others tell more of the rest
        variants = variants[::4]
    found = [search(item, model, calibration, replace(limits), explain=explain) for item in variants]
    steps = [item.best.estimate.step_seconds if item.best else float("inf") for item in found]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    for item in found:
        assert item.bound_seconds <= min(steps) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("target", "seed"),
    first(
        2,
        [
            ("megatron", 8),
            ("megatron", 12),
            ("flagscale", 8),
            ("flagscale", 12),
            ("megatron", 3),
            ("flagscale", 3),
            ("flagscale", 117),
        ],
    ),
)
def test_answers_do_not_depend_on_pools(target: str, seed: int) -> None:
    """On nodes of any size, one with a device of another type, with pipelines and tensor parallelism."""
    check_answers(seed, target)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, [2, 37]))
def test_explained_answers_do_not_depend_on_pools(seed: int) -> None:
    """Where the best plans have stages on what others leave of several nodes, and families are looked at as well."""
    check_answers(seed, "megatron", with_devices_left_over, explain=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron", "torch", "deepspeed"])
@given(SEEDS)
@settings(MANY, max_examples=100)
def test_hundreds_of_explained_answers_do_not_depend_on_pools(target: str, seed: int) -> None:
    """The same on more clusters and targets."""
    check_answers(seed, target, with_devices_left_over, explain=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron", "flagscale", "torch", "deepspeed"])
@given(SEEDS)
@settings(MANY, max_examples=100)
def test_hundreds_of_answers_do_not_depend_on_pools(target: str, seed: int) -> None:
    """The same on more clusters and targets."""
    check_answers(seed, target)


@pytest.mark.slow
def test_explanations_do_not_depend_on_pools() -> None:
    """Looks at families and at pools alone find no plan on parts of a pool that the pool as one has not."""
    parts = cluster(pool("a", per_node=3), pool("b", per_node=3))
    limits = Limits(gap=0.001, target="megatron", pp=(3,), zero=(1,), recompute=("none",))
    found = [search(spec, gpt(3, 1024, 1, global_batch=16), limits=limits) for spec in (joined(parts), parts)]
    one, two = (item.best.estimate.step_seconds for item in found if item.best)
    assert one == pytest.approx(two, rel=1e-12)
    for item in found:
        assert item.bound_seconds <= one * (1 + 1e-9)
    families = [
        {entry.family: entry.scored and entry.scored.estimate.step_seconds for entry in item.alternatives}
        for item in found
    ]
    assert families[0].items() <= families[1].items()


@pytest.mark.parametrize("hosts", [(8,), (3, 5), (2, 1, 5), (1, 3, 4)])
@pytest.mark.parametrize(
    ("side", "depth", "per_node", "count"),
    [(4, 1, 8, 3), (4, 2, 8, 1), (2, 4, 8, 3), (2, 2, 4, 2), (2, 1, 8, 5)],
)
def test_a_grid_costs_the_same_on_parts(
    side: int, depth: int, per_node: int, count: int, hosts: tuple[int, ...]
) -> None:
    """Grids that lie in nodes or fill several, however unequal the parts: each layer of a depth stands somewhere."""
    parts = [pool(f"part-{number}", nodes=nodes, per_node=per_node) for number, nodes in enumerate(hosts)]
    spec, grid = cluster(*parts), Grid(rows=side, columns=side, depth=depth)
    trained = gpt(2, 512, 8, global_batch=16 * count, vocab=512)
    group = ReplicaGroup(
        pool="part-0", gpu="A100", tp=grid.devices, count=count, local_batch=16, accumulation_steps=2
    )
    stage = Stage(first_layer=0, end_layer=2, replicas=(group,))
    whole = Plan(target="torch", zero=1, grid=grid, stages=(stage,))
    seen = joined(spec)
    there = on_own_pools(whole, seen, spec)
    for one, where in ((whole, seen), (there, spec)):
        slots = [copies_of(slots, grid) for slots in place(one, where)]
        assert sum(slot.replicas for slot in slots[0]) == one.copies.stages[0].dp == depth * count
    step = Estimator(seen, trained).estimate(whole).step_seconds
    assert Estimator(spec, trained).estimate(there).step_seconds == pytest.approx(step, rel=1e-12)
