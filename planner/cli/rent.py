"""``hetplan rent``: which machines to rent for a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from planner.cli.goal import Budget, Deadline, RunOptions, StopOptions
from planner.cli.inputs import Overrides, read_calibration, read_model, search_command
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ModelFile,
    NeededTokens,
    TargetName,
    cores,
    option,
    proven_gap,
    time_limit,
)
from planner.cli.output import require_writable, show, show_document
from planner.cli.process import exit_code, warn
from planner.cli.progress import searching
from planner.cluster.offers import Offer, OfferedNetwork, OffersFile, cluster_text, load_offers
from planner.errors import UsageError
from planner.files.messages import nearest as nearest_name
from planner.files.messages import within
from planner.files.short_lists import first_of
from planner.files.writing import write_whole
from planner.probe.market import catalogue, market, offers_file
from planner.ranges import FAILURES, NODES
from planner.report.layout import Answer
from planner.report.numbers import count
from planner.report.rent import rent_document, rent_line, rent_report
from planner.search.milp.renting import Wanted
from planner.search.objectives.renting import RentGoal, RentSearch
from planner.search.values import Limits

LISTED = 20
"""Names that a message lists."""


def rent(
    model: ModelFile,
    tokens: NeededTokens,
    *,
    offers: Annotated[
        Path | None,
        option(
            "--offers",
            "FILE",
            "Machines that can be rented, with their prices (YAML). Default: gpuhunt's catalogue, where installed.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        option(
            "--network",
            "KIND:GBPS",
            "Network of each machine of gpuhunt's catalogue, which lists none, e.g. ethernet:100 or "
            "infiniband:400x8 for eight cards. Default: none, so that a single machine is rented.",
        ),
    ] = None,
    interruptions: Annotated[
        float | None,
        option(
            "--interruptions",
            "RATE",
            "How often a spot machine of gpuhunt's catalogue is reclaimed in 30 days. Default: no spot machines.",
        ),
    ] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    objective: Annotated[
        str | None,
        option(
            "--objective",
            "NAME",
            "What to minimise: time or money. Default: time with --budget alone, else money.",
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output -o", "FILE", "Write the rented machines to FILE, as a cluster file.")
    ] = None,
    provider: Annotated[str | None, option("--provider", "NAME", "Only offers of this provider.")] = None,
    region: Annotated[str | None, option("--region", "NAME", "Only offers of this region.")] = None,
    machines: Annotated[
        int | None, option("--machines", "N", "Rent at most this many machines.", allowed=NODES)
    ] = None,
    stops: StopOptions,
    target: TargetName = None,
    gap: Annotated[
        float, proven_gap("Stop once the machines are proven to be within this fraction of the best.", 0.001)
    ] = 0.05,
    time_limit: Annotated[
        float, time_limit("Total time limit; the best machines so far are returned with their gap.")
    ] = 120.0,
    overrides: Overrides,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Find which machines to rent for a training run.

    An integer program chooses how many machines of each offer to rent; plans are searched on its proposals until the
    choice is proven good. All machines are in one region of one provider, and each is paid for in full. Prints what to
    rent, and time against money.
    """
    run = RunOptions(tokens=tokens, deadline=deadline, budget=budget, stops=stops).goal()
    wanted = _wanted(objective, deadline, budget)
    if output is not None:
        require_writable(output, "cluster.yaml")
    model_spec = read_model(model, overrides)
    table = _table(offers, provider, region, network, interruptions)
    if overrides.safe is not None:
        table = table.model_copy(update={"safe": overrides.safe})
    assert run.tokens is not None
    goal = RentGoal(
        tokens=run.tokens,
        wanted=wanted,
        deadline_seconds=run.deadline_seconds,
        budget=run.budget,
        interruptions=run.interruptions.of(model_spec),
        most=machines,
    )
    limits = Limits(target=target, gap=gap, time_limit_seconds=time_limit, processes=cores())
    with searching(time_limit) as (talk, ends):
        search = RentSearch(
            table, model_spec, read_calibration(calibration), limits, goal, talk, deadline=ends
        )
        answer = search.run()
    if output is not None and answer.best is not None:
        text = cluster_text(table, {each.offer: each.machines for each in answer.best.machines})
        write_whole(text, output, "cluster.yaml")
    if as_json:
        show_document(rent_document(answer, goal))
    else:
        following = None
        if answer.best is not None:
            more = [] if target is None else ["--target", target]
            following = "the same with -o cluster.yaml to keep the cluster"
            if output is not None:
                following = search_command(output, model, overrides, calibration, *more)
        line = Answer(rent_line(answer, goal, model_spec))
        show(*rent_report(answer, goal, model_spec), then=following, last=line)
    infeasible = answer.status == "infeasible"
    raise typer.Exit(exit_code(answer.interrupted, answer.best is not None, infeasible))


def _wanted(objective: str | None, deadline: str | None, budget: float | None) -> Wanted:
    if objective not in (None, "time", "money"):
        raise UsageError(f"--objective: expected time or money, got {objective!r}")
    default: Wanted = "time" if budget is not None and deadline is None else "money"
    return default if objective is None else cast("Wanted", objective)


def _table(
    path: Path | None,
    provider: str | None,
    region: str | None,
    network: str | None,
    interruptions: float | None,
) -> OffersFile:
    """The offers of the file, or of gpuhunt's catalogue, that are asked for."""
    card = None if network is None else _card(network)
    within("--interruptions", interruptions, FAILURES)
    if path is not None:
        given = "--network" if network is not None else "--interruptions"
        if card is not None or interruptions is not None:
            raise UsageError(f"{given} is about gpuhunt's catalogue: the offers of {path} have their own")
        table = load_offers(path)
        return table.model_copy(update={"offers": _chosen(table.offers, provider, region)})
    supply = market(catalogue(), card, interruptions)
    kept = _chosen(supply.offers, provider, region)
    if supply.unknown:
        rows, names = sum(supply.unknown.values()), sorted(supply.unknown)
        warn(f"gpuhunt: {count(rows, 'row')} left out, of devices that are not known: {_listed(names)}")
    if supply.spot:
        warn(f"gpuhunt: {count(supply.spot, 'row')} of spot machines left out: see --interruptions")
    return offers_file(kept)


def _card(text: str) -> OfferedNetwork:
    """``infiniband:400x8``; raises UsageError."""
    kind, _, rest = text.partition(":")
    speed, _, cards = rest.partition("x")
    try:
        return OfferedNetwork.model_validate(
            {"kind": kind, "bandwidth_gbps": float(speed), "count": int(cards or "1")}
        )
    except ValueError:
        what = f"expected KIND:GBPS or KIND:GBPSxCARDS, got {text!r}"
        hint = "kinds are infiniband, roce and ethernet, e.g. --network ethernet:100"
        raise UsageError(f"--network: {what}", hint=hint) from None


def _chosen(offers: tuple[Offer, ...], provider: str | None, region: str | None) -> tuple[Offer, ...]:
    """The offers of a provider and a region; raises UsageError where there are none."""
    for key, name, having in (
        ("--provider", provider, [offer.provider for offer in offers]),
        ("--region", region, [offer.region for offer in offers]),
    ):
        if name is not None and name not in having:
            known = list(dict.fromkeys(each for each in having if each))
            near = nearest_name(name, known)
            raise UsageError(f"{key}: no offer has {name!r}", hint=near or f"there is {_listed(known)}")
    kept = tuple(
        offer for offer in offers if provider in (None, offer.provider) and region in (None, offer.region)
    )
    if not kept and (provider or region):
        raise UsageError(f"--provider {provider} --region {region}: no offer has both")
    return kept


def _listed(names: Sequence[str]) -> str:
    return first_of(names, LISTED) or "none"
