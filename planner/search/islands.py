"""Islands of replicas that exchange rarely or compressed: the best local batches on given devices, and the devices.

As with all data parallelism a device gets as many sequences as it finishes in the common time; here it synchronises
with its own island alone. What islands exchange is added: no set of a box is spared what those islands exchange that
must take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from math import prod

from planner.capabilities import Capabilities
from planner.cluster.topology import DeviceType
from planner.cost.communication import Ring
from planner.cost.estimate import Estimator
from planner.dims.dimension import allowed
from planner.dims.sharding import trains_at
from planner.dims.sync import model_faults, with_islands
from planner.dims.trained import dealt_whole
from planner.errors import PlanError
from planner.plan.placement import Slot, place_stages
from planner.plan.values import Plan
from planner.search import data_parallel
from planner.search.backups import BackupShares
from planner.search.batch_partition import BatchPartition
from planner.search.data_parallel import DataParallel, Participants, Shares, added_by
from planner.search.deadline import NO_LIMIT
from planner.search.space.choices import Islands, recomputes_of, usable_device_types
from planner.search.space.device_sets import Box, Counts
from planner.search.values import Limits

ISLANDS = "islands"
"""Name of the partition of such plans."""

MOST_ISLANDS = 8
"""Islands of a division of which each choice of some is an outer choice of its own."""

MOST_LEADERS = 64
"""Ways to choose the device types that exchange, one of each island, that a bound looks at."""


def island_choices(row: Capabilities, limits: Limits, estimator: Estimator) -> Iterator[DataParallel]:
    """Outer choices of a target with islands at slow links, for whatever the limits let them exchange."""
    asked = [sync for sync in limits.syncs if {*sync.kinds} <= {*row.syncs}]
    given = (limits.pp, limits.tp, limits.cp, limits.ep, limits.etp)
    if not asked or any(values is not None and 1 not in values for values in given):
        return
    model = estimator.model
    if dealt_whole(model):
        return
    if limits.offload is not None and "none" not in limits.offload:
        return
    if not allowed((0,), limits.zero) or not trains_at(row, model, 0):
        return
    asked = [sync for sync in asked if not any(model_faults(sync, model))]
    device_types = usable_device_types(estimator.topology, model)
    pools = tuple(dict.fromkeys(device_type.pool for device_type in device_types))
    divisions = estimator.topology.divisions(pools) if len(pools) > 1 else ()
    some = dict.fromkeys(islands for division in divisions for islands in _taking_part(division))
    for recompute, sync, islands in product(recomputes_of(row, limits, model, device_types), asked, some):
        yield DataParallel(target=row.name, zero=0, recompute=recompute, sync=replace(sync, islands=islands))


def _taking_part(division: Islands) -> Iterator[Islands]:
    """Islands of a division that may take part: each two or more of them, or of many islands any."""
    if len(division) > MOST_ISLANDS:
        yield division
        return
    for number in range(len(division), 1, -1):
        yield from combinations(division, number)


def shares_of(
    choice: DataParallel, estimator: Estimator, limits: Limits, check: Callable[[], None] = NO_LIMIT.check
) -> Shares:
    """What finds the best shares of a choice; ``check`` may end it."""
    if choice.backup:
        return BackupShares(choice, estimator, limits, check)
    if choice.sync.exact:
        return data_parallel.shares_of(choice, estimator, limits)
    return IslandShares(choice, estimator, limits)


class IslandShares(Shares):
    """Best shares for one outer choice with islands."""

    def __init__(self, choice: DataParallel, estimator: Estimator, limits: Limits) -> None:
        super().__init__(choice, estimator, limits)
        number = {pool: index for index, pools in enumerate(choice.sync.islands) for pool in pools}
        self._island = [number.get(device_type.pool, -1) for device_type in self.device_types]
        exactly = len(choice.sync.islands) <= MOST_ISLANDS
        self._all = list(range(len(choice.sync.islands))) if exactly else None
        """Islands that all take part; None where any two do."""

    @property
    def sets(self) -> Box:
        """All sets of devices of these islands."""
        box = super().sets
        inside = (high if island >= 0 else 0 for high, island in zip(box.high, self._island, strict=True))
        return Box(box.low, tuple(inside))

    def bound(self, box: Box) -> float:
        """No shares of devices in the box are faster; infinite where there are none."""
        least = 2 if self._all is None else len(self._all)
        if sum(box.low) > self.batch or len(self._islands(box.high)) < least:
            return float("inf")
        if not all(self._connected(self._of(box, each)) for each in self._islands(box.low)):
            return float("inf")
        # T >= the most devices' least time + what the islands that must take part exchange at least
        ends = (self._apart(used, box).seconds + self._least_end(used, box) for used in self._modes(box))
        return min(ends, default=float("inf"))

    def best(self, counts: Counts, cutoff_seconds: float = float("inf")) -> tuple[float, Plan | None]:
        """A bound of all shares of these devices, and the fastest; None when there are none, or none is faster."""
        box = Box(counts, counts)
        bound = self.bound(box)
        if bound >= cutoff_seconds:
            return bound, None
        both = ((used, self._apart(used, box)) for used in self._modes(box))
        used, partition = min(both, key=lambda one: one[1].seconds + self._least_end(one[0], box))
        return bound, with_islands(self.choice.sync, self.choice.sync.islands, self._plan(used, partition))

    def _islands(self, counts: Counts) -> list[int]:
        """Islands with any of these devices."""
        return sorted({island for island, count in zip(self._island, counts, strict=True) if count})

    def _of(self, box: Box, island: int) -> Box:
        """The part of a box in one island."""
        low, high = (
            tuple(count if own == island else 0 for count, own in zip(counts, self._island, strict=True))
            for counts in (box.low, box.high)
        )
        return Box(low, high)

    def _most_in(self, device_type: DeviceType, box: Box, *, once: bool) -> int:
        return super()._most_in(device_type, self._of(box, self._island_of(device_type)), once=once)

    def _island_of(self, device_type: DeviceType) -> int:
        return self._island[self.device_types.index(device_type)]

    def _slots(self, counts: Counts) -> tuple[Slot, ...]:
        return place_stages([self._one_each(counts)], self.estimator.cluster)[0]

    def _ring(self, counts: Counts) -> Ring:
        """The ring of devices of one island, on the network of its own."""
        if counts not in self._rings:
            try:
                ring = self.estimator.ring_inside(self._slots(counts), self.pricer.kernels)
            except PlanError:
                ring = Ring(size=1, bytes_per_second=0.0, latency_seconds=0.0, crosses="")
            self._rings[counts] = ring
        return self._rings[counts]

    def _apart(self, used: Participants, box: Box) -> BatchPartition:
        """Each device splits its share as suits it; what it exchanges with its own island at the end follows."""
        rings = {each: self._fastest_ring(self._of(box, each)) for each in self._islands(box.high)}
        ends, micro = [], []
        for device_type, alone in zip(used.device_types, used.micro, strict=True):
            ring = rings[self._island_of(device_type)]
            one = self._shared(alone, device_type, ring)
            micro.append(one)
            end = self.pricer.each_sync_seconds(self._shape, ring, one.forward, one.back)
            if self.choice.sync.local:
                group = self._group(device_type)
                end = end + self.pricer.update_seconds(self._shape, group, ring)
            ends.append(end)
        return self._each_its_own(replace(used, micro=tuple(micro)), added_by(ends), box)

    def _least_end(self, used: Participants, box: Box) -> float:
        """Seconds of a step's part of an exchange, at least, and of an update that follows it."""
        update = 0.0 if self.choice.sync.local else self._least_update(used, box)
        return update + self._least_exchange(box)

    def _least_exchange(self, box: Box) -> float:
        islands = self._islands(box.low) if self._all is None else self._all
        if len(islands) < 2:
            return 0.0
        able = [self._leaders(box, island) for island in islands]
        if prod(map(len, able)) > MOST_LEADERS:
            return 0.0
        least = min(self._exchange(leaders, islands, box) for leaders in product(*able))
        return least / self.choice.sync.every

    def _leaders(self, box: Box, island: int) -> list[DeviceType]:
        """Device types whose first device may exchange for its island: up to the first that must take part."""
        leaders = []
        for device_type, own, low, high in zip(
            self.device_types, self._island, box.low, box.high, strict=True
        ):
            if own == island and high:
                leaders.append(device_type)
                if low:
                    break
        return leaders

    def _exchange(self, leaders: tuple[DeviceType, ...], islands: list[int], box: Box) -> float:
        """Seconds of an exchange of these device types, one of each island."""
        groups = [self._group(device_type) for device_type in leaders]
        slots = [place_stages([(group,)], self.estimator.cluster)[0][0] for group in groups]
        between = self.estimator.ring_between(slots, self.pricer.kernels)
        if not between.connected:
            return float("inf")
        rings = [self._fastest_ring(self._of(box, island)) for island in islands]
        return max(
            self.pricer.exchange_seconds(self._shape, group, ring, between)
            for group, ring in zip(groups, rings, strict=True)
        )
