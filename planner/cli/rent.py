"""``hetplan rent``: which machines to rent for a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from planner.cli.goal import Budget, Deadline, read_run
from planner.cli.inputs import Overrides, read_calibration, read_model, with_calibration
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    CheckpointTime,
    Failures,
    GlobalBatch,
    ModelFile,
    Precision,
    RestartTime,
    SequenceLength,
    Storage,
    a_number,
)
from planner.cli.output import require_writable, show, show_document, typed
from planner.cli.process import (
    ANSWER,
    INFEASIBLE,
    INTERRUPTED,
    NO_PLAN_IN_TIME,
    Wish,
    keeping_the_best,
    started,
)
from planner.cli.progress import reporter
from planner.cluster.offers import OffersFile, cluster_text, load_offers
from planner.errors import UsageError
from planner.files.messages import nearest as nearest_name
from planner.files.writing import write_whole
from planner.ranges import NODES, TIME_LIMIT
from planner.report.layout import Answer
from planner.report.rent import rent_document, rent_line, rent_report
from planner.runtimes.registry import target as runtime
from planner.search.deadline import Deadline as SearchDeadline
from planner.search.milp.renting import Wanted
from planner.search.objectives.renting import Rent, RentGoal, RentSearch
from planner.search.values import Limits

Tokens = Annotated[
    str, typer.Option("--tokens", metavar="N", help="Tokens of the whole training, e.g. 300B, 1T or 5e9.")
]
Offers = Annotated[
    Path,
    typer.Option("--offers", metavar="FILE", help="Machines that can be rented, with their prices (YAML)."),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="What to minimise: time or money. Default: time with --budget alone, else money.",
    ),
]
Provider = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Only offers of this provider.")
]
Region = Annotated[str | None, typer.Option("--region", metavar="NAME", help="Only offers of this region.")]
MostMachines = Annotated[
    int | None,
    typer.Option(
        "--machines", metavar="N", min=1, max=int(NODES.most), help="Rent at most so many machines."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the rented machines to FILE, as a cluster file."
    ),
]
TargetName = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="Only plans for this runtime, as in search.")
]
Gap = Annotated[
    float,
    typer.Option(
        "--gap",
        metavar="FRACTION",
        min=0.001,
        max=1.0,
        callback=a_number,
        help="Stop once the machines are proven to be within this fraction of the best.",
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        min=TIME_LIMIT.least,
        max=TIME_LIMIT.most,
        callback=a_number,
        help="Total time limit; the best machines so far are returned with their gap.",
    ),
]


def rent(
    model: ModelFile,
    offers: Offers,
    tokens: Tokens,
    deadline: Deadline = None,
    budget: Budget = None,
    objective: Objective = None,
    output: Output = None,
    provider: Provider = None,
    region: Region = None,
    machines: MostMachines = None,
    failures: Failures = None,
    checkpoint_time: CheckpointTime = None,
    restart_time: RestartTime = None,
    storage: Storage = None,
    target: TargetName = None,
    gap: Gap = 0.05,
    time_limit: TimeLimit = 120.0,
    precision: Precision = None,
    global_batch: GlobalBatch = None,
    sequence_length: SequenceLength = None,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Find which machines to rent for a training run.

    Numbers of machines are variables of an integer program; plans are searched on those that it proposes, until they
    are proven good. All machines are in one region of one provider, and paid as a whole. Prints what to rent and time
    against money.
    """
    run = read_run(tokens, deadline, budget, failures, checkpoint_time, restart_time, storage)
    wanted = _wanted(objective, deadline, budget)
    if output is not None:
        require_writable(output, "cluster.yaml")
    overrides = Overrides(precision=precision, global_batch=global_batch, sequence_length=sequence_length)
    found_model = read_model(model, overrides)
    table = _chosen(load_offers(offers), provider, region)
    assert run.tokens is not None
    goal = RentGoal(
        tokens=run.tokens,
        wanted=wanted,
        deadline_seconds=run.deadline_seconds,
        budget=run.budget,
        interruptions=run.interruptions.of(found_model),
        most=machines,
    )
    limits = Limits(
        target=None if target is None else runtime(target).name, gap=gap, time_limit_seconds=time_limit
    )
    wish = Wish()
    ends = SearchDeadline.after(time_limit, since=started(), flag=wish)
    with keeping_the_best(wish), reporter() as talk:
        search = RentSearch(
            table, found_model, read_calibration(calibration), limits, goal, talk, deadline=ends
        )
        found = search.run()
    if output is not None and found.best is not None:
        text = cluster_text(table, {each.offer: each.machines for each in found.best.machines})
        write_whole(text, output, "cluster.yaml")
    if as_json:
        show_document(rent_document(found, goal))
    else:
        following = None
        if found.best is not None:
            command = typed("hetplan", "search", output or "cluster.yaml", model, "-o", "plan.yaml")
            following = with_calibration(command, calibration)
            following = following if output else "the same with -o cluster.yaml to keep the cluster"
        line = Answer(rent_line(found, goal, found_model))
        show(*rent_report(found, goal, found_model), then=following, last=line)
    raise typer.Exit(_exit_code(found))


def _wanted(objective: str | None, deadline: str | None, budget: float | None) -> Wanted:
    if objective not in (None, "time", "money"):
        raise UsageError(f"--objective: expected time or money, got {objective!r}")
    default: Wanted = "time" if budget is not None and deadline is None else "money"
    return default if objective is None else cast("Wanted", objective)


def _chosen(table: OffersFile, provider: str | None, region: str | None) -> OffersFile:
    """The offers of a provider and a region; raises UsageError where there are none."""
    for option, name, having in (
        ("--provider", provider, [offer.provider for offer in table.offers]),
        ("--region", region, [offer.region for offer in table.offers]),
    ):
        if name is not None and name not in having:
            known = list(dict.fromkeys(each for each in having if each))
            near = nearest_name(name, known)
            raise UsageError(f"{option}: no offer has {name!r}", hint=near or f"there is {_listed(known)}")
    kept = tuple(
        offer
        for offer in table.offers
        if provider in (None, offer.provider) and region in (None, offer.region)
    )
    if not kept:
        raise UsageError(f"--provider {provider} --region {region}: no offer has both")
    return table.model_copy(update={"offers": kept})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _exit_code(found: Rent) -> int:
    if found.interrupted:
        return INTERRUPTED
    if found.best is not None:
        return ANSWER
    return INFEASIBLE if found.status == "infeasible" else NO_PLAN_IN_TIME
