"""Writing a launch folder: it is the old one or the new one, at whatever moment the writer ends."""

from __future__ import annotations

import os
import shlex
import stat
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
    manifest,
    read_journal,
    undo,
    write_journal,
)
from planner.emit.folder.lock import WORK, busy, is_taken, locked
from planner.emit.folder.twin import (
    LINKED,
    discard,
    exchange,
    fill_twin,
    inodes_of,
    record,
    settle,
    twin_name,
)
from planner.errors import OutputError
from planner.job.files import EmittedFile

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
