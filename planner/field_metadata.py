"""Metadata of dataclass fields: labels of tables, meanings for the reference page, keys of ``--json`` documents.

All of it is written beside the field and nowhere else.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from planner.frozen import record

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")


@record(frozen=True, slots=True)
class Label:
    """The name of a field in tables and sentences: ``Annotated[float, Label("gradient sync")]``."""

    text: str
    """In sentences and in rows of tables."""
    short: str = ""
    """Heading of a narrow column, if different."""

    @property
    def heading(self) -> str:
        """Heading of a column: one word per line."""
        return (self.short or self.text).replace(" ", "\n")


@cache
def labels(cls: type) -> dict[str, Label]:
    """The labels of the fields that have one, in their order."""
    return {name: mark for name, marks in _marks(cls) for mark in marks if isinstance(mark, Label)}


def _marks(cls: type) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if get_origin(hint) is Annotated:
            yield name, get_args(hint)[1:]


@cache
def meanings(cls: type) -> dict[str, str]:
    """The docstring of every field and property that has one, inherited ones too."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        # What a generic class becomes with its types filled in, ``Entry[float]``, has no source of its own.
        if (
            owner.__module__.partition(".")[0] not in ("builtins", "pydantic", "typing")
            and "[" not in owner.__name__
        ):
            texts |= _own(owner)
    return texts


def _own(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        text = None
        if isinstance(node, ast.FunctionDef):
            text, name = ast.get_docstring(node), node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
        if text:
            texts[name] = inspect.cleandoc(text)
    return texts


def sentence(text: str) -> str:
    """The first line of a docstring as part of a sentence: ``collectives inside replicas``."""
    first = text.splitlines()[0].rstrip(".")
    return first if first[1:2].isupper() else first[:1].lower() + first[1:]


@record(frozen=True, slots=True)
class _JsonFields:
    """How the document of a class differs from its fields."""

    more: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    inline: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()
    names: Mapping[str, str] | None = None
    suffix: str = ""
    nulls: tuple[str, ...] = ()


def json_fields(
    *more: str,
    only: tuple[str, ...] | None = None,
    without: tuple[str, ...] = (),
    inline: tuple[str, ...] = (),
    brief: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
    suffix: str = "",
    nulls: tuple[str, ...] = (),
) -> Callable[[type[T]], type[T]]:
    """How the JSON document of a dataclass differs from its fields; without this it has each field under its name.

    Args:
        more: properties to include, and values inside fields: ``scored.estimate.step_seconds``.
        only: the fields to include; None for all.
        without: fields to leave out.
        inline: fields whose own keys are placed beside the others.
        brief: fields whose keys the reference page does not repeat.
        names: keys of fields that are not the field's name.
        suffix: a suffix of field names that keys drop.
        nulls: fields that become null when empty.
    """

    def mark(cls: type[T]) -> type[T]:
        cls.__json_fields__ = _JsonFields(more, only, without, inline, brief, names, suffix, nulls)  # type: ignore[attr-defined]
        return cls

    return mark


class _Member:
    """A key of a document; what a document itself does not need is worked out when it is asked for."""

    def __init__(self, cls: Any, path: tuple[str, ...], rule: _JsonFields) -> None:
        self._cls, self.path, last = cls, path, path[-1]
        key = last.removesuffix(rule.suffix) if rule.suffix else last
        self.key = (rule.names or {}).get(".".join(path), key)
        self.inline, self.brief = last in rule.inline, last in rule.brief
        self.null = last in rule.nulls
        """Null when empty."""

    @cached_property
    def _found(self) -> tuple[Any, Any, bool]:
        owner, hint, optional = self._cls, self._cls, False
        for name in self.path:
            owner = hint
            descriptor = getattr(owner, name, None)
            if isinstance(descriptor, property):
                whole = get_type_hints(descriptor.fget)["return"]
            else:
                whole = get_type_hints(owner)[name]
            hint = _without_none(whole)
            optional = optional or hint is not whole
        return owner, hint, optional

    @property
    def hint(self) -> Any:
        """Type without None."""
        return self._found[1]

    @property
    def optional(self) -> bool:
        """Whether its type, or that of a value on the way to it, allows None."""
        return self._found[2]

    @property
    def meaning(self) -> str:
        """The first paragraph of its docstring."""
        text = meanings(self._found[0]).get(self.path[-1], "").split("\n\n")[0]
        return re.sub(r"\bNone\b", "null", " ".join(text.replace("``", "").split()))


@cache
def _members(cls: Any) -> tuple[_Member, ...]:
    rule: _JsonFields = getattr(cls, "__json_fields__", _JsonFields())
    own = [field.name for field in fields(cls) if field.name not in rule.without]
    names = [name for name in own if rule.only is None or name in rule.only]
    return tuple(_Member(cls, tuple(name.split(".")), rule) for name in (*names, *rule.more))


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return options[0] if len(options) == 1 else hint
    return hint


def plain(value: object) -> Json:
    """A value as it stands in a document."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value)
    if is_dataclass(value):
        return dict(_entries(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    dump = getattr(value, "model_dump", None)
    dumped: Json = str(value) if dump is None else dump(mode="json")
    return dumped


def _entries(value: object) -> Iterator[tuple[str, Json]]:
    cls: Any = type(value)
    for member in _members(cls):
        entry = value
        for name in member.path:
            entry = None if entry is None else getattr(entry, name)
        if not member.inline:
            yield member.key, None if member.null and not entry else plain(entry)
        elif entry is None:
            yield from _blank(member.hint)
        else:
            yield from _entries(entry)


def _blank(cls: Any) -> Iterator[tuple[str, Json]]:
    """The keys of a value that is not there: empty lists and nulls."""
    for member in _members(cls):
        if member.inline:
            yield from _blank(member.hint)
        else:
            yield member.key, [] if get_origin(member.hint) is tuple else None


def keys(cls: Any, at: str = "") -> dict[str, str]:
    """What every key of a class's document means; ``[]`` stands for every entry of a list, ``.*`` for free keys."""
    meanings_by_key: dict[str, str] = {}
    for member in _members(cls):
        if member.inline:
            meanings_by_key |= keys(member.hint, at)
            continue
        key, hint = at + member.key, member.hint
        if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
            key, hint = f"{key}[]", get_args(hint)[0]
        if is_dataclass(hint) and not member.brief:
            meanings_by_key |= keys(hint, f"{key}.")
        elif member.brief or get_origin(hint) is dict or hasattr(hint, "model_dump"):
            meanings_by_key[f"{key}.*"] = member.meaning
        else:
            meanings_by_key[key] = member.meaning
    return meanings_by_key


def schema(cls: Any) -> dict[str, Json]:
    """The JSON Schema of a class's document: all its keys are there, and any value may be null.

    A list only where its type, or that of a value on the way to it, allows None.
    """
    properties: dict[str, Json] = {}
    for member in _members(cls):
        if member.inline:
            inner = schema(member.hint)["properties"]
            assert isinstance(inner, dict)
            properties |= inner
        else:
            shape = _shape(member.hint)
            if shape.get("type") == "array" and member.optional:
                shape |= {"type": ["array", "null"]}
            properties[member.key] = {**shape, **({"description": member.meaning} if member.meaning else {})}
    return {"type": "object", "properties": properties, "required": list(properties)}


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _shape(hint: Any) -> dict[str, Json]:
    """The schema of a value by its type; types that a document writes as text are text."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _shape(inside[0])
    if origin in (tuple, list):
        each = {json.dumps(_shape(part)): _shape(part) for part in inside if part is not Ellipsis}
        return {"type": "array", "items": _either(list(each.values()))}
    if origin is dict or origin is Mapping or hasattr(hint, "model_dump"):
        return _nullable({"type": "object"})
    if is_dataclass(hint):
        return _nullable(schema(hint))
    if origin is Literal:
        return {"enum": [*map(str, inside), None]}
    if origin in (Union, UnionType):
        return _either([_shape(part) for part in inside if part is not type(None)])
    return {"type": [_TYPES.get(hint, "string"), "null"]} if isinstance(hint, type) else {}


def _nullable(shape: dict[str, Json]) -> dict[str, Json]:
    return {**shape, "type": ["object", "null"]}


def _either(shapes: list[dict[str, Json]]) -> dict[str, Json]:
    return shapes[0] if len(shapes) == 1 else {"anyOf": list(shapes)}


FORMAT = 1
"""Version of the documents; grows when a key changes its meaning or goes away."""


MOST_INDENTED = 10_000
"""Entries of a list in an indented document."""


def text(document: object) -> str:
    """A document as JSON; numbers that are infinite or unknown become null.

    A very long one is not indented: that takes ten times as long.
    """
    content = plain(document)
    assert isinstance(content, dict), "a document is a mapping"
    long = any(isinstance(value, list) and len(value) > MOST_INDENTED for value in content.values())
    indent = None if long else 2
    try:
        return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(content), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value


@record(frozen=True, slots=True, kw_only=True)
class JsonDocument:
    """What every document begins with."""

    format: int = FORMAT
    """Version of the document, 1; incremented when a key is removed or changes its meaning."""
    command: str
    """The command that wrote it."""
