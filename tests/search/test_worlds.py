"""Regrets at other speeds by hand, and what becomes of an answer then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.estimate import Estimator
from planner.cost.state import LinkMove, Move
from planner.plan.values import Plan, ReplicaGroup
from planner.search.deadline import NO_LIMIT
from planner.search.explain.bars import ErrorBar, Factors
from planner.search.explain.ratios import Worlds, _beside, _least_regret, _regrets, _towards, _with_best
from planner.search.explain.reasons import _in_words
from planner.search.replan import Successor, _with, fewer_replicas
from planner.search.values import Goal, Limits, Scored
from tests import worlds
from tests.report import examples
from tests.worlds import group

BAR = ErrorBar(section="families", name="F", members=("V100",), spread=0.5)
SLOW, FAST = ((BAR, 0.5),), ((BAR, 2.0),)


class Known(Worlds):
    """Plans whose steps at other speeds are looked up."""

    def __init__(self, steps: Mapping[int, tuple[float, float, float]]) -> None:
        """By the layers of the first stage: at the speeds of the cost model, with a slow type and with a fast one."""
        super().__init__(Estimator(examples.cluster(), examples.model()), Limits(), Goal())
        for first, (usual, slow, fast) in steps.items():
            scored = examples.scored(first, usual)
            self.plans[scored.plan] = scored
            self._seconds |= {(SLOW, scored.plan): slow, (FAST, scored.plan): fast}
        self.asked: list[tuple[Factors, Plan]] = []

    def value(self, scored: Scored, factors: Factors = ()) -> float:
        """Remember who was asked for."""
        self.asked += [(factors, scored.plan)] if factors else []
        return super().value(scored, factors)


def test_the_best_plans_in_a_world() -> None:
    """In their order there; what cannot be the next is not priced."""
    known = Known({24: (10.0, 18.0, 9.0), 16: (11.0, 12.0, 10.5), 8: (30.0, 31.0, 29.0)})
    firsts = {plan: plan.stages[0].layers for plan in known.plans}

    def order(factors: Factors) -> list[int]:
        return [firsts[scored.plan] for scored in known.ranked(factors)]

    assert order(()) == [24, 16, 8]
    assert order(SLOW) == [16, 24, 8]
    assert order(FAST) == [24, 16, 8]
    known.asked.clear()
    assert firsts[known.best(FAST).plan] == 24
    # At twice the speed of something 30 s may be 15 s at least.
    assert {firsts[plan] for _, plan in known.asked} == {24, 16}


def test_the_least_regret() -> None:
    """Over the best of each corner, in the worst of them; of equal ones the fastest."""
    known = Known({24: (10.0, 18.0, 9.0), 16: (11.0, 12.0, 10.5), 8: (12.0, 15.0, 10.0)})
    corners: list[Factors] = [(), SLOW, FAST]
    by_first = {scored.plan.stages[0].layers: scored for scored in known.plans.values()}
    slow = {plan.stages[0].layers: regret for plan, regret in _regrets(known, SLOW).items()}
    assert slow == pytest.approx({24: 0.5, 16: 0.0, 8: 0.25})
    assert _least_regret(known, corners, NO_LIMIT) is by_first[16]
    assert _least_regret(known, [()], NO_LIMIT) is by_first[24]
    alike = Known({16: (10.0, 20.0, 5.0), 24: (9.0, 20.0, 5.0)})
    assert _least_regret(alike, [SLOW, FAST], NO_LIMIT).plan.stages[0].layers == 24
    assert [factor for _, factor in _towards(SLOW, 0.5)] == pytest.approx([0.5**0.5])
    assert _towards(FAST, 1.0) == FAST


def test_a_better_plan_than_the_search_stopped_at() -> None:
    """Its gap is that to the bound, which it may be below; a slower one changes nothing."""
    found = examples.found(gap=0.05)
    assert found.best is not None
    step, bound = found.best.estimate.step_seconds, found.bound_seconds
    assert _with_best(found, examples.scored(20, step), Limits()) is found
    better = examples.scored(20, 0.97 * step)
    changed = _with_best(found, better, Limits())
    assert changed.best is better
    assert changed.gap == pytest.approx(1 - bound / (0.97 * step))
    assert (changed.status, changed.bound_seconds, changed.objective_bound) == ("feasible", bound, None)
    assert [entry.scored for entry in changed.alternatives if entry.chosen] == [better]
    assert [entry for entry in changed.alternatives if not entry.chosen] == [
        entry for entry in found.alternatives if not entry.chosen
    ]
    assert _with_best(found, better, Limits(gap=0.03)).status == "optimal"
    below = _with_best(found, examples.scored(20, 0.9 * step), Limits())
    assert below.gap == 0.0
    assert below.bound_seconds == pytest.approx(0.9 * step)


def test_the_fastest_plan_stands_beside_the_robust_one() -> None:
    """Then the families that were looked at, but the robust plan's own."""
    robust, fastest = examples.scored(20, 30.0), examples.scored(24, 24.0)
    first, second, *others = _beside(robust, fastest, examples.found())
    assert (first.scored, first.chosen, first.reason) == (robust, True, "chosen")
    assert (second.scored, second.chosen) == (fastest, False)
    assert second.reason == "20.0 % faster by the cost model, more regret at worst"
    assert not any(entry.chosen for entry in others)
    assert [entry.family for entry in others] == ["ZeRO-3 data parallel", "pipeline, even layers"]


def test_what_a_successor_costs_while_nodes_are_away() -> None:
    """The steps that the fastest plan makes meanwhile, at its own speed, and the move."""
    move = Move(hosts=(), links=())
    successor = Successor(scored=examples.scored(step_seconds=30.0), cluster=examples.cluster(), move=move)
    assert successor.lasts(100.0, 20.0) == pytest.approx(150.0)
    slow = replace(move, links=(link(5.0), link(7.0), link(None)))
    assert replace(successor, move=slow).lasts(100.0, 20.0) == pytest.approx(157.0)


def test_fewer_replicas_by_hand() -> None:
    """From the most on, in as many more micro-batches of the same size; only where all replicas are alike."""

    def fewer(chosen: Plan) -> list[tuple[int, int, int]]:
        return [
            (each.count, each.local_batch, each.accumulation_steps)
            for changed in fewer_replicas(chosen)
            for stage in changed.stages
            for each in stage.replicas
        ]

    def of(*groups: ReplicaGroup, zero: int = 1, **changes: Any) -> Plan:
        return worlds.plan("torch", zero, [4], [groups], **changes)

    six = group("a", "A100", count=6, share=8, steps=4)
    assert fewer(of(six)) == [(4, 12, 6), (3, 16, 8), (2, 24, 12), (1, 48, 24)]
    assert fewer(of(six, backup=1)) == [(5, 10, 5), (3, 20, 10), (2, 40, 20)]
    assert fewer(of(six, zero=3, shard_size=2)) == []
    assert fewer(of(replace(six, count=3), group("b", "V100", count=3, share=8, steps=4))) == []
    two = worlds.plan("megatron", 1, [2, 2], [(six,), (replace(six, pool="b", gpu="V100"),)])
    assert fewer(two)[:2] == [(4, 12, 6)] * 2
    unlike = worlds.plan("megatron", 1, [2, 2], [(six,), (replace(six, accumulation_steps=8),)])
    assert list(fewer_replicas(unlike)) == []


def test_a_successor_in_the_place_of_the_best() -> None:
    """What was said of the best is left out; the bound holds for both."""
    found = examples.found(gap=0.05)
    assert found.best is not None
    assert _with(found, found.best, Limits()) is found
    step = found.best.estimate.step_seconds
    changed = _with(found, examples.scored(20, 1.1 * step), Limits())
    assert changed.gap == pytest.approx(1 - 0.95 / 1.1)
    assert (changed.status, changed.alternatives, changed.advice) == ("feasible", (), ())
    assert _with(found, examples.scored(20, 0.9 * step), Limits()).gap == 0.0
    assert _with(found, examples.scored(20, 0.955 * step), Limits()).status == "optimal"


def link(seconds: float | None) -> LinkMove:
    """A link that is busy for so long."""
    return LinkMove(link="a", moved_bytes=1.0, seconds=seconds)


def test_faster_plans_in_words() -> None:
    """Degrees by pool where they differ; else what all stages have."""
    two, one = (
        group("a", "A100", tp=2, count=2, share=8, steps=4),
        group("b", "V100", count=4, share=4, steps=2),
    )
    wide = group("b", "V100", tp=2, count=2, share=8, steps=4)
    words = {
        "2 stages, tp 2, interleave 1": worlds.plan("megatron", 1, [2, 2], [(two,), (wide,)]),
        "2 stages, tp 2 dp 2 on a, tp 1 dp 4 on b": worlds.plan("flagscale", 1, [2, 2], [(two,), (one,)]),
        "ZeRO-3 data parallel, a batch per device": worlds.plan("torch", 3, [4], [(one,)]),
        "ZeRO-1 data parallel, tp 2, a batch per replica": worlds.plan("torch", 1, [4], [(two, wide)]),
    }
    assert {_in_words(plan): plan for plan in words.values()} == words
