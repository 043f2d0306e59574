"""``hetplan search`` under other objectives than time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli import front as fronts
from planner.cli import search as searching
from planner.plan.file import read
from planner.search.objectives.pareto import Front
from tests.cli.running import CLUSTER, Command, asked_once
from tests.report import examples

PRICES = CLUSTER.replace("    intra_node: nvlink3\n", "    intra_node: nvlink3\n    price_per_gpu_hour: 2\n")
PRICES = PRICES.replace("    intra_node: nvlink2\n", "    intra_node: nvlink2\n    price_per_gpu_hour: 0.5\n")


@pytest.fixture
def priced(files: Path) -> Path:
    """The small files, with prices."""
    (files / "cluster.yaml").write_text(PRICES)
    return files


def search(hetplan: Command, *options: str) -> tuple[int, str, str]:
    """Exit code, answer, errors."""
    done = hetplan("search", "cluster.yaml", "model.yaml", *options)
    return done.code, done.out, done.err


def test_the_cheapest_plan_is_kept_with_its_objective(priced: Path, hetplan: Command) -> None:
    """From files to a plan file; show says of what its gap is."""
    code, out, err = search(hetplan, "--objective", "cost", "-o", "plan.yaml")
    assert (code, err) == (0, "")
    assert "goal: the lowest cost per token\n" in out
    assert out.endswith(" of 8 sub-clusters\n")
    summary = read(Path("plan.yaml")).summary
    assert summary is not None
    assert (summary.objective, summary.subclusters) == ("cost", 8)
    shown = hetplan("show", "plan.yaml")
    assert "plan of 8 sub-clusters by the cost model" in " ".join(shown.out.split())


def test_the_table_of_time_against_cost(
    priced: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table and document tell the same points, and the next command leads to the plan that is worth it."""
    asked_once(monkeypatch, fronts, "front")
    quickly = ("--target", "megatron")
    code, out, err = search(hetplan, *quickly, "--pareto")
    assert (code, err) == (0, "")
    assert "  goal      time against cost\n" in out
    assert "worth using: " in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("Next: ")) <= 80
    found = json.loads(search(hetplan, *quickly, "--pareto", "--json")[1])
    assert found["command"] == "search --pareto"
    assert sum(line.startswith("  *  ") for line in out.splitlines()) == sum(
        point["front"] for point in found["points"]
    )
    options = out.rpartition("Next: the same with ")[2].split(" -o ")[0].split()
    chosen = json.loads(search(hetplan, *quickly, "--json", *options)[1])
    worth = found["points"][found["worth"]]
    assert chosen["step_seconds"] == pytest.approx(worth["step_seconds"], rel=0.02)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({}, 0),
        ({"interrupted": True}, 130),
        ({"points": (), "worth": None}, 4),
        ({"points": (), "worth": None, "unfinished": 0}, 3),
    ],
)
def test_exit_codes_of_the_table(
    priced: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], code: int
) -> None:
    """Points, interrupted, nothing in time, nothing at all."""
    given: Front = replace(examples.front(), **found)
    monkeypatch.setattr("planner.cli.front.front", lambda *_, **__: given)
    (priced / "cluster.yaml").write_text(
        PRICES.replace("name: fast", "name: a100").replace("name: slow", "name: v100")
    )
    assert search(hetplan, "--pareto")[0] == code


def test_out_of_reach(priced: Path, hetplan: Command) -> None:
    """Exit 3 and the nearest plan."""
    code, out, err = search(hetplan, "--min-tokens-per-second", "1e9")
    assert (code, err) == (3, "")
    assert "no plan reaches 1000 M tokens/s; the fastest within the other limits reaches" in out


@pytest.mark.parametrize(
    ("option", "unit"),
    [
        ("--max-cost-per-token", r"takes ([\d.]+)(), on"),
        ("--min-tokens-per-second", r"reaches ([\d.]+) (k?) tokens/s, on"),
        ("--deadline", r"takes ([\d.]+ [hd])(\w*) and"),
        ("--budget", r"and ([\d.,]+), on"),
    ],
)
def test_what_comes_nearest_can_be_asked_for(priced: Path, hetplan: Command, option: str, unit: str) -> None:
    """A limit of the number in the message has a plan: it is not rounded to something out of reach."""
    whole = ("--tokens", "1T") if option in ("--deadline", "--budget") else ()
    far = {"--min-tokens-per-second": "1e9", "--deadline": "1s"}.get(option, "1e-6")
    code, out, _ = search(hetplan, "--target", "megatron", *whole, option, far, "-q")
    near = re.search(unit, " ".join(out.split()))
    assert code == 3
    assert near is not None, out
    number = near[1].replace(",", "").replace(" ", "")
    asked = number + ("e3" if near.lastindex == 2 and near[2] == "k" else "")
    assert search(hetplan, "--target", "megatron", *whole, option, asked, "-q")[0] == 0


@pytest.mark.parametrize("option", ["--objective=cost", "--pareto", "--max-cost-per-token=1"])
def test_missing_prices_are_named(hetplan: Command, files: Path, option: str) -> None:
    """File, line, key and hint, of every pool at once."""
    code, out, err = search(hetplan, option)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    asked = option.partition("=")[0] if option.startswith(("--p", "--m")) else "--objective cost"
    assert lines[0] == (
        f"error: cluster.yaml:3: pools[0].price_per_gpu_hour: missing, {asked} needs the price of every pool"
    )
    assert lines[1].startswith("  hint: write the price of one device for one hour")
    assert lines[2].startswith("error: cluster.yaml:9: pools[1].price_per_gpu_hour: ")


def test_who_needs_the_prices_is_named_beside_another_objective(hetplan: Command, files: Path) -> None:
    """Energy needs none."""
    code, _, err = search(hetplan, "--objective=energy", "--max-cost-per-token=1")
    assert code == 2
    assert "missing, --max-cost-per-token needs the price of every pool" in err


def test_only_pools_that_may_be_used_need_a_price(hetplan: Command, files: Path) -> None:
    """A pool of which no device may be used has no say."""
    one = CLUSTER.replace("    intra_node: nvlink3\n", "    intra_node: nvlink3\n    price_per_gpu_hour: 2\n")
    (files / "cluster.yaml").write_text(one)
    assert search(hetplan, "--objective", "cost", "--use-at-most", "0:slow")[0] == 0


def test_unknown_power_is_named(hetplan: Command, files: Path) -> None:
    """A device by its numbers has no board power unless it is given."""
    own = "{name: X, memory_gib: 40, memory_bandwidth_gBps: 1500, tflops: {fp16: 300}}"
    text = CLUSTER.replace("gpu: A100-SXM-40GB", f"gpu: {own}")
    (files / "cluster.yaml").write_text(text)
    code, out, err = search(hetplan, "--objective", "energy")
    assert (code, out) == (2, "")
    assert err.startswith(
        "error: cluster.yaml:3: pools[0].watts_per_gpu: missing, the board power of X is unknown and "
        "--objective energy needs it\n  hint: "
    )
    given = text.replace("    intra_node: nvlink3\n", "    intra_node: nvlink3\n    watts_per_gpu: 350\n")
    (files / "cluster.yaml").write_text(given)
    assert search(hetplan, "--objective", "energy")[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--objective", "speed"],
            "--objective: expected one of time, cost, energy, time-to-loss, got 'speed'\n",
        ),
        (
            ["--max-cost-per-token", "0"],
            "--max-cost-per-token: expected a number from 1e-60 to 1e+60, got 0\n",
        ),
        (
            ["--min-tokens-per-second", "inf"],
            "--min-tokens-per-second: expected a number from 1e-60 to 1e+60, got inf\n",
        ),
        (
            ["--use-at-most", "few"],
            "--use-at-most: expected a number of devices such as 16 or 8:POOL, got 'few'\n",
        ),
        (
            ["--use-at-most", "4:quick"],
            "--use-at-most: the cluster has no pool 'quick'\n  hint: its pools are fast, slow\n",
        ),
        (
            ["--use-at-most", "0"],
            "--use-at-most: leaves no device to use\n  hint: allow one device at least\n",
        ),
        (
            ["--pareto", "-o", "plan.yaml"],
            "--pareto prints a table of plans: -o has no plan to be about\n"
            "  hint: choose a row, then search with its --use-at-most in place of --pareto\n",
        ),
    ],
)
def test_wrong_options(hetplan: Command, files: Path, options: list[str], message: str) -> None:
    """One line and a hint, exit 2."""
    assert search(hetplan, *options) == (2, "", f"error: {message}")


def test_tokens_say_how_long_and_how_much(
    priced: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last line and in the document, with what failures take; predict says the same of a plan by hand."""
    asked_once(monkeypatch, searching, "choose")
    code, out, err = search(hetplan, "--tokens", "1B", "--failures", "3")
    assert (code, err) == (0, "")
    assert " 1 B tokens in " in out.splitlines()[-1]
    run = json.loads(search(hetplan, "--tokens", "1B", "--failures", "3", "--json")[1])
    training = run["training"]
    assert training["seconds"] == pytest.approx(1e9 / run["tokens_per_second"] / training["goodput"])
    assert training["price"] == pytest.approx(training["seconds"] / 3600 * run["price_per_hour"])
    assert 0 < training["goodput"] < 1
    words = ["predict", "cluster.yaml", "model.yaml", "short.yaml", "--tokens", "1B", "--deadline", "1s"]
    told = hetplan(*words).out
    assert "misses the deadline of 1 s by " in told
    for shown in (told, search(hetplan, "--tokens", "1B", "-v")[1]):
        assert "\n\nTraining\n  1 B tokens: " in shown
    assert json.loads(hetplan(*words, "--json").out)["training"]["tokens"] == 1e9


def test_deadline_and_budget_bind(priced: Path, hetplan: Command) -> None:
    """A budget between the cheapest and the fastest gives a plan between them; below all, the nearest and exit 3."""
    asked = ("--tokens", "1B", "--target", "megatron")
    ends = []
    for objective in ("time", "cost"):
        found = json.loads(search(hetplan, *asked, "--objective", objective, "--json")[1])
        ends.append(found["training"])
    fast, cheap = ends
    budget = (
        (fast["price"] * 0.3 + cheap["price"] * 0.7) if fast["price"] > cheap["price"] else cheap["price"]
    )
    between = json.loads(search(hetplan, *asked, "--budget", str(budget), "--json")[1])["training"]
    assert between["price"] <= budget
    assert fast["seconds"] <= between["seconds"] * 1.01
    code, out, _ = search(hetplan, *asked, "--budget", str(cheap["price"] / 2))
    assert code == 3
    assert "no plan trains 1 B tokens for " in out.splitlines()[-1]
    code, out, _ = search(hetplan, *asked, "--deadline", f"{fast['seconds'] * 0.5:.3f}s")
    assert code == 3
    assert "the fastest within the other limits takes " in " ".join(out.split())
    late = f"{fast['seconds'] * 1.02:.3f}s"
    met = json.loads(search(hetplan, *asked, "--deadline", late, "--failures", "0.001", "--json")[1])
    assert met["training"]["seconds"] <= fast["seconds"] * 1.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--deadline", "3d"], "--deadline is about a whole training run: expected --tokens with it"),
        (["--tokens", "many"], "--tokens: expected a number such as 300B, 1T or 5e9, up to 1e18, got 'many'"),
        (
            ["--tokens", "1B", "--deadline", "soon"],
            "--deadline: expected a time such as 30d, 12h, 90m or 45s",
        ),
        (["--tokens", "1B", "--budget", "0"], "--budget: expected a number from 1e-06 to 1e+15, got 0"),
        (["--tokens", "1B", "--failures", "-1"], "--failures: expected a number from 0 to 10000, got -1"),
        (
            ["--tokens", "1B", "--restart-time", "1m"],
            "--restart-time says what failures take: expected --failures",
        ),
    ],
)
def test_wrong_runs(hetplan: Command, files: Path, options: list[str], message: str) -> None:
    """One line, exit 2."""
    code, out, err = search(hetplan, *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


def test_a_budget_needs_prices(hetplan: Command, files: Path) -> None:
    """As every limit on money."""
    code, _, err = search(hetplan, "--tokens", "1B", "--budget", "5")
    assert code == 2
    assert "missing, --budget needs the price of every pool" in err
