"""The oldest versions that are allowed, and the lock file."""

from __future__ import annotations

import re
import tomllib

import pytest

from tools.supply.bounds import PYPROJECT, oldest

LOCK = PYPROJECT.with_name("requirements.lock").read_text(encoding="utf-8")


def test_the_lowest_version_of_a_range() -> None:
    """What a range begins with; a dependency without one is an error."""
    assert list(oldest('[project]\ndependencies = ["a-b>=1.2,<3", "c>=4"]')) == ["a-b==1.2", "c==4"]
    with pytest.raises(ValueError, match="c: expected a lowest version"):
        list(oldest('[project]\ndependencies = ["c"]'))


def test_every_dependency_is_locked() -> None:
    """With its version and nothing else: no index, no host; torch and DeepSpeed are pinned in the Makefile."""
    lines = [line for line in LOCK.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
    locked = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split("[<>=]", requirement)[0].lower() for requirement in wanted}
    assert names <= locked
    assert not {"torch", "deepspeed", "hetplan"} & locked
