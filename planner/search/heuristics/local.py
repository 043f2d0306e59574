"""Local search near a good plan, for targets with per-stage degrees; it proves nothing.

A step replaces one or two neighbouring stages by one or two others, or halves or doubles the micro-batch of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from planner.cost.estimate import Estimator
from planner.plan.equal_pools import on_joined_pools
from planner.plan.values import Plan
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.heuristics.greedy import layered
from planner.search.space.choices import Choice, Composition, Family, depths
from planner.search.space.partitions import NetworkPartition
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored

TRIES = 1000
"""Plans that are priced, at most."""

TRIES_A_STEP = 250
"""Plans that are priced without one that is faster, those whose devices are fastest first."""

Stand = tuple[str, str, int, int]
"""A stage's devices: pool, GPU, tp and dp."""


def best_near(
    scored: Scored,
    partitions: Sequence[NetworkPartition],
    scorer: Estimator,
    limits: Limits,
    deadline: Deadline = NO_LIMIT,
) -> Scored:
    """The fastest plan met on the way from this one, at the prices of each partition that it may be run in.

    ``scorer`` knows the whole cluster.
    """
    scored_plans = []
    for partition in partitions:
        plan = on_joined_pools(scored.plan, partition.estimator.cluster, scorer.cluster)
        pools = {group.pool for stage in plan.stages for group in stage.replicas}
        if pools <= {device_type.pool for device_type in partition.device_types}:
            scored_plans.append(_LocalSearch(scored, partition, scorer, limits, deadline).run())
    return min(scored_plans, key=lambda item: item.estimate.step_seconds, default=scored)


class Layering:
    """Plans of stages that stand on given devices, with good layers."""

    def __init__(self, partition: NetworkPartition, scorer: Estimator, limits: Limits) -> None:
        self.partition, self.scorer, self.limits = partition, scorer, limits
        self._stages: dict[tuple[Family, int], StageOptions] = {}

    def scored(
        self, family: Family, stands: Sequence[Stand], wanted_seconds: float = float("inf")
    ) -> Scored | None:
        """The plan; None when the limits or the target have none, it does not fit or takes much longer than wanted."""
        depth, part = len(stands), self.partition
        if depth not in depths(family, self.limits, part.estimator.model, part.device_types):
            return None
        stages = self.options(family, depth)
        place = {stand(groups): index for index, groups in enumerate(stages.compositions)}
        slots = [place.get(each, -1) for each in stands]
        if min(slots) < 0 or not stages.obeys(slots):
            return None
        return layered(stages, slots, self.scorer, wanted_seconds=wanted_seconds)

    def options(self, family: Family, depth: int) -> StageOptions:
        """What the stages of so deep a pipeline may be."""
        key = family, depth
        if key not in self._stages:
            choice = Choice.plainest(family, depth, self.partition.estimator.model)
            self._stages[key] = StageOptions(choice, self.partition.estimator, self.limits)
        return self._stages[key]


class _LocalSearch:
    """Goes from plan to plan as long as that is faster."""

    def __init__(
        self, best: Scored, partition: NetworkPartition, scorer: Estimator, limits: Limits, deadline: Deadline
    ) -> None:
        self.best, self.device_types = best, partition.device_types
        self.estimator, self.scorer = partition.estimator, scorer
        self.deadline = deadline
        self.tries = 0
        self._layering = Layering(partition, scorer, limits)

    def run(self) -> Scored:
        """The last plan, of which no try was faster."""
        before = None
        while before is not self.best and self.tries < TRIES:
            before = self.best
            self._step()
        return self.best

    def _step(self) -> None:
        """The first faster neighbour of the best plan."""
        most = min(TRIES, self.tries + TRIES_A_STEP)
        family, stands = self._read()
        for near in self._families(family):
            for neighbour in self._neighbours(near, stands):
                if self.tries >= most or self.deadline.struck:
                    return
                self.tries += 1
                wanted = self.best.estimate.step_seconds
                scored = self._layering.scored(near, neighbour, wanted)
                if scored and scored.estimate.step_seconds < wanted * (1 - 1e-9):
                    self.best = scored
                    return

    def _read(self) -> tuple[Family, tuple[Stand, ...]]:
        """The best plan as the partition sees it."""
        return _read(on_joined_pools(self.best.plan, self.estimator.cluster, self.scorer.cluster))

    def _families(self, family: Family) -> Iterator[Family]:
        total = family.batch * family.micro_batches
        for batch in (family.batch, 2 * family.batch, family.batch // 2):
            if batch and total % batch == 0:
                yield family._replace(batch=batch, micro_batches=total // batch)

    def _neighbours(self, family: Family, stands: tuple[Stand, ...]) -> list[tuple[Stand, ...]]:
        """Stages on other devices that the cluster has, those with most layers a second first."""
        rates = self._rates(family)
        if not all(each in rates for each in stands):
            return []
        neighbours = {stands}
        for first in range(len(stands)):
            for wide, count in product((1, 2), (1, 2)):
                if first + wide <= len(stands):
                    for other in product(rates, repeat=count):
                        neighbours.add((*stands[:first], *other, *stands[first + wide :]))
        if family.batch == self._read()[0].batch:
            neighbours.remove(stands)
        able = (item for item in neighbours if self._room(item))
        return sorted(able, key=lambda item: (-sum(rates[each] for each in item), item))

    def _room(self, stands: tuple[Stand, ...]) -> bool:
        used = {device_type.key: 0 for device_type in self.device_types}
        for pool, gpu, tp, dp in stands:
            used[pool, gpu] += tp * dp
        return all(used[device_type.key] <= device_type.devices for device_type in self.device_types)

    def _rates(self, family: Family) -> dict[Stand, float]:
        """Layers of a micro-batch a second on all devices that a stage may have."""
        stages = self._layering.options(family, 2)
        return {
            stand(groups): 1 / stages.option(0, index, 1).busy_seconds
            for index, groups in enumerate(stages.compositions)
        }


def _read(plan: Plan) -> tuple[Family, tuple[Stand, ...]]:
    """The family of a plan whose stages are of one type each, and where its stages stand."""
    first = plan.stages[0].replicas[0]
    family = Family(
        target=plan.target,
        zero=plan.zero,
        recompute=None,
        tp=None,
        dp=None,
        batch=first.count * first.micro_batch,
        micro_batches=first.accumulation_steps,
        offload=plan.offload,
    )
    return family, tuple(stand(stage.replicas) for stage in plan.stages)


def stand(groups: Composition) -> Stand:
    """Where a stage of one device type stands."""
    (group,) = groups
    return group.pool, group.gpu, group.tp, group.count
