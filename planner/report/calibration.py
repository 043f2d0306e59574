"""A calibration: constants and curves, what of a cluster and a model it has measured, and where it does not belong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import log2
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType

from planner.calibration.merge import link_name_key, merged, name_key
from planner.calibration.values import Calibration, Constant, CurveError
from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import carried_rates, inside_rate
from planner.field_metadata import JsonDocument
from planner.model.spec import ModelSpec
from planner.report.layout import FittedTable, number, pairs, section, table, words
from planner.report.measured import errors_section
from planner.report.numbers import percent, plus_minus, significant
from planner.targets import TARGETS

BARS = "▁▂▃▄▅▆▇█"


def calibration_sections(calibration: Calibration, path: Path) -> list[RenderableType]:
    """Where it is from, its constants, its curves, how well their points predict each other."""
    told = [*calibration.provenance.items(), *([("notes", calibration.notes)] if calibration.notes else [])]
    parts: list[RenderableType] = [
        section(f"Calibration {path}", pairs(told or [("provenance", "not stated")]))
    ]
    sources = [(key, _facts(facts)) for key, facts in calibration.sources.items()]
    if len(sources) > 1:
        parts.append(section("Sources", pairs(sources)))
    if calibration.constants:
        parts.append(section("Constants; all others are built in or assumed", _constants(calibration)))
    if curves := [*_layer_curves(calibration), *_links(calibration)]:
        parts.append(section("Curves, as rates from the smallest to the largest size", _plots(curves)))
    return [*parts, errors_section("Each point predicted from the others", calibration.curve_errors)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """One point of a curve."""

    size: float
    """Micro-batch, or bytes of the tensor."""
    rate: float
    """Rate at it, in rate_unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCurve:
    """A measured curve as rates."""

    curve: str
    """Measured layers or collectives, in words."""
    rate_unit: str
    """seq/s of sequences through one layer, GB/s of the whole tensor."""
    points: tuple[RatePoint, ...]
    """Smallest size first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationDocument(JsonDocument):
    """The answer of ``show`` for a calibration."""

    file: str
    """The calibration file."""
    provenance: dict[str, str]
    """What the last measurements were made with, free text by name."""
    sources: dict[str, dict[str, str]]
    """The same for each source that points and constants name."""
    constants: tuple[Constant, ...]
    """Constants of the file."""
    curves: tuple[RateCurve, ...]
    """Measured curves."""
    curve_errors: tuple[CurveError, ...]
    """How well the points predict each other."""
    coverage: tuple[Covered, ...] | None
    """What plans are priced with; null without --cluster."""


def calibration_document(
    calibration: Calibration, path: Path, rows: tuple[Covered, ...] | None
) -> CalibrationDocument:
    """The same for ``--json``."""
    return CalibrationDocument(
        command="show calibration",
        file=str(path),
        provenance=calibration.provenance,
        sources=calibration.sources,
        constants=calibration.constants,
        curves=(*_layer_curves(calibration), *_links(calibration)),
        curve_errors=calibration.curve_errors,
        coverage=rows,
    )


def _facts(facts: dict[str, str]) -> str:
    """One source in a line: what it was measured on, with, and when."""
    first = [facts[key] for key in ("device", "date") if key in facts]
    rest = [f"{key} {value}" for key, value in facts.items() if key not in ("device", "date", "command")]
    return ", ".join([*first, *rest, *([facts["command"]] if "command" in facts else [])])


def plot(values: list[float]) -> str:
    """A bar for each value, the largest as high as it gets."""
    top = max(values)
    return "".join(BARS[max(0, round(value / top * len(BARS)) - 1)] for value in values)


def _constants(calibration: Calibration) -> FittedTable:
    rows = [
        (item.name, f"{item.value:.3g}", plus_minus(item.spread), item.provenance)
        for item in calibration.constants
    ]
    return table([words("constant", least=34), number("value"), number("spread"), words("from")], rows)


def _layer_curves(calibration: Calibration) -> Iterator[RateCurve]:
    """Sequences a second through forward and backward of one layer."""
    curves: dict[str, list[RatePoint]] = {}
    for point in calibration.layers:
        rate = point.micro_batch / (point.forward_seconds + point.backward_seconds)
        name = f"layers of {point.model} on {point.gpu}, tp {point.tp}"
        curves.setdefault(name, []).append(RatePoint(size=point.micro_batch, rate=rate))
    yield from (_curve(name, "seq/s", points) for name, points in curves.items())


def _links(calibration: Calibration) -> Iterator[RateCurve]:
    """Gigabytes of the whole tensor a second."""
    curves: dict[str, list[RatePoint]] = {}
    for point in calibration.link_points:
        rate = point.size_bytes / point.seconds / 1e9
        curves.setdefault(point.curve, []).append(RatePoint(size=point.size_bytes, rate=rate))
    yield from (_curve(name, "GB/s", points) for name, points in curves.items())


def _curve(name: str, unit: str, points: list[RatePoint]) -> RateCurve:
    ordered = sorted(points, key=lambda point: (point.size, point.rate))
    return RateCurve(curve=name, rate_unit=unit, points=tuple(ordered))


def _size(curve: RateCurve, point: RatePoint) -> str:
    """Sequences, or bytes of a collective: ``64 MiB``."""
    if curve.rate_unit != "GB/s":
        return f"{point.size:.3g}"
    power = min(3, int(log2(max(point.size, 1.0)) // 10))
    return f"{point.size / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _plots(curves: list[RateCurve]) -> FittedTable:
    rows = [
        (
            curve.curve,
            f"{_size(curve, curve.points[0])} to {_size(curve, curve.points[-1])}",
            plot([point.rate for point in curve.points]),
            f"{significant(max(point.rate for point in curve.points))} {curve.rate_unit}",
        )
        for curve in curves
    ]
    return table([words("curve", least=30), words("sizes"), words("rate"), number("best")], rows)


State = Literal["measured", "fitted", "datasheet", "assumed", "missing"]
SHARES = (
    ("matmul_efficiency", "matmul"),
    ("vector_efficiency", "matmul in fp32"),
    ("attention_efficiency", "attention"),
    ("memory_efficiency", "memory"),
    ("kernel_seconds", "kernel floor"),
    ("launch_seconds", "launch"),
)
"""Constants of a family, and what a reader calls them."""
PLANNED = ("all-reduce", "all-gather", "reduce-scatter", "send")
"""Operations that plans are priced with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """One thing that plans are priced with."""

    part: str
    """A device, a framework, or a link."""
    what: str
    """A constant, layers of a model by tp, or operations."""
    state: State
    """measured, fitted, datasheet, assumed, or missing where the constants stand in."""
    detail: str
    """The number and where it is from, or what stands in for it."""


def coverage(
    own: Calibration, base: Calibration, cluster: ClusterSpec, model: ModelSpec | None
) -> tuple[Covered, ...]:
    """Every device type, framework and link of a cluster; ``base`` is what ``own`` wins over."""
    both, topology = merged(base, own), Topology(cluster)
    names = frozenset(constant.name for constant in own.constants)
    device_types = {device_type.gpu: device_type for device_type in topology.device_types}
    covered = [
        item for device_type in device_types.values() for item in _device(device_type, both, names, model)
    ]
    covered += [_framework(name, target, both, names, model) for name, target in TARGETS.items()]
    return (*covered, *_inside(topology, both, names), *_between(topology, both, names))


def coverage_section(rows: tuple[Covered, ...], cluster: ClusterSpec, model: ModelSpec | None) -> Group:
    """The table; each part is named once."""
    cells, before = [], ""
    for row in rows:
        cells.append((row.part if row.part != before else "", row.what, row.state, row.detail))
        before = row.part
    columns = [words("part"), words("what", least=8), words("state", least=9), words("from", least=20)]
    whose = cluster.name if model is None else f"{cluster.name} and {model.name}"
    return section(
        f"What {whose} need of it" if model else f"What {whose} needs of it", table(columns, cells)
    )


def _device(
    device_type: DeviceType, both: Calibration, own: frozenset[str], model: ModelSpec | None
) -> Iterator[Covered]:
    rates = ", ".join(
        f"{name} {significant(rate / 1e12)}" for name, rate in sorted(device_type.peak_flops.items())
    )
    told = f"TFLOP/s {rates}; {significant(device_type.memory_bytes_per_second / 1e9)} GB/s"
    yield Covered(
        part=device_type.gpu, what="peaks", state="datasheet", detail=f"{told}, by cluster file or catalogue"
    )
    for key, what in SHARES:
        value = getattr(both.family(device_type.family), key)
        yield _constant(device_type.gpu, what, f"families.{device_type.family}.{key}", value, both, own)
    if model is not None:
        yield from _layers(device_type, both, model)


def _layers(device_type: DeviceType, both: Calibration, model: ModelSpec) -> Iterator[Covered]:
    """Curves of the model's layers by degree."""
    sizes: dict[int, list[int]] = {}
    for point in both.layers:
        if (name_key(point.gpu), name_key(point.model)) == (name_key(device_type.gpu), name_key(model.name)):
            sizes.setdefault(point.tp, []).append(point.micro_batch)
    for tp, own in sorted(sizes.items()):
        detail = f"micro-batch {', '.join(str(size) for size in sorted(own))}"
        yield Covered(part=device_type.gpu, what=f"layers, tp {tp}", state="measured", detail=detail)
    if not sizes:
        detail = f"none of {model.name}: the shares above price its layers"
        yield Covered(part=device_type.gpu, what="layers", state="missing", detail=detail)


def _framework(
    name: str, target: Capabilities, both: Calibration, own: frozenset[str], model: ModelSpec | None
) -> Covered:
    """What a process of a target takes, by the kernel set that it runs the model with."""
    training = None if model is None else model.training
    kernels = (
        target.kernels[0] if training is None else target.kernels_of(training.kernels, training.attention)
    )
    value = both.framework(kernels).runtime_bytes
    return _constant(name, "runtime bytes", f"frameworks.{kernels}.runtime_bytes", value, both, own)


def _constant(
    part: str, what: str, name: str, value: float, both: Calibration, own: frozenset[str]
) -> Covered:
    known = next((constant for constant in both.constants if constant.name == name), None)
    if known is None:
        return Covered(part=part, what=what, state="assumed", detail=f"{value:.3g}")
    spread = "" if known.spread is None else f" ±{percent(known.spread)}"
    return Covered(
        part=part,
        what=what,
        state=known.provenance,
        detail=f"{value:.3g}{spread}, {_origin(known, both, own)}",
    )


def _origin(known: Constant, both: Calibration, own: frozenset[str]) -> str:
    """Device and date where they are known, else which file."""
    if known.name not in own:
        return "built in"
    facts = both.sources.get(known.source, {})
    return ", ".join(facts[key] for key in ("device", "date") if key in facts) or "this file"


def _inside(topology: Topology, both: Calibration, own: frozenset[str]) -> Iterator[Covered]:
    """The network inside nodes of each device type."""
    for device_type in {
        device_type.gpu: device_type for device_type in topology.device_types if device_type.per_node > 1
    }.values():
        link = f"node:{device_type.gpu}"
        rate = f"{significant(inside_rate(device_type, both) / 1e9)} GB/s of the cluster file's "
        rate += f"{significant(device_type.intra_bytes_per_second / 1e9)} GB/s"
        if (together := device_type.sharing) > 1:
            rate += f" for {together} devices at once"
        name = f"families.{device_type.family}.link_efficiency"
        share = _constant(link, "", name, both.family(device_type.family).link_efficiency, both, own)
        yield from _curves(link, both, f"{rate}: link utilisation {share.detail}", share.state)


def _between(topology: Topology, both: Calibration, own: frozenset[str]) -> Iterator[Covered]:
    """Every fabric, or fabrics joined by gateways, that two nodes talk over."""
    told: set[str] = set()
    for pair in combinations_with_replacement([pool.name for pool in topology.cluster.pools], 2):
        path = topology.path(*pair)
        if path.fabric in ("", "node") or link_name_key(path.fabric) in told:
            continue
        told.add(link_name_key(path.fabric))
        rate = f"{significant(min(carried_rates(path, both)) / 1e9)} GB/s of the cluster file's "
        rate += significant(path.bytes_per_second / 1e9)
        name = f"links.{path.kind}.efficiency"
        share = _constant(path.fabric, "", name, both.link(path.kind).efficiency, both, own)
        yield from _curves(
            path.fabric, both, f"{rate} GB/s: {path.kind} link utilisation {share.detail}", share.state
        )


def _curves(link: str, both: Calibration, formula: str, state: State) -> Iterator[Covered]:
    """Measured operations with their numbers of members; one line for what the formula prices."""
    members: dict[str, set[int]] = {}
    concurrent: dict[str, set[int]] = {}
    for point in both.link_points:
        if link_name_key(point.link) == link_name_key(link):
            members.setdefault(point.operation, set()).add(point.members)
            concurrent.setdefault(point.operation, set()).add(point.concurrent)
    for operation, counts in members.items():
        detail = f"{', '.join(str(size) for size in sorted(counts))} devices"
        if concurrent[operation] != {1}:
            detail += f", {', '.join(str(number) for number in sorted(concurrent[operation]))} groups at once"
        yield Covered(part=link, what=operation, state="measured", detail=detail)
    rest = [operation for operation in PLANNED if operation not in members]
    if rest:
        what = "all operations" if len(rest) == len(PLANNED) else ", ".join(rest)
        yield Covered(part=link, what=what, state=state, detail=formula)
