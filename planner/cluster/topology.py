"""The graph of a cluster: device types, and the best path between any two nodes.

Pools and fabrics are the nodes of a graph; a pool hangs on a fabric by its NICs, fabrics hang together by links. Two
nodes talk along the path that carries most; pools never forward traffic for others. The chain of linked fabrics that
joins two of them best is found without trying them all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import fields
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from itertools import combinations, combinations_with_replacement, pairwise
from math import lcm, log
from typing import TYPE_CHECKING, Any

from planner.cluster.spec import (
    RDMA,
    WITHOUT_SOCKETS,
    ClusterSpec,
    HostSpec,
    PoolSpec,
    dealt_over,
    nodes_each,
)
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.units import (
    bytes_from_gib,
    bytes_per_second_from_gbps,
    bytes_per_second_from_gigabytes,
    flops_from_tflops,
    seconds_from_us,
)

if TYPE_CHECKING:
    import networkx as nx

SLOWER = ("nvlink", "infiniband", "roce", "ethernet")
"""Kinds of fabrics, each slower than the one before."""

Chain = tuple[str, ...]
Cost = tuple[int, int]
"""Latency and hops; the latency counts the smallest part that all of the cluster's are whole multiples of."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The widest link between two fabrics."""

    bytes_per_second: float
    """In one direction, shared by all that cross it."""
    latency_us: float


@dataclass(frozen=True, slots=True)
class FabricPort:
    """The cards of one node on one fabric."""

    bytes_per_second: float
    """What they carry together in one direction, and the fabric of it when all nodes send."""
    cards: int


def ends_of(cluster: ClusterSpec) -> dict[str, dict[str, FabricPort]]:
    """What a node of each pool has on each of its fabrics, by the pool's and the fabric's name."""
    return {
        pool.name: {nic.fabric: _end(cluster, pool, nic.fabric) for nic in pool.nics}
        for pool in cluster.pools
    }


def _end(cluster: ClusterSpec, pool: PoolSpec, fabric: str) -> FabricPort:
    nics = [nic for nic in pool.nics if nic.fabric == fabric]
    rate = sum(bytes_per_second_from_gbps(nic.bandwidth_gbps) * nic.count for nic in nics)
    return FabricPort(
        bytes_per_second=rate / cluster.fabrics[fabric].oversubscription,
        cards=sum(nic.count for nic in nics),
    )


class Routes:
    """The best chain of fabrics between any two of them; answers are cached."""

    def __init__(self, cluster: ClusterSpec, *, rdma_only: bool = False) -> None:
        """With ``rdma_only`` Ethernet and the links to it are left out, NVLink is not."""
        self._fabrics = {
            name: fabric
            for name, fabric in cluster.fabrics.items()
            if not rdma_only or fabric.kind != "ethernet"
        }
        self._kinds = {name: SLOWER.index(fabric.kind) for name, fabric in self._fabrics.items()}
        self._hops: dict[str, dict[str, Hop]] = {name: {} for name in self._fabrics}
        for link in cluster.links:
            first, last = link.between
            if first not in self._fabrics or last not in self._fabrics:
                continue
            hop = Hop(bytes_per_second_from_gbps(link.bandwidth_gbps), link.latency_us)
            known = self._hops[first].get(last)
            if known is None or known.bytes_per_second < hop.bytes_per_second:
                self._hops[first][last] = self._hops[last][first] = hop
        self._widest: dict[str, dict[str, float]] = {}
        self._trees: dict[tuple[str, float, int], dict[str, Chain]] = {}

    def __contains__(self, fabric: str) -> bool:
        """True for a fabric that is not left out."""
        return fabric in self._fabrics

    def hop(self, first: str, last: str) -> Hop:
        """The link between two fabrics; KeyError without one."""
        return self._hops[first][last]

    def island(self, fabric: str) -> int:
        """A number that fabrics share when a chain of links leads from one to the other."""
        return self._islands[fabric]

    def best(self, first: str, last: str, enough: float) -> Chain | None:
        """The fabrics from one to the other, None where no links join them.

        The widest chain; more than ``enough`` bytes/s count for nothing. Of equal ones that whose slowest kind of
        fabric is the fastest, then the least latency, the fewest links, and the name.
        """
        if first == last:
            return (first,)
        if self.island(first) != self.island(last):
            return None
        rate = self._level(min(enough, self._widest_from(first)[last]))
        return next(tree[last] for tree in self._trees_from(first, rate) if last in tree)

    @cached_property
    def _islands(self) -> dict[str, int]:
        """Fabric -> number of the set of fabrics that links join it with."""
        if not any(self._hops.values()):
            return {name: index for index, name in enumerate(self._hops)}
        parts = enumerate(connected(self._hops, self._links))
        return {name: index for index, part in parts for name in part}

    @property
    def _links(self) -> Iterator[tuple[str, str, float]]:
        """(fabric, fabric, bytes/s) of every hop."""
        for first, hops in self._hops.items():
            yield from ((first, last, hop.bytes_per_second) for last, hop in hops.items())

    @cached_property
    def _widest_tree(self) -> nx.Graph[str]:
        """Links that hold the widest chain between any two fabrics."""
        return _widest_tree(self._hops, self._links)

    def _widest_from(self, first: str) -> dict[str, float]:
        """Rate of the widest chain to each other fabric, bytes/s."""
        if first not in self._widest:
            widest = {first: float("inf")}
            # Those near to the first come before those behind them.
            for near, far in _networkx().bfs_edges(self._widest_tree, first):
                widest[far] = min(widest[near], self._hops[near][far].bytes_per_second)
            self._widest[first] = widest
        return self._widest[first]

    @cached_property
    def _rates(self) -> list[float]:
        """The rates of the links, each once, from the least."""
        return sorted({hop.bytes_per_second for hops in self._hops.values() for hop in hops.values()})

    def _level(self, rate: float) -> float:
        """The least rate of a link that is as wide: links of this rate and more are those that are wide enough."""
        return self._rates[bisect_left(self._rates, rate)]

    def _trees_from(self, first: str, rate: float) -> Iterator[dict[str, Chain]]:
        """The best chains to the fabrics within reach: over the fastest kinds of fabric first, at last over all."""
        for kind in range(self._kinds[first], len(SLOWER)):
            key = (first, rate, kind)
            if key not in self._trees:
                self._trees[key] = self._shortest(*key)
            yield self._trees[key]

    def _shortest(self, first: str, rate: float, kind: int) -> dict[str, Chain]:
        """Chains of the least latency by links of a rate at least and fabrics of a type at most (Dijkstra 1959).

        Every link is a hop more, so that all that lead to a fabric at its cost are known before it.
        """
        cost: dict[str, Cost] = {first: (0, 0)}
        chains: dict[str, Chain] = {first: (first,)}
        waiting = [(cost[first], first)]
        done: set[str] = set()
        while waiting:
            (latency, hops), near = heappop(waiting)
            if near in done:
                continue
            done.add(near)
            for far, hop in self._hops[near].items():
                if hop.bytes_per_second < rate or self._kinds[far] > kind or far in done:
                    continue
                new = latency + self._latency[near, far], hops + 1
                chain = (*chains[near], far)
                if far not in cost or new < cost[far]:
                    cost[far], chains[far] = new, chain
                    heappush(waiting, (new, far))
                elif new == cost[far]:
                    chains[far] = max(chains[far], chain)
        return chains

    @cached_property
    def _latency(self) -> dict[tuple[str, str], int]:
        """Of a link and the fabric behind it; whole numbers, so that equal sums (0.1 + 0.2, 0.3) are equal."""
        exact = {
            (near, far): Fraction(str(hop.latency_us)) + Fraction(str(self._fabrics[far].latency_us))
            for near, hops in self._hops.items()
            for far, hop in hops.items()
        }
        parts = lcm(*(latency.denominator for latency in exact.values()))
        return {pair: int(latency * parts) for pair, latency in exact.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What each device of a node has of its host when all of them use it at the same time."""

    devices: int
    """Devices of one node, of all device types."""
    bytes_per_second: float | None
    """Copies to or from host memory in one direction; None when unknown."""
    nvme_bytes_per_second: float | None
    """Reads from or writes to NVMe; None without one."""
    memory_bytes: float
    """Infinite when unknown."""
    parameters_per_second: float | None
    """AdamW updates on the processors; None for what the runtime is known to reach."""
    superchip: bool = False
    """True where device and processor are one package."""


CLOCK_OF_POWER = 1 / 3
"""Exponent of the clock under a power limit: power goes with clock and voltage squared, and voltage with the clock.

Best products of a multiprocessor have exponents of 0.31 and 0.24 (A100 on PCIe at 250 and 300 W next to 400) and 0.60
(H100 at 350 W next to 700; ``microbenchmarks.csv``); four RTX 3090 keep 95 % of their rate at 280 of 350 W, 0.23 (Puget
Systems, Quad RTX3090 GPU Wattage Limited "MaxQ" TensorFlow Performance, 2020).
"""
CLOCK_DEVIATION = 0.2
"""Standard deviation of that exponent among devices, by the same."""


@json_fields(only=("pool", "gpu", "nodes", "per_node", "memory_bytes", "reserve_bytes", "peak_flops"))
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """Interchangeable devices: one type of GPU in one pool."""

    pool: str
    """A pool."""
    gpu: str
    """A device type in it."""
    family: str
    """Generation of the GPU, which calibrations are kept for; empty for an unknown device."""
    multiprocessors: int
    """Streaming multiprocessors or compute units; 0 when unknown."""
    nodes: int
    """Its nodes."""
    per_node: int
    """Devices of this type on one node."""
    memory_bytes: float
    """Memory of one device."""
    reserve_bytes: float
    """Memory kept free on it."""
    safe: float | None
    """Largest chance of running out of memory that a plan may have; None for any."""
    memory_bytes_per_second: float
    peak_flops: dict[str, float]
    """Dense peak FLOP/s by number format."""
    intra_bytes_per_second: float
    """Bandwidth of one device to its neighbours in the node, one direction."""
    intra_latency_seconds: float
    intra_shared: bool
    host: Host
    compute_capability: float | None = None
    """NVIDIA's; None for other vendors and where nothing tells it."""
    library: str = ""
    """Collective library that its communicators need; empty when nothing tells the vendor."""
    clock_spread: float = 0.0
    """Relative standard error of its clock under a power limit."""
    nodes_each: int = 1
    """Nodes of the cluster file that are one node here (planner.cluster.multi_node)."""
    dealt: int = 1
    """Those over which each stage is dealt: a node here has the devices of all, and otherwise what one of them has."""
    sharing: int = 1
    """Devices of a node that share what carries their traffic inside it."""
    between: Path | None = None
    """How these reach each other; None where a node is one."""

    @property
    def reaches_memory(self) -> bool:
        """True where devices of a node reach each other's memory: no bus and no network but NVLink is between them."""
        return not self.intra_shared and (self.between is None or self.between.kind == "nvlink")

    @property
    def key(self) -> tuple[str, str]:
        """(pool, gpu), unique in the cluster."""
        return self.pool, self.gpu

    @property
    def kind(self) -> Hashable:
        """All that is known of its devices but how many nodes have them."""
        own = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != "nodes")
        return tuple(tuple(sorted(value.items())) if name == "peak_flops" else value for name, value in own)

    @property
    def devices(self) -> int:
        """Devices of this type in the cluster."""
        return self.nodes * self.per_node

    def replicas(self, tp: int) -> int:
        """Replicas of ``tp`` devices that fit, none across nodes."""
        return self.nodes * self.dealt * (self.per_node // self.dealt // tp)

    def holds(self, tp: int) -> bool:
        """True where a node has room for a replica of ``tp`` devices; where stages are dealt they fill nodes."""
        devices = self.per_node // self.dealt
        return tp <= devices and (self.dealt == 1 or devices % tp == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How a node of one pool reaches a node of another (or another node of the same pool)."""

    fabric: str
    """``node`` inside a node, the fabric, ``a+b`` through a gateway, or empty when there is no path."""
    first_bytes_per_second: float
    """What the NICs of one node at the first end carry in one direction."""
    last_bytes_per_second: float
    shared_bytes_per_second: float
    """Capacity of the narrowest gateway on the way, shared by all nodes; infinite without one."""
    latency_seconds: float
    kind: str
    """``node``, or the slowest kind of fabric on the way: nvlink, infiniband, roce, ethernet."""
    first_cards: int
    """Network cards of one node at the first end that carry it; 1 inside a node."""
    last_cards: int
    first_nodes: int = 1
    """Nodes of the cluster file that are one at the first end, each with these cards (planner.cluster.multi_node)."""
    last_nodes: int = 1

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth of one node to one other node."""
        return min(self.first_bytes_per_second, self.last_bytes_per_second, self.shared_bytes_per_second)

    @property
    def connected(self) -> bool:
        """False when the two nodes cannot talk."""
        return bool(self.fabric)


NO_PATH = Path(
    fabric="",
    first_bytes_per_second=0.0,
    last_bytes_per_second=0.0,
    shared_bytes_per_second=0.0,
    latency_seconds=0.0,
    kind="",
    first_cards=1,
    last_cards=1,
)


SOCKET_SHARE, SOCKET_BYTES_PER_SECOND = 0.85, 2.5e9
"""About what sockets carry of what RDMA carries of an equal wire, and what a node moves through them at most
(``planner.measured.priors``): however wide an Ethernet is, RDMA of 20 Gbit/s a node carries as much."""


def _carried(kind: str, bytes_per_second: float, nodes: int = 1) -> float:
    """About what a network of this nominal rate carries, in bytes/s of RDMA, for so many nodes at each end."""
    if kind != "ethernet":
        return bytes_per_second
    return min(SOCKET_SHARE * bytes_per_second, nodes * SOCKET_BYTES_PER_SECOND)


def _preference(path: Path) -> tuple[float, float, float, float, int, int, str]:
    """What carries more is better; of equal ones RDMA, then the wider, low latency, few cards. Names decide last."""
    carried = _carried(path.kind, path.bytes_per_second, min(path.first_nodes, path.last_nodes))
    cards, slower = path.first_cards + path.last_cards, SLOWER.index(path.kind)
    latency = round(path.latency_seconds, 12)  # sums in another order are equal
    wire = path.bytes_per_second
    return carried, -slower, wire, -latency, -cards, -path.fabric.count("+"), path.fabric


SLOW = 0.5
"""A link between pools is slow when it has less than this part of the widest network inside one of them."""


def sockets_only(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster as a job sees it that can use no RDMA: Ethernet fabrics, the cards and links on them, and NVLink."""
    kept = {name for name, fabric in cluster.fabrics.items() if fabric.kind not in RDMA}
    pools = tuple(
        pool.model_copy(update={"nics": tuple(nic for nic in pool.nics if nic.fabric in kept)})
        for pool in cluster.pools
    )
    links = tuple(link for link in cluster.links if set(link.between) <= kept)
    fabrics = {name: fabric for name, fabric in cluster.fabrics.items() if name in kept}
    return cluster.model_copy(update={"pools": pools, "links": links, "fabrics": fabrics})


class Topology:
    """A cluster as device types and paths; immutable, answers are cached."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self._pools = {pool.name: pool for pool in cluster.pools}
        self._paths: dict[tuple[str, str], Path] = {}
        self._routes, self._rdma_routes = Routes(cluster), Routes(cluster, rdma_only=True)

    @cached_property
    def device_types(self) -> tuple[DeviceType, ...]:
        """Every device type, in the order of the pools and of their devices."""
        keys = ((pool, gpu) for pool in self.cluster.pools for gpu in dict.fromkeys(pool.devices))
        return tuple(self._device_type(*key) for key in keys)

    def device_type(self, pool: str, gpu: str) -> DeviceType:
        """The device type with this pool and GPU name; KeyError when the cluster has none."""
        return self._kind_index[pool, gpu]

    @cached_property
    def _kind_index(self) -> dict[tuple[str, str], DeviceType]:
        return {device_type.key: device_type for device_type in self.device_types}

    def path(self, first: str, last: str) -> Path:
        """The path between nodes of two pools that carries most; of two different nodes when the pools are the same."""
        if first == last and self._lone(first):
            return self._inside(self._pools[first])
        if self.strangers(first, last):
            return NO_PATH
        key = self._alike[first], self._alike[last]
        if key not in self._paths:
            self._paths[key] = self._best(first, last)
        return self._paths[key]

    def _lone(self, pool: str) -> bool:
        """True for a pool of one node."""
        return len(self._pools[pool].hosts) * nodes_each(self._pools[pool]) == 1

    def strangers(self, first: str, last: str) -> str:
        """Why devices of two pools cannot be in one communicator, whatever joins their nodes; empty where they can."""
        one, other = self._libraries[first], self._libraries[last]
        if not one or not other or one == other:
            return ""
        return f"{first} needs {one} and {last} {other}: no communicator holds devices of both"

    def on_rdma(self, first: str, last: str) -> bool:
        """True when nodes of the two pools reach each other by RDMA or NVLink all the way, or inside a node."""
        path = self.path(first, last)
        if path.fabric == "node":
            return True
        return path.kind in WITHOUT_SOCKETS

    def needs_sockets(self, pools: Iterable[str], lone: Collection[str] = ()) -> bool:
        """True when some two nodes of these pools, one of each ``lone`` pool, reach each other by Ethernet only."""
        alike = self.alike(sorted(set(pools)))
        # Two pools of the same cards reach each other as two nodes of one of them do.
        several = (
            part
            for part in alike
            if len(part) > 1 or part[0] not in lone or nodes_each(self._pools[part[0]]) > 1
        )
        within = (part[:2] if len(part) > 1 else part * 2 for part in several)
        across = ((first[0], last[0]) for first, last in combinations(alike, 2))
        return any(not self.on_rdma(*pair) for pair in (*within, *across))

    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Pools that reach each other by RDMA, largest sets, all in the order of the pools.

        Of a pool whose own nodes do not, one node may be in a set with others.
        """
        nodes: list[list[str]] = []
        for part in self.alike(self._pools):
            nodes += [part] if self.on_rdma(*(part * 2)[:2]) else [[name] for name in part]
        near = [{index} for index in range(len(nodes))]
        for first, last in combinations(range(len(nodes)), 2):
            if self.on_rdma(nodes[first][0], nodes[last][0]):
                near[first].add(last)
                near[last].add(first)
        sets = Counter(map(frozenset, near))
        if all(count == len(own) for own, count in sets.items()):
            parts: Iterable[Iterable[int]] = sets
        else:
            parts = _cliques((first, last) for first, own in enumerate(near) for last in own)
        found = self._in_order([name for index in part for name in nodes[index]] for part in parts)
        return tuple(part for part in found if len(part) > 1 or self.on_rdma(*part * 2))

    def alike(self, pools: Iterable[str]) -> list[list[str]]:
        """The pools, those together whose nodes have the same cards and so reach others in the same way."""
        groups: dict[str, list[str]] = {}
        for pool in pools:
            groups.setdefault(self._alike[pool], []).append(pool)
        return list(groups.values())

    def joined_slowly(self, pools: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Parts of these pools that only slow links join, in the order of the pools; empty where none is slow."""
        edges = [(*pair, self.path(*pair).bytes_per_second) for pair in combinations(pools, 2)]
        slow = SLOW * max(self.path(pool, pool).bytes_per_second for pool in pools)
        if all(rate >= slow for _, _, rate in edges):
            return ()
        if len(pools) == 2:
            return self._in_order([(pool,) for pool in pools])
        tree: list[tuple[str, str, float]] = [*_widest_tree(pools, edges).edges.data("weight")]
        weakest = min(rate for _, _, rate in tree)
        if weakest >= slow:
            return ()
        return self._in_order(connected(pools, (edge for edge in tree if edge[2] > weakest)))

    def divisions(self, pools: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
        """Divisions of pools at slow links, the slowest first and then those inside the parts as well."""
        parts = self.joined_slowly(pools)
        while parts:
            yield parts
            finer = [inner for part in parts for inner in self.joined_slowly(part) or (part,)]
            parts = tuple(finer) if len(finer) > len(parts) else ()

    def _in_order(self, sets: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
        """Sets of pools, and the pools of each, in the order of the cluster."""
        index = {name: number for number, name in enumerate(self._pools)}.__getitem__
        parts = (tuple(sorted(part, key=index)) for part in sets)
        return tuple(sorted(parts, key=lambda part: [*map(index, part)]))

    def node_bytes_per_second(self, pool: str) -> float:
        """Nominal rate of one node on its best fabric; inside the node where it has none."""
        fabric = self.best_fabric(pool)
        if fabric:
            return self._ends[pool][fabric].bytes_per_second
        return bytes_per_second_from_gigabytes(self._pools[pool].intra_node.bandwidth_gBps)

    def cards(self, pool: str, fabric: str) -> int:
        """Network cards that a node of the pool has on a fabric."""
        ends = self._ends[pool]
        return ends[fabric].cards if fabric in ends else 0

    def best_fabric(self, pool: str) -> str:
        """The fabric of a pool that carries most; empty without one."""
        ends, fabrics = self._ends[pool], self.cluster.fabrics

        def worth(name: str) -> tuple[float, float]:
            rate = ends[name].bytes_per_second
            return _carried(fabrics[name].kind, rate), rate

        return max(sorted(ends), key=worth, default="")

    def apart(self) -> Iterator[tuple[str, str]]:
        """Pairs of pools whose nodes cannot talk, in the order of the pools; a pool with itself when its own cannot."""
        islands = {
            pool: {self._routes.island(fabric) for fabric in ends} for pool, ends in self._ends.items()
        }
        for first, last in combinations_with_replacement(self._pools, 2):
            if first == last and self._lone(first):
                continue
            if islands[first].isdisjoint(islands[last]) or self.strangers(first, last):
                yield first, last

    def _best(self, first: str, last: str) -> Path:
        """The best path between two nodes by their cards: of the widest of all, and the widest with RDMA all along."""
        chains = (
            routes.best(start, end, min(near.bytes_per_second, far.bytes_per_second))
            for routes in (self._routes, self._rdma_routes)
            for start, near in self._ends[first].items()
            for end, far in self._ends[last].items()
            if start in routes and end in routes
        )
        candidates = [self._path(first, last, chain) for chain in chains if chain is not None]
        return max(candidates, key=_preference, default=NO_PATH)

    @cached_property
    def _ends(self) -> dict[str, dict[str, FabricPort]]:
        return ends_of(self.cluster)

    @cached_property
    def _alike(self) -> dict[str, str]:
        """Pool -> the first pool with the same cards and library, whose nodes reach others in the same way."""
        first: dict[tuple[str, int, frozenset[tuple[str, FabricPort]]], str] = {}
        return {
            pool: first.setdefault(
                (self._libraries[pool], nodes_each(self._pools[pool]), frozenset(ends.items())), pool
            )
            for pool, ends in self._ends.items()
        }

    @cached_property
    def _libraries(self) -> dict[str, str]:
        """Collective library of each pool's devices; empty when nothing tells it."""
        gpus = self.cluster.gpus
        return {
            pool.name: next((library for gpu in pool.devices if (library := gpus[gpu].library)), "")
            for pool in self.cluster.pools
        }

    def _path(self, first: str, last: str, chain: Chain) -> Path:
        near, far = self._ends[first][chain[0]], self._ends[last][chain[-1]]
        here, there = (
            nodes_each(pool) // dealt_over(pool) for pool in (self._pools[first], self._pools[last])
        )
        hops = [self._routes.hop(a, b) for a, b in pairwise(chain)]
        specs = [self.cluster.fabrics[name] for name in chain]
        return Path(
            fabric="+".join(chain),
            first_bytes_per_second=here * near.bytes_per_second,
            last_bytes_per_second=there * far.bytes_per_second,
            shared_bytes_per_second=min((hop.bytes_per_second for hop in hops), default=float("inf")),
            latency_seconds=sum(seconds_from_us(spec.latency_us) for spec in specs)
            + sum(seconds_from_us(hop.latency_us) for hop in hops),
            kind=max((spec.kind for spec in specs), key=SLOWER.index),
            first_cards=near.cards,
            last_cards=far.cards,
            first_nodes=here,
            last_nodes=there,
        )

    @staticmethod
    def _inside(pool: PoolSpec) -> Path:
        rate = bytes_per_second_from_gigabytes(pool.intra_node.bandwidth_gBps)
        return Path(
            fabric="node",
            first_bytes_per_second=rate,
            last_bytes_per_second=rate,
            shared_bytes_per_second=float("inf"),
            latency_seconds=seconds_from_us(pool.intra_node.latency_us),
            kind="node",
            first_cards=1,
            last_cards=1,
        )

    def _device_type(self, pool: PoolSpec, gpu: str) -> DeviceType:
        spec = self.cluster.gpus[gpu]
        power = self.cluster.power_share_of(pool, gpu)
        clock = power**CLOCK_OF_POWER
        return DeviceType(
            pool=pool.name,
            gpu=gpu,
            family=spec.family,
            multiprocessors=spec.multiprocessors,
            nodes=len(pool.hosts),
            per_node=pool.devices.count(gpu),
            memory_bytes=bytes_from_gib(spec.memory_gib),
            reserve_bytes=bytes_from_gib(self.cluster.reserve_of(pool, gpu)),
            safe=self.cluster.safe,
            memory_bytes_per_second=bytes_per_second_from_gigabytes(spec.memory_bandwidth_gBps),
            peak_flops={dtype: flops_from_tflops(clock * value) for dtype, value in spec.tflops.items()},
            intra_bytes_per_second=bytes_per_second_from_gigabytes(pool.intra_node.bandwidth_gBps),
            intra_latency_seconds=seconds_from_us(pool.intra_node.latency_us),
            intra_shared=pool.intra_node.shared,
            sharing=pool.intra_node.sharing(len(pool.devices) // nodes_each(pool)),
            host=self._host(pool, gpu),
            compute_capability=spec.compute_capability,
            library=spec.library,
            clock_spread=CLOCK_DEVIATION * log(1.0 / power),
            nodes_each=nodes_each(pool) // dealt_over(pool),
            dealt=dealt_over(pool),
            between=self.path(pool.name, pool.name) if nodes_each(pool) > dealt_over(pool) else None,
        )

    def _host(self, pool: PoolSpec, gpu: str) -> Host:
        host, devices = pool.host or HostSpec(), len(pool.devices) // nodes_each(pool)
        link, nvme, rate = self.cluster.host_link_of(pool, gpu), host.nvme_gBps, host.adam_billion_per_s
        return Host(
            devices=devices,
            bytes_per_second=link and bytes_per_second_from_gigabytes(link),
            nvme_bytes_per_second=nvme and bytes_per_second_from_gigabytes(nvme) / devices,
            memory_bytes=bytes_from_gib(host.memory_gib) / devices if host.memory_gib else float("inf"),
            parameters_per_second=rate and rate * 1e9 / devices,
            superchip=self.cluster.is_superchip(pool, gpu),
        )


class HostTopology(Topology):
    """Paths between the hosts of nodes: over sockets, whatever their devices."""

    def __init__(self, cluster: ClusterSpec) -> None:
        super().__init__(sockets_only(cluster))

    def strangers(self, first: str, last: str) -> str:
        """Hosts can always be in one communicator."""
        return ""


Edges = Iterable[tuple[str, str, float]]
"""(first, last, width)."""


def _networkx() -> Any:
    """The library; importing it takes long, so it is imported where there is a graph to analyse."""
    import networkx

    return networkx


def _graph(names: Iterable[str], edges: Edges) -> nx.Graph[str]:
    graph: nx.Graph[str] = _networkx().Graph()
    graph.add_nodes_from(names)
    graph.add_weighted_edges_from(edges)
    return graph


def connected(names: Iterable[str], edges: Edges) -> list[set[str]]:
    """Sets of names that chains of edges join."""
    return list(_networkx().connected_components(_graph(names, edges)))


def _widest_tree(names: Iterable[str], edges: Edges) -> nx.Graph[str]:
    """Edges that hold the widest chain between any two names that one joins."""
    tree: nx.Graph[str] = _networkx().maximum_spanning_tree(_graph(names, edges))
    return tree


def _cliques(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The largest sets whose members are all paired with each other; one that is paired with itself is a set too."""
    library = _networkx()
    return list(library.find_cliques(library.Graph(list(pairs))))
