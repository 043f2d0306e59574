"""What is wrong with rows of measured points as a whole: repetitions, and curves of one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from planner.calibration_merge import link_name_key, name_key

Row = tuple[int, Mapping[str, Any]]
"""Where the row stands (its index, or its line), and its values by key, as far as they can be read."""

LAYER_KEYS = ("gpu", "model", "tp", "micro_batch")
LINK_KEYS = ("link", "operation", "members", "size_bytes")
KERNEL_KEYS = ("gpu", "kernel", "precision", "shape")
RESIDUAL_KEYS = ("family", "stack")
_CURVE_KEYS = LINK_KEYS[:3]
_NORMAL = {"gpu": name_key, "model": name_key, "link": link_name_key}


def repeated(rows: Iterable[Row], keys: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """(where, where before) of every row that measures what an earlier one has measured."""
    first: dict[Hashable, int] = {}
    for where, row in rows:
        key = _key(row, keys)
        if key is not None and first.setdefault(key, where) != where:
            yield where, first[key]


def lonely(rows: Iterable[Row]) -> Iterator[tuple[int, str]]:
    """(where, curve in words) of every link point whose curve has no second size."""
    known = [(where, row, _key(row, _CURVE_KEYS)) for where, row in rows]
    sizes = Counter(key for _, _, key in known)
    for where, row, key in known:
        if key is not None and sizes[key] == 1:
            yield where, f"{row['operation']} of {row['members']} over {row['link']}"


def _key(row: Mapping[str, Any], keys: tuple[str, ...]) -> Hashable | None:
    """The values of the keys, None when one cannot be read."""
    found: list[Hashable] = []
    for key in keys:
        value = row.get(key)
        if not isinstance(value, str | int | float):
            return None
        found.append(_NORMAL[key](value) if key in _NORMAL and isinstance(value, str) else value)
    return tuple(found)
