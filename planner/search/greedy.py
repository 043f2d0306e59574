"""A quick good plan of a choice: the fastest slots, layers by what each finishes in a common time.

It proves nothing; it gives the search an early incumbent to cut with.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    slots: list[int] = []
    for composition in ranked:
        groups = stages.compositions[composition]
        while len(slots) < depth and all(room[group.pool, group.gpu] >= group.devices for group in groups):
            slots.append(composition)
            for group in groups:
                room[group.pool, group.gpu] -= group.devices
    if len(slots) == depth:
        yield slots
        if len(set(slots)) > 1:
            yield slots[::-1]


def _layers(stages: StageOptions, slots: list[int]) -> list[Option]:
    """Options with the least common busy time, the surplus taken back where it helps most; empty when it cannot be."""
    most = [stages.most_layers(stage, composition) for stage, composition in enumerate(slots)]
    least = stages.choice.interleave
    total = stages.estimator.model.layers
    if sum(most) < total or min(most) < least:
        return []
    layers = [least] * len(slots)

    def busy(stage: int, count: int) -> float:
        return stages.option(stage, slots[stage], count).busy_seconds

    for _ in range(total - sum(layers)):
        growing = [stage for stage in range(len(slots)) if layers[stage] < most[stage]]
        best = min(growing, key=lambda stage: busy(stage, layers[stage] + 1))
        layers[best] += 1
    return [stages.option(stage, slots[stage], count) for stage, count in enumerate(layers)]
