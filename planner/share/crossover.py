"""Two jobs on the same devices: one computes while the other waits for the network.

Both steps are simulated as they pass in time (``step_of``), again and again beside each other, the way of
CrossoverScheduler (arXiv:2103.07974). A moment in which both compute on one device, or both use the network of one
host, takes twice as long: two processes share a device by turns, and a link by halves. A job goes on as fast as the
slowest of its lanes that is busy. Traffic that is hidden behind computation takes nothing of the other's network, and
switching between processes costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.feed import Fed
from planner.cost.timeline import Lane, step_of
from planner.field_metadata import json_fields
from planner.plan.placement import ranks
from planner.plan.values import Plan
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.objectives.choose import choose
from planner.search.values import Goal, Limits, Scored, SearchResult
from planner.share.jobs import LoadedJob
from planner.units import gib_from_bytes

Device = tuple[str, int]
"""(host, number)."""

STEPS = 32
"""Steps of the slower job that are simulated; the first quarter is not counted."""
BEGINNINGS = 8
"""Points of its step at which the second job may be when the first begins one."""
ALONE = 4
"""Parts of the time for each job alone, next to one for each search of a pair."""
LEAST = 1e-12
"""Part of a step that is none, for floating-point arithmetic."""
MOST_EVENTS = 50_000
"""Moments that are simulated at most."""
HALF = 0.5
"""Part of the memory that a job may have when both plan for the other."""


@dataclass(frozen=True, slots=True)
class StepInterval:
    """A part of a step in which nothing changes."""

    seconds: float
    computing: frozenset[Device]
    """Devices that compute."""
    talking: frozenset[str]
    """Hosts whose network is busy."""


@dataclass(frozen=True, slots=True)
class PairSpeed:
    """How fast two jobs go on the same devices."""

    first_seconds: float
    """A step of the first, mean."""
    second_seconds: float
    """A step of the second, mean."""


def moments_of(scored: Scored, estimator: Estimator) -> tuple[StepInterval, ...]:
    """One step of a plan, cut where a lane goes from computing to the network or to waiting."""
    step = step_of(scored.plan, estimator)
    places = _devices(scored.plan, estimator.cluster)
    owned = [
        frozenset(
            device
            for (stage, group), devices in places.items()
            if stage == lane.stage and lane.group in (None, group)
            for device in devices
        )
        for lane in step.lanes
    ]
    events = sorted(
        event
        for number, lane in enumerate(step.lanes)
        for start, end, computes in _phases(lane)
        if end > start
        for event in ((end, 0, number, computes), (start, 1, number, computes))
    )
    busy: list[set[int]] = [set(), set()]
    moments, now = list[StepInterval](), 0.0
    for time, begins, number, computes in [*events, (step.seconds, 0, -1, True)]:
        if time > now:
            talking, computing = (frozenset().union(*(owned[lane] for lane in lanes)) for lanes in busy)
            moments.append(StepInterval(time - now, computing, frozenset(host for host, _ in talking)))
            now = time
        if begins:
            busy[computes].add(number)
        else:
            busy[computes].discard(number)
    return tuple(moments)


def _devices(plan: Plan, cluster: ClusterSpec) -> Mapping[tuple[int, int], list[Device]]:
    """Devices by stage and group."""
    places: dict[tuple[int, int], list[Device]] = {}
    for rank in ranks(plan, cluster):
        places.setdefault((rank.stage, rank.group), []).append((rank.host, rank.device))
    return places


def _phases(lane: Lane) -> Iterator[tuple[float, float, bool]]:
    """(start, end, whether it computes); the collectives of a forward or backward come at its end."""
    for span in lane.spans:
        if span.kind in ("send", "sync"):
            yield span.start, span.end, False
            continue
        share = lane.collectives if span.kind in ("forward", "backward") else 0.0
        middle = span.end - share * (span.end - span.start)
        yield span.start, middle, True
        if share:
            yield middle, span.end, False


def beside(
    first: Sequence[StepInterval], second: Sequence[StepInterval], deadline: Deadline = NO_LIMIT
) -> PairSpeed:
    """Both steps again and again; on the mean of when the second begins, as nothing keeps them in step.

    Raises ``Struck`` at the deadline.
    """
    length = _length(second)
    ways = []
    for number in range(BEGINNINGS):
        deadline.check()
        ways.append(_simulated(first, second, length * number / BEGINNINGS))
    return PairSpeed(*(BEGINNINGS / sum(1.0 / way[job] for way in ways) for job in (0, 1)))


def fed_beside(found: PairSpeed, first: Fed, second: Fed) -> PairSpeed:
    """Both as slow as what feeds them: where that is the same storage, or processors, it works for one at a time."""
    steps = found.first_seconds, found.second_seconds
    busy = first.seconds / steps[0] + second.seconds / steps[1]
    if first.limit != second.limit or busy <= 1.0:
        return found
    return PairSpeed(*(seconds * busy for seconds in steps))


def _length(moments: Sequence[StepInterval]) -> float:
    return sum(moment.seconds for moment in moments)


def _simulated(
    first: Sequence[StepInterval], second: Sequence[StepInterval], begun: float
) -> tuple[float, float]:
    """Mean seconds of a step of both, of which the second is at this point of its step when the first begins."""
    jobs, lengths = (first, second), (_length(first), _length(second))
    at, left, done = [0, 0], [first[0].seconds, second[0].seconds], [0, 0]
    while begun >= left[1]:
        begun -= left[1]
        at[1] = (at[1] + 1) % len(second)
        left[1] = second[at[1]].seconds
    left[1] -= begun
    time, since, counted = 0.0, 0.0, (0.0, 0.0)

    def progress() -> tuple[float, float]:
        """Steps so far, parts of one included."""
        rests = (left[job] + _length(jobs[job][at[job] + 1 :]) for job in (0, 1))
        one, two = (
            count + 1 - rest / length for count, rest, length in zip(done, rests, lengths, strict=True)
        )
        return one, two

    counted = progress()
    for _ in range(MOST_EVENTS):
        if not since and min(done) >= STEPS // 4:
            since, counted = time, progress()
        if min(done) >= STEPS:
            break
        one, two = first[at[0]], second[at[1]]
        ahead = min(left)
        time += ahead * (2 if one.computing & two.computing or one.talking & two.talking else 1)
        for job in (0, 1):
            left[job] -= ahead
            if left[job] <= LEAST * lengths[job]:
                at[job] = (at[job] + 1) % len(jobs[job])
                done[job] += at[job] == 0
                left[job] = jobs[job][at[job]].seconds
    made = progress()
    return (time - since) / (made[0] - counted[0]), (time - since) / (made[1] - counted[1])


def waiting(moments: Sequence[StepInterval], plan: Plan) -> tuple[float, float]:
    """Parts of a step that its devices wait for the network, and for each other, on the mean."""
    length = _length(moments)
    hosts = {host for moment in moments for host, _ in moment.computing}
    computing = sum(moment.seconds * len(moment.computing) for moment in moments) / plan.devices / length
    talking = sum(moment.seconds * len(moment.talking) for moment in moments) / len(hosts) / length
    return talking, max(0.0, 1.0 - computing - talking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two jobs on the same devices."""

    job: LoadedJob
    cluster: ClusterSpec
    """The cluster, with the memory of the other job kept free."""
    result: SearchResult
    moments: tuple[StepInterval, ...]
    fed: Fed
    """What the data of a step takes, with nobody else reading."""

    @property
    def scored(self) -> Scored:
        """Its plan."""
        assert self.result.best is not None
        return self.result.best


@json_fields(without=("plans",))
@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverPair:
    """Two jobs on the same devices, all of the cluster."""

    first: str
    """The job that waits for the network most."""
    second: str
    """The other one."""
    network_share: float
    """Share of a step in which the devices of the first wait for the network, alone on the cluster."""
    idle_share: float
    """Share of a step in which they wait for each other."""
    fits: bool | None
    """True if plans of both fit in memory together; false if none fit in any of three ways to divide it (what one
    leaves, what the other leaves, half each); null if none were found in time."""
    first_alone_seconds: float
    """A step of the first, alone on the cluster."""
    second_alone_seconds: float
    """A step of the second, alone on the cluster."""
    first_seconds: float | None
    """A step of the first beside the second."""
    second_seconds: float | None
    """A step of the second beside the first."""
    gain: float | None
    """Work of both together over their work in turns on the whole cluster; 1 if nothing is gained."""
    both_seconds: float | None
    """Time until both have finished their tokens side by side; null if the file does not say how many."""
    in_turn_seconds: float | None
    """The same one after the other."""
    plans: tuple[Side, ...]
    """Both, in this order; none where none fit."""


class Crossover:
    """Looks for pairs of jobs that are better off on the same devices."""

    def __init__(
        self,
        cluster: ClusterSpec,
        jobs: Sequence[LoadedJob],
        calibration: Calibration,
        limits: Limits,
        deadline: Deadline,
    ) -> None:
        self.cluster, self.jobs, self.calibration = cluster, jobs, calibration
        self.limits, self.deadline = limits, deadline
        pairs = len(jobs) * (len(jobs) - 1) // 2
        self._left = ALONE * len(jobs) + 4 * pairs
        """Parts of the time that are not given out yet."""
        self._unknown = 0
        """Searches that ended without a plan and without a proof that there is none."""
        self._least = dict[str, float]()
        """Shortest step of each job that was found, with whatever memory."""

    def run(self) -> tuple[CrossoverPair, ...]:
        """Every pair, that which gains most first; none of jobs that do not fit alone."""
        alone = [self._side(job, self.cluster, ALONE) for job in self.jobs]
        pairs = []
        for pair in combinations([side for side in alone if side is not None], 2):
            first, second = sorted(pair, key=lambda side: -waiting(side.moments, side.scored.plan)[0])
            before = self._unknown
            ways = [(one, other) for one, other in self._ways(first, second) if one and other]
            pairs.append((first, ways, second, self._unknown > before))
        found = [self._crossing(first, ways, second, cut) for first, ways, second, cut in pairs]
        return tuple(sorted(found, key=lambda each: -(each.gain or 0.0)))

    def _side(self, job: LoadedJob, cluster: ClusterSpec | None, parts: int = 1) -> Side | None:
        """The best plan of a job there; None where none was found."""
        deadline = self.deadline.part(parts / self._left)
        self._left = max(1, self._left - parts)
        if cluster is None:
            return None
        if self.deadline.struck:
            self._unknown += 1
            return None
        limits = replace(self.limits, target=job.job.target or self.limits.target, offload=("none",))
        result = choose(
            cluster, job.model, self.calibration, limits, Goal(), explain=False, deadline=deadline
        )
        if result.best is None:
            self._unknown += result.status == "unknown"
            return None
        estimator = Estimator(cluster, job.model, self.calibration)
        moments, fed = moments_of(result.best, estimator), estimator.price(result.best.plan).fed
        name, step = job.job.name, result.best.estimate.step_seconds
        self._least[name] = min(step, self._least.get(name, step))
        return Side(job=job, cluster=cluster, result=result, moments=moments, fed=fed)

    def _ways(self, first: Side, second: Side) -> Iterator[tuple[Side | None, Side | None]]:
        """Three ways to divide the memory: one plans as if alone, or both for half of it."""
        yield first, self._side(second.job, _beside(self.cluster, first))
        yield self._side(first.job, _beside(self.cluster, second)), second
        modest = self._side(first.job, _half(self.cluster))
        yield modest, self._side(second.job, _beside(self.cluster, modest))

    def _crossing(
        self, first: Side, ways: Sequence[tuple[Side, Side]], second: Side, cut: bool
    ) -> CrossoverPair:
        """The best of the ways."""
        alone = [self._least[side.job.job.name] for side in (first, second)]
        simulated: list[tuple[PairSpeed, Side, Side]] = []
        try:
            for one, other in ways:
                both = beside(one.moments, other.moments, self.deadline)
                simulated.append((fed_beside(both, one.fed, other.fed), one, other))
        except Struck:
            cut = True

        def gain(found: PairSpeed) -> float:
            return alone[0] / found.first_seconds + alone[1] / found.second_seconds

        best = max(simulated, key=lambda entry: gain(entry[0]), default=None)
        network, idle = waiting(first.moments, first.scored.plan)
        turns = [_lasts(side.job, seconds) for side, seconds in zip((first, second), alone, strict=True)]
        return CrossoverPair(
            first=first.job.job.name,
            second=second.job.job.name,
            network_share=network,
            idle_share=idle,
            fits=True if best else None if cut else False,
            first_alone_seconds=alone[0],
            second_alone_seconds=alone[1],
            first_seconds=best[0].first_seconds if best else None,
            second_seconds=best[0].second_seconds if best else None,
            gain=gain(best[0]) if best else None,
            both_seconds=_both(best[0], (first.job, second.job), alone) if best else None,
            in_turn_seconds=None if None in turns else sum(each or 0.0 for each in turns),
            plans=best[1:] if best else (),
        )


def _lasts(job: LoadedJob, step_seconds: float) -> float | None:
    """Seconds of all that is left of a job."""
    if job.tokens is None:
        return None
    training = job.model.training
    return job.tokens / (training.tokens) * step_seconds


def _both(found: PairSpeed, jobs: tuple[LoadedJob, LoadedJob], alone: Sequence[float]) -> float | None:
    """Beside each other until one has ended; the other one goes on alone, as if nothing had been beside it."""
    steps = (found.first_seconds, found.second_seconds)
    lasting = [_lasts(job, step) for job, step in zip(jobs, steps, strict=True)]
    if lasting[0] is None or lasting[1] is None:
        return None
    longer = int(lasting[1] > lasting[0])
    shorter, last = sorted((lasting[0], lasting[1]))
    return shorter + (last - shorter) / steps[longer] * alone[longer]


def _half(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with half of its memory."""
    reserves = {}
    for pool in cluster.pools:
        kept = _reserve(cluster, pool.name)
        least = min(cluster.gpus[gpu].memory_gib for gpu in pool.devices)
        reserves[pool.name] = kept + HALF * max(0.0, least - kept)
    return _reserved(cluster, reserves)


def _beside(cluster: ClusterSpec, other: Side | None) -> ClusterSpec | None:
    """The cluster without the memory that another job takes of its devices; None where nothing is left."""
    if other is None:
        return None
    used: dict[str, float] = {}
    for stage in other.scored.estimate.stages:
        for group in stage.groups:
            used[group.pool] = max(used.get(group.pool, 0.0), gib_from_bytes(group.memory.used_bytes))
    free = {pool.name: _reserve(cluster, pool.name) + used.get(pool.name, 0.0) for pool in cluster.pools}
    left = _reserved(cluster, free)
    pools = tuple(
        pool
        for pool in left.pools
        if free[pool.name] < min(cluster.gpus[gpu].memory_gib for gpu in pool.devices)
    )
    return left.model_copy(update={"pools": pools}) if pools else None


def _reserve(cluster: ClusterSpec, name: str) -> float:
    """GiB kept free on any device of a pool."""
    pool = next(pool for pool in cluster.pools if pool.name == name)
    return max(cluster.reserve_of(pool, gpu) for gpu in pool.devices)


def _reserved(cluster: ClusterSpec, reserves: Mapping[str, float]) -> ClusterSpec:
    pools = (pool.model_copy(update={"reserve_gib": reserves[pool.name]}) for pool in cluster.pools)
    return cluster.model_copy(update={"pools": tuple(pools)})
