"""Rows for slow links: how often the pipeline crosses them, and what a stage at a crossing can still do.

A relaxation mixes a stage at a crossing with one that is not, at every stage a little, and so hides what a whole
stage loses. These rows bring it back wherever the crossing is:

    sum of crossing edges of a place <= sum of x of the options there that can be at a crossing
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from planner.frozen import dataclass
from planner.search.milp.program import Column, Program, added, ones
from planner.search.milp.sequences import Sequence
from planner.search.milp.solver import Values
from planner.search.space.stages import Option, StageOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A send from island to island in a program."""

    stage: int
    """The stage that sends; the next one receives."""
    islands: tuple[int, int]
    members: tuple[list[int], list[int]]
    """Compositions that may be at either end."""
    column: Column


class SlowSends:
    """The sends over slow links in a program, and the stages that stand on both sides of one."""

    def __init__(
        self,
        program: Program,
        stages: StageOptions,
        options: list[list[Option]],
        take: list[list[Column]],
        edges: list[Edge],
        wide: list[Column],
        cutoff_seconds: float,
    ) -> None:
        """``edges`` are those of all pairs of stages on one island each; seconds are in units of the cutoff."""
        self._program, self._stages, self._edges = program, stages, edges
        self._options, self._take, self._scale = options, take, cutoff_seconds
        self._count, self._wide = program.column("crossings"), program.column("wide")
        # crossings = sum of the edges from island to island; wide = sum of x of the stages on several
        program.equal(added(ones(edge.column for edge in edges), {self._count: 1.0}, -1.0))
        program.equal(added(ones(wide), {self._wide: 1.0}, -1.0))
        if stages.few_pairs:
            self._small_options()

    def _small_options(self) -> None:
        """Only options with which a crossing still ends before the cutoff are at one."""
        depth = self._stages.choice.depth
        edges: dict[int, list[Edge]] = {}
        for edge in self._edges:
            edges.setdefault(edge.stage, []).append(edge)
        for stage in range(depth):
            both: list[Column] = []
            options: dict[int, list[tuple[Option, Column]]] = {}
            for option, variable in self._of(stage):
                options.setdefault(option.composition, []).append((option, variable))
            for back in (False, True):
                crossing: dict[tuple[int, ...], list[Column]] = {}
                for edge in edges.get(stage - back, ()):
                    crossing.setdefault(tuple(edge.members[back]), []).append(edge.column)
                    both.append(edge.column)
                for members, columns in crossing.items():
                    offered = [item for member in members for item in options.get(member, ())]
                    small = [x for option, x in offered if self._fits(stage, option, not back, back)]
                    if len(small) < len(offered):
                        # sum of the crossing edges of a place on one side <= sum of its options that fit there
                        self._program.row(added(ones(columns), ones(small), -1.0), most=0.0)
            if 0 < stage < depth - 1 and both:
                small = [x for option, x in self._of(stage) if self._fits(stage, option, True, True)]
                # sum of the crossing edges on both sides <= 1 + sum of the options that fit between two
                self._program.row(added(ones(both), ones(small), -1.0), most=1.0)

    def limit(self, crossings: tuple[float, float], wide: tuple[float, float]) -> None:
        """Allow only so many crossings and stages on several islands."""
        for column, (least, most) in ((self._count, crossings), (self._wide, wide)):
            self._program.lower[column], self._program.upper[column] = least, most

    def reached(self, sequence: Sequence, values: Values) -> tuple[float, ...]:
        """The mean number of the first stage behind each block but the last, in a solution."""
        means = []
        for pair, (least, most) in zip(pairwise(sequence.islands), sequence.ends, strict=True):
            shares = [
                (edge.stage + 1, max(0.0, values[edge.column]))
                for edge in self._edges
                if edge.islands == pair and least <= edge.stage + 1 <= most
            ]
            whole = sum(share for _, share in shares)
            means.append(sum(stage * share for stage, share in shares) / whole if whole else 0.0)
        return tuple(means)

    def _of(self, stage: int) -> Iterator[tuple[Option, Column]]:
        return zip(self._options[stage], self._take[stage], strict=True)

    def _fits(self, stage: int, option: Option, slow_next: bool, slow_before: bool) -> bool:
        """True when a plan below the cutoff may have this option between such sends."""
        end = self._stages.end_at_slow_link(stage, option, slow_next=slow_next, slow_before=slow_before)
        return end <= self._scale
