"""How well measured curves predict each of their points from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import mean

from planner.calibration.merge import link_name_key
from planner.calibration.values import Calibration, CurveError, LayerPoint, LinkPoint
from planner.cost.measured_curves import LayerCurves, LinkCurves

LEAST = 3
"""Points below which leaving one out tells nothing."""


def layer_errors(points: Iterable[LayerPoint]) -> Iterator[CurveError]:
    """Forward plus backward of every curve, left out micro-batch by micro-batch."""
    curves: dict[tuple[str, str, int], list[LayerPoint]] = {}
    for point in points:
        curves.setdefault((point.gpu, point.model, point.tp), []).append(point)
    for (gpu, model, tp), own in curves.items():
        found = [_layer_error(point, own) for point in own] if len(own) >= LEAST else []
        yield from _error(f"layers of {model} on {gpu}, tp {tp}", found)


def link_errors(points: Iterable[LinkPoint]) -> Iterator[CurveError]:
    """Every curve of a collective, left out size by size."""
    curves: dict[tuple[str, str, int], list[LinkPoint]] = {}
    for point in points:
        curves.setdefault((point.link, point.operation, point.members), []).append(point)
    for (link, operation, members), own in curves.items():
        found = [_link_error(point, own) for point in own] if len(own) >= LEAST else []
        yield from _error(f"{operation} of {members} over {link}", found)


def without_lonely(calibration: Calibration) -> Calibration:
    """The calibration without link curves of a single size, which tell neither latency nor rate."""
    sizes = Counter(
        (link_name_key(point.link), point.operation, point.members) for point in calibration.link_points
    )
    kept = (
        point
        for point in calibration.link_points
        if sizes[link_name_key(point.link), point.operation, point.members] > 1
    )
    return replace(calibration, link_points=tuple(kept))


def with_errors(calibration: Calibration, more: Iterable[CurveError] = ()) -> Calibration:
    """The calibration with the errors of all its curves, and some of constants, in place of older ones."""
    found = {error.curve: error for error in calibration.curve_errors}
    for source in (more, layer_errors(calibration.layers), link_errors(calibration.link_points)):
        found |= {error.curve: error for error in source}
    return replace(calibration, curve_errors=tuple(found.values()))


def _layer_error(point: LayerPoint, own: list[LayerPoint]) -> float:
    others = Calibration(layers=tuple(other for other in own if other is not point))
    times = LayerCurves(others).at(point.gpu, point.model, point.tp, point.micro_batch)
    assert times is not None
    measured = point.forward_seconds + point.backward_seconds
    return abs((times.forward_seconds + times.backward_seconds) / measured - 1.0)


def _link_error(point: LinkPoint, own: list[LinkPoint]) -> float:
    others = Calibration(link_points=tuple(other for other in own if other is not point))
    found = LinkCurves(others).seconds(point.link, point.operation, point.members, point.size_bytes)
    assert found is not None
    return abs(found[0] / point.seconds - 1.0)


def _error(curve: str, found: list[float]) -> Iterator[CurveError]:
    if found:
        yield CurveError(curve=curve, points=len(found), mean=mean(found), largest=max(found))
