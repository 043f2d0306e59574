"""A short run of the fuzzer, and that it sees what it looks for."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import CLUSTER, ROOT
from tests.fuzz.damage import MARK, damaged
from tests.fuzz.inputs import Case, Outcome, faults, good_files, make, ran


@pytest.mark.parametrize(("cases", "seed"), [(2, 20), pytest.param(150, 21, marks=pytest.mark.slow)])
def test_damaged_inputs_end_in_an_answer_or_a_clear_error(cases: int, seed: int) -> None:
    """Some cases of one seed; `make fuzz` tries more."""
    command = [sys.executable, "-m", "tests.fuzz.inputs", "--cases", str(cases), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_is_a_function_of_its_seed(tmp_path: Path) -> None:
    """So that one that failed can be tried again."""
    made = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        case = make(folder, random.Random("1:7"), good_files(tmp_path))
        made.append(sorted((path.name, path.read_bytes()) for path in case.files))
    assert made[0] == made[1]
    assert any(damaged(CLUSTER, random.Random(seed)) != CLUSTER.encode() for seed in range(3))


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (Outcome(1, "", "boom"), "exit code 1: boom"),
        (Outcome(7, "", ""), "exit code 7"),
        (Outcome(None, "", "", "died"), "died"),
        (Outcome(2, "", ""), "no error line"),
        (Outcome(2, "", "error: something is wrong\n"), "the error names no file"),
        (Outcome(2, "", "error: c.yaml:1: \x1b[31m\n"), r"'\x1b' on stderr"),
        (Outcome(2, "", f"error: c.yaml:1: a\n{MARK}\n"), "a value began a line of stderr"),
        (Outcome(0, "\u2028", ""), r"'\u2028' on stdout"),
        (Outcome(0, '{"step_seconds": NaN}', ""), "no strict JSON"),
        (Outcome(0, '{"step_seconds": 0}', ""), "step_seconds is 0"),
    ],
)
def test_what_is_wrong_is_seen(tmp_path: Path, seen: Outcome, fault: str) -> None:
    """Each kind of fault by its own words."""
    case = Case(tmp_path, ("check", "c.yaml", "--json"), frozenset({tmp_path / "c.yaml"}), frozenset())
    assert any(found.startswith(fault) for found in faults(case, seen))


def test_what_is_left_behind_is_seen(tmp_path: Path) -> None:
    """A file beside the inputs, and an output without an answer."""
    for name in ("c.yaml", ".new.part", "new"):
        (tmp_path / name).touch()
    case = Case(tmp_path, ("emit",), frozenset({tmp_path / "c.yaml"}), frozenset({tmp_path / "new"}))
    assert list(faults(case, Outcome(0, "", ""))) == ["left behind with exit code 0: .new.part"]
    refused = Outcome(2, "", "error: c.yaml: no\n")
    assert list(faults(case, refused)) == ["left behind with exit code 2: .new.part, new"]


def test_a_case_runs_the_command(tmp_path: Path) -> None:
    """With its exit code and both of its streams."""
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "c.yaml").write_text(CLUSTER)
    good = Case(folder, ("check", "c.yaml"), frozenset({folder / "c.yaml"}), frozenset())
    seen = ran(good, tmp_path)
    assert (seen.code, seen.err, list(faults(good, seen))) == (0, "", [])
    assert seen.out.startswith("Inputs")
