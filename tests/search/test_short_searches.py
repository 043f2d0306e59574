"""The short searches behind reasons: their rounds, gaps, cutoffs and parts of the time, looked at without searching."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.capabilities import OFFLOAD_PARTS
from planner.cost.estimate import Estimator
from planner.plan.values import Plan
from planner.search import solve
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain import diagnose, families, first_found, reasons, sensitivity
from planner.search.explain.reasons import Found, Reasons, _advice, advise
from planner.search.explain.sensitivity import idle_costs, limit_costs, option_text, without
from planner.search.explorer import Explorer
from planner.search.incumbent import Incumbent
from planner.search.space.stages import StageOptions
from planner.search.values import Goal, Limits, Scored, Silent
from tests.report import examples
from tests.search.test_first_plans import opened
from tests.worlds import cluster, gpt, pool

BEST = examples.scored()
ESTIMATOR = Estimator(examples.cluster(), examples.model())


class Narrow:
    """A search that is asked for nothing but what it was begun with; it has met this plan."""

    begun: list[Narrow] = []  # noqa: RUF012
    best: Scored | None = None

    def __init__(self, estimator: Estimator, limits: Limits, reporter: Silent, **named: Any) -> None:
        self.estimator, self.limits, self.named = estimator, limits, named
        self.offered: list[Scored | None] = []
        self.rounds: int | None = None
        self.begun.append(self)

    def offer(self, scored: Scored | None) -> None:
        """Remember it."""
        self.offered.append(scored)

    def run(self, *, rounds: int | None = None) -> None:
        """Remember how long it may take."""
        self.rounds = rounds


def narrow(module: Any, best: Scored | None = None, **others: Any) -> ExitStack:
    """The module with such searches, and with other answers of its functions."""
    Narrow.begun, Narrow.best = [], best
    stack = ExitStack()
    stack.enter_context(patch.object(module, "Explorer", Narrow))
    for name, value in others.items():
        stack.enter_context(patch.object(module, name, return_value=value))
    return stack


@pytest.mark.parametrize(("gap", "wanted"), [(0.01, 0.03), (0.2, 0.2)])
def test_a_search_without_a_limit(gap: float, wanted: float) -> None:
    """Thirty rounds for what is faster by 5 %, to 3 % at least; each limit alone is lifted, the dearest is first."""
    limits = Limits(tp=(1, 2), zero=(1,), gap=gap)
    faster = examples.scored(step_seconds=27.2 / 1.25)
    with narrow(sensitivity, faster, cheap_plan=None):
        costs = limit_costs(BEST, ESTIMATOR, limits)
    assert [(each.limits.tp, each.limits.zero, each.limits.gap, each.rounds) for each in Narrow.begun] == [
        ((1, 2), None, wanted, 30),
        (None, (1,), wanted, 30),
    ]
    assert {each.named["cutoff_seconds"] for each in Narrow.begun} == {0.95 * 27.2}
    assert [(each.limit, each.given, each.instead) for each in costs] == [
        ("zero", (1,), (1,)),
        ("tp", (1, 2), (4,)),
    ]
    assert [each.costs for each in costs] == pytest.approx([0.25, 0.25])
    with narrow(sensitivity, None, cheap_plan=None):
        assert limit_costs(BEST, ESTIMATOR, limits) == ()
        assert limit_costs(BEST, ESTIMATOR, limits, Deadline(at=0.0)) == ()


def test_limits_and_how_they_are_typed() -> None:
    """Three numbers in a row are a range; without a limit on host memory all of it may be used."""
    assert option_text("pp", (1, 2, 3)) == "--pp 1..3"
    assert option_text("pp", (1, 2)) == "--pp 1,2"
    assert option_text("pp", (1, 2, 4)) == "--pp 1,2,4"
    assert option_text("recompute", ("none", "full")) == "--recompute none,full"
    limits = Limits(offload=("none",), tp=(2,))
    assert (without(limits, "tp").tp, without(limits, "tp").offload) == (None, ("none",))
    assert without(limits, "offload").offload == OFFLOAD_PARTS
    assert sensitivity.given(Limits(offload=OFFLOAD_PARTS, tp=(2,))) == ("tp",)


def test_idle_devices_that_plans_are_looked_for() -> None:
    """Four device types, those with most FLOP/s first; none that time leaves out, nor where quick plans have none."""
    pools = [
        pool(name, "V100" if name == "d" else "A100", nodes=1, per_node=number)
        for name, number in zip("abcdef", (1, 3, 2, 6, 5, 4), strict=True)
    ]
    estimator = Estimator(cluster(*pools), gpt())
    best = replace(BEST, plan=cast("Plan", SimpleNamespace(stages=())))
    for most, found in ((9, "efbd"), (2, "ef")):
        asked: list[str] = []

        def look(*around: Any, asked: list[str] = asked) -> None:
            asked += [name for name, _ in around[2].least]

        class Ending:
            """Strikes in the middle of the next one."""

            @property
            def struck(self, asked: list[str] = asked, most: int = most) -> bool:
                return len(asked) > most

        with patch.object(sensitivity, "quick_plan", look):
            costs = idle_costs(best, estimator, Limits(target="megatron"), cast("Any", Ending()))
        assert "".join(entry.pool for entry in costs) == found
    assert idle_costs(best, estimator, Limits(target="flagscale")) == ()


def test_rounds_of_the_searches_behind_hints() -> None:
    """Twenty, for any plan; none where time is up."""
    trial = diagnose._Trial(ESTIMATOR, NO_LIMIT)
    around = examples.cluster(), examples.model(), Limits()
    alone = patch.object(diagnose, "all_neighbours", return_value=())
    with narrow(first_found, BEST), patch.object(diagnose, "cheap_plan", return_value=BEST), alone:
        assert trial.fits(*around)
        assert trial.plan(*around) is BEST
        assert [each.rounds for each in Narrow.begun] == [20, 20]
    with narrow(first_found, None), patch.object(diagnose, "cheap_plan", return_value=BEST):
        assert not trial.fits(*around)
        assert trial.plan(*around) is None
    with narrow(first_found, BEST):
        assert not diagnose._Trial(ESTIMATOR, Deadline(at=0.0)).fits(*around)
        assert Narrow.begun == []


@pytest.mark.parametrize(("gap", "wanted"), [(0.01, 0.1), (0.3, 0.3)])
def test_a_pool_alone(gap: float, wanted: float) -> None:
    """Twenty rounds, to 10 % at least, of this pool."""
    with narrow(families, BEST):
        assert families._alone("v100", ESTIMATOR, Limits(gap=gap), NO_LIMIT) is BEST
    (begun,) = Narrow.begun
    assert [item.name for item in begun.estimator.cluster.pools] == ["v100"]
    assert (begun.limits.gap, begun.rounds) == (wanted, 20)


def test_advice_of_other_targets() -> None:
    """What is faster by 1 %, of four rounds of each target that was left out; the fastest is first."""
    for step, told in ((27.2, False), (27.2 * 0.991, False), (27.2 * 0.989, True)):
        advice = _advice(BEST, examples.scored(step_seconds=step))
        assert (advice is not None) == told
    assert _advice(BEST, BEST) is _advice(BEST, None) is None
    with narrow(reasons, examples.scored(step_seconds=13.6)):
        found = advise(BEST, ESTIMATOR, Limits(target="megatron"))
    names = [str(each.limits.target) for each in Narrow.begun]
    assert "megatron" not in names
    assert len(names) == len(found) > 1
    assert {each.faster for each in found} == {0.5}
    assert {(each.limits.gap, each.rounds) for each in Narrow.begun} == {(0.01, 4)}
    assert all(each.offered[0] is BEST for each in Narrow.begun)


def test_degrees_of_other_stages_that_are_tried() -> None:
    """At the batch, twice and four times it where it divides evenly, 256 ways each; at a quick look the batch, 8."""
    asked: list[tuple[str, int, int]] = []

    def per_stage(name: str, best: Scored, estimator: Any, limits: Any, batch: int, most: int) -> None:
        asked.append((name, batch, most))

    with (
        patch.object(reasons, "_per_stage_degrees", per_stage),
        patch.object(reasons, "cheap_plan", return_value=None),
        narrow(reasons),
    ):
        advise(BEST, ESTIMATOR, Limits(target="megatron"))
        # 256 sequences in 128 micro-batches
        assert asked == [("flagscale", 2 * factor, 256) for factor in (1, 2, 4)]
        asked.clear()
        advise(BEST, ESTIMATOR, Limits(target="megatron"), thorough=False)
        assert asked == [("flagscale", 2, 8)]
        one = replace(BEST, plan=replace(BEST.plan, stages=BEST.plan.stages[:1]))
        assert list(reasons._with_degrees("flagscale", one, ESTIMATOR, Limits(), NO_LIMIT, (1,), 8)) == []


def test_stages_with_other_degrees_on_the_same_devices() -> None:
    """Every way to divide the four devices of each stage, as many as are asked for; those of a pool are alike."""
    asked: list[tuple[StageOptions, list[int]]] = []

    def layered(stages: StageOptions, slots: list[int], estimator: Estimator) -> Scored | None:
        asked.append((stages, slots))
        return BEST if len(asked) == 2 else None

    with patch.object(reasons, "layered", layered):
        found = reasons._per_stage_degrees("flagscale", BEST, ESTIMATOR, Limits(), 4, 256)
        assert found is BEST
        stages, _ = asked[0]
        family = stages.choice.family
        assert (family.batch, family.micro_batches, family.dp, stages.choice.depth) == (4, 64, None, 2)
        used = [
            tuple(
                (group.pool, group.tp, group.count) for index in slots for group in stages.compositions[index]
            )
            for _, slots in asked
        ]
        ways = [(1, 4), (2, 2), (4, 1)]
        assert sorted(used) == sorted((("a100", *one), ("v100", *two)) for one in ways for two in ways)
        asked.clear()
        reasons._per_stage_degrees("flagscale", BEST, ESTIMATOR, Limits(), 4, 5)
        assert len(asked) == 5


def test_the_part_of_the_time_for_families() -> None:
    """Half where limits of the user are looked at too, else all of it."""
    for limits, fractions in ((Limits(), []), (Limits(tp=(1,)), [0.5])):
        asked: list[float] = []
        deadline = cast("Deadline", SimpleNamespace(at=1.0, part=asked.append))
        Reasons(Incumbent(limits, Goal(), None), ESTIMATOR, limits, deadline)
        assert asked == fractions


def test_the_parts_of_the_time_of_an_answer() -> None:
    """Nine tenths for the search where reasons, or host memory, may follow; 30 % of the rest for a diagnosis."""
    for explain, offload, fractions in (
        (True, ("none",), [0.9]),
        (False, None, [0.9]),
        (False, ("none",), []),
    ):
        asked: list[float] = []

        class Parts(Deadline):
            """Remembers what is asked of it."""

            def part(self, fraction: float, asked: list[float] = asked) -> Deadline:
                asked.append(fraction)
                return self

        estimator = opened()[0].estimator
        limits = Limits(target="torch", offload=offload)  # type: ignore[arg-type]
        with patch.object(Explorer, "run"):
            solve.search(estimator.cluster, estimator.model, limits=limits, explain=explain, deadline=Parts())
        assert asked[: len(fractions)] == fractions
        assert len(asked) >= len(fractions)


def logging(log: list[str], name: str, first: list[Any]) -> Callable[..., list[Any]]:
    """What finds these the first time that it is asked, and nothing after."""

    def found(*_: object, **__: object) -> list[Any]:
        log.append(name)
        return first if log.count(name) == 1 else []

    return found


def test_a_better_plan_on_the_way_begins_the_reasons_anew() -> None:
    """Whatever part finds it: those before it are looked at again, for the new answer."""
    best, faster = BEST, examples.scored(step_seconds=20.0)
    every = ["nearby", "families", "idle", "costs", "advice"]
    for finder in ("nearby", "families", "idle", "costs", None):
        answer = Incumbent(Limits(), Goal(), None)
        answer.offer(best)
        own = Reasons(answer, ESTIMATOR, Limits(), NO_LIMIT)
        log: list[str] = []
        met = {name: [SimpleNamespace(scored=faster, given=(1,))] if name == finder else [] for name in every}

        def look(_: Scored, log: list[str] = log, finder: str | None = finder, own: Reasons = own) -> bool:
            log.append("families")
            if finder == "families":
                own._families._plans["x"] = faster
            return True

        with (
            patch.object(reasons, "all_neighbours", logging(log, "nearby", met["nearby"])),
            patch.object(own._families, "look", look),
            patch.object(reasons, "idle_costs", logging(log, "idle", met["idle"])),
            patch.object(reasons, "limit_costs", logging(log, "costs", met["costs"])),
            patch.object(reasons, "advise", logging(log, "advice", met["advice"])),
        ):
            found = own.run()
        assert isinstance(found, Found)
        before = every[: every.index(finder) + 1] if finder else []
        assert log == [*before, *every]
        assert found.alternatives[0].scored is (faster if finder else best)
        assert not found.cut
