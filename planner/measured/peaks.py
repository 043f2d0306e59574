"""Fits what a process holds beside its tensors to measured peaks of memory.

What the allocator holds of it where parameters come and go in units, ``unit_slack``, is told by peaks of what
allocators had taken, one kernel set at a time: there is a prior, and each source is one observation, the median of the
logarithms of its runs.

Context, libraries and buffers of collectives are of the driver and of NCCL more than of a framework: the logarithms of
``runtime_bytes`` of all kernel sets have a value in common, next to which each has a smaller part of its own, so that a
set that nobody has measured takes what the others have. Errors of peaks have the parts that those of step times have
(``planner.measured.fit``): a run's own, robust, and one that a source shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log, log1p, sqrt
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from planner.calibration.tables import import_layers_csv
from planner.calibration.values import Calibration, Constant, LayerPoint, Provenance
from planner.cost.estimate import Estimator
from planner.cost.memory import FRAGMENTS, MOST_CONTEXT
from planner.cost.values import Memory
from planner.errors import HetplanError, UsageError
from planner.measured.fit import (
    COMMON_ERROR,
    DOUBT_ERROR,
    FAR_OFF,
    OUTLIER,
    OWN_ERROR,
    TOLD,
    certain,
    first_of,
    kernels_of,
    robust_spread,
    robust_variance,
)
from planner.measured.predictions import predict
from planner.measured.priors import (
    KERNEL_SETS,
    OWN_RUNTIME,
    OWN_SLACK,
    RUNTIME,
    SLACK,
    Prior,
    owner_of,
    sharing,
)
from planner.measured.table import PUBLISHED
from planner.measured.values import Run
from planner.targets import target
from planner.units import bytes_from_gib

Vector = NDArray[np.float64]

BOUNDS_BYTES = (0.3e9, 12e9)
"""A process takes something, and not half of a device."""

ABOVE_DEVICE = 1.05
"""Share of a device's memory that no peak exceeds, with what catalogues round."""

ROUNDS = 30
"""Gauss-Newton steps at most."""

SETTLED = 1e-4
"""Step of the logarithms below which nothing is left to fit."""

NUDGE = 0.01
"""Step of a logarithm by which slopes are taken."""

LEAST_SLACK = 0.01
"""Part of its tensors' bytes that an allocator holds beyond them at least."""

ROOM = 0.9
"""Share of a device's memory up to which a peak says what an allocator holds when it has room."""

GUESSED = (
    "stands as ZeRO-3",
    "recomputation assumed",
    "read off a figure",
    "a lone device",
    "how memory was measured",
)
"""Words of doubts that concern what is held, or the peak itself: a lone device holds no buffers of collectives."""


@cache
def profiles() -> tuple[LayerPoint, ...]:
    """Published layers of a model whose runs are published too."""
    return import_layers_csv(PUBLISHED.with_name("opt350m_layers.csv"))


def fit_memory(runs: Sequence[Run], base: Calibration) -> Calibration:
    """The calibration with the most likely ``unit_slack`` and then ``runtime_bytes``, given measured peaks.

    Those of allocators tell the first, those of whole devices the second, where there are any. A kernel set of which
    ``base`` says how sure it is starts from that, the others from the prior, with part of the second in common. Layers
    whose profile is known are anchored to it, so that errors of their formula do not end up in the constants.
    """
    base = _with_slack(_slacks(runs, base), base)
    return _fitted(_peaks(runs, base), base)


def memory_spread(runs: Sequence[Run], base: Calibration) -> float:
    """How far off the peaks of sources are that were left out of the fit.

    The root of the mean square over sources of what holds 68 % of each, as if one more had that of ``base``.
    """
    slacks = _slacks(runs, base)
    measured = [run for run in runs if run.peak_memory_bytes]
    widths, priced = [base.memory_spread], dict[tuple[float, ...], list[_Peak]]()
    for source in sorted({run.source for run in measured}):
        others = _with_slack([each for each in slacks if each.source != source], base)
        known = tuple(others.framework(name).unit_slack for name in KERNEL_SETS)
        if known not in priced:
            priced[known] = _peaks(runs, others)
        constants = _fitted([peak for peak in priced[known] if peak.run.source != source], others)
        own = [run for run in measured if run.source == source]
        errors = [each.memory_error for each in predict(own, constants) if each.memory_error is not None]
        if errors:
            widths.append(robust_spread(np.log1p(errors)))
    return float(f"{sqrt(fmean(width**2 for width in widths)):.3g}")


def require_possible_peaks(runs: Sequence[Run], base: Calibration) -> None:
    """Raise UsageError for certain runs whose peaks no device holds, or are far below any prediction: another unit."""
    known = [run for run in runs if run.peak_memory_bytes and certain(run)]
    wrong = []
    for run, each in zip(known, predict(known, base), strict=True):
        used = {group.gpu for stage in run.plan.stages for group in stage.replicas}
        most = bytes_from_gib(max(run.cluster.gpus[gpu].memory_gib for gpu in used))
        peak = run.peak_memory_bytes or 0.0
        if peak > ABOVE_DEVICE * most:
            wrong.append(f"{run.id} ({peak:.4g} bytes of {most:.4g})")
        elif each.memory_error is not None and each.memory_error + 1.0 > FAR_OFF:
            wrong.append(
                f"{run.id} ({peak:.4g} bytes, predicted {each.memory_error + 1.0:.3g} times as many)"
            )
    if wrong:
        raise UsageError(
            f"peaks of memory that no run can have: {first_of(wrong)}", hint="peak_memory_bytes is in bytes"
        )


def far_peaks(runs: Sequence[Run], calibration: Calibration, bar: float) -> Iterator[str]:
    """A warning of certain runs whose peaks the constants miss by several of these error bars, if there are any."""
    known = (run for run in runs if run.peak_memory_bytes and certain(run))
    far = [
        f"{each.run.id} (predicted {each.memory_error + 1:.3g} times it)"
        for each in predict(list(known), calibration)
        if each.memory_error is not None and abs(log1p(each.memory_error)) > OUTLIER * bar
    ]
    if far:
        yield f"peaks off by more than {OUTLIER:.0f} error bars after the fit: {first_of(far)}; check peak_memory_bytes"


@dataclass(frozen=True, slots=True)
class _Peak:
    """A run with a measured peak of a whole device."""

    run: Run
    kernels: str
    measured: float
    """Bytes."""
    held: tuple[Memory, ...]
    """What each device would hold under a process that takes nothing for itself."""

    @property
    def most_bytes(self) -> float:
        """The most that a process takes on any of the devices."""
        return MOST_CONTEXT * max(memory.capacity_bytes for memory in self.held)

    def error(self, runtime_bytes: float) -> float:
        """Logarithm of predicted over measured bytes of the fullest device."""
        return log(max(_used(memory, runtime_bytes) for memory in self.held) / self.measured)


def _used(memory: Memory, runtime_bytes: float) -> float:
    """Bytes in use when a process takes these: what the allocator holds beside tensors shrinks to the room left."""
    tensors = (
        memory.used_bytes - memory.slack_bytes + min(runtime_bytes, MOST_CONTEXT * memory.capacity_bytes)
    )
    return max(tensors, min(tensors + memory.slack_bytes, memory.capacity_bytes - memory.reserve_bytes))


@dataclass(frozen=True, slots=True)
class _Slack:
    """What the allocator of a run held beyond its tensors."""

    kernels: str
    source: str
    logarithm: float
    """Of its part of these."""


def _slacks(runs: Sequence[Run], base: Calibration) -> list[_Slack]:
    """Of runs whose allocator was measured and had room, and in which parameters come and go in units."""
    found = []
    for run in runs:
        in_units = target(run.plan.target).by_units
        if not run.peak_memory_bytes or run.peak_memory_of != "reserved" or not in_units:
            continue
        with suppress(HetplanError):
            estimator = Estimator(run.cluster, run.model, base)
            stages = estimator.memories(run.plan, estimator.price(run.plan))
            fullest = max((memory for stage in stages for memory in stage), key=lambda each: each.used_bytes)
            if run.peak_memory_bytes <= ROOM * fullest.capacity_bytes:
                tensors = fullest.used_bytes - fullest.runtime_bytes
                part = run.peak_memory_bytes / tensors - 1.0 - FRAGMENTS
                found.append(_Slack(owner_of(kernels_of(run)), run.source, log(max(part, LEAST_SLACK))))
    return found


def _with_slack(slacks: Sequence[_Slack], base: Calibration) -> Calibration:
    """The most likely ``unit_slack`` of each kernel set: the mean of prior and sources by their precision."""
    said = {item.name: item for item in base.constants if item.spread is not None}
    frameworks, constants = dict(base.frameworks), {item.name: item for item in base.constants}
    for kernels in sorted({each.kernels for each in slacks}):
        before = said.get(_name(kernels, "unit_slack"))
        start = SLACK if before is None else Prior(before.value, before.spread or 0.0)
        sources: dict[str, list[float]] = {}
        for each in slacks:
            if each.kernels == kernels:
                sources.setdefault(each.source, []).append(each.logarithm)
        values = [log(start.value), *(median(own) for own in sources.values())]
        weights = [start.spread**-2, *(OWN_SLACK**-2 for _ in sources)]
        value = float(f"{exp(np.average(values, weights=weights)):.3g}")
        spread = float(f"{sum(weights) ** -0.5:.2g}")
        for name in sharing(kernels):
            frameworks[name] = replace(base.framework(name), unit_slack=value)
            own = _name(name, "unit_slack")
            constants[own] = Constant(name=own, value=value, provenance="fitted", spread=spread)
    return replace(base, frameworks=frameworks, constants=tuple(constants.values())) if slacks else base


def _peaks(runs: Sequence[Run], base: Calibration) -> list[_Peak]:
    """Those that can be priced; peaks of tensors alone say nothing of what else a process holds."""
    found = []
    for run in runs:
        if run.peak_memory_bytes and run.peak_memory_of == "device":
            kernels = owner_of(kernels_of(run))
            bare = replace(_with(base, kernels, 0.0), layers=base.layers or profiles())
            with suppress(HetplanError):
                estimator = Estimator(run.cluster, run.model, bare)
                stages = estimator.memories(run.plan, estimator.price(run.plan))
                held = tuple(memory for stage in stages for memory in stage)
                found.append(_Peak(run, kernels, run.peak_memory_bytes, held))
    return found


def _name(kernels: str, constant: str = "runtime_bytes") -> str:
    return f"frameworks.{kernels}.{constant}"


def _fitted(peaks: Sequence[_Peak], base: Calibration) -> Calibration:
    if not peaks:
        return base
    said = {item.name: item for item in base.constants if item.spread is not None}
    touched = {peak.kernels for peak in peaks}
    # Kernel sets that share a value tell each other; of others those with peaks alone change.
    names = sorted(touched | {name for name in map(owner_of, KERNEL_SETS) if _name(name) not in said})
    before, covariance = _prior(names, said)
    values, after = _most_likely(peaks, names, before, covariance)
    fitted, constants = base, []
    for name, value, now, spread in zip(names, values, after, np.sqrt(np.diag(covariance)), strict=True):
        constant = Constant(
            name=_name(name),
            value=float(f"{exp(value):.3g}"),
            provenance="fitted" if name in touched and now < TOLD * spread else _known(name, said),
            spread=float(f"{now:.2g}"),
        )
        constants += [replace(constant, name=_name(each)) for each in sharing(name)]
        fitted = _with(fitted, name, constant.value)
    changed = {item.name for item in constants}
    others = (item for item in base.constants if item.name not in changed)
    return replace(fitted, constants=(*others, *constants))


def _known(kernels: str, said: dict[str, Constant]) -> Provenance:
    """What a constant was before peaks that hardly tell it."""
    item = said.get(_name(kernels))
    return "assumed" if item is None else item.provenance


def _with(base: Calibration, kernels: str, runtime_bytes: float) -> Calibration:
    changed = {name: replace(base.framework(name), runtime_bytes=runtime_bytes) for name in sharing(kernels)}
    return replace(base, frameworks={**base.frameworks, **changed})


def _prior(names: Sequence[str], said: dict[str, Constant]) -> tuple[Vector, Vector]:
    """Logarithms before the fit, [kernel set], and their covariance."""
    known = [said.get(_name(name)) for name in names]
    means = [log(RUNTIME.value if item is None else item.value) for item in known]
    new = np.array([item is None for item in known], dtype=float)
    own = [OWN_RUNTIME if item is None else item.spread or 0.0 for item in known]
    return np.array(means), RUNTIME.spread**2 * np.outer(new, new) + np.diag(np.square(own))


def _most_likely(
    peaks: Sequence[_Peak], names: Sequence[str], before: Vector, covariance: Vector
) -> tuple[Vector, Vector]:
    """Logarithms, [kernel set], and their standard errors: Gauss-Newton steps with robust weights."""
    sources = np.array([peak.run.source for peak in peaks])
    doubts = np.array([DOUBT_ERROR * any(word in peak.run.doubt for word in GUESSED) for peak in peaks])
    owners = np.array([names.index(peak.kernels) for peak in peaks])
    inverse = np.linalg.inv(covariance)
    # Beyond what the largest device gives a process nothing changes.
    most = min(BOUNDS_BYTES[1], max(peak.most_bytes for peak in peaks))
    low, high = log(BOUNDS_BYTES[0]), log(most)

    def errors(values: Vector) -> Vector:
        return np.array([peak.error(exp(values[owner])) for peak, owner in zip(peaks, owners, strict=True)])

    values, curvature = before, inverse
    common = np.zeros(len(peaks))
    for _ in range(ROUNDS):
        found = errors(values)
        slopes = (found - errors(values - NUDGE)) / NUDGE
        own = robust_variance(OWN_ERROR, found - common) + doubts**2
        curvature, pull = inverse.copy(), inverse @ (before - values)
        for source in sorted(set(sources)):
            rows = np.flatnonzero(sources == source)
            shared = float(robust_variance(COMMON_ERROR, common[rows[:1]])[0] + max(doubts[rows]) ** 2)
            weights = np.linalg.inv(np.diag(own[rows]) + shared)
            design = np.zeros((len(rows), len(names)))
            design[np.arange(len(rows)), owners[rows]] = slopes[rows]
            curvature += design.T @ weights @ design
            pull -= design.T @ weights @ found[rows]
            common[rows] = shared * float(np.sum(weights @ found[rows]))
        moved = np.clip(values + np.linalg.solve(curvature, pull), low, high) - values
        values = values + moved
        if np.max(np.abs(moved)) < SETTLED:
            break
    return values, np.sqrt(np.diag(np.linalg.inv(curvature)))
