"""``hetplan gpus``, ``hetplan links`` and ``hetplan examples``: what hetplan knows, and what ships with it."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from planner.catalog import find_gpu, gpu, gpu_names, gpus_like, link, link_names, without_target
from planner.cli.options import AsJson, ForceFiles, argument, option
from planner.cli.output import require_new, show, show_document, typed, writing
from planner.errors import UsageError
from planner.examples import FOLDERS, Example
from planner.examples import examples as all_examples
from planner.field_metadata import JsonDocument
from planner.files.writing import write_whole
from planner.report.catalogue import gpu_section, gpus_document, gpus_section, links_document, links_section
from planner.report.layout import Paragraph, section, table, words
from planner.report.numbers import count


def gpus(
    name: Annotated[
        str | None,
        argument("[NAME]", "A device, by its name here or in nvidia-smi, or the beginning of a name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List known devices, or one of them with its sources.

    A cluster file takes these names, and any spelling of nvidia-smi.
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
    known = find_gpu(name)
    like = (known.name,) if known else gpus_like(name)
    if not like and name and not name[-1].isdigit():  # P4 is no beginning of P40
        like = tuple(each for each in gpu_names() if each.lower().startswith(name.lower()))
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
    """List the known links inside nodes.

    A cluster file takes these names as intra_node.
    """
    entries = [link(each) for each in link_names()]
    if as_json:
        show_document(links_document(entries))
    else:
        show(links_section(entries))


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


def examples(
    copy: Annotated[
        Path | None,
        option("--copy", "DIR", "Write the files into cluster_specs, model_specs and job_specs in DIR."),
    ] = None,
    force: ForceFiles = False,
    as_json: AsJson = False,
) -> None:
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
    with writing(folder):
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
    for example in files:
        require_new(folder / example.path, force, "lab.yaml")
    for example in files:
        write_whole(example.text, folder / example.path, "lab.yaml")
