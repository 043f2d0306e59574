"""A good plan of each family of plans, and the reason it lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from planner.cost.estimate import Estimator
from planner.cost.values import CAUSES
from planner.dims.context import contexts
from planner.dims.tensor import indivisible, splits, undivided_because
from planner.dims.trained import lack, splits_frozen, undivided_text
from planner.model.spec import ModelSpec
from planner.plan.checks import unchosen
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.data_parallel import shares_of
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.first_found import first_found
from planner.search.explorer import Explorer
from planner.search.heuristics.quick import CheapLook, Wanted, everywhere
from planner.search.incumbent import Met, families_of, family_of
from planner.search.space.choices import MAX_DEPTH, offers, targets_of
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
    return f"{cause} {100 * share:+.0f} %{fewer_text(loser, winner, cause)}"


def fewer_text(loser: Scored, winner: Scored, cause: str) -> str:
    """``, 8 fewer devices`` where a plan loses most by computing, and by having fewer devices to compute on."""
    fewer = winner.plan.devices - loser.plan.devices
    if fewer <= 0 or cause != CAUSES["compute_seconds"].text:
        return ""
    return f", {fewer} fewer device{'s' if fewer > 1 else ''}"


NOT_FOUND = "no plan found that fits"

HARDLY = "hardly searched"
"""Said of a family where time was up before a better plan than one far from the best, or any plan, was looked for, and
of such a plan that is the first of a search."""

FAR = 0.5
"""A plan that takes longer than the best by more than this share of its step may be a poor one of its family: the
search looks at what cannot win only as long as it may."""

NEAR = 0.1
"""A plan that takes longer than the best by no more than this share of its step is as good as a look would find."""

FURTHER_SHARE = 0.5
"""Part of the time that is left, at most, for looks beyond the first plans of families."""

SEARCHED_SHARE = 0.25
"""Part of the time that is left, at most, for a search of a family of which no quick plan was found."""

GAP = 0.1
"""Gap to which a pool is searched on its own."""

ROUNDS = 20
"""Rounds of such a search."""


Price = Callable[[Scored], Scored | None]
"""A plan's price where it will run; None where it cannot."""

Label = Callable[[Scored, Scored], str]
"""Why the first of two plans loses to the second."""


class FamilyPlans:
    """A good plan of each family and of each pool alone; which of them is chosen may change."""

    def __init__(
        self,
        estimator: Estimator,
        limits: Limits,
        deadline: Deadline = NO_LIMIT,
        price: Price = lambda scored: scored,
        met: Met | None = None,
    ) -> None:
        """``met``: what a search of the same space has priced."""
        self.estimator, self.limits, self.deadline = estimator, limits, deadline
        self._price = price
        self._met = Met() if met is None else met
        self._plans: dict[str, Scored] = {}
        self._without: dict[str, str] = {}
        """Why a family has no plan."""
        self._looked: set[str] = set()
        self._looks: dict[str, CheapLook] = {}
        """Looks whose second part is to come."""
        self._searched: set[str] = set()
        """Families whose look ended before the deadline, and found a plan where one was found."""
        self._vain: set[str] = set()
        """Families in which a search met no plan."""
        self._families = dict(families(limits))
        pools = [pool.name for pool in estimator.cluster.pools]
        self._pools = {f"only {pool}": pool for pool in pools if len(pools) > 1}

    @property
    def plans(self) -> tuple[Scored, ...]:
        """All that was found."""
        return tuple(self._plans.values())

    @property
    def known(self) -> tuple[Scored, ...]:
        """The same, and what the search has met of each number of devices and stages."""
        met = map(self._price, self._met.by_size.values())
        return *self.plans, *(scored for scored in met if scored is not None)

    def look(self, best: Scored) -> bool:
        """A plan of every family but the chosen one; False when the deadline left some out.

        Most are plans that the search has met. A family that it met no good plan of gets a cheap look of its own; then
        those that are not near get all of such a look, the fastest first, while there is time.
        """
        own = families_of(best)
        waiting = [name for name in (*self._families, *self._pools) if name not in own]
        for name in waiting:
            if name not in self._plans and name in self._met.plans:
                self._take(name, self._met.plans[name])
        missed: list[str] = []
        # Those of which nothing is known come first.
        for name in sorted(waiting, key=self._plans.__contains__):
            if name in self._looked or self._slower(name, best) <= (NEAR if self._is_short(name) else FAR):
                continue
            if self.deadline.struck:
                return False
            self._looked.add(name)
            self._take(name, self._found(name, best))
            if not self.deadline.struck:
                self._searched.add(name)
            if name not in self._plans and not self.deadline.struck:
                # That nothing was found says nothing when time was up.
                self._without[name] = self._unable(name)
                missed.append(name)
        further = self.deadline.part(FURTHER_SHARE)
        for name in sorted(self._plans, key=lambda name: self._slower(name, best)):
            if name in own or self._slower(name, best) <= NEAR or further.struck:
                continue
            if name in waiting and name not in self._looked:
                self._looked.add(name)
                self._take(name, self._found(name, best))
            if name in self._looks:
                self._take(name, self._looks.pop(name).go_on())
        # Searches, which take longest, come behind all looks.
        for name in missed:
            if name in self._families and self._without[name] == NOT_FOUND and not self.deadline.struck:
                part, deadline = self._families[name], self.deadline.part(SEARCHED_SHARE)
                self._take(name, first_found(self.estimator, part, deadline))
                # The first plan that fits may be a poor one.
                if name in self._plans or deadline.struck:
                    self._searched.discard(name)
                else:
                    self._vain.add(name)
        for scored in self._met.plans.values():
            if scored.plan.grid is not None:
                self._take(family_of(scored), scored)
        return True

    def _is_short(self, name: str) -> bool:
        """True of data parallelism, which takes no long look."""
        return name in self._families and self._families[name].pp == (1,)

    def _slower(self, name: str, best: Scored) -> float:
        """How much more time the plan of a family takes that is known, as a share of the best's; infinite for none."""
        known = self._plans.get(name)
        return inf if known is None else slower_by(known, best)

    def keep(self, scored: Scored) -> None:
        """A plan that was chosen before a better one was found."""
        for name in families_of(scored):
            self._keep(name, scored)

    def beside(self, best: Scored, label: Label = reason_against) -> tuple[Alternative, ...]:
        """The chosen plan first, then the others, fastest first, then families without a plan."""
        own = families_of(best)
        plans = [(name, scored) for name, scored in self._plans.items() if name not in own]
        plans.sort(key=lambda item: item[1].estimate.step_seconds)
        return (
            Alternative(family=own[0], scored=best, chosen=True, reason="chosen"),
            *(
                Alternative(
                    family=name,
                    scored=scored,
                    chosen=False,
                    reason=label(scored, best) + self._doubt(name, scored, best),
                )
                for name, scored in plans
            ),
            *(
                Alternative(family=name, scored=None, chosen=False, reason=self._doubted(name, reason))
                for name, reason in self._without.items()
                if name not in own and name not in self._plans
            ),
        )

    def _doubt(self, name: str, scored: Scored, best: Scored) -> str:
        """``; hardly searched`` where a plan says little about its family."""
        known = name in self._families or name in self._pools
        hardly = known and name not in self._searched and slower_by(scored, best) > FAR
        return f"; {HARDLY}" if hardly else ""

    def _doubted(self, name: str, reason: str) -> str:
        """The same where a look found no plan and time was up before a search for one ended."""
        doubted = reason == NOT_FOUND and name in self._families and name not in self._vain
        return f"{reason}; {HARDLY}" if doubted else reason

    def _take(self, name: str, plan: Scored | None) -> None:
        """Keep a plan of a family, which may be one of a single pool as well."""
        scored = plan and self._price(plan)
        if scored is not None:
            also = [own for own in families_of(scored) if own in self._families or own in self._pools]
            for own in dict.fromkeys((name, *also)):
                self._keep(own, scored)

    def _keep(self, name: str, scored: Scored) -> None:
        known = self._plans.get(name)
        if known is None or scored.estimate.step_seconds < known.estimate.step_seconds:
            self._plans[name] = scored

    def _found(self, name: str, best: Scored) -> Scored | None:
        """A plan of a family, or of a pool alone for the target of the best plan, better than the known one."""
        limits = self._families.get(name)
        if limits is not None:
            wanted = everywhere(self.estimator)
        else:
            pool = self._pools[name]
            if any(row.dp_per_stage for row in targets_of(self.limits)):
                return _alone(pool, self.estimator, self.limits, self.deadline)
            limits = replace(self.limits, target=best.plan.target)
            wanted = Wanted(pools=frozenset((pool,)))
        known = self._plans.get(name)
        self._looks[name] = CheapLook(self.estimator, limits, wanted, self.deadline, known)
        return self._looks[name].begin()

    def _unable(self, name: str) -> str:
        """Why a family, or a pool alone, has no plan."""
        if name in self._families:
            rows = targets_of(self._families[name])
            if not any(offers(row, self.estimator.model) for row in rows):
                training = self.estimator.model.training
                return next(filter(None, (unchosen(row, training) for row in rows)), "trains no such model")
            if whole := undivided(self.estimator.model, self._families[name]):
                return f"not with {whole}"
            if why := keeps_whole(self.estimator.model, self._families[name]):
                return why
            degrees = self._families[name].tp or (1,)
            if not any(splits(self.estimator.model, tp) for tp in degrees):
                return next(indivisible(self.estimator.model, degrees[0]))
            return _lack(self.estimator, self._families[name]) or NOT_FOUND
        own = [each for each in self.estimator.topology.device_types if each.pool == self._pools[name]]
        lacking = [lack(device_type, self.estimator.model.training) for device_type in own]
        return f"no {lacking[0]}" if all(lacking) else NOT_FOUND


def _alone(pool: str, estimator: Estimator, limits: Limits, deadline: Deadline) -> Scored | None:
    """A short search of one pool, for targets whose stages choose their own degrees: those have no quick plans."""
    cluster = estimator.cluster
    kept = tuple(item for item in cluster.pools if item.name == pool)
    alone = Estimator(cluster.model_copy(update={"pools": kept}), estimator.model, estimator.calibration)
    explorer = Explorer(alone, replace(limits, gap=max(limits.gap, GAP)), Silent(), deadline=deadline)
    explorer.run(rounds=ROUNDS)
    return explorer.best


def undivided(model: ModelSpec, limits: Limits) -> str | None:
    """What of a model no target of a search divides over replicas of several devices, where its limits ask for them."""
    tensor = limits.tp is not None and 1 not in limits.tp
    if tensor and not any(splits_frozen(row, model) for row in targets_of(limits)):
        return undivided_text(targets_of(limits), model)
    if tensor and model.training.preference is not None:
        return "pairs of answers"
    if tensor and model.experts is not None and all(row.experts != "parallel" for row in targets_of(limits)):
        return "experts"
    return None


def keeps_whole(model: ModelSpec, limits: Limits) -> str | None:
    """Why no target of a search that trains a model divides it, where its limits ask for tensor parallelism."""
    if limits.tp is None or 1 in limits.tp:
        return None
    reasons = [next(undivided_because(row, model), None) for row in targets_of(limits) if offers(row, model)]
    return reasons[0] if all(reasons) else None


def _lack(estimator: Estimator, limits: Limits) -> str | None:
    """By how much the roomiest device is too small for data parallelism; None when it is not, or not known."""
    missing = min(
        (
            (shares.missing_bytes(device_type), device_type)
            for row in targets_of(limits)
            for choice in data_parallel_choices(row, limits, estimator)
            if choice.one_copy
            for shares in (shares_of(choice, estimator, limits),)
            for device_type in shares.device_types
        ),
        key=lambda item: item[0],
        default=None,
    )
    if missing is None or missing[0] <= 0:
        return None
    size, device_type = missing
    lacks = f"{device_type.gpu} ({device_type.pool}) lacks {gib_from_bytes(size):.1f} GiB"
    divided = any(len(contexts(row, estimator.model, 1, limits.cp)) > 1 for row in targets_of(limits))
    return f"does not fit: {lacks}{' with whole sequences' if divided else ''}"


def families(limits: Limits) -> list[tuple[str, Limits]]:
    """Named parts of the space inside the user's limits."""
    parts: list[tuple[str, Limits]] = []
    for row in targets_of(limits):
        if not row.by_default:  # its parts are too wide to be solved besides
            continue
        base = replace(limits, target=row.name)
        if row.batch_without_pipeline == "per-device":
            for zero in row.zero_without_pipeline:
                parts.append((f"{row.name}: ZeRO-{zero}", replace(base, zero=(zero,), pp=(1,), tp=(1,))))
        deeper, wider = tuple(range(2, MAX_DEPTH + 1)), tuple(range(2, 65))
        if _both(row.zero_with_pipeline, limits.zero):
            parts.append((f"{row.name}: pipeline", replace(base, pp=deeper, tp=(1,))))
            if row.tensor_parallel != "none" and row.tensor_parallel_in_pipeline:
                parts.append((f"{row.name}: pipeline + tensor", replace(base, pp=deeper, tp=wider)))
        if row.tensor_parallel != "none" and _both(row.zero_without_pipeline, limits.zero):
            parts.append((f"{row.name}: data + tensor", replace(base, pp=(1,), tp=wider)))
            if row.batch_without_pipeline != "per-device":
                parts.append((f"{row.name}: data parallel", replace(base, pp=(1,), tp=(1,))))
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
        for name, item in parts
    )
    return [(name, item) for name, item in within if () not in (item.zero, item.tp, item.pp)]


def _both(own: tuple[int, ...] | None, users: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """What the family has and the user allows; None for everything."""
    if own is None or users is None:
        return own if users is None else users
    return tuple(value for value in own if value in set(users))
