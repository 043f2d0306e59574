"""Runs several emitted folders in one set of ranks: ``torchrun folder_runs.py FOLDER ...``.

Starting the ranks takes longer than training a tiny model, so they are started once. Each folder has its arguments
in ``arguments.json``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Train in each folder; rank 0 prints the folder ahead of its losses."""
    train = None
    for folder in map(Path, sys.argv[1:]):
        started = train is not None
        train = fresh(folder)
        if not started:
            train.start_processes()
        print(f"folder {folder.name}", flush=True)  # noqa: T201
        arguments = json.loads((folder / "arguments.json").read_text())
        train.run(train.parse_options([*arguments, "--save", str(folder / "saved")]))
    assert train is not None
    train.leave(on_processor=True)


def fresh(folder: Path) -> ModuleType:
    """The folder's own ``train.py`` with its own neighbours."""
    for name in [path.stem for path in folder.glob("*.py")]:
        sys.modules.pop(name, None)
    sys.path[0] = str(folder)
    importlib.invalidate_caches()
    return importlib.import_module("train")


if __name__ == "__main__":
    main()
