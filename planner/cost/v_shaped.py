"""V-shaped pipelines: of p devices the one of stage s has the chunks s and 2 p - 1 - s of the layers.

A micro-batch goes through all devices and back again, so that the first one has the embedding and the head. ZB-V
(arXiv:2401.10241, section 6) divides every backward; DualPipeV is DeepSeek's DualPipe (arXiv:2412.19437, section 3.2.1)
in the same shape, which divides those backwards alone whose weights can wait for the end or fill the beginning.
Its forwards and backwards of different micro-batches that DeepSeek's kernels run at the same time are one operation
for torch, which computes first the one and then the other, and sends what both have made when both are done.

With m >= 2 p micro-batches the order of a device is a beginning, m - 2 p + 1 rounds, and an end, of which none depends
on m. Rounds of all devices follow each other: what a device needs in a round comes from the round before, or in the
same one from the device behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.capabilities import Schedule

Count = TypeVar("Count", int, NDArray[np.int64])

Kind = Literal["forward", "backward", "weight"]


class ChunkOperation(NamedTuple):
    """One operation of a device, for the next micro-batch of its chunk and kind."""

    chunk: int
    kind: Kind
    sends_after: int = 0
    """So many operations of the device later what this one has made leaves it."""


class Order(NamedTuple):
    """What a device does."""

    ahead: tuple[ChunkOperation, ...]
    each_round: tuple[ChunkOperation, ...]
    """For each micro-batch but the first 2 p - 1."""
    behind: tuple[ChunkOperation, ...]


F0, B0, W0 = ChunkOperation(0, "forward"), ChunkOperation(0, "backward"), ChunkOperation(0, "weight")
F1, B1, W1 = ChunkOperation(1, "forward"), ChunkOperation(1, "backward"), ChunkOperation(1, "weight")


def rounds(depth: int, micro_batches: int) -> int:
    """Rounds of each device; raises ValueError where there are too few micro-batches to begin with."""
    if micro_batches < 2 * depth:
        what = f"{micro_batches} micro-batches are too few for {depth} V-shaped stages"
        raise ValueError(f"{what}, expected at least {2 * depth}")
    return micro_batches - 2 * depth + 1


@lru_cache(maxsize=256)
def order_of(stage: int, depth: int, schedule: Schedule) -> Order:
    """The order of a device in a V-shaped schedule."""
    return _zb_v(stage, depth - stage) if schedule == "zb-v" else _dualpipe_v(stage, depth - stage)


def _zb_v(stage: int, left: int) -> Order:
    """``left`` are the stages from this one on."""
    once = (F0, B0, W0, F1, B1, W1)
    return Order(
        ahead=(F0,) * (2 * left - 1) + (F1, F0) * stage + (F1, B1, W1) * left,
        each_round=once,
        behind=(
            once * stage
            + once[1:] * (left - 1)
            + (B0, B1) * stage
            + (B0, W0) * left
            + (W1,) * stage
            + (W0,) * stage
        ),
    )


def _dualpipe_v(stage: int, left: int) -> Order:
    once = (*_together(0, 1), *_together(1, 0))
    return Order(
        ahead=(F0,) * (2 * left - 2) + (F0, F1) * (stage + 1) + (B1, W1, F1) * (left - 1),
        each_round=once,
        behind=(
            once * stage + (*_whole(1), *_together(1, 0)) * (left - 1) + tuple(_last_backwards(stage, left))
        ),
    )


def _whole(chunk: int) -> tuple[ChunkOperation, ChunkOperation]:
    """A backward that passes its gradient on when those of the weights are there too."""
    return ChunkOperation(chunk, "backward", 1), ChunkOperation(chunk, "weight")


def _together(forward: int, backward: int) -> tuple[ChunkOperation, ...]:
    """A forward of one chunk and a whole backward of the other as one operation."""
    return (ChunkOperation(forward, "forward", 2), *_whole(backward))


def _last_backwards(stage: int, left: int) -> Iterator[ChunkOperation]:
    """Whole backwards first; of the second half the weights wait, and are then computed in the same order."""
    half, waiting = (stage + 1) // 2, deque[int]()
    for index in range(stage + 1):
        for chunk in (1, 0):
            if index < half or (index == half and chunk == 1 and stage % 2 == 0):
                yield from _whole(chunk)
            else:
                yield ChunkOperation(chunk, "backward")
                waiting.append(chunk)
    for _ in range(left - 1):
        yield ChunkOperation(waiting.popleft(), "weight")
        yield B0
        waiting.append(0)
    yield from (ChunkOperation(chunk, "weight") for chunk in waiting)


def alive_at_end(stage: Count, depth: Count, schedule: Schedule) -> Count:
    """Micro-batches alive on a device behind its rounds, each once for every chunk and twice while its weights wait.

    With ZB-V p + s are left, of which 2 s wait at once; with DualPipeV no more than before.
    """
    return depth + 3 * stage if schedule == "zb-v" else 2 * depth + 0 * stage


Step = tuple[float, deque[float] | None, tuple[deque[float], ...]]
"""Seconds of an operation, the ends that it waits for, and where its own end, or those of others, go."""


class VShapedSlots:
    """Ends of the last operations of p devices, round by round.

    Operations of one chunk and kind run in the order of the micro-batches on all devices, so that what a device waits
    for is a queue of ends.
    """

    period = 1

    def __init__(
        self,
        forward: Sequence[Sequence[float]],
        backward: Sequence[Sequence[float]],
        weight: Sequence[Sequence[float]],
        micro_batches: int,
        schedule: Schedule,
    ) -> None:
        """Seconds are [stage][chunk]."""
        self.depth = len(forward)
        self.now, self.total = 0, rounds(self.depth, micro_batches)
        self.ended = [0.0] * self.depth
        self._seconds = {"forward": forward, "backward": backward, "weight": weight}
        self._arriving: dict[tuple[int, int, Kind], deque[float]] = {}
        for stage in range(self.depth):
            before: tuple[tuple[int, Kind], ...] = ((0, "forward"), (1, "backward"))
            behind: tuple[tuple[int, Kind], ...] = ((1, "forward"), (0, "backward"))
            for chunk, kind in (
                *(before if stage else ()),
                *(behind if stage < self.depth - 1 else ()),
            ):
                self._arriving[stage, chunk, kind] = deque()
        orders = [order_of(stage, self.depth, schedule) for stage in range(self.depth)]
        self._rounds = [self._steps(stage, order.each_round) for stage, order in enumerate(orders)]
        self._behind = [self._steps(stage, order.behind) for stage, order in enumerate(orders)]
        self._run([self._steps(stage, order.ahead) for stage, order in enumerate(orders)])

    def run_to(self, slot: int) -> None:
        """Run the rounds before ``slot``."""
        while self.now < slot:
            self._run(self._rounds)
            self.now += 1

    def finish(self) -> None:
        """Run what follows the last round."""
        self._run(self._behind)

    def state(self) -> list[float]:
        """What the ends of later rounds depend on."""
        return [*self.ended, *(end for waiting in self._arriving.values() for end in waiting)]

    def skip(self, periods: int, shift: float) -> None:
        """Pass rounds that only shift the state."""
        self.now += periods
        self.ended = [end + periods * shift for end in self.ended]
        for waiting in self._arriving.values():
            for index, end in enumerate(waiting):
                waiting[index] = end + periods * shift

    def _steps(self, stage: int, works: Sequence[ChunkOperation]) -> list[Step]:
        leaving: list[list[deque[float]]] = [[] for _ in works]
        for index, work in enumerate(works):
            to = self._receiver(stage, work)
            if to is not None:
                leaving[index + work.sends_after].append(to)
        return [
            (
                self._seconds[work.kind][stage][work.chunk],
                self._arriving.get((stage, work.chunk, work.kind)),
                tuple(sent),
            )
            for work, sent in zip(works, leaving, strict=True)
        ]

    def _receiver(self, stage: int, work: ChunkOperation) -> deque[float] | None:
        """Where what an operation makes is waited for; None on the device itself, or nowhere."""
        if work.kind == "weight":
            return None
        behind = (work.chunk == 0) == (work.kind == "forward")
        return self._arriving.get((stage + 1 if behind else stage - 1, work.chunk, work.kind))

    def _run(self, steps: Sequence[Sequence[Step]]) -> None:
        """Run all these of every device, the last device first."""
        done = [0] * self.depth
        while any(count < len(own) for count, own in zip(done, steps, strict=True)):
            for stage in reversed(range(self.depth)):
                end, count = self.ended[stage], done[stage]
                for seconds, arriving, leaving in steps[stage][count:]:
                    if arriving is not None:
                        if not arriving:
                            break
                        end = max(end, arriving.popleft())
                    end += seconds
                    for waiting in leaving:
                        waiting.append(end)
                    count += 1
                self.ended[stage], done[stage] = end, count
