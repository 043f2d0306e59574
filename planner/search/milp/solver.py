"""HiGHS on arrays, and CBC through PuLP where HiGHS is missing: one deterministic call for both."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread, current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.frozen import dataclass
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.milp.program import Program

TOLERANCE = 1e-6
"""Relative slack granted to the solvers' floating-point arithmetic when a bound is read off."""

FEASIBILITY = 1e-9
"""How far an ILP's rows may be off. Updates of parameters are 1e-8 of a step: at HiGHS's own 1e-6 its presolve drops
solutions that are up to 1 % better than the one that it calls optimal."""

EXACT = ("mip_feasibility_tolerance", "primal_feasibility_tolerance", "dual_feasibility_tolerance")
"""Options of HiGHS."""

WITHOUT_HEURISTICS = {
    "mip_heuristic_effort": 0.0,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_allow_restart": False,
}
"""Options of HiGHS; versions that lack one ignore it. Quick plans come before every ILP: its own search for plans, and
starting over with fewer columns, would take three to six times as long as the tree of the proof."""

PRESOLVE_SECONDS = 10.0
"""Time after which a presolve is given up. Those of the programs here take well under a second, but that of HiGHS may
never end (1.12 to 1.15 do so on some of them, 1.16 not on the same): it then looks at no limit and at no Ctrl-C."""

GRACE_SECONDS = 2.0
"""Time for which a presolve may go on after the deadline."""

POLL_SECONDS = 0.1
"""Time between two looks at a presolve."""

Values = NDArray[np.float64]
"""Of all columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What a solver said of a program."""

    status: str
    """``optimal``, ``infeasible`` or ``stopped``."""
    bound: float
    """No solution has a smaller objective."""
    values: Values | None
    """The best solution, if there is one."""


class Unsolved(Exception):  # noqa: N818  # not an error of the user's
    """The solver gave up: nothing is proven, not even that there is no solution."""


class Stuck(Exception):  # noqa: N818  # not an error of the user's
    """A presolve does not end: it goes on in a thread of its own, which nothing can stop."""


@cache
def available() -> tuple[str, ...]:
    """Names of the solvers that can run here, best first."""
    names = ["highs"] if importlib.util.find_spec("highspy") else []
    return (*names, "cbc") if _cbc().available() else tuple(names)


@cache
def default() -> str:
    """The solver that is taken where none is named; CBC is not looked for where HiGHS is here."""
    return "highs" if importlib.util.find_spec("highspy") else available()[0]


def solve(
    program: Program,
    *,
    gap: float,
    nodes: int | None = None,
    deadline: Deadline = NO_LIMIT,
    solver: str | None = None,
) -> Solved:
    """Minimise a program to a relative ``gap`` with one thread and a fixed seed, or stop after ``nodes``.

    At the deadline it stops with what it has.
    """
    if (solver or default()) == "cbc":
        return _by_cbc(program, gap, deadline)
    for presolve in ("choose", "off"):
        highs = _Highs(program, whole=True)
        limit = {} if nodes is None else {"mip_max_nodes": nodes}
        time = {} if deadline.left == float("inf") else {"time_limit": _limit(deadline)}
        highs.set(**dict.fromkeys(EXACT, FEASIBILITY), **WITHOUT_HEURISTICS, presolve=presolve)
        highs.set(mip_rel_gap=gap, mip_abs_gap=0.0, **limit, **time)
        try:
            status = highs.run(deadline)
        except Stuck:
            continue
        return _said(program, highs, status)
    return Solved(status="stopped", bound=-float("inf"), values=None)


def _said(program: Program, highs: _Highs, status: str) -> Solved:
    """What HiGHS found in a program."""
    info = highs.model.getInfo()
    if status in _INFEASIBLE:
        return Solved(status="infeasible", bound=float("inf"), values=None)
    bound = info.mip_dual_bound if any(program.whole) else info.objective_function_value
    has_solution = abs(info.objective_function_value) < float("inf") and status not in _NOTHING
    return Solved(
        status="optimal" if status == "kOptimal" else "stopped",
        bound=bound,
        values=highs.values() if has_solution else None,
    )


def exact(program: Program) -> Solved:
    """The optimum of a small program, or that there is none; raises Unsolved where the solver cannot tell."""
    solved = solve(program, gap=0.0)
    if solved.values is None and solved.status != "infeasible":
        raise Unsolved
    return solved


class Relaxation:
    """A program without its integrality, solved again and again from the last basis."""

    def __init__(self, program: Program, solver: str | None = None) -> None:
        self.program, self.solver = program, solver or default()
        self.values: Values = np.zeros(len(program.names))
        """The last solution."""
        self._highs: _Highs | None = None

    def solve(self, deadline: Deadline) -> float:
        """The objective with the bounds and rows that the program has now; raises ``Struck`` at the deadline.

        Infinite where nothing is feasible, 0 where the solver cannot tell; then there is no new solution.
        """
        deadline.check()
        if self.solver == "cbc":
            return self._by_cbc(deadline)
        if self._highs is None:
            self._highs = _Highs(self.program, whole=False)
        else:
            self._highs.follow()
        # Above its column's bound nothing is feasible: known well before the simplex has the rows that prove it.
        self._highs.set(objective_bound=self.program.upper[0] * (1 + TOLERANCE))
        status = self._highs.run(deadline)
        deadline.check()
        if status not in (*_INFEASIBLE, "kOptimal"):
            self._highs.model.clearSolver()
            status = self._highs.run(deadline)
            deadline.check()
        if status in _INFEASIBLE:
            return float("inf")
        if status != "kOptimal":
            return 0.0
        self.values = self._highs.values()
        return float(self._highs.model.getInfo().objective_function_value)

    def _by_cbc(self, deadline: Deadline) -> float:
        import pulp

        problem, variables = as_pulp(self.program, relaxed=True)
        problem.solve(_cbc(timeLimit=_limit(deadline)))
        deadline.check()
        if problem.status == pulp.LpStatusInfeasible:
            return float("inf")
        self.values = _values(variables)
        return float(pulp.value(problem.objective))


_INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible", "kObjectiveBound")
"""Statuses of HiGHS; no program here is unbounded, and the objective is a column with a bound."""

_NOTHING = ("kNotset", "kLoadError", "kModelError", "kPresolveError", "kSolveError", "kPostsolveError")
"""Statuses of HiGHS that come without a solution."""


class _Watch:
    """What HiGHS asks again and again inside a solve, which is also where Python gets to notice Ctrl-C.

    It knows no model: Python does not see that HiGHS holds what it asks, so a model in it would never be freed.
    """

    def __init__(self) -> None:
        self.deadline = NO_LIMIT
        self.asked = self.interrupted = False

    @contextmanager
    def noting_interrupts(self) -> Iterator[None]:
        """Ctrl-C is handled at the end of the block: an exception in ``ask`` can end the process, or be lost."""
        handler = signal.getsignal(signal.SIGINT)
        if current_thread() is not main_thread() or not callable(handler):
            yield
            return
        noted = False

        def note(_number: int, _frame: FrameType | None) -> None:
            nonlocal noted
            noted = self.interrupted = True

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
        if noted:
            self.interrupted = False
            signal.raise_signal(signal.SIGINT)

    def ask(self, _kind: Any, _message: Any, _output: Any, answer: Any, _data: Any) -> None:
        """Whether the solve has to end."""
        self.asked = True
        answer.user_interrupt = self.interrupted or self.deadline.struck


class _Highs:
    """HiGHS with a program's arrays, which stops at a deadline."""

    def __init__(self, program: Program, *, whole: bool) -> None:
        import highspy

        self.program, self.whole = program, whole
        self.watch = _Watch()
        # From 1.16 on a callback prints a line, unless told first not to; what highspy puts around this one has some.
        self.model: Any = highspy.Highs.__base__()
        self.set(output_flag=False, threads=1, random_seed=0)
        self.model.setCallback(self.watch.ask, None)
        asks = highspy.cb.HighsCallbackType
        for kind in (asks.kCallbackMipInterrupt, asks.kCallbackSimplexInterrupt):
            self.model.startCallback(kind)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(program.names), program.rows
        # The objective is the first column.
        lp.col_cost_ = np.eye(1, len(program.names)).ravel()
        lp.col_lower_, lp.col_upper_ = program.bounds()
        lp.row_lower_, lp.row_upper_ = np.array(program.least), np.array(program.most)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(program.starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(program.columns, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(program.factors)
        if whole:
            kinds = highspy.HighsVarType
            lp.integrality_ = [kinds.kInteger if one else kinds.kContinuous for one in program.whole]
        self.model.passModel(lp)
        self._rows = program.rows
        self._all = np.arange(len(program.names), dtype=np.int32)

    def set(self, **options: Any) -> None:
        """Options by their names in HiGHS."""
        for name, value in options.items():
            self.model.setOptionValue(name, value)

    def follow(self) -> None:
        """Take over the bounds that the program has now, and rows that came since."""
        program = self.program
        self.model.changeColsBounds(len(self._all), self._all, *program.bounds())
        if self._rows < program.rows:
            first = program.starts[self._rows]
            self.model.addRows(
                program.rows - self._rows,
                np.array(program.least[self._rows :]),
                np.array(program.most[self._rows :]),
                len(program.columns) - first,
                np.array(program.starts[self._rows : -1], dtype=np.int32) - first,
                np.array(program.columns[first:], dtype=np.int32),
                np.array(program.factors[first:]),
            )
            self._rows = program.rows

    def run(self, deadline: Deadline) -> str:
        """The status in HiGHS; raises KeyboardInterrupt when it came meanwhile, Stuck where presolve does not end."""
        self.watch.deadline = deadline
        if self.whole:
            self._run_apart(deadline)
        else:
            with self.watch.noting_interrupts():
                self.model.run()
        if self.watch.interrupted:
            raise KeyboardInterrupt
        return str(self.model.getModelStatus().name)

    def _run_apart(self, deadline: Deadline) -> None:
        """Run in a thread, which is left behind when presolve, the only part that never asks, takes too long."""
        thread = Thread(target=self.model.run, daemon=True)
        thread.start()
        until = monotonic() + min(PRESOLVE_SECONDS, deadline.left + GRACE_SECONDS)
        while thread.is_alive():
            try:
                thread.join(None if self.watch.asked else POLL_SECONDS)
            except KeyboardInterrupt:
                self.watch.interrupted = True
            if self.watch.interrupted or deadline.interrupted:
                until = min(until, monotonic() + GRACE_SECONDS)
            if thread.is_alive() and not self.watch.asked and monotonic() > until:
                if self.watch.interrupted:
                    raise KeyboardInterrupt
                raise Stuck

    def values(self) -> Values:
        """The solution."""
        return np.array(self.model.getSolution().col_value)


def as_pulp(program: Program, *, relaxed: bool = False) -> tuple[Any, list[Any]]:
    """The same program as a problem of PuLP, for people and for other solvers, and its variables."""
    import pulp

    problem = pulp.LpProblem(program.name, pulp.LpMinimize)
    variables = [
        problem.add_variable(name, lowBound=lower, upBound=None if upper == float("inf") else upper)
        for name, lower, upper in zip(program.names, program.lower, program.upper, strict=True)
    ]
    for variable, whole in zip(variables, program.whole, strict=True):
        if whole and not relaxed:
            variable.cat = pulp.LpInteger
    problem += variables[0]
    for row, (first, end) in enumerate(zip(program.starts, program.starts[1:], strict=False)):
        least, most = program.least[row], program.most[row]
        terms = pulp.LpAffineExpression(
            [(variables[program.columns[at]], program.factors[at]) for at in range(first, end)]
        )
        if least == most:
            problem += terms == least
            continue
        if least > -float("inf"):
            problem += terms >= least
        if most < float("inf"):
            problem += terms <= most
    return problem, variables


def write_lp(program: Program, path: Path) -> None:
    """The program as an LP file."""
    as_pulp(program)[0].writeLP(str(path))


def _values(variables: list[Any]) -> Values:
    return np.array([variable.value() or 0.0 for variable in variables])


def _cbc(**options: Any) -> Any:
    """The CBC that comes with PuLP, or the one on the PATH."""
    import pulp

    path = getattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", None)
    return pulp.COIN_CMD(path=path, msg=False, threads=1, **options)


def _limit(deadline: Deadline) -> float | None:
    """Seconds for a program of its own; None for no limit."""
    return None if deadline.left == float("inf") else max(0.01, deadline.left)


def _by_cbc(program: Program, gap: float, deadline: Deadline) -> Solved:
    """CBC tells no bound through PuLP: what it stopped at, less the gap, is one."""
    import pulp

    problem, variables = as_pulp(program)
    options = ["randomCbcSeed 1", "randomSeed 1"]
    problem.solve(_cbc(gapRel=gap, timeLimit=_limit(deadline), options=options))
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(status="infeasible", bound=float("inf"), values=None)
    if problem.sol_status != pulp.LpSolutionOptimal:
        has = problem.sol_status == pulp.LpSolutionIntegerFeasible
        return Solved(status="stopped", bound=0.0, values=_values(variables) if has else None)
    value = float(pulp.value(problem.objective))
    return Solved(status="optimal", bound=value - abs(value) * gap, values=_values(variables))
