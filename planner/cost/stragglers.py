"""Stragglers: devices of a group take turns at being the slowest, and the group waits for it.

A device's seconds of a step vary by ``sigma`` of their mean, among steps and devices. Of n devices that wait for each
other the slowest takes ``1 + sigma E(n)`` of the mean, with the expected largest of n independent normal variables,
E(n) = -Phi^-1((n - a) / (n + 1 - 2 a)) of the smallest, a = 0.375 (Blom 1958, Statistical Estimates and Transformed
Beta-Variables; within 0.03 of the integral for any n).
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import cast

import numpy as np

from planner.cost.arrays import Numbers

NORMAL = NormalDist()
SHIFT = 0.375


def expected_largest(number: int | Numbers) -> float:
    """Expected largest of so many independent normal variables, in standard deviations; of an array each."""
    if isinstance(number, np.ndarray):
        return cast("float", np.array([_largest(float(one)) for one in number.ravel()]).reshape(number.shape))
    return _largest(float(number))


@lru_cache(maxsize=4096)
def _largest(number: float) -> float:
    return NORMAL.inv_cdf((number - SHIFT) / (number + 1 - 2 * SHIFT)) if number > 1 else 0.0


def stretch(sigma: float, number: int | Numbers, dropped: int = 0) -> float:
    """What the slowest of so many devices takes over what they take on average, without those that are ``dropped``.

    No less than the average: normal variables have a lower tail, down to below zero, that computations lack.
    """
    if dropped:
        share = (float(number) - dropped - SHIFT) / (float(number) + 1 - 2 * SHIFT)
        return max(1.0, 1.0 + sigma * NORMAL.inv_cdf(share))
    return 1.0 + sigma * expected_largest(number) if sigma else 1.0


def backups(sigma: float, number: int) -> tuple[int, float]:
    """How many of the slowest gradients of a step to drop, and the gain in sequences a second, at best.

    Of ``number`` replicas with equal batches the step ends when all but b have arrived, with those of the others lost
    (arXiv:1604.00981): (n - b) / n of the sequences in the time of the (n - b)-th of n, by Blom's approximation again.
    """

    def rate(dropped: int) -> float:
        left = number - dropped
        return left / number / stretch(sigma, number, dropped)

    if not sigma or number < 2:
        return 0, 0.0
    best = max(range(number // 2 + 1), key=lambda dropped: (rate(dropped), -dropped))
    return best, rate(best) / rate(0) - 1.0


@lru_cache(maxsize=256)
def deviation_of_largest(number: int) -> float:
    """Standard deviation of the largest of so many independent normal variables, by its distribution function."""
    places = np.linspace(-9.0, 9.0, 4001)
    below = np.array([NORMAL.cdf(float(place)) for place in places]) ** number
    mass, middle = np.diff(below), (places[1:] + places[:-1]) / 2
    mean = float((mass * middle).sum())
    return float((mass * (middle - mean) ** 2).sum() ** 0.5)
