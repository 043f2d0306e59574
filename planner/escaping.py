"""Escapes for text that hetplan did not write itself, so that it is safe to print."""

from __future__ import annotations

import json
import re
import unicodedata

_CANDIDATE = re.compile(r"[^ -~]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters, lone surrogates, separators of lines and of paragraphs."""


def visible(text: str, keep: str = "") -> str:
    r"""The text with a backslash escape (``\n``, ``\x1b``, ``\u202e``) for every character that is not seen.

    Such characters move the cursor, colour or reorder what a terminal shows, or begin a line of their own. Those
    in ``keep`` stay as they are.
    """
    if text.isprintable():
        return text
    return _CANDIDATE.sub(lambda match: _escaped(match[0], keep), text)


def visible_json(text: str) -> str:
    """A JSON document with JSON's own escapes for what a terminal would obey; readers find what they found before."""
    return re.sub(
        r"[^ -~\n]", lambda match: json.dumps(match[0])[1:-1] if is_hidden(match[0]) else match[0], text
    )


def is_hidden(character: str) -> bool:
    """True for a character that a terminal obeys instead of showing it."""
    return unicodedata.category(character) in _HIDDEN


def _escaped(character: str, keep: str) -> str:
    if character in keep or not is_hidden(character):
        return character
    return character.encode("unicode_escape").decode()
