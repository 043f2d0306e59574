"""Fits the constants of the cost model to measured runs.

Least squares on the logarithm of predicted over measured seconds, robust against outliers (soft L1), within bounds,
with a weak pull towards their values before the fit that decides only what the data leave open. Sources count alike up
to four times their number of runs. A constant that the runs say less about than the pull keeps that value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from planner.calibration.values import Calibration, Constant, Residual
from planner.errors import UsageError
from planner.measured.parameters import BOUNDS, certain, families_of, parameters_of, with_values
from planner.measured.predictions import priced
from planner.measured.values import Run

Vector = NDArray[np.float64]
Progress = Callable[[int, float], None]
"""Told after every round: rounds done, mean absolute error of the fitted runs."""

SCALE = 0.05
"""Error from which on a run counts as an outlier: further error weighs in proportion, not squared."""
FEWEST = 5
"""Runs that a family and stack need for an error bar of their own."""
STEP = 1e-3
"""Relative step of the forward differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants that were fitted, and how well."""

    calibration: Calibration
    runs: tuple[Run, ...]
    """The runs that were fitted to."""
    errors: tuple[float, ...]
    """Logarithm of predicted over measured seconds, [run]."""
    left_out_errors: tuple[float, ...]
    """The same when the run's group (source, model) is left out of the fit, by one Gauss-Newton step, [run]."""


def fit(runs: Sequence[Run], base: Calibration, progress: Progress | None = None) -> Fit:
    """Fit every constant that the runs tell; raises UsageError without a run that can be fitted to."""
    from scipy.optimize import least_squares

    problem = _Problem(runs, base, progress)
    lower, upper = (np.log([BOUNDS[item.kind][side] for item in problem.parameters]) for side in (0, 1))
    found = least_squares(
        problem.residuals,
        np.clip(np.log([item.start(base) for item in problem.parameters]), lower + 1e-6, upper - 1e-6),
        jac=problem.jacobian,
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=SCALE,
        x_scale="jac",
        max_nfev=200,
        xtol=1e-6,
        ftol=1e-7,
    )
    return problem.fitted(found.x)


class _Problem:
    """Residuals of a set of runs as functions of the logarithms of the constants."""

    def __init__(self, runs: Sequence[Run], base: Calibration, progress: Progress | None) -> None:
        self.base = base
        self.progress = progress
        self.rounds = 0
        self.runs = [run for run in runs if certain(run) and priced(run, base) is not None]
        if len(self.runs) < 3:
            raise UsageError(
                f"{len(self.runs)} of {len(runs)} runs can be fitted to, expected at least 3",
                hint="runs need a step time, a plan that their target allows, and no doubt about the plan",
            )
        self.parameters = tuple(parameters_of(self.runs))
        self.before: Vector = np.log([item.value(base) for item in self.parameters])
        self.pulls: Vector = np.array([item.pull for item in self.parameters])
        self.concerned = [
            [index for index, run in enumerate(self.runs) if item.concerns(run)] for item in self.parameters
        ]
        counts = Counter(run.source for run in self.runs)
        share = len(self.runs) / len(counts)
        self.weights: Vector = np.array([sqrt(min(4.0, share / counts[run.source])) for run in self.runs])

    def residuals(self, values: Vector) -> Vector:
        """Weighted errors of the runs, then the pulls, [run + constant]."""
        errors = self.errors(self.calibration(values))
        self.rounds += 1
        if self.progress is not None:
            self.progress(self.rounds, float(np.mean(np.abs(errors))))
        return np.concatenate([self.weights * errors, (values - self.before) / self.pulls])

    def jacobian(self, values: Vector) -> Vector:
        """Forward differences; a run is priced again only for the constants it depends on."""
        return np.vstack([self.weights[:, None] * self._slopes(values), np.diag(1.0 / self.pulls)])

    def errors(self, calibration: Calibration) -> Vector:
        """Logarithm of predicted over measured seconds, [run]."""
        return np.array([_error(run, calibration) for run in self.runs])

    def calibration(self, values: Vector) -> Calibration:
        """The constants as a calibration."""
        return with_values(self.base, dict(zip(self.parameters, map(float, np.exp(values)), strict=True)))

    def fitted(self, values: Vector) -> Fit:
        """The result; constants that the runs hardly tell keep their values before the fit."""
        slopes = self.weights[:, None] * self._slopes(values)
        told = np.einsum("ij,ij->j", slopes, slopes) > 1.0 / self.pulls**2
        kept = {
            item: float(f"{exp(value):.4g}")
            for item, value, known in zip(self.parameters, values, told, strict=True)
            if known
        }
        calibration = with_values(self.base, kept)
        errors = self.errors(calibration)
        left_out = errors + self._left_out(slopes, errors)
        spreads = self._standard_errors(slopes, errors)
        constants = tuple(
            Constant(name=item.dotted, value=kept[item], provenance="fitted", spread=float(f"{spread:.2g}"))
            for item, spread in zip(self.parameters, spreads, strict=True)
            if item in kept
        )
        residuals = tuple(_residuals(self.runs, errors, self.base.default_spread))
        return Fit(
            calibration=replace(
                calibration,
                constants=_united(self.base.constants, constants),
                residuals=_joined(self.base.residuals, residuals),
            ),
            runs=tuple(self.runs),
            errors=tuple(map(float, errors)),
            left_out_errors=tuple(map(float, left_out)),
        )

    def _slopes(self, values: Vector) -> Vector:
        base = self.errors(self.calibration(values))
        matrix = np.zeros((len(self.runs), len(values)))
        for column, indices in enumerate(self.concerned):
            moved = values.copy()
            moved[column] += STEP
            shifted = self.calibration(moved)
            for index in indices:
                matrix[index, column] = (_error(self.runs[index], shifted) - base[index]) / STEP
        return matrix

    def _standard_errors(self, slopes: Vector, errors: Vector) -> Vector:
        """Relative standard error of each constant: the curvature of the fit times its robust residual."""
        curvature = slopes.T @ slopes + np.diag(1.0 / self.pulls**2)
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(curvature))) * robust_spread(self.weights * errors))

    def _left_out(self, slopes: Vector, errors: Vector) -> Vector:
        """How far the errors of each group move when it is left out: one Gauss-Newton step without it."""
        weighted = self.weights * errors
        robust = 1.0 / np.sqrt(1.0 + (weighted / SCALE) ** 2)
        whole = slopes.T @ (robust[:, None] * slopes) + np.diag(1.0 / self.pulls**2)
        moved = np.zeros_like(errors)
        groups = [(run.source, run.model.name) for run in self.runs]
        for group in set(groups):
            own = np.array([item == group for item in groups])
            rows = slopes[own]
            without = whole - rows.T @ (robust[own, None] * rows)
            step = np.linalg.lstsq(without, rows.T @ (robust[own] * weighted[own]), rcond=None)[0]
            moved[own] = (rows @ step) / self.weights[own]
        return moved


def _error(run: Run, calibration: Calibration) -> float:
    predicted = priced(run, calibration)
    assert predicted is not None
    assert run.step_seconds is not None
    return log(predicted.step_seconds / run.step_seconds)


def _residuals(runs: Sequence[Run], errors: Vector, default: float) -> Iterator[Residual]:
    found: dict[tuple[str, str], list[float]] = {}
    for run, error in zip(runs, errors, strict=True):
        for family in families_of(run):
            found.setdefault((family, run.plan.target), []).append(float(error))
    for (family, stack), values in sorted(found.items()):
        if family and len(values) >= FEWEST:
            spread = _cautious(robust_spread(np.array(values)), len(values), default)
            yield Residual(family=family, stack=stack, rows=len(values), spread=float(f"{spread:.3g}"))


def _cautious(spread: float, runs: int, default: float) -> float:
    """As if two more runs had been off by the default: few runs do not prove a small error."""
    return sqrt((runs * spread**2 + 2 * default**2) / (runs + 2))


def _united(before: Sequence[Constant], now: Sequence[Constant]) -> tuple[Constant, ...]:
    """Constants of both, the later ones winning."""
    return tuple({item.name: item for item in (*before, *now)}.values())


def _joined(before: Sequence[Residual], now: Sequence[Residual]) -> tuple[Residual, ...]:
    return tuple({(item.family, item.stack): item for item in (*before, *now)}.values())


def robust_spread(errors: Vector) -> float:
    """Half width that holds 68 % of the errors."""
    return float(np.quantile(np.abs(errors), 0.6827))
