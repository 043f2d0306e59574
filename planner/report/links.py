"""How pools reach each other: bandwidth between every two pools, with the path."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from planner.report.layout import pairs, section
from planner.report.numbers import duration, significant
from planner.report.table import number, table, words
from planner.spec.cluster import ClusterSpec
from planner.topology import Path

PER_BLOCK = 5
"""Columns of the matrix that fit 80 cells."""


def links_section(names: Sequence[str], paths: Sequence[Sequence[Path]], cluster: ClusterSpec) -> Group:
    """The matrix in GB/s, each cell with the letter of its path, and what the letters mean."""
    letters = _letters(paths)
    blocks: list[RenderableType] = []
    for first in range(0, len(names), PER_BLOCK):
        columns = range(first, min(first + PER_BLOCK, len(names)))
        blocks.append(_block(names, paths, letters, columns))
    legend = [(letter, _meaning(fabric, paths, cluster)) for fabric, letter in letters.items()]
    return section("Links: one node to another (GB/s, path)", *blocks, pairs(legend))


def _block(
    names: Sequence[str], paths: Sequence[Sequence[Path]], letters: dict[str, str], columns: range
) -> RenderableType:
    headings = (words("pool", least=10), *(number(names[column]) for column in columns))
    rows = [
        [names[row], *(_cell(paths[row][column], letters) for column in columns)] for row in range(len(names))
    ]
    return table(headings, rows)


def _cell(path: Path, letters: dict[str, str]) -> str:
    if not path.connected:
        return "no path"
    return f"{significant(path.bytes_per_second / 1e9)} {letters[_route(path)]}"


def _letters(paths: Sequence[Sequence[Path]]) -> dict[str, str]:
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


def _meaning(fabric: str, paths: Sequence[Sequence[Path]], cluster: ClusterSpec) -> str:
    """Kind and latency behind a letter."""
    if fabric == "node":
        return "inside the one node of the pool"
    latencies = {path.latency_seconds for row in paths for path in row if _route(path) == fabric}
    kinds = [cluster.fabrics[name].kind for name in fabric.split("+") if name in cluster.fabrics]
    low, high = duration(min(latencies)), duration(max(latencies))
    latency = low if low == high else f"{low} to {high}"
    return f"{fabric} ({' + '.join(dict.fromkeys(kinds))}, {latency})"


def unreachable(names: Sequence[str], paths: Sequence[Sequence[Path]]) -> list[str]:
    """Pairs of pools that cannot talk, one sentence each."""
    return [
        f"{names[row]} and {names[column]} share no fabric and no link: no plan can use both in one job"
        for row in range(len(names))
        for column in range(row, len(names))
        if not paths[row][column].connected
    ]
