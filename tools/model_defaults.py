"""Defaults of the installed transformers, of the keys that hetplan reads: ``python -m tools.model_defaults``."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from planner.model.huggingface.config import supported
from planner.model.huggingface.defaults import TABLE
from planner.model.huggingface.families import EXPERT_COUNTS, EXPERT_PICKS, SHARED_COUNTS
from planner.model.huggingface.heads import DEFAULT_LABELS

SYNONYMS = {*EXPERT_COUNTS, *EXPERT_PICKS, *SHARED_COUNTS}
"""Names that are read for each other of any type."""


def _read() -> set[str]:
    """Words that stand in the code which reads configurations."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in TABLE.parent.glob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {node.value for node in nodes if isinstance(node.value, str)} - {"architectures", "model_type"}


def _classes() -> Iterator[tuple[str, Any]]:
    """(``model_type``, class) of every configuration and of those inside it."""
    read = {*supported(), *_read()}
    waiting = [(kind, CONFIG_MAPPING[kind]) for kind in CONFIG_MAPPING if kind in read]
    seen: set[str] = set()
    while waiting:
        kind, made = waiting.pop(0)
        if not kind or kind in seen or not dataclasses.is_dataclass(made):
            continue
        seen.add(kind)
        yield kind, made
        inside = [each for each in getattr(made, "sub_configs", {}).values() if hasattr(each, "model_type")]
        waiting += [(each.model_type, each) for each in inside]


def _built(kind: str) -> Iterator[str]:
    """Names of the classes by which transformers builds a type."""
    for name in dir(modeling_auto):
        if name.endswith("MAPPING_NAMES"):
            given = getattr(modeling_auto, name).get(kind, ())
            yield from ((given,) if isinstance(given, str) else given)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(each) for each in value)
    return isinstance(value, bool | int | float | str)


def _values(made: Any, keys: set[str]) -> dict[str, Any]:
    values = {}
    for field in dataclasses.fields(made):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.name in keys and _plain(value) and (field.name, value) != ("is_encoder_decoder", False):
            values[field.name] = value
    return {**_labels(made), **_positions(made), **values}


def _positions(made: Any) -> dict[str, Any]:
    """Rotary positions that a type has where nobody says them: the base, the share, and how they are scaled."""
    try:
        whole = getattr(made(), "rope_parameters", None) or {}
    except (StrictDataclassError, TypeError, ValueError):
        return {}  # as above
    given, narrow = whole.get("full_attention") or whole, whole.get("sliding_attention") or {}
    found = {key: given[key] for key in ("rope_theta", "partial_rotary_factor") if key in given}
    if "rope_theta" in narrow and given is not whole:
        found["rope_local_base_freq"] = narrow["rope_theta"]
    if given.get("rope_type", "default") != "default":
        found["rope_parameters"] = {key: value for key, value in whole.items() if key not in found}
    return found


def _labels(made: Any) -> dict[str, int]:
    """Labels that a type sets as it is built where nobody names any, unless they are as many as usual."""
    try:
        count = made().num_labels
    except (StrictDataclassError, ValueError):
        return {}  # transformers has no default of such a type
    return {} if count in (None, DEFAULT_LABELS) else {"num_labels": count}


def table() -> dict[str, dict[str, Any]]:
    """By type how its classes begin, the other names of a key, and defaults."""
    keys, classes, values, names = _read(), {}, {}, {}
    for kind, made in sorted(_classes()):
        values[kind] = _values(made, keys)
        begins = made.__name__.removesuffix("Config").removesuffix("Text")
        # Some types are built by the classes of others.
        if all(name.lower().startswith(begins.lower()) for name in _built(kind)):
            classes[kind] = begins
        own = {field.name for field in dataclasses.fields(made)} | SYNONYMS
        others = {other: key for other, key in made.attribute_map.items() if key in keys and other not in own}
        if others:
            names[kind] = others
    return {"classes": classes, "names": names, "values": values}


def main() -> None:
    """Write the table, a line for each type."""
    parts = []
    for name, kinds in table().items():
        lines = [f'  "{kind}": {json.dumps(given, sort_keys=True)}' for kind, given in kinds.items()]
        parts.append(f' "{name}": {{\n' + ",\n".join(lines) + "\n }")
    TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
