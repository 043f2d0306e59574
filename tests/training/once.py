"""A long preparation is done by one of pytest's workers, the others use what it left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, prepare: Callable[[Path], None]) -> Path:
    """The folder that ``prepare`` has filled, in this worker or in another of the same run."""
    base = factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = common / name, common / f"{name}.done"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()
            prepare(folder)
            done.touch()
    return folder
