"""The end of a search: by time, by the user's wish, and parts of it."""

from __future__ import annotations

import os
import random
import signal
import threading
from math import inf
from time import monotonic
from unittest.mock import patch

import pytest

from planner.cost.estimate import Estimator
from planner.search.deadline import NO_LIMIT, Deadline, Struck, Wish, keeping_the_best
from planner.search.explorer import Explorer
from planner.search.milp.program import Program
from planner.search.milp.solver import Relaxation, available, solve
from planner.search.solve import search
from planner.search.values import Limits, Scored, Silent
from tests.quick import first
from tests.worlds import cluster, gpt, pool


class Asked:
    """A user who has pressed Ctrl-C, or has not."""

    def __init__(self, asked: bool) -> None:
        self.asked = asked

    def is_set(self) -> bool:
        """What the user wants."""
        return self.asked


def test_a_share_of_cpu_time_ends_it_too() -> None:
    """What the process computes counts, not what it waits; without a limit there is no share."""
    with patch("planner.search.deadline.process_time") as clock:
        clock.return_value = 10.0
        share = Deadline.after(60.0).within(2.0)
        assert not share.struck
        clock.return_value = 11.9
        assert not share.within(5.0).struck
        clock.return_value = 12.1
        assert share.struck
        assert share.within(5.0).struck
        assert not Deadline.after(60.0).struck
        assert not NO_LIMIT.within(-1.0).struck


def test_no_limit_never_strikes() -> None:
    """Nor has a part of it an end."""
    for free in (NO_LIMIT, Deadline.after(None), NO_LIMIT.part(0.1)):
        assert (free.struck, free.left, free.interrupted) == (False, inf, False)
        free.check()


def test_it_counts_from_the_start_it_is_given() -> None:
    """A second, three quarters of which have passed, has a quarter left, and half of that is an eighth."""
    with patch("planner.search.deadline.monotonic", return_value=100.0):
        limit = Deadline.after(1.0, since=99.25)
        assert (limit.left, limit.struck) == (0.25, False)
        assert limit.part(0.5).left == 0.125
    with patch("planner.search.deadline.monotonic", return_value=100.25):
        assert (limit.left, limit.struck, limit.interrupted) == (0.0, True, False)
        assert limit.part(0.5).struck


def test_the_users_wish_strikes_at_once_and_reaches_every_part() -> None:
    """However much time is left."""
    wish = Asked(False)
    limit = Deadline.after(1000.0, flag=wish)
    part = limit.part(0.5)
    assert not part.struck
    wish.asked = True
    assert (part.struck, part.interrupted, limit.interrupted) == (True, True, True)
    with pytest.raises(Struck):
        part.check()
    assert Deadline.after(0.0, since=monotonic() - 1).struck


class After:
    """A user who presses Ctrl-C once the search has asked so many times."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    def is_set(self) -> bool:
        """True from the given check on."""
        self.left -= 1
        return self.left < 0


SPEC = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
MODEL = gpt(8, 1024, 8, global_batch=8)


@pytest.fixture(scope="module")
def optimum() -> float:
    """Seconds of the fastest plan of all."""
    best = search(SPEC, MODEL, limits=Limits(gap=0.0), explain=False).best
    assert best is not None
    return best.estimate.step_seconds


@pytest.mark.parametrize("checks", first(9, [0, 1, 2, 3, 5, 8, 34, 89, 233, 987, 13, 4000]))
def test_ctrl_c_at_any_check_keeps_the_best_plan_and_a_valid_bound(checks: int, optimum: float) -> None:
    """The plan is the last one that was told, and no bound is above the optimum."""
    told: list[Scored] = []
    flag = After(checks)
    found = search(SPEC, MODEL, deadline=Deadline.after(None, flag=flag), better=told.append)
    assert found.interrupted == (flag.left < 0)
    assert found.best == (told[-1] if told else None)
    assert found.bound_seconds <= optimum * (1 + 1e-6)
    assert found.reasons_error is None
    if checks >= 13:
        assert found.best is not None


def test_no_time_at_all_still_gives_a_plan_and_a_bound(optimum: float) -> None:
    """A few quick plans are tried whatever the time; the bound is that of the peak of all devices."""
    found = search(SPEC, MODEL, limits=Limits(time_limit_seconds=0.0))
    assert found.best is not None
    assert found.status == "feasible"
    assert 0 < found.bound_seconds <= optimum
    assert 0 < found.gap < 1


@pytest.mark.parametrize("checks", first(1, [300, 20]))
def test_a_search_goes_on_where_it_was_cut_off(checks: int, optimum: float) -> None:
    """Cut again and again, it ends with the same proof."""
    explorer = Explorer(Estimator(SPEC, MODEL), Limits(gap=0.0), Silent())
    for _ in range(10_000):
        explorer.go_on(Deadline(flag=After(checks)), float("inf"))
        assert explorer.bound <= optimum * (1 + 1e-6)
        if explorer.finished:
            break
        checks = int(checks * 1.3)  # opening is begun anew each time
    assert explorer.best is not None
    assert explorer.best.estimate.step_seconds == pytest.approx(optimum)
    assert explorer.status == "optimal"


def test_a_solver_ends_at_the_deadline() -> None:
    """In the middle of an ILP, with what it has, and in the middle of a relaxation with nothing."""
    chance = random.Random(1)
    program = Program("knapsacks")
    left = program.column("left")
    take = [program.column(f"x{index}", upper=1.0, whole=True) for index in range(120)]
    program.equal({left: 1.0, **{x: chance.random() for x in take}}, 120.0)
    for _ in range(40):
        program.row({x: chance.random() for x in take}, most=15.0)
    for deadline in (Deadline.after(0.3), Deadline(flag=After(3))):
        assert solve(program, gap=0.0, deadline=deadline, solver="highs").status == "stopped"
    for name in available():
        with pytest.raises(Struck):
            Relaxation(program, name).solve(Deadline(flag=After(0)))


@pytest.mark.slow
def test_real_signals_at_random_moments() -> None:
    """Five hundred times Ctrl-C, anywhere in a search: never anything but an interrupted or a finished answer."""
    chance = random.Random(5)
    exact = search(SPEC, MODEL, limits=Limits(gap=0.0), explain=False).best
    assert exact is not None
    for _ in range(500):
        wish = Wish()
        timer = threading.Timer(chance.uniform(0.0, 2.0), os.kill, (os.getpid(), signal.SIGINT))
        with keeping_the_best(wish):
            timer.start()
            found = search(SPEC, MODEL, limits=Limits(gap=0.0), deadline=Deadline(flag=wish))
            timer.cancel()
            timer.join()
        assert found.interrupted == wish.is_set() or not found.interrupted
        assert found.reasons_error is None
        assert found.bound_seconds <= exact.estimate.step_seconds * (1 + 1e-6)
        assert found.best is not None or found.interrupted


@pytest.mark.slow
def test_a_search_without_time_has_a_good_plan_and_a_bound_that_says_so() -> None:
    """Of a model that no device holds: within 10 % of an answer proven within 5 %, and proven within 30 %."""
    spec = cluster(pool("a", nodes=4), pool("b", "V100", nodes=8))
    model = gpt(48, 8192, 64, global_batch=512)
    with patch("planner.search.heuristics.quick.GRACE_SECONDS", 60.0):  # other tests may run beside this one
        at_once = search(spec, model, deadline=Deadline.after(0.0, since=monotonic() - 1), explain=False)
    whole = search(spec, model, limits=Limits(gap=0.05), explain=False)
    assert at_once.best is not None
    assert whole.best is not None
    assert at_once.best.estimate.step_seconds < 1.1 * whole.best.estimate.step_seconds
    assert at_once.bound_seconds <= whole.best.estimate.step_seconds
    assert at_once.gap < 0.3


def test_a_search_for_a_faster_plan_than_a_known_one_begins_nothing_without_time() -> None:
    """Explanations ask for such plans; the first plan of an answer comes whatever the time."""
    with patch("planner.search.heuristics.quick.greedy", return_value=None) as planned:
        for cutoff_seconds in (1e9, inf):
            explorer = Explorer(
                Estimator(SPEC, MODEL),
                Limits(pp=(2,)),
                Silent(),
                cutoff_seconds=cutoff_seconds,
                deadline=Deadline(at=0.0),
            )
            explorer.run()
            assert planned.called == (cutoff_seconds == inf)
