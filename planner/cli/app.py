"""The command ``hetplan``: its commands, and what happens to errors.

Nothing heavy is imported here or by the command files; each command imports what it needs when it runs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

from planner import __version__
from planner.cli.calibrate import import_tables
from planner.cli.calibrate_device import measure_device
from planner.cli.calibrate_fit import fit_constants
from planner.cli.calibrate_merge import merge_files
from planner.cli.calibrate_network import measure_network
from planner.cli.calibrate_run import fit_run
from planner.cli.check import check
from planner.cli.command import PlainCommand
from planner.cli.compare import compare
from planner.cli.emit import emit
from planner.cli.exits import ANSWER, BAD_INPUT, BUG, INTERRUPTED
from planner.cli.explain import explain
from planner.cli.output import fail
from planner.cli.predict import predict
from planner.cli.probe import probe
from planner.cli.schema import schema
from planner.cli.search import search
from planner.cli.show import show_plan
from planner.cli.started import mark_start
from planner.cli.streams import lost_words, open_streams
from planner.cli.validate import validate
from planner.errors import HetplanError
from planner.visible import visible


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C ends a command at once with its own exit code; a search has caught it before."""

    @wraps(command)
    def run_command(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run_command


WRONG_WORDS: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""What typer raises for words that it does not know; some versions of it have their own copy of click."""

HELP = """Plan the training of large models on clusters of unequal GPUs and networks.

\b
hetplan search CLUSTER MODEL -o plan.yaml   finds a plan and prints it
hetplan emit plan.yaml -o run/              writes what launches it
"""

app = typer.Typer(
    help=HELP,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _command in (
    ("check", check),
    ("search", search),
    ("predict", predict),
    ("compare", compare),
    ("explain", explain),
    ("show", show_plan),
    ("emit", emit),
    ("validate", validate),
    ("probe", probe),
    ("schema", schema),
):
    app.command(_name, cls=PlainCommand)(_interruptible(_command))

calibrate = typer.Typer(
    help="Write calibration files: measured constants and curves.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
for _name, _writer in (
    ("device", measure_device),
    ("network", measure_network),
    ("run", fit_run),
    ("fit", fit_constants),
    ("import", import_tables),
    ("merge", merge_files),
):
    calibrate.command(_name, cls=PlainCommand)(_interruptible(_writer))
app.add_typer(calibrate, name="calibrate")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hetplan {__version__}")
        raise typer.Exit(ANSWER)


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def _options(version: Version = False) -> None:
    """Plan the training of large models on clusters of unequal GPUs and networks."""


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
    open_streams()
    code = run()
    try:
        sys.stdout.flush()
    except HetplanError as error:
        fail(error)
        code = code or error.exit_code
    sys.exit(BAD_INPUT if code == ANSWER and lost_words() else code)
