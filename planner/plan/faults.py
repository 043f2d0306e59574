"""A broken rule of a plan, and where in the plan it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.errors import KeyPath
from planner.plan.values import Plan, ReplicaGroup


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule and where in the plan it shows."""

    path: KeyPath
    """Keys of the plan file, e.g. ``("stages", 1, "replicas", 0, "tp")``."""
    what: str
    """What is wrong and what was expected."""


def groups_of(plan: Plan) -> Iterator[tuple[KeyPath, ReplicaGroup]]:
    """Every group of replicas with its place in the plan file."""
    for number, stage in enumerate(plan.stages):
        for index, group in enumerate(stage.replicas):
            yield ("stages", number, "replicas", index), group


def in_words(values: Iterable[object]) -> str:
    """Values with commas between them."""
    return ", ".join(str(value) for value in values)
