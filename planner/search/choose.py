"""The search under a goal as the user sees it: the plan, its proof, what lost, or what comes nearest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

from planner.calibration import Calibration
from planner.cost.estimate import Estimator
from planner.search.advice import advise
from planner.search.diagnose import diagnose
from planner.search.explorer import Explorer
from planner.search.families import alternatives
from planner.search.limit_costs import limit_costs
from planner.search.objectives import BestSearch
from planner.search.outside import outside
from planner.search.ranking import ranked
from planner.search.rungs import value_of
from planner.search.solve import search
from planner.search.subclusters import SubCluster
from planner.search.values import (
    Alternative,
    Goal,
    LimitName,
    Limits,
    Nearest,
    Objective,
    Reporter,
    Scored,
    SearchResult,
    Silent,
)
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec

LIMITS: tuple[tuple[LimitName, Objective], ...] = (
    ("min_tokens_per_second", "time"),
    ("max_cost_per_million_tokens", "cost"),
)
"""Limits of a goal, each with the objective that says how far a plan can go."""


def choose(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    goal: Goal,
    reporter: Reporter | None = None,
    *,
    explain: bool = True,
) -> SearchResult:
    """The best plan for the goal, with a bound that no plan of the sub-clusters it considered goes below.

    Prices and powers that the goal needs must be known. ``explain`` is as in ``search``. An interrupt keeps
    the best plan so far.
    """
    if goal == Goal():
        return search(cluster, model, calibration, limits, reporter, explain=explain)
    start = monotonic()
    estimator = Estimator(ranked(cluster), model, calibration)
    found = BestSearch(estimator, limits, goal, reporter or Silent())
    found.run()
    result = SearchResult(
        status=found.status,
        best=found.best,
        bound_seconds=found.bound if goal.objective == "time" else 0.0,
        gap=found.gap,
        alternatives=(),
        advice=(),
        diagnosis=None,
        candidates=found.candidates,
        solved=found.solved,
        seconds=monotonic() - start,
        interrupted=found.interrupted,
        goal=goal,
        subclusters=len(found.rungs) if len(found.rungs) > 1 else None,
        objective_bound=found.bound,
        outside=outside(cluster, model, limits, subclusters=len(found.rungs) > 1),
    )
    if not explain or found.interrupted:
        return result
    try:
        return _explained(result, found, reporter or Silent())
    except KeyboardInterrupt:
        return replace(result, interrupted=True)


def _explained(result: SearchResult, found: BestSearch, reporter: Reporter) -> SearchResult:
    if result.status == "infeasible":
        nearest = tuple(_nearest(found, reporter))
        if nearest:
            return replace(result, nearest=nearest)
        estimator = found.on(_largest(found)) if found.rungs else found.estimator
        return replace(result, diagnosis=diagnose(estimator, found.limits))
    if result.best is None or found.home is None:
        return result
    own = found.on(found.home)
    # A family without a plan here may have one on more devices.
    families = (entry for entry in alternatives(result.best, own, found.limits) if entry.scored)
    return replace(
        result,
        alternatives=(*families, *_elsewhere(result.best, found)),
        advice=advise(result.best, own, found.limits),
        limit_costs=limit_costs(result.best, own, found.limits),
    )


def _nearest(found: BestSearch, reporter: Reporter) -> Iterator[Nearest]:
    """The best plan once each limit is lifted; with every limit lifted where one is not enough."""
    for name, objective in LIMITS:
        asked = getattr(found.goal, name)
        if asked is None:
            continue
        free = replace(
            found.goal, objective=objective, max_cost_per_million_tokens=None, min_tokens_per_second=None
        )
        one = replace(free, **{other: getattr(found.goal, other) for other, _ in LIMITS if other != name})
        for goal in dict.fromkeys((one, free)):
            relaxed = BestSearch(found.estimator, found.limits, goal, reporter)
            relaxed.run()
            if relaxed.best is not None:
                yield Nearest(limit=name, asked=asked, kept=goal == one, scored=relaxed.best)
                break


def _elsewhere(best: Scored, found: BestSearch) -> Iterator[Alternative]:
    """A fast plan on all devices, and the best plan met on pools beyond those of the answer."""
    if found.goal.objective != "time":
        quick = Explorer(found.on(_largest(found)), found.limits, Silent()).quick()
        whole = None if quick is None else found.on_the_whole(quick)
        if whole is not None:
            yield _dearer("for speed", whole, best, found)
    own = frozenset() if found.home is None else frozenset(pool for pool, _ in found.home.devices)
    for pools, scored in found.met.items():
        if not pools <= own:
            yield _dearer(f"on {' + '.join(sorted(pools))}", scored, best, found)


def _largest(found: BestSearch) -> SubCluster:
    return max((rung.sub for rung in found.rungs), key=lambda sub: sub.total)


def _dearer(family: str, scored: Scored, best: Scored, found: BestSearch) -> Alternative:
    """A plan that lost by the objective, priced where it would run."""
    objective = found.goal.objective
    least = value_of(best.estimate, objective)
    more = f"{value_of(scored.estimate, objective) / least - 1:+.0%}" if least else "not free"
    return Alternative(family=family, scored=scored, chosen=False, reason=f"{LOSES[objective]}: {more}")


LOSES: dict[Objective, str] = {
    "time": "time of a step",
    "cost": "cost of a token",
    "energy": "energy of a token",
}
