"""The stages of a plan: one row per group of replicas; in deep pipelines equal neighbours share a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import RenderableType

from planner.cost.values import Estimate, GroupEstimate, StageEstimate
from planner.report.numbers import TimeUnit, gib, time_unit
from planner.report.table import number, table, words

FEW = 8
"""Stages that are listed one by one."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """Neighbouring stages that share a row."""

    first: int
    """Index of the first stage."""
    stages: tuple[StageEstimate, ...]

    @property
    def indices(self) -> str:
        """``3``, or ``3-17``."""
        return _span(self.first, self.first + len(self.stages))

    @property
    def layers(self) -> str:
        """``12-15``, or ``12-71: 4 each`` for several stages."""
        first, last = self.stages[0], self.stages[-1]
        span = _span(first.first_layer, last.end_layer)
        return span if len(self.stages) == 1 else f"{span}: {first.end_layer - first.first_layer} each"


def _span(first: int, end: int) -> str:
    return str(first) if end == first + 1 else f"{first}-{end - 1}"


def stage_runs(stages: Sequence[StageEstimate], few: int = FEW) -> tuple[StageRun, ...]:
    """Stages in order; more than ``few`` are put together where they are alike."""
    numbered = list(enumerate(stages))
    if len(numbered) <= few:
        return tuple(StageRun(index, (stage,)) for index, stage in numbered)
    alike = (list(same) for _, same in groupby(numbered, key=lambda entry: _shape(entry[1])))
    return tuple(StageRun(same[0][0], tuple(stage for _, stage in same)) for same in alike)


def _shape(stage: StageEstimate) -> tuple[object, ...]:
    """What stages of one row have in common."""
    groups = (
        (each.pool, each.gpu, each.tp, each.count, each.micro_batch, each.steps) for each in stage.groups
    )
    return (stage.end_layer - stage.first_layer, stage.crosses, stage.copies_cross, stage.link, *groups)


def stage_table(estimate: Estimate, few: int = FEW) -> RenderableType:
    """Rows with the slowest time, the largest memory and the least free of the stages they stand for."""
    groups = [group for stage in estimate.stages for group in stage.groups]
    unit = time_unit(group.forward_seconds + group.backward_seconds for group in groups)
    columns = (
        number("stage"),
        words("layers", least=6),
        words("devices", least=16),
        words("replicas", least=9),
        number("batch\nx steps"),
        number(f"fwd+bwd\n({unit.name})"),
        number("memory\n(GiB)"),
        number("free\n(GiB)"),
    )
    return table(columns, [row for run in stage_runs(estimate.stages, few) for row in _rows(run, unit)])


def _rows(run: StageRun, unit: TimeUnit) -> Iterator[list[str]]:
    """A row per group of replicas; the stage is named in the first."""
    for position, groups in enumerate(zip(*(stage.groups for stage in run.stages), strict=True)):
        where = [run.indices, run.layers] if position == 0 else ["", ""]
        yield [
            *where,
            *_group(groups[0], len(run.stages)),
            unit.show(max(group.forward_seconds + group.backward_seconds for group in groups)),
            gib(max(group.memory.used_bytes for group in groups)),
            gib(min(group.memory.headroom_bytes for group in groups)),
        ]


def _group(group: GroupEstimate, stages: int) -> list[str]:
    many = f"{stages} x " if stages > 1 else ""
    devices = f"{many}{group.tp * group.count} {group.gpu} ({group.pool})"
    replicas = f"{group.count} x tp {group.tp}" if group.tp > 1 else str(group.count)
    return [devices, replicas, f"{group.micro_batch} x {group.steps}"]
