"""``hetplan emit``: launch files of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.inputs import check_same_inputs, concerning, read_calibration, read_priced
from planner.cli.options import AsJson, SavedPlan
from planner.cli.output import show, show_document
from planner.cli.process import warn
from planner.emit.checks import cautions, installed_versions
from planner.emit.interface import folder_files, job_of, unnamed_hosts, write_folder
from planner.launchers.registry import check_launcher
from planner.report.document import emit_document
from planner.report.emitted import emitted_section
from planner.report.verdict import misfits

Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write; new or empty.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Write into a folder in use; replaces only hetplan's files, and keeps edited ones as NAME.edited.",
    ),
]
Launcher = Annotated[
    str,
    typer.Option(
        "--launcher",
        metavar="NAME",
        help="What starts the nodes: torchrun, deepspeed, slurm, kubernetes or ssh.",
    ),
]
ClusterNow = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="Refuse a plan that was made for another cluster file."),
]
ModelNow = Annotated[
    Path | None,
    typer.Option("--model", metavar="FILE", help="Refuse a plan that was made for another model file."),
]


def emit(
    plan: SavedPlan,
    output: Folder,
    force: Force = False,
    launcher: Launcher = "torchrun",
    cluster: ClusterNow = None,
    model: ModelNow = None,
    as_json: AsJson = False,
) -> None:
    """Write the files that launch a plan.

    The folder holds the runtime's configuration, a script for every node, what the launcher needs, preflight.sh,
    which looks for faults on the nodes, and a README.
    """
    saved, scored = read_priced(plan, read_calibration(None))
    check_same_inputs(plan, saved, cluster, model)
    check_launcher(launcher)
    with concerning(plan):
        job = job_of(saved.plan, saved.cluster, saved.model)
        files = folder_files(job, launcher)
    unnamed = unnamed_hosts(job, launcher)
    kept = write_folder(files, output, force)
    paths = [file.path for file in files]
    warnings = [
        *(f"{path} was edited: it is now {name}, and {path} is as this plan wants it" for path, name in kept),
        *(f"does not fit: {line}" for line in misfits(scored.estimate)),
        *cautions(saved.plan.target, installed_versions(saved.plan.target)),
    ]
    if as_json:
        show_document(emit_document(saved.plan.target, output, paths, warnings, unnamed))
    else:
        for line in warnings:
            warn(line)
        show(emitted_section(saved.plan.target, output, paths, unnamed), then=f"read {output / 'README.md'}")
