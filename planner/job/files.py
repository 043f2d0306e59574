"""A file of a launch folder, and the source files that are copied into one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources


def rows(head: Mapping[str, object], **tables: Sequence[Mapping[str, object]]) -> str:
    """An object of plain values and tables, one line for each value and for each row."""
    parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, table in tables.items():
        body = ",\n".join(f"    {json.dumps(row)}" for row in table)
        parts.append(f"  {json.dumps(name)}: [\n{body}\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def document(value: object) -> str:
    """Any value, indented."""
    return json.dumps(value, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class EmittedFile:
    """One file of a launch folder."""

    path: str
    """Path inside the folder, with forward slashes."""
    text: str
    executable: bool = False


_OWN_IMPORT = re.compile(r"^from planner\.(?:\w+\.)+(?=\w+ import )", re.MULTILINE)


def node_file(module: str) -> EmittedFile:
    """A module that runs on the nodes as a file of the folder, its imports pointing to its neighbours there."""
    package, _, name = module.rpartition(".")
    text = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return EmittedFile(f"{name}.py", _OWN_IMPORT.sub("from ", text))
