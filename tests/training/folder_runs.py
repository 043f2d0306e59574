"""Runs several emitted folders in one set of ranks: ``ranks.run`` of this file on the folders.

Starting the ranks takes longer than training a tiny model, so they are started once. Each folder has its arguments
in ``arguments.json``; ``peak-RANK`` gets the memory of a process at its peak so far, beyond that before the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
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
        before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        train.run(train.parse_options([*arguments, "--save", str(folder / "saved")]))
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (folder / f"peak-{os.environ['RANK']}").write_text(str(peak - before))
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
