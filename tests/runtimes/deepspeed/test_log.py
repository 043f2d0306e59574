"""DeepSpeed's lines."""

from __future__ import annotations

import pytest

from planner.plan.values import Plan
from planner.runtimes.deepspeed.log import DeepSpeedLines
from planner.runtimes.log import Fact
from tests.logs.printing import SAMPLES
from tests.worlds import group, plan

GIB = 2**30


def plan_of(batch: int | None, pipeline: bool) -> Plan:
    """A plan with this batch, split evenly; unevenly for None."""
    replicas = (group("a", "A100", share=batch or 3),) if batch else (group("a", "A100", share=3, steps=2),)
    return plan("deepspeed", 0, [2, 2] if pipeline else [4], [replicas] * (2 if pipeline else 1))


def read(text: str, batch: int | None = 16, pipeline: bool = False) -> DeepSpeedLines:
    """A reader that has read a text."""
    lines = DeepSpeedLines(plan_of(batch, pipeline))
    for line in text.splitlines(keepends=True):
        lines.read(line)
    return lines


def speed(step: int, rate: str, peak: str = "3.5") -> str:
    """The throughput timer's line."""
    return (
        f"[2026-01-02 03:04:05,678] [INFO] [timer.py:260:stop] epoch=0/micro_step={4 * step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=31.9, CurrSamplesPerSec={rate}, MemAllocated=2.25GB, MaxMemAllocated={peak}GB\n"
    )


def test_throughput_timer() -> None:
    """Seconds are the batch over the speed; the line also has the peak, of nobody in particular."""
    lines = read(speed(10, "32.0") + speed(20, "6.4e+01", "4.25") + speed(30, "inf") + speed(40, "nan"))
    assert lines.steps.seconds == {10: 0.5, 20: 0.25}
    (peak,) = lines.memory
    assert (peak.rank, peak.peak_bytes) == (None, 4.25 * GIB)


def test_throughput_timer_on_uneven_batches() -> None:
    """DeepSpeed takes its own rank's batch for that of all, so its speed is no time."""
    assert read(speed(10, "32.0"), batch=None).steps.seconds == {}


def test_wall_clock_breakdown_of_a_real_run() -> None:
    """Parts of each of eight steps of rank 0; the gather of parameters is communication."""
    lines = read((SAMPLES / "deepspeed_data_parallel.log").read_text())
    first: dict[str, object] = {
        entry.part: (entry.rank, entry.seconds) for entry in lines.parts if entry.start == 0
    }
    assert first == {
        "forward": (0, pytest.approx(6.95e-3)),
        "backward": (0, pytest.approx(7.40e-3)),
        "gradient sync": (0, pytest.approx(22.77e-3 + 1.76e-3)),
        "optimizer": (0, pytest.approx(5.14e-3 - 1.76e-3)),
    }
    assert max(entry.start for entry in lines.parts) == 7
    assert lines.steps.seconds[0] == pytest.approx(6.95e-3 + 30.24e-3 + 5.14e-3)
    assert lines.notes == ()


def test_pipeline_of_a_real_run() -> None:
    """The engine's own times, and the batch that they tell."""
    lines = read((SAMPLES / "deepspeed_pipeline.log").read_text(), batch=4, pipeline=True)
    assert len(lines.steps.seconds) == 8
    assert lines.steps.seconds[2] == 0.016
    assert lines.facts == (Fact(field="global batch", value=4),)


def test_pipeline_timers_cover_the_steps_between_two_lines() -> None:
    """Sums over ten steps, as the pipeline engine prints them with its sends."""
    text = "".join(
        "[Rank 0] time (ms) | fwd: 1000.00 | bwd: 2500.00 | bwd_inner: 2000.00 | bwd_allreduce: 500.00 | step: 100.00\n"
        f"steps: {steps} loss: 4.1 lm: 1.0 iter time (s): 0.400 samples/sec: 10.000\n"
        "[Rank 0] time (ms) | pipe_send_output: 30.00 | pipe_recv_grad: 70.00\n"
        for steps in (10, 20, 30)
    )
    lines = read(text, batch=4, pipeline=True)
    assert [entry.start for entry in lines.steps.timed()] == [0, 10, 20]
    last = {entry.part: entry.seconds for entry in lines.parts if entry.start == 20}
    assert last["backward"] == pytest.approx(0.2)
    assert last["sends and waiting"] == pytest.approx(0.01)


def test_steps_that_a_line_of_the_pipeline_covers() -> None:
    """All since the line before; the first one here comes after two."""
    text = "".join(
        f"steps: {steps} loss: 4.1 lm: 1.0 iter time (s): 0.400 samples/sec: 10.000\n"
        for steps in (2, 12, 22)
    )
    lines = read(text, batch=4, pipeline=True)
    assert [entry.start for entry in lines.steps.timed()] == [0, 2, 12]


def test_memory_breakdown_of_a_real_run() -> None:
    """``see_memory_usage`` is of the first rank, and lengthens what it stands in."""
    lines = read(
        (SAMPLES / "deepspeed_memory.log").read_text() + "[Rank 0] time (ms) | fwd: 1.00 | step: 1.00\n"
    )
    (peak,) = lines.memory
    assert peak.rank == 0
    assert peak.peak_bytes == round(0.38 * GIB)
    assert "memory_breakdown was on" in lines.notes[0]


def test_older_names_of_the_timers() -> None:
    """Words in full, behind two ranks; a script's own line of timers, which has no step, is none of DeepSpeed's."""
    text = (
        "[2023-01-02 03:04:05,678] [INFO] [logging.py:96:log_dist] [Rank 3] rank=3 time (ms) | forward: 600.00 "
        "| backward: 2000.00 | backward_inner: 1900.00 | backward_allreduce: 100.00 | step: 50.00\n"
        "time (ms) | forward: 610.00 | backward: 2000.00 | backward-backward: 1990.00 | optimizer: 50.00\n"
    )
    found = {entry.part: (entry.rank, entry.seconds) for entry in read(text * 2).parts if entry.start == 1}
    assert found["forward"] == (3, 0.6)
    assert found["backward"] == (3, 1.9)
    assert read(text * 2).steps.seconds == {0: 2.65, 1: 2.65}


def test_what_the_configuration_says() -> None:
    """Batch and ranks; not the batch of one rank, nor the replicas of a pipeline."""
    text = "[INFO] [config.py:678:print]   train_batch_size ............. 16\n  world_size ................... 2\n"
    both = (Fact(field="global batch", value=16), Fact(field="world size", value=2))
    assert read(text).facts == both
    assert read(text, batch=None).facts == both[1:]
    assert read(text, pipeline=True).facts == both[:1]


@pytest.mark.parametrize(
    "line",
    [
        "[Rank 0] time (ms)",
        "[Rank 0] time (ms) | fwd: 6.9",
        "steps: 3 loss: 4.1 iter time (s): 0.01",
        "steps: 3 loss: 4.1 iter time (s): 0.000 samples/sec: inf",
        "steps: 3 loss: nan iter time (s): nan samples/sec: nan",
        "epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=31.9, CurrSamplesPerSec=..., MemAll",
        speed(4, "1.2.3").strip(),
        "MA 0.38 GB  Max_MA",
        "\x00\udcff time (ms) | fwd: \x00",
    ],
)
def test_cut_off_lines_are_skipped(line: str) -> None:
    """Nothing is made up."""
    lines = read(line)
    assert (lines.steps.seconds, lines.parts, lines.facts) == ({}, (), ())
