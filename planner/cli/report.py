"""``hetplan report``: a page about a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.calibration.values import Calibration
from planner.cli.compare import Logs, contenders_of, run_of
from planner.cli.goal import Budget, Deadline, RunOptions, StopOptions
from planner.cli.inputs import check_same_inputs, read_calibration, warn_of_doubts
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ClusterNow,
    ModelNow,
    NeededTokens,
    SavedPlan,
    flag,
    option,
    time_limit,
)
from planner.cli.output import require_writable, show, show_document
from planner.cli.process import INTERRUPTED
from planner.cli.progress import searching
from planner.cost.estimate import Estimator
from planner.errors import UsageError
from planner.files.writing import write_whole
from planner.plan.file import PlanFile
from planner.report.layout import Paragraph, warnings_section
from planner.report.numbers import duration, rate
from planner.report.page import page
from planner.report.page import report as report_of
from planner.report.pareto import searched_text
from planner.search.objectives.pareto import Front, front_around, front_objective
from planner.search.values import Scored


def report(
    plan: SavedPlan,
    output: Annotated[Path, option("--output -o", "FILE", "The page to write, e.g. report.html.")],
    *,
    compare: Annotated[
        list[Path] | None,
        option("--compare", "PLAN", "Another plan of the same model to set beside it; repeatable."),
    ] = None,
    log: Logs = None,
    tokens: NeededTokens = "100B",
    deadline: Deadline = None,
    budget: Budget = None,
    stops: StopOptions,
    pareto: Annotated[
        bool,
        flag(
            "--pareto",
            "Also search growing parts of the cluster: time against cost, or energy where pools have no price.",
        ),
    ] = False,
    time_limit: Annotated[float, time_limit("Time limit of --pareto.")] = 60.0,
    cluster: ClusterNow = None,
    model: ModelNow = None,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page about a plan.

    The page is one file that loads nothing else. It shows the answer with its error and its bound, a map of the
    cluster, one step in time, memory, where the time goes, the plans that lost, other plans (--compare), a run (--log),
    and how many devices are worth using (--pareto).
    """
    wanted = RunOptions(tokens=tokens, deadline=deadline, budget=budget, stops=stops).goal()
    require_writable(output, "report.html")
    constants = read_calibration(calibration)
    saved, contenders = contenders_of([plan, *(compare or ())], constants, calibration)
    check_same_inputs(plan, saved, cluster, model)
    warn_of_doubts(calibration, constants, saved.cluster, saved.model)
    estimator = Estimator(saved.cluster, saved.model, constants)
    scored = contenders[0].scored
    assert scored is not None, "a plan file has a plan"
    found = _front(plan, saved, scored, constants, time_limit) if pareto else None
    told = report_of(
        plan.name,
        saved,
        scored,
        estimator,
        replace(wanted, interruptions=wanted.interruptions.of(saved.model)),
        contenders if compare else (),
        run_of(plan, saved, log, estimator) if log else None,
        found,
    )
    write_whole(page(told), output, "report.html")
    if as_json:
        show_document(told.document())
    else:
        estimate = scored.estimate
        size = output.stat().st_size / 1000
        line = f"{output}: {size:.0f} kB, {duration(estimate.step_seconds, estimate.spread)} a step"
        show(
            Paragraph(f"{line}, {rate(estimate.tokens_per_second)} tokens/s"),
            warnings_section([searched_text(found)]) if found is not None and found.unfinished else None,
            then="open it in a browser",
        )
    if found is not None and found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _front(path: Path, saved: PlanFile, scored: Scored, calibration: Calibration, time_limit: float) -> Front:
    """Time against cost, or energy, with the plan's own runtime; the plan itself is one of those that it knows."""
    objective = front_objective(saved.cluster)
    if objective is None:
        raise UsageError(
            f"--pareto: {path} was made for a cluster without the prices, or the power, of all pools",
            hint="write price_per_gpu_hour of each pool into the cluster file, and search again",
        )
    with searching(time_limit) as (talk, ends):
        return front_around(saved, scored, calibration, objective, talk, deadline=ends)
