"""``hetplan compare``: plans side by side, against what people do today, and against what a run did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from planner.baselines.registry import baselines
from planner.calibration.values import Calibration
from planner.cli.inputs import (
    as_priced,
    concerning,
    read_calibration,
    read_priced,
    warn_of_doubts,
    warn_of_other_calibration,
    with_calibration,
)
from planner.cli.options import AsJson, CalibrationFile, argument, flag, option
from planner.cli.output import show, show_document, typed
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.errors import UsageError
from planner.logs.comparison import compared, predicted
from planner.logs.findings import findings
from planner.logs.reading import observed, read_logs, require_same_job
from planner.plan.file import PlanFile, read
from planner.plan.placement import ranks
from planner.report.compare import Contender, compare_section, of_one_model, uneven
from planner.report.document import compare_document
from planner.report.inputs import understood
from planner.report.observed import ObservedRun, observed_document, observed_sections
from planner.report.plan_table import misfits
from planner.search.incumbent import allowing
from planner.search.values import Limits, Scored
from planner.targets import BY_REQUEST

Logs = Annotated[
    list[Path] | None,
    option(
        "--log",
        "FILE",
        "Log of a run of the plan (emitted example, runtime or library); repeatable, one per node.",
    ),
]


def compare(
    plans: Annotated[list[Path], argument("PLAN...", "Plan files written by search -o.")],
    baselines: Annotated[
        bool,
        flag(
            "--baselines",
            "Add baselines: even splits, Whale, Holmes, Poplar, AMP, Metis, and the best single pool.",
        ),
    ] = False,
    log: Logs = None,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare plans side by side, or one plan with the log of its run.

    Prints speed, memory, time by cause, and the decisions in which the plans differ. The first plan is the
    reference; all plans are estimated anew by this version. With --log, the prediction of one plan is compared
    with its run: step time, parts of the step and memory, as far as logged, and what to calibrate.
    """
    if log:
        _against_logs(plans, log, baselines, calibration, as_json)
        return
    if len(plans) < 2 and not baselines:
        raise UsageError(
            "compare: expected at least two plans",
            hint="or add --baselines to compare with common practice, or --log to compare with a run of the plan",
        )
    constants = read_calibration(calibration)
    first, contenders = contenders_of(plans, constants, calibration)
    warn_of_doubts(calibration, constants, first.cluster, first.model)
    if baselines:
        contenders += _today(first, constants)
    if as_json:
        show_document(compare_document(contenders))
        return

    head = understood(first.cluster, first.model, constants)
    following = with_calibration(typed("hetplan", "explain", plans[0]), calibration)
    show(head, compare_section(contenders), then=following)


def _against_logs(
    plans: list[Path], logs: list[Path], baselines: bool, calibration: Path | None, as_json: bool
) -> None:
    """One plan next to a run of it."""
    if len(plans) > 1 or baselines:
        raise UsageError(
            "compare: --log takes one plan and no --baselines", hint="a log is of one plan's run"
        )

    constants, saved = read_calibration(calibration), read(plans[0])
    warn_of_other_calibration(plans[0], saved, calibration)
    run = run_of(plans[0], saved, logs, Estimator(saved.cluster, saved.model, constants))
    if as_json:
        show_document(observed_document(run))
    else:
        given = [word for path in logs for word in ("--log", path)]
        again = typed("hetplan", "compare", plans[0], *given, "--calibration", "calibration.yaml")
        then = again if any(finding.commands for finding in run.findings) else None
        show(observed_sections(run), then=then)


def run_of(path: Path, saved: PlanFile, logs: list[Path], estimator: Estimator) -> ObservedRun:
    """A run of the plan next to its prediction; raises an error for the log of another job."""
    log = read_logs(logs, saved.plan, saved.model.training.sequence_length)
    with concerning(path):
        placed = ranks(saved.plan, saved.cluster)
        expected = predicted(saved.plan, estimator, placed)
    with concerning(*logs):
        require_same_job(log, saved.plan, placed)
        seen = observed(log)
    comparison = compared(seen, expected)
    found = findings(seen, comparison, expected, str(path), [str(log) for log in logs])
    return ObservedRun(seen=seen, comparison=comparison, findings=tuple(found))


def contenders_of(
    paths: list[Path], constants: Calibration, calibration: Path | None
) -> tuple[PlanFile, list[Contender]]:
    """The first plan file, and all as contenders with what makes each comparison uneven."""
    priced = [(path, *read_priced(path, constants)) for path in paths]
    first = priced[0][1]
    contenders, files = [], []
    for path, saved, scored in priced:
        _require_same_model(path, saved, first)
        files.append(as_priced(path, saved, scored, calibration))
        unlike = uneven(saved.cluster, saved.model, first.cluster, first.model)
        notes = [
            *([unlike] if unlike else []),
            *(f"does not fit: {line}" for line in misfits(scored.estimate)),
        ]
        contenders.append(_contender(str(path), scored, saved.cluster, "; ".join(notes)))
    return files[0], contenders


def _require_same_model(path: Path, saved: PlanFile, first: PlanFile) -> None:
    """Seconds and tokens of different models say nothing about plans."""
    if not of_one_model(saved.model, first.model):
        raise UsageError(
            f"{path}: a plan of {saved.model.name}, expected one of {first.model.name} as the first",
            hint="compare plans of one model; clusters and batches may differ",
        )


def _today(first: PlanFile, constants: Calibration) -> list[Contender]:
    """What people do today on the first plan's cluster, with any runtime that is searched unasked, or its own.

    One pool alone may have what the first plan has: parts in host memory, for example.
    """
    name = first.plan.target
    limits = allowing(Limits(target=name if name in BY_REQUEST else None), first.plan)
    alternatives = baselines(first.cluster, first.model, constants, limits)
    return [_contender(entry.family, entry.scored, first.cluster, entry.reason) for entry in alternatives]


def _contender(name: str, scored: Scored | None, cluster: ClusterSpec, note: str) -> Contender:
    return Contender(name=name, scored=scored, cluster_devices=cluster.devices, note=note)
