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
from planner.search.objectives.pareto import front


def answer_front(request: SearchRequest, as_json: bool, detail: Detail) -> NoReturn:
    """Print the table, or its document; the exit code says what kind of answer it is."""
    with searching(request.limits.time_limit_seconds) as (talk, deadline):
        table = front(*request.inputs, talk, deadline=deadline)
    if as_json:
        show_document(front_document(table, request.cluster, request.model))
    elif detail == "answer":
        show(front_section(table, request.cluster))
    else:
        goal = goal_text(request.goal, pareto=True)
        head = understood(request.cluster, request.model, request.calibration, request.limits, goal)
        devices = None if table.worth is None else table.points[table.worth].devices
        then = next_on(devices, request.cluster)
        show(head, front_section(table, request.cluster), then=then)
    raise typer.Exit(exit_code(table.interrupted, bool(table.points), not table.unfinished))


def next_on(devices: Devices | None, cluster: ClusterSpec) -> str | None:
    """The command that follows a table of sub-clusters: a search on the one that is worth it."""
    if devices is None:
        return None
    return f"the same with {use_at_most(devices, cluster)} -o plan.yaml in place of --pareto"
