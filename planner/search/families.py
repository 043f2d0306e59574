"""A good plan of each family of plans, and the reason it lost."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.estimate import Estimator
from planner.search.causes import reason_against
from planner.search.data_parallel import Shares
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.devices import Wanted, everywhere, quick_plan
from planner.search.explorer import Explorer
from planner.search.space import targets_of, usable_kinds
from planner.search.values import Alternative, Limits, Scored, Silent
from planner.targets import target
from planner.units import gib_from_bytes

NOT_FOUND = "no plan found that fits"

GAP = 0.1
"""Gap to which a pool is searched on its own."""

ROUNDS = 20
"""Rounds of such a search."""


def alternatives(best: Scored, estimator: Estimator, limits: Limits) -> tuple[Alternative, ...]:
    """The chosen plan first, then a good plan of each other family, fastest first, then those without one."""
    own = family_of(best)
    chosen = Alternative(family=own, scored=best, chosen=True, reason="chosen")
    others = [
        _family(name, restricted, best, estimator) for name, restricted in families(limits) if name != own
    ]
    pools = estimator.cluster.pools
    used = {group.pool for stage in best.plan.stages for group in stage.replicas}
    if len(pools) > 1:
        others += [_only(pool.name, best, estimator, limits) for pool in pools if used != {pool.name}]
    others.sort(
        key=lambda item: (item.scored is None, item.scored.estimate.step_seconds if item.scored else 0.0)
    )
    return chosen, *others


def _family(name: str, limits: Limits, best: Scored, estimator: Estimator) -> Alternative:
    scored = quick_plan(estimator, limits, everywhere(estimator))
    return _lost(name, scored, best, _lack(estimator, limits) or NOT_FOUND)


def _only(pool: str, best: Scored, estimator: Estimator, limits: Limits) -> Alternative:
    if any(row.dp_per_stage for row in targets_of(limits)):
        scored = _alone(pool, estimator, limits)
    else:
        scored = quick_plan(estimator, limits, Wanted(pools=frozenset((pool,))))
    precision = estimator.model.training.precision
    able = any(kind.pool == pool for kind in usable_kinds(estimator.topology, estimator.model))
    return _lost(f"only {pool}", scored, best, NOT_FOUND if able else f"no {precision}")


def _alone(pool: str, estimator: Estimator, limits: Limits) -> Scored | None:
    """A short search of one pool, for targets whose stages choose their own degrees: those have no quick plans."""
    cluster = estimator.cluster
    kept = tuple(item for item in cluster.pools if item.name == pool)
    alone = Estimator(cluster.model_copy(update={"pools": kept}), estimator.model, estimator.calibration)
    explorer = Explorer(alone, replace(limits, gap=max(limits.gap, GAP)), Silent())
    explorer.run(rounds=ROUNDS)
    return explorer.best


def _lack(estimator: Estimator, limits: Limits) -> str | None:
    """By how much the roomiest device is too small for data parallelism; None when it is not, or not known."""
    missing = min(
        (
            (shares.missing_bytes(kind), kind)
            for row in targets_of(limits)
            for choice in data_parallel_choices(row, limits, estimator)
            if choice.shard_size is None
            for shares in (Shares(choice, estimator, limits),)
            for kind in shares.kinds
        ),
        key=lambda item: item[0],
        default=None,
    )
    if missing is None or missing[0] <= 0:
        return None
    size, kind = missing
    return f"does not fit: {kind.gpu} ({kind.pool}) lacks {gib_from_bytes(size):.1f} GiB"


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
        if _meets(row.zero_with_pipeline, limits.zero):
            found.append((f"{row.name}: pipeline", replace(base, pp=deeper, tp=(1,))))
            if row.tensor_parallel != "none":
                found.append((f"{row.name}: pipeline + tensor", replace(base, pp=deeper, tp=wider)))
        if row.tensor_parallel != "none" and _meets(row.zero_without_pipeline, limits.zero):
            found.append((f"{row.name}: data + tensor", replace(base, pp=(1,), tp=wider)))
            if row.batch_without_pipeline != "per-device":
                found.append((f"{row.name}: data parallel", replace(base, pp=(1,), tp=(1,))))
    return [(name, item) for name, item in found if _possible(item, limits)]


def _possible(item: Limits, limits: Limits) -> bool:
    """True when the family lies inside what the user allows."""
    return all(
        _meets(own, users)
        for own, users in ((item.zero, limits.zero), (item.tp, limits.tp), (item.pp, limits.pp))
    )


def _meets(own: tuple[int, ...] | None, users: tuple[int, ...] | None) -> bool:
    return own is None or users is None or bool(set(own) & set(users))


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


def _lost(name: str, scored: Scored | None, best: Scored, without: str) -> Alternative:
    reason = without if scored is None else reason_against(scored, best)
    return Alternative(family=name, scored=scored, chosen=False, reason=reason)
