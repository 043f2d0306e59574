"""What every ``--json`` document begins with, and how it is written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from planner.described import Json, plain

FORMAT = 1
"""Version of the documents; grows when a key changes its meaning or goes away."""


MOST_INDENTED = 10_000
"""Entries of a list in an indented document."""


def text(document: object) -> str:
    """A document as JSON; numbers that are infinite or unknown become null.

    A very long one is not indented: that takes ten times as long.
    """
    found = plain(document)
    assert isinstance(found, dict), "a document is a mapping"
    long = any(isinstance(value, list) and len(value) > MOST_INDENTED for value in found.values())
    indent = None if long else 2
    try:
        return json.dumps(found, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(found), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every document begins with."""

    format: int = FORMAT
    """Version of the document, 1; grows when a key changes its meaning or goes away."""
    command: str
    """The command that wrote it."""
