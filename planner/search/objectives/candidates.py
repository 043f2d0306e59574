"""The search for time on one sub-cluster after the other, and what a second costs on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.cost.estimate import Estimator
from planner.cost.running_cost import Devices, price_per_hour, watts
from planner.errors import PlanError
from planner.plan.checks import node_faults
from planner.search.bounds.peak import least_seconds
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.objectives.subclusters import SubCluster, sub_cluster_candidates
from planner.search.values import Goal, Limits, Objective, Reporter, Scored, Silent

SLICE = 4
"""Times its even part of the remaining time that one sub-cluster may take at first."""

LEAST_SLICE_SECONDS = 0.5
"""A shorter part of a search is not worth its beginning."""


class Rates:
    """What a second on given devices is worth under an objective."""

    def __init__(self, estimator: Estimator, goal: Goal) -> None:
        self.estimator = estimator
        self.cluster = estimator.cluster
        self.goal = goal
        training = estimator.model.training
        self.tokens = training.global_batch * training.sequence_length

    def weight(self, devices: Devices, objective: Objective | None = None) -> float:
        """Objective per second of a step, in the unit of ``value_of``."""
        objective = objective or self.goal.objective
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
        price = self.goal.max_cost_per_million_tokens
        weight = self.weight(devices, "cost") if price is not None else 0.0
        return most if price is None else min(most, seconds_at(price, weight))

    def least_seconds(self, devices: Devices) -> float:
        """No step is shorter than the useful operations at the peak of all devices."""
        return least_seconds(self.estimator, devices)


def seconds_at(value: float, weight: float) -> float:
    """Step time at which an objective value is reached; devices that cost nothing never reach it."""
    return value / weight if weight else float("inf")


@dataclass(slots=True, kw_only=True)
class SubClusterCandidate:
    """One sub-cluster and what is known of it."""

    sub: SubCluster
    weight: float
    """Objective per second of a step on all its devices."""
    most_seconds: float
    """Longest step that keeps the limits of the goal."""
    bound: float
    """Objective that no plan on exactly its devices is below; infinite when none meets the goal."""
    unfinished: Explorer | None = None
    """The search that ran out of its slice."""


class SubClusterCandidates:
    """All sub-clusters that are considered, most promising first, and the time there is for them."""

    def __init__(
        self, estimator: Estimator, limits: Limits, goal: Goal, reporter: Reporter, deadline: Deadline
    ) -> None:
        self.estimator = estimator
        self.deadline = deadline
        self.limits = limits
        self.goal = goal
        self.reporter = reporter
        self.rates = Rates(estimator, goal)
        self.sub_clusters = sorted((self._candidate(sub) for sub in self.considered()), key=_promise)
        self.candidates = 0
        self.solved = 0
        self.interrupted = False

    def considered(self) -> tuple[SubCluster, ...]:
        """The candidates; the cluster alone where the fastest of all its plans is wanted."""
        found = sub_cluster_candidates(self.estimator.cluster, self.estimator.model, self.goal.use_at_most)
        one = self.goal.objective == "time" and self.goal.max_cost_per_million_tokens is None
        return found[-1:] if one and not self.goal.use_at_most else found

    def _candidate(self, sub: SubCluster) -> SubClusterCandidate:
        weight, least = self.rates.weight(sub.devices), self.rates.least_seconds(sub.devices)
        most = self.rates.most_seconds(sub.devices)
        bound = weight * least if least <= most else float("inf")
        return SubClusterCandidate(sub=sub, weight=weight, most_seconds=most, bound=bound)

    def on(self, sub: SubCluster) -> Estimator:
        """The estimator of a sub-cluster."""
        if sub.cluster is self.estimator.cluster:
            return self.estimator
        return Estimator(sub.cluster, self.estimator.model, self.estimator.calibration)

    def on_the_whole(self, scored: Scored) -> Scored | None:
        """A plan of a sub-cluster where it will run; None when the target cannot start its nodes there."""
        try:
            if node_faults(scored.plan, self.estimator.cluster):
                return None
            return Scored(plan=scored.plan, estimate=self.estimator.estimate(scored.plan))
        except PlanError:
            return None

    def explore(
        self,
        candidate: SubClusterCandidate,
        cutoff_seconds: float,
        gap: float,
        share: float,
        better: Callable[[Scored], object] | None = None,
    ) -> Explorer:
        """The search for a step below the cutoff on a sub-cluster, or its next part, in a share of the time left."""
        explorer, known = candidate.unfinished, (0, 0)
        if explorer is None:
            limits = replace(self.limits, gap=gap)
            explorer = Explorer(
                self.on(candidate.sub), limits, Silent(), cutoff_seconds=cutoff_seconds, better=better
            )
        else:
            known = explorer.candidates, explorer.solved
        explorer.go_on(self._slice(share), cutoff_seconds)
        self.candidates += explorer.candidates - known[0]
        self.solved += explorer.solved - known[1]
        self.interrupted = self.interrupted or explorer.interrupted
        candidate.unfinished = None if explorer.finished else explorer
        return explorer

    def _slice(self, share: float) -> Deadline:
        """A hard sub-cluster leaves some time for the others."""
        if self.deadline.left == float("inf"):
            return self.deadline
        return self.deadline.part(min(1.0, max(share, LEAST_SLICE_SECONDS / max(1e-9, self.deadline.left))))


def _promise(candidate: SubClusterCandidate) -> tuple[float, int]:
    """Best bound first; of equal ones that with fewer devices, which have less to tell each other."""
    return candidate.bound, candidate.sub.total
