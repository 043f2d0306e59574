"""The scheduler of searches in many parts, and the best plan under objectives other than time.

A plan costs the rate of the devices it uses (price, or power) times its step. Of the plans that use exactly
the devices of one sub-cluster the fastest is therefore the cheapest, and the search for time is the engine:
it runs once per sub-cluster, with the step time above which nothing there is wanted as its cutoff. Time to a loss
works the same way: a batch takes so many steps, and each of them a second times so many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Generic, TypeVar

from planner.capabilities import OFFLOAD_PARTS
from planner.cost.estimate import Estimator
from planner.cost.training import Devices, price_per_hour, watts
from planner.errors import PlanError
from planner.frozen import record
from planner.plan.checks import node_faults
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.heuristics.quick import cheap_plan, everywhere
from planner.search.incumbent import Incumbent, Met, meets, over_run, wanted_of
from planner.search.objectives.candidates import SubCluster, sub_cluster_candidates
from planner.search.values import Goal, Limits, Objective, Reporter, Scored, Silent, Status, proven

SLICE = 4
"""Times its even part of the remaining time that one candidate may take at first."""

LEAST_SLICE_SECONDS = 0.5
"""A shorter part of a search is not worth its beginning."""

ROUNDING = 1e-5
"""Relative slack of cutoffs that stand for a limit: more than the solver's tolerance."""


@record(slots=True, kw_only=True)
class Candidate:
    """One sub-cluster and what is known of it."""

    sub: SubCluster
    weight: float
    """Objective per second of a step on all its devices."""
    most_seconds: float = float("inf")
    """Longest step that keeps the limits of the goal."""
    bound: float
    """Objective that no plan on exactly its devices is below; infinite when none meets the goal."""
    least_seconds: float = 0.0
    """No step on exactly its devices is shorter."""
    unfinished: Explorer | None = None
    """The search that ran out of its slice."""
    searched: bool = False
    """Whether a search of it was begun."""
    kept: bool = False
    """Whether a plan of it was taken."""
    met: Met = field(default_factory=Met)
    """What its searches have priced."""


C = TypeVar("C", bound=Candidate)


class Slices(ABC, Generic[C]):
    """Candidates in their order, each searched in a slice of the time there is, so that a hard one leaves some.

    What runs out of its slice goes on while time is left, whatever has the least bound first. What the best so far
    rules out is not searched. The deadline or an interrupt keeps what was found.
    """

    one_whatever = True
    """The first candidate is searched even if there is no time at all."""

    device_rates: DeviceRates | None = None
    """Those of the devices of all candidates, where they train the same."""

    def __init__(self, limits: Limits, reporter: Reporter, deadline: Deadline) -> None:
        self.limits, self.reporter, self.deadline = limits, reporter, deadline
        self.sub_clusters: list[C] = []
        self.seen = 0
        """Candidates that it came to."""
        self.candidates = 0
        self.solved = 0
        self.interrupted = False

    def run(self) -> None:
        """Search every candidate that can still win."""
        try:
            for done, candidate in enumerate(self.sub_clusters):
                first = not done and self.one_whatever and not self.interrupted
                if self.ended and not first:
                    break
                if self.may_win(candidate):
                    self.search(candidate, SLICE / (len(self.sub_clusters) - done))
                self.report(done + 1)
            while not self.ended:
                waiting = [each for each in self.sub_clusters if each.unfinished and self.may_win(each)]
                if not waiting:
                    break
                self.search(min(waiting, key=lambda each: each.bound), 1 / len(waiting))
                self.report(len(self.sub_clusters))
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def ended(self) -> bool:
        """True when time is up, or the user wants an end."""
        self.interrupted = self.interrupted or self.deadline.interrupted
        return self.interrupted or self.deadline.struck

    @property
    @abstractmethod
    def best_step(self) -> float | None:
        """Seconds of the best plan's step; None without one."""

    @property
    def best_bound(self) -> float:
        """Seconds that no step of the best plan's kind is below; 0 where nothing is known."""
        return 0.0

    @abstractmethod
    def may_win(self, candidate: C) -> bool:
        """False when what is known rules it out."""

    @abstractmethod
    def search(self, candidate: C, share: float) -> None:
        """Look for a better plan of it in this share of the time left."""

    @abstractmethod
    def on(self, candidate: C) -> Estimator:
        """The estimator of a candidate."""

    def report(self, done: int) -> None:
        """Say how far it is."""
        self.seen = max(self.seen, done)
        self.reporter.progress(
            done=done,
            total=len(self.sub_clusters),
            best_seconds=self.best_step,
            bound_seconds=self.best_bound,
        )

    @property
    def nothing_fits(self) -> bool:
        """True when no candidate has a plan that fits, whatever the goal: all that may have one were searched."""
        return not self.interrupted and not any(
            each.met.plans or ((each.unfinished or not each.searched) and self.may_win(each))
            for each in self.sub_clusters
        )

    def explore(
        self,
        candidate: C,
        cutoff_seconds: float,
        gap: float,
        share: float,
        better: Callable[[Scored], object] | None = None,
    ) -> Explorer:
        """The search for a step below the cutoff on a candidate, or its next part, in a share of the time left."""
        explorer, known = candidate.unfinished, (0, 0)
        if explorer is None:
            limits = replace(self.limits, gap=gap)
            explorer = Explorer(
                self.on(candidate),
                limits,
                Silent(),
                cutoff_seconds=cutoff_seconds,
                better=better,
                met=candidate.met,
                rates=self.device_rates,
            )
        else:
            known = explorer.candidates, explorer.solved
        explorer.go_on(self._slice(share), cutoff_seconds)
        self.candidates += explorer.candidates - known[0]
        self.solved += explorer.solved - known[1]
        self.interrupted = self.interrupted or explorer.interrupted
        candidate.unfinished, candidate.searched = None if explorer.finished else explorer, True
        return explorer

    def _slice(self, share: float) -> Deadline:
        return self.deadline.slice(share, LEAST_SLICE_SECONDS)


S = TypeVar("S", bound=Slices[Any])


def with_host_memory(limits: Limits, search: Callable[[Limits], S]) -> S:
    """Run a search; where nothing fits on the devices alone, run that with host memory in its place."""
    finder = search(limits)
    finder.run()
    if limits.offload is None and finder.nothing_fits:
        finder = search(replace(limits, offload=OFFLOAD_PARTS))
        finder.run()
    return finder


def where_it_runs(scored: Scored, whole: Estimator) -> Scored | None:
    """A plan of a sub-cluster where it will run; None when the target cannot start its nodes there."""
    try:
        if node_faults(scored.plan, whole.cluster):
            return None
        return Scored(plan=scored.plan, estimate=whole.estimate(scored.plan))
    except PlanError:
        return None


class GoalRates:
    """What a second on given devices is worth under an objective."""

    def __init__(self, estimator: Estimator, limits: Limits, goal: Goal) -> None:
        self.cluster = estimator.cluster
        self.goal = goal
        self.devices = DeviceRates(estimator, limits)
        training = estimator.model.training
        self.tokens = training.tokens

    def weight(self, devices: Devices, objective: Objective | None = None) -> float:
        """Objective per second of a step, as ``value_of`` has it; without one the goal's, as ``wanted_of`` has it."""
        if objective is None:
            value = self.weight(devices, self.goal.objective)
            return over_run(value, sum(devices.values()), self.goal) if self.goal.whole_run else value
        if objective == "time":
            return 1.0
        if objective == "cost":
            hourly = price_per_hour(devices, self.cluster)
            assert hourly is not None, "prices are checked before the search"
            return hourly / 3600 / self.tokens * 1e6
        power = watts(devices, self.cluster)
        assert power is not None, "powers are checked before the search"
        return power / self.tokens

    def most_seconds(self, devices: Devices) -> float:
        """Longest step that the limits of the goal allow on exactly these devices."""
        most = float("inf")
        if self.goal.min_tokens_per_second is not None:
            most = self.tokens / self.goal.min_tokens_per_second
        goal, cost = self.goal, self.weight(devices, "cost") if self.goal.priced else 0.0
        if goal.max_cost_per_million_tokens is not None:
            most = min(most, seconds_at(goal.max_cost_per_million_tokens, cost))
        if goal.tokens is not None:
            share = goal.interruptions.goodput(sum(devices.values()))
            if goal.deadline_seconds is not None:
                most = min(most, share * goal.deadline_seconds * self.tokens / goal.tokens)
            if goal.budget is not None:
                most = min(most, seconds_at(share * goal.budget / goal.tokens * 1e6, cost))
        return most

    def least_seconds(self, devices: Devices) -> float:
        """No step is shorter than all devices need at their best rates."""
        return self.devices.least_seconds(devices)


def seconds_at(value: float, weight: float) -> float:
    """Step time at which an objective value is reached; devices that cost nothing never reach it."""
    return value / weight if weight else float("inf")


class SubClusterCandidates(Slices[Candidate]):
    """All sub-clusters that are considered for a goal, most promising first."""

    def __init__(
        self, estimator: Estimator, limits: Limits, goal: Goal, reporter: Reporter, deadline: Deadline
    ) -> None:
        super().__init__(limits, reporter, deadline)
        self.estimator, self.goal = estimator, goal
        self.rates = GoalRates(estimator, limits, goal)
        self.device_rates = self.rates.devices
        self.sub_clusters = sorted((self._candidate(sub) for sub in self.considered()), key=_promise)

    def considered(self) -> tuple[SubCluster, ...]:
        """The candidates; the cluster alone where the fastest of all its plans is wanted."""
        goal = self.goal
        subs = sub_cluster_candidates(self.estimator.cluster, self.estimator.model, goal.use_at_most)
        limited = goal.max_cost_per_million_tokens is not None or goal.budget is not None
        # Fewer devices fail less often.
        limited = limited or ((goal.deadline_seconds is not None or goal.whole_run) and goal.fails)
        one = goal.objective == "time" and not limited
        return subs[-1:] if one and not goal.use_at_most else subs

    def _candidate(self, sub: SubCluster) -> Candidate:
        weight, least = self.rates.weight(sub.devices), self.rates.least_seconds(sub.devices)
        most = self.rates.most_seconds(sub.devices)
        bound = weight * least if least <= most else float("inf")
        return Candidate(sub=sub, weight=weight, most_seconds=most, bound=bound, least_seconds=least)

    def on(self, candidate: Candidate) -> Estimator:
        """The estimator of a sub-cluster."""
        if candidate.sub.cluster is self.estimator.cluster:
            return self.estimator
        return self.estimator.part(candidate.sub.cluster)

    @property
    def nothing_fits(self) -> bool:
        """The same; where limits of the goal have cut searches short, a few quick plans may still fit."""
        if not super().nothing_fits:
            return False
        limited = [each for each in self.sub_clusters if each.most_seconds < float("inf")]
        if not limited:
            return True
        own = self.on(max(limited, key=lambda each: each.sub.total))
        try:
            return (
                cheap_plan(own, self.limits, everywhere(own), self.deadline) is None
                and not self.deadline.interrupted
            )
        except KeyboardInterrupt:
            self.interrupted = True
            return False

    def on_the_whole(self, scored: Scored) -> Scored | None:
        """A plan of a sub-cluster where it will run; None when the target cannot start its nodes there."""
        return where_it_runs(scored, self.estimator)


def _promise(candidate: Candidate) -> tuple[float, float, int]:
    """Best bound first; of free devices the fastest; of equal ones those that are fewer: they tell each other less."""
    seconds = 0.0 if candidate.weight else candidate.least_seconds
    return candidate.bound, seconds, candidate.sub.total


class BestSearch(SubClusterCandidates):
    """Looks for the best plan; keeps the best so far whatever interrupts it."""

    def __init__(
        self,
        estimator: Estimator,
        limits: Limits,
        goal: Goal,
        reporter: Reporter,
        deadline: Deadline,
        better: Callable[[Scored], object] | None = None,
    ) -> None:
        super().__init__(estimator, limits, goal, reporter, deadline)
        self.answer = Incumbent(limits, goal, better)
        self.home: Candidate | None = None
        """That the best plan was found in."""
        self.met: dict[frozenset[str], Scored] = {}
        """Best plan that was met on each set of pools."""

    @property
    def best(self) -> Scored | None:
        """The best plan so far."""
        return self.answer.best

    @property
    def value(self) -> float:
        """Objective of the best plan; infinite without one."""
        return self.answer.value

    @property
    def bound(self) -> float:
        """No plan that uses exactly the devices of a sub-cluster and meets the goal is below."""
        return min((self.value, *(candidate.bound for candidate in self.sub_clusters)))

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        if self.best is None:
            return 1.0
        return 1 - self.bound / self.value if self.value else 0.0

    @property
    def status(self) -> Status:
        """What the state of the search amounts to."""
        if self.best is None:
            return "infeasible" if self.bound == float("inf") else "unknown"
        return proven(self.gap, self.limits.gap)

    def may_win(self, candidate: Candidate) -> bool:
        """True below the best so far by more than the gap, in time where neither costs anything."""
        if self.best is not None and self.value == 0:
            least = float("inf") if candidate.bound else candidate.least_seconds
            return least < self.best.estimate.step_seconds * (1 - self.limits.gap)
        return candidate.bound < self.value * (1 - self.limits.gap)

    @property
    def best_step(self) -> float | None:
        """Seconds of the best plan's step."""
        return self.best.estimate.step_seconds if self.best else None

    @property
    def best_bound(self) -> float:
        """The least that such a step may take."""
        return (self.best_step or 0.0) * (1 - self.gap)

    def search(self, candidate: Candidate, share: float) -> None:
        """The fastest plan of a sub-cluster, if it may win, in a share of the time left."""
        wanted = float("inf") if self.best is None else seconds_at(self.value, candidate.weight)
        if self.best is not None and self.value == candidate.weight == 0:
            wanted = self.best.estimate.step_seconds
        cutoff = min(wanted, candidate.most_seconds * (1 + ROUNDING))
        exact = candidate.unfinished is not None and candidate.unfinished.limits.gap == 0.0
        for gap in (0.0,) if exact else (self.limits.gap, 0.0):
            explorer = self.explore(
                candidate, cutoff, gap, share, lambda scored: self._offer(scored, candidate)
            )
            self._learn(candidate, explorer)
            # Within the gap of a limit nothing is proven: only an exact search says that no plan keeps it.
            near = explorer.best is None and explorer.bound < candidate.most_seconds < wanted
            if not explorer.finished or not near or self.ended:
                break

    def _learn(self, candidate: Candidate, explorer: Explorer) -> None:
        if explorer.bound >= candidate.most_seconds:
            candidate.bound = float("inf")
        else:
            candidate.bound = max(candidate.bound, candidate.weight * explorer.bound)
            candidate.least_seconds = max(candidate.least_seconds, explorer.bound)

    def _offer(self, sub_plan: Scored, candidate: Candidate) -> None:
        """Take a plan if it is better where it will run: on the whole cluster."""
        scored = self.on_the_whole(sub_plan)
        if scored is None or not scored.estimate.fits or not meets(scored.estimate, self.goal):
            return
        pools = frozenset(pool for pool, _ in candidate.sub.devices)
        least = self.met.get(pools)
        if least is None or self._rank(scored) < self._rank(least):
            self.met[pools] = scored
        if self.answer.offer(scored):
            self.home = candidate

    def _rank(self, scored: Scored) -> tuple[float, float]:
        """Objective and step: of plans that cost nothing the fastest is the best."""
        return wanted_of(scored.estimate, self.goal), scored.estimate.step_seconds
