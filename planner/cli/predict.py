"""``hetplan predict``: step time and memory of a hand-written plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.console import RenderableType

from planner.calibration.values import Calibration
from planner.cli.goal import RunOptions
from planner.cli.inputs import (
    Overrides,
    concerning,
    constants_for,
    read_inputs,
    search_command,
    used_calibration,
)
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ClusterFile,
    ModelFile,
    argument,
    option,
)
from planner.cli.output import require_writable, show, show_document, typed
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator, estimate
from planner.errors import UsageError
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile, load_plan, load_plans, write
from planner.report.compare import Contender, batch_section
from planner.report.document import PredictDocument, compare_document, plan_document
from planner.report.explain import memory_section, time_section
from planner.report.goal import training_lines
from planner.report.inputs import understood
from planner.report.layout import Paragraph, section
from planner.report.plan_table import misfits, plan_section, warnings_of
from planner.search.values import Scored


def predict(
    cluster: ClusterFile,
    model: ModelFile,
    *,
    plan: Annotated[
        Path | None, argument("PLAN", "Plan file, or a short plan with lines such as `tp: 8` and `pp: 8`.")
    ] = None,
    plans: Annotated[
        Path | None,
        option(
            "--plans",
            "FILE",
            "Instead of PLAN: a file with a list of short plans, one a line, e.g. `- {tp: 8, pp: 8}`.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "--output -o",
            "FILE",
            "Write the plan to FILE, as `hetplan search` does, for `emit`, `compare` and the other commands.",
        ),
    ] = None,
    overrides: Overrides,
    training: RunOptions,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Predict step time and memory of a hand-written plan.

    Prints stages, throughput, time by cause, memory by component, and whether the plan fits. With --plans, one line
    for each of many plans.
    """
    if (plan is None) == (plans is None):
        raise UsageError("expected PLAN or --plans FILE, one of them")
    if plan is None and (output is not None or training != RunOptions()):
        raise UsageError("-o and the options of a training run are for one PLAN, not for --plans")
    wanted = training.goal()
    if output is not None:
        require_writable(output)
    cluster_spec, model_spec = read_inputs(cluster, model, overrides)
    wanted = replace(wanted, interruptions=wanted.interruptions.of(model_spec))
    constants = constants_for(calibration, cluster_spec, model_spec)
    if plan is None:
        assert plans is not None
        contenders = _many(plans, cluster_spec, model_spec, constants)
        if as_json:
            show_document(compare_document(contenders, "predict --plans"))
        else:
            show(understood(cluster_spec, model_spec, constants), batch_section(contenders))
        return
    scored = _priced(plan, cluster_spec, model_spec, constants)
    run = wanted.run_of(scored.estimate)
    if output is not None:
        used = used_calibration(calibration)
        kept = PlanFile(
            plan=scored.plan, cluster=cluster_spec, model=model_spec, summary=None, calibration=used
        )
        write(kept, output)
    if as_json:
        plan_of = plan_document("predict", scored, cluster_spec, model_spec, None)
        show_document(PredictDocument(plan=plan_of, training=run))
    else:
        search = search_command(cluster, model, overrides, calibration)
        told = training_lines(run, wanted, scored.estimate.spread) if run else []
        show(
            *_report(scored, cluster_spec, model_spec, constants),
            *([section("Training", *map(Paragraph, told))] if told else []),
            then=search if output is None else typed("hetplan", "emit", output, "-o", "run/"),
        )


def _priced(plan: Path, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration) -> Scored:
    decided = load_plan(plan, cluster, model)
    with concerning(plan):
        return Scored(plan=decided, estimate=estimate(decided, cluster, model, calibration))


def _many(
    path: Path, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration
) -> tuple[Contender, ...]:
    """All plans of a file, priced by one estimator."""
    estimator = Estimator(cluster, model, calibration)
    contenders = []
    for index, decided in enumerate(load_plans(path, cluster, model)):
        name = f"plans[{index}]"
        with concerning(path):
            scored = Scored(plan=decided, estimate=estimator.estimate(decided))
        note = "; ".join(misfits(scored.estimate))
        contenders.append(Contender(name=name, scored=scored, cluster_devices=cluster.devices, note=note))
    return tuple(contenders)


def _report(
    scored: Scored, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration
) -> list[RenderableType]:
    return [
        understood(cluster, model, calibration),
        plan_section(scored, cluster, unit=model.unit),
        time_section(scored.estimate),
        memory_section(scored.estimate),
        warnings_of(scored.estimate),
    ]
