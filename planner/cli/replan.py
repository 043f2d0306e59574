"""``hetplan replan``: the plan that takes over when nodes fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.goal import read_stops, storage_rate
from planner.cli.inputs import (
    check_same_inputs,
    read_calibration,
    read_priced,
    used_calibration,
    warn_of_other_calibration,
)
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    CheckpointTime,
    Failures,
    RestartTime,
    SavedPlan,
    Storage,
    seconds_of,
)
from planner.cli.output import require_writable, show, show_document, typed
from planner.cli.progress import reporter
from planner.errors import UsageError
from planner.files.short_lists import expand_hosts
from planner.plan.file import PlanFile, write
from planner.ranges import TIME_LIMIT
from planner.report.replan import ReplanDocument, failure_cost, loss_of, replan_report
from planner.report.summary import summary_of
from planner.search.replan import Replan
from planner.search.replan import replan as replanned
from planner.search.values import Limits

Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="HOST",
        help="A host that is gone; repeatable, and `node-[2-4]` are several.",
    ),
]
Away = Annotated[
    str,
    typer.Option(
        "--away",
        metavar="TIME",
        help="How long the hosts are away: what a slower step costs meanwhile is weighed against what has to move.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the plan that takes over to FILE."),
]
ClusterNow = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="Check that the plan was made for this cluster file."),
]
ModelNow = Annotated[
    Path | None,
    typer.Option("--model", metavar="FILE", help="Check that the plan was made for this model file."),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        min=TIME_LIMIT.least,
        max=TIME_LIMIT.most,
        help="Time limit of each search.",
    ),
]


def replan(
    plan: SavedPlan,
    without: Without = None,
    output: Output = None,
    away: Away = "1d",
    failures: Failures = None,
    checkpoint_time: CheckpointTime = None,
    restart_time: RestartTime = None,
    storage: Storage = None,
    cluster: ClusterNow = None,
    model: ModelNow = None,
    time_limit: TimeLimit = 30.0,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Find the plan that takes over when nodes fail.

    Searches the nodes that are left for the same runtime, and prints the plan that loses least until the hosts are
    back, by its steps and by the state that has to move for it; what each node keeps and gets; and both plans side by
    side.
    """
    away_seconds = seconds_of("--away", away, least=0)
    assert away_seconds is not None
    if not without:
        raise UsageError("replan: expected --without HOST", hint="e.g. --without node-3")
    stops = read_stops(failures, checkpoint_time, restart_time, storage if failures is not None else None)
    if output is not None:
        require_writable(output)
    constants = read_calibration(calibration)
    saved, _ = read_priced(plan, constants)
    check_same_inputs(plan, saved, cluster, model)
    warn_of_other_calibration(plan, saved, calibration)
    stops = replace(stops.of(saved.model), repair_seconds=away_seconds)
    gone = expand_hosts([part for text in without for part in text.split(",")])
    with reporter() as talk:
        found = replanned(
            saved.plan,
            saved.cluster,
            saved.model,
            constants,
            gone,
            Limits(target=saved.plan.target, time_limit_seconds=time_limit),
            away_seconds=away_seconds,
            storage_bytes_per_second=storage_rate(storage),
            reporter=talk,
            better=lambda scored: talk.better(scored.estimate.step_seconds),
        )
    if found.result.interrupted:
        raise KeyboardInterrupt
    if output is not None:
        write(_file_of(found, saved, calibration), output)
    loss, cost = loss_of(found), failure_cost(stops, saved.plan.devices, saved.model)
    if as_json:
        show_document(ReplanDocument(command="replan", losses=(loss,), failures=cost))
        return
    then = None if output is None else typed("hetplan", "emit", output, "-o", "run/")
    show(*replan_report(loss, cost), then=then or "the same with -o without.yaml to keep the plan")


def _file_of(found: Replan, saved: PlanFile, calibration: Path | None) -> PlanFile:
    """The plan that takes over, for the nodes that are left in its order."""
    return PlanFile(
        plan=found.chosen.scored.plan,
        cluster=found.chosen.cluster,
        model=saved.model,
        summary=summary_of(found.result),
        calibration=used_calibration(calibration),
    )
