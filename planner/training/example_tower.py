"""A tower that turns images into tokens ahead of the text's own: patches, layers of full attention, a projector.

The example has no images: it makes patches of the tokens of each sequence, so that every plan sees the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

from planner.training.example_model import Layer, Linear, Shape, norm_of, table

EVERY = ("embedding", "attention", "mlp", "norms", "head")


@dataclass(frozen=True)
class TowerShape:
    """Sizes of a tower, as under ``tower`` in ``model.json``."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    gated_mlp: bool
    norm: str
    bias: bool
    patch: int
    patch_bias: bool
    tokens: int
    outputs: int
    positions: int
    class_token: bool
    norm_first: bool
    norm_last: bool
    merged: int
    projector: tuple[int, ...]
    projector_bias: bool
    projector_norm: bool
    images: int
    frozen: bool
    window: int | None
    window_layers: int | None
    other_parameters: int
    """Parameters that no token meets, which the example leaves out."""


class Tower(nn.Module):  # type: ignore[misc]
    """Puts what it makes of images in place of the first tokens of each sequence."""

    def __init__(
        self,
        shape: Shape,
        tower: TowerShape,
        recompute: str = "none",
        place: Callable[[nn.Module], None] = lambda _: None,
    ) -> None:
        """``place`` is called with each layer as soon as it is there."""
        super().__init__()
        self.shape = tower
        # Adapters stand in the text's layers.
        frozen = tower.frozen or shape.lora is not None
        own = layer_shape(shape, tower, frozen)
        width = tower.hidden
        self.patches = Linear(tower.patch, width, bias=tower.patch_bias)
        self.positions = table(tower.positions, width)
        self.first_token = table(int(tower.class_token), width)
        self.norm_first = norm_of(own, width, tower.norm_first)
        self.norm_last = norm_of(own, width, tower.norm_last)
        for each in (self.patches, self.norm_first, self.norm_last):
            each.requires_grad_(not frozen)
        for parameter in (self.positions, self.first_token):
            if parameter is not None:
                parameter.requires_grad_(not frozen)
        self.layers = nn.ModuleList()
        for _ in range(tower.layers):
            layer = Layer(own, recompute)
            place(layer)
            self.layers.append(layer)
        self.norm = norm_of(own, width, tower.projector_norm)
        widths = (tower.merged * width, *tower.projector)
        self.projector = nn.ModuleList(
            Linear(inputs, outputs, bias=tower.projector_bias) for inputs, outputs in pairwise(widths)
        )
        for each in (self.norm, self.projector):
            each.requires_grad_(shape.lora is None)

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        made = self._images(tokens, hidden.dtype).view(len(tokens), -1, hidden.shape[-1])[
            :, : hidden.shape[1]
        ]
        return torch.cat((made, hidden[:, made.shape[1] :]), dim=1)

    def _images(self, tokens: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        tower = self.shape
        width = torch.arange(1, tower.patch + 1, device=tokens.device)
        count = tower.images * (tower.tokens - int(tower.class_token))
        seeds = tokens.repeat(1, -(-count // tokens.shape[1]))[:, :count] + torch.arange(
            count, device=tokens.device
        )
        pixels = torch.sin(seeds.unsqueeze(-1) * width.float()).to(kind)
        inner = self.patches(pixels.view(len(tokens) * tower.images, -1, tower.patch))
        if self.first_token is not None:
            inner = torch.cat((self.first_token.to(inner.dtype).expand(len(inner), 1, -1), inner), dim=1)
        if self.positions is not None:
            inner = inner + self.positions[: inner.shape[1]].to(inner.dtype)
        inner = self.norm_first(inner)
        for layer in self.layers:
            inner = layer(inner)
        inner = self.norm(self.norm_last(inner)[:, int(tower.class_token) :])
        if tower.merged > 1:
            inner = inner.unflatten(1, (-1, tower.merged)).flatten(2)
        if inner.shape[1] > tower.outputs:
            inner = functional.adaptive_avg_pool1d(inner.transpose(1, 2), tower.outputs).transpose(1, 2)
        for index, each in enumerate(self.projector):
            inner = each(functional.gelu(inner) if index else inner)
        return inner


def layer_shape(shape: Shape, tower: TowerShape, frozen: bool) -> Shape:
    """That of a model of the tower's layers alone."""
    changes: dict[str, Any] = {
        "kind": "encoder",
        "hidden": tower.hidden,
        "heads": tower.heads,
        "kv_heads": tower.heads,
        "head_dim": tower.hidden // tower.heads,
        "ffn": tower.ffn,
        "gated_mlp": tower.gated_mlp,
        "norm": tower.norm,
        "layer_norms": 2,
        "qk_norm": False,
        "learned_positions": tower.positions,
        "freeze": EVERY if frozen else (),
        "mixer": "attention",
        "feed_forward": "dense",
        "output_gate": False,
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), tower.bias),
        **dict.fromkeys(("value_dim", "experts", "state", "lora", "tower"), None),
        # Numerics are those of the text.
        **dict.fromkeys(("activation", "norm_epsilon"), None),
        **dict.fromkeys(("ahead", "block", "behind"), ()),
        "dense_layers": 0,
    }
    return replace(shape, **changes)
