"""What each of several jobs gets of a cluster: an integer program proposes partitions, searches say what they do.

The program knows a bound for every job and every sub-cluster. What a search proves of one bounds all that are inside
it. Both go on in turns until the best partition into searched sub-clusters is as good as the bound on all partitions. A
sub-cluster is whole nodes of some pools; on a cluster with fewer nodes than jobs it may be some devices of one node as
well. Sub-clusters stay as they are until all jobs have ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal, get_args

from planner.calibration.values import Calibration
from planner.capabilities import OFFLOAD_PARTS, OffloadPart
from planner.cluster.equal_pools import joined, likeness
from planner.cluster.spec import ClusterSpec, HostSpec, PoolSpec
from planner.cost.estimate import Estimator
from planner.field_metadata import json_fields
from planner.files.fields import Frozen
from planner.model.spec import ModelSpec
from planner.plan.equal_pools import on_own_pools
from planner.plan.file import Status
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline
from planner.search.milp.machines import MachineRates, Machines
from planner.search.milp.sharing import Partition, RatedJob, Sharing, Unit
from planner.search.milp.solver import Unsolved
from planner.search.objectives.candidates import Part, sub_cluster
from planner.search.objectives.choose import PART_SECONDS, PART_SLICE, choose, search_further
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult, Silent, proven
from planner.share.jobs import LoadedJob

ShareObjective = Literal["makespan", "throughput", "fairness"]
"""makespan: the last job ends soonest. throughput: the greatest sum of tokens a second, each times its job's weight.
fairness: the least favoured job is best off, by its rate over what it would do with an equal share of time on the
whole cluster (max-min fairness after Gavel, arXiv:2008.09213), over its weight."""
OBJECTIVES: tuple[str, ...] = get_args(ShareObjective)

BEGIN = 0.5
"""Part of the time for each job on the whole cluster."""
ROUGH = 0.5
"""Gap of a search that says whether a job fits at all."""


@json_fields(
    "scored.estimate.step_seconds",
    "scored.estimate.tokens_per_second",
    without=("parts", "scored", "cluster", "model", "result"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What one job gets."""

    job: str
    """The job."""
    hosts: tuple[str, ...]
    """Its hosts."""
    devices: tuple[int, ...]
    """Indices of its devices if it gets part of one node; empty for whole nodes, and where ``parts`` has several."""
    parts: Mapping[str, tuple[int, ...]]
    """Numbers of its devices by host, where it has some of them alone."""
    gpus: int
    """Devices of its sub-cluster; a plan may leave some idle."""
    seconds: float | None
    """Time until it has finished its tokens; null if the file does not say how many."""
    of_equal_share: float | None
    """Its tokens per second over those of an equal share of time on the whole cluster; null where unknown."""
    gap: float
    """No plan on its sub-cluster is faster by more than this fraction."""
    scored: Scored
    cluster: ClusterSpec
    """Its devices, as a cluster of its own."""
    model: ModelSpec
    result: SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Why a job does not fit beside others."""

    job: str
    """The job."""
    gpus: int | None
    """Fewest devices that it needs; null if even the whole cluster is not enough."""
    reasons: tuple[str, ...]
    """What rules it out even on the whole cluster; empty if it fits there."""
    hints: tuple[str, ...]
    """Changes that would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The answer: each job's sub-cluster, and the proof."""

    status: Status
    """optimal (within the requested gap), feasible, infeasible (proven), unknown (stopped before any was found)."""
    objective: ShareObjective
    """What is minimised or maximised."""
    jobs: int
    """Jobs of the file."""
    value: float | None
    """makespan in seconds, weighted tokens a second, or the least ratio to an equal share; null without a partition."""
    bound: float | None
    """No partition of the space is better; null where nothing is proven, or none is possible."""
    gap: float
    """How much better some partition of the space could be, as a fraction."""
    portions: tuple[Portion, ...]
    """What each job gets, in the order of the file."""
    idle: tuple[str, ...]
    """Hosts, or devices as host:number, that no job gets."""
    divided: bool
    """Whether nodes are divided because there are fewer of them than jobs."""
    conflict: tuple[Need, ...]
    """Jobs of which no partition holds all, and any but one of them; empty where all fit."""
    rough: tuple[str, ...]
    """Jobs whose plan on the whole cluster, the reference of fairness, was not proven within the gap in time."""
    searches: int
    """Parts that were searched."""
    seconds: float
    """How long it took."""
    interrupted: bool
    """Whether Ctrl-C stopped it."""


class ShareSearch:
    """Asks the program and the searches in turns, and remembers what both said."""

    def __init__(
        self,
        cluster: ClusterSpec,
        jobs: Sequence[LoadedJob],
        calibration: Calibration,
        limits: Limits,
        objective: ShareObjective,
        reporter: Reporter | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        self.whole, self.jobs, self.calibration = cluster, jobs, calibration
        self.own = cluster = _with_share_of_storage(cluster, len(jobs))
        self.limits, self.objective = limits, objective
        self.reporter = reporter or Silent()
        self.deadline = deadline or Deadline.after(limits.time_limit_seconds)
        self.divided = sum(len(pool.hosts) for pool in cluster.pools) < len(jobs)
        self.cluster = _divided(cluster) if self.divided else joined(cluster)
        self.units = tuple(_units(self.cluster, self.divided))
        self.results: list[dict[Machines, SearchResult]] = [{} for _ in jobs]
        self.on_hosts: set[int] = set()
        """Jobs that may keep something in host memory: those that do not fit together without."""
        self._alone: dict[int, float] = {}
        """Tokens a second of jobs alone on the whole cluster with all of its storage, where that makes a difference."""
        self.searches = 0
        self.interrupted = False
        self.known: tuple[float, Partition | None] = (math.inf, None)
        """The last bound, and the best partition."""
        self.program = Sharing(
            self.units,
            [self._contender(job) for job in jobs],
            "sum" if objective == "throughput" else "least",
        )

    def _contender(self, job: LoadedJob) -> RatedJob:
        estimator = Estimator(self.cluster, job.model, self.calibration)
        best = DeviceRates(estimator, self._limits(job)).tokens_per_second()
        pools = {pool.name: pool for pool in self.cluster.pools}
        rates = [
            sum(
                best.get((unit.pool, gpu), 0.0)
                for gpu in ([unit.gpu] if unit.gpu else pools[unit.pool].devices)
            )
            for unit in self.units
        ]
        kinds: dict[tuple[str, str | None], list[int]] = {}
        for index, unit in enumerate(self.units):
            kinds.setdefault((likeness(pools[unit.pool]), unit.gpu), []).append(index)
        worth = job.job.weight
        if self.objective == "makespan":
            assert job.tokens is not None, "checked when the file is read"
            worth = 1.0 / job.tokens
        return RatedJob(
            together=MachineRates(
                rates=rates,
                # Devices without the number format are of no use to the job.
                most=[unit.most if rate else 0 for unit, rate in zip(self.units, rates, strict=True)],
                kinds=tuple(kinds.values()),
            ),
            worth=worth,
            least_rate=job.least_rate,
            least_gpus=job.job.least_gpus,
            most_gpus=job.job.most_gpus,
        )

    def _limits(self, job: LoadedJob, *, on_hosts: bool = False) -> Limits:
        """The same space on every sub-cluster, so that a bound on one holds for all that are inside it."""
        offload: tuple[OffloadPart, ...] = OFFLOAD_PARTS if on_hosts else ("none",)
        return replace(self.limits, target=job.job.target or self.limits.target, offload=offload)

    def run(self) -> Share:
        """The best partition found, and what is proven of it."""
        start = monotonic()
        conflict: tuple[Need, ...] = ()
        try:
            self._begin(range(len(self.jobs)))
            bound, best, conflict = self._ask()
            self.known = bound, best
            if best is not None:
                if self.objective != "fairness":
                    self._look_at_whole()
                self.known = bound, self.program.best_known(floor=self.program.value(best))[1] or best
        except KeyboardInterrupt:  # a second one, inside the solver of the program
            self.interrupted = True
        except Unsolved:
            conflict = ()
        bound, best = self.known
        value = -math.inf if best is None else self.program.value(best)
        gap = 1.0 if best is None or bound == math.inf else max(0.0, 1 - value / bound)
        portions = () if best is None else tuple(self._portions(best))
        status: Status = proven(gap, self.limits.gap) if best is not None else "unknown"
        return Share(
            status="infeasible" if conflict else status,
            objective=self.objective,
            jobs=len(self.jobs),
            value=None if best is None else self._shown(value),
            bound=None if bound in (math.inf, -math.inf) else self._shown(bound),
            gap=gap,
            portions=portions,
            idle=tuple(self._idle(portions)),
            divided=self.divided,
            conflict=conflict,
            rough=tuple(self._rough()),
            searches=self.searches,
            seconds=monotonic() - start,
            interrupted=self.interrupted,
        )

    def _shown(self, value: float) -> float:
        """In the unit of the answer."""
        return 1.0 / value if self.objective == "makespan" else value

    def _begin(self, indices: Sequence[int]) -> None:
        """Search jobs on the whole cluster: whether they fit at all, a bound, and what fairness is measured by."""
        gap = self.limits.gap / 2 if self.objective == "fairness" else ROUGH
        deadline = self.deadline.part(BEGIN)
        for number, index in enumerate(indices):
            contender = self.program.jobs[index]
            every = contender.together.everything
            if any(every):
                self._search(index, every, deadline.part(1.0 / (len(indices) - number)), gap)
            alone = self._rate_alone(index)
            if self.objective == "fairness" and alone is not None:
                contender.worth = len(self.jobs) / (self.jobs[index].job.weight * alone)

    def _rate_alone(self, index: int) -> float | None:
        """Tokens a second of a job that has the whole cluster, its storage too; None where they are not known."""
        contender = self.program.jobs[index]
        every = contender.together.everything
        found = self.results[index].get(every)
        if found is None or found.best is None or self.own is self.whole:
            return contender.achieved.get(every)
        if index not in self._alone:
            job = self.jobs[index]
            limits = replace(self._limits(job, on_hosts=index in self.on_hosts), gap=self.limits.gap / 2)
            more = choose(
                self.whole,
                job.model,
                self.calibration,
                limits,
                Goal(),
                explain=False,
                deadline=self.deadline.slice(PART_SLICE, PART_SECONDS),
            )
            plans = [each.best.estimate.tokens_per_second for each in (more, found) if each.best is not None]
            self._alone[index] = max(plans)
        return self._alone[index]

    def _rough(self) -> Iterator[str]:
        """Jobs that may do more on the whole cluster than fairness takes them to do, by more than the gap."""
        if self.objective != "fairness":
            return
        for job, contender in zip(self.jobs, self.program.jobs, strict=True):
            alone = len(self.jobs) / (job.job.weight * contender.worth)
            if alone < contender.together.most_rate(contender.together.everything) * (1 - self.limits.gap):
                yield job.job.name

    def _look_at_whole(self) -> None:
        """What each job does on the whole cluster, with the time that is left: the answer is told next to it."""
        for index, (job, results) in enumerate(zip(self.program.jobs, self.results, strict=True)):
            every = job.together.everything
            if every in results and results[every].gap > self.limits.gap:
                self._look(index, every)

    def _ask(self) -> tuple[float, Partition | None, tuple[Need, ...]]:
        """(a bound, the best partition, jobs that fit nowhere together); searched until both agree or time is up."""
        while True:
            if self.objective == "fairness" and any(
                any(job.together.everything)
                and ((found := results.get(job.together.everything)) is None or found.status == "unknown")
                for job, results in zip(self.program.jobs, self.results, strict=True)
            ):
                return math.inf, None, ()
            bound, asked = self.program.best()
            value, best = self.program.best_known()
            self.known = bound, best
            self._tell(best, value / bound if best is not None else 0.0)
            if asked is None:
                jobs = self._conflict()
                if self.on_hosts.issuperset(jobs):
                    return bound, None, tuple(map(self._need, jobs))
                if self._stopped:
                    return math.inf, None, ()
                self._put_on_hosts([index for index in jobs if index not in self.on_hosts])
                continue
            if best is not None and value >= bound * (1 - self.limits.gap):
                return bound, best, ()
            if self._stopped:
                return bound, best, ()
            news = [self._look(index, machines) for index, machines in enumerate(asked)]
            if not any(news):
                return bound, self.program.best_known()[1], ()

    def _put_on_hosts(self, indices: Sequence[int]) -> None:
        """Let jobs keep something in host memory: what was proven of them without does not hold any more."""
        self.on_hosts.update(indices)
        self.known = math.inf, None
        for index in indices:
            self._alone.pop(index, None)
            self.results[index].clear()
            self.program.jobs[index].achieved.clear()
            self.program.jobs[index].together.known.clear()
        self._begin(indices)

    @property
    def _stopped(self) -> bool:
        return self.interrupted or self.deadline.struck

    def _tell(self, best: Partition | None, share: float) -> None:
        seconds = None
        if best is not None:
            rates = [job.achieved[machines] for job, machines in zip(self.program.jobs, best, strict=True)]
            if self.objective == "makespan":
                seconds = 1.0 / self.program.value(best)
            else:
                seconds = max(_tokens(job) / rate for job, rate in zip(self.jobs, rates, strict=True))
        self.reporter.progress(
            done=self.searches,
            total=self.searches + 1,
            best_seconds=seconds,
            bound_seconds=(seconds or 0.0) * share,
        )

    def _look(self, index: int, machines: Machines) -> bool:
        if self._stopped:
            return False
        return self._search(index, machines, self.deadline.slice(PART_SLICE, PART_SECONDS))

    def _search(self, index: int, machines: Machines, deadline: Deadline, gap: float | None = None) -> bool:
        """What a job does on these machines, better known than before; False where nothing more comes of it."""
        if self.interrupted:
            return False
        job, contender = self.jobs[index], self.program.jobs[index]
        limits = self._limits(job, on_hosts=index in self.on_hosts)
        further = search_further(
            self.results[index].get(machines),
            self.part(job, machines),
            job.model,
            self.calibration,
            replace(limits, gap=self.limits.gap / 2 if gap is None else gap),
            deadline,
        )
        if further is None:
            return False
        result, news = further
        self.searches += 1
        self.interrupted = self.interrupted or result.interrupted
        if result.bound_seconds > 0:
            contender.together.learn(machines, _tokens(job) / result.bound_seconds)
        self.results[index][machines] = result
        if result.best is not None:
            contender.achieved[machines] = result.best.estimate.tokens_per_second
        return news

    def part(self, job: LoadedJob, machines: Machines) -> ClusterSpec:
        """Some machines as a cluster of their own; which of those that are alike makes no difference."""
        parts = []
        for pool in self.cluster.pools:
            own = [
                (unit, number)
                for unit, number in zip(self.units, machines, strict=True)
                if unit.pool == pool.name
            ]
            kinds = list(dict.fromkeys(pool.devices))
            if self.divided:
                counts = {unit.gpu: number for unit, number in own}
                parts.append(Part(1, tuple(counts.get(kind, 0) for kind in kinds)))
            else:
                parts.append(Part(own[0][1], tuple(pool.devices.count(kind) for kind in kinds)))
        part = sub_cluster(self.cluster, job.model, parts).cluster
        return _with_share_of_node(part, self.cluster) if self.divided else part

    def _portions(self, partition: Partition) -> Iterator[Portion]:
        """What each job gets, with its own hosts and devices."""
        taken: dict[tuple[str, str | None], int] = {}
        for index, (job, machines) in enumerate(zip(self.jobs, partition, strict=True)):
            result = self.results[index][machines]
            assert result.best is not None
            seen = self.part(job, machines)
            pools: list[PoolSpec] = []
            parts: dict[str, tuple[int, ...]] = {}
            for pool in seen.pools:
                whole = next(each for each in self.cluster.pools if each.name == pool.name)
                if not self.divided:
                    first = taken.get((pool.name, None), 0)
                    taken[pool.name, None] = first + len(pool.hosts)
                    hosts = whole.hosts[first : first + len(pool.hosts)]
                    pool = pool.model_copy(update={"hosts": hosts})
                elif len(pool.devices) < len(whole.devices):
                    parts[pool.hosts[0]] = tuple(_numbers(pool, whole, taken))
                else:
                    pool = whole
                pools.append(pool)
            seen = seen.model_copy(update={"pools": tuple(pools)})
            cluster = _named(self.own, seen, job.job.name, divided=self.divided)
            plan = result.best.plan if self.divided else on_own_pools(result.best.plan, seen, cluster)
            estimate = Estimator(cluster, job.model, self.calibration).estimate(plan)
            scored = Scored(plan=plan, estimate=estimate)
            contender = self.program.jobs[index]
            every = contender.together.everything
            known = every in self.results[index] and self.results[index][every].gap <= self.limits.gap
            alone = self._rate_alone(index) if known else None
            yield Portion(
                job=job.job.name,
                hosts=tuple(host for pool in cluster.pools for host in pool.hosts),
                devices=next(iter(parts.values())) if len(parts) == len(cluster.pools) == 1 else (),
                parts=parts,
                gpus=self.program.gpus(machines),
                seconds=None if job.tokens is None else job.tokens / estimate.tokens_per_second,
                of_equal_share=None if alone is None else estimate.tokens_per_second * len(self.jobs) / alone,
                gap=result.gap,
                scored=scored,
                cluster=cluster,
                model=job.model,
                result=replace(result, best=scored),
            )

    def _idle(self, portions: Sequence[Portion]) -> Iterator[str]:
        used = {
            (host, number)
            for portion in portions
            for pool in portion.cluster.pools
            for host in pool.hosts
            for number in portion.parts.get(host, range(len(pool.devices)))
        }
        for pool in self.own.pools if portions else ():
            for host in pool.hosts:
                free = [number for number in range(len(pool.devices)) if (host, number) not in used]
                if len(free) == len(pool.devices):
                    yield host
                else:
                    yield from (f"{host}:{number}" for number in free)

    def _conflict(self) -> list[int]:
        """As few jobs as do not fit together: without any one of them the others do, by what is known."""
        kept = list(range(len(self.jobs)))
        for index in tuple(kept):
            rest = [other for other in kept if other != index]
            if (
                rest
                and Sharing(self.units, [self.program.jobs[each] for each in rest], "least").best()[1] is None
            ):
                kept = rest
        return kept

    def _need(self, index: int) -> Need:
        job, contender = self.jobs[index], self.program.jobs[index]
        free = replace(contender, least_gpus=1, most_gpus=None)
        fewest = self.program.fewest(free)
        while fewest is not None and fewest not in contender.achieved and self._look(index, fewest):
            fewest = self.program.fewest(free)
        reasons: tuple[str, ...] = ()
        hints: tuple[str, ...] = ()
        if fewest is None:
            reasons, hints = self._reasons(index)
        return Need(
            job=job.job.name,
            gpus=None if fewest is None else max(self.program.gpus(fewest), contender.least_gpus),
            reasons=reasons,
            hints=hints,
        )

    def _reasons(self, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Why not even the whole cluster will do."""
        job = self.jobs[index]
        together = self.program.jobs[index].together
        most = together.most_rate(together.everything)
        if most:
            what = f"its deadline asks for {job.least_rate:,.0f} tokens/s, the whole cluster does at most {most:,.0f}"
            return (what,), ("give it more hours",)
        limits = self._limits(job, on_hosts=index in self.on_hosts)
        result = choose(self.own, job.model, self.calibration, limits, Goal(), deadline=self.deadline)
        said = result.diagnosis
        return (said.causes, said.hints) if said else ((), ())


def _tokens(job: LoadedJob) -> float:
    """Of one step."""
    return job.model.training.tokens


def _divided(cluster: ClusterSpec) -> ClusterSpec:
    """Each node as a pool of its own."""
    names = {host for pool in cluster.pools for host in pool.hosts}
    pools = []
    for pool in cluster.pools:
        for host in pool.hosts:
            name = pool.name if len(pool.hosts) == 1 and pool.name not in names else host
            pools.append(pool.model_copy(update={"name": name, "hosts": (host,)}))
    return cluster.model_copy(update={"pools": tuple(pools)})


def _units(cluster: ClusterSpec, divided: bool) -> Iterator[Unit]:
    for pool in cluster.pools:
        if not divided:
            yield Unit(pool=pool.name, gpu=None, gpus=len(pool.devices), most=len(pool.hosts))
            continue
        for gpu in dict.fromkeys(pool.devices):
            yield Unit(pool=pool.name, gpu=gpu, gpus=1, most=pool.devices.count(gpu))


def _with_share_of_storage(cluster: ClusterSpec, jobs: int) -> ClusterSpec:
    """All jobs read from the storage of the cluster at once: each has an equal share of it for sure."""
    if cluster.storage_gBps is None or jobs == 1:
        return cluster
    return cluster.model_copy(update={"storage_gBps": cluster.storage_gBps / jobs})


def _with_share_of_node(part: ClusterSpec, whole: ClusterSpec) -> ClusterSpec:
    """Jobs on one node share its bus, its host memory and what feeds it: each has its devices' share of them."""
    buses = {pool.name: (pool.intra_node, len(pool.devices)) for pool in whole.pools}
    pools = []
    for pool in part.pools:
        link, devices = buses[pool.name]
        share = len(pool.devices) / devices
        own = link.sharing(len(pool.devices)) / link.sharing(devices)
        if own < 1:
            link = link.model_copy(update={"bandwidth_gBps": link.bandwidth_gBps * own})
        host = None if pool.host is None else _of_host(pool.host, share)
        pools.append(pool.model_copy(update={"intra_node": link, "host": host}))
    return part.model_copy(update={"pools": tuple(pools)})


def _of_host(host: HostSpec, share: float) -> HostSpec:
    """A share of what the devices of a node have in common."""
    update: dict[str, object] = _times(
        host, share, "all_links_gBps", "memory_gib", "nvme_gBps", "adam_billion_per_s"
    )
    if host.feed is not None:
        feed = _times(host.feed, share, "storage_gBps", "core_tokens_per_s", "core_sequences_per_s")
        caches = (each.model_copy(update=_times(each, share, "gib", "gBps")) for each in host.feed.caches)
        update["feed"] = host.feed.model_copy(update={**feed, "caches": tuple(caches)})
    return host.model_copy(update=update)


def _times(spec: Frozen, share: float, *fields: str) -> dict[str, object]:
    """A share of these numbers, where they are given."""
    given = ((name, getattr(spec, name)) for name in fields)
    return {name: value * share for name, value in given if value is not None}


def _numbers(part: PoolSpec, whole: PoolSpec, taken: dict[tuple[str, str | None], int]) -> Iterator[int]:
    """Numbers of the devices of a part of a node, in its order; each is given out once."""
    for gpu in dict.fromkeys(part.devices):
        first = taken.get((whole.name, gpu), 0)
        last = taken[whole.name, gpu] = first + part.devices.count(gpu)
        yield from [number for number, kind in enumerate(whole.devices) if kind == gpu][first:last]


def _named(own: ClusterSpec, seen: ClusterSpec, name: str, *, divided: bool) -> ClusterSpec:
    """The sub-cluster of a job under the pools of the file, and called after it."""
    pools: Sequence[PoolSpec] = seen.pools
    if not divided:
        hosts = {host for pool in seen.pools for host in pool.hosts}
        pools = [
            pool.model_copy(update={"hosts": kept})
            for pool in own.pools
            if (kept := tuple(host for host in pool.hosts if host in hosts))
        ]
    used = {gpu for pool in pools for gpu in pool.devices}
    return own.model_copy(
        update={
            "name": f"{own.name}-{name}"[:100],
            "pools": tuple(pools),
            "gpus": {gpu: spec for gpu, spec in own.gpus.items() if gpu in used},
        }
    )
