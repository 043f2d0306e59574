"""Text that hetplan did not write itself, on its way to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.visible import is_hidden, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, µs × 2 é 😀", "plain, µs × 2 é 😀"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nerror: b", r"a\nerror: b"),
        ("a\r\tb\x00\x7f\x85", r"a\r\tb\x00\x7f\x85"),
        ("\u202eevil\u2066\u200b\ufeff", r"\u202eevil\u2066\u200b\ufeff"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_is_not_seen_is_escaped(text: str, shown: str) -> None:
    """Everything else stays."""
    assert visible(text) == shown


def test_what_is_kept_stays() -> None:
    """Reports have lines of their own."""
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@given(st.text())
def test_nothing_hidden_is_left(text: str) -> None:
    """By the categories of Unicode; twice is the same as once."""
    found = visible(text)
    assert not any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in found)
    assert not any(map(is_hidden, found))
    assert visible(found) == found
