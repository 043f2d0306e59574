"""Which parameters of a test belong to ``make test``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def first(number: int, values: Iterable[object]) -> list[object]:
    """All parameters; those behind the first so many are slow tests."""
    return [
        value if index < number else pytest.param(*_several(value), marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]


def every(step: int, values: Iterable[object]) -> list[object]:
    """All parameters; every so-manieth is quick, those between are slow tests."""
    return [
        value if index % step == 0 else pytest.param(*_several(value), marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]


def _several(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
