"""Offers from gpuhunt's catalogue of what clouds rent out, which must be installed (extra ``offers``).

The catalogue tells prices, devices and places; it tells neither networks nor how often spot machines are taken away, so
these are the caller's. Its names of devices are looked up in ours by name and memory. Where a device is sold on two
boards, machines of eight and those whose name says so have SXM, others PCIe, which is the slower one.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Protocol

from planner import catalog
from planner.catalog.node_links import usual_link
from planner.cluster.offers import MOST_OFFERS, Offer, OfferedNetwork, OffersFile
from planner.errors import UsageError
from planner.probe.entries import named
from planner.ranges import MACHINE_PRICE, NODE_DEVICES

NAMES = {"RTXPRO6000": "RTX-PRO-6000-Server", "RTXPRO6000WK": "RTX-PRO-6000"}
"""Devices whose name there is not ours: clouds have the Server Edition of the RTX PRO 6000."""
ALIKE = 0.1
"""Memory of a device there may differ so much from that of the driver."""
SXM_FROM = 8
"""Devices of a machine from which on it is taken for one with SXM boards."""


class Item(Protocol):
    """What is read of a row of the catalogue (``gpuhunt.CatalogItem``)."""

    provider: str
    instance_name: str
    location: str
    price: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """What can be rented by the catalogue."""

    offers: tuple[Offer, ...]
    unknown: Mapping[str, int]
    """Rows by the name of a device that hetplan does not know."""
    spot: int
    """Rows of spot machines that were left out since nothing says how often they are taken away."""


def catalogue() -> list[Item]:
    """Rows with devices; of the files in the folder ``GPUHUNT_CATALOG_DIR`` where it is set; raises UsageError."""
    try:
        import gpuhunt
    except ImportError:
        raise UsageError(
            "rent: expected --offers FILE, or gpuhunt's catalogue",
            hint="write the machines to a file (hetplan schema offers), or pip install 'hetplan[offers]'",
        ) from None
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)
    folder = os.environ.get("GPUHUNT_CATALOG_DIR")
    providers = sorted(path.stem for path in Path(folder).glob("*.csv")) if folder else None
    try:
        rows: list[Item] = gpuhunt.Catalog(auto_reload=not folder).query(provider=providers, min_gpu_count=1)
    except (OSError, ValueError, gpuhunt.GPUHuntError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"rent: gpuhunt's catalogue cannot be read: {what}", hint="write the machines to a file: --offers"
        ) from None
    return rows


def market(
    items: Iterable[Item], network: OfferedNetwork | None = None, interruptions: float | None = None
) -> Market:
    """The cheapest machine of each place, device type and number of devices, on demand and as spot.

    All have this network, none without one; ``interruptions`` is how often a spot machine is taken away in 30 days.
    """
    best: dict[tuple[object, ...], Offer] = {}
    unknown: dict[str, int] = {}
    left_out = 0
    for item in items:
        gpu = _device(item)
        if gpu is None:
            name = named(item.gpu_name or "unnamed")
            unknown[name] = unknown.get(name, 0) + 1
        elif item.spot and interruptions is None:
            left_out += 1
        elif MACHINE_PRICE.holds(item.price) and item.price > 0 and NODE_DEVICES.holds(item.gpu_count):
            offer = _offer(item, gpu, network, interruptions)
            key = (offer.place, gpu, offer.count, offer.spot)
            if key not in best or offer.price_per_hour < best[key].price_per_hour:
                best[key] = offer
    return Market(offers=tuple(best.values()), unknown=unknown, spot=left_out)


def _device(item: Item) -> str | None:
    """Its name in hetplan's catalogue; None for one that is not there."""
    name, memory = item.gpu_name or "", item.gpu_memory
    named_so = catalog.find_gpu(NAMES.get(name, name))
    known = [named_so] if named_so else [catalog.gpu(like) for like in catalog.gpus_like(name)]
    fitting = [each.name for each in known if memory and abs(memory / each.memory_gib - 1) < ALIKE]
    if len(fitting) > 1:
        board = "SXM" if item.gpu_count >= SXM_FROM or "sxm" in item.instance_name.lower() else "PCIe"
        fitting = [each for each in fitting if board in each]
    return fitting[0] if fitting else None


def _offer(item: Item, gpu: str, network: OfferedNetwork | None, interruptions: float | None) -> Offer:
    spot = "-spot" if item.spot else ""
    return Offer(
        name=named(f"{item.instance_name}{spot}"),
        gpu=gpu,
        count=item.gpu_count,
        price_per_hour=item.price,
        provider=named(item.provider),
        region=named(item.location),
        spot=item.spot,
        interruptions_per_month=interruptions if item.spot else None,
        intra_node=usual_link(gpu) if item.gpu_count > 1 else None,
        network=() if network is None else (network,),
    )


def offers_file(offers: Sequence[Offer]) -> OffersFile:
    """The table of offers, without places where everything costs as much or more than at another; raises UsageError."""
    places: dict[tuple[str, str], dict[tuple[object, ...], float]] = {}
    for offer in offers:
        places.setdefault(offer.place, {})[offer.gpu, offer.count, offer.spot] = offer.price_per_hour
    kept = list(places)
    for place in places:
        if any(_covers(places[other], places[place]) for other in kept if other != place):
            kept.remove(place)
    left = [offer for offer in offers if offer.place in kept]
    if not left or len(left) > MOST_OFFERS:
        raise UsageError(
            f"--provider, --region: {len(left)} offers of gpuhunt's catalogue are left, expected 1 to {MOST_OFFERS}",
            hint="choose a --provider or a --region"
            if left
            else "hetplan gpus names the devices that are known",
        )
    return OffersFile(name="gpuhunt", source="gpuhunt", offers=tuple(_with_own_names(left)))


def _with_own_names(offers: Sequence[Offer]) -> Iterator[Offer]:
    """Those that several places, or several machines of one, have by one name are told apart by place and number."""
    often = Counter(offer.name for offer in offers)
    seen: set[str] = set()
    for offer in offers:
        name = offer.name if often[offer.name] == 1 else named("-".join((*offer.place, offer.name)))
        further = (f"{name[:90]}-{number}" for number in count(2))
        name = next(each for each in chain((name,), further) if each not in seen)
        seen.add(name)
        yield offer.model_copy(update={"name": name})


def _covers(one: Mapping[tuple[object, ...], float], other: Mapping[tuple[object, ...], float]) -> bool:
    """True where all that one place has is at another, for no more."""
    return all(machine in one and one[machine] <= price for machine, price in other.items())
