"""Files that are written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from planner.errors import OutputError

LONGEST = 150
"""Bytes of a file's name that are repeated in that of its draft."""


def write_whole(text: str, path: Path, example: str) -> None:
    """Write the text as UTF-8, whole or not at all; raises OutputError, whose hint names an ``example`` file.

    A link is followed; a file that exists keeps its permissions. When this returns the text is on the disk.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path}: is a directory", hint=f"name a file, e.g. {path / example}")
        real = Path(os.path.realpath(path))
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", newline="\n")  # a pipe or a device is never replaced
            return
        _replace(real, text)
    except OSError as error:
        raise OutputError(
            f"{path}: {_reason(path, error)}", hint="name a file in a folder of yours"
        ) from None


def _replace(real: Path, text: str) -> None:
    """Write a draft beside the file and give it the file's name."""
    _remove_drafts(real)
    part, draft = _draft(real)
    try:
        with draft as file:
            _take_over(file.fileno(), real)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            part.replace(real)
    except BaseException:
        _remove(part)
        raise
    with suppress(OSError):  # not every file system can
        folder = os.open(real.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _draft(real: Path) -> tuple[Path, TextIO]:
    """A new file that no process on any host has, locked for as long as it is open."""
    while True:
        part = real.with_name(f".{_start(real)}.{secrets.token_hex(16)}.part")
        file = part.open("x", encoding="utf-8", newline="\n")
        with suppress(OSError):  # without locks a draft that is left behind stays
            fcntl.flock(file, fcntl.LOCK_EX)
        if part.exists():  # another writer may have deleted it ahead of the lock
            return part, file
        file.close()


def _take_over(file: int, real: Path) -> None:
    """Give the draft the owner, where this user may, and the permissions of the file that it replaces."""
    with suppress(FileNotFoundError):
        before, now = real.stat(), os.fstat(file)
        if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
            with suppress(PermissionError):
                os.fchown(file, before.st_uid, before.st_gid)
        os.fchmod(file, stat.S_IMODE(before.st_mode))


def _start(real: Path) -> str:
    return os.fsdecode(os.fsencode(real.name)[:LONGEST])


def _remove_drafts(real: Path) -> None:
    """Delete drafts of the file whose writers were killed: those that nobody holds."""
    name = re.compile(rf"\.{re.escape(_start(real))}\.[0-9a-f]{{32}}\.part")
    with suppress(OSError):
        for entry in filter(name.fullmatch, os.listdir(real.parent)):
            with suppress(OSError), real.with_name(entry).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                real.with_name(entry).unlink()


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "no permission to write"
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    return f"cannot be written: {error.strerror or error}"


def _remove(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return
