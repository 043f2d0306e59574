"""What a search for machines to rent does step by step, by hand: nothing is searched here."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.calibration.file import shipped
from planner.cluster.offers import OffersFile
from planner.cost.failures import MONTH_SECONDS, Interruptions, goodput
from planner.files.document import Document
from planner.files.nodes import parse
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.milp.machines import Kinds, Machines
from planner.search.milp.renting import Machine
from planner.search.objectives.renting import Rental, RentGoal, RentSearch, Unable
from planner.search.values import Limits, Scored
from tests.report import examples
from tests.search.test_renting import OFFERS
from tests.worlds import gpt, group, plan

near: Any = pytest.approx
"""Inside tuples and lists too."""


STOPS = Interruptions(per_gpu_month=0.1, checkpoint_seconds=60.0, restart_seconds=900.0)


@cache
def market() -> OffersFile:
    """Up to two nodes at 5 an hour and one that is taken away at 2.5, which do the same; two at 1 elsewhere."""
    return Document("offers", parse(OFFERS)).to(OffersFile)


@cache
def machines() -> tuple[Machine, ...]:
    """What is known of its offers."""
    goal = RentGoal(tokens=1e9, wanted="time", interruptions=STOPS)
    return tuple(RentSearch(market(), gpt(), shipped(), Limits(), goal).program.machines)


def rent(**goal: Any) -> RentSearch:
    """A search that has begun nothing."""
    asked = RentGoal(**{"tokens": 1e9, "wanted": "time", "interruptions": STOPS, **goal})
    with patch.object(RentSearch, "_machines", return_value=machines()):
        return RentSearch(market(), gpt(), shipped(), Limits(gap=0.01), asked, deadline=NO_LIMIT)


def rental(numbers: Machines, seconds: float, price: float, step: float = 1.0) -> Rental:
    """Of these machines."""
    return Rental(
        machines=(),
        provider="",
        region="",
        seconds=seconds,
        price=price,
        price_per_hour=1.0,
        goodput=1.0,
        gap=1.0,
        numbers=numbers,
        scored=examples.scored(step_seconds=step),
    )


def on_pool(name: str, nodes: int, step: float, tp: int = 1) -> Scored:
    """Data parallelism over all devices of so many machines of an offer."""
    offer = next(each for each in market().offers if each.name == name)
    replicas = group(name, str(offer.gpu), tp=tp, count=nodes * offer.count // tp)
    decided = plan("torch", 1, [24], [(replicas,)])
    return replace(examples.scored(step_seconds=step), plan=decided)


def test_what_is_known_of_offers() -> None:
    """Stops of all devices of a machine and of the offer's own, a second; nothing that cannot train is rented."""
    fast, taken, slow = rent().program.machines
    assert (fast.price, fast.most, fast.place, taken.most, slow.place) == (
        5.0,
        2,
        ("fast", "taken"),
        1,
        ("slow",),
    )
    assert fast.rate == taken.rate > slow.rate > 0
    assert [each.stops * MONTH_SECONDS for each in (fast, taken, slow)] == pytest.approx([0.2, 30.2, 0.1])
    assert fast.kind == taken.kind != slow.kind
    assert rent().program.together.kinds == ((0, 1), (2,))
    half = RentSearch(
        market(),
        gpt(precision="bf16"),
        shipped(),
        Limits(),
        RentGoal(tokens=1e9, wanted="time"),
        deadline=NO_LIMIT,
    )
    assert [each.most for each in half.program.machines] == [2, 1, 0]
    assert half.unable == [Unable(offer="slow", why="no bf16")]
    assert rent().unable == []


def test_machines_that_are_searched_first() -> None:
    """All of a kind, whatever their price, and the largest power of two of them."""
    for goal, expected in (
        ({}, [(2, 0), (3, 0), (0, 2)]),
        ({"most": 1}, [(1, 0), (0, 1)]),
    ):
        found, asked = rent(**goal), list[Kinds]()
        with patch.object(found, "_search", side_effect=lambda kinds, _, asked=asked: asked.append(kinds)):
            found._begin()
        assert asked == expected
        found.interrupted = True
        with patch.object(found, "_search") as search:
            found._begin()
        assert not search.called


def test_machines_that_do_the_same() -> None:
    """Those that none of them beats in price and stops: what is taken away often is cheaper, and stops more."""
    found = rent()
    assert found._twins((1, 0, 0)) == [(0, 1, 0), (1, 0, 0)]
    assert found._twins((3, 0, 0)) == [(2, 1, 0)]
    assert found._twins((0, 0, 2)) == [(0, 0, 2)]
    taken = replace(found.program.machines[1], price=6.0)
    found.program.machines = (found.program.machines[0], taken, found.program.machines[2])
    assert found._twins((2, 0, 0)) == [(2, 0, 0)]


def test_what_machines_of_a_place_do_together() -> None:
    """The middle of what several of them did of what each does at best; half where none were searched."""
    found = rent()
    assert found._efficiency((1, 1, 0)) == 0.5
    tokens = found.model.training.tokens

    def known(kinds: Kinds, share: float) -> None:
        seconds = tokens / share / found.program.rate((kinds[0], 0, kinds[1]))
        found.searched[kinds] = cast("Any", SimpleNamespace(bound_seconds=seconds))

    for kinds, share in (((2, 0), 0.7), ((3, 0), 0.6), ((1, 0), 0.1), ((0, 2), 0.2)):
        known(kinds, share)
    found.searched[0, 1] = cast("Any", SimpleNamespace(bound_seconds=0.0))
    assert found._efficiency((0, 1, 0)) == pytest.approx(0.65)
    assert found._efficiency((0, 0, 1)) == pytest.approx(0.2)


def test_what_is_kept_of_a_search() -> None:
    """The fastest plan of these machines, with its time and price, stops included."""
    found = rent()
    for step in (30.0, 20.0, 25.0):
        found._keep((1, 1, 0), on_pool("fast", 2, step))
    (kept,) = found.rentals.values()
    work = goodput(30.4 / MONTH_SECONDS, 60.0, 900.0)
    seconds = 1e9 / (256 * 2048 / 20.0) / work
    assert kept.scored.estimate.step_seconds == 20.0
    assert (kept.goodput, kept.seconds) == (near(work), near(seconds))
    assert (kept.price_per_hour, kept.price) == (7.5, near(7.5 * seconds / 3600))
    assert [(each.offer, each.machines) for each in kept.machines] == [("fast", 1), ("taken", 1)]
    assert (kept.provider, kept.region) == ("one", "east")
    found.program.goodput = lambda stops: 0.0
    found._keep((0, 0, 1), on_pool("slow", 1, 20.0))
    assert len(found.rentals) == 1


def test_what_a_plan_leaves_idle_is_not_rented() -> None:
    """All that do the same as the used ones are kept, each with the time and the price of its own."""
    found, idle = rent(), on_pool("fast", 2, 20.0)
    result = cast("Any", SimpleNamespace(best=idle, bound_seconds=1.0, interrupted=False))
    with (
        patch("planner.search.objectives.renting.search_further", return_value=(result, True)),
        patch.object(found, "_scored", side_effect=lambda _, plan: replace(idle, plan=plan)) as scored,
    ):
        assert found._search((3, 0), NO_LIMIT)
    assert [call.args[0] for call in scored.call_args_list] == [(2, 0, 0)]
    assert set(found.rentals) == {(2, 0, 0), (1, 1, 0)}
    assert found.rentals[1, 1, 0].price < found.rentals[2, 0, 0].price
    assert set(found.searched) == {(3, 0)}
    # The plan of the one that is reported stands on its own machines.
    own = found._own_plan((1, 1, 0), idle.plan)
    assert [(group.pool, group.count) for group in own.stages[0].replicas] == [("fast", 2), ("taken", 2)]
    wide = on_pool("fast", 2, 20.0, tp=4)
    found.rentals.clear()
    for machines in ((1, 1, 0), (2, 0, 0)):
        found._keep(machines, wide)
    assert set(found.rentals) == {(2, 0, 0)}, "a replica over two machines does not stand on two offers"


def test_the_best_of_what_was_found() -> None:
    """Within both limits, their ends included; of equal ones the cheaper, and a front of what none beats."""
    found = rent()
    rentals = [
        rental((1, 0, 0), 100.0, 10.0),
        rental((2, 0, 0), 50.0, 20.0),
        rental((0, 1, 0), 50.0, 25.0),
        rental((0, 0, 1), 100.0, 12.0),
        rental((0, 0, 2), 40.0, 30.0),
    ]
    found.rentals = {each.numbers: each for each in rentals}
    best = found._best("time", inf, inf), found._best("money", inf, inf), found._best("time", 60.0, 20.0)
    assert [each and each.numbers for each in best] == [(0, 0, 2), (1, 0, 0), (2, 0, 0)]
    assert found._best("time", 100.0, 10.0) is rentals[0]
    assert found._best("time", 99.0, 10.0) is found._best("time", 100.0, 9.0) is None
    assert [each.numbers for each in found._beats_all()] == [(1, 0, 0), (2, 0, 0), (0, 0, 2)]
    # What is hardly faster is no row of its own, unless it is the answer.
    found.rentals[2, 1, 0] = rental((2, 1, 0), 39.7, 31.0)
    found.most_seconds, found.goal = 39.8, replace(found.goal, wanted="money")
    assert [each.numbers for each in found._beats_all()][2:] == [(0, 0, 2), (2, 1, 0)]
    found.most_seconds = 41.0
    assert [each.numbers for each in found._beats_all()][2:] == [(0, 0, 2)]
    found.goal = replace(found.goal, wanted="time")
    assert found._gap(rentals[0], "time", 75.0) == 0.25
    assert found._gap(rentals[0], "money", 12.0) == 0.0
    known = ((None, inf), (None, 1.0), (rentals[4], 39.7), (rentals[4], 30.0))
    statuses = [found._status(each, bound) for each, bound in known]
    assert statuses == ["infeasible", "unknown", "optimal", "feasible"]


def asking(found: RentSearch, bounds: list[tuple[float, Machines | None]], looks: list[bool]) -> Any:
    """The program's answers and whether looks bring news, one after the other."""
    return (
        patch.object(type(found.program), "best", side_effect=bounds),
        patch.object(found, "_look", side_effect=looks),
    )


def test_when_a_question_is_answered() -> None:
    """Where bound and best agree to the gap, nothing is left to look at, nothing comes of it, or time is up."""
    for bounds, looks, asked, bound in (
        ([(90.0, (1, 0, 0)), (99.1, (1, 0, 0))], [True], 1, 99.1),
        ([(99.0, (1, 0, 0))], [], 0, 99.0),
        ([(98.9, (1, 0, 0))], [False], 1, 98.9),
        ([(inf, None)], [], 0, inf),
    ):
        found = rent()
        found.rentals = {(1, 0, 0): rental((1, 0, 0), 100.0, 10.0)}
        program, look = asking(found, bounds, looks)  # type: ignore[arg-type]
        with program, look as looked, patch.object(found.reporter, "progress") as told:
            value, best = found.ask("time", inf, inf, NO_LIMIT)
        assert (value, looked.call_count) == (bound, asked)
        assert [call.kwargs["bound_seconds"] for call in told.call_args_list] == [
            pytest.approx(each) for each, _ in bounds[: looked.call_count + 1]
        ]
        assert best is found.rentals[1, 0, 0]
    for searches, looked_at in ((0, 1), (1, 0)):
        found = rent()
        found.searches = searches
        program, look = asking(found, [(1.0, (1, 0, 0))], [False])
        with program, look as looked:
            assert found.ask("money", inf, inf, Deadline(at=0.0)) == (1.0, None)
        assert looked.call_count == looked_at


def test_what_is_looked_at() -> None:
    """More machines that should not be better first; where they are known, the stops of these alone are news."""
    for wanted, news, asked in (("time", True, [(3, 0)]), ("money", False, [(3, 0), (1, 0)])):
        found, searched, limits = rent(), list[Kinds](), list[tuple[float, float]]()

        def wider(
            _: object,
            machines: Machines,
            share: float,
            seconds: float,
            money: float,
            limits: list[tuple[float, float]] = limits,
        ) -> Machines:
            limits.append((seconds, money))
            return 2, 1, 0

        def search(kinds: Kinds, _: Deadline, searched: list[Kinds] = searched, news: bool = news) -> bool:
            searched.append(kinds)
            return news

        with patch.object(found, "_search", search), patch.object(type(found.program), "wider", wider):
            assert found._look((1, 0, 0), NO_LIMIT, wanted, 500.0, 60.0, 100.0) == news  # type: ignore[arg-type]
            assert searched == asked
            # Only what is better by more than the gap.
            assert limits == [(99.0, 60.0) if wanted == "time" else (500.0, 60.0)]
            found.searched[1, 0] = cast("Any", SimpleNamespace())
            assert found._look((0, 1, 0), NO_LIMIT, "time", 500.0, 60.0, 100.0)
            assert searched == asked
            assert (0, 1, 0) in found.program.looked
            assert found._look((0, 1, 0), NO_LIMIT, "time", 500.0, 60.0, 100.0) == news
            assert searched == [*asked, (1, 0)]


def test_the_nearest_where_nothing_keeps_the_limits() -> None:
    """The least money in time and the least time for the money; without either the least at all."""
    one = rental((1, 0, 0), 100.0, 10.0)
    for limits, asked in (
        ((5.0, 6.0), [("money", 5.0, inf), ("money", inf, inf), ("time", inf, 6.0), ("time", inf, inf)]),
        ((inf, 6.0), [("money", inf, inf), ("money", inf, inf)]),
        ((5.0, inf), [("time", inf, inf), ("time", inf, inf)]),
    ):
        found, log = rent(), list[tuple[object, ...]]()

        def ask(*call: Any, log: list[tuple[object, ...]] = log) -> Any:
            log.append(call[:3])
            return 1.0, one if len(log) % 2 == 0 else None

        with patch.object(found, "ask", ask):
            assert list(found._nearest(*limits)) == [one]
        assert log == asked


def test_a_front_is_searched_where_it_is_open_most() -> None:
    """Each point with how much faster machines as cheap may be; what brings nothing is not asked again."""
    found = rent()
    points = [rental((1, 0, 0), 100.0, 10.0), rental((2, 0, 0), 50.0, 20.0)]
    found.rentals = {each.numbers: each for each in points}
    bounds = {10.0: (90.0, (0, 1, 0)), 20.0: (49.9, (1, 1, 0))}
    looked: list[tuple[Machines, float]] = []

    def look(
        machines: Machines, _: Deadline, wanted: str, seconds: float, money: float, value: float
    ) -> bool:
        looked.append((machines, money))
        bounds[10.0] = (95.0, (0, 1, 0))
        return len(looked) < 3

    with (
        patch.object(found, "ask") as ask,
        patch.object(found, "_look", look),
        patch.object(type(found.program), "best", lambda _, wanted, seconds, money: bounds[money]),
    ):
        front = found._front()
    assert [call.args[:3] for call in ask.call_args_list] == [("money", inf, inf), ("time", inf, inf)]
    assert looked == [((0, 1, 0), 10.0)] * 3
    assert [(each.numbers, each.gap) for each in front] == [
        ((1, 0, 0), near(0.05)),
        ((2, 0, 0), near(0.002)),
    ]
