"""From log files, the emitted example's among them, to what they say of a run, and whether it is the plan's job."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from planner.errors import SpecError, UsageError
from planner.field_metadata import json_fields
from planner.logs.libraries import (
    LightningLines,
    LitLines,
    NanoLines,
    NanotronLines,
    NemoLines,
    TitanLines,
    TrainerLines,
)
from planner.measure.samples import sample
from planner.plan.placement import Rank
from planner.plan.values import Plan
from planner.runtimes.deepspeed.capabilities import CAPABILITIES as DEEPSPEED
from planner.runtimes.interface import runtime
from planner.runtimes.log import Fact, LogReader, Part, PartTime, RankMemory, Series, Timed
from planner.runtimes.megatron.capabilities import CAPABILITIES as MEGATRON
from planner.runtimes.torch.capabilities import CAPABILITIES as TORCH
from planner.targets import NAMES, in_words

WARM_UP_STEPS = 3
"""First steps that do not count: they allocate, load kernels and open connections."""
FEWEST_RECORDS = 5
"""Step times after the warm-up that a median needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What one or several logs of a run say."""

    source: str
    """Who printed the step times: ``hetplan's example``, a runtime or a library."""
    steps: tuple[Timed, ...] = ()
    parts: tuple[PartTime, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    interval: int | None = 1
    """Steps from one record to the next; None for the one mean of a whole run."""
    single_steps: bool = True
    """True when each record times one step by itself, so that their spread is that of steps."""
    files: tuple[str, ...] = ()
    """Paths of the logs as the user wrote them."""


@json_fields(
    "step_times",
    "spread",
    only=("source", "left_out", "only_warm_up"),
    names={"left_out": "warm_up_left_out"},
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A run without its warm-up."""

    source: str
    """Framework that printed it."""
    left_out: int
    """Records of step times that cover warm-up steps."""
    seconds: tuple[float, ...]
    """Of each record that counts, in order; never empty."""
    only_warm_up: bool
    """True when the log has nothing else, so its last record is used."""
    parts: dict[tuple[Part, int | None], float]
    """Median seconds of each part and rank (None: the slowest)."""
    memory: tuple[RankMemory, ...]
    notes: tuple[str, ...]
    more_steps: int | None = 0
    """Steps beyond these until enough records count; None where more steps bring no more records."""
    single_steps: bool = True
    """As of ``Log``."""

    @property
    def step_times(self) -> int:
        """Records that count."""
        return len(self.seconds)

    @property
    def step_seconds(self) -> float:
        """Median."""
        return median(self.seconds)

    @property
    def spread(self) -> float | None:
        """Relative standard deviation, estimated from the interquartile range; None for fewer than four records."""
        if len(self.seconds) < 4:
            return None
        return sample(self.seconds).spread


def observed(log: Log) -> Observed:
    """The run after its warm-up; the last record alone where there is nothing after it."""
    kept = [entry.seconds for entry in log.steps if entry.start >= WARM_UP_STEPS]
    return Observed(
        source=log.source,
        left_out=len(log.steps) - (len(kept) or 1),
        seconds=tuple(kept) or (log.steps[-1].seconds,),
        only_warm_up=not kept,
        parts=_part_seconds(log.parts),
        memory=log.memory,
        notes=log.notes,
        more_steps=_more_steps(log, len(kept)),
        single_steps=log.single_steps,
    )


def _more_steps(log: Log, counted: int) -> int | None:
    """Steps until ``FEWEST_RECORDS`` count, each beginning after the warm-up."""
    if log.interval is None:
        return None
    ahead = 0 if counted else max(0, WARM_UP_STEPS - log.steps[-1].start - log.interval)
    return (-(-ahead // log.interval) + max(0, FEWEST_RECORDS - counted)) * log.interval


def _part_seconds(times: tuple[PartTime, ...]) -> dict[tuple[Part, int | None], float]:
    """Medians after the warm-up; the last one of each where there is nothing after it."""
    mine: dict[tuple[Part, int | None], list[PartTime]] = {}
    for entry in times:
        mine.setdefault((entry.part, entry.rank), []).append(entry)
    return {
        key: median(
            [each.seconds for each in entries if each.start >= WARM_UP_STEPS] or [entries[-1].seconds]
        )
        for key, entries in mine.items()
    }


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
    parts: tuple[PartTime, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.steps = Series(averaged=False)
        self.facts: tuple[Fact, ...] = ()
        """What its first line says of the job; ranks are checked against the plan one by one."""
        self._peaks: dict[int, RankMemory] = {}

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
            self.facts = (
                Fact(field="world size", value=int(ranks)),
                Fact(field="global batch", value=int(batch)),
            )
        for rank, stage, peak in _PEAK.findall(line):
            self._peaks[int(rank)] = RankMemory(rank=int(rank), stage=int(stage), peak_bytes=float(peak))

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """Peaks by rank."""
        return tuple(self._peaks[rank] for rank in sorted(self._peaks))


LIBRARIES: dict[type, tuple[str, ...]] = {
    NemoLines: (MEGATRON.name,),
    TrainerLines: (TORCH.name, DEEPSPEED.name),
    TitanLines: (TORCH.name,),
    LightningLines: (TORCH.name, DEEPSPEED.name),
    NanoLines: (TORCH.name, DEEPSPEED.name),
    LitLines: (TORCH.name, DEEPSPEED.name),
    NanotronLines: (TORCH.name,),
}
"""Libraries that train over a runtime, and the targets whose plans they run."""
_LATER = (NemoLines, TitanLines, TrainerLines, LightningLines)
"""Readers whose notes are of the step times."""
LONGEST_LINE = 4096
"""Characters of a line that are looked at; lines of logs that matter are shorter."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What one file says, to each reader."""

    path: Path
    readers: tuple[LogReader, ...]
    runs: int
    empty: bool


def read_logs(paths: Sequence[Path], plan: Plan, sequence_length: int) -> Log:
    """The logs of one run, one file a node or more; raises SpecError for what is no log or of another job."""
    files = [_read(path, plan, sequence_length) for path in paths]
    for file in files:
        _require_known(file)
    source = _source(files)
    if source is None:
        last = "".join(f", or {reader.source}'s last" for reader in files[0].readers if reader.from_last_rank)
        raise SpecError.of(
            files[0].path, "has no step times", f"{_expected(files[0].readers)}; from the first rank{last}"
        )
    _require_target(source, files, plan)
    notes = [f"{file.path}: holds {file.runs} runs, only the last counts" for file in files if file.runs > 1]
    notes += _unused(source, files)
    readers = [reader for file in files for reader in file.readers]
    steps = _steps(source, files)
    told_by = [reader for reader in readers if not isinstance(reader, _LATER) or type(reader) is type(source)]
    return Log(
        source=source.source,
        steps=steps.timed(),
        interval=_interval(steps),
        single_steps=steps.single_steps,
        parts=tuple(entry for reader in readers for entry in reader.parts),
        memory=_memory(readers),
        facts=tuple(dict.fromkeys(fact for reader in readers for fact in reader.facts)),
        files=tuple(str(path) for path in paths),
        notes=(*notes, *dict.fromkeys(note for reader in told_by for note in reader.notes)),
    )


def _readers(plan: Plan, sequence_length: int) -> tuple[LogReader, ...]:
    """New readers: of the example, and of what each runtime prints."""
    own = (runtime(name).log_reader(plan) for name in NAMES)
    known = {type(reader): reader for reader in own if reader is not None}
    titan = TitanLines(plan, sequence_length)
    printed = (NanoLines(), LitLines(), NanotronLines())
    return (
        ExampleLines(),
        *known.values(),
        NemoLines(),
        titan,
        TrainerLines(plan),
        LightningLines(plan),
        *printed,
    )


def _expected(readers: Sequence[LogReader]) -> str:
    """What a log may look like."""
    return f"expected lines of {in_words([f'{reader.source} ({reader.lines})' for reader in readers], 'or')}"


def _read(path: Path, plan: Plan, sequence_length: int) -> _File:
    readers, runs, empty = _readers(plan, sequence_length), 1, True
    for line in log_lines(path):
        empty = empty and not line.strip()
        if any(reader.restarts(line) for reader in readers):
            readers, runs = _readers(plan, sequence_length), runs + 1
        for reader in readers:
            reader.read(line)
    return _File(path=path, readers=readers, runs=runs, empty=empty)


def log_lines(path: Path) -> Iterator[str]:
    """Lines with their ends and without colours; bytes that are not UTF-8 are replaced."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise SpecError.of(path, "is neither a file nor a pipe")
            while line := file.readline(LONGEST_LINE):
                yield _COLOUR.sub("", line)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        raise SpecError.of(
            path, os.strerror(number).lower() if number else f"is not a path: {error}"
        ) from None


def _require_known(file: _File) -> None:
    if file.empty:
        raise SpecError.of(
            file.path, "is empty", "give what the run printed, e.g. launch.sh 0 | tee node-0.log"
        )
    if not any(reader.steps.seconds or reader.parts or reader.memory for reader in file.readers):
        raise SpecError.of(file.path, "has none of the lines that are known", _expected(file.readers))


def _source(files: Sequence[_File]) -> LogReader | None:
    """The reader that knows step times: the example's, the runtime's own, a library's."""
    readers = [reader for file in files for reader in file.readers if reader.steps.seconds]
    order = [type(reader) for reader in files[0].readers]
    return min(readers, key=lambda reader: order.index(type(reader)), default=None)


def _unused(source: LogReader, files: Sequence[_File]) -> Iterator[str]:
    """Files whose step times others have printed, and that tell nothing else."""
    for file in files:
        timed = [reader for reader in file.readers if reader.steps.seconds]
        is_told = any(reader.parts or reader.memory for reader in file.readers)
        if timed and not is_told and all(type(reader) is not type(source) for reader in timed):
            yield f"{file.path}: not used, a log of {timed[0].source} beside one of {source.source}"


def _require_target(source: LogReader, files: Sequence[_File], plan: Plan) -> None:
    own = runtime(plan.target).log_reader(plan)
    ran = LIBRARIES.get(type(source), ())
    if type(source) not in (ExampleLines, type(own)) and plan.target not in ran:
        path = next(file.path for file in files if source in file.readers)
        raise SpecError.of(path, f"is a log of {source.source}, the plan's target is {plan.target}")


def _steps(source: LogReader, files: Sequence[_File]) -> Series:
    """Step times of all files; where two disagree they are of two runs."""
    told = source.steps
    merged = Series(averaged=told.averaged, whole_run=told.whole_run, whole_seconds=told.whole_seconds)
    for file in files:
        mine = next(reader for reader in file.readers if type(reader) is type(source)).steps
        if any(
            abs(merged.seconds.get(number, seconds) - seconds) > 0.02 * seconds
            for number, seconds in mine.seconds.items()
        ):
            raise SpecError.of(
                file.path, "has different times for the same steps", "give the logs of one run"
            )
        for number, seconds in mine.seconds.items():
            merged.add(number, seconds)
    return merged


def _interval(steps: Series) -> int | None:
    """Steps from a record to the next; None where more steps bring no more records."""
    if steps.whole_run:
        return None
    return steps.interval if steps.averaged or len(steps.seconds) > 1 else 1


def _memory(readers: Sequence[LogReader]) -> tuple[RankMemory, ...]:
    """The highest peak of every rank."""
    highest: dict[int | None, RankMemory] = {}
    for entry in (entry for reader in readers for entry in reader.memory):
        known = highest.get(entry.rank)
        if known is None or entry.peak_bytes > known.peak_bytes:
            highest[entry.rank] = entry
    return tuple(highest[rank] for rank in sorted(highest, key=lambda rank: -1 if rank is None else rank))


def require_same_job(log: Log, plan: Plan, ranks: Sequence[Rank]) -> None:
    """Raise UsageError that names each field in which the log's job is not the plan's."""
    wrong = [*_other_facts(log, plan), *_other_ranks(log, ranks)]
    if wrong:
        raise UsageError(
            f"{', '.join(log.files)}: the log does not match the plan: {'; '.join(wrong)}",
            hint="give the log of a run of this plan, or the plan that the run had",
        )


def _other_facts(log: Log, plan: Plan) -> Iterator[str]:
    planned = {
        "global batch": plan.global_batch,
        "world size": plan.devices,
        "tensor parallel size": plan.stages[0].replicas[0].tp,
        "pipeline parallel size": len(plan.stages),
    }
    for fact in log.facts:
        if fact.value != planned[fact.field]:
            yield f"{fact.field} {fact.value}, planned {planned[fact.field]}"


def _other_ranks(log: Log, ranks: Sequence[Rank]) -> Iterator[str]:
    told = [(entry.rank, entry.stage) for entry in log.memory]
    told += [(entry.rank, None) for entry in log.parts]
    for rank, stage in dict.fromkeys(told):
        if rank is None:
            continue
        if rank >= len(ranks):
            yield f"world size above {rank}, planned {len(ranks)} ranks"
            return
        if stage is not None and stage != ranks[rank].stage:
            yield f"rank {rank} holds stage {stage}, planned stage {ranks[rank].stage}"
            return
