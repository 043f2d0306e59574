"""Hints that name what the user may have meant, and values as they are shown."""

from __future__ import annotations

import pytest

from planner.files.messages import nearest, shown


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


@pytest.mark.parametrize(
    ("value", "text"), [(4096.0, "4096.0"), (1e9, "1e+09"), (1.5, "1.5"), (7, "7"), (float("nan"), "nan")]
)
def test_numbers_with_a_fraction_are_shown_as_such(value: float, text: str) -> None:
    """So that ``expected a whole number, got 4096.0`` says what is wrong."""
    assert shown(value) == text
