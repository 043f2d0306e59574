"""``hetplan rent`` and offers files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.search.objectives.renting import RentSearch
from tests.cli.running import ROOT, Command, asked_once
from tests.search.test_renting import OFFERS


@pytest.fixture
def offers(files: Path) -> Path:
    """The small files, with offers."""
    (files / "offers.yaml").write_text(OFFERS)
    return files


WORDS = ("rent", "model.yaml", "--offers", "offers.yaml", "--tokens", "1B", "--target", "megatron")


def test_what_to_rent(hetplan: Command, offers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stands last; the cluster that it writes is one, and the document tells the same."""
    asked_once(monkeypatch, RentSearch, "run")
    done = hetplan(*WORDS, "-o", "rented.yaml")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    found = json.loads(hetplan(*WORDS, "--json").out)
    assert found["status"] == "optimal"
    cluster = load_cluster(Path("rented.yaml"))
    assert {pool.name: len(pool.hosts) for pool in cluster.pools} == {
        each["offer"]: each["machines"] for each in found["best"]["machines"]
    }
    assert done.out.splitlines()[-1].startswith("small, 1 B tokens: rent ")
    assert found["best"]["price"] == pytest.approx(
        found["best"]["price_per_hour"] * found["best"]["seconds"] / 3600
    )


def test_machines_whose_host_memory_nobody_knows(hetplan: Command, files: Path) -> None:
    """A model that fits them only with its states in host memory: what they need of it is said before they are paid."""
    (files / "offers.yaml").write_text(
        "offers: [{name: small, gpu: A10G, count: 4, price_per_hour: 4, intra_node: pcie4}]\n"
    )
    model = ROOT / "model_specs" / "llama_7b.yaml"
    done = hetplan("rent", model, "--offers", "offers.yaml", "--tokens", "1B", "--target", "deepspeed")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"! a node of small needs \d+ GiB of host memory, and the file does not", done.out)


def test_machines_that_cannot_train_the_model_say_why(hetplan: Command, files: Path) -> None:
    """V100 and T4 have no bf16."""
    (files / "offers.yaml").write_text(
        "offers:\n"
        "  - {name: old, gpu: V100-PCIe-16GB, count: 4, price_per_hour: 4, intra_node: pcie3}\n"
        "  - {name: older, gpu: T4, count: 4, price_per_hour: 1, intra_node: pcie3}\n"
        "  - {name: small, gpu: A10G, count: 4, price_per_hour: 4, intra_node: pcie4}\n"
    )
    found = json.loads(hetplan(*WORDS, "--precision", "bf16", "--json").out)
    assert found["without_plan"] == [
        {"offer": "old", "why": "no bf16"},
        {"offer": "older", "why": "no bf16"},
    ]
    said = hetplan(*WORDS, "--precision", "bf16").out
    assert "cannot train the model: old, older (no bf16)" in re.sub(r"\s+", " ", said)


def test_a_target_that_does_not_train_the_model_is_why(hetplan: Command, offers: Path) -> None:
    """FlagScale trains no encoders."""
    (offers / "model.yaml").write_text((ROOT / "model_specs" / "bert_large.yaml").read_text())
    found = json.loads(hetplan(*WORDS[:-1], "flagscale", "--precision", "fp16", "--json").out)
    assert {each["why"] for each in found["without_plan"]} == {"not trained by flagscale"}


def test_providers_and_limits_bind(hetplan: Command, offers: Path) -> None:
    """One place alone; a budget that nothing meets is exit 3 with what is nearest."""
    west = json.loads(hetplan(*WORDS, "--provider", "two", "--json").out)
    assert {each["offer"] for each in west["best"]["machines"]} == {"slow"}
    one = json.loads(hetplan(*WORDS, "--objective", "time", "--machines", "1", "--json").out)
    assert sum(each["machines"] for each in one["best"]["machines"]) == 1
    done = hetplan(*WORDS, "--budget", "0.0001")
    assert done.code == 3
    assert "! nearest: " in done.out
    assert done.out.splitlines()[-1].endswith("no machines of these offers train them for 0.000100")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("    price_per_hour: 5\n", ""), "offers[0].price_per_hour: missing"),
        (
            ("    interruptions_per_month: 30\n", ""),
            "offers[1].interruptions_per_month: missing",
        ),
        (("gpu: V100-SXM-16GB", "gpu: V200"), 'offers[2].gpu: no GPU is known as "V200"'),
        (
            ("name: slow", "name: fast"),
            "offers[2].name: fast is already on line 3",
        ),
        (("    intra_node: nvlink3\n", ""), "offers[0].intra_node: "),
        (
            ("price_per_hour: 5", "price_per_hour: cheap"),
            "offers[0].price_per_hour: expected a number",
        ),
    ],
)
def test_bad_offers(hetplan: Command, offers: Path, change: tuple[str, str], message: str) -> None:
    """File, line and key."""
    Path("offers.yaml").write_text(OFFERS.replace(*change, 1))
    done = hetplan(*WORDS)
    assert (done.code, done.out) == (2, "")
    assert re.match(r"error: offers\.yaml:\d+: " + re.escape(message), done.err), done.err


def test_machines_of_one_place_need_not_work_together(hetplan: Command, files: Path) -> None:
    """Ethernet alone here, RoCE alone there, and one with both: any set is looked at, and none is an error."""
    cards = ["{kind: ethernet, bandwidth_gbps: 100}", "{kind: roce, bandwidth_gbps: 400}"]
    fast, slow = (
        f"  - {{name: {name}, gpu: {gpu}, price_per_hour: {price}, most: 2, network: [{card}]}}\n"
        for name, gpu, price, card in zip("ab", ("H100-SXM-80GB", "L40S"), (3, 1), cards, strict=True)
    )
    both = f"  - {{name: c, gpu: L40S, price_per_hour: 1.5, most: 1, network: [{', '.join(cards)}]}}\n"
    for offers in (fast + slow, fast + slow + both):
        (files / "offers.yaml").write_text("offers:\n" + offers)
        done = hetplan(*WORDS, "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert found["status"] == "optimal"
        for each in (found["best"], *found["front"]):
            assert {taken["offer"] for taken in each["machines"]} not in ({"a", "b"},)


def test_unknown_places(hetplan: Command, offers: Path) -> None:
    """The nearest name."""
    done = hetplan(*WORDS, "--region", "eats")
    assert (done.code, done.err) == (2, "error: --region: no offer has 'eats'\n  hint: did you mean east?\n")
    done = hetplan("rent", "model.yaml", "--offers", "cluster.yaml", "--tokens", "1B")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        "error: cluster.yaml: is a cluster file, expected an offers file",
    )
