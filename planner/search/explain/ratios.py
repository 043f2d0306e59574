"""How the answer depends on the speeds of devices and networks, and the plan with the least regret.

Plans that the search has met, and what becomes of them when their layers and batches are dealt anew for the ends of
the bars, are priced again in worlds at these ends and, where another plan is better there, between them. None of it is
proven: the best plan at other speeds is the best of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import product
from math import hypot, sqrt

from planner.calibration.merge import LEAST_SPREAD
from planner.calibration.values import Calibration
from planner.cluster.equal_pools import joined
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import sockets_only
from planner.cost.estimate import Estimator
from planner.dims.pipeline import PipelineParallelism
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.values import Plan
from planner.search.deadline import Deadline, Struck
from planner.search.explain.bars import ErrorBar, Factors, device_bars, network_bars, scaled, with_families
from planner.search.explain.families import SAME, families, reason_against, slower_by
from planner.search.explain.reasons import CUT_SHORT, LEFT_OUT, left_out
from planner.search.heuristics.quick import everywhere, quick_plan
from planner.search.heuristics.rebalance import rebalanced
from planner.search.incumbent import family_of, meets, obeys, wanted_of
from planner.search.ranking import ranked
from planner.search.space.choices import usable_device_types
from planner.search.values import Alternative, Goal, Hedge, Limits, Ratio, Scored, SearchResult, proven
from planner.targets import TARGETS

WORTH = 0.05
"""What a plan must lose at an end of a bar to be worth a line."""

UNSETTLED = 2 * LEAST_SPREAD
"""Bar from which a measurement, which leaves ``LEAST_SPREAD``, makes a ratio much better known."""

LEAST_GAIN = 0.01
"""Another plan is the best from this gain on, or from the gap that was asked for."""

STEPS = 7
"""Bisections of the factor from which another plan is the best."""

SHOWN = 2
"""Ratios that are told."""

DEALT = 2
"""Plans that are dealt anew at each end, the best ones there first."""

ROBUST_DEALT = 4
"""The same for a robust plan."""

HEDGED = 4
"""Rounds in which the plan with the least regret is dealt anew for where it regrets most."""

CORNERED = 4
"""Speeds whose ends are combined for a robust plan, the least known ones first: 2 ** 4 corners."""

ONE_SPEED = (
    "--robust: all devices are of one type and no network joins them, so no ratio of speeds matters: this is the usual "
    "answer"
)
NOT_WEIGHED = (
    "--robust: the search ended before plans were weighed at other speeds: this is the fastest one found"
)


class Worlds:
    """Prices plans where devices and networks have other speeds."""

    def __init__(self, estimator: Estimator, limits: Limits, goal: Goal) -> None:
        self.estimator, self.limits, self.goal = estimator, limits, goal
        self._estimators: dict[Factors, Estimator] = {(): estimator}
        self._seen: dict[bool, Estimator] = {}
        self._seconds: dict[tuple[Factors, Plan], float] = {}
        self.plans: dict[Plan, Scored] = {}
        """All that may be chosen, at the speeds of the cost model."""

    def take(self, plans: Iterable[Scored | None]) -> None:
        """Keep plans that the user allows."""
        for scored in plans:
            if scored is not None:
                self._add(scored.plan)

    def _add(self, plan: Plan) -> None:
        if plan in self.plans or not obeys(plan, self.limits, self.goal):
            return
        own = Scored(plan=plan, estimate=self.estimator.estimate(plan))
        if own.estimate.fits and meets(own.estimate, self.goal):
            self.plans[plan] = own

    def value(self, scored: Scored, factors: Factors = ()) -> float:
        """The objective of a plan at these speeds."""
        if not factors:
            return wanted_of(scored.estimate, self.goal)
        key = factors, scored.plan
        if key not in self._seconds:
            self._seconds[key] = self.at(factors).step_seconds(scored.plan)
        share = self._seconds[key] / scored.estimate.step_seconds
        return wanted_of(scored.estimate, self.goal) * share

    def at(self, factors: Factors) -> Estimator:
        """The estimator of a world."""
        if factors not in self._estimators:
            other = scaled(self.estimator.calibration, factors)
            self._estimators[factors] = self.estimator.with_calibration(other)
        return self._estimators[factors]

    def best(self, factors: Factors) -> Scored:
        """The best of all known plans in a world."""
        return next(self.ranked(factors))

    def ranked(self, factors: Factors) -> Iterator[Scored]:
        """All known plans, the best ones in a world first; those that cannot be next are not priced there."""
        # No plan gains more than what became faster did.
        most = max(1.0, *(factor for _, factor in factors)) * (1 + 1e-9) if factors else 1.0
        waiting = [
            (self.value(scored) / most, number, not factors, scored)
            for number, scored in enumerate(self.plans.values())
        ]
        heapify(waiting)
        while waiting:
            _, number, known, scored = heappop(waiting)
            if known:
                yield scored
            else:
                heappush(waiting, (self.value(scored, factors), number, True, scored))

    def deal(self, scored: Scored, factors: Factors) -> None:
        """Take the plan with the layers and batches that suit a world."""
        own = self.at(factors)
        self.take((rebalanced(scored.plan, own, self._view(scored.plan, own), self.limits),))

    def take_near(self, plan: Plan) -> None:
        """Take what has one layer on another stage: between plans that suit worlds lie some that suit none."""
        topology, model = self.estimator.topology, self.estimator.model
        for change in PipelineParallelism().neighbours(plan, TARGETS[plan.target], topology.device_types):
            if not faults(change.plan, self.estimator.cluster, model):
                self._add(change.plan)

    def deal_best(self, factors: Factors, deadline: Deadline, most: int) -> None:
        """The same for the plans that are best there as they are, one of a family."""
        chosen: dict[str, Scored] = {}
        for scored in self.ranked(factors):
            chosen.setdefault(family_of(scored), scored)
            if len(chosen) == most:
                break
        for scored in chosen.values():
            deadline.check()
            self.deal(scored, factors)

    def _view(self, plan: Plan, own: Estimator) -> Estimator:
        """The cluster as the plan's runtime sees it, equal pools joined."""
        sockets = self.estimator.uses_sockets(plan)
        if sockets not in self._seen:
            base = self.estimator
            cluster = joined(sockets_only(base.cluster) if sockets else base.cluster)
            same = cluster is base.cluster
            self._seen[sockets] = base if same else Estimator(cluster, base.model, base.calibration)
        seen = self._seen[sockets]
        return own if seen is self.estimator else seen.with_calibration(own.calibration)


def weighed(
    result: SearchResult,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    goal: Goal,
    deadline: Deadline,
) -> SearchResult:
    """The result with the ratios that it rests on; the robust plan in place of the best where the goal asks for it."""
    worlds = Worlds(Estimator(with_families(ranked(cluster)), model, calibration), limits, goal)
    found = _weighed(result, worlds, deadline)
    if found.best is None or not goal.robust or found.hedge is not None or ONE_SPEED in found.warnings:
        return found
    return replace(found, warnings=(*found.warnings, NOT_WEIGHED))


def _weighed(result: SearchResult, worlds: Worlds, deadline: Deadline) -> SearchResult:
    best, goal, limits = result.best, worlds.goal, worlds.limits
    if best is None or result.interrupted:
        return result
    device_types = usable_device_types(worlds.estimator.topology, worlds.estimator.model)
    networks = network_bars(worlds.estimator) if goal.robust else ()
    if len({device_type.family for device_type in device_types}) == 1 and not networks:
        return replace(result, warnings=(*result.warnings, ONE_SPEED)) if goal.robust else result
    try:
        worlds.take((best, *_met(result)))
        if best.plan not in worlds.plans:
            return result
        for _, part in families(limits) if goal.robust else ():
            worlds.take((quick_plan(worlds.estimator, part, everywhere(worlds.estimator), deadline),))
        bars = device_bars(tuple(worlds.plans.values()), worlds.estimator)
        told: list[Ratio] = []
        try:
            for ratio in _ratios(worlds, best.plan, bars, deadline) if len(bars) > 1 else ():
                told.append(ratio)
        finally:
            told.sort(key=lambda ratio: -ratio.regret)
            result = _with_best(replace(result, ratios=tuple(told[:SHOWN])), worlds.best(()), limits)
        if goal.robust:
            result = _robust(result, worlds, (*bars, *networks), deadline)
    except Struck:
        said = {LEFT_OUT, CUT_SHORT} & {*result.warnings}
        warnings = result.warnings if said else (*result.warnings, left_out(deadline))
        return replace(result, warnings=warnings, interrupted=deadline.interrupted)
    return result


def _met(result: SearchResult) -> Iterator[Scored | None]:
    """Plans that the search has kept."""
    yield from (entry.scored for entry in result.alternatives)
    yield from (entry.scored for entry in result.idle_costs)


def _with_best(result: SearchResult, other: Scored, limits: Limits) -> SearchResult:
    """The result with another best plan, where there is a better one than the search stopped at."""
    best, goal = result.best, result.goal
    assert best is not None
    value, before = (wanted_of(item.estimate, goal) for item in (other, best))
    if value >= before:
        return result
    proof = result.bound_seconds if result.objective_bound is None else result.objective_bound
    bound = min(proof, value)
    gap = 1 - bound / value if value else 0.0
    return replace(
        result,
        best=other,
        gap=gap,
        status=proven(gap, limits.gap),
        bound_seconds=min(result.bound_seconds, other.estimate.step_seconds),
        objective_bound=None if result.objective_bound is None else bound,
        alternatives=tuple(
            replace(entry, scored=other) if entry.chosen else entry for entry in result.alternatives
        ),
    )


def _ratios(worlds: Worlds, plan: Plan, bars: Sequence[ErrorBar], deadline: Deadline) -> Iterator[Ratio]:
    """For each device type but the best known, what its speed next to that one decides."""
    *others, reference = bars
    for bar in others:
        if bar.spread <= UNSETTLED:
            break
        deadline.check()
        ratio = _ratio(worlds, plan, bar, reference, deadline)
        if ratio is not None:
            yield ratio


def _ratio(
    worlds: Worlds, plan: Plan, bar: ErrorBar, reference: ErrorBar, deadline: Deadline
) -> Ratio | None:
    """None where the plan is about the best all over the bar."""
    robust = worlds.goal.robust  # whose plan is one of those that are dealt
    wide = replace(bar, spread=hypot(bar.spread, reference.spread))
    for end in wide.ends:
        worlds.deal_best(((bar, end),), deadline, ROBUST_DEALT if robust else DEALT)
    chosen = worlds.plans[plan]

    def regret(factor: float) -> float:
        world = ((bar, factor),)
        return worlds.value(chosen, world) / worlds.value(worlds.best(world), world) - 1

    regrets = {end: regret(end) for end in wide.ends}
    worst = max(regrets, key=lambda end: regrets[end])
    if regrets[worst] < WORTH:
        return None
    gain = max(LEAST_GAIN, worlds.limits.gap)
    flips: list[float | None] = []
    for end in wide.ends:
        if regrets[end] < gain:
            flips.append(None)
            continue
        near, far, other = 1.0, end, worlds.best(((bar, end),))
        for _ in range(STEPS):
            deadline.check()
            middle = sqrt(near * far)
            world = ((bar, middle),)
            if robust:
                worlds.deal(chosen, world)
                other = worlds.best(world)
            flipped = worlds.value(chosen, world) / worlds.value(other, world) - 1 >= gain
            near, far = (near, middle) if flipped else (middle, far)
        flips.append(far)
    return Ratio(
        gpus=bar.members,
        against=reference.members,
        bar=wide.spread,
        measure=tuple(item.members[0] for item in (bar, reference) if item.spread > UNSETTLED),
        slower_than=flips[0],
        faster_than=flips[1],
        regret=regrets[worst],
        scored=worlds.best(((bar, worst),)),
    )


def _robust(
    result: SearchResult, worlds: Worlds, bars: Sequence[ErrorBar], deadline: Deadline
) -> SearchResult:
    """The plan with the least worst-case regret in place of the best one."""
    doubted = sorted(bars, key=lambda bar: -bar.spread)[:CORNERED]
    corners: list[Factors] = [
        (),
        *(tuple(zip(doubted, ends, strict=True)) for ends in product(*(bar.ends for bar in doubted))),
    ]
    for bar in doubted:
        for end in bar.ends:
            own = worlds.at(((bar, end),))
            worlds.take((quick_plan(own, worlds.limits, everywhere(own), deadline),))
    for corner in corners:
        for world in (corner, _towards(corner, 0.5)):
            worlds.deal_best(world, deadline, ROBUST_DEALT)
    chosen = _least_regret(worlds, corners, deadline)
    for _ in range(HEDGED):
        before, worst = chosen, max(corners, key=lambda corner: _regrets(worlds, corner)[chosen.plan])
        for part in (0.25, 0.5, 0.75):
            deadline.check()
            worlds.deal(chosen, _towards(worst, part))
        worlds.take_near(chosen.plan)
        chosen = _least_regret(worlds, corners, deadline)
        if chosen.plan == before.plan:
            break
    return _hedged(result, worlds, chosen, corners, doubted)


def _towards(corner: Factors, part: float) -> Factors:
    """A world on the way to a corner."""
    return tuple((bar, factor**part) for bar, factor in corner)


def _regrets(worlds: Worlds, corner: Factors) -> dict[Plan, float]:
    """By how much more each known plan takes than the best of them."""
    least = worlds.value(worlds.best(corner), corner)
    return {plan: worlds.value(scored, corner) / least - 1 for plan, scored in worlds.plans.items()}


def _least_regret(worlds: Worlds, corners: Sequence[Factors], deadline: Deadline) -> Scored:
    """The plan whose regret in the worst corner is least, the fastest of equal ones."""
    worst = dict.fromkeys(worlds.plans, 0.0)
    for corner in corners:
        deadline.check()
        for plan, regret in _regrets(worlds, corner).items():
            worst[plan] = max(worst[plan], regret)
    return min(worlds.plans.values(), key=lambda item: (worst[item.plan], item.estimate.step_seconds))


def _hedged(
    result: SearchResult,
    worlds: Worlds,
    chosen: Scored,
    corners: Sequence[Factors],
    doubted: Sequence[ErrorBar],
) -> SearchResult:
    """The result with the chosen plan as its answer; the bound stays that of the fastest."""
    fastest = worlds.best(())
    result = _with_best(result, fastest, worlds.limits)
    all_regrets = [_regrets(worlds, corner) for corner in corners]
    regret, most = (max(own[plan] for own in all_regrets) for plan in (chosen.plan, fastest.plan))
    if most - regret < SAME:
        chosen, regret = fastest, most
    step = chosen.estimate.step_seconds
    hedge = Hedge(
        regret=regret,
        fastest_regret=most,
        slower=max(0.0, slower_by(chosen, fastest)),
        fastest_gap=result.gap,
        plans=len(worlds.plans),
        speeds=tuple(f"{' and '.join(bar.members)} ±{100 * bar.spread:.0f} %" for bar in doubted),
    )
    if chosen.plan == fastest.plan:
        return replace(result, hedge=hedge)
    gap = 1 - result.bound_seconds / step
    return replace(
        result,
        best=chosen,
        hedge=hedge,
        gap=gap,
        status=proven(gap, worlds.limits.gap),
        alternatives=_beside(chosen, fastest, result),
        # What was said of the fastest plan.
        advice=(),
        idle_costs=(),
        ratios=(),
        limit_costs=tuple(
            replace(entry, costs=step / entry.scored.estimate.step_seconds - 1)
            for entry in result.limit_costs
        ),
    )


def _beside(chosen: Scored, fastest: Scored, result: SearchResult) -> tuple[Alternative, ...]:
    """The chosen plan first, then the fastest, then the families that were looked at."""
    faster = f"{-100 * slower_by(fastest, chosen):.1f} % faster by the cost model, more regret at worst"
    others = (entry for entry in result.alternatives if not entry.chosen)
    return (
        Alternative(family=family_of(chosen), scored=chosen, chosen=True, reason="chosen"),
        Alternative(family="fastest", scored=fastest, chosen=False, reason=faster),
        *(
            replace(entry, reason=reason_against(entry.scored, chosen)) if entry.scored else entry
            for entry in others
            if entry.family != family_of(chosen)
        ),
    )
