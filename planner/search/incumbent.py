"""The incumbent of a search: the best plan so far that obeys the limits, offered every priced plan.

The best plan of each family is kept too, for the report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from planner.capabilities import OFFLOAD_PARTS
from planner.cost.training import TrainingRun, devices_of
from planner.cost.values import Estimate
from planner.dims.offloading import allows, parts
from planner.plan.values import Plan
from planner.search.space.choices import targets_of
from planner.search.values import Goal, LimitName, Limits, Objective, Scored
from planner.targets import target

Key = TypeVar("Key", str, tuple[int, int])


LEAST_SHARE = 1e-100
"""Share of work from which on runs never end: of these the one with the best step is the best."""


class Incumbent:
    """Keeps the best plan, whoever found it, and tells at once when there is a better one."""

    def __init__(self, limits: Limits, goal: Goal, better: Callable[[Scored], object] | None = None) -> None:
        """``better`` is told every plan that becomes the answer."""
        self.limits, self.goal = limits, goal
        self.best: Scored | None = None
        self._better = better

    @property
    def value(self) -> float:
        """Objective of the best plan; infinite without one."""
        return wanted_of(self.best.estimate, self.goal) if self.best else float("inf")

    def offer(self, scored: Scored | None, *, as_good: bool = False) -> bool:
        """Take a plan, priced where it will run, if it obeys the limits and is better; True when it was taken.

        One that is only ``as_good`` is taken where something else speaks for it.
        """
        if scored is None or not scored.estimate.fits or not obeys(scored.plan, self.limits, self.goal):
            return False
        value, seconds = wanted_of(scored.estimate, self.goal), scored.estimate.step_seconds
        if not meets(scored.estimate, self.goal) or value > self.value:
            return False
        # Of plans that cost the same, as all on free devices, the fastest.
        if value == self.value and not as_good and self.best and seconds >= self.best.estimate.step_seconds:
            return False
        self.best = scored
        if self._better is not None:
            self._better(scored)
        return True


def value_of(estimate: Estimate, objective: Objective) -> float:
    """What is minimised, in the unit it is shown in: seconds a step, price a million tokens, joules a token."""
    value = {
        "time": estimate.step_seconds,
        "cost": estimate.cost_per_million_tokens,
        "energy": estimate.joules_per_token,
    }[objective]
    assert value is not None, "prices and powers are checked before the search"
    return value


def wanted_of(estimate: Estimate, goal: Goal) -> float:
    """The objective of a goal: for each second of the run where that is wanted, not of its work alone."""
    value = value_of(estimate, goal.objective)
    return over_run(value, estimate.devices, goal) if goal.whole_run else value


def over_run(value: float, devices: int, goal: Goal) -> float:
    """A value for each second of work as one for each second of a run on so many devices."""
    return value / max(goal.interruptions.goodput(devices), LEAST_SHARE)


def meets(estimate: Estimate, goal: Goal) -> bool:
    """True when a plan keeps the goal's limits; those on devices bind sub-clusters."""
    price, cost = goal.max_cost_per_million_tokens, estimate.cost_per_million_tokens
    if price is not None and (cost is None or cost > price):
        return False
    if goal.min_tokens_per_second is not None and estimate.tokens_per_second < goal.min_tokens_per_second:
        return False
    run = goal.run_of(estimate)
    return run is None or not misses(run, goal)


def misses(run: TrainingRun, goal: Goal) -> list[LimitName]:
    """The limits of the goal that a training run breaks."""
    late = goal.deadline_seconds is not None and run.seconds > goal.deadline_seconds
    dear = goal.budget is not None and (run.price is None or run.price > goal.budget)
    limits: list[tuple[LimitName, bool]] = [("deadline_seconds", late), ("budget", dear)]
    return [name for name, broken in limits if broken]


def obeys(plan: Plan, limits: Limits, goal: Goal) -> bool:
    """True when the user allows what a plan chose, and the devices that it uses."""
    # A limit on tp is on the devices that divide a weight, whatever the depth of a grid.
    groups = [group for stage in plan.copies.stages for group in stage.replicas]
    used = devices_of(plan)
    return (
        plan.target in {row.name for row in targets_of(limits)}
        and (limits.zero is None or plan.zero in limits.zero)
        and (limits.pp is None or plan.pp in limits.pp)
        and (limits.cp is None or plan.cp in limits.cp)
        and (limits.ep is None or plan.ep in limits.ep)
        and (limits.etp is None or plan.etp in limits.etp)
        and (limits.tp is None or all(group.tp in limits.tp for group in groups))
        and (limits.recompute is None or all(stage.recompute in limits.recompute for stage in plan.stages))
        and (limits.offload is None or allows(limits.offload, plan.offload))
        and (limits.micro_batch is None or _small_enough(plan, limits.micro_batch))
        and (plan.sync.exact or replace(plan.sync, islands=()) in limits.syncs)
        and plan.backup <= limits.backup
        and (limits.unequal_shards or not plan.unequal_shards)
        and (limits.quantised or not plan.zero_plus.lossy)
        and (limits.grids or plan.grid is None)
        and all(
            sum(count for (name, _), count in used.items() if pool in ("", name)) <= most
            for pool, most in goal.use_at_most
        )
    )


def allowing(limits: Limits, plan: Plan) -> Limits:
    """The limits with what a plan has that is considered only where it is asked for."""
    sync = replace(plan.sync, islands=())
    offload = limits.offload
    if plan.offload.anything:
        # Where nobody said what may be kept in host memory, a search that needs it may keep all parts there.
        named = OFFLOAD_PARTS if offload is None else offload
        offload = tuple(dict.fromkeys((*named, *parts(plan.offload))))
    return replace(
        limits,
        offload=offload,
        syncs=limits.syncs if sync.exact or sync in limits.syncs else (*limits.syncs, sync),
        backup=max(limits.backup, plan.backup),
        unequal_shards=limits.unequal_shards or plan.unequal_shards,
        quantised=limits.quantised or plan.zero_plus.lossy,
        grids=limits.grids or plan.grid is not None,
    )


def _small_enough(plan: Plan, allowed: tuple[int, ...]) -> bool:
    """Each micro-batch is one of those allowed; where every replica has its own, none is larger than the largest."""
    sizes = {group.micro_batch for stage in plan.stages for group in stage.replicas}
    if plan.pp == 1 and target(plan.target).batch_without_pipeline == "per-device":
        return max(sizes) <= max(allowed)
    return sizes <= {*allowed}


def family_of(scored: Scored) -> str:
    """The name of the family a plan belongs to."""
    plan = scored.plan
    row = target(plan.target)
    wide = any(group.tp > 1 for stage in plan.stages for group in stage.replicas)
    if plan.pp > 1:
        return f"{row.name}: pipeline + tensor" if wide else f"{row.name}: pipeline"
    if plan.grid is not None:
        return f"{row.name}: data + tensor grids"
    if wide:
        return f"{row.name}: data + tensor"
    if row.batch_without_pipeline == "per-device":
        apart = "" if plan.sync.exact else " in islands"
        return f"{row.name}: ZeRO-{plan.zero}{apart}{' with backups' if plan.backup else ''}"
    return f"{row.name}: data parallel"


def families_of(scored: Scored) -> tuple[str, ...]:
    """Its family, and the pool where it stays on one."""
    pools = {group.pool for stage in scored.plan.stages for group in stage.replicas}
    return family_of(scored), *(f"only {pool}" for pool in pools if len(pools) == 1)


class Met:
    """Keeps the fastest plan of each family, of each pool alone, and of each number of devices and stages."""

    def __init__(self) -> None:
        self.plans: dict[str, Scored] = {}
        """By family; ``only POOL`` for plans that stay on one pool."""
        self.by_size: dict[tuple[int, int], Scored] = {}
        """By devices and stages."""

    def take(self, scored: Scored) -> None:
        """A plan that fits."""
        for name in families_of(scored):
            _keep(self.plans, name, scored)
        _keep(self.by_size, (scored.plan.devices, scored.plan.pp), scored)


def _keep(plans: dict[Key, Scored], key: Key, scored: Scored) -> None:
    known = plans.get(key)
    if known is None or scored.estimate.step_seconds < known.estimate.step_seconds:
        plans[key] = scored
