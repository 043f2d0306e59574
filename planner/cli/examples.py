"""``hetplan examples``: the clusters, models and jobs that ship with hetplan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import AsJson
from planner.cli.output import require_new, show, show_document, typed
from planner.described import JsonDocument
from planner.errors import OutputError
from planner.examples import FOLDERS, Example
from planner.examples import examples as all_examples
from planner.files.writing import write_whole
from planner.report.layout import Paragraph, section, table, words
from planner.report.numbers import count

Copy = Annotated[
    Path | None,
    typer.Option(
        "--copy", metavar="DIR", help="Write the files into cluster_specs, model_specs and job_specs in DIR."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there already.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One example."""

    path: str
    """Its folder and its name."""
    about: str
    """What it describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesDocument(JsonDocument):
    """The answer of ``examples``."""

    folder: str | None
    """Where they were written; null where they were listed."""
    examples: tuple[Listed, ...]
    """Clusters, then models, then jobs."""


def examples(copy: Copy = None, force: Force = False, as_json: AsJson = False) -> None:
    """List the example clusters, models and jobs, or copy them.

    After --copy the commands of the guide run in that folder.
    """
    files = list(all_examples())
    if copy is not None:
        _write(files, copy, force)
    if as_json:
        listed = tuple(Listed(path=each.path, about=each.about) for each in files)
        show_document(
            ExamplesDocument(command="examples", folder=None if copy is None else str(copy), examples=listed)
        )
        return
    if copy is None:
        rows = [[each.path, each.about] for each in files]
        columns = (words("file", least=38), words("what", least=30))
        show(section("Examples", table(columns, rows)), then="hetplan examples --copy .")
        return
    lab, model = copy / "cluster_specs" / "lab.yaml", copy / "model_specs" / "gpt2_345m.yaml"
    show(
        Paragraph(f"Wrote {count(len(files), 'file')} to {copy}"), then=typed("hetplan", "search", lab, model)
    )


def _write(files: list[Example], folder: Path, force: bool) -> None:
    """All of them or, where one is there already, none."""
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    for example in files:
        require_new(folder / example.path, force, "lab.yaml")
    for example in files:
        write_whole(example.text, folder / example.path, "lab.yaml")
