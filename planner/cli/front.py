"""``hetplan search --pareto``: time against cost for growing parts of the cluster."""

from __future__ import annotations

from typing import NoReturn

import typer

from planner.cli.answer import Detail
from planner.cli.inputs import SearchRequest
from planner.cli.output import show, show_document
from planner.cli.process import exit_code
from planner.cli.progress import searching
from planner.cluster.spec import ClusterSpec
from planner.cost.training import Devices
from planner.report.goal import goal_text
from planner.report.inputs import understood
from planner.report.pareto import front_document, front_section, use_at_most
from planner.search.objectives.pareto import Front, front


def answer_front(request: SearchRequest, as_json: bool, detail: Detail) -> NoReturn:
    """Print the table, or its document; the exit code says what kind of answer it is."""
    with searching(request.limits.time_limit_seconds) as (talk, deadline):
        table = front(
            request.cluster,
            request.model,
            request.calibration,
            request.limits,
            request.goal,
            talk,
            deadline=deadline,
        )
    show_front(table, request, as_json, detail)
    raise typer.Exit(exit_code(table.interrupted, bool(table.points), not table.unfinished))


def show_front(table: Front, request: SearchRequest, as_json: bool, detail: Detail = "brief") -> None:
    """Print the table of time against cost."""
    if as_json:
        show_document(front_document(table, request.cluster, request.model))
        return
    goal = goal_text(request.goal, pareto=True)
    head = understood(request.cluster, request.model, request.calibration, request.limits, goal)
    devices = None if table.worth is None else table.points[table.worth].devices
    show(
        None if detail == "answer" else head,
        front_section(table, request.cluster),
        then=None if detail == "answer" else next_on(devices, request.cluster),
    )


def next_on(devices: Devices | None, cluster: ClusterSpec) -> str | None:
    """The command that follows a table of sub-clusters: a search on the one that is worth it."""
    if devices is None:
        return None
    return f"the same with {use_at_most(devices, cluster)} -o plan.yaml in place of --pareto"
