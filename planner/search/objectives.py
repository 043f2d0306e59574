"""The best plan under another objective than time, or within limits on cost, throughput and devices.

A plan costs the rate of the devices it uses (price, or power) times its step. Of the plans that use exactly
the devices of one sub-cluster the fastest is therefore the cheapest, and the search for time is the engine:
it runs once per sub-cluster, with the step time above which nothing there is wanted as its cutoff.
"""

from __future__ import annotations

from planner.cost.estimate import Estimator
from planner.search.explorer import Explorer
from planner.search.milp.solver import TOLERANCE
from planner.search.rungs import Ladder, Rung, meets, seconds_at, value_of
from planner.search.subclusters import SubCluster
from planner.search.values import Goal, Limits, Reporter, Scored, Status

ROUNDING = 1e-5
"""Relative slack of cutoffs that stand for a limit: more than the solver's tolerance."""


class BestSearch(Ladder):
    """Looks for the best plan; keeps the best so far whatever interrupts it."""

    def __init__(self, estimator: Estimator, limits: Limits, goal: Goal, reporter: Reporter) -> None:
        super().__init__(estimator, limits, goal, reporter)
        self.best: Scored | None = None
        self.home: SubCluster | None = None
        """Sub-cluster that the best plan was found in."""
        self.met: dict[frozenset[str], Scored] = {}
        """Best plan that was met on each set of pools."""

    @property
    def value(self) -> float:
        """Objective of the best plan; infinite without one."""
        return value_of(self.best.estimate, self.goal.objective) if self.best else float("inf")

    @property
    def bound(self) -> float:
        """No plan that uses exactly the devices of a sub-cluster and meets the goal is below."""
        return min((self.value, *(rung.bound for rung in self.rungs)))

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
        return "optimal" if self.gap <= max(self.limits.gap, 4 * TOLERANCE) + 1e-9 else "feasible"

    def run(self) -> None:
        """Search every sub-cluster that can still win; an interrupt keeps the best so far."""
        try:
            for done, rung in enumerate(self.rungs):
                if self.out_of_time or self.interrupted:
                    break
                if rung.bound < self.value * (1 - self.limits.gap):
                    self._search(rung, len(self.rungs) - done)
                best = self.best.estimate.step_seconds if self.best else None
                self.reporter.progress(
                    done=done + 1,
                    total=len(self.rungs),
                    best_seconds=best,
                    bound_seconds=(best or 0.0) * (1 - self.gap),
                )
        except KeyboardInterrupt:
            self.interrupted = True

    def _search(self, rung: Rung, left: int) -> None:
        """The fastest plan of a sub-cluster, if it may win."""
        wanted = seconds_at(self.value, rung.weight) if self.best else float("inf")
        cutoff = min(wanted, rung.most_seconds * (1 + ROUNDING))
        estimator = self.on(rung.sub)
        for gap in (self.limits.gap, 0.0):
            explorer = self.explore(estimator, cutoff, gap, left)
            self._learn(rung, explorer)
            # Within the gap of a limit nothing is proven: only an exact search says that no plan keeps it.
            near = explorer.best is None and explorer.bound < rung.most_seconds < wanted
            if not near or self.interrupted or self.out_of_time:
                break

    def _learn(self, rung: Rung, explorer: Explorer) -> None:
        if explorer.bound >= rung.most_seconds:
            rung.bound = float("inf")
        else:
            rung.bound = max(rung.bound, rung.weight * explorer.bound)
        if explorer.best is not None:
            self._offer(explorer.best, rung.sub)

    def _offer(self, found: Scored, sub: SubCluster) -> None:
        """Take a plan if it is better where it will run: on the whole cluster."""
        scored = self.on_the_whole(found)
        if scored is None or not scored.estimate.fits or not meets(scored.estimate, self.goal):
            return
        value, pools = (
            value_of(scored.estimate, self.goal.objective),
            frozenset(pool for pool, _ in sub.devices),
        )
        if pools not in self.met or value < value_of(self.met[pools].estimate, self.goal.objective):
            self.met[pools] = scored
        if value < self.value:
            self.best, self.home = scored, sub
