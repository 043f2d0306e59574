"""Mutants: small changes of the planner's code, by the operators of cosmic-ray, on a sample of its lines.

The sessions of cosmic-ray and of mutmut try every mutant with one command for all, which would take days here; so the
operators are cosmic-ray's and the choice of mutants and of tests is ours.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

PACKAGES: dict[str, tuple[str, ...]] = {
    "cost": ("planner/cost/*.py",),
    "plan": ("planner/plan/*.py", "planner/dims/*.py", "planner/cluster/topology.py"),
    "emit": tuple(f"planner/{room}/*.py" for room in ("emit", "job", "launchers", "runtimes")),
    "search": ("planner/search/*.py",),
}
"""What is mutated, by the name that the report gives it; a star stands for folders too."""

LEFT_OUT = ("_Is", "Is_", "IsNot_", "Bit", "Shift", "Pow", "Invert", "UAdd", "Decorator")
"""Operators that make equal code of ours, such as == from is, or code that any test ends with a TypeError."""

EQUIVALENTS = Path(__file__).with_name("equivalents.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed line."""

    package: str
    path: str
    """Relative to the repository."""
    line: int
    before: str
    """The line without its indentation."""
    after: str
    code: str
    """The whole module, changed."""

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.path}:{self.line}  {self.before}  ->  {self.after}"


def modules(root: Path, package: str) -> list[Path]:
    """The modules of a package."""
    paths = sorted(root.glob("planner/**/*.py"))
    return [
        path
        for path in paths
        if any(fnmatch(path.relative_to(root).as_posix(), one) for one in PACKAGES[package])
    ]


def sample(root: Path, package: str, number: int, seed: int) -> Iterator[Mutant]:
    """That many mutants of a package, each on a line of its own; lines are equally likely."""
    rng = random.Random(f"{seed} {package}")
    lines = [(path, line) for path in modules(root, package) for line in sorted(_code_lines(path))]
    rng.shuffle(lines)
    found = 0
    for path, line in lines:
        if found == number:
            return
        mutant = _mutant(root, package, path, line, rng)
        if mutant is not None:
            found += 1
            yield mutant


def _code_lines(path: Path) -> set[int]:
    """Lines that hold operators, numbers or words that an operator of cosmic-ray might change, of code that runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = (
        ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.Constant | ast.For | ast.Break | ast.Continue
    )
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, wanted | ast.ExceptHandler | ast.If)}
    return lines - _silent_lines(tree)


def _silent_lines(tree: ast.Module) -> set[int]:
    """Lines of types, decorators and docstrings: changing them changes nothing that runs, or what tools check."""
    found: set[int] = set()
    for node in ast.walk(tree):
        silent: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, ast.arg):
            silent = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            silent = [*node.decorator_list, getattr(node, "returns", None)]
        elif _says_nothing(node):
            silent = [node]
        for part in silent:
            if part is not None:
                found |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return found


def _says_nothing(node: ast.AST) -> TypeGuard[ast.stmt]:
    """Docstrings, fields without a default, and imports for types."""
    return (
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.AnnAssign) and node.value is None)
        or (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    )


@cache
def _operators() -> dict[str, Any]:
    names = (name for name in plugins.operator_names() if not any(word in name for word in LEFT_OUT))
    found = {name: plugins.get_operator(name) for name in names}
    return {name: operator() for name, operator in found.items() if not operator.arguments()}


@cache
def _nodes(path: Path) -> tuple[Any, ...]:
    return tuple(ast_nodes(get_ast(path.read_text(encoding="utf-8"))))


def _mutant(root: Path, package: str, path: Path, line: int, rng: random.Random) -> Mutant | None:
    """A random change at a random place of the line."""
    places: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for node in _nodes(path):
        if node.start_pos[0] <= line <= node.end_pos[0]:
            for name, operator in _operators().items():
                for index, (start, _) in enumerate(operator.mutation_positions(node)):
                    if start[0] == line:
                        places.setdefault(start, []).append((name, index))
    source = path.read_text(encoding="utf-8")
    for place in rng.sample(sorted(places), len(places)):
        name, index = rng.choice(places[place])
        code = mutate_code(source, _operators()[name], _occurrence(path, name, place, index))
        if code is None or _dumped(code) in (None, _dumped(source)):
            continue
        changed = [
            (number, before.strip(), after.strip())
            for number, (before, after) in enumerate(
                zip(source.split("\n"), code.split("\n"), strict=False), 1
            )
            if before != after
        ]
        number, before, after = changed[0]
        if before.replace("strict=True", "strict=False") == after:
            continue
        name = path.relative_to(root).as_posix()
        return Mutant(package=package, path=name, line=number, before=before, after=after, code=code)
    return None


def _dumped(code: str) -> str | None:
    """The tree of a module as text; None for what is no Python, as ``not`` before an assignment expression."""
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


def _occurrence(path: Path, name: str, place: tuple[int, int], index: int) -> int:
    """Number of a place among all that the operator could change in the module, as cosmic-ray counts them."""
    count = 0
    for node in _nodes(path):
        for own, (start, _) in enumerate(_operators()[name].mutation_positions(node)):
            if start == place and own == index:
                return count
            count += 1
    raise AssertionError(f"{name} does not change {path}:{place}")


def equivalents() -> dict[tuple[str, str, str], str]:
    """(path, line before, line after) of mutants that no test can tell from the code, each with its reason."""
    entries: Sequence[dict[str, str]] = yaml.safe_load(EQUIVALENTS.read_text(encoding="utf-8")) or []
    return {(entry["path"], entry["before"], entry["after"]): entry["why"] for entry in entries}
