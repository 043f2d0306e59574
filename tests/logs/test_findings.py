"""The advice follows from the numbers: what is made wrong in a log is what is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.logs.findings import Finding
from planner.plan.values import Plan
from tests.logs import jobs
from tests.logs.printing import (
    deepspeed_text,
    example_text,
    megatron_text,
    memory_report,
    predicted_parts,
    write,
)


def after_deepspeed(path: Path, plan: Plan, **factors: float) -> tuple[Finding, ...]:
    """Findings of a DeepSpeed run whose parts are the prediction's times factors."""
    found = jobs.prediction(plan)
    parts = predicted_parts(found, found.ranks[0], **factors)
    return jobs.told(plan, write(path / "node-0.log", deepspeed_text(parts)))[2]


def after_megatron(path: Path, slower: dict[int, float], memory: str = "") -> tuple[Finding, ...]:
    """Findings of a pipeline on Megatron whose stages compute slower by factors."""
    plan = jobs.pipeline()
    found = jobs.prediction(plan)
    parts, extra = [], 0.0
    for rank in found.ranks:
        factor = slower.get(rank.stage, 1.0)
        parts.append(predicted_parts(found, rank, forward=factor, backward=factor))
        once = found.parts(rank)
        extra = max(extra, (factor - 1) * (once["forward"] + once["backward"]))
    text = megatron_text(parts, found.estimate.step_seconds + extra, plan.global_batch)
    return jobs.told(plan, write(path / "node-0.log", text, memory))[2]


def test_a_run_as_predicted_needs_nothing(tmp_path: Path) -> None:
    """Both runtimes, all parts as predicted."""
    for found in (after_deepspeed(tmp_path, jobs.data_parallel()), after_megatron(tmp_path, {})):
        assert [(entry.cause, entry.commands) for entry in found] == [("none", ())]


@pytest.mark.parametrize("factor", [0.5, 1.6])
def test_slow_and_fast_compute_is_measured_on_its_device(tmp_path: Path, factor: float) -> None:
    """Forward and backward together, off by more than the spread."""
    (found,) = after_deepspeed(tmp_path, jobs.data_parallel(), forward=factor, backward=factor)
    assert found.cause == "compute"
    assert found.text.startswith(f"forward and backward of stage 0 (A100) take {factor:.2f} x the predicted")
    assert found.commands == ("hetplan calibrate device --model model.yaml",)


def test_a_slow_stage_of_a_pipeline_is_named(tmp_path: Path) -> None:
    """Its device type and its tensor-parallel degree, and no advice on the waiting that follows from it."""
    (found,) = after_megatron(tmp_path, {1: 1.8})
    assert "stage 1 (V100) take 1.80 x the predicted (100 % of the difference)" in found.text
    assert found.commands == (
        "hetplan calibrate device --model model.yaml --tp 4",
        "hetplan calibrate network",
    )


def test_slow_gradient_sync_is_measured_on_its_fabric(tmp_path: Path) -> None:
    """The fabric that the replicas talk over, by the placement."""
    found = jobs.prediction(jobs.across_nodes())
    parts = found.parts(found.ranks[0])
    factor = 1 + 0.5 * sum(parts.values()) / parts["gradient sync"]
    (finding,) = after_deepspeed(tmp_path, jobs.across_nodes(), gradient_sync=factor)
    assert finding.cause == "communication"
    assert finding.text.startswith("gradient sync of stage 0 over ib takes ")
    assert finding.commands == ("hetplan calibrate network --fabric ib",)


def test_a_slow_optimizer_is_measured_with_its_zero_stage(tmp_path: Path) -> None:
    """AdamW is measured with the states that ZeRO leaves to one device."""
    found = jobs.prediction(jobs.data_parallel(zero=1))
    parts = found.parts(found.ranks[0])
    factor = 1 + 0.5 * sum(parts.values()) / parts["optimizer"]
    (finding,) = after_deepspeed(tmp_path, jobs.data_parallel(zero=1), optimizer=factor)
    assert finding.cause == "optimizer"
    assert finding.commands == ("hetplan calibrate device --model model.yaml --zero 1",)


def test_the_largest_part_comes_first(tmp_path: Path) -> None:
    """Ordered by seconds, not by ratio."""
    found = jobs.prediction(jobs.data_parallel())
    parts = found.parts(found.ranks[0])
    small = 1 + 0.3 * sum(parts.values()) / parts["optimizer"]
    entries = after_deepspeed(tmp_path, jobs.data_parallel(), forward=2, backward=2, optimizer=small)
    assert [entry.cause for entry in entries] == ["compute", "optimizer"]


def test_time_outside_the_timers_is_no_matter_of_calibration(tmp_path: Path) -> None:
    """Data loading: no command."""
    found = jobs.prediction(jobs.data_parallel())
    parts = found.parts(found.ranks[0])
    text = deepspeed_text(parts).replace(f"{sum(parts.values()):.6f}", f"{2 * sum(parts.values()):.6f}")
    (finding,) = jobs.told(jobs.data_parallel(), write(tmp_path / "a.log", text))[2]
    assert (finding.cause, finding.commands) == ("outside", ())
    assert finding.text.startswith("50 % of the step lie outside")


def test_a_step_without_parts_says_how_to_get_them(tmp_path: Path) -> None:
    """Within the spread there is nothing to say; beyond it, how to print parts and what to measure first."""
    plan = jobs.data_parallel()
    step = jobs.prediction(plan).estimate.step_seconds
    spread = jobs.prediction(plan).estimate.spread
    near = write(tmp_path / "near.log", example_text([step / (1 + 0.9 * spread)] * 10))
    far = write(tmp_path / "far.log", example_text([step / (1 - 1.1 * spread)] * 10))
    assert [entry.cause for entry in jobs.told(plan, near)[2]] == ["none"]
    (finding,) = jobs.told(plan, far)[2]
    assert finding.cause == "step"
    assert '"wall_clock_breakdown": true' in finding.text
    assert "the largest predicted cause is compute of stage 0 (A100)" in finding.text
    assert finding.commands == ("hetplan calibrate device --model model.yaml",)


def test_short_and_uneven_logs_are_doubted(tmp_path: Path) -> None:
    """One step, few steps, and steps that spread; all three still give an answer."""
    plan = jobs.data_parallel()
    step = jobs.prediction(plan).estimate.step_seconds

    def first(seconds: list[float]) -> Finding:
        return jobs.told(plan, write(tmp_path / "a.log", example_text(seconds)))[2][0]

    assert first([step]).text.startswith("the log ends within the first 3 steps")
    assert first([step]).text.endswith("run at least 7 more steps")
    (alone,) = jobs.told(plan, write(tmp_path / "b.log", example_text([3 * step])))[2]
    assert alone.cause == "warm-up"  # a first step that is slow is no reason to measure
    assert first([step] * 5).text.startswith("step times after the warm-up: 2,")
    assert first([step] * 5).text.endswith("run at least 3 more steps")
    assert first([step] * 8).cause == "none"
    uneven = [step * factor for factor in (3, 2, 1, 0.8, 1.2, 0.9, 1.1, 1.3, 0.7, 1.0)]
    assert first(uneven).cause == "spread"
    assert first([step * 9] * 3 + [step] * 8).cause == "none"


def test_memory_is_split_where_the_log_allows(tmp_path: Path) -> None:
    """States, activations and what is fixed are told apart by Megatron's report."""
    found = jobs.prediction(jobs.pipeline())
    memory = found.memory(found.ranks[0])
    states = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    rest = memory.used_bytes - memory.runtime_bytes - states
    fixed = memory.runtime_bytes

    def finding(states: float, rest: float, fixed: float) -> Finding:
        report = memory_report(0, states, states + rest, states + rest + fixed)
        (only,) = after_megatron(tmp_path, {}, report)
        return only

    assert finding(states, rest, fixed).cause == "none"
    more = finding(states, rest * 3, fixed)
    assert "rank 0 (stage 0, A100) need" in more.text
    assert "most of it activations" in more.text
    assert (
        "parameters, gradients and optimizer states: does the run use"
        in finding(states * 2, rest, fixed).text
    )
    assert finding(states, rest, 4 * fixed).commands == ("hetplan calibrate device --model model.yaml",)


def test_peaks_alone_ask_for_more_runs(tmp_path: Path) -> None:
    """The example prints peaks only."""
    plan = jobs.data_parallel()
    found = jobs.prediction(plan)
    step, memory = found.estimate.step_seconds, found.memory(found.ranks[0])
    tensors = memory.used_bytes - memory.runtime_bytes

    def told(factor: float) -> tuple[Finding, ...]:
        peaks = {(rank, 0): round(tensors * factor) for rank in range(4)}
        return jobs.told(plan, write(tmp_path / "a.log", example_text([step] * 10, peaks)))[2]

    assert [entry.cause for entry in told(1.05)] == ["none"]
    (finding,) = told(1.5)
    assert "1.50 x the predicted" in finding.text
    assert finding.commands == ("hetplan calibrate fit --measured runs.csv -o calibration.yaml",)
