"""Plain data as YAML text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from planner.spec.yaml_nodes import parse
from planner.visible import is_hidden
from planner.yaml_text import dump

TEXTS = st.text(st.characters(codec="utf-8"), max_size=200)


@given(TEXTS, TEXTS)
@example("a\u202eb", "\x1b[31m\n\u2028")
@example("\u200bword" * 40, "two\nlines")
def test_any_text_comes_back_and_is_seen(key: str, value: str) -> None:
    """As a key and as a value; the file has no character but line breaks that a terminal would obey."""
    text = dump({"k" + key: value, "list": [value]})
    assert parse(text).data == {"k" + key: value, "list": [value]}
    assert not any(is_hidden(letter) for letter in text if letter != "\n")
