"""``python -m tools.benchmarks.device``: calibrate a device, train on it, compare with the predictions."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from planner.errors import HetplanError
from planner.measure.backend import Backend, open_backend
from planner.measure.resume import facts_of
from tools.benchmarks.device.cases import Series, series_of
from tools.benchmarks.device.comparison import show
from tools.benchmarks.device.measuring import Clock, calibrate, find_limits, predicted_limits, train_all
from tools.benchmarks.device.results import Results

CONSOLE = Console(width=150)
CALIBRATION_SHARE = 0.7
"""Of the time: training has the rest."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Settings that would move the peaks."""


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.device", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is one")
    parser.add_argument("--configurations", choices=("small", "full"), default="full")
    parser.add_argument("--minutes", type=float, default=10.0, help="end after this time (10)")
    parser.add_argument("-o", "--output", type=Path, default=Path("run/device"), help="folder (run/device)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure what the folder does not have yet, then print the table; Ctrl-C keeps what is there."""
    asked = options(arguments)
    for name in ALLOCATOR:
        if os.environ.get(name):
            raise SystemExit(f"{name}={os.environ[name]}: unset it, peaks are measured with torch's defaults")
    backend = opened(asked.device)
    series = series_of(backend.kind, asked.configurations)
    results = Results(asked.output, backend.name, facts_of(backend, None, ""))
    results.load()
    begin = time.monotonic()
    try:
        done = run(backend, series, results, 60 * asked.minutes)
    except KeyboardInterrupt:
        done = False
    CONSOLE.print(f"{time.monotonic() - begin:.0f} s", style="dim")
    if results.runs:
        try:
            show(results, predicted_limits(series, results), CONSOLE)
        except HetplanError as error:  # as after a calibration that ended before its first product
            CONSOLE.print(f"no predictions: {error}")
    if not done:
        CONSOLE.print("not everything is measured: the same command goes on")
    for line in backend.load():
        CONSOLE.print(f"other work: {line}")


def opened(asked: str | None) -> Backend:
    """The device; a CPU works with one thread and counts its own time, so that other work disturbs little."""
    backend = open_backend(asked)
    if backend.kind == "cuda":
        return backend
    torch.set_num_threads(1)
    return replace(
        backend, clock=time.process_time, facts={**backend.facts, "threads": "1", "clock": "process"}
    )


def run(backend: Backend, series: tuple[Series, ...], results: Results, seconds: float) -> bool:
    """Calibrate, train, find the limits; False when time ran out."""
    begin = time.monotonic()

    def tell(what: str) -> None:
        CONSOLE.print(f"{time.monotonic() - begin:6.1f} s  {what}", style="dim", highlight=False)

    calibrate(backend, series, results, Clock(deadline=begin + CALIBRATION_SHARE * seconds), tell)
    clock = Clock(deadline=begin + seconds)
    return train_all(backend, series, results, clock, tell) and find_limits(
        backend, series, results, clock, tell
    )


if __name__ == "__main__":
    main()
