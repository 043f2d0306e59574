"""``hetplan calibrate loss``: the curve of the loss by steps and batch, from the logs of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.inputs import Overrides, concerning, read_model
from planner.cli.options import AsJson, Force, ModelFile, SequenceLength
from planner.cli.output import require_new, show, show_document, typed
from planner.errors import UsageError
from planner.files.fields import written
from planner.files.writing import dump, write_whole
from planner.logs.losses import fit_losses, read_losses
from planner.ranges import BATCH
from planner.report.calibrated import LossFitDocument, loss_fit_section

Logs = Annotated[
    list[Path],
    typer.Option(
        "--log",
        metavar="FILE",
        help="Log of a run of the model; repeatable. Runs with different batches give the critical batch too.",
    ),
]
Batches = Annotated[
    str | None,
    typer.Option(
        "--batches",
        metavar="LIST",
        help="Global batch of each run in sequences, in the order of the logs, where they do not say. "
        "Default: the model's.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the model file with the curve to FILE."),
]


def fit_loss(
    model: ModelFile,
    log: Logs,
    batches: Batches = None,
    output: Output = None,
    sequence_length: SequenceLength = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit the loss by steps and batch to logs.

    The curve says when search --objective time-to-loss may stop, for any batch. Runs at constant learning rates, or the
    same schedule cut at the same share, are alike; the first twentieth of each does not count.
    """
    if output is not None:
        require_new(output, force, "model.yaml")
    model_spec = read_model(model, Overrides(sequence_length=sequence_length))
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
