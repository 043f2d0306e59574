"""Backup replicas: data parallelism on equal devices of one type, of which each step drops the slowest.

A step has as many sequences whoever is dropped, so that the numbers of devices are few: a divisor of the batch, and the
backups. All of them are priced; no bound is needed but the least of those prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from planner.capabilities import Capabilities
from planner.cost.estimate import Estimator
from planner.dims.dimension import allowed
from planner.dims.sharding import trains_at, trains_whole
from planner.errors import PlanError
from planner.plan.values import Plan, Stage
from planner.search.data_parallel import DataParallel, Shares
from planner.search.space.choices import recomputes_of, usable_device_types
from planner.search.space.device_sets import Box, Counts, all_sets
from planner.search.values import Limits
from planner.units import divisors

BACKUPS = "backups"
"""Name of the partition of such plans."""


def backup_choices(row: Capabilities, limits: Limits, estimator: Estimator) -> Iterator[DataParallel]:
    """Outer choices of a target that drops gradients, where any device type is known to vary."""
    given = (limits.pp, limits.tp, limits.cp, limits.ep, limits.etp)
    if not limits.backup or any(values is not None and 1 not in values for values in given):
        return
    model = estimator.model
    if limits.offload is not None and "none" not in limits.offload:
        return
    able = trains_whole(model) and model.training.optimizer in row.sharding_optimizers
    if not able or not estimator.pricer(row.name).varies:
        return
    device_types = usable_device_types(estimator.topology, model)
    for zero in allowed(row.backup_zero, limits.zero):
        if not trains_at(row, model, zero):
            continue
        for recompute in recomputes_of(row, limits, model, device_types):
            yield DataParallel(target=row.name, zero=zero, recompute=recompute, backup=limits.backup)


class BackupShares(Shares):
    """Plans of one outer choice with backup replicas; ``check`` is called before each is priced, and may end it."""

    def __init__(
        self, choice: DataParallel, estimator: Estimator, limits: Limits, check: Callable[[], None]
    ) -> None:
        super().__init__(choice, estimator, limits)
        self._check = check
        self._useful = self.batch
        # Of a batch of one sequence there are still two devices that may make it.
        self.batch += choice.backup

    @property
    def sets(self) -> Box:
        """All sets of devices."""
        return all_sets(self.device_types, self.batch, 1)

    def bound(self, box: Box) -> float:
        """The least of all plans in the box; infinite where there are none."""
        inside = (
            seconds
            for counts, (seconds, _) in self._plans.items()
            if all(low <= count <= high for low, count, high in zip(box.low, counts, box.high, strict=True))
        )
        return min(inside, default=float("inf"))

    def best(self, counts: Counts, cutoff_seconds: float = float("inf")) -> tuple[float, Plan | None]:
        """The seconds of the fastest plan of these devices, and the plan; None when there is none that is faster."""
        seconds, plan = self._plans.get(counts, (float("inf"), None))
        return seconds, plan if seconds < cutoff_seconds else None

    @cached_property
    def _plans(self) -> dict[Counts, tuple[float, Plan]]:
        """The fastest plan of each set of devices that has any."""
        best: dict[Counts, tuple[float, Plan]] = {}
        for counts, plan in self._all():
            self._check()
            try:
                seconds = self.estimator.step_seconds(plan)
            except PlanError:
                continue
            if counts not in best or seconds < best[counts][0]:
                best[counts] = seconds, plan
        return best

    def _all(self) -> Iterator[tuple[Counts, Plan]]:
        """Every number of devices of each type, of backups and of equal micro-batches that fit."""
        for index, device_type in enumerate(self.device_types):
            for backup in range(1, min(self.choice.backup, device_type.devices - 1) + 1):
                for kept in divisors(self._useful):
                    number = kept + backup
                    if number > device_type.devices:
                        continue
                    counts = tuple(number if each == index else 0 for each in range(len(self.device_types)))
                    most, share = self.most_sequences(device_type, number), self._useful // kept
                    for steps in divisors(share):
                        if share // steps > most:
                            continue
                        group = self._group(device_type, number, share, steps)
                        stage = Stage(
                            first_layer=0,
                            end_layer=self.estimator.model.layers,
                            replicas=(group,),
                            recompute=self.choice.recompute,
                        )
                        yield (
                            counts,
                            Plan(
                                target=self.choice.target,
                                zero=self.choice.zero,
                                backup=backup,
                                stages=(stage,),
                            ),
                        )
