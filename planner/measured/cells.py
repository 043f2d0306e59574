"""CSV files as rows that know their line; every problem of a file at once."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import Problem, SpecError
from planner.files.document import fail_on
from planner.files.messages import nearest
from planner.measured.row import COLUMNS, Row, parse_row

MOST_BYTES = 64 * 2**20
"""Largest table that is read."""


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row of a table and where it stands."""

    file: str
    """Path of the table as the user wrote it."""
    line: int
    """1-based line on which the row begins."""
    row: Row

    def problem(self, column: str, what: str, hint: str | None = None) -> Problem:
        """A problem of one cell."""
        return Problem(file=self.file, line=self.line, key=column, what=what, hint=hint)


def read_rows(path: Path) -> tuple[NumberedRow, ...]:
    """The rows of a table; raises SpecError with everything wrong with its header and cells."""
    records = list(_records(path))
    if not records:
        raise _failure(path, "the file is empty", hint="the first line names the columns, e.g. id")
    line, names = records[0]
    header = [name.strip() for name in names]
    fail_on(_header_problems(path, line, header))
    found: list[NumberedRow] = []
    problems: list[Problem] = []
    for line, cells in records[1:]:
        row = _row(path, line, header, cells)
        if isinstance(row, Row):
            found.append(NumberedRow(str(path), line, row))
        else:
            problems += row
    fail_on([*problems, *_repeated(found)])
    if not found:
        raise _failure(path, "no run below the header")
    return tuple(found)


def _row(path: Path, line: int, header: list[str], cells: list[str]) -> Row | list[Problem]:
    if len(cells) != len(header):
        what = f"expected {len(header)} cells like the header, got {len(cells)}"
        hint = "put cells that contain a comma in double quotes"
        return [Problem(file=str(path), line=line, key="", what=what, hint=hint)]
    row = parse_row(dict(zip(header, cells, strict=True)))
    if isinstance(row, Row):
        return row
    return [
        Problem(file=str(path), line=line, key=column, what=what, hint=hint) for column, what, hint in row
    ]


def _header_problems(path: Path, line: int, header: Sequence[str]) -> Iterator[Problem]:
    for name in dict.fromkeys(header):
        if name not in COLUMNS:
            what, hint = f'unknown column "{name[:60]}"', nearest(name, list(COLUMNS))
            if ";" in name or "\t" in name:
                hint = "separate the columns by commas"
            yield Problem(file=str(path), line=line, key="", what=what, hint=hint)
        elif header.count(name) > 1:
            yield Problem(file=str(path), line=line, key=name, what="the column is there twice")
    if "id" not in header:
        yield Problem(file=str(path), line=line, key="id", what="missing, expected a column of unique names")


def _repeated(rows: Sequence[NumberedRow]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for item in rows:
        if item.row.id in seen:
            yield item.problem("id", f'"{item.row.id}" is already on line {seen[item.row.id]}')
        seen.setdefault(item.row.id, item.line)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record that is not blank."""
    reader = csv.reader(_text(path).splitlines(keepends=True), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise _failure(path, f"not CSV: {error}", line, "look for a quote that is not closed") from None


def _text(path: Path) -> str:
    if path.is_dir():
        raise _failure(path, "is a directory, expected a CSV file")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise _failure(path, "no such file") from None
    except OSError as error:
        raise _failure(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(content) > MOST_BYTES:
        raise _failure(path, f"is larger than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _failure(path, "is not UTF-8 text", line, "save the file as CSV UTF-8") from None


def _failure(path: Path, what: str, line: int | None = None, hint: str | None = None) -> SpecError:
    return SpecError((Problem(file=str(path), line=line, key="", what=what, hint=hint),))
