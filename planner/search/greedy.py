"""A quick good plan of a choice: the fastest slots, layers by what each finishes in a common time.

It proves nothing; it gives the search an early incumbent to cut with.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from planner.cost.estimate import Estimator
from planner.search.options import Option, StageOptions
from planner.search.pipeline import score
from planner.search.space import Choice
from planner.search.values import Limits, Scored


def greedy(choice: Choice, estimator: Estimator, limits: Limits) -> Scored | None:
    """The best of a few plans with one pool after the other; None when none fits."""
    stages = StageOptions(choice, estimator, limits)
    best: Scored | None = None
    for slots in _orders(stages):
        chosen = _layers(stages, slots)
        scored = score(estimator, stages, chosen) if chosen else None
        if scored and (best is None or scored.estimate.step_seconds < best.estimate.step_seconds):
            best = scored
    return best


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


def _layers(stages: StageOptions, slots: list[int]) -> list[Option]:
    """Layers one by one to the stage where they delay the pipeline least; empty when they do not fit."""
    most = [stages.most_layers(stage, composition) for stage, composition in enumerate(slots)]
    least = stages.choice.interleave
    total = stages.estimator.model.layers
    if sum(most) < total or min(most) < least:
        return []
    layers = [least] * len(slots)
    steps = stages.choice.family.micro_batches
    ends = _stage_times(stages, slots, layers)
    for _ in range(total - sum(layers)):
        best = min(_growths(stages, slots, layers, most, ends, steps), default=None)
        if best is None:
            return []
        layers[best[1]] += 1
        ends = _stage_times(stages, slots, layers)
    return [stages.option(stage, slots[stage], count) for stage, count in enumerate(layers)]


def _stage_times(stages: StageOptions, slots: list[int], layers: list[int]) -> list[float]:
    """When each stage can end at the earliest: the first micro-batch comes up, then all its work."""
    steps, up, found = stages.choice.family.micro_batches, 0.0, []
    for stage, count in enumerate(layers):
        busy = stages.option(stage, slots[stage], count).busy_seconds
        found.append(up + steps * busy)
        up += busy
    return found


def _growths(
    stages: StageOptions, slots: list[int], layers: list[int], most: list[int], ends: list[float], steps: int
) -> Iterator[tuple[float, int]]:
    """(end of the pipeline, stage) for each stage that can take one more layer."""
    before = [0.0, *accumulate(ends, max)]
    after = [*reversed([0.0, *accumulate(reversed(ends), max)])]
    for stage, count in enumerate(layers):
        if count < most[stage]:
            grown, now = (
                stages.option(stage, slots[stage], value).busy_seconds for value in (count + 1, count)
            )
            more = grown - now
            yield max(before[stage], ends[stage] + steps * more, after[stage + 1] + more), stage
