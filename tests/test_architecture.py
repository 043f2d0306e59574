"""Which part may import which, and what starting the command may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from planner.targets import NAMES, TARGETS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "planner"

HOMES: dict[str, tuple[str, ...]] = {
    "deepspeed": (
        "runtimes/deepspeed/example_divided.py",
        "runtimes/deepspeed/example_pipeline.py",
        "runtimes/deepspeed/example_tensor.py",
        "runtimes/deepspeed/train.py",
    ),
    "highspy": ("search/milp",),
    "jinja2": ("job/files.py", "report/page/__init__.py"),
    "matplotlib": ("report/validation.py",),
    "networkx": ("cluster/topology.py",),
    "pulp": ("search/milp",),
    "rich": ("report", "cli"),
    "scipy": (
        "cost/failures.py",
        "cost/measured_curves.py",
        "cost/state.py",
        "logs/losses.py",
        "logs/fits.py",
        "measure/poplar.py",
        "measured",
    ),
    "torch": (
        "measure",
        "runtimes/deepspeed/example_divided.py",
        "runtimes/deepspeed/example_pipeline.py",
        "runtimes/deepspeed/example_tensor.py",
        "runtimes/deepspeed/train.py",
        "runtimes/megatron/start_megatron.py",
        "runtimes/torch",
        "training",
    ),
    "typer": ("cli",),
}
"""The only places that may import a library."""
HEAVY = (
    "deepspeed",
    "highspy",
    "jinja2",
    "matplotlib",
    "networkx",
    "numpy",
    "pulp",
    "pydantic",
    "scipy",
    "torch",
    "yaml",
)
"""Libraries that starting the command must not import."""


def modules() -> Iterator[Path]:
    """Every module of the package."""
    return (path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts)


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[str]:
    """Dotted names of all that a module imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("library", sorted(HOMES))
def test_libraries_stay_at_home(library: str) -> None:
    """A library is imported in its places and nowhere else."""
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if any(name == library or name.startswith(f"{library}.") for name in imported(path))
    }
    assert {user for user in users if not user.startswith(HOMES[library])} == set()


LIBRARY = ("cli/calibrate.py", "measure/", "report/calibration.py", "report/doubts.py")
"""Where ``torch`` is the library: what is installed, and the version that a measurement was made with."""

KERNELS = ("measured/priors.py", "model/spec.py")
"""Where a name is that of a kernel set, some of which are called after the runtime that has them."""


def test_runtimes_are_named_in_their_rooms_alone() -> None:
    """Elsewhere a runtime is what its capabilities say, so that a new one touches its room and its registration."""
    quoting = set()
    for path in modules():
        inside = path.relative_to(PACKAGE).as_posix()
        # What runs on the nodes speaks to the libraries themselves.
        if inside.startswith((*(f"runtimes/{name}/" for name in NAMES), "targets.py", "training/")):
            continue
        kernel_sets = {name for row in TARGETS.values() for name in row.kernels}
        names = {"torch"} if inside.startswith(LIBRARY) else kernel_sets if inside in KERNELS else set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and node.value in set(NAMES) - names:
                quoting.add(f"{inside}:{node.lineno} {node.value}")
    assert quoting == set()


def test_private_names_stay_in_their_modules() -> None:
    """What begins with an underscore is imported nowhere."""
    borrowed = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {alias.name}"
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("planner")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert borrowed == []


def test_only_the_command_line_prints() -> None:
    """Nothing but planner/cli, and what is the program of a process, calls print or touches the process's streams."""
    printing = set()
    for path in modules():
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] in ("cli", "training") or inside.match("runtimes/*/train.py"):
            continue
        if inside.match("search/elsewhere.py"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.add(path.name)
            if isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr"):
                printing.add(path.name)
    assert printing == set()


def test_starting_the_command_imports_nothing_heavy() -> None:
    """`hetplan --help` answers at once: heavy libraries wait for the command that needs them."""
    code = f"import sys, planner.cli.app; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_import_contracts_hold() -> None:
    """The layers of pyproject.toml, which `make lint` checks every time."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


def public(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Public classes and functions of a module, and their public methods but torch's ``forward``."""
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and node.name != "forward"
        ):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node)


def test_all_that_is_public_is_documented() -> None:
    """Every module with code, and every public class and function, says what it is."""
    missing = []
    for path in modules():
        tree = parsed(path)
        found = [node for node in (tree, *public(tree)) if tree.body and not ast.get_docstring(node)]
        missing += [f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}" for node in found]
    assert missing == []


def test_the_version_is_written_once() -> None:
    """The package and its metadata agree."""
    from planner import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
