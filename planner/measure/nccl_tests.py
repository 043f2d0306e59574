"""Tables that nccl-tests prints (all_reduce_perf and its like) as points of a link's curve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import median

from planner.calibration.values import LinkPoint, Operation
from planner.errors import Problem
from planner.files.document import fail_on, read_text
from planner.ranges import BYTES, SECONDS

OPERATIONS: dict[str, Operation] = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send",
}
"""By the name of the test."""

_PREFIX = re.compile(r"^(\[[^\]]*\](<\w+>)?:?|\s*\d+:)\s*")
"""What mpirun, or ``srun --label``, puts ahead of a line of a rank."""
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b(?:\s+Group\s+(\d+)\b)?")
"""The group is the communicator: one of all ranks unless NCCL_TESTS_SPLIT or its mask divides them."""
_LIBRARY = re.compile(r"\bNCCL (INFO|WARN|TRACE|CALL|ABORT|VERSION)\b")
"""What the library itself prints under NCCL_DEBUG, behind the name of a host that may begin with a digit."""
_TEST = re.compile(r"\b(" + "|".join(OPERATIONS) + r")(_perf)?\b")


@dataclass(slots=True)
class _NcclTable:
    """What was read so far."""

    file: str
    columns: list[str] = field(default_factory=list)
    ranks: list[dict[str, set[int]]] = field(default_factory=lambda: [{}])
    """Those listed ahead of each table, and behind the last one, by group."""
    tests: set[str] = field(default_factory=set)
    times: dict[int, list[float]] = field(default_factory=dict)
    """Seconds by bytes."""

    def problem(self, line: int | None, key: str, what: str, hint: str | None = None) -> Problem:
        return Problem(file=self.file, line=line, key=key, what=what, hint=hint)


def read_nccl_tests(
    path: Path,
    link: str,
    operation: Operation | None = None,
    members: int | None = None,
    *,
    concurrent: int = 1,
) -> tuple[LinkPoint, ...]:
    """Out-of-place times of a table, the median where a size was run again.

    ``operation`` and ``members`` win over what the text says; the groups that share the cards of a node it does not
    say. Raises SpecError with every problem of the file.
    """
    text = read_text(path, "text")
    table = _NcclTable(str(path))
    fail_on(
        [
            problem
            for number, line in enumerate(text.splitlines(), 1)
            for problem in _read(table, number, line)
        ]
    )
    fail_on(_missing(table, operation, members))
    known = operation or OPERATIONS[next(iter(table.tests))]
    count = 2 if known == "send" else members or next(iter(_sizes(table)))
    return tuple(
        LinkPoint(
            link=link,
            operation=known,
            members=count,
            size_bytes=float(size),
            seconds=median(times),
            concurrent=concurrent,
        )
        for size, times in sorted(table.times.items())
    )


def _read(table: _NcclTable, number: int, line: str) -> Iterator[Problem]:
    """Take one line into the table; what is wrong with it."""
    text = _PREFIX.sub("", line).strip()
    if _LIBRARY.search(text):
        return
    if text.startswith("#"):
        rank = _RANK.match(text)
        if rank:
            table.ranks[-1].setdefault(rank.group(2) or "0", set()).add(int(rank.group(1)))
        elif "time" in text.split() and "size" in text.split():
            table.columns = text.lstrip("# ").split()
            table.ranks.append({})
    elif text[:1].isdigit():
        yield from _row(table, number, text.split())
        return
    table.tests |= {match.group(1) for match in _TEST.finditer(text)}


def _row(table: _NcclTable, number: int, cells: list[str]) -> Iterator[Problem]:
    if not table.columns:
        what = "numbers before the line that names the columns"
        yield table.problem(number, "", what, "keep the lines that begin with #")
        return
    if table.columns[-1] == "timestamp" and len(cells) == len(table.columns) + 1:
        cells = [*cells[:-2], " ".join(cells[-2:])]  # date and time
    if len(cells) != len(table.columns):
        what = f"expected {len(table.columns)} cells, got {len(cells)}"
        yield table.problem(
            number, "", what, "the line was cut, or two outputs were mixed: run the test again"
        )
        return
    row = dict(zip(reversed(table.columns), reversed(cells), strict=True))  # the first of two columns wins
    checks = (cell for name, cell in zip(table.columns, cells, strict=True) if name == "#wrong")
    wrong = next((cell for cell in checks if cell not in ("0", "N/A")), None)
    if wrong is not None:
        yield table.problem(number, "#wrong", f"{wrong} wrong values: the network is broken")
    size, micros = _number(row["size"]), _number(row["time"])
    if size is None or size != int(size) or not 0 <= size <= BYTES.most:
        yield table.problem(number, "size", f"expected bytes, got {row['size']!r}")
    elif micros is None or not SECONDS.holds(micros * 1e-6):
        yield table.problem(number, "time", f"expected microseconds above 0, got {row['time']!r}")
    elif size:
        table.times.setdefault(int(size), []).append(micros * 1e-6)


def _missing(table: _NcclTable, operation: Operation | None, members: int | None) -> Iterator[Problem]:
    if not table.columns:
        what = "no table of nccl-tests: no line with the columns size and time"
        yield table.problem(None, "", what, "give the whole output of all_reduce_perf or its like")
        return
    if len(table.times) < 2:
        what = f"expected at least two sizes, got {len(table.times)}"
        yield table.problem(None, "size", what, "run the test with -b 8 -e 1G -f 2")
    sizes = _sizes(table)
    named = " and ".join(sorted(table.tests)) or "no test"
    if len(table.tests) > 1 and len(table.ranks) > 2:
        what = f"has {len(table.ranks) - 1} tables and names {named}, expected one test"
        yield table.problem(None, "", what, "give each test a file of its own")
    elif operation is None and len(table.tests) != 1:
        yield table.problem(
            None, "", f"names {named}, expected one", "add --operation all-reduce or its like"
        )
    least = min(sizes)
    if len(sizes) > 1:
        what = f"has tables or groups of {' and '.join(map(str, sorted(sizes)))} ranks, expected one number"
        yield table.problem(None, "", what, "give each number of ranks a file of its own")
    elif members is None and least < 2 and operation != "send":
        what = f"lists {least} ranks, expected at least two"
        yield table.problem(None, "", what, "add --members N")


def _sizes(table: _NcclTable) -> set[int]:
    """Ranks of a group, of those listed ahead of each table."""
    return {len(group) for listed in table.ranks[:-1] for group in listed.values() or [set()]}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
