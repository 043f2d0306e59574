"""Tables of measured layers and of measured collectives, as they leave a spreadsheet or a script."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.calibration import LayerPoint, LinkPoint
from planner.calibration_points import LAYER_KEYS, LINK_KEYS, lonely, repeated
from planner.calibration_records import LayerRecord, LinkPointRecord
from planner.errors import Problem
from planner.spec.complaints import complaints, nearest
from planner.spec.yaml_file import MOST_PROBLEMS, fail_on, read_text
from planner.spec.yaml_nodes import resolve

IGNORED = "reference"
"""A column for readers."""
_TEXTS = ("gpu", "model", "link", "operation")

Record = type[LayerRecord] | type[LinkPointRecord]


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of a CSV file with the line of each."""

    file: str
    first: int
    """Line of the names of the columns."""
    columns: list[str]
    rows: list[tuple[int, list[str]]]

    def problem(self, line: int | None, column: str, what: str, hint: str | None = None) -> Problem:
        return Problem(file=self.file, line=line, key=column, what=what, hint=hint)

    def values(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line, values by column) of every row; an empty cell is an absent one."""
        for line, cells in self.rows:
            known = zip(self.columns, cells, strict=False)
            yield line, {key: _value(key, cell) for key, cell in known if cell and key != IGNORED}


def import_layers_csv(path: Path) -> tuple[LayerPoint, ...]:
    """The layer points of a table; raises SpecError with every problem of the file."""
    found = _records(path, LayerRecord, LAYER_KEYS)
    return tuple(LayerPoint(**record.model_dump()) for record in found)


def import_links_csv(path: Path) -> tuple[LinkPoint, ...]:
    """The link points of a table; raises SpecError with every problem of the file."""
    found = _records(path, LinkPointRecord, LINK_KEYS)
    return tuple(LinkPoint(**record.model_dump()) for record in found)


def _records(path: Path, model: Record, keys: tuple[str, ...]) -> list[LayerRecord | LinkPointRecord]:
    table = _read(path)
    fail_on(_heading_problems(table, model))
    rows = list(table.values())
    fail_on([*_row_problems(table, rows, model), *_conflicts(table, rows, keys)])
    return [model.model_validate_json(json.dumps(row)) for _, row in rows]


def _read(path: Path) -> _Table:
    reader = csv.reader(io.StringIO(read_text(path, "CSV"), newline=""), skipinitialspace=True)
    lines = []
    try:
        for cells in reader:
            lines.append((reader.line_num, [cell.strip() for cell in cells]))
    except csv.Error as error:
        what = f"not CSV: {error}"
        fail_on([Problem(file=str(path), line=reader.line_num, key="", what=what)])
    filled = [(line, cells) for line, cells in lines if any(cells)]
    first, columns = filled[0] if filled else (1, [])
    return _Table(str(path), first, columns, filled[1:])


def _heading_problems(table: _Table, model: Record) -> Iterator[Problem]:
    """Columns that are unknown, there twice or missing; no rows at all."""
    known = list(model.model_fields)
    if not table.columns:
        yield table.problem(None, "", "the file is empty", f"first line: {','.join(known)}")
        return
    for index, column in enumerate(table.columns):
        if column not in (*known, IGNORED):
            hint = nearest(column, known) or f"known columns: {', '.join([*known, IGNORED])}"
            yield table.problem(table.first, column, "unknown column", hint)
        elif column in table.columns[:index]:
            yield table.problem(table.first, column, "this column is there twice", "remove one of the two")
    for column, field in model.model_fields.items():
        if field.is_required() and column not in table.columns:
            yield table.problem(table.first, column, "missing column", field.description)
    if not table.rows:
        yield table.problem(table.first, "", "has no rows below its first line")


def _row_problems(table: _Table, rows: list[tuple[int, dict[str, Any]]], model: Record) -> list[Problem]:
    """Rows of another width, and cells that are not what their column wants."""
    width = len(table.columns)
    wrong = {line: len(cells) for line, cells in table.rows if len(cells) != width}
    found = [
        table.problem(line, "", f"expected {width} cells, got {cells}", "put quotes around commas")
        for line, cells in wrong.items()
    ]
    for line, row in rows:
        found += [] if line in wrong else _cell_problems(table, line, row, model)
        if len(found) > MOST_PROBLEMS:
            break
    return found


def _cell_problems(table: _Table, line: int, row: dict[str, Any], model: Record) -> list[Problem]:
    try:
        model.model_validate_json(json.dumps(row))
    except ValidationError as error:
        return [
            table.problem(line, str(item.path[0]), item.what, item.hint)
            for item in complaints(error, model, row)
        ]
    return []


def _conflicts(
    table: _Table, rows: list[tuple[int, dict[str, Any]]], keys: tuple[str, ...]
) -> Iterator[Problem]:
    for line, before in repeated(rows, keys):
        what = f"the same {', '.join(keys)} as line {before}"
        yield table.problem(line, keys[-1], what, "remove one of the two")
    if keys == LINK_KEYS:
        for line, curve in lonely(rows):
            what = f"the only size of {curve}, expected at least two"
            yield table.problem(line, "size_bytes", what, "measure a second size")


def _value(column: str, cell: str) -> Any:
    return cell if column in _TEXTS else resolve(cell)
