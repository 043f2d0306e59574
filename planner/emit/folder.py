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
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from planner.emit import tree
from planner.emit.lock import WORK, busy, is_taken, locked
from planner.errors import OutputError
from planner.files.short_lists import first_of
from planner.job.files import EmittedFile

MANIFEST = ".hetplan-files"
"""Digests and paths as ``sha256sum`` writes them, so that ``sha256sum -c`` names the files that were edited."""
LINE = re.compile(r"(?:(?P<digest>[0-9a-f]{64})  )?(?P<path>.+)")


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def manifest(files: Iterable[EmittedFile]) -> EmittedFile:
    """The list of these files."""
    lines = (f"{digest(file.text.encode())}  {file.path}\n" for file in files)
    return EmittedFile(MANIFEST, "".join(lines))


def written_before(folder: int) -> dict[str, str | None]:
    """Files of earlier writes and their digests; None where an older hetplan wrote no digest.

    Empty where the list cannot be read. Paths that leave the folder are passed over.
    """
    try:
        lines = (tree.read(folder, MANIFEST) or b"").decode().splitlines()
    except UnicodeDecodeError:
        return {}
    matches = (LINE.fullmatch(line) for line in lines)
    return {match["path"]: match["digest"] for match in matches if match and is_inside(match["path"])}


def is_inside(path: str) -> bool:
    """True for a plain relative path of a user's folder."""
    words = path.split("/")
    return not {"", ".", ".."}.intersection(words) and words[0] != WORK and "\0" not in path


NEW, OLD, JOURNAL = f"{WORK}/new", f"{WORK}/old", f"{WORK}/journal"
"""Where new files wait, where replaced ones go, and the list of renames while they are under way."""
SHOWN = 5
"""Files in the way that an error names."""

State = Literal["absent", "same", "ours", "edited", "foreign"]
"""What stands at a path: nothing to be moved, what is wanted, what hetplan wrote, that with the user's edits, or the
user's own in the way of a new file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderChange:
    """Renames that turn the old folder into the new one; whatever they do not name stays as it is."""

    kept: tuple[tuple[str, str], ...]
    """Files that the user edited, and the names under which they stay."""
    out: tuple[str, ...]
    """Files of hetplan that are replaced or not written any more."""
    put: tuple[str, ...]
    """New files."""

    @property
    def paths(self) -> set[str]:
        """Every path that changes."""
        return {*self.out, *self.put, *(path for pair in self.kept for path in pair)}


def change_to(
    folder: int, files: Sequence[EmittedFile], shown: Path
) -> tuple[FolderChange, tuple[EmittedFile, ...]]:
    """How to turn the folder into one with these files, and those of them that are new.

    Raises OutputError where something of the user's is in the way.
    """
    known = written_before(folder)
    wanted = {file.path: file for file in (*files, manifest(files))}
    states = {path: _state(folder, path, known, wanted.get(path)) for path in {**known, **wanted}}
    foreign = {path for path in states if states[path] == "foreign"}.union(_blocking(folder, wanted, states))
    if foreign:
        raise OutputError(
            f"{shown}: not written by hetplan, and in the way of its files: {first_of(sorted(foreign), SHOWN)}",
            hint="move them away, or name a new folder",
        )
    taken = set(wanted)
    change = FolderChange(
        kept=tuple(
            (path, free_name(folder, path, taken)) for path in sorted(states) if states[path] == "edited"
        ),
        out=tuple(path for path in sorted(states) if states[path] == "ours"),
        put=tuple(path for path in sorted(wanted) if states[path] != "same"),
    )
    return change, tuple(wanted[path] for path in change.put)


def _state(folder: int, path: str, known: dict[str, str | None], wanted: EmittedFile | None) -> State:
    status = tree.look(folder, path)
    if status is None:
        return "absent"
    content = tree.read(folder, path)
    if content is not None:
        is_equal = wanted is not None and content == wanted.text.encode()
        if wanted and is_equal and bool(status.st_mode & 0o100) == wanted.executable:
            return "same"
        if is_equal or path == MANIFEST or digest(content) == known.get(path):
            return "ours"
    if path in known and not stat.S_ISDIR(status.st_mode):
        return "edited"
    return "foreign" if wanted else "absent"


def _blocking(folder: int, wanted: dict[str, EmittedFile], states: dict[str, State]) -> Iterator[str]:
    """Files and links where new files need a folder, which do not go away themselves."""
    for path in {above for each in wanted for above in tree.parents(each)}:
        status = tree.look(folder, path)
        if status and not stat.S_ISDIR(status.st_mode) and states.get(path) not in ("ours", "edited"):
            yield path


def free_name(folder: int, path: str, taken: set[str], ending: str = "edited") -> str:
    """A name beside the path that nothing has: ``NAME.edited``, ``NAME.edited-2``; it is taken from then on."""
    number = 1
    while True:
        name = f"{path}.{ending}" + (f"-{number}" if number > 1 else "")
        if name not in taken and tree.look(folder, name) is None:
            taken.add(name)
            return name
        number += 1


def apply(folder: int, change: FolderChange) -> None:
    """Do the renames, with new files from ``NEW``; what is replaced waits in ``OLD``."""
    for path, name in change.kept:
        tree.move(folder, path, name)
    for path in change.out:
        tree.move(folder, path, f"{OLD}/{path}")
    _remove_emptied(folder, {*change.out, *(path for path, _ in change.kept)}, set(change.put))
    for path in change.put:
        tree.move(folder, f"{NEW}/{path}", path)


def undo(folder: int, change: FolderChange) -> None:
    """Take back as many of the renames as were done, also when taking back was interrupted before."""
    for path in change.put:
        if tree.look(folder, f"{NEW}/{path}") is None and tree.look(folder, path) is not None:
            tree.move(folder, path, f"{NEW}/{path}")
    _remove_emptied(folder, set(change.put), {*change.out, *(path for path, _ in change.kept)})
    for path in change.out:
        if tree.look(folder, f"{OLD}/{path}") is not None:
            tree.move(folder, f"{OLD}/{path}", path)
    for path, name in change.kept:
        if tree.look(folder, path) is None and tree.look(folder, name) is not None:
            tree.move(folder, name, path)


def _remove_emptied(folder: int, left: set[str], coming: set[str]) -> None:
    """Delete folders that files have left empty, but those that files come into."""
    stay = {above for path in coming for above in tree.parents(path)}
    for path in sorted({above for each in left for above in tree.parents(each)} - stay, reverse=True):
        tree.remove_empty(folder, path)


def write_journal(folder: int, change: FolderChange) -> None:
    """Say that the renames are under way."""
    tree.write(folder, f"{JOURNAL}.part", json.dumps(asdict(change)))
    tree.move(folder, f"{JOURNAL}.part", JOURNAL)


def read_journal(folder: int, shown: Path) -> FolderChange | None:
    """Renames that were not finished; None where there are none. Raises OutputError for what is no journal."""
    content = tree.read(folder, JOURNAL)
    if content is None:
        return None
    try:
        journal = json.loads(content)
        change = FolderChange(
            kept=tuple((str(path), str(name)) for path, name in journal["kept"]),
            out=tuple(map(str, journal["out"])),
            put=tuple(map(str, journal["put"])),
        )
    except (ValueError, TypeError, KeyError):
        change = None
    if change is None or not all(map(is_inside, change.paths)):
        raise OutputError(f"{shown / JOURNAL}: damaged", hint=f"name a new folder, or remove {shown / WORK}")
    return change


LINKED = f"{WORK}/linked"
"""Inodes of what the folder and its twin had when the twin was made: all else came later."""
LONGEST = 200
"""Bytes of a folder's name that are repeated in its twin's."""


def twin_name(name: str) -> str:
    """Where the twin of a folder stands, beside it."""
    plain = os.fsencode(name)
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
            tree.move(other, path, to, into=folder)


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
            if not stat.S_ISDIR(status.st_mode):
                raise OutputError(f"{folder}: is a file, expected a folder")
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
