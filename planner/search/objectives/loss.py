"""The fastest way to a loss: the search also chooses the global batch, from a given list.

A batch takes so many steps to the loss (``planner/cost/convergence.py``), and a step at least as long as its bound, so
that steps x bound is a bound on the time to the loss. Batches are searched in the order of these bounds, each for steps
that are short enough to win. What no batch goes below is the least of what is known of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot, inf, log
from time import monotonic

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.convergence import Convergence
from planner.cost.estimate import Estimator
from planner.cost.training import Devices, TrainingRun, devices_of, price_per_hour, training_run
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.ranges import BATCH
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline, Struck
from planner.search.explorer import Explorer
from planner.search.incumbent import over_run, wanted_of
from planner.search.objectives.candidates import SubCluster, sub_cluster_candidates
from planner.search.objectives.choose import choose
from planner.search.objectives.objectives import (
    Candidate,
    Slices,
    seconds_at,
    where_it_runs,
    with_host_memory,
)
from planner.search.objectives.pareto import FrontOf, front_of
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult, Silent, Status, proven

DOUBLINGS = 6
"""How often the batch of the model file is doubled and halved, unless batches are named."""
SEARCH_SHARE = 0.7
"""Part of the time for finding the batch; the rest is for its plan and for the reasons."""
LOOK_SHARE = 0.5
"""Part of the time left then for a quick plan of every batch that has none."""

MOST_SIZES = 16
"""Sub-clusters of a table by size."""


def batches_around(batch: int) -> tuple[int, ...]:
    """The batch of the model file, and those that doubling and halving lead to."""
    halves = [batch >> step for step in range(DOUBLINGS, 0, -1) if not batch % (1 << step)]
    doubles = [batch << step for step in range(DOUBLINGS + 1)]
    return tuple(each for each in (*halves, *doubles) if BATCH.holds(each))


@json_fields(
    *("seconds", "spread", "scored.estimate.step_seconds", "scored.estimate.devices"),
    *("scored.estimate.price_per_hour", "run.goodput"),
    without=("scored", "run"),
    names={"scored.estimate.devices": "used_devices"},
)
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """A batch, the steps that it takes, and the fastest plan that was found for it."""

    batch: int
    """Sequences of a step."""
    tokens: float
    """Tokens of the whole training with it."""
    steps: float
    """Steps to the loss."""
    steps_spread: float
    """Relative standard error of the steps."""
    bound_seconds: float
    """No plan of the space reaches the loss sooner with it."""
    inside: bool = False
    """True when its time is within the error bar of the best."""
    scored: Scored | None
    """The fastest plan that was found; null where the bound alone rules it out."""
    run: TrainingRun | None
    """The training with that plan."""

    @property
    def seconds(self) -> float | None:
        """Time to the loss, with what stops the run; null without a plan."""
        if self.scored is None or self.run is None:
            return None
        work = self.steps * self.scored.estimate.step_seconds
        return work / self.run.goodput if self.run.goodput else inf

    @property
    def spread(self) -> float | None:
        """Relative standard error of that time: of the step, and of the steps."""
        return None if self.scored is None else hypot(self.scored.estimate.spread, self.steps_spread)


@json_fields(without=("model", "search"), names={"seconds": "search_seconds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """The batch with which the loss is reached first, and how sure that is."""

    convergence: Convergence
    """The steps of every batch."""
    points: tuple[BatchPoint, ...]
    """All batches of the space, the smallest first."""
    best: BatchPoint | None
    """The best; None without a plan."""
    model: ModelSpec
    """The model, trained with the best batch."""
    search: SearchResult
    """The search for the plan of that batch, or why there is none."""
    bound_seconds: float
    """No batch of the space reaches the loss sooner."""
    gap: float
    """(time - bound) / time; 1 without a plan."""
    status: Status
    """What is proven of batch and plan together."""
    best_if_low: int | None
    """Best batch of those with a plan if the critical batch is one standard error smaller."""
    best_if_high: int | None
    """The same if it is larger."""
    seconds: float
    """How long all of it took."""
    interrupted: bool
    """Whether Ctrl-C stopped it."""


@json_fields(
    "total", "value", inline=("point",), without=("devices",), names={"total": "devices", "value": "price"}
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What some devices give: the batch that suits them, and what the loss takes and costs with it."""

    devices: Devices
    """Number of devices by (pool, gpu) that the plan uses."""
    point: BatchPoint
    """Their best batch."""
    gap: float
    """No batch and plan on these devices reaches the loss sooner by more than this fraction."""
    front: bool = False
    """True when no other size reaches the loss as soon and as cheaply."""

    @property
    def total(self) -> int:
        """All of its devices."""
        return sum(self.devices.values())

    @property
    def seconds(self) -> float:
        """Time to the loss."""
        assert self.point.seconds is not None, "sizes have plans"
        return self.point.seconds

    @property
    def value(self) -> float:
        """Cost of the training; device-hours if a device has no price."""
        run = self.point.run
        assert run is not None, "sizes have plans"
        return run.seconds * self.total / 3600 if run.price is None else run.price


@json_fields(without=("points",), names={"seconds": "search_seconds", "subclusters": "considered"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(FrontOf[Size]):
    """Time and money to the loss by the size of the cluster."""

    convergence: Convergence
    """The steps of every batch."""
    batches: tuple[int, ...]
    """Batches of the space."""
    priced: bool
    """Whether prices are known; device-hours are used otherwise."""


@dataclass(slots=True, kw_only=True)
class BatchCandidate(Candidate):
    """One batch on one sub-cluster; its weight is the steps that it takes to the loss, over the goodput there."""

    batch: int
    steps: float
    goal: Goal
    best: Scored | None = None
    estimator: Estimator | None = None
    """While it may be needed: what it has worked out for the bound serves the search."""

    @property
    def value(self) -> float:
        """Seconds to the loss with its best plan; infinite without one."""
        return self.seconds(self.best) if self.best else inf

    def seconds(self, scored: Scored) -> float:
        """To the loss with a plan, on whichever of its devices."""
        return over_run(self.steps * scored.estimate.step_seconds, scored.estimate.devices, self.goal)


class LossSearch(Slices[BatchCandidate]):
    """Looks for the batch and the plan that reach the loss first; keeps the best so far whatever interrupts it."""

    def __init__(
        self,
        subs: Sequence[SubCluster],
        cluster: ClusterSpec,
        model: ModelSpec,
        calibration: Calibration,
        limits: Limits,
        goal: Goal,
        steps: Convergence,
        batches: Sequence[int],
        deadline: Deadline,
        reporter: Reporter | None = None,
        better: Callable[[Scored, int], object] | None = None,
    ) -> None:
        """Of the goal what stops the run counts; ``better`` is told each better plan."""
        super().__init__(limits, reporter or Silent(), deadline)
        self.cluster, self.model, self.calibration, self.steps = cluster, model, calibration, steps
        self.goal, self._better = goal, better
        self._whole: dict[int, Estimator] = {}
        """Estimators of the whole cluster by batch."""
        own = model.training.global_batch
        near = min(batches, key=lambda batch: abs(log(batch / own)))
        # The model's own batch is a good one to begin with; bounds alone would begin with the smallest.
        pairs = sorted(((sub, batch) for sub in subs for batch in batches), key=lambda each: each[1] != near)
        for sub, batch in pairs:
            self.sub_clusters.append(self._candidate(sub, batch))
        self.sub_clusters.sort(key=lambda each: (*self._place(each), each.batch != near, each.bound))

    def _place(self, _: BatchCandidate) -> tuple[int, ...]:
        """What comes first, before all else."""
        return ()

    def _candidate(self, sub: SubCluster, batch: int) -> BatchCandidate:
        """Nothing is known of a batch that time does not suffice for, but that of the first one is."""
        length = self.model.training.sequence_tokens
        steps = self.steps.steps(batch * length)
        weight = over_run(steps, sub.total, self.goal)
        candidate = BatchCandidate(
            sub=sub, batch=batch, steps=steps, goal=self.goal, weight=weight, bound=0.0
        )
        if not self.sub_clusters or not self.ended:
            least = DeviceRates(self.on(candidate), self.limits).least_seconds(sub.devices)
            candidate.bound = weight * least
        return candidate

    def on(self, candidate: BatchCandidate) -> Estimator:
        """The estimator of a batch on a sub-cluster."""
        if candidate.estimator is None:
            model = self.model.trained_with(global_batch=candidate.batch)
            candidate.estimator = Estimator(candidate.sub.cluster, model, self.calibration)
        return candidate.estimator

    @property
    def best(self) -> BatchCandidate | None:
        """What reaches the loss first."""
        best = min(self.sub_clusters, key=lambda each: each.value, default=None)
        return best if best is not None and best.best is not None else None

    @property
    def value(self) -> float:
        """Its seconds; infinite without a plan."""
        return min((each.value for each in self.sub_clusters), default=inf)

    @property
    def bound(self) -> float:
        """No batch of the space reaches the loss sooner."""
        return min((self.value, *(each.bound for each in self.sub_clusters)))

    @property
    def best_step(self) -> float | None:
        """Seconds of the step of the best."""
        best = self.best
        return best.best.estimate.step_seconds if best and best.best else None

    @property
    def best_bound(self) -> float:
        """The least that its step may take."""
        best = self.best
        return self.bound / best.value * (self.best_step or 0.0) if best else 0.0

    def wanted(self, _: BatchCandidate) -> float:
        """Seconds to the loss from which on a plan is of no use."""
        return self.value

    def may_win(self, candidate: BatchCandidate) -> bool:
        """True below what is wanted by more than the gap."""
        return candidate.bound < self.wanted(candidate) * (1 - self.limits.gap)

    def search(self, candidate: BatchCandidate, share: float) -> None:
        """The fastest plan of a batch, for steps short enough to win."""
        cutoff = self.wanted(candidate) / candidate.weight
        explorer = self.explore(
            candidate, cutoff, self.limits.gap, share, lambda scored: self.take(candidate, scored)
        )
        candidate.bound = max(candidate.bound, candidate.weight * explorer.bound)
        if explorer.finished and candidate.best is not None:
            candidate.estimator = None

    def take(self, candidate: BatchCandidate, scored: Scored | None) -> None:
        """Keep a plan of a batch where it will run: on the whole cluster."""
        if scored is not None and candidate.sub.cluster is not self.cluster:
            if candidate.batch not in self._whole:
                model = self.model.trained_with(global_batch=candidate.batch)
                self._whole[candidate.batch] = Estimator(self.cluster, model, self.calibration)
            scored = where_it_runs(scored, self._whole[candidate.batch])
        if scored is None or candidate.seconds(scored) >= candidate.value:
            return
        before, candidate.best = self.value, scored
        if candidate.value < before and self._better is not None:
            self._better(scored, candidate.batch)

    def look(self, deadline: Deadline) -> None:
        """A plan that is found quickly for each batch that the bound does not put outside the bar of the best.

        What promises most comes first; each has an equal part of the time.
        """
        best = self.best
        if best is None or best.best is None:
            return
        limit = self.value * (1 + self._bar(best, best.best))
        waiting = [each for each in self.sub_clusters if each.best is None and each.bound <= limit]
        waiting.sort(key=lambda each: each.bound)
        for done, candidate in enumerate(waiting):
            if self.interrupted or deadline.struck:
                return
            part = deadline.part(1 / (len(waiting) - done))
            self.take(candidate, Explorer(self.on(candidate), self.limits, Silent(), deadline=part).quick())

    def _bar(self, candidate: BatchCandidate, scored: Scored) -> float:
        tokens = candidate.batch * self.model.training.sequence_tokens
        return hypot(scored.estimate.spread, self.steps.steps_spread(tokens))

    def points(self, chosen: Scored | None) -> tuple[BatchPoint, ...]:
        """Every batch with the best of its sub-clusters, smallest first; ``chosen`` is the plan of the best one."""
        best = self.best
        limit = 0.0 if best is None or best.best is None else self.value * (1 + self._bar(best, best.best))
        own: dict[int, list[BatchCandidate]] = {}
        for each in self.sub_clusters:
            own.setdefault(each.batch, []).append(each)
        return tuple(
            self._point(own[batch], chosen if best and batch == best.batch else None, limit)
            for batch in sorted(own)
        )

    def _point(self, own: Sequence[BatchCandidate], chosen: Scored | None, limit: float) -> BatchPoint:
        """A batch with the best of these sub-clusters."""
        nearest = min(own, key=lambda each: each.value)
        scored = chosen or nearest.best
        of_step = nearest.batch * self.model.training.sequence_tokens
        tokens = nearest.steps * of_step
        seconds = nearest.seconds(scored) if scored else inf
        return BatchPoint(
            batch=nearest.batch,
            tokens=tokens,
            steps=nearest.steps,
            steps_spread=self.steps.steps_spread(of_step),
            bound_seconds=min(seconds, *(each.bound for each in own)),
            inside=seconds <= limit or chosen is not None,
            scored=scored,
            run=None if scored is None else training_run(scored.estimate, tokens, self.goal.interruptions),
        )


class SizesSearch(LossSearch):
    """The best batch of every sub-cluster that no other is as soon and as cheap as."""

    @cached_property
    def parts(self) -> dict[int, list[BatchCandidate]]:
        """The candidates of each sub-cluster."""
        parts: dict[int, list[BatchCandidate]] = {}
        for each in self.sub_clusters:
            parts.setdefault(id(each.sub), []).append(each)
        return parts

    def _place(self, candidate: BatchCandidate) -> tuple[int, ...]:
        """The largest first, whose points beat many of the others."""
        return (-candidate.sub.total,)

    def sizes(self) -> list[Size]:
        """What the sub-clusters give, the best of those whose plans use the same devices."""
        found: dict[frozenset[tuple[tuple[str, str], int]], Size] = {}
        for own in self.parts.values():
            if (size := self.size(own)) is not None:
                used = frozenset(size.devices.items())
                found[used] = min(size, found.get(used, size), key=lambda each: (each.seconds, each.gap))
        return list(found.values())

    def size(self, own: Sequence[BatchCandidate]) -> Size | None:
        """What a sub-cluster gives; None without a plan."""
        best = min(own, key=lambda each: each.value)
        if best.best is None:
            return None
        point = self._point([best], None, inf)
        bound = min((best.value, *(each.bound for each in own)))
        return Size(devices=devices_of(best.best.plan), point=point, gap=max(0.0, 1 - bound / best.value))

    def wanted(self, candidate: BatchCandidate) -> float:
        """The best of its own sub-cluster, or a size that is known and is as soon there, and as cheap."""
        hourly = price_per_hour(candidate.sub.devices, self.cluster)
        weight = candidate.sub.total / 3600 if hourly is None else hourly / 3600
        sizes = (self.size(own) for own in self.parts.values())
        beaten = (max(size.seconds, seconds_at(size.value, weight)) for size in sizes if size)
        return min(*(each.value for each in self.parts[id(candidate.sub)]), *beaten, inf)

    @property
    def unfinished(self) -> int:
        """Sub-clusters of which a batch is left that may win."""
        return sum(
            any((each.unfinished or not each.searched) and self.may_win(each) for each in own)
            for own in self.parts.values()
        )


def to_loss(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    goal: Goal,
    steps: Convergence,
    batches: Sequence[int],
    reporter: Reporter | None = None,
    *,
    explain: bool = True,
    simple: bool = False,
    deadline: Deadline | None = None,
    better: Callable[[Scored, int], object] | None = None,
) -> LossResult:
    """The batch and the plan that reach the loss first, with a bound over all ``batches``.

    Of the goal, devices that may be used and what stops the run count. An interrupt keeps the best so far.
    """
    start, reporter = monotonic(), reporter or Silent()
    deadline = deadline or Deadline.after(limits.time_limit_seconds)
    order = ranked(cluster)
    used = goal.use_at_most
    # Fewer devices fail less often.
    subs = sub_cluster_candidates(order, model, used) if used or goal.fails else (_whole(order),)
    part = deadline.part(SEARCH_SHARE)

    finder = with_host_memory(
        limits,
        lambda allowed: LossSearch(
            subs, order, model, calibration, allowed, goal, steps, batches, part, reporter, better
        ),
    )
    try:
        finder.look(deadline.part(LOOK_SHARE))
    except (Struck, KeyboardInterrupt):
        finder.interrupted = finder.interrupted or part.interrupted
    best = finder.best
    chosen_model = model if best is None else model.trained_with(global_batch=best.batch)
    tokens = None if best is None else best.steps * best.batch * model.training.sequence_tokens

    def told(scored: Scored) -> None:
        """This search begins anew; what the one before has found stays until it is beaten."""
        if better is not None and best is not None and best.seconds(scored) < best.value:
            better(scored, best.batch)

    result = choose(
        cluster,
        chosen_model,
        calibration,
        limits,
        replace(goal, tokens=tokens, whole_run=goal.fails),
        reporter,
        explain=explain,
        simple=simple,
        deadline=deadline,
        better=told,
    )
    if best is not None and best.best is not None:
        result = _at_least(result, best.best, limits.gap)
        best.bound = max(best.bound, best.weight * result.bound_seconds) if len(subs) == 1 else best.bound
    points = finder.points(result.best)
    bound = min((point.bound_seconds for point in points), default=inf)
    point = next((each for each in points if best and each.batch == best.batch), None)
    gap = 1.0 if point is None or not point.seconds else max(0.0, 1 - bound / point.seconds)
    return LossResult(
        convergence=steps,
        points=points,
        best=point,
        model=chosen_model,
        search=result,
        bound_seconds=bound,
        gap=gap,
        status=result.status if point is None else proven(gap, limits.gap),
        best_if_low=_best_at(points, steps, steps.critical.low, model, goal),
        best_if_high=_best_at(points, steps, steps.critical.high, model, goal),
        seconds=monotonic() - start,
        interrupted=finder.interrupted or result.interrupted,
    )


def _at_least(result: SearchResult, found: Scored, gap: float) -> SearchResult:
    """The result, with the plan that the search over batches had found where it is the faster one."""
    tied, goal = result.tie is not None, result.goal
    least = wanted_of(found.estimate, goal)
    if result.best is not None and (tied or wanted_of(result.best.estimate, goal) <= least):
        return result
    known = result.objective_bound if goal.whole_run else result.bound_seconds
    own = 1 - min(known or 0.0, least) / least
    bound = min(known or 0.0, least) * found.estimate.step_seconds / least
    return replace(result, best=found, bound_seconds=bound, gap=own, status=proven(own, gap))


def _whole(cluster: ClusterSpec) -> SubCluster:
    devices: dict[tuple[str, str], int] = {}
    for pool in cluster.pools:
        for gpu in pool.devices:
            devices[pool.name, gpu] = devices.get((pool.name, gpu), 0) + len(pool.hosts)
    return SubCluster(cluster=cluster, devices=devices)


def _best_at(
    points: Sequence[BatchPoint], steps: Convergence, critical: float, model: ModelSpec, goal: Goal
) -> int | None:
    """Best batch of those with a plan if the critical batch is another."""
    length, whole = model.training.sequence_tokens, replace(goal, whole_run=True)
    times = [
        (steps.steps(point.batch * length, critical) * wanted_of(point.scored.estimate, whole), point.batch)
        for point in points
        if point.scored is not None
    ]
    return min(times)[1] if times else None


def sizes_to_loss(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    goal: Goal,
    steps: Convergence,
    batches: Sequence[int],
    reporter: Reporter | None = None,
    *,
    deadline: Deadline | None = None,
) -> Sizes:
    """Time and money to the loss for growing parts of the cluster, each with the batch that suits it.

    Host memory is used where no part of the cluster has a plan without.
    """
    start = monotonic()
    until = deadline or Deadline.after(limits.time_limit_seconds)
    order = ranked(cluster)
    subs = sub_cluster_candidates(order, model, goal.use_at_most, MOST_SIZES)

    finder = with_host_memory(
        limits,
        lambda allowed: SizesSearch(
            subs, order, model, calibration, allowed, goal, steps, batches, until, reporter
        ),
    )
    sizes, worth = front_of(finder.sizes())
    return Sizes(
        convergence=steps,
        batches=tuple(batches),
        points=sizes,
        priced=all(size.point.run is not None and size.point.run.price is not None for size in sizes),
        worth=worth,
        subclusters=len(subs),
        unfinished=finder.unfinished,
        seconds=monotonic() - start,
        interrupted=finder.interrupted,
    )
