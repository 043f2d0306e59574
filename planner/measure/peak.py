"""Bytes of tensors: at the peak of a call, and what it leaves alive."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from planner.measure.backend import Backend, Call

T = TypeVar("T")


def peak_bytes(backend: Backend, call: Call, held: Any) -> tuple[float, float | None]:
    """Bytes allocated at the peak of a call, and bytes that torch had reserved; None where nothing is reserved.

    ``held`` are the tensors that exist before, during and after: on a CPU only what the call adds can be seen.
    """
    if backend.kind == "cpu":
        return _storage_bytes(held) + _added_on_host(call), None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated()), float(torch.cuda.max_memory_reserved())


def _storage_bytes(held: Any) -> float:
    """Bytes of the tensors' storages, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    return float(sum(storages.values()))


def kept_bytes(backend: Backend, call: Callable[[], T]) -> tuple[float, T]:
    """Bytes that are allocated after a call and were not before, with what it returned."""
    if backend.kind == "cpu":
        changes, returned = _changes_on_host(call)
        return float(sum(changes)), returned
    before = torch.cuda.memory_allocated()
    returned = call()
    return float(torch.cuda.memory_allocated() - before), returned


def _added_on_host(call: Call) -> float:
    """The most that a call allocates on the host and has not given back yet."""
    changes, _ = _changes_on_host(call)
    return float(max(accumulate(changes), default=0))


def _changes_on_host(call: Callable[[], T]) -> tuple[list[int], T]:
    """Bytes that a call took of the host and, negative, gave back, in their order, with what it returned."""
    # The profiler's library would tell on stderr that it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        returned = call()
    records = [each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"]
    return [each.nbytes() for each in sorted(records, key=lambda each: each.start_ns())], returned
