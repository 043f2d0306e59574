"""``hetplan trace``: one step of a plan for a trace viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from planner.cli.inputs import check_same_inputs, read_plan
from planner.cli.options import AsJson, CalibrationFile, ClusterNow, ModelNow, SavedPlan, option
from planner.cli.output import require_writable, show, show_document
from planner.cost.estimate import Estimator
from planner.cost.timeline import step_of
from planner.files.writing import write_whole
from planner.logs.profiler import read_profile, require_same_ranks
from planner.report.layout import Paragraph
from planner.report.numbers import count, duration
from planner.report.trace import TraceDocument, trace_of


def trace(
    plan: SavedPlan,
    output: Annotated[Path, option("--output -o", "FILE", "The trace to write, e.g. step.json.")],
    log: Annotated[
        Path | None,
        option(
            "--log",
            "FILE",
            "Trace that torch.profiler wrote for one rank of a run (JSON or JSON.gz); its last step is shown too.",
        ),
    ] = None,
    cluster: ClusterNow = None,
    model: ModelNow = None,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Write one step of a plan as a trace, for Perfetto.

    Ranks are processes; compute, sends, reductions and copies are rows, and memory is a counter. With --log, a step
    recorded by the PyTorch profiler is shown beside it.
    """
    require_writable(output, "step.json")
    constants, saved, scored = read_plan(plan, calibration)
    check_same_inputs(plan, saved, cluster, model)
    profile = None
    if log is not None:
        profile = read_profile(log)
        require_same_ranks(profile, saved.plan.devices)
    step = step_of(saved.plan, Estimator(saved.cluster, saved.model, constants))
    step_trace = trace_of(saved.plan, saved.cluster, step, scored.estimate, profile)
    write_whole(step_trace.text(), output, "step.json")
    told = TraceDocument(
        command="trace",
        file=str(output),
        events=len(step_trace.events),
        processes=step_trace.processes,
        ranks=saved.plan.devices,
        step_seconds=step.seconds,
        measured=None if profile is None else profile.step or "the whole trace",
    )
    if as_json:
        show_document(told)
        return
    shown = f"{count(told.processes, 'rank')} of {told.ranks}" if told.processes < told.ranks else "all ranks"
    beside = f", {told.measured} of {log} beside it" if told.measured else ""
    line = f"{output}: a step of {duration(step.seconds)}, {shown}, {count(told.events, 'event')}{beside}"
    show(Paragraph(line), then="open it at ui.perfetto.dev or chrome://tracing")
