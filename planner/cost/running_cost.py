"""What the devices of a plan cost while they work: price and power.

Only devices that the plan uses are paid, each on its own, even where its node is rented as a whole. Power is
the board power of every used device for the whole step, waiting included: an upper end that needs no measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from planner.cluster.spec import ClusterSpec
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
