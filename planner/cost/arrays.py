"""Arrays in place of numbers: the cost model prices many cases at once with the formulas of one.

Arithmetic is the same for both; ``max`` and ``min`` are not, so formulas call ``larger`` and ``smaller``. The types say
float, as for the dual numbers of ``planner.measured.dual``, which these functions accept too.
"""

from __future__ import annotations

from math import isfinite
from typing import cast

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def as_number(values: Numbers) -> float:
    """An array as the number of each case."""
    return cast("float", values)


def as_array(number: float) -> Numbers:
    """What a formula makes of such numbers, as an array again."""
    return cast("Numbers", number)


def larger(one: float, other: float) -> float:
    """The larger number of each case."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return other if other > one else one


def smaller(one: float, other: float) -> float:
    """The smaller number of each case."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.minimum(one, other)
    return other if other < one else one


def is_zero(number: float) -> bool:
    """True of a single number that is zero."""
    return not isinstance(number, np.ndarray) and not number


def finite(number: float) -> float:
    """The number of each case, 0 where it is infinite."""
    if isinstance(number, np.ndarray):
        return np.where(np.isfinite(number), number, 0.0)
    return number if isfinite(number) else 0.0
