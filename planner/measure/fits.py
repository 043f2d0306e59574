"""Constants of a GPU family from measured kernels, and the datasheet numbers of a device that has no datasheet.

Every share is the median over the sizes of what the cost model would take at the full peak, over what was measured
less the ramp of a kernel; its spread is the robust standard deviation over the sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from planner.calibration.merge import curve_key
from planner.calibration.values import (
    Calibration,
    Constant,
    CurveError,
    GpuFamily,
    KernelPoint,
    LayerPoint,
    LinkPoint,
)
from planner.cluster.topology import DeviceType, Host
from planner.cost.compute import (
    TILE_FILL,
    TWO_BYTES,
    Device,
    Product,
    peak_in_two_bytes,
    share_of_products,
)
from planner.cost.measured_curves import LinkCurves, straight
from planner.errors import UsageError
from planner.field_metadata import json_fields
from planner.measure.samples import sample
from planner.ranges import SPREAD


@json_fields(names={"error": "mean_error"})
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """``seconds = latency + size / rate`` of one operation."""

    link: str
    """``node:GPU``, or the name of a fabric."""
    operation: str
    """The collective, or send."""
    members: int
    """Devices of the group."""
    concurrent: int
    """Groups of the same nodes that did this at the same time."""
    latency_seconds: float
    """Time at size 0 of a line through the points."""
    bytes_per_second: float
    """Bytes of the whole tensor a second; infinite when the time does not grow with the size."""
    error: float
    """Mean relative error of the line at the points."""


def fit_links(points: Iterable[LinkPoint]) -> Iterator[LinkFit]:
    """A line through each curve with two sizes at least."""
    for own in _link_curves(points):
        if len(own) >= 2:
            latency, slope = line([point.size_bytes for point in own], [point.seconds for point in own])
            yield LinkFit(
                link=own[0].link,
                operation=own[0].operation,
                members=own[0].members,
                concurrent=own[0].concurrent,
                latency_seconds=latency,
                bytes_per_second=1.0 / slope if slope > 0 else float("inf"),
                error=mean(abs((latency + slope * point.size_bytes) / point.seconds - 1.0) for point in own),
            )


def _link_curves(points: Iterable[LinkPoint]) -> Iterable[list[LinkPoint]]:
    """The points of each curve."""
    curves: dict[str, list[LinkPoint]] = {}
    for point in points:
        curves.setdefault(point.curve, []).append(point)
    return curves.values()


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(seconds at size 0, seconds per byte) with the least squared relative errors, neither below 0."""
    weights = [1.0 / value**2 for value in seconds]
    total = sum(weights)
    center = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    level = sum(w * y for w, y in zip(weights, seconds, strict=True)) / total
    across = sum(w * (x - center) ** 2 for w, x in zip(weights, sizes, strict=True))
    along = sum(w * (x - center) * (y - level) for w, x, y in zip(weights, sizes, seconds, strict=True))
    slope = along / across if across else 0.0
    if slope <= 0:
        return level, 0.0
    if level - slope * center >= 0:
        return level - slope * center, slope
    squares = sum(w * x * x for w, x in zip(weights, sizes, strict=True))
    return 0.0, sum(w * x * y for w, x, y in zip(weights, sizes, seconds, strict=True)) / squares


LEAST = 3
"""Points below which leaving one out tells nothing."""


def layer_errors(points: Iterable[LayerPoint]) -> Iterator[CurveError]:
    """Forward plus backward of every curve, left out micro-batch by micro-batch."""
    curves: dict[tuple[str, str, int], list[LayerPoint]] = {}
    for point in points:
        curves.setdefault((point.gpu, point.model, point.tp), []).append(point)
    for (gpu, model, tp), own in curves.items():
        errors = [_layer_error(point, own) for point in own] if len(own) >= LEAST else []
        yield from _error(f"layers of {model} on {gpu}, tp {tp}", errors)


def link_errors(points: Iterable[LinkPoint]) -> Iterator[CurveError]:
    """Every curve of a collective, left out size by size."""
    for own in _link_curves(points):
        errors = [_link_error(point, own) for point in own] if len(own) >= LEAST else []
        yield from _error(own[0].curve, errors)


def without_lonely(calibration: Calibration) -> Calibration:
    """The calibration without link curves of a single size, which tell neither latency nor rate."""
    sizes = Counter(map(curve_key, calibration.link_points))
    kept = tuple(point for point in calibration.link_points if sizes[curve_key(point)] > 1)
    return replace(calibration, link_points=kept)


def with_errors(calibration: Calibration, more: Iterable[CurveError] = ()) -> Calibration:
    """The calibration with the errors of all its curves, and some of constants, in place of older ones."""
    errors = {error.curve: error for error in calibration.curve_errors}
    for source in (more, layer_errors(calibration.layers), link_errors(calibration.link_points)):
        errors |= {error.curve: error for error in source}
    return replace(calibration, curve_errors=tuple(errors.values()))


def _layer_error(point: LayerPoint, own: list[LayerPoint]) -> float:
    """Of a straight line through the others; a plan also knows how its model's formula bends."""
    others = {other.micro_batch: _both(other) for other in own if other is not point}
    return abs(straight(others)(point.micro_batch)[0] / _both(point) - 1.0)


def _both(point: LayerPoint) -> float:
    return point.forward_seconds + point.backward_seconds


def _link_error(point: LinkPoint, own: list[LinkPoint]) -> float:
    others = Calibration(link_points=tuple(other for other in own if other is not point))
    predicted = LinkCurves(others).seconds(
        point.link, point.operation, point.members, point.size_bytes, concurrent=point.concurrent
    )
    assert predicted is not None
    return abs(predicted[0] / point.seconds - 1.0)


def _error(curve: str, errors: list[float]) -> Iterator[CurveError]:
    """Raises UsageError where a point has nothing to do with the others: one of them was damaged."""
    if not errors:
        return
    if max(errors) > SPREAD.most:
        raise UsageError(
            f"{curve}: one of {len(errors)} points is {max(errors):.2g} times away from what the others predict",
            hint="take the wrong point out of the calibration file, or measure again with --force",
        )
    yield CurveError(curve=curve, points=len(errors), mean=mean(errors), largest=max(errors))


LEAST_INNER = 2 * TILE_FILL
"""Inner dimension from which a product counts as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a device can do at most: by its datasheet, or the best that was measured."""

    flops: dict[str, float]
    """FLOP/s by number format."""
    memory_bytes_per_second: float
    multiprocessors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants of one family."""

    family: GpuFamily
    constants: tuple[Constant, ...]
    errors: tuple[CurveError, ...]


def measured_peaks(points: Iterable[KernelPoint]) -> Peaks:
    """The best rate of each number format and of the memory, for a device outside the catalogue.

    A product's rate is that of an endless one, as the cost model counts the filling of a tile by itself.
    """
    known = tuple(points)
    flops: dict[str, float] = {}
    large = [point for point in known if point.kernel == "matmul" and _large(point)]
    for point in sorted(large, key=lambda point: point.precision not in TWO_BYTES):
        steps, rate = point.sizes[2], point.flops / point.seconds
        endless = rate * (steps + TILE_FILL) / steps
        two_bytes = peak_in_two_bytes(flops)
        if point.precision not in TWO_BYTES and endless < two_bytes:
            # Filling takes as long as in two bytes, which is fewer steps.
            endless = 1.0 / (1.0 / rate - TILE_FILL / steps / two_bytes)
        flops[point.precision] = max(endless, flops.get(point.precision, 0.0))
    streams = [point.moved_bytes / point.seconds for point in known if point.kernel in ("copy", "triad")]
    return Peaks(flops=flops, memory_bytes_per_second=max(streams, default=0.0), multiprocessors=0)


def fit_family(
    name: str, points: Iterable[KernelPoint], peaks: Peaks, precision: str, host_factor: float
) -> Fitted:
    """The constants that the points tell, each with its spread; the others keep their assumed values.

    ``precision`` is the number format that the shares of the peak are fitted to; ``host_factor`` that of the
    framework which was measured.
    """
    known = tuple(points)
    floor = [point.seconds for point in known if point.kernel == "floor"]
    ramp = floor[0] if floor else 0.0
    device = _perfect(peaks, precision)
    constants: dict[str, tuple[float, float | None]] = {}
    errors: list[CurveError] = []
    if floor:
        constants["kernel_seconds"] = ramp, None
    for point in known:
        if point.kernel == "launch":
            constants["launch_seconds"] = point.seconds / host_factor, point.spread
    products = share_of_products(peaks.flops, precision)
    for key, kernels, ideal in (
        (products, ("matmul",), lambda point: device.product(Product(*point.sizes))),
        ("attention_efficiency", ("attention",), lambda point: device.flash(point.flops)),
        ("memory_efficiency", ("copy", "triad"), lambda point: device.stream(point.moved_bytes)),
    ):
        own = _comparable(known, kernels, precision, peaks)
        if own:
            shares = [_share(point, ideal, ramp) for point in own]
            constants[key] = min(1.0, median(shares)), sample(shares).spread if len(shares) > 1 else None
            errors += _left_out(f"{key} of {name}", own, ideal, ramp)
    return Fitted(
        family=GpuFamily(**{key: value for key, (value, _) in constants.items()}),
        constants=tuple(
            Constant(name=f"families.{name}.{key}", value=value, provenance="measured", spread=spread)
            for key, (value, spread) in constants.items()
        ),
        errors=tuple(errors),
    )


def _comparable(
    points: Sequence[KernelPoint], kernels: tuple[str, ...], precision: str, peaks: Peaks
) -> list[KernelPoint]:
    """Points of one share that have a peak to be compared with."""
    if kernels == ("copy", "triad"):
        return [point for point in points if point.kernel in kernels and peaks.memory_bytes_per_second]
    return [
        point
        for point in points
        if point.kernel in kernels
        and point.precision == precision
        and precision in peaks.flops
        and _large(point)
    ]


def _large(point: KernelPoint) -> bool:
    """False for a product whose tiles are filled no sooner than they are done."""
    return point.kernel != "matmul" or point.sizes[2] >= LEAST_INNER


def _share(point: KernelPoint, ideal: Callable[[KernelPoint], float], ramp: float) -> float:
    """Share of the peak; a kernel as short as its ramp is compared with all of its time."""
    work = point.seconds - ramp
    return ideal(point) / (work if work > 0.0 else point.seconds)


def _left_out(
    curve: str, points: Sequence[KernelPoint], ideal: Callable[[KernelPoint], float], ramp: float
) -> list[CurveError]:
    """How well the median of the other sizes predicts each one."""
    if len(points) < 3:
        return []
    errors = []
    for index, point in enumerate(points):
        others = [_share(other, ideal, ramp) for other in (*points[:index], *points[index + 1 :])]
        errors.append(abs((ramp + ideal(point) / min(1.0, median(others))) / point.seconds - 1.0))
    return [*_error(curve, errors)]


def _perfect(peaks: Peaks, precision: str) -> Device:
    """The cost model's device at full peaks and without ramps."""
    device_type = DeviceType(
        pool="",
        gpu="",
        family="perfect",
        multiprocessors=peaks.multiprocessors,
        nodes=1,
        per_node=1,
        memory_bytes=0.0,
        reserve_bytes=0.0,
        safe=None,
        memory_bytes_per_second=peaks.memory_bytes_per_second or float("inf"),
        peak_flops={precision: float("inf"), **peaks.flops},
        intra_bytes_per_second=0.0,
        intra_latency_seconds=0.0,
        intra_shared=False,
        host=Host(
            devices=1,
            bytes_per_second=None,
            nvme_bytes_per_second=None,
            memory_bytes=float("inf"),
            parameters_per_second=None,
        ),
    )
    full = GpuFamily(
        matmul_efficiency=1.0,
        vector_efficiency=1.0,
        attention_efficiency=1.0,
        memory_efficiency=1.0,
        kernel_seconds=0.0,
    )
    return Device(device_type, Calibration(families={"perfect": full}), precision)
