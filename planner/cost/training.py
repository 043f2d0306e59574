"""What the devices of a plan cost while they work; and a whole training run: its time, its price, what failures take.

Only devices that the plan uses are paid, each on its own, even where its node is rented as a whole. Power is the board
power of every used device for the whole step, waiting included: an upper end that needs no measurement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from planner.cluster.spec import ClusterSpec
from planner.cost.failures import NEVER, Interruptions
from planner.cost.values import Estimate
from planner.frozen import dataclass
from planner.plan.values import Plan

Devices = Mapping[tuple[str, str], int]
"""Number of devices by (pool, gpu)."""


def devices_of(plan: Plan) -> Counter[tuple[str, str]]:
    """The devices that a plan uses."""
    devices: Counter[tuple[str, str]] = Counter()
    for group in (group for stage in plan.stages for group in stage.replicas):
        devices[group.pool, group.gpu] += group.devices
    return devices


def price_per_hour(devices: Devices, cluster: ClusterSpec) -> float | None:
    """Price of the devices for one hour, in the currency of the cluster file; None when one has no price."""
    prices = {pool.name: pool.price_per_gpu_hour for pool in cluster.pools}
    return _total((prices[pool], count) for (pool, _), count in devices.items())


def watts(devices: Devices, cluster: ClusterSpec) -> float | None:
    """Power of the devices, watt; None when that of one is unknown."""
    pools = {pool.name: pool for pool in cluster.pools}
    return _total((cluster.watts_of(pools[pool], gpu), count) for (pool, gpu), count in devices.items())


def _total(entries: Iterable[tuple[float | None, int]]) -> float | None:
    total = 0.0
    for each, count in entries:
        if each is None:
            return None
        total += each * count
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A whole training run of so many tokens, at the predicted speed."""

    tokens: float
    """Tokens to train on."""
    seconds: float
    """Seconds until they are trained on, checkpoints and restarts included."""
    price: float | None
    """Its price, in the currency of the cluster file; null when one device has none."""
    joules: float | None
    """Its energy at board power; null when that of one device is unknown."""
    goodput: float = 1.0
    """Share of the time that is useful work; the rest is checkpoints, restarts and repeated work."""
    checkpoint_interval_seconds: float | None = None
    """Work between two checkpoints; null without failures."""
    stops: float = 0.0
    """Failures expected during the run."""


def training_run(estimate: Estimate, tokens: float, interruptions: Interruptions = NEVER) -> TrainingRun:
    """What so many tokens take with a plan; infinite where failures let nothing be done."""
    per_second, share = (
        interruptions.per_second(estimate.devices),
        interruptions.goodput(estimate.devices),
    )
    seconds = tokens / estimate.tokens_per_second / share if share else math.inf
    price, watts = estimate.price_per_hour, estimate.watts
    return TrainingRun(
        tokens=tokens,
        seconds=seconds,
        price=None if price is None else price * seconds / 3600 if price else 0.0,
        joules=None if watts is None else watts * seconds,
        goodput=share,
        checkpoint_interval_seconds=interruptions.interval(estimate.devices),
        stops=seconds * per_second,
    )
