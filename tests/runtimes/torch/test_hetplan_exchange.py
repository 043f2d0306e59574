"""Emitted folders whose islands exchange rarely, or little, equal one process that simulates all islands."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from planner.emit.interface import emit, write_folder
from planner.plan.values import Plan, Sync
from tests.runtimes.torch.test_hetplan_torch import (
    NO_BIAS,
    four_ranks,
    relative_error,
    run_all,
    two_ranks,
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

STEPS, LR, CLIP = 4, {"adamw": 1e-2, "sgd": 0.5}, 1.0
ISLANDS = (range(10), range(10, 13))
"""Sequences of each island in a global batch of 13."""
POOLS = (("big",), ("small",))
CASES: dict[str, tuple[str, Sync]] = {
    "diloco": ("adamw", Sync(every=2, islands=POOLS)),
    "average-by-node": ("sgd", Sync(every=2, method="average")),
    "diloco-int8": ("adamw", Sync(every=3, format="int8", islands=POOLS)),
    "diloco-bf16": ("sgd", Sync(every=4, format="bf16")),
    "bf16": ("sgd", Sync(format="bf16", islands=POOLS)),
    "int8": ("sgd", Sync(format="int8")),
    "fp8": ("sgd", Sync(format="fp8", islands=POOLS)),
    "powersgd": ("sgd", Sync(rank=2, islands=POOLS)),
    "topk": ("adamw", Sync(ratio=0.05)),
    "diloco-zero1": ("adamw", Sync(every=3, islands=POOLS)),
    "diloco-zero3": ("sgd", Sync(every=2, islands=POOLS)),
    "powersgd-zero2": ("sgd", Sync(rank=3)),
}


ON_TWO = ("diloco-int8", "bf16", "fp8", "topk", "kept", "gone-on")
"""Cases with islands of one rank."""


def chosen(sync: Sync, zero: int, ranks: int) -> Plan:
    """Shares 5, 5, 2, 1 in 2, 2, 1 and 1 micro-batches; 10 and 3 in 3 and 2 where each island is one rank."""
    if ranks == 2:
        each = (group("big", "A100", share=10, steps=3), group("small", "T4", share=3, steps=2))
        return replace(plan("torch", zero, [3], [each]), sync=sync)
    replicas = (
        group("big", "A100", count=2, share=5, steps=2),
        group("small", "T4", share=2),
        group("small", "T4", share=1),
    )
    return replace(plan("torch", zero, [3], [replicas]), sync=sync)


RARELY = ("diloco", "average-by-node", "diloco-bf16", "int8", "fp8", "powersgd", "diloco-zero1")
"""Cases of the slow tests."""


def train_all(names: list[str], root: Path) -> None:
    """Every case, and one that goes on from a checkpoint, in a start of four ranks and one of two."""
    folders = [written(root, name, *CASES[name]) for name in dict.fromkeys((*names, "bf16"))]
    keep = ("--keep", str(root / "checkpoints"), "--every", "2")
    for name, steps in (("kept", 2), ("gone-on", STEPS)):
        folders.append(written(root, name, *CASES["bf16"], *keep, steps=steps))
    logs = ""
    for ranks in (2, 4):
        own = [folder for folder in folders if (folder.name in ON_TWO) == (ranks == 2)]
        if own:
            run_all(own, root / "log", ranks)
            logs += (root / "log").read_text()
    (root / "log").write_text(logs)


def written(root: Path, name: str, optimizer: str, sync: Sync, *arguments: str, steps: int = STEPS) -> Path:
    """The folder of a case with the arguments of its training."""
    spec = model(13, layers=3, precision="fp32", optimizer=optimizer, **NO_BIAS)
    zero = int(name[-1]) if "zero" in name else 0
    where, ranks = (two_ranks(), 2) if name in ON_TWO else (four_ranks(), 4)
    write_folder(emit(chosen(sync, zero, ranks), where, spec), root / name)
    options = ["--steps", str(steps), "--lr", str(LR[optimizer]), *arguments]
    (root / name / "arguments.json").write_text(json.dumps(options))
    return root / name


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[float]]]:
    """The folder and the losses of each case that is asked for."""
    root = once(tmp_path_factory, "torch islands", partial(train_all, asked(request, "name")))
    parts = (root / "log").read_text().split("folder ")[1:]
    return {part.split()[0]: (root / part.split()[0], losses(part)) for part in parts}


def optimizer_of(network: Any, name: str) -> Any:
    """Torch's own."""
    if name == "sgd":
        return torch.optim.SGD(network.parameters(), lr=LR[name], momentum=0.9)
    return torch.optim.AdamW(network.parameters(), lr=LR[name])


def backward(network: Any, shape: Any, island: range, step: int) -> float:
    """The gradient of the mean loss of an island's part of the batch."""
    inputs, labels = sequences(tuple(13 * step + index for index in island), shape, None)
    network.zero_grad()
    loss = mean_loss(network(inputs), labels)
    loss.backward()
    return float(loss.item())


@torch.no_grad()  # type: ignore[untyped-decorator]
def assign(tensors: Any, values: Any) -> None:
    """Put values in the place of tensors."""
    for each, value in zip(tensors, values, strict=True):
        each.copy_(value)


def simulated(folder: Path, optimizer: str, sync: Sync) -> tuple[Any, dict[str, Any], list[float]]:
    """One process with a model for each island: weights at the end, at the start, losses of the first island."""
    shape = load_shape(folder / "model.json")
    networks = [whole_model(folder, shape) for _ in ISLANDS]
    start = {name: value.detach().clone() for name, value in networks[0].state_dict().items()}
    optimizers = [optimizer_of(network, optimizer) for network in networks]
    outer = [each.detach().clone().requires_grad_() for each in networks[0].parameters()]
    rates = {"diloco": {"lr": 0.7, "momentum": 0.9, "nesterov": True}, "average": {"lr": 1.0}}
    outer_optimizer = torch.optim.SGD(outer, **rates[sync.method])
    shares = [len(island) / 13 for island in ISLANDS]
    exchange = Compressed(sync, networks[0])
    found = []
    for step in range(STEPS):
        each = [
            backward(network, shape, island, step) for network, island in zip(networks, ISLANDS, strict=True)
        ]
        found.append(each[0])
        if sync.every == 1:
            gradients = [
                [share * each.grad for each in network.parameters()]
                for share, network in zip(shares, networks, strict=True)
            ]
            total = exchange.sum(gradients)
            for network in networks:
                assign([each.grad for each in network.parameters()], total)
        for network, own in zip(networks, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            own.step()
        if sync.every > 1 and ((step + 1) % sync.every == 0 or step + 1 == STEPS):
            changes = [
                [
                    share * (one.detach() - each.detach())
                    for one, each in zip(outer, network.parameters(), strict=True)
                ]
                for share, network in zip(shares, networks, strict=True)
            ]
            for one, total in zip(outer, (sum(parts) for parts in zip(*changes, strict=True)), strict=True):
                one.grad = total
            outer_optimizer.step()
            for network in networks:
                assign(network.parameters(), outer)
    return networks[0], start, found


class Compressed:
    """Sums of gradients as the papers say: with what was left out before, by factors or the largest elements."""

    def __init__(self, sync: Sync, network: Any) -> None:
        self.sync = sync
        like = list(network.parameters())
        self.errors = [[torch.zeros_like(each) for each in like] for _ in ISLANDS]
        generator = torch.Generator().manual_seed(0)
        self.starts = [self._start(each, generator) for each in like]

    def _start(self, like: Any, generator: Any) -> Any:
        rank = self.sync.rank
        if rank is None or like.ndim < 2 or rank * sum(like.shape) >= like.numel():
            return None
        return torch.randn(like.shape[1], rank, generator=generator)

    def sum(self, gradients: list[list[Any]]) -> list[Any]:
        """Of all islands."""
        if self.sync.rank is not None:
            return self._by_factors(gradients)
        if self.sync.ratio is not None:
            return self._largest(gradients)
        return [sum(parts) for parts in zip(*gradients, strict=True)]

    def _by_factors(self, gradients: list[list[Any]]) -> list[Any]:
        """Algorithms 1 and 2 of arXiv:1905.13727, one matrix after the other."""
        found = []
        for index, parts in enumerate(zip(*gradients, strict=True)):
            start = self.starts[index]
            if start is None:
                found.append(sum(parts))
                continue
            own = [part + errors[index] for part, errors in zip(parts, self.errors, strict=True)]
            basis = torch.linalg.qr(sum(one @ start for one in own)).Q
            local = [one.T @ basis for one in own]
            for errors, one, factor in zip(self.errors, own, local, strict=True):
                errors[index] = one - basis @ factor.T
            self.starts[index] = sum(local)
            found.append(basis @ self.starts[index].T)
        return found

    def _largest(self, gradients: list[list[Any]]) -> list[Any]:
        """MEM-SGD, arXiv:1809.07599: the largest of all elements of the model together."""
        sizes = [each.numel() for each in gradients[0]]
        total = torch.zeros(sum(sizes))
        for number, parts in enumerate(gradients):
            row = torch.cat(
                [(part + error).flatten() for part, error in zip(parts, self.errors[number], strict=True)]
            )
            limit = row.abs().sort(descending=True).values[round(self.sync.ratio * len(row)) - 1]  # type: ignore[operator]
            sent = torch.where(row.abs() >= limit, row, 0.0)
            total += sent
            left = (row - sent).split(sizes)
            self.errors[number] = [part.view(like.shape) for part, like in zip(left, parts, strict=True)]
        return [part.view(like.shape) for part, like in zip(total.split(sizes), gradients[0], strict=True)]


TOLERANCE = {"fp8": 0.08, "int8": 0.08, "diloco-int8": 0.08, "bf16": 0.02, "diloco-bf16": 0.02}
"""Distance over the way, of formats that round."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in RARELY else ()) for name in CASES]
)
def test_islands_equal_one_process(trained: dict[str, tuple[Path, list[float]]], name: str) -> None:
    """Losses of the first island and weights after four clipped steps, the last of which ends with an exchange."""
    optimizer, sync = CASES[name]
    folder, printed = trained[name]
    network, start, wanted = simulated(folder, optimizer, sync)
    error = relative_error(weights(folder), network.state_dict(), start)
    limit = TOLERANCE.get(name, 1e-4)
    assert error < limit, error
    assert printed == pytest.approx(wanted, rel=10 * limit)
    if name in TOLERANCE:
        assert error > 1e-6, "nothing was rounded"


def test_a_checkpoint_on_the_way_goes_on(trained: dict[str, tuple[Path, list[float]]]) -> None:
    """Gradients in bf16 leave nothing behind that a checkpoint does not hold: the rest is that of the unbroken run."""
    unbroken, losses_of_all = trained["bf16"]
    folder, printed = trained["gone-on"]
    assert printed == pytest.approx(losses_of_all[2:], rel=1e-5)
    wanted = weights(unbroken)
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-6)
