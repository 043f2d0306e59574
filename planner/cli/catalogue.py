"""``hetplan gpus`` and ``hetplan links``: the devices, and the links inside nodes, that hetplan knows."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import typer

from planner.catalog import gpu, gpu_names, gpus_like, link, link_names, without_target
from planner.cli.options import AsJson
from planner.cli.output import show, show_document
from planner.errors import UsageError
from planner.report.catalogue import gpu_section, gpus_document, gpus_section, links_document, links_section

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="A device, by its name here or in nvidia-smi, or the beginning of a name."
    ),
]


def gpus(name: Name = None, as_json: AsJson = False) -> None:
    """List known devices, or one of them with its sources.

    Their names can stand in a cluster file, in any spelling that nvidia-smi uses.
    """
    names = gpu_names() if name is None else _named(name)
    entries = [gpu(each) for each in names]
    if as_json:
        show_document(gpus_document(entries))
    elif name is not None and len(entries) == 1:
        show(gpu_section(entries[0]))
    else:
        show(gpus_section(entries), then="hetplan gpus NAME shows the sources of one")


def _named(name: str) -> tuple[str, ...]:
    """The device of this name, or those whose names begin like it."""
    try:
        return (gpu(name).name,)
    except KeyError:
        pass
    like = gpus_like(name)
    if like:
        return like
    kind = without_target(name)
    if kind:
        raise UsageError(
            f"no device {name!r} in the catalogue: no target runs on {kind}",
            hint="to compare plans alone, write its numbers under gpus: in the file",
        )
    by_fold = {each.lower(): each for each in gpu_names()}
    near = [by_fold[each] for each in get_close_matches(name.lower(), by_fold, n=3)]
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "hetplan gpus lists all; others go under gpus: in the file"
    )
    raise UsageError(f"no device {name!r} in the catalogue", hint=hint)


def links(as_json: AsJson = False) -> None:
    """List the links inside nodes that hetplan knows.

    Their names can stand at intra_node in a cluster file.
    """
    entries = [link(each) for each in link_names()]
    if as_json:
        show_document(links_document(entries))
    else:
        show(links_section(entries))
