"""Text of YAML files."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from planner.files import writing as yaml_text

KEYS = st.text("abcdefghij_klmny", min_size=1, max_size=24) | st.sampled_from(["null", "no", "yes", "on"])
TRICKY = [
    "null",
    "1e9",
    "08",
    "yes",
    "~",
    "a,b",
    "[x",
    "0x1F",
    "1_000",
    "-",
    "?",
    "a: b",
    "#c",
    "'q",
    "12:30",
]
NAMES = st.text("abcdefN0123456789._-+:x", min_size=1, max_size=40)
NUMBERS = st.integers() | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=40) | NAMES | st.sampled_from(TRICKY)
DEEP = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(KEYS, part, max_size=4), max_leaves=15
)
TABLES = st.lists(st.dictionaries(KEYS, NUMBERS | NAMES, max_size=12), max_size=4)


@given(
    st.dictionaries(KEYS, TABLES | st.lists(st.dictionaries(KEYS, SCALARS, max_size=9), max_size=4) | DEEP)
)
@example({"layers": [{f"key_{size}": "x" * size} for size in range(95, 110)]})
@example({"layers": [{"first": "x" * size, "second": 1, "third": 1e-5} for size in range(60, 110)]})
def test_rows_are_written_as_the_library_writes_them(data: dict[str, Any]) -> None:
    """Tables are written item by item; the text is the one that the dumper makes of the whole."""
    whole = yaml.dump(
        data,
        Dumper=yaml_text._Dumper,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=yaml_text.WIDTH,
    )
    assert yaml_text.dump(data) == whole


ONE_LINE = st.text(st.characters(exclude_characters="\n\r\x85\u2028\u2029"))


@given(
    st.recursive(ONE_LINE, lambda part: st.lists(part, max_size=4) | st.dictionaries(KEYS, part, max_size=4))
)
@example({"interface": "\xadeth0"})
@example("a " * 200)
def test_one_line_reads_back(value: Any) -> None:
    """Also what needs quotes, and what is longer than a line."""
    line = yaml_text.flow(value)
    assert "\n" not in line
    assert yaml.safe_load(f"[{line}]") == [value]
