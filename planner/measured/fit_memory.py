"""Fits the memory constant of each stack to measured peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import numpy as np

from planner.calibration.values import Calibration, Constant
from planner.measured.predictions import priced
from planner.measured.values import Run

FEWEST = 5
"""Measured peaks that a stack needs."""
BOUNDS_BYTES = (0.3e9, 12e9)


def fit_memory(runs: Sequence[Run], base: Calibration) -> Calibration:
    """The calibration with ``runtime_bytes`` of every stack with enough measured peaks: least absolute log error."""
    fitted = base
    for stack in sorted({run.plan.target for run in runs}):
        measured = [run for run in runs if run.plan.target == stack and run.peak_memory_bytes]
        usable = [run for run in measured if priced(run, base) is not None]
        if len(usable) >= FEWEST:
            fitted = _fitted(stack, usable, fitted)
    return fitted


def _fitted(stack: str, runs: Sequence[Run], base: Calibration) -> Calibration:
    from scipy.optimize import minimize_scalar

    def with_runtime(runtime_bytes: float) -> Calibration:
        one = replace(base.stack(stack), runtime_bytes=runtime_bytes)
        return replace(base, stacks={**base.stacks, stack: one})

    def errors(logarithm: float) -> list[float]:
        calibration = with_runtime(exp(logarithm))
        return [_error(run, calibration) for run in runs]

    bounds = tuple(map(log, BOUNDS_BYTES))
    found = float(minimize_scalar(lambda x: sum(map(abs, errors(x))), bounds=bounds, method="bounded").x)
    slope = np.array(errors(found + 0.01)) - np.array(errors(found))
    left = float(np.quantile(np.abs(errors(found)), 0.6827))
    spread = left * 0.01 / max(1e-9, float(np.sqrt(np.sum(slope**2))))
    constant = Constant(
        name=f"stacks.{stack}.runtime_bytes",
        value=float(f"{exp(found):.3g}"),
        provenance="fitted",
        spread=float(f"{spread:.2g}"),
    )
    others = (item for item in base.constants if item.name != constant.name)
    return replace(with_runtime(constant.value), constants=(*others, constant))


def _error(run: Run, calibration: Calibration) -> float:
    predicted = priced(run, calibration)
    assert predicted is not None
    assert run.peak_memory_bytes is not None
    return log(predicted.peak_memory_bytes / run.peak_memory_bytes)
