"""Plain data as deterministic YAML text, one line for each innermost list or mapping, and files written whole."""

from __future__ import annotations

import fcntl
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from planner.errors import OutputError
from planner.escaping import visible
from planner.files.nodes import FLOAT

LONGEST = 150
"""Bytes of a file's name that are repeated in that of its draft."""


def write_whole(content: str | bytes, path: Path, example: str) -> None:
    """Write bytes, or text as UTF-8, whole or not at all; raises OutputError, whose hint names an ``example`` file.

    A link is followed; a file that exists keeps its permissions. When this returns the text is on the disk.
    """
    whole = content.encode() if isinstance(content, str) else content
    try:
        if path.is_dir():
            raise OutputError(f"{path}: is a directory", hint=f"name a file, e.g. {path / example}")
        real = Path(os.path.realpath(path))
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError
        if path.exists() and not path.is_file():
            path.write_bytes(whole)  # a pipe or a device is never replaced
            return
        _replace(real, whole)
    except OSError as error:
        raise OutputError(
            f"{path}: {_reason(path, error)}", hint="name a file in a folder of yours"
        ) from None


def _replace(real: Path, content: bytes) -> None:
    """Write a draft beside the file and give it the file's name."""
    _remove_drafts(real)
    part, draft = _draft(real)
    try:
        with draft as file:
            _take_over(file.fileno(), real)
            file.write(content)
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


def _draft(real: Path) -> tuple[Path, BinaryIO]:
    """A new file that no process on any host has, locked for as long as it is open."""
    while True:
        part = real.with_name(f".{_start(real)}.{secrets.token_hex(16)}.part")
        file = part.open("xb")
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


WIDTH = 110


class Lines(list[str]):
    """A list of sentences, written one below the other."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        """In ASCII, so that what a terminal would obey is an escape."""
        self.allow_unicode = False
        super().write_double_quoted(text, split)
        self.allow_unicode = True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Text in double quotes where it has characters that need escapes."""
    hidden = visible(text, keep="\n\t") != text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if hidden else None)


_Dumper.add_representer(str, _text)


_Dumper.add_representer(
    Lines, lambda dumper, lines: dumper.represent_sequence("tag:yaml.org,2002:seq", lines, flow_style=False)
)
# The dumper follows YAML 1.1, our reader 1.2 and OmegaConf neither: text such as 1e9, 08 or 1_0e3 that one of them
# reads as a number is quoted.
_NUMBER = re.compile(rf"^(?:{FLOAT.pattern}|[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?)$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def dump(data: dict[str, Any]) -> str:
    """The mapping as YAML, keys in their order."""
    if not any(isinstance(value, (list, dict)) for value in data.values()):
        return _dumped(data)
    return "".join(text for key, value in data.items() for text in _entry(key, value))


def _entry(key: str, value: Any) -> Iterator[str]:
    """A key of the file and its value; a list of mappings item by item, since a table has many of them."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        yield _dumped({key: value}, flow=None if isinstance(value, (list, dict)) else False)
        return
    yield _dumped({key: None}, flow=False).removesuffix(" null\n") + "\n"
    for item in value:
        yield _row(item) or _dumped([item])


def flow(value: Any) -> str:
    """A value without line breaks as YAML on one line."""
    return _dumped([value], flow=True, width=float("inf")).removeprefix("[").removesuffix("]\n")


def _dumped(data: Any, flow: bool | None = None, width: float = WIDTH) -> str:
    return str(
        yaml.dump(
            data, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=width
        )
    )


def _row(item: dict[str, Any]) -> str | None:
    """What the dumper writes for a list's item of plain words and numbers, 20 times faster; None for others."""
    lines, line = [], "- {"
    for index, (key, value) in enumerate(item.items()):
        name, text = _word(key), _scalar(value)
        if name is None or text is None:
            return None
        if index and len(line) >= WIDTH:
            lines.append(f"{line},")
            line = f"  {name}: {text}"
        else:
            line += f", {name}: {text}" if index else f"{name}: {text}"
    return "\n".join([*lines, f"{line}}}\n"])


def _scalar(value: Any) -> str | None:
    """A value as the dumper writes it where it has no choice of a line; None where it may have."""
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    return str(value) if type(value) is int else None


@lru_cache(maxsize=10_000)
def _word(value: str) -> str | None:
    """A text without blanks, quoted as it must be."""
    text = _dumped([value], flow=True)[1:-2]
    return None if value.split() != [value] or text.startswith('"') else text
