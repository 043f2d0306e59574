"""What a validation error means to the user: expected what, got what, and what to write instead."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from planner.errors import KeyPath, PartError, PlanError
from planner.files.fields import form

Schema = dict[str, Any]

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
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]*)")
MOST_MESSAGES = 1000
"""Errors of one validation that are put into words."""

_KINDS = {
    "number": "a number",
    "integer": "a whole number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


@dataclass(frozen=True, slots=True)
class Message:
    """One thing wrong at one place of a file."""

    path: KeyPath
    what: str
    hint: str | None
    disagree: bool = False
    """True when each value is right on its own."""


def messages_of(error: ValidationError, kind: type, data: object) -> list[Message]:
    """Every error of a validation, in the user's words."""
    schema = form(kind).json_schema()
    items = [dict(item) for item in error.errors(include_url=False)[:MOST_MESSAGES]]
    return [_message(item, schema, data) for item in items if not _follows(item, items, data)]


def _follows(item: dict[str, Any], items: list[dict[str, Any]], data: object) -> bool:
    """True for a default that needs a wrong value, and for a list that is too short since its items are wrong."""
    if item["type"] != "too_short":
        return bool(item["type"] == "default_factory_not_called")
    size = len(item["loc"])
    inside = any(len(other["loc"]) > size and other["loc"][:size] == item["loc"] for other in items)
    return inside and bool(_value(data, _plain_path(item["loc"])))


def nearest(name: str, known: list[str]) -> str | None:
    """A hint that names what the user may have meant, or None when nothing is near."""
    lower = {other.lower(): other for other in known}
    matches = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return f"did you mean {lower[matches[0]]}?" if matches else None


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
    text = f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else str(value)
    return text[:60]


def _message(item: dict[str, Any], schema: Schema, data: object) -> Message:
    path, kind = _plain_path(item["loc"]), item["type"]
    if kind == "missing" and isinstance(path[-1], int):
        path, kind = path[:-1], "too_short"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = sorted(_resolve(_at(schema, path[:-1], data), schema).get("properties", {}))
        hint = nearest(str(path[-1]), known) or (f"known keys: {', '.join(known)}" if known else None)
        return Message(path, "unknown key", hint)
    if kind == "missing":
        field = _at(schema, path, data)
        return Message(path, f"missing, expected {expected(field, schema)}", _meaning(field))
    if kind in ("value_error", "assertion_error"):
        cause = item["ctx"]["error"]
        if isinstance(cause, PartError):
            return Message((*path, *cause.path), str(cause), None)
        if isinstance(cause, PlanError):
            return Message((*path, *cause.path), cause.what, cause.hint, disagree=True)
        return Message(path, str(cause), None)
    if item["loc"] and item["loc"][-1] == "[key]":
        return Message(path, "expected a name of letters, digits, dots, dashes and underscores", None)
    field = _at(schema, path, data)
    got = _value(data, path)
    return Message(
        path, f"expected {expected(field, schema)}, got {shown(got)}", _hint(path, got, field, schema)
    )


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


def _at(schema: Schema, path: KeyPath, data: object) -> Schema:
    """The part of a JSON Schema that describes the value at the path."""
    here = schema
    for part in path:
        here = _branch(_resolve(here, schema), schema, data)
        if isinstance(part, int):
            here = here.get("items", {})
        else:
            here = here.get("properties", {}).get(part) or _others(here)
        data = _value(data, (part,))
    return here


def _others(schema: Schema) -> Schema:
    patterns: Schema = schema.get("patternProperties", {})
    others: object = schema.get("additionalProperties") or next(iter(patterns.values()), {})
    return others if isinstance(others, dict) else {}


def _resolve(part: Schema, schema: Schema) -> Schema:
    if "$ref" in part:
        name = part["$ref"].rsplit("/", 1)[-1]
        target: Schema = schema["$defs"][name]
        return target
    return part


def _branch(part: Schema, schema: Schema, data: object) -> Schema:
    """The alternative of a union that has the shape of the data."""
    wanted = "object" if isinstance(data, dict) else "array" if isinstance(data, list) else None
    for option in _options(part):
        branch = _resolve(option, schema)
        if branch.get("type") == wanted:
            return branch
    return part


def _options(part: Schema) -> list[Schema]:
    options: list[Schema] = part.get("anyOf") or part.get("oneOf") or []
    return options


def expected(part: Schema, schema: Schema) -> str:
    """What a schema allows, in words: ``a number > 0``, ``one of: bf16, fp16``."""
    field = _resolve(part, schema)
    if "enum" in field or "const" in field:
        options = field.get("enum", [field.get("const")])
        return f"{'one of: ' if len(options) > 1 else ''}{', '.join(str(option) for option in options)}"
    options = [option for option in _options(field) if option.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(expected(option, schema) for option in options))
    if field.get("pattern", "").startswith(("^[A-Za-z0-9][", "^([A-Za-z0-9][")):
        return "a name of letters, digits, dots, dashes and underscores"
    if field.get("pattern") == "^[ -~]+$":
        return "text of printable ASCII characters"
    return f"{_KINDS.get(field.get('type', ''), 'another value')}{_limits(field)}"


def _limits(field: Schema) -> str:
    if "prefixItems" in field:
        return f" of {len(field['prefixItems'])}"
    if "minItems" in field and "maxItems" in field:
        return f" of {field['minItems']} to {field['maxItems']} items"
    if "maxItems" in field:
        return f" of at most {field['maxItems']} items"
    if "minItems" in field or "minProperties" in field:
        return f" with at least {field.get('minItems', field.get('minProperties'))} item"
    if "minimum" in field and "maximum" in field:
        return f" from {figure(field['minimum'])} to {figure(field['maximum'])}"
    parts = [("exclusiveMinimum", ">"), ("minimum", ">="), ("maximum", "<="), ("exclusiveMaximum", "<")]
    return " and".join(f" {sign} {figure(field[key])}" for key, sign in parts if key in field)


def figure(number: float) -> str:
    """A number as one writes it: ``0.000001``, ``1000000``, ``1e+60``."""
    if 1e-6 <= abs(number) < 1:
        return f"{number:.12f}".rstrip("0")
    return f"{number:.15g}" if 1 <= abs(number) < 1e15 else f"{number:g}"


def _hint(path: KeyPath, got: object, field: Schema, schema: Schema) -> str | None:
    wants = expected(field, schema)
    if isinstance(got, str) and "number" in wants:
        return _number_hint(path, got)
    if isinstance(got, str) and wants.startswith("one of"):
        options = [str(option) for option in _resolve(field, schema).get("enum", [])]
        return nearest(got, options)
    if isinstance(got, (int, float)) and not isinstance(got, bool) and ("text" in wants or "name" in wants):
        return f'write "{got}" in quotes'
    if not isinstance(got, list) and wants.startswith("a list") and got is not None:
        return (
            f"put it in brackets: [{shown(got)}]"
            if not isinstance(got, dict)
            else "put a dash before it: - key: value"
        )
    return _meaning(field)


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


def _meaning(field: Schema) -> str | None:
    text = field.get("description")
    return text.splitlines()[0].rstrip(".").replace("``", "") if isinstance(text, str) else None
