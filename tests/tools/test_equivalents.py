"""The list of changes that no test can see is of the code as it is."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_every_entry_is_of_a_line_that_is_there() -> None:
    """Another line of the code may be one that a test can see."""
    entries = yaml.safe_load((ROOT / "tools" / "mutation" / "equivalents.yaml").read_text(encoding="utf-8"))
    assert entries
    for entry in entries:
        lines = (ROOT / entry["path"]).read_text(encoding="utf-8").splitlines()
        assert entry["before"] in map(str.strip, lines), entry["before"]
        assert entry["after"] != entry["before"]
        assert entry["why"]
