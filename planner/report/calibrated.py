"""What was written into a calibration file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group

from planner.calibration.values import Calibration
from planner.report.layout import bullets, section
from planner.report.numbers import count

SHOWN = 12
"""Curves that are listed by name."""


def calibrated_section(calibration: Calibration, path: Path) -> Group:
    """The measured curves by name, each with its points."""
    points = len(calibration.layers) + len(calibration.link_points)
    curves = list(_curves(calibration))
    more = [f"and {count(len(curves) - SHOWN, 'more curve')}"] if len(curves) > SHOWN else []
    return section(f"Wrote {count(points, 'measured point')} to {path}", bullets([*curves[:SHOWN], *more]))


def _curves(calibration: Calibration) -> Iterator[str]:
    layers = Counter((point.gpu, point.model, point.tp) for point in calibration.layers)
    for (gpu, model, tp), sizes in layers.items():
        yield f"layers of {model} on {gpu}, tp {tp}: {count(sizes, 'micro-batch', 'micro-batches')}"
    links = Counter((point.link, point.operation, point.members) for point in calibration.link_points)
    for (link, operation, members), sizes in links.items():
        yield f"{operation} of {count(members, 'device')} over {link}: {count(sizes, 'size')}"
