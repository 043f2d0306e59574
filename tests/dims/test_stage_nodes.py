"""Stages that are dealt over nodes: a pipeline in each node, or in a few, whose replicas are on others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.emit.interface import job_of
from planner.errors import PlanError
from planner.job.batches import table_text
from planner.model.file import load_model
from planner.model.spec import LoraSpec
from planner.plan.checks import faults
from planner.plan.file import PlanFile, load_plan, read, write
from planner.plan.placement import Slot, place
from planner.plan.values import Plan
from planner.report.ranks import rank_rows
from planner.search.solve import search
from planner.search.values import Limits
from tests.files.writing import CLUSTERS, MODELS
from tests.worlds import cluster, gpt, group, plan, pool

MODEL = gpt(layers=4, global_batch=8, lora=LoraSpec(rank=4))


def nodes(*sizes: int, per_node: int = 2, fabric: str = "ib", gbps: float = 200) -> ClusterSpec:
    """Equal pools of so many nodes, named a, b and so on."""
    pools = (
        pool(name, "A100", size, per_node=per_node, fabric=fabric, gbps=gbps, cards=1)
        for name, size in zip("abcd", sizes, strict=False)
    )
    return cluster(*pools)


def dealt(over: int = 2, *, target: str = "torch", tp: int = 1, depth: int = 2, count: int = 2) -> Plan:
    """Stages of ``count`` replicas on pool a."""
    each = (group("a", "A100", tp=tp, count=count, share=8 // count, steps=2),)
    return plan(target, 1, [4 // depth] * depth, [each] * depth, stage_nodes=over)


def slot(name: str, first: int, nodes: int, device: int, replicas: int = 1, tp: int = 1) -> Slot:
    """Replicas on the same part of each of some nodes."""
    return Slot(name, "A100", tp, first, nodes, device, replicas)


def test_neighbours_share_their_nodes() -> None:
    """Each stage has the same part of every node, one block of nodes after the other."""
    assert place(dealt(), nodes(2)) == ((slot("a", 0, 2, 0),), (slot("a", 0, 2, 1),))
    assert place(dealt(2, depth=4), nodes(4)) == (
        (slot("a", 0, 2, 0),),
        (slot("a", 0, 2, 1),),
        (slot("a", 2, 2, 0),),
        (slot("a", 2, 2, 1),),
    )
    wide = place(dealt(2, tp=2, count=4), nodes(2, per_node=8))
    assert wide == ((slot("a", 0, 2, 0, 2, 2),), (slot("a", 0, 2, 4, 2, 2),))


def test_more_nodes_than_there_are_is_all_of_them() -> None:
    """So one number serves pools of several sizes."""
    assert place(dealt(16), nodes(2)) == place(dealt(2), nodes(2))


def test_equal_pools_are_one() -> None:
    """However the file writes the nodes: the stages stand on the same ones and take as long."""
    whole = estimate(dealt(), nodes(2), MODEL).step_seconds
    halves = tuple(group(name, "A100", share=4, steps=2) for name in "ab")
    apart = plan("torch", 1, [2, 2], [halves, halves], stage_nodes=2)
    assert place(apart, nodes(1, 1))[1] == (slot("a", 0, 1, 1), slot("b", 0, 1, 1))
    assert estimate(apart, nodes(1, 1), MODEL).step_seconds == whole
    turned = tuple(replace(stage, replicas=stage.replicas[::-1]) for stage in apart.stages)
    with pytest.raises(PlanError, match="1 on a \\+ 1 on b"):
        place(replace(apart, stages=turned), nodes(1, 1))


@pytest.mark.parametrize(
    ("chosen", "where", "what"),
    [
        (dealt(3), nodes(3), "stage_nodes: pool a: 2 replicas cannot be dealt evenly over 3 nodes"),
        (
            dealt(),
            nodes(1, per_node=4),
            "stage_nodes: no pool of the plan has several nodes of one device type",
        ),
        (
            dealt(depth=1),
            nodes(2),
            "stage_nodes: a single stage is dealt over nodes as it is, expected 1, got 2",
        ),
        (dealt(target="flagscale"), nodes(2), "stage_nodes: flagscale starts all ranks of a node together"),
        (replace(dealt(count=4), shard_size=2), nodes(2, per_node=4), "beside HSDP, expected 1, got 2"),
        (replace(dealt(), cp=2), nodes(2), "beside divided sequences, expected 1, got 2"),
        (dealt(tp=4), nodes(2), "a node has 2 A100, tp 4 needs more"),
    ],
)
def test_refusals(chosen: Plan, where: ClusterSpec, what: str) -> None:
    """Each in one line that names the key."""
    lines = [f"{'.'.join(map(str, fault.path))}: {fault.what}" for fault in faults(chosen, where, MODEL)]
    assert any(what in line for line in lines), lines


def test_a_node_is_started_once() -> None:
    """Ranks are numbered stage before replica, and each replica has its sequences on every stage."""
    job = job_of(dealt(), nodes(2), MODEL)
    assert [(agent.host, agent.devices) for agent in job.agents] == [("a-0", (0, 1)), ("a-1", (0, 1))]
    rows = json.loads(table_text(job))["ranks"]
    found = [(row["stage"], row["replica"], row["first_sequence"]) for row in rows]
    assert found == [(0, 0, 0), (1, 0, 0), (0, 1, 4), (1, 1, 4)]
    several = job_of(dealt(2, depth=4), nodes(4), MODEL)
    assert [agent.host for agent in several.agents] == ["a-0", "a-2", "a-1", "a-3"]


def test_ranks_are_shown_as_they_are_started() -> None:
    """Those of a stage are as far apart as the pipeline has ranks; in the other order they are consecutive."""
    assert [row[:4] for row in rank_rows(dealt(), nodes(2))] == [
        ("0 .. 2 by 2", "0", "a-0, a-1", "0"),
        ("1 .. 3 by 2", "1", "a-0, a-1", "1"),
    ]
    wide = rank_rows(dealt(2, tp=2, count=4), nodes(2, per_node=8))
    assert [row[0] for row in wide] == ["0-1 .. 12-13 by 4", "2-3 .. 14-15 by 4"]
    assert [row[0] for row in rank_rows(replace(dealt(), stage_nodes=1), nodes(2))] == ["0-1", "2-3"]


def test_the_plan_file_keeps_it(tmp_path: Path) -> None:
    """And has no such key for other plans."""
    for over, there in ((2, True), (1, False)):
        chosen, file = dealt(over), tmp_path / f"{over}.yaml"
        write(PlanFile(plan=chosen, cluster=nodes(2), model=MODEL), file)
        assert ("stage_nodes: 2" in file.read_text()) is there
        assert read(file).plan == chosen


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_short_plans(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """The few lines are the same however the nodes are written."""
    file = tmp_path / "plan.yaml"
    file.write_text("{pp: 2, dp: 2, stage_nodes: 2, target: torch, zero: 1}")
    chosen = load_plan(file, nodes(*sizes), MODEL)
    assert place(chosen, nodes(*sizes))[1][0] == slot("a", 0, sizes[0], 1)
    assert chosen.stage_nodes == 2


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_adapters_on_a_slow_network(sizes: tuple[int, ...]) -> None:
    """What stages send stays in a node, and the gradients of adapters cross, which are fewer."""
    slow, large = nodes(*sizes, fabric="eth", gbps=1), gpt(layers=4, global_batch=64)
    adapted = large.trained_with(lora=LoraSpec(rank=4))
    limits = Limits(target="torch", tp=(1,), pp=(2,), zero=(0,), micro_batch=(1,), gap=0.0)
    best = search(slow, adapted, limits=limits, explain=False).best
    assert best is not None
    assert best.plan.stage_nodes == 2
    assert [stage.dp for stage in best.plan.stages] == [2, 2]
    assert {stage.link for stage in best.estimate.stages[:-1]} == {"node"}
    whole = search(slow, large, limits=limits, explain=False).best
    assert whole is not None
    assert whole.plan.stage_nodes == 1


def test_islands_that_slow_cards_join_are_crossed_from_several_nodes() -> None:
    """Where all of a model is trained, too: what goes to the other island leaves by the cards of four nodes at once."""
    spec = load_cluster(CLUSTERS / "holmes_hybrid.yaml")
    model = load_model(MODELS / "gpt_7.5b.yaml")
    asked = Limits(target="megatron", zero=(1,), tp=(1,), pp=(8,), micro_batch=(2,))
    best = search(spec, model, limits=asked, explain=False).best
    assert best is not None
    assert best.plan.stage_nodes == 4
    alone = estimate(replace(best.plan, stage_nodes=1), spec, model)
    assert best.estimate.step_seconds < 0.95 * alone.step_seconds
