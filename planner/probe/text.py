"""Texts that other programs printed, and what is wrong with them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from planner.errors import SpecError

_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_CONTROL = ("Cc", "Cn", "Cs")
"""Kinds of characters that no YAML file may have."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a command printed, and where it is kept."""

    content: str
    file: str
    """Path of the saved output as the user wrote it, or what it would be called."""

    def lines(self) -> Iterator[tuple[int, str]]:
        """(1-based number, line) of every line that is not blank, without the colours of a terminal.

        Raises SpecError for control characters, which no YAML file may have.
        """
        for number, line in enumerate(self.content.splitlines(), start=1):
            plain = _TERMINAL.sub("", line).rstrip()
            if any(unicodedata.category(character) in _CONTROL for character in plain if character != "\t"):
                raise self.broken(
                    number, f"expected text, got {short(plain)}", "save the output as plain text"
                )
            if plain.strip():
                yield number, plain

    def broken(self, line: int | None, what: str, hint: str) -> SpecError:
        """The error for a line that cannot be understood; ``what`` says what was expected."""
        return SpecError.of(self.file, what, hint, line)


def short(line: str) -> str:
    """A line as an error quotes it: its first sixty characters."""
    stripped = line.strip()
    return repr(stripped if len(stripped) <= 60 else stripped[:57] + "...")
