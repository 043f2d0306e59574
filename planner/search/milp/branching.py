"""Branching on the placement of stages, which the ILP solver does not find by itself.

A relaxation puts part of every stage on every island and so crosses the slow links in thin slices: the sequence of
islands along the pipeline is decided first (``planner.search.milp.sequences``). Where stages have their own degrees a
relaxation mixes large ones, which take time, with small ones, which take few devices; and where they have several
chunks or divided backwards the critical path, which only a relaxation is cut by, is another for each order of the
devices. In both each stage's devices are decided first. Then little is left to the ILP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import floor, inf

from planner.cost.schedules import divides
from planner.frozen import dataclass
from planner.search.milp.program import Column, Program
from planner.search.milp.sequences import Sequence, sequences
from planner.search.milp.slow_links import SlowSends
from planner.search.milp.solver import Values
from planner.search.space.stages import Option, StageOptions

Key = tuple[int, ...]
"""Islands that a stage stands on, or its composition, behind the number of its devices where stages differ in it."""

Keys = frozenset[Key]

Assigned = tuple[tuple[int, Keys], ...]
"""(stage, what is left to it) for each decision."""

_WHOLE = 1 - 1e-6

FEW_OPTIONS = 60
"""The solver does without help with so few options of all stages together."""


@dataclass(frozen=True, slots=True)
class Subset:
    """Some of the plans of a choice."""

    sequence: Sequence | None = None
    """Their sequence of islands, about; None for any."""
    crossings: tuple[float, float] = (0.0, inf)
    """How often stages of one island send to another's, at least and at most."""
    wide: tuple[float, float] = (0.0, inf)
    """Stages that stand on several islands."""
    assigned: Assigned = ()

    @property
    def least_crossings(self) -> int:
        """Of plans in which no stage stands on several islands; else 0."""
        return int(self.crossings[0]) if self.wide[1] == 0.0 else 0

    def divided_into(self, islands: int) -> int:
        """Sequences of the fewest crossings of a part that has none yet, at most."""
        crossings = self.least_crossings
        return islands * (islands - 1) ** crossings if crossings and self.sequence is None else 0


class Branching:
    """Divides a choice: by its sequence of islands where there are any, else by what is decided of each stage first."""

    def __init__(
        self,
        program: Program,
        stages: StageOptions,
        options: list[list[Option]],
        take: list[list[Column]],
        crossings: SlowSends | None = None,
    ) -> None:
        self._program, self._stages, self._crossings = program, stages, crossings
        self._by_stage: list[dict[Key, list[Column]]] = []
        few = sum(map(len, options)) < FEW_OPTIONS and not stages.islands
        for row, variables in zip(options, take, strict=True):
            by_key: dict[Key, list[Column]] = {}
            for option, variable in zip(row, variables, strict=True):
                key = () if few else _key(stages, option.composition)
                by_key.setdefault(key, []).append(variable)
            self._by_stage.append(by_key)

    @cached_property
    def _most_stages(self) -> tuple[int, ...]:
        """How many stages an island's devices fill at most."""
        stages, counts = self._stages, []
        for number, pools in enumerate(stages.islands):
            devices = sum(
                device_type.devices
                for device_type in stages.topology.device_types
                if device_type.pool in pools
            )
            sizes = [
                sum(group.devices for group in groups)
                for groups in stages.compositions
                if stages.used_islands(groups) == {number}
            ]
            counts.append(devices // min(sizes) if sizes else 0)
        return tuple(counts)

    def assign(self, part: Subset) -> None:
        """Allow only what is in a part."""
        left: list[set[Key]] = [set(columns) for columns in self._by_stage]
        for stage, keys in part.assigned:
            left[stage] &= keys
        if part.sequence is not None:
            for stage, islands in enumerate(part.sequence.allowed(len(left))):
                left[stage] &= {(island,) for island in islands}
        for allowed, by_key in zip(left, self._by_stage, strict=True):
            for key, variables in by_key.items():
                most = 1.0 if key in allowed else 0.0
                for variable in variables:
                    self._program.upper[variable] = most
        if self._crossings is not None:
            self._crossings.limit(part.crossings, part.wide)

    def parts(self, part: Subset, values: Values) -> Iterator[Subset]:
        """Subsets that share no plan and leave none out, after a relaxation; none where the ILP is to go on."""
        if part.sequence is not None and self._crossings is not None:
            reached = self._crossings.reached(part.sequence, values)
            for half in part.sequence.halves(reached):
                tight = half.tightened(len(self._by_stage), self._most_stages)
                if tight is not None:
                    yield replace(part, sequence=tight)
        elif self._crossings is not None and not part.wide[0]:
            yield from self._by_sequence(part)
        else:
            yield from (replace(part, assigned=(*part.assigned, branch)) for branch in self._branches(values))

    def _by_sequence(self, part: Subset) -> Iterator[Subset]:
        """Every plan has exactly one sequence, or stages on several islands: the fewest crossings, and the rest."""
        depth, none, number = len(self._by_stage), (0.0, 0.0), max(1, part.least_crossings)
        for sequence in sequences(len(self._stages.islands), depth, number):
            tight = sequence.tightened(depth, self._most_stages)
            if tight is not None:
                yield Subset(tight, (number, number), none)
        if depth - 1 > number:
            yield Subset(crossings=(number + 1, inf), wide=none)
        if part.wide[1] and any(len(key) > 1 for by_key in self._by_stage for key in by_key):
            yield Subset(wide=(1.0, inf))

    def _branches(self, values: Values) -> Iterator[tuple[int, Keys]]:
        """Both sides of the mean of the stage that a solution divides most evenly, if it divides any."""
        best, stage = _WHOLE, -1
        shares = [
            {key: sum(values[variable] for variable in by_key[key]) for key in sorted(by_key)}
            for by_key in self._by_stage
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
    several = stages.choice.interleave > 1 or divides(stages.choice.schedule)
    return (composition,) if several else ()
