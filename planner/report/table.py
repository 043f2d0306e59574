"""Tables in which numbers never wrap and are never cut; columns of words give way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from planner.report.paragraph import Paragraph
from planner.visible import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    """Heading with the unit; a newline puts the unit on its own line."""
    words: bool = False
    """True for text, which may wrap and stands left; numbers stand right and never wrap."""
    least: int = 12
    """Cells that a column of words keeps at any width."""

    @property
    def justify(self) -> Literal["left", "right"]:
        """Side on which the cells stand."""
        return "left" if self.words else "right"


def number(title: str) -> Column:
    """A column of numbers."""
    return Column(title=title)


def words(title: str, least: int = 12) -> Column:
    """A column of text."""
    return Column(title=title, words=True, least=least)


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], strong: Iterable[int] = (), gap: int = 2
) -> FittedTable:
    """Rows under headings, ``gap`` cells apart; the rows numbered in ``strong`` are the ones to look at."""
    cells = tuple(tuple(visible(text) for text in row) for row in rows)
    return FittedTable(columns=tuple(columns), rows=cells, strong=frozenset(strong), gap=gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table that fits the width it is given as far as its numbers allow."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int]
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The table with a width for every column."""
        padding = (0, self.gap - 1, 0, 0)
        drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, header_style="")
        for column, width in zip(self.columns, self.widths(options.max_width), strict=True):
            drawn.add_column(Text(column.title), justify=column.justify, width=width)
        for index, row in enumerate(self.rows):
            cells = (_cell(text, column) for text, column in zip(row, self.columns, strict=True))
            drawn.add_row(*cells, style="bold green" if index in self.strong else "")
        yield drawn

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the narrowest that keeps the numbers whole to the widest that wraps nothing."""
        return Measurement(self._total(self._least()), self._total(self._natural()))

    def widths(self, room: int) -> list[int]:
        """Cells of every column: the widest columns of words give way until the table fits."""
        found, least = self._natural(), self._least()
        while self._total(found) > room:
            spare = [(found[index] - least[index], found[index], -index) for index in range(len(found))]
            best = max((entry for entry in spare if entry[0] > 0), key=lambda entry: entry[1:], default=None)
            if best is None:
                break
            found[-best[2]] -= 1
        return found

    def _natural(self) -> list[int]:
        """Cells of the longest line of every column."""
        return [
            max(cell_len(line) for text in (column.title, *cells) for line in text.split("\n"))
            for column, cells in zip(self.columns, self._by_column(), strict=True)
        ]

    def _by_column(self) -> list[tuple[str, ...]]:
        """Texts of the rows, [column][row]."""
        return [tuple(row[index] for row in self.rows) for index in range(len(self.columns))]

    def _least(self) -> list[int]:
        """Cells below which a column never shrinks."""
        widths = zip(self.columns, self._natural(), strict=True)
        return [min(natural, column.least) if column.words else natural for column, natural in widths]

    def _total(self, widths: Sequence[int]) -> int:
        """Cells of the whole table."""
        return sum(widths) + self.gap * (len(widths) - 1)


def _cell(text: str, column: Column) -> Paragraph | Text:
    """Words wrap, numbers stand right on one line."""
    return Paragraph(text) if column.words else Text(text, no_wrap=True)
