"""What a write does to a folder in use: a list of renames that can be done, undone and taken up again."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from planner.emit.folder import tree
from planner.emit.folder.lock import WORK
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
        raise _in_the_way(shown, sorted(foreign))
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


def _in_the_way(shown: Path, paths: Sequence[str]) -> OutputError:
    return OutputError(
        f"{shown}: not written by hetplan, and in the way of its files: {first_of(paths, SHOWN)}",
        hint="move them away, or name a new folder",
    )


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
