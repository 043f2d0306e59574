"""``hetplan search --objective time-to-loss``: the batch, and the plan, with which a loss is reached first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import typer

from planner.cli.answer import next_command, show_found
from planner.cli.front import next_on
from planner.cli.goal import LossOptions
from planner.cli.inputs import SearchRequest
from planner.cli.options import integers, tokens_of
from planner.cli.output import failure_of, require_writable, show, show_document
from planner.cli.process import exit_code
from planner.cli.progress import searching
from planner.cost.convergence import Convergence, convergence
from planner.errors import OutputError, UsageError
from planner.files.messages import within
from planner.plan.file import write
from planner.ranges import BATCH, LOSS
from planner.report.brief import summary_of
from planner.report.layout import Answer, Paragraph
from planner.report.loss import (
    goal_text,
    loss_document,
    loss_line,
    loss_report,
    sizes_document,
    sizes_section,
)
from planner.search.objectives.loss import LossResult, batches_around, sizes_to_loss, to_loss
from planner.search.values import Scored

MOST_BATCHES = 256
"""Batches of one search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRequest:
    """A loss to reach, and the batches to choose from."""

    steps: Convergence
    batches: tuple[int, ...]


def requested(options: LossOptions, request: SearchRequest, tokens: str | None) -> LossRequest:
    """What the options request; raises UsageError where they do not say when to stop."""
    within("--loss", options.loss, LOSS)
    named = integers("--batches", options.batches, BATCH)
    if named is not None and len(named) > MOST_BATCHES:
        raise UsageError(f"--batches: expected at most {MOST_BATCHES}, got {len(named)}")
    return LossRequest(
        steps=convergence(request.model, None if tokens is None else tokens_of(tokens), options.loss),
        batches=named or batches_around(request.model.training.global_batch),
    )


def answer_loss(
    request: SearchRequest,
    wanted: LossRequest,
    top: int | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> NoReturn:
    """Search, keep the plan, print the report; the exit code says what kind of answer it is."""
    if output is not None:
        require_writable(output)

    def better(scored: Scored, batch: int) -> None:
        if output is not None:
            with suppress(OutputError):  # said at the end, where it is tried again
                model = request.model.trained_with(global_batch=batch)
                write(replace(request, model=model).plan_file(scored, None), output)

    with searching(request.limits.time_limit_seconds) as (talk, deadline):
        result = to_loss(
            *request.inputs,
            wanted.steps,
            wanted.batches,
            talk,
            simple=request.simple,
            deadline=deadline,
            better=better,
        )
    unwritten = _kept(result, request, output)
    _show(result, request, wanted.batches, top, output, as_json, quiet)
    if unwritten is not None:
        raise unwritten
    infeasible = result.search.status == "infeasible"
    raise typer.Exit(exit_code(result.interrupted, result.best is not None, infeasible))


def _kept(result: LossResult, request: SearchRequest, output: Path | None) -> OutputError | None:
    """Write the answer; a failure is returned, so that the report comes first."""
    best = result.search.best
    if output is None or best is None:
        return None
    plan_file = replace(request, model=result.model).plan_file(best, summary_of(result.search))
    return failure_of(lambda: write(plan_file, output))


def _show(
    result: LossResult,
    request: SearchRequest,
    batches: Sequence[int],
    top: int | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    cluster = request.cluster
    if as_json:
        show_document(loss_document(result, cluster))
        return
    if result.search.best is None:
        show_found(
            result.search, replace(request, model=result.model), top, output, as_json=False, detail="brief"
        )
        return
    line = Answer(loss_line(result, cluster))
    if quiet:
        show(last=line)
        return
    goal = goal_text(result.convergence, batches, request.model)
    show(*loss_report(result, goal, cluster, top), then=next_command(result.search, output), last=line)


def answer_sizes(request: SearchRequest, wanted: LossRequest, as_json: bool, quiet: bool) -> NoReturn:
    """Print the table by the size of the cluster; the exit code says what kind of answer it is."""
    with searching(request.limits.time_limit_seconds) as (talk, deadline):
        sizes = sizes_to_loss(*request.inputs, wanted.steps, wanted.batches, talk, deadline=deadline)
    if as_json:
        show_document(sizes_document(sizes, request.cluster, request.model))
    else:
        goal = goal_text(wanted.steps, wanted.batches, request.model)
        devices = None if sizes.worth is None else sizes.points[sizes.worth].devices
        show(
            None if quiet else Paragraph(f"goal: {goal}"),
            sizes_section(sizes, request.cluster),
            then=None if quiet else next_on(devices, request.cluster),
        )
    raise typer.Exit(exit_code(sizes.interrupted, bool(sizes.points), not sizes.unfinished))
