"""The list of what hetplan wrote into a folder: what a later write may replace."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from planner.emit.folder import tree
from planner.emit.folder.lock import WORK
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
    found = (LINE.fullmatch(line) for line in lines)
    return {match["path"]: match["digest"] for match in found if match and is_inside(match["path"])}


def is_inside(path: str) -> bool:
    """True for a plain relative path of a user's folder."""
    words = path.split("/")
    return not {"", ".", ".."}.intersection(words) and words[0] != WORK and "\0" not in path
