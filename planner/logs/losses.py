"""The losses of runs, and the curve of the loss by steps and batch that they tell.

Runs of one model on one data set, each with a batch of its own, follow L = floor + scale x s^-exponent, with s the
steps that another batch would have taken to the same loss (``planner/cost/convergence.py``). Runs with several batches
tell the critical batch too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from scipy.optimize import least_squares

from planner.errors import UsageError
from planner.logs.reading import log_lines
from planner.model.spec import ConvergenceSpec, LossCurveSpec
from planner.ranges import LOSS

_VALUE = r"([0-9.]{1,30}(?:[eE][+-]?\d{1,3})?)"
KNOWN = (
    ("hetplan's example", re.compile(rf"\bstep (\d{{1,12}}) loss {_VALUE} seconds ")),
    ("Megatron", re.compile(rf"\biteration\s+(\d{{1,12}})/\s*\d{{1,12}} \|.*? lm loss: {_VALUE} \|")),
    ("DeepSpeed", re.compile(rf"\bsteps: (\d{{1,12}}) loss: {_VALUE} ")),
    ("torchtitan", re.compile(rf"(?<!validate )\bstep: +(\d{{1,12}}) +loss: +{_VALUE}(?!\S)")),
    ("nanoGPT", re.compile(rf"\biter (\d{{1,12}}): loss {_VALUE}, time ")),
    ("LitGPT", re.compile(rf"\biter \d{{1,12}} (?:\| )?step (\d{{1,12}})\b.*? loss train: {_VALUE},")),
)
"""Who prints losses with their steps, and how; the first group is the step."""
_BATCH = (
    re.compile(r"\bjob ranks \d{1,7} global_batch (\d{1,9})(?!\S)"),
    re.compile(r" global batch size:\s+(\d{1,9}) \|"),
    re.compile(r"\btrain_batch_size \.{4,} (\d{1,9})\s*$"),
)

BEGINNING = 20
"""The first one of so many parts of a run does not count: learning rates rise, and no curve holds yet."""
FEWEST = 50
"""Losses of a run that a curve needs behind its beginning."""
BINS = 40
"""Means of losses, at equal distances of the logarithm of the step, to which the curve is fitted."""
CLEAR = 5.0
"""The loss has to fall by so many times the error of the means."""
FLATTEST, STEEPEST = 0.02, 3.0
"""Exponents that are looked at."""
WIDEST = math.log(5.0)
"""Error of the logarithm of a critical batch from which on runs do not tell it."""
APART = 1.9
"""The largest batch over the smallest from which on runs may tell the critical batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The losses of a run."""

    file: str
    """Its log."""
    source: str
    """Who printed it."""
    batch: int | None
    """Sequences of a step, where the log says it."""
    points: tuple[tuple[int, float], ...]
    """(step, loss) in the order of steps, from 1 on."""

    @property
    def last(self) -> int:
        """The last step."""
        return self.points[-1][0] if self.points else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRun:
    """What a run gave to the fit."""

    file: str
    """Its log."""
    source: str
    """Who printed it."""
    batch: int
    """Sequences of a step."""
    losses: int
    """Losses that counted."""
    steps: int
    """Its last step."""
    last_loss: float
    """Mean of its last losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFit:
    """The curve that runs follow."""

    runs: tuple[FittedRun, ...]
    """The runs."""
    convergence: ConvergenceSpec
    """What stands in the model file then."""
    residual: float
    """Root mean square distance of the averaged losses from the curve, in nats."""
    told: bool
    """Whether the runs determine the critical batch."""


def read_losses(path: Path) -> Losses:
    """The losses of a log; raises UsageError for one that has none, or whose batch changes."""
    found: dict[str, dict[int, float]] = {source: {} for source, _ in KNOWN}
    batches: set[int] = set()
    for line in log_lines(path):
        for source, pattern in KNOWN:
            for step, value in pattern.findall(line):
                loss = LOSS.number(value)
                if loss is not None:
                    found[source][int(step)] = loss
        batches.update(int(match[1]) for pattern in _BATCH if (match := pattern.search(line)))
    source, points = max(found.items(), key=lambda each: len(each[1]))
    if not points:
        names = ", ".join(name for name, _ in KNOWN[:-1])
        raise UsageError(
            f"{path}: has no losses with their steps, expected lines of {names} or {KNOWN[-1][0]}"
        )
    if len(batches) > 1:
        raise UsageError(
            f"{path}: the global batch changes from {min(batches)} to {max(batches)}, expected one batch in a run"
        )
    # Some count from 0.
    first = 1 if 0 in points else 0
    return Losses(
        file=str(path),
        source=source,
        batch=batches.pop() if batches else None,
        points=tuple(sorted((step + first, loss) for step, loss in points.items())),
    )


@dataclass(frozen=True, slots=True)
class _Means:
    """Means of losses of all runs, one entry each."""

    steps: np.ndarray
    losses: np.ndarray
    errors: np.ndarray
    """Standard errors of the means."""
    tokens: np.ndarray
    """Tokens of a step."""


def fit_losses(runs: Sequence[tuple[Losses, int]], sequence_tokens: float) -> LossFit:
    """The curve of runs with their batches; raises UsageError for a run that is too short to tell one."""
    parts = [_means(losses, batch * sequence_tokens) for losses, batch in runs]
    means = _Means(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Means.__slots__))
    for (losses, _), part in zip(runs, parts, strict=True):
        fallen = part.losses[:3].mean() - part.losses[-3:].mean()
        if fallen < CLEAR * float(np.median(part.errors)):
            raise UsageError(
                f"{losses.file}: the loss does not fall clearly from step {int(part.steps[0])} to {losses.last}, so "
                "there is no curve to fit",
                hint="give a longer log of a run that still learns",
            )
    anchor = float(math.exp(np.log(means.tokens).mean()))
    several = float(means.tokens.max() / means.tokens.min()) >= APART
    values, covariance = _fitted(means, anchor, several)
    told = several and math.sqrt(covariance[3, 3]) <= WIDEST
    if several and not told:
        values, covariance = _fitted(means, anchor, several=False)
    # A floor that the fit leaves at its end, or within rounding of it, is none.
    floor = float(values[0]) if values[0] > 1e-6 else 0.0
    scale, exponent = math.exp(values[1]), float(values[2])
    least = float(min(part.losses[-3:].mean() for part in parts))
    residual = float(np.sqrt(np.mean((_curve(values, means, anchor) - means.losses) ** 2)))
    try:
        convergence = ConvergenceSpec(
            critical_batch_tokens=math.exp(values[3]) if told else None,
            critical_batch_spread=math.expm1(math.sqrt(covariance[3, 3])) if told else None,
            curve=LossCurveSpec(
                batch_tokens=round(anchor),
                floor=floor,
                scale=scale,
                exponent=exponent,
                least_loss=least,
                spread=_steps_spread(values, covariance, least),
                floor_spread=math.sqrt(covariance[0, 0]),
            ),
        )
    except ValidationError:
        raise UsageError(
            f"{', '.join(losses.file for losses, _ in runs)}: the losses do not tell where a curve goes on",
            hint="give longer logs, of runs whose loss falls by less and less",
        ) from None
    return LossFit(
        runs=tuple(
            FittedRun(
                file=losses.file,
                source=losses.source,
                batch=batch,
                losses=sum(step > losses.last / BEGINNING for step, _ in losses.points),
                steps=losses.last,
                last_loss=float(part.losses[-3:].mean()),
            )
            for (losses, batch), part in zip(runs, parts, strict=True)
        ),
        convergence=convergence,
        residual=residual,
        told=told,
    )


def _means(run: Losses, tokens: float) -> _Means:
    """Means of the losses behind the beginning of a run."""
    kept = [(step, loss) for step, loss in run.points if step > run.last / BEGINNING]
    if len(kept) < FEWEST:
        raise UsageError(
            f"{run.file}: {len(kept)} losses after the first twentieth of its {run.last} steps are too few to fit a "
            f"curve, expected at least {FEWEST}",
            hint="give the whole log of a longer run, with a loss for each step or for every few",
        )
    steps = np.array([step for step, _ in kept], dtype=float)
    losses = np.array([loss for _, loss in kept])
    edges = np.geomspace(steps[0], steps[-1] * (1 + 1e-9), BINS + 1)
    number = np.clip(np.digitize(steps, edges) - 1, 0, BINS - 1)
    # What a loss differs from its neighbours by is noise.
    noise = float(np.std(np.diff(losses)) / math.sqrt(2)) or 1e-6
    rows = []
    for index in range(BINS):
        own = number == index
        if own.any():
            rows.append(
                (
                    float(np.exp(np.log(steps[own]).mean())),
                    float(losses[own].mean()),
                    noise / math.sqrt(float(own.sum())),
                )
            )
    columns = np.array(rows).T
    return _Means(columns[0], columns[1], columns[2], np.full(len(rows), float(tokens)))


def _curve(values: np.ndarray, means: _Means, anchor: float) -> np.ndarray:
    """Losses by floor, logarithm of the scale, exponent, and logarithm of the critical batch if there is one."""
    steps = means.steps
    if len(values) > 3:
        critical = math.exp(values[3])
        steps = steps * (1 + critical / anchor) / (1 + critical / means.tokens)
    fallen: np.ndarray = values[0] + np.exp(values[1] - values[2] * np.log(steps))
    return fallen


def _fitted(means: _Means, anchor: float, several: bool) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of the curve, and their covariance, by least squares from several beginnings."""
    least = float(means.losses.min())
    low = [0.0, -30.0, FLATTEST] + ([math.log(anchor / 1e4)] if several else [])
    high = [least, 30.0, STEEPEST] + ([math.log(anchor * 1e4)] if several else [])

    def away(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = (_curve(values, means, anchor) - means.losses) / means.errors
        return found

    best = None
    for share in (0.3, 0.7, 0.95):
        for exponent in (0.15, 0.5, 1.0):
            above = max(1e-6, float(means.losses.max()) - share * least)
            start = [share * least, math.log(above) + exponent * math.log(float(means.steps.min())), exponent]
            start += [math.log(anchor)] if several else []
            found = least_squares(away, start, bounds=(low, high), loss="soft_l1", x_scale="jac")
            if best is None or found.cost < best.cost:
                best = found
    assert best is not None
    squares = float((away(best.x) ** 2).sum()) / max(1, len(means.steps) - len(best.x))
    covariance = np.linalg.pinv(best.jac.T @ best.jac) * max(1.0, squares)
    return np.asarray(best.x), np.asarray(covariance)


def _steps_spread(values: np.ndarray, covariance: np.ndarray, loss: float) -> float:
    """Relative standard error of the steps to a loss."""
    floor, scale, exponent = values[:3]
    above = max(1e-9, loss - floor)
    steps = (scale - math.log(above)) / exponent
    # ln S = (ln scale - ln (loss - floor)) / exponent
    gradient = np.array([1 / above, 1.0, -steps]) / exponent
    return float(math.sqrt(max(0.0, gradient @ covariance[:3, :3] @ gradient)))
