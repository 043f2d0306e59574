"""Families that do the same work with each micro-batch, bounded together before any of them is looked at.

A large cluster has tens of thousands of families; most are never worth a look of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.search.bounds import Bounds
from planner.search.space import Family
from planner.targets import TARGETS


@dataclass(frozen=True, slots=True)
class Group:
    """Families that differ in ZeRO and in the number of replicas only; or one whose stages have their own degrees."""

    families: tuple[Family, ...]

    @property
    def first(self) -> Family:
        """One of them."""
        return self.families[0]


def grouped(families: Iterable[Family]) -> tuple[Group, ...]:
    """The families in the order in which they come, those of equal work together."""
    found: dict[object, list[Family]] = {}
    for family in families:
        key = family if family.dp is None else (family.recompute, family.tp, family.micro_batch)
        found.setdefault(key, []).append(family)
    return tuple(Group(tuple(members)) for members in found.values())


def group_bound(group: Group, bounds: Bounds) -> float:
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
    rate = bounds.free_rate(alone)
    return model.layers * alone.micro_batches / rate if rate else float("inf")
