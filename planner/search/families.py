"""The best plan of each family of plans, and the reason it lost."""

from __future__ import annotations

from dataclasses import fields, replace

from planner.cost.estimate import Estimator
from planner.search.baselines.one_pool import only_pool
from planner.search.explorer import Explorer
from planner.search.values import Alternative, Limits, Scored, Silent
from planner.targets import TARGETS

CAUSES = {
    "compute_seconds": "computation",
    "recompute_seconds": "recomputation",
    "tensor_parallel_seconds": "tensor-parallel collectives",
    "zero_seconds": "ZeRO gathers in every micro-batch",
    "bubble_seconds": "waiting in the pipeline",
    "gradient_sync_seconds": "gradient synchronisation",
    "optimizer_seconds": "the optimizer",
    "offload_seconds": "copies between devices and hosts",
}


GAP = 0.03
"""Gap to which the data-parallel plans of a family that lost are solved."""

CLOSE = 1.1
"""Only plans that lose by less than this factor are worth some rounds of the ILP."""


def alternatives(best: Scored, estimator: Estimator, limits: Limits) -> tuple[Alternative, ...]:
    """The chosen plan first, then one plan for each other family, fastest first, then those that fit nowhere."""
    own = family_of(best)
    chosen = Alternative(family=own, scored=best, chosen=True, reason="chosen")
    near = CLOSE * best.estimate.step_seconds
    others = [
        _lost(
            name,
            Explorer(estimator, replace(restricted, gap=max(limits.gap, GAP)), Silent()).quick(near),
            best,
        )
        for name, restricted in families(limits)
        if name != own
    ]
    if len(estimator.cluster.pools) > 1:
        used = {group.pool for stage in best.plan.stages for group in stage.replicas}
        for pool in estimator.cluster.pools:
            if used != {pool.name}:
                item = only_pool(estimator, pool.name, limits)
                others.append(_lost(item.family, item.scored, best))
    others.sort(
        key=lambda item: (item.scored is None, item.scored.estimate.step_seconds if item.scored else 0.0)
    )
    return chosen, *others


def families(limits: Limits) -> list[tuple[str, Limits]]:
    """Named parts of the space inside the user's limits."""
    found: list[tuple[str, Limits]] = []
    for row in TARGETS.values():
        if not row.emits or limits.target not in (None, row.name):
            continue
        base = replace(limits, target=row.name)
        if row.batch_without_pipeline == "per-device":
            for zero in row.zero_without_pipeline:
                found.append((f"{row.name}: ZeRO-{zero}", replace(base, zero=(zero,), pp=(1,), tp=(1,))))
        deeper = tuple(range(2, 1025))
        found.append((f"{row.name}: pipeline", replace(base, pp=deeper, tp=(1,))))
        if row.tensor_parallel != "none":
            wider = tuple(range(2, 65))
            found.append((f"{row.name}: pipeline + tensor", replace(base, pp=deeper, tp=wider)))
            found.append((f"{row.name}: data + tensor", replace(base, pp=(1,), tp=wider)))
            found.append((f"{row.name}: data parallel", replace(base, pp=(1,), tp=(1,))))
    return [(name, item) for name, item in found if _possible(item, limits)]


def _possible(item: Limits, limits: Limits) -> bool:
    """True when the family lies inside what the user allows."""

    def meets(own: tuple[int, ...] | None, users: tuple[int, ...] | None) -> bool:
        return own is None or users is None or bool(set(own) & set(users))

    return meets(item.zero, limits.zero) and meets(item.tp, limits.tp) and meets(item.pp, limits.pp)


def family_of(scored: Scored) -> str:
    """The name of the family a plan belongs to."""
    plan = scored.plan
    row = TARGETS[plan.target]
    wide = any(group.tp > 1 for stage in plan.stages for group in stage.replicas)
    if plan.pp > 1:
        return f"{row.name}: pipeline + tensor" if wide else f"{row.name}: pipeline"
    if row.batch_without_pipeline == "per-device":
        return f"{row.name}: ZeRO-{plan.zero}"
    return f"{row.name}: data + tensor" if wide else f"{row.name}: data parallel"


def _lost(name: str, scored: Scored | None, best: Scored) -> Alternative:
    reason = "does not fit" if scored is None else reason_against(scored, best)
    return Alternative(family=name, scored=scored, chosen=False, reason=reason)


def reason_against(loser: Scored, winner: Scored) -> str:
    """The component in which a plan loses most, or the devices it leaves idle."""
    difference = loser.estimate.step_seconds - winner.estimate.step_seconds
    if abs(difference) < 5e-4 * winner.estimate.step_seconds:
        return "as fast"
    if difference < 0:
        return "faster"
    idle = winner.plan.devices - loser.plan.devices
    names = [field.name for field in fields(loser.estimate.breakdown) if field.name in CAUSES]
    worse = {
        name: getattr(loser.estimate.breakdown, name) - getattr(winner.estimate.breakdown, name)
        for name in names
    }
    worst = max(worse, key=lambda name: worse[name])
    share = worse[worst] / winner.estimate.step_seconds
    if idle > 0 and worst == "compute_seconds":
        return f"leaves {idle} more devices idle"
    return f"{CAUSES[worst]}: {share:+.0%} of the chosen step"
