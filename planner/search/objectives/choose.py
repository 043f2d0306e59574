"""The search under a goal: the plan, its proof and the alternatives, or the nearest plan if none meets the goal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import monotonic, process_time

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.search.deadline import Deadline, Struck
from planner.search.explain.diagnose import DIAGNOSIS_SHARE, diagnose
from planner.search.explain.families import reason_against
from planner.search.explain.ratios import weighed
from planner.search.explain.reasons import LEFT_OUT, SEARCH_SHARE, Reasons, left_out, reasons_deadline
from planner.search.explain.ties import settled, simpler
from planner.search.heuristics.quick import cheap_plan, everywhere, quick_plan
from planner.search.incumbent import value_of
from planner.search.objectives.objectives import BestSearch, Candidate, with_host_memory
from planner.search.ranking import ranked
from planner.search.solve import WIDENED, search, with_host_needs
from planner.search.space.outside import outside
from planner.search.values import (
    Alternative,
    Goal,
    LimitName,
    Limits,
    Nearest,
    Objective,
    OtherFormat,
    Reporter,
    Scored,
    SearchResult,
    Silent,
    proven,
)

LIMITS: tuple[tuple[LimitName, Objective], ...] = (
    ("min_tokens_per_second", "time"),
    ("max_cost_per_million_tokens", "cost"),
    ("deadline_seconds", "time"),
    ("budget", "cost"),
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
    advice: bool = False,
    simple: bool = False,
    deadline: Deadline | None = None,
    better: Callable[[Scored], object] | None = None,
) -> SearchResult:
    """The best plan for the goal, with a bound that no plan of the sub-clusters it considered goes below.

    Prices and powers that the goal needs must be known. ``explain``, ``advice``, ``deadline`` and ``better`` are as in
    ``search``. An interrupt keeps the best plan so far. With ``simple`` a simpler plan wins that is slower by less than
    the error bar.
    """
    deadline = deadline or Deadline.after(limits.time_limit_seconds)
    result = _best(
        cluster,
        model,
        calibration,
        limits,
        goal,
        reporter,
        explain=explain,
        advice=advice,
        deadline=deadline,
        better=better,
    )
    used, _ = without_excluded(cluster, goal)
    result = replace(result, simpler=simpler(result, Estimator(used, model, calibration)))
    return settled(result, limits.gap) if simple else result


PART_SLICE, PART_SECONDS = 0.3, 2.0
"""Part of the time left that one search of a part of a cluster may take, and the seconds it is given at least."""


def search_further(
    known: SearchResult | None,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    deadline: Deadline,
) -> tuple[SearchResult, bool] | None:
    """What is known of a part of a cluster after one more search of it, and whether that is more than before.

    The first goes to the gap of the limits, the next one to the optimum. None where all is known already.
    """
    if known is not None and (known.gap <= 0 or known.status == "infeasible"):
        return None
    gap = limits.gap if known is None or known.gap > limits.gap else 0.0
    limits = replace(limits, gap=gap)
    result = choose(cluster, model, calibration, limits, Goal(), explain=False, deadline=deadline)
    if known is not None and known.best is not None:
        plans = [each for each in (known.best, result.best) if each is not None]
        best = min(plans, key=lambda each: each.estimate.step_seconds)
        bound = max(known.bound_seconds, result.bound_seconds)
        left = max(0.0, 1.0 - bound / best.estimate.step_seconds)
        result = replace(result, status=proven(left, 0.0), best=best, bound_seconds=bound, gap=left)
    news = known is None or result.gap < known.gap or result.status != known.status
    return result, news and not result.interrupted


def _best(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    goal: Goal,
    reporter: Reporter | None,
    *,
    explain: bool,
    advice: bool,
    deadline: Deadline,
    better: Callable[[Scored], object] | None,
) -> SearchResult:
    """The answer with its reasons, whatever is simpler."""
    start, cpu_start = monotonic(), process_time()
    cluster, inner = without_excluded(cluster, goal)
    if inner.fastest and not inner.whole_run:
        result = search(
            cluster,
            model,
            calibration,
            limits,
            reporter,
            explain=explain,
            advice=advice,
            deadline=deadline,
            better=better,
        )
    else:
        estimator, talk = Estimator(ranked(cluster), model, calibration), reporter or Silent()
        part = deadline.part(SEARCH_SHARE) if explain else deadline
        finder = with_host_memory(
            limits, lambda allowed: BestSearch(estimator, allowed, inner, talk, part, better)
        )
        result = _searched(finder, explain, advice, deadline, monotonic() - start, process_time() - cpu_start)
        result = with_host_needs(result, None if finder.limits is limits else WIDENED)
    result, cpu_seconds = replace(result, goal=goal), process_time() - cpu_start
    if explain and result.best is not None and not deadline.struck:
        until = reasons_deadline(deadline, cpu_seconds, advice=advice)
        result = replace(
            result,
            other_format=_other_format(result, result.best, cluster, model, calibration, limits, until),
        )
    if result.reasons_error is not None or not (explain or goal.robust):
        return result
    if not goal.robust:
        deadline = reasons_deadline(deadline, cpu_seconds, advice=advice)
    try:
        return weighed(result, cluster, model, calibration, limits, goal, deadline)
    except Exception as error:
        return replace(result, reasons_error=error)


OTHER_FORMATS = {"bf16": ("fp16",), "fp8": ("bf16", "fp16")}
"""Number formats that more devices have than one of the training, the one to take first."""


def _other_format(
    result: SearchResult,
    best: Scored,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    deadline: Deadline,
) -> OtherFormat | None:
    """A quick plan of the same runtime in another number format where devices idle that lack the training's."""
    lacking, limits = model.training.precision, replace(limits, target=best.plan.target)
    for precision in OTHER_FORMATS.get(lacking, ()) if result.goal.objective == "time" else ():
        idle = sum(
            len(pool.hosts)
            for pool in cluster.pools
            for gpu in pool.devices
            if lacking not in cluster.gpus[gpu].tflops and precision in cluster.gpus[gpu].tflops
        )
        if not idle:
            continue
        estimator = Estimator(ranked(cluster), model.trained_with(precision=precision), calibration)
        try:
            scored = cheap_plan(estimator, limits, everywhere(estimator), deadline)
        except Struck:
            return None
        if scored is not None and scored.estimate.fits:
            faster = scored.estimate.tokens_per_second / best.estimate.tokens_per_second - 1
            return OtherFormat(precision=precision, lacking=lacking, idle=idle, faster=faster, scored=scored)
    return None


def without_excluded(cluster: ClusterSpec, goal: Goal) -> tuple[ClusterSpec, Goal]:
    """The cluster without the pools of which no device may be used, and what is left of the goal."""
    excluded = {pool for pool, most in goal.use_at_most if pool and not most}
    kept = tuple(pool for pool in cluster.pools if pool.name not in excluded)
    rest = tuple((pool, most) for pool, most in goal.use_at_most if pool not in excluded)
    if not excluded:
        return cluster, goal
    return cluster.model_copy(update={"pools": kept}), replace(goal, use_at_most=rest)


def _searched(
    finder: BestSearch, explain: bool, advice: bool, deadline: Deadline, seconds: float, cpu_seconds: float
) -> SearchResult:
    """What a search has found in these seconds, with its reasons."""
    result = _result(finder, seconds)
    if not explain or finder.interrupted or result.status == "unknown":
        return result
    finder.reporter.phase("reasons")
    if result.best is not None:
        deadline = reasons_deadline(deadline, cpu_seconds, advice=advice)
    # What runs from here on may use all of the limit.
    finder.deadline = deadline
    try:
        explained = _explained(result, finder, advice)
    except KeyboardInterrupt:
        return replace(_result(finder, seconds), interrupted=True)
    except Exception as error:
        return replace(_result(finder, seconds), reasons_error=error)
    return replace(
        _result(finder, seconds),
        alternatives=explained.alternatives,
        advice=explained.advice,
        limit_costs=explained.limit_costs,
        nearest=explained.nearest,
        diagnosis=explained.diagnosis,
        interrupted=deadline.interrupted,
        warnings=() if deadline.interrupted else explained.warnings,
    )


def _result(finder: BestSearch, seconds: float) -> SearchResult:
    return SearchResult(
        status=finder.status,
        best=finder.best,
        bound_seconds=_bound_seconds(finder),
        gap=finder.gap,
        alternatives=(),
        advice=(),
        diagnosis=None,
        candidates=finder.candidates,
        solved=finder.solved,
        seconds=seconds,
        interrupted=finder.interrupted,
        subclusters=len(finder.sub_clusters) if len(finder.sub_clusters) > 1 else None,
        objective_bound=finder.bound,
        outside=outside(
            finder.estimator.cluster,
            finder.estimator.model,
            finder.limits,
            subclusters=len(finder.sub_clusters) > 1,
        ),
    )


def _bound_seconds(finder: BestSearch) -> float:
    """What no step is below; of a whole run what none of as many devices is below, if that is to win."""
    if finder.goal.objective != "time":
        return 0.0
    return finder.best_bound if finder.goal.whole_run else finder.bound


def _explained(result: SearchResult, finder: BestSearch, advice: bool) -> SearchResult:
    if result.status == "infeasible":
        nearest = tuple(_nearest(finder))
        diagnosis, deadline = None, finder.deadline
        if not nearest:
            deadline = deadline.part(DIAGNOSIS_SHARE)
            estimator = finder.on(_largest(finder)) if finder.sub_clusters else finder.estimator
            diagnosis = diagnose(estimator, finder.limits, deadline)
        cut = (LEFT_OUT,) if deadline.struck else ()
        return replace(result, nearest=nearest, diagnosis=diagnosis, warnings=cut)
    if finder.best is None or finder.home is None:
        return result
    fast = _for_speed(finder)
    finder.answer.offer(fast)
    reasons = Reasons(
        finder.answer,
        finder.on(finder.home),
        finder.limits,
        finder.deadline,
        price=finder.on_the_whole,
        label=partial(_loss, finder.goal.objective),
        idle=False,
        met=finder.home.met,
        advice=advice,
    ).run()
    # A family without a plan here may have one on more devices.
    families = tuple(entry for entry in reasons.alternatives if entry.scored)
    return replace(
        result,
        alternatives=(*families, *_elsewhere(finder.best, finder, fast)),
        advice=reasons.advice,
        limit_costs=reasons.limit_costs,
        warnings=(left_out(finder.deadline),) if reasons.cut else (),
    )


def _for_speed(finder: BestSearch) -> Scored | None:
    """A fast plan on all devices, where something else than time is wanted."""
    if finder.goal.objective == "time" or finder.deadline.struck:
        return None
    largest = _largest(finder)
    own = finder.on(largest)
    quick = quick_plan(own, finder.limits, everywhere(own), finder.deadline)
    met = [*largest.met.plans.values(), *([] if quick is None else [quick])]
    fast = min(met, key=lambda scored: scored.estimate.step_seconds, default=None)
    return None if fast is None else finder.on_the_whole(fast)


def _nearest(finder: BestSearch) -> Iterator[Nearest]:
    """The best plan once each limit is lifted; with every limit lifted where one is not enough."""
    for name, objective in LIMITS:
        asked = getattr(finder.goal, name)
        if asked is None:
            continue
        free = replace(
            finder.goal,
            objective=objective,
            max_cost_per_million_tokens=None,
            min_tokens_per_second=None,
            deadline_seconds=None,
            budget=None,
            # A limit on the whole run: that with the fastest step need not end first.
            whole_run=name in ("deadline_seconds", "budget") and finder.goal.fails,
        )
        one = replace(free, **{other: getattr(finder.goal, other) for other, _ in LIMITS if other != name})
        for goal in dict.fromkeys((one, free)):
            relaxed = BestSearch(finder.estimator, finder.limits, goal, finder.reporter, finder.deadline)
            relaxed.run()
            if relaxed.best is not None:
                yield Nearest(
                    limit=name,
                    asked=asked,
                    kept=goal == one,
                    proven=relaxed.status == "optimal",
                    scored=relaxed.best,
                )
                break


def _elsewhere(best: Scored, finder: BestSearch, fast: Scored | None) -> Iterator[Alternative]:
    """A faster plan on all devices, and the best plan met on pools beyond those of the answer."""
    if fast is not None and fast.estimate.step_seconds < best.estimate.step_seconds:
        yield _dearer("for speed", fast, best, finder)
    own = frozenset() if finder.home is None else frozenset(pool for pool, _ in finder.home.sub.devices)
    for pools, scored in finder.met.items():
        if not pools <= own:
            yield _dearer(f"on {' + '.join(sorted(pools))}", scored, best, finder)


def _largest(finder: BestSearch) -> Candidate:
    return max(finder.sub_clusters, key=lambda candidate: candidate.sub.total)


def _dearer(family: str, scored: Scored, best: Scored, finder: BestSearch) -> Alternative:
    """A plan that lost by the objective, priced where it would run."""
    reason = _loss(finder.goal.objective, scored, best)
    return Alternative(family=family, scored=scored, chosen=False, reason=reason)


def _loss(objective: Objective, loser: Scored, winner: Scored) -> str:
    """By how much a plan loses: by the component that grew most, or by another objective, unless both cost nothing."""
    least = value_of(winner.estimate, objective)
    if objective == "time" or least == value_of(loser.estimate, objective) == 0:
        return reason_against(loser, winner)
    if not least:
        return f"{LOSES[objective]}: not free"
    return f"{LOSES[objective]} {100 * (value_of(loser.estimate, objective) / least - 1):+.0f} %"


LOSES: dict[Objective, str] = {
    "time": "time of a step",
    "cost": "cost of a token",
    "energy": "energy of a token",
}
