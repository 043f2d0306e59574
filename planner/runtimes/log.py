"""What a reader of a runtime's log finds in it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

from planner.ranges import Range

LOGGED = Range(1e-9, 1e12)
"""Numbers of a run: others are no seconds, and no speeds."""

Part = Literal["forward", "backward", "gradient sync", "optimizer", "sends and waiting"]
"""Parts of a step that runtimes time; the forward and backward hold the collectives inside them."""
PARTS: tuple[Part, ...] = ("forward", "backward", "gradient sync", "optimizer", "sends and waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of one step, or of several on average."""

    start: int
    """Steps of the run that the log knows of before the first of these."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """Seconds of one part of a step."""

    part: Part
    rank: int | None
    """Whose clock; None for the slowest of all ranks."""
    start: int
    """As of ``Timed``."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on one device, as the framework's allocator counts them unless said otherwise."""

    rank: int | None
    """None where the log does not say whose; then the most of all."""
    peak_bytes: float
    stage: int | None = None
    """Pipeline stage that the rank said it holds; None when it did not say."""
    held_bytes: float | None = None
    """Held between steps: parameters, gradients and optimizer states."""
    device_bytes: float | None = None
    """In use on the whole device, with the context and libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number of the job that the log states and the plan decides."""

    field: str
    """``global batch``, ``world size``, ``tensor parallel size``, ``pipeline parallel size``."""
    value: int


class Series:
    """Seconds by step number; ``averaged`` over the steps since the record before, or of one step each."""

    def __init__(self, *, averaged: bool, whole_run: bool = False, whole_seconds: bool = False) -> None:
        self.averaged = averaged
        self.whole_run = whole_run
        """True for the one mean of a run of any length."""
        self.whole_seconds = whole_seconds
        """True where the clock counts whole seconds, so that records differ by how it rounds."""
        self.seconds: dict[int, float] = {}
        self._first = self._last = 0

    def restarts(self, number: int) -> bool:
        """True when this number means that a new run begins."""
        return bool(self.seconds) and number <= self._first and number < self._last

    def add(self, number: int, seconds: float) -> None:
        """A record; of several ranks' the longest counts."""
        self._first = min(self._first, number) if self.seconds else number
        self._last = max(self._last, number) if self.seconds else number
        self.seconds[number] = max(seconds, self.seconds.get(number, 0.0))

    @property
    def interval(self) -> int:
        """Steps from the last record but one to the last."""
        numbers = sorted(self.seconds)
        return numbers[-1] - numbers[-2] if len(numbers) > 1 else max(1, *numbers, 1)

    @property
    def single_steps(self) -> bool:
        """True when each record times one step by itself: means vary less than steps, whole seconds as they round."""
        return not (self.whole_seconds or self.whole_run) and (not self.averaged or self.interval == 1)

    def starts(self) -> dict[int, int]:
        """Steps known of before the first step that each record covers, by the record's number."""
        numbers = sorted(self.seconds)
        if not self.averaged:
            return {number: number - numbers[0] for number in numbers}
        first = {numbers[0]: 0} if numbers else {}
        covered = min(numbers[0], self.interval) - numbers[0] if numbers else 0
        return first | {number: before + covered for before, number in pairwise(numbers)}

    def timed(self) -> tuple[Timed, ...]:
        """All records in the order of steps."""
        starts = self.starts()
        return tuple(Timed(start=starts[number], seconds=self.seconds[number]) for number in starts)


class LogReader(Protocol):
    """Takes a log line by line."""

    source: str
    """Who prints these lines."""
    lines: str
    """The lines that tell step times, in short, for messages."""
    from_last_rank: bool
    """True when the last rank prints them; else the first."""

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""

    @property
    def steps(self) -> Series:
        """Step times."""

    @property
    def parts(self) -> tuple[PartTime, ...]:
        """Parts of the steps."""

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """Peaks by rank."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the log says of the job."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the times untrue."""
