"""The wheel, in an empty folder far from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HETPLAN = (sys.executable, "-c", "from planner.cli.start import main; main()")


@pytest.mark.slow
def test_the_first_commands_of_the_readme_work(tmp_path: Path) -> None:
    """Examples are copied, a plan is found, its page and its launch files are written."""
    built, installed, empty = tmp_path / "built", tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(source)],
        check=True,
        capture_output=True,
    )
    (wheel,) = built.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True)

    def hetplan(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run(
            [*HETPLAN, *words], cwd=empty, env=environment, capture_output=True, encoding="utf-8", check=True
        )
        return done.stdout

    where = subprocess.run(
        [sys.executable, "-c", "import planner; print(planner.__file__)"],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert where.stdout.startswith(str(installed))
    assert all((installed / package / "py.typed").is_file() for package in ("hetplan", "planner"))
    hetplan("examples", "--copy", ".")
    files = ("cluster_specs/lab.yaml", "model_specs/gpt2_345m.yaml")
    assert hetplan("search", *files, "-o", "plan.yaml").splitlines()[-1].startswith("gpt2_345m on lab: ")
    hetplan("report", "plan.yaml", "-o", "report.html")
    assert "<h1>gpt2_345m on lab</h1>" in (empty / "report.html").read_text(encoding="utf-8")
    hetplan("emit", "plan.yaml", "-o", "run")
    assert (empty / "run" / "launch.sh").is_file()
