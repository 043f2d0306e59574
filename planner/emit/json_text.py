"""JSON that people can read: one line for each row of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


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
