"""Lines that Megatron-LM prints: iterations, timers and memory (training.py, timers.py, report_memory)."""

from __future__ import annotations

import re
from dataclasses import replace

from planner.runtimes.log import Fact, Part, PartTime, RankMemory, Series

_ITERATION = re.compile(
    r"\biteration\s+(\d{1,12})/\s*\d{1,12} \|.*? elapsed time per iteration \(ms\): (\d{1,12}\.\d) \|"
)
_BATCH = re.compile(r" global batch size:\s+(\d{1,9}) \|")
_SKIPPED = re.compile(r" number of skipped iterations:\s+(\d{1,9}) \|")
_TIMER = re.compile(r"^(?:.*?[\]:] )?\s+([a-z-]+) \.{2,}: (?:\((\d+\.\d\d), )?(\d{1,12}\.\d\d)\)?\s*$")
_NAME = re.compile(r"^(?:.*?[\]:] )?\s+([a-z-]+):\s*$")
_RANK = re.compile(r"^(?:.*?[\]:] )?\s+rank\s+(\d{1,7}): (\d{1,12}\.\d\d)\s*$")
_OLD = re.compile(r"\btime \(ms\)((?: \| [a-z/-]+: \d{1,12}\.\d\d(?!\S))+)")
"""One line of the last rank's timers: Megatron until 2022 and Megatron-DeepSpeed (Megatron-LM issue 184)."""
_OLD_TIMER = re.compile(r" ([a-z/-]+): (\d+\.\d\d)")
_MEMORY = re.compile(
    r"\[Rank (\d{1,7})\] \(after (\d{1,12}) iterations\) memory \(MB\) \| allocated: (\d{1,9}\.\d+) \| "
    r"max allocated: (\d{1,9}\.\d+) \| reserved: \d+\.\d+ \| max reserved: \d+\.\d+"
    r"(?: \| (?:total device memory used|device usage): (\d{1,9}\.\d+))?"
)
_WORLD = re.compile(
    r"using world size: (\d{1,9}), .*? tensor-model-parallel size: (\d{1,6}), "
    r"pipeline-model-parallel size: (\d{1,6})(?!\S)"
)
_WORLD_FIELDS = ("world size", "tensor parallel size", "pipeline parallel size")

_PARTS: dict[str, Part] = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "all-grads-sync": "gradient sync",
    "layernorm-grads-all-reduce": "gradient sync",
    "embedding-grads-all-reduce": "gradient sync",
    "params-all-gather": "gradient sync",
    "optimizer": "optimizer",
    "backward-params-all-reduce": "gradient sync",
    "backward-layernorm-all-reduce": "gradient sync",
    "backward-embedding-all-reduce": "gradient sync",
    "backward-gather-model-params": "gradient sync",
}
_GATHER = "params-all-gather"
MIB = 2**20


class MegatronLines:
    """Reads the iteration lines, the timers of ``--timing-log-level`` 1 and 2, and memory reports."""

    source = "Megatron"
    lines = "iteration .. elapsed time per iteration (ms): .."
    from_last_rank = True

    def __init__(self, last_rank: int | None = None) -> None:
        self._last_rank = last_rank
        self.steps = Series(averaged=True)
        self._number = 0
        self._timed: dict[tuple[int, int | None, str], float] = {}
        """[iteration, rank, timer]: seconds; rank None for the longest of all ranks."""
        self._name = ""
        self._memory: dict[int, RankMemory] = {}
        self._facts: dict[str, int] = {}
        self._skipped = 0

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        match = _ITERATION.search(line)
        return match is not None and self.steps.restarts(int(match[1]))

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        if match := _ITERATION.search(line):
            self._iteration(int(match[1]), float(match[2]) / 1000, line)
        elif match := _MEMORY.search(line):
            self._report(
                int(match[1]), *(None if text is None else float(text) * MIB for text in match.groups()[2:])
            )
        elif match := _WORLD.search(line):
            self._facts.update(zip(_WORLD_FIELDS, map(int, match.groups()), strict=True))
        else:
            self._timer(line)

    def _iteration(self, number: int, seconds: float, line: str) -> None:
        if seconds <= 0:
            return
        self.steps.add(number, seconds)
        self._number, self._name = number, ""
        if batch := _BATCH.search(line):
            self._facts["global batch"] = int(batch[1])
        if skipped := _SKIPPED.search(line):
            self._skipped += int(skipped[1])

    def _report(self, rank: int, held: float | None, peak: float | None, device: float | None) -> None:
        assert held is not None
        assert peak is not None
        new = RankMemory(rank=rank, peak_bytes=peak, held_bytes=held, device_bytes=device)
        old = self._memory.get(rank, new)
        self._memory[rank] = replace(new, peak_bytes=max(peak, old.peak_bytes))

    def _timer(self, line: str) -> None:
        """A timer over all ranks, the name or a rank of ``--timing-log-option all``, or an old line of all timers."""
        if match := _OLD.search(line):
            for name, value in _OLD_TIMER.findall(match[1]):
                self._timed[self._number, self._last_rank, name] = float(value) / 1000
        elif match := _TIMER.match(line):
            self._timed[self._number, None, match[1]] = float(match[3]) / 1000
        elif match := _NAME.match(line):
            self._name = match[1]
        elif self._name and (match := _RANK.match(line)):
            self._timed[self._number, int(match[1]), self._name] = float(match[2]) / 1000

    @property
    def parts(self) -> tuple[PartTime, ...]:
        """Parts of each iteration; Megatron has divided by its log interval already."""
        summed: dict[tuple[int, int | None, Part], float] = {}
        for (number, rank, name), seconds in self._timed.items():
            if name in _PARTS:
                key = (number, rank, _PARTS[name])
                summed[key] = summed.get(key, 0.0) + seconds
            if name == _GATHER and (number, rank, "optimizer") in self._timed:
                # The gather of parameters runs inside the optimizer's timer.
                summed[number, rank, "optimizer"] = summed.get((number, rank, "optimizer"), 0.0) - seconds
        starts = self.steps.starts()
        return tuple(
            PartTime(part=part, rank=rank, start=starts[number], seconds=max(0.0, seconds))
            for (number, rank, part), seconds in summed.items()
            if number in starts
        )

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """Of the first replica's ranks."""
        return tuple(self._memory[rank] for rank in sorted(self._memory))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the log says of the job."""
        return tuple(Fact(field=field, value=value) for field, value in self._facts.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the times untrue."""
        if self._skipped:
            return (f"{self._skipped} iterations were skipped (loss scaling): they have no optimizer step",)
        return ()
