"""``hetplan what-if``: what the plan becomes when something changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from planner.cli.inputs import Overrides, constants_for, read_inputs, search_command
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ClusterFile,
    ModelFile,
    TargetName,
    cores,
    flag,
    option,
    time_limit,
)
from planner.cli.output import show, show_document
from planner.cli.process import exit_code
from planner.cli.progress import reporter
from planner.errors import UsageError
from planner.report.layout import warnings_section
from planner.report.what_if import WhatIfDocument, cases, named, swings_section, what_if_section
from planner.search.values import Limits, SearchResult
from planner.search.what_if import Swing, World, searched, shared, swings, worlds


def what_if(
    cluster: ClusterFile,
    model: ModelFile,
    *,
    change: Annotated[
        list[str] | None,
        option(
            "--change",
            "CHANGE",
            "PATH=VALUE of the cluster file or of training, +N DEVICE (more nodes of a pool, or new ones of a "
            "device of the catalogue), or -POOL; repeatable.",
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        flag(
            "--sensitivity",
            "Move the speed of each device type and network to both ends of its error bar, and search again.",
        ),
    ] = False,
    target: TargetName = None,
    time_limit: Annotated[float, time_limit("Time limit of each search.")] = 30.0,
    overrides: Overrides,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the plan becomes when something changes.

    Searches the cluster as it is, and once for each change: a faster network, more nodes, one pool fewer, another
    batch. Prints step, throughput, cost and gain of each, and the plans. With --sensitivity, how each speed that is
    not known exactly affects the step, and which of them would change the plan.
    """
    if not change and not sensitivity:
        raise UsageError(
            "what-if: expected a --change, or --sensitivity",
            hint="e.g. --change links.lan.bandwidth_gbps=100",
        )
    variants = worlds(*read_inputs(cluster, model, overrides), change or ())
    constants = constants_for(calibration, *variants[0][1:])
    limits = Limits(target=target, time_limit_seconds=time_limit, processes=cores())
    with reporter() as talk:
        pairs = searched(
            variants, constants, limits, talk, lambda scored: talk.better(scored.estimate.step_seconds)
        )
        results = [result for _, result in pairs]
        stopped = len(results) < len(variants) or results[-1].interrupted
        if stopped and not (results and change):
            raise KeyboardInterrupt
        results = shared(variants, results, constants, limits)
        left = [f"stopped by Ctrl-C: {_left(variants, results)}"] if stopped else []
        moved: list[Swing] = []
        if sensitivity and not stopped:
            try:
                for swing in swings(results[0], *variants[0][1:], constants, limits, talk):
                    moved.append(named(swing))
            except KeyboardInterrupt:
                stopped = True
                left.append("stopped by Ctrl-C: not every speed was looked at")
    table = cases(variants, results)
    if as_json:
        show_document(WhatIfDocument(command="what-if", cases=table, sensitivity=tuple(moved)))
    else:
        more = [] if target is None else ["--target", target]
        best = table[0].scored
        rests = (
            swings_section(moved, best.estimate.step_seconds, complete=not stopped)
            if best and moved
            else None
        )
        show(
            what_if_section(table) if change else None,
            rests,
            warnings_section(left) if left else None,
            then=search_command(cluster, model, overrides, calibration, *more),
        )
    raise typer.Exit(exit_code(stopped, any(case.scored for case in table), infeasible=True))


def _left(variants: Sequence[World], results: Sequence[SearchResult]) -> str:
    """What Ctrl-C has cost: the last search was not finished, or not begun."""
    names = [change or "the cluster as it is" for change, *_ in variants]
    cut = [f"the search of {names[len(results) - 1]} was not finished"] if results[-1].interrupted else []
    left = names[len(results) :]
    return "; ".join([*cut, *([f"left out: {', '.join(left)}"] if left else [])])
