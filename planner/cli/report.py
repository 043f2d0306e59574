"""``hetplan report``: a page about a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.compare import Logs, contenders_of, run_of
from planner.cli.goal import Budget, Deadline, read_run
from planner.cli.inputs import read_calibration, warn_of_doubts
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    CheckpointTime,
    Failures,
    RestartTime,
    SavedPlan,
    Storage,
    tokens_of,
)
from planner.cli.output import require_writable, show, show_document
from planner.cost.estimate import Estimator
from planner.files.writing import write_whole
from planner.report.layout import Paragraph
from planner.report.numbers import duration, rate
from planner.report.page.page import page
from planner.report.page.page import report as report_of

Page = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write, e.g. report.html.")
]
Others = Annotated[
    list[Path] | None,
    typer.Option(
        "--compare", metavar="PLAN", help="Another plan of the same model to set beside it; repeatable."
    ),
]
Tokens = Annotated[
    str,
    typer.Option("--tokens", metavar="N", help="Tokens of the whole training, e.g. 300B, 1T or 5e9."),
]


def report(
    plan: SavedPlan,
    output: Page,
    compare: Others = None,
    log: Logs = None,
    tokens: Tokens = "100B",
    deadline: Deadline = None,
    budget: Budget = None,
    failures: Failures = None,
    checkpoint_time: CheckpointTime = None,
    restart_time: RestartTime = None,
    storage: Storage = None,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about a plan, to look at and to send.

    One HTML file that loads nothing: the answer with its error and its bound, a map of the cluster, one step in
    time, memory, where the step goes, the plans that lost, other plans (--compare), and a run (--log).
    """
    wanted = read_run(tokens, deadline, budget, failures, checkpoint_time, restart_time, storage)
    require_writable(output, "report.html")
    constants = read_calibration(calibration)
    saved, contenders = contenders_of([plan, *(compare or ())], constants, calibration)
    warn_of_doubts(calibration, constants, saved.cluster, saved.model)
    stops = wanted.interruptions.of(saved.model)
    estimator = Estimator(saved.cluster, saved.model, constants)
    scored = contenders[0].scored
    assert scored is not None, "a plan file has a plan"
    told = report_of(
        plan.name,
        saved,
        scored,
        estimator,
        tokens_of(tokens),
        contenders if compare else (),
        run_of(plan, saved, log, estimator) if log else None,
        stops,
        replace(wanted, interruptions=stops),
    )
    write_whole(page(told), output, "report.html")
    if as_json:
        show_document(told.document())
        return
    estimate = scored.estimate
    size = output.stat().st_size / 1000
    line = f"{output}: {size:.0f} kB, {duration(estimate.step_seconds, estimate.spread)} a step"
    show(Paragraph(f"{line}, {rate(estimate.tokens_per_second)} tokens/s"), then="open it in a browser")
