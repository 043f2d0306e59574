"""Step times by the number of the step."""

from __future__ import annotations

from planner.logs.values import Timed


class Series:
    """Seconds by step number; ``averaged`` over the steps since the record before, or of one step each."""

    def __init__(self, *, averaged: bool) -> None:
        self.averaged = averaged
        self.seconds: dict[int, float] = {}

    def restarts(self, number: int) -> bool:
        """True when this number means that a new run begins."""
        return bool(self.seconds) and number <= min(self.seconds) and number < max(self.seconds)

    def add(self, number: int, seconds: float) -> None:
        """A record; of several ranks' the longest counts."""
        self.seconds[number] = max(seconds, self.seconds.get(number, 0.0))

    @property
    def interval(self) -> int:
        """Steps from the last record but one to the last."""
        numbers = sorted(self.seconds)
        return numbers[-1] - numbers[-2] if len(numbers) > 1 else max(1, *numbers, 1)

    def start(self, number: int) -> int:
        """Steps known of before the first step that this record covers."""
        numbers = sorted(self.seconds)
        if not self.averaged:
            return number - numbers[0]
        earlier = [other for other in numbers if other < number]
        return earlier[-1] - numbers[0] + min(numbers[0], self.interval) if earlier else 0

    def timed(self) -> tuple[Timed, ...]:
        """All records in the order of steps."""
        return tuple(
            Timed(start=self.start(number), seconds=self.seconds[number]) for number in sorted(self.seconds)
        )
