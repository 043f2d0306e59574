"""Predicted against measured step times as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import OutputError, UsageError
from planner.measured.predictions import Prediction, errors_of
from planner.report.numbers import count, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = 0.10
"""Relative error of the shaded band."""
MARKERS = "osD^v<>Phd"
COLOURS = tuple(f"C{index}" for index in range(10))


def require_matplotlib() -> None:
    """Raise UsageError when there is nothing to draw with."""
    try:
        import matplotlib.backends.backend_agg  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib", hint="pip install 'hetplan[plot]'") from None


def write_plot(predictions: Sequence[Prediction], path: Path) -> None:
    """Write the picture whole or not at all; raises OutputError, and UsageError without matplotlib."""
    require_matplotlib()
    content = BytesIO()
    _figure(predictions).savefig(content, format="png", dpi=150, bbox_inches="tight")
    _replace(path, content.getvalue())


def _figure(predictions: Sequence[Prediction]) -> Figure:
    """Log-log axes with one mark per run, the diagonal and the band around it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", aspect="equal")
    axes.set(xlabel="measured step (s)", ylabel="predicted step (s)")
    _draw_runs(axes, [entry for entry in predictions if entry.error is not None])
    return figure


def _draw_runs(axes: Axes, timed: Sequence[Prediction]) -> None:
    for index, source in enumerate(sorted({entry.run.source for entry in timed})):
        found = [entry for entry in timed if entry.run.source == source]
        axes.plot(
            [entry.run.step_seconds or 0.0 for entry in found],
            [entry.predicted_seconds or 0.0 for entry in found],
            linestyle="none",
            marker=MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markersize=4,
            alpha=0.7,
            label=_label(source, found),
        )
    if timed:
        _draw_diagonal(axes, timed)
        axes.legend(
            loc="center left",
            bbox_to_anchor=(1.02, 0.5),
            fontsize="small",
            frameon=False,
            title="source: mean error",
        )


def _label(source: str, found: Sequence[Prediction]) -> str:
    errors = errors_of([entry.error for entry in found if entry.error is not None])
    return f"{source}: {percent(errors.mean)} ({count(errors.runs, 'run')})"


def _draw_diagonal(axes: Axes, timed: Sequence[Prediction]) -> None:
    seconds = [
        value for entry in timed for value in (entry.run.step_seconds, entry.predicted_seconds) if value
    ]
    ends = (min(seconds) / 1.5, max(seconds) * 1.5)
    axes.plot(ends, ends, color="0.3", linewidth=1, label="predicted as measured")
    low, high = ([end * factor for end in ends] for factor in (1 - BAND, 1 + BAND))
    axes.fill_between(ends, low, high, color="0.5", alpha=0.2, linewidth=0, label=f"±{percent(BAND)}")
    axes.set(xlim=ends, ylim=ends)


def _replace(path: Path, content: bytes) -> None:
    """Put the content where the path leads; a reader sees the old file or the new one."""
    real = Path(os.path.realpath(path))
    part = real.with_name(f".{real.name[:200]}.{os.getpid()}.part")
    try:
        if real.exists() and not real.is_file():
            real.write_bytes(content)  # a pipe is never replaced
            return
        part.write_bytes(content)
        part.replace(real)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}", hint="name a file in a folder of yours"
        ) from None
    finally:
        part.unlink(missing_ok=True)
