"""The README of a launch folder: a template of each runtime's, on a frame that all share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from planner import __version__
from planner.files.short_lists import expand_hosts
from planner.job.files import EmittedFile, rendered
from planner.job.job import Job

WORD = re.compile(r"[\w.-]+")
"""What may be a host's name in a file."""

FILL_IN = "# EDIT:"
"""Marks a line of an environment file that the user has to complete."""


def readme(
    job: Job,
    files: Sequence[EmittedFile],
    notes: Mapping[str, object],
    *,
    placeholders: Sequence[str],
    launcher_readme: str,
) -> EmittedFile:
    """The README beside these files, from the template in the room of the job's runtime.

    ``notes`` are what that template needs besides the job, ``launcher_readme`` is the launcher's template or empty.
    """
    text = rendered(
        f"runtimes/{job.plan.target}/README.md.j2",
        job=job,
        hetplan_version=__version__,
        sizes_text=sizes_text,
        listed=listed,
        to_edit=[file.path for file in files if FILL_IN in file.text and file.path.startswith("env/")],
        placeholders=placeholders,
        holders=holders(placeholders, files),
        launcher_readme=launcher_readme,
        **notes,
    )
    return EmittedFile("README.md", text)


def sizes_text(sizes: Iterable[int]) -> str:
    """Micro-batch sizes, runs of equal ones as a product: ``4 x 3, 2``."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return ", ".join(f"{size} x {count}" if count > 1 else str(size) for size, count in runs)


def listed(words: Sequence[str]) -> str:
    """Code words as a list in a sentence."""
    *others, last = (f"`{word}`" for word in words)
    return f"{', '.join(others)} and {last}" if others else last


def holders(names: Sequence[str], files: Sequence[EmittedFile]) -> tuple[str, ...]:
    """Files that start nodes by one of these hosts, given in short form.

    JSON files and the README name hosts for people only.
    """
    wanted = set(expand_hosts(names))
    paths = (file.path for file in files if wanted.intersection(WORD.findall(file.text)))
    return tuple(sorted(path for path in paths if not path.endswith((".json", ".md"))))
