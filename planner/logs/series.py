"""Step times by the number of the step."""

from __future__ import annotations

from itertools import pairwise

from planner.logs.values import Timed


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
