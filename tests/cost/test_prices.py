"""Prices of many small plans, and functions beside them, are those of the tables.

`python -m tests.cost.prices` and `python -m tests.cost.functions` write them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cases import CASES
from tests.cost.functions import FUNCTIONS, SUBJECTS
from tests.cost.prices import PRICES, prices_of
from tests.tables import CLOSE, Row, by_case, differences, read

FITTED = 1e-6
"""What measured layers anchor is fitted by least squares, which end as near as this."""

WRITTEN, FOUND = by_case(read(PRICES)), by_case(read(FUNCTIONS))


@pytest.mark.parametrize("name", CASES)
def test_prices_are_those_of_the_table(name: str) -> None:
    """Every term, to the last digits but those of a fit."""
    case = CASES[name]
    assert not differences(prices_of(name, case), WRITTEN[name], FITTED if case.by.layers else CLOSE)


def test_the_table_has_rows_for_each_case() -> None:
    """And no other."""
    assert [*WRITTEN] == [*CASES]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_functions_are_those_of_the_table(subject: Callable[[], Iterator[Row]]) -> None:
    """By number."""
    now = list(subject())
    assert not differences(now, FOUND[now[0][0]])
