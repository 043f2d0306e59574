"""Numbers that carry their derivatives: forward-mode automatic differentiation through the cost model.

The cost model is ordinary arithmetic on floats, so a float that knows its slopes passes through it unchanged, and one
prediction gives the derivatives by every constant at once (Griewank and Walther 2008, chapter 3). ``max`` and ``min``
pick one of their arguments with its slopes, which is a derivative wherever there is one.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

Slopes = NDArray[np.float64]


class Dual(float):
    """A value and its derivatives by each of some constants, [constant]."""

    __slots__ = ("slopes",)
    slopes: Slopes

    def __new__(cls, value: SupportsFloat, slopes: Slopes) -> Dual:
        """``slopes`` are not copied."""
        made = super().__new__(cls, value)
        made.slopes = slopes
        return made

    def __add__(self, other: Any) -> Dual:
        return Dual(float(self) + other, self.slopes + other.slopes if type(other) is Dual else self.slopes)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dual:
        return Dual(float(self) - other, self.slopes - other.slopes if type(other) is Dual else self.slopes)

    def __rsub__(self, other: Any) -> Dual:
        return Dual(other - float(self), -self.slopes)

    def __mul__(self, other: Any) -> Dual:
        value = float(self)
        if type(other) is Dual:
            return Dual(value * float(other), self.slopes * float(other) + value * other.slopes)
        return Dual(value * other, self.slopes * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        if type(other) is Dual:
            value = float(self) / float(other)
            return Dual(value, (self.slopes - value * other.slopes) / float(other))
        return Dual(float(self) / other, self.slopes / other)

    def __rtruediv__(self, other: Any) -> Dual:
        value = other / float(self)
        return Dual(value, self.slopes * (-value / float(self)))

    def __neg__(self) -> Dual:
        return Dual(-float(self), -self.slopes)

    def __pow__(self, power: Any, modulus: None = None) -> Dual:
        value = float(self) ** power
        return Dual(value, self.slopes * (power * float(self) ** (power - 1)))


def slopes_of(value: float, constants: int) -> Slopes:
    """Derivatives of a result, [constant]; none where it depends on no constant."""
    return value.slopes if isinstance(value, Dual) else np.zeros(constants)
