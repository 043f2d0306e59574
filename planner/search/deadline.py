"""The end of a search, by its time limit or by Ctrl-C: one object that is passed to every loop.

Long work calls ``check`` wherever it could stop; what was found until then stays.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from time import monotonic, process_time
from types import FrameType
from typing import Protocol

from planner.frozen import dataclass


class Flag(Protocol):
    """Says whether the user wants an end."""

    def is_set(self) -> bool:
        """True from Ctrl-C on."""


class Struck(Exception):  # noqa: N818  # not an error
    """Time is up, or the user has pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time on the monotonic clock, infinite for none, and the user's wish to end."""

    at: float = inf
    flag: Flag | None = None
    """None where nobody can ask for an end."""
    cpu_at: float = inf
    """The same on the clock of the process's own CPU seconds."""

    @classmethod
    def after(
        cls, seconds: float | None, *, since: float | None = None, flag: Flag | None = None
    ) -> Deadline:
        """So many seconds from ``since``, or from now; None for no limit."""
        start = monotonic() if since is None else since
        return cls(inf if seconds is None else start + seconds, flag)

    @property
    def interrupted(self) -> bool:
        """True when the user wants an end."""
        return self.flag is not None and self.flag.is_set()

    @property
    def struck(self) -> bool:
        """True when time is up, or the user wants an end."""
        return (
            self.interrupted
            or (self.at < inf and monotonic() >= self.at)
            or (self.cpu_at < inf and process_time() >= self.cpu_at)
        )

    @property
    def left(self) -> float:
        """Seconds, never negative; infinite without a limit."""
        return max(0.0, self.at - monotonic()) if self.at < inf else inf

    def part(self, fraction: float) -> Deadline:
        """An earlier deadline: after this fraction of the time that is left."""
        if self.at == inf:
            return self
        now, cpu = monotonic(), process_time()
        return replace(self, at=now + fraction * self.left, cpu_at=cpu + fraction * (self.cpu_at - cpu))

    def slice(self, fraction: float, least_seconds: float) -> Deadline:
        """The same, of at least so many seconds where there are as many: less is not worth a search's beginning."""
        return self.part(min(1.0, max(fraction, least_seconds / max(self.left, 1e-9))))

    def later(self, seconds: float) -> Deadline:
        """One that strikes so many seconds later."""
        return replace(self, at=self.at + seconds)

    def within(self, cpu_seconds: float) -> Deadline:
        """One that strikes after so many CPU seconds of the process as well; without a limit it is as it was."""
        return (
            self if self.at == inf else replace(self, cpu_at=min(self.cpu_at, process_time() + cpu_seconds))
        )

    def check(self) -> None:
        """Raise ``Struck`` when it is time to end."""
        if self.struck:
            raise Struck

    def check_wish(self) -> None:
        """Raise ``Struck`` when the user wants an end; for the little that is done whatever the time."""
        if self.interrupted:
            raise Struck


NO_LIMIT = Deadline()
"""Never strikes."""


class Wish:
    """Whether the user wants an end."""

    def __init__(self) -> None:
        self._asked = False
        self.insisted = False
        """True once it was asked again."""

    def is_set(self) -> bool:
        """True from the first Ctrl-C on."""
        return self._asked

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of the signal: an exception could be raised anywhere, even inside a solver."""
        if self._asked:
            self.insisted = True
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def keeping_the_best(wish: Wish) -> Iterator[None]:
    """Ctrl-C sets the wish until the end of the block, where signals can be handled; then it is as before.

    The second one ends the block, even where a solver makes another exception of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, wish.ask)
    try:
        yield
    except Exception:
        if wish.insisted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
