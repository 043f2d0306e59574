"""Families that do the same work with each micro-batch, bounded together before any of them is looked at.

A large cluster has tens of thousands of families; most are never worth a look of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from planner.cost.estimate import Estimator
from planner.runtimes.capabilities import Target
from planner.runtimes.registry import TARGETS
from planner.search.bounds.best import FamilyBounds
from planner.search.deadline import Deadline
from planner.search.space.choices import Family, depths, families, targets_of, uniform
from planner.search.space.partitions import View, views
from planner.search.values import Limits

Families = list[tuple[float, Family]]
"""Families, each with a bound of its own."""


@dataclass(frozen=True, slots=True)
class Group:
    """Families that differ in ZeRO and in the number of replicas only; or one whose stages have their own degrees."""

    families: tuple[Family, ...]

    @property
    def first(self) -> Family:
        """One of them."""
        return self.families[0]


def searched(
    estimator: Estimator, limits: Limits, *, one_degree: bool
) -> Iterator[tuple[Target, str, View, list[Family]]]:
    """All families by target, name of the view, and view.

    With ``one_degree`` only targets whose stages may have their own degrees, and only families in which they have not.
    """
    for row in targets_of(limits):
        for name, view in views(estimator, row).items() if row.dp_per_stage or not one_degree else ():
            yield row, name, view, _families(row, name, view, limits, one_degree=one_degree)


def _families(row: Target, network: str, view: View, limits: Limits, *, one_degree: bool) -> list[Family]:
    model = view.estimator.model
    found = families(row, limits, model, view.kinds)
    if one_degree:
        found = (part for family in found for part in uniform(family, limits, model, view.kinds))
    return [replace(family, network=network) for family in found]


def grouped(items: Iterable[Family]) -> tuple[Group, ...]:
    """The families in the order in which they come, those of equal work together."""
    found: dict[object, list[Family]] = {}
    for family in items:
        key = family if family.dp is None else (family.recompute, family.tp, family.micro_batch)
        found.setdefault(key, []).append(family)
    return tuple(Group(tuple(members)) for members in found.values())


def group_bound(group: Group, bounds: FamilyBounds) -> float:
    """No plan of the group is faster than all devices at the best rate of its micro-batches, without other traffic."""
    family = group.first
    if family.tp is None or family.dp is None:
        return 0.0
    model = bounds.estimator.model
    batch = family.batch // family.dp
    alone = replace(
        family,
        zero=min(TARGETS[family.target].zero_without_pipeline),
        dp=1,
        batch=batch,
        micro_batches=model.training.global_batch // batch,
    )
    rate = bounds.rates.free_rate(alone)
    return model.layers * alone.micro_batches / rate if rate else float("inf")


def members(group: Group, view: View, limits: Limits, deadline: Deadline) -> Families:
    """The families of a group that may have plans; raises ``Struck`` at the deadline."""
    found = []
    for family in group.families:
        deadline.check()
        possible = depths(family, limits, view.estimator.model, view.kinds)
        if possible:
            found.append((view.bounds.family_bound(family, max(possible)), family))
    return [item for item in found if item[0] < float("inf")]


def of_one_degree(item: Family, view: View, limits: Limits, deadline: Deadline) -> Families:
    """The parts of a family of own degrees in which all stages have the same; raises ``Struck`` at the deadline."""
    parts = Group(tuple(uniform(item, limits, view.estimator.model, view.kinds)))
    return members(parts, view, limits, deadline)
