"""Modules that are run when something of them is asked for."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from planner.lazy import lazy_module
{first}
module = lazy_module("planner.cost.stragglers")
print("numpy" in sys.modules, module is sys.modules["planner.cost.stragglers"])
from planner.cost import stragglers
print(stragglers is module, module.stretch(0.0, 4, 0) == 1.0, "numpy" in sys.modules)
"""


def said(first: str) -> list[str]:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(first=first)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_lazy_module_runs_at_the_first_look() -> None:
    """And is the module that others import."""
    assert said("") == ["False True", "True True True"]


def test_a_module_that_has_run_is_the_same() -> None:
    """Whoever imported it."""
    assert said("import planner.cost.stragglers") == ["True True", "True True True"]
