"""The estimate: published runs, components that add up, plans that cannot run."""

from __future__ import annotations

import time

import pytest

from planner.calibration import DEFAULT
from planner.cost.estimate import Estimator, estimate
from planner.errors import PlanError
from planner.plan import Plan, ReplicaGroup, Stage
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.targets import Recompute
from tests.clusters import cluster, gpt, pool

SELENE = cluster(pool("selene", nodes=384))
"""DGX A100 nodes with eight 200 Gbit/s cards each (arXiv:2104.04473, section 5)."""

PUBLISHED = [
    # (name, layers, hidden, heads, tp, pp, dp, micro-batch, batch, chunks, recompute, seconds)
    # arXiv:2205.05198, table 5: measured seconds per iteration
    ("22B full", 48, 6144, 64, 8, 1, 1, 4, 4, 1, "full", 1.42),
    ("22B selective", 48, 6144, 64, 8, 1, 1, 4, 4, 1, "selective", 1.10),
    ("175B full", 96, 12288, 96, 8, 8, 1, 1, 64, 3, "full", 18.13),
    ("175B selective", 96, 12288, 96, 8, 8, 1, 1, 64, 3, "selective", 13.75),
    ("530B full", 105, 20480, 128, 8, 35, 1, 1, 280, 3, "full", 49.05),
    ("530B selective", 105, 20480, 128, 8, 35, 1, 1, 280, 3, "selective", 37.83),
    ("1T full", 128, 25600, 160, 8, 64, 1, 1, 512, 1, "full", 94.42),
    ("1T selective", 128, 25600, 160, 8, 64, 1, 1, 512, 1, "selective", 71.49),
    # arXiv:2104.04473, table 1: seconds from the printed TFLOP/s; micro-batch and chunks are not published
    ("1.7B", 24, 2304, 24, 1, 1, 32, 4, 512, 1, "full", 3.53),
    ("7.5B", 36, 4096, 32, 4, 1, 32, 4, 512, 1, "full", 3.70),
    ("39B", 48, 8192, 64, 8, 2, 32, 2, 1536, 1, "full", 14.45),
    ("145B", 80, 12288, 96, 8, 8, 24, 1, 2304, 2, "full", 24.82),
    ("310B", 96, 16384, 128, 8, 16, 15, 1, 2160, 1, "full", 37.61),
]


def even_plan(
    layers: int,
    tp: int,
    pp: int,
    dp: int,
    micro_batch: int,
    batch: int,
    chunks: int,
    recompute: Recompute,
    name: str = "selene",
) -> Plan:
    """A Megatron plan with layers cut evenly."""
    ends = [layers * (stage + 1) // pp for stage in range(pp)]
    steps = batch // dp // micro_batch
    group = ReplicaGroup(pool=name, gpu="A100", tp=tp, count=dp, share=steps * micro_batch, steps=steps)
    stages = tuple(
        Stage(first_layer=first, end_layer=end, replicas=(group,), recompute=recompute)
        for first, end in zip([0, *ends], ends, strict=False)
    )
    return Plan(
        target="megatron",
        zero=0,
        stages=stages,
        interleave=chunks,
        sequence_parallel=recompute == "selective",
    )


@pytest.mark.parametrize("row", PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_runs_are_met(
    row: tuple[str, int, int, int, int, int, int, int, int, int, Recompute, float],
) -> None:
    """Within 12 % of measured seconds on A100 without any calibration, and inside the memory of the machine."""
    _, layers, hidden, heads, tp, pp, dp, micro_batch, batch, chunks, recompute, seconds = row
    model = gpt(layers, hidden, heads, global_batch=batch, sequence_length=2048, attention="unfused")
    found = estimate(even_plan(layers, tp, pp, dp, micro_batch, batch, chunks, recompute), SELENE, model)
    assert found.step_seconds == pytest.approx(seconds, rel=0.12)
    assert found.fits


def test_published_runs_are_met_on_average() -> None:
    """Mean absolute error of the rows above."""
    errors = []
    for _, layers, hidden, heads, tp, pp, dp, micro_batch, batch, chunks, recompute, seconds in PUBLISHED:
        model = gpt(layers, hidden, heads, global_batch=batch, sequence_length=2048, attention="unfused")
        plan = even_plan(layers, tp, pp, dp, micro_batch, batch, chunks, recompute)  # type: ignore[arg-type]
        errors.append(abs(estimate(plan, SELENE, model).step_seconds / seconds - 1))
    assert sum(errors) / len(errors) < 0.05


def two_pools() -> tuple[ClusterSpec, ModelSpec, Plan]:
    """A pipeline over two pools."""
    spec = cluster(pool("a"), pool("b", "V100"))
    groups = [
        ReplicaGroup(pool=p, gpu=g, tp=2, count=4, share=16, steps=16)
        for p, g in (("a", "A100"), ("b", "V100"))
    ]
    stages = tuple(
        Stage(first_layer=first, end_layer=end, replicas=(group,))
        for (first, end), group in zip([(0, 17), (17, 24)], groups, strict=True)
    )
    return spec, gpt(global_batch=64), Plan(target="megatron", zero=1, stages=stages, sequence_parallel=True)


def test_causes_add_up_to_the_step() -> None:
    """The breakdown is the step, nothing more and nothing less."""
    spec, model, plan = two_pools()
    found = estimate(plan, spec, model)
    assert found.breakdown.step_seconds == pytest.approx(found.step_seconds)
    assert found.tokens_per_second == pytest.approx(64 * 1024 / found.step_seconds)
    assert 0 < found.mfu < 1
    assert found.stages[0].link == "ib"
    assert found.stages[1].link == ""


def test_the_estimate_is_pure() -> None:
    """Asked twice, by two estimators, it says the same."""
    spec, model, plan = two_pools()
    assert estimate(plan, spec, model, DEFAULT) == Estimator(spec, model).estimate(plan)


def test_twice_the_batch_takes_less_than_twice_the_time() -> None:
    """Ramp and synchronisation are paid once."""
    spec, model, plan = two_pools()
    twice = Plan(
        target=plan.target,
        zero=1,
        sequence_parallel=True,
        stages=tuple(
            Stage(
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                replicas=tuple(
                    ReplicaGroup(pool=g.pool, gpu=g.gpu, tp=g.tp, count=g.count, share=32, steps=32)
                    for g in stage.replicas
                ),
            )
            for stage in plan.stages
        ),
    )
    once = estimate(plan, spec, model).step_seconds
    assert once < estimate(twice, spec, model).step_seconds < 2 * once


def test_plans_that_cannot_run_are_refused() -> None:
    """No path, no such pool, no such number format, too few devices."""
    spec, model, plan = two_pools()
    apart = cluster(pool("a", fabric="ib"), pool("b", "V100", fabric="roce"))
    with pytest.raises(PlanError, match="common fabric"):
        estimate(plan, apart, model)
    with pytest.raises(PlanError, match="has no bf16"):
        estimate(plan, spec, gpt(precision="bf16"))
    with pytest.raises(PlanError, match="no V100"):
        estimate(plan, cluster(pool("a")), model)
    with pytest.raises(PlanError):
        estimate(plan, cluster(pool("a", per_node=4), pool("b", "V100")), model)


def test_a_prediction_takes_milliseconds() -> None:
    """Thousands of plans are priced in a search."""
    spec, model, plan = two_pools()
    estimator = Estimator(spec, model)
    estimator.estimate(plan)
    start = time.perf_counter()
    for _ in range(20):
        estimator.estimate(plan)
    assert (time.perf_counter() - start) / 20 < 0.02
