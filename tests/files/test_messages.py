"""Hints that name what the user may have meant."""

from __future__ import annotations

import pytest

from planner.files.messages import nearest


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nvlnk3", "did you mean nvlink3?"),
        ("NVLINK", "did you mean nvlink5, nvlink4 or nvlink3?"),
        ("pcie", "did you mean pcie5 or pcie4?"),
        ("ethernet", None),
    ],
)
def test_names_that_are_as_near_are_all_named(name: str, hint: str | None) -> None:
    """None of them is guessed."""
    assert nearest(name, ["nvlink5", "nvlink4", "nvlink3", "pcie5", "pcie4"]) == hint
