"""What was written into a calibration file: its curves by name, each with its points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from rich.console import Group

from planner.calibration.values import Calibration
from planner.report.json_document import Head
from planner.report.layout import bullets, section
from planner.report.numbers import count

SHOWN = 12
"""Curves that are listed by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateDocument(Head):
    """The answer of ``calibrate import`` and of ``calibrate merge``."""

    file: str
    """Calibration file that was written."""
    layer_points: int
    """Measured layers in it."""
    link_points: int
    """Measured collectives and sends in it."""


def calibrate_document(
    calibration: Calibration, path: PurePath, command: str = "calibrate import"
) -> CalibrateDocument:
    """The answer of ``calibrate import`` and of ``calibrate merge``."""
    return CalibrateDocument(
        command=command,
        file=str(path),
        layer_points=len(calibration.layers),
        link_points=len(calibration.link_points),
    )


def calibrated_section(calibration: Calibration, path: Path) -> Group:
    """The measured curves by name, each with its points."""
    points = len(calibration.layers) + len(calibration.link_points)
    curves = list(_curve_lines(calibration))
    more = [f"and {count(len(curves) - SHOWN, 'more curve')}"] if len(curves) > SHOWN else []
    return section(f"Wrote {count(points, 'measured point')} to {path}", bullets([*curves[:SHOWN], *more]))


def _curve_lines(calibration: Calibration) -> Iterator[str]:
    layers = Counter((point.gpu, point.model, point.tp) for point in calibration.layers)
    for (gpu, model, tp), sizes in layers.items():
        yield f"layers of {model} on {gpu}, tp {tp}: {count(sizes, 'micro-batch', 'micro-batches')}"
    links = Counter((point.link, point.operation, point.members) for point in calibration.link_points)
    for (link, operation, members), sizes in links.items():
        yield f"{operation} of {count(members, 'device')} over {link}: {count(sizes, 'size')}"
