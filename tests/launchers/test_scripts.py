"""Every emitted script is sound, whatever the launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.launchers.registry import LAUNCHERS
from tests.launchers.stand_ins import folder_of
from tests.launchers.test_engines import one_pool

SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def folder_by(tmp_path: Path, launcher: str) -> Path:
    """A folder that the launcher can start."""
    return folder_of(tmp_path, launcher, *(one_pool() if launcher in ("skypilot", "accelerate") else ()))


def scripts(folder: Path) -> list[str]:
    """Paths of all shell scripts."""
    return [str(path) for path in sorted(folder.rglob("*")) if path.suffix in (".sh", ".sbatch")]


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_scripts_parse(tmp_path: Path, launcher: str) -> None:
    """Bash reads them."""
    found = scripts(folder_by(tmp_path, launcher))
    assert {Path(path).name for path in found} >= {"launch.sh", "preflight.sh"}
    for path in found:
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_shellcheck_is_content(tmp_path: Path, launcher: str) -> None:
    """No warning of shellcheck; the files of env/ are sourced and have no first line."""
    found = [path for path in scripts(folder_by(tmp_path, launcher)) if "/env/" not in path]
    done = subprocess.run([str(SHELLCHECK), *found], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
