"""A quick good plan of a choice: the fastest slots, layers by what each finishes in a common time.

It proves nothing; it gives the search an early incumbent to cut with.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import combinations, groupby, islice, pairwise, permutations, zip_longest
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.capabilities import Schedule
from planner.cost.arrays import Numbers
from planner.cost.estimate import Estimator, together, with_sends
from planner.cost.pipeline_end import ends_of_many
from planner.cost.pipeline_events import Pipeline
from planner.cost.schedules import stage_paths, wraps
from planner.cost.stage_price import EachLength, stacked
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.plan.placement import Slot, place_stages
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.pipeline import score
from planner.search.space.choices import Choice
from planner.search.space.stages import Option, StageOptions
from planner.search.values import Limits, Scored

MOST_ORDERS = 1000
"""Orders that are looked at, where the target does not start all of them."""

MORE_THRESHOLDS = 8
"""Common times above the least that are tried: a longer one lets faster stages take more."""

CLIMBS = 400
"""Moves of a layer that are tried to make a plan better."""

CLIMBED_GAIN = 1.05
"""What these moves make of a plan at most, where a faster one is known (they gain 2 % where it is near that one)."""

GIVING = 3
"""Stages that may give one: as many with the longest micro-batches, as many that end last."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Effort:
    """How many plans of a choice are looked at."""

    orders: int = 3
    """Orders of the device types along the pipeline that get a rough look, and their reverses."""
    priced: int = 2
    """Plans that are priced: those whose pipelines end soonest by that look."""
    swaps: int = 0
    """Exchanges of two stages of the best of them that are tried, each of which is to make it faster."""
    swapped_below: float = inf
    """Seconds of a step below which that is done."""
    wanted_seconds: float = inf
    """What will hardly end as soon is not priced."""


QUICK = Effort()


def greedy(
    choice: Choice,
    estimator: Estimator,
    limits: Limits,
    *,
    scorer: Estimator | None = None,
    effort: Effort = QUICK,
    deadline: Deadline = NO_LIMIT,
) -> Scored | None:
    """The best of a few plans with one pool after the other, priced by ``scorer``; None when none fits.

    After the deadline no more than one of them is priced.
    """
    scorer = scorer or estimator
    stages = StageOptions(choice, estimator, limits)
    looks = (_Layers(stages, slots) for slots in islice(_orders(stages), 2 * effort.orders))
    ends = ((look, look.best()) for look in looks)
    quickest = sorted(
        ((look, best) for look, best in ends if best is not None), key=lambda item: item[1].seconds
    )
    found: list[tuple[float, int, Scored]] = []
    for number, (look, best) in enumerate(quickest[: effort.priced]):
        if (number and deadline.struck) or not _may_end(best, effort.wanted_seconds):
            break
        scored = score(scorer, stages, look.climbed(best).options)
        if scored is not None:
            found.append((scored.estimate.step_seconds, number, scored))
    if not found:
        return None
    seconds, number, least = min(found)
    if seconds >= effort.swapped_below:
        return least
    return _swapped(stages, scorer, quickest[number][0].slots, least, effort.swaps, deadline)


def _swapped(
    stages: StageOptions, scorer: Estimator, slots: list[int], best: Scored, tries: int, deadline: Deadline
) -> Scored:
    """The best after some exchanges of two stages' compositions, each of which made it faster."""
    faster = True
    while faster:
        faster = False
        for one, other in combinations(range(len(slots)), 2):
            swapped = [*slots]
            swapped[one], swapped[other] = slots[other], slots[one]
            if swapped == slots or not stages.obeys(swapped):
                continue
            if not tries or deadline.struck:
                return best
            tries -= 1
            seconds = best.estimate.step_seconds
            scored = layered(stages, swapped, scorer, wanted_seconds=seconds)
            if scored is not None and scored.estimate.step_seconds < seconds:
                best, slots, faster = scored, swapped, True
    return best


def layered(
    stages: StageOptions, slots: list[int], estimator: Estimator, *, wanted_seconds: float = inf
) -> Scored | None:
    """Good layers for given compositions, [stage]; None when none fit, or will hardly end as soon as is wanted."""
    look = _Layers(stages, slots)
    best = look.best()
    if best is None or not _may_end(best, wanted_seconds):
        return None
    return score(estimator, stages, look.climbed(best).options)


def _may_end(best: _End, wanted_seconds: float) -> bool:
    """True when moves of layers may bring the end of a step to so many seconds."""
    return best.seconds <= wanted_seconds * CLIMBED_GAIN


def fastest(plans: Iterable[Scored | None]) -> Scored | None:
    """The fastest of those that exist."""
    scored_plans = (plan for plan in plans if plan is not None)
    return min(scored_plans, key=lambda plan: plan.estimate.step_seconds, default=None)


def _orders(stages: StageOptions) -> Iterator[list[int]]:
    """Compositions of the stages: each type's stages together, in every order of the device types and its reverse.

    Types of one pool by turns, too: their stages may have the same nodes. And the first type's at both ends, which
    have the embedding and the head, and wait for their reductions longest.
    """
    every = range(len(stages.compositions))
    by_memory: dict[int, list[int]] = {}
    for index in every:
        by_memory.setdefault(stages.most_layers(0, index), []).append(index)
    most_first = [alike for _, alike in sorted(by_memory.items(), reverse=True)]
    whole = [index for index in every if index not in stages.divided]
    filled = [_filled(stages, parts) for parts in ([whole], [every], most_first)]
    enough = [
        dict(counts)
        for counts in dict.fromkeys(tuple(each.items()) for each in filled)
        if sum(each for _, each in counts) == stages.choice.depth
    ]
    seen = set()
    for orders in islice(zip(*(permutations(counts) for counts in enough), strict=False), MOST_ORDERS):
        for order, counts in zip(orders, enough, strict=True):
            together = tuple(index for index in order for _ in range(counts[index]))
            by_turns = tuple(_by_turns(stages, order, counts))
            around = (way for slots in _around(together) for way in (slots, slots[::-1]))
            for slots in dict.fromkeys((together, together[::-1], by_turns, by_turns[::-1], *around)):
                if slots not in seen and stages.talks(slots) and stages.obeys(slots):
                    seen.add(slots)
                    yield list(slots)


def _around(together: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The stages of the first type before and behind all others: all but one of them before these, or half."""
    first = together.count(together[0])
    others = together[first:]
    if first > 1 and others:
        for before in (first - 1, (first + 1) // 2):
            yield (*together[:before], *others, *together[before:first])


def _by_turns(stages: StageOptions, order: Sequence[int], counts: Mapping[int, int]) -> Iterator[int]:
    """Stages of neighbouring types of one pool in turn, one of each as long as there are any."""
    for _, own in groupby(order, key=lambda index: {group.pool for group in stages.compositions[index]}):
        rows = [[index] * counts[index] for index in own]
        yield from (index for turn in zip_longest(*rows) for index in turn if index is not None)


def _filled(stages: StageOptions, parts: Iterable[Iterable[int]]) -> dict[int, int]:
    """Stages of each composition in turn, as long as its devices last: of each part the fastest first."""
    room = {device_type.key: device_type.devices for device_type in stages.topology.device_types}
    depth, counts = stages.choice.depth, dict[int, int]()

    def most(composition: int) -> int:
        free = (room[group.pool, group.gpu] // group.devices for group in stages.compositions[composition])
        return min(depth - sum(counts.values()), stages.most_stages(composition), *free)

    for part in parts:
        for composition in stages.fastest_first(min(1, depth - 1), part, most):
            counts[composition] = count = most(composition)
            for group in stages.compositions[composition]:
                room[group.pool, group.gpu] -= count * group.devices
    return counts


@dataclass(frozen=True, slots=True)
class _End:
    """When a step ends, without what neighbours on a node cost."""

    seconds: float
    options: list[Option]
    """Of each stage."""
    finish: list[float]
    """Seconds until a stage has done all it does in a step, [stage]."""


@dataclass(frozen=True, slots=True)
class _Paths:
    """All paths of a table: how often each stage's durations are on them, [stage][path], and where they end, [path]."""

    first: tuple[Numbers, Numbers]
    """Forwards and backwards of the first chunk."""
    every: tuple[Numbers, Numbers, Numbers]
    """Forwards, backwards and gradients of weights of all chunks."""
    ends: NDArray[np.intp]

    def seconds(self, forward: Numbers, backward: Numbers, weight: Numbers, tails: Numbers) -> Numbers:
        """The longest path, [way]; of durations [way][stage][chunk], gradients of weights and tails [way][stage]."""
        total = forward[..., 0] @ self.first[0] + backward[..., 0] @ self.first[1] + tails[:, self.ends]
        total += forward.sum(axis=2) @ self.every[0] + backward.sum(axis=2) @ self.every[1]
        longest: Numbers = (total + weight @ self.every[2]).max(axis=1)
        return longest


@lru_cache(maxsize=256)
def _paths(depth: int, micro_batches: int, chunks: int, schedule: Schedule) -> _Paths:
    paths = tuple(stage_paths(depth, micro_batches, chunks, schedule))
    stages, own = np.arange(depth)[:, None], np.array([path.stage for path in paths])

    def others(name: str) -> Numbers:
        before, behind = (
            np.array([getattr(visits, name) for visits in row])
            for row in ([path.before for path in paths], [path.behind for path in paths])
        )
        return np.where(stages < own, before, 0.0) + np.where(stages > own, behind, 0.0)

    def its_own(name: str) -> Numbers:
        return np.where(stages == own, [float(getattr(path.own, name)) for path in paths], 0.0)

    return _Paths(
        first=(others("forward"), others("backward")),
        every=(its_own("forward"), its_own("backward"), its_own("weight")),
        ends=np.array([0 if path.to_first else path.stage for path in paths]),
    )


class _Layers:
    """Layers for given compositions of the stages."""

    def __init__(self, stages: StageOptions, slots: list[int]) -> None:
        self.stages, self.slots = stages, slots
        self.chunks = stages.choice.interleave
        self.total = stages.estimator.model.layers
        self.most = [stages.most_layers(stage, composition) for stage, composition in enumerate(slots)]
        self.schedule = stages.choice.schedule
        back = stages.sends(slots[-1], slots[0]).least_seconds if wraps(self.chunks, self.schedule) else 0.0
        self.sends = [*self._where_they_stand(), back]
        """From each stage to the next, from the last one back to the first."""

    def _where_they_stand(self) -> Iterator[float]:
        """Sends from each stage to the next: inside nodes only where both are on the same ones."""
        try:
            placed = place_stages(
                [self.stages.compositions[index] for index in self.slots], self.stages.topology.cluster
            )
        except PlanError:
            placed = ()
        for number, pair in enumerate(pairwise(self.slots)):
            sends = self.stages.sends(*pair)
            apart = placed and not _on_same_nodes(placed[number], placed[number + 1])
            yield sends.far_seconds if apart and sends.far_seconds < inf else sends.least_seconds

    def best(self) -> _End | None:
        """The quickest options found."""
        if not self.stages.talks(self.slots) or sum(self.most) < self.total or min(self.most) < self.chunks:
            return None
        busy = [self._busy(stage) for stage in range(len(self.slots))]
        times = np.unique(np.concatenate(busy)).tolist()

        def counts(seconds: float) -> list[int]:
            limit = seconds * (1 + _ROUNDING)
            return [max(self.chunks, self.chunks - 1 + bisect_right(each, limit)) for each in busy]

        start = bisect_left(times, True, key=lambda seconds: sum(counts(seconds)) >= self.total)
        tried = dict.fromkeys(
            tuple(layers)
            for seconds in times[start : start + MORE_THRESHOLDS]
            for layers in self._trimmed(counts(seconds))
        )
        return self._soonest(list(tried), None)

    def _soonest(self, ways: Sequence[Sequence[int]], known: _End | None) -> _End | None:
        """The end of the best of these numbers of layers, [way][stage], or the known one where none is sooner."""
        if not ways:
            return known
        least, found = self._least_seconds(ways), (inf if known is None else known.seconds, -1)
        for way in np.argsort(least, kind="stable").tolist():
            if least[way] >= found[0]:
                break
            end = self._ending(ways[way])
            if (end.seconds, way) < found:
                found, known = (end.seconds, way), end
        return known

    def climbed(self, end: _End) -> _End:
        """Better options: as long as it helps, a busy or late stage gives a layer to the stage that should have it.

        What a stage recomputes changes with its layers, which the common time of ``best`` does not see, nor what comes
        behind its last backward while others still work.
        """
        tries = CLIMBS
        while tries > 0:
            layers = [option.layers for option in end.options]
            busiest = sorted(range(len(layers)), key=lambda stage: -end.options[stage].busy_seconds)[:GIVING]
            latest = sorted(range(len(layers)), key=lambda stage: -end.finish[stage])[:GIVING]
            moves = [
                (giver, taker)
                for giver in dict.fromkeys((*busiest, *latest))
                for taker in range(len(layers))
                if giver != taker and layers[giver] > self.chunks and layers[taker] < self.most[taker]
            ]
            tries -= len(moves)
            sooner = self._soonest([_moved(layers, *move) for move in moves[: max(0, tries)]], end)
            if sooner is None or sooner is end:
                break
            end = sooner
        return end

    @cached_property
    def _each_stage(self) -> EachLength:
        """Seconds of every stage with each number of layers, [stage][length]."""
        return stacked([self.stages.by_layers(stage, slot) for stage, slot in enumerate(self.slots)])

    def _busy(self, stage: int) -> list[float]:
        """Seconds of a micro-batch on a stage with its sends, from one layer a chunk to as many as fit."""
        own = self.stages.by_layers(stage, self.slots[stage]).busy_seconds[
            : self.most[stage] - self.chunks + 1
        ]
        times = self.stages.pricer.sent_with(stage, 0, len(self.sends), self.chunks, self.schedule)
        sends = self.chunks * (
            times.forward_to_next * self.sends[stage] + times.before * self.sends[stage - 1]
        )
        busy: list[float] = (np.maximum.accumulate(own) + sends).tolist()
        return busy

    def _trimmed(self, counts: list[int]) -> Iterator[list[int]]:
        """What is too much is taken from the stages at one end or the other, where the end of the step is longest."""
        depth = len(counts)
        tails = [
            self.stages.option(stage, self.slots[stage], self.chunks).tail_seconds for stage in range(depth)
        ]
        orders = (
            range(depth - 1, -1, -1),
            range(depth),
            sorted(range(depth), key=lambda stage: (-tails[stage], -stage)),
        )
        for order in orders:
            layers, surplus = list(counts), sum(counts) - self.total
            while surplus > 0:
                taken = [stage for stage in order if layers[stage] > self.chunks][:surplus]
                for stage in taken:
                    layers[stage] -= 1
                surplus -= len(taken)
                if not taken:
                    break
            if surplus <= 0:
                yield layers

    def _with_sends(self, options: Sequence[Option]) -> tuple[list[list[float]], list[list[float]]]:
        """Forward and backward seconds of a micro-batch with the sends that go with each, [stage][chunk]."""
        pricer = self.stages.pricer
        return with_sends(options, self.sends, pricer.target, pricer.model.training.forwards, self.schedule)

    @cached_property
    def _sent(self) -> tuple[Numbers, Numbers]:
        """Seconds of the sends that go with a forward and with a backward, [stage][chunk]."""
        first = self.stages.option(0, self.slots[0], self.chunks)
        nothing = replace(first, forward=(0.0,) * len(first.forward), backward=(0.0,) * len(first.backward))
        forward, backward = self._with_sends([nothing] * len(self.slots))
        return np.array(forward), np.array(backward)

    def _least_seconds(self, ways: Sequence[Sequence[int]]) -> Numbers:
        """No step with such layers, [way][stage], ends sooner, [way]: the table of paths, many ways at once."""
        each = self._each_stage.at(np.arange(len(self.slots)), np.array(ways) - self.chunks)
        steps = self.stages.choice.family.micro_batches
        seconds = _paths(len(self.slots), steps, self.chunks, self.schedule).seconds(
            each.forward + self._sent[0],
            each.backward + self._sent[1],
            each.weight.sum(axis=2),
            each.tail_seconds,
        )
        return seconds * (1 - _ROUNDING)

    def _options(self, layers: Sequence[int]) -> list[Option]:
        return [self.stages.option(stage, self.slots[stage], count) for stage, count in enumerate(layers)]

    def _ending(self, layers: Sequence[int]) -> _End:
        options = self._options(layers)
        forward, backward = self._with_sends(options)
        held = [option.held_seconds for option in options]
        weight = [option.weight for option in options if option.weight]
        steps = self.stages.choice.family.micro_batches
        ends = ends_of_many(Pipeline(forward, backward, steps, held, weight, self.schedule))
        ends = together(ends) if self.stages.outer_wait else ends
        finish = [end + option.tail_seconds for end, option in zip(ends, options, strict=True)]
        return _End(max(finish), options, finish)


def _on_same_nodes(first: Sequence[Slot], last: Sequence[Slot]) -> bool:
    return len({(slot.pool, slot.first_node, slot.nodes) for slot in (*first, *last)}) == 1


def _moved(layers: Sequence[int], giver: int, taker: int) -> list[int]:
    """The same layers, one of them on another stage."""
    each = list(layers)
    each[giver] -= 1
    each[taker] += 1
    return each
