"""A plain transformer of the planned shape, as a list of modules that a pipeline can cut anywhere."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint

ROTARY_BASE = 10_000.0
INITIAL_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, as in ``model.json``."""

    name: str
    kind: str
    """``decoder`` (causal) or ``encoder`` (full attention)."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated_mlp: bool
    vocab: int
    tied_embeddings: bool
    learned_positions: int
    """Rows of the position table; 0 for rotary positions."""
    sequence_length: int
    optimizer: str
    """``adamw`` or ``sgd``."""


def load_shape(path: str | os.PathLike[str]) -> Shape:
    """The shape in a ``model.json``."""
    return Shape(**json.loads(Path(path).read_text(encoding="utf-8")))


class Linear(nn.Linear):  # type: ignore[misc]
    """A linear layer that starts from a narrow normal distribution."""

    def reset_parameters(self) -> None:
        """Initialise while the weight is whole: ZeRO-3 shards a module once it is built."""
        nn.init.normal_(self.weight, std=INITIAL_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Module):  # type: ignore[misc]
    """Token and position embedding; a tied head asks it for the logits of hidden states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.vocab, shape.hidden).normal_(std=INITIAL_STD))
        self.positions = None
        if shape.learned_positions:
            table = torch.empty(shape.learned_positions, shape.hidden).normal_(std=INITIAL_STD)
            self.positions = nn.Parameter(table)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.is_floating_point():
            return functional.linear(inputs, self.weight)
        hidden = functional.embedding(inputs, self.weight)
        return hidden if self.positions is None else hidden + self.positions[: inputs.shape[1]]


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward with norms ahead of both."""

    def __init__(self, shape: Shape, recompute: str = "none") -> None:
        super().__init__()
        self.shape = shape
        self.recompute = recompute
        bias = not shape.gated_mlp
        self.norm_attention = make_norm(shape)
        self.query = Linear(shape.hidden, shape.heads * shape.head_dim, bias=bias)
        self.key_value = Linear(shape.hidden, 2 * shape.kv_heads * shape.head_dim, bias=bias)
        self.output = Linear(shape.heads * shape.head_dim, shape.hidden, bias=bias)
        self.norm_mlp = make_norm(shape)
        self.up = Linear(shape.hidden, shape.ffn * (2 if shape.gated_mlp else 1), bias=bias)
        self.down = Linear(shape.ffn, shape.hidden, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.recompute == "full" and torch.is_grad_enabled():
            return checkpoint(self._forward, hidden, use_reentrant=False)
        return self._forward(hidden)

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self._attention(self.norm_attention(hidden))
        return hidden + self._mlp(self.norm_mlp(hidden))

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        heads, groups, width = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        query = self.query(hidden).view(batch, length, heads, width).transpose(1, 2)
        key, value = (
            self.key_value(hidden).view(batch, length, 2 * groups, width).transpose(1, 2).chunk(2, dim=1)
        )
        if not self.shape.learned_positions:
            query, key = rotate(query), rotate(key)
        key, value = (each.repeat_interleave(heads // groups, dim=1) for each in (key, value))
        causal = self.shape.kind == "decoder"
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, heads * width))

    def _mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.shape.gated_mlp:
            return self.down(functional.gelu(self.up(hidden)))
        gate, up = self.up(hidden).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class Head(nn.Module):  # type: ignore[misc]
    """Output layer that is not tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.project = Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.project(hidden)


class Transformer(nn.Module):  # type: ignore[misc]
    """The whole model on one rank, for runs without a pipeline."""

    def __init__(self, shape: Shape, recompute: str = "none") -> None:
        super().__init__()
        self.embedding = Embedding(shape)
        self.layers = nn.ModuleList(Layer(shape, recompute) for _ in range(shape.layers))
        self.norm = make_norm(shape)
        self.head = None if shape.tied_embeddings else Head(shape)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.norm(hidden)
        return self.embedding(hidden) if self.head is None else self.head(hidden)


def make_norm(shape: Shape) -> Any:
    """RMSNorm with gated layers, LayerNorm otherwise."""
    return nn.RMSNorm(shape.hidden) if shape.gated_mlp else nn.LayerNorm(shape.hidden)


def rotate(heads: torch.Tensor) -> torch.Tensor:
    """Rotary positions on [batch, head, position, width]."""
    length, width = heads.shape[-2:]
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, device=heads.device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, device=heads.device, dtype=torch.float32), rates)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    even, odd = heads.chunk(2, dim=-1)
    return torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens; labels below zero do not count."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)
