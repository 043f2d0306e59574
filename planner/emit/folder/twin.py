"""A finished copy of a folder that stands in its place while the folder itself changes.

The copy has hard links to the files, so it costs no space. Two names are exchanged by one call of the system: whoever
looks sees the old folder or the new one, also when the writer dies. The folder itself comes back in the end, so that
shells and jobs that run in it stay in it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import stat
import sys

from planner.emit.folder import tree
from planner.emit.folder.change import free_name
from planner.emit.folder.lock import WORK

LINKED = f"{WORK}/linked"
"""Inodes of what the folder and its twin had when the twin was made: all else came later."""
LONGEST = 200
"""Bytes of a folder's name that are repeated in its twin's."""


def twin_name(name: str) -> str:
    """Where the twin of a folder stands, beside it."""
    plain = name.encode()
    short = name if len(plain) <= LONGEST else hashlib.sha256(plain).hexdigest()
    return f".{short}.hetplan-twin"


def fill_twin(folder: int, at: int, name: str) -> set[int]:
    """Fill an empty folder with hard links to the other's files, and return the inodes of both.

    Raises OSError where links cannot be made.
    """
    with tree.opened(name, at) as copy:
        return set(_link(folder, copy, os.fstat(folder).st_dev))


def _link(folder: int, copy: int, device: int) -> list[int]:
    status = os.fstat(folder)
    if status.st_dev != device:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    inodes = [status.st_ino, os.fstat(copy).st_ino]
    for name in sorted(os.listdir(folder), key=WORK.__ne__):  # first that by which a twin is known as one
        status_of = tree.look(folder, name)
        if status_of is None:
            continue
        if stat.S_ISDIR(status_of.st_mode):
            os.mkdir(name, 0o700, dir_fd=copy)
            with tree.opened(name, folder) as below, tree.opened(name, copy) as made:
                inodes += _link(below, made, device)
        else:
            os.link(name, name, src_dir_fd=folder, dst_dir_fd=copy, follow_symlinks=False)
            inodes.append(os.stat(name, dir_fd=copy, follow_symlinks=False).st_ino)
    os.fchmod(copy, stat.S_IMODE(status.st_mode))
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    return inodes


def inodes_of(folder: int, paths: set[str]) -> set[int]:
    """Inodes of what stands at these paths."""
    return {status.st_ino for path in paths if (status := tree.look(folder, path)) is not None}


def record(folder: int, at: int, twin: str, inodes: set[int]) -> None:
    """Note in both what they have, ahead of the exchange."""
    with tree.opened(twin, at) as copy:
        tree.write(copy, f"{LINKED}.part", json.dumps(sorted(inodes)))
        tree.move(copy, f"{LINKED}.part", LINKED)
        with tree.opened(WORK, copy) as here, tree.opened(WORK, folder) as there:
            os.link("linked", "linked", src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)


def exchange(at: int, name: str, other: str) -> None:
    """Swap two names of a folder in one step; raises OSError where the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    swap = ctypes.c_uint(2)
    if call(at, os.fsencode(name), at, os.fsencode(other), swap):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def settle(folder: int, at: int, twin: str) -> None:
    """Delete the other one of the two, if it is there, once what came into it in the meantime is in the folder."""
    if tree.look(at, twin) is None:
        return
    with tree.opened(twin, at) as other:
        content = tree.read(other, LINKED)
        if content is not None:
            _rescue(other, folder, "", _recorded(content))
    discard(at, twin)


def _recorded(content: bytes) -> set[int]:
    """Inodes of a record; none of a damaged one, so that all is taken for new and nothing is lost."""
    try:
        return set(map(int, json.loads(content)))
    except (ValueError, TypeError):
        return set()


def discard(at: int, twin: str) -> None:
    """Delete a twin or a draft, if it is there, last that by which it is known as one."""
    if tree.look(at, twin) is None:
        return
    with tree.opened(twin, at) as folder:
        for name in os.listdir(folder):
            if name != WORK:
                tree.remove(folder, name)
    tree.remove(at, twin)


def _rescue(other: int, folder: int, inside: str, known: set[int]) -> None:
    with tree.holding(other, f"{inside}.") as (here, _):
        names = os.listdir(here)
    for name in names:
        path = f"{inside}{name}"
        status, now = tree.look(other, path), tree.look(folder, path)
        if status is None or path == WORK:
            continue
        is_known = status.st_ino in known
        if stat.S_ISDIR(status.st_mode) and (is_known or now is not None):
            _rescue(other, folder, f"{path}/", known)
        elif not is_known and (now is None or now.st_ino != status.st_ino):
            is_free = now is None or (now.st_ino in known and not stat.S_ISDIR(now.st_mode))
            to = path if is_free else free_name(folder, path, set(), "rescued")
            _carry(other, folder, path, to)


def _carry(other: int, folder: int, path: str, to: str) -> None:
    with tree.holding(other, path) as (here, name), tree.holding(folder, to, make=True) as (there, new):
        os.rename(name, new, src_dir_fd=here, dst_dir_fd=there)
