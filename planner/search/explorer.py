"""Branch and bound over outer choices: best bound first, each solved only while it can still win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush

from planner.cost.estimate import Estimator
from planner.search.data_parallel import DataParallel, Shares
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.deadline import Deadline, Struck
from planner.search.first_plans import FirstPlans
from planner.search.floor import floor_seconds
from planner.search.groups import Group, group_bound, grouped
from planner.search.local import best_near
from planner.search.milp.solver import TOLERANCE
from planner.search.pipeline import OpenChoice
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

Item = Group | Family | Choice | OpenChoice | DataParallel

QUICK_TRIES = 6
"""Families of one (tp, dp) that are tried until a quick plan fits."""

ONE_DEGREE_SHARE = 0.25
"""Part of the time, at most, for plans of one degree where stages may have their own, and as much for plans near."""

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
        deadline: Deadline | None = None,
        better: Callable[[Scored], None] | None = None,
    ) -> None:
        """``one_degree`` leaves only plans whose stages have the same degrees, of targets where they need not.

        Without a ``deadline`` the limit counts from now. ``better`` is told every plan that becomes the best.
        """
        self.one_degree = one_degree
        self.estimator = estimator
        self._devices = sum(kind.devices for kind in estimator.topology.kinds)
        self.limits = limits
        self.reporter = reporter
        self.solver = solver
        self.cutoff_seconds = cutoff_seconds
        self._views: dict[tuple[str, str], View] = {}
        self.best: Scored | None = None
        self._first = FirstPlans(self)
        self.closed_bound = float("inf")
        # What an end would lose: the item being worked on is neither on the heap nor closed.
        self._floor = self._taken_bound = floor_seconds(estimator)
        self.candidates = 0
        self.solved = 0
        self._rounds = 0
        self.interrupted = False
        self.finished = False
        """True when nothing is left that could win."""
        self._heap: list[tuple[float, int, Item]] = []
        self._count = 0
        self.deadline = deadline or Deadline.after(limits.time_limit_seconds)
        self._better = better

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
        """True when the time limit has struck, or the user wants an end."""
        return self.deadline.struck

    def offer(self, scored: Scored | None) -> None:
        """Take a plan, priced on the whole cluster, if it fits and is faster."""
        if scored is not None and scored.estimate.fits and scored.estimate.step_seconds < self.incumbent:
            self.best = scored
            if self._better is not None:
                self._better(scored)

    def quick(self) -> Scored | None:
        """The best of a few plans per family, without proof; small clusters get some rounds of the ILP too."""
        try:
            self._open()
            for item in [entry[2] for entry in self._heap]:
                if isinstance(item, DataParallel):
                    self._data_parallel(item)
            self._first_plans()
            if self._devices <= POLISHED_DEVICES:
                self._first.polish()
        except Struck:
            self.interrupted = self.deadline.interrupted
        return self.best

    def run(self, *, rounds: int | None = None) -> None:
        """Search all targets the limits allow, or at most so many ``rounds`` of one choice each.

        The deadline or an interrupt keeps the best so far.
        """
        try:
            self._open()
            self._taken_bound = float("inf")
            self._one_degree(rounds)
            self._first_plans()
            self._first.polish()
            self._best_first(rounds)
        except Struck:
            self.interrupted = self.deadline.interrupted
        except KeyboardInterrupt:
            self.interrupted = True

    def _best_first(self, rounds: int | None) -> None:
        while self._heap and self._heap[0][0] < self.incumbent * (1 - self.limits.gap):
            self.deadline.check()
            if rounds is not None and self._rounds >= rounds:
                return
            self._taken_bound, _, item = heappop(self._heap)
            self._expand(self._taken_bound, item)
            self._taken_bound = float("inf")
            self.reporter.progress(
                done=self.solved,
                total=self.candidates,
                best_seconds=self.best.estimate.step_seconds if self.best else None,
                bound_seconds=self.bound,
            )
        self.finished = True

    def _one_degree(self, rounds: int | None) -> None:
        """Begin with the best plan of one degree, whose bounds are tight, and with what is better near it."""
        if self.one_degree or not any(row.dp_per_stage for row in targets_of(self.limits)):
            return
        narrow = Explorer(
            self.estimator,
            self.limits,
            Silent(),
            solver=self.solver,
            cutoff_seconds=self.incumbent,
            one_degree=True,
            deadline=self.deadline.part(ONE_DEGREE_SHARE),
            better=self.offer,
        )
        left = self.deadline.left
        narrow.run(rounds=rounds)
        if narrow.interrupted:
            raise KeyboardInterrupt
        if narrow.best is not None and rounds is None and self._devices <= POLISHED_DEVICES:
            seen = [view for (target, _), view in self._views.items() if target == narrow.best.plan.target]
            near = Deadline.after(
                ONE_DEGREE_SHARE * left if left < float("inf") else None, flag=self.deadline.flag
            )
            self.offer(best_near(narrow.best, seen, self.estimator, self.limits, deadline=near))

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
        families = [replace(family, network=name) for family in self._families(row, view)]
        if self.best is None:
            self._first.any(view, families)
        for group in grouped(families):
            self.deadline.check()
            self._push(max(self._floor, group_bound(group, view.bounds)), group)

    def _families(self, row: Target, view: View) -> Iterator[Family]:
        for family in families(row, self.limits, view.estimator.model, view.kinds):
            if self.one_degree:
                yield from uniform(family, self.limits, self.estimator.model, view.kinds)
            else:
                yield family

    def _first_plans(self) -> None:
        """Quick plans of the most promising family of each (target, network, tp, dp), to have something to cut with."""
        tries: Counter[tuple[str, str, int | None, int | None]] = Counter()
        waiting, kept, self._heap = self._heap, [], []
        parts: set[int] = set()
        try:
            while waiting and waiting[0][0] < self.incumbent:
                self.deadline.check()
                bound, number, item = entry = heappop(waiting)
                if isinstance(item, Group) and any(
                    tries[_way(family)] < QUICK_TRIES for family in item.families
                ):
                    self._taken_bound = bound
                    for own, family in self._members(bound, item):
                        heappush(waiting, (own, self._next(), family))
                    self._taken_bound = float("inf")
                    continue
                if number not in parts:
                    kept.append(entry)
                if isinstance(item, Family) and item.dp is None:
                    for own, family in self._of_one_degree(item):
                        parts.add(self._next())
                        heappush(waiting, (own, self._count, family))
                elif isinstance(item, Family) and tries[_way(item)] < QUICK_TRIES:
                    tries[_way(item)] += QUICK_TRIES if self._first.of_family(item) else 1
        finally:
            self._heap = [*kept, *(entry for entry in waiting if entry[1] not in parts)]
            heapify(self._heap)
        self._first.refine()

    def _members(self, bound: float, group: Group) -> Iterator[tuple[float, Family]]:
        """The families of a group that may have plans, each with its bound."""
        view = self.view(group.first)
        for family in group.families:
            self.deadline.check()
            found = depths(family, self.limits, view.estimator.model, view.kinds)
            if found:
                self.candidates += 1
                yield max(bound, view.bounds.family_bound(family, max(found))), family

    def _of_one_degree(self, item: Family) -> Iterator[tuple[float, Family]]:
        """The parts of a family of own degrees in which all stages have the same ones, each with its bound."""
        view = self.view(item)
        for family in uniform(item, self.limits, self.estimator.model, view.kinds):
            self.deadline.check()
            possible = depths(family, self.limits, view.estimator.model, view.kinds)
            yield view.bounds.family_bound(family, max(possible, default=1)), family

    def _push(self, bound: float, item: Item) -> None:
        if bound < float("inf"):
            heappush(self._heap, (bound, self._next(), item))

    def _next(self) -> int:
        """Of equal bounds the first comes first."""
        self._count += 1
        return self._count

    def _expand(self, bound: float, item: Item) -> None:
        if isinstance(item, Group):
            for own, family in self._members(bound, item):
                self._push(own, family)
        elif isinstance(item, Family):
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
            self.deadline.check()
            for interleave in interleavings(family, depth, self.estimator.model):
                self.candidates += 1
                own = view.bounds.bound(family, depth, interleave, self.incumbent)
                self._push(max(bound, own), Choice(family=family, depth=depth, interleave=interleave))

    def _begin(self, bound: float, choice: Choice) -> None:
        self.solved += 1
        self._continue(self.open_choice(bound, choice))

    def open_choice(self, bound: float, choice: Choice) -> OpenChoice:
        """A choice to be solved with what is known so far."""
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

    def _continue(self, opened: OpenChoice) -> None:
        """One round; back on the heap with a better bound, unless nothing is left to find in it."""
        self._rounds += 1
        opened.step(self.incumbent, self.deadline)
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
                self.offer(Scored(plan=plan, estimate=self.estimator.estimate(plan)))

    @property
    def status(self) -> Status:
        """What the state of the search amounts to."""
        if self.best is None:
            return "infeasible" if self.finished else "unknown"
        return "optimal" if self.gap <= max(self.limits.gap, 4 * TOLERANCE) + 1e-9 else "feasible"


def _way(family: Family) -> tuple[str, str, int | None, int | None]:
    return family.target, family.network, family.tp, family.dp
