"""Building blocks of every report: headings, key-value blocks, lists."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.report.paragraph import Paragraph

INDENT = 2


def section(title: str, *parts: RenderableType) -> Group:
    """A heading with indented parts under it and an empty line after them."""
    return Group(Text(title, style="bold"), *(indented(part) for part in parts), Text(""))


def warnings_section(lines: Iterable[str]) -> Group:
    """What to know before trusting the answer."""
    return section("Warnings", bullets(lines, mark="!"))


def indented(part: RenderableType) -> Padding:
    """A part moved to the right by one level."""
    return Padding(part, (0, 0, 0, INDENT))


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Keys and values in two columns; long values wrap under themselves."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for key, value in rows:
        grid.add_row(Text(key), Paragraph(value))
    return grid


def bullets(lines: Iterable[str], mark: str = "-") -> Table:
    """One line each, long ones wrapping under themselves."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(Text(mark), Paragraph(line))
    return grid


def paragraphs(lines: Iterable[str]) -> Group:
    """One line each, long ones wrapping to the left edge."""
    return Group(*(Paragraph(line) for line in lines))
