"""The search as the user sees it: the plan, its proof, what else was considered, and what would help."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from planner.calibration import ASSUMED, Calibration
from planner.cost.estimate import Estimator
from planner.search.advice import advise
from planner.search.diagnose import diagnose
from planner.search.explorer import Explorer
from planner.search.families import alternatives
from planner.search.idle import idle_costs
from planner.search.limit_costs import limit_costs
from planner.search.outside import outside
from planner.search.ranking import ranked
from planner.search.values import Limits, Reporter, SearchResult, Silent
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec


def search(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration = ASSUMED,
    limits: Limits | None = None,
    reporter: Reporter | None = None,
    *,
    explain: bool = True,
) -> SearchResult:
    """The fastest plan that fits, with a bound that no plan of the space beats.

    ``explain`` adds a good plan of each family, advice beyond the target, what idle devices and limits cost, and a
    diagnosis when nothing fits.
    An interrupt keeps the best plan so far.
    """
    start = monotonic()
    limits = limits or Limits()
    estimator = Estimator(ranked(cluster), model, calibration)
    explorer = Explorer(estimator, limits, reporter or Silent())
    explorer.run()
    result = SearchResult(
        status=explorer.status,
        best=explorer.best,
        bound_seconds=explorer.bound,
        gap=explorer.gap,
        alternatives=(),
        advice=(),
        diagnosis=None,
        candidates=explorer.candidates,
        solved=explorer.solved,
        seconds=monotonic() - start,
        interrupted=explorer.interrupted,
        outside=outside(cluster, model, limits),
    )
    if not explain or explorer.interrupted:
        return result
    return _explained(result, estimator, limits)


def _explained(result: SearchResult, estimator: Estimator, limits: Limits) -> SearchResult:
    """The result with its reasons; an interrupt here costs only the reasons."""
    try:
        if result.status == "infeasible":
            return replace(result, diagnosis=diagnose(estimator, limits))
        if result.best is None:
            return result
        return replace(
            result,
            alternatives=alternatives(result.best, estimator, limits),
            advice=advise(result.best, estimator, limits),
            idle_costs=idle_costs(result.best, estimator, limits),
            limit_costs=limit_costs(result.best, estimator, limits),
        )
    except KeyboardInterrupt:
        return replace(result, interrupted=True)
