"""What Poplar's profiling found on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group

from planner.described import JsonDocument
from planner.measure.samples import StageProfile
from planner.report.layout import bullets, number, section, table
from planner.report.numbers import MISSING, count, gib, time_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class PoplarDocument(JsonDocument):
    """The answer of ``calibrate device --as-poplar``."""

    file: str
    """Calibration file that was written."""
    gpu: str
    """Catalogue name of the device, or a name made from what the driver says."""
    devices: int
    """Devices among which ZeRO would divide the states."""
    measurements: int
    """Micro-batches that were timed, of all stages together."""
    stages: tuple[StageProfile, ...]
    """What was found for each ZeRO stage."""


def poplar_document(stages: Sequence[StageProfile], gpu: str, devices: int, path: Path) -> PoplarDocument:
    """The same for ``--json``."""
    return PoplarDocument(
        command="calibrate device --as-poplar",
        file=str(path),
        gpu=gpu,
        devices=devices,
        measurements=sum(len(stage.points) for stage in stages),
        stages=tuple(stages),
    )


def poplar_section(document: PoplarDocument) -> Group:
    """A row for each ZeRO stage."""
    times = [point.seconds for stage in document.stages for point in stage.points]
    unit = time_unit(times)
    columns = (
        number("ZeRO"),
        number("states\n(GiB)"),
        number("largest by\nthe line"),
        number("largest\nmicro-batch"),
        number("fastest\nmicro-batch"),
        number(f"its time\n({unit.name})"),
        number("points"),
    )
    rows = []
    for stage in document.stages:
        near = min(
            stage.points, key=lambda point: abs(point.micro_batch - (stage.fastest or 0)), default=None
        )
        rows.append(
            [
                str(stage.zero),
                gib(stage.states_bytes),
                MISSING if stage.estimated is None else str(stage.estimated),
                str(stage.micro_batch) if stage.micro_batch else "does not fit",
                MISSING if stage.fastest is None else str(stage.fastest),
                MISSING if near is None else unit.show(near.seconds),
                str(len(stage.points)),
            ]
        )
    notes = [
        f"{count(document.measurements, 'micro-batch', 'micro-batches')} of the whole model, each ZeRO stage by itself "
        f"among {count(document.devices, 'device')}; without --as-poplar layers are measured once for all stages"
    ]
    return section(
        f"Profiled {document.gpu} as Poplar does, wrote {document.file}",
        table(columns, rows),
        bullets(notes),
    )
