"""Building blocks of every report: headings, key-value blocks, lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from planner.report.paragraph import Paragraph
from planner.visible import visible

INDENT = 2


def section(title: str, *parts: RenderableType) -> Group:
    """A heading with indented parts under it and an empty line after them."""
    return Group(Text(visible(title), style="bold"), *(Indented(part) for part in parts), Text(""))


def warnings_section(lines: Iterable[str]) -> Group:
    """What to know before trusting the answer."""
    return section("Warnings", bullets(lines, mark="!"))


@dataclass(frozen=True, slots=True)
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
