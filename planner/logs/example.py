"""Lines of the example that hetplan emits (``step_log.py``)."""

from __future__ import annotations

import re

from planner.logs.series import Series
from planner.logs.values import Fact, PartTime, RankMemory

_STEP = re.compile(r"step (\d{1,12}) loss \S+ seconds (\d{1,9}\.\d{6})(?!\S)")
_PEAK = re.compile(r"rank (\d{1,7}) stage (\d{1,5}) peak_bytes ([1-9]\d{0,14})(?=\s)")


class ExampleLines:
    """Reads ``step 3 loss 4.1 seconds 0.512345`` and ``rank 2 stage 1 peak_bytes 123``."""

    source = "hetplan's example"
    targets = ("deepspeed", "torch", "megatron", "flagscale")

    def __init__(self) -> None:
        self.steps = Series(averaged=False)
        self._peaks: dict[int, RankMemory] = {}

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        return any(self.steps.restarts(int(number)) for number, _ in _STEP.findall(line))

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for number, seconds in _STEP.findall(line):
            if float(seconds) > 0:
                self.steps.add(int(number), float(seconds))
        for rank, stage, peak in _PEAK.findall(line):
            self._peaks[int(rank)] = RankMemory(rank=int(rank), stage=int(stage), peak_bytes=float(peak))

    @property
    def parts(self) -> tuple[PartTime, ...]:
        """The example does not time parts."""
        return ()

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """Peaks by rank."""
        return tuple(self._peaks[rank] for rank in sorted(self._peaks))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Ranks are checked against the plan one by one."""
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing to add."""
        return ()
