"""The call of the solvers, with what they answer and without: statuses, bounds, limits and options."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from random import Random
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import highspy
import numpy as np
import pulp
import pytest

from planner.search.deadline import NO_LIMIT, Deadline, Wish, keeping_the_best
from planner.search.milp import renting, solver
from planner.search.milp.machines import SLACK
from planner.search.milp.program import Program, ones
from planner.search.milp.renting import Machine, Renting
from planner.search.milp.solver import FEASIBILITY, Relaxation, Solved, Unsolved, as_pulp, exact, solve
from tests.search.test_milp import knapsack

near: Any = pytest.approx
"""Inside tuples and lists too."""
HIGHS: Any = highspy.Highs.__base__
"""What solves, without what highspy puts around it."""


def answering(*statuses: str) -> Any:
    """HiGHS runs, and then says something else."""
    left, run = list(statuses), solver._Highs.run

    def say(self: solver._Highs, deadline: Deadline) -> str:
        run(self, deadline)
        return left.pop(0)

    return patch.object(solver._Highs, "run", say)


def test_a_relaxation_that_highs_cannot_tell() -> None:
    """It is solved once more from nothing; 0 and no new solution where that does not help either."""
    program = knapsack((2, 3, 5), (2, 2, 2), 3)
    for statuses, value, new in (
        (("kOptimal",), 3.5, True),
        (("kUnknown", "kOptimal"), 3.5, True),
        (("kUnknown", "kSolveError"), 0.0, False),
        (("kInterrupt", "kInterrupt"), 0.0, False),
        (("kUnknown", "kInfeasible"), inf, False),
        (("kUnboundedOrInfeasible",), inf, False),
    ):
        relaxed = Relaxation(program, "highs")
        with answering(*statuses):
            assert relaxed.solve(NO_LIMIT) == pytest.approx(value)
        assert list(relaxed.values) == pytest.approx([3.5, 1.0, 0.5, 0.0] if new else [0.0] * 4)


@pytest.mark.parametrize(
    ("said", "status", "solved"),
    [
        ("kOptimal", "optimal", True),
        ("kTimeLimit", "stopped", True),
        ("kSolveError", "stopped", False),
        ("kNotset", "stopped", False),
        ("kInfeasible", "infeasible", False),
    ],
)
def test_what_highs_says_of_a_program(said: str, status: str, solved: bool) -> None:
    """Stopped with a solution, stopped without one, or none at all; only the last is known to an exact call."""
    program = knapsack((5, 4, 3, 7), (2, 3, 1, 5), 6)
    with answering(said, said):
        found = solve(program, gap=0.0, solver="highs")
        assert (found.status, found.values is not None) == (status, solved)
        assert found.bound == (inf if status == "infeasible" else pytest.approx(10.0))
        if status == "stopped" and not solved:
            with pytest.raises(Unsolved):
                exact(program)
        else:
            assert exact(program).status == status


def test_a_gap_loosens_the_bound_and_not_the_value_of_a_relaxation() -> None:
    """Without whole columns the objective is the bound; with them the bound may be below the solution's."""
    program = knapsack((5, 4, 3, 7), (2, 3, 1, 5), 6)
    program.whole = [False] * 5
    found = solve(program, gap=0.5, solver="highs")
    # 4 for the three of the second, then three fifths of the fourth
    assert (found.status, found.bound) == ("optimal", near(8.2))
    assert found.values is not None
    assert found.values[0] == pytest.approx(8.2)


def test_options_of_highs() -> None:
    """One thread and a fixed seed, silent; the gap is relative, and limits are there where they are asked for."""
    program = knapsack((5, 4), (2, 3), 2)
    seen: list[dict[str, Any]] = []
    names = (
        "output_flag",
        "threads",
        "random_seed",
        "mip_rel_gap",
        "mip_abs_gap",
        "mip_max_nodes",
        "time_limit",
    )
    run = solver._Highs.run

    def look(self: solver._Highs, deadline: Deadline) -> str:
        exact = {self.model.getOptionValue(name)[1] for name in solver.EXACT}
        assert exact == {FEASIBILITY}
        seen.append({name: self.model.getOptionValue(name)[1] for name in names})
        return run(self, deadline)

    with (
        patch.object(solver._Highs, "run", look),
        patch("planner.search.deadline.monotonic", return_value=100.0),
    ):
        solve(program, gap=0.25, solver="highs")
        solve(program, gap=0.0, nodes=7, deadline=Deadline(at=105.0), solver="highs")
        solve(program, gap=0.0, deadline=Deadline(at=99.0), solver="highs")
    same = {"output_flag": False, "threads": 1, "random_seed": 0, "mip_abs_gap": 0.0}
    assert [{name: each[name] for name in same} for each in seen] == [same] * 3
    assert [each["mip_rel_gap"] for each in seen] == [0.25, 0.0, 0.0]
    assert [each["mip_max_nodes"] == 7 for each in seen] == [False, True, False]
    assert [each["time_limit"] for each in seen] == [inf, 5.0, 0.01]


def test_what_cbc_says_of_a_program() -> None:
    """Its bound is the objective less the gap, whatever its sign; nothing is known where it was stopped."""
    program = knapsack((5, 4), (2, 3), 2)
    solved = solve(program, gap=0.1, solver="cbc")
    assert (solved.status, solved.bound) == ("optimal", near(3.6))
    assert FEASIBILITY < 1e-6
    program.row(ones([0]), most=3.0)
    assert solve(program, gap=0.1, solver="cbc").status == "infeasible"
    for sol, values in ((pulp.LpSolutionIntegerFeasible, True), (pulp.LpSolutionNoSolutionFound, False)):
        problem, variables = as_pulp(knapsack((5, 4), (2, 3), 2))
        with (
            patch.object(problem, "solve"),
            patch.object(solver, "as_pulp", return_value=(problem, variables)),
        ):
            problem.sol_status = sol
            stopped = solve(program, gap=0.1, solver="cbc")
        assert (stopped.status, stopped.bound) == ("stopped", 0.0)
        assert (stopped.values is not None) == values


def test_rows_and_columns_of_an_exported_program() -> None:
    """Rows with two ends are two constraints, those of one value one, and columns without an end have none."""
    program = Program("small")
    program.column("cost")
    program.column("x", upper=2.0, whole=True)
    program.equal({0: -1.0, 1: 3.0}, 1.0)
    program.row({1: 1.0}, least=1.0, most=5.0)
    program.row({1: 2.0}, most=7.0)
    problem, (cost, x) = as_pulp(program)
    assert [(each.lowBound, each.upBound, each.cat) for each in (cost, x)] == [
        (0.0, None, "Continuous"),
        (0.0, 2.0, "Integer"),
    ]
    assert as_pulp(program, relaxed=True)[1][1].cat == "Continuous"
    rows = [(each.sense, -each.constant, dict(each)) for each in problem.constraints()]
    assert rows == [
        (pulp.LpConstraintEQ, 1.0, {cost: -1.0, x: 3.0}),
        (pulp.LpConstraintGE, 1.0, {x: 1.0}),
        (pulp.LpConstraintLE, 5.0, {x: 1.0}),
        (pulp.LpConstraintLE, 7.0, {x: 2.0}),
    ]
    assert problem.objective == cost


def machine(rate: float, price: float, most: int, **more: Any) -> Machine:
    """One of one place that never stops."""
    return Machine(**{"rate": rate, "price": price, "most": most, "place": ("here",), "stops": 0.0, **more})


def market(*machines: Machine, most: int | None = None) -> Renting:
    """With 3.6e6 tokens to train on."""
    return Renting(machines=machines, tokens=3.6e6, goodput=lambda stops: 1.0 - stops, most=most)


def test_a_market_by_hand() -> None:
    """Two at 100 tokens a second for 4 an hour, one at 50 for 1: time wants all, money the latter alone."""
    found = market(machine(100.0, 4.0, 2), machine(50.0, 1.0, 1))
    assert found.best("time") == (near(3.6e6 / 250 * (1 - SLACK), rel=1e-9), (2, 1))
    assert found.best("money") == (near(20.0 * (1 - SLACK), rel=1e-9), (0, 1))
    # 150 tokens a second are 24000 s, at 5 an hour.
    assert found.best("time", most_money=34.0) == (near(24000.0, rel=1e-6), (1, 1))
    assert found.best("money", most_seconds=24000.0) == (near(5.0 * 24000 / 3600, rel=1e-6), (1, 1))
    assert found.best("time", most_seconds=14000.0) == (inf, None)
    assert found.best("money", most_money=19.0) == (inf, None)
    assert found.price((2, 1)) == 9.0
    assert market(machine(0.0, 1.0, 3)).best("time") == (inf, None)
    assert market(machine(100.0, 4.0, 2), machine(50.0, 1.0, 1), most=1).best("time")[1] == (1, 0)


def test_places_and_stops_of_a_market() -> None:
    """Machines of two places never work together, and a set that was searched has its own goodput."""
    apart = market(machine(100.0, 4.0, 1), machine(90.0, 4.0, 2, place=("there",)))
    assert apart.best("time")[1] == (0, 2)
    stopping = market(machine(100.0, 1.0, 3, stops=0.1))
    # Three, which are all there are, have a step of their own; two, unsearched, that from 0.3 (9 / 12)^2 on.
    first, machines = stopping.best("time")
    assert machines == (3,)
    assert first == pytest.approx(3.6e6 / (300 * 0.7), rel=1e-5)
    stopping.together.learn((3,), 210.0)
    stopping.looked.add((3,))
    second, machines = stopping.best("time")
    assert (second, machines) == (near(3.6e6 / (200 * (1 - 0.3 * (9 / 12) ** 2)), rel=1e-5), (2,))
    stopping.together.learn((2,), 200.0)
    stopping.looked.add((2,))
    assert stopping.best("time")[0] == pytest.approx(3.6e6 / (200 * 0.8), rel=1e-5)
    assert stopping.needed((3,), 3.6e4, 1e9) == pytest.approx(100 / 0.7)
    assert stopping.needed((3,), 1e9, 60.0) == pytest.approx(3.6e6 / (20 * 3600) / 0.7)


def test_ratios_of_price_to_speed_that_are_tried() -> None:
    """The fastest machines' is the first; each next one is of better machines, until there are none."""
    calls: list[Solved] = []

    def count(program: Program) -> Solved:
        calls.append(exact(program))
        return calls[-1]

    with patch.object(renting, "exact", count):
        market(machine(100.0, 4.0, 2)).best("money")
        assert len(calls) == 2
        calls.clear()
        market(machine(100.0, 4.0, 2), machine(50.0, 1.0, 1)).best("money")
        assert len(calls) == 3


def test_ratios_end_where_the_solver_finds_ever_better_ones() -> None:
    """After fifty; what was found then is the answer."""
    # The objective, the rate, the pace, a machine, its place
    better = Solved(status="optimal", bound=0.0, values=np.array([0.0, 0.5, 0.5, 1.0, 1.0]))
    with patch.object(renting, "exact", return_value=better) as call:
        money, machines = market(machine(100.0, 4.0, 2)).best("money")
    assert (call.call_count, machines) == (51, (1,))
    # 4 an hour for half of 200 tokens a second
    assert money == pytest.approx(4.0 * 10, rel=1e-6)


def test_a_ratio_beyond_which_nothing_is_left() -> None:
    """It is the answer as it is: two machines at 8 an hour do 200 tokens a second."""
    answers: list[Callable[[Program], Solved]] = [
        exact,
        lambda program: Solved(status="infeasible", bound=inf, values=None),
    ]
    with patch.object(renting, "exact", lambda program: answers.pop(0)(program)):
        money, machines = market(machine(100.0, 4.0, 2)).best("money")
    assert (money, machines) == (near(40.0, rel=1e-6), (2,))


def test_the_least_rate_of_a_solution() -> None:
    """That of the slowest machine that does anything, or what the time asks for, as a share of the ceiling."""
    found = market(machine(0.0, 4.0, 2), machine(50.0, 1.0, 1), machine(100.0, 1.0, 1))
    assert found._least_rate(inf, 200.0) == 0.25
    assert found._least_rate(3.6e6 / 80, 200.0) == pytest.approx(0.4)
    assert found._least_rate(3.6e6 / 30, 200.0) == 0.25
    assert isinstance(found, Renting)
    assert np.isfinite(found.rate((1, 1, 1)))


def test_sets_that_do_the_same() -> None:
    """Machines of one kind and place take each other's part; those without a kind stand for themselves."""
    found = market(
        machine(1.0, 1.0, 2, kind="x"),
        machine(1.0, 2.0, 1, kind="x"),
        machine(1.0, 2.0, 2),
        machine(1.0, 2.0, 1),
    )
    assert found.together.kinds == ((0, 1), (2,), (3,))
    assert sorted(found.twins((1, 1, 1, 0))) == [(1, 1, 1, 0), (2, 0, 1, 0)]
    # Half of what each does at best: two of 1 a second are below what 1.2 needs, three are not.
    there = market(machine(1.0, 1.0, 1, place=("b",)), machine(1.0, 1.0, 1, place=("c",)))
    assert there.wider((1, 0), 0.1, 3.6e6, inf) == (1, 0)
    assert found.wider((1, 0, 0, 0), 0.5, 3.6e6 / 1.2, inf) == (2, 0, 0, 0)


def test_solvers_that_can_run_here() -> None:
    """HiGHS first where it is installed, CBC only where its program is there; no cache is asked."""
    for highs, cbc, every, first in (
        (True, True, ("highs", "cbc"), "highs"),
        (True, False, ("highs",), "highs"),
        (False, True, ("cbc",), "cbc"),
    ):
        program = SimpleNamespace(available=lambda cbc=cbc: cbc)
        spec = object() if highs else None
        with (
            patch("importlib.util.find_spec", return_value=spec),
            patch.object(solver, "_cbc", return_value=program),
            patch.object(solver, "available", solver.available.__wrapped__),
        ):
            assert solver.available() == every
            assert solver.default.__wrapped__() == first
    assert Relaxation(knapsack((5, 4), (2, 3), 2)).solver == "highs"
    asked = solver._cbc(gapRel=0.5)
    assert (asked.optionsDict["threads"], asked.optionsDict["gapRel"], asked.msg) == (1, 0.5, False)


def test_an_exact_call_leaves_no_gap() -> None:
    """And takes what is infeasible as an answer."""
    with patch.object(
        solver, "solve", return_value=Solved(status="infeasible", bound=inf, values=None)
    ) as call:
        assert exact(Program("none")).status == "infeasible"
    assert call.call_args.kwargs == {"gap": 0.0}


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_relaxation_with_rows_that_come_later(name: str) -> None:
    """Two at once, and one more; halves are allowed, and what is infeasible is told."""
    program = knapsack((2, 3, 5), (2, 2, 2), 3)
    relaxed = Relaxation(program, name)
    assert relaxed.solve(NO_LIMIT) == pytest.approx(3.5)
    program.row({1: 2.0}, most=1.0)
    program.row({2: 1.0, 3: 1.0}, least=1.25)
    assert relaxed.solve(NO_LIMIT) == pytest.approx(0.5 + 3.0 + 1.25)
    assert list(relaxed.values) == pytest.approx([4.75, 0.25, 1.0, 0.25])
    program.row({2: 1.0}, most=0.5)
    assert relaxed.solve(NO_LIMIT) == pytest.approx(0.5 + 1.5 + 3.75)
    program.row({1: 1.0}, least=2.0)
    assert relaxed.solve(NO_LIMIT) == inf


def test_highs_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Not even its name, which would be ahead of the ``--json`` document of a command."""
    program = knapsack((5, 4), (2, 3), 2)
    assert solve(program, gap=0.0, solver="highs").status == "optimal"
    assert Relaxation(program, "highs").solve(NO_LIMIT) < inf
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kept", [False, True])
def test_ctrl_c_inside_a_relaxation_comes_after_it(kept: bool) -> None:
    """An exception in what HiGHS asks would end the process, or be lost; who keeps the best plan hears of it."""

    class Pressed(Deadline):
        @property
        def struck(self) -> bool:
            signal.raise_signal(signal.SIGINT)
            return False

    chance, program = Random(1), Program("")
    left = program.column("left")
    take = [program.column(f"x{index}", upper=1.0) for index in range(120)]
    program.equal({left: 1.0, **{x: chance.random() for x in take}}, 120.0)
    for _ in range(40):
        program.row({x: chance.random() for x in take}, most=15.0)
    highs, wish, before = solver._Highs(program, whole=False), Wish(), signal.getsignal(signal.SIGINT)
    if kept:
        with keeping_the_best(wish):
            assert highs.run(Pressed()) == "kInterrupt"
    else:
        with pytest.raises(KeyboardInterrupt):
            highs.run(Pressed())
    assert wish.is_set() == kept
    assert signal.getsignal(signal.SIGINT) is before
    assert highs.run(NO_LIMIT) == "kOptimal"


def test_highs_asks_whether_to_stop() -> None:
    """Inside its own loops too."""
    started: list[Any] = []
    with patch.object(HIGHS, "startCallback", lambda _, kind: started.append(kind)):
        highs = solver._Highs(knapsack((5, 4), (2, 3), 2), whole=True)
    kinds = highspy.cb.HighsCallbackType
    assert started == [kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt]
    for deadline, stops in ((NO_LIMIT, False), (Deadline(at=0.0), True)):
        answer, highs.watch.deadline = SimpleNamespace(user_interrupt=None), deadline
        highs.watch.ask(None, None, None, answer, None)
        assert (answer.user_interrupt, highs.watch.interrupted) == (stops, False)


@pytest.fixture
def stuck() -> Iterator[list[str]]:
    """HiGHS does not end while the test runs, with these values of its option ``presolve``."""
    end, run, values = Event(), HIGHS.run, ["choose"]

    def wait(self: Any) -> object:
        return end.wait() if self.getOptionValue("presolve")[1] in values else run(self)

    with patch.object(HIGHS, "run", wait), patch.object(solver, "GRACE_SECONDS", 0.0):
        yield values
    end.set()


def test_a_presolve_that_does_not_end(stuck: list[str]) -> None:
    """The program is solved without it; nothing is known where that does not end either."""
    program = knapsack((5, 4, 3, 7), (2, 3, 1, 5), 6)
    with patch.object(solver, "PRESOLVE_SECONDS", 0.0):
        found = solve(program, gap=0.0, solver="highs")
    assert (found.status, found.bound) == ("optimal", near(10.0))
    stuck.append("off")
    late = solve(program, gap=0.0, deadline=Deadline(at=0.0), solver="highs")
    assert (late.status, late.bound, late.values) == ("stopped", -inf, None)


@pytest.mark.usefixtures("stuck")
def test_ctrl_c_in_a_presolve_that_does_not_end() -> None:
    """It is raised, as anywhere else; a flag that it sets ends the solve like a deadline."""
    program, asked = knapsack((5, 4), (2, 3), 2), Event()
    with patch.object(Thread, "join", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        solve(program, gap=0.0, solver="highs")
    asked.set()
    assert solve(program, gap=0.0, deadline=Deadline(flag=asked), solver="highs").status == "stopped"


def test_a_program_as_a_file(tmp_path: Path) -> None:
    """For people; variables without a value are 0."""
    program = knapsack((5, 4), (2, 3), 2)
    solver.write_lp(program, tmp_path / "model.lp")
    text = (tmp_path / "model.lp").read_text()
    assert "Minimize" in text
    assert "2 x0 + 3 x1 >= 2" in text
    assert solver._values(as_pulp(program)[1]).tolist() == [0.0, 0.0, 0.0]
