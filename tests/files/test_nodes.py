"""YAML with lines."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.files.nodes import MOST_NODES, YamlError, empty_values, parse, resolve, walk


def error_of(text: str) -> YamlError:
    """What parsing the text complains about."""
    with pytest.raises(YamlError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("2.5", 2.5),
        ("1e9", 1e9),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("12:30", "12:30"),
        ("null", None),
        ("~", None),
        ("-.inf", -math.inf),
        ("25G", "25G"),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    """``no`` is text and ``1e9`` a number."""
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_quoted_scalars_are_text() -> None:
    """Quotes turn numbers into text."""
    assert parse("a: '1'\nb: \"2\"\nc: !!str 3").data == {"a": "1", "b": "2", "c": "3"}


def test_every_value_knows_its_line() -> None:
    """Keys by their own line, items by theirs."""
    root = parse("a: 1\nb:\n  - x\n  - c: 2\n    d: 3\n")
    assert [line for line, _ in walk(root, ("b", 1, "d"))] == [1, 2, 4, 5]


def test_a_path_that_the_file_lacks_ends_at_the_last_value() -> None:
    """The line is that of the value around it."""
    root = parse("a:\n  b: 1\n")
    assert [line for line, _ in walk(root, ("a", "z", "y"))] == [1, 1, 1]


def test_aliases_and_merges_are_followed() -> None:
    """A merge fills in what the mapping does not say."""
    text = "x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: {<<: [*x, {c: 4}]}\n"
    assert parse(text).data == {"x": {"a": 1, "b": 2}, "y": {"b": 3, "a": 1}, "z": {"a": 1, "b": 2, "c": 4}}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\na: 2\n", 2, 'the key "a" is already on line 1'),
        ("a:\n\t- 1\n", 2, "tab"),
        ("a: [1, 2\nb: 3\n", 2, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: &x [*x]\n", 1, "contains itself"),
        ("a: *x\n", 1, "not defined"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        ("a: !secret x\n", 1, "tag"),
        ("? [a]\n: 1\n", 1, "key must be text"),
        ("x: &x 1\n*x : 2\n", 2, "alias cannot be a key"),
        ("a: {<<: 3}\n", 1, "expects a mapping"),
        ("", None, "empty"),
        ("# only a comment\n", None, "empty"),
    ],
)
def test_what_is_refused(text: str, line: int | None, what: str) -> None:
    """Each with its line."""
    error = error_of(text)
    assert (error.line, what in error.what) == (line, True), error.what


def test_an_alias_bomb_is_refused_quickly() -> None:
    """Nine levels of nine are 10^9 values; they are counted, not built."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    start = time.process_time()
    assert f"more than {MOST_NODES:,} values" in error_of("\n".join(lines)).what
    assert time.process_time() - start < 2


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 100_000 + "x", "? " * 3000])
def test_deep_nesting_is_refused(text: str) -> None:
    """Without exhausting the stack; PyYAML from 6.0.4 on says so itself where it is deepest."""
    known = ("nested deeper", "key must be text", "maximum nesting depth")
    assert any(each in error_of(text).what for each in known)


def test_values_left_out_are_found() -> None:
    """At any depth, in lists too."""
    assert list(empty_values(parse("a:\nb: {c: ~}\nd: [1, null]\n"))) == [("a",), ("b", "c"), ("d", 1)]


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No other exception escapes."""
    with contextlib.suppress(YamlError):
        parse(text)
