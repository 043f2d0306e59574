"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import OutputError


def write_whole(text: str, path: Path, example: str) -> None:
    """Write the text as UTF-8, whole or not at all; raises OutputError, whose hint names an ``example`` file."""
    if path.is_dir():
        raise OutputError(f"{path}: is a directory", hint=f"name a file, e.g. {path / example}")
    real = Path(os.path.realpath(path))
    part = real.with_name(f".{real.name[:200]}.{os.getpid()}.part")
    try:
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", newline="\n")  # a pipe or a device is never replaced
            return
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        part.replace(real)
    except OSError as error:
        raise OutputError(
            f"{path}: {_reason(path, error)}", hint="name a file in a folder of yours"
        ) from None
    finally:
        _remove(part)


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
