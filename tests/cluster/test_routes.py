"""The best chain of fabrics against the simple way: every chain, priced."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest

from planner.cluster.spec import ClusterSpec, FabricLinkSpec, FabricSpec, NicSpec
from planner.cluster.topology import SLOWER, Routes, Topology
from tests.quick import every
from tests.worlds import cluster, pool

NAMES = ("a", "aa", "a.b", "b-1", "c", "d", "e")


def any_cluster(seed: int) -> ClusterSpec:
    """Up to seven fabrics, some linked, few different numbers so that many chains are equal; three pools."""
    draw = random.Random(seed)
    fabrics = {
        name: FabricSpec(
            kind=draw.choice(SLOWER),  # type: ignore[arg-type]
            latency_us=draw.choice([0.0, 0.1, 0.2, 5.0]),
            oversubscription=draw.choice([1.0, 1.0, 2.0]),
        )
        for name in draw.sample(NAMES, draw.randint(2, len(NAMES)))
    }
    links = tuple(
        FabricLinkSpec(
            between=(first, last),
            bandwidth_gbps=draw.choice([15, 50, 100, 200]),
            latency_us=draw.choice([0.0, 0.1, 0.3, 5.0]),
        )
        for first, last in (draw.sample(sorted(fabrics), 2) for _ in range(draw.randint(0, 12)))
    )
    nics = [
        NicSpec(fabric=name, bandwidth_gbps=draw.choice([10, 25, 50, 100]), count=draw.choice([1, 2]))
        for name in fabrics
    ]
    pools = (
        pool(name, nodes=draw.randint(1, 2)).model_copy(
            update={"nics": tuple(draw.sample(nics, draw.randint(1, min(3, len(nics)))))}
        )
        for name in ("x", "y", "z")
    )
    return cluster(*pools).model_copy(update={"fabrics": fabrics, "links": links})


def widest_links(spec: ClusterSpec) -> dict[frozenset[str], FabricLinkSpec]:
    """The widest link between two fabrics, the first of equal ones."""
    found: dict[frozenset[str], FabricLinkSpec] = {}
    for link in spec.links:
        pair = frozenset(link.between)
        if pair not in found or found[pair].bandwidth_gbps < link.bandwidth_gbps:
            found[pair] = link
    return found


Rank = tuple[float, int, float, Fraction, int, int, str]


def rank(spec: ClusterSpec, chain: list[str], ends: tuple[str, str]) -> Rank:
    """What decides between chains: what they carry, kind, rate in Gbit/s, latency, cards, links, name."""
    links = [widest_links(spec)[frozenset(pair)] for pair in pairwise(chain)]
    rates, cards = [link.bandwidth_gbps for link in links], 0
    for end, name in zip(ends, (chain[0], chain[-1]), strict=True):
        nics = [nic for item in spec.pools if item.name == end for nic in item.nics if nic.fabric == name]
        rates.append(
            sum(nic.bandwidth_gbps * nic.count for nic in nics) / spec.fabrics[name].oversubscription
        )
        cards += sum(nic.count for nic in nics)
    slowest = max(SLOWER.index(spec.fabrics[name].kind) for name in chain)
    parts = [*(spec.fabrics[name].latency_us for name in chain), *(link.latency_us for link in links)]
    latency = sum((Fraction(str(part)) for part in parts), Fraction(0))
    rate = min(rates)
    carried = min(0.85 * rate, 20) if SLOWER[slowest] == "ethernet" else rate
    return carried, -slowest, rate, -latency, -cards, -len(chain), "+".join(chain)


def simplest(spec: ClusterSpec, first: str, last: str) -> Rank | None:
    """The best rank of all chains between two pools, each tried; None where they cannot talk."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(spec.fabrics)
    graph.add_edges_from(link.between for link in spec.links)
    on = {item.name: {nic.fabric for nic in item.nics} for item in spec.pools}
    chains = [
        chain
        for start in on[first]
        for end in on[last]
        for chain in ([[start]] if start == end else nx.all_simple_paths(graph, start, end))
    ]
    return max((rank(spec, chain, (first, last)) for chain in chains), default=None)


@pytest.mark.parametrize("first_seed", every(4, range(0, 400, 100)))
def test_the_best_chain_is_the_one_that_trying_all_finds(first_seed: int) -> None:
    """Between every two pools, and between nodes of one, in both directions; the same pairs are apart."""
    for seed in range(first_seed, first_seed + 100):
        spec = any_cluster(seed)
        topology = Topology(spec)
        names = [item.name for item in spec.pools]
        several = {item.name for item in spec.pools if len(item.hosts) > 1}
        apart = set()
        for first, last in ((first, last) for first in names for last in names):
            if first == last and first not in several:
                assert topology.path(first, last).fabric == "node"
                continue
            wanted, found = simplest(spec, first, last), topology.path(first, last)
            assert found.connected == (wanted is not None)
            if wanted is None:
                apart.add((first, last))
                continue
            assert found.fabric == wanted[-1], f"seed {seed}, {first} to {last}"
            assert found.bytes_per_second == pytest.approx(wanted[2] * 1e9 / 8)
            assert found.latency_seconds == pytest.approx(-float(wanted[3]) * 1e-6)
            assert SLOWER.index(found.kind) == -wanted[1]
        assert set(topology.apart()) == {(a, b) for a, b in apart if names.index(a) <= names.index(b)}


def test_a_mesh_of_gateways_is_no_more_work_than_its_links() -> None:
    """Forty fabrics, each linked with each: trying all chains would take longer than the age of the universe."""
    names = [f"f{index:02}" for index in range(40)]
    fabrics = {name: FabricSpec(kind="roce", latency_us=1) for name in names}
    links = tuple(
        FabricLinkSpec(between=(first, last), bandwidth_gbps=100, latency_us=1)
        for first in names
        for last in names
        if first < last
    )
    spec = cluster(pool("x"), pool("y")).model_copy(update={"fabrics": fabrics, "links": links})
    assert Routes(spec).best("f00", "f39", float("inf")) == ("f00", "f39")
