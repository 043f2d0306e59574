"""Steps to a loss by the batch, measured: small models learn the text of the documentation, character by character.

``python -m tools.benchmarks.loss`` trains with several batches, fits the curve of the loss to all but one of them as
``hetplan calibrate loss`` does, and prints the steps of the one left out next to what the curve says. Ten CPU minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import torch

from planner.cost.convergence import convergence
from planner.logs.losses import Losses, fit_losses, read_losses
from planner.model.spec import ModelSpec, TrainingSpec
from planner.training.example_model import Transformer, shape_of
from planner.training.hetplan_loss import mean_loss

ROOT = Path(__file__).parents[2]
LENGTH = 64
BATCHES = (2, 8, 32)
STEPS = {2: 6000, 8: 3000, 32: 600}
RATE = 1e-3
"""Learning rate of 8 sequences; others by the square root of the batch."""


def model(vocab: int) -> ModelSpec:
    """Two layers of width 64."""
    return ModelSpec(
        name="text",
        layers=2,
        hidden=64,
        heads=4,
        vocab=vocab,
        training=TrainingSpec(
            sequence_length=LENGTH, global_batch=BATCHES[0], precision="fp32", dropout=False
        ),
    )


def trained(spec: ModelSpec, text: torch.Tensor, batch: int, log: Path) -> Losses:
    """The losses of a run at a constant learning rate after a short warm-up, by its log; one that is there is read."""
    if log.exists() and (known := read_losses(log)).last >= STEPS[batch]:
        return known
    torch.manual_seed(batch)
    shape = {
        **spec.model_dump(exclude={"training", "numerics"}),
        "sequence_length": LENGTH,
        "optimizer": "adamw",
    }
    net = Transformer(shape_of(shape))
    rate = RATE * math.sqrt(batch / 8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    with log.open("w", encoding="utf-8") as file:
        file.write(f"job ranks 1 global_batch {batch}\n")
        for step in range(1, STEPS[batch] + 1):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / 50)
            starts = torch.randint(len(text) - LENGTH - 1, (batch,))
            rows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
            loss = mean_loss(net(rows[:, :-1]), rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            file.write(f"step {step} loss {loss.item():.9f} seconds 0.100000\n")
    return read_losses(log)


def steps_to(run: Losses, loss: float) -> int | None:
    """First step from which the mean of a tenth of the steps before is at the loss; None for never."""
    values = [each for _, each in run.points]
    for step in range(100, len(values) + 1):
        width = max(20, step // 10)
        if sum(values[step - width : step]) / width <= loss:
            return step - width // 2
    return None


def main() -> None:
    """Train, leave out, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder for the logs")
    folder = parser.parse_args().keep or Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    characters = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    names = {name: number for number, name in enumerate(sorted(set(characters)))}
    text = torch.tensor([names[each] for each in characters])
    spec = model(len(names))
    runs = {batch: trained(spec, text, batch, folder / f"{batch}.log") for batch in BATCHES}
    head = "batch left out   loss   steps measured   steps by the curve   error   critical batch (tokens)"
    sys.stdout.write(f"{head}\n")
    for left in BATCHES:
        fit = fit_losses([(run, batch) for batch, run in runs.items() if batch != left], LENGTH)
        fitted = spec.trained_with(convergence=fit.convergence)
        last = max(sum(each for _, each in run.points[-100:]) / 100 for run in runs.values())
        for above in (1.15, 1.05):
            loss, measured = last * above, steps_to(runs[left], last * above)
            if measured is None:
                continue
            found = convergence(fitted, None, loss)
            said = found.steps(left * LENGTH)
            bar = found.steps_spread(left * LENGTH)
            critical = f"{found.critical.tokens:.0f} ({found.critical.low:.0f} to {found.critical.high:.0f})"
            sys.stdout.write(
                f"{left:14d}   {loss:4.2f}   {measured:14d}   {said:13.0f} ±{bar:4.0%}   {said / measured - 1:+5.0%}   "
                f"{critical if fit.told else 'not told'}\n"
            )


if __name__ == "__main__":
    main()
