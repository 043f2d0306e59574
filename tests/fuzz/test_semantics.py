"""A few worlds of the fuzzer in every run of the tests, and what the fuzzer itself must be able to see."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.search.values import Limits
from tests.fuzz import checks
from tests.fuzz.asked import Said
from tests.fuzz.checks import Case, opened
from tests.fuzz.rewritten import BETTER, SAME, Change
from tests.fuzz.rivals import Field, fastest
from tests.fuzz.semantics import tried_apart
from tests.fuzz.worlds import MOST_DEVICES, MOST_POOLS, World, draw_world, read

SEED, QUICK, WORLDS = 14, 1, 8
"""The first worlds of a seed that was chosen before any of them was tried, and how many are for quick tests."""

PLAIN = World(
    cluster={
        "name": "plain",
        "gpus": {},
        "pools": [
            {
                "name": "one",
                "gpu": "T4",
                "gpus_per_node": 3,
                "nodes": 1,
                "intra_node": "pcie3",
                "nics": [{"fabric": "lan", "bandwidth_gbps": 10}],
            }
        ],
        "fabrics": {"lan": {"kind": "ethernet"}},
        "links": [],
        "reserve_gib": 1,
    },
    model={
        "name": "small",
        "layers": 4,
        "hidden": 256,
        "heads": 4,
        "vocab": 1000,
        "training": {"sequence_length": 128, "global_batch": 6, "precision": "fp16"},
    },
)


@pytest.mark.parametrize(
    "index",
    [pytest.param(index, marks=() if index < QUICK else pytest.mark.slow) for index in range(WORLDS)],
)
def test_world(index: int) -> None:
    """Nothing is wrong with the answers to this world."""
    assert tried_apart(SEED, index, time_limit=0.5)["faults"] == []


def test_worlds_are_functions_of_their_numbers(tmp_path: Path) -> None:
    """The same numbers draw the same world; all are valid and as varied as the checks need."""
    worlds = [draw_world(3, index) for index in range(60)]
    assert worlds == [draw_world(3, index) for index in range(60)]
    specs = [read(world.write(tmp_path)) for world in worlds]
    pools = [pool for cluster, _ in specs for pool in cluster.pools]
    assert max(len(cluster.pools) for cluster, _ in specs) == MOST_POOLS
    assert all(
        pool.devices.count(gpu) * len(pool.hosts) <= MOST_DEVICES for pool in pools for gpu in pool.devices
    )
    assert {3, 5, 6, 7, 8} <= {len(pool.devices) for pool in pools}
    assert any(len(set(pool.devices)) > 1 for pool in pools)
    assert any(cluster.links for cluster, _ in specs)
    batches = [model.training.global_batch for _, model in specs]
    assert min(batches) < 10
    assert max(batches) > 100_000


@pytest.mark.parametrize("change", [*SAME, *BETTER])
def test_changed_clusters_are_valid(change: Change, tmp_path: Path) -> None:
    """Every change yields cluster files that can be read, and somewhere applies."""
    applied = 0
    for index in range(8):
        world, rng = draw_world(5, index), random.Random(index)
        changed = change(rng, world.cluster)
        if changed is not None:
            applied += 1
            before, _ = read(world.write(tmp_path / "before"))
            after, _ = read(World(changed, world.model).write(tmp_path / "after"))
            if change in SAME:
                assert _devices(before) == _devices(after)
    assert applied


def _devices(cluster: ClusterSpec) -> int:
    return sum(len(pool.devices) * len(pool.hosts) for pool in cluster.pools)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A small world with its answers."""
    return opened(PLAIN, tmp_path_factory.mktemp("plain"), 10.0, random.Random(1))


def test_nothing_is_wrong_with_a_plain_world(plain: Case) -> None:
    """Every check passes."""
    assert [fault for check in checks.CHECKS for fault in check(plain)] == []


def test_the_rivals_find_the_best_plan(plain: Case) -> None:
    """Walking downhill from random plans alone comes within 5 % of the proven best: a false proof would be seen."""
    field = Field(plain.answer.cluster, plain.answer.model, Limits(), random.Random(2))
    rival = fastest(field, None, checks.DRAWS, checks.STEPS)
    assert rival is not None
    assert plain.answer.bound / checks.SLACK <= rival.seconds <= 1.05 * plain.answer.step
    assert (
        rival.seconds
        == estimate(rival.plan, field.cluster, field.model, field.estimator.calibration).step_seconds
    )


def test_the_rivals_find_data_parallelism_that_does_not_divide_over_nodes(tmp_path: Path) -> None:
    """Eight of two nodes of six, as fast as by hand: a search once proved that nothing was below 1.2 times that."""
    pool = {
        **PLAIN.cluster["pools"][0],
        **{"name": "six", "gpu": "A100-SXM-40GB", "gpus_per_node": 6, "nodes": 2, "intra_node": "nvlink4"},
        "nics": [{"fabric": "lan", "bandwidth_gbps": 200, "count": 8}],
    }
    training = {"sequence_length": 4096, "global_batch": 8, "precision": "fp32", "optimizer": "sgd"}
    world = World({**PLAIN.cluster, "pools": [pool]}, {**PLAIN.model, "layers": 31, "training": training})
    cluster, model = read(world.write(tmp_path))
    field = Field(cluster, model, Limits(target="megatron"), random.Random(1))
    group = ReplicaGroup(pool="six", gpu="A100-SXM-40GB", tp=1, count=8, local_batch=1, accumulation_steps=1)
    by_hand = Plan(target="megatron", zero=0, stages=(Stage(first_layer=0, end_layer=31, replicas=(group,)),))
    rival = fastest(field, None, checks.DRAWS, checks.STEPS)
    seconds = field.seconds(by_hand)
    assert rival is not None
    assert seconds is not None
    assert rival.seconds <= seconds
    assert rival.plan.stages[0].dp == 8


def test_parts_of_nodes_that_only_a_second_pool_can_say_are_no_rivals(tmp_path: Path) -> None:
    """Five and five of two nodes of eight are a plan where each node is a pool; as one pool both make eight and two."""
    node = {**PLAIN.cluster["pools"][0], "gpus_per_node": 8, "nodes": 1, "intra_node": "pcie3"}
    pools = [{**node, "name": name} for name in ("left", "right")]
    world = World(
        {**PLAIN.cluster, "pools": pools},
        {**PLAIN.model, "training": {**PLAIN.model["training"], "global_batch": 40}},
    )
    cluster, model = read(world.write(tmp_path))
    field = Field(cluster, model, Limits(target="megatron"), random.Random(1))

    def seconds(*counts: int) -> float | None:
        gpu = cluster.pools[0].devices[0]
        groups = tuple(
            ReplicaGroup(pool=name, gpu=gpu, tp=1, count=count, local_batch=4, accumulation_steps=1)
            for name, count in zip(("left", "right"), counts, strict=True)
        )
        stage = Stage(first_layer=0, end_layer=model.layers, replicas=groups)
        return field.seconds(Plan(target="megatron", zero=0, stages=(stage,)))

    assert seconds(8, 2) is not None
    assert seconds(2, 8) is not None
    assert seconds(5, 5) is seconds(6, 4) is None


def test_interleaved_zero_bubble_schedules_are_no_rivals(tmp_path: Path) -> None:
    """No search looks at them, and every proof says so; each of the two alone is a rival."""
    cluster, model = read(World(PLAIN.cluster, {**PLAIN.model, "layers": 4}).write(tmp_path))
    field = Field(cluster, model, Limits(target="torch"), random.Random(1))
    pool, layers = cluster.pools[0], model.layers // 2
    group = ReplicaGroup(
        pool=pool.name,
        gpu=pool.devices[0],
        tp=1,
        count=1,
        local_batch=model.training.global_batch,
        accumulation_steps=model.training.global_batch,
    )
    stages = tuple(
        Stage(first_layer=first, end_layer=first + layers, replicas=(group,)) for first in (0, layers)
    )
    plan = Plan(target="torch", zero=0, stages=stages)
    assert field.seconds(replace(plan, interleave=2)) is not None
    assert field.seconds(replace(plan, schedule="zero-bubble")) is not None
    assert field.seconds(replace(plan, interleave=2, schedule="zero-bubble")) is None


def test_a_false_proof_is_seen(plain: Case) -> None:
    """A bound a tenth above the answer is a fault of the proof, of its rivals, and of the cluster in other words."""
    step = plain.answer.step
    result = replace(plain.answer.result, bound_seconds=1.1 * step)
    wrong = replace(plain, answer=replace(plain.answer, result=result), rng=random.Random(3))
    for check in (checks.proof_is_sound, checks.no_rival_beats_the_proof, checks.same_cluster_same_answer):
        assert list(check(wrong)), check.__name__


def test_a_false_infeasible_is_seen(plain: Case) -> None:
    """A search that says infeasible where plans fit."""
    result = replace(plain.answer.result, status="infeasible", best=None, bound_seconds=float("inf"))
    wrong = replace(plain, answer=replace(plain.answer, result=result), rng=random.Random(4))
    assert any("a plan fits" in fault for fault in checks.no_rival_beats_the_proof(wrong))
    assert any("infeasible" in fault for fault in checks.command_agrees(wrong))


def test_a_lost_plan_is_seen(plain: Case) -> None:
    """A command that crashes, a listed plan that is faster, and a document that says another step."""
    crashed = replace(plain, said=Said(1, {}, "this is a bug", 0.0))
    assert list(checks.command_agrees(crashed))
    document = plain.said.document
    faster = [{"family": "x", "step_seconds": document["step_seconds"] / 2}]
    said = replace(plain.said, document={**document, "alternatives": faster})
    assert list(checks.nothing_listed_is_faster(replace(plain, said=said)))
    said = replace(plain.said, document={**document, "step_seconds": document["step_seconds"] * 1.01})
    assert list(checks.commands_price_alike(replace(plain, said=said)))
