"""Lines of the example that hetplan emits (``step_log.py``)."""

from __future__ import annotations

import re

from planner.runtimes.log import Fact, PartTime, RankMemory, Series

_JOB = re.compile(r"job ranks (\d{1,7}) global_batch (\d{1,9})(?!\S)")
_STEP = re.compile(r"step (\d{1,12}) loss \S+ seconds (\d{1,9}\.\d{6})(?!\S)")
_PEAK = re.compile(r"rank (\d{1,7}) stage (\d{1,5}) peak_bytes ([1-9]\d{0,14})(?=\s)")


class ExampleLines:
    """Reads what step_log.py prints: ``job ranks 4 global_batch 48``, ``step 3 loss 4.1 seconds 0.512345`` and
    ``rank 2 stage 1 peak_bytes 123``.
    """

    source = "hetplan's example"
    lines = "step 3 loss .. seconds .."
    from_last_rank = False

    def __init__(self) -> None:
        self.steps = Series(averaged=False)
        self._peaks: dict[int, RankMemory] = {}
        self._job: tuple[Fact, ...] = ()

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        if self.steps.seconds and _JOB.search(line):
            return True
        return any(self.steps.restarts(int(number)) for number, _ in _STEP.findall(line))

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for number, seconds in _STEP.findall(line):
            if float(seconds) > 0:
                self.steps.add(int(number), float(seconds))
        for ranks, batch in _JOB.findall(line):
            self._job = (
                Fact(field="world size", value=int(ranks)),
                Fact(field="global batch", value=int(batch)),
            )
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
        """What its first line says of the job; ranks are checked against the plan one by one."""
        return self._job

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing to add."""
        return ()
