"""How far a search is, on stderr while it is a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
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

from planner.cli.process import colours, started
from planner.plan.file import Moment
from planner.report.layout import PlainConsole
from planner.report.numbers import at_most, duration
from planner.search.deadline import Deadline, Wish, keeping_the_best
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


class Quiet(Silent):
    """A reporter that shows nothing, and may do something now and then."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self._then = then

    def better(self, seconds: float) -> None:
        """Nobody looks."""

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """The moment to do it."""
        if self._then is not None:
            self._then()


def state(best_seconds: float | None, bound_seconds: float) -> str:
    """``best 55.9 s, within 3.1 %``, as far as known."""
    if best_seconds is None:
        return "no plan yet"
    known = math.isfinite(bound_seconds) and bound_seconds > 0
    gap = max(0.0, 1 - bound_seconds / best_seconds)
    return f"best {duration(best_seconds)}{f', within {at_most(gap)}' if known else ''}"


MOST_MOMENTS = 50
"""Moments that a plan file keeps of a search."""


class History:
    """How the best step and the bound of a search move; a reporter that tells another one too."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._best, self._bound = math.inf, 0.0
        self._moments: list[Moment] = []
        self.talk: ProgressBar | Quiet = Quiet()

    def phase(self, name: str) -> None:
        """Passed on."""
        self.talk.phase(name)

    def better(self, seconds: float) -> None:
        """A better plan."""
        self._note(seconds, self._bound)
        self.talk.better(seconds)

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """Perhaps a better bound."""
        self._note(math.inf if best_seconds is None else best_seconds, bound_seconds)
        self.talk.progress(done=done, total=total, best_seconds=best_seconds, bound_seconds=bound_seconds)

    def until(self, step_seconds: float, bound_seconds: float) -> tuple[Moment, ...]:
        """All of it and how it ends; no bound on the way is above the last one."""
        self._best, self._bound = step_seconds, bound_seconds
        self._add()
        return tuple(
            replace(each, bound_seconds=min(each.bound_seconds, bound_seconds)) for each in self._moments
        )

    def _note(self, best: float, bound: float) -> None:
        known = (self._best, self._bound)
        self._best = min(best, self._best)
        if math.isinf(self._best):
            return  # a bound of a space without plans is none of the space that is searched next
        self._bound = max(self._bound, bound if math.isfinite(bound) else 0.0)
        if (self._best, self._bound) != known:
            self._add()

    def _add(self) -> None:
        seconds = monotonic() - self._since
        self._moments.append(Moment(seconds=seconds, step_seconds=self._best, bound_seconds=self._bound))
        if len(self._moments) > MOST_MOMENTS:
            del self._moments[min(range(1, MOST_MOMENTS), key=self._moved)]

    def _moved(self, at: int) -> float:
        """How much a moment changed, as a share of the step."""
        before, after = self._moments[at - 1], self._moments[at]
        better = before.step_seconds - after.step_seconds + after.bound_seconds - before.bound_seconds
        return better / before.step_seconds


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
def reporter(then: Callable[[], None] | None = None) -> Iterator[ProgressBar | Quiet]:
    """A line on a terminal, else silence; ``then`` is done at every step of progress."""
    if not sys.stderr.isatty():
        yield Quiet(then)
        return
    columns = (
        SpinnerColumn("line"),
        TextColumn("{task.description}:", markup=False),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with _bar(columns) as bar:
        yield ProgressBar(bar, then)


@contextmanager
def searching(seconds: float | None) -> Iterator[tuple[ProgressBar | Quiet, Deadline]]:
    """A reporter, and a deadline so many seconds after the command was started; the first Ctrl-C is one too."""
    wish = Wish()
    with keeping_the_best(wish), reporter() as talk:
        yield talk, Deadline.after(seconds, since=started(), flag=wish)


def _bar(columns: tuple[ProgressColumn, ...]) -> Progress:
    """One line that goes away at its end."""
    return Progress(*columns, console=PlainConsole(stderr=True, color_system=colours()), transient=True)
