"""What was measured: a calibration of a device or of networks, and Poplar's profiling of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from planner.calibration.merge import name_key
from planner.calibration.values import Calibration, Constant, CurveError, LayerPoint, LinkPoint
from planner.field_metadata import JsonDocument
from planner.files.short_lists import first_of
from planner.measure.fits import LinkFit, Peaks, fit_links, link_errors
from planner.measure.samples import BUSY, Limit, StageProfile
from planner.model.spec import ModelSpec
from planner.report.layout import FittedTable, bullets, number, section, table, warnings_section, words
from planner.report.numbers import (
    MISSING,
    count,
    gib,
    or_missing,
    percent,
    plus_minus,
    significant,
    time_unit,
)
from planner.units import gib_from_bytes


def network_sections(
    points: tuple[LinkPoint, ...], new: int, calibration: Calibration, path: Path
) -> list[RenderableType]:
    """A line through each curve, and how well its points predict each other; ``new`` of them are of this run."""
    return [
        section(_title(len(points), new, path), _fits(points)),
        errors_section("Each size predicted from the others", _own_errors(points, calibration)),
        warnings_section(_busy(points)),
    ]


def _busy(points: tuple[LinkPoint, ...]) -> Iterator[str]:
    """Sizes whose repeats differ too much."""
    return busy(
        (f"{point.curve}, {point.size_bytes:g} bytes", point.spread)
        for point in points
        if point.spread is not None
    )


def _title(points: int, new: int, path: Path) -> str:
    old = f", {points - new} already present" if new < points else ""
    return (
        f"Measured {count(new, 'link point')}{old}, wrote {path}" if new else f"{path} already has all points"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDocument(JsonDocument):
    """The answer of ``calibrate network``."""

    file: str
    """Calibration file that was written."""
    link_points: int
    """Points of these links and numbers of devices in the file."""
    new_link_points: int
    """Those that this run measured or read."""
    fits: tuple[LinkFit, ...]
    """A line through each curve."""
    curve_errors: tuple[CurveError, ...]
    """How well the points predict each other."""
    warnings: tuple[str, ...]
    """What to know before trusting the points."""


def network_document(
    points: tuple[LinkPoint, ...], new: int, calibration: Calibration, path: Path
) -> NetworkDocument:
    """The same for ``--json``."""
    return NetworkDocument(
        command="calibrate network",
        file=str(path),
        link_points=len(points),
        new_link_points=new,
        fits=tuple(fit_links(points)),
        curve_errors=_own_errors(points, calibration),
        warnings=tuple(_busy(points)),
    )


def _own_errors(points: tuple[LinkPoint, ...], calibration: Calibration) -> tuple[CurveError, ...]:
    """Errors of the curves that the points belong to, other points of theirs included."""
    own = {error.curve for error in link_errors(points)}
    return tuple(error for error in calibration.curve_errors if error.curve in own)


def _fits(points: tuple[LinkPoint, ...]) -> FittedTable:
    columns = [
        words("link"),
        words("operation"),
        number("devices"),
        number("groups\nat once"),
        number("latency\n(µs)"),
    ]
    columns += [number("rate\n(GB/s)"), number("mean error\nof the line")]
    rows = [
        (
            fit.link,
            fit.operation,
            str(fit.members),
            str(fit.concurrent),
            significant(fit.latency_seconds * 1e6),
            significant(fit.bytes_per_second / 1e9) if isfinite(fit.bytes_per_second) else MISSING,
            percent(fit.error),
        )
        for fit in fit_links(points)
    ]
    return table(columns, rows)


SHOWN = 4
"""Busy points that are listed by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """All that the report needs to know."""

    calibration: Calibration
    path: Path
    gpu: str
    family: str
    peaks: Peaks | None
    """What was measured in place of a datasheet; None for a device of the catalogue."""
    memory_bytes: float
    limits: Mapping[int, Limit]
    """Micro-batches that fit, by tensor-parallel degree."""
    load: tuple[str, ...]
    """Other work on the machine, in words."""
    ended: str
    """What ended the measurement before its end; empty when nothing did."""
    model: ModelSpec | None


def device_sections(told: Told) -> list[RenderableType]:
    """Constants, layers, errors, how to declare the device, warnings."""
    parts: list[RenderableType] = [section(f"Measured {told.gpu}, wrote {told.path}", _constants(told))]
    if layers := _layers(told):
        parts.append(section(f"Layers of {layers[0].model}", _layer_table(layers), bullets(_limits(told))))
    parts.append(errors_section("Each point predicted from the others", told.calibration.curve_errors))
    if lines := declaration(told):
        title = "Not in the catalogue: add this to the cluster file"
        parts.append(section(title, *(Text(line, no_wrap=True) for line in lines)))
    return [*parts, warnings_section(warnings(told))]


def declaration(told: Told) -> list[str]:
    """Lines for ``gpus:`` of a cluster file; none for a device of the catalogue, or before its peaks are known."""
    peaks = told.peaks
    if peaks is None or not peaks.flops or not peaks.memory_bytes_per_second:
        return []
    rates = ", ".join(f"{name}: {significant(rate / 1e12)}" for name, rate in sorted(peaks.flops.items()))
    return [
        "gpus:",
        f"  {told.gpu}:",
        f"    memory_gib: {significant(gib_from_bytes(told.memory_bytes))}",
        f"    memory_bandwidth_gBps: {significant(peaks.memory_bytes_per_second / 1e9)}",
        f"    tflops: {{{rates}}}",
        f"    family: {told.family}",
        "    source: hetplan calibrate device",
    ]


def warnings(told: Told) -> Iterator[str]:
    """What to know before trusting the points."""
    if told.ended:
        yield f"stopped by {told.ended}: run the same command again to measure the rest"
    if told.load:
        yield f"the machine is busy ({', '.join(told.load)}): measure again with --force when it is idle"
    yield from busy(_spreads(told))
    if told.model is not None and told.model.drops:
        yield f"{told.model.name} uses dropout; the layers were measured without it"
    if any(point.without_collectives for point in _layers(told)):
        yield "layers at tp above 1 were measured without collectives: plans add them from link curves or formulas"


def busy(spreads: Iterable[tuple[str, float]]) -> Iterator[str]:
    """A line on the points, in words, whose repeats differ too much; none when none does."""
    spreads_shown = [f"{what} ±{percent(spread)}" for what, spread in spreads if spread > BUSY]
    if spreads_shown:
        what = f"repeats vary by more than {percent(BUSY)}, as on a busy device"
        yield f"{what}: {first_of(spreads_shown, SHOWN, '; ')}; --force measures again"


def _spreads(told: Told) -> Iterator[tuple[str, float]]:
    """(point in words, spread of its repeats) of every point of the device."""
    for kernel in told.calibration.kernel_points:
        if name_key(kernel.gpu) == name_key(told.gpu):
            yield f"{kernel.kernel} {kernel.shape} {kernel.precision}", kernel.spread or 0.0
    for layer in _layers(told):
        yield f"layer at tp {layer.tp}, micro-batch {layer.micro_batch}", layer.spread or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownLimit:
    """Micro-batches that fit at one tensor-parallel degree."""

    tp: int
    """A tensor-parallel degree."""
    micro_batch: int
    """Largest micro-batch that ran."""
    out_of_memory: int | None
    """Smallest micro-batch that ran out of memory; null if none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDocument(JsonDocument):
    """The answer of ``calibrate device``."""

    file: str
    """Calibration file that was written."""
    gpu: str
    """Catalogue name of the device, or a name made from what the driver says."""
    family: str
    """Family that the constants belong to; the device's own name outside the catalogue."""
    ended_by: str | None
    """--minutes or Ctrl-C where points are left; null when all was measured."""
    kernel_points: int
    """Measured kernels in the file."""
    layer_points: int
    """Measured layers in the file."""
    constants: tuple[Constant, ...]
    """Constants of the file."""
    limits: tuple[GrownLimit, ...]
    """Micro-batches that fit."""
    curve_errors: tuple[CurveError, ...]
    """How well the points predict each other."""
    declaration: tuple[str, ...]
    """Lines for gpus: in a cluster file; empty for a device of the catalogue."""
    warnings: tuple[str, ...]
    """What to know before trusting the points."""


def device_document(told: Told) -> DeviceDocument:
    """The same for ``--json``."""
    calibration = told.calibration
    return DeviceDocument(
        command="calibrate device",
        file=str(told.path),
        gpu=told.gpu,
        family=told.family,
        ended_by=told.ended or None,
        kernel_points=len(calibration.kernel_points),
        layer_points=len(calibration.layers),
        constants=calibration.constants,
        limits=tuple(
            GrownLimit(tp=tp, micro_batch=limit.fits, out_of_memory=limit.fails)
            for tp, limit in sorted(told.limits.items())
        ),
        curve_errors=calibration.curve_errors,
        declaration=tuple(declaration(told)),
        warnings=tuple(warnings(told)),
    )


def errors_section(title: str, errors: tuple[CurveError, ...]) -> Group:
    """Leave-one-out errors by curve; nothing without curves."""
    if not errors:
        return Group()
    columns = (words("curve", least=34), number("points"), number("mean error"), number("largest"))
    rows = [(item.curve, str(item.points), percent(item.mean), percent(item.largest)) for item in errors]
    return section(title, table(columns, rows))


def _layers(told: Told) -> list[LayerPoint]:
    """Points of the device and the model, by degree and micro-batch."""
    if told.model is None:
        return []
    mine = (name_key(told.gpu), name_key(told.model.name))
    points = [
        point for point in told.calibration.layers if (name_key(point.gpu), name_key(point.model)) == mine
    ]
    return sorted(points, key=lambda point: (point.tp, point.micro_batch))


def _constants(told: Told) -> FittedTable:
    own = (f"families.{told.family}.", "frameworks.torch.")
    fitted = (item for item in told.calibration.constants if item.name.startswith(own))
    return constants_table(fitted, _readable)


def constants_table(constants: Iterable[Constant], show: Callable[[float], str] = significant) -> FittedTable:
    """Values and spreads."""
    rows = [(item.name, show(item.value), plus_minus(item.spread)) for item in constants]
    return table([words("constant", least=34), number("value"), number("spread")], rows)


def _readable(value: float) -> str:
    return f"{value:.3g}" if value < 1e-3 else significant(value)


def _layer_table(points: list[LayerPoint]) -> FittedTable:
    unit = time_unit([point.forward_seconds for point in points])
    columns = [number("tp"), number("micro-\nbatch")]
    columns += [number(unit.heading(what)) for what in ("forward", "backward")]
    columns += [number("spread"), number("kept\n(GiB)"), number("peak\n(GiB)"), number("reserved\n(GiB)")]
    rows = [
        (
            str(point.tp),
            str(point.micro_batch),
            unit.show(point.forward_seconds),
            unit.show(point.backward_seconds),
            plus_minus(point.spread),
            or_missing(point.activation_bytes, gib),
            or_missing(point.peak_bytes, gib),
            or_missing(point.reserved_bytes, gib),
        )
        for point in points
    ]
    return table(columns, rows)


def _limits(told: Told) -> Iterator[str]:
    for tp, limit in sorted(told.limits.items()):
        largest = f"tp {tp}: largest micro-batch {limit.fits}"
        if limit.fails is None:
            yield f"{largest} (largest tried; all fit)"
        else:
            yield f"{largest}; {limit.fails} runs out of memory"


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
    """Micro-batches timed, over all stages."""
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
        number(unit.heading("its time")),
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
                or_missing(stage.estimated, str),
                str(stage.micro_batch) if stage.micro_batch else "does not fit",
                or_missing(stage.fastest, str),
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
