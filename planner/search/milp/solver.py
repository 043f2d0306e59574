"""HiGHS through PuLP, and CBC where HiGHS is missing: one deterministic call for both."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pulp

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
    """HiGHS that may stop at a number of nodes, a status that PuLP does not know."""

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:  # noqa: N802
        """PuLP's statuses; the values are taken over before the status is looked up."""
        try:
            found: tuple[int, int] = super().findSolutionValues(lp)
        except KeyError:
            value = lp.solverModel.getInfo().objective_function_value
            if abs(value) == float("inf"):
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
            return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
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
    seconds: float | None = None,
    solver: str | None = None,
) -> Solved:
    """Minimise ``problem`` to a relative ``gap`` with one thread and a fixed seed, or stop after ``nodes``."""
    name = solver or available()[0]
    if name == "highs":
        return _highs(problem, gap, nodes, seconds)
    return _cbc(problem, gap, seconds)


_INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible")
"""Statuses of HiGHS; no model here is unbounded."""


def relaxation(problem: pulp.LpProblem, solver: str | None = None) -> Callable[[], float]:
    """A function that solves ``problem`` without its integrality, with the bounds that its variables have then.

    It gives the variables their values and returns the objective: infinite where nothing is feasible, 0 where
    the solver cannot tell. Rows must not be added in between: HiGHS goes on from the last basis.
    """
    if (solver or available()[0]) == "cbc":
        return lambda: _relaxed_by_cbc(problem)
    made = _Highs(mip=False, msg=False, threads=1, random_seed=0)
    made.createAndConfigureSolver(problem)
    made.buildSolverModel(problem)
    highs, variables = problem.solverModel, problem.variables()
    columns = np.arange(len(variables), dtype=np.int32)

    def relaxed() -> float:
        lower = np.array([-np.inf if item.lowBound is None else item.lowBound for item in variables])
        upper = np.array([np.inf if item.upBound is None else item.upBound for item in variables])
        highs.changeColsBounds(len(columns), columns, lower, upper)
        highs.run()
        if highs.getModelStatus().name not in (*_INFEASIBLE, "kOptimal"):
            highs.clearSolver()
            highs.run()
        if highs.getModelStatus().name in _INFEASIBLE:
            return float("inf")
        if highs.getModelStatus().name != "kOptimal":
            return 0.0
        for variable, value in zip(variables, highs.getSolution().col_value, strict=True):
            variable.varValue = value
        return float(highs.getInfo().objective_function_value)

    return relaxed


def _relaxed_by_cbc(problem: pulp.LpProblem) -> float:
    binary = [variable for variable in problem.variables() if variable.cat != pulp.LpContinuous]
    for variable in binary:
        variable.cat = pulp.LpContinuous
    problem.solve(pulp.COIN_CMD(path=_cbc_path(), msg=False, threads=1))
    for variable in binary:
        variable.cat = pulp.LpInteger
    return float("inf") if problem.status == pulp.LpStatusInfeasible else float(pulp.value(problem.objective))


def _highs(problem: pulp.LpProblem, gap: float, nodes: int | None, seconds: float | None) -> Solved:
    options: dict[str, Any] = {"random_seed": 0, "mip_abs_gap": 0.0}
    if nodes is not None:
        options["mip_max_nodes"] = nodes
    problem.solve(_Highs(msg=False, threads=1, gapRel=gap, timeLimit=seconds, **options))
    info = problem.solverModel.getInfo()
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(status="infeasible", bound=float("inf"), has_solution=False)
    solution = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    bound = info.mip_dual_bound if problem.isMIP() else info.objective_function_value
    done = problem.sol_status == pulp.LpSolutionOptimal
    return Solved(status="optimal" if done else "stopped", bound=bound, has_solution=solution)


def _cbc(problem: pulp.LpProblem, gap: float, seconds: float | None) -> Solved:
    """CBC tells no bound through PuLP: what it stopped at, less the gap, is one."""
    options = ["randomCbcSeed 1", "randomSeed 1"]
    problem.solve(
        pulp.COIN_CMD(path=_cbc_path(), msg=False, threads=1, gapRel=gap, timeLimit=seconds, options=options)
    )
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(status="infeasible", bound=float("inf"), has_solution=False)
    if problem.sol_status != pulp.LpSolutionOptimal:
        has = problem.sol_status == pulp.LpSolutionIntegerFeasible
        return Solved(status="stopped", bound=0.0, has_solution=has)
    value = float(pulp.value(problem.objective))
    return Solved(status="optimal", bound=value - abs(value) * gap, has_solution=True)
