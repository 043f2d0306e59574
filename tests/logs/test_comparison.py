"""What is set against what."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.logs.comparison import Deviation
from tests.logs import jobs
from tests.logs.printing import (
    SAMPLES,
    deepspeed_text,
    example_text,
    iteration,
    megatron_text,
    memory_report,
    predicted_parts,
    timers,
    write,
)


def test_errors_and_spreads() -> None:
    """As in validate: predicted over observed, less 1."""
    difference = Deviation(predicted=1.2, observed=1.0)
    assert difference.error == pytest.approx(0.2)
    assert difference.excess == pytest.approx(-0.2)
    assert (difference.within(0.21), difference.within(0.19)) == (True, False)
    assert not Deviation(predicted=1.0, observed=0.0).within(9.0)


@pytest.mark.parametrize("plan", [jobs.data_parallel(), jobs.across_nodes(), jobs.pipeline()])
def test_parts_add_up_to_the_step(plan: object) -> None:
    """On every rank: a faster replica or stage waits for the slower ones."""
    from planner.plan.values import Plan

    assert isinstance(plan, Plan)
    found = jobs.prediction(plan)
    for rank in found.ranks:
        assert sum(found.parts(rank).values()) == pytest.approx(found.estimate.step_seconds, rel=1e-9)


def test_predicted_parts_are_found_again(tmp_path: Path) -> None:
    """A log of the prediction differs from it by what the log's digits cut off."""
    plan = jobs.data_parallel()
    found = jobs.prediction(plan)
    text = deepspeed_text(predicted_parts(found, found.ranks[0]))
    _, comparison, _ = jobs.told(plan, write(tmp_path / "a.log", text))
    assert comparison.within
    assert comparison.step.error == pytest.approx(0, abs=1e-5)
    assert comparison.tokens.error == pytest.approx(0, abs=1e-5)
    assert comparison.tokens.observed == pytest.approx(256 * 2048 / comparison.step.observed)
    for entry in comparison.parts:
        assert (entry.rank, entry.stage, entry.gpu) == (0, 0, "A100")
        assert abs(entry.seconds.excess) < 2e-5
    assert comparison.rest is not None
    assert comparison.rest.observed < 1e-4


def test_each_stage_has_its_own_row(tmp_path: Path) -> None:
    """Of each stage the slowest rank that timed a part."""
    plan = jobs.pipeline()
    found = jobs.prediction(plan)
    parts = [predicted_parts(found, rank, forward=2.0 if rank.rank == 6 else 1.0) for rank in found.ranks]
    text = megatron_text(parts, found.estimate.step_seconds, plan.global_batch)
    _, comparison, _ = jobs.told(plan, write(tmp_path / "a.log", text))
    forward = [entry for entry in comparison.parts if entry.part == "forward"]
    assert [(entry.stage, entry.gpu) for entry in forward] == [(0, "A100"), (1, "V100")]
    assert forward[1].rank == 6
    assert forward[1].seconds.error == pytest.approx(-0.5, abs=1e-4)
    assert comparison.rest is None


def test_the_slowest_of_all_ranks_stands_against_the_slowest_predicted(tmp_path: Path) -> None:
    """Where the log does not tell ranks apart."""
    plan = jobs.pipeline()
    found = jobs.prediction(plan)
    slowest = max(found.parts(rank)["forward"] for rank in found.ranks)
    text = "".join(iteration(n, 2.0, 256) + timers({"forward-compute": (0.1, slowest)}) for n in range(1, 9))
    _, comparison, _ = jobs.told(plan, write(tmp_path / "a.log", text))
    (entry,) = comparison.parts
    assert entry.rank is None
    assert entry.seconds.error == pytest.approx(0, abs=1e-4)


def test_memory_is_that_of_the_rank(tmp_path: Path) -> None:
    """Without the context; the split as far as it is told."""
    plan = jobs.pipeline()
    found = jobs.prediction(plan)
    text = (
        iteration(1, 2.0, 256)
        + memory_report(4, 3 * 2**30, 5 * 2**30, 7 * 2**30)
        + memory_report(0, 2**30, 2**31)
    )
    _, comparison, _ = jobs.told(plan, write(tmp_path / "a.log", text))
    first, last = comparison.memory
    assert [(entry.rank, entry.stage, entry.gpu) for entry in (first, last)] == [
        (0, 0, "A100"),
        (4, 1, "V100"),
    ]
    memory = found.memory(found.ranks[4])
    assert last.peak == Deviation(predicted=memory.used_bytes - memory.runtime_bytes, observed=5 * 2**30)
    assert last.states is not None
    assert last.activations is not None
    assert last.states.predicted + last.activations.predicted == pytest.approx(last.peak.predicted)
    assert (last.states.observed, last.activations.observed) == (3 * 2**30, 2 * 2**30)
    assert last.fixed == Deviation(predicted=memory.runtime_bytes, observed=2 * 2**30)
    assert first.fixed is None


def test_a_peak_of_nobody_stands_against_the_fullest(tmp_path: Path) -> None:
    """Only where no rank said its own."""
    plan = jobs.data_parallel()
    speed = (
        "epoch=0/micro_step=4/global_step={}, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=64.0, "
        "MemAllocated=1.0GB, MaxMemAllocated=9.5GB\n"
    )
    alone = write(tmp_path / "a.log", *(speed.format(step) for step in range(1, 9)))
    seen, comparison, _ = jobs.told(plan, alone)
    assert (seen.source, seen.step_seconds) == ("DeepSpeed", 4.0)
    assert [(entry.rank, entry.peak.observed) for entry in comparison.memory] == [(None, 9.5 * 2**30)]
    both = write(tmp_path / "b.log", alone.read_text(), example_text([4.0], {(2, 0): 10**9}))
    assert [entry.rank for entry in jobs.told(plan, both)[1].memory] == [2]


def test_a_real_run_on_uneven_batches() -> None:
    """The prediction of a cluster of GPUs is far from two processors, and all parts are there."""
    from planner.calibration.values import ASSUMED
    from planner.cost.estimate import Estimator
    from planner.logs.comparison import compared, predicted
    from planner.logs.reading import observed, read_logs
    from planner.plan.placement import ranks
    from tests.training.test_training import three_ranks, uneven_plan
    from tests.worlds import model

    plan, cluster = uneven_plan(1), three_ranks()
    found = predicted(plan, Estimator(cluster, model(12, layers=2), ASSUMED), ranks(plan, cluster))
    seen = observed(read_logs([SAMPLES / "deepspeed_uneven.log"], plan, jobs.MODEL.training.sequence_length))
    comparison = compared(seen, found)
    assert (len(seen.seconds), seen.left_out) == (5, 3)
    assert seen.step_seconds == 0.015555
    assert [entry.part for entry in comparison.parts] == ["forward", "backward", "gradient sync", "optimizer"]
    assert [entry.seconds.observed for entry in comparison.parts[:2]] == pytest.approx([0.00124, 0.00192])
