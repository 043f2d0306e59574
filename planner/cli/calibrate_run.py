"""``hetplan calibrate run``: what a run of a pipeline tells about its runtime's host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED
from planner.cli.calibrate import EXAMPLE, Force, Output
from planner.cli.inputs import concerning, read_calibration
from planner.cli.options import AsJson, CalibrationFile
from planner.cli.output import require_new, show, show_document
from planner.logs.reading import read_logs, require_same_job
from planner.logs.trial import host_launches
from planner.logs.values import Observed, observed
from planner.measure.resume import run_facts, with_facts
from planner.plan.file import PlanFile, read
from planner.plan.placement import ranks
from planner.report.calibrated import TrialDocument, trial_section

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan of the run, with at least two stages.")]
Logs = Annotated[
    list[Path], typer.Option("--log", metavar="FILE", help="Log of the run; repeatable, one per node.")
]


def fit_run(
    plan: PlanPath,
    log: Logs,
    output: Output = Path(EXAMPLE),
    calibration: CalibrationFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit the host overhead per micro-batch to a run.

    A runtime's host work per micro-batch of a pipeline stage does not show in any layer or collective. Run two
    stages of few layers with many small micro-batches for about twenty steps; the time beyond the prediction
    becomes a constant of the runtime. Measure devices and networks first: the output also contains everything in
    the --calibration file.
    """
    require_new(output, force, EXAMPLE)

    saved = read(plan)
    constants = read_calibration(calibration)
    with concerning(*log):
        seen = read_run(log, saved)
    with concerning(plan, *log):
        trial = host_launches(saved.plan, saved.cluster, saved.model, constants, seen.step_seconds)
    own = ASSUMED if calibration is None else load_calibration(calibration)
    facts = run_facts(" ".join(["hetplan", *sys.argv[1:]]))
    save_calibration(merged(own, with_facts(trial.measured(saved.plan.target), facts)), output)
    if as_json:
        show_document(
            TrialDocument(command="calibrate run", file=str(output), stack=saved.plan.target, trial=trial)
        )
        return

    then = f"hetplan search CLUSTER MODEL --calibration {output}"
    show(trial_section(trial, saved.plan.target, seen, output), then=then)


def read_run(logs: list[Path], saved: PlanFile) -> Observed:
    """Steps after the warm-up; raises UsageError for logs of another job."""
    log = read_logs(logs, saved.plan, saved.model.training.sequence_length)
    require_same_job(log, saved.plan, ranks(saved.plan, saved.cluster))
    return observed(log)
