"""Which island each stage stands on: the branching that the ILP's own solver does not find.

A relaxation puts part of every stage on every island and so crosses the slow links in thin slices. Once each
stage knows its island, little is left to decide.
"""

from __future__ import annotations

from collections.abc import Iterator

import pulp

from planner.search.options import Option, StageOptions

Where = frozenset[int]
"""Islands that one stage stands on."""

Assigned = tuple[tuple[int, Where], ...]
"""(stage, where) for the stages that are decided."""

_WHOLE = 1 - 1e-6


class IslandVariables:
    """The options' variables of each stage by island."""

    def __init__(
        self, stages: StageOptions, options: list[list[Option]], take: list[list[pulp.LpVariable]]
    ) -> None:
        self._by_stage: list[dict[Where, list[pulp.LpVariable]]] = []
        for row, variables in zip(options, take, strict=True):
            found: dict[Where, list[pulp.LpVariable]] = {}
            for option, variable in zip(row, variables, strict=True):
                where = stages.used_islands(stages.compositions[option.composition])
                found.setdefault(where, []).append(variable)
            self._by_stage.append(found)

    def wide(self) -> list[pulp.LpVariable]:
        """Options that stand on several islands."""
        return [
            variable
            for found in self._by_stage
            for where, variables in found.items()
            if len(where) > 1
            for variable in variables
        ]

    def assign(self, assigned: Assigned) -> None:
        """Allow only options on the decided islands."""
        decided = dict(assigned)
        for stage, found in enumerate(self._by_stage):
            for where, variables in found.items():
                for variable in variables:
                    variable.upBound = 1.0 if decided.get(stage, where) == where else 0.0

    def branches(self) -> Iterator[tuple[int, Where]]:
        """Ways to decide the stage that the last solution divides most evenly; none where no stage is divided."""
        best, stage = _WHOLE, -1
        for number, found in enumerate(self._by_stage):
            largest = max(
                sum(variable.value() or 0.0 for variable in variables) for variables in found.values()
            )
            if largest < best:
                best, stage = largest, number
        if stage >= 0:
            yield from ((stage, where) for where in sorted(self._by_stage[stage], key=sorted))
