"""The process's own streams: closed, full or left by their reader, they end in one error and never in a bug."""

from __future__ import annotations

import io
import os
import sys
from errno import EBADF
from select import select
from typing import TYPE_CHECKING, TextIO

from planner.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Lossy(io.FileIO):
    """A standard stream that a write cannot break: from the first failure on, all goes nowhere."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.failure: str | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:
                select([], [self], [])  # a terminal or pipe that another program made non-blocking is full
            return written
        except OSError as error:
            self.failure = "it is closed" if error.errno == EBADF else error.strerror or str(error)
            self._silence()
            self._say()
            return memoryview(data).nbytes

    def _silence(self) -> None:
        """Send what is left to nowhere, so that the interpreter can flush at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)

    def _say(self) -> None:
        """There is nowhere to say it."""


class _Answers(_Lossy):
    """Standard output: an answer that is lost is an error."""

    def _say(self) -> None:
        raise OutputError(f"standard output: cannot be written: {self.failure}")


def open_streams() -> None:
    """Put streams that cannot break in place of the process's; reserve the numbers of those that are closed.

    Without it the next file that is opened takes the number of a closed stream, and gets what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest free number; writing to it fails
    sys.stdout = _text(_Answers(1), sys.stdout)
    sys.stderr = _text(_Lossy(2), sys.stderr)


def lost_words() -> bool:
    """True when something was said on standard error that nobody can have read."""
    raw = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    return isinstance(raw, _Lossy) and raw.failure is not None


def _text(raw: _Lossy, before: TextIO | None) -> TextIO:
    """The stream as text, in the encoding of the one before; a character that it lacks becomes another."""
    encoding = getattr(before, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding=encoding, errors="replace", line_buffering=raw.fileno() == 2 or raw.isatty()
    )
