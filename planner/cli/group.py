"""Commands whose modules are imported only when they are run or asked for their help.

Listing a group takes names and summaries from its table. A command shows its arguments as they are named here,
whatever the version of typer adds to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from planner.cli.process import INTERRUPTED


class Registered(NamedTuple):
    """Where a command is: module of planner.cli, and function; and the first line of its docstring."""

    module: str
    function: str
    summary: str


class LazyGroup(TyperGroup):
    """A group of the commands in its table, then of the groups that were added to it."""

    table: ClassVar[Mapping[str, Registered]]

    def __init__(self, *, commands: Any = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._groups = dict(commands or {})
        self.commands: Any = _Commands(self.table, self._groups)

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names in the order of the table."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The part of the help that lists them."""
        rows = [(name, entry.summary) for name, entry in self.table.items()]
        rows += [(name, inspect.cleandoc(group.help)) for name, group in self._groups.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Commands(Mapping[str, Any]):
    """Commands by name, each made when it is looked up."""

    def __init__(self, table: Mapping[str, Registered], groups: Mapping[str, TyperGroup]) -> None:
        self._table, self._made = table, dict[str, Any](groups)
        self._names = [*table, *groups]

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name, self._table[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _made(name: str, entry: Registered) -> Any:
    """The command; Ctrl-C during its imports ends it as it does later."""
    try:
        function = getattr(import_module(f"planner.cli.{entry.module}"), entry.function)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    alone = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=PlainCommand)(_interruptible(function))
    return typer.main.get_command(alone)


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C ends a command at once with its own exit code; a search has caught it before."""

    @wraps(command)
    def run_command(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run_command


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
