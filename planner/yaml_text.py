"""Plain data as YAML text: deterministic, one line for each innermost list or mapping."""

from __future__ import annotations

import re
from typing import Any

import yaml

from planner.spec.yaml_nodes import FLOAT

WIDTH = 110


class Lines(list[str]):
    """A list of sentences, written one below the other."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _sentences(dumper: yaml.SafeDumper, lines: Lines) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", lines, flow_style=False)


_Dumper.add_representer(Lines, _sentences)
# The dumper follows YAML 1.1, our reader 1.2 and OmegaConf neither: text such as 1e9, 08 or 1_0e3 that one of them
# reads as a number is quoted.
_NUMBER = re.compile(rf"^(?:{FLOAT.pattern}|[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?)$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def dump(data: dict[str, Any]) -> str:
    """The mapping as YAML, keys in their order."""
    return str(
        yaml.dump(
            data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=WIDTH
        )
    )
