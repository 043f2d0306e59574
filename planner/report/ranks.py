"""Which ranks run on which devices, runs of equal hosts shortened; and which devices stay idle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.plan.placement import Slot, place
from planner.plan.values import Plan
from planner.report.layout import list_section, section, table, words
from planner.report.numbers import count, names, runs, span


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """Consecutive ranks of one stage on equal devices of equal hosts."""

    stage: int
    """Their stage."""
    first_rank: int
    """First of consecutive ranks on equal devices."""
    ranks: int
    """How many."""
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
    """All ranks in order."""
    pools = {pool.name: pool for pool in cluster.pools}
    rank_ranges: list[RankRun] = []
    first = 0
    for stage, slots in enumerate(place(plan, cluster)):
        for slot in slots:
            groups = plan.stages[stage].replicas
            tp = next(group.tp for group in groups if (group.pool, group.gpu) == (slot.pool, slot.gpu))
            rank_ranges.append(_run(stage, first, slot, pools[slot.pool], tp))
            first += rank_ranges[-1].ranks
    return tuple(rank_ranges)


def _run(stage: int, first: int, slot: Slot, pool: PoolSpec, tp: int) -> RankRun:
    start, size = slot.first_device, slot.replicas_per_node * slot.tp
    return RankRun(
        stage=stage,
        first_rank=first,
        ranks=slot.replicas * slot.tp,
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
            span(run.first_rank, run.first_rank + run.ranks),
            str(run.stage),
            names(run.hosts),
            runs(run.devices),
            f"{run.replicas_per_host} x tp {run.tp} on {run.gpu}"
            if run.replicas_per_host
            else f"a part of tp {run.tp} on {run.gpu}",
        )
        for run in rank_runs(plan, cluster)
    ]


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
