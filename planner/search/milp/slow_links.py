"""Rows for slow links: how often the pipeline crosses them, and what a stage at a crossing can still do.

A relaxation mixes a stage at a crossing with one that is not, at every stage a little, and so hides what a whole
stage loses. Two kinds of rows bring it back wherever the crossing is, as the sum over all places:

    sum of crossing edges of a place <= sum of x of the options there that can be at a crossing
    T >= once + sum_e e (what the stage at edge e still has to do)    one crossing of each kind
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf

from planner.cost.schedules import round_trip
from planner.frozen import dataclass
from planner.search.milp.program import Column, Program, Terms, added, combined, ones
from planner.search.milp.sequences import Sequence
from planner.search.milp.solver import TOLERANCE, Values
from planner.search.space.stages import Option, StageOptions

MOST_ALIKE = 2
"""Crossings from one island to a certain other one, at most, for which rows of the second kind are kept."""


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
        self._waived: dict[tuple[tuple[int, int], int], Column] = {}
        """What lifts the rows for so many crossings of a kind, where there may be more."""
        if stages.few_pairs:
            self._small_options()

    def _small_options(self) -> None:
        """Only options with which a crossing still ends before the cutoff are at one."""
        depth = self._stages.choice.depth
        for stage in range(depth):
            both: list[Column] = []
            for back in (False, True):
                mine = [edge for edge in self._edges if edge.stage == stage - back]
                both += [edge.column for edge in mine]
                for members in {tuple(edge.members[back]) for edge in mine}:
                    here = ones(edge.column for edge in mine if tuple(edge.members[back]) == members)
                    offered = [
                        (option, variable)
                        for option, variable in self._of(stage)
                        if option.composition in members
                    ]
                    small = [x for option, x in offered if self._fits(stage, option, not back, back)]
                    if len(small) < len(offered):
                        # sum of the crossing edges of a place on one side <= sum of its options that fit there
                        self._program.row(added(here, ones(small), -1.0), most=0.0)
            if 0 < stage < depth - 1 and both:
                small = [x for option, x in self._of(stage) if self._fits(stage, option, True, True)]
                # sum of the crossing edges on both sides <= 1 + sum of the options that fit between two
                self._program.row(added(ones(both), ones(small), -1.0), most=1.0)

    def end_after(self, end: Column, once: Terms) -> None:
        """The end of the step is after what the stages at one crossing have to do, wherever it is.

        ``once`` is the sum of all stages' seconds of one micro-batch.
        """
        stages = self._stages
        if not stages.few_pairs or not stages.choice.plain:
            return
        for kind in sorted({edge.islands for edge in self._edges}):
            mine = [edge for edge in self._edges if edge.islands == kind]
            for number in range(1, MOST_ALIKE + 1):
                self._waived[kind, number] = self._program.column(f"waived_{kind[0]}_{kind[1]}_{number}")
                for back in (False, True):
                    work = {edge.column: -self._work(edge, back) / number for edge in mine}
                    # T >= once + the mean over the n crossings of a kind of the rest of a stage at them
                    terms = combined([(-1.0, once), (1.0, {end: 1.0, self._waived[kind, number]: 1.0})])
                    self._program.row(added(terms, work), least=0.0)

    def _work(self, edge: Edge, back: bool) -> float:
        """What a stage at a crossing has still to do when the first micro-batch is back, at least, and its tail."""
        stage, seconds = edge.stage + back, inf
        for composition in edge.members[back]:
            option = self._stages.option(stage, composition, self._stages.choice.interleave)
            up, down = self._stages.least_sent(stage, composition, slow_next=not back, slow_before=back)
            family, depth = self._stages.choice.family, self._stages.choice.depth
            trip = round_trip(stage, depth, family.micro_batches)
            forwards, backwards = trip.own.forward - 1, trip.own.backward - 1
            forward, backward = sum(option.forward) + up, sum(option.backward) + down
            if up + down < inf:
                seconds = min(seconds, forwards * forward + backwards * backward)
        return seconds * (1 - TOLERANCE) / self._scale if seconds < inf else 0.0

    def limit(
        self, sequence: Sequence | None, crossings: tuple[float, float], wide: tuple[float, float]
    ) -> None:
        """Allow only so many crossings and stages on several islands."""
        for column, (least, most) in ((self._count, crossings), (self._wide, wide)):
            self._program.lower[column], self._program.upper[column] = least, most
        kinds = [] if sequence is None else list(pairwise(sequence.islands))
        for (kind, number), column in self._waived.items():
            self._program.upper[column] = 0.0 if kinds and kinds.count(kind) <= number else inf

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
