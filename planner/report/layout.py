"""Building blocks of every report: console, headings, key-value blocks, lists, paragraphs, tables, commands."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from planner.escaping import visible
from planner.frozen import record

GLUE = "\x00"
"""Stands for a space at which a line must not end."""
_UNIT = r"(?:%|(?:[kMBTxsh]|µs|ms|[GT]iB|GB/s|Gbit/s|[TP]FLOP/s)(?![\w-]))"
_GLUED = re.compile(rf"(?<=\d) (?={_UNIT})|(?<= x) (?=\d)|(?<=^x) (?=\d)")


@record(frozen=True, slots=True)
class Paragraph:
    """Lines as long as there is room; part of a section, a list or a cell."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The text, wrapped."""
        lines = _lines(self._shown(), max(options.max_width, 1))
        yield Text("\n".join(lines).replace(GLUE, " "))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest word to the whole text on one line."""
        longest = max((len(word) for word in self._shown().split()), default=0)
        return Measurement(longest, max(len(self._shown()), longest)).with_maximum(options.max_width)

    def _shown(self) -> str:
        """The text with escapes for what is not seen, numbers glued to their units."""
        return _GLUED.sub(GLUE, visible(self.text))


def _lines(text: str, width: int) -> list[str]:
    """Lines of a text; a name that is longer than a line goes on behind one of its dashes, where it has some."""
    words = text.split()
    if all(len(word) <= width for word in words):
        return textwrap.wrap(text, width, break_on_hyphens=False)
    lines = [""]
    while words:
        word = words.pop(0)
        begun = f"{lines[-1]} " if lines[-1] else ""
        room = width - len(begun)
        if len(word) <= room:
            lines[-1] = f"{begun}{word}"
            continue
        part = _part(word, room) if len(word) > width else ""
        if not (part or begun):
            part = word[:width]
        lines[-1] = f"{begun}{part}".rstrip()
        lines.append("")
        words.insert(0, word.removeprefix(part))
    return lines


def _part(word: str, room: int) -> str:
    """The beginning of a word up to its last dash, slash or underscore within the room."""
    part = word[: max(word.rfind(mark, 0, max(room, 0)) for mark in "-/_") + 1]
    return part if part.strip("-/_(") else ""


class PlainConsole(Console):
    """A console that shows text as it stands: no markup, and an escape for what a terminal would obey.

    The building blocks of reports escape what they lay out, so that its width is known; whatever does not come
    through one of them is escaped here.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a part."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, keep="\n"))


NEXT = "Next: "
CONTINUED = " \\"


@record(frozen=True, slots=True)
class Command:
    """A shell command; what does not fit goes on behind a backslash, and no word is cut."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """One line, or several that the shell reads as one."""
        lines = _wrapped(visible(self.text), options.max_width)
        yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It asks for no room: one that is too long is not cut."""
        return Measurement(1, len(self.text)).with_maximum(options.max_width)


@record(frozen=True, slots=True)
class Next:
    """The last line of a report: a command of hetplan, or a sentence."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """On one line where it fits; else a command stands alone and a sentence wraps."""
        text = visible(self.text)
        line = Text.assemble((NEXT, "bold"), text, no_wrap=True, overflow="ignore")
        if len(line) <= options.max_width:
            yield line
        elif text.startswith("hetplan "):
            yield Text(NEXT.rstrip(), style="bold")
            yield Indented(Command(text))
        else:
            yield _sentence(f"{NEXT}{text}", options.max_width)


@record(frozen=True, slots=True)
class Answer:
    """A line that stands alone and is never cut."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """One line, whatever its length: a narrower terminal wraps it."""
        yield Text(visible(self.text), style="bold green", no_wrap=True, overflow="ignore")


def _sentence(text: str, width: int) -> Text:
    lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    shown = Text("\n".join(lines), no_wrap=True, overflow="ignore")
    shown.stylize("bold", 0, len(NEXT.rstrip()))
    return shown


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that end in a backslash but the last, each as long as there is room."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for piece in _pieces(text):
        longer = f"{lines[-1]} {piece}" if lines[-1] else piece
        if lines[-1] and len(longer) + len(CONTINUED) > width:
            lines[-1] += CONTINUED
            longer = f"  {piece}"
            lines.append("")
        lines[-1] = longer
    return lines


def _pieces(text: str) -> list[str]:
    """Words as the shell needs them, an option together with its value."""
    pieces: list[str] = []
    option = False
    for word in map(shlex.quote, shlex.split(text)):
        if option and not word.startswith("-"):
            pieces[-1] += f" {word}"
            option = False
        else:
            pieces.append(word)
            option = word.startswith("-")
    return pieces


@record(frozen=True, slots=True, kw_only=True)
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


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    strong: Iterable[int] = (),
    gap: int = 2,
    *,
    ruled: bool = True,
) -> FittedTable:
    """Rows under headings, ``gap`` cells apart; the rows numbered in ``strong`` are the ones to look at.

    ``ruled`` has a line below the headings; without it they are dim, and each stands on one line.
    """
    if not ruled:
        columns = [replace(column, title=column.title.replace("\n", " ")) for column in columns]
    cells = tuple(tuple(visible(text) for text in row) for row in rows)
    return FittedTable(columns=tuple(columns), rows=cells, strong=frozenset(strong), gap=gap, ruled=ruled)


@record(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table that fits the width it is given: what its numbers leave no room for stands below, as its own table."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int]
    gap: int
    ruled: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table with a width for every column; several, each with the first column, where one is too wide."""
        for number, part in enumerate(self._parts(options.max_width)):
            if number:
                yield Text()
            yield part._drawn(options)

    def _parts(self, room: int) -> Iterator[FittedTable]:
        """The table, or as few as keep all numbers whole."""
        least = self._least()
        if self._total(least) <= room or len(least) < 3:
            yield self
            return
        first = min(self._natural()[0], room // 3)
        chosen = [0]
        for index in range(1, len(least)):
            if (
                len(chosen) > 1
                and self._total([first, *(least[each] for each in (*chosen[1:], index))]) > room
            ):
                yield self._of(chosen)
                chosen = [0]
            chosen.append(index)
        yield self._of(chosen)

    def _of(self, chosen: Sequence[int]) -> FittedTable:
        """These columns alone."""
        columns = tuple(self.columns[index] for index in chosen)
        return replace(
            self, columns=columns, rows=tuple(tuple(row[index] for index in chosen) for row in self.rows)
        )

    def _drawn(self, options: ConsoleOptions) -> Table:
        """With a width for every column."""
        line, style = (box.SIMPLE_HEAD, "") if self.ruled else (None, "dim")
        padding = (0, self.gap - 1 if self.ruled else self.gap, 0, 0)  # a rule has a cell between columns
        drawn = Table(box=line, show_edge=False, pad_edge=False, padding=padding, header_style=style)
        for column, width in zip(self.columns, self.widths(options.max_width), strict=True):
            side: Literal["left", "right"] = "left" if column.words else "right"
            drawn.add_column(Text(column.title), justify=side, width=width)
        for index, row in enumerate(self.rows):
            cells = (_cell(text, column) for text, column in zip(row, self.columns, strict=True))
            drawn.add_row(*cells, style="bold green" if index in self.strong else "")
        return drawn

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the narrowest that keeps each number whole to the widest that wraps nothing."""
        least = self._least()
        parts = least if len(least) < 3 else (least[0], max(least[1:]))
        return Measurement(self._total(parts), self._total(self._natural()))

    def widths(self, room: int) -> list[int]:
        """Cells of every column: the widest columns of words give way until the table fits."""
        widths, least = self._natural(), self._least()
        while self._total(widths) > room:
            spare = [(widths[index] - least[index], widths[index], -index) for index in range(len(widths))]
            best = max((entry for entry in spare if entry[0] > 0), key=lambda entry: entry[1:], default=None)
            if best is None:
                break
            widths[-best[2]] -= 1
        return widths

    def _natural(self) -> list[int]:
        """Cells of the longest line of every column."""
        return [
            max(
                cell_len(line)
                for text in (column.title, *(row[index] for row in self.rows))
                for line in text.split("\n")
            )
            for index, column in enumerate(self.columns)
        ]

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


INDENT = 2


def section(title: str, *parts: RenderableType) -> Group:
    """A heading with indented parts under it and an empty line after them."""
    return Group(Text(visible(title), style="bold"), *(Indented(part) for part in parts), Text(""))


def list_section(title: str, lines: Iterable[str], mark: str = "-") -> Group:
    """A heading with a list under it; nothing at all where the list is empty."""
    given = list(lines)
    return section(title, bullets(given, mark)) if given else Group()


def warnings_section(lines: Iterable[str]) -> Group:
    """What to know before trusting the answer; nothing where there is nothing."""
    return list_section("Warnings", lines, mark="!")


@record(frozen=True, slots=True)
class Indented:
    """A part moved to the right by one level; unlike padding it cuts off nothing."""

    part: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """The part's lines behind blanks."""
        inner = options.update(width=max(options.max_width - INDENT, 1), height=None)
        for line in Segment.split_lines(console.render(self.part, inner)):
            yield Segment(" " * INDENT)
            yield from line
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """What the part needs, and the blanks."""
        inner = Measurement.get(console, options.update(width=max(options.max_width - INDENT, 1)), self.part)
        return Measurement(inner.minimum + INDENT, inner.maximum + INDENT)


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Keys and values in two columns; long values wrap under themselves."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for key, value in rows:
        grid.add_row(Text(visible(key)), Paragraph(value))
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
