"""A bound at no cost: useful operations at the peak of all devices, and the rate at which nodes get their data.

It is used until another bound is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.cost.compute import model_flops
from planner.cost.estimate import Estimator
from planner.search.space.choices import usable_device_types
from planner.units import flops_from_tflops


def floor_seconds(estimator: Estimator) -> float:
    """No step on devices of this cluster is shorter."""
    device_types = usable_device_types(estimator.topology, estimator.model)
    return least_seconds(estimator, {device_type.key: device_type.devices for device_type in device_types})


def least_seconds(estimator: Estimator, devices: Mapping[tuple[str, str], int]) -> float:
    """No step on these devices, numbers by (pool, gpu), is shorter; infinite without devices."""
    fed = estimator.feed.least_seconds(devices) if estimator.feed else 0.0
    if estimator.calibration.layers:
        return fed  # measured layers may beat the datasheet
    training = estimator.model.training
    gpus = estimator.cluster.gpus
    # Devices without the number format do nothing.
    peaks = sum(
        count * flops_from_tflops(gpus[gpu].tflops.get(training.precision, 0.0))
        for (_, gpu), count in devices.items()
    )
    # T >= useful operations / sum of the devices' peaks
    return max(fed, model_flops(estimator.model) / peaks) if peaks else float("inf")
