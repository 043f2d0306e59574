"""Text that hetplan did not write itself, on its way to a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.escaping import is_hidden, visible, visible_json
from planner.files.nodes import parse
from planner.files.writing import dump


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


@given(st.text())
def test_a_document_says_the_same(text: str) -> None:
    """Without a character that a terminal would obey."""
    document = json.dumps({text: [text]}, ensure_ascii=False, indent=2)
    found = visible_json(document)
    assert json.loads(found) == {text: [text]}
    assert not any(is_hidden(letter) for letter in found if letter != "\n")


TEXTS = st.text(st.characters(codec="utf-8"), max_size=200)


@given(TEXTS, TEXTS)
@example("a\u202eb", "\x1b[31m\n\u2028")
@example("\u200bword" * 40, "two\nlines")
def test_any_text_comes_back_and_is_seen(key: str, value: str) -> None:
    """YAML: as a key and as a value; the file has no character but line breaks that a terminal would obey."""
    text = dump({"k" + key: value, "list": [value]})
    assert parse(text).data == {"k" + key: value, "list": [value]}
    assert not any(is_hidden(letter) for letter in text if letter != "\n")
