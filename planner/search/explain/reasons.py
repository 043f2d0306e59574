"""Explanations beside the answer, with faster plans of other runtimes. Plans priced for them may become the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, product
from math import inf

from planner.cost.estimate import Estimator
from planner.dims.sharding import group_text
from planner.frozen import dataclass
from planner.plan.values import Plan
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.families import FamilyPlans, Label, Price, reason_against
from planner.search.explain.neighbours import all_neighbours
from planner.search.explain.sensitivity import given, idle_costs, limit_costs
from planner.search.explorer import Explorer
from planner.search.heuristics.greedy import fastest, layered
from planner.search.heuristics.quick import cheap_plan, everywhere
from planner.search.incumbent import Incumbent, Met
from planner.search.space.choices import Choice, Family, offers, targets_of
from planner.search.space.stages import StageOptions
from planner.search.values import Advice, Alternative, IdleCost, LimitCost, Limits, Scored, Silent
from planner.targets import TARGETS

SEARCH_SHARE = 0.9
"""Part of the time that the search may take when it is asked for reasons."""

REASONS_SHARE = 0.15
"""CPU time that reasons may take, as a share of what the search took; without a time limit, and where advice is asked
for, all the time there is."""

FAMILIES_SHARE = 0.5
"""Part of the time of the reasons that looks at families may take where the user has set limits to look at too."""

LEAST_SECONDS = 1.2
"""CPU seconds that they may take at least."""

LEFT_OUT = "the time limit left no time for some of the explanations: allow more time to see what else was considered"
"""Said where reasons are missing."""

CUT_SHORT = (
    "some of the explanations were cut short to end soon after the search: --advice gives them the time limit"
)
"""Said where the share of the search's time was too short for them."""


def reasons_deadline(deadline: Deadline, search_cpu_seconds: float, *, advice: bool) -> Deadline:
    """When the reasons for the answer of a search end."""
    return deadline if advice else deadline.within(max(LEAST_SECONDS, REASONS_SHARE * search_cpu_seconds))


def left_out(deadline: Deadline) -> str:
    """What is said of reasons that a deadline has cut."""
    return CUT_SHORT if not replace(deadline, cpu_at=inf).struck else LEFT_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Reasons for one answer."""

    alternatives: tuple[Alternative, ...]
    advice: tuple[Advice, ...]
    idle_costs: tuple[IdleCost, ...]
    limit_costs: tuple[LimitCost, ...]
    cut: bool
    """True where the deadline has left something out."""


class Reasons:
    """Works out the reasons for the answer, anew when it changes on the way."""

    def __init__(
        self,
        answer: Incumbent,
        estimator: Estimator,
        limits: Limits,
        deadline: Deadline,
        *,
        price: Price = lambda scored: scored,
        label: Label = reason_against,
        idle: bool = True,
        met: Met | None = None,
        advice: bool = False,
    ) -> None:
        """``price`` says what a plan costs where it will run, ``label`` why it lost; ``idle``: look at idle devices.

        ``met`` is what the search has priced; ``advice``: search for faster plans of other runtimes, and with offload.
        """
        self.answer, self.estimator, self.limits, self.deadline = answer, estimator, limits, deadline
        self._price, self._label, self._idle = price, label, idle
        self._advice = advice or deadline.at == inf
        until = deadline.part(FAMILIES_SHARE) if given(limits) else deadline
        self._families = FamilyPlans(estimator, limits, until, price, met)

    def run(self) -> Found:
        """The reasons for what is the answer in the end."""
        while True:
            best = self.answer.best
            assert best is not None, "there are reasons for a plan only"
            reasons = self._about(best)
            if reasons is not None:
                return reasons
            self._families.keep(best)

    def _about(self, best: Scored) -> Found | None:
        """None when a better plan than this comes up."""
        around = self.estimator, self.limits, self.deadline
        nearby = all_neighbours(best.plan, self.estimator, self.deadline)
        if self._better(item.scored for item in nearby):
            return None
        complete = self._families.look(best)
        if self._better(self._families.plans):
            return None
        idle = idle_costs(best, *around, self._families.known) if self._idle else ()
        if self._better(item.scored for item in idle):
            return None
        costs = limit_costs(best, *around, unasked=self._advice)
        # What offload would save is no answer to a search that has left it out, nor part of its proof.
        if self._better(item.scored for item in costs if item.given):
            return None
        advice = advise(best, *around, self._advice)
        return Found(
            alternatives=self._families.beside(best, self._label),
            advice=advice,
            idle_costs=idle,
            limit_costs=costs,
            cut=not complete or self.deadline.struck,
        )

    def _better(self, plans: Iterable[Scored | None]) -> bool:
        """Offer them all; True when one of them is the answer now."""
        best = self.answer.best
        for scored in plans:
            if scored is not None:
                self.answer.offer(self._price(scored))
        return self.answer.best is not best


WORTH = 0.01
"""Savings below this are within what the model cannot tell."""

MAX_COMBINATIONS = 256
"""Ways to give every pool degrees of its own that are tried on the stages of a plan."""

FEW_COMBINATIONS = 8
"""The same for a quick look."""

ROUNDS = 4
"""Rounds per target: advice is a hint, not a proof."""


def advise(
    best: Scored,
    estimator: Estimator,
    limits: Limits,
    deadline: Deadline = NO_LIMIT,
    thorough: bool = True,
) -> tuple[Advice, ...]:
    """Faster plans of targets that the search was not allowed to propose, at most one each, fastest first.

    Quick plans and, where it is ``thorough``, a few rounds of search.
    """
    all_advice = []
    proposed = {row.name for row in targets_of(limits)}
    for row in TARGETS.values():
        if row.name not in proposed and offers(row, estimator.model) and not deadline.struck:
            plans = _searched if thorough else _quick
            advice = _advice(best, plans(row.name, best, estimator, limits, deadline))
            if advice is not None:
                all_advice.append(advice)
    return tuple(sorted(all_advice, key=lambda item: -item.faster))


def _advice(best: Scored, faster: Scored | None) -> Advice | None:
    if faster is None or faster is best:
        return None
    saving = 1 - faster.estimate.step_seconds / best.estimate.step_seconds
    if saving < WORTH:
        return None
    return Advice(target=faster.plan.target, change=_in_words(faster.plan), faster=saving, scored=faster)


def _searched(
    name: str, best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline
) -> Scored | None:
    """The best plan of a few rounds of search."""
    explorer = Explorer(estimator, replace(limits, target=name, gap=WORTH), Silent(), deadline=deadline)
    explorer.offer(best)
    for scored in _with_degrees(name, best, estimator, limits, deadline, (1, 2, 4), MAX_COMBINATIONS):
        explorer.offer(scored)
    explorer.run(rounds=ROUNDS)
    return explorer.best


def _quick(
    name: str, best: Scored, estimator: Estimator, limits: Limits, deadline: Deadline
) -> Scored | None:
    """The best of a few quick plans."""
    own = replace(limits, target=name)
    if TARGETS[name].dp_per_stage:
        return fastest(_with_degrees(name, best, estimator, own, deadline, (1,), FEW_COMBINATIONS))
    return cheap_plan(estimator, own, everywhere(estimator), deadline, best)


def _with_degrees(
    name: str,
    best: Scored,
    estimator: Estimator,
    limits: Limits,
    deadline: Deadline,
    times: tuple[int, ...],
    most: int,
) -> Iterator[Scored | None]:
    """For each multiple of the batch, the stages of a pipeline with other degrees, where the target can."""
    if not TARGETS[name].dp_per_stage or best.plan.pp == 1:
        return
    batch = best.plan.global_batch // best.plan.micro_batches
    for factor in times:
        if best.plan.global_batch % (factor * batch) == 0 and not deadline.struck:
            yield _per_stage_degrees(name, best, estimator, limits, factor * batch, most)


def _per_stage_degrees(
    name: str, best: Scored, estimator: Estimator, limits: Limits, batch: int, most: int
) -> Scored | None:
    """The best plan with the same stages on the same devices, the degrees of each pool changed."""
    plan = best.plan
    family = Family(
        target=name,
        zero=plan.zero,
        recompute=None if TARGETS[name].recompute_per_stage else plan.stages[0].recompute,
        tp=None,
        dp=None,
        batch=batch,
        micro_batches=plan.global_batch // batch,
    )
    stages = StageOptions(Choice(family=family, depth=plan.pp, interleave=1), estimator, limits)
    ways = [
        [
            index
            for index, groups in enumerate(stages.compositions)
            if [(group.pool, group.gpu, group.devices) for group in groups]
            == [(group.pool, group.gpu, group.devices) for group in stage.replicas]
        ]
        for stage in plan.stages
    ]
    kinds = sorted({tuple(row) for row in ways})
    combinations = islice(product(*kinds), most)
    return fastest(
        layered(stages, [dict(zip(kinds, way, strict=True))[tuple(row)] for row in ways], estimator)
        for way in combinations
    )


def _in_words(plan: Plan) -> str:
    """What the faster plan does in a few words."""
    words = [f"{plan.pp} stages" if plan.pp > 1 else f"ZeRO-{plan.zero} data parallel"]
    words += [text] if (text := group_text(plan)) else []
    per_pool: dict[str, set[tuple[int, int]]] = {}
    for stage in plan.stages:
        for group in stage.replicas:
            per_pool.setdefault(group.pool, set()).add((group.tp, stage.dp))
    if len({way for ways in per_pool.values() for way in ways}) > 1:
        words += [
            f"tp {'/'.join(str(tp) for tp in sorted({tp for tp, _ in ways}))} dp "
            f"{'/'.join(str(dp) for dp in sorted({dp for _, dp in ways}))} on {pool}"
            for pool, ways in sorted(per_pool.items())
        ]
    elif plan.pp > 1:
        words.append(f"tp {plan.stages[0].replicas[0].tp}, interleave {plan.interleave}")
    else:
        tp = plan.stages[0].replicas[0].tp
        words.append("a batch per device" if tp == 1 else f"tp {tp}, a batch per replica")
    return ", ".join(words)
