"""Plain data as YAML text: deterministic, one line for each innermost list or mapping."""

from __future__ import annotations

import re
from typing import Any

import yaml

from planner.spec.yaml_nodes import FLOAT
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
# Our reader follows YAML 1.2, the dumper 1.1: text such as 1e9 or 08 that reads as a number is quoted.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{FLOAT.pattern})$"), list("-+.0123456789")
)


def dump(data: dict[str, Any]) -> str:
    """The mapping as YAML, keys in their order."""
    return str(
        yaml.dump(
            data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=WIDTH
        )
    )
