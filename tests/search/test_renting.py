"""Which machines to rent: the integer program against enumeration, and the search against all sets of machines."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path

import pytest

from planner.calibration.file import shipped
from planner.cluster.offers import OffersFile, load_offers, rented
from planner.cost.failures import Interruptions, goodput
from planner.model.file import load_model
from planner.search.milp.machines import Machines
from planner.search.milp.renting import Machine, Renting
from planner.search.objectives.choose import choose
from planner.search.objectives.renting import RentGoal, RentSearch
from planner.search.values import Goal, Limits
from tests.cli.running import MODEL

TOKENS = 1e9
OFFERS = """\
name: market
offers:
  - name: fast
    gpu: A100-SXM-40GB
    count: 2
    price_per_hour: 5
    provider: one
    region: east
    most: 2
    intra_node: nvlink3
    network: [{kind: infiniband, bandwidth_gbps: 100}]
  - name: taken
    gpu: A100-SXM-40GB
    count: 2
    price_per_hour: 2.5
    provider: one
    region: east
    most: 1
    spot: true
    interruptions_per_month: 30
    intra_node: nvlink3
    network: [{kind: infiniband, bandwidth_gbps: 100}]
  - name: slow
    gpu: V100-SXM-16GB
    price_per_hour: 1
    provider: two
    region: west
    most: 2
    network: [{kind: ethernet, bandwidth_gbps: 10}]
"""


def share(stops: float) -> float:
    """Goodput with a checkpoint of a minute and a restart of 15."""
    return goodput(stops, 60.0, 900.0)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3, 4, 5))]
)
def test_the_program_is_never_above_what_it_is_told(seed: int) -> None:
    """Random markets in which machines together do less than alone, and less than more of them do.

    Whatever was learnt, the bound holds for every set of machines; with all learnt it is the best of all sets.
    """
    draw = random.Random(seed)
    machines = [
        Machine(
            rate=draw.uniform(1e3, 1e4),
            price=draw.uniform(1, 20),
            most=draw.randint(1, 3),
            place=("p", str(index % 2)),
            stops=draw.choice([0.0, 1e-6, 1e-5]),
        )
        for index in range(4)
    ]
    sets = [
        counts
        for counts in product(*(range(each.most + 1) for each in machines))
        if any(counts)
        and len({each.place for each, count in zip(machines, counts, strict=True) if count}) == 1
    ]
    lost = draw.uniform(0.02, 0.2)

    def true_rate(counts: Machines) -> float:
        """Grows with every machine, by less and less."""
        rate = sum(count * each.rate for count, each in zip(counts, machines, strict=True))
        return rate * (1 - lost * (1 - 1 / sum(counts))) if sum(counts) else 0.0

    program = Renting(machines=machines, tokens=TOKENS, goodput=share)
    true = {
        counts: (
            TOKENS / true_rate(counts) / share(program.stops(counts)),
            program.price(counts) * TOKENS / true_rate(counts) / share(program.stops(counts)) / 3600,
        )
        for counts in sets
    }
    middle_money = sorted(money for _, money in true.values())[len(true) // 2]
    middle_time = sorted(seconds for seconds, _ in true.values())[len(true) // 2]

    def best(index: int, seconds: float, money: float) -> float:
        return min(
            (each[index] for each in true.values() if each[0] <= seconds and each[1] <= money),
            default=math.inf,
        )

    asked = [
        (math.inf, math.inf),
        (math.inf, middle_money),
        (middle_time, math.inf),
        (middle_time, middle_money),
    ]
    for learnt in (0, len(sets) // 3, len(sets)):
        for counts in draw.sample(sets, learnt):
            program.together.learn(counts, true_rate(counts))
            program.looked.add(counts)
        for seconds, money in asked:
            for index, wanted in ((0, "time"), (1, "money")):
                bound, _ = program.best(wanted, seconds, money)  # type: ignore[arg-type]
                assert bound <= best(index, seconds, money) * (1 + 1e-9)
                if learnt == len(sets) and best(index, seconds, money) < math.inf:
                    # Goodput is known at the searched sets alone, so between them it is nearly exact.
                    assert bound >= best(index, seconds, money) * 0.999


def test_the_goodput_of_all_machines_is_their_own() -> None:
    """What a single spot machine needs is known once it was searched: no money below that is left open."""
    machine = Machine(rate=1e3, price=2.0, most=1, place=("p", ""), stops=1.5e-6)
    program = Renting(machines=[machine], tokens=TOKENS, goodput=share)
    seconds = TOKENS / 1e3 / share(machine.stops)
    assert program.best("time")[0] <= seconds
    program.looked.add((1,))
    assert program.best("time")[0] == pytest.approx(seconds, rel=1e-6)
    money = machine.price * seconds / 3600
    assert program.best("time", math.inf, money * (1 + 1e-5))[1] == (1,)
    assert program.best("time", math.inf, money * (1 - 1e-5)) == (math.inf, None)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> tuple[OffersFile, Path]:
    """Offers, and the file of a small model."""
    folder = tmp_path_factory.mktemp("rent")
    (folder / "offers.yaml").write_text(OFFERS)
    (folder / "model.yaml").write_text(MODEL)
    return load_offers(folder / "offers.yaml"), folder / "model.yaml"


@pytest.mark.slow
def test_against_all_sets_of_machines(market: tuple[OffersFile, Path]) -> None:
    """The answer is as good as the best of all sets that can be rented, in time and in money, and its bound holds."""
    table, path = market
    model, stops = load_model(path), Interruptions(per_gpu_month=0.1)
    limits = Limits(gap=0.01, target="torch", zero=(1,), recompute=("none",))
    every = {}
    for counts in product(range(3), range(2), range(3)):
        if not any(counts) or (counts[2] and (counts[0] or counts[1])):
            continue
        names = ("fast", "taken", "slow")
        found = choose(
            rented(table, dict(zip(names, counts, strict=True))),
            model,
            shipped(),
            limits,
            Goal(),
            explain=False,
        )
        assert found.best is not None
        per_month = counts[0] * 0.2 + counts[1] * 30.2 + counts[2] * 0.1
        work = goodput(per_month / (30 * 86400), stops.checkpoint_seconds, stops.restart_seconds)
        seconds = TOKENS / found.best.estimate.tokens_per_second / work
        every[counts] = seconds, seconds / 3600 * (counts[0] * 5 + counts[1] * 2.5 + counts[2])
    budget = sorted(money for _, money in every.values())[len(every) // 2]
    for wanted, index in (("time", 0), ("money", 1)):
        goal = RentGoal(tokens=TOKENS, wanted=wanted, budget=budget, interruptions=stops)  # type: ignore[arg-type]
        answer = RentSearch(table, model, shipped(), limits, goal).run()
        least = min(each[index] for each in every.values() if each[1] <= budget)
        assert answer.status == "optimal"
        assert answer.best is not None
        assert answer.bound is not None
        assert answer.best.value(answer.wanted) <= least * 1.02
        assert answer.bound <= least * (1 + 1e-9)
        assert [point.price for point in answer.front] == sorted(point.price for point in answer.front)
        assert all(
            point.seconds <= before.seconds
            for before, point in zip(answer.front, answer.front[1:], strict=False)
        )
        assert all(point.gap <= 0.011 for point in answer.front)


@pytest.mark.slow
def test_out_of_reach(market: tuple[OffersFile, Path]) -> None:
    """Proven, with the least time for the money and the least money in time."""
    table, path = market
    goal = RentGoal(tokens=TOKENS, wanted="time", budget=1e-3, deadline_seconds=10.0)
    answer = RentSearch(table, load_model(path), shipped(), Limits(gap=0.02), goal).run()
    assert (answer.status, answer.best, answer.bound) == ("infeasible", None, None)
    assert answer.nearest
