"""The offers file: machines that can be rented, each with its price; and clusters of some of them.

All machines of one place, a region of a provider, that have cards of one kind are on one fabric. Machines of two places
never work together, nor do those of one place that no kind of cards joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from planner.catalog import GpuSpec
from planner.cluster.file import ClusterFile, DeviceField, IntraNodeField, cluster_of, problems_of
from planner.cluster.spec import ClusterSpec, HostSpec, NicKind
from planner.cluster.topology import connected
from planner.errors import Problem
from planner.files.document import Document, fail_on, read_as
from planner.files.fields import (
    Cards,
    Chance,
    Frozen,
    MachinePrice,
    Name,
    NodeDevices,
    Nodes,
    Rate,
    ReserveGib,
    Stops,
    written,
)
from planner.files.nodes import parse
from planner.files.writing import dump

MOST_OFFERS = 200
"""Offers of one file."""


class OfferedNetwork(Frozen):
    """Identical network cards of one machine."""

    kind: NicKind
    """infiniband, roce or ethernet (TCP)."""
    bandwidth_gbps: Rate
    """Bandwidth of one card in one direction, gigabit/s."""
    count: Cards = 1
    """Cards per machine."""


class Offer(Frozen):
    """A kind of machine that can be rented."""

    name: Name
    """Name of the offer; the cluster's pool is called after it."""
    gpu: DeviceField
    """Type of its devices: a name of the catalogue or of ``gpus``, or its numbers."""
    count: NodeDevices = 1
    """Devices of one machine."""
    price_per_hour: MachinePrice
    """Price of one machine for one hour, in the currency of your choice."""
    provider: Name | None = None
    """Who rents it out."""
    region: Name | None = None
    """Where it is; machines of different providers or regions never work together."""
    spot: bool = False
    """True for a machine that may be taken away."""
    interruptions_per_month: Stops | None = None
    """How often one machine is taken away in 30 days; needed for spot machines."""
    most: Nodes = 16
    """Most machines that can be had."""
    intra_node: IntraNodeField | None = None
    """Network between its devices: a catalogue name, or its numbers; needed from two devices on."""
    network: Annotated[tuple[OfferedNetwork, ...], Field(max_length=10)] = ()
    """Its cards; needed to rent several machines."""
    host: HostSpec | None = None
    """What a machine offers to what is kept off its devices; for plans that offload."""
    source: str | None = None
    """Where the numbers are from; free text."""

    @property
    def place(self) -> tuple[str, str]:
        """(provider, region)."""
        return self.provider or "", self.region or ""

    @property
    def kinds(self) -> set[str]:
        """Those of its cards."""
        return {card.kind for card in self.network}

    @property
    def stops_per_month(self) -> float:
        """How often one machine is taken away in 30 days."""
        return (self.interruptions_per_month or 0.0) if self.spot else 0.0

    @property
    def available(self) -> int:
        """Most machines that can work together: without a network, one."""
        return self.most if self.network else 1


class OffersFile(Frozen):
    """Machines that can be rented."""

    name: Name = "offers"
    """Name of the table; clusters of its machines are called after it."""
    notes: str | None = None
    """Free text."""
    source: str | None = None
    """Where the numbers are from; free text."""
    gpus: dict[Name, GpuSpec] = Field(default_factory=dict)
    """Your own device types, by name; they win over the catalogue's."""
    offers: Annotated[tuple[Offer, ...], Field(min_length=1, max_length=MOST_OFFERS)]
    """The machines."""
    reserve_gib: ReserveGib = 2.0
    """Memory kept free on each device, GiB."""
    safe: Chance | None = None
    """Largest chance of running out of memory that a plan may have; None leaves it to ``reserve_gib`` alone."""

    def teams(self) -> dict[str, tuple[str, ...]]:
        """Of each offer, by name, all whose machines can work with its own: in one place, joined by cards of one kind.

        Others may stand between two of them.
        """
        joined = (
            (one.name, other.name, 1.0)
            for one, other in combinations(self.offers, 2)
            if one.place == other.place and one.kinds & other.kinds
        )
        names = [offer.name for offer in self.offers]
        return {name: tuple(sorted(team)) for team in connected(names, joined) for name in team}


def load_offers(path: Path) -> OffersFile:
    """The offers of a file; raises SpecError with every problem of the file."""
    document = read_as(path, "offers")
    fail_on(_problems(document))
    return document.to(OffersFile)


def rented(table: OffersFile, machines: Mapping[str, int]) -> ClusterSpec:
    """The cluster of so many machines by offer; none is left out where it is named, or cannot work with the others."""
    document = Document(table.name, parse(dump(_cluster(table, machines))))
    fail_on(problems_of(document, connected=False))
    return cluster_of(document.to(ClusterFile))


def _problems(document: Document) -> Iterator[Problem]:
    problems = document.problems(OffersFile)
    yield from problems
    if problems:
        return
    table = document.to(OffersFile)
    first: dict[str, int] = {}
    for index, offer in enumerate(table.offers):
        if offer.name in first:
            what = f"{offer.name} is already on line {document.line(('offers', first[offer.name], 'name'))}"
            yield document.problem(("offers", index, "name"), what, "give each offer its own name")
            continue
        first[offer.name] = index
        if offer.spot and offer.interruptions_per_month is None:
            yield document.problem(
                ("offers", index, "interruptions_per_month"),
                "missing: a spot machine needs it",
                "how often one machine is taken away in 30 days, for example 0.5",
            )
        yield from _of_one(document, table, index)


KEYS = {"gpus_per_node": "count", "nics": "network"}
"""Keys of an offer, by those of a pool."""


def _of_one(document: Document, table: OffersFile, index: int) -> Iterator[Problem]:
    """What keeps one machine from being a cluster, at its place in the offers file."""
    offer = table.offers[index]
    only = table.model_copy(update={"offers": (offer,)})
    alone = Document(table.name, parse(dump(_cluster(only, {offer.name: 1}))))
    for problem in problems_of(alone):
        top, _, key = problem.key.partition(".")
        path: tuple[str | int, ...] = ("offers", index, *([KEYS.get(key, key)] if key else []))
        if top != "pools[0]":
            path = (top,)
        yield document.problem(path, problem.what, problem.hint)


def _cluster(table: OffersFile, machines: Mapping[str, int]) -> dict[str, Any]:
    """A cluster file as plain data."""
    fabrics: dict[str, dict[str, Any]] = {}
    pools: list[dict[str, Any]] = []
    for offer in table.offers:
        nodes = machines.get(offer.name, 0)
        if not nodes:
            continue
        plain = written(offer)
        pool = {key: plain[key] for key in ("name", "gpu", "intra_node", "host") if key in plain}
        nics = []
        for card in offer.network:
            fabric = "-".join(part for part in (*offer.place, card.kind) if part)
            fabrics[fabric] = {"kind": card.kind}
            nics.append({"fabric": fabric, "bandwidth_gbps": card.bandwidth_gbps, "count": card.count})
        pool |= {"nodes": nodes, "gpus_per_node": offer.count}
        pool |= {"nics": nics, "price_per_gpu_hour": offer.price_per_hour / offer.count}
        pools.append(pool)
    gpus = {name: written(gpu) for name, gpu in table.gpus.items()}
    safe = {} if table.safe is None else {"safe": table.safe}
    return {
        "name": table.name,
        "reserve_gib": table.reserve_gib,
        **safe,
        "gpus": gpus,
        "pools": pools,
        "fabrics": fabrics,
    }


def cluster_text(table: OffersFile, machines: Mapping[str, int]) -> str:
    """The same cluster as a file, to go on with."""
    data = _cluster(table, machines)
    return dump({key: value for key, value in data.items() if value})
