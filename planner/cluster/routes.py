"""Chains of linked fabrics: the one that joins two fabrics best, without trying them all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from math import lcm
from typing import TYPE_CHECKING

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.records import dataclass
from planner.units import bytes_per_second_from_gbps

if TYPE_CHECKING:
    from planner.cluster.graphs import WidestTree

SLOWER = ("infiniband", "roce", "ethernet")
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
class End:
    """The cards of one node on one fabric."""

    bytes_per_second: float
    """What they carry together in one direction, and the fabric of it when all nodes send."""
    cards: int


def ends_of(cluster: ClusterSpec) -> dict[str, dict[str, End]]:
    """What a node of each pool has on each of its fabrics, by the pool's and the fabric's name."""
    return {
        pool.name: {nic.fabric: _end(cluster, pool, nic.fabric) for nic in pool.nics}
        for pool in cluster.pools
    }


def _end(cluster: ClusterSpec, pool: PoolSpec, fabric: str) -> End:
    nics = [nic for nic in pool.nics if nic.fabric == fabric]
    rate = sum(bytes_per_second_from_gbps(nic.bandwidth_gbps) * nic.count for nic in nics)
    return End(
        bytes_per_second=rate / cluster.fabrics[fabric].oversubscription,
        cards=sum(nic.count for nic in nics),
    )


class Routes:
    """The best chain of fabrics between any two of them; answers are cached."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self._fabrics = cluster.fabrics
        self._kinds = {name: SLOWER.index(fabric.kind) for name, fabric in cluster.fabrics.items()}
        self._hops: dict[str, dict[str, Hop]] = {name: {} for name in cluster.fabrics}
        for link in cluster.links:
            first, last = link.between
            hop = Hop(bytes_per_second_from_gbps(link.bandwidth_gbps), link.latency_us)
            known = self._hops[first].get(last)
            if known is None or known.bytes_per_second < hop.bytes_per_second:
                self._hops[first][last] = self._hops[last][first] = hop
        self._widest: dict[str, dict[str, float]] = {}
        self._trees: dict[tuple[str, float, int], dict[str, Chain]] = {}

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
        from planner.cluster.graphs import connected

        parts = enumerate(connected(self._hops, self._links))
        return {name: index for index, part in parts for name in part}

    @property
    def _links(self) -> Iterator[tuple[str, str, float]]:
        """(fabric, fabric, bytes/s) of every hop."""
        for first, hops in self._hops.items():
            yield from ((first, last, hop.bytes_per_second) for last, hop in hops.items())

    @cached_property
    def _widest_tree(self) -> WidestTree:
        """Links that hold the widest chain between any two fabrics."""
        from planner.cluster.graphs import WidestTree

        return WidestTree(self._hops, self._links)

    def _widest_from(self, first: str) -> dict[str, float]:
        """Rate of the widest chain to each other fabric, bytes/s."""
        if first not in self._widest:
            widest = {first: float("inf")}
            for near, far in self._widest_tree.hops_from(first):
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
