"""What to type: commands that can be copied as they stand, at any width."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.text import Text

from planner.report.layout import Indented
from planner.visible import visible

NEXT = "Next: "
CONTINUED = " \\"


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command; what does not fit goes on behind a backslash, and no word is cut."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """One line, or several that the shell reads as one."""
        lines = _folded(visible(self.text), options.max_width)
        yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It asks for no room: one that is too long is not cut."""
        return Measurement(1, len(self.text)).with_maximum(options.max_width)


@dataclass(frozen=True, slots=True)
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


def _sentence(text: str, width: int) -> Text:
    lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    shown = Text("\n".join(lines), no_wrap=True, overflow="ignore")
    shown.stylize("bold", 0, len(NEXT.rstrip()))
    return shown


def _folded(text: str, width: int) -> list[str]:
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
