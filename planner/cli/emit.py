"""``hetplan emit``: launch files of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.inputs import read_calibration
from planner.cli.options import AsJson, SavedPlan
from planner.cli.output import show, show_document, warn
from planner.cli.saved import read_priced

Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write; new or empty.")]
Force = Annotated[
    bool, typer.Option("--force", help="Write into a folder in use; replaces only hetplan's files.")
]
Launcher = Annotated[str, typer.Option("--launcher", metavar="NAME", help="How processes are started.")]


def emit(
    plan: SavedPlan,
    output: Folder,
    force: Force = False,
    launcher: Launcher = "torchrun",
    as_json: AsJson = False,
) -> None:
    """Write the files that launch a plan.

    The folder holds the runtime's configuration, a script for every node, and a README.
    """
    from planner.emit.interface import emit as files_of
    from planner.emit.interface import write_folder
    from planner.report.document import emit_document
    from planner.report.emitted import emitted_section
    from planner.report.verdict import misfits

    saved, scored = read_priced(plan, read_calibration(None))
    files = files_of(saved.plan, saved.cluster, saved.model, launcher)
    write_folder(files, output, force)
    paths = [file.path for file in files]
    warnings = [f"does not fit: {line}" for line in misfits(scored.estimate)]
    if as_json:
        show_document(emit_document(saved.plan.target, output, paths, warnings))
    else:
        for line in warnings:
            warn(line)
        show(emitted_section(saved.plan.target, output, paths), then=f"read {output / 'README.md'}")
