"""The event simulation: closed forms on equal stages, true critical paths; the ends without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations, product
from time import process_time
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.capabilities import V_SHAPED, Schedule
from planner.cost import pipeline_end, pipeline_events
from planner.cost.pipeline_end import ends_of_many, stage_ends
from planner.cost.pipeline_events import critical_path, device_order, simulate
from planner.cost.schedules import (
    StagePathRow,
    alive,
    behind_twice,
    busiest_path,
    chunk_at,
    each_alive,
    own_work,
    position_of,
    round_trip,
    sent_with,
    stage_paths,
    uniform_seconds,
)
from tests.quick import first

SECONDS = st.floats(0.1, 10.0)
UNEQUAL = st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1.0, 1.0 + 1e-9, 1.0 + 1e-3, 3.0, 1e6])
"""Ties, near ties, nothing at all, and stages far from each other."""

Pipeline = tuple[list[list[float]], list[list[float]], int]

Divided = tuple[list[list[float]], list[list[float]], list[list[float]], int, Schedule]


@st.composite
def pipelines(draw: st.DrawFn, seconds: st.SearchStrategy[float] = SECONDS) -> Pipeline:
    """Forward and backward seconds [stage][chunk] and a number of micro-batches."""
    depth = draw(st.integers(1, 7))
    chunks = draw(st.sampled_from([1, 1, 2, 3, 4])) if depth > 1 else 1
    few, many = st.integers(1, 2 * depth), st.integers(1, 90)
    batches = depth * draw(st.integers(1, 12)) if chunks > 1 else draw(few | many)
    rows = st.lists(st.lists(seconds, min_size=chunks, max_size=chunks), min_size=depth, max_size=depth)
    return draw(rows), draw(rows), batches


@st.composite
def divided(draw: st.DrawFn) -> Divided:
    """Forward, backward and weights' seconds [stage][chunk], a number of micro-batches, and a schedule."""
    if schedule := draw(st.sampled_from([None, *V_SHAPED])):
        size, chunks, seconds = draw(st.integers(2, 6)), 2, draw(st.sampled_from([SECONDS, UNEQUAL]))
        batches = 2 * size + draw(st.integers(0, 5) | st.integers(0, 40))
        alike = st.lists(st.lists(seconds, min_size=2, max_size=2), min_size=size, max_size=size)
        forward, backward = draw(alike), draw(alike)
    else:
        forward, backward, batches = draw(pipelines() | pipelines(UNEQUAL))
        size, chunks = len(forward), len(forward[0])
    rows = st.lists(
        st.lists(SECONDS | UNEQUAL, min_size=chunks, max_size=chunks), min_size=size, max_size=size
    )
    return forward, backward, draw(rows), batches, schedule or "zero-bubble"


@given(divided())
@settings(max_examples=60, deadline=None)
def test_the_ends_of_divided_backwards_are_those_of_the_simulation(pipeline: Divided) -> None:
    """Few micro-batches or many, with one chunk a stage or several; a path of their operations adds up to each."""
    forward, backward, weight, batches, schedule = pipeline
    timeline = simulate(forward, backward, batches, (), weight, schedule)
    found = stage_ends(forward, backward, batches, (), weight, schedule)
    assert found == pytest.approx(timeline.stage_ends(), rel=1e-9, abs=0.0)
    for stage, end in enumerate(found):
        path = critical_path(timeline, stage)
        counted = zip((path.forward, path.backward, path.weight), (forward, backward, weight), strict=True)
        total = sum(
            count * seconds
            for counts, durations in counted
            for row, values in zip(counts, durations, strict=True)
            for count, seconds in zip(row, values, strict=True)
        )
        assert total == pytest.approx(end, rel=1e-9)


@given(divided())
@settings(max_examples=60, deadline=None)
def test_no_stage_with_divided_backwards_ends_before_a_path_of_the_table(pipeline: Divided) -> None:
    """Rows of the ILP and bounds of zero-bubble and V-shaped pipelines."""
    forward, backward, weight, batches, schedule = pipeline
    depth, chunks = len(forward), len(forward[0])
    ends = stage_ends(forward, backward, batches, (), weight, schedule)
    for path in stage_paths(depth, batches, chunks, schedule):
        parts = zip(("forward", "backward", "weight"), (forward, backward, weight), strict=True)
        seconds = 0.0
        for name, each in parts:
            seconds += getattr(path.own, name) * sum(each[path.stage])
            seconds += sum(getattr(path.before, name) * each[stage][0] for stage in range(path.stage))
            seconds += sum(
                getattr(path.behind, name) * each[stage][0] for stage in range(path.stage + 1, depth)
            )
        assert seconds <= ends[0 if path.to_first else path.stage] * (1 + 1e-9)


@pytest.mark.parametrize(("depth", "batches", "chunks"), [(4, 8, 1), (8, 64, 1), (4, 8, 2), (3, 9, 3)])
def test_equal_stages_with_divided_backwards_take_the_closed_form(
    depth: int, batches: int, chunks: int
) -> None:
    """m (f + b + w) + (p - 1) / v (f + b - w) (arXiv:2401.10241, table 2)."""
    forward, backward, weight = ([[each / chunks] * chunks] * depth for each in (3.0, 4.0, 2.0))
    ends = stage_ends(forward, backward, batches, (), weight, "zero-bubble")
    assert max(ends) == pytest.approx(batches * 9.0 + (depth - 1) / chunks * 5.0)


@pytest.mark.parametrize(("depth", "batches"), [(2, 4), (4, 8), (4, 40), (7, 30)])
def test_v_shaped_stages_of_equal_parts_wait_for_the_first_micro_batch_alone(
    depth: int, batches: int
) -> None:
    """ZB-V has no bubble then (arXiv:2401.10241, section 6): a stage begins when the first micro-batch is there."""
    ones = [[1.0, 1.0]] * depth
    ends = stage_ends(ones, ones, batches, (), ones, "zb-v")
    assert ends == tuple(6.0 * batches + stage for stage in range(depth))


@pytest.mark.parametrize(("depth", "batches"), [(2, 4), (4, 8), (4, 40), (7, 30)])
def test_dualpipe_has_the_bubble_that_deepseek_gives_it(depth: int, batches: int) -> None:
    """(p - 1) (F&B + B - 3 W) of a chunk's times (github.com/deepseek-ai/DualPipe), F&B being one behind the other."""
    ones = [[1.0, 1.0]] * depth
    assert max(stage_ends(ones, ones, batches, (), ones, "dualpipe-v")) == 6.0 * batches + (depth - 1) * 2.0


@pytest.mark.parametrize("schedule", V_SHAPED)
def test_v_shaped_stages_need_two_micro_batches_each(schedule: Schedule) -> None:
    """With fewer they would not have begun before they end."""
    ones = [[1.0, 1.0]] * 3
    for run in (simulate, stage_ends):
        with pytest.raises(ValueError, match="5 micro-batches are too few for 3 V-shaped stages"):
            run(ones, ones, 5, (), ones, schedule)


def test_the_table_knows_the_end_of_divided_backwards_with_equal_parts() -> None:
    """The round trip to the first stage, and all that is left there, is the longest path."""
    depth, batches = 4, 8
    path = next(
        path
        for path in stage_paths(depth, batches, 1, "zero-bubble")
        if path.behind.backward and not path.stage
    )
    own = path.own.forward + path.own.backward + path.own.weight
    found = own + (depth - 1) * (path.behind.forward + path.behind.backward)
    ones = [[1.0]] * depth
    assert found == max(stage_ends(ones, ones, batches, (), ones, "zero-bubble"))


ORDERS: list[tuple[int, Schedule]] = [
    (1, "zero-bubble"),
    (2, "zero-bubble"),
    *((2, schedule) for schedule in V_SHAPED),
]


@pytest.mark.parametrize(("chunks", "schedule"), ORDERS)
@pytest.mark.parametrize(("depth", "batches"), [(2, 4), (4, 8), (5, 20)])
def test_what_is_alive_while_gradients_of_weights_wait(
    chunks: int, schedule: Schedule, depth: int, batches: int
) -> None:
    """As in the order of each device: all between its forward and its weights, those ahead of these once more."""
    for stage in range(depth):
        kept, waiting, peak = set[tuple[int, int]](), set[tuple[int, int]](), 0
        for operation in device_order(stage, depth, batches, chunks, schedule):
            key = operation.chunk, operation.micro_batch
            if operation.weight:
                kept.remove(key)
                waiting.discard(key)
            elif not operation.backward:
                kept.add(key)
            elif operation.sends_after == 0 and key[0] + stage > 0:
                # The first layers of all make all gradients with those of their weights, as whole backwards do.
                waiting.add(key)
            peak = max(peak, len(kept) + len(waiting))
        assert peak == alive(stage, depth, batches, chunks, schedule)
        behind = np.array([depth - 1 - stage])
        assert each_alive(behind, np.array([depth]), batches, chunks, schedule) == [peak]


@pytest.mark.parametrize("schedule", V_SHAPED)
def test_neighbours_in_a_v_shaped_pipeline_send_twice_each(schedule: Schedule) -> None:
    """Activations of one chunk and gradients of the other; nothing where the pipeline turns back, and at its ends."""
    depth = 4
    sent = [
        [
            sent_with(stage, chunk, depth, 2, in_turn=False, forwards=1, schedule=schedule)
            for chunk in range(2)
        ]
        for stage in range(depth)
    ]
    for stage, both in enumerate(sent):
        to_next = sum(each.forward_to_next + each.backward_to_next for each in both)
        assert to_next == (0 if stage == depth - 1 else 2)
        assert sum(each.before for each in both) == (2 if stage else 0)
    places = [chunk_at(position, depth, schedule) for position in range(2 * depth)]
    assert places == [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1), (0, 1)]
    assert [position_of(*place, depth, schedule) for place in places] == list(range(2 * depth))


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("1f1b", 3), ("zero-bubble", 1), *((each, 2) for each in V_SHAPED)]
)
@pytest.mark.parametrize(("batches", "runs"), [(16, True), (200, True), (204, False)])
def test_ends_of_many_pipelines(schedule: Schedule, chunks: int, batches: int, runs: bool) -> None:
    """Those of one; with few micro-batches from the graph, where there is more than the one chunk of 1F1B."""
    forward = [[1.0 + (stage + chunk) % 3 for chunk in range(chunks)] for stage in range(4)]
    weight = [[0.5] * chunks] * 4 if schedule != "1f1b" else []
    pipeline = pipeline_events.Pipeline(forward, forward, batches, [0.0] * 4, weight, schedule)
    with patch.object(pipeline_end, "simulate", wraps=simulate) as run:
        assert ends_of_many(pipeline) == pytest.approx(stage_ends(*pipeline), rel=1e-9)
    assert run.called == (runs and (schedule, chunks) != ("1f1b", 1))


@pytest.mark.parametrize("schedule", V_SHAPED)
def test_rounds_of_v_shaped_stages_are_repeated(schedule: Schedule) -> None:
    """Many micro-batches through unequal stages end as the simulation says."""
    forward = [[1.0 + stage % 3, 2.0] for stage in range(4)]
    weight = [[0.5, 1.5]] * 4
    ends = stage_ends(forward, forward, 500, (), weight, schedule)
    timeline = simulate(forward, forward, 500, (), weight, schedule)
    assert ends == pytest.approx(timeline.stage_ends(), rel=1e-12)


@pytest.mark.parametrize(
    ("depth", "batches", "chunks"), [(1, 5, 1), (4, 8, 1), (8, 64, 1), (4, 8, 2), (3, 9, 3), (8, 64, 4)]
)
def test_equal_stages_take_the_closed_form(depth: int, batches: int, chunks: int) -> None:
    """(m + (p - 1) / v) (f + b)."""
    forward, backward = [[1.0 / chunks] * chunks] * depth, [[2.0 / chunks] * chunks] * depth
    ends = simulate(forward, backward, batches).stage_ends()
    assert max(ends) == pytest.approx(uniform_seconds(3.0, depth, batches, chunks))


@given(pipelines() | pipelines(UNEQUAL))
@settings(max_examples=60, deadline=None)
def test_the_ends_are_those_of_the_simulation(pipeline: Pipeline) -> None:
    """Few micro-batches or many, with ties, near ties and stages that take no time."""
    forward, backward, batches = pipeline
    assert stage_ends(forward, backward, batches) == pytest.approx(
        simulate(forward, backward, batches).stage_ends(), rel=1e-9, abs=0.0
    )


@given(pipelines() | pipelines(UNEQUAL), st.lists(SECONDS | UNEQUAL, min_size=7, max_size=7))
@settings(max_examples=60, deadline=None)
def test_gradients_that_are_held_back_delay_the_stages_above(
    pipeline: Pipeline, seconds: list[float]
) -> None:
    """The same ends as in the simulation, none sooner than without, and that of the last stage as without."""
    forward, backward, batches = pipeline
    held = seconds[: len(forward)]
    found = stage_ends(forward, backward, batches, held)
    assert found == pytest.approx(simulate(forward, backward, batches, held).stage_ends(), rel=1e-9, abs=0.0)
    free = stage_ends(forward, backward, batches)
    assert all(late >= soon * (1 - 1e-12) for late, soon in zip(found, free, strict=True))
    assert found[-1] == pytest.approx(free[-1], rel=1e-12)


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5, 8])
def test_the_ends_of_small_pipelines_that_hold_gradients_back_are_exact(batches: int) -> None:
    """Three stages; what is held back is nothing, less than a backward, or more than all of them."""
    for forward, backward in product(permutations([0.0, 1.0, 3.0]), permutations([1.0, 3.0, 4.0])):
        for held in product([0.0, 2.0, 50.0], repeat=3):
            durations = [[f] for f in forward], [[b] for b in backward]
            assert stage_ends(*durations, batches, held) == simulate(*durations, batches, held).stage_ends()


@pytest.mark.parametrize("batches", first(5, [1, 2, 3, 4, 8, 20, 5, 6, 7, 9, 40]))
def test_the_ends_of_small_pipelines_are_exact(batches: int) -> None:
    """Four stages, forwards of 0, 1 or 3 seconds and backwards of 0, 1, 3 and 4 in any order."""
    for forward in product([0.0, 1.0, 3.0], repeat=4):
        for backward in permutations([0.0, 1.0, 3.0, 4.0]):
            durations = [[f] for f in forward], [[b] for b in backward]
            assert stage_ends(*durations, batches) == simulate(*durations, batches).stage_ends()


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("batches", [4, 40, 400])
def test_a_slow_approach_to_the_steady_state_is_followed(chunks: int, batches: int) -> None:
    """A stage slower by a part in ten thousand takes over from the others late."""
    forward = [[1.0 + 1e-4 * (stage == 2)] * chunks for stage in range(4)]
    backward = [[2.0] * chunks] * 4
    assert stage_ends(forward, backward, batches) == pytest.approx(
        simulate(forward, backward, batches).stage_ends(), rel=1e-12, abs=0.0
    )


@pytest.mark.parametrize("seed", range(80))
def test_periods_that_are_skipped_are_those_of_the_simulation(seed: int) -> None:
    """Many micro-batches through few interleaved stages, each waiting for others somewhere in its chunks."""
    draw = random.Random(seed)
    depth, chunks = draw.randint(2, 4), draw.randint(2, 3)
    seconds = [0.01, 0.1, 1.0, 2.0, 5.0]
    forward, backward = (
        [[draw.choice(seconds) for _ in range(chunks)] for _ in range(depth)] for _ in range(2)
    )
    batches = depth * draw.randint(10, 25)
    assert stage_ends(forward, backward, batches) == pytest.approx(
        simulate(forward, backward, batches).stage_ends(), rel=1e-9, abs=0.0
    )


@pytest.mark.parametrize(("depth", "batches", "chunks"), [(64, 500, 1), (64, 100, 1), (8, 256, 4)])
def test_deep_pipelines_take_little_time(depth: int, batches: int, chunks: int) -> None:
    """Half a millisecond of a processor where this was written, a hundredth of what is allowed."""
    forward = [[1.0 + stage % 3 + 0.1 * chunk for chunk in range(chunks)] for stage in range(depth)]
    seconds = []
    for _ in range(5):
        start = process_time()
        stage_ends(forward, forward, batches)
        seconds.append(process_time() - start)
    assert min(seconds) < 0.05


@given(pipelines(), st.integers(0, 5), st.lists(SECONDS, min_size=7, max_size=7))
@settings(max_examples=40, deadline=None)
def test_the_critical_path_adds_up_to_the_end(pipeline: Pipeline, which: int, seconds: list[float]) -> None:
    """The counted durations of a longest path sum to the end of the stage, with what is held back on the way."""
    forward, backward, batches = pipeline
    stage, held = which % len(forward), seconds[: len(forward)]
    timeline = simulate(forward, backward, batches, held)
    path = critical_path(timeline, stage)
    total = sum(count * each for count, each in zip(path.held, held, strict=True)) + sum(
        count * seconds
        for counts, durations in ((path.forward, forward), (path.backward, backward))
        for row, values in zip(counts, durations, strict=True)
        for count, seconds in zip(row, values, strict=True)
    )
    assert total == pytest.approx(timeline.stage_ends()[stage], rel=1e-9)


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_no_device_does_two_things_at_once(pipeline: Pipeline) -> None:
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


@pytest.mark.parametrize("run", [simulate, stage_ends])
def test_interleaving_needs_whole_groups_of_micro_batches(run: Callable[..., object]) -> None:
    """Five micro-batches over four interleaved stages cannot be ordered."""
    with pytest.raises(ValueError, match="interleaved"):
        run([[1.0, 1.0]] * 4, [[1.0, 1.0]] * 4, 5)


def path_ends(pipeline: Pipeline, held: list[float]) -> list[tuple[float, float]]:
    """(seconds, end) of each path of the table and of the stage with which it ends."""
    forward, backward, batches = pipeline
    depth, chunks = len(forward), len(forward[0])
    ends = stage_ends(forward, backward, batches, held)
    found = []
    for path in stage_paths(depth, batches, chunks):
        seconds = sum(held[1 : path.held + 1])
        for stage in range(depth):
            if stage == path.stage:
                seconds += path.own.forward * sum(forward[stage]) + path.own.backward * sum(backward[stage])
            else:
                visits = path.before if stage < path.stage else path.behind
                seconds += visits.forward * forward[stage][0] + visits.backward * backward[stage][0]
        found.append((seconds, ends[0 if path.to_first else path.stage]))
    return found


@given(pipelines() | pipelines(UNEQUAL), st.lists(st.sampled_from([0.0, 1.0, 7.0]), min_size=7, max_size=7))
@settings(max_examples=50, deadline=None)
def test_no_stage_ends_before_a_path_of_the_table(pipeline: Pipeline, held: list[float]) -> None:
    """Rows of the ILP, options and bounds all come from these."""
    for seconds, end in path_ends(pipeline, held[: len(pipeline[0])]):
        assert seconds <= end * (1 + 1e-9)


@pytest.mark.parametrize(("depth", "batches", "chunks"), [(1, 5, 1), (4, 3, 1), (4, 9, 1), (3, 9, 3)])
def test_some_path_of_the_table_is_the_longest_where_one_stage_is_slow(
    depth: int, batches: int, chunks: int
) -> None:
    """Then its work is all that counts: the table is not merely below."""
    for slow in range(depth):
        rows = [[100.0 if stage == slow else 1.0] * chunks for stage in range(depth)]
        found = path_ends((rows, rows, batches), [0.0] * depth)
        assert max(seconds for seconds, _ in found) >= 0.97 * max(end for _, end in found)


@given(pipelines(), st.sampled_from([own_work, round_trip, behind_twice]))
@settings(max_examples=50, deadline=None)
def test_the_busiest_stage_bounds_the_end_wherever_it_stands(pipeline: Pipeline, row: StagePathRow) -> None:
    """What bounds make of a path when they do not know where the busiest stage is."""
    forward, backward = ([seconds[0] for seconds in rows] for rows in pipeline[:2])
    depth, batches = len(forward), pipeline[2]
    path = busiest_path(row, depth, batches)
    if path is None:
        return
    busy = max(a + b for a, b in zip(forward, backward, strict=True))
    end = max(stage_ends([[s] for s in forward], [[s] for s in backward], batches))
    once = sum(forward) + sum(backward)
    assert path.once * once + path.busy * busy <= end * (1 + 1e-9)
