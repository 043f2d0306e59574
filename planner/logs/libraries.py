"""Lines of what trains over a runtime: NeMo, Hugging Face's Trainer, torchtitan, Lightning, nanoGPT, LitGPT, nanotron.

Each was learnt from the source of what prints it and from excerpts in public threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from planner.plan.values import Plan
from planner.runtimes.log import LOGGED, Fact, PartTime, RankMemory, Series

WINDOW_SECONDS = (10, 60)
"""Least between two readings of a progress bar, which counts whole seconds: in a short run, and in a long one."""
WINDOWS = 20
"""Stretches of a bar from which their length grows, so that whole seconds matter less."""
_BAR = r"(\d{1,12})/(\d{1,12}) \[(?:(\d{1,4}):)?(\d\d):(\d\d)<"


class _Library:
    """What these libraries do not tell, or tell in one way."""

    from_last_rank = False
    parts: tuple[PartTime, ...] = ()
    memory: tuple[RankMemory, ...] = ()

    def __init__(self) -> None:
        self.batches: dict[int, None] = {}
        """Global batches that were printed."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The global batch, where it was printed."""
        return tuple(Fact(field="global batch", value=batch) for batch in self.batches)


class _StepLines(_Library):
    """A library that prints a line with the number of a step."""

    pattern: re.Pattern[str]
    number: int
    """Group of the pattern that has the number."""
    averaged = False

    def __init__(self) -> None:
        super().__init__()
        self.steps = Series(averaged=self.averaged)

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        return any(self.steps.restarts(int(match[self.number])) for match in self.pattern.finditer(line))

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing to add."""
        return ()


class _Bar:
    """Readings of a progress bar of tqdm: how many are done, and after how many seconds."""

    def __init__(self) -> None:
        self.readings: list[tuple[int, int]] = []

    def add(self, done: int, elapsed: int) -> None:
        """A reading; one that goes far back begins anew, one that goes back a little is another rank's."""
        if self.restarts(done):
            self.readings.clear()
        if not self.readings or (done > self.readings[-1][0] and elapsed >= self.readings[-1][1]):
            self.readings.append((done, elapsed))

    def restarts(self, done: int) -> bool:
        """True when a reading begins another run."""
        return bool(self.readings) and 2 * done < self.readings[-1][0]

    @property
    def elapsed(self) -> int:
        """Seconds from the first reading to the last."""
        return self.readings[-1][1] - self.readings[0][1] if self.readings else 0

    def windows(self) -> list[tuple[int, int, int]]:
        """First, last and seconds of each stretch of at least ``WINDOW_SECONDS``; else of all."""
        short, long = WINDOW_SECONDS
        least = min(max(short, self.elapsed / WINDOWS), long)
        ends = self.readings[:1]
        for reading in self.readings:
            if reading[1] - ends[-1][1] >= least:
                ends.append(reading)
        if len(ends) == 1 and self.elapsed:
            ends.append(self.readings[-1])
        return [(start, end, after - before) for (start, before), (end, after) in pairwise(ends)]


def _elapsed(hours: str, minutes: str, seconds: str) -> int:
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)


# NeMo 2 prints a line a step; NeMo 1's bar counts steps, with or without the time of the last one.
_NEMO = re.compile(
    r"\bglobal_batch_size: (\d{1,9}) \| global_step: (\d{1,12}) \|"
    r".*? train_step_timing in s: (\d{1,9}(?:\.\d{1,9})?)(?![\d.])"
)
_NEMO_STEP = re.compile(r"\bglobal_step=(\d{1,12})(?:\.0)?(?![\d.])")
_NEMO_TIMED = re.compile(r"\btrain_step_timing in s=(\d{1,9}(?:\.\d{1,9})?)(?![\d.])")
_NEMO_BAR = re.compile(r"\s" + _BAR)


class NemoLines(_Library):
    """Reads what NeMo prints of a step, on Megatron's core: ``global_step: 9 | .. | train_step_timing in s: 2.008``."""

    source = "NeMo"
    lines = "global_step: 9 | .. train_step_timing in s: .."

    def __init__(self) -> None:
        super().__init__()
        self._timed = Series(averaged=False)
        self._bar = _Bar()

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        match = _NEMO.search(line)
        return match is not None and self._timed.restarts(int(match[2]))

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for batch, number, seconds in _NEMO.findall(line):
            if float(seconds) > 0:
                self.batches[int(batch)] = None
                self._timed.add(int(number), float(seconds))
        step, bar = _NEMO_STEP.search(line), _NEMO_BAR.search(line)
        if step is None or bar is None:
            return
        self._bar.add(int(step[1]), _elapsed(*bar.groups()[2:]))
        timed = _NEMO_TIMED.search(line)
        if timed is not None and float(timed[1]) > 0:
            self._timed.add(int(step[1]), float(timed[1]))

    @property
    def steps(self) -> Series:
        """As it times them, else from the bar."""
        if self._timed.seconds:
            return self._timed
        series = Series(averaged=True, whole_seconds=True)
        for start, end, seconds in self._bar.windows():
            series.add(end, seconds / (end - start))
        return series

    @property
    def notes(self) -> tuple[str, ...]:
        """How times were told."""
        windows = self._bar.windows()
        if self._timed.seconds or not windows:
            return ()
        return (_BAR_NOTE.format(seconds=min(each[2] for each in windows)),)


_BAR_NOTE = (
    "step times come from a progress bar, which counts whole seconds: means over {seconds} s and more, "
    "evaluation and checkpoints among them included; the callback of step_log.py times every step"
)

# transformers, Trainer.log (a printed dict, numbers quoted since version 5), trainer_utils.speed_metrics and
# trainer_state.json; samples of public threads.
# LLaMA-Factory and ms-swift train by it and write how many steps were done after how long.
_SPEED = re.compile(
    r"""\btrain_(runtime|samples_per_second|steps_per_second)(?:['"]: ['"]?| +=  +)(\d[\d.e+-]{0,23})(?!:)"""
)
_DONE = re.compile(
    r'''"current_steps": (\d{1,12}), "total_steps": (\d{1,12}),.*?"elapsed_time": "(\d{1,4}):(\d\d):(\d\d)"'''
)
_DONE_IN_WORDS = re.compile(
    r"'global_step/max_steps': '(\d{1,12})/(\d{1,12})',.*?"
    r"'elapsed_time': '(?:(\d{1,3})d )?(?:(\d{1,2})h )?(?:(\d{1,2})m )?(\d{1,2})s'"
)
_LOSS = re.compile(r"""^[^{]*\{['"]loss['"]: .*['"]epoch['"]: """)
_TRAINER_BAR = re.compile(r"(?:^|\||\s)\s?" + _BAR)


class TrainerLines(_Library):
    """Reads the Trainer's progress bar, ``{'train_runtime': .., 'train_steps_per_second': ..}``, trainer_state.json."""

    source = "Hugging Face's Trainer"
    lines = "12/100 [00:30<03:40, ..] with {'loss': .., 'epoch': ..}, {'train_runtime': ..}"

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._batch = plan.global_batch
        self._bars: dict[int, _Bar] = {}
        """By their length."""
        self._last = 0
        self._mine: set[int] = set()
        """Lengths of bars among which losses were printed; those of evaluations and downloads look alike."""
        self._speeds: dict[str, float] = {}

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        return bool(self._speeds) and _LOSS.search(line) is not None

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for name, value in _SPEED.findall(line):
            if (speed := LOGGED.number(value)) is not None:
                self._speeds[name] = speed
        for done, total, *clock in _TRAINER_BAR.findall(line):
            self._bars.setdefault(int(total), _Bar()).add(int(done), _elapsed(*clock))
            self._last = int(total)
        for done, total, *clock in _DONE.findall(line):
            self._written(int(done), int(total), _elapsed(*clock))
        for done, total, days, hours, minutes, seconds in _DONE_IN_WORDS.findall(line):
            elapsed = _elapsed(str(24 * int(days or 0) + int(hours or 0)), minutes or "0", seconds)
            self._written(int(done), int(total), elapsed)
        if _LOSS.search(line):
            self._mine.add(self._last)

    def _written(self, done: int, total: int, elapsed: int) -> None:
        """Steps that were done after so long."""
        self._bars.setdefault(total, _Bar()).add(done, elapsed)
        self._mine.add(total)

    @property
    def _windows(self) -> list[tuple[int, int, int]]:
        """Of the bar of training that ran longest."""
        bars = [bar for length, bar in self._bars.items() if length in self._mine]
        bar = max(bars, key=lambda each: each.elapsed, default=None)
        return bar.windows() if bar is not None else []

    @property
    def steps(self) -> Series:
        """From the bar, else from the speed of the whole run."""
        windows, mean = self._windows, self._mean()
        series = Series(averaged=True, whole_run=not windows, whole_seconds=bool(windows))
        for start, end, seconds in windows:
            series.add(end, seconds / (end - start))
        if not windows and mean is not None:
            series.add(1, mean[0])
        return series

    def _mean(self) -> tuple[float, str] | None:
        """Seconds of a step and where they come from; three decimals of a slow rate are too few."""
        rate = self._speeds.get("steps_per_second", 0.0)
        samples = self._speeds.get("samples_per_second", 0.0)
        if rate >= 0.05 or (rate and not samples):
            return 1 / rate, "train_steps_per_second"
        if samples:
            return (
                self._batch / samples,
                f"train_samples_per_second and the plan's {self._batch} sequences a step",
            )
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """How times were told, and a batch that is not the plan's."""
        return (*self._told(), *self._other_batch())

    def _told(self) -> Iterator[str]:
        windows, mean = self._windows, self._mean()
        if windows:
            yield _BAR_NOTE.format(seconds=min(each[2] for each in windows))
        elif mean is not None:
            told = f"the step time is the mean of the whole run, from {mean[1]}"
            yield f"{told}: warm-up, evaluation and checkpoints are in it"

    def _other_batch(self) -> Iterator[str]:
        """The Trainer counts passes over data, whose last batch may be short, and a device's batch as everyone's."""
        rate, samples = (self._speeds.get(name, 0.0) for name in ("steps_per_second", "samples_per_second"))
        if samples and rate >= 0.05 and abs(samples / rate / self._batch - 1) > 0.1:
            about = f"the Trainer counts about {samples / rate:.3g} sequences a step"
            yield f"{about}, the plan has {self._batch}: is it a run of this plan?"


# pytorch/torchtitan, torchtitan/components/metrics.py at 00fbaafa: tokens of a rank over seconds and over the
# degrees that share its tokens, so tokens of a device; ``tps`` (until 2024 ``wps``) stands since the line before.
_TITAN = re.compile(r"(?<!validate )\bstep: +(\d{1,12})  ?loss: .*?\b[tw]ps: ([\d,]{1,16})(?![\d,])")


class TitanLines(_StepLines):
    """Reads torchtitan's ``step: 10  loss: ..  memory: ..  tps: 7,890  tflops: ..  mfu: ..``."""

    source = "torchtitan"
    lines = "step: 10  loss: ..  tps: .."
    pattern, number = _TITAN, 1
    averaged = True

    def __init__(self, plan: Plan, sequence_length: int) -> None:
        super().__init__()
        self._tokens = plan.global_batch * sequence_length
        self._devices = plan.devices

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        match = _TITAN.search(line)
        if match is not None and (speed := int(match[2].replace(",", "") or 0)) > 0:
            self.steps.add(int(match[1]), self._tokens / (speed * self._devices))

    @property
    def notes(self) -> tuple[str, ...]:
        """How times were told."""
        if not self.steps.seconds:
            return ()
        tokens = f"the plan's {self._tokens:,} tokens a step on {self._devices:,} devices"
        return (f"step times come from tokens per second of a device (tps) and {tokens}",)


# Lightning 2: TQDMProgressBar counts batches of an epoch; CSVLogger writes what ThroughputMonitor logs, whose
# ``train/time`` are seconds of training since the start (lightning.pytorch.callbacks.throughput_monitor).
_EPOCH = re.compile(r"\bEpoch (\d{1,9})(?:/\d{1,9})?: .*?\s" + _BAR)


class LightningLines(_Library):
    """Reads Lightning's progress bar, and metrics.csv of its CSVLogger with the ThroughputMonitor."""

    source = "Lightning"
    lines = "Epoch 0:  22%|..| 4/18 [00:17<01:02, ..], metrics.csv with columns step and train/time"

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        accumulation = {group.accumulation_steps for stage in plan.stages for group in stage.replicas}
        self._accumulation = accumulation.pop() if len(accumulation) == 1 else None
        """Batches of a step; None where replicas differ, so that the bar's batches tell no step."""
        self._epochs: dict[int, _Bar] = {}
        self._columns: tuple[int, int] | None = None
        self._rows: list[tuple[int, float]] = []

    def restarts(self, line: str) -> bool:
        """True when the line begins another run."""
        return bool(self._rows) and _columns(line) is not None

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for epoch, done, _, *clock in _EPOCH.findall(line):
            bar = self._epochs.setdefault(int(epoch), _Bar())
            if bar.restarts(int(done)):
                self._epochs = {number: each for number, each in self._epochs.items() if number < int(epoch)}
                self._epochs[int(epoch)] = bar
            bar.add(int(done), _elapsed(*clock))
        if (columns := _columns(line)) is not None:
            self._columns = columns
        elif self._columns is not None:
            self._row(line.strip().split(","), *self._columns)

    def _row(self, cells: list[str], step: int, time: int) -> None:
        """A row of metrics.csv; many lack the time."""
        seconds = LOGGED.number(cells[time]) if len(cells) > max(step, time) else None
        if seconds is not None and cells[step].isdecimal():
            self._rows.append((int(cells[step]), seconds))

    @property
    def _windows(self) -> list[tuple[int, int, float]]:
        """First and last step and the seconds between them."""
        if self._rows:
            return [
                (start, end, after - before)
                for (start, before), (end, after) in pairwise(self._rows)
                if end > start and after > before
            ]
        if self._accumulation is None:
            return []
        windows: list[tuple[int, int, float]] = []
        done = 0
        for _, bar in sorted(self._epochs.items()):
            windows += [(done + start, done + end, seconds) for start, end, seconds in bar.windows()]
            done += bar.readings[-1][0]
        return windows

    @property
    def steps(self) -> Series:
        """From metrics.csv, else from the bar."""
        series = Series(averaged=True, whole_seconds=not self._rows)
        batches = 1 if self._rows else self._accumulation or 1
        for start, end, seconds in self._windows:
            series.add(max(1, end // batches), seconds * batches / (end - start))
        return series

    @property
    def notes(self) -> tuple[str, ...]:
        """How times were told."""
        if self._rows or not self._windows:
            return ()
        note = _BAR_NOTE.format(seconds=f"{min(each[2] for each in self._windows):g}")
        return (f"{note}; the bar counts batches, of which the plan has {self._accumulation} a step",)


# karpathy/nanoGPT, train.py: the time of this iteration, all micro-batches of a step.
_NANO = re.compile(r"\biter (\d{1,12}): loss \S{1,20}, time (\d{1,12}\.\d\d)ms(?!\S{2})")


class NanoLines(_StepLines):
    """Reads nanoGPT's ``iter 10: loss 3.2202, time 893.76ms, mfu 16.68%``."""

    source = "nanoGPT"
    lines = "iter 10: loss .., time .. ms"
    pattern, number = _NANO, 1

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for number, milliseconds in _NANO.findall(line):
            if float(milliseconds) > 0:
                self.steps.add(int(number), float(milliseconds) / 1000)


# Lightning-AI/litgpt, finetune/*.py since 2023: a line a micro-batch, of which the last of a step is marked.
_LIT = re.compile(
    r"\biter (\d{1,12}) (?:\| )?st[eE]p (\d{1,12})\b.*?\biter time: (\d{1,12}\.\d\d) ?ms(?!\S)"
    r"( \((?:step|opt\.step|optimizer\.step)\))?"
)


class LitLines(_StepLines):
    """Reads LitGPT's ``Epoch 1 | iter 8 step 2 | loss train: .. | iter time: 121.17 ms (step)``."""

    source = "LitGPT"
    lines = "iter 8 step 2 | .. iter time: .. ms (step)"
    pattern, number = _LIT, 2

    def __init__(self) -> None:
        super().__init__()
        self._last: int | None = None
        self._seconds: float | None = None
        """Of the step's micro-batches so far; None where some were not printed."""

    def read(self, line: str) -> None:
        """Take what the line says, if anything."""
        for number, step, milliseconds, ends in _LIT.findall(line):
            if self._last is not None and int(number) != self._last + 1:
                self._seconds = None
            elif self._last is None and int(number) == 1:
                self._seconds = 0.0
            self._last = int(number)
            if self._seconds is not None:
                self._seconds += float(milliseconds) / 1000
            if ends:
                if self._seconds:
                    self.steps.add(int(step), self._seconds)
                self._seconds = 0.0


# huggingface/nanotron, trainer.py: a line an iteration, of all its micro-batches; numbers have three digits and K or M.
_NANOTRON = re.compile(
    r"\biteration: (\d{1,12}) / \d{1,12} \|.*?\belapsed_time_per_iteration_ms: (\d{1,9}(?:\.\d{1,9})?)([KM]?) \|"
    r"(?:.*?\bglobal_batch_size: (\d{1,9}) \|)?"
)
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6}


class NanotronLines(_StepLines):
    """Reads nanotron's ``iteration: 9 / 100 | .. | elapsed_time_per_iteration_ms: 2.31K | ..``."""

    source = "nanotron"
    lines = "iteration: 9 / 100 | .. elapsed_time_per_iteration_ms: 2.31K"
    pattern, number = _NANOTRON, 1

    def read(self, line: str) -> None:
        """Take what the line says, if anything; batches from 1000 on are rounded."""
        for number, milliseconds, thousands, batch in _NANOTRON.findall(line):
            if float(milliseconds) > 0:
                self.steps.add(int(number), float(milliseconds) * _THOUSANDS[thousands] / 1000)
            if batch:
                self.batches[int(batch)] = None


def _columns(line: str) -> tuple[int, int] | None:
    """Where the step and the time stand in rows below this head."""
    names = line.strip().split(",")
    return (names.index("step"), names.index("train/time")) if {"step", "train/time"} <= {*names} else None
