"""``hetplan calibrate run``, ``sigma`` and ``loss``: what the logs of runs tell of host, devices and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED, Calibration
from planner.cli.calibrate import EXAMPLE, Output
from planner.cli.inputs import Overrides, concerning, read_calibration, read_model, with_calibration
from planner.cli.options import AsJson, CalibrationFile, Force, ModelFile, SequenceLength, argument, option
from planner.cli.output import require_new, show, show_document, typed
from planner.cli.process import as_typed
from planner.errors import UsageError
from planner.files.fields import written
from planner.files.writing import dump, write_whole
from planner.logs.fits import fit_trial, variation
from planner.logs.losses import fit_losses, read_losses
from planner.logs.reading import Observed, observed, read_logs, require_same_job
from planner.measure.resume import run_facts, with_facts
from planner.plan.file import PlanFile, read
from planner.plan.placement import ranks
from planner.ranges import BATCH
from planner.report.calibrated import (
    LossFitDocument,
    TrialDocument,
    VariationDocument,
    loss_fit_section,
    trial_section,
    variation_section,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """The logs of a run, and the calibration file that what they tell joins."""

    log: Annotated[list[Path], option("--log", "FILE", "Log of the run; repeatable, one per node.")]
    output: Output = Path(EXAMPLE)
    calibration: CalibrationFile = None
    force: Force = False

    def read(self, plan: Path) -> tuple[PlanFile, Calibration, Observed]:
        """The plan of the run, the constants and the steps after the warm-up; raises UsageError for other logs."""
        require_new(self.output, self.force, EXAMPLE)
        saved = read(plan)
        constants = read_calibration(self.calibration)
        with concerning(*self.log):
            log = read_logs(self.log, saved.plan, saved.model.training.sequence_length)
            require_same_job(log, saved.plan, ranks(saved.plan, saved.cluster))
            return saved, constants, observed(log)

    def write(self, measured: Calibration) -> str:
        """The calibration file with what was measured too; returns the next command."""
        own = ASSUMED if self.calibration is None else load_calibration(self.calibration)
        facts = run_facts(as_typed())
        save_calibration(merged(own, with_facts(measured, facts)), self.output)
        return with_calibration("hetplan search CLUSTER MODEL", self.output)


def fit_run(
    plan: Annotated[Path, argument("PLAN", "Plan of the run.")], *, fit: FitOptions, as_json: AsJson = False
) -> None:
    """Fit the overheads of a runtime to a run.

    A plan of one stage, best on one device, shows how much longer layers take in training than measured alone. A
    plan of two stages of few layers with many small micro-batches shows the host overhead per micro-batch of a stage.
    Run the first for about ten steps and the second for about twenty, in that order; the time beyond the prediction
    becomes a constant of the runtime. Measure devices and networks before: the output also contains everything in the
    --calibration file.
    """
    saved, constants, seen = fit.read(plan)
    with concerning(plan, *fit.log):
        trial = fit_trial(saved.plan, saved.cluster, saved.model, constants, seen.step_seconds)
    target = saved.plan.target
    then = fit.write(trial.measured())
    if as_json:
        show_document(TrialDocument(command="calibrate run", file=str(fit.output), stack=target, trial=trial))
    else:
        show(trial_section(trial, target, seen, fit.output), then=then)


def measure_sigma(
    plan: Annotated[Path, argument("PLAN", "Plan of the run, on devices of one family.")],
    *,
    fit: FitOptions,
    as_json: AsJson = False,
) -> None:
    """Measure from a run how much step times vary.

    The step time of a device varies, and all devices wait for the slowest. From the spread of the run's step times
    follows the standard deviation of a single device, sigma. Plans are then priced with it: the more devices wait for
    each other, the longer the step. The output also contains everything in the --calibration file.
    """
    saved, constants, seen = fit.read(plan)
    with concerning(plan, *fit.log):
        sigma = variation(saved.plan, saved.cluster, saved.model, constants, seen)
    then = fit.write(sigma.measured())
    if as_json:
        show_document(VariationDocument(command="calibrate sigma", file=str(fit.output), variation=sigma))
    else:
        show(variation_section(sigma, fit.output), then=then)


def fit_loss(
    model: ModelFile,
    log: Annotated[
        list[Path],
        option(
            "--log",
            "FILE",
            "Log of a run of the model; repeatable. Runs with different batches give the critical batch too.",
        ),
    ],
    batches: Annotated[
        str | None,
        option(
            "--batches",
            "LIST",
            "Global batch of each run in sequences, in the order of the logs, if they do not state it. "
            "Default: the model's.",
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output -o", "FILE", "Write the model file with the curve to FILE.")
    ] = None,
    sequence_length: SequenceLength = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit a curve of the loss, by steps and batch size, to logs.

    With the curve, search --objective time-to-loss knows how many steps any batch needs. Use runs that are comparable:
    with constant learning rates, or cut off at the same point of the same schedule. The first twentieth of each run is
    ignored.
    """
    if output is not None:
        require_new(output, force, "model.yaml")
    model_spec = read_model(model, Overrides(sequence_length=sequence_length))
    for path in log:
        if log.count(path) > 1:
            raise UsageError(f"--log: {path} is given {log.count(path)} times", hint="name each run once")
    with concerning(*log):
        read = [read_losses(path) for path in log]
        said = _batches(batches, len(log))
        runs = []
        for index, losses in enumerate(read):
            given = None if said is None else said[index]
            if None not in (given, losses.batch) and given != losses.batch:
                raise UsageError(
                    f"{losses.file}: its global batch is {losses.batch}, --batches says {given}",
                    hint="name the batches in the order of the logs",
                )
            runs.append((losses, losses.batch or given or model_spec.training.global_batch))
        fit = fit_losses(runs, model_spec.training.sequence_tokens)
    if output is not None:
        fitted = model_spec.trained_with(convergence=fit.convergence)
        write_whole(dump(written(fitted)), output, "model.yaml")
    if as_json:
        show_document(
            LossFitDocument(command="calibrate loss", file=None if output is None else str(output), loss=fit)
        )
        return
    search = typed("hetplan", "search", "CLUSTER", output or model, "--objective", "time-to-loss", "--loss")
    least = fit.convergence.curve.least_loss if fit.convergence.curve else 0.0
    show(
        loss_fit_section(fit, output),
        then=f"{search} {least:.3g}" if output else "the same with -o model-fitted.yaml to search with it",
    )


def _batches(text: str | None, logs: int) -> list[int] | None:
    """The numbers of the option, in their order."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and BATCH.holds(int(part)) for part in parts):
        raise UsageError(f"--batches: expected sequences of a step such as 256,1024, got {text!r}")
    if len(parts) != logs:
        raise UsageError(f"--batches: expected one for each of {logs} logs, got {len(parts)}")
    return [int(part) for part in parts]
