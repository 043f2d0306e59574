"""What the tests of several modules train on four ranks is trained in one start: to import torch takes as long."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.training.once import once


@pytest.fixture(scope="session")
def trained_on_four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained folders of all modules, and their log.

    Each module that needs it has ``on_four_ranks``, which writes the folders of its tests that are going to run.
    """
    return once(tmp_path_factory, "torch on four ranks", partial(train_all, request.session.items))


def train_all(items: list[pytest.Item], root: Path) -> None:
    """One start for the modules of all tests that need one."""
    from tests.runtimes.torch.test_hetplan_torch import run_all

    tests = [item for item in items if isinstance(item, pytest.Function)]
    modules = dict.fromkeys(test.module for test in tests if "trained_on_four" in test.fixturenames)
    run_all([folder for module in modules for folder in module.on_four_ranks(items, root)], root / "log")
