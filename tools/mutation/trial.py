"""One mutant: its module is written into the copy of the tree, and tests run in a fork of this process.

The fork has the libraries imported and nothing of the planner, so that a mutant costs little more than its tests.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.mutation.mutants import Mutant

Outcome = Literal["killed", "survived", "timeout", "uncovered"]

LIBRARIES = (
    *(
        "coverage",
        "highspy",
        "jsonschema",
        "networkx",
        "numpy",
        "pulp",
        "pydantic",
        "pytest",
        "rich.console",
    ),
    *("rich.table", "scipy.interpolate", "scipy.optimize", "typer", "yaml"),
)
"""Imported once for all mutants; not Hypothesis, which pytest wants to import itself."""

COPIED = (
    "planner",
    "tests",
    "tools",
    "docs",
    "cluster_specs",
    "model_specs",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
"""What tests need of the tree."""

MEMORY_BYTES = 4 * 2**30
"""What the tests of one mutant may take: some mutants grow without end."""


@dataclass(frozen=True, slots=True)
class Room:
    """The copy of the tree in which mutants are tried."""

    root: Path

    @staticmethod
    def copied(source: Path, root: Path) -> Room:
        """A fresh copy, compiled: compiling all of it again for each mutant would take longer than the tests."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name in COPIED:
            if (source / name).is_dir():
                shutil.copytree(source / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source / name, root / name)
        for name in ("planner", "tests", "tools"):
            compileall.compile_dir(root / name, quiet=2)
        return Room(root)

    def outcome(self, tests: list[str], cpu_seconds: float) -> Outcome:
        """Run the tests on the tree as it is."""
        status = quietly(lambda: _tested(self.root, tests), cpu_seconds, self.root)
        if os.WIFSIGNALED(status):
            return "timeout"
        return "survived" if os.WEXITSTATUS(status) == 0 else "killed"

    def tried(self, mutant: Mutant, tests: tuple[list[str], list[str]], budget: float) -> Outcome:
        """Do the tests see the mutant? The second ones are asked where the first do not."""
        if not tests[0]:
            return "uncovered"
        path = self.root / mutant.path
        source, times = path.read_text(encoding="utf-8"), path.stat()
        try:
            path.write_text(mutant.code, encoding="utf-8")
            found = self.outcome(tests[0], 3 * budget + 10)
            if found == "survived" and tests[1]:
                found = self.outcome(tests[1], 3 * budget + 10)
            return found
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def warm() -> None:
    """Import what every fork needs."""
    for name in LIBRARIES:
        importlib.import_module(name)


def quietly(work: Callable[[], int], cpu_seconds: float, root: Path) -> int:
    """Status of a fork that does this work in the tree within these seconds; its output goes to ``last.log`` beside."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(work, cpu_seconds, root)
    end = time.monotonic() + 30 * cpu_seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # it sleeps: with its own children
    return os.waitpid(pid, 0)[1]


def _child(work: Callable[[], int], cpu_seconds: float, root: Path) -> None:
    code = 1
    try:
        os.setsid()
        limit = int(cpu_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 2))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        for name in [name for name in sys.modules if name.split(".")[0] in ("planner", "tests")]:
            del sys.modules[name]
        os.environ["PYTHONPATH"] = str(root)
        os.chdir(root)
        sys.path[:] = [str(root), *(entry for entry in sys.path if entry not in ("", str(Path.cwd())))]
        with (root.parent / "last.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(int(code))


def _tested(root: Path, tests: list[str]) -> int:
    import pytest

    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={root}", *tests])
