"""Building blocks of every report: headings, key-value blocks, tables, lists.

Numbers never wrap and are never cut; only columns of words do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.report.paragraph import Paragraph

INDENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    """Heading with the unit; a newline puts the unit on its own line."""
    words: bool = False
    """True for text, which may wrap and stands left; numbers stand right and never wrap."""
    least: int = 12
    """Cells that a column of words keeps at any width."""


def number(title: str) -> Column:
    """A column of numbers."""
    return Column(title=title)


def words(title: str, least: int = 12) -> Column:
    """A column of text."""
    return Column(title=title, words=True, least=least)


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


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], strong: Iterable[int] = (), gap: int = 2
) -> Table:
    """Rows under headings, ``gap`` cells apart; the rows numbered in ``strong`` are the ones to look at."""
    padding = (0, gap - 1, 0, 0)
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, header_style="")
    for index, column in enumerate(columns):
        _add(drawn, column, [row[index] for row in rows])
    marked = set(strong)
    for index, row in enumerate(rows):
        cells = [
            Paragraph(cell) if column.words else Text(cell) for column, cell in zip(columns, row, strict=True)
        ]
        drawn.add_row(*cells, style="bold green" if index in marked else "")
    return drawn


def _add(drawn: Table, column: Column, cells: Sequence[str]) -> None:
    """Words may shrink to ``least``; numbers keep the width of their longest cell."""
    longest = max(cell_len(line) for text in (column.title, *cells) for line in text.split("\n"))
    drawn.add_column(
        Text(column.title),
        justify="left" if column.words else "right",
        no_wrap=not column.words,
        overflow="fold",
        vertical="top",
        min_width=min(longest, column.least) if column.words else longest,
    )
