"""Time against cost: the plans that no other plan beats in both, over growing sub-clusters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isclose
from time import monotonic
from typing import Generic, Protocol, TypeVar

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.training import Devices, devices_of
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile
from planner.search.deadline import Deadline
from planner.search.incumbent import meets, value_of
from planner.search.objectives.candidates import SubCluster, sub_cluster_candidates
from planner.search.objectives.objectives import (
    Candidate,
    SubClusterCandidates,
    seconds_at,
    with_host_memory,
)
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Objective, Reporter, Scored, Silent

MOST = 32
"""Sub-clusters of one table."""


class OfFront(Protocol):
    """What stands in a front: two values, both the better the lower."""

    @property
    def seconds(self) -> float:
        """Of a step, or of a training."""

    @property
    def value(self) -> float:
        """What stands against time."""


P = TypeVar("P", bound=OfFront)


def front_of(points: Iterable[P]) -> tuple[tuple[P, ...], int | None]:
    """Slowest first, with marks on those that no other beats; and the one with the least product of both values.

    From that one to any other, cost rises by more than speed. Of points that cost nothing the fastest is meant.
    """
    marked: list[P] = []
    least = float("inf")
    for point in sorted(points, key=lambda each: (each.seconds, each.value)):
        marked.append(replace(point, front=point.value < least))  # type: ignore[type-var]
        least = min(least, point.value)
    ordered = tuple(reversed(marked))
    products = [(point.seconds * point.value, point.seconds, index) for index, point in enumerate(ordered)]
    return ordered, min(products)[-1] if products else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOf(Generic[P]):
    """What growing parts of a cluster give, time against something else."""

    points: tuple[P, ...]
    """Slowest first, each on other devices."""
    worth: int | None
    """Index of the point beyond which devices cost more than they speed up; None without points."""
    subclusters: int
    """Sub-clusters considered."""
    unfinished: int
    """Sub-clusters that the search did not reach, or left without a plan."""
    seconds: float
    """How long the search took."""
    interrupted: bool
    """Whether Ctrl-C stopped the search."""


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

    @property
    def devices(self) -> Devices:
        """Number of devices by (pool, gpu)."""
        return devices_of(self.scored.plan)


@json_fields(without=("points",), names={"seconds": "search_seconds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Front(FrontOf[Point]):
    """Time against cost or energy."""

    objective: Objective
    """What is traded against time: cost or energy."""
    beaten: int
    """Sub-clusters whose plans lose to a point in time and cost, or leave devices idle."""
    without_plan: int
    """Sub-clusters without a plan that fits and meets the goal."""


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
    known: tuple[Scored, float] | None = None,
) -> Front:
    """Time against the objective of the goal, cost or energy; an interrupt keeps the points so far.

    Prices, or powers, must be known. Host memory is used where nothing fits on any devices alone. ``known`` is a plan
    that there is already, and its gap.
    """
    start, talk = monotonic(), reporter or Silent()
    until = deadline or Deadline.after(limits.time_limit_seconds)
    estimator = Estimator(ranked(cluster), model, calibration)

    search = with_host_memory(limits, lambda allowed: FrontSearch(estimator, allowed, goal, talk, until))
    if known is not None and known[0].estimate.fits:
        search.take(*known)
    points, worth = front_of(search.points.values())
    without, open_ones = search.without_plan, search.open
    found = sum(known is None or point.scored is not known[0] for point in points)
    return Front(
        objective=goal.objective,
        points=points,
        worth=worth,
        subclusters=len(search.sub_clusters),
        beaten=len(search.sub_clusters) - open_ones - without - found,
        without_plan=without,
        unfinished=open_ones,
        seconds=monotonic() - start,
        interrupted=search.interrupted,
    )


def front_around(
    saved: PlanFile,
    scored: Scored,
    calibration: Calibration,
    objective: Objective,
    reporter: Reporter | None = None,
    *,
    deadline: Deadline | None = None,
) -> Front:
    """The front of a plan's own runtime on the cluster that it was made for; the plan is one of those known."""
    return front(
        saved.cluster,
        saved.model,
        calibration,
        Limits(target=saved.plan.target),
        Goal(objective=objective),
        reporter,
        deadline=deadline,
        known=(scored, _proven_gap(saved, scored)),
    )


def _proven_gap(saved: PlanFile, scored: Scored) -> float:
    """What a search for the fastest plan proved, where it takes as long as it did then; else nothing is proven.

    A search over sub-clusters proved it of the plans that met its limits on cost and time alone.
    """
    summary = saved.summary
    if summary is None or summary.objective not in (None, "time") or summary.subclusters is not None:
        return 1.0
    return summary.gap if isclose(summary.step_seconds, scored.estimate.step_seconds) else 1.0


class FrontSearch(SubClusterCandidates):
    """Finds the fastest plan of every sub-cluster that no other beats in time and cost."""

    one_whatever = False

    def __init__(
        self, estimator: Estimator, limits: Limits, goal: Goal, reporter: Reporter, deadline: Deadline
    ) -> None:
        super().__init__(estimator, limits, goal, reporter, deadline)
        self.points: dict[frozenset[tuple[tuple[str, str], int]], Point] = {}
        """Fastest plan by the devices that it uses."""
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
        """As many as fit on a page."""
        return sub_cluster_candidates(
            self.estimator.cluster, self.estimator.model, self.goal.use_at_most, MOST
        )

    @property
    def open(self) -> int:
        """Sub-clusters that it did not come to, or left without a plan."""
        left = sum(each.unfinished is not None and not each.kept for each in self.sub_clusters[: self.seen])
        return len(self.sub_clusters) - self.seen + left

    @property
    def without_plan(self) -> int:
        """Sub-clusters that have no plan that fits and meets the goal, of those it came to."""
        return sum(each.bound == float("inf") for each in self.sub_clusters[: self.seen])

    @property
    def best_step(self) -> float | None:
        """The fastest point."""
        return min((point.seconds for point in self.points.values()), default=None)

    def may_win(self, candidate: Candidate) -> bool:
        """True while it may have a point of the front, or a better one."""
        least = self.rates.least_seconds(candidate.sub.devices)
        return candidate.bound < float("inf") and least < self._cutoff(candidate)

    def _cutoff(self, candidate: Candidate) -> float:
        """Seconds from which on a known point is as fast and as cheap, or the goal is missed."""
        beaten = (
            max(point.seconds, seconds_at(point.value, candidate.weight)) for point in self.points.values()
        )
        return min(candidate.most_seconds, *beaten, float("inf"))

    def search(self, candidate: Candidate, share: float) -> None:
        """The fastest plan of a sub-cluster, while it may be a point of the front."""
        cutoff = self._cutoff(candidate)
        explorer = self.explore(candidate, cutoff, self.limits.gap, share)
        if explorer.best is not None:
            candidate.kept |= self._keep(explorer.best, explorer.gap)
        if explorer.finished and not candidate.kept and cutoff == candidate.most_seconds:
            candidate.bound = float("inf")

    def _keep(self, sub_plan: Scored, gap: float) -> bool:
        """Take a point, unless it breaks the goal; of two on the same devices the faster one stays."""
        scored = self.on_the_whole(sub_plan)
        return scored is not None and self.take(scored, gap)

    def take(self, scored: Scored, gap: float) -> bool:
        """The same of a plan on the whole cluster."""
        if not meets(scored.estimate, self.goal):
            return False
        point = Point(scored=scored, gap=gap, value=value_of(scored.estimate, self.goal.objective))
        key = frozenset(point.devices.items())
        known = self.points.get(key)
        if known is None or (point.seconds, point.gap) < (known.seconds, known.gap):
            self.points[key] = point
        return True
