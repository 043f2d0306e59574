"""What a run tells about its runtime's host: a constant that no kernel, layer or collective shows by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scipy.optimize import brentq

from planner.calibration.values import Calibration, Constant, Framework
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.described import told
from planner.errors import UsageError
from planner.model.spec import ModelSpec
from planner.plan.values import Plan

MOST_LAUNCHES = 1e6
"""More would be a second and longer for each micro-batch."""


@told(names={"launches": "micro_batch_launches", "before_seconds": "predicted_seconds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run of a pipeline, and what makes the prediction agree with it."""

    launches: float
    """Host work for a micro-batch, in kernel launches; 0 when the run was no slower than predicted."""
    before_seconds: float
    """The prediction without any."""
    observed_seconds: float
    """Median step of the run."""

    def measured(self, framework: str) -> Calibration:
        """The constant of a framework, to be merged into a calibration."""
        name = f"frameworks.{framework}.micro_batch_launches"
        return Calibration(
            frameworks={framework: Framework(micro_batch_launches=self.launches)},
            constants=(Constant(name=name, value=self.launches, provenance="measured"),),
        )


def host_launches(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration, observed_seconds: float
) -> Trial:
    """Find ``micro_batch_launches`` of the plan's runtime; the step time grows with it on every device.

    Raises UsageError for a plan without a pipeline, which does not show it, and for a run that it cannot explain.
    """
    if plan.pp == 1:
        raise UsageError(
            "the plan has no pipeline, so its run does not show the host's work for a micro-batch",
            hint="run a plan of two stages with many small micro-batches",
        )

    def excess(launches: float) -> float:
        constants = with_launches(calibration, plan.target, launches)
        return estimate(plan, cluster, model, constants).step_seconds - observed_seconds

    least = excess(0.0)
    if least < 0 and excess(MOST_LAUNCHES) < 0:
        raise UsageError("the run is slower than any work of the host would make it")
    launches = brentq(excess, 0.0, MOST_LAUNCHES, rtol=1e-6) if least < 0 else 0.0
    return Trial(
        launches=launches, before_seconds=least + observed_seconds, observed_seconds=observed_seconds
    )


def with_launches(calibration: Calibration, framework: str, launches: float) -> Calibration:
    """The calibration with another ``micro_batch_launches`` of a framework."""
    changed = replace(calibration.framework(framework), micro_batch_launches=launches)
    return replace(calibration, frameworks={**calibration.frameworks, framework: changed})
