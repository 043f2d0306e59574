"""What is said beside the answer. Every plan that is priced for it may still become the answer itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.cost.estimate import Estimator
from planner.search.answer import Answer
from planner.search.deadline import Deadline
from planner.search.explain.advice import advise
from planner.search.explain.families import FamilyPlans, Label, Price, reason_against
from planner.search.explain.sensitivity import idle_costs, limit_costs
from planner.search.values import Advice, Alternative, IdleCost, LimitCost, Limits, Scored

SEARCH_SHARE = 0.9
"""Part of the time that the search may take when it is asked for reasons."""

LEFT_OUT = "the time limit left no time for some of the explanations: allow more time to see what else was considered"
"""Said where reasons are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Reasons for one answer."""

    alternatives: tuple[Alternative, ...]
    advice: tuple[Advice, ...]
    idle_costs: tuple[IdleCost, ...]
    limit_costs: tuple[LimitCost, ...]


class Reasons:
    """Works out the reasons for the answer, anew when it changes on the way."""

    def __init__(
        self,
        answer: Answer,
        estimator: Estimator,
        limits: Limits,
        deadline: Deadline,
        *,
        price: Price = lambda scored: scored,
        label: Label = reason_against,
        idle: bool = True,
    ) -> None:
        """``price`` says what a plan costs where it will run, ``label`` why it lost; ``idle``: look at idle devices."""
        self.answer, self.estimator, self.limits, self.deadline = answer, estimator, limits, deadline
        self._price, self._label, self._idle = price, label, idle
        self._families = FamilyPlans(estimator, limits, deadline, price)

    def run(self) -> Found:
        """The reasons for what is the answer in the end."""
        while True:
            best = self.answer.best
            assert best is not None, "there are reasons for a plan only"
            found = self._about(best)
            if found is not None:
                return found
            self._families.keep(best)

    def _about(self, best: Scored) -> Found | None:
        """None when a better plan than this comes up."""
        around = self.estimator, self.limits, self.deadline
        self._families.look(best)
        if self._better(self._families.plans):
            return None
        idle = idle_costs(best, *around) if self._idle else ()
        if self._better(item.scored for item in idle):
            return None
        costs = limit_costs(best, *around)
        if self._better(item.scored for item in costs):
            return None
        return Found(
            alternatives=self._families.beside(best, self._label),
            advice=advise(best, *around),
            idle_costs=idle,
            limit_costs=costs,
        )

    def _better(self, plans: Iterable[Scored | None]) -> bool:
        """Offer them all; True when one of them is the answer now."""
        best = self.answer.best
        for scored in plans:
            if scored is not None:
                self.answer.offer(self._price(scored))
        return self.answer.best is not best
