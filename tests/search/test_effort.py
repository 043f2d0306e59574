"""How much is tried at most: families, plans, orders, rounds and parts of the time, counted without the work itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop
from itertools import product
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest

from planner.capabilities import Schedule
from planner.cost.estimate import Estimator
from planner.search import explorer as explorers
from planner.search import pipeline as pipelines
from planner.search.bounds.groups import Group, grouped
from planner.search.data_parallel import DataParallel
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.explorer import Explorer
from planner.search.heuristics import greedy as greedies
from planner.search.heuristics import quick
from planner.search.heuristics.greedy import QUICK, Effort, _Layers, _orders, greedy
from planner.search.heuristics.quick import FirstPlans, _Ranked, everywhere
from planner.search.islands import IslandShares
from planner.search.milp import branching
from planner.search.milp.branching import Subset
from planner.search.milp.model import PipelineModel
from planner.search.pipeline import MOST_TOLD, KeptPrograms, OpenChoice
from planner.search.space.choices import Choice, Family
from planner.search.space.device_sets import Box
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored, Silent
from tests.report import examples
from tests.search.test_first_plans import MEGATRON, opened
from tests.search.test_greedy import options
from tests.search.test_near import search as near_search
from tests.worlds import cluster, gpt, pool

near: Any = pytest.approx
"""Inside tuples and lists too."""


if TYPE_CHECKING:
    from planner.search.space.partitions import NetworkPartition

FAMILY = Family(target="megatron", zero=1, recompute="none", tp=1, dp=1, batch=1, micro_batches=8)


def families_asked(
    families: list[Family], better: tuple[int, ...] = (), fits: tuple[int, ...] = ()
) -> list[Family]:
    """Those of which quick plans are made, where these numbers of them give a better plan, or one that fits."""
    found, asked = (
        Explorer(Estimator(examples.cluster(), examples.model()), MEGATRON, Silent()),
        list[Family](),
    )
    found._first_shares = lambda *_: None  # type: ignore[method-assign]
    for number, family in enumerate(families):
        found._push(1.0 + number / 1e6, family)

    def of_family(family: Family) -> float:
        asked.append(family)
        if len(asked) in better:
            found.best = examples.scored(step_seconds=100.0 - len(asked))
        return 1.0 if len(asked) in fits else inf

    with patch.object(found._first, "of_family", of_family), patch.object(found._first, "refine"):
        found._first_plans()
    assert sorted(item for _, _, item in found._heap if isinstance(item, Family)) == sorted(families)
    return asked


def test_families_that_get_quick_plans() -> None:
    """Six of each degree until one fits, and 48 in a row of a network without a better plan."""
    alike = [FAMILY._replace(batch=batch) for batch in range(1, 10)]
    assert families_asked(alike) == alike[:6]
    assert families_asked(alike, fits=(4,)) == alike[:4]
    others = [FAMILY._replace(dp=number) for number in range(1, 120)]
    assert families_asked(others) == others[:48]
    assert families_asked(others, better=(1, 40)) == others[:88]
    on_two = [family._replace(network=name) for family in others for name in ("x", "y")]
    assert families_asked(on_two) == on_two[:96]
    # A network that gave nothing better keeps none of another waiting.
    later = [family._replace(network="x") for family in others[:60]]
    later += [family._replace(network="y") for family in others[:3]]
    assert families_asked(later) == [*later[:48], *later[60:]]


@pytest.mark.parametrize(
    ("tried", "fits", "looked"), [(5, (), True), (6, (), False), (1, (1,), False), (0, (), True)]
)
def test_groups_whose_families_had_their_quick_plans(tried: int, fits: tuple[int, ...], looked: bool) -> None:
    """They are not looked into once each of their degrees was tried six times, or fits; they stay in the search."""
    alike = [FAMILY._replace(batch=batch) for batch in range(1, tried + 1)]
    group = Group((FAMILY._replace(zero=0), FAMILY._replace(zero=2)))
    for other in ((), (FAMILY._replace(tp=2),)):
        found = Explorer(Estimator(examples.cluster(), examples.model()), MEGATRON, Silent())
        found._first_shares = lambda *_: None  # type: ignore[method-assign]
        for number, family in enumerate(alike):
            found._push(1.0 + number / 1e6, family)
        found._push(2.0, Group((*group.families, *other)))
        with (
            patch.object(found._first, "of_family", return_value=1.0 if fits else inf),
            patch.object(found._first, "refine"),
            patch.object(found, "_members", return_value=[]) as members,
        ):
            found._first_plans()
        # Another degree among them has not been tried.
        wanted = looked or bool(other)
        assert members.called == wanted
        assert any(isinstance(item, Group) for _, _, item in found._heap) == (not wanted)


def test_parts_of_the_time_for_a_beginning() -> None:
    """A quarter for one degree, then a fifth for runs, half for all other runtimes, a third for what is near."""
    begun: list[int | None] = []

    class Narrow:
        interrupted = False

        def __init__(self, *arguments: Any, **named: Any) -> None:
            pass

        def run(self, *, rounds: int | None) -> None:
            begun.append(rounds)

    fractions: list[float] = []
    deadline = SimpleNamespace(check=lambda: None, part=fractions.append)
    found = Explorer(
        Estimator(examples.cluster(), examples.model()),
        Limits(target="flagscale"),
        Silent(),
        deadline=cast("Deadline", deadline),
    )
    begin = examples.scored()
    stages = (replace(stage, replicas=stage.replicas[:1]) for stage in begin.plan.stages)
    found.best = replace(begin, plan=replace(begin.plan, stages=tuple(stages)))
    with (
        patch.object(explorers, "Explorer", Narrow),
        patch.object(explorers, "best_near", return_value=None),
        patch.object(explorers, "best_of_runs", return_value=()),
    ):
        found._one_degree(4)
        found._of_runs()
        found._other_runtimes(5)
        # Two others are left behind the first, then one.
        assert fractions == [0.25, 0.2, 0.5 / 3, 0.25, 0.5]
        assert begun == [4, 5, 5, 5]
        for devices, rounds, expected in ((256, None, [0.33]), (257, None, []), (256, 3, [])):
            fractions.clear()
            found._devices = devices
            found._near(rounds)
            assert fractions == expected


def ranked(number: int) -> list[_Ranked]:
    """Choices of as many degrees."""
    return [
        _Ranked(
            seconds=1.0 + index / 100,
            choice=Choice(family=FAMILY._replace(dp=index + 1), depth=2, interleave=1),
            partition=cast("NetworkPartition", SimpleNamespace(estimator=SimpleNamespace(model=None))),
        )
        for index in range(number)
    ]


@pytest.mark.parametrize(
    ("cheap", "slots", "fits", "looks", "later"),
    [
        (False, [0, 1], False, 16 * 2, 2),
        (False, [0, 0], False, 16, 1),
        (False, [], False, 0, 0),
        (False, [0, 1], True, 16 * 2, 2),
        (True, [0, 1], True, 4 + 2, 4 + 2),
        (True, [0, 0], True, 4 + 1, 4 + 1),
        (True, [0, 1], False, 16 * 2, 16 * 2),
    ],
)
def test_choices_of_a_quick_plan(cheap: bool, slots: list[int], fits: bool, looks: int, later: int) -> None:
    """Sixteen with stages both ways; a cheap look ends with the fourth that fits, and only the best goes both ways."""
    wanted = everywhere(Estimator(examples.cluster(), examples.model()))
    search = quick._QuickSearch(opened()[0].estimator, MEGATRON, wanted, NO_LIMIT, cheap=cheap)
    with (
        patch.object(quick, "StageOptions"),
        patch.object(quick, "_slots", return_value=slots),
        patch.object(quick, "orders_of", side_effect=lambda *_: iter([(1, "1f1b")])),
        patch.object(quick, "layered", return_value=examples.scored() if fits else None) as layered,
    ):
        staged(search, 40)
        assert layered.call_count == looks
        # What has fitted is done, and what takes longer than the best is left.
        staged(search, len(search._done))
        assert layered.call_count == looks
        search.best = examples.scored(step_seconds=1.005)
        search._done.clear()
        before = layered.call_count
        staged(search, 40)
        # Other schedules may make up for 40 % at a cheap look.
        assert layered.call_count == before + later


def staged(search: Any, number: int) -> None:
    """Tries so many choices, in both parts where it is a cheap look."""
    search._open, search._tried, search._placed = iter(ranked(number)), 0, []
    search._stage(quick.FIRST_TRIES if search.cheap else quick.TRIES)
    if search.cheap:
        search.go_on()


@pytest.mark.parametrize(("cheap", "seconds", "looks"), [(False, 13.9, 3), (False, 14.1, 1), (True, 14.1, 3)])
def test_schedules_of_a_quick_plan(cheap: bool, seconds: float, looks: int) -> None:
    """All that its stages have, where they may come to be the fastest; the best of a cheap look gets them anyway."""
    wanted = everywhere(Estimator(examples.cluster(), examples.model()))
    search = quick._QuickSearch(opened()[0].estimator, MEGATRON, wanted, NO_LIMIT, cheap=cheap)
    search.best, orders = examples.scored(step_seconds=10.0), [(1, "1f1b"), (2, "1f1b"), (2, "zb-v")]
    (item,), found = ranked(1), examples.scored(step_seconds=seconds)
    with (
        patch.object(quick, "StageOptions") as stages,
        patch.object(quick, "_slots", return_value=[0, 0]),
        patch.object(quick, "orders_of", side_effect=lambda *_: iter(orders)),
        patch.object(quick, "layered", return_value=found),
    ):
        assert search._place(item.choice, item.partition, every_order=True)
    met = [(call.args[0].interleave, call.args[0].schedule) for call in stages.call_args_list]
    assert met == orders[:looks]


def test_sets_of_a_quick_plan() -> None:
    """Six of each choice of data parallelism; two of each of the four with the least bounds at a cheap look.

    Any bound is looked for only where the rates of devices are among the least, and one of groups only where that of
    one copy is.
    """
    bounded: list[tuple[int, int | None]] = []

    class Stub:
        unit = 1
        device_types = ()

        def __init__(self, choice: DataParallel) -> None:
            self.name = choice.tp, choice.shard_size
            self.sets = SimpleNamespace(within=lambda *_: cast("Box", choice))

        def least(self, box: Box) -> float:
            return -self.name[0]

        def bound(self, box: Box) -> float:
            bounded.append(self.name)
            return 0.5 * (self.name[1] is not None) - self.name[0]

    wanted = everywhere(Estimator(examples.cluster(), examples.model()))
    sizes = list(product(range(1, 8), (None, 2)))
    choices = [
        DataParallel(target="torch", zero=1, recompute="none", tp=tp, shard_size=size) for tp, size in sizes
    ]
    for cheap, expected in (
        (False, [(name, 6) for name in sizes]),
        (True, [((tp, size), 2) for tp in (7, 6) for size in (None, 2)]),
    ):
        search = quick._QuickSearch(opened()[0].estimator, MEGATRON, wanted, NO_LIMIT, cheap=cheap)
        with (
            patch.object(quick, "shares_of", side_effect=lambda choice, *_: Stub(choice)),
            patch.object(quick, "best_of", return_value=[]) as best_of,
        ):
            search._shared(choices, cast("NetworkPartition", SimpleNamespace(estimator=None)))
        assert [(call.args[0].name, call.args[2]) for call in best_of.call_args_list] == expected
    assert bounded == [(7, None), (7, 2), (6, None), (6, 2)]


def first_plans() -> FirstPlans:
    """Those of a search that has begun nothing."""
    return FirstPlans(opened()[0])


def test_families_that_are_asked_for_any_plan() -> None:
    """Of 64 one that has a depth at all, and six that are planned."""
    alike = [FAMILY._replace(dp=number) for number in range(1, 100)]
    for depth, asked, planned, seconds in ((0, 64, 0, inf), (2, 6, 6, inf), (2, 1, 1, 1.0)):
        first = first_plans()
        with (
            patch.object(first, "_shallowest", return_value=depth) as shallowest,
            patch.object(first, "_plan", return_value=seconds) as plan,
        ):
            first.any(cast("NetworkPartition", None), alike)
        assert (shallowest.call_count, plan.call_count) == (asked, planned)


def test_a_plan_comes_whatever_the_time() -> None:
    """A good one until 0.3 s after the limit; none where only a faster one is wanted."""
    first = first_plans()
    explorer = first.explorer
    explorer.deadline = Deadline(at=100.0)

    def struck(now: float, check: Callable[[], None]) -> bool:
        with patch("planner.search.deadline.monotonic", return_value=now):
            try:
                check()
            except Struck:
                return True
        return False

    assert not struck(1000.0, first._check)
    assert [struck(now, first.check_later) for now in (99.0, 100.2, 100.4)] == [False, False, True]
    explorer.cutoff_seconds = 50.0
    for check in (first._check, first.check_later):
        assert [struck(now, check) for now in (99.0, 100.1)] == [False, True]


def test_orders_of_quick_plans() -> None:
    """Three and their reverses at first, 24 for the eight fastest choices, of which more are priced, else two."""
    first, asked = first_plans(), list[tuple[int, Effort]]()
    choices = [replace(item.choice, depth=3) for item in ranked(12)]
    first._quick = [(float(-number), number, choice) for number, choice in enumerate(choices)]
    first.explorer.cutoff_seconds = 8.0
    with (
        patch.object(
            quick,
            "greedy",
            side_effect=lambda choice, *_, effort, **more: asked.append((choice.family.dp, effort)),
        ),
        patch.object(first.explorer, "partition", return_value=SimpleNamespace(estimator=None)),
    ):
        first.refine()
    thorough = Effort(orders=24, priced=26, swaps=133, swapped_below=1.05 * 8.0, wanted_seconds=8.0)
    assert asked == [(dp, thorough) for dp in range(12, 4, -1)]
    assert len(first._quick) == 12
    ends = iter((5.0, 1.0, None, 2.0, 10.0, 11.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0))
    hasty = Effort(orders=1, wanted_seconds=8.0)
    for effort, priced in (
        (QUICK, [1.0, 2.0]),
        (Effort(orders=1), [3.0, 4.0]),
        (Effort(1, 1), [6.0]),
        (hasty, [8.0]),
    ):
        with (
            patch.object(greedies, "StageOptions"),
            patch.object(greedies, "_orders", return_value=iter([[0]] * 50)),
            patch.object(greedies, "_Layers") as layers,
            patch.object(greedies, "score", side_effect=lambda *item: None) as score,
        ):
            layers.return_value.climbed.side_effect = lambda end: end
            layers.return_value.best.side_effect = lambda: (
                None if (end := next(ends)) is None else SimpleNamespace(seconds=end, options=end)
            )
            assert greedy(choices[0], None, MEGATRON, effort=effort) is None  # type: ignore[arg-type]
        assert [call.args[2] for call in score.call_args_list] == priced


@pytest.mark.parametrize(
    ("depth", "devices", "priced", "swaps"), [(4, 2000, 13, 66), (50, 64, 2, 8), (16, 131_000, 2, 2)]
)
def test_large_plans_of_open_choices_are_fewer(depth: int, devices: int, priced: int, swaps: int) -> None:
    """A thousand devices count as much as a stage."""
    first, choice = first_plans(), replace(open_choice().choice, depth=depth)
    first.explorer.estimator = cast(
        "Estimator",
        SimpleNamespace(topology=SimpleNamespace(device_types=[SimpleNamespace(devices=devices / 2)] * 2)),
    )
    with patch.object(first.explorer, "partition"), patch.object(first, "_plan") as plan:
        first.of_open(choice)
    effort = plan.call_args.args[2]
    assert (effort.orders, effort.priced, effort.swaps) == (4, priced, swaps)


def test_common_times_that_are_tried() -> None:
    """Eight, from the least at which all layers are held."""
    stages = options((pool("a", per_node=2), pool("b", "V100", per_node=2)), 4, layers=24)
    layers = _Layers(stages, [0, 0, 1, 1])
    with patch.object(layers, "_trimmed", side_effect=lambda counts: [counts]) as trimmed:
        layers.best()
    totals = [sum(call.args[0]) for call in trimmed.call_args_list]
    assert len(totals) == 8
    assert totals[0] >= 24 > 0
    assert totals == sorted(totals)


def test_orders_of_many_device_types() -> None:
    """A thousand of those of the fastest and of the largest ones, each both ways."""
    talks: list[tuple[int, ...]] = []
    stages = SimpleNamespace(
        choice=SimpleNamespace(depth=7, interleave=1),
        compositions=[(SimpleNamespace(pool=str(number)),) for number in range(7)],
        divided={},
        option=lambda *_: SimpleNamespace(busy_seconds=1.0),
        most_layers=lambda *_: 1,
        talks=lambda slots: talks.append(slots),
    )
    fastest, largest = (dict.fromkeys(order, 1) for order in (range(7), reversed(range(7))))
    with patch.object(greedies, "_filled", side_effect=(fastest, fastest, largest)):
        assert list(_orders(cast("StageOptions", stages))) == []
    assert len(talks) == 1000 * 2 * 2


@pytest.mark.parametrize(("every", "tries"), [(0, 250), (251, 250), (250, 1000), (240, 1000), (1, 1000)])
def test_plans_near_a_good_one(every: int, tries: int) -> None:
    """250 without a faster one, a thousand in all."""
    search, asked = near_search(), list[int]()

    def scored(*_: object) -> Scored | None:
        asked.append(0)
        if not every or len(asked) % every:
            return None
        estimate = replace(search.best.estimate, step_seconds=search.best.estimate.step_seconds * 0.999)
        return replace(search.best, estimate=estimate)

    with (
        patch.object(search._layering, "scored", scored),
        patch.object(search, "_neighbours", return_value=[()] * 2000),
    ):
        search.run()
    assert len(asked) == search.tries == tries


@pytest.mark.parametrize(
    ("depth", "sorts", "rounds"), [(1, 2, 0), (4, 16, 10), (4, 17, 0), (64, 1, 10), (65, 1, 0)]
)
def test_rounds_of_the_first_incumbent(depth: int, sorts: int, rounds: int) -> None:
    """Ten, of pipelines with up to 64 stages times compositions."""
    first = first_plans()
    first._promising = Choice(family=FAMILY, depth=depth, interleave=1)
    stepped: list[float] = []
    stub = SimpleNamespace(
        stages=SimpleNamespace(compositions=[()] * sorts),
        closed=False,
        step=lambda incumbent, deadline: stepped.append(incumbent),
        best=None,
    )
    with (
        patch.object(first.explorer, "open_choice", return_value=stub),
        patch.object(first.explorer, "partition"),
    ):
        first.polish()
        assert len(stepped) == rounds
        stub.closed = True
        first.polish()
    assert len(stepped) == rounds


def test_nodes_of_an_ilp() -> None:
    """400 at first, then 4,000, then as many as it takes; to a twentieth of the gap."""
    opened_choice = open_choice()
    asked: list[tuple[float, int | None]] = []

    def solve(gap: float, nodes: int | None) -> Any:
        asked.append((gap, nodes))
        return SimpleNamespace(status="stopped", values=None, bound=float(len(asked)))

    node = replace(opened_choice._nodes[0], relaxed=True)
    for _ in range(5):
        opened_choice._nodes.clear()
        opened_choice._solve(
            cast("PipelineModel", SimpleNamespace(solve=solve)), node, opened_choice._effort(node)
        )
        (node,) = opened_choice._nodes
    assert asked == [(near(0.05 * 0.02), nodes) for nodes in (400, 4000, None, None, None)]
    assert (node.bound, node.solved) == (5.0, 5)
    opened_choice.incumbent = 100.0
    assert opened_choice._wanted() == pytest.approx(100.0 - 0.95 * 2.0)


def test_parts_that_are_many_are_left_to_one_ilp() -> None:
    """Where relaxations tell stages their devices, and these were as many as they may."""
    opened = open_choice()
    one = opened._nodes[0]
    parts = [Subset(assigned=((0, frozenset()), (number, frozenset()))) for number in range(2)]
    bounds = iter((3.5, inf))
    model = cast(
        "PipelineModel", SimpleNamespace(relaxed_bound=lambda: next(bounds), parts=lambda part: parts)
    )
    opened._told, opened._nodes = MOST_TOLD - 2, [replace(one, bound=4.0, number=7)]
    opened._relax(model, replace(one, bound=3.0))
    assert [node.bound for node in opened._nodes] == [3.5, 4.0, 3.5]
    opened._relax(model, heappop(opened._nodes))
    ((least, part, relaxed, solved),) = [
        (node.bound, node.part, node.relaxed, node.solved) for node in opened._nodes
    ]
    assert (least, part, relaxed, solved) == (3.5, Subset(), True, 0)


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize(
    ("target", "chunks", "schedule"), [("megatron", 2, "1f1b"), ("torch", 1, "zero-bubble")]
)
def test_one_ilp_finds_what_its_parts_find(target: str, chunks: int, schedule: Schedule, most: int) -> None:
    """Where the devices of stages are decided first; whenever one takes the place of the others."""
    kinds = {"a": "A100", "b": "V100", "c": "V100"}
    pools = (pool(name, gpu, per_node=4, cards=1, gbps=10) for name, gpu in kinds.items())
    estimator = Estimator(cluster(*pools), gpt(11, 1024, 16, global_batch=32))
    family = Family(target=target, zero=1, recompute="none", tp=1, dp=2, batch=4, micro_batches=8)
    choice = Choice(family=family, depth=4, interleave=chunks, schedule=schedule)
    found = []
    for limit in (10**9, most):
        with patch.object(pipelines, "MOST_TOLD", limit), patch.object(branching, "FEW_OPTIONS", 0):
            opened = OpenChoice(
                choice, estimator, Limits(gap=0.0), cutoff_seconds=float("inf"), bound_seconds=0.0
            )
            while not opened.closed:
                opened.step(float("inf"))
        assert opened.best is not None
        assert most < opened._told if limit > most else opened._told == most
        found.append((opened.best.estimate.step_seconds, opened.bound))
    assert found[0] == (near(found[1][0]), near(found[1][1]))


@pytest.mark.parametrize(
    ("chunks", "schedule", "told"), [(1, "1f1b", 1), (1, "zero-bubble", 2), (2, "1f1b", 2), (2, "zb-v", 2)]
)
def test_stages_are_told_their_devices(chunks: int, schedule: Schedule, told: int) -> None:
    """Where the critical path is another for each order of them, and the options are not few."""
    pools = (pool("a", nodes=2, per_node=4), pool("b", "V100", per_node=4))
    family = Family(target="torch", zero=1, recompute="none", tp=1, dp=2, batch=4, micro_batches=8)
    choice = Choice(family=family, depth=4, interleave=chunks, schedule=schedule)
    stages = StageOptions(choice, Estimator(cluster(*pools), gpt(16, global_batch=32)), Limits())
    with patch.object(branching, "FEW_OPTIONS", 0):
        model = PipelineModel(stages, 1e3)
    assert [len(by_key) for by_key in model.branching._by_stage] == [told] * 4
    with patch.object(branching, "FEW_OPTIONS", 10**9):
        few = PipelineModel(stages, 1e3)
    assert [len(by_key) for by_key in few.branching._by_stage] == [1] * 4


def open_choice() -> OpenChoice:
    """A pipeline of four stages, to be solved to a gap of 2 %."""
    stages = options((pool("a", per_node=2), pool("b", "V100", per_node=2)), 4)
    limits = Limits(tp=(1,), recompute=("none",), gap=0.02)
    return OpenChoice(stages.choice, stages.estimator, limits, cutoff_seconds=1e9, bound_seconds=0.0)


def relaxed_once(cutoff_seconds: float, kept: KeptPrograms) -> OpenChoice:
    """A choice after its first round, whose node is not closed by it."""
    first = open_choice()
    found = OpenChoice(
        first.choice,
        first.estimator,
        Limits(tp=(1,), recompute=("none",), gap=0.02),
        cutoff_seconds=cutoff_seconds,
        bound_seconds=0.0,
        kept=kept,
    )
    found.step(cutoff_seconds)
    assert (found.rounds, found.closed) == (1, False)
    return found


def test_programs_of_the_choices_relaxed_last_are_kept() -> None:
    """As many as allowed, as long as the cutoff stays; another process keeps its own."""
    kept = KeptPrograms()
    with patch.object(pipelines, "MOST_KEPT", 2):
        first, second, third = (relaxed_once(1e3, kept) for _ in range(3))
    assert first._model is None
    assert second._model is not None
    assert third._model is not None
    for choice, cutoff, again in ((first, 1e3, True), (second, 1e3, False), (third, 0.999e3, True)):
        with patch("planner.search.pipeline.PipelineModel", wraps=PipelineModel) as built:
            choice.step(cutoff)
        assert built.called == again
        # A second round may leave cuts, which are kept as long as the choice is open.
        assert choice not in kept._choices
    assert pickle.loads(pickle.dumps(kept))._choices == {}


@pytest.mark.parametrize(("ways", "expected"), [((8, 8), 0.5), ((5, 13), 0.0), ((65,), 0.0)])
def test_device_types_that_may_exchange(ways: tuple[int, ...], expected: float) -> None:
    """Of 64 ways to choose them the least, a fourth of it for each of four steps; of more nothing is known."""
    islands = SimpleNamespace(
        _all=list(range(len(ways))),
        _leaders=lambda box, island: [(island, number) for number in range(ways[island])],
        _exchange=lambda leaders, islands, box: 2.0 + sum(number for _, number in leaders),
        choice=SimpleNamespace(sync=SimpleNamespace(every=4)),
    )
    assert IslandShares._least_exchange(cast("IslandShares", islands), Box((), ())) == expected
    if len(ways) == 2:
        islands._all, islands._islands = None, lambda counts: [0, 1] if counts else [0]
        assert IslandShares._least_exchange(cast("IslandShares", islands), Box((1,), ())) == expected
        assert IslandShares._least_exchange(cast("IslandShares", islands), Box((), ())) == 0.0


@pytest.mark.parametrize(("unfit", "sizes"), [((), 2), ((0,), 3), ((0, 1), 4), ((1,), 3)])
def test_groups_of_the_first_good_plans(unfit: tuple[int, ...], sizes: int) -> None:
    """Two of which something fits; until then plans come until half a second after the limit."""
    explorer, families = opened()
    first, partition = FirstPlans(explorer), explorer.partition(families[0])
    every = [
        group.first.micro_batch
        for group in sorted(grouped(families), key=lambda group: quick._promised_seconds(group, partition))
    ]
    assert len(every) == 4
    asked: list[tuple[int | None, bool]] = []

    def of_family(family: Family) -> float:
        asked.append((family.micro_batch, not first._good))
        return inf if every.index(family.micro_batch) in unfit else 1.0

    explorer.cutoff_seconds = 1e9
    with patch.object(first, "of_family", of_family), patch.object(first, "_shallowest", return_value=1):
        first.promising((group, partition) for group in grouped(families))
    assert [*dict.fromkeys(size for size, _ in asked)] == every[:sizes]
    fitting = [every.index(size) not in unfit for size, _ in asked]
    # Time counts from the first plan that fits on.
    assert [late for _, late in asked] == [not any(fitting[:number]) for number in range(len(asked))]
