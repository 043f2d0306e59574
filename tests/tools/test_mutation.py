"""Which tests are tried on a mutant, and what their share tells."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")
pytest.importorskip("coverage")

from tools.mutation.__main__ import _kept, _table
from tools.mutation.covering import Covering

COVERING = Covering(
    lines={"a.py": {1: ("slow", "quick"), 2: ("other",), 3: ("long",)}},
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
    assert COVERING.tests_of("a.py", line, budget) == found
    assert COVERING.tests_of("b.py", line, budget) == ([], [])


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
