"""What a run tells that no measurement of a part shows: a constant of its runtime, and how much devices vary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from scipy.optimize import brentq

from planner.calibration.merge import name_key
from planner.calibration.values import Calibration, Constant, Framework, GpuFamily
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator, estimate
from planner.cost.stragglers import backups, deviation_of_largest
from planner.errors import UsageError
from planner.field_metadata import json_fields
from planner.logs.reading import Observed
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.targets import target

Told = Literal["micro_batch_launches", "layer_factor"]
"""The constants of a kernel set that a run tells: the first with a pipeline, the second without."""

VALUES = {"micro_batch_launches": (0.0, 0.0, 1e6), "layer_factor": (1.0, 0.1, 10.0)}
"""Without effect, least and most: more launches would be a second and longer for each micro-batch."""

WORDS = {"micro_batch_launches": "work of the host", "layer_factor": "pace of its layers"}


@json_fields(names={"launches": "micro_batch_launches", "before_seconds": "predicted_seconds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run, and what makes the prediction agree with it."""

    kernels: str
    """Kernel set of the run, whose constant is fitted."""
    launches: float | None = None
    """Of a pipeline: host overhead per micro-batch, in kernel launches; 0 if the run was no slower than predicted."""
    layer_factor: float | None = None
    """Of a plan of one stage: time of its layers in training over their time measured alone."""
    before_seconds: float
    """The prediction without any."""
    observed_seconds: float
    """Median step of the run."""

    def measured(self) -> Calibration:
        """The constant of the kernel set, to be merged into a calibration."""
        found = {"micro_batch_launches": self.launches, "layer_factor": self.layer_factor}
        ((name, value),) = ((name, value) for name, value in found.items() if value is not None)
        return Calibration(
            frameworks={self.kernels: Framework(**{name: value})},
            constants=(
                Constant(name=f"frameworks.{self.kernels}.{name}", value=value, provenance="measured"),
            ),
        )


def fit_trial(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration, observed_seconds: float
) -> Trial:
    """Find the constant of the runtime's kernels with which the prediction is the observed time.

    A pipeline shows what the host does for each micro-batch, a plan of one stage how much longer measured layers take
    in training; the step time grows with either constant. Raises UsageError for one stage on devices without measured
    layers, for a run that the constant cannot explain, and for one that is faster than the peak of its devices.
    """
    kernels = target(plan.target).kernels_of(model.training.kernels, model.training.attention)
    constant: Told = "micro_batch_launches" if plan.pp > 1 else "layer_factor"
    none, least, most = VALUES[constant]
    if plan.pp == 1:
        _require_layers(plan, model, calibration)

    def predicted(value: float) -> float:
        constants = with_constant(calibration, kernels, constant, value)
        return estimate(plan, cluster, model, constants).step_seconds

    if plan.pp > 1 and predicted(least) == predicted(most):
        raise UsageError(
            "the prediction of this plan has no work of the host: CUDA graphs launch whole steps",
            hint="run the plan with cuda_graphs none or layers",
        )
    if plan.pp == 1 and predicted(least) == predicted(most):
        raise UsageError(
            "the prediction of this plan uses no measured layer: packed documents, divided sequences, a grid and "
            "layers of several kinds are priced by formulas",
            hint="run a plan of one device with whole sequences, or a plan of two stages",
        )
    if predicted(most) < observed_seconds:
        raise UsageError(
            f"the run is slower than any {WORDS[constant]} would make it",
            hint="`hetplan compare PLAN --log FILE` says where it differs from the plan",
        )
    value = least
    if predicted(least) < observed_seconds:
        value = brentq(lambda each: predicted(each) - observed_seconds, least, most, rtol=1e-6)
    elif plan.pp == 1:
        raise UsageError(
            f"the run is faster than any {WORDS[constant]} would make it",
            hint="`hetplan compare PLAN --log FILE` says where it differs from the plan",
        )
    known = estimate(plan, cluster, model, calibration)
    share = known.mfu * known.step_seconds / observed_seconds
    if share > 1.0:
        raise UsageError(
            f"the run is {share:.3g} times as fast as the peak of its devices allows",
            hint="check that the log is of this plan, and that its seconds are of whole steps",
        )
    launches, factor = (value, None) if plan.pp > 1 else (None, value)
    return Trial(
        kernels=kernels,
        launches=launches,
        layer_factor=factor,
        before_seconds=predicted(none),
        observed_seconds=observed_seconds,
    )


def _require_layers(plan: Plan, model: ModelSpec, calibration: Calibration) -> None:
    measured = {
        name_key(each.gpu) for each in calibration.layers if name_key(each.model) == name_key(model.name)
    }
    unknown = sorted({each.gpu for each in plan.stages[0].replicas if name_key(each.gpu) not in measured})
    if unknown:
        raise UsageError(
            f"the plan has one stage, whose run shows how long layers take, and no layer of {model.name} was measured "
            f"on {unknown[0]}",
            hint="measure with `hetplan calibrate device --model`, or run a plan of two stages",
        )


def with_constant(calibration: Calibration, kernels: str, constant: Told, value: float) -> Calibration:
    """The calibration with another value of a kernel set's constant."""
    changed = replace(calibration.framework(kernels), **{constant: value})
    return replace(calibration, frameworks={**calibration.frameworks, kernels: changed})


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
    """Steps considered."""
    spread: float
    """Robust relative standard deviation of the step time."""
    work: float
    """Share of the step, by the cost model, in which devices compute and so can vary."""
    sigma: float
    """Standard deviation of a device's step time over its mean."""
    replicas: int
    """Replicas of a stage."""
    backups: int
    """How many of the slowest replicas' gradients are best dropped in each step; 0 if dropping any does not pay."""
    backups_gain: float
    """Gain in sequences per second from that; torch can do it (``--allow-backup``)."""

    def measured(self) -> Calibration:
        """The constant of the family, to be merged into a calibration."""
        name = f"families.{self.family}.sigma"
        return Calibration(
            families={self.family: GpuFamily(sigma=self.sigma)},
            constants=(Constant(name=name, value=self.sigma, provenance="measured"),),
        )


def variation(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration, seen: Observed
) -> Variation:
    """The sigma of the plan's devices with which steps vary as they did.

    Raises UsageError for devices of several families, for one that the catalogue does not know, for a short log, and
    for one that does not time single steps.
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
    if not seen.single_steps:
        raise UsageError(
            f"the log of {seen.source} has means over several steps, or whole seconds of a progress bar, which do not "
            "tell how much single steps vary",
            hint="log every step by itself, for example with step_log.py of the launch folder",
        )
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
