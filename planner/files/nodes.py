"""YAML text as plain data that remembers its lines.

Numbers, truth values and null follow the YAML 1.2 core schema (``1e9`` is a number, ``no`` is text). The
tree is built from parser events, so that hostile input (alias bombs, deep nesting) is refused early.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field

import yaml

from planner.errors import KeyPath
from planner.frozen import record

MOST_NODES = 300_000
"""Values in one file, with every alias expanded."""
DEEPEST = 60
"""Levels of nesting."""

INTEGER = re.compile(r"[-+]?[0-9]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {"": None, "~": None, "null": None, "true": True, "false": False, ".nan": float("nan")}
_TEXT_TAG = "tag:yaml.org,2002:str"
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

Scalar = str | int | float | bool | None
Data = Scalar | list["Data"] | dict[str, "Data"]


class YamlError(Exception):
    """Text that is not YAML that we read; ``line`` is 1-based."""

    def __init__(self, line: int | None, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.line = line
        self.what = what
        self.hint = hint


@record(slots=True)
class YamlNode:
    """One value of the file and where it stands."""

    line: int
    """1-based line on which the value starts."""
    data: Data
    children: dict[str | int, YamlNode] = field(default_factory=dict)
    """By key of a mapping or index of a list."""
    key_lines: dict[str, int] = field(default_factory=dict)
    """1-based line of each key of a mapping."""
    size: int = 1
    """Values below and including this one, aliases expanded."""

    def rename(self, old: str, new: str) -> bool:
        """Give a key of a mapping another name, unless it lacks the one or has the other; True when it did."""
        if not isinstance(self.data, dict) or old not in self.data or new in self.data:
            return False
        self.data[new], self.children[new] = self.data.pop(old), self.children.pop(old)
        self.key_lines[new] = self.key_lines.pop(old)
        return True


def parse(text: str) -> YamlNode:
    """The one document of the text; raises YamlError."""
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlError(None, f"not YAML: {error}".splitlines()[0]) from None
    if builder.root is None or (builder.root.data is None and not builder.root.children):
        raise YamlError(None, "the file is empty")
    return builder.root


class _Builder:
    """Turns parser events into nodes; holds the chain of open collections."""

    def __init__(self) -> None:
        self.root: YamlNode | None = None
        self.anchors: dict[str, YamlNode] = {}
        self.open: list[_Open] = []

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise YamlError(line, "a second document starts here, expected one", "remove the line ---")
        if isinstance(event, yaml.ScalarEvent):
            self._check_tag(event, line)
            self._scalar(event, line)
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._alias(event, line), line)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._check_tag(event, line)
            self._start(event, line)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end()

    def _check_tag(self, event: yaml.NodeEvent, line: int) -> None:
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", _TEXT_TAG):
            raise YamlError(
                line, f"the tag {tag.replace('tag:yaml.org,2002:', '!!')} is not supported", "remove the tag"
            )

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        top = self.open[-1] if self.open else None
        if top is not None and top.is_mapping and top.key is None:
            top.take_key(event.value, line)
            return
        plain = event.style in (None, "") and event.tag is None
        node = YamlNode(line, resolve(event.value) if plain else event.value)
        self._remember(event.anchor, node)
        self._add(node, line)

    def _start(self, event: yaml.CollectionStartEvent, line: int) -> None:
        if len(self.open) >= DEEPEST:
            raise YamlError(line, f"nested deeper than {DEEPEST} levels")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if self.open and self.open[-1].is_mapping and self.open[-1].key is None:
            raise YamlError(line, "a key must be text", "put { } around a mapping only as a value")
        node = YamlNode(line, {} if is_mapping else [])
        self.open.append(_Open(node, is_mapping, event.anchor))

    def _end(self) -> None:
        done = self.open.pop()
        if "<<" in done.node.children:
            _merge(done.node)
        self._remember(done.anchor, done.node)
        self._add(done.node, done.node.line)

    def _alias(self, event: yaml.AliasEvent, line: int) -> YamlNode:
        if any(level.anchor == event.anchor for level in self.open):
            raise YamlError(line, f"*{event.anchor} contains itself", "write the value out")
        if self.open and self.open[-1].is_mapping and self.open[-1].key is None:
            raise YamlError(line, "an alias cannot be a key", "write the key out")
        known = self.anchors.get(event.anchor or "")
        if known is None:
            raise YamlError(line, f"*{event.anchor} is not defined above", f"define it with &{event.anchor}")
        return known

    def _remember(self, anchor: str | None, node: YamlNode) -> None:
        if anchor is not None:
            self.anchors[anchor] = node

    def _add(self, node: YamlNode, line: int) -> None:
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        top.add(node)
        if sum(level.node.size for level in self.open) > MOST_NODES:
            raise YamlError(
                line, f"more than {MOST_NODES:,} values with all aliases expanded", "write fewer aliases"
            )


def _merge(node: YamlNode) -> None:
    """Fill in the keys of the mappings under ``<<`` that the node does not give itself."""
    merged = node.children["<<"]
    bases = list(merged.children.values()) if isinstance(merged.data, list) else [merged]
    if not all(isinstance(base.data, dict) for base in bases):
        raise YamlError(node.key_lines["<<"], "<< expects a mapping or a list of mappings")
    line = node.key_lines["<<"]
    for owner in (node.children, node.key_lines, node.data):
        assert isinstance(owner, dict)
        del owner["<<"]
    for base in bases:
        for key, child in base.children.items():
            name = str(key)
            if isinstance(node.data, dict) and name not in node.data:
                node.data[name], node.children[name], node.key_lines[name] = child.data, child, line


@record(slots=True)
class _Open:
    """A collection whose end has not been read."""

    node: YamlNode
    is_mapping: bool
    anchor: str | None
    key: str | None = None

    def take_key(self, key: str, line: int) -> None:
        if key in self.node.key_lines:
            raise YamlError(
                line,
                f'the key "{key}" is already on line {self.node.key_lines[key]}',
                "remove one of the two",
            )
        self.node.key_lines[key] = line
        self.key = key

    def add(self, child: YamlNode) -> None:
        self.node.size += child.size
        if isinstance(self.node.data, list):
            self.node.children[len(self.node.data)] = child
            self.node.data.append(child.data)
        elif self.key is not None and isinstance(self.node.data, dict):
            self.node.children[self.key] = child
            self.node.data[self.key] = child.data
            self.key = None


def resolve(value: str) -> Scalar:
    """The value of an unquoted scalar."""
    if value.lower() in _SPECIAL:
        return _SPECIAL[value.lower()]
    if INTEGER.fullmatch(value) and len(value) < 1000:
        return int(value)
    if FLOAT.fullmatch(value):
        return float(value)
    if value.lstrip("+-").lower() == ".inf":
        return float(f"{value[0]}inf" if value[0] in "+-" else "inf")
    return value


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> YamlError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    if "\t" in _line(text, line) and "token" in str(error.problem):
        return YamlError(line, "a tab is not allowed as indentation", "indent with spaces")
    what = f"not YAML: {error.problem or error.context}"
    return YamlError(line, what, "look for a missing colon, quote or bracket here or just above")


def _line(text: str, line: int | None) -> str:
    lines = text.splitlines()
    return lines[line - 1] if line and line <= len(lines) else ""


def empty_values(node: YamlNode, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Paths of the keys and list items without a value."""
    for part, child in node.children.items():
        if child.data is None:
            yield (*path, part)
        yield from empty_values(child, (*path, part))


def walk(node: YamlNode, path: KeyPath) -> Iterator[tuple[int, YamlNode | None]]:
    """(line, node) of each step of the path; ends at a step that the file lacks, with the line before."""
    line = node.line
    yield line, node
    for part in path:
        child = node.children.get(part)
        if child is None:
            yield line, None
            return
        line = node.key_lines[part] if isinstance(part, str) else child.line
        yield line, child
        node = child
