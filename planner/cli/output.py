"""Output: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Group, RenderableType
from rich.measure import Measurement

from planner.cli.process import colours, write, write_through
from planner.errors import OutputError
from planner.escaping import visible_json
from planner.field_metadata import text
from planner.model.hub import as_named
from planner.report.layout import Next, PlainConsole


def require_writable(path: Path, example: str = "plan.yaml") -> None:
    """Raise OutputError when no file can be written at this path; its hint names an ``example`` file."""
    with writing(path):
        _check_place(path, example)


def _check_place(path: Path, example: str) -> None:
    if path.is_dir():
        raise OutputError(f"{path}: is a directory", hint=f"name a file, e.g. {path / example}")
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{path}: {folder} is a file, expected a folder")
    if not folder.is_dir():
        raise OutputError(f"{path}: the folder {folder} does not exist", hint=f"mkdir -p {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputError(f"{path}: no permission to write", hint="name a file in a folder of yours")


def require_new(path: Path, force: bool, example: str) -> None:
    """Raise OutputError when the file cannot be written, or is there and may not be replaced."""
    require_writable(path, example)
    if path.is_file() and not force:
        raise OutputError(f"{path}: exists already", hint="name another file, or add --force to replace it")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the system as one about this output."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None


def failure_of(write: Callable[[], object]) -> OutputError | None:
    """Write; a failure is returned, so that the report comes first."""
    try:
        write()
    except OutputError as error:
        return error
    return None


NARROWEST = 80
"""Reports are laid out for at least this many cells; a narrower terminal wraps them itself."""
WIDEST = 1000
"""Cells in which any table fits."""


def show(*parts: RenderableType | None, then: str | None = None, last: RenderableType | None = None) -> None:
    """Print the parts of a report on stdout, what to do then, and what shall be seen last; colour only on a terminal.

    ``then`` is a sentence, or a command as ``typed`` makes it.
    """
    group = Group(*(part for part in parts if part is not None))
    console = PlainConsole(width=_width(group), color_system=colours())
    with console.capture() as captured:
        console.print(group, crop=False)
        if then is not None:
            console.print(Next(then), crop=False)
        if last is not None:
            console.print(last, crop=False)
    text = captured.get()
    coloured = console.color_system is not None
    write_through(text if coloured else "".join(f"{line.rstrip()}\n" for line in text.split("\n")[:-1]))


def typed(*words: object) -> str:
    """A command as one types it, with quotes around what the shell would take apart."""
    return shlex.join(str(as_named(word) if isinstance(word, Path) else word) for word in words)


def _width(group: RenderableType) -> int:
    """The terminal's width, or what the widest table of numbers needs."""
    console = PlainConsole()
    unlimited = console.options.update(width=WIDEST)
    return max(console.width, NARROWEST, Measurement.get(console, unlimited, group).minimum)


def show_document(document: object) -> None:
    """Print a JSON document on stdout: a dataclass of values, or a mapping."""
    write(visible_json(text(document)))
