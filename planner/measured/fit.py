"""Fits the constants of the cost model to measured runs.

Least squares on the logarithm of predicted over measured seconds, robust against outliers (soft L1), within bounds,
with a weak pull towards their values before the fit that decides only what the data leave open. Sources count alike up
to four times their number of runs. A constant that the runs say less about than the pull keeps that value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from planner.calibration.values import Calibration, Constant, Family, Link, Residual, Stack
from planner.errors import UsageError
from planner.measured.predictions import priced
from planner.measured.values import Run
from planner.runtimes.registry import REFERENCE

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
        return [_memory_error(run, calibration) for run in runs]

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


def _memory_error(run: Run, calibration: Calibration) -> float:
    predicted = priced(run, calibration)
    assert predicted is not None
    assert run.peak_memory_bytes is not None
    return log(predicted.peak_memory_bytes / run.peak_memory_bytes)


BOUNDS: dict[str, tuple[float, float]] = {
    "families.matmul_efficiency": (0.2, 0.98),
    "families.attention_efficiency": (0.1, 0.9),
    "families.memory_efficiency": (0.2, 0.92),
    "families.kernel_seconds": (1e-6, 3e-5),
    "families.launch_seconds": (1e-6, 3e-4),
    "families.link_efficiency": (0.2, 0.82),
    "stacks.host_factor": (0.1, 10.0),
    "stacks.overlap": (0.02, 0.98),
    "stacks.wire": (0.02, 1.0),
    "links.efficiency": (0.15, 0.95),
    "links.rail": (0.8, 1.0),
}
"""Smallest and largest value of each kind of constant; shares end where hardware does (NCCL, STREAM)."""

PULLS = {"families.launch_seconds": 20.0, "stacks.host_factor": 20.0, "families.kernel_seconds": 10.0}
"""Relative width of the pull towards the value before the fit; 5 for the others."""

BARE = Calibration(stacks={REFERENCE.name: Stack(host_factor=1.0)})
"""What the shipped constants were fitted from: nothing but the reference.

Without one, families, links and stacks could not be told apart.
"""

STARTS = {"families.launch_seconds": 1e-4, "links.efficiency": 0.4}
"""Where the search for a constant begins when not at its assumed value: where its slope shows."""

GUESSED = (
    "micro-batch",
    "interleaving",
    "global batch",
    "authors warn",
    "second iteration only",
    "formula is not stated",
    "full recomputation assumed",
    "read off a figure",
    "and attention kernel not stated",
)
"""Words of doubts that concern the plan or the measurement itself; such runs are predicted, never fitted to."""

_TYPES: dict[str, type[Family] | type[Stack] | type[Link]] = {
    "families": Family,
    "stacks": Stack,
    "links": Link,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant that is fitted."""

    section: str
    """families, stacks or links."""
    name: str
    """Of the family, stack or kind of link."""
    constant: str

    @property
    def dotted(self) -> str:
        """As in a calibration file."""
        return f"{self.section}.{self.name}.{self.constant}"

    @property
    def kind(self) -> str:
        """Key of ``BOUNDS``."""
        return f"{self.section}.{self.constant}"

    def value(self, base: Calibration) -> float:
        """Its value before the fit: what a calibration says, else what is assumed."""
        owner = {"families": base.family, "stacks": base.stack, "links": base.link}[self.section]
        return float(getattr(owner(self.name), self.constant))

    def start(self, base: Calibration) -> float:
        """Where the search for it begins."""
        known = {*base.families, *base.stacks, *base.links}
        return self.value(base) if self.name in known else STARTS.get(self.kind, self.value(base))

    @property
    def pull(self) -> float:
        """Relative width of the pull towards the value before the fit."""
        return PULLS.get(self.kind, 5.0)

    def concerns(self, run: Run) -> bool:
        """True when the prediction of a run depends on it."""
        if self.section == "families":
            return self.name in families_of(run)
        if self.section == "stacks":
            return self.name == run.plan.target
        return self.name in fabrics_of(run)


def certain(run: Run) -> bool:
    """True for a run whose step time and plan are stated in full."""
    return run.step_seconds is not None and not any(word in run.doubt for word in GUESSED)


def families_of(run: Run) -> frozenset[str]:
    """GPU families of the devices that a run uses."""
    used = {group.gpu for stage in run.plan.stages for group in stage.replicas}
    return frozenset(run.cluster.gpus[name].family for name in used)


def fabrics_of(run: Run) -> frozenset[str]:
    """Kinds of fabrics of a run's cluster."""
    return frozenset(fabric.kind for fabric in run.cluster.fabrics.values())


def parameters_of(runs: Sequence[Run]) -> Iterator[Parameter]:
    """Constants of every family, stack and fabric that a run touches."""
    owners = (
        ("families", {name for run in runs for name in families_of(run) if name}),
        ("stacks", {run.plan.target for run in runs}),
        ("links", {name for run in runs for name in fabrics_of(run)}),
    )
    for section, names in owners:
        for name in sorted(names):
            for field in fields(_TYPES[section]):
                parameter = Parameter(section, name, field.name)
                fixed = name == REFERENCE.name and field.name in ("host_factor", "wire")
                if parameter.kind in BOUNDS and not fixed:
                    yield parameter


def with_values(base: Calibration, values: dict[Parameter, float]) -> Calibration:
    """A calibration in which these constants have these values."""
    from dataclasses import replace

    found: dict[str, dict[str, dict[str, float]]] = {section: {} for section in _TYPES}
    for item, value in values.items():
        found[item.section].setdefault(item.name, {})[item.constant] = value
    families, stacks, links = (found[section].items() for section in ("families", "stacks", "links"))
    return replace(
        base,
        families={**base.families, **{name: replace(base.family(name), **new) for name, new in families}},
        stacks={**base.stacks, **{name: replace(base.stack(name), **new) for name, new in stacks}},
        links={**base.links, **{name: replace(base.link(name), **new) for name, new in links}},
    )


Vector = NDArray[np.float64]
Progress = Callable[[int, float], None]
"""Told after every round: rounds done, mean absolute error of the fitted runs."""

SCALE = 0.05
"""Error from which on a run counts as an outlier: further error weighs in proportion, not squared."""
FEWEST = 5
"""Runs that a family and stack need for an error bar of their own; measured peaks that a stack needs."""
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
