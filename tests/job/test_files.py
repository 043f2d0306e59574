"""JSON that people can read."""

from __future__ import annotations

import json

from planner.job.files import rows


def test_one_line_for_each_row() -> None:
    """Values and rows stand on a line each, and it parses."""
    text = rows({"a": 1}, rows=[{"x": [1, 2]}, {"x": []}], none=[])
    assert '    {"x": [1, 2]},\n' in text
    assert json.loads(text) == {"a": 1, "rows": [{"x": [1, 2]}, {"x": []}], "none": []}
