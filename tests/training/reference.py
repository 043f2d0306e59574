"""One process that takes the whole global batch at once: what an emitted folder has to equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from planner.training import example_model, hetplan_loss
from planner.training.example_data import lengths_of, sequences
from planner.training.example_encoder import Encoder
from planner.training.example_optimizers import Lion

SEED = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A training run of one process."""

    losses: tuple[float, ...]
    """[step]"""
    norms: tuple[float, ...]
    """Of the gradients before they are clipped, [step]."""
    start: dict[str, Any]
    """Weights before the first step, by name."""
    end: dict[str, Any]


def train(folder: Path, steps: int, lr: float, step_on_zeros: bool = False) -> Outcome:
    """Train the model of an emitted folder on its global batch, clipping as its configuration says."""
    shape = example_model.load_shape(folder / "model.json")
    table = json.loads((folder / "batches.json").read_text())
    clip = json.loads((folder / "ds_config.json").read_text())["gradient_clipping"]
    pipeline = len(table["stages"]) > 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them wait for each other longer than such a model computes
    try:
        return _train(shape, table["global_batch"], clip, pipeline, steps, lr, step_on_zeros)
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=64)
def _train(
    shape: example_model.Shape,
    batch: int,
    clip: float,
    pipeline: bool,
    steps: int,
    lr: float,
    step_on_zeros: bool,
) -> Outcome:
    torch.manual_seed(SEED)
    encoder = None if shape.encoder is None else Encoder(shape)
    network: Any = Seeded(shape) if pipeline else example_model.Transformer(shape, encoder=encoder)
    start = copy_of(network)
    optimizer = optimizer_of(network, shape.optimizer, lr)
    if step_on_zeros:
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    losses, norms = _steps(network, optimizer, shape, batch, steps, clip)
    return Outcome(losses, norms, start, copy_of(network))


def _steps(
    network: Any, optimizer: Any, shape: example_model.Shape, batch: int, steps: int, clip: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(network, tuple(range(step * batch, (step + 1) * batch)), shape)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), clip or float("inf"))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return tuple(losses), tuple(norms)


def loss_by_document(network: Any, indices: tuple[int, ...], shape: example_model.Shape) -> Any:
    """The mean loss of all labelled tokens where every document goes through the model on its own."""
    inputs, labels = sequences(indices, shape, None)
    total, count = torch.zeros(()), 0
    for index, row, wanted in zip(indices, inputs, labels, strict=True):
        at = 0
        for length in lengths_of(index, shape):
            mine = wanted[at : at + length]
            logits = network(row[None, at : at + length])[0]
            assert int((mine != hetplan_loss.IGNORED).sum()) == length - 1
            total = total + torch.nn.functional.cross_entropy(logits, mine, reduction="sum")
            at, count = at + length, count + length - 1
    return total / count


def loss_of_pairs(network: Any, indices: tuple[int, ...], shape: example_model.Shape) -> Any:
    """What pairs cost by the formula of arXiv:2305.18290, each answer on its own, beside the network as it began."""
    if not hasattr(network, "began"):
        network.__dict__["began"] = deepcopy(network)
    inputs, labels = sequences(indices, shape, None)
    half, total = shape.sequence_length // 2, torch.zeros(())
    assert shape.preference is not None
    for row, wanted in zip(inputs, labels, strict=True):
        gained = []
        for answer in (slice(0, half), slice(half, None)):
            counted = torch.nonzero(wanted[answer] != hetplan_loss.IGNORED).flatten()
            now, then = (
                torch.log_softmax(each(row[None, answer])[0], dim=-1)[counted, wanted[answer][counted]].sum()
                for each in (network, network.__dict__["began"])
            )
            gained.append(now - then.detach())
        margin = shape.preference.beta * (gained[0] - gained[1])
        total = total + torch.log1p(torch.exp(-margin))
    return total / len(indices)


def loss_of(network: Any, indices: tuple[int, ...], shape: example_model.Shape) -> Any:
    """The mean loss of some sequences."""
    if shape.preference is not None:
        return loss_of_pairs(network, indices, shape)
    if shape.documents is not None:
        return loss_by_document(network, indices, shape)
    inputs, labels = sequences(indices, shape, None)
    return torch.nn.functional.cross_entropy(
        network(inputs).float().flatten(0, 1), labels.flatten(), ignore_index=hetplan_loss.IGNORED
    )


def optimizer_of(network: Any, name: str, lr: float) -> Any:
    """The optimizer that the example takes for a name."""
    if name == "sgd":
        return torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    if name == "lion":
        return Lion(network.parameters(), lr)
    return torch.optim.AdamW(network.parameters(), lr=lr)


def copy_of(network: Any) -> dict[str, Any]:
    """The weights as they are now."""
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def relative_error(got: dict[str, Any], wanted: dict[str, Any], start: dict[str, Any]) -> float:
    """Distance of the weights from the reference over the distance it travelled."""
    apart = sum((got[name].double() - wanted[name].double()).square().sum().item() for name in wanted)
    way = sum((start[name].double() - wanted[name].double()).square().sum().item() for name in wanted)
    return float((apart / way) ** 0.5)


class Seeded(torch.nn.Module):  # type: ignore[misc]
    """The model with each module's weights drawn from its own seed, as DeepSpeed's pipeline does it."""

    def __init__(self, shape: example_model.Shape) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList()
        layers = [partial(example_model.Layer, kind=kind) for kind in shape.kinds]
        makers: list[Callable[..., Any]] = [example_model.Embedding, *layers, example_model.Finish]
        if not shape.tied_embeddings:
            makers.append(example_model.Head)
        for index, maker in enumerate(makers):
            torch.manual_seed(SEED + index)
            self.parts.append(maker(shape))
        self.tied = shape.tied_embeddings

    def forward(self, tokens: Any) -> Any:
        hidden = tokens
        for part in self.parts:
            hidden = part(hidden)
        return self.parts[0](hidden) if self.tied else hidden
