"""Names of files that the system takes and text cannot hold, and names that no file can have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from planner.calibration.file import load_calibration
from planner.cli.output import require_writable
from planner.errors import OutputError
from tests.calibration.test_tables import LAYERS
from tests.cli.running import Command, write_plan

BAD = os.fsdecode(b"n\xff")
"""As Python has a name that is not UTF-8."""


def test_a_launch_folder_may_have_any_name(hetplan: Command, files: Path) -> None:
    """It need not be text; nothing is left beside it."""
    write_plan(files / "plan.yaml")
    done = hetplan("emit", "plan.yaml", "-o", BAD)
    assert (done.code, done.err) == (0, "")
    again = hetplan("emit", "plan.yaml", "-o", BAD, "--force", "--launcher", "slurm")
    assert (again.code, again.err) == (0, "")
    assert (files / BAD / "job.sbatch").is_file()
    assert not [path for path in files.iterdir() if "hetplan" in path.name]


@pytest.mark.parametrize("words", [("--script", f"{BAD}.py"), ("--script", "mine.py", "--", "--lr", BAD)])
def test_launch_files_are_text(hetplan: Command, files: Path, words: tuple[str, ...]) -> None:
    """A script or an argument that is none is refused, and nothing is written."""
    write_plan(files / "plan.yaml")
    (files / "mine.py").write_text("")
    (files / f"{BAD}.py").write_text("")
    done = hetplan("emit", "plan.yaml", "-o", "run", *words)
    assert (done.code, done.out) == (2, "")
    assert "n\\udcff" in done.err
    assert "is not UTF-8 text, as launch files are" in done.err
    assert not (files / "run").exists()


def test_a_calibration_names_its_tables_in_text(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With escapes for what a file cannot hold."""
    (files / f"{BAD}.csv").write_text(LAYERS)
    monkeypatch.setattr("sys.argv", ["hetplan", "calibrate", "merge", f"{BAD}.yaml"])
    assert hetplan("calibrate", "import", "--layers", f"{BAD}.csv", "-o", f"{BAD}.yaml").code == 0
    assert load_calibration(files / f"{BAD}.yaml").provenance["layers"] == "n\\udcff.csv"
    shutil.copy(files / f"{BAD}.yaml", files / "other.yaml")
    assert hetplan("calibrate", "merge", f"{BAD}.yaml", "other.yaml", "-o", "merged.yaml").code == 0
    assert (
        load_calibration(files / "merged.yaml").provenance["command"]
        == "hetplan calibrate merge n\\udcff.yaml"
    )


@pytest.mark.parametrize("name", ["x" * 5000, "/".join(["d" * 200] * 25)])
def test_no_file_can_have_such_a_name(hetplan: Command, files: Path, name: str) -> None:
    """It is too long: said before anything else is done, and never a bug."""
    write_plan(files / "plan.yaml")
    with pytest.raises(OutputError, match="cannot be written: File name too long"):
        require_writable(Path(name))
    for words in (
        ("predict", "cluster.yaml", "model.yaml", "short.yaml", "-o", name),
        ("emit", "plan.yaml", "-o", name),
        ("emit", "plan.yaml", "-o", "run", "--script", name),
        ("init", ".", "--force", "--gpu", "T4", "--model", name),
        ("probe", "--from", name),
    ):
        done = hetplan(*words)
        assert (done.code, done.out) == (2, "")
        assert name in done.err
