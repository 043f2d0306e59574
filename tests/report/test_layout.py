"""Tables, lists and paragraphs at any width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report.layout import Paragraph, bullets, number, pairs, section, table, words
from tests.report.drawing import drawn

WORDS = st.lists(
    st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=9), min_size=1, max_size=9
)


def test_a_table_has_a_rule_and_no_trailing_frame() -> None:
    """Words stand left, numbers right, units in the heading."""
    shown = drawn(
        table([words("plan"), number("step\n(s)")], [["mine", "1.25"], ["theirs", "12.5"]], strong=[0])
    )
    assert shown == (
        "        step\n"
        "plan     (s)\n"
        "────────────\n"
        "mine    1.25\n"
        "theirs  12.5\n"
    )  # fmt: skip


@given(reason=WORDS, value=st.integers(0, 10**9), width=st.integers(40, 130))
def test_numbers_are_never_cut(reason: list[str], value: int, width: int) -> None:
    """Whatever the width, a number is on one line and whole."""
    shown = drawn(table([words("why", least=10), number("n")], [[" ".join(reason), str(value)]]), width)
    assert str(value) in shown.split("\n")[2]


@given(reasons=st.lists(WORDS, min_size=2, max_size=2), width=st.integers(30, 130))
def test_a_table_fits_whenever_its_numbers_allow(reasons: list[list[str]], width: int) -> None:
    """Columns of words give way down to their least."""
    columns = [words("one", least=10), number("number"), words("two", least=6)]
    shown = drawn(table(columns, [[" ".join(reasons[0]), "12345678", " ".join(reasons[1])]]), width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "12345678" in shown


@given(values=st.lists(st.integers(10**6, 10**9), min_size=2, max_size=12), width=st.integers(40, 130))
def test_what_there_is_no_room_for_stands_below(values: list[int], width: int) -> None:
    """Each part has the first column; all numbers are there in their order, and no line is too long."""
    columns = [words("plan"), *(number(f"n{index}") for index in range(len(values)))]
    shown = drawn(table(columns, [["equal batches", *map(str, values)]]), width).splitlines()
    assert max(map(len, shown)) <= width
    assert [int(word) for line in shown for word in line.split() if word.isdigit()] == values
    assert sum(line.startswith("plan ") for line in shown) == sum("equal" in line for line in shown)
    fits = len("equal batches") + sum(2 + len(str(value)) for value in values) <= width
    assert not fits or len(shown) == 3


@given(text=WORDS, width=st.integers(20, 100))
def test_a_paragraph_keeps_all_words(text: list[str], width: int) -> None:
    """Wrapping loses nothing and fits the width."""
    shown = drawn(Paragraph(" ".join(text)), width)
    assert shown.split() == text
    assert max(len(line) for line in shown.splitlines()) <= width


@pytest.mark.parametrize("pair", ["15 %", "8 x 200 Gbit/s", "1.83 s", "447 k", "2 GiB", "2 x 8"])
def test_a_number_keeps_its_unit(pair: str) -> None:
    """No line ends between a number and its unit."""
    for width in range(24, 60):
        shown = drawn(Paragraph(f"some words before it, then {pair}, and after"), width)
        assert pair in shown


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (21, ["2 A100-PCIe-40GB", "(paris-old-spot-", "partition-2)"]),
        (24, ["2 A100-PCIe-40GB (paris-", "old-spot-partition-2)"]),
        (28, ["2 A100-PCIe-40GB", "(paris-old-spot-partition-2)"]),
        (8, ["2 A100-", "PCIe-", "40GB", "(paris-", "old-", "spot-", "partitio", "n-2)"]),
    ],
)
def test_a_name_longer_than_a_line_goes_on_behind_a_dash(width: int, lines: list[str]) -> None:
    """And anywhere where it has none in reach."""
    shown = drawn(Paragraph("2 A100-PCIe-40GB (paris-old-spot-partition-2)"), width)
    assert shown.splitlines() == lines


@given(text=st.text("ab-/_( ", min_size=1, max_size=60), width=st.integers(1, 20))
def test_no_line_of_a_paragraph_is_too_long(text: str, width: int) -> None:
    """Whatever its words are; every character is there in its order."""
    shown = drawn(Paragraph(text), width)
    assert max(map(len, shown.splitlines()), default=0) <= width
    assert "".join(shown.split()) == "".join(text.split())


def test_values_wrap_under_themselves() -> None:
    """Keys stand alone in their column."""
    shown = drawn(pairs([("key", "one two three four"), ("", "five")]), 16)
    assert shown == "key  one two\n     three four\n     five\n"
    assert drawn(bullets(["one two three", "four"]), 10) == "- one two\n  three\n- four\n"


def test_a_section_ends_with_an_empty_line() -> None:
    """Sections can be printed one after the other."""
    assert drawn(section("Title", Paragraph("text"))) == "Title\n  text\n\n"
