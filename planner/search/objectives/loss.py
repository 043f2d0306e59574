"""The fastest way to a loss: the global batch becomes a decision of the search, among the batches that are named.

A batch takes so many steps to the loss (``planner/cost/convergence.py``), and a step at least as long as its bound, so
that steps x bound is a bound on the time to the loss. Batches are searched in the order of these bounds, each for steps
that are short enough to win. What no batch goes below is the least of what is known of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, log
from time import monotonic

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.convergence import Convergence
from planner.cost.estimate import Estimator
from planner.cost.running_cost import Devices, price_per_hour
from planner.cost.training import TrainingRun, training_run
from planner.described import told
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import node_faults
from planner.ranges import BATCH
from planner.runtimes.capabilities import OFFLOAD_PARTS
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline, Struck
from planner.search.explorer import Explorer
from planner.search.objectives.candidates import SLICE, SubCluster, seconds_at, sub_cluster_candidates
from planner.search.objectives.choose import choose
from planner.search.ranking import ranked
from planner.search.values import (
    Goal,
    Limits,
    Reporter,
    Scored,
    SearchResult,
    Silent,
    Status,
    proven,
)

DOUBLINGS = 6
"""How often the batch of the model file is doubled and halved, unless batches are named."""
SEARCH_SHARE = 0.7
"""Part of the time for finding the batch; the rest is for its plan and for the reasons."""
MOST_SIZES = 16
"""Sub-clusters of a table by size."""


def batches_around(batch: int) -> tuple[int, ...]:
    """The batch of the model file, and those that doubling and halving lead to."""
    halves = [batch >> step for step in range(DOUBLINGS, 0, -1) if not batch % (1 << step)]
    doubles = [batch << step for step in range(DOUBLINGS + 1)]
    return tuple(each for each in (*halves, *doubles) if BATCH.holds(each))


@told(
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
    """No plan of the space reaches the loss with it sooner."""
    inside: bool = False
    """True when it takes no longer than the best by more than the bar of the best."""
    scored: Scored | None
    """The fastest plan that was found; null where the bound alone rules it out."""
    run: TrainingRun | None
    """The training with that plan."""

    @property
    def seconds(self) -> float | None:
        """Time to the loss; null without a plan."""
        return None if self.scored is None else self.steps * self.scored.estimate.step_seconds

    @property
    def spread(self) -> float | None:
        """Relative standard error of that time: of the step, and of the steps."""
        return None if self.scored is None else hypot(self.scored.estimate.spread, self.steps_spread)


@told(without=("model", "search"), names={"seconds": "search_seconds"})
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


@told("total", "price", inline=("point",), without=("devices",), names={"total": "devices"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What some devices give: the batch that suits them, and what the loss takes and costs with it."""

    devices: Devices
    """Number of devices by (pool, gpu)."""
    point: BatchPoint
    """Their best batch."""
    gap: float
    """No batch and plan on these devices is sooner there by more than this fraction."""
    front: bool = False
    """True when no other size is as soon there and as cheap."""

    @property
    def total(self) -> int:
        """All of its devices."""
        return sum(self.devices.values())

    @property
    def price(self) -> float:
        """What the training costs; device-hours where a device has no price."""
        run = self.point.run
        assert run is not None, "sizes have plans"
        return run.seconds * self.total / 3600 if run.price is None else run.price


@told(without=("sizes",), names={"seconds": "search_seconds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Time and money to the loss by the size of the cluster."""

    convergence: Convergence
    """The steps of every batch."""
    batches: tuple[int, ...]
    """Batches of the space."""
    sizes: tuple[Size, ...]
    """Slowest first."""
    priced: bool
    """Whether prices are known; else device-hours stand for them."""
    worth: int | None
    """The size from which to any other money rises by more than speed; None without sizes."""
    considered: int
    """Sub-clusters that were looked at."""
    unfinished: int
    """Those that time did not suffice for."""
    seconds: float
    """How long it took."""
    interrupted: bool
    """Whether Ctrl-C stopped it."""


@dataclass(slots=True)
class Candidate:
    """One batch on one sub-cluster, and what is known of it."""

    sub: SubCluster
    batch: int
    steps: float
    estimator: Estimator
    bound: float
    """Seconds to the loss that no plan of it is below."""
    best: Scored | None = None
    unfinished: Explorer | None = None
    searched: bool = False

    @property
    def value(self) -> float:
        """Seconds to the loss with its best plan; infinite without one."""
        return self.steps * self.best.estimate.step_seconds if self.best else inf


class LossSearch:
    """Looks for the batch and the plan that reach the loss first; keeps the best so far whatever interrupts it."""

    def __init__(
        self,
        subs: Sequence[SubCluster],
        cluster: ClusterSpec,
        model: ModelSpec,
        calibration: Calibration,
        limits: Limits,
        steps: Convergence,
        batches: Sequence[int],
        deadline: Deadline,
        reporter: Reporter | None = None,
        cutoff: float = inf,
        better: Callable[[Scored, int], object] | None = None,
    ) -> None:
        """``cutoff``: seconds to the loss from which on nothing is wanted; ``better`` is told each better plan."""
        self.cluster, self.model, self.calibration = cluster, model, calibration
        self.limits, self.steps, self.deadline = limits, steps, deadline
        self.reporter = reporter or Silent()
        self.cutoff, self._better = cutoff, better
        self.interrupted = False
        own = model.training.global_batch
        near = min(batches, key=lambda batch: abs(log(batch / own)))
        # The model's own batch is a good one to begin with; bounds alone would begin with the smallest.
        self.candidates = sorted(
            (self._candidate(sub, batch) for sub in subs for batch in batches),
            key=lambda each: (each.batch != near, each.bound),
        )

    def _candidate(self, sub: SubCluster, batch: int) -> Candidate:
        model = with_batch(self.model, batch)
        estimator = Estimator(sub.cluster, model, self.calibration)
        steps = self.steps.steps(batch * model.training.sequence_length)
        least = DeviceRates(estimator, self.limits).least_seconds(sub.devices)
        return Candidate(sub=sub, batch=batch, steps=steps, estimator=estimator, bound=steps * least)

    @property
    def best(self) -> Candidate | None:
        """What reaches the loss first."""
        best = min(self.candidates, key=lambda each: each.value, default=None)
        return best if best is not None and best.best is not None else None

    @property
    def value(self) -> float:
        """Its seconds; infinite without a plan."""
        return min((each.value for each in self.candidates), default=inf)

    @property
    def bound(self) -> float:
        """No batch of the space reaches the loss sooner."""
        return min((self.value, *(each.bound for each in self.candidates)))

    @property
    def finished(self) -> bool:
        """True when no batch is left that might win."""
        return not any(
            self._may_win(each) and (each.unfinished is not None or not each.searched)
            for each in self.candidates
        )

    def run(self) -> None:
        """Search every batch that can still win; the deadline or an interrupt keeps the best so far."""
        try:
            for done, candidate in enumerate(self.candidates):
                if self._ended and (done or self.interrupted):
                    break
                if self._may_win(candidate):
                    self._search(candidate, SLICE / (len(self.candidates) - done))
                self._tell(done + 1)
            self._go_on()
        except KeyboardInterrupt:
            self.interrupted = True

    def _go_on(self) -> None:
        while not self._ended:
            waiting = [each for each in self.candidates if each.unfinished and self._may_win(each)]
            if not waiting:
                break
            self._search(min(waiting, key=lambda each: each.bound), 1 / len(waiting))
            self._tell(len(self.candidates))

    @property
    def _ended(self) -> bool:
        self.interrupted = self.interrupted or self.deadline.interrupted
        return self.interrupted or self.deadline.struck

    @property
    def _wanted(self) -> float:
        return min(self.cutoff, self.value)

    def _may_win(self, candidate: Candidate) -> bool:
        return candidate.bound < self._wanted * (1 - self.limits.gap)

    def _search(self, candidate: Candidate, share: float) -> None:
        explorer = candidate.unfinished or Explorer(candidate.estimator, self.limits, Silent())
        part = self.deadline if self.deadline.left == inf else self.deadline.part(min(1.0, share))
        before = self.value
        explorer.go_on(part, self._wanted / candidate.steps)
        self.interrupted = self.interrupted or explorer.interrupted
        candidate.bound = max(candidate.bound, candidate.steps * explorer.bound)
        candidate.unfinished, candidate.searched = None if explorer.finished else explorer, True
        self.take(candidate, explorer.best)
        if candidate.best is not None and candidate.value < before and self._better is not None:
            self._better(candidate.best, candidate.batch)

    def take(self, candidate: Candidate, scored: Scored | None) -> None:
        """Keep a plan of a batch where it will run: on the whole cluster."""
        if scored is not None and candidate.sub.cluster is not self.cluster:
            try:
                if node_faults(scored.plan, self.cluster):
                    return
                whole = Estimator(self.cluster, candidate.estimator.model, self.calibration)
                scored = Scored(plan=scored.plan, estimate=whole.estimate(scored.plan))
            except PlanError:
                return
        faster = scored is not None and candidate.steps * scored.estimate.step_seconds < candidate.value
        candidate.best = scored if faster else candidate.best

    def _tell(self, done: int) -> None:
        best = self.best
        step = best.best.estimate.step_seconds if best and best.best else None
        bound = self.bound / best.steps if best else 0.0
        self.reporter.progress(done=done, total=len(self.candidates), best_seconds=step, bound_seconds=bound)

    def look(self) -> None:
        """A plan that is found quickly for each batch that the bound does not put outside the bar of the best."""
        best = self.best
        if best is None or best.best is None:
            return
        bar = self._bar(best, best.best)
        for candidate in self.candidates:
            if candidate.best is None and candidate.bound <= self.value * (1 + bar):
                if self._ended:
                    return
                explorer = Explorer(
                    candidate.estimator, self.limits, Silent(), deadline=self.deadline.part(0.2)
                )
                self.take(candidate, explorer.quick())

    def _bar(self, candidate: Candidate, scored: Scored) -> float:
        tokens = candidate.batch * self.model.training.sequence_length
        return hypot(scored.estimate.spread, self.steps.steps_spread(tokens))

    def points(self, goal: Goal, chosen: Scored | None = None) -> tuple[BatchPoint, ...]:
        """Every batch with the best of its sub-clusters, smallest first; ``chosen`` is the plan of the best one."""
        best = self.best
        limit = 0.0 if best is None or best.best is None else self.value * (1 + self._bar(best, best.best))
        return tuple(
            self._point(batch, goal, chosen if best and batch == best.batch else None, limit)
            for batch in sorted({each.batch for each in self.candidates})
        )

    def _point(self, batch: int, goal: Goal, chosen: Scored | None, limit: float) -> BatchPoint:
        own = [each for each in self.candidates if each.batch == batch]
        nearest = min(own, key=lambda each: each.value)
        scored = chosen or nearest.best
        length = self.model.training.sequence_length
        tokens = nearest.steps * batch * length
        seconds = nearest.steps * scored.estimate.step_seconds if scored else inf
        return BatchPoint(
            batch=batch,
            tokens=tokens,
            steps=nearest.steps,
            steps_spread=self.steps.steps_spread(batch * length),
            bound_seconds=min(seconds, *(each.bound for each in own)),
            inside=seconds <= limit or chosen is not None,
            scored=scored,
            run=None if scored is None else training_run(scored.estimate, tokens, goal.interruptions),
        )


def with_batch(model: ModelSpec, batch: int) -> ModelSpec:
    """The model with another global batch."""
    training = model.training.model_copy(update={"global_batch": batch})
    return model.model_copy(update={"training": training})


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
    strict: bool = True,
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
    subs = sub_cluster_candidates(order, model, used) if used else (_whole(order),)
    finder = _found(
        subs, order, model, calibration, limits, steps, batches, deadline.part(SEARCH_SHARE), reporter, better
    )
    best = finder.best
    chosen_model = model if best is None else with_batch(model, best.batch)
    tokens = None if best is None else best.steps * best.batch * model.training.sequence_length

    def told(scored: Scored) -> None:
        """This search begins anew; what the one before has found stays until it is beaten."""
        if better is not None and best is not None and best.steps * scored.estimate.step_seconds < best.value:
            better(scored, best.batch)

    result = choose(
        cluster,
        chosen_model,
        calibration,
        limits,
        replace(goal, tokens=tokens),
        reporter,
        explain=explain,
        strict=strict,
        deadline=deadline,
        better=told,
    )
    if best is not None and best.best is not None:
        result = _at_least(result, best.best, limits.gap)
        best.bound = max(best.bound, best.steps * result.bound_seconds) if len(subs) == 1 else best.bound
    points = finder.points(goal, result.best)
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
        best_if_low=_best_at(points, steps, steps.critical.low, model),
        best_if_high=_best_at(points, steps, steps.critical.high, model),
        seconds=monotonic() - start,
        interrupted=finder.interrupted or result.interrupted,
    )


def _found(
    subs: Sequence[SubCluster],
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    steps: Convergence,
    batches: Sequence[int],
    deadline: Deadline,
    reporter: Reporter | None = None,
    better: Callable[[Scored, int], object] | None = None,
    cutoff: float = inf,
) -> LossSearch:
    """The search over all batches, with host memory where no batch has a plan without."""

    def search(allowed: Limits) -> LossSearch:
        finder = LossSearch(
            subs,
            cluster,
            model,
            calibration,
            allowed,
            steps,
            batches,
            deadline,
            reporter,
            cutoff,
            better,
        )
        finder.run()
        return finder

    finder = search(limits)
    if limits.offload is None and finder.bound == inf and not finder.interrupted:
        finder = search(replace(limits, offload=OFFLOAD_PARTS))
    try:
        finder.look()
    except (Struck, KeyboardInterrupt):
        finder.interrupted = finder.interrupted or deadline.interrupted
    return finder


def _at_least(result: SearchResult, found: Scored, gap: float) -> SearchResult:
    """The result, with the plan that the search over batches had found where it is the faster one."""
    tied = result.tie is not None
    if result.best is not None and (tied or result.best.estimate.step_seconds <= found.estimate.step_seconds):
        return result
    step = found.estimate.step_seconds
    bound = min(result.bound_seconds, step)
    own = 1 - bound / step
    return replace(result, best=found, bound_seconds=bound, gap=own, status=proven(own, gap))


def _whole(cluster: ClusterSpec) -> SubCluster:
    devices: dict[tuple[str, str], int] = {}
    for pool in cluster.pools:
        for gpu in pool.devices:
            devices[pool.name, gpu] = devices.get((pool.name, gpu), 0) + len(pool.hosts)
    return SubCluster(cluster=cluster, devices=devices)


def _best_at(
    points: Sequence[BatchPoint], steps: Convergence, critical: float, model: ModelSpec
) -> int | None:
    """Best batch of those with a plan if the critical batch is another."""
    length = model.training.sequence_length
    times = [
        (steps.steps(point.batch * length, critical) * point.scored.estimate.step_seconds, point.batch)
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
    start, reporter = monotonic(), reporter or Silent()
    deadline = deadline or Deadline.after(limits.time_limit_seconds)
    order = ranked(cluster)
    subs = sub_cluster_candidates(order, model, goal.use_at_most, MOST_SIZES)
    found: dict[frozenset[tuple[tuple[str, str], int]], Size] = {}
    done, interrupted = 0, False
    for number, sub in enumerate(sorted(subs, key=lambda each: -each.total)):
        if deadline.struck or interrupted:
            break
        part = deadline.part(min(1.0, SLICE / (len(subs) - number)))
        hourly = price_per_hour(sub.devices, order)
        # Seconds from which on a size that is known is as soon there, and as cheap.
        weight = sub.total / 3600 if hourly is None else hourly / 3600
        beaten = min(
            (max(each.point.seconds or inf, seconds_at(each.price, weight)) for each in found.values()),
            default=inf,
        )
        finder = LossSearch((sub,), order, model, calibration, limits, steps, batches, part, cutoff=beaten)
        finder.run()
        interrupted = finder.interrupted
        size = _size(sub, finder, goal)
        done += finder.finished
        if size is not None:
            known = found.get(frozenset(size.devices.items()))
            if known is None or (size.point.seconds or inf) < (known.point.seconds or inf):
                found[frozenset(size.devices.items())] = size
        soonest = min(
            (each.point.scored.estimate.step_seconds for each in found.values() if each.point.scored),
            default=None,
        )
        reporter.progress(done=number + 1, total=len(subs), best_seconds=soonest, bound_seconds=0.0)
    sizes = _with_front(tuple(found.values()))
    if limits.offload is None and not sizes and done == len(subs) and not interrupted:
        on_hosts = replace(limits, offload=OFFLOAD_PARTS)
        again = sizes_to_loss(
            cluster, model, calibration, on_hosts, goal, steps, batches, reporter, deadline=deadline
        )
        return replace(again, seconds=monotonic() - start)
    return Sizes(
        convergence=steps,
        batches=tuple(batches),
        sizes=sizes,
        priced=all(size.point.run is not None and size.point.run.price is not None for size in sizes),
        worth=_worth(sizes),
        considered=len(subs),
        unfinished=len(subs) - done,
        seconds=monotonic() - start,
        interrupted=interrupted,
    )


def _size(sub: SubCluster, finder: LossSearch, goal: Goal) -> Size | None:
    best = finder.best
    if best is None:
        return None
    point = next(each for each in finder.points(goal) if each.batch == best.batch)
    return Size(devices=sub.devices, point=point, gap=max(0.0, 1 - finder.bound / finder.value))


def _with_front(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Slowest first, with marks on those that no other beats in time and money."""
    least, marked = inf, []
    for size in sorted(sizes, key=lambda each: (each.point.seconds or inf, each.price)):
        marked.append(replace(size, front=size.price < least))
        least = min(least, size.price)
    return tuple(reversed(marked))


def _worth(sizes: Sequence[Size]) -> int | None:
    products = [((size.point.seconds or inf) * size.price, index) for index, size in enumerate(sizes)]
    return min(products)[1] if products else None
