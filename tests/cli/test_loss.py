"""``hetplan search --objective time-to-loss``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli import loss as cli_loss
from planner.plan.file import read
from tests.cli.running import MODEL, Command, asked_once
from tests.cli.test_goal import PRICES
from tests.logs.test_losses import log, losses

pytestmark = pytest.mark.usefixtures("without_reasons")

TO_LOSS = ("--objective", "time-to-loss", "--tokens", "10M", "--target", "deepspeed", "--batches")
ASKED = (*TO_LOSS, "8,16,32")
CURVE = """\
  convergence:
    critical_batch_tokens: 30000
    critical_batch_spread: 0.2
    curve: {batch_tokens: 8192, floor: 1.7, scale: 20, exponent: 0.4, least_loss: 2.4}
"""


def test_the_plan_is_of_the_best_batch(
    files: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report, plan file and document agree; the file's model is trained with the batch that was chosen."""
    asked_once(monkeypatch, cli_loss, "to_loss")
    done = hetplan("search", "cluster.yaml", "model.yaml", *ASKED, "-o", "plan.yaml")
    assert (done.code, done.err) == (0, "")
    assert "goal: the least time to the loss that 10 M tokens reach with 16 sequences" in done.out
    assert "critical batch " in done.out
    document = json.loads(hetplan("search", "cluster.yaml", "model.yaml", *ASKED, "--json").out)
    assert document["command"] == "search --objective time-to-loss"
    loss = document["loss"]
    assert [point["batch"] for point in loss["points"]] == [8, 16, 32]
    best = loss["best"]
    assert best["seconds"] == pytest.approx(
        min(point["seconds"] for point in loss["points"] if point["seconds"] is not None)
    )
    assert best["seconds"] == pytest.approx(best["steps"] * document["step_seconds"])
    assert all(point["bound_seconds"] >= loss["bound_seconds"] for point in loss["points"])
    saved = read(Path("plan.yaml"))
    assert saved.plan.global_batch == saved.model.training.global_batch == best["batch"]
    assert f"{best['batch']} sequences a step" in done.out.splitlines()[-1]
    priced = hetplan("predict", "cluster.yaml", "model.yaml", "plan.yaml", "--global-batch", best["batch"])
    assert priced.code == 0


def test_a_curve_of_the_model_file_says_when_a_loss_is_reached(files: Path, hetplan: Command) -> None:
    """And the critical batch is the file's own."""
    (files / "model.yaml").write_text(MODEL + CURVE)
    words = ("search", "cluster.yaml", "model.yaml", "--objective", "time-to-loss", "--batches", "8,16")
    done = hetplan(*words, "--loss", "2.2", "--target", "deepspeed")
    assert (done.code, done.err) == (0, "")
    shown = " ".join(done.out.split())
    assert "goal: the least time to a loss of 2.2, with 2 batches from 8 to 16 sequences" in shown
    assert "critical batch 30 k tokens (25 k to 36 k), of the model file" in shown
    assert "below all that the curve was fitted to" in shown


@pytest.mark.slow
def test_the_table_by_size_leads_to_its_plan(
    files: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time and money of each size, and the command that asks for the one that is worth it."""
    asked_once(monkeypatch, cli_loss, "sizes_to_loss")
    (files / "cluster.yaml").write_text(PRICES)
    words = ("search", "cluster.yaml", "model.yaml", *TO_LOSS, "8,16")
    done = hetplan(*words, "--pareto")
    assert (done.code, done.err) == (0, "")
    assert "Time and money to the loss" in done.out
    options = done.out.rpartition("Next: the same with ")[2].split(" -o ")[0].split()
    chosen = hetplan(*words, *options, "-q")
    assert chosen.code == 0
    document = json.loads(hetplan(*words, "--pareto", "--json").out)
    best = document["points"][document["worth"]]
    assert f"{best['batch']} sequences a step" in chosen.out
    assert sum(used["devices"] for used in best["used"]) == best["devices"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--objective", "time-to-loss"), "expected --tokens or --loss, got neither"),
        (("--objective", "time-to-loss", "--loss", "2"), "--loss without a curve"),
        (("--objective", "time-to-loss", "--tokens", "1B", "--loss", "0"), "--loss: expected a number from"),
        (("--objective", "time-to-loss", "--tokens", "1B", "--batches", "0"), "--batches: expected numbers"),
        (("--objective", "time-to-loss", "--tokens", "1B", "--batches", "1..300"), "at most 256, got 300"),
        (("--objective", "time-to-loss", "--tokens", "1B", "--robust"), "expected no --robust with it"),
        (("--objective", "time-to-loss", "--tokens", "1B", "--budget", "5"), "expected no --budget with it"),
        (("--objective", "time-to-loss", "--tokens", "1B", "--pareto", "-o", "x"), "-o has no plan"),
        (("--loss", "2"), "--loss is about the time to a loss"),
        (("--batches", "8"), "--batches is about the time to a loss"),
    ],
)
def test_what_has_no_meaning_is_refused(
    files: Path, hetplan: Command, words: tuple[str, ...], message: str
) -> None:
    """By one line that says what is expected."""
    done = hetplan("search", "cluster.yaml", "model.yaml", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  convergence: {critical_batch_tokens: 0}\n", "critical_batch_tokens"),
        ("  convergence: {curve: {batch_tokens: 8192}}\n", "training.convergence.curve.floor"),
        ("  convergence: {critical: 5}\n", "training.convergence.critical"),
    ],
)
def test_a_curve_that_is_none_is_named(files: Path, hetplan: Command, text: str, message: str) -> None:
    """With its line and key."""
    (files / "model.yaml").write_text(MODEL + text)
    done = hetplan("check", "cluster.yaml", "model.yaml")
    assert done.code == 2
    assert message in done.err


@pytest.mark.slow
def test_where_nothing_fits_it_says_why(files: Path, hetplan: Command) -> None:
    """As any search does, with its exit code."""
    (files / "model.yaml").write_text(
        MODEL.replace("hidden: 512", "hidden: 65536").replace("layers: 6", "layers: 60")
    )
    done = hetplan(
        "search", "cluster.yaml", "model.yaml", *TO_LOSS, "8", "--offload", "none", "--target", "torch"
    )
    assert done.code == 3
    assert "No plan fits" in done.out


def test_a_curve_from_logs_is_searched_with(files: Path, hetplan: Command) -> None:
    """From logs to a model file to a search; a log that is too short is refused."""
    for batch in (16, 128):
        log(files / f"{batch}.log", losses(batch, 2000, seed=batch), batch)
    fitted = hetplan(
        "calibrate", "loss", "model.yaml", "--log", "16.log", "--log", "128.log", "-o", "fitted.yaml"
    )
    assert (fitted.code, fitted.err) == (0, "")
    assert "critical batch" in fitted.out
    assert "--objective time-to-loss --loss" in fitted.out
    words = ("search", "cluster.yaml", "fitted.yaml", "--objective", "time-to-loss", "--target", "deepspeed")
    found = hetplan(*words, "--loss", "3", "--batches", "16,32", "-q")
    assert (found.code, found.err) == (0, "")
    assert "sequences a step" in found.out
    log(files / "short.log", losses(16, 20), 16)
    short = hetplan("calibrate", "loss", "model.yaml", "--log", "short.log")
    assert short.code == 2
    assert "too few to fit a curve, expected at least 50" in short.err
    twice = hetplan("calibrate", "loss", "model.yaml", "--log", "16.log", "--log", "16.log")
    assert (twice.code, twice.out) == (2, "")
    assert twice.err.startswith("error: --log: 16.log is given 2 times\n")
    other = hetplan("calibrate", "loss", "model.yaml", "--log", "16.log", "--batches", "32")
    assert other.code == 2
    assert "its global batch is 16, --batches says 32" in other.err
    assert (
        "expected one for each of 1 logs"
        in hetplan("calibrate", "loss", "model.yaml", "--log", "16.log", "--batches", "8,16").err
    )


@pytest.mark.slow
def test_the_table_by_size_keeps_states_in_host_memory_where_nothing_fits_without(
    files: Path, hetplan: Command
) -> None:
    """As the search for one plan does; forbidden, nothing fits."""
    (files / "model.yaml").write_text(
        MODEL.replace("hidden: 512", "hidden: 4096").replace("layers: 6", "layers: 60")
    )
    words = ("search", "cluster.yaml", "model.yaml", *TO_LOSS, "8", "--gap", "0.2", "--pareto")
    assert hetplan(*words).code == 0
    assert hetplan(*words, "--offload", "none").code == 3
