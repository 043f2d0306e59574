"""Loads the programs of emitted folders, many of them in one process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

_LOADED: dict[str, bytes] = {}
"""What is in the files of the last folder, by the names of their modules."""


def train_of(folder: Path) -> ModuleType:
    """The folder's own ``train.py``, run anew, with the folder's own neighbours.

    Neighbours are run anew only where a file of the folder is unlike those of the folder before: to make their classes
    takes longer than a small step. They are told where they are now.
    """
    sources = {path.stem: path.read_bytes() for path in folder.glob("*.py")}
    if sources != _LOADED:
        for name in _LOADED:
            sys.modules.pop(name, None)
        _LOADED.clear()
        _LOADED.update(sources)
    for name in sources:
        if name in sys.modules:
            sys.modules[name].__file__ = str(folder / f"{name}.py")
    sys.modules.pop("train", None)
    sys.path[0] = str(folder)
    importlib.invalidate_caches()
    return importlib.import_module("train")
