"""The file as plain data, read with whatever is wrong left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.files.document import Document
from planner.files.short_lists import split_times


def pools_of(document: Document) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, pool) of every pool that is a mapping."""
    return mappings(document.data.get("pools"))


def mappings(value: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, item) of every mapping of a list, nothing for what is no list."""
    if isinstance(value, list):
        yield from ((index, item) for index, item in enumerate(value) if isinstance(item, dict))


def keys_of(value: object) -> list[str]:
    """Keys of a mapping, nothing for what is none."""
    return [str(key) for key in value] if isinstance(value, dict) else []


def devices_per_node(pool: dict[str, Any]) -> int:
    """Devices of one node of a pool, as far as it can be read."""
    devices, count = pool.get("devices"), pool.get("gpus_per_node")
    if isinstance(devices, list):
        return sum(split_times(item)[0] if isinstance(item, str) else 1 for item in devices)
    return count if isinstance(count, int) else 1
