"""Plain data as YAML text: deterministic, one line for each innermost list or mapping."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from planner.files.nodes import FLOAT
from planner.visible import visible

WIDTH = 110


class Lines(list[str]):
    """A list of sentences, written one below the other."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        """In ASCII, so that what a terminal would obey is an escape."""
        self.allow_unicode = False
        super().write_double_quoted(text, split)
        self.allow_unicode = True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Text in double quotes where it has characters that need escapes."""
    hidden = visible(text, keep="\n\t") != text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if hidden else None)


_Dumper.add_representer(str, _text)


def _sentences(dumper: yaml.SafeDumper, lines: Lines) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", lines, flow_style=False)


_Dumper.add_representer(Lines, _sentences)
# The dumper follows YAML 1.1, our reader 1.2 and OmegaConf neither: text such as 1e9, 08 or 1_0e3 that one of them
# reads as a number is quoted.
_NUMBER = re.compile(rf"^(?:{FLOAT.pattern}|[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?)$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def dump(data: dict[str, Any]) -> str:
    """The mapping as YAML, keys in their order."""
    if not any(isinstance(value, (list, dict)) for value in data.values()):
        return _dumped(data)
    return "".join(text for key, value in data.items() for text in _entry(key, value))


def _entry(key: str, value: Any) -> Iterator[str]:
    """A key of the file and its value; a list of mappings item by item, since a table has many of them."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        yield _dumped({key: value}, flow=None if isinstance(value, (list, dict)) else False)
        return
    yield _dumped({key: None}, flow=False).removesuffix(" null\n") + "\n"
    for item in value:
        yield _row(item) or _dumped([item])


def _dumped(data: Any, flow: bool | None = None) -> str:
    return str(
        yaml.dump(
            data, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=WIDTH
        )
    )


def _row(item: dict[str, Any]) -> str | None:
    """What the dumper writes for a list's item of plain words and numbers, 20 times faster; None for others."""
    lines, line = [], "- {"
    for index, (key, value) in enumerate(item.items()):
        name, text = _word(key), _scalar(value)
        if name is None or text is None:
            return None
        if index and len(line) >= WIDTH:
            lines.append(f"{line},")
            line = f"  {name}: {text}"
        else:
            line += f", {name}: {text}" if index else f"{name}: {text}"
    return "\n".join([*lines, f"{line}}}\n"])


def _scalar(value: Any) -> str | None:
    """A value as the dumper writes it where it has no choice of a line; None where it may have."""
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    return str(value) if type(value) is int else None


@lru_cache(maxsize=10_000)
def _word(value: str) -> str | None:
    """A text without blanks, quoted as it must be."""
    text = _dumped([value], flow=True)[1:-2]
    return None if value.split() != [value] or text.startswith('"') else text
