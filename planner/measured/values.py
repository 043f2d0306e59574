"""What a measured run is, once its row has been read; and runs in two halves, to fit to and to test on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from planner.cluster.spec import ClusterSpec
from planner.model.spec import ModelSpec
from planner.plan.values import Plan

MemoryOf = Literal["device", "reserved", "tensors"]


def fitted_half(runs: Sequence[Run]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The half to fit to and the half held out, both in the order of the runs.

    Each source is split by model, so that none of its models is in both halves; a source with more than half of its
    runs on one model, by run.
    """
    chosen: set[str] = set()
    for source in {run.source for run in runs}:
        chosen |= _fitted_ids([run for run in runs if run.source == source])
    fitted = tuple(run for run in runs if run.id in chosen)
    return fitted, tuple(run for run in runs if run.id not in chosen)


def _fitted_ids(runs: Sequence[Run]) -> set[str]:
    """Ids of one source's runs that are fitted to: by model, by run where one model has more than half of them."""
    models = Counter(run.model.name for run in runs)
    if 2 * max(models.values()) > len(runs):
        return _alternating({run.id for run in runs})
    fitted = _alternating(models)
    return {run.id for run in runs if run.model.name in fitted}


def _alternating(names: Collection[str]) -> set[str]:
    """Every second name in an order that has nothing to do with what the names mean."""
    return set(sorted(names, key=lambda name: (crc32(name.encode()), name))[::2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured configuration as cluster, model and plan, and what was measured."""

    id: str
    """Unique in its file."""
    source: str
    """Short name of the collection that the run comes from, as ``vtrain-single-node``."""
    reference: str
    """Paper, page or file that states the measurement."""
    stack: str
    """Framework as the source names it, as ``Megatron-DeepSpeed``."""
    cluster: ClusterSpec
    model: ModelSpec
    plan: Plan
    step_seconds: float | None
    """Seconds of one optimizer step; None when only memory is known."""
    peak_memory_bytes: float | None
    """Bytes on the fullest device; None when not stated."""
    peak_memory_of: MemoryOf = "device"
    """device: all that was in use; reserved: what the allocator had taken; tensors: what it had handed out."""
    fits: bool
    """False when the run was out of memory."""
    doubt: str
    """What the source leaves open or warns about; empty if nothing."""

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return self.plan.devices

    @property
    def group(self) -> tuple[str, str, int]:
        """Runs that differ in their plan only: (source, model, devices)."""
        return self.source, self.model.name, self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot become a run."""

    id: str
    """A row that hetplan cannot predict."""
    source: str
    """Where it is from."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows of a file."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]
