"""``hetplan schema``: JSON Schemas of the files that users write."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from planner.cli.output import write


class SchemaName(StrEnum):
    """Files with a schema."""

    cluster = "cluster"
    model = "model"


WhichFile = Annotated[SchemaName, typer.Argument(metavar="FILE", help="Which file: cluster or model.")]


def schema(name: WhichFile) -> None:
    """Print the JSON Schema of a file.

    Editors use it to check YAML while you type.
    """
    import json

    from planner.spec.schema import cluster_schema, model_schema

    found = cluster_schema() if name is SchemaName.cluster else model_schema()
    write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
