"""Collectives and sends among the processes that torchrun started.

Every process runs the same list in the same order, those outside a group wait. A point is the time of the slowest
member.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as distributed

from planner.calibration.merge import link_key
from planner.calibration.values import LinkPoint, Operation, curve_name
from planner.errors import UsageError
from planner.measure.backend import Backend, open_backend, out_of_memory
from planner.measure.process_groups import BrokenError, FirstStoppedError, MeasurementPlan, MeasuringTeam
from planner.measure.samples import Event, Sample, sample

T = TypeVar("T")

SMALLEST_BYTES = 2**10
REPEATS = 7
LEAST_SECONDS = 0.01
MOST_CALLS = 200
PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others."""


_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
"""torch renamed them in 2.13; the old names warn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All processes."""

    rank: int
    backend: Backend
    hosts: tuple[str, ...]
    """By rank."""
    gpus: tuple[str, ...]
    """By rank."""


class Recorder(Protocol):
    """Hears of what was measured; on the first process only."""

    def keep(self, points: tuple[LinkPoint, ...]) -> None:
        """A point, at once."""

    def left_out(self, what: str) -> None:
        """An operation that the backend does not have, or a size that memory has no room for."""


@contextmanager
def _together(what: str) -> Iterator[None]:
    """Whatever torch raises here, but for a refusal, has parted the processes; raises BrokenError."""
    try:
        yield
    except (RuntimeError, BrokenError) as error:
        raise BrokenError(f"{what}: {_first_line(error)}") from error


def open_world(asked: str | None) -> World:
    """Meet the other processes; raises UsageError outside torchrun and for one process, and BrokenError."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise UsageError(
            "calibrate network: expected at least two processes, started by torchrun",
            hint="torchrun --no-python --nproc-per-node 8 hetplan calibrate network ...",
        )
    if asked != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = open_backend(asked)
    with _together("meeting the other processes"):
        distributed.init_process_group("nccl" if backend.kind == "cuda" else "gloo", timeout=PATIENCE)
        everyone: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyone, (socket.gethostname(), backend.name))
    hosts, gpus = zip(*everyone, strict=True)
    return World(rank=distributed.get_rank(), backend=backend, hosts=hosts, gpus=gpus)


def close_world() -> None:
    """Leave the other processes."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def agreed(world: World, decide: Callable[[], T]) -> T:
    """What the first process decides, on all of them.

    Raises there what ``decide`` raises, and FirstStoppedError on the others.
    """
    told: list[Any] = [None]
    if world.rank > 0:
        with _together("waiting for the first process"):
            distributed.broadcast_object_list(told)
        if told[0] is None:
            raise FirstStoppedError
        return cast(T, told[0][0])
    try:
        told[0] = (decide(),)
    finally:
        distributed.broadcast_object_list(told)
    return cast(T, told[0][0])


def measure_network(
    world: World, work: MeasurementPlan, recorder: Recorder, tell: Callable[[Event], None]
) -> bool:
    """Measure every curve that is not known; False when the time budget ended it. Raises BrokenError."""
    begin, done = time.monotonic(), 0
    for team in work.teams:
        with _together(f"a group of {team.members} over {team.link}"):
            groups = [distributed.new_group([*ranks]) for ranks in team.groups]
            everyone = distributed.new_group([*team.ranks]) if len(groups) > 1 else groups[0]
        own = next((index for index, ranks in enumerate(team.groups) if world.rank in ranks), 0)
        for operation in team.operations:
            curve = _Curve(world, work, team, operation, team.groups[own], groups[own], everyone)
            done += 1
            tell(Event(what=curve.what, done=done, total=work.curves))
            for point in curve.missing():
                with _together(f"{curve.what}, {point.size_bytes:g} bytes"):
                    if _slowest(world, time.monotonic() - begin, None) > work.seconds:
                        return False
                    reading = curve.measured(point) if world.rank in team.ranks else None
                    if not _collected(world, reading, recorder):
                        break
    return True


Found = LinkPoint | str | None
"""What one process has of a point: its time, why there is none, or nothing of its own to tell."""


def _collected(world: World, reading: Found, recorder: Recorder) -> bool:
    """Tell the first process what the members have, each the same; False on all where there was no point."""
    everyone: list[Any] = [None] * len(world.hosts)
    distributed.all_gather_object(everyone, reading)
    reasons = dict.fromkeys(own for own in everyone if isinstance(own, str))
    if world.rank == 0:
        for what in reasons:
            recorder.left_out(what)
        if not reasons:
            recorder.keep(tuple(dict.fromkeys(own for own in everyone if own is not None)))
    return not reasons


@dataclass(frozen=True, slots=True)
class _Curve:
    """One operation of one team over the sizes, each four times the one before."""

    world: World
    work: MeasurementPlan
    team: MeasuringTeam
    operation: Operation
    ranks: tuple[int, ...]
    """Of this process's group."""
    group: Any
    """Among which the operation is."""
    everyone: Any
    """All groups of the team, which begin together; the slowest of them counts."""

    @property
    def what(self) -> str:
        """For readers."""
        return curve_name(self.team.link, self.operation, self.team.members, self.team.concurrent)

    def missing(self) -> Iterator[LinkPoint]:
        """Points that are not known yet, without their times."""
        points = map(self._point, _sizes(self.work.largest_bytes))
        return (point for point in points if link_key(point) not in self.work.known)

    def measured(self, point: LinkPoint) -> Found:
        """The point with its time, or why this member cannot have one; a member of others that cannot has nothing."""
        call, refused = self._call(int(point.size_bytes) // 4)
        # Memory may be short on one member alone, and the others must not wait for it.
        if _slowest(self.world, float(call is None), self.everyone):
            return refused or None
        assert call is not None
        try:
            call()
        except RuntimeError as error:
            # A backend that lacks an operation refuses it on every member of a group; all else parts them.
            if not _refusal(error):
                raise
            refused = f"{self.operation}: {_first_line(error)}"
        # The other groups may have had the memory for it.
        if _slowest(self.world, float(bool(refused)), self.everyone):
            return refused or None
        reading = _time(self.world, call, self.everyone)
        # A call sends there and back, or from each member in turn.
        times = self.team.members if self.operation in ("send", "broadcast", "reduce") else 1
        return replace(point, seconds=reading.seconds / times, spread=reading.spread)

    def _call(self, elements: int) -> tuple[Callable[[], object] | None, str]:
        """The operation, or why memory has no room for its tensors."""
        try:
            return _call(self.world, self.ranks, self.operation, self.group, elements), ""
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return None, f"{self.what}, {4 * elements} bytes: {_first_line(error)}"

    def _point(self, size: int) -> LinkPoint:
        """The point of a size, which is rounded up to whole shares; its time is yet to come."""
        members = self.team.members
        elements = -(-size // (4 * members)) * members
        return LinkPoint(
            link=self.team.link,
            operation=self.operation,
            members=members,
            size_bytes=4.0 * elements,
            seconds=0.0,
            concurrent=self.team.concurrent,
        )


def _refusal(error: Exception) -> bool:
    """True for what a backend says of an operation that it does not have, or has no memory for.

    Torch refuses with these two; lost peers and broken devices have errors of their own below them.
    """
    said = ("not support", "unsupported", "not implemented")
    lacks = type(error) is RuntimeError and any(words in str(error).lower() for words in said)
    return lacks or type(error) is NotImplementedError or out_of_memory(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _sizes(largest: int) -> Iterator[int]:
    size = SMALLEST_BYTES
    while size <= largest:
        yield size
        size *= 4


def _call(
    world: World, ranks: Sequence[int], operation: Operation, group: Any, elements: int
) -> Callable[[], object]:
    """The operation on a tensor of so many fp32 elements in all."""
    members = len(ranks)
    whole = torch.ones(elements, device=world.backend.kind)
    part = torch.ones(elements // members, device=world.backend.kind)
    if operation == "all-reduce":
        return lambda: distributed.all_reduce(whole, group=group)
    if operation == "all-gather":
        return lambda: _gather(whole, part, group=group)
    if operation == "reduce-scatter":
        return lambda: _scatter(part, whole, group=group)
    if operation == "all-to-all":
        out = torch.empty_like(whole)
        return lambda: distributed.all_to_all_single(out, whole, group=group)
    if operation in ("broadcast", "reduce"):
        return _from_each(operation, whole, group, members)
    first, second = ranks

    def send() -> None:
        """There and back."""
        for source, target in ((first, second), (second, first)):
            if world.rank == source:
                distributed.send(whole, target, group=group)
            else:
                distributed.recv(whole, source, group=group)

    return send


def _from_each(operation: Operation, whole: Any, group: Any, members: int) -> Callable[[], object]:
    """From each member in turn to all others, or from all to it."""

    def around() -> None:
        for member in range(members):
            if operation == "broadcast":
                distributed.broadcast(whole, group_src=member, group=group)
            else:
                distributed.reduce(whole, group_dst=member, group=group)

    return around


def _time(world: World, call: Callable[[], object], everyone: Any) -> Sample:
    """Seconds of a call of the slowest, where all begin together."""

    def once(count: int) -> float:
        distributed.barrier(group=everyone)
        world.backend.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        world.backend.synchronize()
        return _slowest(world, (time.perf_counter() - begin) / count, everyone)

    # All processes see the same slowest time, so they agree on the number of calls.
    count = max(1, min(MOST_CALLS, int(LEAST_SECONDS / max(once(1), 1e-9))))
    return sample([once(count) for _ in range(REPEATS)])


def _slowest(world: World, seconds: float, group: Any) -> float:
    """The largest of all members' numbers."""
    slowest = torch.tensor(seconds, dtype=torch.float64, device=world.backend.kind)
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX, group=group)
    return float(slowest)
