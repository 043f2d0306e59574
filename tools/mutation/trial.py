"""One mutant: its module is written into the copy of the tree, and tests run in a fork of this process.

The fork has the libraries imported and nothing of the planner, so that a mutant costs little more than its tests.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Literal

from tools.mutation.mutants import Mutant

Outcome = Literal["killed", "survived", "timeout", "uncovered"]

LIBRARIES = (
    *(
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
"""Imported once for all mutants."""

MEMORY_BYTES = 4 * 2**30
"""What the tests of one mutant may take: some mutants grow without end."""


def warm() -> None:
    """Import what every fork needs."""
    for name in LIBRARIES:
        importlib.import_module(name)


def tried(root: Path, mutant: Mutant, tests: tuple[list[str], list[str]], budget: float) -> Outcome:
    """Do the tests see the mutant? The second ones are asked where the first, which the budget is for, do not."""
    if not tests[0]:
        return "uncovered"
    path = root / mutant.path
    source, times = path.read_text(encoding="utf-8"), path.stat()
    try:
        path.write_text(mutant.code, encoding="utf-8")
        found = outcome(root, tests[0], 3 * budget + 20)
        if found == "survived" and tests[1]:
            found = outcome(root, tests[1], 30 * budget + 20)
        return found
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def outcome(root: Path, tests: list[str], cpu_seconds: float) -> Outcome:
    """Run the tests on the tree as it is."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(root, tests, cpu_seconds)
    status = _waited(pid, 30 * cpu_seconds)
    if os.WIFSIGNALED(status):
        return "timeout"
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def _child(root: Path, tests: list[str], cpu_seconds: float) -> None:
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
        sys.dont_write_bytecode = True
        os.environ.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1")
        os.chdir(root)
        sys.path[:] = [str(root), *(entry for entry in sys.path if entry not in ("", str(Path.cwd())))]
        import pytest

        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            code = pytest.main(
                ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={root}", *tests]
            )
    finally:
        os._exit(int(code))


def _waited(pid: int, seconds: float) -> int:
    """Exit status; a child that sleeps for too long is ended with its own children."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]
