"""Megatron's lines."""

from __future__ import annotations

import pytest

from planner.runtimes.log import Fact, RankMemory
from planner.runtimes.megatron.log import MegatronLines
from tests.logs.printing import iteration, memory_report, prefixed, timers, timers_by_rank

GIB = 2**30
WORLD = (
    "using world size: 8, data-parallel size: 1, context-parallel size: 1, hierarchical context-parallel sizes: "
    "None, tensor-model-parallel size: 4, pipeline-model-parallel size: 2\n"
)


def read(text: str) -> MegatronLines:
    """A reader that has read a text."""
    lines = MegatronLines()
    for line in text.splitlines(keepends=True):
        lines.read(line)
    return lines


@pytest.mark.parametrize("prefix", ["", "[default7]:", "node-3: ", "7: ", "[rank7]: "])
def test_iterations_and_timers_behind_prefixes(prefix: str) -> None:
    """The slowest rank counts; the gather of parameters runs inside the optimizer's timer."""
    found = {
        "forward-backward": (1.5, 1.6),
        "forward-compute": (0.4, 0.5),
        "backward-compute": (0.9, 1.0),
        "all-grads-sync": (0.01, 0.02),
        "params-all-gather": (0.02, 0.03),
        "optimizer-inner-step": (0.01, 0.02),
        "optimizer": (0.05, 0.08),
    }
    text = "".join(iteration(number, 2.0, 256) + timers(found) for number in (10, 20))
    lines = read(prefixed(text, prefix))
    assert lines.steps.seconds == {10: 2.0, 20: 2.0}
    last = {entry.part: (entry.rank, entry.seconds) for entry in lines.parts if entry.start == 10}
    assert last == {
        "forward": (None, 0.5),
        "backward": (None, 1.0),
        "gradient sync": (None, pytest.approx(0.05)),
        "optimizer": (None, pytest.approx(0.05)),
    }
    assert lines.facts == (Fact(field="global batch", value=256),)


def test_timers_by_rank() -> None:
    """``--timing-log-option all`` tells ranks apart."""
    lines = read(
        prefixed(iteration(1, 2.0, 8) + timers_by_rank({"forward-compute": [0.4, 0.5]}), "[default0]:")
    )
    assert {(entry.rank, entry.seconds) for entry in lines.parts} == {(0, 0.4), (1, 0.5)}


def test_max_only() -> None:
    """``--timing-log-option max`` has one number a timer."""
    line = f"    {'forward-compute '.ljust(48, '.')}: 500.00\n"
    (entry,) = read(iteration(1, 2.0, 8) + "max time across ranks (ms):\n" + line).parts
    assert (entry.part, entry.seconds) == ("forward", 0.5)


def test_old_timers_on_one_line() -> None:
    """Of the last rank, whose number the plan tells."""
    lines = MegatronLines(7)
    for line in (
        iteration(1, 2.0, 8),
        "time (ms) | forward-compute: 500.00 | backward-params-all-reduce: 20.00 | "
        "backward-embedding-all-reduce: 0.00 | optimizer: 60.00\n",
    ):
        lines.read(line)
    assert {(entry.part, entry.rank, entry.seconds) for entry in lines.parts} == {
        ("forward", 7, 0.5),
        ("gradient sync", 7, 0.02),
        ("optimizer", 7, 0.06),
    }


def test_memory_reports() -> None:
    """By rank: held after the step, at most, and on the whole device; the last report with the highest peak."""
    text = memory_report(4, 3 * GIB, 9 * GIB) + memory_report(4, 5 * GIB, 8 * GIB, 11 * GIB)
    assert read(text).memory == (
        RankMemory(rank=4, peak_bytes=9 * GIB, held_bytes=5 * GIB, device_bytes=11 * GIB),
    )


def test_older_memory_reports() -> None:
    """All digits of a size, and no date before the iteration."""
    text = "[Rank 1] (after 1 iterations) memory (MB) | allocated: 30250.12890625 | max allocated: 41250.25390625"
    text += " | reserved: 43008.0 | max reserved: 43008.0\n"
    text += " iteration       12/  1000 | consumed samples: 96 | elapsed time per iteration (ms): 865.2 | lr: 1.0 |\n"
    lines = read(text)
    assert [entry.peak_bytes for entry in lines.memory] == [41250.25390625 * 2**20]
    assert lines.steps.seconds == {12: pytest.approx(0.8652)}
    used = read(text.replace("reserved: 43008.0\n", "reserved: 43008.0 | device usage: 45056.5\n"))
    assert [entry.device_bytes for entry in used.memory] == [45056.5 * 2**20]


def test_sizes_of_the_job() -> None:
    """Ranks, tensor and pipeline parallelism."""
    assert {fact.field: fact.value for fact in read(WORLD).facts} == {
        "world size": 8,
        "tensor parallel size": 4,
        "pipeline parallel size": 2,
    }


def test_skipped_iterations_are_noted() -> None:
    """They have no optimizer step."""
    text = iteration(1, 2.0, 8).replace("skipped iterations:   0", "skipped iterations:   2")
    assert read(text).notes[0].startswith("2 iterations were skipped")


@pytest.mark.parametrize("cut", range(20, 110, 10))
def test_cut_off_lines_are_skipped(cut: int) -> None:
    """An iteration that ends before its time is none."""
    assert read(iteration(10, 2.0, 256)[:cut]).steps.seconds == {}


def test_other_lines_are_skipped() -> None:
    """Timers before any iteration, ranks without a timer, garbage."""
    text = (
        timers({"forward-compute": (1, 2)})
        + "     rank  0: 12.34\n"
        + " iteration  xx/ 100 | elapsed\n"
        + "\x00" * 99
    )
    lines = read(text + " " * 4000)
    assert (lines.steps.seconds, lines.parts, lines.memory) == ({}, (), ())
