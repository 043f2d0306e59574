"""What a class says of its own fields: their docstrings and labels, written beside the field and nowhere else."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Label:
    """How people read of a field; stands in ``Annotated[float, Label("gradient sync")]``."""

    text: str
    """In sentences and in rows of tables."""
    short: str = ""
    """As heading of a narrow column, where it is another."""

    @property
    def heading(self) -> str:
        """As heading of a column: a line for each word."""
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
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__.startswith("planner."):
            found |= _own(owner)
    return found


def _own(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        text = None
        if isinstance(node, ast.FunctionDef):
            text, name = ast.get_docstring(node), node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
        if text:
            found[name] = inspect.cleandoc(text)
    return found


def sentence(text: str) -> str:
    """The first line of a docstring as part of a sentence: ``collectives inside replicas``."""
    first = text.splitlines()[0].rstrip(".")
    return first if first[1:2].isupper() else first[:1].lower() + first[1:]
