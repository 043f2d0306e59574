"""A pipeline operation by operation: in which order they run, when each starts and ends, and on what the end waits.

Every device runs a fixed order of forwards and backwards; an operation starts when the one before it on its device and
the one it depends on have ended (``simulate``). The end is the longest path of that graph, hence a maximum of linear
functions of the durations: the search takes its cuts from the critical path.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from planner.capabilities import Schedule
from planner.cost.schedules import chunk_at, delay, divides, is_v_shaped, position_of, warm_up
from planner.cost.v_shaped import order_of, rounds
from planner.frozen import dataclass

Seconds = Sequence[Sequence[float]]
"""Seconds of one micro-batch, [stage][chunk]."""


class Pipeline(NamedTuple):
    """What ``simulate`` is told of a pipeline."""

    forward: Seconds
    backward: Seconds
    micro_batches: int
    held: Sequence[float]
    weight: Seconds
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Operation:
    """One forward or backward of one chunk for one micro-batch, or the part of a divided backward for its weights."""

    stage: int
    chunk: int
    micro_batch: int
    backward: bool
    weight: bool = False
    sends_after: int = 0
    """So many operations of the device later what it has made leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """How often each duration occurs on a longest path to one operation."""

    forward: tuple[tuple[int, ...], ...]
    """[stage][chunk]"""
    backward: tuple[tuple[int, ...], ...]
    weight: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    """1 for a stage whose last gradient is waited for, [stage]."""


@lru_cache(maxsize=256)
def device_order(
    stage: int, depth: int, micro_batches: int, chunks: int, schedule: Schedule = "1f1b"
) -> tuple[Operation, ...]:
    """Operations of a device in order: its warm-up, then a forward and a backward in turn.

    Gradients of weights, where they are apart, follow so many backwards later.
    """
    if is_v_shaped(schedule):
        return tuple(_v_shaped(stage, depth, micro_batches, schedule))
    total, ahead = micro_batches * chunks, warm_up(stage, depth, micro_batches, chunks, schedule)
    forwards = [_virtual(stage, index, depth, chunks, backward=False) for index in range(total)]
    backwards = [_virtual(stage, index, depth, chunks, backward=True) for index in range(total)]
    weights = [replace(each, weight=True) for each in backwards] if divides(schedule) else []
    order, waiting = forwards[:ahead], delay(stage, schedule)
    for index, backward in enumerate(backwards):
        order += [*forwards[ahead + index : ahead + index + 1], backward]
        order += weights[index - waiting : index - waiting + 1] if index >= waiting else []
    return tuple(order + weights[max(0, total - waiting) :])


def _virtual(stage: int, index: int, depth: int, chunks: int, *, backward: bool) -> Operation:
    """The index-th forward (or backward) of a device: groups of ``depth`` micro-batches, chunk by chunk."""
    group, inside = divmod(index, depth * chunks)
    chunk, offset = divmod(inside, depth)
    if chunks == 1:
        return Operation(stage, 0, index, backward)
    return Operation(stage, chunks - 1 - chunk if backward else chunk, group * depth + offset, backward)


def _v_shaped(stage: int, depth: int, micro_batches: int, schedule: Schedule) -> Iterator[Operation]:
    """The order of a device of a V-shaped pipeline; operations of one chunk and kind follow the micro-batches."""
    order, done = order_of(stage, depth, schedule), Counter[tuple[int, str]]()
    for chunk, kind, later in (
        *order.ahead,
        *order.each_round * rounds(depth, micro_batches),
        *order.behind,
    ):
        backward, weight = kind != "forward", kind == "weight"
        yield Operation(stage, chunk, done[chunk, kind], backward, weight, later)
        done[chunk, kind] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """What operations wait for: each has a number, larger than those of all that it waits for; 0 is the start of all.

    After the last operation of a device, one more is the time for which its stage holds back what that has made.
    """

    depth: int
    micro_batches: int
    chunks: int
    schedule: Schedule
    numbers: tuple[Sequence[int], ...]
    """[stage][position], and that of what is held back behind them."""
    before: Sequence[int]
    """The one before on its device, [number - 1]; 0 for none."""
    source: Sequence[int]
    """The one with whose end that leaves its device which it depends on, [number - 1]; 0 for none."""
    kind: Sequence[int]
    """Which of the durations in a row it takes, [number - 1]: forwards, backwards, gradients of weights, held back."""

    def ends(self, durations: Sequence[float]) -> list[float]:
        """When each operation ends, [number]."""
        ends = [0.0]
        for before, source, kind in zip(self.before, self.source, self.kind, strict=True):
            free, ready = ends[before], ends[source]
            ends.append((free if free > ready else ready) + durations[kind])
        return ends

    def path(self, ends: Sequence[float], stage: int) -> Iterator[int]:
        """Numbers of the operations on a longest path to the last one of a stage, the last one first."""
        number = self.numbers[stage][-2]
        while number:
            yield number
            before, source = self.before[number - 1], self.source[number - 1]
            number = before if before and ends[before] >= ends[source] else source


@lru_cache(maxsize=256)
def _graph(depth: int, micro_batches: int, chunks: int, schedule: Schedule) -> _Graph:
    orders = [device_order(stage, depth, micro_batches, chunks, schedule) for stage in range(depth)]
    leaving = [_leaving(order) for order in orders]
    left: dict[Key, int] = {}
    numbers = tuple(array("i") for _ in orders)
    before, source, kind = array("i"), array("i"), array("i")

    def add(stage: int, after: int, which: int) -> int:
        before.append(numbers[stage][-1] if numbers[stage] else 0)
        source.append(after)
        kind.append(which)
        numbers[stage].append(len(kind))
        return len(kind)

    waiting = list(range(depth))
    while waiting:
        progressed = False
        for stage in tuple(waiting):
            order = orders[stage]
            while len(numbers[stage]) < len(order):
                position = len(numbers[stage])
                operation = order[position]
                wanted = _source(operation, depth, chunks, schedule)
                if wanted is not None and wanted not in left:
                    break
                part = operation.backward + operation.weight
                number = add(
                    stage,
                    0 if wanted is None else left[wanted],
                    (part * depth + stage) * chunks + operation.chunk,
                )
                if position == len(order) - 1:
                    number = add(stage, 0, 3 * depth * chunks + stage)
                left.update((_key(sent), number) for sent in leaving[stage].get(position, ()))
                progressed = True
            if len(numbers[stage]) > len(order):
                waiting.remove(stage)
        if not progressed:
            raise ValueError(f"{micro_batches} micro-batches cannot be interleaved over {depth} stages")
    return _Graph(
        depth=depth,
        micro_batches=micro_batches,
        chunks=chunks,
        schedule=schedule,
        numbers=numbers,
        before=before,
        source=source,
        kind=kind,
    )


Key = tuple[int, int, int, bool]
"""(stage, chunk, micro-batch, backward)."""


def _key(operation: Operation) -> Key:
    return operation.stage, operation.chunk, operation.micro_batch, operation.backward


def _leaving(order: Sequence[Operation]) -> dict[int, list[Operation]]:
    """Operations whose results leave their device, by the position with whose end they do."""
    leaving: dict[int, list[Operation]] = {}
    for position, operation in enumerate(order):
        if not operation.weight:
            leaving.setdefault(position + operation.sends_after, []).append(operation)
    return leaving


def _source(operation: Operation, depth: int, chunks: int, schedule: Schedule) -> Key | None:
    """The operation on another device (or its own forward) that must end first."""
    stage, chunk, batch, back = _key(operation)
    if operation.weight:
        # Its backward is ahead of it in the order of the device.
        return None
    position = position_of(stage, chunk, depth, schedule)
    if back and position == depth * chunks - 1:
        return stage, chunk, batch, False
    if not back and not position:
        return None
    return *chunk_at(position + (1 if back else -1), depth, schedule), batch, back


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every operation of a pipeline starts and ends."""

    graph: _Graph
    ends: Sequence[float]
    """[number]"""

    @property
    def operations(self) -> tuple[tuple[Operation, ...], ...]:
        """Those of each device in the order in which it runs them, [stage][position]."""
        graph = self.graph
        alike = graph.depth, graph.micro_batches, graph.chunks, graph.schedule
        return tuple(device_order(stage, *alike) for stage in range(graph.depth))

    @property
    def starts_seconds(self) -> tuple[tuple[float, ...], ...]:
        """[stage][position]"""
        ends, before, source = self.ends, self.graph.before, self.graph.source
        return tuple(
            tuple(max(ends[before[number - 1]], ends[source[number - 1]]) for number in row[:-1])
            for row in self.graph.numbers
        )

    @property
    def ends_seconds(self) -> tuple[tuple[float, ...], ...]:
        """[stage][position]"""
        return tuple(tuple(self.ends[number] for number in row[:-1]) for row in self.graph.numbers)

    def stage_ends(self) -> tuple[float, ...]:
        """When each stage ends its last operation, [stage]."""
        return tuple(self.ends[row[-2]] for row in self.graph.numbers)


def simulate(
    forward: Seconds,
    backward: Seconds,
    micro_batches: int,
    held: Sequence[float] = (),
    weight: Seconds = (),
    schedule: Schedule = "1f1b",
) -> Timeline:
    """Run a pipeline; sends are part of the durations of the sender.

    ``forward`` and ``backward`` are [stage][chunk]; interleaving needs a multiple of the depth of micro-batches.
    ``held`` are seconds for which a stage holds back the gradient of its last operation, [stage]; empty for nothing.
    ``weight`` are seconds of the gradients of weights in schedules that divide the backward, as those of ``backward``.
    """
    depth, chunks = len(forward), len(forward[0])
    graph = _graph(depth, micro_batches, chunks, schedule)
    none = [[0.0] * chunks] * depth
    durations = [*chain.from_iterable([*forward, *backward, *(weight or none)]), *(held or [0.0] * depth)]
    return Timeline(graph, graph.ends(durations))


def critical_path(timeline: Timeline, stage: int) -> CriticalPath:
    """Counts of the durations on a longest path that ends with the last operation of ``stage``."""
    graph = timeline.graph
    times = Counter(graph.kind[number - 1] for number in graph.path(timeline.ends, stage))
    chunks, size = graph.chunks, graph.depth * graph.chunks

    def part(first: int) -> tuple[tuple[int, ...], ...]:
        rows = range(first * size, (first + 1) * size, chunks)
        return tuple(tuple(times[kind] for kind in range(row, row + chunks)) for row in rows)

    held = tuple(times[3 * size + each] for each in range(graph.depth))
    return CriticalPath(forward=part(0), backward=part(1), weight=part(2), held=held)


def longest_path(timeline: Timeline, stage: int) -> Iterator[tuple[int, int]]:
    """(stage, position) of each operation on a longest path to the last operation of ``stage``, the last one first."""
    where = {
        number: (at, position)
        for at, row in enumerate(timeline.graph.numbers)
        for position, number in enumerate(row[:-1])
    }
    yield from (where[number] for number in timeline.graph.path(timeline.ends, stage) if number in where)
