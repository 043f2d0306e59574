"""What it would cost to use the devices that the chosen plan leaves idle."""

from __future__ import annotations

from planner.cost.estimate import Estimator
from planner.cost.running_cost import devices_of
from planner.search.causes import SAME, slower_by, worst_cause
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.devices import Wanted, quick_plan
from planner.search.space import targets_of
from planner.search.values import IdleCost, Limits, Scored
from planner.topology import Kind

MOST = 4
"""Kinds of idle devices that plans are looked for, those with most devices first."""


def idle_costs(
    best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline = NO_LIMIT
) -> tuple[IdleCost, ...]:
    """For each kind with idle devices, until the deadline, a good plan that uses at least one of them more."""
    if any(row.dp_per_stage for row in targets_of(limits)):
        return ()
    used = devices_of(best.plan)
    idle = [kind for kind in estimator.topology.kinds if used[kind.key] < kind.devices]
    idle.sort(key=lambda kind: (used[kind.key] - kind.devices, kind.key))
    found = []
    for kind in idle[:MOST]:
        cost = None if deadline.struck else _cost(kind, best, estimator, limits, deadline)
        if cost is None or deadline.struck:
            break
        found.append(cost)
    return tuple(found)


def _cost(kind: Kind, best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline) -> IdleCost:
    used = devices_of(best.plan)
    pools = frozenset(pool for pool, _ in used)
    scored: Scored | None = None
    if estimator.model.training.precision not in kind.peak_flops:
        reason = f"no {estimator.model.training.precision}"
    elif not all(estimator.topology.path(pool, kind.pool).connected for pool in pools):
        reason = f"no network joins {kind.pool} and {' and '.join(sorted(pools))}"
    else:
        wanted = Wanted(pools=pools | {kind.pool}, least={kind.key: used[kind.key] + 1})
        scored = quick_plan(estimator, limits, wanted, deadline)
        reason = "no plan found that fits and uses them" if scored is None else _reason(scored, best)
    return IdleCost(
        pool=kind.pool,
        gpu=kind.gpu,
        idle=kind.devices - used[kind.key],
        taken=devices_of(scored.plan)[kind.key] - used[kind.key] if scored else 0,
        slower=slower_by(scored, best) if scored else None,
        reason=reason,
        scored=scored,
    )


def _reason(scored: Scored, best: Scored) -> str:
    """The component in which the plan that uses them loses most; nothing when it loses nothing."""
    return worst_cause(scored, best)[0] if slower_by(scored, best) >= SAME else ""
