"""Matrices beside the layers: of what sees or hears, and of layers of other widths than these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from planner.training.example_model import Linear


@dataclass(frozen=True)
class BesideShape:
    """Equal matrices, as under ``beside`` in ``model.json``."""

    inputs: int
    outputs: int
    tokens: int
    times: int
    bias: bool
    weights: bool
    """False for products of tokens with each other, which the example leaves out."""


class Beside(nn.Module):  # type: ignore[misc]
    """Each works on tokens of its own, and adds the mean of what it makes to the embedding of its sequence."""

    def __init__(self, products: tuple[BesideShape, ...], frozen: bool = False) -> None:
        super().__init__()
        self.products = tuple(each for each in products if each.weights)
        self.matrices = nn.ModuleList(
            nn.ModuleList(Linear(each.inputs, each.outputs, bias=each.bias) for _ in range(each.times))
            for each in self.products
        )
        self.requires_grad_(not frozen)

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        for each, group in zip(self.products, self.matrices, strict=True):
            inputs = _inputs(tokens, each).to(hidden.dtype)
            for matrix in group:
                hidden = hidden + matrix(inputs).mean(dim=(1, 2), keepdim=True)
        return hidden


def _inputs(tokens: torch.Tensor, each: BesideShape) -> torch.Tensor:
    """Numbers that follow from the tokens of a sequence, and so from no plan."""
    places = torch.arange(each.tokens, device=tokens.device)
    seeds = tokens[:, places % tokens.shape[1]] + places
    width = torch.arange(1, each.inputs + 1, device=tokens.device)
    return torch.sin(seeds.unsqueeze(-1) * width.float())
