"""A run next to its prediction, as it is printed."""

from __future__ import annotations

from dataclasses import replace

from planner.field_metadata import plain
from planner.logs.comparison import Comparison, Deviation, MemoryDeviation, PartDeviation
from planner.logs.findings import Finding
from planner.logs.reading import Observed
from planner.report.observed import ObservedRun, observed_document, observed_sections
from planner.runtimes.log import Part
from tests.report.drawing import drawn

GIB = 2**30


def part(name: Part, rank: int | None, predicted: float, observed: float) -> PartDeviation:
    """Of the second stage."""
    seconds = Deviation(predicted=predicted, observed=observed)
    return PartDeviation(part=name, rank=rank, stage=1, gpu="V100", tp=1, seconds=seconds)


def memory(rank: int, stage: int, observed_gib: float) -> MemoryDeviation:
    """Ten GiB predicted."""
    peak = Deviation(predicted=10 * GIB, observed=observed_gib * GIB)
    return MemoryDeviation(rank=rank, stage=stage, gpu="V100", peak=peak)


SEEN = Observed(
    source="DeepSpeed",
    left_out=3,
    seconds=(2.0, 2.0, 2.0, 2.1, 1.9),
    only_warm_up=False,
    parts={},
    memory=(),
    notes=("a.log: holds 2 runs, only the last counts",),
)
COMPARISON = Comparison(
    step=Deviation(predicted=1.5, observed=2.0),
    tokens=Deviation(predicted=40_000, observed=30_000),
    spread=0.15,
    parts=(part("forward", 4, 0.5, 0.8), part("optimizer", 4, 0.010, 0.011)),
    rest=Deviation(predicted=0.99, observed=1.189),
    memory=(memory(0, 0, 10.4), memory(1, 0, 12.5), memory(4, 1, 8.0)),
    ranks=8,
)
FOUND = (
    Finding(cause="compute", text="forward is slow: measure it", commands=("hetplan calibrate device",)),
    Finding(cause="outside", text="the rest is not"),
)
RUN = ObservedRun(seen=SEEN, comparison=COMPARISON, findings=FOUND)


def test_report() -> None:
    """Errors keep their sign; of each stage the fullest rank; a command stands on its own line."""
    assert drawn(observed_sections(RUN)) == (
        "Log\n"
        "  source      DeepSpeed\n"
        "  step times  5 step times, 3 warm-up records left out\n"
        "  spread      0.0 %\n"
        "  ! a.log: holds 2 runs, only the last counts\n"
        "\n"
        "Predicted and observed\n"
        "               predicted  observed    error\n"
        "  ─────────────────────────────────────────\n"
        "  step time  1.5 s ±15 %       2 s  -25.0 %\n"
        "  tokens/s        40.0 k    30.0 k  +33.3 %\n"
        "  - the step is beyond the estimate's ±15 % (one standard error)\n"
        "\n"
        "Parts of the step\n"
        "                                 predicted  observed\n"
        "  part             of                 (ms)      (ms)    error\n"
        "  ───────────────────────────────────────────────────────────────────\n"
        "  forward          rank 4, V100        500       800  -37.5 %  beyond\n"
        "  optimizer        rank 4, V100       10.0      11.0   -9.1 %  within\n"
        "  everything else  rank 4, V100        990      1190  -16.7 %  beyond\n"
        "\n"
        "Peak memory of the fullest rank of each stage\n"
        "                                predicted  observed\n"
        "  rank  stage  device  of           (GiB)     (GiB)    error\n"
        "  ──────────────────────────────────────────────────────────\n"
        "  1         0  V100    tensors       10.0      12.5  -20.0 %\n"
        "  4         1  V100    tensors       10.0       8.0  +25.0 %\n"
        "  - tensors: peak of the framework's allocator, without device context and\n"
        "    libraries\n"
        "  - peaks of 3 of 8 ranks; add the logs of the other nodes for the rest\n"
        "\n"
        "Findings\n"
        "  - forward is slow: measure it\n"
        "    hetplan calibrate device\n"
        "  - the rest is not\n"
        "\n"
    )


def test_document() -> None:
    """Every rank is there, and what is unknown is null."""
    found = plain(observed_document(RUN))
    assert isinstance(found, dict)
    assert found["warnings"] == ["a.log: holds 2 runs, only the last counts"]
    assert found["step_seconds"] == {
        "predicted": 1.5,
        "observed": 2.0,
        "error": -0.25,
        "spread": 0.15,
        "within": False,
    }
    memories = found["memory"]
    assert isinstance(memories, list)
    assert len(memories) == 3
    assert isinstance(memories[0], dict)
    assert memories[0]["states_bytes"] is None


def test_what_was_not_observed_has_no_error() -> None:
    """A timer of zero is no division by zero."""
    shown = drawn(
        observed_sections(
            replace(RUN, comparison=replace(COMPARISON, rest=Deviation(predicted=0.5, observed=0.0)))
        )
    )
    (line,) = (line for line in shown.splitlines() if line.startswith("  everything else"))
    assert line.split()[-4:] == ["500", "0", "-", "beyond"]
