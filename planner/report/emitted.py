"""What was written into a launch folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group

from planner.report.layout import bullets, section
from planner.report.numbers import count

SHOWN = 24
"""Files of one folder that are listed by name."""


def emitted_section(target: str, folder: Path, paths: Sequence[str], unnamed: Sequence[str] = ()) -> Group:
    """The files by name, folders with many in one line; then hosts with placeholders for names."""
    inside: dict[str, list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition("/")
        inside.setdefault(parent, []).append(name)
    lines = [line for parent, names in sorted(inside.items()) for line in _lines(parent, names)]
    heading = f"Wrote {count(len(paths), 'file')} for {target} to {folder}"
    return section(
        heading, bullets(lines), *([bullets([_placeholders(unnamed)], mark="!")] if unnamed else [])
    )


def _placeholders(names: Sequence[str]) -> str:
    *others, last = names
    listed = f"{', '.join(others)} and {last} are placeholders" if others else f"{last} is a placeholder"
    return f"name the nodes before you start: {listed}"


def _lines(parent: str, names: list[str]) -> list[str]:
    prefix = f"{parent}/" if parent else ""
    if len(names) > SHOWN:
        return [f"{prefix}{names[0]} .. {names[-1]} ({len(names)} files)"]
    return [f"{prefix}{name}" for name in names]
