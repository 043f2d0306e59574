"""Offers from gpuhunt's catalogue, of a small one of our own making in its format."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from planner.catalog import gpu_names
from planner.cluster.offers import MOST_OFFERS, OfferedNetwork, rented
from planner.errors import UsageError
from planner.probe.market import catalogue, market, offers_file
from tests.cli.running import Command

COLUMNS = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor"
CATALOGUE = {
    "aws": """\
p4d.24xlarge,us-east-1,30.0,96,1152,8,A100,40,False,,nvidia
p4d.24xlarge,us-east-1,11.0,96,1152,8,A100,40,True,,nvidia
p4d.24xlarge,eu-west-1,33.0,96,1152,8,A100,40,False,,nvidia
g5.xlarge,us-east-1,1.0,4,16,1,A10G,24,False,,nvidia
g5.2xlarge,us-east-1,1.2,8,32,1,A10G,24,False,,nvidia
p5.48xlarge,us-west-2,55.0,192,2048,8,H100,80,False,,nvidia
m5.large,us-east-1,0.1,2,8,0,,,False,,
""",
    "runpod": """\
NVIDIA A100-SXM4-80GB,EU 1,2.0,16,117,1,A100,80,False,,nvidia
NVIDIA A100 80GB PCIe,EU 1,1.6,16,117,1,A100,80,False,,nvidia
strange,EU 1,1.0,16,117,2,RTX9999,80,False,,nvidia
plain,EU 1,0.2,16,117,1,RTX3050,8,False,,nvidia
free,EU 1,0,16,117,1,L4,24,False,,nvidia
""",
}
"""Rows by provider."""


@dataclass
class Row:
    """As gpuhunt's own item, of what is read."""

    provider: str
    instance_name: str
    location: str
    price: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool


def rows() -> Iterator[Row]:
    """The catalogue's rows with devices."""
    for provider, text in CATALOGUE.items():
        for row in csv.DictReader(io.StringIO(f"{COLUMNS}\n{text}")):
            if int(row["gpu_count"]):
                yield Row(
                    provider=provider,
                    instance_name=row["instance_name"],
                    location=row["location"],
                    price=float(row["price"]),
                    gpu_count=int(row["gpu_count"]),
                    gpu_name=row["gpu_name"] or None,
                    gpu_memory=float(row["gpu_memory"]),
                    spot=row["spot"] == "True",
                )


LEFT_OPEN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""gpuhunt does not close the files of its folder."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The catalogue in gpuhunt's own files, where gpuhunt looks for them."""
    pytest.importorskip("gpuhunt")
    for provider, text in CATALOGUE.items():
        (tmp_path / f"{provider}.csv").write_text(f"{COLUMNS}\n{text}")
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    return tmp_path


def test_names_prices_and_places() -> None:
    """The cheapest of like machines; boards by their name or number; what is unknown or has no price is left out."""
    found = market(rows())
    told = {
        (offer.region, offer.name): (offer.gpu, offer.count, offer.intra_node, offer.available)
        for offer in found.offers
    }
    assert told == {
        ("us-east-1", "p4d.24xlarge"): ("A100-SXM-40GB", 8, "nvlink3", 1),
        ("eu-west-1", "p4d.24xlarge"): ("A100-SXM-40GB", 8, "nvlink3", 1),
        ("us-east-1", "g5.xlarge"): ("A10G", 1, None, 1),
        ("us-west-2", "p5.48xlarge"): ("H100-SXM-80GB", 8, "nvlink4", 1),
        ("EU-1", "NVIDIA-A100-SXM4-80GB"): ("A100-SXM-80GB", 1, None, 1),
        ("EU-1", "NVIDIA-A100-80GB-PCIe"): ("A100-PCIe-80GB", 1, None, 1),
    }
    assert (found.unknown, found.spot) == ({"RTX9999": 1, "RTX3050": 1}, 1)


def test_networks_and_spot_machines_as_asked() -> None:
    """They are the caller's, and then several machines work together, as clusters that can be searched."""
    card = OfferedNetwork(kind="ethernet", bandwidth_gbps=100.0)
    found = market(rows(), card, 3.0)
    (spot,) = (offer for offer in found.offers if offer.spot)
    assert (spot.interruptions_per_month, spot.available, found.spot) == (3.0, 16, 0)
    table = offers_file(found.offers)
    cluster = rented(table, {"p4d.24xlarge": 2, spot.name: 1})
    assert [len(pool.hosts) for pool in cluster.pools] == [2, 1]


def test_a_dearer_place_is_left_out() -> None:
    """Ireland has nothing that Virginia has not for less; of two alike places one is kept."""
    found = market(rows())
    kept = offers_file(found.offers).offers
    assert {offer.region for offer in kept} == {"us-east-1", "us-west-2", "EU-1"}
    twin = [offer.model_copy(update={"name": f"{offer.name}-b", "region": "b"}) for offer in kept[:2]]
    assert len(offers_file([*kept, *twin]).offers) == len(kept)


def test_names_are_told_apart_where_they_must_be() -> None:
    """By the place, then by a number."""
    card = OfferedNetwork(kind="ethernet", bandwidth_gbps=100.0)
    dear = replace(next(rows()), location="us-west-2", price=99.0)
    again = replace(dear, gpu_count=4, price=50.0)
    names = [offer.name for offer in offers_file(market([*rows(), dear, again], card, 1.0).offers).offers]
    assert "p5.48xlarge" in names
    assert {"aws-us-east-1-p4d.24xlarge", "aws-us-west-2-p4d.24xlarge", "aws-us-west-2-p4d.24xlarge-2"} <= {
        *names
    }


def test_too_many_and_none() -> None:
    """Each is one message; places of which each has something for less than the others are all kept."""
    whole, part = next(rows()), next(row for row in rows() if row.gpu_count == 1)
    scattered = [
        row
        for number in range(MOST_OFFERS)
        for row in (
            replace(whole, location=f"r{number}", price=30.0 + number),
            replace(part, location=f"r{number}", price=1.0 + MOST_OFFERS - number),
        )
    ]
    with pytest.raises(UsageError, match="400 offers of gpuhunt's catalogue are left, expected 1 to 200"):
        offers_file(market(scattered).offers)
    with pytest.raises(UsageError, match="0 offers of gpuhunt's catalogue are left"):
        offers_file(())


KNOWN = (
    *(
        "A10 24",
        "A10G 24",
        "A40 48",
        "A5000 24",
        "A6000 48",
        "H100NVL 94",
        "H200 141",
        "B200 180",
        "GB200 186",
    ),
    *("B300 270", "GB300 270", "L4 24", "L40 48", "L40S 48", "RTX2080 8", "RTX2080Ti 11", "RTX3080 10"),
    *("RTX3090 24", "RTX3090Ti 24", "RTX4080 16", "RTX4090 24", "RTX5090 32", "RTX6000 24", "RTX6000Ada 48"),
    *(
        "RTXPRO6000 96",
        "T4 16",
        "GH200 96",
        "MI300X 192",
        "MI355X 288",
        "A100 40",
        "A100 80",
        "H100 80",
        "V100 16",
    ),
    *("V100 32", "P100 16", "P40 24", "A4000 16", "H200NVL 141", "MI210 64"),
    *("RTX3060 12", "RTX3070 8", "RTX3080Ti 12", "RTX4070Ti 12", "RTX5070Ti 16", "RTX5080 16"),
)
"""Devices that both catalogues have, as gpuhunt names them, with its GiB."""


@pytest.mark.parametrize("name", KNOWN)
def test_a_device_that_both_know(name: str) -> None:
    """It is found by its name and memory, whichever board it may be on."""
    gpu, memory = name.split()
    row = replace(next(rows()), gpu_name=gpu, gpu_memory=float(memory), gpu_count=4)
    (offer,) = market([row]).offers
    assert offer.gpu in gpu_names()


@pytest.mark.parametrize(
    ("written", "gpu"), [("RTXPRO6000", "RTX-PRO-6000-Server"), ("RTXPRO6000WK", "RTX-PRO-6000")]
)
def test_a_card_of_a_cloud_is_the_server_edition(written: str, gpu: str) -> None:
    """Unless it is said to be that for workstations."""
    row = replace(next(rows()), gpu_name=written, gpu_memory=96.0)
    assert [offer.gpu for offer in market([row]).offers] == [gpu]


def test_a_device_of_two_boards_is_the_slower_one() -> None:
    """Google's P100 is on PCIe, as gpuhunt does not say."""
    row = replace(next(rows()), gpu_name="P100", gpu_memory=16.0, gpu_count=4)
    assert [(offer.gpu, offer.intra_node) for offer in market([row]).offers] == [("P100-PCIe-16GB", "pcie3")]


@LEFT_OPEN
def test_gpuhunt_reads_the_same(folder: Path) -> None:
    """Its own classes, from files in its own format."""
    ours = sorted(rows(), key=lambda row: (row.provider, row.price))
    theirs = sorted(catalogue(), key=lambda row: (row.provider, row.price))
    assert market(theirs) == market(ours)


@LEFT_OPEN
def test_the_command(hetplan: Command, files: Path, folder: Path) -> None:
    """Without --offers; what is left out is said on stderr."""
    done = hetplan("rent", "model.yaml", "--tokens", "1B", "--provider", "aws", "--gap", "0.1")
    assert done.code == 0
    assert " at aws us-" in done.out.splitlines()[-1]
    assert "gpuhunt: 2 rows left out, of devices that are not known: RTX3050, RTX9999" in done.err
    assert "gpuhunt: 1 row of spot machines left out: see --interruptions" in done.err
    done = hetplan("rent", "model.yaml", "--tokens", "1B", "--region", "us-east-2")
    assert done.code == 2
    assert "--region: no offer has 'us-east-2'" in done.err


@LEFT_OPEN
def test_a_catalogue_that_cannot_be_read(hetplan: Command, files: Path, folder: Path) -> None:
    """One message, no traceback."""
    (folder / "aws.csv").unlink()
    (folder / "runpod.csv").unlink()
    done = hetplan("rent", "model.yaml", "--tokens", "1B")
    assert done.code == 2
    assert done.err.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--network", "carrier:100"), "--network: expected KIND:GBPS or KIND:GBPSxCARDS, got 'carrier:100'"),
        (("--network", "ethernet:nan"), "--network: expected KIND:GBPS"),
        (("--network", "ethernet:100", "--offers", "o.yaml"), "--network is about gpuhunt's catalogue"),
        (("--interruptions", "-1"), "--interruptions: expected a number from 0 to 10000, got -1"),
    ],
)
def test_what_is_wrong(hetplan: Command, files: Path, words: tuple[str, ...], message: str) -> None:
    """One error, exit 2."""
    done = hetplan("rent", "model.yaml", "--tokens", "1B", *words)
    assert done.code == 2
    assert message in done.err
