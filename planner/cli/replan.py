"""``hetplan replan``: the plan that takes over when nodes fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.goal import StopOptions
from planner.cli.inputs import (
    check_same_inputs,
    concerning,
    read_calibration,
    read_priced,
    used_calibration,
    warn_of_other_calibration,
)
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ClusterNow,
    ModelNow,
    SavedPlan,
    cores,
    flag,
    option,
    seconds_of,
    time_limit,
)
from planner.cli.output import require_writable, show, show_document, typed
from planner.cli.process import INTERRUPTED, warn
from planner.cli.progress import reporter
from planner.emit.interface import Prepared, prepared_files, write_folder
from planner.errors import UsageError
from planner.files.short_lists import expand_hosts, parted
from planner.plan.file import PlanFile, UsedCalibration, write
from planner.plan.placement import ranks
from planner.report.brief import summary_of
from planner.report.replan import (
    ReplanDocument,
    failure_cost,
    failures_section,
    loss_of,
    prepared_section,
    replan_report,
)
from planner.search.replan import Replan, Replanner
from planner.search.values import Limits


def replan(
    plan: SavedPlan,
    *,
    without: Annotated[
        list[str] | None,
        option("--without", "HOST", "A host that has failed; repeatable. `node-[2-4]` names several."),
    ] = None,
    prepare: Annotated[
        Path | None,
        option(
            "--prepare",
            "DIR",
            "Instead of --without: find the plan for the loss of each single node and write all of them to DIR; "
            "with the torch target, a launch folder that switches to them by itself.",
        ),
    ] = None,
    force: Annotated[
        bool,
        flag(
            "--force", "Update the folder of --prepare: edited files are kept as NAME.edited, as with emit."
        ),
    ] = False,
    output: Annotated[
        Path | None, option("--output -o", "FILE", "Write the plan that takes over to FILE.")
    ] = None,
    away: Annotated[
        str,
        option(
            "--away",
            "TIME",
            "How long the hosts stay away: the time lost to slower steps is weighed against the time to move "
            "state.",
        ),
    ] = "1d",
    stops: StopOptions,
    cluster: ClusterNow = None,
    model: ModelNow = None,
    time_limit: Annotated[float, time_limit("Time limit of each search.")] = 30.0,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Find the plan that takes over when nodes fail.

    Searches the remaining nodes for plans of the same runtime, and prints the one that loses least until the hosts are
    back, by its slower steps and by the state that has to move for it; what each node keeps and receives; and both
    plans side by side.
    """
    away_seconds = seconds_of("--away", away, least=0)
    assert away_seconds is not None
    if (not without) == (prepare is None):
        raise UsageError(
            "replan: expected --without HOST or --prepare DIR, one of them", hint="e.g. --without node-3"
        )
    if prepare is not None and output is not None:
        raise UsageError("--prepare: writes a plan for each node into its folder, -o is for one plan")
    # A storage is of use without failures too: moving state takes its time.
    paced = replace(stops, storage=None) if stops.failures is None else stops
    interruptions, rate = paced.interruptions(), stops.storage_rate()
    if output is not None:
        require_writable(output)
    constants = read_calibration(calibration)
    saved, scored = read_priced(plan, constants)
    check_same_inputs(plan, saved, cluster, model)
    warn_of_other_calibration(plan, saved, calibration)
    interruptions = replace(interruptions.of(saved.model), repair_seconds=away_seconds)
    gone = [_named(without)] if without else []
    gone += [[host] for host in hosts_of(saved)] if prepare is not None else []
    answers: list[Replan] = []
    failed: list[UsageError] = []
    with reporter() as talk:
        search = Replanner(
            saved.plan,
            saved.cluster,
            saved.model,
            constants,
            Limits(target=saved.plan.target, time_limit_seconds=time_limit, processes=cores()),
            away_seconds=away_seconds,
            storage_bytes_per_second=rate,
            reporter=talk,
            better=lambda scored: talk.better(scored.estimate.step_seconds),
        )
        for hosts in gone:
            try:
                answers.append(search.without(hosts))
            except UsageError as error:
                failed.append(error)
                continue
            if answers[-1].result.interrupted and prepare is not None:
                raise KeyboardInterrupt  # a folder has a plan for every node
    if not answers:
        raise failed[0]
    used = used_calibration(calibration)
    losses = [loss_of(each) for each in answers]
    cost = failure_cost(interruptions, saved.plan.devices, saved.model)
    unprepared = tuple(error.message for error in failed)
    if output is not None:
        write(_file_of(answers[0], saved, used), output)
    if prepare is not None:
        for line in unprepared:
            warn(line)
        step = scored.estimate.step_seconds
        with concerning(plan):
            files = prepared_files(saved, step, [_prepared(each, saved, used) for each in answers])
        write_folder(files, prepare, force)
    if as_json:
        show_document(
            ReplanDocument(command="replan", losses=tuple(losses), unprepared=unprepared, failures=cost)
        )
    elif prepare is not None:
        show(prepared_section(losses), *failures_section(cost), then=f"read {prepare / 'PREPARED.md'}")
    else:
        then = None if output is None else typed("hetplan", "emit", output, "-o", "run/")
        show(*replan_report(losses[0], cost), then=then or "the same with -o without.yaml to keep the plan")
    if any(answer.result.interrupted for answer in answers):
        raise typer.Exit(INTERRUPTED)


def _named(texts: Sequence[str]) -> list[str]:
    """Hosts of the option, each once; raises UsageError for what can be none."""
    try:
        return list(dict.fromkeys(expand_hosts(part for text in texts for part in parted(text))))
    except ValueError as error:
        raise UsageError(
            f"--without: {error}", hint="e.g. --without node-3 or --without node-[2-4]"
        ) from None


def hosts_of(saved: PlanFile) -> tuple[str, ...]:
    """Hosts that a plan uses, in the order of their ranks; raises UsageError where no other is left beside one."""
    used = tuple(dict.fromkeys(rank.host for rank in ranks(saved.plan, saved.cluster)))
    if sum(len(pool.hosts) for pool in saved.cluster.pools) == 1:
        raise UsageError(f"--prepare: {used[0]} is the only host of the cluster, nothing is left without it")
    return used


def _prepared(answer: Replan, saved: PlanFile, used: UsedCalibration | None) -> Prepared:
    step = answer.chosen.scored.estimate.step_seconds
    return Prepared(host=answer.without[0], plan_file=_file_of(answer, saved, used), step_seconds=step)


def _file_of(answer: Replan, saved: PlanFile, used: UsedCalibration | None) -> PlanFile:
    """The plan that takes over, for the nodes that are left in its order."""
    return PlanFile(
        plan=answer.chosen.scored.plan,
        cluster=answer.chosen.cluster,
        model=saved.model,
        summary=summary_of(answer.result),
        calibration=used,
    )
