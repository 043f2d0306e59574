"""What the limits that the user gave cost: the same search without each of them, coarse and cut off early."""

from __future__ import annotations

from dataclasses import fields, replace

from planner.cost.estimate import Estimator
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.devices import everywhere, quick_plan
from planner.search.explorer import Explorer
from planner.search.values import LimitCost, Limits, PlanLimit, Scored, Silent

WORTH = 0.05
"""Savings below this are not worth a line."""

GAP = 0.03
"""Gap to which the search without a limit goes."""

ROUNDS = 20
"""Rounds of a search without a limit: counted rather than timed, so that every machine gives the same answer."""

OPTIONS: dict[PlanLimit, str] = {
    "target": "--target",
    "zero": "--zero",
    "tp": "--tp",
    "pp": "--pp",
    "micro_batch": "--micro-batch",
    "recompute": "--recompute",
}
"""The option that sets each limit on the plan."""


def limit_costs(
    best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline = NO_LIMIT
) -> tuple[LimitCost, ...]:
    """Limits without which a step is faster by more than 5 %, as far as found by the deadline, dearest first."""
    found = (_cost(name, best, estimator, limits, deadline) for name in given(limits) if not deadline.struck)
    return tuple(sorted((item for item in found if item is not None), key=lambda item: -item.costs))


def given(limits: Limits) -> tuple[PlanLimit, ...]:
    """The limits that are set."""
    return tuple(name for name in OPTIONS if getattr(limits, name) is not None)


def without(limits: Limits, *names: PlanLimit) -> Limits:
    """The same limits but for some."""
    kept = {field.name: getattr(limits, field.name) for field in fields(limits) if field.name not in names}
    return Limits(**kept)


def _cost(
    name: PlanLimit, best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline
) -> LimitCost | None:
    step = best.estimate.step_seconds
    free = replace(without(limits, name), gap=max(limits.gap, GAP))
    explorer = Explorer(estimator, free, Silent(), cutoff_seconds=step * (1 - WORTH), deadline=deadline)
    explorer.offer(quick_plan(estimator, free, everywhere(estimator), deadline))
    explorer.run(rounds=ROUNDS)
    if explorer.best is None:
        return None
    return LimitCost(
        limit=name,
        given=values(getattr(limits, name)),
        instead=used(name, explorer.best),
        costs=step / explorer.best.estimate.step_seconds - 1,
        scored=explorer.best,
    )


def values(value: str | tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The values that a limit allows."""
    return (value,) if isinstance(value, str) else value


def used(name: PlanLimit, scored: Scored) -> tuple[int | str, ...]:
    """What a plan chose where a limit had been."""
    plan = scored.plan
    groups = [group for stage in plan.stages for group in stage.replicas]
    chosen: dict[PlanLimit, set[int | str]] = {
        "target": {plan.target},
        "zero": {plan.zero},
        "tp": {group.tp for group in groups},
        "pp": {plan.pp},
        "micro_batch": {group.micro_batch for group in groups},
        "recompute": {stage.recompute for stage in plan.stages},
    }
    return tuple(sorted(chosen[name], key=lambda value: (str(type(value)), value)))


def option_text(name: PlanLimit, chosen: tuple[int | str, ...]) -> str:
    """The option as it is typed: ``--tp 1,2``, ``--pp 1..8``."""
    numbers = [value for value in chosen if isinstance(value, int)]
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    if len(numbers) > 2 and numbers == list(range(first, last + 1)):
        return f"{OPTIONS[name]} {first}..{last}"
    return f"{OPTIONS[name]} {','.join(str(value) for value in chosen)}"
