"""The search as the user sees it: the plan, its proof, the alternatives, and what would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic, process_time

from planner.calibration.values import ASSUMED, Calibration
from planner.capabilities import OFFLOAD_PARTS
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.dims.sharding import zeros
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.search.deadline import Deadline
from planner.search.explain.diagnose import DIAGNOSIS_SHARE, diagnose
from planner.search.explain.reasons import LEFT_OUT, SEARCH_SHARE, Reasons, left_out, reasons_deadline
from planner.search.explorer import Explorer
from planner.search.incumbent import Incumbent
from planner.search.pipeline import priced_on
from planner.search.ranking import ranked
from planner.search.space.outside import outside
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult, Silent, proven
from planner.targets import TARGETS

WIDENED = "nothing fits on the devices alone (proven): part of the training state is kept in host memory"

_WIDENED_IN_TIME = (
    "no plan on the devices alone was found in time: part of the training state is kept in host memory; "
    "a longer --time-limit says whether it must"
)


def search(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration = ASSUMED,
    limits: Limits | None = None,
    reporter: Reporter | None = None,
    *,
    explain: bool = True,
    advice: bool = False,
    deadline: Deadline | None = None,
    better: Callable[[Scored], object] | None = None,
) -> SearchResult:
    """The fastest plan that fits, with a bound that no plan of the space beats.

    ``explain`` adds a good plan of each family, advice beyond the target, what idle devices and limits cost, and a
    diagnosis when nothing fits; a bug in them is kept in ``reasons_error``. With ``advice`` they may take all the time
    that is left, and a search for faster plans of other runtimes is part of them; else a share of the search's own.
    Without a ``deadline`` the time limit counts from now. ``better`` is told every plan that becomes the best one.
    An interrupt keeps the best plan so far.
    """
    start, cpu_start = monotonic(), process_time()
    limits, reporter = limits or Limits(), reporter or Silent()
    deadline = deadline or Deadline.after(limits.time_limit_seconds)
    estimator = Estimator(ranked(cluster), model, calibration)
    answer = Incumbent(limits, Goal(), better)
    explorer = Explorer(
        estimator,
        limits,
        reporter,
        deadline=deadline.part(SEARCH_SHARE) if explain or limits.offload is None else deadline,
        better=answer.offer,
    )
    explorer.run()
    widened = None
    if limits.offload is None and answer.best is None and not explorer.interrupted:
        widened = WIDENED if explorer.finished else _WIDENED_IN_TIME
        limits = answer.limits = replace(limits, offload=OFFLOAD_PARTS)
        explorer = _on_hosts(explorer, limits, answer, deadline)
    _share_nothing(answer, estimator)
    result = SearchResult(
        status=explorer.status,
        best=None,
        bound_seconds=explorer.bound,
        gap=1.0,
        alternatives=(),
        advice=(),
        diagnosis=None,
        candidates=explorer.candidates,
        solved=explorer.solved,
        seconds=monotonic() - start,
        interrupted=explorer.interrupted,
        outside=outside(cluster, model, limits),
        by_size=tuple(explorer.met.by_size.values()),
    )
    result = _answered(result, answer, limits)
    if not explain or explorer.interrupted or result.status == "unknown":
        return with_host_needs(result, widened)
    reporter.phase("reasons")
    if result.best is not None:
        deadline = reasons_deadline(deadline, process_time() - cpu_start, advice=advice)
    try:
        result = _explained(
            result, Reasons(answer, estimator, limits, deadline, met=explorer.met, advice=advice)
        )
    except KeyboardInterrupt:
        result = replace(result, interrupted=True)
    except Exception as error:
        result = replace(result, reasons_error=error)
    return with_host_needs(_concluded(result, answer, limits, deadline), widened)


def with_host_needs(result: SearchResult, widened: str | None) -> SearchResult:
    """The result with what is said where nobody asked for host memory and the plan uses it."""
    if widened is None or result.best is None or not result.best.plan.offload.anything:
        return result
    return replace(result, warnings=(widened, *result.warnings))


def _share_nothing(answer: Incumbent, estimator: Estimator) -> None:
    """Of plans as fast as the answer the one with the lowest ZeRO that the target runs, where none shares anything."""
    best = answer.best
    if best is None or any(stage.dp > 1 for stage in best.plan.stages):
        return
    row = TARGETS[best.plan.target]
    for zero in zeros(row, estimator.model, 1, answer.limits.zero):
        plan = replace(best.plan, zero=zero)
        # What is kept in host memory may need ZeRO 1 or more.
        if zero < best.plan.zero and not faults(plan, estimator.cluster, estimator.model):
            answer.offer(priced_on(estimator, plan, estimator), as_good=True)
            return


def _on_hosts(before: Explorer, limits: Limits, answer: Incumbent, deadline: Deadline) -> Explorer:
    """The rest of the space, where something is kept in host memory, after a search that has met nothing without.

    What that search left open still counts: its bound, and that nothing is proven.
    """
    rest = tuple(part for part in OFFLOAD_PARTS if part != "none")
    explorer = Explorer(
        before.estimator,
        replace(limits, offload=rest),
        before.reporter,
        deadline=before.deadline if before.finished else deadline,
        better=answer.offer,
    )
    if not before.finished:
        explorer.closed_bound = before.bound
    explorer.run()
    explorer.finished = explorer.finished and before.finished
    explorer.candidates += before.candidates
    explorer.solved += before.solved
    return explorer


def _explained(result: SearchResult, reasons: Reasons) -> SearchResult:
    """The result with its reasons, or with the causes why there is no plan."""
    deadline = reasons.deadline
    if reasons.answer.best is None:
        deadline = deadline.part(DIAGNOSIS_SHARE)
        diagnosis = diagnose(reasons.estimator, reasons.limits, deadline)
        return replace(result, diagnosis=diagnosis, warnings=(LEFT_OUT,) if deadline.struck else ())
    explanation = reasons.run()
    return replace(
        result,
        warnings=(left_out(deadline),) if explanation.cut else (),
        alternatives=explanation.alternatives,
        advice=explanation.advice,
        idle_costs=explanation.idle_costs,
        limit_costs=explanation.limit_costs,
    )


def _concluded(result: SearchResult, answer: Incumbent, limits: Limits, deadline: Deadline) -> SearchResult:
    """The result with what is the answer after the reasons."""
    interrupted = result.interrupted or deadline.interrupted
    result = replace(result, interrupted=interrupted, warnings=() if interrupted else result.warnings)
    return _answered(result, answer, limits)


def _answered(result: SearchResult, answer: Incumbent, limits: Limits) -> SearchResult:
    """The result with the answer of now, whoever found it, and its proof."""
    if answer.best is None:
        return result
    bound = min(result.bound_seconds, answer.value)
    gap = 1 - bound / answer.value
    return replace(result, best=answer.best, bound_seconds=bound, gap=gap, status=proven(gap, limits.gap))
