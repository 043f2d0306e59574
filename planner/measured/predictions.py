"""Measured runs next to what the cost model says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.values import Estimate
from planner.described import told
from planner.errors import HetplanError
from planner.measured.values import Run
from planner.model.spec import ModelSpec

Progress = Callable[[int, int], None]
"""Told after every run: runs done, runs in all."""


def priced(run: Run, calibration: Calibration) -> Estimate | None:
    """The estimate of one run; None for a plan that cannot be priced."""
    try:
        return Estimator(run.cluster, run.model, calibration).estimate(run.plan)
    except HetplanError:
        return None


@told(
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
        """Bytes on the fullest device, without the reserve."""
        return None if self.estimate is None else self.estimate.peak_memory_bytes

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
        """Predicted over measured seconds, less 1; None when either is unknown."""
        return _relative(self.predicted_seconds, self.run.step_seconds)

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured bytes, less 1; None when either is unknown."""
        return _relative(self.predicted_bytes, self.run.peak_memory_bytes)


def predict(
    runs: Sequence[Run], calibration: Calibration, progress: Progress | None = None
) -> tuple[Prediction, ...]:
    """A prediction of every run, in their order."""
    estimators = _Estimators(calibration)
    found = []
    for done, run in enumerate(runs, start=1):
        found.append(_predicted(run, estimators))
        if progress is not None:
            progress(done, len(runs))
    return tuple(found)


def _predicted(run: Run, estimators: _Estimators) -> Prediction:
    try:
        estimate = estimators.of(run.cluster, run.model).estimate(run.plan)
    except HetplanError as error:
        return Prediction(run=run, estimate=None, failure=error.message)
    return Prediction(run=run, estimate=estimate)


def _relative(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1


class _Estimators:
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
