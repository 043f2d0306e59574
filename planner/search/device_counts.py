"""How many devices of each kind data parallelism may use: all numbers of a small cluster, round ones of a large one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from planner.topology import Kind

MAX_COUNTS = 4096
"""Ways to choose how many devices of each kind take part; larger clusters are offered in coarser steps."""


def device_counts(
    kinds: Sequence[Kind], global_batch: int, shard_size: int | None = None
) -> list[tuple[int, ...]]:
    """How many devices of each kind may take part, [way][kind]: all ways, or the round ones of a large cluster.

    In sharding groups at least two of them.
    """
    for most in (8, 4, 2, 1):
        counts = [
            _counts(kind, most) if shard_size is None else _counts_of_groups(kind, most, shard_size)
            for kind in kinds
        ]
        total = 1
        for found in counts:
            total *= len(found)
        if total <= MAX_COUNTS:
            break
    return [way for way in product(*counts) if (shard_size or 0) < sum(way) <= global_batch]


def _counts(kind: Kind, most: int) -> tuple[int, ...]:
    """0, up to ``most`` round numbers in a node and of nodes, and all."""
    if kind.devices <= most:
        return tuple(range(kind.devices + 1))
    inside = {kind.per_node >> shift for shift in range(most)} - {0} if most > 1 else set()
    nodes = {kind.per_node * max(1, kind.nodes >> shift) for shift in range(most)}
    return (0, *sorted(inside | nodes | {kind.devices}))


def _counts_of_groups(kind: Kind, most: int, size: int) -> tuple[int, ...]:
    """As many devices as make whole groups: all numbers of groups, or none, up to ``most`` round ones and all."""
    groups = kind.devices // size
    few = range(groups + 1) if groups <= most else sorted({0, *(groups >> shift for shift in range(most))})
    return tuple(size * number for number in few)
