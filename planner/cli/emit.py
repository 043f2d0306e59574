"""``hetplan emit``: launch files of a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Group
from rich.text import Text

from planner.cli.inputs import check_same_inputs, concerning, read_calibration, read_priced
from planner.cli.options import (
    AsJson,
    ClusterNow,
    ModelNow,
    SavedPlan,
    argument,
    flag,
    option,
)
from planner.cli.output import show, show_document
from planner.cli.process import warn
from planner.emit.interface import (
    cautions,
    folder_files,
    installed_versions,
    job_of,
    unnamed_hosts,
    wheel_cautions,
    write_folder,
)
from planner.errors import UsageError
from planner.escaping import visible
from planner.launchers.registry import check_launcher
from planner.report.document import EmitDocument
from planner.report.layout import Indented, Paragraph, bullets
from planner.report.numbers import count
from planner.report.plan_table import misfits
from planner.targets import in_words

SHOWN = 24
"""Files of one folder that are listed by name."""


def emitted_section(target: str, folder: Path, paths: Sequence[str], unnamed: Sequence[str]) -> Group:
    """The files by name, folders with many in one line; then hosts with placeholders for names."""
    inside: dict[str, list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition("/")
        inside.setdefault(parent, []).append(name)
    lines = [line for parent, names in sorted(inside.items()) for line in _lines(parent, names)]
    heading = f"Wrote {count(len(paths), 'file')} for {target} to {folder}"
    notes = [Indented(bullets([_placeholders(unnamed)], mark="!"))] if unnamed else []
    return Group(Text(visible(heading), style="bold"), Indented(Paragraph(", ".join(lines))), *notes)


def _placeholders(names: Sequence[str]) -> str:
    are = "are placeholders" if len(names) > 1 else "is a placeholder"
    return f"name the nodes before you start: {in_words(names, 'and')} {are}"


def _lines(parent: str, names: list[str]) -> list[str]:
    prefix = f"{parent}/" if parent else ""
    if len(names) > SHOWN:
        return [f"{prefix}{names[0]} .. {names[-1]} ({len(names)} files)"]
    return [f"{prefix}{name}" for name in names]


def script_words(script: Path | None, arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The script by its path on the nodes, within the folder where it is in there, and its arguments.

    Raises UsageError for a script that is not there, and for arguments without a script.
    """
    if script is None:
        if arguments:
            raise UsageError(
                f"arguments without a script: {' '.join(arguments)}", hint="name it: --script FILE -- ARGS"
            )
        return ()
    if not os.path.isfile(script):
        raise UsageError(f"--script: there is no file {script}")
    place = script.absolute()
    inside = folder.absolute()
    path = place.relative_to(inside) if place.is_relative_to(inside) else place
    return (str(path), *arguments)


def require_text(words: Sequence[str]) -> None:
    """Raise UsageError for a word that launch files, which are UTF-8, cannot hold."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{word}: is not UTF-8 text, as launch files are",
                hint="give the file another name, or a link",
            ) from None


def emit(
    plan: SavedPlan,
    folder: Annotated[
        Path, option("--output -o", "DIR", "Output folder; must be new or empty unless --force is given.")
    ],
    arguments: Annotated[
        list[str] | None,
        argument("[-- ARGS...]", "Arguments of the training script or library.", show_default=False),
    ] = None,
    script: Annotated[
        Path | None,
        option(
            "--script",
            "FILE",
            "Your training script instead of the runtime's example; it must be at the same path on every node.",
        ),
    ] = None,
    library: Annotated[
        str | None,
        option(
            "--library",
            "NAME",
            "Training library to use instead of the runtime's example: torchtitan (torch) or megatron-bridge "
            "(megatron).",
        ),
    ] = None,
    force: Annotated[
        bool,
        flag(
            "--force",
            "Update an existing folder: replaces only files written by hetplan, and keeps edited ones as "
            "NAME.edited.",
        ),
    ] = False,
    launcher: Annotated[
        str,
        option(
            "--launcher",
            "NAME",
            "Launcher that starts the nodes: torchrun, deepspeed, slurm, kubernetes, ssh, accelerate, skypilot or ray.",
        ),
    ] = "torchrun",
    cluster: ClusterNow = None,
    model: ModelNow = None,
    as_json: AsJson = False,
) -> None:
    """Write the launch files of a plan.

    The folder holds the runtime's configuration, a launch script for the nodes, the launcher's files, preflight.sh,
    which checks the nodes, and a README.
    """
    saved, scored = read_priced(plan, read_calibration(None))
    check_same_inputs(plan, saved, cluster, model)
    check_launcher(launcher)
    if library is not None and script is not None:
        raise UsageError(
            f"--library {library} has a script of its own", hint="leave out --script or --library"
        )
    trained_by = () if library is None else (library, *(arguments or ()))
    words = script_words(script, () if trained_by else arguments or (), folder)
    require_text((*words, *trained_by))
    with concerning(plan):
        job = job_of(saved.plan, saved.cluster, saved.model, words, trained_by)
        files = folder_files(job, launcher)
    unnamed = unnamed_hosts(job, launcher)
    kept = write_folder(files, folder, force)
    paths = [file.path for file in files]
    warnings = [
        *(f"{path} was edited: it is now {name}, and {path} is as this plan wants it" for path, name in kept),
        *(f"does not fit: {line}" for line in misfits(scored.estimate)),
        *cautions(saved.plan.target, installed_versions(saved.plan.target)),
        *wheel_cautions(job),
    ]
    if as_json:
        document = EmitDocument(
            command="emit",
            target=saved.plan.target,
            folder=str(folder),
            files=tuple(paths),
            placeholder_hosts=tuple(unnamed),
            warnings=tuple(warnings),
        )
        show_document(document)
    else:
        for line in warnings:
            warn(line)
        show(emitted_section(saved.plan.target, folder, paths, unnamed), then=f"read {folder / 'README.md'}")
