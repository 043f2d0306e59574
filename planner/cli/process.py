"""The process: exit codes, start and streams.

Answers go to stdout, everything else to stderr. Streams that are closed, full or left by their reader end in one
error and never in a bug.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from errno import EBADF
from select import select
from time import monotonic, process_time
from typing import TYPE_CHECKING, Literal, TextIO

from planner.errors import HetplanError, OutputError, SpecError
from planner.escaping import visible

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ANSWER = 0
BUG = 1
BAD_INPUT = 2
INFEASIBLE = 3
NO_PLAN_IN_TIME = 4
INTERRUPTED = 130

MEANINGS: dict[int, str] = {
    ANSWER: "success, also for a plan that is not proven optimal within the time limit",
    BUG: "a bug in hetplan",
    BAD_INPUT: "unusable options, files or devices, or an output that cannot be written",
    INFEASIBLE: "proven: no plan fits",
    NO_PLAN_IN_TIME: "no plan found within the time limit, nothing proven",
    INTERRUPTED: "stopped by Ctrl-C; searches print, and write, what they have found so far",
}
"""What each code says."""


def exit_code(interrupted: bool, found: bool, infeasible: bool) -> int:
    """That of a search; ``infeasible``: proven, where nothing was found."""
    if interrupted:
        return INTERRUPTED
    if found:
        return ANSWER
    return INFEASIBLE if infeasible else NO_PLAN_IN_TIME


_marked: list[float] = []


def as_typed() -> str:
    """The command that runs, on one line and in characters that every file can hold."""
    return visible(" ".join(["hetplan", *sys.argv[1:]]))


def mark_start() -> None:
    """Called first of all by a process of its own: imports so far, which take processor time, count.

    Hardly anything here is in a cycle: looking for garbage of that kind as often as Python does takes 6 % of a search.
    """
    _marked[:] = [monotonic() - process_time()]
    gc.set_threshold(100_000, 20, 50)


def mark_end() -> None:
    """Called last of all by a process of its own: what it holds goes with it.

    Python looks for garbage before it ends, which takes half a second after a search of 100,000 families.
    """
    gc.freeze()


def started() -> float:
    """On the monotonic clock; now, where the command is run inside another program."""
    return _marked[0] if _marked else monotonic()


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


def colours() -> Literal["auto"] | None:
    """Colours, bold and dim where the stream shows them; none at all with NO_COLOR, whatever else is set."""
    return None if os.environ.get("NO_COLOR") else "auto"


def write(text: str) -> None:
    """Write to stdout at once, with escapes for what a terminal would obey."""
    write_through(visible(text, keep="\n"))


def write_through(text: str) -> None:
    """Write to stdout at once, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def warn(message: str) -> None:
    """A line on stderr that is not an error."""
    _tell("warning", "yellow", message)


def fail(error: HetplanError) -> None:
    """An error on stderr: one line a problem, each with its hint."""
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
