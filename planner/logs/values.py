"""What logs say of a run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from typing import Literal


class Series:
    """Seconds by step number; ``averaged`` over the steps since the record before, or of one step each."""

    def __init__(self, *, averaged: bool) -> None:
        self.averaged = averaged
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


Part = Literal["forward", "backward", "gradient sync", "optimizer", "sends and waiting"]
"""Parts of a step that runtimes time; the forward and backward hold the collectives inside them."""
PARTS: tuple[Part, ...] = ("forward", "backward", "gradient sync", "optimizer", "sends and waiting")

WARM_UP_STEPS = 3
"""First steps that do not count: they allocate, load kernels and open connections."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What one or several logs of a run say."""

    source: str
    """Who printed the step times: ``hetplan's example``, ``DeepSpeed``, ``Megatron``."""
    steps: tuple[Timed, ...] = ()
    parts: tuple[PartTime, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Paths of the logs as the user wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A run without its warm-up."""

    source: str
    left_out: int
    """Records of step times that cover warm-up steps."""
    seconds: tuple[float, ...]
    """Of each record that counts, in order; never empty."""
    only_warm_up: bool
    """True when the log has nothing else, so that its last record counts."""
    parts: dict[tuple[Part, int | None], float]
    """Median seconds of each part and rank (None: the slowest)."""
    memory: tuple[RankMemory, ...]
    notes: tuple[str, ...]

    @property
    def step_seconds(self) -> float:
        """Median."""
        return median(self.seconds)

    @property
    def spread(self) -> float | None:
        """Distance of the quartiles as a relative standard deviation; None for fewer than four records."""
        if len(self.seconds) < 4:
            return None
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 1.349 / self.step_seconds


def observed(log: Log) -> Observed:
    """The run after its warm-up; the last record alone where there is nothing after it."""
    kept = [entry.seconds for entry in log.steps if entry.start >= WARM_UP_STEPS]
    return Observed(
        source=log.source,
        left_out=len(log.steps) - (len(kept) or 1),
        seconds=tuple(kept) or (log.steps[-1].seconds,),
        only_warm_up=not kept,
        parts=_parts(log.parts),
        memory=log.memory,
        notes=log.notes,
    )


def _parts(found: tuple[PartTime, ...]) -> dict[tuple[Part, int | None], float]:
    """Medians after the warm-up; the last one of each where there is nothing after it."""
    mine: dict[tuple[Part, int | None], list[PartTime]] = {}
    for entry in found:
        mine.setdefault((entry.part, entry.rank), []).append(entry)
    return {
        key: median(
            [each.seconds for each in entries if each.start >= WARM_UP_STEPS] or [entries[-1].seconds]
        )
        for key, entries in mine.items()
    }
