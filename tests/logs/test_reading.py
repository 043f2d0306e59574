"""Log files: which count, how several combine, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import HetplanError
from planner.logs.reading import ExampleLines, Log, read_logs, require_same_job
from planner.plan.placement import ranks
from planner.plan.values import Plan
from planner.runtimes.deepspeed.log import DeepSpeedLines
from planner.runtimes.megatron.log import MegatronLines
from tests.logs import jobs
from tests.logs.printing import (
    SAMPLES,
    example_text,
    iteration,
    memory_report,
    prefixed,
    timers,
    timers_by_rank,
    write,
)
from tests.report import examples
from tests.training.test_training import pipeline_plan, uneven_plan


def told(plan: Plan, *paths: Path) -> Log:
    """The logs, checked against the plan."""
    log = read_logs(paths, plan, jobs.MODEL.training.sequence_length)
    require_same_job(log, plan, ranks(plan, examples.cluster()))
    return log


def refused(plan: Plan, *paths: Path) -> str:
    """The error, with its hints."""
    with pytest.raises(HetplanError) as error:
        told(plan, *paths)
    assert error.value.exit_code == 2
    hints = [
        error.value.hint or "",
        *(problem.hint or "" for problem in getattr(error.value, "problems", ())),
    ]
    return error.value.message + "".join(hints)


@pytest.mark.parametrize(
    "prefix", ["", "[default0]:", "a100-01: ", "0: ", "[rank0]: ", "\x1b[32m[default0]:\x1b[0m"]
)
def test_the_example_behind_prefixes(tmp_path: Path, prefix: str) -> None:
    """What torchrun, srun and pdsh put before a line, and colours."""
    text = prefixed(example_text([0.5, 0.25], {(3, 0): 123}), prefix)
    log = told(jobs.data_parallel(), write(tmp_path / "a.log", text))
    assert [entry.seconds for entry in log.steps] == [0.5, 0.25]
    assert [(entry.rank, entry.stage, entry.peak_bytes) for entry in log.memory] == [(3, 0, 123)]
    assert log.source == "hetplan's example"


def test_real_runs() -> None:
    """The example's own times win over those of the runtime, whose parts are taken."""
    log = read_logs([SAMPLES / "deepspeed_uneven.log"], uneven_plan(1), jobs.MODEL.training.sequence_length)
    assert (log.source, len(log.steps), len(log.parts)) == ("hetplan's example", 8, 32)
    assert [entry.seconds for entry in log.steps][-1] == 0.015555
    log = read_logs(
        [SAMPLES / "deepspeed_pipeline.log"], pipeline_plan(0, 1), jobs.MODEL.training.sequence_length
    )
    assert (log.source, len(log.steps), len(log.parts)) == ("hetplan's example", 8, 0)


def test_logs_of_several_nodes_combine(tmp_path: Path) -> None:
    """One has the steps, each has peaks of its own ranks."""
    first = write(tmp_path / "0.log", example_text([0.5] * 4, {(0, 0): 10, (1, 0): 11}))
    second = write(tmp_path / "1.log", example_text([], {(2, 0): 12, (3, 0): 13}))
    for paths in ((first, second), (second, first), (first, second, first)):
        log = told(jobs.data_parallel(), *paths)
        assert [entry.peak_bytes for entry in log.memory] == [10, 11, 12, 13]
        assert len(log.steps) == 4


def test_logs_of_two_runs_are_refused(tmp_path: Path) -> None:
    """Two files with other times of the same steps."""
    paths = [
        write(tmp_path / f"{name}.log", example_text([seconds] * 4))
        for name, seconds in (("a", 0.5), ("b", 0.7))
    ]
    assert "b.log: has different times for the same steps" in refused(jobs.data_parallel(), *paths)


def test_the_last_run_of_a_file_counts(tmp_path: Path) -> None:
    """A log that two runs were written to, one after the other."""
    text = example_text([0.5] * 6, {(0, 0): 99}) + example_text([0.25] * 5)
    log = told(jobs.data_parallel(), write(tmp_path / "a.log", text))
    assert [entry.seconds for entry in log.steps] == [0.25] * 5
    assert log.memory == ()
    assert log.notes == (f"{tmp_path / 'a.log'}: holds 2 runs, only the last counts",)


def test_the_first_line_of_the_example_says_whose_job_it_is(tmp_path: Path) -> None:
    """Each run of a file has its own; another batch or world is refused with both numbers."""
    plan = jobs.data_parallel()
    head = "job ranks {} global_batch {}\n"
    own = head.format(plan.devices, plan.global_batch)
    text = head.format(999, 7) + example_text([0.5] * 6) + own + example_text([0.25] * 5)
    log = told(plan, write(tmp_path / "a.log", text))
    assert [entry.seconds for entry in log.steps] == [0.25] * 5
    other = write(tmp_path / "b.log", head.format(plan.devices, 7) + example_text([0.5] * 4))
    assert f"global batch 7, planned {plan.global_batch}" in refused(plan, other)


def test_lines_that_are_cut_or_mixed_are_skipped(tmp_path: Path) -> None:
    """Ranks that print at once, a file that ends in a line, bytes that are no text."""
    text = "step 0 loss 4.1 secstep 1 loss 4.1 seconds 0.500000\n"
    text += "rank 0 stage 0 peak_bytes 12rank 1 stage 0 peak_bytes 34\n"
    path = tmp_path / "a.log"
    path.write_bytes(
        text.encode() + b"\xff\xfe\x00\nstep 2 loss nan seconds 0.250000\r\nrank 2 stage 0 peak_bytes 5"
    )
    log = told(jobs.data_parallel(), path)
    assert [entry.seconds for entry in log.steps] == [0.5, 0.25]
    assert [(entry.rank, entry.peak_bytes) for entry in log.memory] == [(1, 34)]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("hello\nworld\n", "has none of the lines that are known"),
        ("step 1 loss 2.0 seconds 0.000000\n", "has none of the lines that are known"),
        ("rank 0 stage 0 peak_bytes 12\n", "has no step times"),
    ],
)
def test_files_without_steps_are_refused(tmp_path: Path, content: str, what: str) -> None:
    """One error that names the formats."""
    message = refused(jobs.data_parallel(), write(tmp_path / "a.log", content))
    assert f"a.log: {what}" in message
    if "empty" not in what:
        assert all(name in message for name in ("hetplan's example", "DeepSpeed", "Megatron"))


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    """Missing, a folder."""
    assert "gone.log: no such file" in refused(jobs.data_parallel(), tmp_path / "gone.log")
    assert "is a directory" in refused(jobs.data_parallel(), tmp_path)
    assert "/dev/zero: is neither a file nor a pipe" in refused(jobs.data_parallel(), Path("/dev/zero"))


def test_nemo(tmp_path: Path) -> None:
    """Its lines as runs in public print them, for a plan of Megatron's core alone."""
    plan = jobs.pipeline()
    line = (
        "retraining/0 [default0]:Training epoch 0, iteration {0}/99 | lr: 9.804e-08 | global_batch_size: {1} | "
        "global_step: {0} | reduced_train_loss: 14.66 | train_step_timing in s: {2} | consumed_samples: 8\n"
    )
    text = "".join(line.format(step, plan.global_batch, 2.0 + 0.008 * step) for step in range(3))
    log = told(plan, write(tmp_path / "a.log", text))
    assert [entry.seconds for entry in log.steps] == [2.0, 2.008, 2.016]
    other = write(tmp_path / "b.log", line.format(0, plan.global_batch + 1, 2.008))
    assert f"global batch {plan.global_batch + 1}, planned {plan.global_batch}" in refused(plan, other)
    assert "is a log of NeMo" in refused(jobs.data_parallel(), tmp_path / "a.log")


def test_logs_of_another_job_are_refused(tmp_path: Path) -> None:
    """Each field that differs is named with both values."""
    log = write(tmp_path / "a.log", iteration(1, 2.0, 512))
    assert "global batch 512, planned 256" in refused(jobs.pipeline(), log)
    world = (
        "using world size: 16, data-parallel size: 1, context-parallel size: 1, tensor-model-parallel size: 2, "
        "pipeline-model-parallel size: 8\n"
    )
    message = refused(jobs.pipeline(), write(tmp_path / "a.log", world, iteration(1, 2.0, 256)))
    assert "world size 16, planned 8" in message
    assert "tensor parallel size 2, planned 4" in message
    assert "pipeline parallel size 8, planned 2" in message
    report = memory_report(8, 1.0, 2.0)
    assert "world size above 8, planned 8 ranks" in refused(
        jobs.pipeline(), write(tmp_path / "a.log", iteration(1, 2.0, 256), report)
    )
    peaks = write(tmp_path / "b.log", example_text([0.5], {(0, 1): 10}))
    assert "rank 0 holds stage 1, planned stage 0" in refused(jobs.data_parallel(), peaks)


def test_logs_of_another_runtime_are_refused(tmp_path: Path) -> None:
    """A Megatron log for a plan of DeepSpeed."""
    log = write(tmp_path / "a.log", iteration(1, 2.0, 256))
    assert "is a log of Megatron, the plan's target is deepspeed" in refused(jobs.data_parallel(), log)


WHOLE = (
    (SAMPLES / "deepspeed_uneven.log").read_text()[:2500]
    + (SAMPLES / "deepspeed_pipeline.log").read_text()[-600:]
    + iteration(10, 2.0, 256)
    + timers({"forward-compute": (0.1, 0.2), "optimizer": (0.1, 0.1), "params-all-gather": (0.1, 0.2)})
    + timers_by_rank({"backward-compute": [0.4, 0.5]})
    + memory_report(0, 1e9, 2e9, 3e9)
    + example_text([0.5], {(0, 0): 123})
)


@given(st.integers(0, len(WHOLE)), st.integers(0, 300), st.text(max_size=8))
def test_no_damage_breaks_the_readers(start: int, length: int, put: str) -> None:
    """A piece is missing, or something else stands in its place: lines are read whole or skipped."""
    text = WHOLE[:start] + put + WHOLE[start + length :]
    for reader in (ExampleLines(), DeepSpeedLines(jobs.across_nodes()), MegatronLines()):
        for line in text.splitlines(keepends=True):
            reader.restarts(line)
            reader.read(line)
        assert all(entry.seconds > 0 and entry.start >= 0 for entry in reader.steps.timed())
        assert all(entry.seconds >= 0 and entry.start >= 0 for entry in reader.parts)
        assert all(entry.peak_bytes > 0 for entry in reader.memory)
        assert all(fact.value >= 0 for fact in reader.facts)
