"""Branch and bound over outer choices: best bound first, each solved only while it can still win."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate
from time import monotonic

from planner.cost.estimate import Estimator
from planner.search.data_parallel import DataParallel, Shares
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.greedy import ALL_ORDERS, greedy
from planner.search.local import best_near
from planner.search.milp.solver import TOLERANCE
from planner.search.pipeline import OpenChoice, priced_on
from planner.search.space import (
    Choice,
    Family,
    depths,
    families,
    interleavings,
    targets_of,
    uniform,
)
from planner.search.values import Limits, Reporter, Scored, Silent, Status
from planner.search.views import View, views
from planner.targets import Target

Item = Family | Choice | OpenChoice | DataParallel

QUICK_TRIES = 6
"""Families of one (tp, dp) that are tried until a quick plan fits."""

REFINED = 8
"""Choices that get more quick plans."""

ONE_DEGREE_SHARE = 0.25
"""Part of the time, at most, for plans of one degree where stages may have their own, and as much for plans near."""

POLISH_ROUNDS = 10
"""Rounds of the ILP for the first incumbent."""

POLISHED_STAGES = 64
"""Largest number of stages times compositions whose first incumbent gets the ILP."""

POLISHED_DEVICES = 256
"""Largest cluster whose quick plans get the ILP as well."""


class Explorer:
    """Best-first branch and bound over outer choices; keeps the best plan whatever interrupts it."""

    def __init__(
        self,
        estimator: Estimator,
        limits: Limits,
        reporter: Reporter,
        *,
        solver: str | None = None,
        cutoff_seconds: float = float("inf"),
        one_degree: bool = False,
    ) -> None:
        """``one_degree`` leaves only plans whose stages have the same degrees, of targets where they need not."""
        self.one_degree = one_degree
        self.estimator = estimator
        self._devices = sum(kind.devices for kind in estimator.topology.kinds)
        self.limits = limits
        self.reporter = reporter
        self.solver = solver
        self.cutoff_seconds = cutoff_seconds
        self._views: dict[tuple[str, str], View] = {}
        self.best: Scored | None = None
        self._promising: Choice | None = None
        self._quick: list[tuple[float, int, Choice]] = []
        self.closed_bound = float("inf")
        # What an interrupt would lose: the item being worked on is neither on the heap nor closed.
        self._taken_bound = 0.0
        self.candidates = 0
        self.solved = 0
        self._rounds = 0
        self.interrupted = False
        self._heap: list[tuple[float, int, Item]] = []
        self._count = 0
        self._deadline = (
            None if limits.time_limit_seconds is None else monotonic() + limits.time_limit_seconds
        )

    @property
    def incumbent(self) -> float:
        """Seconds of the best plan, or those that a plan must beat to be wanted."""
        return self.best.estimate.step_seconds if self.best else self.cutoff_seconds

    @property
    def bound(self) -> float:
        """No plan of the space is faster."""
        opened = self._heap[0][0] if self._heap else float("inf")
        return min(opened, self.closed_bound, self._taken_bound, self.incumbent)

    @property
    def gap(self) -> float:
        """(incumbent - bound) / incumbent."""
        return 1.0 if self.best is None else 1.0 - self.bound / self.incumbent

    @property
    def out_of_time(self) -> bool:
        """True when the time limit has struck."""
        return self._deadline is not None and monotonic() >= self._deadline

    def offer(self, scored: Scored | None) -> None:
        """Take a plan, priced on the whole cluster, if it fits and is faster."""
        if scored is not None and scored.estimate.fits and scored.estimate.step_seconds < self.incumbent:
            self.best = scored

    def quick(self) -> Scored | None:
        """The best of a few plans per family, without proof; small clusters get some rounds of the ILP too."""
        self._open()
        for item in [entry[2] for entry in self._heap]:
            if isinstance(item, DataParallel):
                self._data_parallel(item)
        self._first_plans()
        if self._devices <= POLISHED_DEVICES:
            self._polish()
        return self.best

    def run(self, *, rounds: int | None = None) -> None:
        """Search all targets the limits allow, or at most so many ``rounds`` of one choice each.

        An interrupt keeps the best so far.
        """
        try:
            self._open()
            self._taken_bound = float("inf")
            self._one_degree(rounds)
            self._first_plans()
            self._polish()
            while self._heap and not self.out_of_time and (rounds is None or self._rounds < rounds):
                if self._heap[0][0] >= self.incumbent * (1 - self.limits.gap):
                    break
                self._taken_bound, _, item = heappop(self._heap)
                self._expand(self._taken_bound, item)
                self._taken_bound = float("inf")
                self.reporter.progress(
                    done=self.solved,
                    total=self.candidates,
                    best_seconds=self.best.estimate.step_seconds if self.best else None,
                    bound_seconds=self.bound,
                )
        except KeyboardInterrupt:
            self.interrupted = True

    def _one_degree(self, rounds: int | None) -> None:
        """Begin with the best plan of one degree, whose bounds are tight, and with what is better near it."""
        if self.one_degree or not any(row.dp_per_stage for row in targets_of(self.limits)):
            return
        left = None if self._deadline is None else ONE_DEGREE_SHARE * max(0.0, self._deadline - monotonic())
        limits = replace(self.limits, time_limit_seconds=left)
        narrow = Explorer(
            self.estimator,
            limits,
            Silent(),
            solver=self.solver,
            cutoff_seconds=self.incumbent,
            one_degree=True,
        )
        narrow.run(rounds=rounds)
        self.offer(narrow.best)
        if narrow.interrupted:
            raise KeyboardInterrupt
        if narrow.best is not None and rounds is None and self._devices <= POLISHED_DEVICES:
            until = None if left is None else monotonic() + left
            seen = [view for (target, _), view in self._views.items() if target == narrow.best.plan.target]
            self.offer(best_near(narrow.best, seen, self.estimator, self.limits, deadline=until))

    def view(self, item: Family | DataParallel) -> View:
        """The part of the cluster that a choice is about."""
        return self._views[item.target, item.network]

    def _open(self) -> None:
        for row in targets_of(self.limits):
            if self.one_degree and not row.dp_per_stage:
                continue
            for name, view in views(self.estimator, row).items():
                self._views[row.name, name] = view
                self._open_view(row, name, view)

    def _open_view(self, row: Target, name: str, view: View) -> None:
        for choice in data_parallel_choices(row, self.limits, view.estimator) if view.whole else ():
            self._push(0.0, replace(choice, network=name))
            self.candidates += 1
        for family in self._families(row, view):
            named = replace(family, network=name)
            found = depths(named, self.limits, view.estimator.model, view.kinds)
            if found:
                self.candidates += 1
                self._push(view.bounds.family_bound(named, max(found)), named)

    def _families(self, row: Target, view: View) -> Iterator[Family]:
        for family in families(row, self.limits, view.estimator.model, view.kinds):
            if self.one_degree:
                yield from uniform(family, self.limits, self.estimator.model, view.kinds)
            else:
                yield family

    def _first_plans(self) -> None:
        """Quick plans of the most promising family of each (target, network, tp, dp), to have something to cut with."""
        tries: dict[tuple[str, str, int | None, int | None], int] = {}
        for bound, _, family in sorted(self._uniform(), key=lambda entry: entry[:2]):
            key = (family.target, family.network, family.tp, family.dp)
            if bound < self.incumbent and tries.get(key, 0) < QUICK_TRIES and not self.out_of_time:
                found = self._greedy(family)
                tries[key] = QUICK_TRIES if found else tries.get(key, 0) + 1
        self._refine()

    def _uniform(self) -> Iterator[tuple[float, int, Family]]:
        """Families on the heap with their bound, those of own degrees as their parts with the same ones everywhere."""
        for bound, number, item in self._heap:
            if not isinstance(item, Family):
                continue
            view = self.view(item)
            for family in uniform(item, self.limits, self.estimator.model, view.kinds):
                if family is not item:
                    possible = depths(family, self.limits, self.estimator.model, view.kinds)
                    bound = view.bounds.family_bound(family, max(possible, default=1))
                yield bound, number, family

    def _greedy(self, family: Family) -> bool:
        """Offer quick plans at a few depths; False when none fits."""
        view, found = self.view(family), False
        possible = depths(family, self.limits, view.estimator.model, view.kinds)
        for depth in self._sample(family, possible) if possible else ():
            choice = Choice(family=family, depth=depth, interleave=1)
            if view.bounds.bound(family, depth, 1) < self.incumbent:
                before = self.best
                scored = greedy(choice, view.estimator, self.limits, scorer=self.estimator)
                found = found or scored is not None
                self.offer(scored)
                if scored is not None:
                    self._quick.append((scored.estimate.step_seconds, len(self._quick), choice))
                if self.best is not before:
                    self._promising = choice
        return found

    def _refine(self) -> None:
        """More orders of the kinds for the choices whose quick plans were fastest."""
        for _, _, choice in sorted(self._quick)[:REFINED]:
            before = self.best
            view = self.view(choice.family)
            self.offer(greedy(choice, view.estimator, self.limits, scorer=self.estimator, orders=ALL_ORDERS))
            if self.best is not before:
                self._promising = choice

    def _polish(self) -> None:
        """The ILP on the choice of the best quick plan: a good incumbent makes every other choice smaller."""
        choice = self._promising
        if choice is None or choice.depth == 1:
            return
        bound = self.view(choice.family).bounds.bound(choice.family, choice.depth, choice.interleave)
        opened = self._open_choice(bound, choice)
        if choice.depth * len(opened.stages.compositions) > POLISHED_STAGES:
            return
        for _ in range(POLISH_ROUNDS):
            if not opened.closed and not self.out_of_time:
                opened.step(self.incumbent, self._seconds_left())
                self.offer(opened.best)

    def _sample(self, family: Family, values: tuple[int, ...]) -> tuple[int, ...]:
        """Depths at which a faster kind is used up, and the halves, quarters, ... of the largest."""
        filled = accumulate(int(speed.slots) for speed in self.view(family).bounds.speeds(family))
        wanted = {*filled, *(values[-1] >> shift for shift in range(values[-1].bit_length()))}
        return tuple(sorted(wanted & set(values), reverse=True))

    def _push(self, bound: float, item: Item) -> None:
        if bound < float("inf"):
            self._count += 1
            heappush(self._heap, (bound, self._count, item))

    def _expand(self, bound: float, item: Item) -> None:
        if isinstance(item, Family):
            self._expand_family(bound, item)
        elif isinstance(item, Choice):
            self._begin(bound, item)
        elif isinstance(item, OpenChoice):
            self._continue(item)
        else:
            self._data_parallel(item)

    def _expand_family(self, bound: float, family: Family) -> None:
        view = self.view(family)
        for depth in depths(family, self.limits, view.estimator.model, view.kinds):
            for interleave in interleavings(family, depth, self.estimator.model):
                self.candidates += 1
                own = view.bounds.bound(family, depth, interleave, self.incumbent)
                self._push(max(bound, own), Choice(family=family, depth=depth, interleave=interleave))

    def _begin(self, bound: float, choice: Choice) -> None:
        self.solved += 1
        self._continue(self._open_choice(bound, choice))

    def _open_choice(self, bound: float, choice: Choice) -> OpenChoice:
        view = self.view(choice.family)
        return OpenChoice(
            choice,
            view.estimator,
            self.limits,
            islands=view.islands,
            scorer=self.estimator,
            cutoff_seconds=self.incumbent,
            bound_seconds=bound,
            once_seconds=view.bounds.once(choice, self.incumbent),
            solver=self.solver,
        )

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.01, self._deadline - monotonic())

    def _continue(self, opened: OpenChoice) -> None:
        """One round; back on the heap with a better bound, unless nothing is left to find in it."""
        self._rounds += 1
        opened.step(self.incumbent, self._seconds_left())
        self.offer(opened.best)
        if opened.closed:
            self.closed_bound = min(self.closed_bound, opened.bound)
        else:
            self._push(opened.bound, opened)

    def _data_parallel(self, choice: DataParallel) -> None:
        """All ways to choose devices, most promising first; every way is exact, so the least is the bound."""
        self.solved += 1
        self._rounds += 1
        estimator = self.view(choice).estimator
        shares = Shares(choice, estimator, self.limits)
        ways = sorted((shares.bound(way), way) for way in shares.ways())
        for _index, (bound, way) in enumerate(ways):
            if bound >= self.incumbent * (1 - self.limits.gap) or self.out_of_time:
                self.closed_bound = min(self.closed_bound, bound)
                break
            plan = shares.plan(way, self.incumbent)
            if plan is not None:
                self.offer(priced_on(self.estimator, plan, estimator))

    @property
    def status(self) -> Status:
        """What the state of the search amounts to."""
        if self.best is None:
            return "unknown" if self.interrupted or self.out_of_time else "infeasible"
        return "optimal" if self.gap <= max(self.limits.gap, 4 * TOLERANCE) + 1e-9 else "feasible"
