"""The example files that ship with hetplan: clusters, models and jobs, each with its sources at its head.

``cluster_specs``, ``model_specs`` and ``job_specs`` beside this file link to the folders of the repository; a wheel has
the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

FOLDERS = ("cluster_specs", "model_specs", "job_specs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One file."""

    path: str
    """Its folder and its name, with a slash."""
    about: str
    """The first line of its head."""
    text: str


def examples() -> Iterator[Example]:
    """All files, by folder and name."""
    for folder in FOLDERS:
        for file in sorted(files(__package__).joinpath(folder).iterdir(), key=lambda each: each.name):
            if file.name.endswith(".yaml"):
                text = file.read_text(encoding="utf-8")
                about = text.partition("\n")[0].removeprefix("#").strip().removesuffix(".")
                yield Example(path=f"{folder}/{file.name}", about=about, text=text)
