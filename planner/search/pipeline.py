"""One outer choice solved: ILP, estimate of its answer, cut, again, until nothing faster is left."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from planner.cost.estimate import Estimator
from planner.cost.schedule import critical_path
from planner.errors import PlanError
from planner.search.milp.model import PipelineModel
from planner.search.milp.solver import TOLERANCE
from planner.search.options import Option, StageOptions
from planner.search.space import Choice
from planner.search.values import Limits, Scored

MAX_CUT_OPERATIONS = 50_000
"""Longer pipelines are not cut by their critical path; their solutions are cut one by one."""

MAX_ROUNDS = 500

SLACK = 0.95
"""Part of the gap that a new plan must gain to be of interest; the rest is the solver's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one choice gave."""

    bound_seconds: float
    """No plan of the choice is faster than this, or than the incumbent it was given."""
    best: Scored | None
    """A plan faster than the incumbent, if there is one."""


def solve_choice(
    choice: Choice,
    estimator: Estimator,
    limits: Limits,
    *,
    cutoff_seconds: float,
    bound_seconds: float,
    deadline: float | None = None,
    solver: str | None = None,
) -> Outcome:
    """Plans of ``choice`` faster than ``cutoff_seconds``; ``bound_seconds`` is what is known already."""
    stages = StageOptions(choice, estimator, limits)
    if not stages.compositions:
        return Outcome(bound_seconds=float("inf"), best=None)
    if choice.depth == 1:
        return _one_stage(stages, estimator, cutoff_seconds)
    return _Rounds(stages, estimator, limits, cutoff_seconds, bound_seconds, deadline, solver).run()


def _one_stage(stages: StageOptions, estimator: Estimator, cutoff: float) -> Outcome:
    """Without a pipeline each composition is a plan."""
    best: Scored | None = None
    for composition in range(len(stages.compositions)):
        if stages.most_layers(0, composition) < estimator.model.layers:
            continue
        option = stages.option(0, composition, estimator.model.layers)
        scored = score(estimator, stages, [option])
        if scored is not None and scored.estimate.step_seconds < (best.estimate.step_seconds if best else cutoff):
            best = scored
    bound = best.estimate.step_seconds if best else cutoff
    return Outcome(bound_seconds=bound, best=best)


def score(estimator: Estimator, stages: StageOptions, chosen: list[Option]) -> Scored | None:
    """The estimate of a choice of options; None when it cannot be placed or does not fit."""
    plan = stages.plan(chosen)
    try:
        estimate = estimator.estimate(plan)
    except PlanError:
        return None
    return Scored(plan=plan, estimate=estimate) if estimate.fits else None


class _Rounds:
    """The loop of one choice."""

    def __init__(
        self,
        stages: StageOptions,
        estimator: Estimator,
        limits: Limits,
        cutoff: float,
        bound: float,
        deadline: float | None,
        solver: str | None,
    ) -> None:
        self.stages = stages
        self.estimator = estimator
        self.gap = max(limits.gap, 2 * TOLERANCE)
        self.seen: set[tuple[tuple[int, int], ...]] = set()
        self.deadline = deadline
        self.incumbent = cutoff
        self.bound = bound
        self.best: Scored | None = None
        self.solver = solver
        self._build(self._first_cutoff(cutoff))

    def _build(self, cutoff: float) -> None:
        self.model = PipelineModel(self.stages, cutoff, self.solver)
        if self.model.feasible:
            self.model.end.lowBound = min(1.0, self.bound / cutoff)

    def _first_cutoff(self, cutoff: float) -> float:
        """Just below the incumbent; without one, all work of all stages one after another, which no plan exceeds."""
        if cutoff != float("inf"):
            return cutoff * (1 - SLACK * self.gap)
        slowest, stages = 0.0, self.stages
        for stage in range(stages.choice.depth):
            for composition in range(len(stages.compositions)):
                most = stages.most_layers(stage, composition)
                if most >= stages.choice.interleave:
                    option = stages.option(stage, composition, most)
                    pairs = [stages.sends(composition, other) for other in range(len(stages.compositions))]
                    both = [value for pair in pairs for value in (pair.near_seconds, pair.far_seconds)]
                    sends = max((value for value in both if value < float("inf")), default=0.0)
                    busy = option.busy_seconds + 2 * stages.choice.interleave * sends
                    slowest = max(slowest, stages.choice.family.micro_batches * busy + option.tail_seconds)
        return max(self.bound, 1e-9) + (stages.choice.depth + 1) * slowest

    def run(self) -> Outcome:
        """Solve, score and cut until the bound meets the incumbent."""
        if not self.model.feasible:
            return Outcome(bound_seconds=max(self.bound, self.model.scale), best=None)
        for _ in range(MAX_ROUNDS):
            if self.bound >= self.incumbent * (1 - self.gap) or not self._round():
                break
        return Outcome(bound_seconds=self.bound, best=self.best)

    def _round(self) -> bool:
        """One solve; False when the choice is exhausted or time is up."""
        left = None if self.deadline is None else self.deadline - monotonic()
        if left is not None and left <= 0:
            return False
        solved = self.model.solve(gap=(1 - SLACK) * self.gap, seconds=left)
        if solved.status == "infeasible":
            self.bound = max(self.bound, self.incumbent * (1 - SLACK * self.gap))
            return False
        self.bound = max(self.bound, min(solved.bound, self.incumbent))
        if not solved.has_solution:
            return False
        return self._take(self.model.chosen())

    def _take(self, chosen: list[Option]) -> bool:
        key = tuple((option.composition, option.layers) for option in chosen)
        if key in self.seen:
            return False
        self.seen.add(key)
        scored = score(self.estimator, self.stages, chosen)
        seconds = scored.estimate.step_seconds if scored else float("inf")
        if scored is not None and seconds < self.incumbent:
            self.incumbent, self.best = seconds, scored
            self.model.limit(seconds * (1 - SLACK * self.gap))
        self._cut(chosen, scored, seconds)
        return True

    def _cut(self, chosen: list[Option], scored: Scored | None, seconds: float) -> None:
        plan = scored.plan if scored else None
        if plan is not None and plan.pp * plan.micro_batches * plan.interleave <= MAX_CUT_OPERATIONS:
            timeline = self.estimator.timeline(plan)
            priced = self.estimator.price(plan)
            finish = [
                end + price.tail_seconds for end, price in zip(timeline.stage_ends(), priced.stages, strict=True)
            ]
            last = finish.index(max(finish))
            self.model.cut_path(critical_path(timeline, last), last)
        self.model.cut_solution(chosen, seconds, self.bound)
