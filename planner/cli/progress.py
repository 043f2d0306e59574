"""How far a search is, on stderr while it is a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from planner.cli.process import colours
from planner.report.layout import PlainConsole
from planner.report.numbers import at_most, duration
from planner.search.values import Silent

if TYPE_CHECKING:
    from planner.measure.samples import Event


PHASES = {"searching": "proving", "first plans": "first plans", "reasons": "reasons"}
"""Phases of a search as its line names them."""


class ProgressBar:
    """A reporter that draws one line: the phase, the best so far and the gap, and how many choices were solved."""

    def __init__(self, bar: Progress, then: Callable[[], None] | None) -> None:
        self._bar, self._then = bar, then
        self._task: TaskID = bar.add_task("bounds", total=None, state=state(None, 0.0))

    def phase(self, name: str) -> None:
        """Say what begins."""
        self._bar.update(self._task, description=PHASES.get(name, name))

    def better(self, seconds: float) -> None:
        """A better plan, whose distance from the bound is not known yet."""
        self._bar.update(self._task, state=state(seconds, 0.0))

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """Redraw with the best step so far and how far it can be from the best possible."""
        known = state(best_seconds, bound_seconds)
        self._bar.update(self._task, state=f"{known}, {done}/{total} choices" if done else known)
        if self._then is not None:
            self._then()


class Beat:
    """A reporter that shows nothing and does something now and then."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def phase(self, name: str) -> None:
        """Nobody looks."""

    def better(self, seconds: float) -> None:
        """Nobody looks."""

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """The moment to do it."""
        self._then()


def state(best_seconds: float | None, bound_seconds: float) -> str:
    """``best 55.9 s, within 3.1 %``, as far as known."""
    if best_seconds is None:
        return "no plan yet"
    known = math.isfinite(bound_seconds) and bound_seconds > 0
    gap = max(0.0, 1 - bound_seconds / best_seconds)
    return f"best {duration(best_seconds)}{f', within {at_most(gap)}' if known else ''}"


class Quiet(Silent):
    """A reporter that shows nothing and has nothing to do."""

    def better(self, seconds: float) -> None:
        """Nobody looks."""


@contextmanager
def measuring(shown: bool = True) -> Iterator[Callable[[Event], None]]:
    """A bar of measured points on a terminal, else silence; silence too where another process shows it."""
    if not shown or not sys.stderr.isatty():
        yield lambda event: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with _bar(columns) as bar:
        task = bar.add_task("measuring", total=None, state="")
        yield lambda event: bar.update(task, completed=event.done, total=event.total, state=event.what)


@contextmanager
def reporter(then: Callable[[], None] | None = None) -> Iterator[ProgressBar | Beat | Quiet]:
    """A line on a terminal, else silence; ``then`` is done at every step of progress."""
    if not sys.stderr.isatty():
        yield Beat(then) if then else Quiet()
        return
    columns = (
        SpinnerColumn("line"),
        TextColumn("{task.description}:", markup=False),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with _bar(columns) as bar:
        yield ProgressBar(bar, then)


def _bar(columns: tuple[ProgressColumn, ...]) -> Progress:
    """One line that goes away at its end."""
    return Progress(*columns, console=PlainConsole(stderr=True, color_system=colours()), transient=True)
