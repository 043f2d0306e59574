"""Pipeline schedules: the order in which a stage works, and the table of paths that no end of a step is before.

Schedules are 1F1B and, with several chunks of layers a stage, interleaved 1F1B (arXiv:2104.04473, section 2.2). A
stage runs ``warm_up`` forwards, then a forward and a backward in turn. The zero-bubble schedule (ZB-H1,
arXiv:2401.10241, section 2.3) divides the backward: gradients of inputs go up at once, and those of weights wait for
``delay`` micro-batches, to be computed where 1F1B waits. V-shaped schedules divide it too (``planner.cost.v_shaped``).
A path is a chain of operations each of which waits for the one before, so that its seconds, the sum over all stages i
of

    a_i forward_i + b_i backward_i + c_i weight_i

with the third part in divided backwards only, and what follows its end bound the step from below. Sends are part of the
durations (``sent_with``), so that their coefficients follow from both. The longest of all paths is the end
(``planner.cost.pipeline_end``); those of the table need only one stage to be known. Rows of the ILP, options and bounds
of the search are made of this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.capabilities import V_SHAPED, Schedule
from planner.cost.v_shaped import alive_at_end
from planner.frozen import dataclass

Counts = NDArray[np.int64]

Count = TypeVar("Count", int, Counts)


def divides(schedule: Schedule) -> bool:
    """True when gradients of weights are computed apart from those of inputs."""
    return schedule != "1f1b"


def is_v_shaped(schedule: Schedule) -> bool:
    """True when a micro-batch goes through all devices and back again, a chunk of each both times."""
    return schedule in V_SHAPED


def wraps(chunks: int, schedule: Schedule) -> bool:
    """True when the last device sends to the first one, which has the chunk that follows."""
    return chunks > 1 and not is_v_shaped(schedule)


def position_of(stage: int, chunk: int, depth: int, schedule: Schedule) -> int:
    """Which of all chunks it is in the order in which a micro-batch passes them."""
    return chunk * depth + (depth - 1 - stage if is_v_shaped(schedule) and chunk % 2 else stage)


def chunk_at(position: int, depth: int, schedule: Schedule) -> tuple[int, int]:
    """(stage, chunk) of one of all chunks in that order."""
    chunk, place = divmod(position, depth)
    return (depth - 1 - place if is_v_shaped(schedule) and chunk % 2 else place), chunk


def warm_up(stage: int, depth: int, micro_batches: int, chunks: int = 1, schedule: Schedule = "1f1b") -> int:
    """Forwards that a stage runs before its first backward is next but one."""
    return min(_ahead(depth - stage - 1, depth, chunks, schedule), micro_batches * chunks)


def _ahead(behind: Count, depth: Count, chunks: int, schedule: Schedule) -> Count:
    """The same with micro-batches enough, by how many stages are behind."""
    turns = 1 if chunks == 1 or divides(schedule) else 2
    return turns * behind + (chunks - 1) * depth


def delay(stage: int, schedule: Schedule) -> int:
    """Backwards of a stage ahead of the gradients of its weights."""
    return stage if divides(schedule) else 0


def layers_in_flight(
    *,
    layers: int,
    stage: int,
    depth: int,
    micro_batches: int,
    interleave: int,
    schedule: Schedule = "1f1b",
) -> float:
    """Layers times micro-batches alive on a stage; interleaved as in arXiv:2205.05198, section 4.2.3."""
    return layers / interleave * alive(stage, depth, micro_batches, interleave, schedule)


def alive(stage: int, depth: int, micro_batches: int, chunks: int, schedule: Schedule = "1f1b") -> int:
    """Micro-batches alive on a stage, each counted once for every chunk: those of its warm-up, and one that follows.

    Behind a divided backward one counts twice until its weights' gradients are there: with what products have taken,
    and with the gradients of what they have made, which are no more. The first layers of all have no such backward.
    V-shaped pipelines have two for each device between the first forward and the first backward.
    """
    total = micro_batches * chunks
    if is_v_shaped(schedule):
        return max(2 * depth, alive_at_end(stage, depth, schedule)) + 1
    own = warm_up(stage, depth, micro_batches, chunks, schedule) + 1 + delay(stage, schedule)
    twice = delay(stage, schedule) + 1 if divides(schedule) and (stage or chunks > 1) else 0
    return min(own, total) + min(twice, total)


def each_alive(
    behind: Counts, depth: Counts, micro_batches: int, chunks: int, schedule: Schedule = "1f1b"
) -> Counts:
    """The same of many stages, each with so many behind it."""
    total = micro_batches * chunks
    stage = np.maximum(0, depth - 1 - behind)
    if is_v_shaped(schedule):
        most: Counts = np.maximum(2 * depth, alive_at_end(stage, depth, schedule)) + 1
        return most
    own = _ahead(behind, depth, chunks, schedule) + 1
    if not divides(schedule):
        return np.minimum(own, total)
    twice = np.where((stage > 0) | (chunks > 1), stage + 1, 0)
    each: Counts = np.minimum(own + stage, total) + np.minimum(twice, total)
    return each


def uniform_seconds(busy: float, depth: int, micro_batches: int, chunks: int = 1) -> float:
    """Seconds of a pipeline of equal stages: ``(m + (p - 1) / v) (f + b)`` (arXiv:2104.04473, section 2.2)."""
    return (micro_batches + (depth - 1) / chunks) * busy


@dataclass(frozen=True, slots=True)
class SentWith:
    """How often the durations of a chunk hold the sends at both of its sides.

    A sender is busy until the receiver has the data. What comes from the stage before came with its gradients gone up
    first where neighbours exchange in turn: the forward waits for both. Of several forwards of a micro-batch each is
    sent, and one gradient. The second chunk of a V-shaped pipeline passes activations to the stage before and gradients
    to the one behind.
    """

    forward_to_next: int
    forward_from_before: int
    backward_to_before: int
    forward_to_before: int = 0
    backward_to_next: int = 0

    @property
    def before(self) -> int:
        """How often both directions hold the send between it and the stage before."""
        return self.forward_from_before + self.forward_to_before + self.backward_to_before


@lru_cache(maxsize=1 << 10)
def sent_with(
    stage: int,
    chunk: int,
    depth: int,
    chunks: int,
    *,
    in_turn: bool,
    forwards: int,
    schedule: Schedule = "1f1b",
) -> SentWith:
    """The sends of one chunk; the first one of all receives from none, and the last one sends to none.

    Nothing is sent where a V-shaped pipeline turns back; no runtime that exchanges in turn has one.
    """
    if is_v_shaped(schedule):
        ahead, behind = int(stage > 0), int(stage < depth - 1)
        return SentWith(0, 0, 0, forwards * ahead, behind) if chunk else SentWith(forwards * behind, 0, ahead)
    begins, ends = stage == chunk == 0, stage == depth - 1 and chunk == chunks - 1
    return SentWith(forwards * (not ends), forwards * (in_turn and not begins), int(not begins))


@dataclass(frozen=True, slots=True)
class Visits:
    """How often a path runs the forward and the backward of a stage, and the part of this for its weights."""

    forward: int
    backward: int
    weight: int = 0


NEVER, UP, ONCE, TWICE = Visits(0, 0), Visits(1, 0), Visits(1, 1), Visits(2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePath:
    """One row of the table: the coefficients of a path that stays at one stage.

    Where stages have several chunks it runs all chunks of that stage and only the first one of the others.
    """

    stage: int
    before: Visits
    """Of each stage before it."""
    own: Visits
    behind: Visits
    """Of each stage behind it."""
    held: int
    """Stages 1 to this one hold back the last gradient on its way to the first stage."""
    to_first: bool
    """True when it ends with the last backward of the first stage, False when with that of its own stage."""


StagePathRow = Callable[[int, int, int], StagePath | None]
"""The path for (stage, depth, micro-batches); None where there is no such path."""


def own_work(stage: int, depth: int, micro_batches: int) -> StagePath:
    """The first forward comes through the stages before; then the stage does all its work."""
    work = Visits(micro_batches, micro_batches, micro_batches)
    return StagePath(stage=stage, before=UP, own=work, behind=NEVER, held=0, to_first=False)


@lru_cache(maxsize=1 << 12)
def and_back(stage: int, depth: int, micro_batches: int) -> StagePath | None:
    """The same, and the last gradient goes back to the first stage."""
    if not stage:
        return None
    work = Visits(micro_batches, micro_batches)
    return StagePath(stage=stage, before=ONCE, own=work, behind=NEVER, held=stage, to_first=True)


@lru_cache(maxsize=1 << 12)
def round_trip(stage: int, depth: int, micro_batches: int) -> StagePath:
    """The first micro-batch goes through all stages and back; then a stage does what it could not do meanwhile.

    Its warm-up lets it run so many forwards ahead; of the backwards none but the first.
    """
    later = max(0, micro_batches - 1 - warm_up(stage, depth, micro_batches))
    own = Visits(1 + later, micro_batches)
    return StagePath(stage=stage, before=ONCE, own=own, behind=ONCE, held=stage, to_first=True)


def behind_twice(stage: int, depth: int, micro_batches: int) -> StagePath | None:
    """Up through all stages to this one, there as long as it can, up to the last, and all the way back.

    On its way it leaves a visit of each micro-batch to one stage: p - 1 - x of the m are to those behind stage x.
    """
    if micro_batches < depth:
        return None
    visits = 1 + micro_batches - depth + stage
    own = Visits(visits, visits)
    return StagePath(stage=stage, before=ONCE, own=own, behind=TWICE, held=depth - 1, to_first=True)


def divided_and_back(stage: int, depth: int, micro_batches: int) -> StagePath | None:
    """The first forward comes through the stages before; the stage does all that is ahead of its last gradient.

    So many gradients of weights are: all but those that wait, and the last one.
    """
    if not stage:
        return None
    weights = max(0, micro_batches - 1 - delay(stage, "zero-bubble"))
    work = Visits(micro_batches, micro_batches, weights)
    return StagePath(stage=stage, before=ONCE, own=work, behind=NEVER, held=0, to_first=True)


def divided_round_trip(stage: int, depth: int, micro_batches: int) -> StagePath:
    """The first micro-batch goes through all stages and back to this one, which then does what it could not do yet.

    That is all gradients of weights, all backwards, and the forwards that its warm-up did not bring forward.
    """
    later = max(0, micro_batches - 1 - warm_up(stage, depth, micro_batches, schedule="zero-bubble"))
    own = Visits(1 + later, micro_batches, micro_batches)
    return StagePath(stage=stage, before=UP, own=own, behind=ONCE, held=0, to_first=False)


def rows_of(chunks: int, schedule: Schedule) -> tuple[StagePathRow, ...]:
    """The rows of the table that hold of a schedule."""
    if divides(schedule):
        return (own_work, divided_and_back, divided_round_trip) if chunks == 1 else (own_work,)
    return (own_work, and_back, round_trip, behind_twice) if chunks == 1 else (own_work, and_back)


def stage_paths(
    depth: int, micro_batches: int, chunks: int, schedule: Schedule = "1f1b"
) -> Iterator[StagePath]:
    """The whole table of a schedule."""
    for row in rows_of(chunks, schedule):
        for stage in range(depth):
            path = row(stage, depth, micro_batches)
            if path is not None:
                yield path


@dataclass(frozen=True, slots=True)
class BusiestPath:
    """What a row of the table says of the busiest stage, wherever it stands.

    The path takes at least ``once`` times all stages' seconds of one micro-batch, and the busiest stage's as often as
    ``forward`` and ``backward`` say.
    """

    once: int
    forward: int
    backward: int

    @property
    def busy(self) -> int:
        """How often it takes both of the busiest stage's directions."""
        return min(self.forward, self.backward)


@lru_cache(maxsize=1 << 16)
def busiest_path(row: StagePathRow, depth: int, micro_batches: int) -> BusiestPath | None:
    """The least of a row over all places of the busiest stage; None where it says nothing of it.

    A path is ``behind`` times all stages, less what it visits those before it less often, which take no longer than
    the busiest each, and ``own - behind`` times the busiest itself.
    """
    paths = []
    for stage in range(depth):
        path = row(stage, depth, micro_batches)
        if path is None:
            return None
        less = stage * max(0, path.behind.forward - path.before.forward)
        paths.append(
            BusiestPath(
                once=path.behind.forward,
                forward=path.own.forward - path.behind.forward - less,
                backward=path.own.backward - path.behind.backward - less,
            )
        )
    least = BusiestPath(
        once=paths[0].once,
        forward=min(path.forward for path in paths),
        backward=min(path.backward for path in paths),
    )
    # A bound must not fall while the busiest stage takes longer.
    return least if least.busy >= 0 else None
