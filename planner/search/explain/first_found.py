"""Some plan that fits, of a part of the space in which no quick one was found."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.estimate import Estimator
from planner.search.deadline import Deadline, Flag
from planner.search.explorer import Explorer
from planner.search.values import Limits, Scored, Silent

ROUNDS = 20
"""Rounds in which a search has to find one."""


class _Found:
    """A search's wish to end: with its first plan that fits, or when the user wants an end."""

    def __init__(self, flag: Flag | None) -> None:
        self.flag, self.one = flag, False

    def is_set(self) -> bool:
        """True from then on."""
        return self.one or (self.flag is not None and self.flag.is_set())

    def take(self, scored: Scored) -> None:
        """A plan that fits."""
        self.one = True


def first_found(estimator: Estimator, limits: Limits, deadline: Deadline) -> Scored | None:
    """The first plan that a short search meets; None when there is none, or time is up."""
    if deadline.struck:
        return None
    flag = _Found(deadline.flag)
    explorer = Explorer(estimator, limits, Silent(), deadline=replace(deadline, flag=flag), better=flag.take)
    explorer.run(rounds=ROUNDS)
    return explorer.best
