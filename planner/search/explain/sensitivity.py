"""What the user's limits cost, and what it would cost to use the devices that the chosen plan leaves idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from planner.capabilities import OFFLOAD_PARTS
from planner.cluster.topology import DeviceType
from planner.cost.estimate import Estimator
from planner.cost.training import devices_of
from planner.dims.offloading import moves_nothing, parts
from planner.dims.trained import lack
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.families import SAME, fewer_text, slower_by, worst_cause
from planner.search.explorer import Explorer
from planner.search.heuristics.quick import Wanted, cheap_plan, everywhere, quick_plan
from planner.search.space.choices import targets_of
from planner.search.values import IdleCost, LimitCost, Limits, PlanLimit, Scored, Silent

WORTH = 0.05
"""Savings below this are not worth a line."""

GAP = 0.03
"""Gap to which the search without a limit goes."""

ROUNDS = 30
"""Rounds of a search without a limit: counted rather than timed, so that every machine gives the same answer."""

OPTIONS: dict[PlanLimit, str] = {
    "target": "--target",
    "zero": "--zero",
    "tp": "--tp",
    "pp": "--pp",
    "cp": "--cp",
    "ep": "--ep",
    "etp": "--etp",
    "micro_batch": "--micro-batch",
    "recompute": "--recompute",
    "offload": "--offload",
}
"""The option that sets each limit on the plan."""


def limit_costs(
    best: Scored,
    estimator: Estimator,
    limits: Limits,
    deadline: Deadline = NO_LIMIT,
    *,
    unasked: bool = False,
) -> tuple[LimitCost, ...]:
    """Limits without which a step is faster by more than 5 %, as far as found by the deadline, dearest first.

    ``unasked``: so is offload, of which nobody has said anything and which is for what does not fit otherwise.
    """
    names = given(limits)
    if (
        unasked
        and limits.offload is None
        and not best.plan.offload.anything
        and _may_offload(limits, estimator)
    ):
        names = (*names, "offload")
    costs = (_limit_cost(name, best, estimator, limits, deadline) for name in names if not deadline.struck)
    return tuple(sorted((item for item in costs if item is not None), key=lambda item: -item.costs))


def _may_offload(limits: Limits, estimator: Estimator) -> bool:
    """True where some target keeps anything of the model off the devices."""
    model, device_types = estimator.model, estimator.topology.device_types
    return not all(moves_nothing(OFFLOAD_PARTS, row, model, device_types) for row in targets_of(limits))


def given(limits: Limits) -> tuple[PlanLimit, ...]:
    """The limits that are set and forbid something."""
    return tuple(name for name in OPTIONS if getattr(limits, name) not in (None, OFFLOAD_PARTS))


def without(limits: Limits, *names: PlanLimit) -> Limits:
    """The same limits but for some."""
    kept = {field.name: getattr(limits, field.name) for field in fields(limits) if field.name not in names}
    return Limits(**({"offload": OFFLOAD_PARTS} if "offload" in names else {}) | kept)


def _limit_cost(
    name: PlanLimit, best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline
) -> LimitCost | None:
    step = best.estimate.step_seconds
    free = replace(without(limits, name), gap=max(limits.gap, GAP))
    explorer = Explorer(estimator, free, Silent(), cutoff_seconds=step * (1 - WORTH), deadline=deadline)
    explorer.offer(cheap_plan(estimator, free, everywhere(estimator), deadline))
    explorer.run(rounds=ROUNDS)
    if explorer.best is None:
        return None
    return LimitCost(
        limit=name,
        given=values(getattr(limits, name) or ()),
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
        "cp": {plan.cp},
        "ep": {plan.ep},
        "etp": {plan.etp},
        "micro_batch": {group.micro_batch for group in groups},
        "recompute": {stage.recompute for stage in plan.stages},
        "offload": {*parts(plan.offload)},
    }
    return tuple(sorted(chosen[name], key=lambda value: (str(type(value)), value)))


def option_text(name: PlanLimit, chosen: tuple[int | str, ...]) -> str:
    """The option as it is typed: ``--tp 1,2``, ``--pp 1..8``."""
    numbers = [value for value in chosen if isinstance(value, int)]
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    if len(numbers) > 2 and numbers == list(range(first, last + 1)):
        return f"{OPTIONS[name]} {first}..{last}"
    return f"{OPTIONS[name]} {','.join(str(value) for value in chosen)}"


MOST = 4
"""Kinds of idle devices for which plans are looked for, those with most FLOP/s first."""


def idle_costs(
    best: Scored,
    estimator: Estimator,
    limits: Limits,
    deadline: Deadline = NO_LIMIT,
    known: Iterable[Scored] = (),
) -> tuple[IdleCost, ...]:
    """For each device type with idle devices why no plan may use them, or a good plan that uses at least one of them
    more: the fastest of those ``known`` and of what a look finds until the deadline.
    """
    used = devices_of(best.plan)
    able: list[DeviceType] = []
    costs: list[IdleCost] = []
    for device_type in estimator.topology.device_types:
        if used[device_type.key] < device_type.devices:
            barred = _barred(device_type, used, estimator)
            if barred is None:
                able.append(device_type)
            else:
                costs.append(_idle_cost(device_type, best, None, barred))
    precision = estimator.model.training.precision
    able.sort(key=lambda each: ((used[each.key] - each.devices) * each.peak_flops[precision], each.key))
    counted = [(devices_of(scored.plan), scored) for scored in known]
    looks = not any(row.dp_per_stage for row in targets_of(limits))
    for device_type in able[:MOST]:
        plans = [scored for held, scored in counted if held[device_type.key] > used[device_type.key]]
        struck = deadline.struck
        if looks and not struck:
            pools = frozenset((*(pool for pool, _ in used), device_type.pool))
            wanted = Wanted(pools=pools, least={device_type.key: used[device_type.key] + 1})
            found = quick_plan(estimator, limits, wanted, deadline)
            plans += [] if found is None else [found]
            struck = deadline.struck
        if plans:
            scored = min(plans, key=lambda scored: scored.estimate.step_seconds)
            costs.append(_idle_cost(device_type, best, scored, _reason(scored, best)))
        elif looks and not struck:
            costs.append(_idle_cost(device_type, best, None, "no plan found that fits and uses them"))
    return tuple(costs)


def _barred(device_type: DeviceType, used: Mapping[tuple[str, str], int], estimator: Estimator) -> str | None:
    """Why no plan has devices of this type beside those that are used; None where one may."""
    pools = sorted({pool for pool, _ in used})
    lacking = lack(device_type, estimator.model.training)
    if lacking is not None:
        return f"no {lacking}"
    if all(estimator.topology.path(pool, device_type.pool).connected for pool in pools):
        return None
    strange = (estimator.topology.strangers(pool, device_type.pool) for pool in pools)
    return next(filter(None, strange), f"no network joins {device_type.pool} and {' and '.join(pools)}")


def _idle_cost(device_type: DeviceType, best: Scored, scored: Scored | None, reason: str) -> IdleCost:
    used = devices_of(best.plan)[device_type.key]
    return IdleCost(
        pool=device_type.pool,
        gpu=device_type.gpu,
        idle=device_type.devices - used,
        taken=devices_of(scored.plan)[device_type.key] - used if scored else 0,
        slower=slower_by(scored, best) if scored else None,
        reason=reason,
        scored=scored,
    )


def _reason(scored: Scored, best: Scored) -> str:
    """The component in which the plan that uses them loses most, and how many devices fewer it has; nothing when
    it loses nothing.
    """
    if slower_by(scored, best) < SAME:
        return ""
    cause = worst_cause(scored, best)[0]
    return cause + fewer_text(scored, best, cause)
