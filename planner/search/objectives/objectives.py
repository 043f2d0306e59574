"""The best plan under another objective than time, or within limits on cost, throughput and devices.

A plan costs the rate of the devices it uses (price, or power) times its step. Of the plans that use exactly
the devices of one sub-cluster the fastest is therefore the cheapest, and the search for time is the engine:
it runs once per sub-cluster, with the step time above which nothing there is wanted as its cutoff.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.cost.estimate import Estimator
from planner.search.answer import Answer, meets, value_of
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.objectives.candidates import (
    SLICE,
    SubCluster,
    SubClusterCandidate,
    SubClusterCandidates,
    seconds_at,
)
from planner.search.values import Goal, Limits, Reporter, Scored, Status, proven

ROUNDING = 1e-5
"""Relative slack of cutoffs that stand for a limit: more than the solver's tolerance."""


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
        self.answer = Answer(limits, goal, better)
        self.home: SubCluster | None = None
        """Sub-cluster that the best plan was found in."""
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

    def run(self) -> None:
        """Search every sub-cluster that can still win; the deadline or an interrupt keeps the best so far."""
        try:
            for done, candidate in enumerate(self.sub_clusters):
                if self._ended and (
                    done or self.interrupted
                ):  # the first one gives a plan, whatever the time
                    break
                if self._may_win(candidate):
                    self._search(candidate, SLICE / (len(self.sub_clusters) - done))
                self._tell(done + 1)
            self._go_on()
        except KeyboardInterrupt:
            self.interrupted = True

    def _go_on(self) -> None:
        """What ran out of its slice goes on while time is left, whatever has the least bound first."""
        while not self._ended:
            waiting = [
                candidate
                for candidate in self.sub_clusters
                if candidate.unfinished is not None and self._may_win(candidate)
            ]
            if not waiting:
                break
            self._search(min(waiting, key=lambda candidate: candidate.bound), 1 / len(waiting))
            self._tell(len(self.sub_clusters))

    @property
    def _ended(self) -> bool:
        self.interrupted = self.interrupted or self.deadline.interrupted
        return self.interrupted or self.deadline.struck

    def _may_win(self, candidate: SubClusterCandidate) -> bool:
        return candidate.bound < self.value * (1 - self.limits.gap)

    def _tell(self, done: int) -> None:
        best = self.best.estimate.step_seconds if self.best else None
        bound = (best or 0.0) * (1 - self.gap)
        self.reporter.progress(
            done=done, total=len(self.sub_clusters), best_seconds=best, bound_seconds=bound
        )

    def _search(self, candidate: SubClusterCandidate, share: float) -> None:
        """The fastest plan of a sub-cluster, if it may win, in a share of the time left."""
        wanted = seconds_at(self.value, candidate.weight) if self.best else float("inf")
        cutoff = min(wanted, candidate.most_seconds * (1 + ROUNDING))
        exact = candidate.unfinished is not None and candidate.unfinished.limits.gap == 0.0
        for gap in (0.0,) if exact else (self.limits.gap, 0.0):
            explorer = self.explore(
                candidate, cutoff, gap, share, lambda scored: self._offer(scored, candidate.sub)
            )
            self._learn(candidate, explorer)
            # Within the gap of a limit nothing is proven: only an exact search says that no plan keeps it.
            near = explorer.best is None and explorer.bound < candidate.most_seconds < wanted
            if not explorer.finished or not near or self._ended:
                break

    def _learn(self, candidate: SubClusterCandidate, explorer: Explorer) -> None:
        if explorer.bound >= candidate.most_seconds:
            candidate.bound = float("inf")
        else:
            candidate.bound = max(candidate.bound, candidate.weight * explorer.bound)

    def _offer(self, sub_plan: Scored, sub: SubCluster) -> None:
        """Take a plan if it is better where it will run: on the whole cluster."""
        scored = self.on_the_whole(sub_plan)
        if scored is None or not scored.estimate.fits or not meets(scored.estimate, self.goal):
            return
        pools = frozenset(pool for pool, _ in sub.devices)
        least = self.met.get(pools)
        value = value_of(scored.estimate, self.goal.objective)
        if least is None or value < value_of(least.estimate, self.goal.objective):
            self.met[pools] = scored
        if self.answer.offer(scored):
            self.home = sub
