"""Tables of what the program makes of many cases, kept beside the tests: a change of the program shows in them.

A row is (case, place in it, term, value); numbers that are 0, but for rounding, and words that are empty have none.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from io import StringIO
from math import isclose, isinf
from pathlib import Path

Row = tuple[str, str, str, str]
HEAD = ("case", "place", "term", "value")
CLOSE = 1e-12
"""Relative difference of numbers that count as equal: they are written with 13 digits."""
NOTHING = 1e-14
"""What sums of seconds leave of 0, which differs between versions of Python."""


def terms(case: str, place: str, values: object, *more: str) -> Iterator[Row]:
    """A row for each number and word among the fields of a dataclass, and for each of its properties in ``more``."""
    names = [field.name for field in fields(values)]  # type: ignore[arg-type]
    yield from rows(case, place, {name: getattr(values, name) for name in (*names, *more)})


def rows(case: str, place: str, values: Mapping[str, object]) -> Iterator[Row]:
    """A row for each number and word."""
    for name, value in values.items():
        if isinstance(value, float) and abs(value) < NOTHING:
            continue
        if isinstance(value, bool | int | float | str) and value not in (0, ""):
            yield (
                case,
                place,
                name,
                f"{value:.13g}" if isinstance(value, float) else " ".join(str(value).split()),
            )


def written(table: Iterable[Row]) -> str:
    """The table as a file."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows((HEAD, *table))
    return text.getvalue()


def read(path: Path) -> list[Row]:
    """The rows of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *found = csv.reader(file)
    return [(case, place, term, value) for case, place, term, value in found]


def by_case(table: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each case, in order."""
    found: dict[str, list[Row]] = {}
    for row in table:
        found.setdefault(row[0], []).append(row)
    return found


def differences(now: Iterable[Row], then: Iterable[Row], close: float = CLOSE) -> list[str]:
    """What two tables do not have in common, for people."""
    new, old = ({row[:3]: row[3] for row in table} for table in (now, then))
    return [
        f"{', '.join(key)}: {old.get(key, 'nothing')} is now {new.get(key, 'nothing')}"
        for key in dict.fromkeys((*old, *new))
        if not _equal(new.get(key, ""), old.get(key, ""), close)
    ]


def _equal(one: str, other: str, close: float) -> bool:
    if one == other:
        return True
    try:
        first, second = float(one), float(other)
    except ValueError:
        return False
    return not isinf(first) and isclose(first, second, rel_tol=close, abs_tol=0.0)
