"""Output paths that are refused before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import OutputError


def require_writable(path: Path, example: str = "plan.yaml") -> None:
    """Raise OutputError when no file can be written at this path; its hint names an ``example`` file."""
    if path.is_dir():
        raise OutputError(f"{path}: is a directory", hint=f"name a file, e.g. {path / example}")
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{path}: {folder} is a file, expected a folder")
    if not folder.is_dir():
        raise OutputError(f"{path}: the folder {folder} does not exist", hint=f"mkdir -p {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputError(f"{path}: no permission to write", hint="name a file in a folder of yours")
