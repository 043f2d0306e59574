"""Defects that published planners have, as their papers and trackers tell; this one must not get them.

That objectives other than time explore every pipeline depth is tested with the other objectives
(test_objectives.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from planner.calibration.values import ASSUMED, LayerPoint
from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.model.spec import ModelSpec
from planner.plan.checks import check_plan
from planner.report.plan_table import plan_section
from planner.search.solve import search
from planner.search.values import Limits, SearchResult
from tests.quick import first
from tests.worlds import cluster, gpt, pool

T4 = GpuSpec(name="T4", memory_gib=16, memory_bandwidth_gBps=320, tflops={"fp16": 65})


def solved(spec: ClusterSpec, model: ModelSpec, limits: Limits | None = None) -> SearchResult:
    """A search that found a plan, which the plan checker accepts."""
    found = search(spec, model, limits=limits, explain=False)
    assert found.status == "optimal"
    assert found.best is not None
    check_plan(found.best.plan, spec, model)
    return found


@pytest.mark.parametrize(
    "nodes",
    [
        ((1, 17),),
        ((1, 16), (1, 1)),
        pytest.param(((1, 12),), marks=pytest.mark.slow),
        pytest.param(((2, 6), (1, 8)), marks=pytest.mark.slow),
        pytest.param(((4, 8), (2, 8)), marks=pytest.mark.slow),
    ],
)
def test_any_total_of_gpus(nodes: tuple[tuple[int, int], ...]) -> None:
    """12, 17, 20 and 48 devices: totals need not be powers of two, nor nodes of eight."""
    pools = (
        pool(f"p{index}", ("A100", "V100")[index], nodes=count, per_node=each)
        for index, (count, each) in enumerate(nodes)
    )
    solved(cluster(*pools), gpt(12, 1024, 16, global_batch=48))


def test_sixteen_devices_in_a_node() -> None:
    """A node may be wider than eight, and so may a replica."""
    spec, model = cluster(pool("wide", nodes=2, per_node=16)), gpt(12, 1024, 16, global_batch=32)
    found = solved(spec, model, Limits(target="megatron", tp=(16,)))
    assert found.best is not None
    assert {group.tp for stage in found.best.plan.stages for group in stage.replicas} == {16}


def test_a_missing_measurement_is_filled_in_and_reported() -> None:
    """Layers measured at two micro-batches, a plan with a third between them or beyond: a price, and a warning."""
    spec, model = cluster(pool("a", per_node=1)), gpt(8, 1024, 8, global_batch=16)
    points = tuple(
        LayerPoint(
            gpu="A100",
            model=model.name,
            tp=1,
            micro_batch=size,
            forward_seconds=1e-3 * size,
            backward_seconds=2e-3 * size,
        )
        for size in (2, 4)
    )
    measured = replace(ASSUMED, layers=points)
    step = {}
    for size in (2, 4, 8):
        limits = Limits(target="megatron", micro_batch=(size,))
        found = search(spec, model, measured, limits, explain=False).best
        assert found is not None
        assert {group.micro_batch for stage in found.plan.stages for group in stage.replicas} == {size}
        step[size] = found.estimate.step_seconds
        reported = any("micro-batch" in warning and "A100" in warning for warning in found.estimate.warnings)
        assert reported == (size == 8), found.estimate.warnings
    # The layers alone: 16 sequences through 8 layers of 3 ms a sequence.
    assert step[8] > 0.9 * 16 * 8 * 3e-3


@pytest.mark.slow
def test_the_bandwidth_between_nodes_changes_the_plan() -> None:
    """On a slow network the pipeline or the replicas avoid what a fast one carries easily."""
    model = gpt(24, 2048, 16, global_batch=64)
    plans = {}
    for gbps in (800.0, 1.0):
        found = solved(cluster(pool("a", nodes=4, per_node=2, cards=1, gbps=gbps)), model)
        assert found.best is not None
        plans[gbps] = found.best
    assert plans[1.0].plan != plans[800.0].plan
    assert plans[1.0].estimate.step_seconds > plans[800.0].estimate.step_seconds
    slow = cluster(pool("a", nodes=4, per_node=2, cards=1, gbps=1.0))
    assert estimate(plans[800.0].plan, slow, model).step_seconds > 1.1 * plans[1.0].estimate.step_seconds


@pytest.mark.parametrize("target", first(2, ["megatron", "deepspeed", "flagscale"]))
def test_no_plan_exceeds_a_memory(target: str) -> None:
    """On devices that barely hold the model, with room to spare only where recomputation or ZeRO makes it."""
    small = GpuSpec(name="small", memory_gib=9, memory_bandwidth_gBps=900, tflops={"fp16": 100})
    spec = cluster(pool("a", "small", per_node=4), gpus={"small": small})
    model = gpt(16, 1536, 16, global_batch=16)
    found = solved(spec, model, Limits(target=target)).best
    assert found is not None
    for stage in found.estimate.stages:
        for group in stage.groups:
            parts = group.memory
            assert parts.used_bytes + parts.reserve_bytes <= 9 * 2**30
    roomy = cluster(
        pool("a", "small", per_node=4), gpus={"small": small.model_copy(update={"memory_gib": 80})}
    )
    free = solved(roomy, model, Limits(target=target)).best
    assert free is not None
    assert max(g.memory.used_bytes for s in free.estimate.stages for g in s.groups) > 7 * 2**30


@pytest.mark.slow
def test_idle_devices_are_named() -> None:
    """Of three device types all work, or the report says which do not and how many."""
    spec = cluster(
        pool("fast", per_node=2, fabric="eth", cards=1, gbps=10),
        pool("middle", "V100", per_node=2, fabric="eth", cards=1, gbps=10),
        pool("slow", "T4", per_node=2, fabric="eth", cards=1, gbps=10),
        gpus={"T4": T4},
    )
    result = solved(spec, gpt(8, 2048, 16, global_batch=8))
    assert result.best is not None
    used = {
        name: sum(g.devices for s in result.best.plan.stages for g in s.replicas if g.pool == name)
        for name in ("fast", "middle", "slow")
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(plan_section(result.best, spec, result))
    text = capture.get()
    assert min(used.values()) < 2, "the example must leave something idle"
    idle = text.partition("idle:")[2].splitlines()[0]
    for (name, count), gpu in zip(used.items(), ("A100", "V100", "T4"), strict=True):
        assert (f"{2 - count} {gpu} ({name})" in idle) == (count < 2)


@pytest.mark.slow
def test_three_kinds_work_together_when_it_pays() -> None:
    """A fast network and a large batch: nothing stays idle only because device types differ."""
    spec = cluster(
        pool("fast", per_node=2),
        pool("middle", "V100", per_node=2),
        pool("slow", "T4", per_node=2),
        gpus={"T4": T4},
    )
    found = solved(spec, gpt(8, 1024, 8, global_batch=240)).best
    assert found is not None
    assert found.plan.devices == 6


@pytest.mark.parametrize(
    ("target", "batch"),
    first(
        2,
        [
            *(("megatron", 7), ("deepspeed", 127), ("flagscale", 17), ("deepspeed", 7), ("megatron", 127)),
            *(("flagscale", 7), ("megatron", 17), ("deepspeed", 17), ("flagscale", 127)),
        ],
    ),
)
def test_a_prime_batch_is_kept_exactly(target: str, batch: int) -> None:
    """The shares add up to it; where equal shares are impossible fewer devices work, and nothing is rounded."""
    spec = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
    found = solved(spec, gpt(8, 1024, 8, global_batch=batch), Limits(target=target)).best
    assert found is not None
    for stage in found.plan.stages:
        assert sum(group.count * group.local_batch for group in stage.replicas) == batch
    assert found.estimate.tokens_per_second * found.estimate.step_seconds == pytest.approx(batch * 1024)
    if target == "deepspeed" and batch > 7:
        assert found.plan.devices == 4
