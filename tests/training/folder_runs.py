"""Runs several emitted folders in one set of ranks: ``ranks.run`` of this file on the folders.

Starting the ranks takes longer than training a tiny model, so they are started once. Each folder has its arguments
in ``arguments.json``; ``peak-RANK`` gets the memory of a process at its peak so far, beyond that before the folder.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from tests.training.folder_modules import train_of


def prepare() -> None:
    """Load what the folders have in common, for all ranks."""
    train_of(Path(sys.argv[1]))


def main() -> None:
    """Train in each folder; rank 0 prints the folder ahead of its losses."""
    train = None
    for folder in map(Path, sys.argv[1:]):
        started = train is not None
        train = train_of(folder)
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


if __name__ == "__main__":
    main()
