"""A linear program in sparse rows: passed to HiGHS as arrays, or written out with PuLP for people and for CBC.

Columns are numbers, linear expressions map columns to factors. Rows only ever come to the end, so a solver that holds
the first of them needs the later ones only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import numpy as np
from numpy.typing import NDArray

Column = int
"""The number of a variable."""

Terms = dict[Column, float]
"""A linear expression without a constant."""


class Program:
    """Minimises its first column."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: list[str] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []
        """Columns that must be 0 or 1."""
        self.starts: list[int] = [0]
        """Where the terms of each row begin, and where the last one's end."""
        self.columns: list[Column] = []
        self.factors: list[float] = []
        self.least: list[float] = []
        """Of each row."""
        self.most: list[float] = []

    def column(self, name: str, *, upper: float = inf, whole: bool = False) -> Column:
        """A variable of zero or more."""
        self.names.append(name)
        self.lower.append(0.0)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.names) - 1

    def row(self, terms: Mapping[Column, float], *, least: float = -inf, most: float = inf) -> None:
        """``least`` <= terms <= ``most``."""
        self.columns.extend(terms)
        self.factors.extend(terms.values())
        self.starts.append(len(self.columns))
        self.least.append(least)
        self.most.append(most)

    def equal(self, terms: Mapping[Column, float], value: float = 0.0) -> None:
        """Terms = value."""
        self.row(terms, least=value, most=value)

    def defined(self, name: str, terms: Terms) -> Terms:
        """A variable of its own for an expression that is never negative, as an expression."""
        variable = {self.column(name): 1.0}
        self.equal(added(terms, variable, -1.0))
        return variable

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.least)

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends of all columns."""
        return np.array(self.lower), np.array(self.upper)


def added(terms: Mapping[Column, float], more: Mapping[Column, float], factor: float = 1.0) -> Terms:
    """``terms + factor more``."""
    expression = dict(terms)
    for column, value in more.items():
        expression[column] = expression.get(column, 0.0) + factor * value
    return expression


def total(pairs: Iterable[tuple[float, Column]]) -> Terms:
    """The sum of factors times columns; a column may occur twice, and factors of zero are left out."""
    expression: Terms = {}
    for factor, column in pairs:
        if factor:
            expression[column] = expression.get(column, 0.0) + factor
    return expression


def ones(columns: Iterable[Column]) -> Terms:
    """The sum of columns; one may occur twice."""
    return total((1.0, column) for column in columns)


def combined(parts: Iterable[tuple[float, Mapping[Column, float]]]) -> Terms:
    """The sum of factors times expressions."""
    expression: Terms = {}
    for factor, terms in parts:
        if factor:
            for column, value in terms.items():
                expression[column] = expression.get(column, 0.0) + factor * value
    return expression
