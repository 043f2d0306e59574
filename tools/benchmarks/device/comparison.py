"""Predicted next to measured, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from planner.calibration.file import load_calibration
from planner.measured.predictions import Prediction, predict
from planner.measured.table import load_table
from tools.benchmarks.device.results import Results

TIME_GOAL, MEMORY_GOAL = 0.05, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One configuration and, where the context is measured apart, what it is compared with."""

    prediction: Prediction
    spread: float | None
    """Of the measured steps; None when it was out of memory."""
    reserved_bytes: float | None


def lines(results: Results) -> list[Line]:
    """A line for every row that can be a run, with the calibration of the same folder."""
    table = load_table(results.rows)
    found = []
    for item in predict(table.runs, load_calibration(results.calibration)):
        trained = results.runs[item.run.id].trained
        found.append(
            Line(
                prediction=item,
                spread=None if trained is None else trained.spread,
                reserved_bytes=None if trained is None else trained.reserved_bytes,
            )
        )
    return found


def show(results: Results, limits: Iterable[tuple[str, int, int]], console: Console) -> None:
    """Print all lines, the errors' medians, and (model and recomputation, measured, predicted) limits."""
    found = lines(results)
    table = Table(title=f"Training on {results.gpu}: predicted against measured")
    table.add_column("configuration")
    for heading in (
        "step ms",
        "± %",
        "predicted",
        "error %",
        "peak MB",
        "predicted",
        "error %",
        "reserved MB",
    ):
        table.add_column(heading, justify="right")
    for line in found:
        item = line.prediction
        table.add_row(
            item.run.id.removeprefix(f"{results.gpu}-"),
            *_seconds(item, line.spread),
            *_bytes(item),
            _number(line.reserved_bytes, 1e6),
        )
    console.print(table)
    for what, errors, goal in (
        ("step time", [line.prediction.error for line in found], TIME_GOAL),
        ("peak memory", [line.prediction.memory_error for line in found], MEMORY_GOAL),
    ):
        console.print(f"{what}: {_summary([error for error in errors if error is not None], goal)}")
    for name, measured, predicted in limits:
        console.print(f"largest micro-batch of {name}: {measured} trains, {predicted} predicted")


def _seconds(item: Prediction, spread: float | None) -> tuple[str, ...]:
    measured = "out of memory" if not item.run.fits else _number(item.run.step_seconds, 1e-3)
    return (
        measured,
        _percent(spread),
        _number(item.predicted_seconds, 1e-3),
        _percent(item.error, signed=True),
    )


def _bytes(item: Prediction) -> tuple[str, ...]:
    memory = item.run.peak_memory_bytes
    error = _percent(item.memory_error, signed=True)
    if item.fits is False:
        error = f"{error} too large".strip()
    return _number(memory, 1e6), _number(item.predicted_bytes, 1e6), error


def _summary(errors: list[float], goal: float) -> str:
    if not errors:
        return "nothing measured"
    sizes = [abs(error) for error in errors]
    inside = sum(size <= goal for size in sizes)
    return (
        f"median error {median(sizes):.1%}, largest {max(sizes):.1%}, "
        f"{inside} of {len(sizes)} within the goal of {goal:.0%}"
    )


def _number(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:,.1f}"


def _percent(value: float | None, *, signed: bool = False) -> str:
    return "" if value is None else f"{100 * value:{'+' if signed else ''}.1f}"
