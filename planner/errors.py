"""Every error a user can meet.

HetplanError                 exit code 1 unless a subclass says otherwise
├── SpecError                all that one file says wrong                        exit 2
├── UsageError               options that contradict each other                  exit 2
├── PlanError                a plan file that is inconsistent or outdated        exit 2
├── OutputError              a file or folder that cannot be written             exit 2
├── EmitError                a plan that its target cannot express               exit 2
├── InfeasibleError          proven: no plan fits                                exit 3
└── TimeLimitError           no plan found within the time limit                 exit 4
"""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True, kw_only=True)
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


class UsageError(HetplanError):
    """Options that contradict each other or name something that does not exist."""

    exit_code = 2


class PlanError(HetplanError):
    """A plan that is inconsistent, of another version, or made for other inputs."""

    exit_code = 2


class OutputError(HetplanError):
    """A file or folder that cannot be written."""

    exit_code = 2


class EmitError(HetplanError):
    """A plan that the chosen target cannot run; the message names the rule."""

    exit_code = 2


class InfeasibleError(HetplanError):
    """Proven: no plan of the space fits."""

    exit_code = 3

    def __init__(self, message: str, *, causes: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.causes = causes


class TimeLimitError(HetplanError):
    """The time limit struck before any plan was found."""

    exit_code = 4
