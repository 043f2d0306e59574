"""Time against cost: the plans that no other plan beats in both, over growing sub-clusters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import monotonic

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.running_cost import devices_of
from planner.described import told
from planner.model.spec import ModelSpec
from planner.search.answer import meets, value_of
from planner.search.deadline import Deadline
from planner.search.objectives.candidates import (
    SLICE,
    SubCluster,
    SubClusterCandidate,
    SubClusterCandidates,
    seconds_at,
    sub_cluster_candidates,
)
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Objective, Reporter, Scored, Silent

MOST = 32
"""Sub-clusters of one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The fastest plan that was found on some devices."""

    scored: Scored
    gap: float
    """No plan of the sub-cluster is faster by more than this fraction."""
    value: float
    """Cost of a million tokens, or joules of a token."""
    front: bool = False
    """True when no other plan is as fast and as cheap."""

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.scored.estimate.step_seconds


@told(without=("points",), names={"seconds": "search_seconds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What growing sub-clusters give."""

    objective: Objective
    """What stands against time: cost or energy."""
    points: tuple[Point, ...]
    """Slowest first, each on other devices."""
    worth: int | None
    """Index of the point beyond which devices cost more than they speed up; None without points."""
    subclusters: int
    """Sub-clusters considered."""
    beaten: int
    """Sub-clusters whose plans lose to a point in time and cost, or leave devices idle."""
    without_plan: int
    """Sub-clusters without a plan that fits and meets the goal."""
    unfinished: int
    """Sub-clusters that the search did not come to, or left without a plan."""
    seconds: float
    """How long the search took."""
    interrupted: bool
    """Whether Ctrl-C stopped the search."""


def front_objective(cluster: ClusterSpec) -> Objective | None:
    """What can stand against time: cost where all pools have a price, else energy where all powers are known."""
    if all(pool.price_per_gpu_hour is not None for pool in cluster.pools):
        return "cost"
    known = all(cluster.watts_of(pool, gpu) is not None for pool in cluster.pools for gpu in pool.devices)
    return "energy" if known else None


def front(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    goal: Goal,
    reporter: Reporter | None = None,
    *,
    deadline: Deadline | None = None,
) -> Front:
    """Time against the objective of the goal, cost or energy; an interrupt keeps the points so far.

    Prices, or powers, must be known.
    """
    start = monotonic()
    deadline = deadline or Deadline.after(limits.time_limit_seconds)
    estimator = Estimator(ranked(cluster), model, calibration)
    search = FrontSearch(estimator, limits, goal, reporter or Silent(), deadline)
    search.run()
    points = _with_front(search.points.values())
    return Front(
        objective=goal.objective,
        points=points,
        worth=_worth(points),
        subclusters=len(search.sub_clusters),
        beaten=search.finished - search.without_plan - len(points),
        without_plan=search.without_plan,
        unfinished=len(search.sub_clusters) - search.finished,
        seconds=monotonic() - start,
        interrupted=search.interrupted,
    )


class FrontSearch(SubClusterCandidates):
    """Finds the fastest plan of every sub-cluster that no other beats in time and cost."""

    def __init__(
        self, estimator: Estimator, limits: Limits, goal: Goal, reporter: Reporter, deadline: Deadline
    ) -> None:
        super().__init__(estimator, limits, goal, reporter, deadline)
        self.points: dict[frozenset[tuple[tuple[str, str], int]], Point] = {}
        """Fastest plan by the devices that it uses."""
        self.finished = 0
        self.without_plan = 0
        most = max((candidate.sub.total for candidate in self.sub_clusters), default=0)
        # All devices and single pools first: the ends of the front beat many of the others at once.
        self.sub_clusters.sort(
            key=lambda candidate: (
                candidate.sub.total != most,
                len(candidate.sub.cluster.pools) > 1,
                candidate.sub.total,
            )
        )

    def considered(self) -> tuple[SubCluster, ...]:
        """A candidates that fits on a page."""
        return sub_cluster_candidates(
            self.estimator.cluster, self.estimator.model, self.goal.use_at_most, MOST
        )

    def run(self) -> None:
        """Search every sub-cluster that may be on the front; an interrupt keeps the points so far."""
        try:
            for done, candidate in enumerate(self.sub_clusters):
                self.interrupted = self.interrupted or self.deadline.interrupted
                if self.deadline.struck or self.interrupted:
                    break
                self._search(candidate, SLICE / (len(self.sub_clusters) - done))
                fastest = min((point.seconds for point in self.points.values()), default=None)
                self.reporter.progress(
                    done=done + 1, total=len(self.sub_clusters), best_seconds=fastest, bound_seconds=0.0
                )
        except KeyboardInterrupt:
            self.interrupted = True

    def _search(self, candidate: SubClusterCandidate, share: float) -> None:
        """The fastest plan of a sub-cluster, while it may be a point of the front."""
        beaten_at = min(
            (max(point.seconds, seconds_at(point.value, candidate.weight)) for point in self.points.values()),
            default=float("inf"),
        )
        cutoff = min(beaten_at, candidate.most_seconds)
        if self.rates.least_seconds(candidate.sub.devices) < cutoff:
            explorer = self.explore(candidate, cutoff, self.limits.gap, share)
            if explorer.status == "unknown":
                return
            if explorer.best is not None and self._keep(explorer.best, explorer.gap):
                cutoff = 0.0
        self.finished += 1
        self.without_plan += cutoff == candidate.most_seconds

    def _keep(self, sub_plan: Scored, gap: float) -> bool:
        """Take a point, unless it breaks the goal; of two on the same devices the faster one stays."""
        scored = self.on_the_whole(sub_plan)
        if scored is None or not meets(scored.estimate, self.goal):
            return False
        key = frozenset(devices_of(scored.plan).items())
        point = Point(scored=scored, gap=gap, value=value_of(scored.estimate, self.goal.objective))
        if key not in self.points or point.seconds < self.points[key].seconds:
            self.points[key] = point
        return True


def _with_front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Slowest first, with marks on those that no other beats."""
    ordered = sorted(points, key=lambda point: (point.seconds, point.value))
    marked, least = [], float("inf")
    for point in ordered:
        marked.append(replace(point, front=point.value < least))
        least = min(least, point.value)
    return tuple(reversed(marked))


def _worth(points: tuple[Point, ...]) -> int | None:
    """The point with the least product of time and cost: from it to any other, cost rises by more than speed."""
    products = [(point.seconds * point.value, index) for index, point in enumerate(points)]
    return min(products)[1] if products else None
