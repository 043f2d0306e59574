"""How pools reach each other: bandwidth between every two pools, with the path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from rich.console import Group, RenderableType

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Path, Topology
from planner.report.layout import pairs, section
from planner.report.numbers import duration, significant
from planner.report.paragraph import Paragraph
from planner.report.table import number, table, words

PER_BLOCK = 5
"""Columns of the matrix that fit 80 cells."""
SHOWN = 40
"""Pools of the matrix, and pairs of pools without a path that are named."""

Paths = Sequence[Sequence[Path]]


def links_section(topology: Topology) -> Group:
    """The matrix in GB/s, each cell with the letter of its path, and what the letters mean."""
    pools = [pool.name for pool in topology.cluster.pools]
    names = pools[:SHOWN]
    paths = [[topology.path(first, last) for last in names] for first in names]
    letters = _letters(paths)
    blocks: list[RenderableType] = []
    for first in range(0, len(names), PER_BLOCK):
        columns = range(first, min(first + PER_BLOCK, len(names)))
        blocks.append(_block(names, paths, letters, columns))
    if len(pools) > len(names):
        text = f"and {len(pools) - len(names):,} more pools; --json has the links between all"
        blocks.append(Paragraph(text))
    latencies = _latencies(paths)
    legend = [
        (letter, _meaning(route, latencies[route], topology.cluster)) for route, letter in letters.items()
    ]
    return section("Links: one node to another (GB/s, path)", *blocks, pairs(legend))


def _block(names: Sequence[str], paths: Paths, letters: dict[str, str], columns: range) -> RenderableType:
    headings = (words("pool", least=10), *(number(names[column]) for column in columns))
    rows = [
        [names[row], *(_cell(paths[row][column], letters) for column in columns)] for row in range(len(names))
    ]
    return table(headings, rows)


def _cell(path: Path, letters: dict[str, str]) -> str:
    if not path.connected:
        return "no path"
    return f"{significant(path.bytes_per_second / 1e9)} {letters[_route(path)]}"


def _letters(paths: Paths) -> dict[str, str]:
    fabrics = sorted({_route(path) for row in paths for path in row if path.connected})
    return {fabric: _letter(index) for index, fabric in enumerate(fabrics)}


def _route(path: Path) -> str:
    """The fabrics of a path, the same in both directions."""
    parts = path.fabric.split("+")
    return "+".join(min(parts, parts[::-1]))


def _letter(index: int) -> str:
    """a .. z, then a1, b1, ..."""
    turn, letter = divmod(index, 26)
    return chr(ord("a") + letter) + (str(turn) if turn else "")


def _latencies(paths: Paths) -> dict[str, list[float]]:
    """Of every path by its route, seconds."""
    found: dict[str, list[float]] = {}
    for path in chain.from_iterable(paths):
        found.setdefault(_route(path), []).append(path.latency_seconds)
    return found


def _meaning(route: str, latencies: Sequence[float], cluster: ClusterSpec) -> str:
    """Kind and latency behind a letter."""
    if route == "node":
        return "inside the one node of the pool"
    kinds = [cluster.fabrics[name].kind for name in route.split("+") if name in cluster.fabrics]
    low, high = duration(min(latencies)), duration(max(latencies))
    latency = low if low == high else f"{low} to {high}"
    return f"{route} ({' + '.join(dict.fromkeys(kinds))}, {latency})"


def unreachable(topology: Topology) -> list[str]:
    """Pairs of pools that cannot talk, one sentence each; how many more there are."""
    apart = topology.apart()
    told = [
        f"{first} and {last} share no fabric and no link: no plan can use both in one job"
        for first, last in islice(apart, SHOWN)
    ]
    more = sum(1 for _ in apart)
    return [*told, f"nor do {more:,} more pairs of pools"] if more else told
