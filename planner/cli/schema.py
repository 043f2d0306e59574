"""``hetplan schema``: JSON Schemas of the files that users write."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from planner.cli.process import write
from planner.errors import UsageError
from planner.model.schema import cluster_schema, model_schema

FILES = ("cluster", "model")
"""Files with a schema."""

WhichFile = Annotated[str, typer.Argument(metavar="FILE", help="Which schema: cluster or model.")]


def schema(name: WhichFile) -> None:
    """Print the JSON Schema of an input file.

    Editors can use it to validate YAML as you type.
    """
    if name not in FILES:
        raise UsageError(f"schema: expected {' or '.join(FILES)}, got {name!r}")
    found = cluster_schema() if name == "cluster" else model_schema()
    write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
