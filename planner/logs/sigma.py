"""What a run tells about how much devices vary: its steps wait for the slowest, and vary less than each device does."""

from __future__ import annotations

from dataclasses import dataclass

from planner.calibration.values import Calibration, Constant, Family
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.stragglers import backups, deviation_of_largest
from planner.errors import UsageError
from planner.logs.values import Observed
from planner.model.spec import ModelSpec
from planner.plan.values import Plan

FEWEST = 20
"""Steps from which a spread is worth something: its own error is then a sixth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How much the devices of a run vary."""

    family: str
    """Generation of its devices."""
    devices: int
    """Devices that wait for each other in a stage."""
    steps: int
    """Steps that were looked at."""
    spread: float
    """Robust relative standard deviation of the step time."""
    work: float
    """Part of the step, by the cost model, in which devices work and so may vary."""
    sigma: float
    """Standard deviation of a device's seconds of a step over their mean."""
    replicas: int
    """Replicas of a stage."""
    backups: int
    """How many of the slowest replicas' gradients would best be dropped in each step; 0 when none pays."""
    backups_gain: float
    """Sequences a second that this would bring; torch does it (``--allow-backup``)."""

    def measured(self) -> Calibration:
        """The constant of the family, to be merged into a calibration."""
        name = f"families.{self.family}.sigma"
        return Calibration(
            families={self.family: Family(sigma=self.sigma)},
            constants=(Constant(name=name, value=self.sigma, provenance="measured"),),
        )


def variation(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration, seen: Observed
) -> Variation:
    """The sigma of the plan's devices with which steps vary as they did.

    Raises UsageError for devices of several families, for one that the catalogue does not know, and for a short log.
    """
    estimator = Estimator(cluster, model, calibration)
    groups = [group for stage in plan.stages for group in stage.replicas]
    families = {estimator.topology.device_type(group.pool, group.gpu).family for group in groups}
    if len(families) > 1:
        raise UsageError(
            f"the run has devices of {len(families)} families, and its steps do not tell which of them vary: "
            f"{', '.join(sorted(families))}",
            hint="run a plan on devices of one family",
        )
    (family,) = families
    if not family:
        raise UsageError("the run's devices are of no family that the catalogue knows")
    if seen.spread is None or seen.step_times < FEWEST:
        raise UsageError(
            f"{seen.step_times} steps after the warm-up are too few to tell how much they vary, expected at least "
            f"{FEWEST}"
        )
    causes = estimator.estimate(plan).breakdown
    waiting = causes.bubble_seconds + causes.gradient_sync_seconds + causes.zero_seconds
    work = 1.0 - (waiting + causes.offload_seconds) / causes.step_seconds
    devices, replicas = max((stage.devices, stage.dp) for stage in plan.stages)
    sigma = min(1.0, seen.spread / (work * deviation_of_largest(devices)))
    dropped, gain = backups(work * sigma * deviation_of_largest(devices // replicas), replicas)
    return Variation(
        family=family,
        devices=devices,
        steps=seen.step_times,
        spread=seen.spread,
        work=work,
        sigma=sigma,
        replicas=replicas,
        backups=dropped,
        backups_gain=gain,
    )
