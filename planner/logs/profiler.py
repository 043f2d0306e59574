"""The step that a profiler of PyTorch saw, out of the trace file that it wrote (``export_chrome_trace``)."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError, UsageError

_STEP = "ProfilerStep#"
_PHASES = frozenset("XBEiIMCsftbnePNODS")
"""Phases of events; an event without a time is metadata (``M``)."""

MOST_BYTES = 256 * 2**20
"""Of a trace, unpacked: as objects it takes about ten times as much."""
MOST_MICROSECONDS = 1e18
"""Profilers count from the epoch or from the start of the machine."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One step of one rank, or the whole trace where it has no steps."""

    path: Path
    rank: int | None
    """None where the trace does not say."""
    ranks: int | None
    step: str | None
    """``ProfilerStep#7``; None for a trace without steps."""
    events: tuple[Event, ...]
    """Those of the step, their times in microseconds since its begin; then the metadata."""


def read_profile(path: Path) -> Profile:
    """The last step of the trace; raises SpecError for a file that is no trace."""
    document = _document(path)
    events = _events(document, path)
    timed = [event for event in events if event["ph"] != "M"]
    if not timed:
        raise _wrong(path, "has no events")
    steps = [event for event in timed if event["ph"] == "X" and str(event.get("name", "")).startswith(_STEP)]
    whole = max(steps, key=lambda event: float(event["ts"]), default=None)
    start = float(whole["ts"]) if whole else min(float(event["ts"]) for event in timed)
    end = start + float(whole["dur"]) if whole else math.inf
    kept = [{**event, "ts": event["ts"] - start} for event in timed if start <= event["ts"] <= end]
    told = document.get("distributedInfo")
    about: Event = told if isinstance(told, dict) else {}
    return Profile(
        path=path,
        rank=_whole(about.get("rank")),
        ranks=_whole(about.get("world_size")),
        step=str(whole["name"]) if whole else None,
        events=(*kept, *(event for event in events if event["ph"] == "M")),
    )


def require_same_ranks(profile: Profile, devices: int) -> None:
    """Raise UsageError for the trace of a job of another size."""
    if profile.ranks is not None and profile.ranks != devices:
        raise UsageError(
            f"{profile.path}: a trace of a job of {profile.ranks} ranks, the plan has {devices}",
            hint="give the trace of a run of this plan, or the plan that the run had",
        )
    if profile.rank is not None and not 0 <= profile.rank < devices:
        raise UsageError(f"{profile.path}: the trace of rank {profile.rank}, the plan has {devices} ranks")


def _document(path: Path) -> Event:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise _wrong(path, f"is not a path: {error}") from None
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _wrong(path, f"is larger than {MOST_BYTES >> 20} MiB, unpacked: record fewer steps")
        document = json.loads(content, parse_float=_finite, parse_constant=_finite)
    except (ValueError, EOFError, RecursionError, gzip.BadGzipFile, zlib.error) as error:
        raise _wrong(
            path, f"is not JSON: {str(error).splitlines()[0] if str(error) else 'too deep'}"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise _wrong(path, "has no list traceEvents")
    return document


def _events(document: Event, path: Path) -> list[Event]:
    """All events that a viewer could show."""
    for number, event in enumerate(document["traceEvents"]):
        wrong = next(_faults(event), None)
        if wrong:
            raise _wrong(path, f"traceEvents[{number}]: {wrong}")
    return list(document["traceEvents"])


def _faults(event: object) -> Iterator[str]:
    if not isinstance(event, dict):
        yield "expected an object"
        return
    phase = event.get("ph")
    if not isinstance(phase, str) or phase not in _PHASES:
        yield f"ph: expected a phase of the trace event format, got {phase!r}"
    elif phase != "M":
        for name in ("ts", "dur") if phase == "X" else ("ts",):
            if not _number(event.get(name)):
                yield f"{name}: expected microseconds, got {event.get(name)!r}"
    if not isinstance(event.get("args") or {}, dict):
        yield "args: expected an object"
    if not isinstance(event.get("pid", 0), int | str) or not isinstance(event.get("tid", 0), int | str):
        yield "pid and tid: expected numbers or names"


def _number(value: object) -> bool:
    """Microseconds that a clock can show, so that sums and differences of them are numbers too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_MICROSECONDS


def _finite(word: str) -> float | None:
    """A number of the trace; None for one that JSON has no word for, such as the rate of a copy without bytes."""
    number = float(word)
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _wrong(path: Path, what: str) -> SpecError:
    hint = "expected a trace of torch.profiler: prof.export_chrome_trace('trace.json')"
    return SpecError.of(path, what, hint)
