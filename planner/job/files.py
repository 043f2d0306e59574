"""Files of a launch folder: texts from templates, tables as JSON, and modules that run on the nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parents[1]
"""Templates stand beside the code that uses them, and are named from here on."""
_OWN_IMPORT = re.compile(r"^from planner\.(?:\w+\.)+(?=\w+ import )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EmittedFile:
    """One file of a launch folder."""

    path: str
    """Path inside the folder, with forward slashes."""
    text: str
    executable: bool = False


@cache
def _templates() -> Environment:
    """Comments begin with ``<#``, because shell scripts have ``${#array[@]}``."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters["json"] = json.dumps
    return environment


def rendered(template: str, **values: object) -> str:
    """The text of a template, e.g. ``job/launch.sh.j2``; a value that it names and that is not given is an error."""
    return _templates().get_template(template).render(values)


def node_file(module: str) -> EmittedFile:
    """A module that runs on the nodes as a file of the folder, its imports pointing to its neighbours there."""
    package, _, name = module.rpartition(".")
    text = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return EmittedFile(f"{name}.py", _OWN_IMPORT.sub("from ", text))


def rows(head: Mapping[str, object], **tables: Sequence[Mapping[str, object]]) -> str:
    """JSON of plain values and tables, one line for each value and for each row."""
    parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, table in tables.items():
        body = ",\n".join(f"    {json.dumps(row)}" for row in table)
        parts.append(f"  {json.dumps(name)}: [\n{body}\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def document(value: object) -> str:
    """JSON of any value, indented."""
    return json.dumps(value, indent=2) + "\n"
