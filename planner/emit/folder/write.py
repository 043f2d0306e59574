"""Writing a launch folder: it is the old one or the new one, at whatever moment the writer ends.

While the folder changes, a finished copy of it stands in its place. The copy has hard links to the files, so it costs
no space. Two names are exchanged by one call of the system: whoever looks sees the old folder or the new one, also when
the writer dies. The folder itself comes back in the end, so that shells and jobs that run in it stay in it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shlex
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from planner.emit.folder import tree
from planner.emit.folder.change import (
    JOURNAL,
    NEW,
    FolderChange,
    apply,
    change_to,
    free_name,
    manifest,
    read_journal,
    undo,
    write_journal,
)
from planner.emit.folder.lock import WORK, busy, is_taken, locked
from planner.errors import OutputError
from planner.job.files import EmittedFile

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


Kept = tuple[tuple[str, str], ...]
"""Files that the user had edited, and the names under which they were kept."""


def write_folder(files: Sequence[EmittedFile], folder: Path, force: bool = False) -> Kept:
    """Write the files into a folder that is new or empty; with ``force`` also into one in use.

    In a folder in use only files that an earlier write left as they are now are replaced or removed. Those that the
    user edited are renamed and returned; all else stays. No symbolic link is followed.
    Raises OutputError; the folder is then as it was before, or all new where only cleaning up failed.
    """
    try:
        above, name = _place(folder)
        above.mkdir(parents=True, exist_ok=True)
        with tree.opened(str(above)) as at:
            _put_back(at, name)
            status = tree.look(at, name)
            if status is None:
                _create(at, name, files, folder)
                return ()
            _check_kind(status, folder)
            return _update(at, name, files, folder, force)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _place(folder: Path) -> tuple[Path, str]:
    """The real folder above, and the name in it; a link is named with where it points."""
    if folder.is_symlink():
        to = os.path.realpath(folder)
        if not os.path.exists(to):
            raise OutputError(f"{folder}: is a link that points nowhere")
        raise OutputError(
            f"{folder}: is a link, which is not followed",
            hint=f"name the folder itself: -o {shlex.quote(to)}",
        )
    if folder.name in ("", ".."):
        folder = Path(os.path.realpath(folder))
    return Path(os.path.realpath(folder.parent)), folder.name


def _check_kind(status: os.stat_result, shown: Path) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise OutputError(f"{shown}: is a file, expected a folder")


def _put_back(at: int, name: str) -> None:
    """Where a folder is gone whose twin had stood in its place, the one that is left is the folder."""
    twin = twin_name(name)
    if tree.look(at, name) is None and tree.look(at, f"{twin}/{LINKED}") is not None:
        os.rename(twin, name, src_dir_fd=at, dst_dir_fd=at)


def _create(at: int, name: str, files: Sequence[EmittedFile], shown: Path) -> None:
    """Fill a folder beside and give it the name."""
    twin = twin_name(name)
    _check_own(at, twin, shown)
    with suppress(FileExistsError):
        os.mkdir(twin, dir_fd=at)
    with locked(at, twin, shown) as draft:
        try:
            for each in os.listdir(draft):
                if each != WORK:
                    tree.remove(draft, each)
            _fill(draft, "", (*files, manifest(files)))
            if tree.look(at, name) is not None:
                raise busy(shown)
            os.rename(twin, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            now = tree.look(at, twin)
            if now is not None and now.st_ino == os.fstat(draft).st_ino:
                tree.finish(lambda: discard(at, twin))
            raise
    with suppress(OSError):
        os.fsync(at)


def _check_own(at: int, twin: str, shown: Path) -> None:
    """Raise OutputError where something that is not hetplan's has the name that the twin needs."""
    status = tree.look(at, twin)
    if status is None:
        return
    is_folder = stat.S_ISDIR(status.st_mode)
    if is_folder:
        with tree.opened(twin, at) as folder:
            is_folder = not os.listdir(folder) or tree.look(folder, WORK) is not None
    if not is_folder:
        raise OutputError(f"{shown.parent / twin}: is in the way, expected hetplan's own folder")


def _fill(folder: int, inside: str, files: Sequence[EmittedFile]) -> None:
    for file in files:
        tree.write(folder, f"{inside}{file.path}", file.text, file.executable)
    tree.sync(folder, {f"{inside}{file.path}" for file in files})


def _update(at: int, name: str, files: Sequence[EmittedFile], shown: Path, force: bool) -> Kept:
    """Change a folder that is there, for this process alone."""
    with tree.opened(name, at) as folder:
        names = set(os.listdir(folder))
    if WORK not in names:
        _refuse_used(names, shown, force)
    with locked(at, name, shown) as folder:
        try:
            _recover(at, name, folder, shown)
            _refuse_used(set(os.listdir(folder)), shown, force)
            change, new = change_to(folder, files, shown)
            if change.paths:
                _fill(folder, f"{NEW}/", new)
                if not _by_twin(at, name, folder, change):
                    _in_place(folder, change)
                tree.sync(folder, change.paths)
        finally:
            if _stands(at, name, folder):
                tree.finish(lambda: _clear(folder))
    return change.kept


def _refuse_used(names: set[str], shown: Path, force: bool) -> None:
    if names - {WORK} and not force:
        raise OutputError(
            f"{shown}: the folder is not empty",
            hint="name a new folder, or add --force to replace the files that hetplan wrote there",
        )


def _recover(at: int, name: str, folder: int, shown: Path) -> None:
    """Clean up after a write that was killed."""
    twin = twin_name(name)
    _check_own(at, twin, shown)
    if tree.look(at, twin) is not None:
        with tree.opened(twin, at) as other:
            if is_taken(other, folder):
                raise busy(shown.parent / twin)
    settle(folder, at, twin)
    unfinished = read_journal(folder, shown)
    if unfinished is not None:
        undo(folder, unfinished)
        tree.remove(folder, JOURNAL)
    _clear(folder)


def _clear(folder: int) -> None:
    """Delete what a write kept for itself, unless its renames are still to be taken back."""
    if tree.look(folder, JOURNAL) is None:
        with tree.opened(WORK, folder) as work:
            for each in os.listdir(work):
                if each != "lock":
                    tree.remove(work, each)


def _by_twin(at: int, name: str, folder: int, change: FolderChange) -> bool:
    """Change the folder while a finished twin stands in its place; False where there can be no twin."""
    twin = twin_name(name)
    try:
        os.mkdir(twin, 0o700, dir_fd=at)
    except FileExistsError:
        raise
    except OSError:
        return False
    try:
        try:
            inodes = fill_twin(folder, at, twin)
            with tree.opened(twin, at) as copy:
                apply(copy, change)
                inodes |= inodes_of(copy, {above for path in change.put for above in tree.parents(path)})
            record(folder, at, twin, inodes)
            exchange(at, name, twin)
        except OSError:
            discard(at, twin)
            return False
        _in_place(folder, change)
        exchange(at, name, twin)
    except BaseException:
        if not _stands(at, name, folder):
            exchange(at, name, twin)
        raise
    finally:
        if _stands(at, name, folder):
            tree.finish(lambda: settle(folder, at, twin))
    return True


def _stands(at: int, name: str, folder: int) -> bool:
    """True when the name is that of the folder, and not of its twin."""
    status = tree.look(at, name)
    return status is not None and status.st_ino == os.fstat(folder).st_ino


def _in_place(folder: int, change: FolderChange) -> None:
    """Change the folder file by file, with a journal by which the next write takes back what was not finished.

    All there is on file systems without exchange or hard links, for mount points, and where the folder above cannot
    be written.
    """
    try:
        write_journal(folder, change)
        apply(folder, change)
        tree.remove(folder, JOURNAL)
    except BaseException:
        if tree.look(folder, JOURNAL) is not None:
            undo(folder, change)
            tree.remove(folder, JOURNAL)
        raise
