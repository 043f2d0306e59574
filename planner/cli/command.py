"""How a command shows its arguments: as they are named here, whatever the version of typer adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose help has ``CLUSTER [MODEL] [OPTIONS]``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words behind the command's name."""
        return [*needed(self), "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options."""
        arguments = [(entry.metavar, entry.help or "") for entry in _of(self, "argument")]
        options = [entry.get_help_record(ctx) for entry in self.get_params(ctx) if not _is(entry, "argument")]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def needed(command: Any) -> Iterator[str]:
    """Arguments, then options that must be given."""
    yield from (entry.metavar for entry in _of(command, "argument"))
    for entry in _of(command, "option"):
        if entry.required:
            yield f"{min(entry.opts, key=len)} {entry.metavar}"


def _of(command: Any, kind: str) -> list[Any]:
    return [entry for entry in command.params if _is(entry, kind)]


def _is(parameter: Any, kind: str) -> bool:
    return bool(parameter.param_type_name == kind)
