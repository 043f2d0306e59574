"""Model states of the whole table 1 of the ZeRO paper."""

from __future__ import annotations

import pytest

from tools.accuracy.zero_table import agrees, rows


@pytest.mark.parametrize(
    "row", rows(), ids=lambda row: f"{row['parameters_billions']}B-{row['dp']}-{row['zero']}"
)
def test_states_equal_the_printed_ones(row: dict[str, str]) -> None:
    """Every row of the table."""
    assert agrees(row)


def test_the_table_is_whole() -> None:
    """Three models, six widths, three ZeRO stages."""
    keys = {(row["parameters_billions"], row["dp"], row["zero"]) for row in rows()}
    assert len(keys) == len(rows()) == 3 * 6 * 3
