"""Quick pipelines whose stages have degrees of their own, built of runs; they prove nothing.

A run is what stands on one node: at its ends stages with few layers, which send to other nodes, and between them others
with more; or one stage on several whole nodes. For a given time of the busiest stage, the runs that hold most layers in
the least time of one micro-batch are put together node by node, as in a shortest path. What is best for some such time
is priced.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice, permutations
from math import floor, inf
from typing import NamedTuple

from planner.capabilities import Capabilities
from planner.cost.estimate import Estimator
from planner.frozen import dataclass
from planner.plan.placement import ends_fault, joins_ends
from planner.search.bounds.lagrangian import StagePart
from planner.search.bounds.node_runs import Nodes
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.heuristics.local import Layering, stand
from planner.search.space.choices import Family
from planner.search.space.partitions import NetworkPartition
from planner.search.values import Limits, Scored
from planner.targets import target

NEAR, OTHER, END = 0, 1, 2
"""Beside a stage: a neighbour on its node, one on another node, and nothing."""

MOST_TIMES = 12
"""Times of the busiest stage above the least one that are looked at."""

PRICED = 3
"""Pipelines of a family that are priced."""

MOST_ORDERS = 24
"""Orders of the device types along the pipeline."""

_SLACK = 1e-9


class Held(NamedTuple):
    """A stage and its layers."""

    part: StagePart
    layers: int


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring stages on whole nodes."""

    layers: int
    seconds: float
    """Of one micro-batch through all of them."""
    stages: tuple[Held, ...]

    def __add__(self, other: Run) -> Run:
        return Run(self.layers + other.layers, self.seconds + other.seconds, self.stages + other.stages)


Runs = dict[int, Run]
"""By the layers that they hold, the quickest."""

OfNodes = dict[int, dict[int, Runs]]
"""By device type and by the number of nodes that they take."""

NOTHING = Run(0, 0.0, ())

Joins = tuple[Iterable[Run], Collection[Run]]
"""Every one of the first with every one of the second behind it."""

_ALONE = (NOTHING,)
"""Before runs that nothing stands before."""


class RunsOnNodes:
    """Pipelines of runs, for one family."""

    def __init__(
        self,
        parts: Sequence[StagePart],
        nodes: Sequence[Nodes],
        layers: int,
        micro_batches: int,
        joined: Callable[[StagePart, StagePart], bool],
    ) -> None:
        """``nodes`` of each device type; ``joined``: whether stages may be the first and the last one."""
        self._nodes, self._layers, self._steps, self._joined = nodes, layers, micro_batches, joined
        self._parts = [part for part in parts if part.sides is not None]
        # About half of the stages are ahead of one, where a node holds two or three.
        self._alive = min(micro_batches, sum(each.count for each in nodes))

    def pipelines(self, below: float) -> list[tuple[float, Run]]:
        """About the seconds of a step, and the pipeline, the quickest first; only where it is less than ``below``."""
        pipeline = cache(self._pipeline)
        times = [time for time in self._times() if time * self._steps < below]
        longest = pipeline(times[-1]) if times else None
        if longest is None:
            return []
        # m busy + what the first micro-batch takes beyond that, which is least in the longest time
        times = [time for time in times if longest.seconds + (self._steps - 1) * time < below]
        if not times or pipeline(times[-1]) is None:
            return []
        first = bisect_left(times, True, key=lambda time: pipeline(time) is not None)
        found: dict[tuple[Held, ...], tuple[float, Run]] = {}
        for time in times[first : first + MOST_TIMES]:
            best = pipeline(time)
            if best is not None:
                seconds = best.seconds + (self._steps - 1) * time
                if seconds < min(below, found.get(best.stages, (inf, best))[0]):
                    found[best.stages] = seconds, best
        return sorted(found.values(), key=lambda item: item[0])

    def _times(self) -> list[float]:
        """What a stage may take for one micro-batch."""
        sides = (NEAR, OTHER, END)
        times = {
            more + layers * part.layer_seconds
            for part in self._parts
            for more in {self._more(part, before, after) for before in sides for after in sides}
            if more < inf
            for layers in range(1, self._layers)
        }
        return sorted(times)

    def _more(self, part: StagePart, before: int, after: int) -> float:
        """Seconds beside the layers."""
        assert part.sides is not None
        received = 0.0 if before == END else part.sides.before_seconds[before]
        sent = 0.0 if after == END else part.sides.next_seconds[after]
        return part.ends[1 if before == END else 2 if after == END else 0] + received + sent

    def _stage(self, part: StagePart, before: int, after: int, busy: float) -> Run:
        """The stage with as many layers as it can hold; nothing where that is none."""
        more = self._more(part, before, after)
        if more >= busy:
            return NOTHING
        # m busy + tail: what follows its last micro-batch counts too.
        layers = floor((busy - more) / (part.layer_seconds + part.tail_seconds / self._steps) + _SLACK)
        layers = min(layers, part.room.layers(self._alive), self._layers)
        if layers < 1:
            return NOTHING
        # At the ends of the pipeline it follows all else.
        tail = part.tail_seconds if END in (before, after) else 0.0
        return Run(layers, more + layers * (part.layer_seconds + tail), (Held(part, layers),))

    def _pipeline(self, busy: float) -> Run | None:
        """The quickest one found that holds all layers where no stage takes more than ``busy`` for a micro-batch."""
        used = [number for number, nodes in enumerate(self._nodes) if nodes.count]
        middle = self._best({number: self._by_width(number, busy, OTHER, OTHER) for number in used})
        first = {number: self._by_width(number, busy, END, OTHER) for number in used}
        last = {number: self._by_width(number, busy, OTHER, END) for number in used}
        openers = {_degrees(run.stages[0]): run.stages[0] for run in _every(first)}
        closers = {_degrees(run.stages[-1]): run.stages[-1] for run in _every(last)}
        found: list[Run] = []
        for opener in openers.values():
            able = {degrees for degrees, stage in closers.items() if self._joined(opener.part, stage.part)}

            def opens(run: Run, opener: Held = opener) -> bool:
                return _degrees(run.stages[0]) == _degrees(opener)

            def joined(run: Run, able: set[tuple[int, int]] = able) -> bool:
                return _degrees(run.stages[-1]) in able

            begins, ends = self._best(first, opens), self._best(last, joined)
            for order in islice(permutations(used), MOST_ORDERS):
                nodes = [number for number in order for _ in range(self._nodes[number].count)]
                found += self._along(nodes, begins, middle, ends)
        return min(found, key=lambda run: run.seconds, default=None)

    def _best(
        self, found: dict[int, dict[int, list[Run]]], wanted: Callable[[Run], bool] = lambda run: True
    ) -> OfNodes:
        """The best runs among those wanted."""
        return {
            number: {
                width: _best([(_ALONE, [*filter(wanted, runs)])], self._layers)
                for width, runs in widths.items()
            }
            for number, widths in found.items()
        }

    def _along(self, nodes: Sequence[int], begins: OfNodes, middle: OfNodes, ends: OfNodes) -> Iterator[Run]:
        """Pipelines with all layers along these nodes, of which any may be left out."""
        # The best on the first nodes, [number of nodes].
        begun: list[Runs] = [{}]
        for end, number in enumerate(nodes, start=1):
            longer: list[Joins] = [(_ALONE, begun[-1].values())]
            for width, runs in middle[number].items():
                start = end - width
                if start < 0 or nodes[start] != number:
                    continue
                longer += (_ALONE, begins[number][width].values()), (begun[start].values(), runs.values())
                for before in begun[start].values():
                    for last in ends[number][width].values():
                        if before.layers + last.layers >= self._layers:
                            yield before + last
            begun.append(_best(longer, self._layers))

    def _by_width(self, number: int, busy: float, before: int, after: int) -> dict[int, list[Run]]:
        """Runs on nodes of a device type, by how many of them they take."""
        found = {1: list(self._of_node(number, busy, before, after))}
        devices = self._nodes[number].devices
        for part in self._parts:
            width, left = divmod(part.devices, devices)
            if part.device_type == number and width > 1 and not left:
                stage = self._stage(part, before, after, busy)
                found.setdefault(width, []).extend([stage] if stage.layers else [])
        return found

    def _of_node(self, number: int, busy: float, before: int, after: int) -> Iterator[Run]:
        """Runs on a node of a device type: on all its devices, as the next stage would stand on what they leave.

        Nothing stands behind the last run.
        """
        devices = self._nodes[number].devices
        parts = [
            part
            for part in self._parts
            if part.device_type == number and part.sides and not part.sides.spread
        ]

        def stages(before: int, after: int) -> list[tuple[int, Run]]:
            able = ((part.devices, self._stage(part, before, after, busy)) for part in parts)
            return [(size, stage) for size, stage in able if stage.layers]

        near = stages(NEAR, NEAR)
        inner: list[Runs] = [{0: NOTHING}]
        for room in range(1, devices + 1):
            longer = ((_at(inner, room - size), (stage,)) for size, stage in near)
            inner.append(_best(longer, self._layers))
        free = range(devices) if after == END else range(1)
        yield from (stage for size, stage in stages(before, after) if devices - size in free)
        closing = stages(NEAR, after)
        for size, opens in stages(before, NEAR):
            for other, closes in closing:
                for left in free:
                    for run in _at(inner, devices - size - other - left):
                        yield opens + run + closes


def best_of_runs(
    families: Sequence[Family],
    partition: NetworkPartition,
    scorer: Estimator,
    limits: Limits,
    below: float,
    deadline: Deadline = NO_LIMIT,
) -> Iterator[Scored]:
    """Plans of families whose stages have degrees of their own, each faster than those before and than ``below``.

    ``scorer`` knows the whole cluster. Raises ``Struck``.
    """
    bounds, model = partition.bounds, partition.estimator.model
    layering = Layering(partition, scorer, limits)
    for family in families:
        deadline.check()
        row = target(family.target)

        def joined(
            first: StagePart, last: StagePart, zero: int = family.zero, row: Capabilities = row
        ) -> bool:
            assert first.group is not None
            assert last.group is not None
            return not joins_ends(row, model) or not ends_fault(zero, [first.group], [last.group])

        runs = RunsOnNodes(
            bounds.parts(family), bounds.rates.node_counts, model.layers, family.micro_batches, joined
        )
        for _, run in runs.pipelines(below)[:PRICED]:
            groups = [stage.part.group for stage in run.stages if stage.part.group is not None]
            scored = layering.scored(family, [stand((group,)) for group in groups])
            if scored is not None and scored.estimate.step_seconds < below:
                below = scored.estimate.step_seconds
                yield scored


def _every(found: dict[int, dict[int, list[Run]]]) -> Iterator[Run]:
    """All runs by device type and width."""
    return (run for widths in found.values() for runs in widths.values() for run in runs)


def _at(runs: Sequence[Runs], devices: int) -> Iterable[Run]:
    return runs[devices].values() if devices >= 0 else ()


def _degrees(stage: Held) -> tuple[int, int]:
    group = stage.part.group
    return (group.tp, group.count) if group is not None else (0, 0)


def _best(joins: Iterable[Joins], most: int) -> Runs:
    """The quickest for each number of layers, up to ``most``, without those that hold no more than a quicker one."""
    best: dict[int, tuple[float, Run, Run]] = {}
    for befores, runs in joins:
        for before in befores:
            layers, begun = before.layers, before.seconds
            for run in runs:
                held, seconds = layers + run.layers, begun + run.seconds
                if held > most:
                    held = most
                if held not in best or seconds < best[held][0]:
                    best[held] = seconds, before, run
    kept: Runs = {}
    least = inf
    for held in sorted(best, reverse=True):
        seconds, before, run = best[held]
        if seconds < least:
            least = seconds
            kept[held] = before + run
    return kept
