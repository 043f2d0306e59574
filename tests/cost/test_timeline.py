"""One step as it passes in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import ASSUMED
from planner.cost.estimate import Estimator
from planner.cost.timeline import Lane, Step, step_of
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.report import examples

ESTIMATOR = Estimator(examples.cluster(), examples.model(), ASSUMED)
PIPELINE = examples.scored().plan


def group(pool: str, gpu: str, count: int, share: int, steps: int) -> ReplicaGroup:
    """Replicas of one device."""
    return ReplicaGroup(pool=pool, gpu=gpu, tp=1, count=count, local_batch=share, accumulation_steps=steps)


REPLICAS = Plan(
    target="deepspeed",
    zero=3,
    stages=(
        Stage(
            first_layer=0,
            end_layer=32,
            recompute="full",
            replicas=(group("a100", "A100", 8, 25, 7), group("v100", "V100", 8, 7, 7)),
        ),
    ),
)


SHARES = Plan(
    target="torch",
    zero=1,
    stages=(
        Stage(
            first_layer=0,
            end_layer=32,
            recompute="full",
            replicas=(group("a100", "A100", 1, 69, 5), group("v100", "V100", 1, 27, 7)),
        ),
    ),
)


@pytest.mark.parametrize("plan", [PIPELINE, REPLICAS, SHARES], ids=["pipeline", "replicas", "shares"])
def test_it_is_the_step_of_the_estimate(plan: Plan) -> None:
    """Spans fill it without overlapping, and the last one ends with it."""
    step, estimate = step_of(plan, ESTIMATOR), ESTIMATOR.estimate(plan)
    assert step.seconds == pytest.approx(estimate.step_seconds, rel=1e-12)
    assert max(lane.spans[-1].end for lane in step.lanes) == pytest.approx(step.seconds, rel=1e-9)
    for lane in step.lanes:
        for span, following in zip(lane.spans, lane.spans[1:], strict=False):
            assert span.start < span.end <= following.start * (1 + 1e-9)


def test_stages_do_all_their_micro_batches() -> None:
    """Forward and backward of each, and the causes of the estimate."""
    step, priced = step_of(PIPELINE, ESTIMATOR), ESTIMATOR.price(PIPELINE)
    assert [lane.group for lane in step.lanes] == [None] * PIPELINE.pp
    for lane, price in zip(step.lanes, priced.stages, strict=True):
        for kind, seconds in (("forward", price.forward), ("backward", price.backward)):
            spans = [span for span in lane.spans if span.kind == kind]
            assert {span.micro_batch for span in spans} == set(range(PIPELINE.micro_batches))
            assert sum(span.end - span.start for span in spans) == pytest.approx(
                PIPELINE.micro_batches * sum(seconds)
            )
        assert lane.seconds("sync") == pytest.approx(price.sync_seconds, rel=1e-6)


def test_groups_meet_at_the_end() -> None:
    """The slower group decides, the other one waits; shares that steps do not divide are cut as in the run."""
    step, estimate = step_of(REPLICAS, ESTIMATOR), ESTIMATOR.estimate(REPLICAS)
    assert [lane.group for lane in step.lanes] == [0, 1]
    waits = [step.waiting(lane) for lane in step.lanes]
    assert min(waits) == pytest.approx(estimate.breakdown.bubble_seconds, abs=1e-9 * step.seconds)
    assert max(waits) > 0.001 * step.seconds
    sizes = [span.end - span.start for span in step.lanes[0].spans if span.kind == "forward"]
    assert len(sizes) == 7
    assert sizes[0] / sizes[-1] == pytest.approx(4 / 3)  # 25 sequences in 7: four of 4, three of 3
    assert 0 < step.lanes[0].collectives < 1  # ZeRO 3


@pytest.mark.parametrize("target", ["megatron", "torch", "deepspeed"])
def test_the_longest_path_has_no_gap(target: str) -> None:
    """From the begin of the step to its end something on it is always busy, or held back in a sync."""
    plan = replace(PIPELINE, target=target)
    step = step_of(plan, ESTIMATOR)
    spans = sorted((s.start, s.end) for lane in step.lanes for s in lane.spans if s.critical)
    now = 0.0
    for start, end in spans:
        assert start <= now + 1e-9 * step.seconds
        now = max(now, end)
    assert now == pytest.approx(step.seconds)


def test_waiting_is_what_is_left() -> None:
    """Of an empty lane all."""
    assert Step(seconds=2.0, lanes=()).waiting(
        Lane(stage=0, group=None, spans=(), collectives=0.0)
    ) == pytest.approx(2.0)


@pytest.mark.parametrize("plan", [REPLICAS, SHARES], ids=["in lock step", "at their own pace"])
def test_a_group_works_as_long_as_it_is_priced(plan: Plan) -> None:
    """Smaller micro-batches take what they are priced with, in lock step as long as the largest."""
    step, groups = step_of(plan, ESTIMATOR), ESTIMATOR.estimate(plan).stages[0].groups
    for lane, each in zip(step.lanes, groups, strict=True):
        once = each.forward_seconds + each.backward_seconds
        assert lane.seconds("forward", "backward") == pytest.approx(each.work_seconds)
        assert (each.work_seconds == pytest.approx(each.steps * once)) == (plan.zero == 3)
