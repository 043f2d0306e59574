"""``hetplan search --pareto``: how many devices are worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from planner.cli.exits import ANSWER, INFEASIBLE, INTERRUPTED, NO_PLAN_IN_TIME
from planner.cli.output import show, show_document
from planner.cli.started import started

if TYPE_CHECKING:
    from planner.cli.asked import Asked
    from planner.search.objectives.pareto import Front


def answer_front(asked: Asked, as_json: bool) -> NoReturn:
    """Print the table, or its document; the exit code says what kind of answer it is."""
    from planner.cli.interrupt import Wish, keeping_the_best
    from planner.cli.progress import reporter
    from planner.search.deadline import Deadline
    from planner.search.objectives.pareto import front

    wish = Wish()
    deadline = Deadline.after(asked.limits.time_limit_seconds, since=started(), flag=wish)
    with keeping_the_best(wish), reporter() as talk:
        found = front(
            asked.cluster, asked.model, asked.calibration, asked.limits, asked.goal, talk, deadline=deadline
        )
    if as_json:
        from planner.report.pareto import front_document

        show_document(front_document(found, asked.cluster, asked.model))
    else:
        from planner.report.goal import goal_text
        from planner.report.pareto import front_section, use_at_most
        from planner.report.understood import understood

        goal = goal_text(asked.goal, pareto=True)
        head = understood(asked.cluster, asked.model, asked.calibration, asked.limits, goal)
        following = None
        if found.worth is not None:
            options = use_at_most(found.points[found.worth], asked.cluster)
            following = f"the same with {options} -o plan.yaml in place of --pareto"
        show(head, front_section(found, asked.cluster), then=following)
    raise typer.Exit(_exit_code(found))


def _exit_code(found: Front) -> int:
    if found.interrupted:
        return INTERRUPTED
    if found.points:
        return ANSWER
    return NO_PLAN_IN_TIME if found.unfinished else INFEASIBLE
