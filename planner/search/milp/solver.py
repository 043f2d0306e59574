"""HiGHS through PuLP, and CBC where HiGHS is missing: one deterministic call for both."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pulp

from planner.search.deadline import NO_LIMIT, Deadline

TOLERANCE = 1e-6
"""Relative slack granted to the solvers' floating-point arithmetic when a bound is read off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What a solver said of a model."""

    status: str
    """``optimal``, ``infeasible`` or ``stopped``."""
    bound: float
    """No solution has a smaller objective."""
    has_solution: bool


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS that may stop at a number of nodes, a status that PuLP does not know, or at a deadline.

    It asks again and again inside a solve, which is also where Python gets to notice Ctrl-C.
    """

    def __init__(self, deadline: Deadline, **options: Any) -> None:
        self.deadline = deadline
        self.interrupted = False
        asks = self.hscb.HighsCallbackType
        super().__init__(
            msg=False,
            threads=1,
            random_seed=0,
            callbackTuple=(self._ask, None),
            callbacksToActivate=[asks.kCallbackMipInterrupt, asks.kCallbackSimplexInterrupt],
            **options,
        )

    def _ask(self, _device_type: Any, _message: Any, _found: Any, answer: Any, _data: Any) -> None:
        try:
            answer.user_interrupt = self.deadline.struck
        except KeyboardInterrupt:  # must not leave through HiGHS
            self.interrupted = answer.user_interrupt = True

    def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802
        """Solve; raises KeyboardInterrupt when it came meanwhile."""
        self.run(lp.solverModel)

    def run(self, model: Any) -> None:
        """Solve a model of HiGHS; raises KeyboardInterrupt when it came meanwhile."""
        model.run()
        if self.interrupted:
            raise KeyboardInterrupt

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:  # noqa: N802
        """PuLP's statuses; the values are taken over before the status is looked up."""
        try:
            found: tuple[int, int] = super().findSolutionValues(lp)
        except KeyError:
            found = pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
        value = lp.solverModel.getInfo().objective_function_value
        if found[1] == pulp.LpSolutionIntegerFeasible and abs(value) == float("inf"):
            return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
        return found


@cache
def available() -> tuple[str, ...]:
    """Names of the solvers that can run here, best first."""
    found = ["highs"] if importlib.util.find_spec("highspy") else []
    return (*found, "cbc") if pulp.COIN_CMD(path=_cbc_path()).available() else tuple(found)


def _cbc_path() -> str | None:
    """The CBC that comes with PuLP; None looks for one on the PATH."""
    return getattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", None)


def solve(
    problem: pulp.LpProblem,
    *,
    gap: float,
    nodes: int | None = None,
    deadline: Deadline = NO_LIMIT,
    solver: str | None = None,
) -> Solved:
    """Minimise ``problem`` to a relative ``gap`` with one thread and a fixed seed, or stop after ``nodes``.

    At the deadline it stops with what it has.
    """
    name = solver or available()[0]
    if name == "highs":
        return _highs(problem, gap, nodes, deadline)
    return _cbc(problem, gap, deadline)


_INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible")
"""Statuses of HiGHS; no model here is unbounded."""


Relaxation = Callable[[Deadline], float]
"""Solves a model without its integrality."""


def relaxation(problem: pulp.LpProblem, solver: str | None = None) -> Relaxation:
    """A function that solves ``problem`` without its integrality, with the bounds that its variables have then.

    It gives the variables their values and returns the objective: infinite where nothing is feasible, 0 where
    the solver cannot tell; it raises ``Struck`` at the deadline. Rows must not be added in between: HiGHS goes on
    from the last basis.
    """
    if (solver or available()[0]) == "cbc":
        return lambda deadline: _relaxed_by_cbc(problem, deadline)
    made = _Highs(NO_LIMIT, mip=False)
    made.createAndConfigureSolver(problem)
    made.buildSolverModel(problem)
    highs, variables = problem.solverModel, problem.variables()
    columns = np.arange(len(variables), dtype=np.int32)

    def relaxed(deadline: Deadline) -> float:
        deadline.check()
        made.deadline = deadline
        lower = np.array([-np.inf if item.lowBound is None else item.lowBound for item in variables])
        upper = np.array([np.inf if item.upBound is None else item.upBound for item in variables])
        highs.changeColsBounds(len(columns), columns, lower, upper)
        made.run(highs)
        deadline.check()
        if highs.getModelStatus().name not in (*_INFEASIBLE, "kOptimal"):
            highs.clearSolver()
            made.run(highs)
            deadline.check()
        if highs.getModelStatus().name in _INFEASIBLE:
            return float("inf")
        if highs.getModelStatus().name != "kOptimal":
            return 0.0
        for variable, value in zip(variables, highs.getSolution().col_value, strict=True):
            variable.varValue = value
        return float(highs.getInfo().objective_function_value)

    return relaxed


def _relaxed_by_cbc(problem: pulp.LpProblem, deadline: Deadline) -> float:
    binary = [variable for variable in problem.variables() if variable.cat != pulp.LpContinuous]
    for variable in binary:
        variable.cat = pulp.LpContinuous
    problem.solve(pulp.COIN_CMD(path=_cbc_path(), msg=False, threads=1, timeLimit=_limit(deadline)))
    deadline.check()
    for variable in binary:
        variable.cat = pulp.LpInteger
    return float("inf") if problem.status == pulp.LpStatusInfeasible else float(pulp.value(problem.objective))


def _limit(deadline: Deadline) -> float | None:
    """Seconds for a program of its own; None for no limit."""
    return None if deadline.left == float("inf") else max(0.01, deadline.left)


def _highs(problem: pulp.LpProblem, gap: float, nodes: int | None, deadline: Deadline) -> Solved:
    options: dict[str, Any] = {"mip_abs_gap": 0.0}
    if nodes is not None:
        options["mip_max_nodes"] = nodes
    problem.solve(_Highs(deadline, gapRel=gap, timeLimit=_limit(deadline), **options))
    info = problem.solverModel.getInfo()
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(status="infeasible", bound=float("inf"), has_solution=False)
    solution = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    bound = info.mip_dual_bound if problem.isMIP() else info.objective_function_value
    done = problem.sol_status == pulp.LpSolutionOptimal
    return Solved(status="optimal" if done else "stopped", bound=bound, has_solution=solution)


def _cbc(problem: pulp.LpProblem, gap: float, deadline: Deadline) -> Solved:
    """CBC tells no bound through PuLP: what it stopped at, less the gap, is one."""
    options = ["randomCbcSeed 1", "randomSeed 1"]
    problem.solve(
        pulp.COIN_CMD(
            path=_cbc_path(), msg=False, threads=1, gapRel=gap, timeLimit=_limit(deadline), options=options
        )
    )
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(status="infeasible", bound=float("inf"), has_solution=False)
    if problem.sol_status != pulp.LpSolutionOptimal:
        has = problem.sol_status == pulp.LpSolutionIntegerFeasible
        return Solved(status="stopped", bound=0.0, has_solution=has)
    value = float(pulp.value(problem.objective))
    return Solved(status="optimal", bound=value - abs(value) * gap, has_solution=True)
