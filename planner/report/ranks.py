"""Which ranks run on which devices, runs of equal hosts shortened; and which devices stay idle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.plan.placement import Slot, place, split_nodes
from planner.plan.values import Plan
from planner.report.layout import list_section, section, table, words
from planner.report.numbers import count, names, runs, span
from planner.runtimes.interface import runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """Ranks of one stage on equal devices of equal hosts."""

    stage: int
    """Their stage."""
    first_rank: int
    """First of these ranks."""
    ranks: int
    """How many."""
    stride: int
    """From the first rank of a replica to that of the next one; the ranks of a replica are consecutive."""
    pool: str
    """Their pool."""
    gpu: str
    """Their type of device."""
    hosts: tuple[str, ...]
    """Their hosts in rank order."""
    devices: tuple[int, ...]
    """Indices of the used devices on each host."""
    tp: int
    """Devices of one replica."""
    replicas_per_host: int
    """Replicas on each host; 0 where one fills several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Devices of one type on equal hosts that the plan leaves idle."""

    pool: str
    """Pool of idle devices."""
    gpu: str
    """Their type."""
    hosts: tuple[str, ...]
    """Their hosts."""
    devices: tuple[int, ...]
    """Idle device indices on each host."""

    @property
    def total(self) -> int:
        """Devices of all hosts together."""
        return len(self.hosts) * len(self.devices)


def rank_runs(plan: Plan, cluster: ClusterSpec) -> tuple[RankRun, ...]:
    """All ranks, stage by stage."""
    pools, placement = {pool.name: pool for pool in cluster.pools}, place(plan, cluster)
    rank_ranges: list[RankRun] = []
    # Where ranks of a stage leave a node and come back to it, the runtime may number them in another order.
    numbers = _by_replica(plan, cluster) if plan.pp > 1 and split_nodes(placement) else {}
    first = 0
    for stage, slots in enumerate(placement):
        replica = 0
        for slot in slots:
            groups = plan.stages[stage].replicas
            tp = next(group.tp for group in groups if (group.pool, group.gpu) == (slot.pool, slot.gpu))
            own = numbers.get((stage, replica), first)
            stride = numbers.get((stage, replica + 1), own + tp) - own if slot.replicas > 1 else tp
            rank_ranges.append(_run(stage, own, stride, slot, pools[slot.pool], tp))
            first += rank_ranges[-1].ranks
            replica += slot.replicas
    return tuple(rank_ranges)


def _by_replica(plan: Plan, cluster: ClusterSpec) -> dict[tuple[int, int], int]:
    """The first rank of each replica of each stage, by both, as the runtime numbers them."""
    everyone = runtime(plan.target).ranks(plan, cluster)
    return {(rank.stage, rank.replica): rank.rank for rank in everyone if rank.tp_rank == 0}


def _run(stage: int, first: int, stride: int, slot: Slot, pool: PoolSpec, tp: int) -> RankRun:
    start, size = slot.first_device, slot.replicas_per_node * slot.tp
    return RankRun(
        stage=stage,
        first_rank=first,
        ranks=slot.replicas * slot.tp,
        stride=stride,
        pool=slot.pool,
        gpu=slot.gpu,
        hosts=pool.hosts[slot.first_node : slot.first_node + slot.nodes],
        devices=_devices(pool, slot.gpu)[start : start + size],
        tp=tp,
        replicas_per_host=size // tp,
    )


def _devices(pool: PoolSpec, gpu: str) -> tuple[int, ...]:
    return tuple(index for index, other in enumerate(pool.devices) if other == gpu)


def idle_devices(plan: Plan, cluster: ClusterSpec) -> tuple[Idle, ...]:
    """Devices that no rank runs on, hosts with the same idle devices together."""
    used: dict[str, set[int]] = {}
    for run in rank_runs(plan, cluster):
        for host in run.hosts:
            used.setdefault(host, set()).update(run.devices)
    return tuple(idle for pool in cluster.pools for idle in _idle_in(pool, used))


def _idle_in(pool: PoolSpec, used: dict[str, set[int]]) -> Iterator[Idle]:
    for gpu in dict.fromkeys(pool.devices):
        hosts: dict[tuple[int, ...], list[str]] = {}
        for host in pool.hosts:
            left = tuple(device for device in _devices(pool, gpu) if device not in used.get(host, ()))
            hosts.setdefault(left, []).append(host)
        for devices, where in hosts.items():
            if devices:
                yield Idle(pool=pool.name, gpu=gpu, hosts=tuple(where), devices=devices)


def ranks_section(plan: Plan, cluster: ClusterSpec) -> Group:
    """A row per run of ranks."""
    columns = (
        words("ranks", least=7),
        words("stage", least=5),
        words("hosts", least=20),
        words("devices", least=7),
        words("replicas on a host", least=10),
    )
    return section("Ranks", table(columns, rank_rows(plan, cluster)))


def rank_rows(plan: Plan, cluster: ClusterSpec) -> list[tuple[str, ...]]:
    """Ranks, stage, hosts, devices and replicas on a host of each run."""
    return [
        (
            _numbers(run),
            str(run.stage),
            names(run.hosts),
            runs(run.devices),
            f"{run.replicas_per_host} x tp {run.tp} on {run.gpu}"
            if run.replicas_per_host
            else f"a part of tp {run.tp} on {run.gpu}",
        )
        for run in rank_runs(plan, cluster)
    ]


def _numbers(run: RankRun) -> str:
    """``0-15``, or ``0-1 .. 24-25 by 8`` where ranks of other stages are between the replicas."""
    last = run.first_rank + run.stride * (run.ranks // run.tp - 1)
    if run.stride == run.tp or not run.replicas_per_host:
        return span(run.first_rank, run.first_rank + run.ranks)
    ends = (span(rank, rank + run.tp) for rank in (run.first_rank, last))
    return f"{' .. '.join(ends)} by {run.stride}"


def idle_lines(plan: Plan, cluster: ClusterSpec) -> list[str]:
    """Idle devices by name: ``4 T4 (t4): t4-01 .. t4-04 (4), devices 0``."""
    return [
        f"{idle.total} {idle.gpu} ({idle.pool}): {names(idle.hosts)}, "
        f"{'device' if len(idle.devices) == 1 else 'devices'} {runs(idle.devices)}"
        for idle in idle_devices(plan, cluster)
    ]


def idle_section(plan: Plan, cluster: ClusterSpec) -> Group:
    """Idle devices as a list; nothing when all work."""
    total = sum(idle.total for idle in idle_devices(plan, cluster))
    return list_section(f"Idle: {count(total, 'device')}", idle_lines(plan, cluster))
