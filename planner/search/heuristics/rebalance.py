"""A plan rebalanced for other speeds: the same stages on the same devices, with other layers or local batches.

It proves nothing; it is what a user would do with a plan whose devices turn out slower or faster.
"""

from __future__ import annotations

from planner.cost.estimate import Estimator
from planner.cost.training import devices_of
from planner.errors import PlanError
from planner.plan.equal_pools import on_joined_pools
from planner.plan.values import PLAIN_ZERO, Plan, ReplicaGroup
from planner.search.data_parallel import data_parallel_of
from planner.search.heuristics.greedy import layered
from planner.search.islands import shares_of
from planner.search.pipeline import priced_on
from planner.search.space.choices import (
    batch_per_replica,
    choice_of,
    family_recomputes,
    usable_device_types,
)
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored
from planner.targets import target

Stand = tuple[str, str, int, int]
"""Pool, GPU, tp and number of replicas."""


def rebalanced(plan: Plan, estimator: Estimator, seen: Estimator, limits: Limits) -> Scored | None:
    """The plan with the layers, or the batch per device, that suit the estimator's speeds; None when none fit.

    ``seen`` is the cluster as the plan's runtime sees it, equal pools joined, with the same speeds.
    """
    try:
        own = on_joined_pools(plan, seen.cluster, estimator.cluster)
        return (
            _layers(own, estimator, seen.of(own), limits)
            if plan.pp > 1
            else _batches(own, estimator, seen, limits)
        )
    except PlanError:
        return None


def _batches(plan: Plan, estimator: Estimator, seen: Estimator, limits: Limits) -> Scored | None:
    """Another batch for each replica, where the runtime lets them differ."""
    tp = plan.stages[0].replicas[0].tp
    own = batch_per_replica(target(plan.target), estimator.model, tp)
    together = plan.cp > 1 or plan.ep > 1 or plan.grid is not None
    if plan.backup or together or not own or (tp > 1 and not _searched(plan, seen)):
        return None
    choice = data_parallel_of(plan, usable_device_types(seen.topology, estimator.model))
    shares = shares_of(choice, seen, limits)
    other_plan = shares.plan(shares.replicas(devices_of(plan)))
    return None if other_plan is None else priced_on(estimator, other_plan, seen)


def _searched(plan: Plan, seen: Estimator) -> bool:
    """True for plans whose tensor-parallel replicas a search gives batches of their own."""
    largest = max(device_type.per_node for device_type in seen.topology.device_types)
    return plan.zero_plus == PLAIN_ZERO and plan.stages[0].replicas[0].tp <= largest


def _layers(plan: Plan, estimator: Estimator, seen: Estimator, limits: Limits) -> Scored | None:
    """Other layers for each stage."""
    usable = usable_device_types(seen.topology, estimator.model)
    recomputes = family_recomputes(target(plan.target), limits, estimator.model, usable)
    choice = choice_of(plan, None if recomputes == (None,) else plan.stages[0].recompute)
    stages = StageOptions(choice, seen, limits)
    whole = (item for item in enumerate(stages.compositions) if item[0] not in stages.divided)
    places = {_stands(groups): index for index, groups in whole}
    slots = [places.get(_stands(stage.replicas), -1) for stage in plan.stages]
    return None if min(slots) < 0 else layered(stages, slots, estimator)


def _stands(groups: tuple[ReplicaGroup, ...]) -> tuple[Stand, ...]:
    return tuple(sorted((group.pool, group.gpu, group.tp, group.count) for group in groups))
