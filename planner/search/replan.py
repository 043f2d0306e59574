"""The plan that takes over when nodes fail: fast, and with most of the training state left in place.

What counts is the time until the nodes are back: that of the steps which the fastest plan would make in it, and that
of moving the state. Candidates are the plan as it is where spare nodes stand in, the plan with fewer replicas on the
same stages, the best plans of every family of the search, and the best plans with the degrees of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from planner.calibration.values import Calibration
from planner.cluster.change import without_hosts
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.state import Move, held_by, move, settled
from planner.dims.offloading import parts
from planner.errors import PlanError, UsageError
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.values import Plan, ReplicaGroup
from planner.search.deadline import Deadline
from planner.search.incumbent import allowing
from planner.search.objectives.choose import choose
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult, proven

SAME_SHAPE_SHARE = 0.3
"""Part of the time for plans with the degrees of the old one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A plan for the nodes that are left, and what has to move for it."""

    scored: Scored
    """The plan."""
    cluster: ClusterSpec
    """The nodes that are left, in the order in which the plan moves least."""
    move: Move
    """What has to move."""

    def lasts(self, away_seconds: float, fastest_seconds: float) -> float:
        """Seconds for the steps that the fastest plan makes meanwhile, and for the move."""
        return away_seconds * self.scored.estimate.step_seconds / fastest_seconds + self.move.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """What becomes of a plan without some nodes."""

    without: tuple[str, ...]
    """The nodes that are gone."""
    before: Scored
    """The plan as it was."""
    cluster_devices: int
    """Devices that the cluster had then."""
    chosen: Successor
    """The plan that takes over."""
    fastest: Successor
    """The fastest plan that was found, whatever has to move for it."""
    result: SearchResult
    """The search over the nodes that are left, its answer the plan that takes over: its bound holds for all plans."""


class Replanner:
    """Finds the plans that take over from one plan; nodes of one pool are searched without once."""

    def __init__(
        self,
        plan: Plan,
        cluster: ClusterSpec,
        model: ModelSpec,
        calibration: Calibration,
        limits: Limits,
        *,
        away_seconds: float,
        storage_bytes_per_second: float | None = None,
        reporter: Reporter | None = None,
        better: Callable[[Scored], object] | None = None,
    ) -> None:
        self._plan, self._cluster, self._model, self._calibration = plan, cluster, model, calibration
        # Whoever trains with it has allowed what the plan has.
        self._limits = allowing(limits, plan)
        self._away, self._storage = away_seconds, storage_bytes_per_second
        self._reporter, self._better = reporter, better
        self._held = held_by(plan, cluster, model)
        self._before = Scored(plan=plan, estimate=Estimator(cluster, model, calibration).estimate(plan))
        self._searches: dict[tuple[tuple[str, int], ...], tuple[SearchResult, SearchResult]] = {}

    def without(self, hosts: Sequence[str]) -> Replan:
        """The plan that takes the least time until these nodes are back.

        Raises UsageError for nodes that the cluster lacks, and where nothing fits without them, with what would;
        KeyboardInterrupt where Ctrl-C has come ahead of the first plan.
        """
        left = without_hosts(self._cluster, hosts)
        result, same = self._searched(left)
        plans = [*_kept(self._plan, left, self._model), *_of(result), *_of(same)]
        estimator = Estimator(left, self._model, self._calibration)
        successors = [self._successor(each, left, estimator) for each in dict.fromkeys(plans)]
        able = [each for each in successors if each.scored.estimate.fits]
        if not able and result.interrupted:
            raise KeyboardInterrupt
        if not able:
            _refuse(result, hosts)
        fastest = min(able, key=lambda each: (each.scored.estimate.step_seconds, each.move.moved_bytes))
        least = fastest.scored.estimate.step_seconds
        chosen = min(able, key=lambda each: (each.lasts(self._away, least), each.move.moved_bytes))
        return Replan(
            without=tuple(hosts),
            before=self._before,
            cluster_devices=self._cluster.devices,
            chosen=chosen,
            fastest=fastest,
            result=_with(result, chosen.scored, self._limits),
        )

    def _searched(self, left: ClusterSpec) -> tuple[SearchResult, SearchResult]:
        """The search over the nodes that are left, and that of plans with the degrees of the old one."""
        counts = tuple((pool.name, len(pool.hosts)) for pool in left.pools)
        if counts not in self._searches:
            plan, limits, deadline = (
                self._plan,
                self._limits,
                Deadline.after(self._limits.time_limit_seconds),
            )
            alike = replace(
                limits,
                zero=(plan.zero,),
                pp=(plan.pp,),
                tp=_degrees(plan),
                cp=(plan.cp,),
                ep=(plan.ep,),
                etp=(plan.etp,),
                offload=parts(plan.offload),
            )
            part = deadline.part(SAME_SHAPE_SHARE)
            same = self._choose(left, alike, part, explain=False)
            if same.interrupted:
                deadline = Deadline.after(0.0)
            result = self._choose(left, limits, deadline, explain=True)
            self._searches[counts] = replace(result, interrupted=result.interrupted or same.interrupted), same
        return self._searches[counts]

    def _choose(
        self, left: ClusterSpec, limits: Limits, deadline: Deadline, *, explain: bool
    ) -> SearchResult:
        return choose(
            left,
            self._model,
            self._calibration,
            limits,
            Goal(),
            self._reporter,
            explain=explain,
            deadline=deadline,
            better=self._better if explain else None,
        )

    def _successor(self, plan: Plan, left: ClusterSpec, estimator: Estimator) -> Successor:
        here = settled(plan, left, self._model, self._held)
        return Successor(
            scored=Scored(plan=plan, estimate=estimator.estimate(plan)),
            cluster=here,
            move=move(plan, here, self._model, self._held, self._calibration, self._storage),
        )


def _refuse(result: SearchResult, without: Sequence[str]) -> NoReturn:
    """Raise UsageError: no plan without these nodes."""
    gone = ", ".join(without)
    if result.status != "infeasible":
        raise UsageError(
            f"no plan was found without {gone} in the time limit", hint="allow more with --time-limit"
        )
    why = "; ".join(result.diagnosis.causes) if result.diagnosis else ""
    hints = result.diagnosis.hints if result.diagnosis else ()
    raise UsageError(f"no plan fits without {gone}{f': {why}' if why else ''}", hint="; ".join(hints) or None)


def _degrees(plan: Plan) -> tuple[int, ...]:
    """Tensor-parallel degrees of a plan."""
    return tuple(sorted({group.tp for stage in plan.copies.stages for group in stage.replicas}))


def _of(result: SearchResult) -> Iterator[Plan]:
    """Every plan that a search tells of."""
    scored = [result.best, *(entry.scored for entry in result.alternatives)]
    scored += [entry.scored for entry in result.simpler]
    yield from (each.plan for each in scored if each is not None and each.estimate.fits)


def _kept(plan: Plan, left: ClusterSpec, model: ModelSpec) -> Iterator[Plan]:
    """The plan itself where spare nodes stand in; else with the most replicas on each stage that are left."""
    for each in (plan, *fewer_replicas(plan)):
        if not faults(each, left, model):
            yield each
            return


def fewer_replicas(plan: Plan) -> Iterator[Plan]:
    """The same stages with fewer equal replicas, from the most on, which work through more micro-batches."""
    groups = [group for stage in plan.stages for group in stage.replicas]
    if (
        plan.shard_size
        or plan.zero_plus.secondary
        or plan.fewer_steps
        or len(groups) > plan.pp
        or len({group.micro_batch for group in groups}) > 1
    ):
        return
    for dp in range(plan.stages[0].dp - 1, plan.backup, -1):
        share, rest = divmod(plan.global_batch * plan.cp, dp - plan.backup)
        if rest or share % groups[0].micro_batch or dp % plan.cp:
            continue

        def fewer(group: ReplicaGroup, dp: int = dp, share: int = share) -> ReplicaGroup:
            steps = share // group.micro_batch
            return replace(group, count=dp, local_batch=share, accumulation_steps=steps)

        try:
            yield replace(
                plan,
                stages=tuple(
                    replace(stage, replicas=tuple(map(fewer, stage.replicas))) for stage in plan.stages
                ),
            )
        except PlanError:
            continue


def _with(result: SearchResult, chosen: Scored, limits: Limits) -> SearchResult:
    """The search with this plan for its answer; the bound of its space holds for it too."""
    if result.best is not None and result.best.plan == chosen.plan:
        return result
    step = chosen.estimate.step_seconds
    gap = max(0.0, 1.0 - result.bound_seconds / step)
    return replace(
        result,
        status=proven(gap, limits.gap),
        best=chosen,
        gap=gap,
        alternatives=(),
        idle_costs=(),
        limit_costs=(),
        ratios=(),
        simpler=(),
        advice=(),
    )
