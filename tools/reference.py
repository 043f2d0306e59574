"""The reference page of the command line, written from the program itself.

``python -m tools.reference`` prints it; ``make docs`` puts it into ``docs/cli.md``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from planner.cli.app import app, needed
from planner.cli.process import MEANINGS
from planner.cli.schema import DOCUMENTS
from planner.field_metadata import JsonDocument, keys
from planner.report.calibrated import (
    CalibrateDocument,
)
from planner.report.document import (
    CheckDocument,
    CompareDocument,
    ExplainDocument,
    PlanAnswer,
    PlanDocument,
    PredictDocument,
    SearchDocument,
)
from planner.report.page import ReportDocument
from planner.report.pareto import FrontDocument

INTRODUCTION = """\
# Command line

Written by `make docs` from the program; do not edit.

The answer goes to stdout; progress and errors go to stderr. Every report has the same order: the inputs as
understood, the answer, the alternatives, warnings, the next command; a search ends with its answer in one line.
Colour is used on terminals only, and never with `NO_COLOR`. Reports need at least 80 columns. Where an option takes a
LIST, write `1,2,4`, `1..4`, or a mixture of both.

An error message gives file, line, key, what is wrong and what was expected, with a hint; all errors in a file are
reported together. `HETPLAN_DEBUG=1` shows the traceback of a bug.
"""
JSON_INTRODUCTION = """\
## JSON documents

`--json` prints a single document; units (SI) are part of the key names. `[]` stands for every entry of a list,
`.*` for keys that depend on the input. Infinite and unknown values are null. On bad input no document is printed;
the errors are on stderr. Later versions may add keys; `format` is incremented when a key is removed or changes its
meaning.
"""
WITH_INPUTS = (PredictDocument, ExplainDocument, ReportDocument, SearchDocument, CheckDocument, FrontDocument)
"""Documents that hold the inputs."""


def json_tables() -> Iterator[tuple[str, dict[str, str]]]:
    """(title, meaning by key) of every table of the page; what documents share has tables of its own."""
    head, plan = keys(JsonDocument), keys(PlanAnswer)
    inputs = {key: text for key, text in keys(CheckDocument).items() if key.startswith(("warn", "underst"))}
    yield "All documents", head
    yield "A plan: search, predict, show, explain", plan
    yield "search, predict, show, explain, check", inputs
    ranks = _rest(keys(PlanDocument), head, plan, inputs)
    yield "predict, show, explain", ranks
    for title, kind in DOCUMENTS.items():
        if kind is PlanDocument or title in ("calibrate merge", "predict --plans"):
            continue
        known = (
            (ranks, plan)
            if kind in (PredictDocument, ExplainDocument, ReportDocument, SearchDocument)
            else ()
        )
        told = (inputs,) if kind in WITH_INPUTS else ()
        both = {
            CalibrateDocument: "calibrate import and calibrate merge",
            CompareDocument: "compare, predict --plans",
        }
        shown = title if title == "compare --log" else both.get(kind, title)
        yield shown, _rest(keys(kind), head, *told, *known)


def _rest(found: dict[str, str], *others: dict[str, str]) -> dict[str, str]:
    """The keys that none of the others has."""
    return {key: text for key, text in found.items() if not any(key in other for other in others)}


def page() -> str:
    """The whole page as Markdown."""
    group: Any = typer.main.get_command(app)
    parts = [INTRODUCTION, "## Exit codes\n\n" + table(("code", "meaning"), _codes())]
    parts += ["## Commands\n"]
    parts += [_command(name, command) for name, command in commands(group)]
    parts += [JSON_INTRODUCTION]
    parts += [f"### {title}\n\n" + table(("key", "meaning"), _keys(found)) for title, found in json_tables()]
    return "\n".join(parts)


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, command) of every command of a group, those of groups inside it as ``calibrate import``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _codes() -> Iterator[tuple[str, str]]:
    return ((str(code), meaning) for code, meaning in MEANINGS.items())


def _keys(found: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{key}`", meaning) for key, meaning in found.items())


def _command(name: str, command: Any) -> str:
    """Heading, usage, description and parameters of one command."""
    usage = " ".join(["hetplan", name, *needed(command), "[OPTIONS]"])
    text = inspect.cleandoc(command.help or "")
    return f"### {name}\n\n```\n{usage}\n```\n\n{text}\n\n" + table(
        ("", "meaning", "default"), _parameters(command)
    )


def _parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    for parameter in command.params:
        if parameter.name != "help":
            yield _spelled(parameter), parameter.help or "", _default(parameter)


def _spelled(parameter: Any) -> str:
    """``CLUSTER``, or ``-o, --output FILE``."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return f"`{', '.join(sorted(parameter.opts, key=len))}{value}`"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return "" if parameter.default in (None, False, ()) else f"{parameter.default}"


def table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
