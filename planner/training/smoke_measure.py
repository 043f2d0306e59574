"""What the smoke run measures: groups of ranks over their links, one layer, memory, and a checksum of weights."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from planner.training.example_model import Layer, Linear, shape_of

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
LEAST_SECONDS = 0.05
"""Calls are repeated inside one reading of the clock until they take this long."""
MOST_CALLS = 20
READINGS = 3
DEPTH = 2
"""Layers in a row: a single one would find its inputs and weights in the caches."""
CHUNK = 2**30
SAMPLE = 2**20

_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
"""torch renamed it in 2.13; the old name warns."""

Point = list[float]
"""Bytes, seconds."""


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


class Links:
    """One kind of groups of ranks, of which all do the same at the same time, as in a training step."""

    def __init__(self, entry: dict[str, Any], rank: int, device: str) -> None:
        """Collective over all ranks, which make the groups together."""
        self.entry, self.rank, self.device = entry, rank, device
        self.group: Any = None
        self.members: list[int] = []
        for members in entry["members"]:
            group = distributed.new_group(members)
            if rank in members:
                self.group, self.members = group, members

    def measure(self, seconds: float) -> dict[str, list[Point]]:
        """Seconds of each size by operation, of this rank's group's slowest member; sizes that would take longer than
        what is left of ``seconds`` are left out, but for the first of an operation."""
        curves: dict[str, list[Point]] = {}
        if self.group is None:
            return curves
        share = seconds / len(self.entry["operations"])
        for operation, points in self.entry["operations"].items():
            left, own = share, curves.setdefault(operation, [])
            for size, _ in points:
                # All members see the same times, so they agree on what is left out.
                if own and size / own[-1][0] * own[-1][1] * (READINGS + 1) > left:
                    break
                taken, spent = self._seconds(self._call(operation, int(size)))
                own.append([size, taken])
                left -= spent
        return curves

    def _call(self, operation: str, size: int) -> Callable[[], Any]:
        """The operation on a tensor of so many bytes; a send goes from every other member to the next."""
        count = len(self.members)
        elements = max(1, -(-size // (4 * count))) * count
        whole = torch.ones(elements, device=self.device)
        if operation == "all-reduce":
            return lambda: distributed.all_reduce(whole, group=self.group)
        if operation == "all-gather":
            part = torch.ones(elements // count, device=self.device)
            return lambda: _gather(whole, part, group=self.group)
        if operation == "all-to-all":
            received = torch.empty_like(whole)
            return lambda: distributed.all_to_all_single(received, whole, group=self.group)
        first, second = self.members
        part = torch.ones(max(1, size // 4), device=self.device)
        if self.rank == first:
            return lambda: distributed.send(part, second, group=self.group)
        return lambda: distributed.recv(part, first, group=self.group)

    def _seconds(self, call: Callable[[], Any]) -> tuple[float, float]:
        """Of one operation, and of all that it took to find out."""
        first = self._slowest(self._timed(call, 1))  # connects the members
        count = max(1, min(MOST_CALLS, int(LEAST_SECONDS / max(first, 1e-9))))
        taken = self._slowest(median(self._timed(call, count) for _ in range(READINGS)))
        return taken, first + READINGS * count * taken

    def _timed(self, call: Callable[[], Any], count: int) -> float:
        distributed.barrier(group=self.group)
        wait(self.device)
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait(self.device)
        return (time.perf_counter() - begin) / count

    def _slowest(self, seconds: float) -> float:
        slowest = torch.tensor(seconds, dtype=torch.float64)
        if self.device == "cuda":
            slowest = slowest.cuda()
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX, group=self.group)
        return float(slowest)


def layer_seconds(entry: dict[str, Any], device: str) -> tuple[float, float]:
    """Forward and backward of one layer, cut as the plan says, for one micro-batch, without collectives."""
    shape = shape_of(entry["shape"])
    format_ = FORMATS[entry["precision"]]
    torch.backends.cuda.matmul.allow_tf32 = entry["precision"] == "tf32"
    layers: Any = nn.Sequential(*(Layer(shape) for _ in range(DEPTH))).to(device=device, dtype=format_)
    sizes = (entry["micro_batch"], shape.sequence_length, shape.hidden)
    hidden = torch.randn(*sizes, device=device, dtype=format_, requires_grad=True)
    gradient = torch.randn(*sizes, device=device, dtype=format_) * 1e-3
    readings = []
    with sdpa_kernel([SDPBackend.MATH]) if entry["unfused"] else nullcontext():
        for _ in range(READINGS + 2):
            wait(device)
            begin = time.perf_counter()
            output = layers(hidden)
            wait(device)
            middle = time.perf_counter()
            output.backward(gradient)
            wait(device)
            readings.append((middle - begin, time.perf_counter() - middle))
    forward, backward = zip(*readings[2:], strict=True)
    return median(forward) / DEPTH, median(backward) / DEPTH


def keep_busy(seconds: float = 0.5) -> None:
    """Give the device work for about so long, without waiting for it."""
    side = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    side @ side
    torch.cuda.synchronize()
    for _ in range(int(seconds / max(time.perf_counter() - begin, 1e-4))):
        side @ side


def allocated(wanted: int, device: str) -> int:
    """Bytes that the device gives of those wanted, all at a time."""
    if device == "cuda":
        torch.cuda.empty_cache()
    held: list[torch.Tensor] = []
    while wanted > 0:
        part = min(CHUNK, wanted)
        try:
            held.append(torch.empty(part, dtype=torch.uint8, device=device))
        except RuntimeError:  # OutOfMemoryError too
            break
        wanted -= part
    total: int = sum(each.numel() for each in held)
    held.clear()
    if device == "cuda":
        torch.cuda.empty_cache()
    return total


def initial_weights(hidden: int, seed: int) -> torch.Tensor:
    """What the example draws for the first matrix of a layer, on the host."""
    torch.manual_seed(seed)
    return Linear(hidden, min(hidden, 1024), bias=False).weight.detach()


def checksum(hidden: int, seed: int, stored: Path | None) -> str:
    """Of the weights that the seed draws here, and of a stored model: names, sizes and three samples of each file."""
    digest = hashlib.sha256(initial_weights(hidden, seed).numpy().tobytes())
    files: Sequence[Path] = ()
    if stored is not None:
        files = sorted(each for each in stored.rglob("*") if each.is_file()) if stored.is_dir() else [stored]
    for each in files:
        size = each.stat().st_size
        digest.update(f"{each.name} {size}".encode())
        with each.open("rb") as source:
            for place in (0, size // 2, max(0, size - SAMPLE)):
                source.seek(place)
                digest.update(source.read(SAMPLE))
    return digest.hexdigest()[:12]
