"""A lock for one writer at a time in a folder, across all hosts that share it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from planner.emit.tree import NEW, finish, look, open_folder, opened, remove_empty
from planner.errors import OutputError

WORK = ".hetplan-work"
"""Folder inside a launch folder with the lock and what is not finished; only there while hetplan writes."""
LOCK = f"{WORK}/lock"
TRIES = 100
"""Times that a lock may vanish between its opening and its taking, as the writer before leaves."""


class _GoneError(Exception):
    """The lock was taken away by its last holder in the meantime."""


@contextmanager
def locked(at: int, name: str, shown: Path) -> Iterator[int]:
    """The folder, open and for this process alone; raises OutputError when another is writing there.

    The lock ends with the process, however that ends. A file system without locks knows a writer by its lock file.
    """
    for _ in range(TRIES):
        with opened(name, at) as folder:
            try:
                lock = _taken(at, name, folder, shown)
            except _GoneError:
                continue
            try:
                yield folder
            finally:
                _release(folder, lock)
            return
    raise busy(shown)


def is_taken(folder: int, own: int) -> bool:
    """True when another process than the holder of the folder ``own`` is writing in ``folder``."""
    theirs, mine = look(folder, LOCK), look(own, LOCK)
    if theirs is None or mine is None or theirs.st_ino == mine.st_ino:
        return False
    with opened(WORK, folder) as work:
        lock = os.open("lock", os.O_RDWR | os.O_NOFOLLOW, dir_fd=work)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _taken(at: int, name: str, folder: int, shown: Path) -> int:
    """A descriptor that holds the lock."""
    with suppress(FileExistsError):
        os.mkdir(WORK, dir_fd=folder)
    try:
        work = open_folder(WORK, folder)
    except FileNotFoundError:
        raise _GoneError from None
    except NotADirectoryError:
        raise OutputError(f"{shown / WORK}: is in the way, expected hetplan's own folder") from None
    try:
        lock, is_new = _opened_lock(work)
    except FileNotFoundError:
        raise _GoneError from None
    finally:
        os.close(work)
    try:
        _flock(lock, is_new, shown)
        here, mine, now = look(folder, LOCK), os.fstat(lock), look(at, name)
        if here is None or now is None or here.st_ino != mine.st_ino or now.st_ino != os.fstat(folder).st_ino:
            raise _GoneError
    except BaseException:
        os.close(lock)
        raise
    return lock


def _opened_lock(work: int) -> tuple[int, bool]:
    try:
        return os.open("lock", os.O_RDWR | NEW, 0o666, dir_fd=work), True
    except FileExistsError:
        return os.open("lock", os.O_RDWR | os.O_NOFOLLOW, dir_fd=work), False


def _flock(lock: int, is_new: bool, shown: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy(shown) from None
    except OSError:
        if not is_new:
            raise busy(shown) from None


def busy(shown: Path) -> OutputError:
    """The error of who comes second."""
    return OutputError(
        f"{shown}: another hetplan is writing there",
        hint=f"wait until it has ended; when none is running, remove {shown / WORK}",
    )


def _release(folder: int, lock: int) -> None:
    """Leave without a trace: the lock goes while it is held, then the folder for work unless something is in it."""
    try:
        finish(lambda: _unlink(folder))
    finally:
        os.close(lock)
        finish(lambda: remove_empty(folder, WORK))


def _unlink(folder: int) -> None:
    with suppress(FileNotFoundError, NotADirectoryError), opened(WORK, folder) as work:
        os.unlink("lock", dir_fd=work)
