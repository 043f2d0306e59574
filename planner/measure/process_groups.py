"""Process groups to measure: inside a node, between the nodes of a pool, and across pools.

A curve is found by the name of its link, by its number of members and by the groups that share the cards of a node.
Where several groups have all in common, those on the narrowest path stand for all, so that no plan is promised more
than the slowest of them reaches. They talk at the same time, as the groups of a plan do: alone, a pair knows nothing of
a switch or a bus that all pairs share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest
from typing import get_args

from planner.calibration.file import shipped
from planner.calibration.merge import CurveKey, link_name_key, name_key
from planner.calibration.values import Operation
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cluster.topology import Path, Topology
from planner.cost.communication import carried_rates
from planner.errors import UsageError

OPERATIONS: tuple[Operation, ...] = get_args(Operation)


@dataclass(frozen=True, slots=True)
class MeasuringTeam:
    """Groups of ranks that one curve is measured among: equally many in each, none in two, all at the same time."""

    link: str
    groups: tuple[tuple[int, ...], ...]
    concurrent: int = 1
    """Groups that share the cards of their nodes."""

    @property
    def curves(self) -> tuple[CurveKey, ...]:
        """What is measured among them."""
        name = link_name_key(self.link)
        return tuple(CurveKey(name, each, self.members, self.concurrent) for each in self.operations)

    @property
    def members(self) -> int:
        """Of each group."""
        return len(self.groups[0])

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of all groups, in order."""
        return tuple(sorted(chain.from_iterable(self.groups)))

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What is measured: sends between two members only."""
        return tuple(name for name in OPERATIONS if name != "send" or self.members == 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """What the first process has decided that all of them do."""

    teams: tuple[MeasuringTeam, ...]
    largest_bytes: int
    seconds: float
    """Time budget."""
    known: frozenset[Hashable]
    """Keys of the points that are not measured again."""

    @property
    def curves(self) -> int:
        """Operations of all teams."""
        return sum(len(team.operations) for team in self.teams)


class FirstStoppedError(Exception):
    """The first process found that there is nothing to measure, and says why."""


class BrokenError(Exception):
    """The processes are no longer together: a connection broke, one of them ended, or one waited too long."""


def teams(hosts: Sequence[str], gpus: Sequence[str], fabric: str | None) -> tuple[MeasuringTeam, ...]:
    """Groups of 2, 4, 8 ... and of all: in one node of each device type, one process a node, and everywhere.

    Raises UsageError when there are several nodes and the fabric between them has no name.
    """
    nodes = _nodes(hosts)
    if len(nodes) > 1 and fabric is None:
        raise UsageError(
            f"processes on {len(nodes)} nodes: expected --cluster FILE, or --fabric with the network's name",
            hint="as under fabrics: of the cluster file",
        )
    inside = chain.from_iterable(_inside(ranks, gpus) for ranks in nodes.values())
    between = _between(fabric, [*nodes.values()]) if len(nodes) > 1 and fabric else ()
    return _once([*inside, *between])


def cluster_teams(
    cluster: ClusterSpec, hosts: Sequence[str], gpus: Sequence[str], fabric: str | None = None
) -> tuple[tuple[MeasuringTeam, ...], tuple[str, ...]]:
    """The groups of a cluster file's pools, and what to know of them; of one fabric only where it is named.

    Raises UsageError for hosts that no pool has, and for a fabric that joins none of the nodes.
    """
    pools = _pools_of(cluster, hosts)
    types, notes = _types(pools, hosts, gpus)
    present = {pool.name: pool for pool in pools.values()}
    ordered = [pool for pool in cluster.pools if pool.name in present]
    nodes = {pool.name: [*_nodes(hosts, pools, pool.name).values()] for pool in ordered}
    slow_first = sorted(ordered, key=lambda pool: pool.intra_node.bandwidth_gBps)
    inside = [team for pool in slow_first for ranks in nodes[pool.name] for team in _inside(ranks, types)]
    between, more = _paths(Topology(cluster), ordered, nodes)
    groups = _once([*inside, *between])
    if fabric is not None:
        groups = tuple(team for team in groups if link_name_key(team.link) == link_name_key(fabric))
        if not groups:
            known = sorted({team.link for team in between})
            raise UsageError(
                f"--fabric {fabric}: joins none of the nodes at hand",
                hint=f"between them: {', '.join(known) or 'no fabric of the cluster file'}",
            )
    return groups, (*notes, *more)


def _pools_of(cluster: ClusterSpec, hosts: Sequence[str]) -> dict[str, PoolSpec]:
    """The pool of each host, by full or by short name; raises UsageError for hosts that no pool has."""
    full = {host: pool for pool in cluster.pools for host in pool.hosts}
    short = {host.partition(".")[0]: pool for host, pool in full.items()}
    pools_by_host = {host: full.get(host) or short.get(host.partition(".")[0]) for host in hosts}
    missing = [host for host, pool in pools_by_host.items() if pool is None]
    if missing:
        raise UsageError(
            f"--cluster: no pool of {cluster.name} has the host{'s' if len(missing) > 1 else ''} "
            f"{', '.join(missing)}",
            hint=f"its hosts are {', '.join([*full][:8])}{', ...' if len(full) > 8 else ''}; "
            "hosts: of a pool names them as `hostname` does",
        )
    return {host: pool for host, pool in pools_by_host.items() if pool is not None}


def _types(
    pools: Mapping[str, PoolSpec], hosts: Sequence[str], gpus: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the cluster file calls each rank's device, and where that is not what torch calls it.

    Raises UsageError where a pool of several device types has none of that name.
    """
    names: list[str] = []
    notes: dict[str, None] = {}
    for host, seen in zip(hosts, gpus, strict=True):
        pool = pools[host]
        known = {name_key(name): name for name in pool.devices}
        if name_key(seen) in known:
            names.append(known[name_key(seen)])
            continue
        if len(known) > 1:
            raise UsageError(
                f"pool {pool.name}: its devices are {', '.join(known.values())}, host {host} has {seen}",
                hint="name the devices in the cluster file as hetplan calibrate device does",
            )
        name = pool.devices[0]
        notes[f"pool {pool.name}: {name} in the cluster file is {seen} here, its curves are named {name}"] = (
            None
        )
        names.append(name)
    return tuple(names), tuple(notes)


def _nodes(
    hosts: Sequence[str], pools: Mapping[str, PoolSpec] | None = None, pool: str = ""
) -> dict[str, list[int]]:
    """Ranks by host, of one pool where pools are known."""
    ranks_by_node: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        if pools is None or pools[host].name == pool:
            ranks_by_node.setdefault(host, []).append(rank)
    return ranks_by_node


def _inside(ranks: Sequence[int], gpus: Sequence[str]) -> Iterator[MeasuringTeam]:
    """Devices of one type in one node."""
    for gpu in dict.fromkeys(gpus[rank] for rank in ranks):
        own = [rank for rank in ranks if gpus[rank] == gpu]
        for size in _sizes(len(own)):
            yield MeasuringTeam(f"node:{gpu}", _groups(own, size))


def _between(link: str, nodes: Sequence[Sequence[int]], alike: int | None = None) -> Iterator[MeasuringTeam]:
    """One device of 2, 4, 8 ... nodes and of all; then all devices; then as many such groups as a node has devices, and
    half of them, and so on.

    Groups beside the first are of the first ``alike`` nodes, or of all: the others' paths are not those of the link.
    """
    whole = MeasuringTeam(link, (tuple(sorted(chain.from_iterable(nodes))),))
    for concurrent in (1, *reversed([*_sizes(min(map(len, nodes)))])):
        for size in _sizes(len(nodes)):
            near = nodes[: max(size, alike or len(nodes))]
            groups = (_groups([ranks[place] for ranks in near], size) for place in range(concurrent))
            yield MeasuringTeam(link, tuple(chain.from_iterable(groups)), concurrent)
        if concurrent == 1:
            yield whole


def _groups(ranks: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """As many groups of this size as there are ranks for."""
    begins = range(0, len(ranks) - size + 1, size)
    return tuple(tuple(sorted(ranks[begin : begin + size])) for begin in begins)


def _paths(
    topology: Topology, pools: Sequence[PoolSpec], nodes: Mapping[str, list[list[int]]]
) -> tuple[list[MeasuringTeam], tuple[str, ...]]:
    """Groups of each pool and of each two, those of narrow paths first; then of all pools, by their narrowest."""
    names = [pool.name for pool in pools]
    own = [(name, name) for name in names if len(nodes[name]) > 1]
    pairs = [*own, *combinations(names, 2)]
    paths = {pair: topology.path(*pair) for pair in pairs}
    notes = tuple(
        f"pools {first} and {last}: no path in the cluster file, not measured"
        for (first, last), path in paths.items()
        if not path.connected
    )
    joined = [pair for pair in pairs if paths[pair].connected]
    joined.sort(key=lambda pair: (_rate(paths[pair]), -len({*pair})))
    groups = [
        team
        for pair in joined
        for team in _across(paths[pair].fabric, [nodes[name] for name in dict.fromkeys(pair)])
    ]
    if len(names) > 2 and joined and not notes:
        groups += _across(paths[joined[0]].fabric, [*nodes.values()])
    return groups, notes


def _across(link: str, pools: Sequence[list[list[int]]]) -> Iterator[MeasuringTeam]:
    """Groups of nodes of the pools in turn, so that already the smallest stands in all of them."""
    turns = zip_longest(*pools)
    dealt = [node for turn in turns for node in turn if node is not None]
    return _between(link, dealt, alike=len(pools) * min(map(len, pools)))


def _rate(path: Path) -> float:
    """What a path carries by the cost model's link utilisation."""
    return min(carried_rates(path, shipped()))


def _once(groups: Iterable[MeasuringTeam]) -> tuple[MeasuringTeam, ...]:
    """The first of the groups that would give the same curve."""
    kept: dict[tuple[CurveKey, ...], MeasuringTeam] = {}
    for team in groups:
        kept.setdefault(team.curves, team)
    return tuple(kept.values())


def _sizes(largest: int) -> Iterator[int]:
    size = 2
    while size < largest:
        yield size
        size *= 2
    if largest > 1:
        yield largest
