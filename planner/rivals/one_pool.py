"""The best plan on one pool alone."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.estimate import Estimator
from planner.search.explorer import Explorer
from planner.search.values import Alternative, Limits, Silent


def fastest_pool_only(estimator: Estimator, limits: Limits) -> Alternative:
    """The best plan on one pool alone, for the pool where it is fastest."""
    found = [only_pool(estimator, pool.name, limits) for pool in estimator.cluster.pools]
    fitting = [item for item in found if item.scored is not None]
    if not fitting:
        return Alternative(
            family="fastest pool only", scored=None, chosen=False, reason="the model fits on no pool alone"
        )
    return min(fitting, key=lambda item: item.scored.estimate.step_seconds if item.scored else 0.0)


def only_pool(estimator: Estimator, pool: str, limits: Limits) -> Alternative:
    """A good plan on one pool alone."""
    cluster = estimator.cluster
    kept = tuple(item for item in cluster.pools if item.name == pool)
    alone = Estimator(cluster.model_copy(update={"pools": kept}), estimator.model, estimator.calibration)
    scored = Explorer(alone, replace(limits, gap=max(limits.gap, 0.02)), Silent()).quick()
    return Alternative(
        family=f"only {pool}",
        scored=scored,
        chosen=False,
        reason="" if scored else "the model does not fit on it",
    )
