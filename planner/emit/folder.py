"""Writing a launch folder whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from planner.emit.files import EmittedFile
from planner.errors import OutputError

MANIFEST = ".hetplan-files"
"""Lists what hetplan wrote, so that a later write replaces that and nothing of the user's."""


def write_folder(files: tuple[EmittedFile, ...], folder: Path, force: bool = False) -> None:
    """Write the files into a folder that is new or empty; with ``force`` also into one in use.

    In a folder in use only files of an earlier write are replaced or removed: checkpoints and logs stay.
    Raises OutputError; the folder is then as it was before.
    """
    _refuse(folder, force)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        _fill(staged, files)
        _publish(staged, folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _refuse(folder: Path, force: bool) -> None:
    """Raise OutputError when the folder is a file or in use."""
    try:
        if folder.is_symlink() and not folder.exists():
            raise OutputError(f"{folder}: is a link that points nowhere")
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder}: is a file, expected a folder")
        used = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise _unwritable(folder, error) from error
    if used and not force:
        raise OutputError(
            f"{folder}: the folder is not empty",
            hint="name a new folder, or add --force to replace the files that hetplan wrote there",
        )


def _unwritable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"{folder}: cannot be written: {error.strerror or error}")


def _fill(staged: Path, files: Iterable[EmittedFile]) -> None:
    """Write every file and the manifest, with the permissions that the user's umask gives."""
    umask = os.umask(0)
    os.umask(umask)
    staged.chmod(0o777 & ~umask)
    for file in files:
        path = staged / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8", newline="\n")
        path.chmod((0o777 if file.executable else 0o666) & ~umask)
    manifest = "".join(f"{file.path}\n" for file in files)
    (staged / MANIFEST).write_text(manifest, encoding="utf-8", newline="\n")


def _publish(staged: Path, folder: Path) -> None:
    """Rename the staged folder; into a folder in use, move file by file."""
    folder = folder.resolve()
    if not folder.exists() or not any(folder.iterdir()):
        staged.rename(folder)
        return
    new = [path.relative_to(staged) for path in sorted(staged.rglob("*")) if path.is_file()]
    stale = _written_before(folder) - {path.as_posix() for path in new}
    for path in new:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (staged / path).replace(folder / path)
    for name in stale:
        (folder / name).unlink(missing_ok=True)


def _written_before(folder: Path) -> set[str]:
    """Files that an earlier write left, never one outside the folder."""
    try:
        names = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return set()
    return {name for name in names if name and (folder / name).resolve().is_relative_to(folder)}
