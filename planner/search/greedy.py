"""A quick good plan of a choice: the fastest slots, layers by what each finishes in a common time.

It proves nothing; it gives the search an early incumbent to cut with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from planner.cost.estimate import Estimator
from planner.search.options import Option, StageOptions
from planner.search.pipeline import score
from planner.search.space import Choice
from planner.search.values import Limits, Scored


def greedy(
    choice: Choice, estimator: Estimator, limits: Limits, *, scorer: Estimator | None = None
) -> Scored | None:
    """The best of a few plans with one pool after the other, priced by ``scorer``; None when none fits."""
    stages = StageOptions(choice, estimator, limits)
    return fastest(layered(stages, slots, scorer or estimator) for slots in _orders(stages))


def layered(stages: StageOptions, slots: list[int], estimator: Estimator) -> Scored | None:
    """Good layers for given compositions, [stage]; None when none fit."""
    chosen = (_layers(stages, slots, growths) for growths in (_growths, _even_growths))
    return fastest(score(estimator, stages, options) for options in chosen if options)


def fastest(plans: Iterable[Scored | None]) -> Scored | None:
    """The fastest of those that exist."""
    found = (plan for plan in plans if plan is not None)
    return min(found, key=lambda plan: plan.estimate.step_seconds, default=None)


def _orders(stages: StageOptions) -> Iterator[list[int]]:
    """Compositions of the stages: each kind's stages together, fastest kind first, and the other way round."""
    depth, room = stages.choice.depth, {kind.key: kind.devices for kind in stages.topology.kinds}
    probe = stages.choice.interleave
    ranked = sorted(
        range(len(stages.compositions)),
        key=lambda index: stages.option(min(1, depth - 1), index, probe).busy_seconds,
    )
    by_memory = sorted(ranked, key=lambda index: -stages.most_layers(0, index))
    seen = []
    for order in (ranked, by_memory):
        slots = _filled(stages, order, dict(room))
        for found in (slots, slots[::-1]):
            if len(found) == depth and found not in seen:
                seen.append(found)
                yield found


def _filled(stages: StageOptions, order: list[int], room: dict[tuple[str, str], int]) -> list[int]:
    """Stages one after the other from each composition in turn, as long as its devices last."""
    slots: list[int] = []
    for composition in order:
        groups = stages.compositions[composition]
        while len(slots) < stages.choice.depth and all(room[g.pool, g.gpu] >= g.devices for g in groups):
            slots.append(composition)
            for group in groups:
                room[group.pool, group.gpu] -= group.devices
    return slots


Growths = Callable[[StageOptions, list[int], list[int], list[int]], Iterator[tuple[float, int]]]


def _layers(stages: StageOptions, slots: list[int], growths: Growths) -> list[Option]:
    """Layers one by one to the stage where they delay the pipeline least; empty when they do not fit."""
    most = [stages.most_layers(stage, composition) for stage, composition in enumerate(slots)]
    least = stages.choice.interleave
    total = stages.estimator.model.layers
    if sum(most) < total or min(most) < least:
        return []
    layers = [least] * len(slots)
    for _ in range(total - sum(layers)):
        best = min(growths(stages, slots, layers, most), default=None)
        if best is None:
            return []
        layers[best[1]] += 1
    return [stages.option(stage, slots[stage], count) for stage, count in enumerate(layers)]


def _growths(
    stages: StageOptions, slots: list[int], layers: list[int], most: list[int]
) -> Iterator[tuple[float, int]]:
    """(end of the pipeline, stage) for each stage that can take one more layer, by the paths of the ILP."""
    steps, depth = stages.choice.family.micro_batches, len(slots)
    options = [stages.option(stage, slots[stage], count) for stage, count in enumerate(layers)]
    once = sum(option.busy_seconds for option in options)
    later = [max(0, steps - (depth - stage)) for stage in range(depth)]
    trips = [
        once + count * sum(option.forward) + (steps - 1) * sum(option.backward)
        for option, count in zip(options, later, strict=True)
    ]
    up = [0.0, *accumulate(option.busy_seconds for option in options)]
    work = [start + steps * option.busy_seconds for start, option in zip(up, options, strict=False)]
    before, after = [0.0, *accumulate(work, max)], [0.0, *accumulate(reversed(work), max)][::-1]
    for stage, count in enumerate(layers):
        if count < most[stage]:
            grown = stages.option(stage, slots[stage], count + 1)
            forward = sum(grown.forward) - sum(options[stage].forward)
            backward = sum(grown.backward) - sum(options[stage].backward)
            more = forward + backward
            trip = trips[stage] + later[stage] * forward + (steps - 1) * backward
            ends = (
                before[stage],
                work[stage] + steps * more,
                after[stage + 1] + more,
                max(*trips, trip) + more,
            )
            yield max(ends), stage


def _even_growths(
    stages: StageOptions, slots: list[int], layers: list[int], most: list[int]
) -> Iterator[tuple[float, int]]:
    """(busy time of the stage, stage) for each stage that can take one more layer."""
    for stage, count in enumerate(layers):
        if count < most[stage]:
            yield stages.option(stage, slots[stage], count + 1).busy_seconds, stage
