"""Where each stage stands: the branching that the ILP's own solver does not find.

A relaxation puts part of every stage on every island and so crosses the slow links in thin slices. Where stages have
their own degrees it mixes large ones, which take time, with small ones, which take few devices. Once each stage knows
its island, or its devices, little is left to decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor

from planner.search.milp.program import Column, Program
from planner.search.milp.solver import Values
from planner.search.space.stages import Option, StageOptions

Key = tuple[int, ...]
"""Islands that a stage stands on, or the number of its devices and its composition."""

Keys = frozenset[Key]

Assigned = tuple[tuple[int, Keys], ...]
"""(stage, what is left to it) for each decision."""

_WHOLE = 1 - 1e-6

FEW_OPTIONS = 200
"""The solver does without help with so few options of stages that have degrees of their own."""


class Branching:
    """The options' variables of each stage by what is decided of it first."""

    def __init__(
        self, program: Program, stages: StageOptions, options: list[list[Option]], take: list[list[Column]]
    ) -> None:
        self._program = program
        self._by_stage: list[dict[Key, list[Column]]] = []
        few = sum(map(len, options)) < FEW_OPTIONS and not stages.islands
        for row, variables in zip(options, take, strict=True):
            found: dict[Key, list[Column]] = {}
            for option, variable in zip(row, variables, strict=True):
                key = () if few else _key(stages, option.composition)
                found.setdefault(key, []).append(variable)
            self._by_stage.append(found)

    def assign(self, assigned: Assigned) -> None:
        """Allow only what the decisions leave."""
        for stage, found in enumerate(self._by_stage):
            left = [keys for number, keys in assigned if number == stage]
            for key, variables in found.items():
                most = 1.0 if all(key in keys for keys in left) else 0.0
                for variable in variables:
                    self._program.upper[variable] = most

    def branches(self, values: Values) -> Iterator[tuple[int, Keys]]:
        """Both sides of the mean of the stage that a solution divides most evenly, if it divides any."""
        best, stage = _WHOLE, -1
        shares = [
            {key: sum(values[variable] for variable in found[key]) for key in sorted(found)}
            for found in self._by_stage
        ]
        for number, row in enumerate(shares):
            if max(row.values()) < best:
                best, stage = max(row.values()), number
        if stage >= 0:
            row = shares[stage]
            # A relaxation that could not be solved has no shares.
            whole = sum(row.values()) or 1.0
            mean = sum(place * share for place, share in enumerate(row.values())) / whole
            for keys in (list(row)[: floor(mean) + 1], list(row)[floor(mean) + 1 :]):
                yield stage, frozenset(keys)


def _key(stages: StageOptions, composition: int) -> Key:
    groups = stages.compositions[composition]
    if stages.islands:
        return tuple(sorted(stages.used_islands(groups)))
    if stages.choice.family.dp is None:
        return sum(group.devices for group in groups), composition
    return ()
