"""What a better plan would need: a faster plan outside the target, and the feature it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

from planner.cost.estimate import Estimator
from planner.dims.sharding import group_text
from planner.runtimes.registry import TARGETS
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explorer import Explorer
from planner.search.heuristics.greedy import fastest, layered
from planner.search.space.choices import Choice, Family, offers, targets_of
from planner.search.space.stages import StageOptions
from planner.search.values import Advice, Limits, Scored, Silent

WORTH = 0.01
"""Savings below this are within what the model cannot tell."""

MAX_COMBINATIONS = 256
"""Ways to give every pool degrees of its own that are tried on the stages of a plan."""

ROUNDS = 4
"""Rounds per target: advice is a hint, not a proof."""


def advise(
    best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline = NO_LIMIT
) -> tuple[Advice, ...]:
    """Faster plans of targets that the search was not allowed to propose, at most one each, fastest first."""
    found = []
    proposed = {row.name for row in targets_of(limits)}
    for row in TARGETS.values():
        if row.name not in proposed and offers(row, estimator.model) and not deadline.struck:
            advice = _advice(row.name, best, estimator, limits, deadline)
            if advice is not None:
                found.append(advice)
    return tuple(sorted(found, key=lambda item: -item.faster))


def _advice(
    name: str, best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline
) -> Advice | None:
    explorer = Explorer(estimator, replace(limits, target=name, gap=WORTH), Silent(), deadline=deadline)
    explorer.offer(best)
    if TARGETS[name].dp_per_stage and best.plan.pp > 1:
        batch = best.plan.global_batch // best.plan.micro_batches
        for times in (1, 2, 4):
            if best.plan.global_batch % (times * batch) == 0 and not deadline.struck:
                explorer.offer(_per_stage_degrees(name, best, estimator, limits, times * batch))
    explorer.run(rounds=ROUNDS)
    faster = explorer.best
    if faster is None or faster is best:
        return None
    saving = 1 - faster.estimate.step_seconds / best.estimate.step_seconds
    if saving < WORTH:
        return None
    return Advice(target=name, change=difference(faster, best), faster=saving, scored=faster)


def _per_stage_degrees(
    name: str, best: Scored, estimator: Estimator, limits: Limits, batch: int
) -> Scored | None:
    """The best plan with the same stages on the same devices, the degrees of each pool changed."""
    plan = best.plan
    family = Family(
        target=name,
        zero=plan.zero,
        recompute=None if TARGETS[name].recompute_per_stage else plan.stages[0].recompute,
        tp=None,
        dp=None,
        batch=batch,
        micro_batches=plan.global_batch // batch,
    )
    stages = StageOptions(Choice(family=family, depth=plan.pp, interleave=1), estimator, limits)
    ways = [
        [
            index
            for index, groups in enumerate(stages.compositions)
            if [(group.pool, group.gpu, group.devices) for group in groups]
            == [(group.pool, group.gpu, group.devices) for group in stage.replicas]
        ]
        for stage in plan.stages
    ]
    kinds = sorted({tuple(row) for row in ways})
    combinations = islice(product(*kinds), MAX_COMBINATIONS)
    return fastest(
        layered(stages, [dict(zip(kinds, way, strict=True))[tuple(row)] for row in ways], estimator)
        for way in combinations
    )


def difference(other: Scored, base: Scored) -> str:
    """What the faster plan does in a few words."""
    plan = other.plan
    words = [f"{plan.pp} stages" if plan.pp > 1 else f"ZeRO-{plan.zero} data parallel"]
    words += [text] if (text := group_text(plan)) else []
    per_pool: dict[str, set[tuple[int, int]]] = {}
    for stage in plan.stages:
        for group in stage.replicas:
            per_pool.setdefault(group.pool, set()).add((group.tp, stage.dp))
    if len({way for ways in per_pool.values() for way in ways}) > 1:
        words += [
            f"tp {'/'.join(str(tp) for tp in sorted({tp for tp, _ in ways}))} dp "
            f"{'/'.join(str(dp) for dp in sorted({dp for _, dp in ways}))} on {pool}"
            for pool, ways in sorted(per_pool.items())
        ]
    elif plan.pp > 1:
        words.append(f"tp {plan.stages[0].replicas[0].tp}, interleave {plan.interleave}")
    else:
        words.append("a batch per device")
    return ", ".join(words)
