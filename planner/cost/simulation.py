"""Event simulation of pipelines whose stages differ, and the closed forms it agrees with.

Every device runs a fixed order of forwards and backwards; an operation starts when the one before it on its
device and the one it depends on have ended. The end is the longest path of that graph, hence a maximum of
linear functions of the durations: the search takes its cuts from the critical path. Where only the ends count,
``stage_ends`` has them from ``pipeline_end`` ten to eighty times sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.cost.pipeline_end import interleaved_ends, plain_ends
from planner.cost.schedules import warm_up

Seconds = Sequence[Sequence[float]]
"""Seconds of one micro-batch, [stage][chunk]."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One forward or backward of one chunk for one micro-batch."""

    stage: int
    chunk: int
    micro_batch: int
    backward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How often each duration occurs on a longest path to one operation."""

    forward: tuple[tuple[int, ...], ...]
    """[stage][chunk]"""
    backward: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    """1 for a stage whose last gradient is waited for, [stage]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and end of every operation, in the order each device runs them."""

    operations: tuple[tuple[Operation, ...], ...]
    """[stage][position]"""
    starts_seconds: tuple[tuple[float, ...], ...]
    ends_seconds: tuple[tuple[float, ...], ...]

    def stage_ends(self) -> tuple[float, ...]:
        """When each stage ends its last operation, [stage]."""
        return tuple(ends[-1] for ends in self.ends_seconds)


@lru_cache(maxsize=256)
def device_order(stage: int, depth: int, micro_batches: int, chunks: int) -> tuple[Operation, ...]:
    """Operations of a device in order: its warm-up, then a forward and a backward in turn."""
    total, ahead = micro_batches * chunks, warm_up(stage, depth, micro_batches, chunks)
    forwards = [_virtual(stage, index, depth, chunks, backward=False) for index in range(total)]
    backwards = [_virtual(stage, index, depth, chunks, backward=True) for index in range(total)]
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return tuple(order + backwards[total - ahead :])


def _virtual(stage: int, index: int, depth: int, chunks: int, *, backward: bool) -> Operation:
    """The index-th forward (or backward) of a device: groups of ``depth`` micro-batches, chunk by chunk."""
    group, inside = divmod(index, depth * chunks)
    chunk, offset = divmod(inside, depth)
    if chunks == 1:
        return Operation(stage, 0, index, backward)
    return Operation(stage, chunks - 1 - chunk if backward else chunk, group * depth + offset, backward)


def simulate(forward: Seconds, backward: Seconds, micro_batches: int, held: Sequence[float] = ()) -> Timeline:
    """Run a pipeline; sends are part of the durations of the sender.

    ``forward`` and ``backward`` are [stage][chunk]; interleaving needs a multiple of the depth of micro-batches.
    ``held`` are seconds for which a stage holds back the gradient of its last operation, [stage]; empty for nothing.
    """
    depth, chunks = len(forward), len(forward[0])
    orders = [device_order(stage, depth, micro_batches, chunks) for stage in range(depth)]
    ended: dict[tuple[int, int, int, bool], float] = {}
    starts: list[list[float]] = [[] for _ in orders]
    ends: list[list[float]] = [[] for _ in orders]
    waiting = list(range(depth))
    while waiting:
        progressed = False
        for stage in tuple(waiting):
            order, done = orders[stage], len(ends[stage])
            while done < len(order):
                operation = order[done]
                ready = _ready(operation, depth, chunks, ended)
                if ready is None:
                    break
                start = max(ready, ends[stage][-1] if done else 0.0)
                seconds = (backward if operation.backward else forward)[stage][operation.chunk]
                starts[stage].append(start)
                ends[stage].append(start + seconds)
                key = (stage, operation.chunk, operation.micro_batch, operation.backward)
                done += 1
                last = done == len(order)
                ended[key] = start + seconds + (held[stage] if held and last else 0.0)
                progressed = True
            if done == len(order):
                waiting.remove(stage)
        if not progressed:
            raise ValueError(f"{micro_batches} micro-batches cannot be interleaved over {depth} stages")
    return Timeline(
        operations=tuple(orders),
        starts_seconds=tuple(map(tuple, starts)),
        ends_seconds=tuple(map(tuple, ends)),
    )


def _source(operation: Operation, depth: int, chunks: int) -> tuple[int, int, int, bool] | None:
    """The operation on another device (or its own forward) that must end first."""
    stage, chunk, batch = operation.stage, operation.chunk, operation.micro_batch
    if not operation.backward:
        if stage > 0:
            return stage - 1, chunk, batch, False
        return (depth - 1, chunk - 1, batch, False) if chunk > 0 else None
    if stage < depth - 1:
        return stage + 1, chunk, batch, True
    return (0, chunk + 1, batch, True) if chunk < chunks - 1 else (stage, chunk, batch, False)


def _ready(
    operation: Operation, depth: int, chunks: int, ended: dict[tuple[int, int, int, bool], float]
) -> float | None:
    source = _source(operation, depth, chunks)
    return 0.0 if source is None else ended.get(source)


def critical_path(timeline: Timeline, stage: int) -> Path:
    """Counts of the durations on a longest path that ends with the last operation of ``stage``."""
    depth = len(timeline.operations)
    chunks = 1 + max(operation.chunk for operation in timeline.operations[0])
    where = {
        (op.stage, op.chunk, op.micro_batch, op.backward): position
        for operations in timeline.operations
        for position, op in enumerate(operations)
    }
    counts = {flag: [[0] * chunks for _ in range(depth)] for flag in (False, True)}
    held = [0] * depth
    position = len(timeline.operations[stage]) - 1
    while True:
        operation = timeline.operations[stage][position]
        counts[operation.backward][stage][operation.chunk] += 1
        start = timeline.starts_seconds[stage][position]
        source = _source(operation, depth, chunks)
        if position > 0 and (source is None or timeline.ends_seconds[stage][position - 1] >= start):
            position -= 1
        elif source is not None:
            stage, position = source[0], where[source]
            held[stage] += position == len(timeline.operations[stage]) - 1
        else:
            return Path(forward=_frozen(counts[False]), backward=_frozen(counts[True]), held=tuple(held))


def _frozen(counts: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, counts))


def stage_ends(
    forward: Seconds, backward: Seconds, micro_batches: int, held: Sequence[float] = ()
) -> tuple[float, ...]:
    """Seconds after which each stage ends, [stage]: those of ``simulate``, without its timeline.

    1F1B takes O(depth^2) operations for any number of micro-batches (see ``pipeline_end``); an interleaved
    pipeline takes the slots until it repeats itself.
    """
    if len(forward[0]) == 1:
        return plain_ends([row[0] for row in forward], [row[0] for row in backward], micro_batches, held)
    if any(held):
        return simulate(forward, backward, micro_batches, held).stage_ends()
    return interleaved_ends(forward, backward, micro_batches)
