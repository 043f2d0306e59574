"""When the command began: what its time limit counts from."""

from __future__ import annotations

from time import monotonic, process_time

_marked: list[float] = []


def mark_start() -> None:
    """Called first of all by a process of its own: imports so far, which take processor time, count."""
    _marked[:] = [monotonic() - process_time()]


def started() -> float:
    """On the monotonic clock; now, where the command is run inside another program."""
    return _marked[0] if _marked else monotonic()
