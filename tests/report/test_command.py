"""Commands can be copied at any width, and sentences wrap."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report.layout import Command, Next, section
from tests.report.drawing import drawn

WORDS = st.lists(st.text(st.sampled_from("ab-_/. '$"), min_size=1, max_size=30), min_size=1, max_size=9)
LONG = (
    "hetplan compare /a/rather/long/folder/plan.yaml --log /a/rather/long/folder/node-0.log --log node-1.log"
)


@given(words=WORDS, width=st.integers(20, 120))
def test_the_shell_reads_the_same_words(words: list[str], width: int) -> None:
    """Wrapped, in a section or not; lines are too long only where a word and its option are."""
    for part in (Command(shlex.join(words)), section("Do", Command(shlex.join(words)))):
        shown = drawn(part, width).removeprefix("Do\n")
        assert shlex.split(shown.replace(" \\\n", " ")) == words  # which a shell does by itself
        longest = max(len(shlex.quote(word)) for word in words)
        assert max(map(len, shown.splitlines())) <= max(width, 2 * longest + 8)


def test_a_long_command_stands_alone() -> None:
    """Behind its word where it fits, else under it and wrapped at options."""
    assert drawn(Next("hetplan show plan.yaml")) == "Next: hetplan show plan.yaml\n"
    assert drawn(Next(LONG), 80) == (
        "Next:\n"
        "  hetplan compare /a/rather/long/folder/plan.yaml \\\n"
        "    --log /a/rather/long/folder/node-0.log --log node-1.log\n"
    )
    assert drawn(Next(LONG), 120) == f"Next: {LONG}\n"


@pytest.mark.parametrize("width", [40, 80])
def test_no_word_is_cut(width: int) -> None:
    """A path that is longer than the line is the terminal's to break."""
    path = "/".join(["folder"] * 15)
    assert path in drawn(Next(f"hetplan explain {path}"), width)
    assert path in drawn(Next(f"read {path}/README.md"), width)


def test_a_sentence_wraps() -> None:
    """Between words."""
    assert drawn(Next("the same with -o plan.yaml to keep it"), 30) == (
        "Next: the same with -o\nplan.yaml to keep it\n"
    )
