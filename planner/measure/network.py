"""Collectives and sends among the processes that torchrun started.

Every process runs the same list in the same order, those outside a group wait. A point is the time of the slowest
member.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from planner.calibration import LinkPoint, Operation
from planner.errors import UsageError
from planner.measure.backend import Backend, open_backend
from planner.measure.samples import sample

OPERATIONS: tuple[Operation, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")
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


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks that a curve is measured among."""

    link: str
    ranks: tuple[int, ...]


def open_world(asked: str | None) -> World:
    """Meet the other processes; raises UsageError outside torchrun and for a single process."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise UsageError(
            "calibrate network: expected two processes at least, started by torchrun",
            hint="torchrun --no-python --nproc-per-node 8 hetplan calibrate network ...",
        )
    if asked != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = open_backend(asked)
    distributed.init_process_group("nccl" if backend.kind == "cuda" else "gloo", timeout=PATIENCE)
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, (socket.gethostname(), backend.name))
    hosts, gpus = zip(*everyone, strict=True)
    return World(rank=distributed.get_rank(), backend=backend, hosts=hosts, gpus=gpus)


def close_world() -> None:
    """Leave the other processes."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def teams(hosts: tuple[str, ...], gpus: tuple[str, ...], fabric: str | None) -> tuple[Team, ...]:
    """Groups of 2, 4, 8 ... and of all: in one node of each kind, one process a node, and everywhere.

    Raises UsageError when there are several nodes and the fabric between them has no name.
    """
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    if len(nodes) > 1 and fabric is None:
        raise UsageError(
            f"processes on {len(nodes)} nodes: expected --fabric with the network's name",
            hint="as under fabrics: of the cluster file",
        )
    found: dict[Team, None] = {}
    seen: set[str] = set()
    for ranks in nodes.values():
        kinds = {gpus[rank] for rank in ranks}
        if len(kinds) == 1 and kinds.isdisjoint(seen):
            seen |= kinds
            for size in _sizes(len(ranks)):
                found[Team(f"node:{gpus[ranks[0]]}", tuple(ranks[:size]))] = None
    if len(nodes) > 1 and fabric is not None:
        firsts = [ranks[0] for ranks in nodes.values()]
        for size in _sizes(len(firsts)):
            found[Team(fabric, tuple(firsts[:size]))] = None
        if len(hosts) > len(firsts):
            found[Team(fabric, tuple(range(len(hosts))))] = None
    return tuple(found)


def _sizes(largest: int) -> Iterator[int]:
    size = 2
    while size < largest:
        yield size
        size *= 2
    if largest > 1:
        yield largest


def measure_network(
    world: World,
    groups: tuple[Team, ...],
    largest_bytes: int,
    seconds: float,
    keep: Callable[[LinkPoint], None],
    left_out: Callable[[str], None],
) -> bool:
    """Measure every curve; ``keep`` gets the points, ``left_out`` what the backend cannot do. False out of time."""
    begin = time.monotonic()
    for team in groups:
        group = distributed.new_group(list(team.ranks))
        for operation in OPERATIONS:
            if operation == "send" and len(team.ranks) > 2:
                continue
            if _slowest(world, time.monotonic() - begin, None) > seconds:
                return False
            if world.rank in team.ranks:
                _curve(world, team, operation, group, largest_bytes, keep, left_out)
            distributed.barrier()
    return True


def _curve(
    world: World,
    team: Team,
    operation: Operation,
    group: Any,
    largest_bytes: int,
    keep: Callable[[LinkPoint], None],
    left_out: Callable[[str], None],
) -> None:
    """One operation over the sizes, each four times the one before."""
    size, members = SMALLEST_BYTES, len(team.ranks)
    while size <= largest_bytes:
        elements = -(-size // (4 * members)) * members
        try:
            call = _call(world, team, operation, group, elements)
            call()
        except (RuntimeError, NotImplementedError) as error:
            # A backend that lacks an operation refuses it on every member.
            left_out(f"{operation}: {str(error).splitlines()[0]}")
            return
        seconds = _time(world, call, group)
        keep(
            LinkPoint(
                link=team.link,
                operation=operation,
                members=members,
                size_bytes=4.0 * elements,
                seconds=seconds,
            )
        )
        size *= 4


def _call(world: World, team: Team, operation: Operation, group: Any, elements: int) -> Callable[[], object]:
    """The operation on a tensor of so many fp32 elements in all."""
    members = len(team.ranks)
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
    first, second = team.ranks

    def send() -> None:
        """There and back: two sends."""
        for source, target in ((first, second), (second, first)):
            if world.rank == source:
                distributed.send(whole, target, group=group)
            else:
                distributed.recv(whole, source, group=group)

    send.sends = 2  # type: ignore[attr-defined]
    return send


def _time(world: World, call: Callable[[], object], group: Any) -> float:
    """Median seconds of one operation."""

    def once(count: int) -> float:
        distributed.barrier(group=group)
        world.backend.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        world.backend.synchronize()
        return _slowest(world, (time.perf_counter() - begin) / count, group)

    # All members see the same slowest time, so they agree on the number of calls.
    count = max(1, min(MOST_CALLS, int(LEAST_SECONDS / max(once(1), 1e-9))))
    return sample([once(count) for _ in range(REPEATS)]).seconds / getattr(call, "sends", 1)


def _slowest(world: World, seconds: float, group: Any) -> float:
    """The largest of all members' numbers."""
    found = torch.tensor(seconds, dtype=torch.float64, device=world.backend.kind)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX, group=group)
    return float(found)


def everyones_points(found: tuple[LinkPoint, ...]) -> tuple[LinkPoint, ...]:
    """The points of all processes, each once; every member of a group has the same."""
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, found)
    return tuple(dict.fromkeys(point for points in everyone for point in points))
