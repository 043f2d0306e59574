"""What a validation error means to the user: expected what, got what, and what to write instead."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from planner.errors import KeyPath, PartError, PlanError, UsageError
from planner.files.fields import form
from planner.frozen import record
from planner.ranges import Range

_UNITS = {
    "gbps": "gigabits per second",
    "gBps": "gigabytes per second",
    "gib": "GiB",
    "us": "microseconds",
    "watts": "watts",
    "hour": "currency units per GPU-hour",
    "tflops": "TFLOP/s",
}
_SCALES = {
    "gbps": {"g": 1.0, "t": 1e3, "m": 1e-3},
    "gBps": {"g": 1.0, "t": 1e3, "m": 1e-3},
    "gib": {"g": 1.0, "t": 1024.0, "m": 1 / 1024},
    "_us": {"u": 1.0, "m": 1e3, "s": 1e6, "n": 1e-3},
    "watts": {"w": 1.0, "k": 1e3},
}
"""Factor of the first letter of a written unit, by the end of the key."""
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]*|%)\s*$")
MOST_NEAR = 6
"""Names in a hint."""

MOST_MESSAGES = 1000
"""Errors of one validation that are put into words."""

_EXPECTED = {
    "missing": "missing",
    "extra_forbidden": "unknown key",
    "unexpected_keyword_argument": "unknown key",
    "float_type": "expected a number",
    "finite_number": "expected a number",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "string_too_short": "expected text",
    "string_too_long": "expected at most {max_length} characters",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "dataclass_type": "expected a mapping",
    "too_short": "expected a list with at least {min_length} item",
    "too_long": "expected a list of at most {max_length} items",
}
"""Our words for pydantic's errors; those of numbers stand beside their ranges."""
_NAME = "expected a name of letters, digits, dots, dashes and underscores"
_ONE_OF = "expected one of: "


@record(frozen=True, slots=True)
class Message:
    """One thing wrong at one place of a file."""

    path: KeyPath
    what: str
    hint: str | None
    disagree: bool = False
    """True when each value is right on its own."""


def messages_of(error: ValidationError, kind: type, data: object) -> list[Message]:
    """Every error of a validation, in the user's words."""
    items = [dict(item) for item in error.errors(include_url=False)[:MOST_MESSAGES]]
    return [_message(item, kind, data) for item in items if not _follows(item, items, data)]


def _follows(item: dict[str, Any], items: list[dict[str, Any]], data: object) -> bool:
    """True for a default that needs a wrong value, and for a list that is too short since its items are wrong."""
    if item["type"] != "too_short":
        return bool(item["type"] == "default_factory_not_called")
    size = len(item["loc"])
    inside = any(len(other["loc"]) > size and other["loc"][:size] == item["loc"] for other in items)
    return inside and bool(_value(data, _plain_path(item["loc"])))


def nearest(name: str, known: list[str]) -> str | None:
    """A hint that names what the user may have meant, all that are as near; None when nothing is near."""
    lower = {other.lower(): other for other in known}
    matches = difflib.get_close_matches(name.lower(), list(lower), n=MOST_NEAR, cutoff=0.6)
    if not matches:
        return None
    shares = [difflib.SequenceMatcher(None, match, name.lower()).ratio() for match in matches]
    names = [lower[match] for match, share in zip(matches, shares, strict=True) if share == shares[0]]
    return f"did you mean {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}?"


def shown(value: object) -> str:
    """A value as it stands in the file, shortened."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, str):
        return f'"{value[:60]}"' if len(value) <= 60 else f'"{value[:57]}..."'
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, float) and math.isfinite(value):
        text = f"{value:.6g}"
        return text if {*".e"} & {*text} else f"{text}.0"
    return str(value)[:60]


def _message(item: dict[str, Any], kind: type, data: object) -> Message:
    path = _plain_path(item["loc"])
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, PlanError):
        return Message((*path, *cause.path), cause.what, cause.hint, disagree=True)
    if cause is not None:
        return Message((*path, *cause.path) if isinstance(cause, PartError) else path, str(cause), None)
    if item["loc"] and item["loc"][-1] == "[key]":
        if item["type"] != "literal_error":
            return Message(path, _NAME, None)
        keys = _options(item["ctx"]["expected"])
        return Message(path, "unknown key", nearest(str(path[-1]), keys) or _known(keys))
    if item["type"] == "missing" and isinstance(path[-1], int):
        what = f"expected a list of {path[-1] + 1}, got {shown(_value(data, path[:-1]))}"
        return Message(path[:-1], what, None)
    what, got = _expected(item), _value(data, path)
    known = _keys(kind, path[:-1])
    meaning = known.get(str(path[-1])) if path else None
    if what == "unknown key":
        around = _value(data, path[:-1])
        there = around if isinstance(around, dict) else {}
        return Message(
            path, what, nearest(str(path[-1]), [key for key in known if key not in there]) or _known(known)
        )
    if what == "missing":
        return Message(path, what, meaning)
    return Message(path, f"{what}, got {shown(got)}", _hint(path, got, what) or meaning)


def _expected(item: dict[str, Any]) -> str:
    """Pydantic's message in our words; as it is where a type gives its own."""
    context = item.get("ctx", {})
    if item["type"] == "literal_error":
        return f"{_ONE_OF}{', '.join(_options(context['expected']))}"
    if item["type"] == "string_pattern_mismatch":
        if context["pattern"] == "^[ -~]+$":
            return "expected text of printable ASCII characters"
        is_name = context["pattern"].startswith(("^[A-Za-z0-9][", "^([A-Za-z0-9]["))
        return _NAME if is_name else "expected text of another form"
    if item["type"] == "too_short" and context.get("field_type") == "Dictionary":
        return f"expected at least {context['min_length']} key"
    words = _EXPECTED.get(item["type"])
    return words.format(**context) if words else str(item["msg"])


def _options(text: str) -> list[str]:
    """Out of pydantic's ``'big', 'medium' or 'small'``."""
    return re.split(", | or ", text.replace("'", ""))


def _known(keys: Iterable[str]) -> str | None:
    return f"known keys: {', '.join(sorted(keys))}" if keys else None


def _keys(kind: type, path: KeyPath) -> dict[str, str | None]:
    """What each key of the mapping at the path means."""
    owners = [kind]
    for part in path:
        if isinstance(part, str):  # items of a list, and values under free names, are of the type around them
            below = [classes[part] for classes in map(_below, owners) if part in classes]
            owners = [owner for classes in below for owner in classes] if below else owners
    return {key: meaning for owner in owners for key, meaning in _documented(owner).items()}


@cache
def _below(owner: type) -> dict[str, tuple[type, ...]]:
    """The classes of each field."""
    return {name: tuple(_classes(hint)) for name, hint in get_type_hints(owner).items()}


@cache
def _documented(owner: type) -> dict[str, str | None]:
    """What each key of a class means."""
    fields = form(owner).json_schema().get("properties", {})
    return {key: first_sentence(field.get("description")) for key, field in fields.items()}


def _classes(hint: Any) -> Iterator[type]:
    """The classes with fields in a type."""
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel)):
        yield hint
    for part in get_args(hint):
        yield from _classes(part)


def first_sentence(text: str | None) -> str | None:
    """Its first lines, up to one that ends a sentence, on one line."""
    if not text:
        return None
    first = re.split(r"(?<=\.)\n", text, maxsplit=1)[0]
    return " ".join(first.split()).rstrip(".").replace("``", "")


def _plain_path(loc: tuple[str | int, ...]) -> KeyPath:
    """A pydantic location without the steps that stand for a branch of a union or for a key."""
    return tuple(
        part for part in loc if isinstance(part, int) or not (part.startswith("<") or part == "[key]")
    )


def _value(data: object, path: KeyPath) -> object:
    for part in path:
        try:
            data = data[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _hint(path: KeyPath, got: object, what: str) -> str | None:
    """What to write instead, as far as that can be told from what stands there."""
    if isinstance(got, str) and "number" in what:
        return _number_hint(path, got)
    if isinstance(got, (int, float)) and not isinstance(got, bool) and what in ("expected text", _NAME):
        return f'write "{got}" in quotes'
    if what == "expected a list" and got is not None:
        return (
            f"put it in brackets: [{shown(got)}]"
            if not isinstance(got, dict)
            else "put a dash before it: - key: value"
        )
    if isinstance(got, str) and what.startswith(_ONE_OF):
        return nearest(got, what.removeprefix(_ONE_OF).split(", "))
    return None


def _number_hint(path: KeyPath, got: str) -> str | None:
    unit = next((text for end, text in _UNITS.items() if _key(path).endswith(end)), None)
    match = _NUMBER.match(got)
    value = _scaled(float(match[1]), match[2], _key(path)) if match else None
    if value is None:
        return f"a plain number ({unit})" if unit else "a plain number without a unit"
    return f"write {value:g} ({unit})" if unit else f"write {value:g}"


def _key(path: KeyPath) -> str:
    names = [part for part in path if isinstance(part, str)]
    return "tflops" if "tflops" in names[-2:] else names[-1] if names else ""


def _scaled(number: float, suffix: str, key: str) -> float | None:
    """The number in the unit of the key, None when the suffix cannot be read."""
    if suffix == "%":
        return number / 100
    if not suffix or key == "tflops":
        return number
    scales = next((scales for end, scales in _SCALES.items() if key.endswith(end)), {})
    scale = scales.get(suffix[0].lower())
    return number * scale * _byte_factor(suffix, key) if scale else None


def _byte_factor(suffix: str, key: str) -> float:
    """8 when bytes were written for bits, 1/8 the other way round."""
    written = re.search(r"[bB](?=$|p|/|it)", suffix)
    if not key.endswith(("gbps", "gBps")) or not written:
        return 1.0
    return {("B", "gbps"): 8.0, ("b", "gBps"): 0.125}.get((written[0], key[-4:]), 1.0)


def within(option: str, value: float | None, allowed: Range, what: str = "a number") -> float | None:
    """The value of an option; raises UsageError for one that is out of range."""
    if value is not None and not allowed.holds(value):
        if isinstance(value, int):
            limits = f"a whole number from {allowed.least:.0f} to {allowed.most:.0f}"
            raise UsageError(f"{option}: expected {limits}, got {value}")
        limits = f"from {allowed.least:g} to {allowed.most:g}"
        raise UsageError(f"{option}: expected {what} {limits}, got {value:g}")
    return value
