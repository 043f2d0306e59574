"""Curves through measured points: what one layer, or one collective, takes where somebody has measured it.

Between two measured points a monotone cubic; outside them, or with one point only, a guess that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from planner.calibration.merge import link_name_key, name_key
from planner.calibration.values import Calibration, LayerPoint, LinkPoint

Curve = Callable[[float], tuple[float, bool]]
"""From an abscissa to (value, extrapolated)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What one transformer layer takes on one device, by measurement."""

    forward_seconds: float
    """Forward with its tensor-parallel collectives."""
    backward_seconds: float
    activation_bytes: float | None
    """Kept for the backward; None when not measured."""
    parameters: float | None
    """Elements on one device; None when not measured."""
    extrapolated: bool
    """True when one of the numbers lies outside what was measured."""
    without_collectives: bool = False
    """True when the times lack the tensor-parallel collectives."""


class LayerCurves:
    """Measured layers of a calibration, by device, model and tensor-parallel degree."""

    def __init__(self, calibration: Calibration) -> None:
        self._points: dict[tuple[str, str, int], dict[int, LayerPoint]] = {}
        for point in calibration.layers:
            key = (name_key(point.gpu), name_key(point.model), point.tp)
            self._points.setdefault(key, {})[point.micro_batch] = point
        self._curves: dict[tuple[str, str, int], _LayerCurve] = {}
        self._found: dict[tuple[str, str, int, int], LayerTimes | None] = {}

    def at(self, gpu: str, model_name: str, tp: int, micro_batch: int) -> LayerTimes | None:
        """One layer at a micro-batch (sequences); None when no point has this device, model and degree."""
        asked = (gpu, model_name, tp, micro_batch)
        if asked not in self._found:
            self._found[asked] = self._at(*asked)
        return self._found[asked]

    def _at(self, gpu: str, model_name: str, tp: int, micro_batch: int) -> LayerTimes | None:
        key = (name_key(gpu), name_key(model_name), tp)
        if key not in self._points:
            return None
        if key not in self._curves:
            self._curves[key] = _LayerCurve(list(self._points[key].values()))
        return self._curves[key].at(micro_batch)


class OptimizerCurves:
    """Measured AdamW updates of fp32 states, by device; of plain torch, whose kernels other runtimes replace."""

    def __init__(self, calibration: Calibration) -> None:
        points: dict[str, dict[int, float]] = {}
        for point in calibration.kernel_points:
            if point.kernel == "optimizer":
                points.setdefault(name_key(point.gpu), {})[point.sizes[0]] = point.seconds
        self._largest = {gpu: max(own.items()) for gpu, own in points.items()}
        self._curves = {gpu: _linear(own) for gpu, own in points.items()}

    def seconds(self, gpu: str, elements: float) -> float | None:
        """One update of so many elements, at the rate of the largest beyond it; None for a device without points."""
        key = name_key(gpu)
        if key not in self._curves:
            return None
        largest, seconds = self._largest[key]
        return seconds * elements / largest if elements > largest else self._curves[key](elements)[0]


class LinkCurves:
    """Measured collectives and sends of a calibration."""

    def __init__(self, calibration: Calibration) -> None:
        self._points: dict[tuple[str, str, int], dict[float, float]] = {}
        for point in calibration.link_points:
            self._points.setdefault(_curve_key(point), {})[point.size_bytes] = point.seconds
        self._curves: dict[tuple[str, str, int], Curve] = {}
        self._found: dict[tuple[str, str, int, float], tuple[float, bool] | None] = {}
        self._beyond: dict[tuple[str, str, int], float] = {}
        self._more: dict[tuple[str, str, int], int] = {}
        self._members = _measured_members(self._points)

    def forget_guesses(self) -> None:
        """Begin a new list of ``guesses``."""
        self._beyond.clear()
        self._more.clear()

    def guesses(self) -> Iterator[str]:
        """A line for each curve that was asked beyond its points, with the largest such size, or beyond its members."""
        for (link, operation, members), most in sorted(self._more.items()):
            yield f"{operation} among {members} over {link}: measured among {most} at most"
        for link, operation, members in sorted(self._beyond):
            size = self._beyond[link, operation, members]
            low, high = self._range(link, operation, members)
            what = f"{operation} among {members} over {link}: {_mebibytes(size)} MiB lie beyond the measured"
            yield f"{what} {_mebibytes(low)} to {_mebibytes(high)} MiB"

    def _range(self, link: str, operation: str, members: int) -> tuple[float, float]:
        """Smallest and largest size that all curves behind an answer know."""
        name = link_name_key(link)
        halves = ("reduce-scatter", "all-gather")
        parts = (operation,) if (name, operation, members) in self._points else halves
        sizes = [self._points[name, part, members] for part in parts]
        return max(min(known) for known in sizes), min(max(known) for known in sizes)

    def seconds(
        self, link: str, operation: str, members: int, size_bytes: float
    ) -> tuple[float, bool] | None:
        """(seconds, extrapolated) of one operation on a tensor of ``size_bytes``; None without a curve.

        An all-reduce that nobody measured is a reduce-scatter and an all-gather, when both were. A number of members
        between two that were measured lies between their curves.
        """
        found = self._known(link, operation, members, size_bytes)
        if found is None:
            low, high = self._around(link, operation, members)
            return self._between(link, operation, (low, members, high), size_bytes) if low and high else None
        if found[1]:
            curve = (link, operation, members)
            self._beyond[curve] = max(size_bytes, self._beyond.get(curve, 0.0))
        return found

    def least(self, link: str, operation: str, members: int, size_bytes: float) -> float:
        """Seconds below which no formula should go: what the largest smaller group took, for more members' bytes.

        Zero where no smaller group was measured.
        """
        low, _ = self._around(link, operation, members)
        found = self.seconds(link, operation, low, size_bytes) if low else None
        if found is None:
            return 0.0
        self._more[link, operation, members] = low
        return found[0] * _share_moved(members) / _share_moved(low)

    def _around(self, link: str, operation: str, members: int) -> tuple[int, int]:
        """Measured numbers of members next to this one, below and above; 0 where there is none."""
        known = self._members.get((link_name_key(link), operation), ())
        below = max((number for number in known if number < members), default=0)
        return below, min((number for number in known if number > members), default=0)

    def _between(
        self, link: str, operation: str, members: tuple[int, int, int], size_bytes: float
    ) -> tuple[float, bool] | None:
        """On the line between two groups over the share of the bytes that a ring moves."""
        ends = [self.seconds(link, operation, number, size_bytes) for number in (members[0], members[2])]
        if ends[0] is None or ends[1] is None:
            return None
        low, own, high = map(_share_moved, members)
        part = (own - low) / (high - low)
        return ends[0][0] + part * (ends[1][0] - ends[0][0]), ends[0][1] or ends[1][1]

    def _known(self, link: str, operation: str, members: int, size_bytes: float) -> tuple[float, bool] | None:
        asked = (link, operation, members, size_bytes)
        if asked not in self._found:
            self._found[asked] = self._own(*asked) or self._composed(*asked)
        return self._found[asked]

    def _own(self, link: str, operation: str, members: int, size_bytes: float) -> tuple[float, bool] | None:
        key = (link_name_key(link), operation, members)
        if key not in self._points:
            return None
        if key not in self._curves:
            self._curves[key] = _logarithmic(self._points[key])
        return self._curves[key](size_bytes)

    def _composed(
        self, link: str, operation: str, members: int, size_bytes: float
    ) -> tuple[float, bool] | None:
        if operation != "all-reduce":
            return None
        parts = [self._own(link, half, members, size_bytes) for half in ("reduce-scatter", "all-gather")]
        if parts[0] is None or parts[1] is None:
            return None
        return parts[0][0] + parts[1][0], parts[0][1] or parts[1][1]


class _LayerCurve:
    """Every measured number of a layer over the micro-batch."""

    def __init__(self, points: list[LayerPoint]) -> None:
        kept = {point.micro_batch: point.activation_bytes for point in points if point.activation_bytes}
        self._forward = _linear({point.micro_batch: point.forward_seconds for point in points})
        self._backward = _linear({point.micro_batch: point.backward_seconds for point in points})
        self._activation = _linear(kept) if kept else None
        self._alone = any(point.without_collectives for point in points)
        self._parameters = next((point.parameters for point in points if point.parameters), None)

    def at(self, micro_batch: int) -> LayerTimes:
        forward, backward = self._forward(micro_batch), self._backward(micro_batch)
        kept = self._activation(micro_batch) if self._activation else (None, False)
        return LayerTimes(
            forward_seconds=forward[0],
            backward_seconds=backward[0],
            activation_bytes=kept[0],
            parameters=self._parameters,
            extrapolated=forward[1] or backward[1] or kept[1],
            without_collectives=self._alone,
        )


def _share_moved(members: int) -> float:
    """Share of the bytes that each member of a ring sends in one pass."""
    return (members - 1) / members


def _measured_members(points: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], frozenset[int]]:
    """Numbers of members with a curve, by link and operation; an all-reduce may have its two halves."""
    found: dict[tuple[str, str], frozenset[int]] = {}
    for link, operation, members in points:
        found[link, operation] = found.get((link, operation), frozenset()) | {members}
    for link in {link for link, _ in found}:
        halves = [found.get((link, half), frozenset()) for half in ("reduce-scatter", "all-gather")]
        whole = found.get((link, "all-reduce"), frozenset()) | (halves[0] & halves[1])
        found[link, "all-reduce"] = whole
    return found


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:.3g}"


def _curve_key(point: LinkPoint) -> tuple[str, str, int]:
    return link_name_key(point.link), point.operation, point.members


def _linear(values: dict[int, float]) -> Curve:
    """Through all points, straight beyond them: never shorter above, never negative below."""
    xs = sorted(values)
    ys = [values[x] for x in xs]
    between = _between([float(x) for x in xs], ys)

    def value(x: float) -> tuple[float, bool]:
        if x in values:
            return values[int(x)], False
        if xs[0] < x < xs[-1]:
            return between(x), False
        if x > xs[-1]:
            return max(ys[-1], ys[-1] + _last_slope(xs, ys) * (x - xs[-1])), True
        line = ys[0] - _first_slope(xs, ys) * (xs[0] - x)
        return min(ys[0], max(line, ys[0] * x / xs[0])), True

    return value


def _logarithmic(values: dict[float, float]) -> Curve:
    """Seconds over bytes on logarithmic axes; beyond the points between constant and proportional to size."""
    logarithms = {math.log(size): math.log(values[size]) for size in values}
    xs = sorted(logarithms)
    ys = [logarithms[x] for x in xs]
    between = _between(xs, ys)
    below = _within_one(_first_slope(xs, ys)) if len(xs) > 1 else 1.0
    above = _within_one(_last_slope(xs, ys)) if len(xs) > 1 else 1.0

    def value(size: float) -> tuple[float, bool]:
        if size in values:
            return values[size], False
        x = math.log(size) if size > 0 else -math.inf
        if x > xs[-1]:
            return math.exp(ys[-1] + above * (x - xs[-1])), True
        if x < xs[0]:
            return math.exp(ys[0] - below * (xs[0] - max(x, min(xs[0], 0.0)))), True
        return math.exp(between(x)), False

    return value


def _between(xs: list[float], ys: list[float]) -> Callable[[float], float]:
    """The monotone cubic through the points, built when it is first asked."""
    cubic: list[Callable[[float], float]] = []

    def value(x: float) -> float:
        if not cubic:
            from scipy.interpolate import PchipInterpolator

            cubic.append(PchipInterpolator(xs, ys))
        return float(cubic[0](x))

    return value


def _first_slope(xs: list[float] | list[int], ys: list[float]) -> float:
    """Slope at the small end; through zero when there is one point."""
    return (ys[1] - ys[0]) / (xs[1] - xs[0]) if len(xs) > 1 else ys[0] / xs[0]


def _last_slope(xs: list[float] | list[int], ys: list[float]) -> float:
    """Slope at the large end; through zero when there is one point."""
    return (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if len(xs) > 1 else ys[0] / xs[0]


def _within_one(slope: float) -> float:
    return min(1.0, max(0.0, slope))
