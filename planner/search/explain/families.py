"""A good plan of each family of plans, and the reason it lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.cost.estimate import Estimator
from planner.cost.values import CAUSES
from planner.runtimes.registry import target
from planner.search.data_parallel import Shares
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explorer import Explorer
from planner.search.heuristics.quick import Wanted, everywhere, quick_plan
from planner.search.space.choices import targets_of, usable_device_types
from planner.search.values import Alternative, Limits, Scored, Silent
from planner.units import gib_from_bytes

SAME = 5e-4
"""Share of a step below which two plans are as fast."""


def worst_cause(loser: Scored, winner: Scored) -> tuple[str, float]:
    """The cause in which a plan loses most, and how much of the winner's step."""
    worse = {
        label.text: getattr(loser.estimate.breakdown, name) - getattr(winner.estimate.breakdown, name)
        for name, label in CAUSES.items()
    }
    worst = max(worse, key=lambda label: worse[label])
    return worst, worse[worst] / winner.estimate.step_seconds


def slower_by(loser: Scored, winner: Scored) -> float:
    """How much more time a step takes, as a share of the winner's; negative when it is faster."""
    return loser.estimate.step_seconds / winner.estimate.step_seconds - 1


def reason_against(loser: Scored, winner: Scored) -> str:
    """``compute +31 %, 8 fewer devices``: the cause in which a plan loses most."""
    slower = slower_by(loser, winner)
    if abs(slower) < SAME:
        return "as fast"
    if slower < 0:
        return f"{-100 * slower:.1f} % faster: the search may stop before it"
    cause, share = worst_cause(loser, winner)
    fewer = winner.plan.devices - loser.plan.devices
    idle = f", {fewer} fewer device{'s' if fewer > 1 else ''}" if fewer > 0 else ""
    return f"{cause} {100 * share:+.0f} %{idle if cause == CAUSES['compute_seconds'].text else ''}"


NOT_FOUND = "no plan found that fits"

GAP = 0.1
"""Gap to which a pool is searched on its own."""

ROUNDS = 20
"""Rounds of such a search."""


Price = Callable[[Scored], Scored | None]
"""A plan's price where it will run; None where it cannot."""

Label = Callable[[Scored, Scored], str]
"""Why the first of two plans loses to the second."""


def alternatives(best: Scored, estimator: Estimator, limits: Limits) -> tuple[Alternative, ...]:
    """The chosen plan first, then a good plan of each other family, fastest first, then those without one."""
    found = FamilyPlans(estimator, limits)
    found.look(best)
    return found.beside(best)


class FamilyPlans:
    """A good plan of each family and of each pool alone; which of them is chosen may change."""

    def __init__(
        self,
        estimator: Estimator,
        limits: Limits,
        deadline: Deadline = NO_LIMIT,
        price: Price = lambda scored: scored,
    ) -> None:
        self.estimator, self.limits, self.deadline = estimator, limits, deadline
        self._price = price
        self._plans: dict[str, Scored] = {}
        self._without: dict[str, str] = {}
        """Why a family has no plan."""

    @property
    def plans(self) -> tuple[Scored, ...]:
        """All that was found."""
        return tuple(self._plans.values())

    def look(self, best: Scored) -> None:
        """A plan of every family but the chosen one, until the deadline."""
        for name, restricted in families(self.limits):
            if name != family_of(best) and not self._known(name):
                found = quick_plan(self.estimator, restricted, everywhere(self.estimator), self.deadline)
                self._take(name, found, _lack(self.estimator, restricted) or NOT_FOUND)
        pools = self.estimator.cluster.pools
        for pool in pools if len(pools) > 1 else ():
            name = f"only {pool.name}"
            if _pools(best) != {pool.name} and not self._known(name):
                self._take(name, self._only(pool.name), self._unable(pool.name))

    def keep(self, scored: Scored) -> None:
        """A plan that was chosen before a better one was found."""
        names = [family_of(scored), *(f"only {pool}" for pool in _pools(scored) if len(_pools(scored)) == 1)]
        for name in names:
            known = self._plans.get(name)
            if known is None or scored.estimate.step_seconds < known.estimate.step_seconds:
                self._plans[name] = scored

    def beside(self, best: Scored, label: Label = reason_against) -> tuple[Alternative, ...]:
        """The chosen plan first, then the others, fastest first, then families without a plan."""
        own = {family_of(best), *(f"only {pool}" for pool in _pools(best) if len(_pools(best)) == 1)}
        plans = [(name, scored) for name, scored in self._plans.items() if name not in own]
        plans.sort(key=lambda item: item[1].estimate.step_seconds)
        return (
            Alternative(family=family_of(best), scored=best, chosen=True, reason="chosen"),
            *(
                Alternative(family=name, scored=scored, chosen=False, reason=label(scored, best))
                for name, scored in plans
            ),
            *(
                Alternative(family=name, scored=None, chosen=False, reason=reason)
                for name, reason in self._without.items()
                if name not in own and name not in self._plans
            ),
        )

    def _known(self, name: str) -> bool:
        return name in self._plans or name in self._without or self.deadline.struck

    def _take(self, name: str, found: Scored | None, without: str) -> None:
        """Keep what was found; that nothing was found says nothing when time was up."""
        scored = found and self._price(found)
        if scored is not None:
            self._plans[name] = scored
        elif not self.deadline.struck:
            self._without[name] = without

    def _only(self, pool: str) -> Scored | None:
        if any(row.dp_per_stage for row in targets_of(self.limits)):
            return _alone(pool, self.estimator, self.limits, self.deadline)
        return quick_plan(self.estimator, self.limits, Wanted(pools=frozenset((pool,))), self.deadline)

    def _unable(self, pool: str) -> str:
        model = self.estimator.model
        able = any(
            device_type.pool == pool for device_type in usable_device_types(self.estimator.topology, model)
        )
        return NOT_FOUND if able else f"no {model.training.precision}"


def _pools(scored: Scored) -> set[str]:
    return {group.pool for stage in scored.plan.stages for group in stage.replicas}


def _alone(pool: str, estimator: Estimator, limits: Limits, deadline: Deadline) -> Scored | None:
    """A short search of one pool, for targets whose stages choose their own degrees: those have no quick plans."""
    cluster = estimator.cluster
    kept = tuple(item for item in cluster.pools if item.name == pool)
    alone = Estimator(cluster.model_copy(update={"pools": kept}), estimator.model, estimator.calibration)
    explorer = Explorer(alone, replace(limits, gap=max(limits.gap, GAP)), Silent(), deadline=deadline)
    explorer.run(rounds=ROUNDS)
    return explorer.best


def _lack(estimator: Estimator, limits: Limits) -> str | None:
    """By how much the roomiest device is too small for data parallelism; None when it is not, or not known."""
    missing = min(
        (
            (shares.missing_bytes(device_type), device_type)
            for row in targets_of(limits)
            for choice in data_parallel_choices(row, limits, estimator)
            if choice.one_copy
            for shares in (Shares(choice, estimator, limits),)
            for device_type in shares.device_types
        ),
        key=lambda item: item[0],
        default=None,
    )
    if missing is None or missing[0] <= 0:
        return None
    size, device_type = missing
    return f"does not fit: {device_type.gpu} ({device_type.pool}) lacks {gib_from_bytes(size):.1f} GiB"


def families(limits: Limits) -> list[tuple[str, Limits]]:
    """Named parts of the space inside the user's limits."""
    found: list[tuple[str, Limits]] = []
    for row in targets_of(limits):
        if not row.by_default:  # its parts are too wide to be solved besides
            continue
        base = replace(limits, target=row.name)
        if row.batch_without_pipeline == "per-device":
            for zero in row.zero_without_pipeline:
                found.append((f"{row.name}: ZeRO-{zero}", replace(base, zero=(zero,), pp=(1,), tp=(1,))))
        deeper, wider = tuple(range(2, 1025)), tuple(range(2, 65))
        if _both(row.zero_with_pipeline, limits.zero):
            found.append((f"{row.name}: pipeline", replace(base, pp=deeper, tp=(1,))))
            if row.tensor_parallel != "none":
                found.append((f"{row.name}: pipeline + tensor", replace(base, pp=deeper, tp=wider)))
        if row.tensor_parallel != "none" and _both(row.zero_without_pipeline, limits.zero):
            found.append((f"{row.name}: data + tensor", replace(base, pp=(1,), tp=wider)))
            if row.batch_without_pipeline != "per-device":
                found.append((f"{row.name}: data parallel", replace(base, pp=(1,), tp=(1,))))
    within = (
        (
            name,
            replace(
                item,
                zero=_both(item.zero, limits.zero),
                tp=_both(item.tp, limits.tp),
                pp=_both(item.pp, limits.pp),
            ),
        )
        for name, item in found
    )
    return [(name, item) for name, item in within if () not in (item.zero, item.tp, item.pp)]


def _both(own: tuple[int, ...] | None, users: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """What the family has and the user allows; None for everything."""
    if own is None or users is None:
        return own if users is None else users
    return tuple(value for value in own if value in set(users))


def family_of(scored: Scored) -> str:
    """The name of the family a plan belongs to."""
    plan = scored.plan
    row = target(plan.target)
    wide = any(group.tp > 1 for stage in plan.stages for group in stage.replicas)
    if plan.pp > 1:
        return f"{row.name}: pipeline + tensor" if wide else f"{row.name}: pipeline"
    if wide:
        return f"{row.name}: data + tensor"
    if row.batch_without_pipeline == "per-device":
        return f"{row.name}: ZeRO-{plan.zero}"
    return f"{row.name}: data parallel"
