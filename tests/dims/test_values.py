"""Values worth trying are those of the table: `python -m tests.dims.values` writes it anew."""

from __future__ import annotations

import pytest

from tests.dims.values import TRIED, VALUES, value_rows
from tests.tables import by_case, differences, read

WRITTEN = by_case(read(VALUES))


@pytest.mark.parametrize("name", TRIED)
def test_values_are_those_of_the_table(name: str) -> None:
    """Of each dimension, on each target."""
    assert not differences(value_rows(name), WRITTEN[name])


def test_the_table_has_rows_for_each_case() -> None:
    """And no other."""
    assert [*WRITTEN] == [*TRIED]
