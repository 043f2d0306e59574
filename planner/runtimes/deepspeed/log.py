"""Lines that DeepSpeed prints: its timers, speeds and memory (as of 0.19: engine.py, pipe/engine.py, timer.py)."""

from __future__ import annotations

import re

from planner.plan.values import Plan
from planner.runtimes.log import LOGGED, Fact, Part, PartTime, RankMemory, Series
from planner.units import bytes_from_gib

_PIPELINE = re.compile(
    r"\bsteps: (\d{1,12}) loss: .*?iter time \(s\): (\d{1,9}\.\d{3}) samples/sec: (\d{1,12}\.\d{3})(?!\d)"
)
_SPEED = re.compile(
    r"global_step=(\d{1,12}), RunningAvgSamplesPerSec=\S+, CurrSamplesPerSec=([\d.]{1,24}(?:e[+-]\d\d)?), "
    r"MemAllocated=[\d.]+GB, MaxMemAllocated=(\d{1,6}\.\d{1,2})GB"
)
_USAGE = re.compile(r"\bMA \d{1,6}\.\d{1,2} GB\s+Max_MA (\d{1,6}\.\d{1,2}) GB\b")
_TIMERS = re.compile(
    r"(?:\[Rank (\d{1,7})\] (?:rank=\d{1,7} )?)?time \(ms\)((?: \| \w+: \d{1,12}\.\d\d(?!\S))+)"
)
_TIMER = re.compile(r"(\w+): (\d+\.\d\d)")
_SETTING = re.compile(r"\b(train_batch_size|world_size) \.{4,} (\d{1,9})\s*$")
_FIELDS = {"train_batch_size": "global batch", "world_size": "world size"}
_SENDS = ("pipe_send_output", "pipe_send_grad", "pipe_recv_input", "pipe_recv_grad")


class DeepSpeedLines:
    """Reads ``wall_clock_breakdown``, the throughput timer, the pipeline engine and ``see_memory_usage``."""

    source = "DeepSpeed"
    lines = "steps: .. iter time (s): .., time (ms) | fwd: .., CurrSamplesPerSec=.."
    from_last_rank = False

    def __init__(self, plan: Plan) -> None:
        """DeepSpeed takes the batch of its own rank for that of all."""
        sizes = {
            (group.local_batch, group.accumulation_steps) for stage in plan.stages for group in stage.replicas
        }
        even = len(sizes) == 1 and all(share % steps == 0 for share, steps in sizes)
        batch, pipeline = plan.global_batch if even else None, plan.pp > 1
        self._batch = batch
        """Sequences of a step as DeepSpeed counts them; None where it cannot count them from one rank."""
        # In a pipeline DeepSpeed's configuration calls the replicas its world.
        self._stated = {*(["train_batch_size"] if batch else []), *([] if pipeline else ["world_size"])}
        self._pipeline = Series(averaged=True)
        self._speeds = Series(averaged=False)
        self._windows: list[dict[str, float]] = []
        self._pending: dict[str, float] = {}
        self._rank = 0
        self._facts: dict[str, int] = {}
        self._peaks: dict[int | None, float] = {}
        self._usages = 0

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        return any(
            series.restarts(int(match[1]))
            for series, pattern in ((self._pipeline, _PIPELINE), (self._speeds, _SPEED))
            for match in pattern.finditer(line)
        )

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for number, seconds, rate in _PIPELINE.findall(line):
            self._pipeline_step(int(number), float(seconds), float(rate))
        for number, rate, peak in _SPEED.findall(line):
            self._speed(int(number), rate)
            self._peak(None, peak)
        for peak in _USAGE.findall(line):
            self._usages += 1
            self._peak(0, peak)  # printed by the first rank only
        for rank, timers in _TIMERS.findall(line):
            named = _TIMER.findall(timers.replace("forward", "fwd").replace("backward", "bwd"))  # older names
            self._timers(int(rank or 0), dict(named))
        for name, value in _SETTING.findall(line):
            if name in self._stated:
                self._facts[_FIELDS[name]] = int(value)

    def _pipeline_step(self, number: int, seconds: float, rate: float) -> None:
        if seconds <= 0:
            return
        self._pipeline.add(number, seconds)
        batch, error = seconds * rate, 0.0006 * (1 / seconds + 1 / max(rate, 0.0006)) * seconds * rate
        if error < 0.4 and abs(batch - round(batch)) <= error:
            self._facts["global batch"] = round(batch)

    def _speed(self, number: int, rate: str) -> None:
        if self._batch is not None and (speed := LOGGED.number(rate)) is not None:
            self._speeds.add(number, self._batch / speed)

    def _peak(self, rank: int | None, gib: str) -> None:
        self._peaks[rank] = max(self._peaks.get(rank, 0.0), float(bytes_from_gib(float(gib))))

    def _timers(self, rank: int, timers: dict[str, str]) -> None:
        """A line of timers; that of ``fwd`` to ``step`` ends what belongs to one record."""
        self._pending.update({name: float(value) / 1000 for name, value in timers.items()})
        if "fwd" in timers and "step" in timers:
            self._rank = rank
            self._windows.append(self._pending)
            self._pending = {}

    @property
    def steps(self) -> Series:
        """The pipeline engine's step times, else those of the throughput timer, else the sum of the timers."""
        if self._pipeline.seconds or self._speeds.seconds:
            return self._pipeline if self._pipeline.seconds else self._speeds
        summed = Series(averaged=False)
        for index, window in enumerate(self._windows):
            if (seconds := sum(window.get(name, 0.0) for name in ("fwd", "bwd", "step"))) > 0:
                summed.add(index, seconds)
        return summed

    @property
    def parts(self) -> tuple[PartTime, ...]:
        """Parts of every step on the rank that printed them."""
        steps = self._pipeline.interval if self._pipeline.seconds else 1
        return tuple(
            PartTime(part=part, rank=self._rank, start=index * steps, seconds=seconds / steps)
            for index, window in enumerate(self._windows)
            for part, seconds in _parts(window).items()
        )

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """Peaks of the first rank, and of whoever printed a speed."""
        return tuple(RankMemory(rank=rank, peak_bytes=peak) for rank, peak in self._peaks.items() if peak > 0)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the configuration and the speeds say of the job."""
        return tuple(Fact(field=field, value=value) for field, value in self._facts.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the times untrue."""
        if self._windows and self._usages > 2 * len(self._windows):
            return ("memory_breakdown was on, which lengthens every step: measure times without it",)
        return ()


def _parts(window: dict[str, float]) -> dict[Part, float]:
    """Seconds of the parts; ZeRO's gather of parameters runs inside ``step`` and counts as communication."""
    gather = window.get("optimizer_allgather", 0.0)
    parts: dict[Part, float] = {
        "forward": window["fwd"],
        "backward": window.get("bwd_inner", window.get("bwd", 0.0)),
        "gradient sync": window.get("bwd_allreduce", 0.0) + gather,
        "optimizer": max(0.0, window.get("step", 0.0) - gather),
    }
    if any(name in window for name in _SENDS):
        parts["sends and waiting"] = sum(window.get(name, 0.0) for name in _SENDS)
    return parts
