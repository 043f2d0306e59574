"""A file of a launch folder, and the source files that are copied into one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class EmittedFile:
    """One file of a launch folder."""

    path: str
    """Path inside the folder, with forward slashes."""
    text: str
    executable: bool = False


RUNTIME_NAMES = {
    "planner.runtime.batches": "hetplan_runtime",
    "planner.runtime.example_model": "example_model",
    "planner.runtime.example_data": "example_data",
    "planner.runtime.example_run": "example_run",
    "planner.runtime.example_stage": "example_stage",
    "planner.runtime.example_tensor": "example_tensor",
    "planner.runtime.step_log": "step_log",
    "planner.runtime.torch_native": "hetplan_torch",
    "planner.runtime.torch_pipeline": "hetplan_pipeline",
}
"""Modules of the runtime and what they are called in a launch folder."""


def runtime_file(module: str, path: str) -> EmittedFile:
    """A module of planner.runtime as a file of the folder, its imports pointing to its new neighbours."""
    text = resources.files("planner.runtime").joinpath(f"{module}.py").read_text(encoding="utf-8")
    for inside, outside in RUNTIME_NAMES.items():
        text = text.replace(inside, outside)
    return EmittedFile(path, text)
