"""What a measured run is, once its row has been read."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cluster.spec import ClusterSpec
from planner.model.spec import ModelSpec
from planner.plan.values import Plan


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
    fits: bool
    """False when the run was out of memory."""
    doubt: str
    """What the source leaves open or warns of; empty without doubts."""

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
    """A row that is no run that hetplan can predict."""
    source: str
    """Where it is from."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows of a file."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]
