"""From a cluster to its graph: kinds of devices, and the best path between any two nodes.

Pools and fabrics are the nodes of a graph; a pool hangs on a fabric by its NICs, fabrics hang together by
links. Two nodes talk along the widest path; pools never forward traffic for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, combinations_with_replacement, pairwise

import networkx as nx

from planner.spec.cluster import ClusterSpec, HostSpec, PoolSpec
from planner.units import (
    bytes_from_gib,
    bytes_per_second_from_gbps,
    bytes_per_second_from_gigabytes,
    flops_from_tflops,
    seconds_from_us,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What each device of a node has of its host when all of them use it at the same time."""

    devices: int
    """Devices of one node, of all kinds."""
    bytes_per_second: float | None
    """Copies to or from host memory in one direction; None when unknown."""
    nvme_bytes_per_second: float | None
    """Reads from or writes to NVMe; None without one."""
    memory_bytes: float
    """Infinite when unknown."""
    parameters_per_second: float | None
    """AdamW updates on the processors; None for what the runtime is known to reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Interchangeable devices: one kind of GPU in one pool."""

    pool: str
    gpu: str
    family: str
    """Generation of the GPU, which calibrations are kept for; empty for an unknown device."""
    multiprocessors: int
    """Streaming multiprocessors or compute units; 0 when unknown."""
    nodes: int
    per_node: int
    """Devices of this kind on one node."""
    memory_bytes: float
    reserve_bytes: float
    memory_bytes_per_second: float
    peak_flops: dict[str, float]
    """Dense peak FLOP/s by number format."""
    intra_bytes_per_second: float
    """Bandwidth of one device to its neighbours in the node, one direction."""
    intra_latency_seconds: float
    intra_shared: bool
    price_per_gpu_hour: float | None
    host: Host

    @property
    def key(self) -> tuple[str, str]:
        """(pool, gpu), unique in the cluster."""
        return self.pool, self.gpu

    @property
    def devices(self) -> int:
        """Devices of this kind in the cluster."""
        return self.nodes * self.per_node

    def replicas(self, tp: int) -> int:
        """Replicas of ``tp`` devices that fit, none across nodes."""
        return self.nodes * (self.per_node // tp)


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
    """``node``, or the slowest kind of fabric on the way: infiniband, roce, ethernet."""
    first_cards: int
    """Network cards of one node at the first end that carry it; 1 inside a node."""
    last_cards: int
    first_families: tuple[str, ...]
    """GPU families of the nodes at the first end, whose hosts run the sockets."""
    last_families: tuple[str, ...]

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth of one node to one other node."""
        return min(self.first_bytes_per_second, self.last_bytes_per_second, self.shared_bytes_per_second)

    @property
    def connected(self) -> bool:
        """False when the two nodes cannot talk."""
        return bool(self.fabric)


_SLOWER = ("infiniband", "roce", "ethernet")

NO_PATH = Path(
    fabric="",
    first_bytes_per_second=0.0,
    last_bytes_per_second=0.0,
    shared_bytes_per_second=0.0,
    latency_seconds=0.0,
    kind="",
    first_cards=1,
    last_cards=1,
    first_families=(),
    last_families=(),
)


def _preference(path: Path) -> tuple[float, float, float, int, str]:
    """Wider is better; of equal ones the network that loses less of it: RDMA, few cards. Names decide last."""
    cards, slower = path.first_cards + path.last_cards, _SLOWER.index(path.kind)
    return path.bytes_per_second, -slower, -path.latency_seconds, -cards, path.fabric


SLOW = 0.5
"""A link between pools is slow when it has less than this part of the widest network inside one of them."""


def sockets_only(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster as a job sees it that can use no RDMA: Ethernet fabrics, the cards and links on them."""
    kept = {name for name, fabric in cluster.fabrics.items() if fabric.kind == "ethernet"}
    pools = tuple(
        pool.model_copy(update={"nics": tuple(nic for nic in pool.nics if nic.fabric in kept)})
        for pool in cluster.pools
    )
    links = tuple(link for link in cluster.links if set(link.between) <= kept)
    fabrics = {name: fabric for name, fabric in cluster.fabrics.items() if name in kept}
    return cluster.model_copy(update={"pools": pools, "links": links, "fabrics": fabrics})


class Topology:
    """A cluster as kinds of devices and paths; immutable, answers are cached."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self._pools = {pool.name: pool for pool in cluster.pools}
        self._paths: dict[tuple[str, str], Path] = {}

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind of device, in the order of the pools and of their devices."""
        keys = ((pool, gpu) for pool in self.cluster.pools for gpu in dict.fromkeys(pool.devices))
        return tuple(self._kind(*key) for key in keys)

    @cached_property
    def graph(self) -> nx.Graph[tuple[str, str]]:
        """Fabrics and the links that join them, with bandwidth and latency on the edges."""
        graph: nx.Graph[tuple[str, str]] = nx.Graph()
        graph.add_nodes_from(("fabric", name) for name in self.cluster.fabrics)
        for link in self.cluster.links:
            first, last = (("fabric", name) for name in link.between)
            rate = bytes_per_second_from_gbps(link.bandwidth_gbps)
            if not graph.has_edge(first, last) or graph.edges[first, last]["rate"] < rate:
                graph.add_edge(first, last, rate=rate, latency=seconds_from_us(link.latency_us))
        return graph

    def kind(self, pool: str, gpu: str) -> Kind:
        """The kind with this pool and GPU name; KeyError when the cluster has none."""
        return self._kind_index[pool, gpu]

    @cached_property
    def _kind_index(self) -> dict[tuple[str, str], Kind]:
        return {kind.key: kind for kind in self.kinds}

    def path(self, first: str, last: str) -> Path:
        """The widest path between nodes of two pools; of two different nodes when the pools are the same."""
        key = (first, last)
        if key not in self._paths:
            self._paths[key] = self._widest(self._pools[first], self._pools[last])
        return self._paths[key]

    def on_rdma(self, first: str, last: str) -> bool:
        """True when nodes of the two pools reach each other by RDMA all the way, or inside a node."""
        path = self.path(first, last)
        if path.fabric == "node":
            return True
        return path.kind in ("infiniband", "roce")

    def needs_sockets(self, pools: Iterable[str]) -> bool:
        """True when some two nodes of these pools reach each other by Ethernet only."""
        return any(not self.on_rdma(*pair) for pair in combinations_with_replacement(sorted(set(pools)), 2))

    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Pools that reach each other by RDMA, largest sets, all in the order of the pools."""
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(name for name in self._pools if self.on_rdma(name, name))
        graph.add_edges_from(pair for pair in combinations(graph, 2) if self.on_rdma(*pair))
        return self._in_order(nx.find_cliques(graph))

    def joined_slowly(self, pools: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Parts of these pools that only slow links join, in the order of the pools; empty where none is slow."""
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(pools)
        pairs = combinations(pools, 2)
        graph.add_weighted_edges_from((*pair, self.path(*pair).bytes_per_second) for pair in pairs)
        tree = nx.maximum_spanning_tree(graph)
        rates: dict[tuple[str, str], float] = {pair: self.path(*pair).bytes_per_second for pair in tree.edges}
        widest = max(self.path(pool, pool).bytes_per_second for pool in pools)
        weakest = min(rates.values(), default=widest)
        if weakest >= SLOW * widest:
            return ()
        tree.remove_edges_from([pair for pair, rate in rates.items() if rate <= weakest])
        return self._in_order(nx.connected_components(tree))

    def _in_order(self, sets: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
        """Sets of pools, and the pools of each, in the order of the cluster."""
        index = list(self._pools).index
        found = (tuple(sorted(part, key=index)) for part in sets)
        return tuple(sorted(found, key=lambda part: [*map(index, part)]))

    def node_bytes_per_second(self, pool: str) -> float:
        """What the cards of one node carry on its widest fabric; inside the node where it has none."""
        spec = self._pools[pool]
        rates = (
            self._nic_rate(spec, nic.fabric) / self.cluster.fabrics[nic.fabric].oversubscription
            for nic in spec.nics
        )
        return max(rates, default=bytes_per_second_from_gigabytes(spec.intra_node.bandwidth_gBps))

    def cards(self, pool: str, fabric: str) -> int:
        """Network cards that a node of the pool has on a fabric."""
        return sum(nic.count for nic in self._pools[pool].nics if nic.fabric == fabric)

    def widest_fabric(self, pool: str) -> str:
        """The fabric that ``node_bytes_per_second`` speaks of; empty without one."""
        spec = self._pools[pool]
        rates = {
            nic.fabric: self._nic_rate(spec, nic.fabric) / self.cluster.fabrics[nic.fabric].oversubscription
            for nic in spec.nics
        }
        return max(sorted(rates), key=lambda name: rates[name], default="")

    def link_matrix(self) -> tuple[tuple[str, ...], tuple[tuple[Path, ...], ...]]:
        """Pool names in file order and the path between each two, [pool][pool]."""
        names = tuple(pool.name for pool in self.cluster.pools)
        return names, tuple(tuple(self.path(first, last) for last in names) for first in names)

    def _widest(self, first: PoolSpec, last: PoolSpec) -> Path:
        if first.name == last.name and len(first.hosts) == 1:
            return self._inside(first)
        candidates = [
            self._route(first, last, [name for _, name in route])
            for start in {nic.fabric for nic in first.nics}
            for end in {nic.fabric for nic in last.nics}
            for route in self._routes(start, end)
        ]
        return max(candidates, key=_preference, default=NO_PATH)

    def _routes(self, start: str, end: str) -> list[list[tuple[str, str]]]:
        if start == end:
            return [[("fabric", start)]]
        return list(nx.all_simple_paths(self.graph, ("fabric", start), ("fabric", end)))

    def _route(self, first: PoolSpec, last: PoolSpec, fabrics: list[str]) -> Path:
        edges = [self.graph.edges[("fabric", a), ("fabric", b)] for a, b in pairwise(fabrics)]
        specs = [self.cluster.fabrics[name] for name in fabrics]
        return Path(
            fabric="+".join(fabrics),
            first_bytes_per_second=self._nic_rate(first, fabrics[0]) / specs[0].oversubscription,
            last_bytes_per_second=self._nic_rate(last, fabrics[-1]) / specs[-1].oversubscription,
            shared_bytes_per_second=min((edge["rate"] for edge in edges), default=float("inf")),
            latency_seconds=sum(seconds_from_us(spec.latency_us) for spec in specs)
            + sum(edge["latency"] for edge in edges),
            kind=max((spec.kind for spec in specs), key=_SLOWER.index),
            first_cards=self.cards(first.name, fabrics[0]),
            last_cards=self.cards(last.name, fabrics[-1]),
            first_families=self._families(first),
            last_families=self._families(last),
        )

    def _families(self, pool: PoolSpec) -> tuple[str, ...]:
        return tuple(sorted({self.cluster.gpus[name].family for name in pool.devices}))

    @staticmethod
    def _nic_rate(pool: PoolSpec, fabric: str) -> float:
        return sum(
            bytes_per_second_from_gbps(nic.bandwidth_gbps) * nic.count
            for nic in pool.nics
            if nic.fabric == fabric
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
            first_families=(),
            last_families=(),
        )

    def _kind(self, pool: PoolSpec, gpu: str) -> Kind:
        spec = self.cluster.gpus[gpu]
        return Kind(
            pool=pool.name,
            gpu=gpu,
            family=spec.family,
            multiprocessors=spec.multiprocessors,
            nodes=len(pool.hosts),
            per_node=pool.devices.count(gpu),
            memory_bytes=bytes_from_gib(spec.memory_gib),
            reserve_bytes=bytes_from_gib(self.cluster.reserve_of(pool, gpu)),
            memory_bytes_per_second=bytes_per_second_from_gigabytes(spec.memory_bandwidth_gBps),
            peak_flops={dtype: flops_from_tflops(value) for dtype, value in spec.tflops.items()},
            intra_bytes_per_second=bytes_per_second_from_gigabytes(pool.intra_node.bandwidth_gBps),
            intra_latency_seconds=seconds_from_us(pool.intra_node.latency_us),
            intra_shared=pool.intra_node.shared,
            price_per_gpu_hour=pool.price_per_gpu_hour,
            host=self._host(pool, gpu),
        )

    def _host(self, pool: PoolSpec, gpu: str) -> Host:
        host, devices = pool.host or HostSpec(), len(pool.devices)
        link, nvme, rate = self.cluster.host_link_of(pool, gpu), host.nvme_gBps, host.adam_billion_per_s
        return Host(
            devices=devices,
            bytes_per_second=link and bytes_per_second_from_gigabytes(link),
            nvme_bytes_per_second=nvme and bytes_per_second_from_gigabytes(nvme) / devices,
            memory_bytes=bytes_from_gib(host.memory_gib) / devices if host.memory_gib else float("inf"),
            parameters_per_second=rate and rate * 1e9 / devices,
        )
