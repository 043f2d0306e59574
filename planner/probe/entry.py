"""Lines of a draft: what was seen, what was assumed, and what is left to fill in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.files.yaml_text import dump

ASSUMED = "assumed: "
NOT_SEEN = "not seen: "


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value, or a comment in its place."""

    key: str
    value: str | None
    """YAML in flow style; None when it was not seen."""
    note: str = ""
    """What a reader has to know of the value, or what to write in its place."""

    def line(self) -> str:
        """The entry as text without indentation."""
        if not self.key:
            return f"# {self.note}"
        if self.value is None:
            return f"# {NOT_SEEN}{self.key}: {self.note}"
        gap = "" if self.value.startswith("\n") else " "
        return f"{self.key}:{gap}{self.value}" + (f"  # {self.note}" if self.note else "")


def remark(note: str) -> Entry:
    """A comment on a line of its own."""
    return Entry("", None, note)


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    plain = not isinstance(value, (list, dict))
    lines = dump({"key": [value] if plain else value}).splitlines()
    text = " ".join(line.strip() for line in lines).removeprefix("key: ")
    return text[1:-1] if plain else text


def number(value: float) -> float | int:
    """A number as people write it: two decimals at most, none when it is whole."""
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded
