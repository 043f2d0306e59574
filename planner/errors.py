"""Every error a user can meet.

HetplanError                 exit code 1 unless a subclass says otherwise
├── SpecError                all that one file says wrong                        exit 2
├── UsageError               options that contradict each other                  exit 2
├── PlanError                a plan file that is inconsistent or outdated        exit 2
├── OutputError              a file or folder that cannot be written             exit 2
└── EmitError                a plan that its target cannot express               exit 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from planner.frozen import record

KeyPath = tuple[str | int, ...]
"""Keys and indices that lead to a value: ``("stages", 2, "replicas")``."""


def dotted(path: Iterable[str | int]) -> str:
    """A path as the user would write it: ``pools[1].nics[0].bandwidth_gbps``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


class PartError(ValueError):
    """A part of a value that is not what it must be; the reader of a file adds file and line."""

    def __init__(self, what: str, path: KeyPath) -> None:
        super().__init__(what)
        self.path = path
        """Leads from the value to the part."""


class HetplanError(Exception):
    """Base of all errors that are shown to the user as one message."""

    exit_code = 1

    def __init__(self, *lines: str, hint: str | None = None) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        """What is wrong, a sentence each."""
        self.hint = hint

    @property
    def message(self) -> str:
        """Everything that is wrong."""
        return "\n".join(self.lines)


@record(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong in a file."""

    file: str
    """Path as the user wrote it."""
    line: int | None
    """1-based line of the offending key or value; None when the file as a whole is meant."""
    key: str
    """Dotted path of the key, e.g. ``pools[1].nics[0].bandwidth_gbps``; empty for the file."""
    what: str
    """What is wrong and what was expected, in one sentence without a full stop."""
    hint: str | None = None
    """What to write instead."""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.key, self.what) if part)


class SpecError(HetplanError):
    """A cluster, model or calibration file that cannot be used; carries every problem found in it."""

    exit_code = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(*(str(problem) for problem in problems))
        self.problems = problems

    @classmethod
    def of(cls, file: object, what: str, hint: str | None = None, line: int | None = None) -> SpecError:
        """The error of one problem: that of a file as a whole, or of one of its lines."""
        return cls((Problem(file=str(file), line=line, key="", what=what, hint=hint),))


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """What files say wrong in the block joins the problems, so that those of several are told at once."""
    try:
        yield
    except SpecError as error:
        problems += error.problems


class UsageError(HetplanError):
    """Options that contradict each other or name something that does not exist."""

    exit_code = 2


class PlanError(HetplanError, ValueError):
    """A plan that is inconsistent, of another version, or made for other inputs."""

    exit_code = 2

    def __init__(self, *lines: str, path: KeyPath = (), hint: str | None = None) -> None:
        """``path`` leads from the value that refuses to the part that is wrong; a file's reader finds its line."""
        where = f"{dotted(path)}: " if path else ""
        super().__init__(*(f"{where}{line}" for line in lines), hint=hint)
        self.path = path
        self.what = "\n".join(lines)
        """What is wrong, without the place."""


class OutputError(HetplanError):
    """A file or folder that cannot be written."""

    exit_code = 2


class EmitError(HetplanError):
    """A plan that the chosen target cannot run; the message names the rule."""

    exit_code = 2
