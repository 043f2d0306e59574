"""Ctrl-C during a search: asked once, it ends and keeps its best plan; asked again, the program ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
    """Ctrl-C sets the wish until the end of the block, where signals can be handled; then it is as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, wish.ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
