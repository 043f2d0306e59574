"""What was written into a calibration file: measured curves, or fitted constants and how far the runs are from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import expm1
from pathlib import Path, PurePath

import numpy as np
from rich.console import Group, RenderableType

from planner.calibration.values import Calibration, Constant, Residual
from planner.cost.stragglers import stretch
from planner.field_metadata import JsonDocument, json_fields
from planner.logs.fits import Trial, Variation
from planner.logs.losses import LossFit
from planner.logs.reading import Observed
from planner.measured.fit import Fit
from planner.report.layout import FittedTable, Paragraph, bullets, number, pairs, section, table, words
from planner.report.measured import constants_table
from planner.report.numbers import MISSING, count, duration, percent, plus_minus, significant
from planner.targets import TARGETS, in_words
from planner.units import format_count

SHOWN = 12
"""Curves that are listed by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateDocument(JsonDocument):
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
    if calibration.constants:
        more.append(f"{count(len(calibration.constants), 'constant')}")
    return section(f"Wrote {count(points, 'measured point')} to {path}", bullets([*curves[:SHOWN], *more]))


def _curve_lines(calibration: Calibration) -> Iterator[str]:
    layers = Counter((point.gpu, point.model, point.tp) for point in calibration.layers)
    for (gpu, model, tp), sizes in layers.items():
        yield f"layers of {model} on {gpu}, tp {tp}: {count(sizes, 'micro-batch', 'micro-batches')}"
    for curve, sizes in Counter(point.curve for point in calibration.link_points).items():
        yield f"{curve}: {count(sizes, 'size')}"


def trial_section(trial: Trial, framework: str, seen: Observed, path: Path) -> Group:
    """The constant, what it was found from, and where it is."""
    return section(f"Wrote a constant of {framework} to {path}", bullets([*_lines(trial, framework, seen)]))


def _lines(trial: Trial, framework: str, seen: Observed) -> Iterator[str]:
    yield (
        f"a step took {duration(trial.observed_seconds)} (median of {count(len(seen.seconds), 'record')}), "
        f"predicted {'with layers as measured' if trial.layer_factor else 'without host overhead'}: "
        f"{duration(trial.before_seconds)}"
    )
    if trial.layer_factor:
        yield f"a layer takes {trial.layer_factor:.3g} times as long in {framework} as measured alone"
    elif trial.launches:
        yield f"the host overhead of {framework} per micro-batch of a stage equals {trial.launches:.0f} kernel launches"
    else:
        yield "the run was no slower than predicted: no host overhead is visible"
    if seen.only_warm_up:
        yield "the log contains only warm-up steps: run twenty steps and measure again"


def fitted_sections(
    fit: Fit, calibration: Calibration, path: Path | None, before: Calibration | None = None
) -> list[RenderableType]:
    """Constants, errors by source, error bars; where the fit started from ``before``, what it changed alone."""
    where = f", wrote {path}" if path else ""
    title = f"Constants, fitted to {count(len(fit.runs), 'run')}{where}"
    bars = calibration.residuals
    if before is None:
        constants = section(title, constants_table(calibration.constants))
    else:
        constants = section(title, *_changes(calibration.constants, before.constants))
        bars = tuple(item for item in bars if item not in before.residuals)
    return [
        constants,
        section("Errors of the fitted runs", _errors(fit)),
        *([section("Error bars", _bars(bars))] if bars else []),
    ]


def _changes(now: Sequence[Constant], before: Sequence[Constant]) -> Iterator[RenderableType]:
    """Constants whose value or spread is another, beside the value before, and how many are not."""
    known = {item.name: item for item in before}
    changed = [item for item in now if known.get(item.name) != item]
    rows = [
        (
            item.name,
            significant(known[item.name].value) if item.name in known else MISSING,
            significant(item.value),
            plus_minus(item.spread),
        )
        for item in changed
    ]
    yield table([words("constant", least=34), number("built-in"), number("value"), number("spread")], rows)
    if len(now) > len(changed):
        yield Paragraph(f"the runs say nothing of {count(len(now) - len(changed), 'other constant')}")


def _errors(fit: Fit) -> FittedTable:
    rows = [
        (entry.source, str(entry.runs), percent(entry.mean_error), percent(entry.left_out_error))
        for entry in _by_source(fit)
    ]
    columns = [words("source"), number("runs"), number("mean error"), number("own source\nleft out")]
    return table(columns, rows)


def _bars(residuals: Sequence[Residual]) -> FittedTable:
    rows = [
        (item.family, item.framework, item.work, str(item.rows), f"±{percent(item.spread)}")
        for item in residuals
    ]
    return table([words("family"), words("framework"), words("work"), number("runs"), number("spread")], rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSource:
    """How far the runs of a source are from the fit."""

    source: str
    """A source."""
    runs: int
    """Its runs."""
    mean_error: float
    """Mean absolute error; an error is predicted over measured seconds, minus 1."""
    left_out_error: float
    """The same with all runs of its source left out of the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedDocument(JsonDocument):
    """The answer of ``calibrate fit``."""

    file: str | None
    """Calibration file that was written; null without -o."""
    runs: int
    """Runs in the fit: those with a step time and an unambiguous plan."""
    constants: tuple[Constant, ...]
    """Constants of the file."""
    sources: tuple[FittedSource, ...]
    """Errors by source."""
    residuals: tuple[Residual, ...]
    """Spreads of later estimates."""


def _by_source(fit: Fit) -> tuple[FittedSource, ...]:
    """All sources, sorted by name."""
    errors: dict[str, tuple[list[float], list[float]]] = {}
    for run, error, left in zip(fit.runs, fit.errors, fit.left_out_errors, strict=True):
        own, others = errors.setdefault(run.source, ([], []))
        own.append(abs(expm1(error)))
        others.append(abs(expm1(left)))
    return tuple(
        FittedSource(
            source=source, runs=len(own), mean_error=float(np.mean(own)), left_out_error=float(np.mean(left))
        )
        for source, (own, left) in sorted(errors.items())
    )


def fitted_document(fit: Fit, calibration: Calibration, path: Path | None) -> FittedDocument:
    """The same for ``--json``."""
    return FittedDocument(
        command="calibrate fit",
        file=None if path is None else str(path),
        runs=len(fit.runs),
        constants=calibration.constants,
        sources=_by_source(fit),
        residuals=calibration.residuals,
    )


@json_fields(inline=("trial",))
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialDocument(JsonDocument):
    """The answer of ``calibrate run``."""

    file: str
    """Calibration file that was written."""
    stack: str
    """Framework of the plan."""
    trial: Trial
    """What the run told."""


@json_fields(inline=("variation",))
@dataclass(frozen=True, slots=True, kw_only=True)
class VariationDocument(JsonDocument):
    """The answer of ``calibrate sigma``."""

    file: str
    """Calibration file that was written."""
    variation: Variation
    """What the run told."""


def variation_section(variation: Variation, output: Path) -> Group:
    """How much steps and devices vary, and what waiting for the slowest takes of groups of several sizes."""
    rows = [
        ("steps", f"{variation.steps}, whose time varies by {percent(variation.spread)}"),
        (
            "devices",
            f"{variation.devices} {variation.family} wait for each other, {percent(variation.work)} of the step",
        ),
        ("sigma", f"{percent(variation.sigma)} of a device's time: written to {output}"),
        (
            "waiting",
            ", ".join(
                f"{number} devices {percent(stretch(variation.sigma, number) - 1)}" for number in (8, 64, 512)
            ),
        ),
        ("backups", _backups_text(variation)),
    ]
    return section("How much step times vary", pairs(rows))


def _backups_text(variation: Variation) -> str:
    """Whether dropping the slowest gradients would pay."""
    if not variation.backups:
        return f"of {variation.replicas} replicas none is slow enough for its gradients to be worth dropping"
    able = in_words([row.name for row in TARGETS.values() if row.backup_zero], "or")
    return (
        f"without the slowest {variation.backups} of {variation.replicas} replicas in each step "
        f"{percent(variation.backups_gain)} more sequences a second: search --allow-backup plans it for {able}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFitDocument(JsonDocument):
    """The answer of ``calibrate loss``."""

    file: str | None
    """Model file that was written; null without -o."""
    loss: LossFit
    """What the runs told."""


def loss_fit_section(fit: LossFit, output: Path | None) -> Group:
    """The runs, the curve, and what it says of the critical batch."""
    columns = (
        words("log", least=16),
        words("printed by", least=10),
        number("batch"),
        number("losses"),
        number("steps"),
        number("last loss"),
    )
    rows = [
        [
            run.file,
            run.source,
            str(run.batch),
            str(run.losses),
            str(run.steps),
            significant(run.last_loss, 4),
        ]
        for run in fit.runs
    ]
    where = f", wrote {output}" if output else ""
    return section(f"The loss by steps{where}", table(columns, rows, ruled=False), pairs(_loss_fit_rows(fit)))


def _loss_fit_rows(fit: LossFit) -> Iterator[tuple[str, str]]:
    spec, curve = fit.convergence, fit.convergence.curve
    assert curve is not None, "a fit has a curve"
    yield (
        "curve",
        f"{significant(curve.floor, 4)} + {significant(curve.scale, 4)} x steps^-{significant(curve.exponent)}, "
        f"steps of {format_count(curve.batch_tokens)} tokens; means are {significant(fit.residual, 2)} nats away",
    )
    yield "floor", f"{significant(curve.floor, 4)} ±{significant(curve.floor_spread, 2)} nats"
    yield (
        "steps",
        f"to a loss of {significant(curve.least_loss, 4)} known to ±{percent(curve.spread)}",
    )
    if spec.critical_batch_tokens is not None and spec.critical_batch_spread is not None:
        low = spec.critical_batch_tokens / (1 + spec.critical_batch_spread)
        high = spec.critical_batch_tokens * (1 + spec.critical_batch_spread)
        yield (
            "critical batch",
            f"{format_count(spec.critical_batch_tokens)} tokens ({format_count(low)} to {format_count(high)})",
        )
    elif len({run.batch for run in fit.runs}) == 1:
        yield "critical batch", "by published laws: runs with one batch do not tell it"
    else:
        yield "critical batch", "by published laws: these runs do not tell it, further apart ones might"
