"""The event simulation: closed forms on equal stages, exact extrapolation, true critical paths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.schedule import critical_path, device_order, simulate, stage_ends, uniform_seconds

SECONDS = st.floats(0.1, 10.0)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], int]:
    """Forward and backward seconds [stage][chunk] and a number of micro-batches."""
    depth = draw(st.integers(1, 6))
    chunks = draw(st.sampled_from([1, 1, 2, 3])) if depth > 1 else 1
    batches = depth * draw(st.integers(1, 12)) if chunks > 1 else draw(st.integers(1, 90))
    rows = st.lists(st.lists(SECONDS, min_size=chunks, max_size=chunks), min_size=depth, max_size=depth)
    return draw(rows), draw(rows), batches


@pytest.mark.parametrize(
    ("depth", "batches", "chunks"), [(1, 5, 1), (4, 8, 1), (8, 64, 1), (4, 8, 2), (3, 9, 3), (8, 64, 4)]
)
def test_equal_stages_take_the_closed_form(depth: int, batches: int, chunks: int) -> None:
    """(m + (p - 1) / v) (f + b)."""
    forward, backward = [[1.0 / chunks] * chunks] * depth, [[2.0 / chunks] * chunks] * depth
    ends = simulate(forward, backward, batches).stage_ends()
    assert max(ends) == pytest.approx(uniform_seconds(1.0, 2.0, depth, batches, chunks))


@given(pipelines())
@settings(max_examples=150, deadline=None)
def test_extrapolation_is_exact(pipeline: tuple[list[list[float]], list[list[float]], int]) -> None:
    """A long pipeline that repeats itself ends when the full simulation says."""
    forward, backward, batches = pipeline
    assert stage_ends(forward, backward, batches) == pytest.approx(
        simulate(forward, backward, batches).stage_ends(), rel=1e-9
    )


@given(pipelines(), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_the_critical_path_adds_up_to_the_end(
    pipeline: tuple[list[list[float]], list[list[float]], int], which: int
) -> None:
    """The counted durations of a longest path sum to the end of the stage."""
    forward, backward, batches = pipeline
    stage = which % len(forward)
    timeline = simulate(forward, backward, batches)
    path = critical_path(timeline, stage)
    total = sum(
        count * seconds
        for counts, durations in ((path.forward, forward), (path.backward, backward))
        for row, values in zip(counts, durations, strict=True)
        for count, seconds in zip(row, values, strict=True)
    )
    assert total == pytest.approx(timeline.stage_ends()[stage], rel=1e-9)


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_no_device_does_two_things_at_once(
    pipeline: tuple[list[list[float]], list[list[float]], int],
) -> None:
    """Operations of a device do not overlap, and a backward follows the forward of its micro-batch."""
    timeline = simulate(*pipeline)
    for starts, ends, operations in zip(
        timeline.starts_seconds, timeline.ends_seconds, timeline.operations, strict=True
    ):
        assert all(start >= end - 1e-9 for start, end in zip(starts[1:], ends, strict=False))
        seen = set()
        for operation in operations:
            key = operation.chunk, operation.micro_batch
            assert operation.backward == (key in seen)
            seen.add(key)


def test_a_slow_stage_sets_the_pace() -> None:
    """With many micro-batches the slowest stage is busy nearly always."""
    forward, backward = [[1.0], [3.0], [1.0]], [[1.0], [3.0], [1.0]]
    assert max(stage_ends(forward, backward, 100)) == pytest.approx(100 * 6.0 + 2.0 * 1, rel=0.01)


def test_a_stage_keeps_at_most_depth_minus_stage_micro_batches() -> None:
    """1F1B: forwards not yet followed by their backward."""
    for stage in range(4):
        alive = peak = 0
        for operation in device_order(stage, 4, 16, 1):
            alive += -1 if operation.backward else 1
            peak = max(peak, alive)
        assert peak == 4 - stage


def test_interleaving_needs_whole_groups_of_micro_batches() -> None:
    """Five micro-batches over four interleaved stages cannot be ordered."""
    with pytest.raises(ValueError, match="interleaved"):
        simulate([[1.0, 1.0]] * 4, [[1.0, 1.0]] * 4, 5)
