"""What differs between the inputs that a plan was made for and those at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.cluster.spec import ClusterSpec
from planner.files.fields import written
from planner.model.spec import ModelSpec
from planner.plan.file import cluster_digest, cluster_part, model_digest

SHOWN = 3
"""Differences that a message names."""
LONGEST = 60
"""Letters of a value that a message shows."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field with two values; None where a side lacks it."""

    field: str
    """Dotted path; pools by name."""
    planned: Any
    given: Any


def cluster_differences(planned: ClusterSpec, given: ClusterSpec) -> tuple[Difference, ...]:
    """Fields that differ; none when the fingerprints are equal."""
    if cluster_digest(planned) == cluster_digest(given):
        return ()
    return tuple(_differences("", cluster_part(planned), cluster_part(given)))


def model_differences(planned: ModelSpec, given: ModelSpec) -> tuple[Difference, ...]:
    """Fields that differ; none when the fingerprints are equal."""
    if model_digest(planned) == model_digest(given):
        return ()
    return tuple(_differences("", written(planned), written(given)))


def told(differences: tuple[Difference, ...], name: str) -> str:
    """The first differences in words; ``name`` is the file at hand."""
    first = "; ".join(
        f"{each.field} is {_value(each.planned)} in the plan, {_value(each.given)} in {name}"
        for each in differences[:SHOWN]
    )
    more = len(differences) - SHOWN
    return f"{first}; and {more} more" if more > 0 else first


def _value(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _differences(path: str, planned: Any, given: Any) -> Iterator[Difference]:
    """Leaves that differ, in the order of the plan's fields."""
    left, right = _children(planned), _children(given)
    if left is None or right is None:
        if planned != given:
            yield Difference(path, planned, given)
        return
    for key in dict.fromkeys((*left, *right)):
        yield from _differences(_joined(path, key), left.get(key), right.get(key))


def _joined(path: str, key: str) -> str:
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def _children(value: Any) -> dict[str, Any] | None:
    """Parts of a mapping by key, of a list of mappings by name or index; None for what is compared whole."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return {f"[{entry.get('name', index)}]": entry for index, entry in enumerate(value)}
    return None
