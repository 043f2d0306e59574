"""Where the program talks: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from planner.visible import visible, visible_json

if TYPE_CHECKING:
    from typing import Literal

    from rich.console import RenderableType

    from planner.errors import HetplanError
    from planner.report.keys import Document

NARROWEST = 80
"""Reports are laid out for at least this many cells; a narrower terminal wraps them itself."""
WIDEST = 1000
"""Cells in which any table fits."""


def show(*parts: RenderableType | None, then: str | None = None) -> None:
    """Print the parts of a report on stdout, and what to do then; colour only on a terminal.

    ``then`` is a sentence, or a command as ``typed`` makes it.
    """
    from rich.console import Group

    from planner.report.command import Next
    from planner.report.console import PlainConsole

    group = Group(*(part for part in parts if part is not None))
    console = PlainConsole(width=_width(group), color_system=colours())
    with console.capture() as captured:
        console.print(group, crop=False)
        if then is not None:
            console.print(Next(then), crop=False)
    text = captured.get()
    coloured = console.color_system is not None
    _write(text if coloured else "".join(f"{line.rstrip()}\n" for line in text.split("\n")[:-1]))


def colours() -> Literal["auto"] | None:
    """Colours, bold and dim where the stream shows them; none at all with NO_COLOR, whatever else is set."""
    return None if os.environ.get("NO_COLOR") else "auto"


def typed(*words: object) -> str:
    """A command as one types it, with quotes around what the shell would take apart."""
    return shlex.join(str(word) for word in words)


def _width(group: RenderableType) -> int:
    """The terminal's width, or what the widest table of numbers needs."""
    from rich.measure import Measurement

    from planner.report.console import PlainConsole

    console = PlainConsole()
    unlimited = console.options.update(width=WIDEST)
    return max(console.width, NARROWEST, Measurement.get(console, unlimited, group).minimum)


def show_document(document: Document) -> None:
    """Print a JSON document on stdout."""
    from planner.report.document import text

    write(visible_json(text(document)))


def write(text: str) -> None:
    """Write to stdout at once, with escapes for what a terminal would obey."""
    _write(visible(text, keep="\n"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def warn(message: str) -> None:
    """A line on stderr that is not an error."""
    _tell("warning", "yellow", message)


def fail(error: HetplanError) -> None:
    """An error on stderr: one line a problem, each with its hint."""
    from planner.errors import SpecError

    if isinstance(error, SpecError):
        for problem in error.problems:
            _tell("error", "red", str(problem), problem.hint)
    else:
        *first, last = error.lines
        for line in first:
            _tell("error", "red", line)
        _tell("error", "red", last, error.hint)


def _tell(word: str, colour: str, message: str, hint: str | None = None) -> None:
    """``word: message`` and an indented hint; never wrapped, so that editors can follow file:line.

    Each is one line whatever it quotes: a newline from a file is an escape, as all that a terminal would obey.
    """
    coloured = sys.stderr.isatty() and colours() is not None and os.environ.get("TERM") != "dumb"
    codes = {"red": "\033[1;31m", "yellow": "\033[1;33m"}
    start, end = (codes[colour], "\033[0m") if coloured else ("", "")
    sys.stderr.write(f"{start}{word}:{end} {visible(message)}\n")
    if hint:
        sys.stderr.write(f"  hint: {visible(hint)}\n")
