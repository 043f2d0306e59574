"""Curves of the loss from logs, against curves from which the logs were made."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from planner.cost.convergence import convergence
from planner.errors import UsageError
from planner.logs.losses import fit_losses, read_losses
from tests.quick import first
from tests.worlds import gpt

FLOOR, SCALE, EXPONENT, CRITICAL = 1.7, 30.0, 0.45, 400_000.0
LENGTH = 1024


def losses(
    batch: int, steps: int, noise: float = 0.03, seed: int = 0, every: int = 1
) -> list[tuple[int, float]]:
    """Losses of a run whose small batches take their steps by the critical batch."""
    draw = random.Random(seed)
    return [
        (
            step,
            FLOOR + SCALE * (step / (1 + CRITICAL / (batch * LENGTH))) ** -EXPONENT + draw.gauss(0, noise),
        )
        for step in range(1, steps + 1, every)
    ]


def log(path: Path, points: list[tuple[int, float]], batch: int | None = None) -> Path:
    """A log as the emitted example prints it."""
    head = "" if batch is None else f"job ranks 4 global_batch {batch}\n"
    path.write_text(
        head + "".join(f"step {step} loss {loss:.9f} seconds 0.512345\n" for step, loss in points)
    )
    return path


def test_runs_with_several_batches_tell_all_of_it(tmp_path: Path) -> None:
    """Floor, exponent and critical batch are found again, within three of the errors that are said."""
    logs = [
        log(tmp_path / f"{batch}.log", losses(batch, 4000, seed=batch), batch) for batch in (64, 256, 1024)
    ]
    read = [read_losses(path) for path in logs]
    assert [run.batch for run in read] == [64, 256, 1024]
    fit = fit_losses([(run, run.batch or 0) for run in read], LENGTH)
    spec, curve = fit.convergence, fit.convergence.curve
    assert fit.told
    assert curve is not None
    assert spec.critical_batch_tokens is not None
    assert spec.critical_batch_spread is not None
    assert 0 < curve.floor_spread < 0.2
    assert abs(curve.floor - FLOOR) < 3 * curve.floor_spread + 0.01
    assert curve.exponent == pytest.approx(EXPONENT, rel=0.15)
    assert spec.critical_batch_spread < 0.3
    away = abs(math.log(spec.critical_batch_tokens / CRITICAL))
    assert away < 3 * math.log1p(spec.critical_batch_spread) + 0.02
    model = gpt(convergence=spec)
    found = convergence(model, None, curve.least_loss)
    true = ((curve.least_loss - FLOOR) / SCALE) ** (-1 / EXPONENT) * (1 + CRITICAL / (64 * LENGTH))
    assert found.steps(64 * LENGTH) == pytest.approx(true, rel=max(0.05, 3 * found.steps_spread(64 * LENGTH)))


def test_one_run_tells_its_curve_alone(tmp_path: Path) -> None:
    """The critical batch is left to published laws; the steps of its own batch are found again."""
    run = read_losses(log(tmp_path / "run.log", losses(256, 4000), 256))
    fit = fit_losses([(run, 256)], LENGTH)
    curve = fit.convergence.curve
    assert not fit.told
    assert fit.convergence.critical_batch_tokens is None
    assert curve is not None
    assert curve.batch_tokens == 256 * LENGTH
    found = convergence(gpt(convergence=fit.convergence), None, 2.6)
    true = ((2.6 - FLOOR) / SCALE) ** (-1 / EXPONENT) * (1 + CRITICAL / (256 * LENGTH))
    assert found.steps(256 * LENGTH) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "Megatron",
            " iteration  {step}/ 500 | elapsed time per iteration (ms): 1.0 | global batch size: 32 "
            "| lm loss: {loss:E} |",
        ),
        ("DeepSpeed", "steps: {step} loss: {loss:.4f} iter time (s): 0.1"),
        ("torchtitan", "step: {step}  loss:  {loss:.4f}  memory: 1.0GiB"),
        ("nanoGPT", "iter {step}: loss {loss:.4f}, time 893.76ms, mfu 16.68%"),
        (
            "LitGPT",
            "Epoch 1 | iter {step} step {step} | loss train: {loss:.3f}, val: n/a | iter time: 1.0 ms (step)",
        ),
        ("hetplan's example", "step {step} loss {loss:.9f} seconds 0.5"),
    ],
)
def test_what_prints_losses_is_known(tmp_path: Path, source: str, line: str) -> None:
    """Steps and losses of each, and the batch where it says it."""
    path = tmp_path / "run.log"
    path.write_text("".join(line.format(step=step, loss=5.0 / step) + "\n" for step in range(1, 9)))
    run = read_losses(path)
    assert run.source == source
    assert run.batch == (32 if source == "Megatron" else None)
    assert [step for step, _ in run.points] == list(range(1, 9))
    assert run.points[3][1] == pytest.approx(1.25, abs=1e-3)


def test_a_run_that_tells_no_curve_is_named(tmp_path: Path) -> None:
    """Too short, one that does not fall, one without losses, one whose batch changes."""
    short = read_losses(log(tmp_path / "short.log", losses(64, 30), 64))
    with pytest.raises(
        UsageError, match=r"short\.log: 29 losses .* too few to fit a curve, expected at least 50"
    ):
        fit_losses([(short, 64)], LENGTH)
    flat = read_losses(log(tmp_path / "flat.log", [(step, 4.0 + 0.01 * (step % 7)) for step in range(400)]))
    with pytest.raises(UsageError, match=r"flat\.log: the loss does not fall clearly"):
        fit_losses([(flat, 64)], LENGTH)
    (tmp_path / "other.log").write_text("nothing\nstep 3 loss nan seconds 0.5\n")
    with pytest.raises(UsageError, match=r"other\.log: has no losses with their steps, expected lines of"):
        read_losses(tmp_path / "other.log")
    ramp = log(tmp_path / "ramp.log", losses(64, 30), 64)
    ramp.write_text(ramp.read_text() + "job ranks 4 global_batch 128\n")
    with pytest.raises(UsageError, match="the global batch changes from 64 to 128"):
        read_losses(ramp)


def test_runs_of_nearly_one_batch_do_not_tell_the_critical_one(tmp_path: Path) -> None:
    """Batches have to be apart."""
    read = [
        read_losses(log(tmp_path / f"{batch}.log", losses(batch, 2000, seed=batch), batch))
        for batch in (64, 72)
    ]
    assert not fit_losses([(run, run.batch or 0) for run in read], LENGTH).told


@pytest.mark.parametrize("rate", first(1, [0.02, 0.025]))
def test_losses_that_fall_ever_faster_are_no_curve(tmp_path: Path, rate: float) -> None:
    """A straight line leaves floor and steps open beyond what a model file may say: an error, and no bug."""
    path = log(tmp_path / "line.log", [(step, 11 - step * rate) for step in range(1, 401)])
    with pytest.raises(UsageError, match=r"line\.log: the losses do not tell where a curve goes on"):
        fit_losses([(read_losses(path), 64)], LENGTH)


def test_what_no_loss_can_be_is_none(tmp_path: Path) -> None:
    """A squared error of a million is no loss in nats."""
    path = log(tmp_path / "large.log", [(step, 1e6 / step) for step in range(1, 11)])
    with pytest.raises(UsageError, match=r"large\.log: has no losses with their steps"):
        read_losses(path)
