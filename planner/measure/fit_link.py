"""Latency and bandwidth of a link from a curve of a collective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from planner.calibration.values import LinkPoint
from planner.described import told


@told(names={"error": "mean_error"})
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """``seconds = latency + size / rate`` of one operation."""

    link: str
    """``node:GPU``, or the name of a fabric."""
    operation: str
    """The collective, or send."""
    members: int
    """Devices of the group."""
    latency_seconds: float
    """Time at size 0 of a line through the points."""
    bytes_per_second: float
    """Bytes of the whole tensor a second; infinite when the time does not grow with the size."""
    error: float
    """Mean relative error of the line at the points."""


def fit_links(points: Iterable[LinkPoint]) -> Iterator[LinkFit]:
    """A line through each curve with two sizes at least."""
    curves: dict[tuple[str, str, int], list[LinkPoint]] = {}
    for point in points:
        curves.setdefault((point.link, point.operation, point.members), []).append(point)
    for (link, operation, members), own in curves.items():
        if len(own) >= 2:
            latency, slope = line([point.size_bytes for point in own], [point.seconds for point in own])
            yield LinkFit(
                link=link,
                operation=operation,
                members=members,
                latency_seconds=latency,
                bytes_per_second=1.0 / slope if slope > 0 else float("inf"),
                error=mean(abs((latency + slope * point.size_bytes) / point.seconds - 1.0) for point in own),
            )


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
