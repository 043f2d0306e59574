"""Tables (CSV) of measured layers and collectives."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from planner.calibration.file import LAYER_KEYS, LINK_KEYS, lonely, repeated, shared_inside
from planner.calibration.values import LayerPoint, LinkPoint
from planner.errors import Problem
from planner.field_metadata import meanings
from planner.files.document import MOST_PROBLEMS, fail_on, read_text
from planner.files.fields import form
from planner.files.messages import first_sentence, messages_of, nearest
from planner.files.nodes import resolve

IGNORED = "reference"
"""A column for readers."""
_TEXTS = ("gpu", "model", "link", "operation")

BATCH = 1000
"""Rows that are checked at once."""

Row = tuple[int, dict[str, Any]]
"""Line, and values by column; an empty cell is an absent one."""
P = TypeVar("P", LayerPoint, LinkPoint)


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of a CSV file with the line of each."""

    file: str
    first: int
    """Line of the names of the columns."""
    columns: list[str]
    rows: list[Row]
    widths: dict[int, int]
    """Cells by line, of the rows that have not as many as there are columns."""

    def problem(self, line: int | None, column: str, what: str, hint: str | None = None) -> Problem:
        return Problem(file=self.file, line=line, key=column, what=what, hint=hint)


def import_layers_csv(path: Path) -> tuple[LayerPoint, ...]:
    """The layer points of a table; raises SpecError with every problem of the file."""
    return tuple(_points(path, LayerPoint, LAYER_KEYS))


def import_links_csv(path: Path) -> tuple[LinkPoint, ...]:
    """The link points of a table; raises SpecError with every problem of the file."""
    return tuple(_points(path, LinkPoint, LINK_KEYS))


def _points(path: Path, kind: type[P], keys: tuple[str, ...]) -> list[P]:
    """The point of each row."""
    table: _Table = _read(path)
    fail_on(_heading_problems(table, kind))
    batch: TypeAdapter[list[P]] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    points: list[P] = []
    doubtful: list[Row] = []
    for start in range(0, len(table.rows), BATCH):
        rows = table.rows[start : start + BATCH]
        try:
            points += batch.validate_json(json.dumps([values for _, values in rows]))
        except ValidationError:
            doubtful += rows
    fail_on([*_row_problems(table, doubtful, kind), *_conflicts(table, keys)])
    return points


def _read(path: Path) -> _Table:
    reader = csv.reader(io.StringIO(read_text(path, "CSV"), newline=""), skipinitialspace=True)
    table = _Table(str(path), 1, [], [], {})
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not table.columns:
                table = replace(table, first=reader.line_num, columns=cells)
                continue
            known = zip(table.columns, cells, strict=False)
            values = {key: _value(key, cell) for key, cell in known if cell and key != IGNORED}
            table.rows.append((reader.line_num, values))
            if len(cells) != len(table.columns):
                table.widths[reader.line_num] = len(cells)
    except csv.Error as error:
        what = f"not CSV: {error}"
        fail_on([Problem(file=str(path), line=reader.line_num, key="", what=what)])
    return table


def _heading_problems(table: _Table, kind: type) -> Iterator[Problem]:
    """Columns that are unknown, there twice or missing; no rows at all."""
    columns = {field.name: field for field in fields(kind) if field.name != "source"}
    known = list(columns)
    if not table.columns:
        yield table.problem(None, "", "the file is empty", f"first line: {','.join(known)}")
        return
    for index, column in enumerate(table.columns):
        if column not in (*known, IGNORED):
            hint = nearest(column, known) or f"known columns: {', '.join([*known, IGNORED])}"
            yield table.problem(table.first, column, "unknown column", hint)
        elif column in table.columns[:index]:
            yield table.problem(table.first, column, "this column appears twice", "remove one of the two")
    for column, field in columns.items():
        if field.default is MISSING and column not in table.columns:
            yield table.problem(table.first, column, "missing column", first_sentence(meanings(kind)[column]))
    if not table.rows:
        yield table.problem(table.first, "", "has no rows below its first line")


def _row_problems(table: _Table, doubtful: list[Row], kind: type) -> list[Problem]:
    """Rows of another width, and cells that are not what their column wants."""
    width = len(table.columns)
    problems = [
        table.problem(line, "", f"expected {width} cells, got {cells}", "put quotes around commas")
        for line, cells in table.widths.items()
    ]
    for line, row in doubtful:
        problems += [] if line in table.widths else _cell_problems(table, line, row, kind)
        if len(problems) > MOST_PROBLEMS:
            break
    return problems


def _cell_problems(table: _Table, line: int, row: dict[str, Any], kind: type) -> list[Problem]:
    try:
        form(kind).validate_json(json.dumps(row))
    except ValidationError as error:
        return [
            table.problem(line, str(item.path[0]), item.what, item.hint)
            for item in messages_of(error, kind, row)
        ]
    return []


def _conflicts(table: _Table, keys: tuple[str, ...]) -> Iterator[Problem]:
    for line, before in repeated(table.rows, keys):
        what = f"the same {', '.join(keys)} as line {before}"
        yield table.problem(line, keys[-1], what, "remove one of the two")
    if keys == LINK_KEYS:
        for line, curve in lonely(table.rows):
            what = f"the only size of {curve}, expected at least two"
            yield table.problem(line, "size_bytes", what, "measure a second size")
        for line, what in shared_inside(table.rows):
            yield table.problem(line, "concurrent", what, "leave it out")


def _value(column: str, cell: str) -> Any:
    return cell if column in _TEXTS else resolve(cell)
