"""Emitted folders that drop the slowest gradients equal one process that leaves out the same sequences."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from planner.emit.interface import emit, write_folder
from planner.plan.values import Plan
from tests.runtimes.torch.test_hetplan_torch import (
    CLIP,
    NO_BIAS,
    relative_error,
    run_all,
    weights,
    whole_model,
)
from tests.training.launching import losses
from tests.training.once import asked, once
from tests.worlds import group, model, plan

torch = pytest.importorskip("torch")

from planner.training.example_data import sequences  # noqa: E402
from planner.training.example_model import load_shape  # noqa: E402
from planner.training.hetplan_loss import mean_loss  # noqa: E402

STEPS, SHARE, LR = 4, 3, {"adamw": 1e-2, "sgd": 0.5}
CASES = {"zero0-of-1": (0, 1, "sgd"), "zero1-of-1": (1, 1, "adamw"), "zero1-of-2": (1, 2, "sgd")}
"""ZeRO stage, backups and optimizer."""
NAMES = [pytest.param(name, marks=() if name == "zero1-of-1" else pytest.mark.slow) for name in CASES]
SLOW = 3
"""The rank that takes longer, from the second step on."""
PLANTED = """
import os, time
_before = ModelPart.forward
LAYERS = [0]
def _layer(layer, *given):
    LAYERS[0] += 1
    if os.environ["RANK"] == "{slow}":
        time.sleep({seconds})
def _slow(self, hidden):
    if not getattr(self, "planted", False):
        self.planted = True
        for layer in self.layers.values():
            layer.register_forward_hook(_layer)
    return _before(self, hidden)
ModelPart.forward = _slow
_run = run
def run(options):
    _run(options)
    (FOLDER / f"layers-{{os.environ['RANK']}}").write_text(str(LAYERS[0]))
"""


def chosen(zero: int, backup: int) -> Plan:
    """Four ranks with three sequences each, in two micro-batches."""
    replicas = tuple(group("big", "A100", count=4, share=SHARE, steps=2) for _ in range(1))
    return replace(plan("torch", zero, [3], [replicas]), backup=backup)


def where() -> Any:
    """One node of four devices."""
    from tests.worlds import cluster, nic, pool

    return cluster(pool("big", ("A100",) * 4, 1, (nic("eth", "lo"),)))


def train_all(names: list[str], root: Path) -> None:
    """Every case with a rank that is slow in each layer, in one start of four ranks."""
    folders = []
    for name in names:
        zero, backup, optimizer = CASES[name]
        spec = model((4 - backup) * SHARE, layers=3, precision="fp32", optimizer=optimizer, **NO_BIAS)
        write_folder(emit(chosen(zero, backup), where(), spec), root / name)
        arguments = ["--steps", str(STEPS), "--lr", str(LR[optimizer])]
        (root / name / "arguments.json").write_text(json.dumps(arguments))
        file = root / name / "train.py"
        planted = PLANTED.format(slow=SLOW, seconds=1.0)
        file.write_text(file.read_text().replace("\nif __name__", planted + "\nif __name__"))
        folders.append(root / name)
    run_all(folders, root / "log")


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, str]]:
    """The folder and the log of each case that is asked for."""
    root = once(tmp_path_factory, "torch backups", partial(train_all, asked(request, "name")))
    parts = (root / "log").read_text().split("folder ")[1:]
    return {part.split()[0]: (root / part.split()[0], part) for part in parts}


@pytest.mark.parametrize("name", NAMES)
def test_equals_one_process_without_the_sequences_of_the_slowest(
    trained: dict[str, tuple[Path, str]], name: str
) -> None:
    """Losses and weights are those of the sequences that count, whoever was dropped."""
    folder, printed = trained[name]
    _, backup, optimizer = CASES[name]
    dropped = {
        int(step): [int(rank) for rank in ranks.split()]
        for step, ranks in re.findall(r"dropped in step (\d+): ranks ([\d ]+)", printed)
    }
    assert {len(ranks) for ranks in dropped.values()} == {backup}
    assert set(dropped) == set(range(STEPS))
    shape = load_shape(folder / "model.json")
    network = whole_model(folder, shape)
    start = {key: value.detach().clone() for key, value in network.state_dict().items()}
    made = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    more = {"momentum": 0.9} if optimizer == "sgd" else {}
    trainer = made(network.parameters(), lr=LR[optimizer], **more)
    wanted = []
    for step in range(STEPS):
        first = step * 4 * SHARE
        kept = [rank for rank in range(4) if rank not in dropped[step]]
        batch = tuple(first + rank * SHARE + index for rank in kept for index in range(SHARE))
        inputs, labels = sequences(batch, shape, None)
        trainer.zero_grad()
        loss = mean_loss(network(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        trainer.step()
        wanted.append(loss.item())
    assert losses(printed) == pytest.approx(wanted, rel=1e-5)
    assert relative_error(weights(folder), network.state_dict(), start) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_the_slow_rank_gives_up(trained: dict[str, tuple[Path, str]], name: str) -> None:
    """It is left out in most steps, and does not finish what nobody waits for."""
    folder, printed = trained[name]
    times_dropped = sum(
        str(SLOW) in ranks.split() for ranks in re.findall(r"dropped in step \d+: ranks ([\d ]+)", printed)
    )
    assert times_dropped >= STEPS - 1
    run = [int((folder / f"layers-{rank}").read_text()) for rank in range(4)]
    assert run[SLOW] < 3 * 2 * STEPS
