"""The map of the cluster: pools with their nodes and what runs on each device, and the networks that join them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import log10

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.files.short_lists import compress_devices
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.report.numbers import count, runs, significant
from planner.report.ranks import rank_runs

FEW_NODES = 12
"""Nodes of a pool that are drawn one by one; of more, neighbours that do the same are one box."""
FEW_BOXES = 48
"""Boxes of a pool at most; the nodes that are left are counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a device does: the colour of its stage or group, its stage and its replica."""

    lane: int
    stage: int
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Devices of a node side by side that are one replica, or that are idle."""

    lane: int | None
    """None for idle devices."""
    labels: tuple[str, ...]
    """What is written on each device."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node, or several neighbours that do the same."""

    hosts: str
    nodes: int
    teams: tuple[Team, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What joins a pool, or another fabric, to a fabric."""

    fabric: int
    to: int | None
    """The other fabric of a gateway; None for the cards of a pool."""
    width: float
    """Of its line, pixels; ten times the speed is 3 pixels more."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A pool; or a gateway between fabrics, which has no nodes."""

    name: str
    text: str
    wires: tuple[Wire, ...]
    nodes: tuple[Node, ...] = ()
    left: int = 0
    """Nodes that are not drawn."""
    idle: tuple[str, ...] = ()
    """Its idle devices, each with the reason as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """The whole cluster; a line of each fabric runs along its rows."""

    fabrics: tuple[str, ...]
    rows: tuple[Row, ...]
    first: tuple[int, ...]
    """The row where the line of each fabric begins, [fabric]."""
    last: tuple[int, ...]


def lanes_of(plan: Plan) -> list[tuple[int, int | None]]:
    """(stage, group) of every colour: groups of a plan without a pipeline, else stages."""
    if plan.pp == 1:
        return [(0, index) for index in range(len(plan.stages[0].replicas))]
    return [(stage, None) for stage in range(plan.pp)]


def cluster_map(plan: Plan, cluster: ClusterSpec, model: ModelSpec, reasons: tuple[str, ...]) -> Map:
    """The map; ``reasons`` are what the search said of idle devices."""
    index = {name: number for number, name in enumerate(cluster.fabrics)}
    places = _places(plan, cluster)
    rows = []
    for pool in cluster.pools:
        nodes = list(_nodes(pool, places, pipeline=plan.pp > 1))
        wires = tuple(
            Wire(
                fabric=index[nic.fabric],
                to=None,
                width=_width(nic.bandwidth_gbps * nic.count),
                text=f"{f'{nic.count} x ' if nic.count > 1 else ''}{significant(nic.bandwidth_gbps)} Gbit/s "
                f"{nic.fabric}",
            )
            for nic in pool.nics
        )
        rows.append(
            Row(
                name=pool.name,
                text=_pool_text(pool),
                wires=wires,
                nodes=tuple(nodes[:FEW_BOXES]),
                left=sum(node.nodes for node in nodes[FEW_BOXES:]),
                idle=tuple(_idle(pool, places, cluster, model, reasons)),
            )
        )
    for link in cluster.links:
        first, last = sorted(index[name] for name in link.between)
        speed = f"{significant(link.bandwidth_gbps)} Gbit/s, {significant(link.latency_us / 1000)} ms"
        wire = Wire(fabric=first, to=last, width=_width(link.bandwidth_gbps), text=speed)
        rows.append(Row(name=" to ".join(link.between), text=speed, wires=(wire,)))
    touching = [
        [number for number, row in enumerate(rows) for wire in row.wires if fabric in (wire.fabric, wire.to)]
        for fabric in index.values()
    ]
    return Map(
        fabrics=tuple(f"{name} ({fabric.kind})" for name, fabric in cluster.fabrics.items()),
        rows=tuple(rows),
        first=tuple(min(numbers, default=0) for numbers in touching),
        last=tuple(max(numbers, default=0) for numbers in touching),
    )


def _width(gbps: float) -> float:
    return min(12.0, max(1.5, 3 * log10(max(gbps, 1.0))))


def _pool_text(pool: PoolSpec) -> str:
    devices = " + ".join(each.replace(" x ", " ") for each in compress_devices(pool.devices))
    shared = " shared" if pool.intra_node.shared else ""
    inside = f"{significant(pool.intra_node.bandwidth_gBps)} GB/s{shared} inside"
    return f"{count(len(pool.hosts), 'node')} of {devices}, {inside}"


def _places(plan: Plan, cluster: ClusterSpec) -> dict[tuple[str, int], Place]:
    """(host, device) of every rank."""
    ends = [list(accumulate(group.count for group in stage.replicas)) for stage in plan.stages]
    done = Counter[int]()
    places = {}
    for run in rank_runs(plan, cluster):
        group = bisect_right(ends[run.stage], done[run.stage])
        lane = group if plan.pp == 1 else run.stage
        for host in run.hosts:
            for number, device in enumerate(run.devices):
                replica = done[run.stage] + number // run.tp
                places[host, device] = Place(lane, run.stage, replica)
            done[run.stage] += run.replicas_per_host
    return places


def _nodes(pool: PoolSpec, places: dict[tuple[str, int], Place], *, pipeline: bool) -> Iterator[Node]:
    """Every node of a small pool; of a large one neighbours with the same stages on the same devices together."""
    rows = [
        (host, tuple(places.get((host, device)) for device in range(len(pool.devices))))
        for host in pool.hosts
    ]
    if len(rows) <= FEW_NODES:
        for host, row in rows:
            yield Node(hosts=host, nodes=1, teams=tuple(_teams(pool, row, row, pipeline)))
        return
    alike = groupby(rows, key=lambda entry: tuple(place and (place.lane, place.stage) for place in entry[1]))
    for _, members in alike:
        same = list(members)
        teams = tuple(_teams(pool, same[0][1], same[-1][1], pipeline))
        hosts = same[0][0] if len(same) == 1 else f"{same[0][0]} .. {same[-1][0]}"
        yield Node(hosts=hosts, nodes=len(same), teams=teams)


def _teams(
    pool: PoolSpec, row: tuple[Place | None, ...], last: tuple[Place | None, ...], pipeline: bool
) -> Iterator[Team]:
    """Devices side by side; ``last`` is the same on the last of several nodes."""
    numbered = enumerate(zip(row, last, pool.devices, strict=True))
    for (place, gpu), members in groupby(numbered, key=lambda entry: (entry[1][0], entry[1][2])):
        same = list(members)
        devices = f"{gpu}, {'device' if len(same) == 1 else 'devices'} {runs([at for at, _ in same])}"
        if place is None:
            yield Team(lane=None, labels=("idle",) * len(same), what=f"{devices}: idle")
            continue
        end = same[0][1][1]
        assert end is not None
        replicas = str(place.replica) if end.replica == place.replica else f"{place.replica}-{end.replica}"
        where = f"stage {place.stage}, " if pipeline else ""
        few = "replica" if end.replica == place.replica else "replicas"
        label = f"s{place.stage}" if pipeline else f"r{place.replica}"
        if pipeline and end is place:
            label += f" r{place.replica}"
        yield Team(lane=place.lane, labels=(label,) * len(same), what=f"{devices}: {where}{few} {replicas}")


def _idle(
    pool: PoolSpec,
    places: dict[tuple[str, int], Place],
    cluster: ClusterSpec,
    model: ModelSpec,
    reasons: tuple[str, ...],
) -> Iterator[str]:
    """What the search said of the idle devices of a pool; else what its own numbers say."""
    precision = model.training.precision
    for gpu in dict.fromkeys(pool.devices):
        left = sum(
            (host, device) not in places
            for host in pool.hosts
            for device, name in enumerate(pool.devices)
            if name == gpu
        )
        if not left:
            continue
        head = f"idle: {left} {gpu} ({pool.name})"
        said = [reason for reason in reasons if reason.startswith(f"{head}:")]
        if said:
            yield said[0]
        elif precision not in cluster.gpus[gpu].tflops:
            yield f"{head}: no {precision}"
        else:
            yield f"{head}: the plan file does not say why"
