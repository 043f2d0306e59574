"""The cluster file of what was seen, and what it still lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.cluster.file import problems_of
from planner.errors import Problem
from planner.files.document import Document
from planner.files.nodes import parse
from planner.probe.cards import FABRICS
from planner.probe.entry import ASSUMED, NOT_SEEN, Entry, flow
from planner.probe.hosts import Host
from planner.probe.node import Node
from planner.probe.pools import Pool, pools_of

_HEAD = f"""\
# Drafted by hetplan probe. Fill in the lines marked "{NOT_SEEN.strip()}", check the values marked "{ASSUMED.strip()}".
"""
_FABRIC_NOTES = {
    "ib": f"{ASSUMED}all InfiniBand cards are on one fabric",
    "roce": f"{ASSUMED}the RDMA cards on Ethernet are set up for RoCE, on one fabric",
    "eth": f"{ASSUMED}all interfaces reach each other",
}


def draft(nodes: Sequence[Node], hosts: Sequence[Host], name: str) -> str:
    """The cluster file of these nodes and of the hosts that a list has besides."""
    found = pools_of(nodes, hosts)
    lines = [f"name: {flow(name)}", *_gpus(found.pools), *(entry.line() for entry in found.remarks), "pools:"]
    for pool in found.pools:
        lines.append(f"  - name: {flow(pool.name)}")
        lines += [_indented(entry, 4) for entry in pool.lines()]
    lines += _fabrics(found.pools)
    return _HEAD + "\n".join(lines) + "\n"


def lacking(text: str, file: str) -> tuple[Problem, ...]:
    """What keeps the draft from being a cluster file, with lines and keys; ``file`` is what to call it."""
    return tuple(problems_of(Document(file, parse(text))))


def unseen(text: str) -> tuple[tuple[int, str], ...]:
    """(line, key) of every line of the draft that is left to fill in."""
    marked = ((at, line.partition(f"# {NOT_SEEN}")[2]) for at, line in enumerate(text.splitlines(), start=1))
    return tuple((at, rest.partition(":")[0]) for at, rest in marked if rest)


def assumptions(text: str) -> int:
    """Values of the draft that are assumed."""
    return text.count(f"# {ASSUMED}")


def _gpus(pools: tuple[Pool, ...]) -> Iterator[str]:
    """Kinds that the catalogue does not have, each once."""
    kinds = {kind.name: kind for pool in pools for kind in pool.kinds if kind.entries}
    if kinds:
        yield "gpus:"
    for name, kind in kinds.items():
        yield f"  {flow(name)}:"
        yield from (_indented(entry, 4) for entry in kind.entries)


def _fabrics(pools: tuple[Pool, ...]) -> Iterator[str]:
    used = [fabric for fabric in FABRICS if any(fabric in pool.fabrics for pool in pools)]
    if used:
        yield "fabrics:"
    for fabric in used:
        value = flow({"kind": FABRICS[fabric]})
        yield f"  {Entry(fabric, value, _FABRIC_NOTES[fabric]).line()}"


def _indented(entry: Entry, blanks: int) -> str:
    return " " * blanks + entry.line().replace("\n", "\n" + " " * blanks)
