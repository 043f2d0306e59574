"""Measured runs next to what the cost model says of them: errors, the order of plans, and what following it costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TypeVar

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.memory import FRAGMENTS
from planner.cost.values import Estimate
from planner.errors import HetplanError
from planner.field_metadata import json_fields
from planner.measured.values import Run
from planner.model.spec import ModelSpec

Key = TypeVar("Key", str, tuple[str, str, int])

LEAST_TO_RANK = 3
"""Runs below which a rank correlation means nothing."""
LEAST_TO_AVERAGE = 4
"""Runs below which a group's rank correlation is left out of the mean over groups."""
LEAST_TO_CHOOSE = 2
"""Runs below which a group offers no choice of a plan."""


@json_fields(names={"mean": "mean_error", "median": "median_error", "ninetieth": "p90_error"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of some predictions; an error is predicted over measured, less 1."""

    runs: int
    """How many runs the errors are of."""
    mean: float
    """Mean absolute error."""
    median: float
    """Median absolute error."""
    ninetieth: float
    """90th percentile of the absolute errors."""
    bias: float
    """Mean signed error; above 0 the model is too pessimistic."""


@json_fields(inline=("errors",))
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTruth:
    """Step times of runs that differ in their plan only."""

    source: str
    """Source of a group of runs with equal clusters, models and training."""
    model: str
    """Its model."""
    devices: int
    """Devices of each of its plans."""
    cluster: str
    """Name of the cluster."""
    sequence_length: int
    """Tokens of a sequence."""
    global_batch: int
    """Sequences of one optimizer step."""
    errors: Errors
    """Errors of the step time."""
    rank_correlation: float | None
    """Spearman's, of predicted and measured seconds; None below 3 runs or without variation."""
    regret: float | None
    """Measured time of the plan predicted best over the best measured time, minus 1; None for a single run."""
    coverage: float
    """Share of the runs whose measured time lies within the spread of their estimate."""


@json_fields(inline=("errors",))
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTruth:
    """Step times of a source."""

    source: str
    """A source of runs."""
    errors: Errors
    """Errors of the step time."""
    ranked_groups: int
    """Groups of at least 4 runs that have a rank correlation."""
    rank_correlation: float | None
    """Mean over those groups, each weighted by its runs."""
    chosen_groups: int
    """Groups of at least 2 runs."""
    mean_regret: float | None
    """Mean over those groups."""
    worst_regret: float | None
    """Worst of those groups."""
    coverage: float
    """Share of the runs whose measured time lies within the spread of the estimate."""


@json_fields(inline=("errors",))
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTruth:
    """Peak memory of a source."""

    source: str
    """A source of runs."""
    errors: Errors
    """Errors of the peak memory."""


@json_fields("runs")
@dataclass(frozen=True, slots=True, kw_only=True)
class FitTruth:
    """Runs of a source by whether they ran and whether they were expected to, as numbers of runs."""

    source: str
    """A source of runs."""
    both_fit: int
    """Ran, as predicted."""
    both_out: int
    """Out of memory, as predicted."""
    false_alarms: int
    """Ran, though out of memory was predicted."""
    missed: int
    """Out of memory, though predicted to fit."""

    @property
    def runs(self) -> int:
        """All of them."""
        return self.both_fit + self.both_out + self.false_alarms + self.missed


@json_fields(
    names={"fits": "out_of_memory", "total_fits": "total_out_of_memory"},
    brief=("total", "total_memory", "total_fits"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Everything that is known about the predictions; each tuple sorted, with a source only where it counts."""

    sources: tuple[SourceTruth, ...]
    """By source."""
    groups: tuple[GroupTruth, ...]
    """By group."""
    memory: tuple[MemoryTruth, ...]
    """Memory by source."""
    fits: tuple[FitTruth, ...]
    """Runs by whether they fit."""
    total: SourceTruth | None
    """All sources together, named ``all``; None without any predicted step time."""
    total_memory: MemoryTruth | None
    """Memory of all sources; None without any prediction."""
    total_fits: FitTruth | None
    """The same of all sources; None when none was priced."""


def truth(predictions: Sequence[Prediction]) -> Truth:
    """Statistics of all predictions, by source and by group."""
    timed = [entry for entry in predictions if entry.error is not None]
    sized = [entry for entry in predictions if entry.memory_error is not None]
    priced = [entry for entry in predictions if entry.fits is not None]
    return Truth(
        sources=tuple(_source(name, group) for name, group in _grouped(timed, _source_of)),
        groups=_groups(timed),
        memory=tuple(_memory(name, group) for name, group in _grouped(sized, _source_of)),
        fits=tuple(_fits(name, group) for name, group in _grouped(priced, _source_of)),
        total=_source("all", timed) if timed else None,
        total_memory=_memory("all", sized) if sized else None,
        total_fits=_fits("all", priced) if priced else None,
    )


def errors_of(values: Sequence[float]) -> Errors:
    """Size and sign of relative errors, of which there is at least one."""
    sizes = [abs(value) for value in values]
    return Errors(
        runs=len(sizes),
        mean=statistics.fmean(sizes),
        median=statistics.median(sizes),
        ninetieth=_ninetieth(sizes),
        bias=statistics.fmean(values),
    )


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's, equal values sharing their mean rank; None below 3 values or when one side never varies."""
    if len(predicted) < LEAST_TO_RANK or len(set(predicted)) == 1 or len(set(measured)) == 1:
        return None
    from scipy.stats import rankdata

    return statistics.correlation(rankdata(predicted).tolist(), rankdata(measured).tolist())


def regret(predictions: Iterable[Prediction]) -> float | None:
    """What following the predictions costs in a group: the plan predicted best over the best, less 1.

    None when there is no choice. Equal predictions are decided by the run's id.
    """
    known = [
        (entry.predicted_seconds, entry.run.id, entry.run.step_seconds)
        for entry in predictions
        if entry.predicted_seconds is not None and entry.run.step_seconds is not None
    ]
    if len(known) < LEAST_TO_CHOOSE:
        return None
    return min(known)[2] / min(measured for _, _, measured in known) - 1


def coverage(predictions: Sequence[Prediction]) -> float:
    """Share of runs whose measured time lies within the spread of their estimate."""
    within = (
        abs(math.log1p(entry.error)) <= entry.spread
        for entry in predictions
        if entry.error is not None and entry.spread is not None
    )
    return sum(within) / len(predictions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs that differ in their plan only, by the logarithm of one step over the other."""

    source: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How far apart the logarithms are."""
        return abs(self.predicted - self.measured)

    @property
    def reversed(self) -> bool:
        """True when the plan that was predicted slower was faster."""
        return self.predicted * self.measured < 0


def pairs(predictions: Sequence[Prediction]) -> Iterator[Pair]:
    """All of them, of each source."""
    timed = [entry for entry in predictions if entry.error is not None]
    for _, group in _grouped(timed, lambda entry: entry.run.group):
        for one, two in chain.from_iterable(combinations(alike, 2) for alike in _alike(group)):
            predicted = (one.predicted_seconds or 0.0) / (two.predicted_seconds or 1.0)
            measured = (one.run.step_seconds or 0.0) / (two.run.step_seconds or 1.0)
            yield Pair(source=one.run.source, predicted=math.log(predicted), measured=math.log(measured))


def by_source(known: Iterable[Pair]) -> list[list[Pair]]:
    """Those of each source that has at least ``LEAST_TO_RANK`` of them."""
    apart: dict[str, list[Pair]] = {}
    for pair in known:
        apart.setdefault(pair.source, []).append(pair)
    return [own for own in apart.values() if len(own) >= LEAST_TO_RANK]


def pair_spread(sources: Iterable[Sequence[Pair]]) -> float:
    """The error that 68 % of a source's pairs stay below, in the mean over sources."""
    return statistics.fmean(sorted(pair.error for pair in own)[int(0.68 * len(own))] for own in sources)


def worst(predictions: Sequence[Prediction], most: int) -> tuple[Prediction, ...]:
    """The predictions with the largest errors of the step time, largest first."""
    known = [(-abs(entry.error), entry.run.id, entry) for entry in predictions if entry.error is not None]
    return tuple(entry for _, _, entry in sorted(known, key=lambda item: item[:2])[:most])


def _ninetieth(sizes: Sequence[float]) -> float:
    """Interpolated between the two sizes around it."""
    return sizes[0] if len(sizes) == 1 else statistics.quantiles(sizes, n=10, method="inclusive")[-1]


def _errors(predictions: Sequence[Prediction]) -> Errors:
    return errors_of([entry.error for entry in predictions if entry.error is not None])


def _groups(timed: Sequence[Prediction]) -> tuple[GroupTruth, ...]:
    named = _grouped(timed, lambda entry: entry.run.group)
    return tuple(_group(alike) for _, group in named for alike in _alike(group))


def _alike(predictions: Iterable[Prediction]) -> list[list[Prediction]]:
    """Predictions apart by cluster and training: the step time of a smaller batch is no better plan."""
    groups: list[list[Prediction]] = []
    for entry in predictions:
        for others in groups:
            first = others[0].run
            if first.model == entry.run.model and first.cluster == entry.run.cluster:
                others.append(entry)
                break
        else:
            groups.append([entry])
    return sorted(groups, key=lambda alike: _workload(alike[0]))


def _workload(prediction: Prediction) -> tuple[str, int, int]:
    training = prediction.run.model.training
    return prediction.run.cluster.name, training.sequence_length, training.global_batch


def _group(predictions: Sequence[Prediction]) -> GroupTruth:
    """Statistics of runs that differ in their plan only."""
    source, model, devices = predictions[0].run.group
    cluster, sequence_length, global_batch = _workload(predictions[0])
    predicted = [entry.predicted_seconds or 0.0 for entry in predictions]
    measured = [entry.run.step_seconds or 0.0 for entry in predictions]
    return GroupTruth(
        source=source,
        model=model,
        devices=devices,
        cluster=cluster,
        sequence_length=sequence_length,
        global_batch=global_batch,
        errors=_errors(predictions),
        rank_correlation=rank_correlation(predicted, measured),
        regret=regret(predictions),
        coverage=coverage(predictions),
    )


def _source(name: str, predictions: Sequence[Prediction]) -> SourceTruth:
    groups = _groups(predictions)
    ranks = [
        (group.rank_correlation, group.errors.runs)
        for group in groups
        if group.rank_correlation is not None and group.errors.runs >= LEAST_TO_AVERAGE
    ]
    regrets = [group.regret for group in groups if group.regret is not None]
    return SourceTruth(
        source=name,
        errors=_errors(predictions),
        ranked_groups=len(ranks),
        rank_correlation=statistics.fmean(*zip(*ranks, strict=True)) if ranks else None,
        chosen_groups=len(regrets),
        mean_regret=statistics.fmean(regrets) if regrets else None,
        worst_regret=max(regrets, default=None),
        coverage=coverage(predictions),
    )


def _memory(name: str, predictions: Sequence[Prediction]) -> MemoryTruth:
    errors = [entry.memory_error for entry in predictions if entry.memory_error is not None]
    return MemoryTruth(source=name, errors=errors_of(errors))


def _fits(name: str, predictions: Sequence[Prediction]) -> FitTruth:
    facts = [(entry.run.fits, entry.fits) for entry in predictions]
    return FitTruth(
        source=name,
        both_fit=facts.count((True, True)),
        both_out=facts.count((False, False)),
        false_alarms=facts.count((True, False)),
        missed=facts.count((False, True)),
    )


def _source_of(prediction: Prediction) -> str:
    return prediction.run.source


def _grouped(
    predictions: Iterable[Prediction], key: Callable[[Prediction], Key]
) -> list[tuple[Key, list[Prediction]]]:
    """Predictions by key, the keys sorted."""
    groups: dict[Key, list[Prediction]] = {}
    for entry in predictions:
        groups.setdefault(key(entry), []).append(entry)
    return sorted(groups.items(), key=lambda item: item[0])


Progress = Callable[[int, int], None]
"""Told after every run: runs done, runs in all."""


@json_fields(
    "run.id",
    "run.source",
    "run.reference",
    "run.model.name",
    "run.devices",
    "run.step_seconds",
    "predicted_seconds",
    "error",
    "spread",
    "run.peak_memory_bytes",
    "predicted_bytes",
    "memory_error",
    "run.fits",
    "fits",
    "run.doubt",
    only=("failure",),
    names={
        "run.model.name": "model",
        "run.step_seconds": "measured_seconds",
        "run.peak_memory_bytes": "measured_bytes",
        "run.fits": "measured_fits",
        "fits": "predicted_fits",
    },
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One measured run and its estimate."""

    run: Run
    estimate: Estimate | None
    """None for a plan that cannot be priced."""
    failure: str = ""
    """Why it cannot be priced; empty when it can."""

    @property
    def predicted_seconds(self) -> float | None:
        """Seconds of one optimizer step."""
        return None if self.estimate is None else self.estimate.step_seconds

    @property
    def predicted_bytes(self) -> float | None:
        """Bytes on the fullest device, without the reserve; of its allocator or tensors where those were measured."""
        if self.estimate is None:
            return None
        if self.run.peak_memory_of == "device":
            return self.estimate.peak_memory_bytes
        memories = [group.memory for stage in self.estimate.stages for group in stage.groups]
        tensors = max(memory.used_bytes - memory.runtime_bytes for memory in memories)
        if self.run.peak_memory_of == "tensors":
            return tensors
        return (1.0 + FRAGMENTS) * tensors + max(memory.slack_bytes for memory in memories)

    @property
    def fits(self) -> bool | None:
        """Whether the run should fit."""
        return None if self.estimate is None else self.estimate.fits

    @property
    def spread(self) -> float | None:
        """Relative standard error that the estimate admits to."""
        return None if self.estimate is None else self.estimate.spread

    @property
    def error(self) -> float | None:
        """Predicted over measured seconds, minus 1; None when either is unknown."""
        return _relative(self.predicted_seconds, self.run.step_seconds)

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured bytes, minus 1; None when either is unknown."""
        return _relative(self.predicted_bytes, self.run.peak_memory_bytes)


def predict(
    runs: Sequence[Run], calibration: Calibration, progress: Progress | None = None
) -> tuple[Prediction, ...]:
    """A prediction of every run, in their order."""
    estimators = Estimators(calibration)
    predictions = []
    for done, run in enumerate(runs, start=1):
        predictions.append(_predicted(run, estimators))
        if progress is not None:
            progress(done, len(runs))
    return tuple(predictions)


def _predicted(run: Run, estimators: Estimators) -> Prediction:
    try:
        estimate = estimators.of(run.cluster, run.model).estimate(run.plan)
    except HetplanError as error:
        return Prediction(run=run, estimate=None, failure=error.message)
    return Prediction(run=run, estimate=estimate)


def _relative(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1


class Estimators:
    """One estimator for equal clusters and models; specs have no hash, so equal names are compared."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._known: dict[tuple[str, str], list[Estimator]] = {}

    def of(self, cluster: ClusterSpec, model: ModelSpec) -> Estimator:
        """The estimator of this cluster and model."""
        alike = self._known.setdefault((cluster.name, model.name), [])
        for estimator in alike:
            if estimator.cluster == cluster and estimator.model == model:
                return estimator
        alike.append(Estimator(cluster, model, self._calibration))
        return alike[-1]
