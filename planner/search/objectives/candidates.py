"""The search for time on one sub-cluster after the other, and what a second costs on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from planner.catalog import IntraNodeSpec
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cost.estimate import Estimator
from planner.cost.running_cost import Devices, price_per_hour, watts
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import node_faults
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.met import Met
from planner.search.values import Goal, Limits, Objective, Reporter, Scored, Silent

MOST = 100
"""Sub-clusters of one candidates."""

EVERYWHERE = ""
"""Stands for all pools together in limits on numbers of devices."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is taken of one pool: the same devices on each of some nodes."""

    nodes: int
    counts: tuple[int, ...]
    """Devices on each node, by kind in the order in which the pool names them."""

    @property
    def devices(self) -> int:
        """All devices of the part."""
        return self.nodes * sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubCluster:
    """Some devices of a cluster, as a cluster of their own."""

    cluster: ClusterSpec
    devices: Devices
    """Number of devices by (pool, gpu)."""

    @property
    def total(self) -> int:
        """All its devices."""
        return sum(self.devices.values())


NOTHING = Part(0, ())


def sub_cluster_candidates(
    cluster: ClusterSpec, model: ModelSpec, use_at_most: Iterable[tuple[str, int]] = (), most: int = MOST
) -> tuple[SubCluster, ...]:
    """The sub-clusters that are considered, smallest first; none when no device may be used.

    ``use_at_most`` limits the devices of a pool, or of all pools (``EVERYWHERE``). Devices without the
    number format of the training are left out.
    """
    room = _room(cluster, use_at_most)
    ways: list[tuple[Part, ...]] = []
    for level in range(len(LEVELS)):
        parts = [(NOTHING, *_parts(pool, cluster, model, room[pool.name], level)) for pool in cluster.pools]
        if prod(len(entries) for entries in parts) > 50 * most:
            continue
        ways = [way for way in product(*parts) if 0 < _total(way) <= room[EVERYWHERE]]
        if len(ways) <= most:
            break
    else:
        ways = list(_growing(cluster, model, room))[:most]
    subs = (sub_cluster(cluster, model, way) for way in dict.fromkeys(ways))
    order = {pool.name: index for index, pool in enumerate(cluster.pools)}

    def place(sub: SubCluster) -> tuple[int, list[tuple[int, str, int]]]:
        return sub.total, sorted((order[pool], gpu, count) for (pool, gpu), count in sub.devices.items())

    return tuple(sorted(subs, key=place))


def _room(cluster: ClusterSpec, use_at_most: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    """Most devices of each pool and of all together."""
    room = {pool.name: len(pool.hosts) * len(pool.devices) for pool in cluster.pools}
    room[EVERYWHERE] = sum(room.values())
    for pool, limit in use_at_most:
        room[pool] = min(room[pool], limit)
    return {pool: min(devices, room[EVERYWHERE]) for pool, devices in room.items()}


def _total(parts: Sequence[Part]) -> int:
    return sum(part.devices for part in parts)


def _all(number: int) -> Sequence[int]:
    return range(1, number + 1)


def _round(number: int) -> Sequence[int]:
    """The number, its half, its quarter ... down to 1."""
    return sorted({number >> shift for shift in range(number.bit_length())})


def _whole(number: int) -> Sequence[int]:
    return (number,)


LEVELS = ((_all, _all), (_round, _all), (_round, _round), (_whole, _round), (_whole, _whole))
"""(devices inside one node, nodes) that are offered, finest first."""


def _parts(pool: PoolSpec, cluster: ClusterSpec, model: ModelSpec, room: int, level: int) -> tuple[Part, ...]:
    """Parts of a pool of at most ``room`` devices, the largest always among them."""
    device_types = _device_types(pool, cluster, model)
    every = _offered(device_types, len(pool.hosts), room, 0)
    if not every:
        return ()
    largest = max(every, key=lambda part: part.devices)
    return tuple(dict.fromkeys((*_offered(device_types, len(pool.hosts), room, level), largest)))


def _device_types(pool: PoolSpec, cluster: ClusterSpec, model: ModelSpec) -> tuple[int, ...]:
    """Devices of each device type on a node; none of a type without the number format."""
    precision = model.training.precision
    return tuple(
        pool.devices.count(gpu) if precision in cluster.gpus[gpu].tflops else 0
        for gpu in dict.fromkeys(pool.devices)
    )


def _offered(device_types: tuple[int, ...], hosts: int, room: int, level: int) -> tuple[Part, ...]:
    inside, across = LEVELS[level]
    if prod(count + 1 for count in device_types) > MOST:
        inside = _round if inside is _all else inside
    alone = product(*((0, *inside(count)) if count else (0,) for count in device_types))
    whole = product(*((0, count) if count else (0,) for count in device_types))
    parts = [Part(nodes, counts) for counts in whole for nodes in across(hosts)]
    if inside is not _whole:
        parts += [Part(1, counts) for counts in alone]
    return tuple(part for part in parts if 0 < part.devices <= room)


def _growing(cluster: ClusterSpec, model: ModelSpec, room: Mapping[str, int]) -> Iterator[tuple[Part, ...]]:
    """Whole pools for clusters of many: all together, each alone, and growing sets from the fastest devices on."""
    precision = model.training.precision
    largest = {}
    for index, pool in enumerate(cluster.pools):
        if parts := _parts(pool, cluster, model, room[pool.name], len(LEVELS) - 1):
            peak = max(cluster.gpus[gpu].tflops.get(precision, 0.0) for gpu in pool.devices)
            largest[index] = (-peak, max(parts, key=lambda part: part.devices))
    order = sorted(largest, key=lambda index: (largest[index][0], index))
    sets = [order, *([index] for index in order), *(order[:size] for size in range(2, len(order)))]
    for chosen in sets:
        parts_of = tuple(
            largest[index][1] if index in chosen else NOTHING for index in range(len(cluster.pools))
        )
        if _total(parts_of) <= room[EVERYWHERE]:
            yield parts_of


def sub_cluster(cluster: ClusterSpec, model: ModelSpec, parts: Sequence[Part]) -> SubCluster:
    """What is taken of each pool of a cluster, as a cluster of its own."""
    pools, devices = [], {}
    for pool, part in zip(cluster.pools, parts, strict=True):
        if not part.devices:
            continue
        wanted = dict(zip(dict.fromkeys(pool.devices), part.counts, strict=True))
        kept = tuple(gpu for gpu, count in wanted.items() for _ in range(count))
        update = {"devices": kept, "hosts": pool.hosts[: part.nodes], "intra_node": _bus(pool, kept, model)}
        pools.append(pool.model_copy(update=update))
        devices.update({(pool.name, gpu): part.nodes * count for gpu, count in wanted.items() if count})
    whole = tuple(pools) == cluster.pools
    return SubCluster(
        cluster=cluster if whole else cluster.model_copy(update={"pools": tuple(pools)}), devices=devices
    )


def _bus(pool: PoolSpec, kept: tuple[str, ...], model: ModelSpec) -> IntraNodeSpec:
    """The network inside a node of which only some devices are used.

    A shared bus is priced as if every device of the node talked, so the part has its share of the bus. Where
    that would make other traffic slower than on the whole node the bus stays: the part may only be too fast.
    """
    link = pool.intra_node
    slower = len(set(kept)) > 1 or (model.embeds_twice and not pool.nics)
    if not link.shared or slower:
        return link
    share = len(kept) / pool.devices.count(kept[0])
    return link.model_copy(update={"bandwidth_gBps": link.bandwidth_gBps * share})


SLICE = 4
"""Times its even part of the remaining time that one sub-cluster may take at first."""

LEAST_SLICE_SECONDS = 0.5
"""A shorter part of a search is not worth its beginning."""


class GoalRates:
    """What a second on given devices is worth under an objective."""

    def __init__(self, estimator: Estimator, limits: Limits, goal: Goal) -> None:
        self.cluster = estimator.cluster
        self.goal = goal
        self._rates = DeviceRates(estimator, limits)
        training = estimator.model.training
        self.tokens = training.tokens

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
        return self._rates.least_seconds(devices)


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
    met: Met = field(default_factory=Met)
    """What its searches have priced."""


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
        self.rates = GoalRates(estimator, limits, goal)
        self.sub_clusters = sorted((self._candidate(sub) for sub in self.considered()), key=_promise)
        self.candidates = 0
        self.solved = 0
        self.interrupted = False

    def considered(self) -> tuple[SubCluster, ...]:
        """The candidates; the cluster alone where the fastest of all its plans is wanted."""
        goal = self.goal
        subs = sub_cluster_candidates(self.estimator.cluster, self.estimator.model, goal.use_at_most)
        limited = goal.max_cost_per_million_tokens is not None or goal.budget is not None
        # Fewer devices fail less often.
        limited = limited or (goal.deadline_seconds is not None and goal.interruptions.per_gpu_month > 0)
        one = goal.objective == "time" and not limited
        return subs[-1:] if one and not goal.use_at_most else subs

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
                self.on(candidate.sub),
                limits,
                Silent(),
                cutoff_seconds=cutoff_seconds,
                better=better,
                met=candidate.met,
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
