"""Gradients reduced inside the last backward (FSDP2): replicas keep step there, and pipelines wait for reductions."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED, Calibration, Framework
from planner.cost.binding import binding
from planner.cost.estimate import Estimator, estimate, timeline_of
from planner.cost.stage_price import Replica, common_seconds
from planner.cost.traffic import EndTraffic
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool

CLUSTER = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
MODEL = gpt(8, 1024, 16, global_batch=48, sequence_length=512)
WAITING = Calibration(frameworks={"torch": Framework(overlap=0.0)})
"""Collectives that keep the caller waiting, as gloo's do."""


def group(name: str, share: int, steps: int) -> ReplicaGroup:
    """Both devices of a pool."""
    gpu = {"a": "A100", "b": "V100"}[name]
    return ReplicaGroup(pool=name, gpu=gpu, tp=1, count=2, local_batch=share, accumulation_steps=steps)


def uneven(zero: int, target: str = "torch", shard_size: int | None = None) -> Plan:
    """Three micro-batches of six sequences on the fast devices, one on the slow ones."""
    stage = Stage(first_layer=0, end_layer=8, replicas=(group("a", 18, 3), group("b", 6, 1)))
    return Plan(target=target, zero=zero, stages=(stage,), shard_size=shard_size)


def parts(plan: Plan, calibration: Calibration = ASSUMED) -> tuple[float, float, float, float]:
    """Waiting seconds, and work of the fast and of the slow device with what each reduces, and the last backward."""
    price = Estimator(CLUSTER, MODEL, calibration).price(plan).stages[0]
    fast, slow = price.micro_batches
    return (
        price.waiting_seconds,
        3 * fast.seconds,
        slow.seconds,
        slow.backward_seconds - fast.backward_seconds,
    )


def layer_by_layer(starts: list[float], layers: int, seconds: list[float]) -> float:
    """End of a backward in which a layer's gradients leave once those of the layer before it are reduced."""
    now, reduced = list(starts), 0.0
    for _ in range(layers):
        now = [max(mine + each, reduced) for mine, each in zip(now, seconds, strict=True)]
        reduced = max(reduced, *now)
    return reduced


@pytest.mark.parametrize("layers", [8, 80])
def test_the_formula_is_what_layers_that_wait_do(layers: int) -> None:
    """Later than without waiting by the difference of both backwards; two layers of it at most are not waited for."""
    starts, backwards = [3.0, 1.0], [1.0, 3.0]
    replicas = [
        Replica(work_seconds=start + seconds, end=EndTraffic(), tied_seconds=0.0, in_step_seconds=seconds)
        for start, seconds in zip(starts, backwards, strict=True)
    ]
    run = layer_by_layer(starts, layers, [seconds / layers for seconds in backwards])
    assert common_seconds(replicas) == pytest.approx(6.0)
    assert 6.0 - 2 * 3.0 / layers <= run <= 6.0


def test_a_scatter_keeps_replicas_in_step() -> None:
    """ZeRO 1: the first forward gathers and the last backward scatters, layer by layer, on all replicas at once."""
    found = estimate(uneven(1), CLUSTER, MODEL)
    with patch.dict(TARGETS, torch=replace(TARGETS["torch"], reduces_in_backward=False)):
        before = estimate(uneven(1), CLUSTER, MODEL)
    price = Estimator(CLUSTER, MODEL).price(uneven(1)).stages[0]
    fast, slow = price.micro_batches
    assert slow.seconds > fast.seconds
    # The slow ones do all they do in step; the fast ones have done two micro-batches more on their own.
    lead = 2 * fast.seconds - max(0.0, 3 * fast.seconds - slow.seconds)
    assert found.step_seconds - before.step_seconds == pytest.approx(lead, rel=0.02)
    assert found.breakdown.bubble_seconds == pytest.approx(price.waiting_seconds)
    assert found.breakdown.step_seconds == pytest.approx(found.step_seconds)


def test_whole_gradients_are_added_up_on_streams_of_their_own() -> None:
    """ZeRO 0, and copies of hybrid sharding: nothing waits but where the caller waits in each collective."""
    for plan in (uneven(0), uneven(1, shard_size=2)):
        assert parts(plan)[0] == 0.0
        waiting, fast, slow, later = parts(plan, WAITING)
        assert later > 0
        assert waiting == pytest.approx(later - max(0.0, slow - fast), rel=1e-9)
    assert parts(uneven(0, "deepspeed"), WAITING)[0] == 0.0


def test_equal_replicas_wait_for_nobody() -> None:
    """The prices of even plans stay what they were."""
    stage = Stage(first_layer=0, end_layer=8, replicas=(replace(group("a", 24, 4), count=2),))
    for zero in (0, 1):
        plan = Plan(target="torch", zero=zero, stages=(stage,))
        waiting = Estimator(CLUSTER, MODEL, WAITING).price(plan).stages[0].waiting_seconds
        assert waiting == pytest.approx(0.0, abs=1e-12)


def pipeline(target: str, zero: int) -> Plan:
    """Two stages of two replicas."""
    stages = (
        Stage(first_layer=0, end_layer=5, replicas=(group("a", 24, 12),)),
        Stage(first_layer=5, end_layer=8, replicas=(group("b", 24, 12),)),
    )
    return Plan(target=target, zero=zero, stages=stages)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_stage_passes_its_last_gradient_up_after_its_reduction(zero: int) -> None:
    """The first stage ends its last backward as much later, and the timeline says so."""
    estimator = Estimator(CLUSTER, MODEL)
    plan = pipeline("torch", zero)
    priced = estimator.price(plan)
    first, last = timeline_of(plan, priced).stage_ends()
    with patch.dict(TARGETS, torch=replace(TARGETS["torch"], reduces_in_backward=False)):
        free = Estimator(CLUSTER, MODEL)
        before = timeline_of(plan, free.price(plan)).stage_ends()
        sooner = free.estimate(plan).step_seconds
    assert last == before[1]
    assert 0 < priced.held[1] <= priced.stages[1].sync_seconds
    # The first stage had not waited for the last one's reduction, only for its backward.
    assert first == pytest.approx(max(before[0], last + priced.held[1] + priced.backward[0][0]))
    step = estimator.estimate(plan)
    assert step.step_seconds == pytest.approx(first + priced.stages[0].tail_seconds)
    assert step.step_seconds > sooner
    assert step.breakdown.step_seconds == pytest.approx(step.step_seconds)


def test_other_targets_hold_nothing_back() -> None:
    """Megatron and DeepSpeed reduce once the gradient is on its way."""
    for target in ("megatron", "deepspeed"):
        assert Estimator(CLUSTER, MODEL).price(pipeline(target, 0)).held == (0.0, 0.0)


def test_zero_two_scatters_in_every_micro_batch() -> None:
    """What is in each backward already is not held back again."""
    assert Estimator(CLUSTER, MODEL).price(pipeline("torch", 2)).held == (0.0, 0.0)


def test_a_network_that_took_no_time_saves_both_reductions() -> None:
    """The reductions of both stages follow each other, so the link binds for more than either takes."""
    estimator = Estimator(CLUSTER, MODEL)
    priced = estimator.price(pipeline("torch", 0))
    links = [link for link in binding(pipeline("torch", 0), estimator).links if link.traffic == "gradients"]
    saved = sum(link.seconds for link in links)
    assert saved == pytest.approx(sum(priced.held), rel=1e-6)
