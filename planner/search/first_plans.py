"""Quick plans of a search: the first one in milliseconds, then the best of a few of each family, and its ILP.

They prove nothing; they give the search something to cut with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from planner.search.data_parallel import DataParallel, Shares
from planner.search.greedy import ALL_ORDERS, greedy
from planner.search.pipeline import priced_on
from planner.search.space import Choice, Family, depths
from planner.targets import RECOMPUTES

if TYPE_CHECKING:
    from planner.search.explorer import Explorer
    from planner.search.views import View

REFINED = 8
"""Choices that get more quick plans."""

POLISH_ROUNDS = 10
"""Rounds of the ILP for the first incumbent."""

POLISHED_STAGES = 64
"""Largest number of stages times compositions whose first incumbent gets the ILP."""

THRIFTY = 64
"""Families that are asked, those that need least memory first, until one has a plan at all."""

THRIFTY_PLANS = 6
"""Choices of them that are planned."""


class FirstPlans:
    """Offers quick plans to one search."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self._promising: Choice | None = None
        self._quick: list[tuple[float, int, Choice]] = []

    def any(self, view: View, families: Iterable[Family]) -> None:
        """A plan before anything else is known: of families that take little memory, the most replicas that fit.

        A few tries, whatever the time: a search ends with a plan where there is one.
        """
        planned = 0
        for family in sorted(families, key=_thrift)[:THRIFTY]:
            self.explorer.deadline.check_wish()
            depth = self._shallowest(view, family)
            if depth:
                planned += 1
                if (
                    self._plan(Choice(family=family, depth=depth, interleave=1), view)
                    or planned == THRIFTY_PLANS
                ):
                    return

    def evenly(self, choices: Sequence[DataParallel], view: View) -> None:
        """Data parallelism over all devices, the choice that takes least memory."""
        explorer = self.explorer
        if not view.kinds:
            return
        for choice in [item for item in choices if item.shard_size is None][-1:]:
            explorer.deadline.check_wish()
            shares = Shares(choice, view.estimator, explorer.limits)
            plan = shares.plan(shares.sets.fullest(shares.batch))
            if plan is not None:
                explorer.offer(priced_on(explorer.estimator, plan, view.estimator))

    def _shallowest(self, view: View, family: Family) -> int:
        """The least depth, of the powers of two and the largest one, at which the layers have room; 0 for none."""
        possible = depths(family, self.explorer.limits, view.estimator.model, view.kinds)
        if not possible or family.dp is None:
            return 0
        some = sorted({*(depth for depth in possible if not depth & (depth - 1)), possible[-1]})
        return next((depth for depth in some if view.bounds.holds(family, depth)), 0)

    def of_family(self, family: Family) -> bool:
        """Quick plans at a few depths; False when none fits."""
        view, found = self.explorer.view(family), False
        possible = depths(family, self.explorer.limits, view.estimator.model, view.kinds)
        for depth in self._sample(family, possible) if possible else ():
            self.explorer.deadline.check()
            if view.bounds.bound(family, depth, 1) < self.explorer.incumbent:
                found |= self._plan(Choice(family=family, depth=depth, interleave=1), view)
        return found

    def _plan(self, choice: Choice, view: View, **options: int) -> bool:
        """Offer a quick plan of a choice; False when none fits."""
        explorer = self.explorer
        before = explorer.best
        scored = greedy(choice, view.estimator, explorer.limits, scorer=explorer.estimator, **options)
        explorer.offer(scored)
        if scored is not None and not options:
            self._quick.append((scored.estimate.step_seconds, len(self._quick), choice))
        if explorer.best is not before:
            self._promising = choice
        return scored is not None

    def refine(self) -> None:
        """More orders of the kinds for the choices whose quick plans were fastest."""
        for _, _, choice in sorted(self._quick)[:REFINED]:
            self.explorer.deadline.check()
            self._plan(choice, self.explorer.view(choice.family), orders=ALL_ORDERS)

    def polish(self) -> None:
        """The ILP on the choice of the best quick plan: a good incumbent makes every other choice smaller."""
        explorer, choice = self.explorer, self._promising
        if choice is None or choice.depth == 1:
            return
        bound = explorer.view(choice.family).bounds.bound(choice.family, choice.depth, choice.interleave)
        opened = explorer.open_choice(bound, choice)
        if choice.depth * len(opened.stages.compositions) > POLISHED_STAGES:
            return
        for _ in range(POLISH_ROUNDS):
            if not opened.closed:
                opened.step(explorer.incumbent, explorer.deadline)
                explorer.offer(opened.best)

    def _sample(self, family: Family, values: tuple[int, ...]) -> tuple[int, ...]:
        """Depths at which a faster kind is used up, and the halves, quarters, ... of the largest."""
        filled = accumulate(int(speed.slots) for speed in self.explorer.view(family).bounds.speeds(family))
        wanted = {*filled, *(values[-1] >> shift for shift in range(values[-1].bit_length()))}
        return tuple(sorted(wanted & set(values), reverse=True))


def _thrift(family: Family) -> tuple[int, int, int, int, int]:
    """Small micro-batches, much recomputation and wide replicas first, then many replicas."""
    recompute = RECOMPUTES.index(family.recompute) if family.recompute else 0
    return family.micro_batch or 1, -recompute, -(family.tp or 1), -(family.dp or 1), -family.zero
