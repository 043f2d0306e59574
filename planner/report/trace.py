"""One step in the trace event format, which Perfetto and chrome://tracing show: ranks as processes.

Rows of a process are compute, sends, reductions and copies; a counter has the memory of its device. A profile of
PyTorch stands beside them, both from the begin of a step.
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as counting
from typing import Any

from planner.cluster.spec import ClusterSpec
from planner.cost.timeline import Lane, Span, Step
from planner.cost.values import Estimate, Memory
from planner.escaping import visible_json
from planner.field_metadata import JsonDocument
from planner.logs.profiler import Event, Profile
from planner.plan.placement import Rank
from planner.plan.values import Plan
from planner.runtimes.interface import runtime
from planner.units import GIB

ROWS = {
    "forward": (1, "compute"),
    "backward": (1, "compute"),
    "weights": (1, "compute"),
    "optimizer": (1, "compute"),
    "send": (2, "sends"),
    "sync": (3, "reductions"),
    "copies": (4, "copies to and from the host"),
}
"""(row, its name) by kind of span."""
MOST_EVENTS = 200_000
"""Of a trace; of a plan with more, one rank stands for all of its stage and group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDocument(JsonDocument):
    """The answer of ``trace``."""

    file: str
    """The trace."""
    events: int
    """Its events."""
    processes: int
    """Ranks that it shows."""
    ranks: int
    """Ranks of the plan; where there are more than processes, one stands for all of its stage and group."""
    step_seconds: float
    """Predicted seconds of the step."""
    measured: str | None
    """The step of the profile that stands beside it; null without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The events of a step."""

    events: tuple[Event, ...]
    processes: int

    def text(self) -> str:
        """The file's content."""
        content = {"displayTimeUnit": "ms", "traceEvents": self.events}
        return visible_json(json.dumps(content, ensure_ascii=False, allow_nan=False)) + "\n"


def trace_of(
    plan: Plan, cluster: ClusterSpec, step: Step, estimate: Estimate, profile: Profile | None
) -> Trace:
    """The predicted step, and the measured one behind it."""
    shown = list(_shown(plan, cluster, step))
    events = [
        event
        for rank, name in shown
        for event in _process(rank, name, step, plan, estimate.stages[rank.stage].groups[rank.group].memory)
    ]
    if profile is not None:
        events += _measured(profile, first=plan.devices)
    return Trace(events=tuple(events), processes=len(shown))


def _shown(plan: Plan, cluster: ClusterSpec, step: Step) -> Iterator[tuple[Rank, str]]:
    """Every rank; of a large plan the first of each stage and group."""
    everyone = runtime(plan.target).ranks(plan, cluster)
    sizes = {(rank.stage, rank.group): 0 for rank in everyone}
    for rank in everyone:
        sizes[rank.stage, rank.group] += 1
    events = sum(size * 3 * len(_lane(*key, step, plan).spans) for key, size in sizes.items())
    told: set[tuple[int, int]] = set()
    for rank in everyone:
        where = f"stage {rank.stage}, replica {rank.replica}, {rank.gpu} {rank.host}:{rank.device}"
        if events <= MOST_EVENTS:
            yield rank, f"rank {rank.rank}: {where}"
        elif (rank.stage, rank.group) not in told:
            told.add((rank.stage, rank.group))
            others = sizes[rank.stage, rank.group] - 1
            yield rank, f"rank {rank.rank} (and {others} alike): {where}"


def _lane(stage: int, group: int, step: Step, plan: Plan) -> Lane:
    return step.lanes[group if plan.pp == 1 else stage]


def _process(rank: Rank, name: str, step: Step, plan: Plan, memory: Memory) -> Iterator[Event]:
    lane, pid = _lane(rank.stage, rank.group, step, plan), rank.rank
    yield _named("process_name", pid, 0, name)
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for row, text in dict.fromkeys(ROWS[span.kind] for span in lane.spans):
        yield _named("thread_name", pid, row, text)
    for span in lane.spans:
        yield _complete(span, pid)
    yield from _memory(lane, memory, pid, step.seconds)


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(span: Span, pid: int) -> Event:
    args: dict[str, Any] = {"critical path": span.critical}
    name: str = span.kind
    if span.micro_batch is not None:
        name += f" {span.micro_batch}"
        args |= {"micro-batch": span.micro_batch, "chunk": span.chunk}
    return {
        "ph": "X",
        "name": name,
        "cat": span.kind,
        "pid": pid,
        "tid": ROWS[span.kind][0],
        "ts": _us(span.start),
        "dur": _us(span.end) - _us(span.start),
        "args": args,
    }


def _us(seconds: float) -> float:
    """Microseconds to the nanosecond, so that spans that touch do not overlap."""
    return round(seconds * 1e9) / 1e3


def _memory(lane: Lane, memory: Memory, pid: int, seconds: float) -> Iterator[Event]:
    """Bytes that stay, and activations in proportion to the micro-batches in flight, whose peak is the estimate's.

    Where backwards are divided, what follows for the weights lets them go.
    """
    divided = any(span.kind == "weights" for span in lane.spans)
    changes = sorted(
        (span.start, 1) if span.kind == "forward" else (span.end, -1)
        for span in lane.spans
        if span.kind in ("forward", "weights" if divided else "backward")
    )
    flying, heights = 0, []
    for moment, change in changes:
        flying += change
        heights.append((moment, flying))
    most = max((height for _, height in heights), default=1)
    stays = {
        "states": memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes,
        "logits and buffers": memory.logits_bytes + memory.buffers_bytes,
        "runtime": memory.runtime_bytes,
    }
    for moment, height in [(0.0, 0), *heights, (seconds, 0)]:
        sizes = stays | {"activations": memory.activations_bytes * height / most}
        yield {
            "ph": "C",
            "name": "memory (GiB)",
            "pid": pid,
            "tid": 0,
            "ts": _us(moment),
            "args": {name: round(size / GIB, 6) for name, size in sizes.items()},
        }


def _measured(profile: Profile, first: int) -> Iterator[Event]:
    """Its processes behind the predicted ones, under numbers of their own."""
    numbers, free = dict[object, int](), counting(first)
    who = "measured" if profile.rank is None else f"measured on rank {profile.rank}"
    names = {
        event.get("pid"): str((event.get("args") or {}).get("name", ""))
        for event in profile.events
        if event["ph"] == "M" and event.get("name") == "process_name"
    }
    for event in profile.events:
        own = event.get("pid", 0)
        if own not in numbers:
            numbers[own] = next(free)
            yield _named("process_name", numbers[own], 0, f"{who}: {names.get(own) or own}")
        if event["ph"] == "M" and event.get("name") in ("process_name", "process_sort_index"):
            continue
        yield {**event, "pid": numbers[own]}
    for pid in numbers.values():
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
