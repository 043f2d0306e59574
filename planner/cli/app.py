"""The command ``hetplan``: its commands, imported only when they are run or asked for their help; and its errors.

A command shows its arguments as they are named here, whatever the version of typer adds to them.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from planner import __version__
from planner.cli.process import (
    ANSWER,
    BAD_INPUT,
    BUG,
    INTERRUPTED,
    fail,
    lost_words,
    mark_end,
    mark_start,
    open_streams,
)
from planner.errors import HetplanError, UsageError
from planner.escaping import visible


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
    alone.command(name, cls=PlainCommand)(_interruptible(_sparing(_expanded(function))))
    return typer.main.get_command(alone)


def _expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of their own.

    A group is a dataclass whose fields are options, or groups.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        each.name: each.annotation for each in parameters if is_dataclass(each.annotation)
    }
    options: list[inspect.Parameter] = []
    for each in parameters:
        options += _options_of(each.annotation) if each.name in groups else [each]

    @wraps(command)
    def run_command(**values: Any) -> None:
        made = {name: _group(kind, values) for name, kind in groups.items()}
        command(**made, **values)

    by_name = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    run_command.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run_command.__annotations__ = {option.name: option.annotation for option in options}
    return run_command


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    """The options of a group and of the groups in it, in their order."""
    kinds = get_type_hints(group, include_extras=True)
    for each in inspect.signature(group).parameters.values():
        kind = kinds[each.name]
        yield from _options_of(kind) if is_dataclass(kind) else [each.replace(annotation=kind)]


def _group(group: Any, values: dict[str, Any]) -> Any:
    """The group that has these values, which are taken out of them."""
    kinds = get_type_hints(group)
    return group(
        **{
            name: _group(kinds[name], values) if is_dataclass(kinds[name]) else values.pop(name)
            for name in inspect.signature(group).parameters
        }
    )


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C ends a command at once with its own exit code; a search has caught it before."""

    @wraps(command)
    def run_command(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run_command


def _sparing(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which writes over no file that it reads, nor twice into one, unless with ``--force``."""

    @wraps(command)
    def run_command(**options: Any) -> None:
        if not options.get("force"):
            hint = "name another file, or add --force to replace it" if "force" in options else None
            _require_apart({name: list(_paths(value)) for name, value in options.items()}, hint)
        command(**options)

    return run_command


_WRITTEN = {"output": "-o", "write_lp": "--write-lp", "plot": "--plot"}
"""Options that name a file to write."""


def _paths(value: object) -> Iterator[Path]:
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, Path):
            yield each


def _require_apart(paths: dict[str, list[Path]], hint: str | None) -> None:
    for name, option in _WRITTEN.items():
        for written in paths.get(name, []):
            others = [other for key, values in paths.items() if key != name for other in values]
            if any(_same_file(written, other) for other in others):
                what = f"{option}: expected a file that the command does not read or write otherwise, got {written}"
                raise UsageError(what, hint=hint)


def _same_file(one: Path, other: Path) -> bool:
    """True for two ways to a regular file, there or not; a device such as /dev/null may be named twice."""
    with suppress(OSError):
        return one.samefile(other) and one.is_file()
    return one.absolute() == other.absolute()


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


WRONG_WORDS: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""What typer raises for words that it does not know; some versions of it have their own copy of click."""

HELP = """Plan the training of large models on clusters of mixed GPUs and networks.

\b
hetplan search CLUSTER MODEL -o plan.yaml   finds a plan and prints it
hetplan emit plan.yaml -o run/              writes its launch files
"""


CALIBRATE: dict[str, Registered] = {
    "device": Registered("calibrate_device", "measure_device", "Measure the device of this machine."),
    "network": Registered(
        "calibrate_network",
        "measure_network",
        "Measure the networks inside nodes, within pools and across pools.",
    ),
    "run": Registered(
        "calibrate_run",
        "fit_run",
        "Fit the overheads of a runtime to a run.",
    ),
    "sigma": Registered(
        "calibrate_run",
        "measure_sigma",
        "Measure from a run how much step times vary.",
    ),
    "loss": Registered(
        "calibrate_run", "fit_loss", "Fit a curve of the loss, by steps and batch size, to logs."
    ),
    "fit": Registered(
        "validate",
        "fit_constants",
        "Fit the constants of the cost model to measured runs.",
    ),
    "import": Registered(
        "calibrate", "import_tables", "Convert tables of measurements into a calibration file."
    ),
    "merge": Registered(
        "calibrate",
        "merge_files",
        "Merge calibration files, for example one per node type.",
    ),
}


class Calibrate(LazyGroup):
    """The commands of ``hetplan calibrate``."""

    table = CALIBRATE


COMMANDS: dict[str, Registered] = {
    "check": Registered("check", "check", "Validate input files and print how they were understood."),
    "search": Registered("search", "search", "Find the fastest or cheapest plan and prove how good it is."),
    "predict": Registered("predict", "predict", "Predict step time and memory of a hand-written plan."),
    "compare": Registered(
        "compare", "compare", "Compare plans side by side, or one plan with the log of its run."
    ),
    "what-if": Registered("what_if", "what_if", "Show what the plan becomes when something changes."),
    "replan": Registered("replan", "replan", "Find the plan that takes over when nodes fail."),
    "rent": Registered("rent", "rent", "Find which machines to rent for a training run."),
    "share": Registered("share", "share", "Divide a cluster among several jobs."),
    "sweep": Registered("sweep", "sweep", "Search a grid of clusters, models and options."),
    "explain": Registered("show", "explain", "Explain why a plan looks the way it does."),
    "show": Registered("show", "show_plan", "Show a plan in full, or the contents of a calibration file."),
    "report": Registered("report", "report", "Write an HTML page about a plan."),
    "trace": Registered("trace", "trace", "Write one step of a plan as a trace, for Perfetto."),
    "emit": Registered("emit", "emit", "Write the launch files of a plan."),
    "validate": Registered(
        "validate", "validate", "Predict measured runs and report how accurate the cost model is."
    ),
    "probe": Registered("probe", "probe", "Draft a cluster file from this machine or from saved outputs."),
    "init": Registered("init", "init", "Write a cluster file and a model file from a few answers."),
    "gpus": Registered("catalogue", "gpus", "List known devices, or one of them with its sources."),
    "links": Registered("catalogue", "links", "List the known links inside nodes."),
    "examples": Registered(
        "catalogue", "examples", "List the example clusters, models and jobs, or copy them."
    ),
    "schema": Registered("schema", "schema", "Print the JSON Schema of a file or of a --json document."),
}


class Hetplan(LazyGroup):
    """The commands of ``hetplan``."""

    table = COMMANDS


app = typer.Typer(
    cls=Hetplan,
    help=HELP,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(
    typer.Typer(
        cls=Calibrate,
        help="Measure devices and networks, and write calibration files.",
        rich_markup_mode=None,
        no_args_is_help=True,
    ),
    name="calibrate",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hetplan {__version__}")
        raise typer.Exit(ANSWER)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Plan the training of large models on clusters of mixed GPUs and networks."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        code = app(args=arguments, prog_name="hetplan", standalone_mode=False)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else BUG
    except WRONG_WORDS as error:
        return _refuse(error)
    except HetplanError as error:
        fail(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("HETPLAN_DEBUG") == "1":
            raise
        fail(_bug(error))
        return BUG
    return code if isinstance(code, int) else ANSWER


def _refuse(error: Any) -> int:
    """Say what is wrong with the words of the command line, as typer does but in plain sight."""
    said = io.StringIO()
    error.show(file=said)
    sys.stderr.write(visible(said.getvalue(), keep="\n"))
    return int(error.exit_code)


def _bug(error: Exception) -> HetplanError:
    """An unexpected exception as one line that asks for a report."""
    what = str(error).splitlines()[0] if str(error) else "no message"
    return HetplanError(
        f"this is a bug in hetplan {__version__}: {type(error).__name__}: {what}",
        hint="please report it with your files; HETPLAN_DEBUG=1 shows where it happened",
    )


def main() -> None:
    """The console entry."""
    mark_start()
    # Looking for plugins of pydantic, which nothing here has, reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    open_streams()
    code = run()
    try:
        sys.stdout.flush()
    except HetplanError as error:
        fail(error)
        code = code or error.exit_code
    mark_end()
    sys.exit(BAD_INPUT if code == ANSWER and lost_words() else code)
