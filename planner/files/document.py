"""YAML files as validated records; every problem of a file at once, each with its line."""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from planner.errors import KeyPath, PlanError, Problem, SpecError, dotted
from planner.files.fields import form
from planner.files.messages import messages_of
from planner.files.nodes import Data, YamlError, YamlNode, empty_values, parse, walk
from planner.files.short_lists import split_times
from planner.frozen import record

MOST_BYTES = 4 * 2**20
"""Largest file that is read."""

MOST_PROBLEMS = 100
"""Problems of one file that are shown."""

_SUFFIXES = {
    "YAML": (".yaml", ".yml", ".json"),
    "CSV": (".csv",),
    "text": (".csv", ".txt", ".log", ".out"),
}

T = TypeVar("T")


@record(frozen=True, slots=True)
class Document:
    """A parsed file that can name the line of each of its values."""

    file: str
    """Path as the user wrote it."""
    root: YamlNode
    at: KeyPath = ()
    """Where in the file the root is, for a part of it."""

    @property
    def folder(self) -> str:
        """Name of the folder that the file is in."""
        return Path(self.file).parent.resolve().name

    @property
    def data(self) -> dict[str, Data]:
        """The top mapping."""
        assert isinstance(self.root.data, dict)
        return self.root.data

    def part(self, *path: str | int) -> Document | None:
        """The mapping at the path as a document of its own; None when there is none."""
        *_, (_, node) = walk(self.root, path)
        if node is None or not isinstance(node.data, dict):
            return None
        return Document(self.file, node, (*self.at, *path))

    def line(self, path: KeyPath) -> int:
        """Line of the key or list item at the path, or of the nearest value around it."""
        lines = [line for line, node in walk(self.root, path)]
        return lines[-1]

    def problem(self, path: KeyPath, what: str, hint: str | None = None) -> Problem:
        """A problem of the value at the path."""
        key = dotted((*self.at, *path))
        return Problem(file=self.file, line=self.line(path), key=key, what=what, hint=hint)

    def problems(self, kind: type) -> list[Problem]:
        """Everything that keeps the file from being a ``kind``."""
        return [problem for problem, _ in self._found(kind)]

    def to(self, kind: type[T]) -> T:
        """The file as a ``kind``; raises SpecError with every problem, PlanError when only its parts disagree."""
        problems = self._found(kind)
        if problems and all(disagree for _, disagree in problems):
            raise PlanError(*(str(problem) for problem, _ in problems))
        fail_on(problem for problem, _ in problems)
        return self._validate(kind)

    def _found(self, kind: type) -> list[tuple[Problem, bool]]:
        """(problem, whether all values are right on their own)."""
        empty = list(islice(empty_values(self.root), MOST_PROBLEMS))
        problems = [
            (self.problem(path, "has no value", "give one, or remove the key"), False) for path in empty
        ]
        try:
            self._validate(kind)
        except ValidationError as error:
            others = (item for item in messages_of(error, kind, self.data) if item.path not in empty)
            problems += [(self.problem(item.path, item.what, item.hint), item.disagree) for item in others]
        return problems

    def _validate(self, kind: type[T]) -> T:
        return form(kind).validate_json(json.dumps(self.data))


def fail_on(problems: Iterable[Problem]) -> None:
    """Raise SpecError when there are problems: the first hundred by line, and how many more there are."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line or 0, problem.key, problem.what))
    more = len(ordered) - MOST_PROBLEMS
    if more > 0:
        rest = Problem(file=ordered[0].file, line=None, key="", what=f"and {more:,} more problems at least")
        ordered = [*ordered[:MOST_PROBLEMS], rest]
    if ordered:
        raise SpecError(tuple(ordered))


def read_document(path: Path) -> Document:
    """The YAML (or JSON) file, parsed; raises SpecError when it cannot be read or is not a mapping."""
    root = _root(path)
    if not isinstance(root.data, dict):
        raise SpecError.of(path, "expected a mapping (key: value) at the top of the file", None, root.line)
    return Document(str(path), root)


def _root(path: Path) -> YamlNode:
    text = read_text(path)
    try:
        return parse(text.expandtabs() if path.suffix == ".json" else text)
    except YamlError as error:
        raise SpecError.of(path, error.what, error.hint, error.line) from None


def read_list(path: Path, key: str, example: str) -> tuple[Document, ...]:
    """The mappings of the list under ``key``, or of a file that is a list; raises SpecError with all that are none.

    ``example`` is a line of such a list. Places in the file are told with the key: ``plans[2].tp``.
    """
    root = _root(path)
    list_node = root.children.get(key, root) if isinstance(root.data, dict) else root
    if not isinstance(list_node.data, list) or not list_node.data:
        raise SpecError.of(
            path, f"expected a list of {key}, in lines such as `{example}`", None, list_node.line
        )
    items = [Document(str(path), node, (key, index)) for index, node in list_node.children.items()]
    fail_on(item.problem((), "expected a mapping") for item in items if not isinstance(item.root.data, dict))
    return tuple(items)


def read_text(path: Path, kind: Literal["YAML", "CSV", "text"] = "YAML", most_bytes: int = MOST_BYTES) -> str:
    """The text of a file of at most ``most_bytes``; raises SpecError, which names the ``kind`` of file."""
    return _decode(path, read_bytes(path, kind, most_bytes))


_piped: dict[tuple[int, int, int], bytes] = {}
"""What came out of pipes, such as those of ``<(command)``: they give it only once."""


def read_bytes(
    path: Path, kind: Literal["YAML", "CSV", "text"] = "YAML", most_bytes: int = MOST_BYTES
) -> bytes:
    """The bytes of such a file; those of a pipe also once more, until something else was written to it."""
    try:
        if path.is_dir():
            raise SpecError.of(path, f"is a directory, expected a {kind} file", _files_in(path, kind))
        status = path.stat()
        if status.st_size > most_bytes:
            raise SpecError.of(
                path, f"is {status.st_size / 2**20:.1f} MiB, expected at most {most_bytes >> 20} MiB"
            )
        if stat.S_ISFIFO(status.st_mode) and _written(status) in _piped:
            return _piped[_written(status)]
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
            status = os.fstat(file.fileno())
    except OSError as error:
        raise SpecError.of(path, _reason(error)) from None
    except ValueError as error:
        raise SpecError.of(path, f"is not a path: {error}") from None
    if len(content) > most_bytes:
        raise SpecError.of(path, f"is larger than {most_bytes >> 20} MiB")
    if stat.S_ISFIFO(status.st_mode):
        _piped[_written(status)] = content
    return content


def _written(status: os.stat_result) -> tuple[int, int, int]:
    """Which pipe, and when something was last written to it."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def file_beside(path: Path, named: str) -> Path:
    """A file that another one names: relative to that one, or to the current folder where it came through a pipe."""
    return Path(named) if path.is_fifo() else path.parent / named


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        if b"\0" in content and not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise SpecError.of(path, "is a binary file, expected text") from None
        raise SpecError.of(path, "is not UTF-8 text", "save the file as UTF-8", line) from None


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _files_in(folder: Path, kind: str) -> str | None:
    suffixes = _SUFFIXES[kind]
    try:
        names = sorted(child.name for child in folder.iterdir() if child.suffix in suffixes)
    except OSError:
        return None
    return f"name one of its files: {', '.join(names[:5])}" if names else None


Kind = Literal["cluster", "model", "plan", "calibration", "offers", "jobs"]


def read_as(path: Path, kind: Kind) -> Document:
    """The file, parsed; raises SpecError when it cannot be read, or is plainly a file of another kind."""
    document = read_document(path)
    other = kind_of(document.data)
    if other not in (None, kind):
        kinds = [f"{'an' if each == 'offers' else 'a'} {each} file" for each in (other, kind)]
        what = f"is {kinds[0]}, expected {kinds[1]}"
        hint = "files go in this order: CLUSTER MODEL PLAN; a calibration goes with --calibration"
        raise SpecError.of(document.file, what, hint)
    return document


def kind_of(data: dict[str, Any]) -> Kind | None:
    """What the keys of a file tell; None when they tell nothing."""
    for kind in ("plan", "calibration"):
        if str(data.get("format", "")).startswith(f"hetplan-{kind}/"):
            return kind
    if "pools" in data:
        return "cluster"
    if "offers" in data:
        return "offers"
    if "jobs" in data:
        return "jobs"
    if "stages" in data or "replicas" in data:
        return "plan"
    if is_config(data) or "huggingface" in data or {"layers", "hidden"} <= data.keys():
        return "model"
    return None


def is_config(data: dict[str, Any]) -> bool:
    """True when the file looks like a ``config.json`` of Hugging Face rather than a model file of ours."""
    return "model_type" in data or "architectures" in data


def pools_of(document: Document) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, pool) of every pool that is a mapping."""
    return mappings(document.data.get("pools"))


def mappings(value: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, item) of every mapping of a list, nothing for what is no list."""
    if isinstance(value, list):
        yield from ((index, item) for index, item in enumerate(value) if isinstance(item, dict))


def keys_of(value: object) -> list[str]:
    """Keys of a mapping, nothing for what is none."""
    return [str(key) for key in value] if isinstance(value, dict) else []


def devices_per_node(pool: dict[str, Any]) -> int:
    """Devices of one node of a pool, as far as it can be read."""
    devices, count = pool.get("devices"), pool.get("gpus_per_node")
    if isinstance(devices, list):
        return sum(split_times(item)[0] if isinstance(item, str) else 1 for item in devices)
    return count if isinstance(count, int) else 1
