"""A long preparation is done by one of pytest's workers, for the tests that run; the others use what it left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def asked(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """Values of a parameter in the tests of the module that are going to run, each once."""
    values = {
        item.callspec.id: item.callspec.params[name]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and _has(item, name)
    }
    return list(values.values())


def _has(item: pytest.Function, name: str) -> bool:
    return hasattr(item, "callspec") and name in item.callspec.params
