"""Which tests are tried on a mutant, and what their share tells."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")
pytest.importorskip("coverage")

from tools.mutation.__main__ import _kept, _table
from tools.mutation.contexts import Noted
from tools.mutation.covering import TABLES, Covering, recorded
from tools.mutation.mutants import sample
from tools.mutation.trial import Room

COVERING = Covering(
    lines={"planner/a.py": {1: ("slow", "quick"), 2: ("other",), 3: ("long",)}},
    seconds={"slow": 3.0, "quick": 1.0, "other": 2.0, "long": 90.0},
)


@pytest.mark.parametrize(
    ("line", "budget", "found"),
    [
        (1, 6.0, (["quick", "slow"], ["other"])),
        (1, 3.5, (["quick"], ["slow"])),
        (3, 6.0, (["long"], ["quick", "other", "slow"])),
        (9, 6.0, (["quick", "other", "slow"], [])),
    ],
)
def test_the_quickest_tests_of_a_line_are_first(
    line: int, budget: float, found: tuple[list[str], list[str]]
) -> None:
    """One at least, and of its module behind them: caches and imports hide lines from all tests but the first."""
    assert COVERING.tests_of("planner/a.py", line, budget) == found
    assert COVERING.tests_of("planner/b.py", line, budget) == ([], [])


def test_each_row_of_a_table_is_a_test_of_its_own() -> None:
    """Of other functions the second parameters wait until each function had its first."""
    row, usual = f"{TABLES[0]}::test", "tests/cost/test_a.py::test"
    seconds = {f"{row}[a]": 2.0, f"{row}[b]": 3.0, f"{usual}[a]": 1.0, f"{usual}[b]": 1.5}
    covering = Covering(lines={"planner/a.py": {1: tuple(seconds)}}, seconds=seconds)
    found, _ = covering.tests_of("planner/a.py", 1, 9.0)
    assert found == [f"{usual}[a]", f"{row}[a]", f"{row}[b]", f"{usual}[b]"]


def test_every_mutant_is_python(tmp_path: Path) -> None:
    """Of a condition that assigns, whose negation is none, others are tried."""
    path = tmp_path / "planner" / "cost" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text("def f(a):\n    if b := a:\n        return b + 1\n    return 0\n")
    found = [mutant for seed in range(8) for mutant in sample(tmp_path, "cost", 9, seed)]
    assert {mutant.line for mutant in found} >= {3, 4}
    for mutant in found:
        compile(mutant.code, mutant.place, "exec")


def test_a_module_that_only_imports_or_other_processes_run() -> None:
    """Tests of its room: of its own file first, then those of its folder; behind those that ran a line of it too."""
    seconds = {
        "tests/runtimes/test_capabilities.py::test": 1.0,
        "tests/cost/test_b.py::test[a/b]": 1.0,
        "tests/runtimes/torch/test_grid.py::test": 3.0,
        "tests/runtimes/torch/test_train.py::test": 4.0,
        "tests/runtimes/torch/test_train.py::test_longer": 5.0,
    }
    near = ["tests/runtimes/torch/test_train.py::test_longer", "tests/runtimes/torch/test_train.py::test"]
    order = [
        *near[::-1],
        "tests/runtimes/torch/test_grid.py::test",
        "tests/runtimes/test_capabilities.py::test",
    ]
    path = "planner/runtimes/torch/train.py"
    assert Covering({}, seconds).tests_of(path, 3, 20.0) == (order, [])
    assert Covering({path: {4: (order[2],)}}, seconds).tests_of(path, 3, 12.0) == (
        [order[2]],
        [order[0], order[1], order[3]],
    )


def test_all_tests_of_a_file_share_its_fixtures() -> None:
    """The first to ask for one waits for it, whichever is first."""
    noted = Noted(seconds={"a": 7.0, "b": 2.0}, setups={"a": 5.0, "b": 1.0})
    assert noted.shared() == {"a": 5.0, "b": 4.0}


def test_the_share_has_an_interval() -> None:
    """Wilson's for 10 of 100; equivalent mutants are not counted."""
    rows = Counter({("cost", "killed"): 88, ("cost", "timeout"): 2, ("cost", "survived"): 9})
    rows |= Counter({("cost", "uncovered"): 1, ("cost", "equivalent"): 50})
    assert "10.0% (5.5% to 17.4%)" in _table(rows, ["cost"]).splitlines()[-1]


def test_what_survived_is_tried_again_on_other_tests(tmp_path: Path) -> None:
    """What is killed stays so."""
    path = tmp_path / "outcomes.jsonl"
    rows = [
        ("a", "killed", "old"),
        ("b", "survived", "old"),
        ("c", "uncovered", "new"),
        ("b", "killed", "new"),
    ]
    path.write_text(
        "".join(
            json.dumps({"place": place, "outcome": outcome, "tests": tests}) + "\n"
            for place, outcome, tests in rows
        )
    )
    assert dict(_kept(path, "new")) == {"a": "killed", "b": "killed", "c": "uncovered"}
    assert dict(_kept(tmp_path / "none", "new")) == {}


def test_lines_are_followed_to_where_they_are(tmp_path: Path) -> None:
    """What was recorded of another state of the code needs no second run of the tests."""
    text = "one = 1\n\n\ndef two():\n    return 2\n"
    root, before = tmp_path / "tree", tmp_path / "0123"
    test = root / "tests" / "cost" / "test_a.py"
    for path, content in (
        (test, "def test_two(): ...\n"),
        (root / "planner" / "a.py", "zero = 0\n" + text.replace("= 1", "= 3")),
        (before / "planner" / "a.py", text),
        (before / "planner" / "gone.py", text),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    digest = hashlib.sha256(test.read_bytes()).hexdigest()[:12]
    (before / "coverage").mkdir()
    (before / "coverage" / f"tests.cost.test_a.py-{digest}.json").write_text(
        json.dumps(
            {
                "seconds": {"t": 1.5},
                "lines": {"planner/a.py": {1: ["t"], 5: ["t"]}, "planner/gone.py": {1: ["t"]}},
            }
        )
    )
    for _ in range(2):
        found = recorded(Room(root), tmp_path / "4567", ["cost"])
        assert found.lines["planner/a.py"] == {6: ("t",)}
        assert found.seconds == {"t": 1.5}
