"""Ends a writer at each of its calls to the file system in turn, and looks at what it leaves."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from planner.emit import folder as writer
from planner.emit.lock import WORK
from planner.errors import OutputError

CALLS = (
    "chmod",
    "fchmod",
    "fsync",
    "link",
    "listdir",
    "mkdir",
    "open",
    "rename",
    "rmdir",
    "unlink",
    "utime",
)
"""Functions of ``os`` that the writer uses, but those that only look."""
KILLED = 77
"""Exit status of a writer that was ended."""

Content = dict[str, tuple[str, bool] | str | None]
"""Files with their text and whether they can be executed, links with where they point, folders."""


def content(folder: Path) -> Content | None:
    """All that a user sees in a folder; None where there is no folder."""
    if not folder.is_dir():
        return None
    found: Content = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] == WORK:
            continue
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = (path.read_text(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


@contextmanager
def counted(patch: pytest.MonkeyPatch, at_call: Callable[[int], None]) -> Iterator[list[int]]:
    """Call ``at_call`` with the number of calls so far ahead of each."""
    count = [0]

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            at_call(count[0])
            return function(*arguments, **named)

        return call

    with patch.context() as inner:
        for name in CALLS:
            inner.setattr(os, name, counting(getattr(os, name)))
        inner.setattr(writer, "exchange", counting(vars(writer)["exchange"]))
        yield count


def killed_at(call: int, patch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Do the work in a process that dies ahead of a call, as from SIGKILL; False when it ended before."""
    child = os.fork()
    if child == 0:
        try:
            with counted(patch, lambda number: os._exit(KILLED) if number == call else None):
                work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == KILLED


def interrupted_at(call: int, patch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Do the work with one Ctrl-C ahead of a call; False when it ended before."""

    def interrupt(number: int) -> None:
        if number == call:
            raise KeyboardInterrupt

    try:
        with counted(patch, interrupt):
            work()
    except KeyboardInterrupt:
        return True
    return False


def broken_at(call: int, patch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Do the work with one call that fails; False when it ended before."""
    failed = []

    def fail(number: int) -> None:
        if number == call:
            failed.append(number)
            raise OSError(5, "Input/output error")

    try:
        with counted(patch, fail):
            work()
    except OutputError:
        return True
    return bool(failed)
