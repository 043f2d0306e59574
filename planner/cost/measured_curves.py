"""What was measured: one layer, which anchors the formulas, and curves of one collective or of the optimizer.

Between two points of a curve a monotone cubic; outside them, or with one point only, a guess that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from planner.calibration.merge import CurveKey, curve_key, link_name_key, name_key
from planner.calibration.values import Calibration, LayerPoint, curve_name
from planner.cost.arrays import as_array, as_number, is_zero, larger
from planner.frozen import dataclass
from planner.plan.values import Sync

Curve = Callable[[float], tuple[float, bool]]
"""From an abscissa to (value, extrapolated)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFormula:
    """What the formulas say of one transformer layer on one device."""

    forward_seconds: float
    """Of the device, with the tensor-parallel collectives."""
    backward_seconds: float
    collective_seconds: float
    """Part of each of both."""
    host_seconds: float
    """To launch either."""
    activation_bytes: float
    """Kept for the backward without recomputation and sequence parallelism."""
    parameters: float
    """Elements on one device."""


Formula = Callable[[int, int], LayerFormula]
"""From a tensor-parallel degree and a micro-batch (sequences)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What one transformer layer takes on one device, by measurement."""

    forward_seconds: float
    """Forward with its tensor-parallel collectives."""
    backward_seconds: float
    activation_ratio: float
    """Bytes kept for the backward over those of the formula; 1 when not measured."""
    parameter_ratio: float
    """Elements on one device over those of the formula; 1 when not measured."""
    spread: float
    """Relative standard error of forward and backward together."""
    allocator_slack: float | None = None
    """What the allocator held beyond the tensors over these, at the largest micro-batch; None when not measured."""
    extrapolated: bool = False
    """True when one of the numbers lies outside what was measured."""
    without_collectives: bool = False
    """True when the times lack the tensor-parallel collectives."""


DEVICE_SPREAD = 0.25
"""Standard deviation of the logarithm of a device's seconds over the formula's, before a layer is measured."""
DIRECTION_SPREAD = 0.5
"""The same of a backward's ratio over that of its forward."""
HOST_SPREAD = 0.5
"""The same of a host's seconds."""
POINT_SPREAD = 0.05
"""Standard deviation of a point from the formula with the right scales."""

BETWEEN, BEYOND, ELSEWHERE = 0.03, 0.07, 0.10
"""Spread of a layer between measured micro-batches, beyond them, and at a degree that was not measured: what points
of OPT-350M that are left out show (docs/cost_model.md)."""


class LayerCurves:
    """Measured layers of one model: each device's points anchor the formulas, which give the way between and beyond."""

    def __init__(self, calibration: Calibration, model_name: str, layer_factor: float = 1.0) -> None:
        """``layer_factor``: what a layer takes in the runtime over what it took alone."""
        self._layer_factor = layer_factor
        self._points: dict[str, dict[int, dict[int, LayerPoint]]] = {}
        for point in calibration.layers:
            if name_key(point.model) == name_key(model_name):
                degrees = self._points.setdefault(name_key(point.gpu), {})
                degrees.setdefault(point.tp, {})[point.micro_batch] = point
        self._anchors: dict[tuple[tuple[str, str], int], _Anchor] = {}
        self._times: dict[tuple[tuple[str, str], int, int | bytes], LayerTimes | None] = {}

    def at(
        self,
        key: tuple[str, str],
        tp: int,
        micro_batch: int,
        formula: Formula,
        most: int | None = None,
    ) -> LayerTimes | None:
        """One layer at a micro-batch (sequences) on a device type (pool, gpu); None when no layer of it was measured.

        Of an array of micro-batches the times are arrays too, with the largest spread.
        ``formula`` is that of the device type, always the same. A degree that was not measured has the scales of the
        nearest one. Of replicas on several nodes that is one in a node of ``most`` devices, where layers are measured.
        """
        asked = (key, tp, micro_batch.tobytes() if isinstance(micro_batch, np.ndarray) else micro_batch)
        if asked not in self._times:
            self._times[asked] = self._at(key, tp, micro_batch, formula, most)
        return self._times[asked]

    def _at(
        self, key: tuple[str, str], tp: int, micro_batch: int, formula: Formula, most: int | None
    ) -> LayerTimes | None:
        degrees = self._points.get(name_key(key[1]), {})
        if most is not None:
            degrees = {degree: points for degree, points in degrees.items() if degree <= most}
        if not degrees:
            return None
        nearest = min(degrees, key=lambda known: (abs(math.log(known / tp)), known))
        if (key, nearest) not in self._anchors:
            self._anchors[key, nearest] = _Anchor(degrees[nearest], nearest, formula)
        times = self._anchors[key, nearest].at(tp, micro_batch)
        return replace(
            times,
            forward_seconds=self._layer_factor * times.forward_seconds,
            backward_seconds=self._layer_factor * times.backward_seconds,
        )


class OptimizerCurves:
    """Measured AdamW updates of fp32 states, by device; of plain torch, whose kernels other runtimes replace."""

    def __init__(self, calibration: Calibration) -> None:
        points: dict[str, dict[int, float]] = {}
        for point in calibration.kernel_points:
            if point.kernel == "optimizer":
                points.setdefault(name_key(point.gpu), {})[point.sizes[0]] = point.seconds
        self._points = points
        self._largest = {gpu: max(own.items()) for gpu, own in points.items()}
        self._curves = {gpu: straight(own) for gpu, own in points.items()}

    def seconds(self, gpu: str, elements: float) -> float | None:
        """One update of so many elements, at the rate of the largest beyond it; None for a device without points."""
        key = name_key(gpu)
        if key not in self._curves:
            return None
        largest, seconds = self._largest[key]
        return seconds * elements / largest if elements > largest else self._curves[key](elements)[0]

    def least_seconds(self, gpu: str, elements: float) -> float | None:
        """What so many elements take at least of an update of as many or more; None as above."""
        own = self.seconds(gpu, elements)
        if own is None or not elements:
            return own
        # Between two points the seconds of an element rise or fall all the way, beyond the largest they stay.
        further = (
            elements * seconds / size
            for size, seconds in self._points[name_key(gpu)].items()
            if size > elements
        )
        return min((own, *further))


class ExchangeCurves:
    """What islands exchange, beside the network, as it was measured on a device and its host."""

    def __init__(self, calibration: Calibration) -> None:
        rates: dict[tuple[str, str], dict[int, float]] = {}
        for point in calibration.kernel_points:
            if point.kernel in EXCHANGES:
                *setting, elements = point.sizes
                # A rank; of the largest elements those that travel in a million.
                own = (
                    setting[0]
                    if point.kernel == "factors"
                    else max(1, round(1e6 * setting[0] / elements))
                    if setting
                    else 0
                )
                rates.setdefault((name_key(point.gpu), point.kernel), {})[own] = point.seconds / elements
        self._curves = {key: straight(own) for key, own in rates.items()}

    def seconds(self, gpu: str, sync: Sync, elements: float) -> float | None:
        """An exchange of so many elements; None where it was not measured."""
        kernel: str
        if sync.local:
            kernel, setting = sync.method, 0.0
        elif sync.rank is not None:
            kernel, setting = "factors", float(sync.rank)
        elif sync.ratio is not None:
            kernel, setting = "largest", 1e6 * sync.ratio
        else:
            kernel, setting = sync.format, 0.0
        curve = self._curves.get((name_key(gpu), kernel))
        return None if curve is None else curve(setting)[0] * elements


RING_OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
"""Collectives that go around a ring."""

HALVES = ("reduce-scatter", "all-gather")
"""What an all-reduce is made of."""

EXCHANGES = ("bf16", "fp8", "int8", "factors", "largest", "average", "diloco")
"""Kernels that are ways to exchange."""


Reading = tuple[float, bool]
"""Seconds, and whether they lie beyond what was measured."""


class LinkCurves:
    """Measured collectives and sends of a calibration."""

    def __init__(self, calibration: Calibration) -> None:
        self._points: dict[CurveKey, dict[float, float]] = {}
        for point in calibration.link_points:
            self._points.setdefault(curve_key(point), {})[point.size_bytes] = point.seconds
        self._curves: dict[CurveKey, Curve] = {}
        self._times: dict[tuple[str, str, int, int, float, float], Reading | None] = {}
        self._rates: dict[tuple[CurveKey, float], float] = {}
        self._beyond: dict[CurveKey, float] = {}
        self._more: dict[tuple[str, str, int], int] = {}
        self._members = _measured_members(self._points)

    def forget_guesses(self) -> None:
        """Begin a new list of ``guesses``."""
        self._beyond.clear()
        self._more.clear()

    def guesses(self) -> Iterator[str]:
        """A line for each curve that was asked beyond its points, with the largest such size, or beyond its members."""
        for (link, operation, members), most in sorted(self._more.items()):
            yield f"{curve_name(link, operation, members)}: measured of {most} at most"
        for curve in sorted(self._beyond):
            low, high = self._range(curve)
            beyond = f"{_mebibytes(self._beyond[curve])} MiB lie beyond the measured"
            yield f"{curve_name(*curve)}: {beyond} {_mebibytes(low)} to {_mebibytes(high)} MiB"

    def _range(self, curve: CurveKey) -> tuple[float, float]:
        """Smallest and largest size that all curves behind an answer know."""
        own = curve._replace(link=link_name_key(curve.link))
        halves = [own._replace(operation=half) for half in HALVES]
        sizes = [self._points[part] for part in ([own] if own in self._points else halves)]
        return max(min(known) for known in sizes), min(max(known) for known in sizes)

    def seconds(
        self,
        link: str,
        operation: str,
        members: int,
        size_bytes: float,
        per_byte: float = 0.0,
        concurrent: float = 1,
    ) -> Reading | None:
        """(seconds, extrapolated) of one operation on a tensor of ``size_bytes``; None without a curve.

        ``per_byte``: what each byte of all concurrent groups takes by the formula, which is what one beyond the largest
        point takes at least, unless all before it took less: small messages wait for latency, and say little of large
        ones. ``concurrent``: groups that share the cards of their nodes.

        An all-reduce that nobody measured is a reduce-scatter and an all-gather, when both were. A number of members
        between two that were measured lies between their curves, and so does one of concurrent groups; more of them
        than were measured fill the cards: they take as long as these with all the bytes. Of an array of sizes the
        seconds are an array.
        """
        if isinstance(size_bytes, np.ndarray):
            readings: list[Reading] = []
            for size in size_bytes.tolist():
                one = self.seconds(link, operation, members, size, per_byte, concurrent)
                if one is None:  # as for every other size
                    return None
                readings.append(one)
            seconds, guessed = np.array(readings).reshape(-1, 2).T
            return as_number(seconds), bool(guessed.any())
        known = self._concurrent(link, operation, members)
        fewer, reading = 0, (0.0, False)
        for number in known:
            more = concurrent / number if number == known[-1] and concurrent > number else 1.0
            group = (link, operation, members, number)
            # Measurements that differ by chance must not make more groups faster than fewer.
            upper = max(reading, self._among(group, more * size_bytes, per_byte * number))
            if number >= concurrent:
                if not fewer:
                    return upper
                part = (concurrent - fewer) / (number - fewer)
                return reading[0] + part * (upper[0] - reading[0]), reading[1] or upper[1]
            fewer, reading = number, upper
        return reading if fewer else None

    def _concurrent(self, link: str, operation: str, members: int) -> tuple[int, ...]:
        """Numbers of concurrent groups for which so many members were measured, or fewer and more."""
        known = self._members.get((link_name_key(link), operation), {})
        return tuple(
            number for number, measured in known.items() if min(measured) <= members <= max(measured)
        )

    def least(
        self,
        link: str,
        operation: str,
        members: int,
        size_bytes: float,
        per_byte: float = 0.0,
        concurrent: float = 1,
    ) -> float:
        """Seconds below which no formula should go: what the largest smaller group took, for more members' bytes.

        ``per_byte`` and ``concurrent`` as of ``seconds``. Zero where no smaller group was measured.
        """
        low = max((low for low, _ in self._around(link, operation, members)), default=0)
        reading = self.seconds(link, operation, low, size_bytes, per_byte, concurrent) if low else None
        if reading is None:
            return 0.0
        self._more[link, operation, members] = low
        return reading[0] * _share_moved(members) / _share_moved(low)

    def longer(
        self,
        seconds: float,
        link: str,
        operations: Sequence[str],
        members: int,
        size_bytes: float,
        concurrent: float = 1,
    ) -> float:
        """``seconds``, or what the first of the operations that is known took over a link where that is longer.

        ``guesses`` has nothing of a link that was no slower.
        """
        if is_zero(size_bytes):
            return seconds
        for operation in operations:
            before = dict(self._beyond), dict(self._more)
            asked = (link, operation, members, size_bytes, 0.0, concurrent)
            reading = self.seconds(*asked)
            took = reading[0] if reading else self.least(*asked)
            if np.any(took > seconds):
                return larger(seconds, took)
            self._beyond, self._more = before
            if not is_zero(took):
                break
        return seconds

    def fastest(self, link: str, most_bytes: float, members: int = 1) -> tuple[float, float]:
        """Bytes per second in one pass around a ring that no answer exceeds; 0 where there is no curve.

        Of all concurrent rings together, and of one of them. Of messages up to so many bytes of all of them, or of
        larger ones in their place, among so many members or more. The pass of a gather moves the part of the bytes that
        others have, an all-reduce takes two of them, and a broadcast moves all bytes. Between two measured numbers of
        members both sides of this are linear. So are the seconds between two numbers of concurrent rings, a + b n, of
        which n rings move most at one of both ends, as n / (a + b n) rises or falls all the way.
        """
        name = link_name_key(link)
        # An answer is read from the curves of the next numbers on either side, an all-reduce perhaps from its halves'.
        fewest = min(
            (low for half in RING_OPERATIONS for low, _ in self._around(name, half, members) if low),
            default=members,
        )
        rates = [
            (curve.concurrent, self._fastest(curve, most_bytes))
            for curve in self._points
            if curve.link == name and curve.operation in RING_OPERATIONS and curve.members >= fewest
        ]
        together = max((number * rate for number, rate in rates), default=0.0)
        return together, max((rate for _, rate in rates), default=0.0)

    def _fastest(self, curve: CurveKey, most_bytes: float) -> float:
        asked = (curve, most_bytes)
        if asked not in self._rates:
            moved = passes(curve.operation, curve.members)
            self._rates[asked] = moved * _most_over(self._points[curve], most_bytes)
        return self._rates[asked]

    def covers(self, link: str, members: int) -> bool:
        """True when no pass around a ring of so many members or more is shorter than measurements say."""
        known = (self._members.get((link_name_key(link), half), {}) for half in HALVES)
        return any(min(measured) <= members for numbers in known for measured in numbers.values())

    def _around(self, link: str, operation: str, members: int) -> Iterator[tuple[int, int]]:
        """Measured numbers of members next to this one, below and above, for each number of concurrent groups.

        0 where there is none.
        """
        for known in self._members.get((link_name_key(link), operation), {}).values():
            below = max((number for number in known if number < members), default=0)
            yield below, min((number for number in known if number > members), default=0)

    def _among(self, group: tuple[str, str, int, int], size_bytes: float, per_byte: float) -> Reading:
        """Of a measured number of members, or on the line between two over the share of the bytes that a ring moves."""
        link, operation, members, concurrent = group
        reading = self._known(*group, size_bytes, per_byte)
        if reading is not None:
            if reading[1]:
                curve = CurveKey(*group)
                self._beyond[curve] = max(size_bytes, self._beyond.get(curve, 0.0))
            return reading
        known = self._members[link_name_key(link), operation][concurrent]
        low = max(number for number in known if number < members)
        high = min(number for number in known if number > members)
        below, above = (
            self._among((link, operation, number, concurrent), size_bytes, per_byte) for number in (low, high)
        )
        part = (_share_moved(members) - _share_moved(low)) / (_share_moved(high) - _share_moved(low))
        return below[0] + part * (above[0] - below[0]), below[1] or above[1]

    def _known(
        self, link: str, operation: str, members: int, concurrent: int, size_bytes: float, per_byte: float
    ) -> Reading | None:
        asked = (link, operation, members, concurrent, size_bytes, per_byte)
        if asked not in self._times:
            curve = CurveKey(link_name_key(link), operation, members, concurrent)
            self._times[asked] = self._own(curve, size_bytes, per_byte) or self._composed(
                curve, size_bytes, per_byte
            )
        return self._times[asked]

    def _own(self, curve: CurveKey, size_bytes: float, per_byte: float) -> Reading | None:
        if curve not in self._points:
            return None
        if curve not in self._curves:
            self._curves[curve] = _logarithmic(self._points[curve])
        seconds, guessed = self._curves[curve](size_bytes)
        largest = max(self._points[curve])
        if size_bytes > largest:
            last = self._points[curve][largest]
            seconds = max(seconds, min(last + per_byte * (size_bytes - largest), last * size_bytes / largest))
        return seconds, guessed

    def _composed(self, curve: CurveKey, size_bytes: float, per_byte: float) -> Reading | None:
        if curve.operation != "all-reduce":
            return None
        parts = [self._own(curve._replace(operation=half), size_bytes, per_byte / 2) for half in HALVES]
        if parts[0] is None or parts[1] is None:
            return None
        return parts[0][0] + parts[1][0], parts[0][1] or parts[1][1]


class _Anchor:
    """The formulas of a layer, scaled so that they meet the points of one tensor-parallel degree.

    Three scales, of the device's forward, of its backward and of the host's work, are the most likely ones under the
    points and the spreads that they have before: a point that is bound by the host says little of the device. What
    they leave goes along the formula from point to point.
    """

    def __init__(self, points: dict[int, LayerPoint], tp: int, formula: Formula) -> None:
        self._tp, self._formula = tp, formula
        self._alone = any(point.without_collectives for point in points.values())
        self._forward = {size: point.forward_seconds for size, point in points.items()}
        self._backward = {size: point.backward_seconds for size, point in points.items()}
        self._kept = {
            size: point.activation_bytes for size, point in points.items() if point.activation_bytes
        }
        counted = [point.parameters for point in points.values() if point.parameters]
        self._parameter_ratio = counted[0] / formula(tp, 1).parameters if counted else 1.0
        self._slack = _slack(points)
        self._spread = max(point.spread or 0.0 for point in points.values())
        self._scales: tuple[float, ...] = ()

    def at(self, tp: int, micro_batch: int) -> LayerTimes:
        """The layer at this degree or another."""

        def shape(direction: int) -> Callable[[int], float]:
            return lambda size: self._anchored(self._tp, size)[direction]

        def kept(size: int) -> float:
            return self._formula(self._tp, size).activation_bytes

        forward, guessed = _along(self._forward, shape(0), micro_batch)
        backward, _ = _along(self._backward, shape(1), micro_batch)
        ratio = 1.0
        if self._kept:
            measured, unknown = _along(self._kept, kept, micro_batch)
            ratio, guessed = measured / kept(micro_batch), guessed or unknown
        least = BEYOND if guessed else BETWEEN
        if tp != self._tp:
            forward, backward = self._anchored(tp, micro_batch)
            guessed, least = True, ELSEWHERE
        return LayerTimes(
            forward_seconds=forward,
            backward_seconds=backward,
            activation_ratio=ratio,
            parameter_ratio=self._parameter_ratio,
            spread=max(least, self._spread),
            allocator_slack=self._slack,
            extrapolated=guessed,
            without_collectives=self._alone,
        )

    def _anchored(self, tp: int, micro_batch: int) -> tuple[float, float]:
        """Seconds of both directions by the scaled formulas."""
        self._scales = self._scales or self._fitted()
        return self._scaled(self._scales, self._formula(tp, micro_batch))

    def _scaled(self, scales: Sequence[float], formula: LayerFormula) -> tuple[float, float]:
        """Seconds of the forward and of the backward with logarithms of the scales."""
        less = formula.collective_seconds if self._alone else 0.0
        forward, backward, host = (math.exp(scale) for scale in scales)
        launched = host * formula.host_seconds
        return (
            with_host(forward * (formula.forward_seconds - less), launched),
            with_host(backward * (formula.backward_seconds - less), launched),
        )

    def _fitted(self) -> tuple[float, ...]:
        from scipy.optimize import least_squares

        formulas = {size: self._formula(self._tp, size) for size in self._forward}

        def residuals(scales: Sequence[float]) -> list[float]:
            both = (scales[0] + scales[1]) / 2 / DEVICE_SPREAD
            terms = [both, (scales[0] - scales[1]) / DIRECTION_SPREAD, scales[2] / HOST_SPREAD]
            for size, formula in formulas.items():
                forward, backward = self._scaled(scales, formula)
                terms.append(math.log(forward / self._forward[size]) / POINT_SPREAD)
                terms.append(math.log(backward / self._backward[size]) / POINT_SPREAD)
            return terms

        bounds = (-LARGEST_SCALE, LARGEST_SCALE)
        return tuple(map(float, least_squares(residuals, (0.0, 0.0, 0.0), bounds=bounds).x))


def _slack(points: dict[int, LayerPoint]) -> float | None:
    for _, point in sorted(points.items(), reverse=True):
        if point.peak_bytes and point.reserved_bytes:
            return max(0.0, point.reserved_bytes / point.peak_bytes - 1.0)
    return None


LARGEST_SCALE = 12.0
"""Logarithm of the largest ratio of measured and predicted seconds."""


def with_host(device_seconds: float, host_seconds: float) -> float:
    """Seconds when host and device run side by side: the longer one, and more where both are nearly as long.

    The fourth-power mean stands for launches and kernels that vary: each waits for the other now and then.
    """
    seconds: float = (device_seconds**4 + host_seconds**4) ** 0.25
    return seconds


def _along(values: dict[int, float], shape: Callable[[int], float], size: int) -> tuple[float, bool]:
    """(value, guessed): through all points, as far from one to the next as the shape is; beyond them in its ratio.

    It never falls where neither the points nor the shape do.
    """
    if isinstance(size, np.ndarray):
        return _along_many(values, shape, size)
    if size in values:
        return values[size], False
    below = max((known for known in values if known < size), default=0)
    above = min((known for known in values if known > size), default=0)
    if not below or not above:
        end = below or above
        return values[end] * shape(size) / shape(end), True
    low, own, high = (math.log(shape(known)) for known in (below, size, above))
    # A shape that does not grow, as a host's, says nothing of the way; one that is higher between leads no farther.
    part = (own - low) / (high - low) if high > low else (size - below) / (above - below)
    part = min(1.0, max(0.0, part))
    return values[below] ** (1.0 - part) * values[above] ** part, False


def _along_many(
    values: dict[int, float], shape: Callable[[int], float], sizes: NDArray[np.int64]
) -> tuple[float, bool]:
    """The same of many sizes; True when one of them is a guess."""
    known = np.array(sorted(values))
    seconds = np.array([values[size] for size in known.tolist()])
    shapes = np.array([shape(size) for size in known.tolist()])
    own = as_array(shape(cast("int", sizes)))
    # The points around each size; at the ends one and the same.
    above = np.searchsorted(known, sizes)
    outside = (sizes < known[0]) | (sizes > known[-1])
    above = np.minimum(above, len(known) - 1)
    below = np.where(outside | (known[above] == sizes), above, above - 1)
    low, high = np.log(shapes[below]), np.log(shapes[above])
    alone, rises = below == above, high > low
    apart = np.where(alone, 1, known[above] - known[below])
    part = np.where(
        rises, (np.log(own) - low) / np.where(rises, high - low, 1.0), (sizes - known[below]) / apart
    )
    part = np.where(alone, 0.0, np.clip(part, 0.0, 1.0))
    between = seconds[below] ** (1.0 - part) * seconds[above] ** part
    found = np.where(outside, seconds[above] * own / shapes[above], between)
    return as_number(found), bool(outside.any())


def _share_moved(members: int) -> float:
    """Share of the bytes that each member of a ring sends in one pass."""
    return (members - 1) / members


def passes(operation: str, members: int) -> float:
    """Passes of a ring that an operation is made of, as shares of its bytes."""
    each = {"all-reduce": 2.0, "broadcast": 0.0, "reduce": 0.0}.get(operation, 1.0)
    return each * _share_moved(members) if each else 1.0


def _measured_members(points: Iterable[CurveKey]) -> dict[tuple[str, str], dict[int, frozenset[int]]]:
    """Numbers of members with a curve, by link and operation and, rising, by concurrent groups; an all-reduce may have
    its two halves."""
    numbers: dict[tuple[str, str], dict[int, frozenset[int]]] = {}
    none: frozenset[int] = frozenset()
    for link, operation, members, concurrent in sorted(points, key=lambda curve: curve.concurrent):
        own = numbers.setdefault((link, operation), {})
        own[concurrent] = own.get(concurrent, none) | {members}
    for link in {link for link, _ in numbers}:
        scatters, gathers = (numbers.get((link, half), {}) for half in HALVES)
        whole = numbers.get((link, "all-reduce"), {})
        reduced = {
            number: whole.get(number, none) | (scatters.get(number, none) & gathers.get(number, none))
            for number in sorted({*whole, *scatters})
        }
        numbers[link, "all-reduce"] = {number: known for number, known in reduced.items() if known}
    return numbers


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:.3g}"


def straight(values: dict[int, float]) -> Curve:
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


def _most_over(values: dict[float, float], most_bytes: float) -> float:
    """Most bytes over seconds of a curve as ``_logarithmic`` draws it: at a point, or where it rises like the size.

    A message of those bytes may travel with others: the seconds are the least of those of it and of all larger ones.
    """
    sizes = set(values)
    if len(sizes) > 1:
        from scipy.interpolate import PchipInterpolator

        xs = sorted(map(math.log, sizes))
        slope = PchipInterpolator(xs, [math.log(values[size]) for size in sorted(sizes)]).derivative()
        sizes |= {math.exp(x) for x in slope.solve(1.0, extrapolate=False) if math.isfinite(x)}
    curve = _logarithmic(values)
    rates, least = [], math.inf
    # Below its points a curve falls no faster than the size, above them it rises no faster.
    for size in sorted({*sizes, most_bytes}, reverse=True):
        least = min(least, curve(size)[0])
        if size <= most_bytes:
            rates.append(size / least)
    return max(rates)


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
