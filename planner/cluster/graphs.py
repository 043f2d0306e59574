"""Analysis of graphs; importing networkx takes long, so this is imported where there is a graph to analyse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import networkx as nx

Edges = Iterable[tuple[str, str, float]]
"""(first, last, width)."""


def cliques(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The largest sets whose members are all paired with each other; one that is paired with itself is a set too."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_edges_from(pairs)
    return list(nx.find_cliques(graph))


def connected(names: Iterable[str], edges: Edges) -> list[set[str]]:
    """Sets of names that chains of edges join."""
    return list(nx.connected_components(_graph(names, edges)))


class WidestTree:
    """Edges that hold the widest chain between any two names that one joins."""

    def __init__(self, names: Iterable[str], edges: Edges) -> None:
        self._tree: nx.Graph[str] = nx.maximum_spanning_tree(_graph(names, edges))

    def edges(self) -> Edges:
        """All of them."""
        edges: Edges = self._tree.edges.data("weight")
        return edges

    def hops_from(self, first: str) -> Iterator[tuple[str, str]]:
        """(near, far) of every edge within reach, those near to ``first`` before those behind them."""
        yield from nx.bfs_edges(self._tree, first)


def _graph(names: Iterable[str], edges: Edges) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(names)
    graph.add_weighted_edges_from(edges)
    return graph
