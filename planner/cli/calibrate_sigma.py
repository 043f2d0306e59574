"""``hetplan calibrate sigma``: how much devices vary, from the log of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED
from planner.cli.calibrate import EXAMPLE, Force, Output
from planner.cli.calibrate_run import Logs, read_run
from planner.cli.inputs import concerning, read_calibration
from planner.cli.options import AsJson, CalibrationFile
from planner.cli.output import require_new, show, show_document
from planner.logs.sigma import variation
from planner.measure.resume import run_facts, with_facts
from planner.plan.file import read
from planner.report.calibrated import VariationDocument, variation_section

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan of the run, on devices of one family.")]


def measure_sigma(
    plan: PlanPath,
    log: Logs,
    output: Output = Path(EXAMPLE),
    calibration: CalibrationFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much step times vary, from a run.

    Devices take a little longer in one step than in another, and all wait for the slowest. The spread of the run's
    step times tells the standard deviation of one device, sigma, with which plans are then priced: the more devices
    wait for each other, the longer. The output also contains everything in the --calibration file.
    """
    require_new(output, force, EXAMPLE)
    saved = read(plan)
    constants = read_calibration(calibration)
    with concerning(*log):
        seen = read_run(log, saved)
    with concerning(plan, *log):
        step_variation = variation(saved.plan, saved.cluster, saved.model, constants, seen)
    own = ASSUMED if calibration is None else load_calibration(calibration)
    facts = run_facts(" ".join(["hetplan", *sys.argv[1:]]))
    save_calibration(merged(own, with_facts(step_variation.measured(), facts)), output)
    if as_json:
        show_document(
            VariationDocument(command="calibrate sigma", file=str(output), variation=step_variation)
        )
        return
    show(
        variation_section(step_variation, output), then=f"hetplan search CLUSTER MODEL --calibration {output}"
    )
