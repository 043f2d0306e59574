"""``hetplan share``: several jobs on one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, cast

import typer

from planner.cli.inputs import read_calibration, read_cluster, used_calibration
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ClusterFile,
    TargetName,
    argument,
    cores,
    flag,
    option,
    proven_gap,
    time_limit,
)
from planner.cli.output import failure_of, show, show_document, typed
from planner.cli.process import exit_code
from planner.cli.progress import searching
from planner.emit.interface import write_folder
from planner.errors import OutputError, UsageError
from planner.job.files import EmittedFile
from planner.report.layout import Answer
from planner.report.share import share_document, share_files, share_line, share_report
from planner.search.values import Limits
from planner.share.crossover import Crossover, CrossoverPair
from planner.share.jobs import load_jobs
from planner.share.search import OBJECTIVES, ShareObjective, ShareSearch
from planner.targets import in_words
from planner.targets import target as runtime


def share(
    cluster: ClusterFile,
    jobs: Annotated[Path, argument("JOBS", "Jobs file: models, what is left to do, weights (YAML).")],
    objective: Annotated[
        str,
        option(
            "--objective",
            "NAME",
            "makespan: the last job ends soonest; throughput: the most weighted tokens a second; fairness: the job "
            "with the smallest fraction of its equal share gets as much as possible.",
        ),
    ] = "makespan",
    output: Annotated[
        Path | None,
        option("--output -o", "DIR", "Write a cluster file and a plan file for each job into DIR."),
    ] = None,
    force: Annotated[
        bool, flag("--force", "Update the folder: edited files are kept as NAME.edited, as with emit.")
    ] = False,
    crossover: Annotated[
        bool,
        flag(
            "--crossover",
            "Also simulate each pair of jobs on the same devices, one computing while the other waits for the "
            "network. Takes half of the time limit.",
        ),
    ] = False,
    target: TargetName = None,
    gap: Annotated[
        float, proven_gap("Stop once the partition is proven to be within this fraction of the best.", 0.001)
    ] = 0.02,
    time_limit: Annotated[
        float, time_limit("Total time limit; the best partition so far is returned with its gap.")
    ] = 120.0,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Divide a cluster among several jobs.

    Every job gets whole nodes, or devices of one node where there are fewer nodes than jobs. An integer program
    proposes partitions, and plans are searched on the sub-clusters that it proposes, until they are proven good.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective: expected {in_words(OBJECTIVES, 'or')}, got {objective!r}")
    wanted = cast("ShareObjective", objective)
    cluster_spec = read_cluster(cluster)
    loaded = load_jobs(jobs, cluster_spec, need_tokens=wanted == "makespan")
    limits = Limits(
        target=None if target is None else runtime(target).name,
        gap=gap,
        time_limit_seconds=time_limit,
        processes=cores(),
    )
    with searching(time_limit) as (talk, ends):
        constants = read_calibration(calibration)
        part = ends.part(0.5) if crossover else ends
        answer = ShareSearch(cluster_spec, loaded, constants, limits, wanted, talk, deadline=part).run()
        pairs: Sequence[CrossoverPair] | None = None
        if crossover and not ends.interrupted:
            talk.phase("crossover")
            pairs = ()
            with suppress(KeyboardInterrupt):  # a second one: the answer is there
                pairs = Crossover(cluster_spec, loaded, constants, limits, ends).run()
    files = share_files(answer, pairs or (), used_calibration(calibration))
    unwritten = _kept(files, output, force)
    if as_json:
        show_document(share_document(answer, pairs))
    else:
        following = None
        if answer.portions:
            name = f"{answer.portions[0].job}.plan.yaml"
            emit = typed("hetplan", "emit", (output or Path()) / name, "-o", f"run/{answer.portions[0].job}")
            following = emit if output else "the same with -o FOLDER to keep the plans"
        show(*share_report(answer, cluster_spec.name, pairs), then=following, last=Answer(share_line(answer)))
    if unwritten is not None:
        raise unwritten
    raise typer.Exit(exit_code(ends.interrupted, bool(answer.portions), bool(answer.conflict)))


def _kept(files: Sequence[EmittedFile], output: Path | None, force: bool) -> OutputError | None:
    """Write the files; a failure is returned, so that the report comes first."""
    if output is None or not files:
        return None
    return failure_of(lambda: write_folder(files, output, force))
